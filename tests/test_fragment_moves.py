"""Fragments and tiles between registers, shared and global memory: loads, stores, copies.

Kernels run in emulation against NumPy, and are assembled where there is an assembler.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tests import running
from tests.fragment_kernels import BF16, F16, F64, S8, TF32, WGMMA, launch, memory_type, numbers, short, warp

# -- matrices of shared memory ----------------------------------------------------------------------


@tc.kernel
def through_a_tile(x, out, source: tc.Const, target: tc.Const, grid: tc.Const, turned: tc.Const = False):
    """Fragments by stmatrix to a tile, by ldmatrix from it as another operand, and to `out`."""
    rows, cols = grid[0] * source.layout.rows, grid[1] * source.layout.cols
    tile = tc.shared((cols, rows) if turned else (rows, cols), target.dtype, swizzle=128)
    view = tile.T if turned else tile
    fragments = [
        [
            tc.load_elements(x, source, origin=(r, c)).to(target.dtype)
            for c in range(0, cols, source.layout.cols)
        ]
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
def test_converted_accumulators_through_shared_memory(source, target, of, turned):
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


# -- element-wise loads and stores ------------------------------------------------------------------


@tc.kernel
def moved(x, out, operand: tc.Const, row: tc.s32, col: tc.s32, bounded: tc.Const, convert: tc.Const = False):
    fragment = tc.load_elements(x, operand, origin=(row, col), bounded=bounded, otherwise=-7, convert=convert)
    tc.store_elements(out, fragment + 1, origin=(row, col), bounded=bounded)


@pytest.mark.parametrize("operand", [F16.a, F16.b, F16.d, BF16.a, TF32.b, F64.d, WGMMA.d], ids=short)
@pytest.mark.parametrize("place", [(0, 0), (5, 3), (-3, -2), (40, 4), (62, 60), (100, 0)])
def test_bounded_loads_and_stores(operand, place):
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
def filled(x, out, row: tc.s32):
    tc.store_elements(out, tc.load_elements(x, F16.d, origin=(row, 2), bounded=True, otherwise=-7))


def test_elements_outside_become_otherwise():
    x, out = numbers((20, 8), np.float32), np.zeros((16, 8), np.float32)
    warp(filled, x, out, -4)
    expected = np.full((16, 8), -7, np.float32)
    expected[4:, :6] = x[:12, 2:]
    assert np.array_equal(out, expected)


@pytest.mark.parametrize(
    "source, operand",
    [(np.int8, F16.b), (np.float32, F16.a), (np.float64, F16.d), (np.uint8, S8.a), (np.float16, TF32.a)],
)
def test_loads_and_stores_convert(source, operand):
    x = abs(numbers((operand.layout.rows, operand.layout.cols), np.int8)).astype(source)
    out = np.zeros(x.shape, np.float64)
    warp(moved, x, out, 0, 0, operand=operand, bounded=False, convert=True)
    assert np.array_equal(out, x.astype(np.float64) + 1)


@tc.kernel
def paired(x, out, col: tc.s32, step: tc.Const, view: tc.Const = 0):
    tile = tc.shared((16, 16), x.dtype, swizzle=32)
    source = x[:, view:]
    fragment = tc.load_elements(source, F16.a, origin=(0, col * step))
    tc.store_elements(tile, fragment)
    tc.syncwarp()
    tc.store_elements(out, tc.load_elements(tile, F16.a))


@pytest.mark.thorough
@pytest.mark.parametrize("step, view, together", [(2, 0, True), (1, 0, False), (2, 1, False), (8, 2, True)])
def test_neighbours_move_together_where_alignment_is_known(step, view, together):
    x, out = numbers((16, 32), np.float16), np.zeros((16, 16), np.float16)
    warp(paired, x, out, 1, step=step, view=view)
    assert np.array_equal(out, x[:, view + step :][:, :16])
    text = paired.ptx(x, out, 1, step=step, view=view, arch="sm_80")
    assert text.count("ld.global.b32") == (4 if together else 0)
    assert text.count("st.shared.b32") == 4 and text.count("st.global.b32") == 4


# -- copies of tiles --------------------------------------------------------------------------------


@tc.kernel(threads=128)
def copied(x, out, row: tc.s32, col: tc.s32, shape: tc.Const, swizzle: tc.Const, options: tc.Const):
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
    (np.float16, (64, 64), 128),
    (np.float32, (16, 24), 0),
    (np.int8, (40, 64), 64),
    (np.float64, (8, 16), 128),
    (np.uint8, (5, 7), 0),
    (np.float16, (3, 50), 0),
]


@pytest.mark.parametrize("dtype, shape, swizzle", COPIES, ids=str)
@pytest.mark.parametrize("width", [96, 97, 100])
@pytest.mark.parametrize("place", [(0, 0), (50, 64), (-2, 32), (3, 80)])
def test_bounded_copies(dtype, shape, swizzle, width, place):
    x = numbers((66, width), dtype)
    out = np.zeros_like(x)
    running.launch(copied, x, out, *place, block=128, shape=shape, swizzle=swizzle, options={"bounded": True})
    assert np.array_equal(out, expected_copy(x, place, shape))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("vector", [None, 1])
def test_copies_in_both_orders(order, vector):
    x = np.asarray(numbers((64, 64), np.float16), order=order)
    out = np.zeros_like(x)
    running.launch(copied, x, out, 16, 8, block=128, shape=(32, 16), swizzle=32, options={"vector": vector})
    assert np.array_equal(out, expected_copy(x, (16, 8), (32, 16)))


@tc.kernel(threads=64)
def wide_copy(x, out, factor: tc.Const, vector: tc.Const = None, transposed: tc.Const = False):
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
def test_copies_are_as_wide_as_is_known(transposed, vector, size):
    x = numbers((16, 128), np.float16)
    x = np.asfortranarray(x.T) if transposed else x
    out = np.zeros_like(x)
    running.launch(wide_copy, x, out, block=64, factor=1, vector=vector, transposed=transposed)
    assert np.array_equal(out, x)
    text = wide_copy.ptx(x, out, factor=1, vector=vector, transposed=transposed, arch="sm_80")
    assert text.count("cp.async.ca.") + text.count("cp.async.cg.") == 16 * 64 * 2 // size // 64
    assert all(
        f", {size};" in line for line in text.splitlines() if "cp.async.ca." in line or "cp.async.cg." in line
    )


@tc.kernel
def copied_by_some(x, out):
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
def copied_by_tma(x, out, row: tc.s32):
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
def row_beyond_a_single_row(x, out):
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
