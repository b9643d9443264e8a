"""Indices are checked axis by axis, where the element is accessed, and nowhere else."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import OutOfBounds
from tensorcore_dsl.ir.text import format_kernel
from tests.running import checked


@dataclass
class Case:
    """A kernel with arguments; a tuple stands for an array of this shape."""

    kernel: Any
    args: tuple[Any, ...]
    message: str
    grid: Any
    block: Any
    dtype: Any
    arch: str

    def run(self, **options: Any) -> None:
        args = [np.ones(a, self.dtype) if isinstance(a, tuple) else a for a in self.args]
        self.kernel.emulator(self.arch, **options)[self.grid, self.block](*args)


CAUGHT: list[Case] = []
FINE: list[Case] = []


def _noted(cases: list[Case], message: str, args: tuple[Any, ...], **options: Any) -> Any:
    def note(function: Any) -> Any:
        made = {"grid": 1, "block": 32, "dtype": np.float32, "arch": "sm_90a", **options}
        cases.append(Case(tc.kernel(function), args, message, **made))
        return function

    return note


def caught(message: str, *args: Any, **options: Any) -> Any:
    """The kernel is stopped with this message, at the line that ends in `# here`."""
    return _noted(CAUGHT, message, args, **options)


def fine(*args: Any, **options: Any) -> Any:
    """The kernel runs to its end."""
    return _noted(FINE, "", args, **options)


def ids(case: Case) -> str:
    return f"{case.kernel.__name__}{case.args}".replace(" ", "")


# -- arrays -------------------------------------------------------------------------------------


@caught("index 4 leaves axis 1 of 'x', which has extent 4 (CTA (0,0,0), thread (0,0,0))", (8, 4))
def constant_column(x):
    x[0, 0] = x[0, 4]  # here


@caught("index 4 leaves axis 1 of 'x', which has extent 4 (CTA (0,0,0), thread (4,0,0))", (8, 4))
def column_of_a_thread(x):
    x[0, tc.threadIdx.x] = 1.0  # here


@caught(
    "index 5 leaves axis 0 of 'x', which has extent 5 (CTA (2,0,0), thread (1,0,0))", (5,), grid=3, block=2
)
def thread_and_block(x):
    x[tc.blockIdx.x * 2 + tc.threadIdx.x] = 1.0  # here


@caught(
    "index 2 leaves axis 2 of 'x', which has extent 2 (CTA (1,2,0), thread (0,1,1))",
    (2, 3, 2),
    grid=(2, 3),
    block=(1, 2, 2),
)
def three_axes(x):
    x[  # here
        tc.blockIdx.x, tc.blockIdx.y, tc.threadIdx.y + tc.threadIdx.z * (tc.blockIdx.x * tc.blockIdx.y // 2)
    ] = 1.0


@caught("index 3 leaves axis 1 of 'x', which has extent 3 (CTA (0,0,0), thread (3,0,0))", (2, 3, 4))
def middle_axis(x):
    x[1, tc.threadIdx.x, 0] = 1.0  # here


@caught("index -1 leaves axis 1 of 'x', which has extent 4 (CTA (0,0,0), thread (0,0,0))", (8, 4))
def negative_at_run_time(x):
    x[0, 0] = x[1, tc.threadIdx.x - 1]  # here


@caught("index -2 leaves axis 0 of 'x', which has extent 4 (CTA (0,0,0), thread (0,0,0))", (4,), -2)
def negative_argument(x, i):
    x[i] = 1.0  # here


@caught("index -1 leaves axis 0 of 'x', which has extent 0 (CTA (0,0,0), thread (0,0,0))", (0,))
def last_of_none(x):
    x[-1] = 1.0  # here


@caught("index 4294967295 leaves axis 0 of 'x', which has extent 4 (CTA (0,0,0), thread (0,0,0))", (4,))
def unsigned(x):
    x[tc.u32(tc.threadIdx.x) - tc.u32(1)] = 1.0  # here


@caught("index 4294967296 leaves axis 0 of 'x', which has extent 4 (CTA (0,0,0), thread (0,0,0))", (4,))
def wide(x):
    x[tc.s64(tc.threadIdx.x) + 4294967296] = 1.0  # here


@caught(
    "index 200 leaves axis 0 of 'x', which has extent 100 (CTA (0,0,0), thread (0,0,0))",
    (100,),
    np.uint8(200),
)
def narrow_unsigned(x, i: tc.u8):
    x[i] = 1.0  # here


@caught(
    "index -56 leaves axis 0 of 'x', which has extent 100 (CTA (0,0,0), thread (0,0,0))", (100,), np.int8(-56)
)
def narrow_signed(x, i: tc.s8):
    x[i] = 1.0  # here


@caught("index 4 leaves axis 1 of 'x', which has extent 4 (CTA (0,0,0), thread (0,0,0))", (8, 4), block=1)
def augmented(x):
    for j in range(8):
        x[0, j] += 1.0  # here


@caught("index 8 leaves axis 0 of 'x', which has extent 8 (CTA (0,0,0), thread (8,0,0))", (8, 4))
def in_a_function(x):
    def put(where, i):
        where[i, 0] = 1.0  # here

    put(x, tc.threadIdx.x)


@fine((8, 4))
def last_element(x):
    total = x[-1, -1] + x[7, 3] + x[-8, -4]
    tc.syncwarp()
    x[tc.threadIdx.x % 8, tc.threadIdx.x % 4] = total


@fine((5,), 4, grid=2, block=4)
def under_a_condition(x, n):
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    if i < x.shape[0]:
        x[i] = 1.0


@fine((5,), 9)
def short_circuits(x, i):
    x[0] = 2.0 if i < 5 and x[i] > 0 else 3.0
    x[1] = x[i] if i < 5 else 4.0


@caught("index 9 leaves axis 0 of 'x', which has extent 5 (CTA (0,0,0), thread (0,0,0))", (5,), 9)
def other_arm(x, i):
    if i < 5:
        x[i] = 1.0
    else:
        x[i] = 2.0  # here


# -- views --------------------------------------------------------------------------------------


@caught("index 8 leaves axis 0 of 'x', which has extent 8 (CTA (0,0,0), thread (3,0,0))", (8, 4), 5)
def view_hangs_over(x, m):
    view = x[m : m + 4]
    view[tc.threadIdx.x % 4, 0] = 1.0  # here


@caught("index 4 leaves axis 0 of a view of 'x', which has extent 4 (CTA (0,0,0), thread (4,0,0))", (8, 4), 0)
def leaves_the_view(x, m):
    view = x[m : m + 4]
    view[tc.threadIdx.x % 8, 0] = 1.0  # here


@caught("index 3 leaves axis 0 of a view of 'x', which has extent 3 (CTA (0,0,0), thread (3,0,0))", (8, 4), 3)
def run_time_length(x, n):
    x[:n][tc.threadIdx.x, 0] = 1.0  # here


@caught("index 6 leaves axis 0 of a view of 'x', which has extent 6 (CTA (0,0,0), thread (0,0,0))", (16,))
def view_of_a_view(x):
    outer = x[2 : 2 + 6 * tc.blockDim.x // 32]
    inner = outer[4:12]
    inner[2] = 1.0  # here


@caught("index 10 leaves axis 0 of 'x', which has extent 10 (CTA (0,0,0), thread (2,0,0))", (10,), 8)
def view_of_a_view_leaves_the_array(x, m):
    inner = x[m : m + 4][0:3]
    inner[tc.threadIdx.x % 3] = 1.0  # here


@caught("index -1 leaves axis 0 of 'x', which has extent 8 (CTA (0,0,0), thread (0,0,0))", (8, 4), -1)
def view_starts_before(x, m):
    x[m : m + 4, 1:][0, 0] = 1.0  # here


@caught("index 2 leaves axis 1 of a view of 'x', which has extent 2 (CTA (0,0,0), thread (2,0,0))", (8, 4))
def columns_of_a_view(x):
    x[:, 1:3][0, tc.threadIdx.x % 4] = 1.0  # here


@caught("index 4 leaves axis 1 of 'x', which has extent 4 (CTA (0,0,0), thread (4,0,0))", (8, 4))
def row_of_an_array(x):
    x[3][tc.threadIdx.x] = 1.0  # here


@caught("index 8 leaves axis 0 of 'x', which has extent 8 (CTA (0,0,0), thread (0,0,0))", (8, 4), 8)
def row_outside(x, i):
    row = x[i]
    row[tc.threadIdx.x % 4] = 1.0  # here


@caught("index 4 leaves axis 1 of 'x', which has extent 4 (CTA (0,0,0), thread (0,0,0))", (8, 4), 4)
def column_outside(x, j):
    column = x[:, j]
    column[tc.threadIdx.x % 8] = 1.0  # here


@caught("index 4 leaves axis 1 of 'x', which has extent 4 (CTA (0,0,0), thread (4,0,0))", (8, 4))
def transposed(x):
    x.T[tc.threadIdx.x, 0] = 1.0  # here


@caught("index 8 leaves axis 0 of 'x', which has extent 8 (CTA (0,0,0), thread (4,0,0))", (8, 4), 4)
def transposed_view(x, m):
    x.T[:, m : m + 8][0, tc.threadIdx.x % 8] = 1.0  # here


@caught("index 4 leaves axis 0 of a view of 'x', which has extent 4 (CTA (0,0,0), thread (4,0,0))", (8,))
def stepped(x):
    x[::2][tc.threadIdx.x] = 1.0  # here


@caught("index 9 leaves axis 0 of 'x', which has extent 8 (CTA (0,0,0), thread (4,0,0))", (8,), 10, block=5)
def stepped_too_far(x, n):
    x[1:n:2][tc.threadIdx.x] = 1.0  # here


@caught("index 8 leaves axis 0 of 'x', which has extent 8 (CTA (0,0,0), thread (0,0,0))", (8, 4))
def view_of_each_round(x):
    for m in range(0, 12, 4):
        view = x[m : m + 4]
        view[tc.threadIdx.x % 4, 0] = 1.0  # here


@caught(
    "index 4 leaves axis 0 of a 2-dimensional f32 array, which has extent 4 (CTA (0,0,0), thread (4,0,0))",
    (8, 4),
    1,
)
def joined_views_keep_their_own_extents(x, which):
    view = x[0:4]
    if which > 0:
        view = x[2:6]
    view[tc.threadIdx.x % 8, 0] = 1.0  # here


@caught(
    "index 4 leaves axis 0 of a 1-dimensional f32 array, which has extent 4 (CTA (0,0,0), thread (4,0,0))",
    (16,),
)
def carried_views_keep_their_own_extents(x):
    view = x[0:4]
    for i in tc.range(3):
        view = x[4 * i : 4 * i + 4]
    view[tc.threadIdx.x % 8] = 1.0  # here


@fine((8, 4), 6)
def ragged_view(x, m):
    view = x[m : m + 4]
    i = tc.threadIdx.x % 4
    if m + i < x.shape[0]:
        view[i, 0] = 1.0
    view.at(i, 0).store(1.0, pred=m + i < x.shape[0])


@fine((8, 4), 100, -7)
def views_that_nobody_reads(x, m, n):
    view = x[m : m + 4, n:]
    row = x[m]
    x[m : m + 4][2:9][::3].at(1, 0)
    if m < 8:
        view[0, 0] = row[0]


@fine((8, 4))
def views_inside(x):
    i = tc.threadIdx.x
    x[2:][:4][i % 4, i % 4] = 1.0
    tc.syncwarp()
    x[::2][i % 4, 0] = x[1::2].T[0, i % 4]
    tc.syncwarp()
    x[:, 1][i % 8] = x[..., -1][i % 8]
    tc.syncwarp()
    x[2:-1, 1:-1][i % 5, i % 2] = 2.0


@caught(
    "index 8 leaves axis 0 of a 1-dimensional f32 array, which has extent 8 (CTA (0,0,0), thread (8,0,0))",
    (4, 4),
)
def array_of_another_shape(x):
    x.with_parts(shape=(8,), strides=(1,))[tc.threadIdx.x] = 1.0  # here


@caught(
    "index 3 leaves axis 0 of 'x', which has extent 3 (CTA (0,0,0), thread (3,0,0))", (3,), dtype=np.bool_
)
def booleans(x):
    x[tc.threadIdx.x] = tc.threadIdx.x > 1  # here


# -- pointers and vectors -----------------------------------------------------------------------


@caught("index 4 leaves axis 1 of 'x', which has extent 4 (CTA (0,0,0), thread (4,0,0))", (8, 4))
def through_a_pointer(x):
    place = x.at(0, tc.threadIdx.x)
    place.store(1.0)  # here


@caught(
    "4 elements from index 4 on leave axis 1 of 'x', which has extent 6 (CTA (0,0,0), thread (1,0,0))", (8, 6)
)
def vector_load_crosses_the_row(x):
    x.at(0, 4 * tc.threadIdx.x).load(4)  # here


@caught(
    "4 elements from index 4 on leave axis 1 of 'x', which has extent 6 (CTA (0,0,0), thread (1,0,0))", (8, 6)
)
def vector_store_crosses_the_row(x):
    x.at(0, 4 * tc.threadIdx.x).store([1.0, 2.0, 3.0, 4.0])  # here


@caught(
    "8 elements from index 8 on leave axis 1 of 'x', which has extent 12 (CTA (0,0,0), thread (1,0,0))",
    (8, 12),
    dtype=np.float16,
)
def narrow_vector_crosses_the_row(x):
    x.at(0, 8 * tc.threadIdx.x).load(8)  # here


@caught(
    "4 elements from index 4 on leave axis 1 of 'x', which has extent 6 (CTA (0,0,0), thread (1,0,0))", (8, 6)
)
def vector_of_another_type(x):
    x.at(0, 4 * tc.threadIdx.x).as_type(tc.u64).load(2)  # here


@caught(
    "2 elements from index 5 on leave axis 1 of 'x', which has extent 6 (CTA (0,0,0), thread (0,0,0))",
    (8, 6),
    5,
)
def vector_of_a_transpose(x, j):
    x.T.at(j, 0).load(2)  # here


@caught(
    "2 elements from index 5 on leave axis 1 of 'x', which has extent 6 (CTA (0,0,0), thread (0,0,0))",
    (8, 6),
    5,
)
def vector_from_a_column(x, j):
    x[:, j].at(0).load(2)  # here


@caught("index 6 leaves axis 1 of 'x', which has extent 6 (CTA (0,0,0), thread (6,0,0))", (8, 6))
def predicate_lets_one_through(x):
    x.at(0, tc.threadIdx.x).load(pred=tc.threadIdx.x < 7)  # here


@caught("index 10 leaves axis 0 of 'x', which has extent 10 (CTA (0,0,0), thread (0,0,0))", (10,), 10)
def pointer_of_before_a_loop(x, start):
    i = start
    place = x.at(i)
    for step in range(3):
        i -= 4
        x[i] = 1.0
        if step == 1:
            place.store(1.0)  # here


@caught(
    "index 10 leaves axis 0 of 'x', which has extent 10 (CTA (0,0,0), thread (0,0,0))", (10,), 0, 12, block=1
)
def checked_before_and_in_a_loop(x, i, n):
    x[i] = 1.0
    while i < n:
        x[i] = 2.0  # here
        i += 1


@caught(
    "index 10 leaves axis 0 of 'x', which has extent 10 (CTA (0,0,0), thread (0,0,0))", (10,), 0, 10, block=1
)
def checked_in_and_after_a_loop(x, i, n):
    x[i] = 1.0
    while i < n:
        x[i] = 2.0
        i += 1
    x[i] = 3.0  # here


@caught("index 10 leaves axis 0 of 'x', which has extent 10 (CTA (0,0,0), thread (0,0,0))", (10,), 0, block=1)
def checked_in_the_test_of_a_loop(x, i):
    while x[i] > 0:  # here
        x[i] = 2.0
        i += 1


@caught("index 20 leaves axis 0 of 'x', which has extent 10 (CTA (0,0,0), thread (3,0,0))", (10,), 0)
def checked_before_a_branch_changes_it(x, i):
    x[i] = 1.0
    if tc.threadIdx.x > 2:
        x[i] = 1.0
        i = 20
    x[i] = 2.0  # here


@caught("index 10 leaves axis 0 of 'x', which has extent 10 (CTA (0,0,0), thread (0,0,0))", (10,), 0, block=1)
def checked_in_rounds_of_an_inner_loop(x, i):
    for j in tc.range(4):
        x[i] = 1.0
        for k in tc.range(2):
            x[i + k] = 1.0
            i += 2
            x[i] = 2.0  # here
            i += 1 - k


@fine((10,), 9)
def pointer_of_an_index_that_changes(x, start):
    i = start
    place = x.at(i)
    for _ in range(3):
        i += 4
        place.store(1.0)
    while True:
        place = x.at(start)
        start += 1
        if start > 3:
            break
    place.store(1.0)


@fine((6, 6))
def predicated(x):
    i = tc.threadIdx.x
    x.at(0, i).store(x.at(i, 0).load(pred=i < 6), pred=i < 6)
    tc.syncwarp()
    x.at(0, 4 * i).load(4, pred=4 * i + 4 <= 6)
    x.at(6, 6).load(pred=False)
    if i == 3:
        x.at(i, i).load(2, pred=i == 4)


@fine((8, 6))
def pointers_that_move(x):
    end = x.at(8, 0)
    place = x.at(0, 0)
    flat = place + tc.threadIdx.x
    flat.store(1.0)
    place[47] = 2.0
    tc.syncwarp()
    (end - 1).store(3.0)
    tc.syncwarp()
    p = x.at(0, 0)
    while p != end:
        p.store(4.0)
        p = p + 1


@fine((16, 1), 12)
def one_column(x, i):
    x.at(i, 0).load(4)


@fine((8, 8))
def vectors_inside(x):
    i = tc.threadIdx.x
    values = x.at(i % 8, 4).load(4)
    tc.syncwarp()
    x.at(i % 8, 4 * (i % 2)).store(values)
    tc.syncwarp()
    x[2:6, 4:8].at(i % 4, 0).load(4)
    x.T.at(4, i % 8).load(4)
    x.at(7, 7).as_type(tc.u16).load(2)


# -- fragments ----------------------------------------------------------------------------------


@caught(
    "2 elements from index 16 on leave axis 1 of 'd', which has extent 16 (CTA (0,0,0), thread (0,0,0))",
    (64, 16),
)
def fragment_at_a_ragged_edge(d):
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tc.store_elements(d[16:32, 16:24], mma.d.zeros())  # here


@caught("index 20 leaves axis 0 of 'd', which has extent 20 (CTA (0,0,0), thread (16,0,0))", (20, 16))
def fragment_at_the_last_rows(d):
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    row = tc.blockDim.x // 2
    tc.load_elements(d[row : row + 16, 0:8], mma.c)  # here


@caught("index 20 leaves axis 0 of 'd', which has extent 20 (CTA (0,0,0), thread (16,0,0))", (20, 16), 16)
def bounded_by_a_view_that_hangs_over(d, m):
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tc.store_elements(d[m : m + 16, 0:8], mma.d.zeros(), bounded=True)  # here


@fine((20, 12), 16)
def bounded_by_the_array(d, m):
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tc.store_elements(d[m:, 8:], mma.d.zeros(), bounded=True)
    tc.load_elements(d, mma.c, origin=(m, 8), bounded=True)


WHOLE = "mma.C.16x8.f32 covers 16x8; axis {} has extent {}: say where they lie, origin=..., or give a view"
FIRST = " (CTA (0,0,0), thread (0,0,0))"


@caught(WHOLE.format("0 of 'd'", "64 where these are 16") + FIRST, (64, 8))
def fragment_of_a_larger_array(d):
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tc.store_elements(d, mma.d.zeros())  # here


@caught(WHOLE.format("1 of 'd'", "9 where these are 8") + FIRST, (16, 9))
def bounded_by_a_larger_array(d):
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tc.load_elements(d[:, :], mma.c, bounded=True)  # here


@caught(
    "there are 8 values; axis 1 of 'd' has extent 64 where these are 8: say where they lie, origin=..., or give a view"
    + FIRST,
    (16, 64),
)
def columns_of_a_longer_row(d):
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tc.load_columns(d[3, :], mma.d)  # here


@fine((16, 8), 64)
def fragments_of_their_shape(d, n):
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tc.store_elements(d, tc.load_elements(d, mma.c))
    tc.store_elements(d[n - 64 :, :], mma.d.zeros())
    tc.store_rows(d[:, 0], tc.row_sum(mma.d.zeros()))


@fine((32, 16))
def fragments_inside(d):
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tc.store_elements(d[16:32, 8:16], tc.load_elements(d[0:16, 0:8], mma.c))


# -- shared tiles -------------------------------------------------------------------------------


@caught(
    "index 17 leaves axis 0 of a shared f32 tile of 4x32, which has extent 4 (CTA (0,0,0), thread (0,0,0))",
    17,
)
def reaches_the_neighbour(i):
    tile, other = tc.shared((4, 32), tc.f32), tc.shared((40, 32), tc.f32)
    other[0, tc.threadIdx.x] = 0.0
    tile[i, tc.threadIdx.x] = 1.0  # here


@caught(
    "index 16 leaves axis 1 of a shared f32 tile of 4x16, which has extent 16 (CTA (0,0,0), thread (16,0,0))"
)
def wraps_in_a_tile():
    tile = tc.shared((4, 16), tc.f32)
    tile[0, tc.threadIdx.x] = 1.0  # here


@caught(
    "index -1 leaves axis 0 of a shared f32 tile of 4x32, which has extent 4 (CTA (0,0,0), thread (0,0,0))",
    -1,
)
def negative_stage(stage):
    tile = tc.shared((4, 32), tc.f32)
    tile[stage][tc.threadIdx.x] = 1.0  # here


@caught(
    "16 elements from index 56 on leave axis 0 of a shared bf16 tile of 64x32, which has extent 64 "
    "(CTA (0,0,0), thread (0,0,0))",
    56,
)
def ldmatrix_of_a_view(m):
    tile = tc.shared((64, 32), tc.bf16)
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tc.ldmatrix(tile[m : m + 16, 0:16], mma.a)  # here


@caught(
    "8 elements from index 32 on leave axis 1 of a shared bf16 tile of 64x32, which has extent 32 "
    "(CTA (0,0,0), thread (0,0,0))",
    32,
)
def raw_ldmatrix(k):
    tile = tc.shared((64, 32), tc.bf16)
    tc.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", tile.at(tc.lane_id(), k))  # here


@caught(
    "index 3 leaves axis 0 of a shared f16 tile of 3x64x64, 128-byte swizzle, which has extent 3 "
    "(CTA (0,0,0), thread (0,0,0))",
    3,
)
def swizzled_stage(stage):
    tile = tc.shared((3, 64, 64), tc.f16, swizzle=128)
    part = tile[stage]
    part.at(tc.threadIdx.x, 8).store([tc.f16(0)] * 8)  # here


@caught(
    "8 elements from index 64 on leave axis 1 of a shared f16 tile of 64x64, 128-byte swizzle, which has extent 64 "
    "(CTA (0,0,0), thread (8,0,0))"
)
def swizzled_vector():
    tile = tc.shared((64, 64), tc.f16, swizzle=128)
    tile.at(0, 8 * tc.threadIdx.x).store([tc.f16(0)] * 8)  # here


@caught("index 8 leaves axis 0 of a shared f32 tile of 8x4, which has extent 8 (CTA (0,0,0), thread (8,0,0))")
def tile_of_a_tile():
    tile = tc.shared((32, 4), tc.f32)
    tile[8:16][tc.threadIdx.x, 0] = 1.0  # here


@caught(
    "index 4 leaves axis 0 of a shared f32 tile of 4x32, which has extent 4 (CTA (0,0,0), thread (4,0,0))"
)
def transposed_tile():
    tile = tc.shared((32, 4), tc.f32)
    tile.T[tc.threadIdx.x, 0] = 1.0  # here


@caught(
    "index 4 leaves axis 0 of a shared u64 tile of 4, which has extent 4 (CTA (0,0,0), thread (0,0,0))", 4
)
def no_such_barrier(stage):
    bars = tc.mbarriers(4)
    bars[stage].init(1)  # here


@caught("index 2 leaves axis 0 of a shared s32 tile of 2, which has extent 2 (CTA (0,0,0), thread (2,0,0))")
def atomic_in_shared_memory():
    tile = tc.shared(2, tc.s32)
    tc.atomic("add", tile.at(tc.threadIdx.x), 1)  # here


@caught("index 4 leaves axis 1 of 'x', which has extent 4 (CTA (0,0,0), thread (4,0,0))", (8, 4))
def reduction_in_global_memory(x):
    tc.reduce("add", x.at(0, tc.threadIdx.x), 1.0)  # here


@fine(3)
def tiles_inside(stage):
    tile = tc.shared((4, 32, 8), tc.f32)
    part = tile[stage, 8:]
    part[tc.threadIdx.x % 24, -1] = 1.0
    tile[stage][tc.threadIdx.x, 0] = 2.0
    tile[:, tc.threadIdx.x % 32, 0].at(3).store(1.0)


@fine(9)
def stages_that_nobody_touches(stage):
    tile, bars = tc.shared((4, 32), tc.f32), tc.mbarriers(4)
    part, bar = tile[stage], bars[stage]
    place = part.at(tc.threadIdx.x + 30)
    place.store(1.0, pred=stage < 4)
    bar.arrive(pred=stage < 4)
    if stage < 4:
        part[40 - tc.threadIdx.x] = 1.0


@fine()
def one_load_matrix_of_few_rows():
    tile = tc.shared((16, 16), tc.bf16)
    for i in range(8):
        tile[i + 8 * (tc.threadIdx.x // 16), tc.threadIdx.x % 16] = 1.0
    tc.syncwarp()
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tc.ldmatrix(tile, mma.a)
    tc.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", tile[:8].at(tc.lane_id(), 8))


# -- asynchronous copies ------------------------------------------------------------------------


@caught(
    "4 elements from index 4 on leave axis 1 of 'x', which has extent 6 (CTA (0,0,0), thread (1,0,0))",
    (8, 6),
    block=4,
)
def cp_async_reads_the_next_row(x):
    tile = tc.shared((8, 16), tc.f32)
    tc.cp_async(tile.at(0, 4 * tc.threadIdx.x), x.at(0, 4 * tc.threadIdx.x), 16)  # here


@caught(
    "4 elements from index 16 on leave axis 1 of a shared f32 tile of 8x16, which has extent 16 "
    "(CTA (0,0,0), thread (4,0,0))",
    (8, 64),
)
def cp_async_writes_the_next_row(x):
    tile = tc.shared((8, 16), tc.f32)
    tc.cp_async(tile.at(0, 4 * tc.threadIdx.x), x.at(0, 0), 16)  # here


@caught("index 6 leaves axis 1 of 'x', which has extent 6 (CTA (0,0,0), thread (0,0,0))", (8, 6), 12)
def cp_async_reads_too_many(x, valid):
    tile = tc.shared((32, 4), tc.f32)
    tc.cp_async(tile.at(tc.threadIdx.x, 0), x.at(0, 4), 16, valid=valid)  # here


@fine((8, 6), 8)
def cp_async_of_what_there_is(x, valid):
    tile = tc.shared((32, 20), tc.f32)
    i = tc.threadIdx.x
    tc.cp_async(tile.at(i, 0), x.at(0, 0), 16)
    tc.cp_async(tile.at(i, 4), x.at(0, 4), 16, valid=valid)
    tc.cp_async(tile.at(i, 8), x.at(8, 0), 16, valid=valid - 8)
    tc.cp_async(tile.at(i, 12), x.at(2 * i, 0), 16, pred=i < 4)
    tc.cp_async(tile.at(i, 16), x.at(2 * i, 0), 16, valid=tc.select(i < 4, 16, 0))


@caught(
    "index 2 leaves axis 0 of a shared bf16 tile of 2x64x64, 128-byte swizzle, which has extent 2 "
    "(CTA (0,0,0), thread (0,0,0))",
    (128, 64),
    2,
    dtype=tc.bf16.numpy,
)
def tma_to_no_stage(x, stage):
    map = tc.tensor_map(x, (64, 64), swizzle=128)
    tile, bars = tc.shared((2, 64, 64), tc.bf16, swizzle=128), tc.mbarriers(1)
    tc.tma_load(tile[stage], map, (0, 0), bars[0], pred=tc.threadIdx.x == 0)  # here


@fine((100, 64), dtype=tc.bf16.numpy)
def tma_over_the_edge(x):
    map = tc.tensor_map(x, (64, 64), swizzle=128)
    tile, bars = tc.shared((2, 64, 64), tc.bf16, swizzle=128), tc.mbarriers(1)
    if tc.threadIdx.x == 0:
        bars[0].init(1)
        tc.fence_mbarrier_init()
        bars[0].arrive_expect_tx(tile[0].bytes)
    tc.tma_load(tile[tc.threadIdx.x], map, (64, 0), bars[0], pred=tc.threadIdx.x == 0)
    tc.barrier()
    bars[0].wait(0)


# -- clusters -----------------------------------------------------------------------------------


@caught("rank 2 leaves the cluster, which has 2 CTAs (CTA (1,0,0), thread (0,0,0))", grid=2)
def tile_of_no_cta():
    tc.cluster_size(2)
    tile = tc.shared(32, tc.f32)
    tile[tc.threadIdx.x] = 1.0
    tc.cluster_sync()
    tile.remote(tc.cluster_rank() + 1)[tc.threadIdx.x]  # here


@caught("rank 3 leaves the cluster, which has 2 CTAs (CTA (0,0,0), thread (0,0,0))", 3, grid=2)
def pointer_of_no_cta(rank):
    tc.cluster_size(2)
    tile = tc.shared(32, tc.f32)
    tile[tc.threadIdx.x] = 1.0
    tc.cluster_sync()
    tile.at(tc.threadIdx.x).remote(rank).load()  # here


@caught("rank 1 leaves the cluster, which has 1 CTAs (CTA (0,0,0), thread (0,0,0))", 1)
def barrier_of_no_cta(rank):
    bars = tc.mbarriers(1)
    bars[0].remote(rank).arrive()  # here


@caught(
    "index 32 leaves axis 0 of a remote shared f32 tile of 32, which has extent 32 (CTA (0,0,0), thread (31,0,0))",
    grid=2,
)
def outside_of_a_remote_tile():
    tc.cluster_size(2)
    tile, _ = tc.shared(32, tc.f32), tc.shared(32, tc.f32)
    tc.cluster_sync()
    tile.remote(1 - tc.cluster_rank())[tc.threadIdx.x + 1] = 1.0  # here
    tc.cluster_sync()


@fine(grid=2)
def ranks_that_nobody_uses():
    tc.cluster_size(2)
    tile, bars = tc.shared(32, tc.f32), tc.mbarriers(1)
    if tc.threadIdx.x == 0:
        bars[0].init(2)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    bars[0].remote(tc.threadIdx.x).arrive(pred=tc.threadIdx.x < 2)
    tile.remote(tc.threadIdx.x).at(0).store(1.0, pred=tc.threadIdx.x < 2)
    tc.cluster_sync()


# -- local arrays -------------------------------------------------------------------------------


@caught(
    "index 4 leaves axis 0 of a local f32 array of 4, which has extent 4 (CTA (0,0,0), thread (4,0,0))", (32,)
)
def local_read(x):
    items = tc.local(4, tc.f32)
    x[tc.threadIdx.x] = items[tc.threadIdx.x]  # here


@caught(
    "index -1 leaves axis 1 of a local s32 array of 2x3, which has extent 3 (CTA (0,0,0), thread (0,0,0))", -1
)
def local_write(j):
    items = tc.local((2, 3), tc.s32)
    items[1, j] = 5  # here


@fine((32,))
def locals_inside(x):
    items = tc.local((2, 4), tc.f32)
    items[tc.threadIdx.x % 2, tc.threadIdx.x % 4] = 1.0
    if tc.threadIdx.x < 4:
        x[tc.threadIdx.x] = items.T[tc.threadIdx.x, 0]


# -- instructions by name -----------------------------------------------------------------------


@caught(
    "4 elements from index 4 on leave axis 1 of 'x', which has extent 6 (CTA (0,0,0), thread (1,0,0))", (8, 6)
)
def load_by_name(x):
    tc.emit("ld.global.v4.b32", x.at(0, 4 * tc.threadIdx.x))  # here


@caught("index 6 leaves axis 1 of 'x', which has extent 6 (CTA (0,0,0), thread (6,0,0))", (8, 6))
def store_by_name(x):
    tc.emit("st.global.b32", x.at(0, tc.threadIdx.x), tc.f32(1), pred=tc.threadIdx.x < 8)  # here


@fine((8, 6))
def guarded_by_name(x):
    tc.emit("st.global.b32", x.at(0, tc.threadIdx.x), tc.f32(1), pred=tc.threadIdx.x < 6)


# -- the tests of the cases ---------------------------------------------------------------------


@pytest.mark.parametrize("case", CAUGHT, ids=ids)
def test_an_index_outside_is_caught(case):
    with pytest.raises(OutOfBounds) as error:
        case.run()
    assert error.value.message == case.message
    loc = error.value.loc
    assert loc is not None and linecache.getline(loc.filename, loc.line).rstrip().endswith("# here")


@pytest.mark.parametrize("case", FINE, ids=ids)
def test_indices_inside_pass(case):
    case.run(checks=True)


@pytest.mark.parametrize("case", FINE, ids=ids)
def test_fine_in_any_order(case):
    case.run(order=1)


@pytest.mark.parametrize("case", CAUGHT, ids=ids)
def test_nothing_is_checked_without_checks(case):
    args = [np.ones(a, case.dtype) if isinstance(a, tuple) else a for a in case.args]
    assert "check.index" not in case.kernel.ir(*args, arch=case.arch)
    assert "check.index" in format_kernel(checked(case.kernel, args, case.arch).ir)
