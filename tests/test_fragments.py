"""Fragments: types and layouts, row values, operands of the next product, loads, stores, copies.

Kernels run in emulation against NumPy, and are assembled where there is an assembler.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import running
from refused_kernels import F32, HALF, MATRIX, Case, Refusals, check

import tensorcore_dsl as tc
from tensorcore_dsl import ArrayType, LayoutError

warp = functools.partial(running.launch, block=32)
warpgroup = functools.partial(running.launch, block=128, arch="sm_90a")

F16 = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
BF16 = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
TF32 = tc.mma.m16n8k8(tc.tf32, tc.tf32, tc.f32)
S8 = tc.mma.m16n8k32(tc.s8, tc.s8, tc.s32)
F64 = tc.mma.m8n8k4(tc.f64, tc.f64, tc.f64)
PRODUCTS = [F16, BF16, TF32, S8, F64]
WGMMA = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32, source="registers")
TILES = [*((m, name) for m in PRODUCTS for name in "abd"), (WGMMA, "a"), (WGMMA, "d")]


def launch(place: Any, kernel: Any, *args: Any, **constants: Any) -> None:
    """In a warp, or in a warpgroup of sm_90a if the layout is one of wgmma."""
    run = warp if place.layout.threads == 32 else warpgroup
    run(kernel, *args, **constants)


def numbers(shape: Any, dtype: Any, seed: int = 0) -> np.ndarray:
    """Small whole numbers, exact in all types."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


def short(value: Any) -> str:
    """The name of a case: an operand by its layout."""
    layout = getattr(value, "layout", None)
    return str(getattr(value, "ptx", value) if layout is None else layout.name)


def memory_type(operand: Any) -> np.dtype:
    return np.dtype(operand.dtype.numpy)


# -- layouts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("instr, name", TILES, ids=short)
def test_a_layout_knows_who_holds_an_element(instr: Any, name: str):
    layout = instr.operand(name).layout
    for row, col in ((0, 0), (layout.rows - 1, layout.cols - 1), (layout.rows // 2, 1)):
        thread, slot = layout.owner(row, col)
        assert layout.formula(thread, slot) == (row, col)
    with pytest.raises(LayoutError, match="no element"):
        layout.owner(layout.rows, 0)


@pytest.mark.parametrize("instr, name", TILES, ids=short)
@pytest.mark.parametrize("dtype", [tc.f16, tc.bf16, tc.f32, tc.s8, tc.s32, tc.f64], ids=str)
def test_a_layout_of_another_type_has_the_same_slots(instr: Any, name: str, dtype: Any):
    layout = instr.operand(name).layout
    other = layout.of_type(dtype)
    assert other.dtype == dtype and other.slots == layout.slots
    assert np.array_equal(other.coords, layout.coords)
    assert other.of_type(layout.dtype) is layout
    assert other.of_type(tc.s32) == layout.of_type(tc.s32)


def test_layouts_of_equal_names_are_equal():
    """A changed type gets the name of an operand only if it is that operand's layout."""
    real: dict[str, Any] = {}
    for instr in (i for shape in ("m16n8k16", "m16n8k32", "m16n8k8") for i in getattr(tc.mma, shape).instructions()):
        for operand in (*instr.results, *instr.operands):
            if operand.layout is not None:
                real[operand.layout.name] = operand.layout
    kinds = [tc.f16, tc.bf16, tc.f32, tc.tf32, tc.s8, tc.u8, tc.e4m3, tc.e5m2, tc.s32, tc.f64]
    for layout in list(real.values()):
        for dtype in kinds:
            other = layout.of_type(dtype)
            if other.name in real:
                assert np.array_equal(other.coords, real[other.name].coords), other.name
                assert other.registers == real[other.name].registers


# -- types ------------------------------------------------------------------------------------


@tc.kernel
def converted(x: tc.Array, out: tc.Array, operand: tc.Const, through: tc.Const):
    fragment = tc.load_elements(x, operand)
    for dtype in through:
        fragment = fragment.to(dtype)
    tc.store_elements(out, fragment)
    for slot in tc.static_range(len(fragment)):
        row, col = fragment.coordinates(slot)
        out[row, col] = fragment[slot] + out[row, col]


THROUGH = [(tc.f16,), (tc.bf16,), (tc.f32,), (tc.s32,), (tc.s8,), (tc.f64,), (tc.f16, tc.s32, tc.bf16)]


@pytest.mark.parametrize("instr, name", TILES, ids=short)
@pytest.mark.parametrize("through", THROUGH, ids=str)
def test_conversion_keeps_the_layout(instr: Any, name: str, through: Any):
    operand = instr.operand(name)
    x = numbers((operand.layout.rows, operand.layout.cols), memory_type(operand))
    out = np.zeros(x.shape, np.float32)
    launch(operand, converted, x, out, operand=operand, through=through)
    assert np.array_equal(out, 2 * x.astype(np.float32))


@tc.kernel
def halved(x: tc.Array, out: tc.Array, dtype: tc.Const):
    tc.store_elements(out, tc.load_elements(x, F16.d).to(dtype))


@pytest.mark.parametrize("dtype", [tc.f16, tc.bf16, tc.e4m3, tc.e5m2], ids=str)
def test_pairs_are_converted_together_and_rounded_to_nearest(dtype: Any):
    x = np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)
    out = np.zeros((16, 8), dtype.numpy)
    warp(halved, x, out, dtype=dtype, arch="sm_90a")
    assert np.array_equal(out, x.astype(dtype.numpy))
    mode = ".satfinite" if dtype.bits == 8 else ""
    assert halved.ptx(x, out, arch="sm_90a", dtype=dtype).count(f"cvt.rn{mode}.{dtype}x2.f32") == 2


@tc.kernel
def accumulates_in_halves(a: tc.Array, b: tc.Array, c: tc.Array, out: tc.Array):
    """A converted accumulator is the C of the product that accumulates in f16."""
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f16)
    acc = tc.load_elements(c, F16.d).to(tc.f16)
    for _ in range(2):
        acc = mma(tc.load_elements(a, mma.a), tc.load_elements(b, mma.b), acc)
    tc.store_elements(out, acc)


def test_a_converted_accumulator_is_an_operand():
    a, b = numbers((16, 16), np.float16), numbers((16, 8), np.float16, 1)
    c, out = numbers((16, 8), np.float32, 2), np.zeros((16, 8), np.float16)
    warp(accumulates_in_halves, a, b, c, out)
    assert np.array_equal(out, (2 * a.astype(np.float32) @ b.astype(np.float32) + c).astype(np.float16))


def only_large(value):
    if value > 2:
        return value
    return value * 0


@tc.kernel
def maps(x: tc.Array, out: tc.Array, picked: tc.Array, count: tc.s32):
    fragment = tc.load_elements(x, F16.d)
    tc.store_elements(out, fragment.map(only_large))
    masked = fragment.map_coordinates(lambda v, i, j: v if i + j < count else 100 * i + j)
    tc.store_elements(picked, masked)


def test_maps_of_elements_and_coordinates():
    x = numbers((16, 8), np.float32)
    out, picked = np.zeros_like(x), np.zeros_like(x)
    warp(maps, x, out, picked, 9)
    i, j = np.indices(x.shape)
    assert np.array_equal(out, np.where(x > 2, x, 0))
    assert np.array_equal(picked, np.where(i + j < 9, x, 100 * i + j))


