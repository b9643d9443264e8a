"""GEMM kernels for sm_90a: TMA, mbarriers, wgmma, persistent warp-specialised CTAs."""
