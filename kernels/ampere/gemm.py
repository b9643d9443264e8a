"""D = alpha A B + beta C with `mma.sync`, for sm_80 and later: one kernel per element type.

A CTA computes one BM x BN tile of D, and the grid has one CTA per tile. A is M x K, B is K x N,
each of any strides. `mainloop.py` has the parts that the kernels share.
"""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereConfig, AmpereTraits
from tensorcore_dsl.kernels.ampere.epilogue import store_tile
from tensorcore_dsl.kernels.ampere.mainloop import cta_tile, k_range, mma_mainloop, mma_step
from tensorcore_dsl.kernels.epilogue_arithmetic import Output
from tensorcore_dsl.kernels.split_f32 import split_all


@tc.kernel
def f16_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    config: tc.Const = AmpereConfig(),
    traits: tc.Const = AmpereTraits(),
    accumulate: tc.Const = tc.f32,
):
    """f16 operands; accumulators are f32 or f16."""
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, accumulate)
    compute_tile(mma, a, b, c, d, alpha, beta, config, traits)


@tc.kernel
def bf16_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    config: tc.Const = AmpereConfig(),
    traits: tc.Const = AmpereTraits(),
):
    """bf16 operands; accumulators are f32."""
    compute_tile(tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32), a, b, c, d, alpha, beta, config, traits)


@tc.kernel
def tf32_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    config: tc.Const = AmpereConfig(),
    traits: tc.Const = AmpereTraits(),
):
    """f32 operands, whose upper 19 bits the hardware reads; accumulators are f32."""
    compute_tile(tc.mma.m16n8k8(tc.tf32, tc.tf32, tc.f32), a, b, c, d, alpha, beta, config, traits)


@tc.kernel
def f32_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    config: tc.Const = AmpereConfig(),
    traits: tc.Const = AmpereTraits(),
):
    """f32 operands, each split in two tf32; accumulators are f32, added to in f32."""
    mma = tc.mma.m16n8k8(tc.tf32, tc.tf32, tc.f32)
    compute_tile(mma, a, b, c, d, alpha, beta, config, traits, mma_step_of_parts)


@tc.kernel
def s8_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.s32,
    beta: tc.s32,
    config: tc.Const = AmpereConfig(),
    traits: tc.Const = AmpereTraits(),
):
    """s8 or u8 operands; accumulators are s32."""
    mma = tc.mma.m16n8k32(a.dtype, b.dtype, tc.s32)
    compute_tile(mma, a, b, c, d, alpha, beta, config, traits)


@tc.kernel
def f64_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f64,
    beta: tc.f64,
    config: tc.Const = AmpereConfig(),
    traits: tc.Const = AmpereTraits(),
):
    """f64 operands and accumulators.

    sm_90 adds instructions of 16 rows with 4, 8 or 16 of K. The kernel takes 4 of K, which leaves
    registers for a larger tile. Every instruction gives equal bits: a chain of fused multiply-adds in
    the order of k.
    """
    name = "m8n8k4" if tc.arch_number() < 90 else "m16n8k4"
    mma = getattr(tc.mma, name)(tc.f64, tc.f64, tc.f64)
    compute_tile(mma, a, b, c, d, alpha, beta, config, traits)


def compute_tile(mma, a, b, c, d, alpha, beta, config: AmpereConfig, traits: AmpereTraits, mma_step=mma_step):
    """The body of every kernel: find the CTA's tile, accumulate over K, store.

    With split-K, d has the partial sums, split_k x M x N, and every CTA multiplies a part of K.
    """
    tc.launch_bounds(config.threads)
    if tc.arch_number() >= 90:  # programmatic dependent launch: the previous kernel may still run
        tc.griddep_wait()
        tc.griddep_launch_dependents()
    if config.split_k > 1:
        part = tc.blockIdx.x % config.split_k
        first, end = k_range(a.shape[1], part, config)
        a, b, d = a[:, first:end], b[first:end], d[part]
    m0, n0 = cta_tile(a.shape[0], b.shape[1], config)
    acc, m, n = mma_mainloop(a, b, mma, m0, n0, config, traits, mma_step)
    store_tile(acc, m, n, mma, Output(c, d, alpha, beta, traits))


def mma_step_of_parts(acc, mma, fa, fb):
    """acc[i][j] += fa[i] fb[j] to f32 accuracy: three tf32 products, small terms first.

    Tensor cores truncate their sums. So each K-step starts from zeros, and f32 additions, which
    round to nearest, add its sum to the accumulators.
    """
    fragments = [*fa, *fb]
    all_parts = split_all([x.bits(tc.f32) for fragment in fragments for x in fragment])
    converted, first = [], 0
    for fragment in fragments:
        end = first + len(fragment)
        converted.append([as_fragment(fragment.operand, part[first:end]) for part in all_parts])
        first = end
    fa, fb = converted[: len(fa)], converted[len(fa) :]
    for i in tc.static_range(len(acc)):
        for j in tc.static_range(len(acc[0])):
            j = len(acc[0]) - 1 - j if i % 2 else j
            (a_high, a_low), (b_high, b_low) = fa[i], fb[j]
            products = mma(a_low, b_high, mma.d.zeros())
            products = mma(a_high, b_low, products)
            acc[i][j] = acc[i][j] + mma(a_high, b_high, products)


def as_fragment(operand, elements):
    """Convert f32 elements to a fragment of tf32."""
    return tc.fragment(operand, [x.bits(tc.tf32) for x in elements])
