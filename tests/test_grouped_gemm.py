"""Groups of rows and gates: grouped_gemm and swiglu, in emulation and assembled.

Operands are small whole numbers, so that each sum is exact in any order.
"""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.choosing.choice import PINGPONG, SKINNY_GROUPS
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.grouped_gemm import MAX_GROUPS, grouped_gemm_kernel
from tensorcore_dsl.kernels.hopper.k_grouped_gemm import k_grouped_gemm_kernel
from tensorcore_dsl.kernels.hopper.swiglu_gemm import swiglu_kernel
from tensorcore_dsl.kernels.problem.families import is_assembled
from tests.assembler import assert_clean
from tests.whole_numbers import BF16, E4M3, F16, RNG, exact, whole

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("on_hopper")]

# -- groups of rows -------------------------------------------------------------------------------

GROUPS = {
    "empty ones": (0, 65, 0, 0, 70, 0),
    "one": (135,),
    "of a row": (1, 1, 1, 1),
    "whole tiles": (64, 128),
    "all in the last": (0, 0, 100),
}
GROUPED = {
    "few rows": dict(BM=64, BN=64, stages=2),
    "pingpong": dict(BM=128, BN=64, stages=2, pingpong=True, cluster_n=2),
}


def groups_of(sizes: tuple[int, ...]) -> np.ndarray:
    return np.cumsum((0, *sizes), dtype=np.int32)


def by_groups(a: np.ndarray, b: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    parts = zip(offsets[:-1], offsets[1:], b, strict=True)
    return np.concatenate([exact(a[first:end], x) for first, end, x in parts])


@pytest.mark.quick(1)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("config", GROUPED)
@pytest.mark.parametrize("sizes", GROUPS)
def test_grouped_products_are_exact(sizes, config, order):
    offsets = groups_of(GROUPS[sizes])
    a, b = whole(int(offsets[-1]), 136), whole(len(offsets) - 1, 136, 200, order=order)
    actual = kernels.grouped_gemm(a, b, offsets, config=HopperConfig(**GROUPED[config]))
    assert np.array_equal(actual, by_groups(a, b, offsets).astype(BF16))


@pytest.mark.tensorcore_check
@pytest.mark.parametrize("config", GROUPED)
def test_groups_share_few_ctas(config):
    """CTAs pass from group to group, and do not write rows that belong to no group."""
    chosen, offsets = HopperConfig(**GROUPED[config]), groups_of((70, 0, 1, 200, 64, 0))
    a, b = whole(350, 200), whole(6, 200, 136, order="F")
    d = np.full((350, 136), 99, BF16)
    grid = 2 * chosen.cluster_size
    grouped_gemm_kernel.emulator("sm_90a")[grid, chosen.threads](
        a, b, offsets, d, config=chosen, traits=HopperTraits()
    )
    assert np.array_equal(d[:335], by_groups(a, b, offsets).astype(BF16))
    assert (d[335:] == 99).all()


@pytest.mark.parametrize("N", [1, 63, 130])
def test_lines_that_end_between_words(N):
    """What lies behind a result's columns stays as it was."""
    offsets, room = groups_of((17, 0, 60)), np.full((77, 136), 99, BF16)
    a, b = whole(77, 64), whole(3, 64, 136)[..., :N]
    kernels.grouped_gemm(a, b, offsets, out=room[:, :N])
    assert np.array_equal(room[:, :N].astype(float), by_groups(a, b, offsets))
    assert (room[:, N:] == 99).all()


def plus_row(value, row, col):
    return value + row.to(tc.f32)


def test_groups_into_given_results():
    offsets, out = groups_of((3, 61)), np.full((64, 64), 99, F16)
    a, b = whole(64, 64, dtype=F16), whole(2, 64, 64, dtype=F16)
    assert kernels.grouped_gemm(a, b, offsets, out=out) is out
    assert np.array_equal(out, by_groups(a, b, offsets))
    actual = kernels.grouped_gemm(a, b, offsets, epilogue=plus_row)
    assert np.array_equal(actual, by_groups(a, b, offsets) + np.arange(64)[:, None])


def test_sizes_of_groups_are_those_of_each_call():
    a, b = whole(135, 64), whole(3, 64, 72)
    for sizes in ((65, 0, 70), (1, 134, 0), (0, 0, 135), (65, 0, 70)):
        offsets = groups_of(sizes)
        actual = kernels.grouped_gemm(a, b, offsets)
        assert np.array_equal(actual, by_groups(a, b, offsets).astype(BF16))
    for wrong in ((65, 0, 71), (65, 80, -10)):
        with pytest.raises(tc.ArgumentError, match="offsets"):
            kernels.grouped_gemm(a, b, groups_of(wrong))


def prepared(monkeypatch: pytest.MonkeyPatch, function: str, name: str) -> list[Any]:
    """The operands that a function of kernels checks from now on; `name` is what checks them."""
    seen: list[Any] = []
    module = import_module(f"tensorcore_dsl.kernels.host.{function}")
    check = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *operands: seen.append(operands) or check(*operands))
    return seen