@tc.kernel
def selects(x: tc.Array, y: tc.Array, out: tc.Array):
    a, b = tc.load_elements(x, F16.d), tc.load_elements(y, F16.d)
    rows = tc.row_max(a)
    tc.store_elements(out[0, :, :], tc.select(a > b, a, b))
    tc.store_elements(out[1, :, :], tc.select((a > 0) & (b > 0) | (a == -8), 1, b))
    tc.store_elements(out[2, :, :], tc.select(~(a == rows), 0, rows))
    tc.store_elements(out[3, :, :], tc.select(a > b, a, 0.5))
    tc.store_elements(out[4, :, :], tc.select(rows > 7, a, b))


def test_comparisons_of_fragments_select_elements():
    x, y = numbers((16, 8), np.float32), numbers((16, 8), np.float32, 1)
    out = np.zeros((5, 16, 8), np.float32)
    warp(selects, x, y, out)
    top = x.max(1, keepdims=True)
    assert np.array_equal(out[0], np.maximum(x, y))
    assert np.array_equal(out[1], np.where((x > 0) & (y > 0) | (x == -8), 1, y))
    assert np.array_equal(out[2], np.where(x == top, top, 0))
    assert np.array_equal(out[3], np.where(x > y, x, 0.5))
    assert np.array_equal(out[4], np.where(top > 7, x, y))


@tc.kernel
def chosen_mask(x: tc.Array, out: tc.Array, count: tc.s32):
    a = tc.load_elements(x, F16.d)
    mask = a > 0
    if count > 2:
        mask = a < 0
    for _ in range(count):
        mask = ~mask
    tc.store_elements(out, tc.select(mask, a, 100))


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_masks_in_branches_and_loops(count: int):
    x, out = numbers((16, 8), np.float32), np.zeros((16, 8), np.float32)
    warp(chosen_mask, x, out, count)
    mask = (x < 0 if count > 2 else x > 0) ^ bool(count % 2)
    assert np.array_equal(out, np.where(mask, x, 100))


@tc.kernel
def turned_pairs(x: tc.Array, out: tc.Array):
    """The transpose of each 8x8 matrix of an accumulator is one of a B."""
    pairs = [tc.movmatrix(r) for r in tc.load_elements(x, F16.d, convert=True).to(tc.f16).registers]
    for i, pair in enumerate(pairs):
        low, high = tc.unpack(pair)
        row, col = tc.lane_id() // 4, 2 * (tc.lane_id() % 4)
        out[row, 8 * i + col], out[row, 8 * i + col + 1] = low, high


def test_movmatrix_transposes_and_keeps_the_type():
    x, out = numbers((16, 8), np.float32), np.zeros((8, 16), np.float16)
    warp(turned_pairs, x, out)
    assert np.array_equal(out, x.T)


# -- item assignment --------------------------------------------------------------------------


@tc.kernel
def assigned_items(x: tc.Array, out: tc.Array, count: tc.s32):
    acc = tc.load_elements(x, F16.d)
    copy = acc
    acc[0] = 50
    acc[-1] += 7
    acc[1:3] = (acc[2], acc[1])
    grid = {"all": [[acc, copy]]}
    grid["all"][0][0][0] = 60
    for k in range(count):
        acc[1] += k
        if k == 2:
            acc[2] = acc[0]
            grid["all"][0][1][3] = -1

    def nested(given):
        given[0] = 1000  # a parameter is another variable
        acc[3] += given[1]

    nested(copy)
    for i, fragment in enumerate((acc, copy, grid["all"][0][0], grid["all"][0][1])):
        tc.store_elements(out[i, :, :], fragment)


def test_elements_are_assigned_and_fragments_are_values():
    x, out = numbers((16, 8), np.float32), np.zeros((4, 16, 8), np.float32)
    warp(assigned_items, x, out, 4)
    coords = F16.d.layout.coords
    a, b, c, d = (np.moveaxis(o[coords[..., 0], coords[..., 1]], -1, 0) for o in out)
    old = np.moveaxis(x[coords[..., 0], coords[..., 1]], -1, 0)
    assert np.array_equal(a, [np.full(32, 50), old[2] + 6, np.full(32, 50), old[3] + 7 + old[1]])
    assert np.array_equal(b, old)
    assert np.array_equal(c, [np.full(32, 60), old[2], old[1], old[3] + 7])
    assert np.array_equal(d, [*old[:3], np.full(32, -1)])


@tc.kernel
def assigned_halves(x: tc.Array, out: tc.Array):
    fragment = tc.load_elements(x, F16.a)
    fragment[3] = 9.0
    fragment[4] = tc.f32(2.5)
    tc.store_elements(out, fragment)


def test_elements_of_packed_fragments_are_assigned():
    x = numbers((16, 16), np.float16)
    out = np.zeros_like(x)
    warp(assigned_halves, x, out)
    rows, cols = F16.a.layout.coords[..., 0], F16.a.layout.coords[..., 1]
    x[rows[:, 3], cols[:, 3]], x[rows[:, 4], cols[:, 4]] = 9, 2.5
    assert np.array_equal(out, x)


# -- row and column values -----------------------------------------------------------------------


@tc.kernel
def row_reductions(x: tc.Array, out: tc.Array, operand: tc.Const):
    fragment = tc.load_elements(x, operand)
    tc.store_rows(out[0, :], tc.row_sum(fragment))
    tc.store_rows(out[1, :], tc.row_max(fragment))
    tc.store_rows(out[2, :], tc.row_min(fragment))
    tc.store_rows(out[3, :], tc.reduce_rows(fragment, lambda a, b: tc.maximum(abs(a), abs(b))))


@pytest.mark.parametrize("instr, name", TILES, ids=short)
def test_reductions_of_rows(instr: Any, name: str):
    operand = instr.operand(name)
    x = numbers((operand.layout.rows, operand.layout.cols), memory_type(operand))
    out = np.zeros((4, len(x)), np.float64)
    launch(operand, row_reductions, x, out, operand=operand)
    wide = x.astype(np.float64)
    expected = [wide.sum(1), wide.max(1), wide.min(1), abs(wide).max(1)]
    assert np.array_equal(out, expected)


@tc.kernel
def column_reductions(x: tc.Array, out: tc.Array, operand: tc.Const):
    fragment = tc.load_elements(x, operand)
    tc.store_columns(out, tc.reduce_columns(fragment, tc.maximum))


@pytest.mark.parametrize("instr, name", [(F16, "a"), (F16, "b"), (F16, "d"), (F64, "d")], ids=short)
def test_reductions_of_columns(instr: Any, name: str):
    operand = instr.operand(name)
    x = numbers((operand.layout.rows, operand.layout.cols), memory_type(operand))
    out = np.zeros(x.shape[1], np.float32)
    warp(column_reductions, x, out, operand=operand)
    assert np.array_equal(out, x.max(0))


@tc.kernel
def softmax(x: tc.Array, out: tc.Array, tops: tc.Array, operand: tc.Const, parts: tc.Const):
    """Rows of `parts` fragments side by side, and of all rounds of a loop: online."""
    width = operand.layout.cols
    best, total = tc.row_values(operand, -math.inf), tc.row_values(operand)
    for start in range(0, x.shape[1], parts * width):
        f = [tc.load_elements(x, operand, origin=(0, start + i * width)) for i in range(parts)]
        new = tc.maximum(best, tc.row_max(f))
        total = total * tc.exp2(best - new) + tc.row_sum([tc.exp2(part - new) for part in f])
        best = new
    for col in range(0, x.shape[1], width):
        f = tc.load_elements(x, operand, origin=(0, col))
        tc.store_elements(out, tc.exp2(f - best) / total, origin=(0, col))
    tc.store_rows(tops, best)


