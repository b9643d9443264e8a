"""GEMM kernels with `mma.sync`, for sm_80 and later."""
