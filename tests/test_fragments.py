"""Fragments: types and layouts, row values, operands of the next product, packing, whole kernels.

Kernels run in emulation against NumPy, and are assembled where there is an assembler.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import LayoutError
from tests import running
from tests.fragment_kernels import (
    BF16,
    F16,
    F64,
    PRODUCTS,
    S8,
    TF32,
    TILES,
    WGMMA,
    launch,
    memory_type,
    numbers,
    short,
    warp,
)

# -- layouts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("instr, name", TILES, ids=short)
def test_a_layout_knows_who_holds_an_element(instr, name):
    layout = instr.operand(name).layout
    for row, col in ((0, 0), (layout.rows - 1, layout.cols - 1), (layout.rows // 2, 1)):
        thread, slot = layout.owner(row, col)
        assert layout.formula(thread, slot) == (row, col)
    with pytest.raises(LayoutError, match="no element"):
        layout.owner(layout.rows, 0)


@pytest.mark.parametrize("instr, name", TILES, ids=short)
@pytest.mark.parametrize("dtype", [tc.f16, tc.bf16, tc.f32, tc.s8, tc.s32, tc.f64], ids=str)
def test_a_layout_of_another_type_has_the_same_slots(instr, name, dtype):
    layout = instr.operand(name).layout
    retyped = layout.of_type(dtype)
    assert retyped.dtype == dtype and retyped.slots == layout.slots
    assert np.array_equal(retyped.coords, layout.coords)
    assert retyped.of_type(layout.dtype) is layout
    assert retyped.of_type(tc.s32) == layout.of_type(tc.s32)


def test_layouts_of_equal_names_are_equal():
    """A changed type gets the name of an operand only if it is that operand's layout."""
    real: dict[str, Any] = {}
    for instr in (
        i for shape in ("m16n8k16", "m16n8k32", "m16n8k8") for i in getattr(tc.mma, shape).instructions()
    ):
        for operand in (*instr.results, *instr.operands):
            if operand.layout is not None:
                real[operand.layout.name] = operand.layout
    kinds = [tc.f16, tc.bf16, tc.f32, tc.tf32, tc.s8, tc.u8, tc.e4m3, tc.e5m2, tc.s32, tc.f64]
    for layout in list(real.values()):
        for dtype in kinds:
            retyped = layout.of_type(dtype)
            if retyped.name in real:
                assert np.array_equal(retyped.coords, real[retyped.name].coords), retyped.name
                assert retyped.registers == real[retyped.name].registers


# -- types ------------------------------------------------------------------------------------


@tc.kernel
def converted(x, out, operand: tc.Const, through: tc.Const):
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
def test_conversion_keeps_the_layout(instr, name, through):
    operand = instr.operand(name)
    x = numbers((operand.layout.rows, operand.layout.cols), memory_type(operand))
    out = np.zeros(x.shape, np.float32)
    launch(operand, converted, x, out, operand=operand, through=through)
    assert np.array_equal(out, 2 * x.astype(np.float32))


@tc.kernel
def halved(x, out, dtype: tc.Const):
    tc.store_elements(out, tc.load_elements(x, F16.d).to(dtype))


@pytest.mark.parametrize("dtype", [tc.f16, tc.bf16, tc.e4m3, tc.e5m2], ids=str)
def test_pairs_are_converted_together_and_rounded_to_nearest(dtype):
    x = np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)
    out = np.zeros((16, 8), dtype.numpy)
    warp(halved, x, out, dtype=dtype, arch="sm_90a")
    assert np.array_equal(out, x.astype(dtype.numpy))
    mode = ".satfinite" if dtype.bits == 8 else ""
    assert halved.ptx(x, out, arch="sm_90a", dtype=dtype).count(f"cvt.rn{mode}.{dtype}x2.f32") == 2


