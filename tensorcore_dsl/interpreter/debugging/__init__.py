"""The debugger of kernels, and traces of variables."""
