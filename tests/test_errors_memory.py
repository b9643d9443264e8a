"""What users read of copies, barriers, clusters and indices that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import ArrayType, EmulationError, LayoutError, OperandError
from tests.refused_kernels import F32, INTS, Refusals, check

refused = Refusals()
BF16 = ArrayType(tc.bf16, 2, (False, True), 16)
COLUMNS = ArrayType(tc.bf16, 2, (True, False), 16)
HOPPER: dict[str, Any] = {"arch": "sm_90a"}


@pytest.mark.parametrize("case", refused, ids=lambda case: case.name)
def test_wrong_accesses_are_refused(case):
    check(case)


# -- TMA ----------------------------------------------------------------------------------------


@tc.kernel
def load_box(
    x,
    shape: tc.Const = (64, 64),
    dtype: tc.Const = tc.bf16,
    swizzle: tc.Const = 0,
    box: tc.Const = (64, 64),
    map_swizzle: tc.Const = 0,
    strides: tc.Const = None,
    view: tc.Const = None,
    index: tc.Const = (0, 0),
    options: tc.Const = None,
):
    map = tc.tensor_map(x, box, swizzle=map_swizzle)
    tile = tc.shared(shape, dtype, swizzle=swizzle, strides=strides)
    tile = view(tile) if view else tile
    bars = tc.mbarriers(1)
    tc.tma_load(tile, map, index, bars[0], **(options or {}))


def test_arrays_that_are_contiguous_along_another_axis():
    with pytest.raises(LayoutError) as error:
        load_box.ir(COLUMNS, box=(128, 64), shape=(128, 64), map_swizzle=128, arch="sm_90a")
    assert error.value.message == (
        "a box of 128 bf16 is wider than its 128-byte swizzle: argument 'x' is contiguous along "
        "axis 0 (its strides are (1, ?)), where the box (128, 64) has 128"
    )
    strided = ArrayType(tc.bf16, 2, (False, False), 16)
    with pytest.raises(OperandError) as refused:
        load_box.ir(strided, arch="sm_90a")
    assert refused.value.message == (
        "a tensor map needs a contiguous axis, of stride 1; the strides of argument 'x' are "
        "(?, ?): pass a contiguous copy"
    )


SMALL = "the map copies boxes of 64x64 bf16 to dense tiles"


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"shape": (32, 128)}, f"{SMALL}; a shared bf16 tile of 32x128, strides (128, 1), was given"),
        ({"shape": (128, 64)}, f"{SMALL}; a shared bf16 tile of 128x64"),
        ({"dtype": tc.f16}, f"{SMALL}; a shared f16 tile of 64x64"),
        ({"dtype": tc.f32, "shape": (64, 32)}, f"{SMALL}; a shared f32 tile of 64x32"),
        ({"swizzle": 128}, f"{SMALL}; a shared bf16 tile of 64x64, 128-byte swizzle"),
        (
            {"map_swizzle": 128},
            "64x64 bf16 to dense tiles with a 128-byte swizzle; a shared bf16 tile of 64x64, str",
        ),
        (
            {"shape": (64, 64), "strides": (72, 1)},
            f"{SMALL}; a shared bf16 tile of 64x64, strides (72, 1), was given",
        ),
        ({"view": lambda t: t.T}, f"{SMALL}; a shared bf16 tile of 64x64, strides (1, 64), was given"),
        (
            {"shape": (64, 128), "view": lambda t: t[:, :64]},
            "a shared bf16 tile of 64x64, strides (128, 1), was given",
        ),
        (
            {"shape": (128, 64), "view": lambda t: t[::2]},
            "a shared bf16 tile of 64x64, strides (128, 1), was given",
        ),
        ({"index": (0.5, 0)}, "a coordinate of a box must be an integer, not 0.5"),
        ({"index": (0,)}, "2 coordinates are needed, 1 were given"),
        ({"index": 0}, "the index of a box is a tuple of 2 coordinates, not 0"),
        (
            {"box": (64, 64.0)},
            "the box of a tensor map has positive extents known at compile time, not 64, 64.0",
        ),
        ({"box": (0, 64)}, "the box of a tensor map has positive extents"),
        (
            {"box": (64,)},
            "the box of a tensor map has an extent for each axis of the array: 2 of argument 'x'; the box is (64,)",
        ),
        (
            {"options": {"multicast": 1 << 16}},
            "has a bit for each CTA that receives the box, of 16 CTAs; 65536 was",
        ),
        (
            {"options": {"multicast": 0}},
            "has a bit for each CTA that receives the box, of 16 CTAs; 0 was given",
        ),
        ({"options": {"multicast": 1.5}}, "a multicast mask must be an integer, not 1.5"),
        (
            {"shape": (72, 64), "swizzle": 128, "map_swizzle": 128, "view": lambda t: t[4:68]},
            "a tensor copy starts where the swizzle does, at a multiple of 1024 bytes; the view starts 512 bytes",
        ),
    ],
)
def test_tiles_and_indices_that_are_no_box(constants, message):
    with pytest.raises(OperandError) as error:
        load_box.ir(BF16, **constants, arch="sm_90a")
    assert message in error.value.message


@pytest.mark.parametrize(
    "constants",
    [
        {},
        {"shape": (1, 64, 64)},
        {"shape": (2, 32, 64)},
        {"dtype": tc.b16},
        {"index": (-8, 4000)},
        {"shape": (64, 64), "swizzle": 128, "map_swizzle": 128},
        {"shape": (72, 64), "swizzle": 128, "map_swizzle": 128, "view": lambda t: t[8:]},
        {"shape": (3, 64, 64), "view": lambda t: t[tc.threadIdx.x]},
        {"options": {"multicast": 3}},
        {"index": (np.int64(8), 0)},
    ],
)
def test_tiles_that_are_a_box(constants):
    assert "cp.async.bulk.tensor" in load_box.ir(BF16, **constants, arch="sm_90a")


@pytest.mark.parametrize("rows", [32, 64])
def test_a_tile_of_columns_is_contiguous_as_the_array_is(rows):
    box = rows, 64
    for constants in (
        {"shape": (64, rows), "view": lambda t: t.T},
        {"shape": box, "strides": (1, rows)},
        {"shape": (64, 1, rows), "view": lambda t: t[:, 0].T},
    ):
        assert "cp.async.bulk.tensor" in load_box.ir(COLUMNS, box=box, **constants, arch="sm_90a")
    message = (
        rf"boxes of {rows}x64 bf16 \(in memory 64x{rows}\) to dense tiles; .*, was given; "
        rf"argument 'x' is contiguous along axis 0: give tile.T of a tile of 64x{rows}"
    )
    for shape in (box, box[::-1], (2, rows // 2, 64)):
        with pytest.raises(OperandError, match=message):
            load_box.ir(COLUMNS, box=box, shape=shape, arch="sm_90a")
    with pytest.raises(OperandError, match="64x64 bf16 to dense tiles; a shared bf16 tile of 64x64"):
        load_box.ir(BF16, view=lambda t: t.T, arch="sm_90a")


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("by_name", [False, True])
def test_boxes_of_rows_and_of_columns_arrive_as_they_are(order, by_name):
    @tc.kernel(threads=32)
    def move(x, out, elements, transposed: tc.Const):
        tile, bar = tc.shared((8, 8), x.dtype), tc.mbarriers(1)[0]
        tile = tile.T if transposed else tile
        source, target = tc.tensor_map(x, (8, 8)), tc.tensor_map(out, (8, 8))
        if tc.threadIdx.x == 0:
            bar.init(1)
            tc.fence_mbarrier_init()
            if by_name:
                tc.copy_tile(tile, x, (8, 0), barrier=bar)
            else:
                bar.arrive_expect_tx(source.bytes)
                tc.tma_load(tile, source, (8, 0), bar)
        tc.barrier()
        bar.wait(0)
        if tc.threadIdx.x < 8:
            for row in tc.static_range(8):
                elements[row, tc.threadIdx.x] = tile[row, tc.threadIdx.x]
        tc.fence_proxy_async()
        tc.barrier()
        if tc.threadIdx.x == 0:
            tc.tma_store(target, (0, 8), tile)
            tc.tma_store_commit()
            tc.tma_store_wait(0)

    x = np.asarray(np.arange(256, dtype=np.float32).reshape(16, 16), order=order)
    out, elements = np.zeros_like(x), np.zeros((8, 8), np.float32)
    move.emulator("sm_90a")[1, 32](x, out, elements, order == "F")
    assert np.array_equal(elements, x[8:, :8])
    assert np.array_equal(out[:8, 8:], x[8:, :8]) and np.count_nonzero(out) == 64
    with pytest.raises(OperandError, match="the map copies boxes of 8x8"):
        move.emulator("sm_90a")[1, 32](x, out, elements, order == "C")


@refused(
    "an mbarrier counts the bytes of a copy, not an array of mbarriers (barriers[0] is one)",
    "tc.tma_load(tile, map, (0, 0), bars)",
    BF16,
    **HOPPER,
)
def all_barriers(x):
    map, tile, bars = tc.tensor_map(x, (64, 64)), tc.shared((64, 64), tc.bf16), tc.mbarriers(2)
    tc.tma_load(tile, map, (0, 0), bars)


@refused(
    "the mbarrier of a tensor load is one of its own CTA, no remote one",
    "tc.tma_load(tile, map, (0, 0), bars[0].remote(1))",
    BF16,
    **HOPPER,
)
def remote_barrier(x):
    tc.cluster_size(2)
    map, tile, bars = tc.tensor_map(x, (64, 64)), tc.shared((64, 64), tc.bf16), tc.mbarriers(2)
    tc.tma_load(tile, map, (0, 0), bars[0].remote(1))


@refused(
    "TMA reduces no bf16 by and; allowed are b32, b64, u32, s32, u64",
    'tc.tma_store(map, (0, 0), tile, reduce="and")',
    BF16,
    **HOPPER,
)
def reduces_bits_of_floats(x):
    map, tile = tc.tensor_map(x, (64, 64)), tc.shared((64, 64), tc.bf16)
    tc.tma_store(map, (0, 0), tile, reduce="and")


@refused(
    "a tensor copy moves a shared tile, not a shared pointer to bf16",
    "tc.tma_store(map, (0, 0), tile.at(0, 0))",
    BF16,
    **HOPPER,
)
def stores_a_pointer(x):
    map, tile = tc.tensor_map(x, (64, 64)), tc.shared((64, 64), tc.bf16)
    tc.tma_store(map, (0, 0), tile.at(0, 0))


@refused(
    "a fence orders accesses to shared, global, not 'local'", 'tc.fence_proxy_async("local")', BF16, **HOPPER
)
def fences_local_memory(x):
    tc.fence_proxy_async("local")


# -- cp.async -----------------------------------------------------------------------------------


@refused(
    "4 elements from index 4 on leave axis 1 of a shared f32 tile of 8x6, which has extent 6",
    "tc.cp_async(tile.at(0, 4), x.at(0), 16)",
    F32,
)
def copies_past_the_row(x):
    tile = tc.shared((8, 6), tc.f32)
    tc.cp_async(tile.at(0, 4), x.at(0), 16)


@refused(
    "cp.async copies bytes: a global pointer to f32 and a shared pointer to f16 do not have the same elements; "
    "pointer.as_type(dtype) reads them as others",
    "tc.cp_async(tile.at(0, 0), x.at(0), 8)",
    F32,
)
def copies_to_another_type(x):
    tile = tc.shared((8, 8), tc.f16)
    tc.cp_async(tile.at(0, 0), x.at(0), 8)


@refused(
    "cp.async copies 4, 8 or 16 bytes of whole f64 elements, not 4",
    "tc.cp_async(tile.at(0, 0), x.at(0).as_type(tc.f64), 4)",
    F32,
)
def copies_half_an_element(x):
    tile = tc.shared((8, 8), tc.f64)
    tc.cp_async(tile.at(0, 0), x.at(0).as_type(tc.f64), 4)


@refused(
    "valid= is 0 to 16 of the 16 bytes, not 20", "tc.cp_async(tile.at(0, 0), x.at(0), 16, valid=20)", F32
)
def reads_more_than_it_copies(x):
    tile = tc.shared((8, 8), tc.f32)
    tc.cp_async(tile.at(0, 0), x.at(0), 16, valid=20)


@refused(
    "valid= must be an integer, not a run-time value of type f32",
    "tc.cp_async(tile.at(0, 0), x.at(0), 16, valid=x[0])",
    F32,
)
def reads_a_fraction(x):
    tile = tc.shared((8, 8), tc.f32)
    tc.cp_async(tile.at(0, 0), x.at(0), 16, valid=x[0])


@refused(
    "cp.async takes pointers, tile.at(...) and array.at(...), not a 1-dimensional f32 array",
    "tc.cp_async(tile.at(0, 0), x, 16)",
    F32,
)
def copies_an_array(x):
    tile = tc.shared((8, 8), tc.f32)
    tc.cp_async(tile.at(0, 0), x, 16)


# -- mbarriers, clusters, atomics ---------------------------------------------------------------


@refused("the arrivals of a phase are 1 to 1048575, not 0", "tc.mbarriers(1)[0].init(0)")
def phase_without_arrivals():
    tc.mbarriers(1)[0].init(0)


@refused("the arrivals are 1 to 1048575, not -1", "tc.mbarriers(1)[0].arrive(-1)")
def arrives_backwards():
    tc.mbarriers(1)[0].arrive(-1)


@refused(
    "the bytes that a phase waits for are 0 to 1048575, not 1048576",
    "tc.mbarriers(1)[0].arrive_expect_tx(1 << 20)",
    **HOPPER,
)
def too_many_bytes():
    tc.mbarriers(1)[0].arrive_expect_tx(1 << 20)


@refused("the parity of a phase is 0 or 1, not 2", "tc.mbarriers(1)[0].wait(2)", **HOPPER)
def parity_of_a_stage():
    tc.mbarriers(1)[0].wait(2)


@refused(
    "the parity of a phase must be an integer, not a run-time value of type f32",
    "tc.mbarriers(1)[0].test(x[0])",
    F32,
    **HOPPER,
)
def parity_of_a_float(x):
    tc.mbarriers(1)[0].test(x[0])


@refused(
    "wait() works on the CTA's own mbarriers; a remote one has only arrive(), arrive_drop() "
    "and complete_tx()",
    "tc.mbarriers(1)[0].remote(0).wait(0)",
    **HOPPER,
)
def waits_far_away():
    tc.mbarriers(1)[0].remote(0).wait(0)


@refused("the mbarrier is another CTA's already", "tc.mbarriers(1)[0].remote(0).remote(0)", **HOPPER)
def twice_remote():
    tc.mbarriers(1)[0].remote(0).remote(0)


@refused("the cluster has (2, 1, 1) CTAs already; (4, 1, 1) were given", "tc.cluster_size(4)", **HOPPER)
def two_sizes():
    tc.cluster_size(2)
    tc.cluster_size(4)


@refused(
    "add of s32 elements takes integers, not 1.5; convert it first, with tc.s32(...)",
    'tc.atomic("add", x.at(0), 1.5)',
    INTS,
)
def adds_a_fraction(x):
    tc.atomic("add", x.at(0), 1.5)


@refused("or works on integers and bits, not on f32", 'tc.reduce("or", x.at(0), 1)', F32)
def bits_of_a_float(x):
    tc.reduce("or", x.at(0), 1)


# -- compile-time indices -----------------------------------------------------------------------


@refused("index 64 leaves axis 0 of a view of 'x', which has extent 64", "x[0:64][64]", F32)
def leaves_a_view_of_known_extent(x):
    x[0:64][64]


@refused(
    "4 elements from index 62 on leave axis 0 of a view of 'x', which has extent 64",
    "x[0:64].at(62).load(4)",
    F32,
)
def vector_leaves_a_view(x):
    x[0:64].at(62).load(4)


@refused(
    "4 elements from index 4 on leave axis 1 of a shared f32 tile of 8x6, which has extent 6",
    "tile.at(0, 4).store([1.0, 2.0, 3.0, 4.0])",
)
def vector_leaves_a_tile():
    tile = tc.shared((8, 6), tc.f32)
    tile.at(0, 4).store([1.0, 2.0, 3.0, 4.0])


def test_what_a_predicate_decides_is_no_error():
    @tc.kernel
    def guarded(x, n: tc.s32):
        view, tile = x[0:64], tc.shared((8, 6), tc.f32)
        view.at(64).load(pred=n > 64)
        tile.at(0, 4).store([1.0, 2.0, 3.0, 4.0], pred=False)
        view.at(64)
        view.at(62).load(4, pred=n > 66)

    guarded.ptx(F32, tc.s32, arch="sm_80")
    guarded.emulate[1, 32](np.zeros(64, np.float32), 64)


@tc.kernel(threads=32)
def announced(a, out, bytes: tc.Const, single: tc.Const):
    first, second, full = tc.shared((1, 32), tc.f32), tc.shared((1, 32), tc.f32), tc.mbarriers(2)
    map = tc.tensor_map(a, (1, 32))
    if tc.threadIdx.x == 0:
        full[1].init(1)
        tc.fence_mbarrier_init()
        full[1].arrive_expect_tx(bytes)
        if single:  # by copies of the thread; one of them need not be a tensor copy
            tc.emit(BULK_LOAD, first, a.at(0, 0), 128, full[1])
            tc.emit(BULK_LOAD, second, a.at(0, 0), 128, full[1])
        else:
            tc.tma_load(first, map, (0, 0), full[1])
            tc.tma_load(second, map, (0, 0), full[1])
    tc.barrier()
    full[1].wait(0)
    out[0, tc.threadIdx.x] = first[0, tc.threadIdx.x] + second[0, tc.threadIdx.x]


BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize("single", [False, True])
def test_too_few_announced_bytes(single):
    """The report names the phase that ended too early, not the one that nobody waits for."""
    x = np.ones((1, 32), np.float32)
    run, out = announced.emulator("sm_90a")[1, 32], np.zeros_like(x)
    run(x, out, 256, single)
    assert (out == 2).all()
    with pytest.raises(
        EmulationError,
        match=r"^full\[1\] \(initialised at .*\): phase 0 ended after 128 of the 256 bytes of its copies, without this copy of thread 0",
    ):
        run(x, out, 128, single)


@pytest.mark.parametrize(
    "box, swizzle, message",
    [
        (
            (512, 32),
            0,
            "a tensor map of argument 'x': a box of (512, 32) elements; 1 to 256 along each axis are allowed, so that several boxes make a larger tile",
        ),
        ((64, 8), 48, "a tensor map of argument 'x': a swizzle of 48 bytes; allowed are 0, 32, 64, 128"),
    ],
)
def test_boxes_that_no_tensor_map_has(box, swizzle, message):
    @tc.kernel
    def mapped(x):
        _ = tc.tensor_map(x, box, swizzle)

    with pytest.raises(LayoutError) as error:
        mapped.ir(BF16, arch="sm_90a")
    assert error.value.message == message
    assert error.value.loc.line == mapped.function.__code__.co_firstlineno + 2


@tc.kernel(threads=32)
def unaligned(x):
    _, tile, bar = tc.shared(4, tc.f32), tc.shared((8, 32), tc.f32), tc.mbarriers(1)[0]
    map = tc.tensor_map(x, (8, 32))
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(map.bytes)
        tc.tma_load(tile, map, (0, 0), bar)


def test_a_tile_that_is_not_aligned():
    words = r"names shared 0x10, which is not a multiple of 128 \(tc.shared\(\.\.\., align=128\)\)"
    with pytest.raises(tc.Misaligned, match=words):
        unaligned.emulator("sm_90a")[1, 32](np.zeros((8, 32), np.float32))


@tc.kernel(threads=32)
def aligned_to(x, align: tc.Const, first: tc.Const = 0):
    _, tile = tc.shared(1, tc.f16, align=2), tc.shared((16, 16), tc.f16, align=align)
    tile[tc.threadIdx.x % 16, tc.threadIdx.x // 16] = 1
    tc.syncwarp()
    x.at(0).store(tile.at(0, first).load(4))


def test_accesses_to_a_tile_that_is_not_aligned():
    """The tile's start needs align=; a wrong place in an aligned tile does not."""
    x = np.zeros(4, np.float16)
    words = r"at 0x2 by .*, which is not a multiple of 8: element \[0, 0\] of .* \(.*align=8\)"
    with pytest.raises(tc.Misaligned, match=words):
        aligned_to.emulate[1, 32](x, 2)
    with pytest.raises(tc.Misaligned, match=r"not a multiple of 8: element \[0, 2\] of [^\n]*16x16\n"):
        aligned_to.emulate[1, 32](x, None, 2)