@tc.kernel
def accumulates_in_halves(a, b, c, out):
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
def maps(x, out, picked, count: tc.s32):
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
def selects(x, y, out):
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
def chosen_mask(x, out, count: tc.s32):
    a = tc.load_elements(x, F16.d)
    mask = a > 0
    if count > 2:
        mask = a < 0
    for _ in range(count):
        mask = ~mask
    tc.store_elements(out, tc.select(mask, a, 100))


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_masks_in_branches_and_loops(count):
    x, out = numbers((16, 8), np.float32), np.zeros((16, 8), np.float32)
    warp(chosen_mask, x, out, count)
    mask = (x < 0 if count > 2 else x > 0) ^ bool(count % 2)
    assert np.array_equal(out, np.where(mask, x, 100))


@tc.kernel
def turned_pairs(x, out):
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
def assigned_items(x, out, count: tc.s32):
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
def assigned_halves(x, out):
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
def row_reductions(x, out, operand: tc.Const):
    fragment = tc.load_elements(x, operand)
    tc.store_rows(out[0, :], tc.row_sum(fragment))
    tc.store_rows(out[1, :], tc.row_max(fragment))
    tc.store_rows(out[2, :], tc.row_min(fragment))
    tc.store_rows(out[3, :], tc.reduce_rows(fragment, lambda a, b: tc.maximum(abs(a), abs(b))))


@pytest.mark.parametrize("instr, name", TILES, ids=short)
def test_reductions_of_rows(instr, name):
    operand = instr.operand(name)
    x = numbers((operand.layout.rows, operand.layout.cols), memory_type(operand))
    out = np.zeros((4, len(x)), np.float64)
    launch(operand, row_reductions, x, out, operand=operand)
    wide = x.astype(np.float64)
    expected = [wide.sum(1), wide.max(1), wide.min(1), abs(wide).max(1)]
    assert np.array_equal(out, expected)


@tc.kernel
def column_reductions(x, out, operand: tc.Const):
    fragment = tc.load_elements(x, operand)
    tc.store_columns(out, tc.reduce_columns(fragment, tc.maximum))


@pytest.mark.parametrize("instr, name", [(F16, "a"), (F16, "b"), (F16, "d"), (F64, "d")], ids=short)
def test_reductions_of_columns(instr, name):
    operand = instr.operand(name)
    x = numbers((operand.layout.rows, operand.layout.cols), memory_type(operand))
    out = np.zeros(x.shape[1], np.float32)
    warp(column_reductions, x, out, operand=operand)
    assert np.array_equal(out, x.max(0))


@tc.kernel
def softmax(x, out, tops, operand: tc.Const, parts: tc.Const):
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
def test_row_values_are_broadcast_and_carried_through_loops(operand, parts):
    layout = operand.layout
    x = np.random.default_rng(2).standard_normal((layout.rows, 4 * layout.cols)).astype(np.float32)
    out, tops = np.zeros_like(x), np.zeros(len(x), np.float32)
    launch(operand, softmax, x, out, tops, operand=operand, parts=parts)
    expected = np.exp2(x - x.max(1, keepdims=True))
    rounding = 2e-3 if operand.dtype == tc.tf32 else 1e-6
    assert np.allclose(out, expected / expected.sum(1, keepdims=True), atol=rounding)
    assert np.allclose(tops, x.max(1), rtol=rounding)


@tc.kernel
def lines(x, rows, cols, out, operand: tc.Const, first: tc.s32):
    fragment = tc.load_elements(x, operand)
    r = tc.load_rows(rows, operand, origin=first, bounded=True, otherwise=-3)
    c = tc.load_columns(cols, fragment, bounded=True)
    tc.store_elements(out[0, :, :], fragment * r + c)
    tc.store_elements(out[1, :, :], c - fragment)
    tc.store_elements(out[2, :, :], tc.fma(fragment, c, r))
    tc.store_elements(out[3, :, :], tc.maximum(r, fragment))
    tc.store_elements(out[4, :, :], tc.select(fragment > r, c, fragment))