@pytest.mark.parametrize("operand", [F16.d, WGMMA.d, tc.mma.m16n8k8(tc.tf32, tc.tf32, tc.f32).a], ids=short)
@pytest.mark.parametrize("parts", [1, 2])
def test_row_values_are_broadcast_and_carried_through_loops(operand: Any, parts: int):
    layout = operand.layout
    x = np.random.default_rng(2).standard_normal((layout.rows, 4 * layout.cols)).astype(np.float32)
    out, tops = np.zeros_like(x), np.zeros(len(x), np.float32)
    launch(operand, softmax, x, out, tops, operand=operand, parts=parts)
    expected = np.exp2(x - x.max(1, keepdims=True))
    rounding = 2e-3 if operand.dtype == tc.tf32 else 1e-6
    assert np.allclose(out, expected / expected.sum(1, keepdims=True), atol=rounding)
    assert np.allclose(tops, x.max(1), rtol=rounding)


@tc.kernel
def lines(x: tc.Array, rows: tc.Array, cols: tc.Array, out: tc.Array, operand: tc.Const, first: tc.s32):
    fragment = tc.load_elements(x, operand)
    r = tc.load_rows(rows, operand, origin=first, bounded=True, otherwise=-3)
    c = tc.load_columns(cols, fragment, bounded=True)
    tc.store_elements(out[0, :, :], fragment * r + c)
    tc.store_elements(out[1, :, :], c - fragment)
    tc.store_elements(out[2, :, :], tc.fma(fragment, c, r))
    tc.store_elements(out[3, :, :], tc.maximum(r, fragment))
    tc.store_elements(out[4, :, :], tc.select(fragment > r, c, fragment))


@pytest.mark.parametrize("operand", [F16.a, F16.b, F16.d, BF16.b, TF32.a, F64.d, WGMMA.d], ids=short)
def test_rows_and_columns_of_arrays(operand: Any):
    layout, dtype = operand.layout, memory_type(operand)
    x = numbers((layout.rows, layout.cols), dtype)
    rows, cols = numbers(layout.rows + 1, dtype, 1), numbers(layout.cols, dtype, 2)
    out = np.zeros((5, *x.shape), dtype)
    launch(operand, lines, x, rows, cols, out, 3, operand=operand)
    r = np.concatenate([rows[3:], np.full(2, -3, dtype)])[:, None]
    assert np.array_equal(out[0], x * r + cols)
    assert np.array_equal(out[1], cols - x)
    assert np.array_equal(out[2], x * cols + r)
    assert np.array_equal(out[3], np.maximum(r, x))
    assert np.array_equal(out[4], np.where(x > r, cols, x))


@tc.kernel
def partly_stored(out: tc.Array, cols: tc.Array, first: tc.s32):
    tc.store_rows(out, tc.row_values(F16.d, 7), origin=first, bounded=True)
    tc.store_columns(cols, tc.column_values(F16.d, 2.5, tc.f16), origin=0)


@pytest.mark.parametrize("first", [-4, 0, 6, 30])
def test_row_values_beyond_the_end_are_not_stored(first: int):
    out, cols = np.zeros(20, np.float32), np.zeros(8, np.float16)
    warp(partly_stored, out, cols, first)
    index = np.arange(20)
    assert np.array_equal(out, np.where((index >= first) & (index < first + 16), 7, 0))
    assert np.array_equal(cols, np.full(8, 2.5))


@tc.kernel
def scaled_pairs(x: tc.Array, scales: tc.Array, out: tc.Array):
    fragment = tc.load_elements(x, F16.b)
    tc.store_elements(out, fragment * tc.load_columns(scales, fragment))


def test_column_values_scale_pairs():
    x, scales = numbers((16, 8), np.float16), numbers(8, np.float16, 1)
    out = np.zeros_like(x)
    warp(scaled_pairs, x, scales, out)
    assert np.array_equal(out, x * scales)
    assert scaled_pairs.ptx(x, scales, out, arch="sm_80").count("mul.rn.f16x2") == 2


@tc.kernel
def matrix_lines(x: tc.Array, out: tc.Array, row: tc.s32, col: tc.s32, bounded: tc.Const):
    scales = tc.load_columns(x, F16.d, origin=(row, col), bounded=bounded, otherwise=-1)
    shifts = tc.load_rows(x, F16.d, origin=(row, col), bounded=bounded, otherwise=-2)
    tc.store_elements(out, F16.d.zeros() + scales * 100 + shifts, origin=(0, 0))
    tc.store_columns(out, scales, origin=(16, 0))
    tc.store_rows(out, shifts, origin=(0, 8))


@pytest.mark.parametrize("row, col, bounded", [(0, 0, False), (3, 5, False), (3, 9, True), (-2, 3, True), (20, 4, True)])
def test_lines_of_a_matrix(row: int, col: int, bounded: bool):
    x, out = numbers((20, 14), np.float32), np.zeros((17, 9), np.float32)
    warp(matrix_lines, x, out, row, col, bounded=bounded)

    def at(i: int, j: int, otherwise: int) -> float:
        return x[i, j] if 0 <= i < 20 and 0 <= j < 14 else otherwise

    scales = np.array([at(row, col + j, -1) for j in range(8)])
    shifts = np.array([at(row + i, col, -2) for i in range(16)])
    assert np.array_equal(out[:16, :8], scales * 100 + shifts[:, None])
    assert np.array_equal(out[16, :8], scales)
    assert np.array_equal(out[:16, 8], shifts)


def test_lines_of_a_matrix_stay_inside():
    x, out = numbers((20, 14), np.float32), np.zeros((17, 9), np.float32)
    with pytest.raises(tc.OutOfBounds, match="index 14 leaves axis 1 of 'x'|from index 14"):
        warp(matrix_lines, x, out, 0, 7, bounded=False)
    with pytest.raises(tc.OutOfBounds, match="index 20 leaves axis 0 of 'x'"):
        warp(matrix_lines, x, out, 20, 0, bounded=False)


@tc.kernel
def computed_lines(x: tc.Array, out: tc.Array, start: tc.s32, operand: tc.Const):
    rows = tc.row_values(operand, lambda i: x[start + i])
    cols = tc.column_values(operand, lambda j: 10 * j, tc.f32)
    tc.store_elements(out, operand.zeros() + rows * 100 + cols, origin=(0, 0))


@pytest.mark.parametrize("operand", [F16.d, TF32.d, WGMMA.d], ids=short)
def test_values_of_the_coordinate(operand: Any):
    x, out = numbers(80, np.float32), np.zeros((operand.layout.rows, operand.layout.cols), np.float32)
    launch(operand, computed_lines, x, out, 5, operand=operand)
    i, j = np.indices(out.shape)
    assert np.array_equal(out, x[5 + i] * 100 + 10 * j)


@tc.kernel
def logarithms(x: tc.Array, out: tc.Array):
    tc.store_elements(out, tc.log(tc.load_elements(x, F16.d)))


def test_log_of_a_fragment():
    x = np.exp(np.linspace(-8, 8, 128, dtype=np.float32)).reshape(16, 8)
    out = np.zeros_like(x)
    warp(logarithms, x, out)
    assert np.allclose(out, np.log(x), rtol=1e-6, atol=1e-6)


