"""D = alpha A B + beta C of few rows or columns, without tensor cores.

The kernels multiply f64 in f64, all other types in f32. Reading the larger operand sets the time.
Plain loads read lines of any alignment at the speed of the memory, where copies to shared memory
would move single elements. *Vectors* are the few rows of A (or columns of B), *lines* are the
columns of B (or rows of A).

All warps of a CTA have the same lines, and share K. If K is contiguous in the lines, thread t
multiplies the elements t, t + chains, t + 2 chains, ... of each line, so neighbouring threads read
neighbouring elements. If the lines lie side by side, neighbouring lanes read neighbouring lines. A
warp then reads 4 elements of K at once in tiles of 8 lines, 2 in tiles of 16, and 1 in larger ones.

An element of D is the sum of `config.chains` chains of fused multiply-adds, each in the order of K. The
chains of a warp are added in pairs whose lanes are 16 apart, then 8, 4, 2, 1. The sums of the warps
are added from warp 0 on. An f64 sum that is NaN is the canonical NaN.
"""

from __future__ import annotations

import math
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import WARP, AmpereTraits, VectorConfig
from tensorcore_dsl.kernels.ampere.mainloop import cta_tile
from tensorcore_dsl.kernels.epilogue_arithmetic import Output

TF32_BITS = 0xFFFFE000  # the bits of an f32 that tensor cores read as tf32


@tc.kernel
def vector_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    config: tc.Const = VectorConfig(),
    traits: tc.Const = AmpereTraits(),
):
    """A is M x K, B is K x N, of f32, f16 or bf16. Grid: one CTA for each tile of D."""
    multiply_vectors(a, b, Output(c, d, alpha, beta, traits), config, as_f32)


@tc.kernel
def f64_vector_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f64,
    beta: tc.f64,
    config: tc.Const = VectorConfig(),
    traits: tc.Const = AmpereTraits(),
):
    """A is M x K, B is K x N, of f64. Grid: one CTA for each tile of D."""
    multiply_vectors(a, b, Output(c, d, alpha, beta, traits), config, as_f64)


@tc.kernel
def tf32_vector_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    config: tc.Const = VectorConfig(),
    traits: tc.Const = AmpereTraits(),
):
    """A is M x K, B is K x N, of f32, read as tf32. Grid: one CTA for each tile of D."""
    multiply_vectors(a, b, Output(c, d, alpha, beta, traits), config, as_tf32)


def as_f32(x):
    """Convert an element to f32."""
    return x.to(tc.f32)


def as_f64(x):
    """Convert an element to f64."""
    return x.to(tc.f64)


def as_tf32(x):
    """Clear the lower 13 bits of an f32, which tensor cores do not read."""
    return (x.bits(tc.u32) & TF32_BITS).bits(tc.f32)


def multiply_vectors(a, b, output: Output, config: VectorConfig, operand):
    """Body of all kernels. operand: function that converts an element of A or B."""
    c, d = output.c, output.d
    tc.launch_bounds(config.threads)
    if tc.arch_number() >= 90:  # programmatic dependent launch: the previous kernel may still run
        tc.griddep_wait()
        tc.griddep_launch_dependents()
    m0, n0 = cta_tile(a.shape[0], b.shape[1], config)
    if config.BM < config.BN:
        vectors, lines, first = (a, m0), b.T, n0
    else:
        vectors, lines, first = (b.T, n0), a, m0
    count, width, warps = config.vectors, config.lines, config.warps
    dtype = sum_type(operand)
    shared = tc.shared((warps, count * width), dtype)  # sums of the warps
    warp_sums = shared[tc.warp_id()]
    if config.along_k:
        chains_of_k(vectors, lines, first, warp_sums, config, operand)
    else:
        chains_of_lines(vectors, lines, first, warp_sums, config, operand)
    tc.barrier()  # read after write: threads add up the sums of other warps
    for at in tc.range(tc.threadIdx.x, count * width, config.threads):
        r, i = at // width, at % width
        total = shared[0, at]
        for warp in tc.static_range(1, warps):
            total = total + shared[warp, at]
        if dtype == tc.f64:  # the assembler may exchange factors, which changes the bits of a NaN
            total = tc.select(total == total, total, math.nan)
        row, col = (m0 + r, n0 + i) if config.BM < config.BN else (m0 + i, n0 + r)
        if (row < d.shape[0]) & (col < d.shape[1]):
            addends = [c[row, col]] if output.traits.has_c else ()
            (value,) = output.finished([total], addends, [(row, col)])
            d[row, col] = value.to(d.dtype)


