"""The bits of a product depend on values, types and options, and on no layout or address."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import AmpereConfig, HopperConfig
from tensorcore_dsl.kernels.host.plan import make_plan
from tensorcore_dsl.kernels.problem.gemm_problem import GemmProblem
from tensorcore_dsl.kernels.problem.summation import division
from tests.fuzz.product_cases import NUMPY, OUTPUTS, Draw, laid_out, relu, values

TYPES = ("f16", "bf16", "tf32", "f32", "f64", "s8")
GAPS = ("", "+1", "+8", "+16@16", "@1", "+3@5", "@8", "+16@8")
WGMMA_GAPS = ("", "+16", "+16@16", "@16", "+32")
USUAL = ("n", "t", "n", "n")  # of A, B, C and out


def any_place(draw: Draw) -> str:
    """Row-major or column-major, gaps between rows, and any address."""
    return str(draw.choice("nt") + draw.choice(GAPS))


def places_for(draw: Draw, wgmma: bool) -> tuple[str, ...]:
    """The layouts of A, B, C and out; TMA reads A and B by multiples of 16 bytes, and out has rows."""
    a, b = (order + draw.choice(WGMMA_GAPS if wgmma else GAPS) for order in "nt")
    return a, b, any_place(draw), "n" + draw.choice(GAPS) if wgmma else any_place(draw)


def copy(x: Any, dtype: str, place: str) -> Any:
    found, _ = laid_out(x.shape, NUMPY[dtype], place)
    found[...] = x
    return found


@pytest.mark.thorough
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(TYPES))
def test_layouts_change_no_bits(seed, dtype):
    """Nor do a fresh result, or C itself as the result; layouts are those of A, B, C and out, within a family."""
    draw = Draw(seed)
    wgmma = dtype != "f64" and draw.chance(50)
    M, N = draw.choice((1, 7, 16, 33, 72)), draw.choice((16, 48, 80) if wgmma else (1, 7, 33, 72))
    K = draw.choice((16, 64, 144, 320) if wgmma else (1, 9, 64, 150, 320))
    out_dtype = draw.choice(OUTPUTS[dtype])
    style = draw.choice(("plain", "wide", "odd", "tiny", "huge"))
    a, b = values(draw, (M, K), dtype, style), values(draw, (K, N), dtype, style)
    c = values(draw, (M, N), out_dtype, style) if draw.chance(70) else None
    whole = dtype == "s8"
    options: dict[str, Any] = {
        "alpha": draw.choice((1, 1, -3) if whole else (1, 1, 1 / 3, -1.7)),
        "beta": 0 if c is None else draw.choice((0, 1, -3) if whole else (0, 1, 1 / 3, 1e-3)),
        "precision": "tf32" if dtype == "tf32" else None, "epilogue": draw.choice((None, relu)),
        "family": None if wgmma else "sm80",
    }  # fmt: skip
    found = []
    for place in (USUAL, places_for(draw, wgmma), places_for(draw, wgmma)):
        given = [copy(a, dtype, place[0]), copy(b, dtype, place[1])]
        given.append(None if c is None else copy(c, out_dtype, place[2]))
        out = laid_out((M, N), NUMPY[out_dtype], place[3])[0]
        with tc.target("cpu", "sm_90a"), np.errstate(all="ignore"):
            found.append(kernels.gemm(*given, out_dtype=NUMPY[out_dtype], **options))
            found.append(kernels.gemm(*given, out=out, **options))
            if c is not None and place[2][0] == "n":
                found.append(kernels.gemm(*given, out=given[2], **options))
    images = {np.ascontiguousarray(x).tobytes() for x in found}
    assert len(images) == 1, (M, N, K, out_dtype, style, options)


@pytest.mark.parametrize("wgmma", [False, True])
def test_layouts_do_not_change_the_order_of_sums(wgmma):
    draw, orders, configs = Draw(3), set(), 0
    for _ in range(60):
        dtype = draw.choice(TYPES[wgmma:4])
        M, N, K = draw.log_uniform(1024), draw.log_uniform(2048), draw.log_uniform(8192)
        if draw.chance(30):
            M, N, K = draw.log_uniform(256), draw.log_uniform(256), 512 << draw.below(7)
        if wgmma:
            N, K = -(-N // 16) * 16, -(-K // 16) * 16
        has_c, found = draw.chance(40), {}
        for place in (places_for(draw, wgmma) for _ in range(5)):
            shapes = (M, K), (K, N), (M, N), (M, N)
            operands = zip(shapes, place, strict=True)
            a, b, c, d = (laid_out(shape, NUMPY[dtype], at)[0] for shape, at in operands)
            problem = GemmProblem.of(
                a,
                b,
                c if has_c else None,
                d,
                beta=float(has_c),
                precision="tf32" if dtype == "tf32" else None,
            )
            with tc.target("cpu", "sm_90a"):
                config = make_plan(problem, None if wgmma else "sm80").config
                found[config] = type(config), division(problem, config)
        assert len({*found.values()}) == 1, (dtype, M, N, K, has_c, found)
        orders |= {*found.values()}
        configs += len(found) > 1
    assert len(orders) > 4 and configs > 4  # split and whole; tiles do depend on layouts


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "tf32"])
@pytest.mark.parametrize("split_k, k_slabs", [(2, 1), (4, 1), (2, 2)])
def test_both_families_split_k_alike(dtype, split_k, k_slabs):
    draw = Draw(5)
    a, b = values(draw, (40, 560), dtype, "wide"), values(draw, (560, 64), dtype, "wide")
    depth = 128 * k_slabs // NUMPY[dtype].itemsize
    configs = (
        HopperConfig(BM=64, BN=64, stages=3, split_k=split_k, k_slabs=k_slabs),
        AmpereConfig(64, 64, depth, 32, 32, 2, split_k=split_k),
    )
    out_dtype, precision = NUMPY["f32"], "tf32" if dtype == "tf32" else None
    with tc.target("cpu", "sm_90a"):
        found = [
            kernels.gemm(a, copy(b, dtype, "t"), config=c, out_dtype=out_dtype, precision=precision)
            for c in configs
        ]
        config = AmpereConfig(64, 64, depth, 32, 32, 2)
        whole = kernels.gemm(a, b, config=config, out_dtype=out_dtype, precision=precision)
    assert found[0].tobytes() == found[1].tobytes() != whole.tobytes()


def test_a_product_without_terms_rounds_as_kernels_do():
    a, b = np.zeros((3, 0), np.float16), np.zeros((0, 5), np.float16)
    c = np.full((3, 5), 2049 / 2048, np.float16)
    with tc.target("cpu", "sm_90a"):
        for out_dtype in (np.float16, np.float32):
            actual = kernels.gemm(a, b, c, beta=1 / 3, out_dtype=out_dtype)
            zeros = np.zeros((3, 1), np.float16), np.zeros((1, 5), np.float16)
            one = kernels.gemm(*zeros, c, beta=1 / 3, out_dtype=out_dtype)
            assert actual.tobytes() == one.tobytes() and actual.dtype == out_dtype
        bytes_ = np.full((3, 5), 100, np.int8)
        actual = kernels.gemm(np.zeros((3, 0), "i1"), np.zeros((0, 5), "i1"), bytes_, beta=300)
    assert (actual == 30000).all()