# -- operands of the next product ------------------------------------------------------------------


@tc.kernel
def rearranged(
    x: tc.Array, out: tc.Array, source: tc.Const, operand: tc.Const, of: tc.Const,
    transposed: tc.Const = False,
):  # fmt: skip
    rows, cols = of
    r, c = source.layout.rows, source.layout.cols
    given = [[tc.load_elements(x, source, origin=(i * r, j * c)) for j in range(cols)] for i in range(rows)]
    found = tc.as_operand(given, operand, transposed=transposed)
    found = found if isinstance(found, list) else [found]
    if isinstance(found[0], list):
        found = [f for line in found for f in line]
    per_row = out.shape[1] // operand.layout.cols
    for k, fragment in enumerate(found):
        origin = k // per_row * operand.layout.rows, k % per_row * operand.layout.cols
        tc.store_elements(out, fragment, origin=origin)


REARRANGED = [
    (F16.d, F16.a, (1, 2), False), (F16.d, F16.a, (2, 4), False), (F16.d, BF16.a, (1, 2), False),
    (WGMMA.d, WGMMA.a, (1, 1), False), (F16.d, F16.b, (1, 2), True), (F16.d, F16.b, (2, 2), True),
    (BF16.d, BF16.d, (1, 2), False), (F16.a, F16.d, (1, 1), False),
]  # fmt: skip


@pytest.mark.parametrize("source, operand, grid, transposed", REARRANGED, ids=short)
def test_accumulators_become_operands(source: Any, operand: Any, grid: Any, transposed: bool):
    shape = grid[0] * source.layout.rows, grid[1] * source.layout.cols
    x = numbers(shape, memory_type(source))
    out = np.zeros(shape[::-1] if transposed else shape, np.float32)
    launch(source, rearranged, x, out, source=source, operand=operand, of=grid, transposed=transposed)
    assert np.array_equal(out, x.T if transposed else x)
    text = rearranged.ptx(
        x, out, source=source, operand=operand, of=grid, transposed=transposed, arch="sm_90a"
    )
    assert "shfl" not in text and "shared" not in text


# -- matrices of shared memory ----------------------------------------------------------------------


@tc.kernel
def through_a_tile(
    x: tc.Array, out: tc.Array, source: tc.Const, target: tc.Const, grid: tc.Const,
    turned: tc.Const = False,
):  # fmt: skip
    """Fragments by stmatrix to a tile, by ldmatrix from it as another operand, and to `out`."""
    rows, cols = grid[0] * source.layout.rows, grid[1] * source.layout.cols
    tile = tc.shared((cols, rows) if turned else (rows, cols), target.dtype, swizzle=128)
    view = tile.T if turned else tile
    fragments = [
        [tc.load_elements(x, source, origin=(r, c)).to(target.dtype) for c in range(0, cols, source.layout.cols)]
        for r in range(0, rows, source.layout.rows)
    ]
    tc.stmatrix(view, fragments)
    tc.barrier()
    found = tc.ldmatrix(view, target)
    found = found if isinstance(found, list) else [found]
    if not isinstance(found[0], list):
        found = [found] if grid[0] == 1 else [[f] for f in found]
    for i, row in enumerate(found):
        for j, fragment in enumerate(row):
            tc.store_elements(out, fragment, origin=(i * target.layout.rows, j * target.layout.cols))


STORED = [(F16.d, F16.a, (4, 8)), (F16.d, BF16.b, (4, 8)), (WGMMA.d, WGMMA.a, (1, 1)), (F16.a, F16.a, (1, 4))]


@pytest.mark.parametrize("source, target, of", STORED, ids=short)
@pytest.mark.parametrize("turned", [False, True])
def test_converted_accumulators_through_shared_memory(source: Any, target: Any, of: Any, turned: bool):
    if turned and of == (1, 4):
        of = 4, 1
    x = numbers((of[0] * source.layout.rows, of[1] * source.layout.cols), memory_type(source))
    out = np.zeros(x.shape, np.float32)
    block = source.layout.threads
    constants = {"source": source, "target": target, "turned": turned}
    through_a_tile.emulator("sm_90a")[1, block](x, out, grid=of, **constants)
    assert np.array_equal(out, x)
    if running.ASSEMBLES:
        assert through_a_tile.cubin(x, out, grid=of, **constants, arch="sm_90a")


# -- tiled products ------------------------------------------------------------------------------


@tc.kernel
def tiled(a: tc.Array, b: tc.Array, out: tc.Array, mma: tc.Const, shape: tc.Const, form: tc.Const):
    m, n, k = mma.shape
    rows, cols, depth = shape
    fa = [[tc.load_elements(a, mma.a, origin=(i * m, s * k)) for s in range(depth)] for i in range(rows)]
    fb = [[tc.load_elements(b, mma.b, origin=(s * k, j * n)) for j in range(cols)] for s in range(depth)]
    acc = [[mma.d.zeros() for _ in range(cols)] for _ in range(rows)]
    if form == "flat":
        fa, fb, acc = [f for r in fa for f in r], [f for r in fb for f in r], [f for r in acc for f in r]
    if form == "one nested":
        fb, acc = [f for r in fb for f in r], [f for r in acc for f in r]
    if form == "single":
        fa, fb, acc = fa[0][0], fb[0][0], acc[0][0]
    for _ in range(2):
        acc = tc.tiled_mma(mma, acc, fa, fb)
    if form == "single":
        acc = [acc]
    if form != "nested":
        acc = [acc[i * cols : (i + 1) * cols] for i in range(rows)]
    for i, row in enumerate(acc):
        for j, fragment in enumerate(row):
            tc.store_elements(out, fragment, origin=(i * m, j * n))


@pytest.mark.parametrize("mma", PRODUCTS, ids=short)
@pytest.mark.parametrize("shape, form", [((2, 3, 2), "nested"), ((2, 3, 2), "one nested"), ((1, 3, 2), "flat"), ((3, 1, 1), "flat"), ((1, 1, 1), "single")])
def test_tiled_products(mma: Any, shape: Any, form: str):
    (m, n, k), (rows, cols, depth) = mma.shape, shape
    a = numbers((rows * m, depth * k), memory_type(mma.a))
    b = numbers((depth * k, cols * n), memory_type(mma.b), 1)
    out = np.zeros((rows * m, cols * n), memory_type(mma.d))
    warp(tiled, a, b, out, mma=mma, shape=shape, form=form)
    assert np.array_equal(out, 2 * a.astype(np.float64) @ b.astype(np.float64))


# -- element-wise loads and stores ------------------------------------------------------------------


@tc.kernel
def moved(x: tc.Array, out: tc.Array, operand: tc.Const, row: tc.s32, col: tc.s32, bounded: tc.Const, convert: tc.Const = False):
    fragment = tc.load_elements(x, operand, origin=(row, col), bounded=bounded, otherwise=-7, convert=convert)
    tc.store_elements(out, fragment + 1, origin=(row, col), bounded=bounded)


@pytest.mark.parametrize("operand", [F16.a, F16.b, F16.d, BF16.a, TF32.b, F64.d, WGMMA.d], ids=short)
@pytest.mark.parametrize("place", [(0, 0), (5, 3), (-3, -2), (40, 4), (62, 60), (100, 0)])
def test_bounded_loads_and_stores(operand: Any, place: Any):
    x = numbers((66, 65), memory_type(operand))
    out = np.zeros_like(x)
    launch(operand, moved, x, out, *place, operand=operand, bounded=True)
    expected = np.zeros_like(x)
    i, j = np.indices(x.shape)
    rows, cols = operand.layout.rows, operand.layout.cols
    inside = (i >= place[0]) & (i < place[0] + rows) & (j >= place[1]) & (j < place[1] + cols)
    expected[inside] = x[inside] + 1
    assert np.array_equal(out, expected)


