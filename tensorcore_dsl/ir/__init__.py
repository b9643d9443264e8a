"""The typed IR of a kernel: nodes, text form, verifier and optimisations."""
