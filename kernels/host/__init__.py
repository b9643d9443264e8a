"""`gemm` and related functions on the host: check operands, choose a kernel and configuration, launch."""