@tc.kernel
def filled(x: tc.Array, out: tc.Array, row: tc.s32):
    tc.store_elements(out, tc.load_elements(x, F16.d, origin=(row, 2), bounded=True, otherwise=-7))


def test_elements_outside_become_otherwise():
    x, out = numbers((20, 8), np.float32), np.zeros((16, 8), np.float32)
    warp(filled, x, out, -4)
    expected = np.full((16, 8), -7, np.float32)
    expected[4:, :6] = x[:12, 2:]
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("source, operand", [(np.int8, F16.b), (np.float32, F16.a), (np.float64, F16.d), (np.uint8, S8.a), (np.float16, TF32.a)])
def test_loads_and_stores_convert(source: Any, operand: Any):
    x = abs(numbers((operand.layout.rows, operand.layout.cols), np.int8)).astype(source)
    out = np.zeros(x.shape, np.float64)
    warp(moved, x, out, 0, 0, operand=operand, bounded=False, convert=True)
    assert np.array_equal(out, x.astype(np.float64) + 1)


@tc.kernel
def paired(x: tc.Array, out: tc.Array, col: tc.s32, step: tc.Const, view: tc.Const = 0):
    tile = tc.shared((16, 16), x.dtype, swizzle=32)
    source = x[:, view:]
    fragment = tc.load_elements(source, F16.a, origin=(0, col * step))
    tc.store_elements(tile, fragment)
    tc.syncwarp()
    tc.store_elements(out, tc.load_elements(tile, F16.a))


@pytest.mark.parametrize("step, view, together", [(2, 0, True), (1, 0, False), (2, 1, False), (8, 2, True)])
def test_neighbours_move_together_where_alignment_is_known(step: int, view: int, together: bool):
    x, out = numbers((16, 32), np.float16), np.zeros((16, 16), np.float16)
    warp(paired, x, out, 1, step=step, view=view)
    assert np.array_equal(out, x[:, view + step :][:, :16])
    text = paired.ptx(x, out, 1, step=step, view=view, arch="sm_80")
    assert text.count("ld.global.b32") == (4 if together else 0)
    assert text.count("st.shared.b32") == 4 and text.count("st.global.b32") == 4


# -- packing --------------------------------------------------------------------------------------


@tc.kernel
def packed(x: tc.Array, words: tc.Array, out: tc.Array):
    t = tc.lane_id()
    low, high = tc.unpack(tc.pack(x[t], 2))
    out[0, t], out[1, t] = low, high
    word = words[t]
    for i, part in enumerate(tc.unpack(word, tc.s8)):
        out[2 + i, t] = part
    for i, part in enumerate(tc.unpack(word, tc.u16)):
        out[6 + i, t] = part
    for i, (signed, plain) in enumerate(zip(tc.unpack(word, tc.s4), tc.unpack(word, tc.u4))):
        out[8 + i, t], out[16 + i, t] = signed, plain - 8
    for i, part in enumerate(tc.unpack(tc.u8(word & 255), tc.u4)):
        out[24 + i, t] = part
    bytes = tc.unpack(word, tc.u8)
    words[t] = tc.pack(bytes[3], bytes[2], bytes[1], bytes[0]).bits(tc.u32)


def test_packs_and_unpacks():
    draw = np.random.default_rng(3)
    x, words = numbers(32, np.float16), draw.integers(0, 2**32, 32, dtype=np.uint64).astype(np.uint32)
    given, out = words.copy(), np.zeros((26, 32))
    warp(packed, x, words, out)
    shifts = np.arange(8)[:, None] * 4
    nibbles = given >> shifts.astype(np.uint32) & 15
    assert np.array_equal(out[:2], [x, np.full(32, 2)])
    assert np.array_equal(out[2:6], given.view(np.int8).reshape(-1, 4).T)
    assert np.array_equal(out[6:8], given.view(np.uint16).reshape(-1, 2).T)
    assert np.array_equal(out[8:16], np.where(nibbles > 7, nibbles.astype(int) - 16, nibbles))
    assert np.array_equal(out[16:24], nibbles.astype(int) - 8)
    assert np.array_equal(out[24:], nibbles[:2])
    assert np.array_equal(words, given.byteswap())


@tc.kernel
def of_elements(x: tc.Array, out: tc.Array):
    t = tc.lane_id()
    f = tc.fragment(F16.a, [x[t, i] for i in range(8)])
    g = tc.fragment(F16.a, [tc.pack(x[t, i], x[t, i + 1]) for i in range(0, 8, 2)])
    h = tc.fragment(F16.a, [1.5, 2, *[x[t, i] for i in range(2, 8)]])
    tc.store_elements(out[0, :, :], f)
    tc.store_elements(out[1, :, :], g)
    tc.store_elements(out[2, :, :], h)


def test_fragments_of_elements_and_of_registers():
    x, out = numbers((32, 8), np.float16), np.zeros((3, 16, 16), np.float16)
    warp(of_elements, x, out)
    coords = F16.a.layout.coords
    of_threads = out[:, coords[..., 0], coords[..., 1]]
    assert np.array_equal(of_threads[0], x) and np.array_equal(of_threads[1], x)
    x[:, :2] = 1.5, 2
    assert np.array_equal(of_threads[2], x)


@tc.kernel
def of_coordinates(out: tc.Array, operand: tc.Const, together: tc.Const):
    cols = operand.layout.cols

    def values(row, col):
        down = operand.name == "b"
        place = [(row + e, col) if down else (row, col + e) for e in range(together)]
        found = [(cols * i + j).to(operand.dtype) for i, j in place]
        return found if together > 1 else found[0]

    tc.store_elements(out, tc.fragment(operand, values))


@pytest.mark.parametrize("operand, together", [(F16.a, 1), (F16.a, 2), (F16.b, 2), (F16.d, 2), (S8.b, 4), (S8.a, 2), (WGMMA.d, 2), (TF32.a, 1)], ids=short)
def test_fragments_of_functions(operand: Any, together: int):
    rows, cols = operand.layout.rows, operand.layout.cols
    out = np.zeros((rows, cols), np.float32)
    launch(operand, of_coordinates, out, operand=operand, together=together)
    expected = np.arange(rows * cols).reshape(rows, cols)
    assert np.array_equal(out, expected.astype(np.int8) if operand.dtype == tc.s8 else expected)


# -- copies of tiles --------------------------------------------------------------------------------


@tc.kernel(threads=128)
def copied(x: tc.Array, out: tc.Array, row: tc.s32, col: tc.s32, shape: tc.Const, swizzle: tc.Const, options: tc.Const):
    tile = tc.shared(shape, x.dtype, swizzle=swizzle)
    tc.copy_tile(tile, x, (row, col), **options)
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    tc.barrier()
    tc.copy_tile(out, tile, (row, col), **options)


def expected_copy(x: np.ndarray, place: Any, shape: Any) -> np.ndarray:
    i, j = np.indices(x.shape)
    rows, cols = (i >= place[0]) & (i < place[0] + shape[0]), (j >= place[1]) & (j < place[1] + shape[1])
    return np.where(rows & cols, x, 0).astype(x.dtype)