@pytest.mark.parametrize("operand", [F16.a, F16.b, F16.d, BF16.b, TF32.a, F64.d, WGMMA.d], ids=short)
def test_rows_and_columns_of_arrays(operand):
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
def partly_stored(out, cols, first: tc.s32):
    tc.store_rows(out, tc.row_values(F16.d, 7), origin=first, bounded=True)
    tc.store_columns(cols, tc.column_values(F16.d, 2.5, tc.f16), origin=0)


@pytest.mark.parametrize("first", [-4, 0, 6, 30])
def test_row_values_beyond_the_end_are_not_stored(first):
    out, cols = np.zeros(20, np.float32), np.zeros(8, np.float16)
    warp(partly_stored, out, cols, first)
    index = np.arange(20)
    assert np.array_equal(out, np.where((index >= first) & (index < first + 16), 7, 0))
    assert np.array_equal(cols, np.full(8, 2.5))


@tc.kernel
def scaled_pairs(x, scales, out):
    fragment = tc.load_elements(x, F16.b)
    tc.store_elements(out, fragment * tc.load_columns(scales, fragment))


def test_column_values_scale_pairs():
    x, scales = numbers((16, 8), np.float16), numbers(8, np.float16, 1)
    out = np.zeros_like(x)
    warp(scaled_pairs, x, scales, out)
    assert np.array_equal(out, x * scales)
    assert scaled_pairs.ptx(x, scales, out, arch="sm_80").count("mul.rn.f16x2") == 2


@tc.kernel
def matrix_lines(x, out, row: tc.s32, col: tc.s32, bounded: tc.Const):
    scales = tc.load_columns(x, F16.d, origin=(row, col), bounded=bounded, otherwise=-1)
    shifts = tc.load_rows(x, F16.d, origin=(row, col), bounded=bounded, otherwise=-2)
    tc.store_elements(out, F16.d.zeros() + scales * 100 + shifts, origin=(0, 0))
    tc.store_columns(out, scales, origin=(16, 0))
    tc.store_rows(out, shifts, origin=(0, 8))


@pytest.mark.parametrize(
    "row, col, bounded", [(0, 0, False), (3, 5, False), (3, 9, True), (-2, 3, True), (20, 4, True)]
)
def test_lines_of_a_matrix(row, col, bounded):
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
def computed_lines(x, out, start: tc.s32, operand: tc.Const):
    rows = tc.row_values(operand, lambda i: x[start + i])
    cols = tc.column_values(operand, lambda j: 10 * j, tc.f32)
    tc.store_elements(out, operand.zeros() + rows * 100 + cols, origin=(0, 0))


@pytest.mark.parametrize("operand", [F16.d, TF32.d, WGMMA.d], ids=short)
def test_values_of_the_coordinate(operand):
    x, out = numbers(80, np.float32), np.zeros((operand.layout.rows, operand.layout.cols), np.float32)
    launch(operand, computed_lines, x, out, 5, operand=operand)
    i, j = np.indices(out.shape)
    assert np.array_equal(out, x[5 + i] * 100 + 10 * j)


@tc.kernel
def logarithms(x, out):
    tc.store_elements(out, tc.log(tc.load_elements(x, F16.d)))


def test_log_of_a_fragment():
    x = np.exp(np.linspace(-8, 8, 128, dtype=np.float32)).reshape(16, 8)
    out = np.zeros_like(x)
    warp(logarithms, x, out)
    assert np.allclose(out, np.log(x), rtol=1e-6, atol=1e-6)


# -- operands of the next product ------------------------------------------------------------------