@tc.kernel(threads=32)
def copied_to_dynamic(x, out, offset: tc.Const):
    map, bar = tc.tensor_map(x, (8, 32)), tc.mbarriers(1)[0]
    tile = tc.dynamic_shared((8, 32), tc.f32, offset=offset)
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(map.bytes)
        tc.tma_load(tile, map, (0, 0), bar)
    tc.barrier()
    bar.wait(0)
    out[tc.threadIdx.x] = tile[7, tc.threadIdx.x]


def test_tma_reaches_dynamic_memory_behind_static():
    """The 8 bytes of the mbarrier lie before it."""
    x, out = np.arange(256, dtype=np.float32).reshape(8, 32), np.zeros(32, np.float32)
    copied_to_dynamic.emulator("sm_90a")[1, 32, None, 1152](x, out, 128)
    assert np.array_equal(out, x[7])
    with pytest.raises(tc.Misaligned, match=r"not a multiple of 128 \(offset= of tc.dynamic_shared\)"):
        copied_to_dynamic.emulator("sm_90a")[1, 32, None, 1152](x, out, 64)


@refused(
    "an array of mbarriers (barriers[0] is one) has no attribute 'init'",
    "bars.init",
    error=tc.errors.CompileError,
    **HOPPER,
)
def array_of_mbarriers_itself():
    bars = tc.mbarriers(1)
    bars.init(1)