def sum_type(operand):
    """Type of the sums of a kernel whose operands are converted by `operand`."""
    return tc.f64 if operand is as_f64 else tc.f32


def chains_of_k(vectors, lines, first, warp_sums, config: VectorConfig, operand):
    """Store this warp's sums in shared memory, vector by vector; K is contiguous in the lines."""
    limit, K = lines.shape
    k0 = tc.threadIdx.x
    line_pointers = [lines.at(min(first + i, limit - 1), k0) for i in range(config.lines)]
    vector_pointers = pointers_of(vectors, k0, config)
    acc = accumulate(line_pointers, vector_pointers, 1, vectors[0].strides[1], K - k0, config, operand)
    total, lanes = sum_of_lanes([x for sums in acc for x in sums])
    if tc.lane_id() % lanes == 0:
        warp_sums[tc.lane_id() // lanes] = total


def sum_of_lanes(values):
    """Sum each of 1, 2, 4, ... 32 values over all lanes; also returns how many adjacent lanes hold it.

    While a lane has several values, it keeps one half of them and sends the other half, which saves
    shuffles. The order of the additions is that of lanes 16, 8, 4, 2 and 1 apart.
    """
    lane, distance, lanes = tc.lane_id(), WARP, WARP
    while distance > 1:
        distance //= 2
        if len(values) > 1:
            half, is_upper = len(values) // 2, lane & distance != 0
            pairs = list(zip(values[:half], values[half:], strict=True))
            kept = [tc.select(is_upper, y, x) for x, y in pairs]
            sent = [tc.select(is_upper, x, y) for x, y in pairs]
            lanes = distance
        else:
            kept = sent = values
        values = [x + tc.shfl_xor(y, distance) for x, y in zip(kept, sent, strict=True)]
    return values[0], lanes


def chains_of_lines(vectors, lines, first, warp_sums, config: VectorConfig, operand):
    """Store this warp's sums in shared memory; lines lie side by side, one lane each."""
    limit, K = lines.shape
    beside = min(config.lines, WARP)
    k0 = tc.warp_id() * (WARP // beside) + tc.lane_id() // beside
    column = tc.lane_id() % beside
    columns = [first + i * beside + column for i in range(config.lines // beside)]
    line_pointers = [lines.at(min(line, limit - 1), k0) for line in columns]
    vector_pointers = pointers_of(vectors, k0, config)
    steps = lines.strides[1], vectors[0].strides[1]
    acc = accumulate(line_pointers, vector_pointers, *steps, K - k0, config, operand)
    distance = WARP // 2
    while distance >= beside:
        acc = [[x + tc.shfl_xor(x, distance) for x in sums] for sums in acc]
        distance //= 2
    if tc.lane_id() < beside:
        for r, sums in enumerate(acc):
            for i, total in enumerate(sums):
                warp_sums[r * config.lines + i * beside + column] = total


def pointers_of(vectors, k0, config: VectorConfig):
    """Pointer to element `k0` of each vector of the tile. Vectors outside the matrix become the last one."""
    matrix, first = vectors
    limit = matrix.shape[0]
    return [matrix.at(min(first + r, limit - 1), k0) for r in range(config.vectors)]


def accumulate(line_pointers, vector_pointers, line_step, vector_step, left, config: VectorConfig, operand):
    """acc[r][i] = sum of vector r times line i, over every `chains`-th of the `left` elements of K.

    A thread loads a group of `unroll` elements of each while it multiplies the group before.
    """
    chains, group = config.chains, config.unroll

    def load(start):
        """Load the elements of a group; zeros beyond the end of K."""
        elements: list[list[Any]] = []
        for u in range(group):
            k = (start + u) * chains
            inside = k < left
            elements.append(
                [(p + k * line_step).load(pred=inside) for p in line_pointers]
                + [(p + k * vector_step).load(pred=inside) for p in vector_pointers]
            )
        return elements

    acc = [[sum_type(operand)(0) for _ in line_pointers] for _ in vector_pointers]
    loaded = load(0)
    for step in tc.range((left + (chains * group - 1)) // (chains * group)):
        later = load((step + 1) * group)
        for raw in loaded:
            elements = [operand(x) for x in raw]  # converted late: nothing waits for the loads of `later`
            line_elements, vector_elements = elements[: len(line_pointers)], elements[len(line_pointers) :]
            acc = [
                [tc.fma(x, y, total) for x, total in zip(line_elements, sums, strict=True)]
                for y, sums in zip(vector_elements, acc, strict=True)
            ]
        loaded = later
    return acc
