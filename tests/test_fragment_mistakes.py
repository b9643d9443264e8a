"""Fragments where numbers belong: what would quietly be wrong is refused, with what to write."""

from __future__ import annotations

import numpy as np
import pytest

import tensorcore_dsl as tc
from tests.refused_kernels import F32, HALF, MATRIX, Refusals, check

MMA = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
ACC = "a fragment f32x4:mma.C.16x8.f32"
PLACES = "cannot be stored through a pointer: its elements have places of their own."

refused = Refusals()


@pytest.mark.parametrize("case", refused, ids=lambda case: case.name)
def test_wrong_fragments_are_refused(case):
    check(case)


# -- stores of one element -----------------------------------------------------------------------


@refused(
    f"{ACC} {PLACES} tc.store_elements(array, values, origin=...) stores them all, values[slot] is one",
    "y[tc.lane_id(), 0] = MMA.d.zeros()",
    MATRIX,
)
def fragment_as_an_item(y):
    y[tc.lane_id(), 0] = MMA.d.zeros()


@refused(
    f"16 row values of f32 {PLACES} tc.store_rows(array, values, origin=...) stores them all, values[slot] is one",
    "y[0, 0] = tc.row_sum(MMA.d.zeros())",
    MATRIX,
)
def row_values_as_an_item(y):
    y[0, 0] = tc.row_sum(MMA.d.zeros())


@refused(
    f"8 column values of f32 {PLACES} tc.store_columns(array, values, origin=...) stores them all, values[slot] is one",
    "tc.store(y.at(0, 0), tc.column_values(MMA.d))",
    MATRIX,
)
def column_values_through_a_pointer(y):
    tc.store(y.at(0, 0), tc.column_values(MMA.d))


@refused(
    f"{ACC} {PLACES} tc.store_elements(array, values, origin=...) stores them all, values[slot] is one",
    "tile[0, 0] = MMA.d.zeros()",
)
def fragment_as_an_item_of_a_tile():
    tile = tc.shared((16, 8), tc.f32)
    tile[0, 0] = MMA.d.zeros()


@refused(
    f"a fragment f16x2:mma.B.16x8.f16 {PLACES} tc.store_elements(array, values, origin=...) stores them all, "
    "values[slot] is one",
    "x.at(0).store(MMA.b.zeros())",
    HALF,
)
def packed_fragment_through_a_pointer(x):
    x.at(0).store(MMA.b.zeros())


@refused(
    f"the predicates of {ACC} cannot be stored: tc.select(condition, 1, 0) can",
    "y[0, 0] = MMA.d.zeros() > 0",
    MATRIX,
)
def mask_as_an_item(y):
    y[0, 0] = MMA.d.zeros() > 0


ITEM = "an item is one element, not {}; x.at(i).store(values) stores a vector from x[i] on"


@refused(ITEM.format("a vector of 2 f32"), "x[0] = tc.vector([1.0, 2.0])", F32)
def vector_as_an_item(x):
    x[0] = tc.vector([1.0, 2.0])


@refused(ITEM.format("a list of 2 items"), "pointer[4] = [1.0, 2.0]", F32)
def list_as_an_item_of_a_pointer(x):
    pointer = x.at(0)
    pointer[4] = [1.0, 2.0]


@refused(
    f"a local f32 array of 4 has elements of one register, not {ACC}: a list holds fragments and vectors",
    "t[0] = MMA.d.zeros()",
)
def fragment_in_a_local_array():
    t = tc.local(4, tc.f32)
    t[0] = MMA.d.zeros()


@refused(f"an element is one register, not {ACC}", "acc[0] = acc")
def fragment_as_a_slot():
    acc = MMA.d.zeros()
    acc[0] = acc


# -- reductions ------------------------------------------------------------------------------------

OWN = "() of {} would reduce only what this thread holds: {}; {} is about this thread's own"


@refused(
    "max" + OWN.format(ACC, "tc.row_max(x) or tc.reduce_rows(x, f) reduces each row", "max(x.elements())"),
    "max(MMA.d.zeros())",
)
def max_of_a_fragment():
    max(MMA.d.zeros())


@refused(
    "sum" + OWN.format(ACC, "tc.row_sum(x) or tc.reduce_rows(x, f) reduces each row", "sum(x.elements())"),
    "sum(MMA.d.zeros())",
)
def sum_of_a_fragment():
    sum(MMA.d.zeros())


@refused(
    "min"
    + OWN.format(
        "16 row values of f32", "shuffles, tc.shfl_xor, combine values of a warp", "min(x.elements())"
    ),
    "min(tc.row_values(MMA.d))",
)
def min_of_row_values():
    min(tc.row_values(MMA.d))


