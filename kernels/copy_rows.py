"""Copy a matrix whose rows start anywhere to or from one with padded rows."""

from typing import Any

import tensorcore_dsl as tc

THREADS, EACH = 256, 8  # elements that a thread copies, THREADS apart: neighbours stay together


@tc.kernel
def copy_kernel(source: tc.Array, target: tc.Array):
    """One block copies up to THREADS * EACH elements of a row."""
    tc.launch_bounds(THREADS)
    cols = source.shape[1]
    parts = (cols + (THREADS * EACH - 1)) // (THREADS * EACH)
    row, part = tc.blockIdx.x // parts, tc.blockIdx.x % parts
    first = part * (THREADS * EACH) + tc.threadIdx.x
    inside = [first + i * THREADS < cols for i in range(EACH)]
    values = [source.at(row, first + i * THREADS).load(pred=inside[i]) for i in range(EACH)]
    for i in tc.static_range(EACH):
        target.at(row, first + i * THREADS).store(values[i], pred=inside[i])


def copy_rows(source: Any, target: Any) -> None:
    """target[...] = source, for matrices of one shape with contiguous rows."""
    rows, cols = source.shape
    parts = -(-cols // (THREADS * EACH))
    copy_kernel[rows * parts, THREADS](source, target)