def test_operands_alike_are_checked_once(monkeypatch):
    seen = prepared(monkeypatch, "grouped_gemm", "_prepare_grouped")
    a, out = whole(77, 64), np.empty((77, 24), BF16)
    for order in "CCFF":
        b, offsets = whole(2, 64, 24, order=order), groups_of((7, 70))
        for target in (None, out):
            actual = kernels.grouped_gemm(a, b, offsets, out=target)
            assert np.array_equal(actual, by_groups(a, b, offsets).astype(BF16))
    assert len(seen) == 4
    out.flags.writeable = False
    with pytest.raises(tc.ArgumentError, match="out is read-only"):
        kernels.grouped_gemm(a, b, offsets, out=out)


def test_gates_alike_are_checked_once(monkeypatch):
    seen = prepared(monkeypatch, "swiglu", "_prepare_swiglu")
    x, out = ones(78, 64), np.empty((78, 40), BF16)
    for finish in (None, None, plus_row, plus_row):
        gate, up = ones(40, 64).T, whole(40, 64, most=1).T
        wanted = exact(x, gate) * exact(x, up) + np.arange(78)[:, None] * (finish is not None)
        for target in (None, out):
            actual = kernels.swiglu(x, gate, up, out=target, epilogue=finish)
            assert np.array_equal(actual.astype(float), wanted.astype(BF16).astype(float))
    assert len(seen) == 4
    with pytest.raises(tc.ArgumentError, match="x is None"):
        kernels.swiglu(None, gate, up)


NO_PART: list[Any] = [dict(cluster_m=2), dict(split_k=2), dict(swap_ab=True)]


@pytest.mark.parametrize("changes", NO_PART, ids=str)
def test_configurations_that_groups_have_no_part_for(changes):
    config = HopperConfig(**{"BM": 64, "BN": 64, "stages": 2, **changes})
    with pytest.raises(tc.ArgumentError, match="groups of rows takes no") as error:
        kernels.grouped_gemm(whole(64, 64), whole(1, 64, 64), groups_of((64,)), config=config)
    assert all(f"no {name}={value}:" in str(error.value) for name, value in changes.items())


@pytest.mark.parametrize("changes", [dict(k_slabs=2), *NO_PART[1:]], ids=str)
def test_configurations_that_gates_have_no_part_for(changes):
    config = HopperConfig(**{"BM": 64, "BN": 64, "stages": 2, **changes})
    x, w = whole(64, 64), whole(64, 64, order="F")
    with pytest.raises(tc.ArgumentError, match="products with a gate takes no"):
        kernels.swiglu(x, w, w, config=config)


def test_groups_without_work():
    assert kernels.grouped_gemm(whole(0, 64), whole(2, 64, 8), groups_of((0, 0))).shape == (0, 8)
    assert kernels.grouped_gemm(whole(4, 64), whole(1, 64, 0), groups_of((4,))).shape == (4, 0)


