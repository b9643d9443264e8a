"""The functions and types that users call in kernels, one module per topic."""
