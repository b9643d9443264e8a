"""Operands in any layout: the kernels get copies, the bits stay, and the user is told once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.host import describe
from tensorcore_dsl.kernels.copy_matrix import (
    ACROSS,
    ALONG,
    ELEMENTS,
    MODES,
    WARPS,
    copy_kernel,
    copy_two_kernel,
    ctas,
)
from tensorcore_dsl.kernels.host import copies
from tensorcore_dsl.kernels.host.launch import _cached as known_calls
from tensorcore_dsl.kernels.problem import padding
from tests.fake_gpu import fake_cupy
from tests.fuzz.product_cases import FILL, NUMPY, Draw, laid_out, values

pytestmark = pytest.mark.thorough

THREADS = 32 * WARPS
quiet = pytest.mark.filterwarnings("ignore::tensorcore_dsl.PerformanceWarning")


@pytest.fixture(autouse=True)
def hopper():
    known_calls.clear()  # which make no plan, and so no warning
    with tc.target("cpu", "sm_90a"), np.errstate(all="ignore"):
        yield


# -- the kernel ---------------------------------------------------------------------------------

SHAPES = (1, 1), (3, 2049), (70, 33), (129, 64), (16, 16), (5, 7), (2, 40, 21)


def image(x: Any) -> bytes:
    return np.ascontiguousarray(x).tobytes()


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["s8", "bf16", "f32", "f64"])
def test_matrices_are_copied(dtype, mode):
    """From any address and stride, and nothing beside the target is written."""
    draw, kind = Draw(3), NUMPY[dtype]
    for shape in SHAPES:
        for gap, target_gap in ((0, 0), (1, 0), (16, 3), (5, 64)):
            order = "t" if mode == ACROSS else "n"
            source, _ = laid_out(shape, kind, f"{order}+{gap}@{gap}")
            source[...] = values(draw, shape, dtype, "plain")
            target, memory = laid_out(shape, kind, f"n+{target_gap}@{target_gap % 16}")
            if mode == ELEMENTS:
                target, memory = laid_out((*shape[:-1], 3 * shape[-1]), kind, "n")
                target = target[..., ::3]
            before = memory.copy()
            copy_kernel[ctas(shape, kind.itemsize, mode), THREADS](source, target, mode=mode)
            assert image(target) == image(source), (shape, gap, target_gap)
            target[...] = values(draw, shape, dtype, "zeros")
            others = memory.view(f"u{kind.itemsize}") != before.view(f"u{kind.itemsize}")
            assert others.sum() <= target.size


def test_no_chunk_leaves_the_memory_of_the_source():
    """The emulator reports accesses outside of arrays; a reversed view has its end first."""
    for mode, order in ((ALONG, "n"), (ACROSS, "t")):
        for length in (2, 3, 15, 17, 31, 33):
            whole = np.arange(length * 5, dtype=np.int8)
            source = whole.reshape(5, length) if order == "n" else whole.reshape(length, 5).T
            for view in (source, source[::-1] if order == "n" else source[:, ::-1], source[1:, 1:]):
                target = np.zeros((view.shape[0], 128), np.int8)
                copy_kernel[ctas(view.shape, 1, mode), THREADS](view, target, mode=mode)
                assert np.array_equal(target[:, : view.shape[1]], view)


def test_two_matrices_are_copied_by_one_launch():
    draw = Draw(5)
    a, b = values(draw, (70, 33), "bf16", "plain"), values(draw, (33, 50), "bf16", "plain").T
    a_copy, b_copy = np.zeros((70, 64), a.dtype), np.zeros((50, 64), b.dtype)
    first, second = ctas(a.shape, 2, ALONG), ctas(b.shape, 2, ACROSS)
    copy_two_kernel[first + second, THREADS](a, b, a_copy, b_copy, first, mode_a=ALONG, mode_b=ACROSS)
    assert image(a_copy[:, :33]) == image(a) and image(b_copy[:, :33]) == image(b)


# -- products -----------------------------------------------------------------------------------

PLACES = ("n", "t", "n+1@1", "t+3", "n+16@16", "t+16", "n/2", "t@1/r")
SUMS = kernels.RowReduction("sum"), kernels.RowReduction("max")


def half(value, row, col):
    return value * 0.5


M, N, K = 40, 56, 77
A, B = ((M, K), -1), ((K, N), -2)
SCALES = np.ones((M, 1), np.float32), np.ones((1, 1), np.float32)
CALLS: dict[str, Any] = {
    "e4m3": ("e4m3", (A, B), {}, kernels.gemm),
    "e5m2, fast": ("e5m2", (A, B), {"accumulate": "fast"}, kernels.gemm),
    "epilogue": ("e4m3", (A, B), {"epilogue": half, "alpha": 3.0}, kernels.gemm),
    "rows": ("bf16", (A, B), {"row_reductions": SUMS, "bits": "batch_invariant"}, kernels.gemm),
    "rows of e4m3": ("e4m3", (A, B), {"row_reductions": SUMS}, kernels.gemm),
    "s8": ("s8", (A, B), {"family": "sm90"}, kernels.gemm),
    "tf32": ("tf32", (A, B), {"family": "sm90", "precision": "tf32"}, kernels.gemm),
    "f32": ("f32", (A, B), {"family": "sm90"}, kernels.gemm),
    "bf16": ("bf16", (A, B), {"config": kernels.HopperConfig(BN=64, stages=3)}, kernels.gemm),
    "batch": ("f16", (((3, M, K), -1), B), {}, kernels.gemm),
    "batch of e4m3": ("e4m3", (((2, M, K), -1), ((2, K, N), -2)), {}, kernels.gemm),
    "gates": ("bf16", (A, B, B), {}, kernels.swiglu),
    "groups": ("f16", (A, ((2, K, N), -2)), {"offsets": np.array([0, 9, M], np.int32)}, kernels.grouped_gemm),
    "scales": ("e4m3", (A, B), {"a_scales": SCALES[0], "b_scales": SCALES[1]}, kernels.scaled_gemm),
    "requantised": ("s8", (A, B), {"scale": 1 / 300}, kernels.requantised_gemm),
}


def placed(x: Any, place: str) -> Any:
    view, _ = laid_out(x.shape, x.dtype, place)
    view[...] = x
    return view


def filled(dtype: Any) -> Any:
    return np.full(dtype.itemsize, FILL, np.uint8).view(dtype)[0]


def results(returned: Any) -> list[bytes]:
    return [image(x) for x in (returned if isinstance(returned, tuple) else (returned,))]


@quiet
@pytest.mark.parametrize("by_kernel", [False, True], ids=["by NumPy", "by kernels"])
@pytest.mark.parametrize("name", CALLS)
def test_layouts_change_no_bits(name, by_kernel, monkeypatch):
    """Those of operands that need no copies, whatever is copied and how."""
    if by_kernel:
        monkeypatch.setattr(copies, "_are_on_gpu", lambda arrays: True)
    dtype, kinds, options, function = CALLS[name]
    draw = Draw(7)
    operands = [values(draw, shape, dtype, "wide") for shape, _ in kinds]
    usual = [
        placed(x, f"{'n' if axis == -1 else 't'}+{-x.shape[axis] % 16}")
        for x, (_, axis) in zip(operands, kinds, strict=True)
    ]
    wanted = function(*usual, **options)
    d = wanted[0] if isinstance(wanted, tuple) else wanted
    for attempt in range(3 if by_kernel else len(PLACES)):
        given = [placed(x, draw.choice(PLACES)) for x in operands]
        out, memory = laid_out(d.shape, d.dtype, draw.choice(PLACES))
        actual = function(*given, out=out, **options)
        assert results(actual) == results(wanted), (attempt, [x.strides for x in given])
        out[...] = filled(out.dtype)
        assert (memory.view(np.uint8) == FILL).all()  # beside the result nothing is written


@quiet
def test_sparse_products_of_any_layout():
    draw = Draw(9)
    a, b = values(draw, (48, 128), "f16", "wide"), values(draw, (128, 39), "f16", "wide")
    sparse = kernels.compress(a, prune=True)
    wanted = kernels.gemm(sparse, placed(b, "t"))
    for place in PLACES:
        out = laid_out(wanted.shape, wanted.dtype, place)[0]
        assert image(kernels.gemm(sparse, placed(b, place), out=out)) == image(wanted)


@quiet
def test_a_result_goes_through_a_copy_beside_c():
    """C is read where it is, also where the result goes."""
    draw = Draw(11)
    a, b = values(draw, (33, 77), "e4m3", "whole"), values(draw, (77, 50), "e4m3", "whole")
    c = values(draw, (33, 50), "f32", "whole")
    wanted = kernels.gemm(a, b, c, beta=2, out_dtype=np.float32)
    out = placed(c, "t+3")
    assert kernels.gemm(a, b, out, beta=2, out=out) is out
    assert image(out) == image(wanted)


# -- warnings -----------------------------------------------------------------------------------


def warned(function: Callable[..., Any], *operands: Any, **options: Any) -> list[Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*operands, **options)
    assert all(w.category is tc.PerformanceWarning for w in caught)
    return caught


def zeros(rows: int, cols: int, dtype: str, order: Any = "C") -> Any:
    return np.zeros((rows, cols), NUMPY[dtype], order)


MESSAGES: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "none": ((zeros(16, 64, "e4m3"), zeros(64, 16, "e4m3", "F")), {}, []),
    "rows of B": (
        (zeros(16, 64, "e4m3"), zeros(64, 16, "e4m3")), {},
        ["each product copies an operand: b has contiguous rows, and the kernels take e4m3 with K contiguous: "
         "columns that start at multiples of 16 bytes (16 elements)"],
    ),
    "odd K": (
        (zeros(16, 63, "e4m3"), zeros(63, 16, "e4m3", "F")), {},
        ["the kernels take a with rows that start at multiples of 16 bytes (16 elements)",
         "the kernels take b with columns that start at multiples of 16 bytes (16 elements)"],
    ),
    "both": (
        (zeros(16, 63, "e4m3", "F"), zeros(63, 16, "e4m3", "F")), {},
        ["a has contiguous columns, and the kernels take e4m3 with K contiguous: rows", "the kernels take b with"],
    ),
    "strided": (
        (zeros(16, 128, "f16")[:, ::2], zeros(64, 16, "f16", "F")), {},
        ["neither rows nor columns of a are contiguous in ascending order; one of them has to be"],
    ),
    "reversed": (
        (zeros(16, 64, "f16")[::-1], zeros(64, 16, "f16", "F")), {},
        ["neither rows nor columns of a are contiguous in ascending order"],
    ),
    "columns of the result": (
        (zeros(16, 64, "e4m3"), zeros(64, 16, "e4m3", "F")), {"out": zeros(16, 16, "f32", "F")},
        ["each product copies its result: rows of the result are not contiguous"],
    ),
}  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("name", MESSAGES)
def test_the_user_is_told(name):
    operands, options, messages = MESSAGES[name]
    caught = warned(kernels.gemm, *operands, **options)
    assert len(caught) == len(messages)
    for warning, message in zip(caught, messages, strict=True):
        assert message in str(warning.message)
        assert warning.filename == __file__


def test_swiglu_and_grouped_products_warn_of_copies():
    x, w = zeros(16, 60, "bf16"), zeros(60, 20, "bf16")
    texts = [str(w.message) for w in warned(kernels.swiglu, x, w, w)]
    assert [text.partition(": ")[2][:12] for text in texts] == [
        "the kernels ",
        "w_gate has c",
        "w_up has con",
        "the kernel s",
    ]
    assert "stores rows of the result that start and end at multiples of 16 bytes (8 elements)" in texts[3]
    groups = np.array([0, 16], np.int32)
    texts = [str(w.message) for w in warned(kernels.grouped_gemm, x, w[None], groups)]
    assert len(texts) == 3 and "the kernels take b with rows that start" in texts[1]


def test_once_for_a_line_and_a_reason():
    """By Python's usual filter; shapes are not part of the text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for rows in (16, 32, 16, 48):
            kernels.gemm(zeros(rows, 64, "e4m3"), zeros(64, 16, "e4m3"))
    assert len(caught) == 1