FEW = groups_of((8, 8))
BAD_GROUPS: list[Any] = [
    (dict(a=whole(16, 72)), "a is 16x72 and each matrix of b 64x8: K differs"),
    (dict(b=whole(64, 8)), "b has shape (64, 8); 3 axes are needed"),
    (dict(a=whole(2, 16, 64)), "a has shape (2, 16, 64); 2 axes are needed"),
    (dict(offsets=FEW[:2]), "offsets are s32 of shape (2,); they must be 3 s32, one more than b has"),
    (dict(offsets=FEW.astype(np.int64)), "offsets are s64 of shape (3,)"),
    (dict(a=whole(16, 64, dtype=F16)), "operands are all bf16 or all f16, not a f16, b bf16"),
    (dict(a=whole(16, 64, dtype=E4M3), b=whole(2, 64, 8, dtype=E4M3)), "not a e4m3, b e4m3"),
    (dict(out=whole(16, 16)), "out has shape (16, 16); the product has (16, 8)"),
    (
        dict(b=np.zeros((MAX_GROUPS + 1, 64, 8), BF16), offsets=np.zeros(MAX_GROUPS + 2, np.int32)),
        f"of which there may be {MAX_GROUPS}",
    ),
]  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize(("changes", "message"), BAD_GROUPS, ids=[m for _, m in BAD_GROUPS])
def test_groups_that_are_refused(changes, message):
    arguments = {"a": whole(16, 64), "b": whole(2, 64, 8), "offsets": FEW, **changes}
    with pytest.raises(tc.ArgumentError) as error:
        kernels.grouped_gemm(**arguments)
    assert message in str(error.value)


# -- groups along K -------------------------------------------------------------------------------

K_GROUPED = {
    "default": None,
    "one consumer": HopperConfig(BM=64, BN=64, stages=2),
    "columns shared": HopperConfig(BM=128, BN=128, stages=2, cluster_m=2),
    "rows shared": HopperConfig(BM=128, BN=128, stages=2, cluster_n=2),
}


