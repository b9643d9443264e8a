"""Second kernel of split-K in memory: D = epilogue(alpha (sum of partials) + beta C).

There is one kernel for each type of accumulators.
"""

from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereTraits
from tensorcore_dsl.kernels.epilogue_arithmetic import Output

THREADS = 256  # threads of a CTA
BYTES = 16  # of the neighbouring sums that a thread adds, if rows are multiples of 16 bytes


@tc.kernel
def sum_f32_partials(
    partials: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    parts: tc.Const,
    width: tc.Const = 1,
    traits: tc.Const = AmpereTraits(),
):
    """Add up f32 partials, parts x M x N, in the order of the parts; `width` neighbours a thread.

    Grid: N / (256 width) CTAs for each row of D.
    """
    add_up(partials, Output(c, d, alpha, beta, traits), parts, width)


@tc.kernel
def sum_f64_partials(
    partials: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f64,
    beta: tc.f64,
    parts: tc.Const,
    width: tc.Const = 1,
    traits: tc.Const = AmpereTraits(),
):
    """Add up f64 partials, see `sum_f32_partials`."""
    add_up(partials, Output(c, d, alpha, beta, traits), parts, width)


@tc.kernel
def sum_s32_partials(
    partials: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.s32,
    beta: tc.s32,
    parts: tc.Const,
    width: tc.Const = 1,
    traits: tc.Const = AmpereTraits(),
):
    """Add up s32 partials, see `sum_f32_partials`."""
    add_up(partials, Output(c, d, alpha, beta, traits), parts, width)


SUMS: dict[tc.DType, Any] = {tc.f32: sum_f32_partials, tc.f64: sum_f64_partials, tc.s32: sum_s32_partials}


def add_up(partials, output: Output, parts: int, width: int):
    """The body of every kernel: `width` elements of D a thread, which divides N."""
    c, d, traits = output.c, output.d, output.traits
    tc.launch_bounds(THREADS)
    if tc.arch_number() >= 90:
        tc.griddep_wait()
        tc.griddep_launch_dependents()
    cols = d.shape[1]
    across = (cols + (THREADS * width - 1)) // (THREADS * width)
    row = tc.blockIdx.x // across
    first = (tc.blockIdx.x % across * THREADS + tc.threadIdx.x) * width
    if first < cols:
        sums_by_part = [
            partials.at(part, row, first).load(width).elements()
            if width > 1
            else [partials[part, row, first]]
            for part in range(parts)
        ]
        totals = sums_by_part[0]
        for addends in sums_by_part[1:]:
            totals = [x + y for x, y in zip(totals, addends, strict=True)]
        coords = [(row, first + i) for i in range(width)]
        addends = [c[at] for at in coords] if traits.has_c else ()
        values = [value.to(d.dtype) for value in output.finished(totals, addends, coords)]
        if width > 1 and traits.vec_d >= width * d.dtype.itemsize:
            d.at(row, first).store(values)
        else:
            for at, value in zip(coords, values, strict=True):
                d[at] = value
