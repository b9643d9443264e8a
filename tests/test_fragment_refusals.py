"""What fragments, tiles and copies refuse, and how the errors put it."""

from __future__ import annotations

import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import ArrayType
from tests.fragment_kernels import F16, S8, WGMMA
from tests.refused_kernels import F32, HALF, MATRIX, Refusals, check

refused = Refusals()
BYTES = ArrayType(tc.s8, 2, (False, True), 16)


@pytest.mark.parametrize("case", refused, ids=lambda case: case.name)
def test_fragments_refuse_what_they_cannot_do(case):
    check(case)


HOLD = "cannot hold mma.A.16x16.f16: its elements are {}, those of the fragment f16; {}"
LOAD = "tc.load_elements(tile, operand, convert=True) converts"


@refused(f"a shared bf16 tile of 16x16 {HOLD.format('bf16', LOAD)}", "tc.ldmatrix(tile, F16.a)")
def ldmatrix_of_another_type():
    tile = tc.shared((16, 16), tc.bf16)
    tc.ldmatrix(tile, F16.a)


@refused(
    f"a shared s16 tile of 16x16 {HOLD.format('s16', 'convert=True converts')}",
    "tc.load_elements(tile, F16.a)",
)
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


@refused(
    f"a shared bf16 tile of 16x16 {HOLD.format('bf16', 'fragment.to(dtype) converts')}",
    "tc.stmatrix(tile, F16.a.zeros())",
    arch="sm_90",
)
def stmatrix_of_another_type():
    tile = tc.shared((16, 16), tc.bf16)
    tc.stmatrix(tile, F16.a.zeros())


@refused(
    "a shared f16 tile of 32x16 takes 2 fragments of 16x16; 1 were given",
    "tc.stmatrix(tile, F16.a.zeros())",
    arch="sm_90",
)
def stmatrix_to_a_larger_tile():
    tile = tc.shared((32, 16), tc.f16)
    tc.stmatrix(tile, F16.a.zeros())


@refused(
    "a 2-dimensional s8 array cannot hold mma.B.16x8.f16: its elements are s8, those of the fragment f16; "
    "convert=True converts",
    "tc.load_elements(x, F16.b)",
    BYTES,
)
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
    "tc.fragment(F16.a, [x, x, x, x])",
    tc.f32,
)
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
    "tc.fragment(F16.a, [x] * 8)",
    tc.f32,
)
def elements_of_another_type(x: tc.f32):
    tc.fragment(F16.a, [x] * 8)


@refused(
    "movmatrix.sync.aligned.m8n8.trans.b16 takes registers of two 16-bit elements, as tc.pack(low, high) makes them, "
    "not a run-time value of type f32",
    "tc.movmatrix(x)",
    tc.f32,
)
def movmatrix_of_floats(x: tc.f32):
    tc.movmatrix(x)


@refused(
    "4 elements were given for mma.A.16x16.f16, of which a thread holds 2 side by side, from slot 0: give 1 to 2 at a time",
    "tc.fragment(F16.a, lambda i, j: [x] * 4)",
    tc.f16,
)
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


@refused(
    "a condition is a predicate, or compares fragments; not a list of 2 items",
    "tc.select([n > 0, n > 1], 1, 2)",
    tc.s32,
)
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
    "tc.reduce_columns(WGMMA.d.zeros(), tc.maximum)",
    arch="sm_90a",
)
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


@refused(
    "origin is (row, col) of the first value in a 2-dimensional f32 array, not None",
    "tc.load_rows(x, F16.d)",
    MATRIX,
)
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


@refused("a fragment f32x4:mma.C.16x8.f32 has elements 0 to 3, not 4", "f[4]")
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
    "tc.pack(x, x)",
    tc.f32,
)
def pack_of_wide_elements(x: tc.f32):
    tc.pack(x, x)


@refused("a run-time value of type s32 has no f32 elements to unpack", "tc.unpack(n, tc.f32)", tc.s32)
def unpack_of_wide_elements(n: tc.s32):
    tc.unpack(n, tc.f32)


@refused(
    "a 1-dimensional f16 array is copied to memory of its element type, not to a shared bf16 tile of 64: make the "
    "tile of the array's type, f16: tc.shared(shape, x.dtype)",
    "tc.copy_tile(tile, x, (0,))",
    HALF,
)
def copy_to_another_type(x):
    tile = tc.shared(64, tc.bf16)
    tc.copy_tile(tile, x, (0,))


@refused(
    "the number of threads that copy must be known: @tc.kernel(threads=128), tc.launch_bounds(128), or threads=128 with "
    "thread=...",
    "tc.copy_tile(tile, x, (0,))",
    HALF,
)
def copy_by_unknown_threads(x):
    tile = tc.shared(64, tc.f16)
    tc.copy_tile(tile, x, (0,))


@refused(
    "threads, how many copy, and thread, the number of this one, go together",
    "tc.copy_tile(tile, x, (0,), threads=32)",
    HALF,
)
def copy_by_unnumbered_threads(x):
    tile = tc.shared(64, tc.f16)
    tc.copy_tile(tile, x, (0,), threads=32)


@refused(
    "vectors of 3 f16 cannot copy a shared f16 tile of 64: they have at most 16 bytes, divide its rows, and run along an "
    "axis that is contiguous in both",
    "tc.copy_tile(tile, x, (0,), vector=3)",
    HALF,
)
def copy_by_odd_vectors(x):
    tc.launch_bounds(32)
    tile = tc.shared(64, tc.f16)
    tc.copy_tile(tile, x, (0,), vector=3)