COPIES = [
    (np.float16, (64, 64), 128), (np.float32, (16, 24), 0), (np.int8, (40, 64), 64), (np.float64, (8, 16), 128),
    (np.uint8, (5, 7), 0), (np.float16, (3, 50), 0),
]  # fmt: skip


@pytest.mark.parametrize("dtype, shape, swizzle", COPIES, ids=str)
@pytest.mark.parametrize("width", [96, 97, 100])
@pytest.mark.parametrize("place", [(0, 0), (50, 64), (-2, 32), (3, 80)])
def test_bounded_copies(dtype: Any, shape: Any, swizzle: int, width: int, place: Any):
    x = numbers((66, width), dtype)
    out = np.zeros_like(x)
    running.launch(copied, x, out, *place, block=128, shape=shape, swizzle=swizzle, options={"bounded": True})
    assert np.array_equal(out, expected_copy(x, place, shape))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("vector", [None, 1])
def test_copies_in_both_orders(order: str, vector: Any):
    x = np.asarray(numbers((64, 64), np.float16), order=order)
    out = np.zeros_like(x)
    running.launch(copied, x, out, 16, 8, block=128, shape=(32, 16), swizzle=32, options={"vector": vector})
    assert np.array_equal(out, expected_copy(x, (16, 8), (32, 16)))


@tc.kernel(threads=64)
def wide_copy(x: tc.Array, out: tc.Array, factor: tc.Const, vector: tc.Const = None, transposed: tc.Const = False):
    tile = tc.shared((2, 16, 64), tc.f16, swizzle=128)
    view = tile[1, :, :].T if transposed else tile[1, :, :]
    for k in range(0, x.shape[1 - transposed], 64):
        tc.copy_tile(view, x, (k * factor, 0) if transposed else (0, k * factor), vector=vector)
        tc.cp_async_commit()
        tc.cp_async_wait(0)
        tc.barrier()
        tc.copy_tile(out, view, (k * factor, 0) if transposed else (0, k * factor), vector=vector)
        tc.barrier()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("vector, size", [(None, 16), (4, 8), (2, 4)])
def test_copies_are_as_wide_as_is_known(transposed: bool, vector: Any, size: int):
    x = numbers((16, 128), np.float16)
    x = np.asfortranarray(x.T) if transposed else x
    out = np.zeros_like(x)
    running.launch(wide_copy, x, out, block=64, factor=1, vector=vector, transposed=transposed)
    assert np.array_equal(out, x)
    text = wide_copy.ptx(x, out, factor=1, vector=vector, transposed=transposed, arch="sm_80")
    assert text.count("cp.async.ca.") + text.count("cp.async.cg.") == 16 * 64 * 2 // size // 64
    assert all(f", {size};" in line for line in text.splitlines() if "cp.async.ca." in line or "cp.async.cg." in line)


@tc.kernel
def copied_by_some(x: tc.Array, out: tc.Array):
    """The second of four warps copies a matrix of a batch."""
    tile = tc.shared((12, 20), x.dtype)
    if tc.warp_id() == 1:
        tc.copy_tile(tile, x, (1, 0, 4), threads=32, thread=tc.lane_id())
        tc.cp_async_commit()
        tc.cp_async_wait(0)
        tc.syncwarp()
        tc.copy_tile(out, tile, (0, 0), threads=32, thread=tc.lane_id())


def test_some_threads_copy_a_part_of_a_batch():
    x, out = numbers((2, 12, 32), np.float32), np.zeros((12, 20), np.float32)
    running.launch(copied_by_some, x, out, block=128)
    assert np.array_equal(out, x[1, :, 4:24])


@tc.kernel(threads=128)
def copied_by_tma(x: tc.Array, out: tc.Array, row: tc.s32):
    tile = tc.shared((16, 64), x.dtype, swizzle=128)
    full = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        full.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if tc.threadIdx.x == 0:
        tc.copy_tile(tile, x, (1, row, 8), barrier=full)
    full.wait(0)
    tc.copy_tile(out, tile, (0, 0))


def test_tma_copies_a_tile():
    x, out = numbers((2, 40, 80), np.float16), np.zeros((16, 64), np.float16)
    running.launch(copied_by_tma, x, out, 30, block=128, arch="sm_90a")
    assert np.array_equal(out[:10], x[1, 30:, 8:72]) and not out[10:].any()


@tc.kernel(threads=32)
def row_beyond_a_single_row(x: tc.Array, out: tc.Array):
    tile = tc.shared((4, 32), x.dtype)
    tc.copy_tile(tile, x, (0, 0), bounded=True)
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    tc.barrier()
    tc.copy_tile(out, tile, (0, 0), bounded=True)


def test_strides_of_single_rows_promise_no_alignment():
    x = numbers((9, 33), np.float16)[:1, :32]
    assert x.strides[0] % 16
    out = np.full((4, 32), 7, np.float16)
    running.launch(row_beyond_a_single_row, np.ascontiguousarray(x), out, block=32)
    assert np.array_equal(out[:1], x) and not out[1:].any()


# -- lengths and loops ----------------------------------------------------------------------------


@tc.kernel
def sizes(x: tc.Array, out: tc.Array):
    tile, local = tc.shared(4, tc.s32), tc.local(3, tc.s32, fill=2)
    for i in tc.static_range(len(tile)):
        tile[i] = 10 * i
    tc.syncwarp()
    out[0], out[1], out[2] = sum(v for v in tile), sum(local), sum(v for v in x[:3])
    out[3], out[4], out[5] = x.size, tile.size + local.size, len(x)
    out[6] = tc.shared((2, 3), tc.s8).size + tc.shared((2, 3), tc.s8).ndim


def test_loops_over_memory_and_sizes():
    x, out = np.arange(1, 6, dtype=np.int32), np.zeros(7, np.int32)
    running.launch(sizes, x, out, block=1)
    assert out.tolist() == [60, 6, 6, 5, 7, 5, 8]


# -- whole kernels --------------------------------------------------------------------------------


@tc.kernel(threads=128)
def attention_of_a_warpgroup(q: tc.Array, k: tc.Array, v: tc.Array, o: tc.Array, scale: tc.f32):
    """P = softmax(Q K^T) stays in registers as the A of the second wgmma."""
    scores = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
    values = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32, source="registers")
    tile_q, tile_k = tc.shared((64, 64), tc.bf16, swizzle=128), tc.shared((64, 64), tc.bf16, swizzle=128)
    tile_v = tc.shared((1, 64, 64), tc.bf16, swizzle=128)
    tc.copy_tile(tile_q, q, (0, 0))
    out = values.d.zeros()
    best, total = tc.row_values(out, -math.inf), tc.row_values(out)
    for start in range(0, k.shape[0], 64):
        tc.copy_tile(tile_k, k, (start, 0))
        tc.copy_tile(tile_v[0, :, :], v, (start, 0))
        tc.cp_async_commit()
        tc.cp_async_wait(0)
        tc.fence_proxy_async()
        tc.barrier()
        s = scores.d.zeros()
        tc.wgmma_fence()
        s = tc.wgmma_async(scores, s, tile_q, tile_k)
        tc.wgmma_commit()
        tc.wgmma_wait(0)
        s = s * scale
        new = tc.maximum(best, tc.row_max(s))
        p, shrink = tc.exp2(s - new), tc.exp2(best - new)
        total, best = total * shrink + tc.row_sum(p), new
        weights = tc.as_operand(p, values.a)
        out = out * shrink
        tc.wgmma_fence()
        out = tc.wgmma_async(values, out, weights, tile_v, b_major="mn")
        tc.wgmma_commit()
        tc.wgmma_wait(0)
        tc.barrier()
    tc.store_elements(o, out * tc.rcp(total))


