"""What a user writes in a kernel, one module a topic."""
