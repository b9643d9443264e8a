"""Instructions of the table as functions in Numba's `@cuda.jit` kernels; see `docs/numba.md`."""

from tensorcore_dsl.numba.intrinsics import intrinsic, mma, wgmma, wmma
from tensorcore_dsl.numba.matrices import (
    coordinates,
    ldmatrix,
    load_elements,
    movmatrix,
    stmatrix,
    store_elements,
)
from tensorcore_dsl.numba.registers import zeros
from tensorcore_dsl.numba.shared import (
    cp_async,
    cp_async_commit,
    cp_async_wait,
    fence_proxy_async,
    shared_address,
    wgmma_commit,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_wait,
)

__all__ = [
    "coordinates", "cp_async", "cp_async_commit", "cp_async_wait", "fence_proxy_async", "intrinsic",
    "ldmatrix", "load_elements", "mma", "movmatrix", "shared_address", "stmatrix", "store_elements",
    "wgmma", "wgmma_commit", "wgmma_descriptor", "wgmma_fence", "wgmma_wait", "wmma", "zeros",
]  # fmt: skip