@refused(
    "any"
    + OWN.format(
        f"the predicates of {ACC}", 'tc.vote("any", any(list(x))) asks the whole warp', "any(list(x))"
    ),
    "any(MMA.d.zeros() > 0)",
)
def any_of_a_mask():
    any(MMA.d.zeros() > 0)


@refused(
    "sum"
    + OWN.format(
        f"the predicates of {ACC}", "tc.row_sum(tc.select(x, 1, 0)) counts in each row", "sum(list(x))"
    ),
    "sum(MMA.d.zeros() > 0)",
)
def sum_of_a_mask():
    sum(MMA.d.zeros() > 0)


@tc.kernel
def reduced_by_threads(y: tc.Array):
    acc = MMA.d.zeros().map_coordinates(lambda _, i, j: 10 * i + j)
    y[0, tc.lane_id()] = max(acc.elements())
    y[1, tc.lane_id()] = sum(acc.elements())
    y[2, tc.lane_id()] = tc.select(any(list(acc > 150)), 1, 0)
    y[3, tc.lane_id()] = max(tc.vector([acc[0], acc[3]]))


def test_the_elements_of_a_thread_reduce():
    y = np.zeros((4, 32), np.float32)
    reduced_by_threads.emulate[1, 32](y)
    i, j = np.arange(32) // 4, np.arange(32) % 4 * 2
    assert np.array_equal(y[0], 10 * (i + 8) + j + 1)
    assert np.array_equal(y[1], 4 * (10 * i + j) + 162)
    assert np.array_equal(y[2], 10 * (i + 8) + j + 1 > 150)
    assert np.array_equal(y[3], 10 * (i + 8) + j + 1)


# -- what to write instead ------------------------------------------------------------------------


@refused(
    f"a condition selects no elements of {ACC}: x = tc.select(condition, new, x) replaces those where it holds",
    "acc[acc > 0] = 1",
)
def condition_as_an_index():
    acc = MMA.d.zeros()
    acc[acc > 0] = 1


@refused(f"{ACC} has elements 0 to 3, not (0, 1)", "MMA.d.zeros()[0, 1]")
def two_indices_of_a_fragment():
    MMA.d.zeros()[0, 1]


@refused(
    "a pointer is needed, tc.load(x.at(i, j), pred=...), not a 1-dimensional f32 array", "tc.load(x)", F32
)
def load_of_an_array(x):
    tc.load(x)


@refused(
    "tc.load(pointer, count=1, *, pred=None, otherwise=0, cache=''): got an unexpected keyword argument 'mask'; "
    "did you mean 'pred'?",
    "tc.load(x.at(0), mask=True)",
    F32,
    error=tc.CompileError,
)
def load_with_a_mask(x):
    tc.load(x.at(0), mask=True)


@refused(
    "exp2 takes numbers and fragments, not a list of 1 item; [tc.exp2(x) for x in values]",
    "tc.exp2([MMA.d.zeros()])",
)
def function_of_a_list():
    tc.exp2([MMA.d.zeros()])


@refused(
    "* is not defined for a list of 1 item and 2.0; [x * y for x in values] computes with each item",
    "[MMA.d.zeros()] * 2.0",
)
def product_of_a_list():
    [MMA.d.zeros()] * 2.0


@refused(
    "acc, a and b must be rows x columns, rows x depth and depth x columns of fragments; they are a list of 4, a list of "
    "4 and a list of 4: if a is 2x2 and b 2x2, give lists of rows",
    "tc.tiled_mma(MMA, [MMA.d.zeros()] * 4, [MMA.a.zeros()] * 4, [MMA.b.zeros()] * 4)",
)
def flat_lists_of_four():
    tc.tiled_mma(MMA, [MMA.d.zeros()] * 4, [MMA.a.zeros()] * 4, [MMA.b.zeros()] * 4)


@refused("the function gives one number, not a list of 2 items", "tc.row_values(MMA.d, lambda i: [i, i])")
def row_values_of_lists():
    tc.row_values(MMA.d, lambda i: [i, i])


@refused(
    "origin is (row, col) of the first value in a 2-dimensional f32 array, not 3",
    "tc.load_columns(x, MMA.d, origin=3)",
    MATRIX,
)
def columns_of_a_matrix_from_one_index(x):
    tc.load_columns(x, MMA.d, origin=3)