def test_a_plan_names_its_copies():
    a, b, d = zeros(16, 63, "e4m3"), zeros(63, 16, "e4m3", "F"), zeros(16, 16, "f32")
    plan = kernels.plan(a, b, None, d)
    assert [(copy.argument, copy.axis, copy.is_result) for copy in plan.copies] == [
        (0, -1, False),
        (1, -2, False),
    ]
    assert not kernels.plan(zeros(16, 64, "e4m3"), zeros(64, 16, "e4m3", "F"), None, d).copies


# -- memory and streams -------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [padding.ROWS, padding.COLUMNS])
@pytest.mark.parametrize("shape", [(33, 50), (3, 33, 50), (1, 1), (2, 1, 1)])
def test_copies_are_what_was_planned(shape, axis):
    x = np.zeros(shape, np.float16)
    copy, seen = padding.Copy(0, axis, ""), []
    copies.bind_with_copies(lambda arrays: seen.append(describe(arrays[0])), (x,), (copy,), None)
    wanted = padding.kernel_argument(describe(x), 0, (copy,))
    assert (seen[0].shape, seen[0].strides) == (wanted.shape, wanted.strides)
    assert seen[0].type.unit == wanted.type.unit


def test_copies_belong_to_the_stream_of_the_product(monkeypatch):
    """Elsewhere they could come before what wrote the operands, or after their product."""
    current, done = fake_cupy(monkeypatch, np.empty), []

    def note(what: str) -> None:
        done.append((what, current[0]))

    array = type("ndarray", (np.ndarray,), {"__module__": "cupy"})
    a, d = np.zeros((4, 4), np.float32).view(array), np.zeros((4, 4), np.float32).view(array)
    monkeypatch.setattr(copies, "_assign", lambda pairs: note("copies"))
    both = padding.Copy(0, padding.ROWS, ""), padding.Copy(1, padding.ROWS, "", is_result=True)
    for stream, handle in ((None, 0), (SimpleNamespace(ptr=77), 77)):
        launch = copies.bind_with_copies(lambda arrays: lambda *_: note("product"), (a, d), both, stream)
        launch(a, d)
        assert done == [("copies", handle), ("product", handle), ("copies", handle)]
        done.clear()


@quiet
@pytest.mark.parametrize("K, N", [(1, 3), (3, 1), (1, 1)])
def test_kernels_copy_single_rows_and_columns(K, N, monkeypatch):
    """Both axes of a single column have stride 1: its rows start at no multiples of 16 bytes."""
    monkeypatch.setattr(copies, "_are_on_gpu", lambda arrays: True)
    rng, ends = np.random.default_rng(1), np.array([0, 5, 5, 70, 72], np.int32)
    a, b, y = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((72, K), (4, K, N), (72, N)))
    parts = [slice(*pair) for pair in zip(ends, ends[1:])]
    wanted = np.concatenate([a[part] @ b[g] for g, part in enumerate(parts)])
    np.testing.assert_array_equal(kernels.grouped_gemm(a, b, ends), wanted)
    for columns in (a.T, np.ascontiguousarray(a.T)):
        actual = kernels.k_grouped_gemm(columns, y, ends)
        np.testing.assert_array_equal(actual, [a[part].T @ y[part] for part in parts])
