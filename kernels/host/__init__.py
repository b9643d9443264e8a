"""`gemm` and related functions on the host: check operands, choose a kernel, launch it."""