HINTS = [
    (lambda acc: tc.max(acc), "did you mean max(a, b), or tc.row_max(fragment)?"),
    (lambda acc: tc.sum(acc), "did you mean sum(values), or tc.row_sum(fragment)?"),
    (lambda acc: tc.min(acc), "did you mean min(a, b), or tc.row_min(fragment)?"),
    (lambda acc: tc.cast(acc), "did you mean x.to(dtype)?"),
    (lambda acc: tc.clamp(acc), "did you mean min(max(x, low), high)?"),
    (lambda acc: tc.lop3(acc), "use the operators &, |, ^ and ~"),
    (lambda acc: tc.div(acc), "use a / b"),
    (lambda acc: tc.__syncthreads(acc), "did you mean tc.barrier()?"),
    (lambda acc: acc.max(), "use tc.row_max(fragment)"),
    (lambda acc: acc.min(), "use tc.row_min(fragment)"),
    (lambda acc: acc.sum(), "use tc.row_sum(fragment)"),
    (lambda acc: acc.T, "use tile.T of a shared tile, or tc.as_operand(fragment, operand, transposed=True)"),
    (lambda acc: acc.shape, "use fragment.layout.rows and fragment.layout.cols"),
]


@pytest.mark.parametrize("slip, hint", HINTS)
def test_hints(slip, hint):
    @tc.kernel
    def wrong(slip: tc.Const):
        slip(MMA.d.zeros())

    with pytest.raises(tc.TensorCoreError) as caught:
        wrong.ptx(slip=slip)
    assert caught.value.message.endswith(f"; {hint}")


# -- results that nobody takes ---------------------------------------------------------------------

WIDE = tc.wgmma.m64n8k16(tc.f16, tc.f16, tc.f32)


@tc.kernel(threads=128)
def dropped(a: tc.Array, b: tc.Array, d: tc.Array, how: tc.Const):
    left = tc.shared((64, 64), a.dtype, swizzle=128)
    right = tc.shared((8, 64), b.dtype, swizzle=128)
    tc.copy_tile(left, a, (0, 0))
    tc.copy_tile(right, b, (0, 0))
    if how != "no commit":
        tc.cp_async_commit()
    tc.cp_async_wait(0)
    if how != "no proxy fence":
        tc.fence_proxy_async()
    tc.barrier()
    acc = WIDE.d.zeros()
    tc.wgmma_fence()
    if how == "wgmma":
        tc.wgmma_async(WIDE, acc, left, right)
    elif how == "branch":
        if d[0, 0] > 0:
            tc.wgmma_async(WIDE, acc, left, right)
    elif how == "mma":
        MMA(MMA.a.zeros(), MMA.b.zeros(), MMA.d.zeros())
    elif how == "tiled":
        tc.tiled_mma(MMA, [MMA.d.zeros()], [MMA.a.zeros()], [MMA.b.zeros()])
    elif how == "other name":
        _ = tc.wgmma_async(WIDE, acc, left, right)
    else:
        acc = tc.wgmma_async(WIDE, acc, left, right)
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    tc.store_elements(d, acc)


def run_dropped(how: str) -> None:
    a, b = np.ones((64, 64), np.float16), np.ones((8, 64), np.float16)
    dropped.emulator("sm_90a")[1, 128](a, b, np.zeros((64, 8), np.float32), how)


@pytest.mark.parametrize(
    ("how", "name"),
    [("wgmma", "tc.wgmma_async"), ("branch", "tc.wgmma_async"), ("mma", "MMA"), ("tiled", "tc.tiled_mma")],
)
def test_the_result_of_a_product_is_not_dropped(how, name):
    with pytest.raises(tc.OperandError) as error:
        run_dropped(how)
    text = f"the result of {name}(...) is dropped: the new accumulators are what it returns, acc = "
    assert str(error.value).startswith(f"{text}{name}(...); ")
    assert f"\n    {name}(" in str(error.value)


def test_accumulators_that_are_copied_behind_the_fence():
    with pytest.raises(
        tc.EmulationError,
        match="did not fence since: tc.wgmma_fence.. .wgmma.fence. comes between, and the result of",
    ):
        run_dropped("other name")


def test_a_copy_without_a_commit():
    with pytest.raises(tc.Uninitialised) as error:
        run_dropped("no commit")
    text = str(error.value)
    assert "the asynchronous copy at " in text
    assert (
        "(by thread 0 of CTA 0) still owns byte 0x0 (element [0, 0] of a shared f16 tile of 64x64, 128-byte "
        in text
    )
    assert (
        "swizzle): it is in no group yet, so no wait awaits it; tc.cp_async_commit() (cp.async.commit_group) comes before the wait"
        in text
    )


def test_a_copy_without_a_proxy_fence():
    with pytest.raises(
        tc.EmulationError, match="what the cp.async.cg of thread 0 .* wrote at line .* without a proxy fence"
    ):
        run_dropped("no proxy fence")


def test_a_product_in_order():
    run_dropped("")
