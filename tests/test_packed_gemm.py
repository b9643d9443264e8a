"""Weights of 4 and 8 bits: packing, and products with activations of 16 bits."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import HopperConfig, HopperPackedConfig, PackedConfig
from tensorcore_dsl.kernels.ampere.config import AmpereTraits
from tensorcore_dsl.kernels.ampere.packed_gemm import WeightFormat, packed_gemm_kernel
from tensorcore_dsl.kernels.choosing.packed import choose_packed
from tensorcore_dsl.kernels.hopper import packed_few_rows as hopper
from tensorcore_dsl.kernels.hopper import packed_many_rows as many_rows
from tensorcore_dsl.kernels.hopper.config import HopperTraits
from tensorcore_dsl.kernels.hopper.packed_few_rows import packed_few_rows_gemm
from tests.assembler import assert_clean
from tests.attention_cases import module_of
from tests.whole_numbers import BF16, E4M3, F16

SOURCES = {tc.s4: np.int8, tc.u4: np.uint8, tc.s8: np.int8, tc.e4m3: E4M3}
CHUNK = 128


def weights(dtype: tc.DType, K: int, N: int, group: int, scale_type: Any, has_zeros: bool = False) -> Any:
    """Numbers, scales and zero points; e4m3 are multiples of 1/8, so that sums are exact."""
    draw = np.random.default_rng(K + N + group)
    low, high = {tc.s4: (-8, 8), tc.u4: (0, 16), tc.s8: (-128, 128), tc.e4m3: (-15, 16)}[dtype]
    q = draw.integers(low, high, (K, N))
    q = (q / 8).astype(E4M3) if dtype == tc.e4m3 else q.astype(SOURCES[dtype])
    scales = (draw.random((K // group, N)) + 0.5).astype(scale_type)
    zeros = draw.integers(0, 16, scales.shape).astype(np.uint8) if has_zeros else None
    return q, scales, zeros


def activations(M: int, K: int, dtype: Any) -> np.ndarray:
    return np.random.default_rng(M).integers(-4, 5, (M, K)).astype(dtype)


def expected(x: Any, q: Any, scales: Any, zeros: Any, config: Any) -> np.ndarray:
    """f32 sums in the documented order. The sum of a group is exact, and x86's long doubles hold a
    product and an accumulator, so that each fma rounds once."""
    group = len(q) // len(scales)
    w = q.astype(np.float64)
    if zeros is not None:
        w = w - np.repeat(zeros.astype(np.float64), group, axis=0)
    chunks, period = len(q) // CHUNK, min(group, CHUNK)
    warps_k = config.warps_k if isinstance(config, PackedConfig) else 1
    edges = [part * chunks // config.split_k for part in range(config.split_k + 1)]
    parts = []
    for first, end in zip(edges[:-1], edges[1:], strict=True):
        of_warps = []
        for warp in range(warps_k):
            acc = np.zeros((len(x), q.shape[1]), np.float32)
            for chunk in range(first + warp, end, warps_k):
                for k in range(chunk * CHUNK, (chunk + 1) * CHUNK, period):
                    total = x[:, k : k + period].astype(np.float64) @ w[k : k + period]
                    scale = scales[k // group].astype(np.longdouble)
                    acc = (total * scale + acc).astype(np.float32)
            of_warps.append(acc)
        parts.append(sum(of_warps[1:], of_warps[0]))
    return sum(parts[1:], parts[0])


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "shape, dtype, group, has_zeros, config",
    [
        ((5, 48, 256), tc.s4, 128, False, None),
        ((1, 16, 1280), tc.u4, 64, True, None),
        ((9, 80, 256), tc.u4, 256, False, PackedConfig(16, 2, 2, 2)),
        ((20, 144, 384), tc.s4, 32, False, PackedConfig(8, 1, 1, 2, stages=2)),
        ((33, 32, 640), tc.s8, 640, False, PackedConfig(64, 1, 1, 1, split_k=3)),
        ((17, 208, 512), tc.s8, 256, False, None),
        ((8, 32, 1024), tc.e4m3, 128, False, PackedConfig(split_k=2)),
        ((70, 96, 256), tc.e4m3, 32, False, None),
        ((12, 64, 512), tc.u4, 128, True, PackedConfig(16, 2, 1, 4)),
        ((5, 48, 256), tc.s4, 128, False, HopperPackedConfig(8, 2, 1, 2)),
        ((17, 320, 384), tc.u4, 64, True, HopperPackedConfig(16, 2, 2, 3)),
        ((70, 272, 512), tc.s4, 32, False, HopperPackedConfig(64, 2, 2, 2, split_k=2)),
        ((33, 144, 640), tc.s8, 640, False, HopperPackedConfig(64, 1, 2, 3, split_k=3)),
        ((130, 96, 256), tc.e4m3, 128, False, HopperPackedConfig(128, 2, 1, 2)),
        ((9, 64, 384), tc.u4, 384, True, HopperPackedConfig(16, 1, 1, 2)),
    ],
)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("x_type", [F16, BF16], ids=str)
def test_bits_follow_the_documented_order(shape, dtype, group, has_zeros, config, arch, x_type):
    M, N, K = shape
    if isinstance(config, HopperPackedConfig) and arch != "sm_90a":
        pytest.skip("wgmma needs sm_90a")
    x = activations(M, K, x_type)
    q, scales, zeros = weights(dtype, K, N, group, x_type, has_zeros)
    with tc.target("cpu", arch):
        packed = kernels.pack(q, scales, zeros, dtype=dtype)
        assert packed.shape == (K, N) and packed.group == group
        d = kernels.gemm(x, packed, config=config, out_dtype=tc.f32)
        chosen = config or choose_packed(M, N, K, packed.format)
    assert d.tobytes() == expected(x, q, scales, zeros, chosen).tobytes()


@pytest.mark.parametrize("x_type", [F16, BF16], ids=str)
@pytest.mark.parametrize("dtype", SOURCES, ids=str)
def test_every_number_is_exact_at_every_place(dtype, x_type):
    """Rows of the identity give the weights."""
    K, N = 128, 64
    codes = np.arange(K * N).reshape(K, N) * 7 % 256
    if dtype == tc.e4m3:
        codes[codes & 0x7F == 0x7F] = 0
        q = codes.astype(np.uint8).view(E4M3)
    elif dtype == tc.s4:
        q = (codes % 16 - 8).astype(np.int8)
    else:
        q = (codes % 16 if dtype == tc.u4 else codes).astype(np.uint8).view(SOURCES[dtype])
    packed = kernels.pack(q, np.full(N, 0.5, np.float32), dtype=dtype)
    d = kernels.gemm(np.eye(K, dtype=x_type), packed, out_dtype=tc.f32)
    assert len(np.unique(d)) == len(np.unique(q.astype(np.float32)))
    assert np.array_equal(d, q.astype(np.float32) / 2)


def test_zero_points_of_every_group():
    q, scales, _ = weights(tc.u4, 128, 32, 32, F16)
    zeros = (np.arange(4 * 32).reshape(4, 32) % 16).astype(np.int8)
    d = kernels.gemm(np.eye(128, dtype=F16), kernels.pack(q, scales, zeros, dtype=tc.u4), out_dtype=tc.f32)
    exact = (q - np.repeat(zeros, 32, axis=0).astype(np.float32)) * np.repeat(scales, 32, axis=0)
    assert np.array_equal(d, exact)


CHECKED = [
    (tc.u4, 64, True, HopperPackedConfig(16, 2, 1, 2)),
    (tc.s8, 0, False, HopperPackedConfig(16, 1, 2, 2)),
    (tc.s4, 128, False, HopperPackedConfig(8, 2, 2, 3)),
]


def checked_launch(kernel, dtype, group, has_zeros, config, order=None):
    """Multiply with all checks. Returns the product and what is expected."""
    M, N, K = 20, 144, 768
    q, scales, zeros = weights(dtype, K, N, group or K, F16, has_zeros)
    x, d = activations(M, K, F16), np.zeros((M, N), np.float32)
    packed = kernels.pack(q, scales, zeros, dtype=dtype)
    grid = -(-N // config.columns), -(-M // config.tokens)
    options: Any = {"format": packed.format, "config": config, "traits": AmpereTraits(vec_a=16, vec_d=16)}
    how = {} if order is None else {"order": order}
    launch = kernel.emulator("sm_90a", checks=True, **how)[grid, config.threads]
    launch(x, *packed.operands, d, d, 1.0, 0.0, **options)
    return d, expected(x, q, scales, zeros, config)


@pytest.mark.parametrize("case", CHECKED, ids=lambda case: f"{case[0]}")
@pytest.mark.parametrize("order", [None, 0, 1, 2])
def test_wgmma_in_any_order_with_all_checks(order, case):
    d, wanted = checked_launch(packed_few_rows_gemm, *case, order=order)
    assert d.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "text",
    [
        "tc.fence_proxy_async()\n",
        "stages.full[stage].wait(state.phase)\n",
        "stages.empty[stage].wait(phase)\n",
        "tc.barrier(STORE_BARRIER, threads)",
        "tc.wgmma_wait(config.blocks - 1 - i)\n",
        "tc.wgmma_fence()\n",
    ],
)
def test_every_synchronisation_of_the_wgmma_kernel_is_needed_and_missed(text):
    source = Path(hopper.__file__).read_text()
    assert source.count(text) == 1
    module = module_of(source.replace(text, "pass\n"), f"packed weights without {text.strip()}")
    with pytest.raises(tc.EmulationError):
        checked_launch(module.packed_few_rows_gemm, *CHECKED[2])


# -- many rows: scales multiply weights in 16 bits ------------------------------------------------


def swap_ab_config(BM: int, BN: int, stages: int = 2, **fields: Any) -> HopperConfig:
    return HopperConfig(BM=BM, BN=BN, stages=stages, swap_ab=True, **fields)


def rounded(q: Any, scales: Any, zeros: Any, x_type: Any) -> np.ndarray:
    """The weights times the scales of groups, rounded to 16 bits once; a single scale is left out."""
    group = len(q) // len(scales)
    whole = q.astype(np.float32)
    if zeros is not None:
        whole = whole - np.repeat(zeros.astype(np.float32), group, axis=0)
    if len(scales) == 1:
        return whole.astype(x_type)
    return (whole * np.repeat(scales.astype(np.float32), group, axis=0)).astype(x_type)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "shape, dtype, group, has_zeros, config",
    [
        ((5, 48, 256), tc.s4, 128, False, swap_ab_config(128, 16)),
        ((300, 144, 384), tc.u4, 64, True, swap_ab_config(128, 256, 3)),
        ((300, 144, 384), tc.u4, 384, True, swap_ab_config(128, 128, pingpong=True)),
        ((70, 272, 512), tc.s4, 32, False, swap_ab_config(128, 64, 4, split_k=2)),
        ((90, 144, 640), tc.s8, 640, False, swap_ab_config(64, 96, 3)),
        ((130, 304, 512), tc.s8, 256, False, swap_ab_config(128, 128, cluster_m=2)),
        ((130, 320, 256), tc.e4m3, 128, False, swap_ab_config(64, 120, pingpong=True, cluster_m=2)),
        ((40, 80, 1024), tc.e4m3, 1024, False, swap_ab_config(128, 40, 6, split_k=4)),
    ],
)
@pytest.mark.parametrize("x_type", [F16, BF16], ids=str)
def test_many_rows_have_the_bits_of_a_product_of_16_bit_weights(
    shape, dtype, group, has_zeros, config, x_type
):
    M, N, K = shape
    draw = np.random.default_rng(M)
    x, c = draw.standard_normal((M, K)).astype(x_type), draw.standard_normal((M, N)).astype(x_type)
    q, scales, zeros = weights(dtype, K, N, group, x_type, has_zeros)
    factor = scales[0].astype(np.float32) if group == K else np.float32(1)
    with tc.target("cpu", "sm_90a"):
        packed = kernels.pack(q, scales, zeros, dtype=dtype)
        d = kernels.gemm(x, packed, config=config, out_dtype=tc.f32)
        plain = np.asarray(rounded(q, scales, zeros, x_type), order="F")
        unpacked = HopperConfig(BM=64, BN=64, stages=4, split_k=config.split_k)
        wanted = kernels.gemm(x, plain, config=unpacked, out_dtype=tc.f32)
        if config.split_k == 1 or group < K:
            assert d.tobytes() == (wanted * factor).tobytes()
        assert np.allclose(d, wanted * factor, rtol=1e-5, atol=1e-4)
        narrow = kernels.gemm(x, packed, c, alpha=0.5, config=config, epilogue=lambda v, row, col: v + row)
    finished = d * np.float32(0.5) + c + np.arange(M, dtype=np.float32)[:, None]
    assert np.array_equal(narrow, finished.astype(x_type))


MANY_ROWS = [
    (tc.u4, 64, True, swap_ab_config(128, 40, 3)),
    (tc.s8, 0, False, swap_ab_config(128, 16, 2, pingpong=True)),
    (tc.s4, 128, False, swap_ab_config(64, 32, 4, cluster_m=2)),
]


def checked_launch_of_many_rows(kernel, dtype, group, has_zeros, config, order=None):
    """Multiply whole numbers by powers of two with all checks. Returns the product and what is exact."""
    M, N, K = 60, 208, 512
    q, scales, zeros = weights(dtype, K, N, group or K, F16, has_zeros)
    scales = np.exp2(np.floor(scales * 4)).astype(F16)
    x, d = activations(M, K, F16), np.zeros((M, N), np.float32)
    packed = kernels.pack(q, scales, zeros, dtype=dtype)
    options: Any = {"format": packed.format, "config": config, "traits": HopperTraits()}
    how = {} if order is None else {"order": order}
    launch = kernel.emulator("sm_90a", checks=True, **how)[2 * config.cluster_size, config.threads]
    launch(x, *packed.operands, d, d, 1.0, 0.0, **options)
    exact = rounded(q, scales, zeros, F16).astype(np.float32) * (scales[0] if group == 0 else 1)
    return d, x.astype(np.float32) @ exact


@pytest.mark.parametrize("case", MANY_ROWS, ids=lambda case: f"{case[0]}")
@pytest.mark.parametrize("order", [None, 0, 1, 2])
def test_many_rows_in_any_order_with_all_checks(order, case):
    d, exact = checked_launch_of_many_rows(many_rows.packed_many_rows_gemm, *case, order=order)
    assert np.array_equal(d, exact)


@pytest.mark.parametrize(
    "text, replacement",
    [
        ("tc.fence_proxy_async()\n", "pass\n"),
        ("tc.wgmma_fence()\n", "pass\n"),
        ("ClassVar[int] = CHUNK_STAGES", "ClassVar[int] = 1"),  # one set of registers for all stages
    ],
)
def test_every_order_of_the_kernel_for_many_rows_is_needed_and_missed(text, replacement):
    source = Path(many_rows.__file__).read_text()
    assert source.count(text) == 1
    module = module_of(source.replace(text, replacement), f"many rows without {text.strip()}")
    with pytest.raises(tc.EmulationError):
        checked_launch_of_many_rows(module.packed_many_rows_gemm, *MANY_ROWS[0])


def test_one_scale_of_any_type_and_groups_of_the_type_of_a():
    q, scales, _ = weights(tc.s8, 256, 48, 256, np.float32)
    x = activations(9, 256, BF16)
    exact = x.astype(np.float32) @ q.astype(np.float32) * scales
    with tc.target("cpu", "sm_90a"):
        d = kernels.gemm(x, kernels.pack(q, scales), config=swap_ab_config(64, 16), out_dtype=tc.f32)
        assert np.array_equal(d, exact)
        grouped = kernels.pack(q, np.repeat(scales, 2, axis=0))
        with pytest.raises(tc.ArgumentError, match="takes scales of groups of a's type"):
            kernels.gemm(x, grouped, config=swap_ab_config(64, 16))


def explained(M: int, packed: Any, arch: str, **options: Any) -> list[str]:
    with tc.target("cpu", arch):
        plan = kernels.plan(np.ones((M, packed.shape[0]), BF16), packed, None, None, **options)
        return [plan.kernel.__name__, *kernels.explain_bits(plan).splitlines()]


def test_plans_tell_kernels_and_orders_of_sums():
    q, scales, _ = weights(tc.s4, 512, 48, 64, BF16)
    groups, whole = (kernels.pack(q, s, dtype=tc.s4) for s in (scales, scales[0]))
    fused = "each from zero, are added up by fma(sum, scale, sum so far) in f32"
    assert explained(3, groups, "sm_80", alpha=2) == [
        "packed_gemm_kernel",
        "products:   bf16 by s4, 16 of K in an instruction",
        "sums:       8 products and the sum so far, each cut 24 bits below the largest one, are added, and the "
        "result is cut to 24 bits",
        f"order of K: upwards; sums of 64, {fused}; 4 warps take 128 of K in turn, and their sums are added from "
        "the first on",
        "epilogue:   alpha * sum, then rounded to bf16",
    ]
    split = HopperPackedConfig(64, 2, 2, split_k=2)
    kernel, products, _, order, _ = explained(130, whole, "sm_90a", config=split)
    assert (kernel, products) == ("packed_few_rows_gemm", "products:   bf16 by s4, 16 of K in an instruction")
    parts = "parts that begin at 0, 256 are summed from zero, then added from the left"
    assert order == f"order of K: upwards; sums of 128, {fused}; {parts}"
    many = swap_ab_config(128, 64, 4, split_k=3)
    kernel, products, _, order, epilogue = explained(130, groups, "sm_90a", config=many)
    assert kernel == "packed_many_rows_gemm" and epilogue == "epilogue:   rounded to bf16"
    assert products == "products:   bf16 by s4 times their scales, rounded to bf16, 16 of K in an instruction"
    assert "parts that begin at 0, 128, 256 are" in order
    *_, epilogue = explained(130, whole, "sm_90a", config=many)
    assert epilogue == "epilogue:   scale * sum, then rounded to bf16"
    with pytest.raises(
        tc.ArgumentError, match="products with them have no precision, bits='batch_invariant'"
    ):
        explained(3, groups, "sm_90a", precision="tf32", bits="batch_invariant")


def test_equal_orders_of_sums_have_equal_bits():
    """Different kernels and tiles, whose plans have one text, or two."""
    x = np.random.default_rng(1).standard_normal((70, 512)).astype(BF16)
    q, scales, _ = weights(tc.s4, 512, 144, 64, BF16)
    packed = kernels.pack(q, scales, dtype=tc.s4)
    of_one_warp, d = {"warps_k": 1, "stages": 2}, np.empty((70, 144), np.float32)
    configs = [PackedConfig(16, 2, 2, **of_one_warp), PackedConfig(8, 1, 1, **of_one_warp)]
    configs += [
        HopperPackedConfig(64, 2, 1),
        PackedConfig(16, 2, 1, 2),
        swap_ab_config(128, 64, 4),
        swap_ab_config(64, 96, 3),
    ]
    bits: dict[str, set[bytes]] = {}
    with tc.target("cpu", "sm_90a"):
        for config in configs:
            text = kernels.explain_bits(kernels.plan(x, packed, None, d, config=config))
            bits.setdefault(text, set()).add(kernels.gemm(x, packed, out=d, config=config).tobytes())
    assert len(bits) == 3 and all(len(products) == 1 for products in bits.values())
    assert len(set.union(*bits.values())) == 3


def test_rounded_weights_of_many_rows_and_how_to_keep_f32_scales():
    M, N, K = 150, 5648, 256
    x = np.random.default_rng(M).standard_normal((M, K)).astype(BF16)
    q, scales, _ = weights(tc.s4, K, N, 128, BF16)
    with tc.target("cpu", "sm_90a"):
        packed = kernels.pack(q, scales, dtype=tc.s4)
        chosen = choose_packed(M, N, K, packed.format)
        assert isinstance(chosen, HopperConfig) and chosen.split_k == 1
        d = kernels.gemm(x, packed, out_dtype=tc.f32)
        plain = np.asarray(rounded(q, scales, None, BF16), order="F")
        whole = HopperConfig(BM=64, BN=64, stages=4)
        assert d.tobytes() == kernels.gemm(x, plain, config=whole, out_dtype=tc.f32).tobytes()
        # f32 scales, of few rows, a HopperPackedConfig and scales of another type: the same bits
        one_tile = HopperPackedConfig(64, 2, 1)
        exact = kernels.gemm(x, packed, config=one_tile, out_dtype=tc.f32)
        assert not np.array_equal(d, exact)
        assert choose_packed(40, N, K, packed.format).split_k == 1
        assert np.array_equal(exact[:40], kernels.gemm(x[:40], packed, out_dtype=tc.f32))
        others = kernels.pack(q, scales.astype(np.float32), dtype=tc.s4)
        assert isinstance(choose_packed(M, N, K, packed.format, one_type=False), HopperPackedConfig)
        assert np.array_equal(exact, kernels.gemm(x, others, out_dtype=tc.f32))


# Rows -> the fastest, or within 3 % of it, on an H200: rows of a tile and parts of K; 0 is another kernel.
FASTEST = {
    (4, 8192): {128: (128, 2), 192: (192, 2), 256: (256, 2), 512: (256, 1), 1024: (256, 1), 8192: (256, 1)},
    (8, 8192): {128: (128, 2), 192: (192, 2), 256: (256, 2), 512: (256, 1), 1024: (256, 1), 8192: (256, 1)},
    (4, 4096): {128: (0, 0), 192: (96, 2), 256: (128, 2), 512: (128, 1), 1024: (256, 1), 8192: (256, 1)},
    (8, 4096): {128: (0, 0), 192: (96, 2), 256: (128, 2), 512: (256, 2), 1024: (256, 1), 8192: (256, 1)},
}


def test_the_fastest_configuration_is_chosen():
    with tc.target("cpu", "sm_90a"):
        for dtype, (bits, size) in product(SOURCES, FASTEST):
            if dtype.bits != bits:
                continue
            for M, (rows, parts) in FASTEST[bits, size].items():
                config: Any = choose_packed(M, size, size, WeightFormat(dtype, 128))
                fastest = isinstance(config, HopperConfig) and (config.BN, config.split_k)
                assert fastest == ((rows, parts) if rows else False), (M, size, dtype)


@pytest.mark.parametrize(
    "config, message",
    [
        (HopperConfig(), "need swap_ab=True"),
        (swap_ab_config(192, 64), "need a BM of 64 or 128"),
        (swap_ab_config(320, 16, pingpong=True), "need a BM of 64 or 128"),
        (swap_ab_config(128, 256, pingpong=True), "need at most 128 accumulators"),
        (swap_ab_config(128, 256, 6), "need 2 to 5 stages"),
        (swap_ab_config(128, 128, 2, split_k=2), "need for split_k stages whose rows of A hold the sums"),
        (swap_ab_config(128, 64, cluster_n=2), "takes no cluster_n=2"),
        (swap_ab_config(128, 64, k_slabs=2), "takes no k_slabs=2"),
    ],
)
def test_configurations_for_many_rows_that_are_refused(config, message):
    packed = kernels.pack(np.ones((256, 32), np.int8), np.ones(32, BF16), dtype=tc.s4)
    with tc.target("cpu", "sm_90a"), pytest.raises(tc.ArgumentError, match=message):
        kernels.gemm(np.ones((4, 256), BF16), packed, config=config)


def test_epilogue_c_and_out():
    x = activations(6, 128, F16)
    q, scales, _ = weights(tc.s4, 128, 32, 128, F16)
    packed, bias = kernels.pack(q, scales, dtype=tc.s4), np.arange(32, dtype=F16)
    plain = kernels.gemm(x, packed, out_dtype=tc.f32)
    out = np.empty((6, 32), F16)
    d = kernels.gemm(x, packed, bias, alpha=0.5, out=out)
    assert d is out and np.array_equal(d, (plain * np.float32(0.5) + bias).astype(F16))
    gated = kernels.gemm(
        x,
        packed,
        epilogue=lambda value, row, col, shift: tc.maximum(value, 0) + shift[col] + row,
        epilogue_args={"shift": bias},
        out_dtype=tc.f32,
    )
    assert np.array_equal(gated, np.maximum(plain, 0) + bias + np.arange(6, dtype=np.float32)[:, None])


def test_activations_and_results_of_any_layout():
    q, scales, _ = weights(tc.s4, 256, 48, 64, BF16)
    packed = kernels.pack(np.asfortranarray(q), scales, dtype=tc.s4)
    wide = activations(5, 261, BF16)
    config = PackedConfig(8, 1, 1, 2, stages=2)
    views = (
        wide[:, 3:259],
        np.asfortranarray(wide[:, :256]),
        wide[::-1, :256],
        np.tile(wide[:, :256], (4, 1))[::-2],
        np.broadcast_to(wide[:1, :256], (20, 256)),
    )
    for x in views:
        out = np.zeros((48, len(x)), BF16).T
        d = kernels.gemm(x, packed, out=out, config=config)
        assert np.array_equal(d, kernels.gemm(np.ascontiguousarray(x), packed, config=config))
        chosen = kernels.gemm(x, packed)
        assert np.array_equal(chosen, kernels.gemm(np.ascontiguousarray(x), packed, family="sm80"))
    assert kernels.gemm(wide[:0, :256], packed).shape == (0, 48)


def test_families():
    """Both give the sums of small numbers exactly."""
    q, scales, _ = weights(tc.s4, 256, 64, 256, F16)
    packed, x = kernels.pack(q, np.ones_like(scales), dtype=tc.s4), activations(20, 256, F16)
    exact = x.astype(np.float32) @ q.astype(np.float32)
    with tc.target("cpu", "sm_90a"):
        for family in (None, "sm80", "sm90"):
            assert np.array_equal(kernels.gemm(x, packed, family=family, out_dtype=tc.f32), exact)
        formats = WeightFormat(tc.s4, 256)
        assert isinstance(choose_packed(1, 64, 256, formats, family="sm90"), HopperPackedConfig)
        assert isinstance(choose_packed(99, 64, 256, formats, family="sm80"), PackedConfig)


def test_torch_packs_and_multiplies():
    torch = pytest.importorskip("torch")
    q, scales, _ = weights(tc.s4, 128, 32, 64, F16)
    x = activations(3, 128, F16)
    packed = kernels.pack(*map(torch.from_numpy, (q, scales)), dtype=tc.s4)
    assert packed.words.device.type == "cpu" and packed.words.dtype == torch.int32
    d = kernels.gemm(torch.from_numpy(x), packed)
    assert np.array_equal(d.numpy(), kernels.gemm(x, kernels.pack(q, scales, dtype=tc.s4)))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda q, s, z: (q[:100], s, z, tc.s4), r"K a multiple of 128 and N of 16"),
        (lambda q, s, z: (q[:, :20], s, z, tc.s4), r"K a multiple of 128 and N of 16"),
        (lambda q, s, z: (q, s[:, :16], z, tc.s4), r"must be \(32,\) or \(K / group, 32\)"),
        (lambda q, s, z: (q, np.ones((16, 32), F16), z, tc.s4), r"a group of 32, 64 or a multiple of 128"),
        (lambda q, s, z: (q, s.astype(np.float64), z, tc.s4), r"scales hold f64"),
        (lambda q, s, z: (q, s, z, tc.u4), r"not weights of u4: these are from 0 to 15"),
        (lambda q, s, z: (q * 2, s, z, tc.s4), r"not weights of s4: these are from -8 to 7"),
        (lambda q, s, z: (np.full(q.shape, np.nan, E4M3), s, z, None), r"no NaN"),
        (lambda q, s, z: (q.astype(np.int32), s, z, None), r"b holds s32 and dtype is s32; packed are s4 in"),
        (lambda q, s, z: (q, s, z, "int5"), r"dtype is 'int5'"),
        (lambda q, s, z: (q, s, np.ones(s.shape, np.uint8), tc.s4), r"weights of s4 have none"),
        (lambda q, s, z: (abs(q), s, np.ones(3, np.uint8), tc.u4), r"u8 or s8 of the shape of scales"),
        (lambda q, s, z: (abs(q), s, np.full(s.shape, -1, np.int8), tc.u4), r"zeros are from 0 to 15"),
        (lambda q, s, z: ([1, 2], s, z, tc.s4), r"b is \[1, 2\] \(list\)"),
    ],
)
def test_pack_refuses(change, message):
    q, scales, _ = weights(tc.s4, 128, 32, 64, F16)
    q[0, 0] = -5
    b, scales, zeros, dtype = change(q, scales, None)
    with pytest.raises(tc.ArgumentError, match=message):
        kernels.pack(b, scales, zeros, dtype=dtype)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"a": np.ones((2, 128), np.float32)}, r"a holds f32; packed weights are multiplied by f16 and bf16"),
        ({"a": np.ones((2, 256), F16)}, r"a is 2x256 and b is 128x32"),
        ({"a": np.ones((2, 2, 128), F16)}, r"a has shape \(2, 2, 128\); 2 axes are needed"),
        ({"accumulate": tc.f16}, r"have no accumulate"),
        ({"accumulate": tc.f32, "precision": "tf32"}, r"have no accumulate, precision"),
        ({"family": "sm100"}, r"family is 'sm100'; allowed are sm80, sm90"),
        ({"family": "sm90", "config": PackedConfig()}, r"family is 'sm90', and config of family 'sm80'"),
        ({"a": np.ones((2, 128), F16)[::-1], "family": "sm90"}, r"in ascending order"),
        ({"bits": "batch_invariant"}, r"have no bits='batch_invariant'"),
        ({"config": kernels.AmpereConfig()}, r"packed weights take a kernels.PackedConfig"),
        ({"config": PackedConfig(split_k=2)}, r"not every part of K has 128 elements"),
        ({"config": HopperPackedConfig(split_k=2)}, r"not every part of K has 128 elements"),
        ({"a": np.ones((2, 129), F16)[:, 1:], "config": HopperPackedConfig()}, r"multiples of 16 bytes"),
        ({"out": np.zeros((2, 31), F16)}, r"out has shape"),
        ({"out_dtype": tc.bf16}, r"a product of f16 gives f16 or f32"),
    ],
)
def test_gemm_refuses(options, message):
    q, scales, _ = weights(tc.s4, 128, 32, 64, F16)
    a = options.pop("a", np.ones((2, 128), F16))
    with pytest.raises(tc.ArgumentError, match=message):
        kernels.gemm(a, kernels.pack(q, scales, dtype=tc.s4), **options)


@pytest.mark.parametrize("missing", ["words", "scales"])
def test_gemm_refuses_weights_without_an_array(missing):
    q, scales, _ = weights(tc.s4, 128, 32, 64, F16)
    packed = kernels.pack(q, scales, dtype=tc.s4)
    with pytest.raises(tc.ArgumentError, match=f"b.{missing} is None"):
        kernels.gemm(np.ones((2, 128), F16), replace(packed, **{missing: None}))


def test_gemm_refuses_packed_weights_as_a_and_older_targets():
    q, scales, _ = weights(tc.s4, 128, 32, 64, F16)
    packed = kernels.pack(q, scales, dtype=tc.s4)
    with pytest.raises(tc.ArgumentError, match=r"a is .*PackedWeights\); it must be an array"):
        kernels.gemm(packed, np.ones((128, 2), F16))
    with tc.target("cpu", "sm_75"), pytest.raises(tc.ArgumentError, match="sm_80 or later, not on sm_75"):
        kernels.gemm(np.ones((2, 128), F16), packed)
    with tc.target("cpu", "sm_80"), pytest.raises(tc.ArgumentError, match="wgmma on sm_90a.*target is sm_80"):
        kernels.gemm(np.ones((2, 128), F16), packed, config=HopperPackedConfig())


@pytest.mark.parametrize(
    "config, fields, message",
    [
        (PackedConfig, {"tokens": 12}, "a multiple of 8"),
        (PackedConfig, {"tokens": 8, "warps_n": 8, "warps_k": 1}, "2 warps_n"),
        (PackedConfig, {"stages": 1}, "stages is 2 or more"),
        (PackedConfig, {"warps_k": 64}, "at most 32 warps"),
        (PackedConfig, {"tokens": 8.0}, "a whole number"),
        (HopperPackedConfig, {"tokens": 12}, "a multiple of 8"),
        (HopperPackedConfig, {"tokens": 96, "blocks": 2}, r"tokens \* blocks at most 128"),
        (HopperPackedConfig, {"consumers": 3}, "consumers and blocks are 1 or 2"),
        (HopperPackedConfig, {"stages": 1}, "stages 2 or more"),
    ],
)
def test_configurations_that_are_refused(config, fields, message):
    with pytest.raises(tc.ArgumentError, match=message):
        config(**fields)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
def test_chosen_kernels_fill_the_gpu(arch, aligned):
    with tc.target("cpu", arch):
        for dtype, M in product(SOURCES, (1, 9, 32, 64, 300)):
            for N, K in ((16, 128), (4096, 4096), (28672, 8192), (5120, 384)):
                config = choose_packed(M, N, K, WeightFormat(dtype, 32), aligned)
                few = M < 9 and N * K <= 4096**2
                by_wgmma = arch == "sm_90a" and aligned and not few
                assert isinstance(config, (HopperPackedConfig, HopperConfig) if by_wgmma else PackedConfig)
                assert M > 64 or not isinstance(config, HopperConfig)
                assert config.split_k * getattr(config, "warps_k", 1) <= K // CHUNK
        narrow = choose_packed(1, 4096, 4096, WeightFormat(tc.s4, 128))
        assert (narrow.columns, narrow.split_k) == (32, 1)
        assert choose_packed(64, 4096, 4096, WeightFormat(tc.s4, 128)).split_k == 4


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "dtype, group, has_zeros",
    [(tc.u4, 32, True), (tc.s4, 128, False), (tc.s8, 0, False), (tc.e4m3, 64, False)],
)
@pytest.mark.parametrize(
    "config",
    [
        swap_ab_config(128, 256, 5, cluster_m=2),
        swap_ab_config(128, 192, 5),
        swap_ab_config(128, 192, 5, split_k=2),
        swap_ab_config(128, 128, 8),
        swap_ab_config(128, 128, 8, pingpong=True, cluster_m=2),
    ],
    ids=lambda config: f"{config.BM}x{config.BN}x{config.split_k}",
)
def test_kernels_for_many_rows_spill_no_registers(config, dtype, group, has_zeros):
    """Configurations that are seldom chosen; those that are chosen follow, with C."""
    pytest.importorskip("cuda.core", reason="needs the assembler")
    check_registers_of_many_rows(config, WeightFormat(dtype, group, has_zeros), BF16, HopperTraits())


def check_registers_of_many_rows(config, format, out_type, traits):
    M, N, K = 512, 4096, 4096
    words = np.empty((N // 16, K * 16 * format.dtype.bits // 32), np.int32)
    scales = np.empty((K // format.group if format.group else 1, N), BF16)
    x, c, d = np.empty((M, K), BF16), np.empty((M, N), BF16), np.empty((M, N), out_type)
    options: Any = {"format": format, "config": config, "traits": traits}
    others = np.empty(scales.shape, np.uint8), c, d, 1.0, 0.0
    used = many_rows.packed_many_rows_gemm.resources(x, words, scales, *others, **options, arch="sm_90a")
    assert_clean(used)


@pytest.mark.thorough
@pytest.mark.quick(1)
@pytest.mark.parametrize("by_threads", [False, True])
@pytest.mark.parametrize(
    "dtype, group, has_zeros",
    [(tc.u4, 32, True), (tc.s4, 128, False), (tc.s4, 0, False), (tc.s8, 0, False), (tc.e4m3, 64, False)],
)
def test_chosen_kernels_for_many_rows_spill_no_registers(dtype, group, has_zeros, by_threads):
    """With C and f32 results, which take the most registers."""
    pytest.importorskip("cuda.core", reason="needs the assembler")
    format = WeightFormat(dtype, group, has_zeros)
    with tc.target("cpu", "sm_90a"):
        chosen = {
            choose_packed(M, size, size, format, by_threads=by_threads)
            for M, size in product((192, 256, 300, 512, 1000, 8192), (4096, 8192))
        }
    tiles = {(config.BN, config.split_k) for config in chosen}
    assert tiles >= {(192, 2), (128, 2), (256, 2), (192, 1) if by_threads and not group else (256, 1)}
    for config in chosen:
        traits = HopperTraits(store_by_threads=by_threads, scaled=True, has_c=True)
        check_registers_of_many_rows(config, format, np.float32, traits)


@pytest.mark.thorough
@pytest.mark.quick(1)
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
@pytest.mark.parametrize("N", [4096, 28672])
@pytest.mark.parametrize(
    "dtype, group, has_zeros",
    [(tc.u4, 32, True), (tc.s4, 128, False), (tc.s8, 0, False), (tc.e4m3, 64, False)],
)
def test_chosen_kernels_fit_and_spill_no_registers(N, arch, dtype, group, has_zeros):
    """With scales of f32, the largest. The arrays take address space alone."""
    pytest.importorskip("cuda.core", reason="needs the assembler")
    K, format, chosen = 4096, WeightFormat(dtype, group, has_zeros), {}
    for M in (1, 16, 64, 128, 256):
        with tc.target("cpu", arch):
            chosen[choose_packed(M, N, K, format, one_type=False)] = M
    words = np.empty((N // 16, K * 16 * dtype.bits // 32), np.int32)
    scales = np.empty((K // group if group else 1, N), np.float32)
    zeros = np.empty(scales.shape, np.uint8)
    for config, M in chosen.items():
        x, d = np.empty((M, K), BF16), np.empty((M, N), BF16)
        if config.split_k > 1:
            d = np.empty((config.split_k, M, N), np.float32)
        kernel = packed_few_rows_gemm if isinstance(config, HopperPackedConfig) else packed_gemm_kernel
        options: Any = {"format": format, "config": config, "traits": AmpereTraits(vec_a=16)}
        used = kernel.resources(x, words, scales, zeros, d, d, 1.0, 0.0, **options, arch=arch)
        assert_clean(used)
