"""The typed IR: nodes, text form, verifier, register coalescing."""
