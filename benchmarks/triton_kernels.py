"""Triton kernels that ours are compared with; imported only where Triton is."""

import triton
import triton.language as tl


@triton.jit
def touch(a, b, c, rows: tl.int32, columns: tl.int32):
    pass