def test_attention_with_wgmma():
    draw = np.random.default_rng(5)
    q, k, v = (draw.standard_normal((n, 64)).astype(tc.bf16.numpy) for n in (64, 192, 192))
    o = np.zeros((64, 64), np.float32)
    warpgroup(attention_of_a_warpgroup, q, k, v, o, math.log2(math.e) / 8)
    s = q.astype(np.float64) @ k.astype(np.float64).T / 8
    p = np.exp(s - s.max(1, keepdims=True))
    assert np.allclose(o, p / p.sum(1, keepdims=True) @ v.astype(np.float64), atol=5e-3)


# -- refusals -----------------------------------------------------------------------------------------

refused = Refusals()
BYTES = ArrayType(tc.s8, 2, (False, True), 16)


@pytest.mark.parametrize("case", refused, ids=lambda case: case.name)
def test_refused(case: Case):
    check(case)


HOLD = "cannot hold mma.A.16x16.f16: its elements are {}, those of the fragment f16; {}"
LOAD = "tc.load_elements(tile, operand, convert=True) converts"


@refused(f"a shared bf16 tile of 16x16 {HOLD.format('bf16', LOAD)}", "tc.ldmatrix(tile, F16.a)")
def ldmatrix_of_another_type():
    tile = tc.shared((16, 16), tc.bf16)
    tc.ldmatrix(tile, F16.a)


@refused(f"a shared s16 tile of 16x16 {HOLD.format('s16', 'convert=True converts')}", "tc.load_elements(tile, F16.a)")
def integers_as_floats():
    tile = tc.shared((16, 16), tc.s16)
    tc.load_elements(tile, F16.a)


@refused(
    f"a shared u8 tile of 16x32 cannot hold mma.A.16x32.s8: its elements are u8, those of the fragment s8; {LOAD}",
    "tc.ldmatrix(tile, S8.a)",
)
def unsigned_as_signed():
    tile = tc.shared((16, 32), tc.u8)
    tc.ldmatrix(tile, S8.a)


@refused(f"a shared bf16 tile of 16x16 {HOLD.format('bf16', 'fragment.to(dtype) converts')}", "tc.stmatrix(tile, F16.a.zeros())", arch="sm_90")
def stmatrix_of_another_type():
    tile = tc.shared((16, 16), tc.bf16)
    tc.stmatrix(tile, F16.a.zeros())


@refused(
    "a shared f16 tile of 32x16 takes 2 fragments of 16x16; 1 were given",
    "tc.stmatrix(tile, F16.a.zeros())", arch="sm_90",
)  # fmt: skip
def stmatrix_to_a_larger_tile():
    tile = tc.shared((32, 16), tc.f16)
    tc.stmatrix(tile, F16.a.zeros())


@refused(
    "a 2-dimensional s8 array cannot hold mma.B.16x8.f16: its elements are s8, those of the fragment f16; "
    "convert=True converts",
    "tc.load_elements(x, F16.b)", BYTES,
)  # fmt: skip
def unconverted_load(x):
    tc.load_elements(x, F16.b)


@refused(
    "mma.C.16x8.f32 covers 16x8; from 4 on 16 leave a shared f32 tile of 16x8, which has 16 there",
    "tc.store_elements(tile, F16.d.zeros(), origin=(4, 0))",
)
def beyond_a_tile():
    tile = tc.shared((16, 8), tc.f32)
    tc.store_elements(tile, F16.d.zeros(), origin=(4, 0))


@refused(
    "mma.A.16x16.f16 covers 16x16; a shared f16 tile of 32x16 has 32 where these are 16: say where they lie, origin=..., "
    "or give a view",
    "tc.load_elements(tile, F16.a)",
)
def load_from_a_larger_tile():
    tile = tc.shared((32, 16), tc.f16)
    tc.load_elements(tile, F16.a)


@refused(
    "there are 8 values; a shared f32 tile of 16 has 16 where these are 8: say where they lie, origin=..., or give a view",
    "tc.load_columns(tile, F16.d)",
)
def columns_of_a_larger_tile():
    tile = tc.shared(16, tc.f32)
    tc.load_columns(tile, F16.d)


@refused("origin is a row and a column, not 4", "tc.load_elements(x, F16.d, origin=4)", MATRIX)
def origin_of_one_number(x):
    tc.load_elements(x, F16.d, origin=4)


@refused(
    "a register of mma.A.16x16.f16 holds 2 f16, not a run-time value of type f32",
    "tc.fragment(F16.a, [x, x, x, x])", tc.f32,
)  # fmt: skip
def floats_as_pairs(x: tc.f32):
    tc.fragment(F16.a, [x, x, x, x])


@refused("a register of mma.C.16x8.f32 holds f32, not a run-time value of type s32", "[n, n, n, n]", tc.s32)
def integers_as_accumulators(n: tc.s32):
    F16(F16.a.zeros(), F16.b.zeros(), [n, n, n, n])


refused[-1].at = "F16(F16.a.zeros(), F16.b.zeros(), [n, n, n, n])"


@refused(
    "a register of mma.A.16x16.f16 holds 2 f16: give the 8 elements of a thread, or tc.pack(...), not 1.0",
    "tc.fragment(F16.a, [1.0] * 4)",
)
def numbers_as_pairs():
    tc.fragment(F16.a, [1.0] * 4)


@refused(
    "elements of mma.A.16x16.f16 are f16, not a run-time value of type f32; .to() converts",
    "tc.fragment(F16.a, [x] * 8)", tc.f32,
)  # fmt: skip
def elements_of_another_type(x: tc.f32):
    tc.fragment(F16.a, [x] * 8)


@refused(
    "movmatrix.sync.aligned.m8n8.trans.b16 takes registers of two 16-bit elements, as tc.pack(low, high) makes them, "
    "not a run-time value of type f32",
    "tc.movmatrix(x)", tc.f32,
)  # fmt: skip
def movmatrix_of_floats(x: tc.f32):
    tc.movmatrix(x)


@refused(
    "4 elements were given for mma.A.16x16.f16, of which a thread holds 2 side by side, from slot 0: give 1 to 2 at a time",
    "tc.fragment(F16.a, lambda i, j: [x] * 4)", tc.f16,
)  # fmt: skip
def elements_that_are_no_neighbours(x: tc.f16):
    tc.fragment(F16.a, lambda i, j: [x] * 4)


@refused("2.5 is no s32: convert it explicitly, s32(2.5)", "tc.vector([n, 2.5])", tc.s32)
def cut_number_of_a_vector(n: tc.s32):
    tc.vector([n, 2.5])


@refused("0.5 is no s32: convert it, s32(0.5)", "S8.d.zeros().map(lambda x: 0.5)")
def cut_number_of_a_fragment():
    S8.d.zeros().map(lambda x: 0.5)


@refused(
    "the elements of a fragment f32x4:mma.C.16x8.f32 would have several types, s32, f32: convert them to one",
    "f.map_coordinates(lambda x, i, j: next(kinds))",
)
def map_to_several_types():
    f = F16.d.zeros()
    kinds = iter([tc.s32(1), tc.f32(1), tc.s32(1), tc.s32(1)])
    f.map_coordinates(lambda x, i, j: next(kinds))