@tc.kernel
def rearranged(x, out, source: tc.Const, operand: tc.Const, of: tc.Const, transposed: tc.Const = False):
    rows, cols = of
    r, c = source.layout.rows, source.layout.cols
    parts = [[tc.load_elements(x, source, origin=(i * r, j * c)) for j in range(cols)] for i in range(rows)]
    operands = tc.as_operand(parts, operand, transposed=transposed)
    operands = operands if isinstance(operands, list) else [operands]
    if isinstance(operands[0], list):
        operands = [fragment for row in operands for fragment in row]
    per_row = out.shape[1] // operand.layout.cols
    for k, fragment in enumerate(operands):
        origin = k // per_row * operand.layout.rows, k % per_row * operand.layout.cols
        tc.store_elements(out, fragment, origin=origin)


REARRANGED = [
    (F16.d, F16.a, (1, 2), False), (F16.d, F16.a, (2, 4), False), (F16.d, BF16.a, (1, 2), False),
    (WGMMA.d, WGMMA.a, (1, 1), False), (F16.d, F16.b, (1, 2), True), (F16.d, F16.b, (2, 2), True),
    (BF16.d, BF16.d, (1, 2), False), (F16.a, F16.d, (1, 1), False),
]  # fmt: skip


@pytest.mark.parametrize("source, operand, grid, transposed", REARRANGED, ids=short)
def test_accumulators_become_operands(source, operand, grid, transposed):
    shape = grid[0] * source.layout.rows, grid[1] * source.layout.cols
    x = numbers(shape, memory_type(source))
    out = np.zeros(shape[::-1] if transposed else shape, np.float32)
    launch(source, rearranged, x, out, source=source, operand=operand, of=grid, transposed=transposed)
    assert np.array_equal(out, x.T if transposed else x)
    text = rearranged.ptx(
        x, out, source=source, operand=operand, of=grid, transposed=transposed, arch="sm_90a"
    )
    assert "shfl" not in text and "shared" not in text


# -- tiled products ------------------------------------------------------------------------------


@tc.kernel
def tiled(a, b, out, mma: tc.Const, shape: tc.Const, form: tc.Const):
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
@pytest.mark.parametrize(
    "shape, form",
    [
        ((2, 3, 2), "nested"),
        ((2, 3, 2), "one nested"),
        ((1, 3, 2), "flat"),
        ((3, 1, 1), "flat"),
        ((1, 1, 1), "single"),
    ],
)
def test_tiled_products(mma, shape, form):
    (m, n, k), (rows, cols, depth) = mma.shape, shape
    a = numbers((rows * m, depth * k), memory_type(mma.a))
    b = numbers((depth * k, cols * n), memory_type(mma.b), 1)
    out = np.zeros((rows * m, cols * n), memory_type(mma.d))
    warp(tiled, a, b, out, mma=mma, shape=shape, form=form)
    assert np.array_equal(out, 2 * a.astype(np.float64) @ b.astype(np.float64))


# -- packing --------------------------------------------------------------------------------------


@tc.kernel
def packed(x, words, out):
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
def of_elements(x, out):
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
def of_coordinates(out, operand: tc.Const, together: tc.Const):
    cols = operand.layout.cols

    def values(row, col):
        down = operand.name == "b"
        place = [(row + e, col) if down else (row, col + e) for e in range(together)]
        found = [(cols * i + j).to(operand.dtype) for i, j in place]
        return found if together > 1 else found[0]

    tc.store_elements(out, tc.fragment(operand, values))


@pytest.mark.parametrize(
    "operand, together",
    [(F16.a, 1), (F16.a, 2), (F16.b, 2), (F16.d, 2), (S8.b, 4), (S8.a, 2), (WGMMA.d, 2), (TF32.a, 1)],
    ids=short,
)
def test_fragments_of_functions(operand, together):
    rows, cols = operand.layout.rows, operand.layout.cols
    out = np.zeros((rows, cols), np.float32)
    launch(operand, of_coordinates, out, operand=operand, together=together)
    expected = np.arange(rows * cols).reshape(rows, cols)
    assert np.array_equal(out, expected.astype(np.int8) if operand.dtype == tc.s8 else expected)


# -- lengths and loops ----------------------------------------------------------------------------


@tc.kernel
def sizes(x, out):
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