def by_parts_of_k(a: np.ndarray, b: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    return np.stack([exact(a[:, i:j], b[i:j]) for i, j in zip(offsets[:-1], offsets[1:])])


@pytest.mark.quick(1)
@pytest.mark.parametrize("config", K_GROUPED)
@pytest.mark.parametrize("sizes", GROUPS)
def test_groups_along_k(sizes, config):
    offsets = groups_of(GROUPS[sizes])
    a, b = whole(136, int(offsets[-1]), order="F"), whole(int(offsets[-1]), 200)
    actual = kernels.k_grouped_gemm(a, b, offsets, config=K_GROUPED[config])
    assert np.array_equal(actual, by_parts_of_k(a, b, offsets).astype(BF16))


def test_groups_along_k_share_few_ctas():
    """Tiles of groups of different lengths, one after the other in the same CTAs."""
    config, offsets = HopperConfig(BM=64, BN=64, stages=3), groups_of((70, 0, 1, 200, 64, 0))
    a, b, d = whole(72, 335, order="F"), whole(335, 136), np.full((6, 72, 136), 99, BF16)
    result = k_grouped_gemm_kernel.check(2, config.threads)(a, b, offsets, d, config=config)
    assert not result.findings
    assert np.array_equal(result.arguments["d"].astype(float), by_parts_of_k(a, b, offsets))


def test_a_group_along_k_reads_nothing_of_its_neighbours():
    offsets = groups_of((50, 14, 71))
    a, b = whole(72, 135, order="F"), whole(135, 72)
    a[:, 64:], b[64:] = np.inf, np.nan
    actual = kernels.k_grouped_gemm(a, b, offsets).astype(float)
    assert np.array_equal(actual[:2], by_parts_of_k(a[:, :64], b[:64], offsets[:3]))
    assert np.isnan(actual[2]).all()


COPIED: dict[str, tuple[Any, Any, list[str]]] = {
    "none": (whole(72, 40, order="F"), whole(40, 16), []),
    "rows of A": (whole(72, 40), whole(40, 16), ["a has contiguous rows, .* with M contiguous: columns that start"]),
    "columns of B": (
        whole(72, 40, order="F"), whole(40, 16, order="F"), ["b has contiguous columns, .* with N contiguous: rows that start"]
    ),
    "M no multiple of 8": (whole(67, 40, order="F"), whole(40, 16), ["take a with columns that start at multiples"]),
    "N no multiple of 8": (
        whole(72, 40, order="F"), whole(40, 15), ["take b with rows that start", "copies its result: .* start and end at multiples"]
    ),
    "single rows and columns": (
        whole(1, 40), whole(40, 1), ["a has contiguous rows, .* with M contiguous: columns that start", "take b with rows", "copies its result"]
    ),
    "every second": (
        whole(144, 80, order="F")[::2, ::2], whole(80, 32)[::2, ::2], ["columns of a are contiguous in", "columns of b are contiguous in"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COPIED)
def test_groups_along_k_copy_what_they_cannot_read(case):
    a, b, texts = COPIED[case]
    offsets = groups_of((7, 0, 33))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = kernels.k_grouped_gemm(a, b, offsets)
    assert np.array_equal(actual, by_parts_of_k(a, b, offsets).astype(BF16))
    assert len(caught) == len(texts)
    for warning, text in zip(caught, texts, strict=True):
        assert warning.category is tc.PerformanceWarning and warning.filename == __file__
        assert re.search(text, str(warning.message))


@pytest.mark.filterwarnings("ignore::tensorcore_dsl.PerformanceWarning")
def test_groups_store_nothing_behind_the_rows_of_a_view():
    """TMA stores whole units of 16 bytes: rows of 12 elements need a copy, wherever they start."""
    offsets = groups_of((7, 0, 33))
    for function, a, b, shape in (
        (kernels.k_grouped_gemm, whole(72, 40, order="F"), whole(40, 12), (3, 72, 16)),
        (kernels.grouped_gemm, whole(40, 72), np.stack([whole(72, 12)] * 3), (40, 16)),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            out = np.full(shape, 2.0**40, BF16)  # no sum of these products
            function(a, b, offsets, out=out[..., :12])
        assert (out[..., 12:] == 2.0**40).all() and (out[..., :12] < 2.0**40).all()
        assert any("copies its result" in str(w.message) for w in caught)


def test_no_group_and_no_k():
    a, b = whole(16, 24, order="F"), whole(24, 8)
    assert kernels.k_grouped_gemm(a[:, :0], b[:0], np.zeros(1, np.int32)).shape == (0, 16, 8)
    out = np.full((2, 16, 8), 99, BF16)
    assert kernels.k_grouped_gemm(a[:, :0], b[:0], np.zeros(3, np.int32), out=out) is out
    assert not out.any()


A, B = whole(64, 64, order="F"), whole(64, 64)
OFFSETS = groups_of((30, 34))


@pytest.mark.quick
@pytest.mark.parametrize(
    "arguments, options, text",
    [
        ((A, B[:32], OFFSETS), {}, "a is 64x64 and b 32x64: K differs"),
        ((A, B, OFFSETS.astype(np.int64)), {}, r"offsets are s64 of shape \(3,\); they must be s32"),
        ((A, B, groups_of((30, 35))), {}, "offsets go from 0 to 65"),
        ((A, B, OFFSETS), {"config": HopperConfig(pingpong=True)}, "takes no pingpong=True"),
    ],
)
def test_groups_along_k_refuse_wrong_arguments(arguments, options, text):
    with pytest.raises(tc.ArgumentError, match=text):
        kernels.k_grouped_gemm(*arguments, **options)


# -- gates ----------------------------------------------------------------------------------------

GATED = {
    "two consumers": dict(BM=128, BN=64, stages=2),
    "pingpong": dict(BM=64, BN=128, stages=3, pingpong=True),
    "pingpong, cluster_n": dict(BM=64, BN=64, stages=3, pingpong=True, cluster_n=2),
    "cluster_m": dict(BM=64, BN=64, stages=2, cluster_m=2),
}


def ones(*shape: int, dtype: Any = BF16) -> np.ndarray:
    """0, 1 and 2, mostly: sums that silu leaves as they are."""
    return RNG.integers(0, 3, shape).astype(dtype)


@pytest.mark.parametrize("K", [136, 200])
@pytest.mark.parametrize("name", GATED)
def test_gates_that_are_open(name, K):
    """silu(x) is x in f32 from 17 on, so that products are exact."""
    x, gate, up = ones(136, K), ones(104, K).T, whole(104, K, most=1).T
    config, d = HopperConfig(**GATED[name]), np.full((136, 104), 99, BF16)
    launch = swiglu_kernel.emulator("sm_90a")[config.cluster_size, config.threads]
    launch(x, gate, up, d, config=config, traits=HopperTraits())
    assert exact(x, gate).min() > 17
    assert np.array_equal(d.astype(float), (exact(x, gate) * exact(x, up)).astype(BF16).astype(float))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_swiglu_agrees_with_float64(dtype):
    x, gate, up = (RNG.standard_normal((n, 64)).astype(dtype) / 4 for n in (72, 40, 40))
    out = np.empty((72, 40), dtype)
    actual = kernels.swiglu(x, gate.T, up.T, out=out)
    assert actual is out
    y = exact(x, gate.T)
    wanted = y / (1 + np.exp(-y)) * exact(x, up.T)
    assert np.allclose(actual.astype(float), wanted, rtol=2.0**-7, atol=1e-4)


def test_gates_are_finished():
    x, gate, up = ones(72, 64), ones(40, 64).T, whole(40, 64, most=1).T
    plain = exact(x, gate) * exact(x, up)
    actual = kernels.swiglu(x, gate, up, epilogue=plus_row)
    rows = np.arange(72)[:, None]
    assert np.array_equal(actual.astype(float), (plain + rows).astype(BF16).astype(float))


BAD_GATES: list[Any] = [
    (dict(x=whole(16, 72)), "x (16, 72), w_gate (64, 24), w_up (64, 24)"),
    (dict(w_up=whole(64, 16, order="F")), "the shapes do not fit x (M, K), weights (K, N)"),
    (dict(x=whole(2, 16, 64)), "x has shape (2, 16, 64); 2 axes are needed"),
    (dict(w_up=whole(64, 24, dtype=F16)), "not x bf16, w_gate bf16, w_up f16"),
    (dict(out=whole(16, 24, dtype=F16)), "out holds f16; the product gives bf16"),
]  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize(("changes", "message"), BAD_GATES, ids=[m for _, m in BAD_GATES])
def test_gates_that_are_refused(changes, message):
    weights = {"w_gate": whole(64, 24, order="F"), "w_up": whole(64, 24, order="F")}
    with pytest.raises(tc.ArgumentError) as error:
        kernels.swiglu(**{"x": whole(16, 64), **weights, **changes})
    assert message in str(error.value)


# -- machine code ---------------------------------------------------------------------------------

ALONE = HopperConfig(BN=128, pingpong=True).with_stages()
WIDE = HopperConfig(BN=192, cluster_m=2, pingpong=True).with_stages()


@pytest.mark.filterwarnings("error::tensorcore_dsl.PerformanceWarning")
@pytest.mark.parametrize("config", [SKINNY_GROUPS, PINGPONG], ids=["few rows", "pingpong"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_grouped_kernels_assemble_without_warnings(order, config):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    for dtype in (BF16, F16) if order == "F" else (BF16,):
        a, b, d = (
            whole(64, 512, dtype=dtype),
            whole(4, 512, 256, dtype=dtype, order=order),
            whole(64, 256, dtype=dtype),
        )
        used = grouped_gemm_kernel.resources(
            a,
            b,
            groups_of((64, 0, 0, 0)),
            d,
            arch="sm_90a",
            config=config,
            traits=HopperTraits(b_k_major=order == "F"),
        )
        assert_clean(used)


@pytest.mark.filterwarnings("error::tensorcore_dsl.PerformanceWarning")
@pytest.mark.parametrize("config", [PINGPONG, ALONE, WIDE], ids=["pingpong", "alone", "wide"])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_gated_kernels_assemble_without_warnings(dtype, config):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    if not is_assembled(config):
        pytest.skip("needs a whole-program ptxas")
    x, weights, d = (np.empty(shape, dtype) for shape in ((64, 512), (256, 512), (64, 256)))
    used = swiglu_kernel.resources(
        x, weights.T, weights.T, d, arch="sm_90a", config=config, traits=HopperTraits()
    )
    assert_clean(used)