@refused(
    "a fragment f32x4:mma.C.16x8.f32 and a fragment f16x4:mma.A.16x16.f16 do not combine: their slots hold other "
    "elements of a matrix",
    "F16.d.zeros() + F16.a.zeros()",
)
def fragments_of_two_layouts():
    F16.d.zeros() + F16.a.zeros()


@refused(
    "the predicates of a fragment f32x4:mma.C.16x8.f32 have no one truth value: tc.select(condition, yes, no) chooses "
    "element by element",
    "if f > 0:",
)
def branch_on_a_mask():
    f = F16.d.zeros()
    if f > 0:
        tc.trap()


@refused("a condition is a predicate, or compares fragments; not a list of 2 items", "tc.select([n > 0, n > 1], 1, 2)", tc.s32)
def select_by_a_list(n: tc.s32):
    tc.select([n > 0, n > 1], 1, 2)


@refused(
    "mma.B.16x8.f16, 16x8, needs elements that other threads hold in mma.C.16x8.f32: store it to shared memory and load "
    "it with tc.ldmatrix; its transpose would fit: transposed=True",
    "tc.as_operand([F16.d.zeros()] * 2, F16.b)",
)
def accumulators_as_b():
    tc.as_operand([F16.d.zeros()] * 2, F16.b)


@refused(
    "mma.A.16x32.s8, 16x32, needs elements that other threads hold in mma.C.16x8.s32: store it to shared memory and load "
    "it with tc.ldmatrix",
    "tc.as_operand([S8.d.zeros()] * 4, S8.a)",
)
def accumulators_as_bytes():
    tc.as_operand([S8.d.zeros()] * 4, S8.a)


@refused(
    "mma.A.16x16.f16, 16x16, does not divide the 16x24 elements of the fragments given",
    "tc.as_operand([F16.d.zeros()] * 3, F16.a)",
)
def an_odd_number_of_accumulators():
    tc.as_operand([F16.d.zeros()] * 3, F16.a)


@refused(
    "wgmma.A.64x16.bf16, 64x16, is held by 128 threads, mma.C.16x8.f32 by 32: store it to shared memory and load it from "
    "there",
    "tc.as_operand([[F16.d.zeros()] * 2] * 4, WGMMA.a)",
)
def accumulators_of_a_warp():
    tc.as_operand([[F16.d.zeros()] * 2] * 4, WGMMA.a)


@refused(
    "the cols of a fragment f32x32:wgmma.D.64x64.f32 are spread over several warps: reduce each warp's share with "
    "shuffles, and combine the shares in shared memory",
    "tc.reduce_columns(WGMMA.d.zeros(), tc.maximum)", arch="sm_90a",
)  # fmt: skip
def columns_of_a_warpgroup():
    tc.reduce_columns(WGMMA.d.zeros(), tc.maximum)


@refused("a fragment is needed, not a vector of 4 f32", "tc.row_sum(x.at(0).load(4))", F32)
def rows_of_a_vector(x):
    tc.row_sum(x.at(0).load(4))


@refused(
    "a fragment f32x4:mma.C.16x8.f32 and a fragment f16x2:mma.B.16x8.f16 hold other rows: they are reduced apart",
    "tc.row_max([F16.d.zeros(), F16.b.zeros()])",
)
def rows_of_two_layouts():
    tc.row_max([F16.d.zeros(), F16.b.zeros()])


@refused(
    "16 row values of f32 and a fragment f16x2:mma.B.16x8.f16 do not combine: their slots hold other elements of a matrix; "
    "row and column values combine with fragments of the operand `like`",
    "tc.row_values(F16.d) + F16.b.zeros()",
)
def row_values_of_another_layout():
    tc.row_values(F16.d) + F16.b.zeros()


@refused("row values are needed, not a fragment f32x4:mma.C.16x8.f32", "tc.store_rows(x, F16.d.zeros())", F32)
def store_rows_of_a_fragment(x):
    tc.store_rows(x, F16.d.zeros())


@refused("origin is (row, col) of the first value in a 2-dimensional f32 array, not None", "tc.load_rows(x, F16.d)", MATRIX)
def rows_of_a_matrix(x):
    tc.load_rows(x, F16.d)


@refused(
    "acc, a and b must be rows x columns, rows x depth and depth x columns of fragments; they are 2x2, a list of 2 and "
    "a list of 3",
    "tc.tiled_mma(F16, acc, [F16.a.zeros()] * 2, [F16.b.zeros()] * 3)",
)
def products_of_other_extents():
    acc = [[F16.d.zeros()] * 2] * 2
    tc.tiled_mma(F16, acc, [F16.a.zeros()] * 2, [F16.b.zeros()] * 3)


@refused(
    "a fragment f32x4:mma.C.16x8.f32 has elements 0 to 3, not 4", "f[4]"
)
def element_beyond():
    f = F16.d.zeros()
    f[4]


@refused("2 elements are assigned, 3 were given", "f[:2] = (1, 2, 3)")
def too_many_elements():
    f = F16.d.zeros()
    f[:2] = (1, 2, 3)


@refused(
    "two elements of 16 bits or four of 8 bits, all of one type, fill a register; a run-time value of type f32, "
    "a run-time value of type f32 were given",
    "tc.pack(x, x)", tc.f32,
)  # fmt: skip
def pack_of_wide_elements(x: tc.f32):
    tc.pack(x, x)


@refused("a run-time value of type s32 has no f32 elements to unpack", "tc.unpack(n, tc.f32)", tc.s32)
def unpack_of_wide_elements(n: tc.s32):
    tc.unpack(n, tc.f32)


@refused(
    "a 1-dimensional f16 array is copied to memory of its element type, not to a shared bf16 tile of 64: make the "
    "tile of the array's type, f16: tc.shared(shape, x.dtype)",
    "tc.copy_tile(tile, x, (0,))", HALF,
)  # fmt: skip
def copy_to_another_type(x):
    tile = tc.shared(64, tc.bf16)
    tc.copy_tile(tile, x, (0,))


@refused(
    "the number of threads that copy must be known: @tc.kernel(threads=128), tc.launch_bounds(128), or threads=128 with "
    "thread=...",
    "tc.copy_tile(tile, x, (0,))", HALF,
)  # fmt: skip
def copy_by_unknown_threads(x):
    tile = tc.shared(64, tc.f16)
    tc.copy_tile(tile, x, (0,))


@refused("threads, how many copy, and thread, the number of this one, go together", "tc.copy_tile(tile, x, (0,), threads=32)", HALF)
def copy_by_unnumbered_threads(x):
    tile = tc.shared(64, tc.f16)
    tc.copy_tile(tile, x, (0,), threads=32)


@refused(
    "vectors of 3 f16 cannot copy a shared f16 tile of 64: they have at most 16 bytes, divide its rows, and run along an "
    "axis that is contiguous in both",
    "tc.copy_tile(tile, x, (0,), vector=3)", HALF,
)  # fmt: skip
def copy_by_odd_vectors(x):
    tc.launch_bounds(32)
    tile = tc.shared(64, tc.f16)
    tc.copy_tile(tile, x, (0,), vector=3)


@refused(
    "the length of a 1-dimensional f32 array is known at run time: use shape[0], and `for i in range(x.shape[0])`",
    "for v in x:", F32,
)  # fmt: skip
def loop_over_an_array(x):
    for v in x:
        x[0] = v

