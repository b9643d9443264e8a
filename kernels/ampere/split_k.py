"""Second kernel of split-K with `mma.sync`: D = epilogue(alpha (partial sums) + beta C).

There is one for each type of accumulators.
"""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereTraits
from tensorcore_dsl.kernels.epilogue_arithmetic import finished

THREADS = 256
COLUMNS = 4  # of a thread


@tc.kernel
def sum_f32_partials(
    partials: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f32, beta: tc.f32,
    parts: tc.Const, traits: tc.Const = AmpereTraits(),
):  # fmt: skip
    """partials is parts x M x N, added up in order. Grid: N / 1024 CTAs for each row of D."""
    add_up(partials, c, d, alpha, beta, parts, traits)


@tc.kernel
def sum_f64_partials(
    partials: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f64, beta: tc.f64,
    parts: tc.Const, traits: tc.Const = AmpereTraits(),
):  # fmt: skip
    """The same in f64."""
    add_up(partials, c, d, alpha, beta, parts, traits)


@tc.kernel
def sum_s32_partials(
    partials: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.s32, beta: tc.s32,
    parts: tc.Const, traits: tc.Const = AmpereTraits(),
):  # fmt: skip
    """The same in s32."""
    add_up(partials, c, d, alpha, beta, parts, traits)


SUMS = {tc.f32: sum_f32_partials, tc.f64: sum_f64_partials, tc.s32: sum_s32_partials}


def add_up(partials, c, d, alpha, beta, parts: int, traits: AmpereTraits):
    """The body of every kernel: four elements of D a thread."""
    tc.launch_bounds(THREADS)
    if tc.arch_number() >= 90:
        tc.griddep_wait()
        tc.griddep_launch_dependents()
    cols = d.shape[1]
    across = (cols + (THREADS * COLUMNS - 1)) // (THREADS * COLUMNS)
    row, first = tc.blockIdx.x // across, tc.blockIdx.x % across * THREADS * COLUMNS
    for i in tc.static_range(COLUMNS):
        col = first + i * THREADS + tc.threadIdx.x
        if col < cols:
            total = partials[0, row, col]
            for part in tc.static_range(1, parts):
                total += partials[part, row, col]
            addends = [c[row, col]] if traits.has_c else ()
            (value,) = finished([total], addends, [(row, col)], alpha, beta, traits)
            d[row, col] = value.to(d.dtype)
