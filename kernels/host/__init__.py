"""`gemm` and its kin on the host: check operands, choose a kernel and configuration, launch."""
