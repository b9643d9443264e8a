"""Bugs in code as it is written from day to day: helpers of a library, views, blocks of odd shapes,
bytes and vectors, tiles of dynamic shared memory, the functions for whole tiles and fragments."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tests.planted import library
from tests.planted.harness import Planted, error, mapped, race

planted = Planted()

MMA = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)


# -- helpers --------------------------------------------------------------------------------------


@planted(
    1,
    64,
    mapped((2, 64), lambda x: np.repeat(x.sum(1, keepdims=True), 64, 1).astype(np.int32)),
    {
        "no barrier between": race("out[0, t] = library", "out[1, t]"),
        "a warp stays away": race("total =", "out[1, t]"),
        "small tile": error("out[0, t] = library"),
    },
)
def sums_by_a_library(x, out, mistake: tc.Const):
    tile = tc.shared(32 if mistake == "small tile" else 64, tc.s32)
    t = tc.threadIdx.x
    if mistake == "a warp stays away":
        if t < 32:
            total = library.block_sum(tile, x[0, t], 64)
            out[0, t] = total
    else:
        out[0, t] = library.block_sum(tile, x[0, t], 64)
    if mistake != "no barrier between":
        tc.barrier()
    out[1, t] = library.block_sum(tile, x[1, t], 64)


@planted(
    1,
    64,
    mapped(64, lambda x: x[::-1].copy()),
    {"no barrier": race("tile[place]", "return tile"), "index": error("tile[place]")},
)
def helpers_of_its_own(x, out, mistake: tc.Const):
    """A function in the kernel."""
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x

    def put(place, value):
        tile[place] = value

    def mirrored(place):
        return tile[63 - place]

    put(t + 1 if mistake == "index" else t, x[t])
    if mistake != "no barrier":
        tc.barrier()
    out[t] = mirrored(t)


def locked(draw):
    x = draw.integers(1, 100, 3).astype(np.int32)
    return {"x": x, "out": np.zeros(1, np.int32), "flags": np.zeros(1, np.int32)}, {
        "out": x.sum(keepdims=True)
    }


@planted(
    3,
    32,
    locked,
    {
        "given back early": race("out[0] ="),
        "not taken": race("out[0] ="),
        "never given back": error("library.lock"),
    },
)
def guarded_by_a_lock(x, out, flags, mistake: tc.Const):
    """Blocks add to one place under a lock."""
    if tc.threadIdx.x == 0:
        if mistake != "not taken" or tc.blockIdx.x > 0:
            library.lock(flags.at(0))
        if mistake == "given back early":
            library.unlock(flags.at(0))
        out[0] = out[0] + x[tc.blockIdx.x]
        if mistake in ("", "not taken"):
            library.unlock(flags.at(0))


# -- blocks ---------------------------------------------------------------------------------------


@planted(
    1,
    (16, 16),
    mapped((16, 16), lambda x: x.T.copy()),
    {"no barrier": race("tile[row", "out[row, col]"), "y for x": race("tile[row")},
)
def square_block(x, out, mistake: tc.Const):
    """Blocks of 16 x 16 transpose a tile."""
    tile = tc.shared((16, 16), tc.s32)
    col, row = tc.threadIdx.x, tc.threadIdx.y
    tile[row, row if mistake == "y for x" else col] = x[row, col]
    if mistake != "no barrier":
        tc.barrier()
    out[row, col] = tile[col, row]


@planted(
    1,
    48,
    mapped(96, lambda x: x[:48] + x[:47:-1]),
    {
        "count": error("tc.barrier(1, 96)"),
        "lane that does not exist": error("value +="),
        "no barrier": race("tile[i] =", "value ="),
        "stride": error("value ="),
    },
)
def odd_block(x, out, mistake: tc.Const):
    """48 threads, which count as 64 at a barrier."""
    tile = tc.shared(96, tc.s32)
    t = tc.threadIdx.x
    for i in tc.range(t, 96, 64 if mistake == "stride" else 48):
        tile[i] = x[i]
    if mistake == "count":
        tc.barrier(1, 96)
    elif mistake != "no barrier":
        tc.barrier(1, 64)
    value = tile[t] + tile[95 - t]
    if mistake == "lane that does not exist":
        if t >= 32:
            value += 0 * tc.shfl(value, 31)
    out[t] = value


@planted(
    1,
    64,
    mapped((4, 64), lambda x: x[:, ::-1].sum(0).astype(np.int32)),
    {"barrier in even turns": race("tile[i % 2, t]", "total +=")},
)
def turns_known_at_compile_time(x, out, mistake: tc.Const):
    """Two buffers in unrolled turns."""
    tile = tc.shared((2, 64), tc.s32)
    t, total = tc.threadIdx.x, 0
    for i in tc.static_range(4):
        tile[i % 2, t] = x[i, t]
        if mistake != "barrier in even turns" or i % 2 == 0:
            tc.barrier()
        total += tile[i % 2, 63 - t]
    out[t] = total


def some_bytes(draw):
    x = draw.integers(-9, 9, 64).astype(np.int8)
    return {"x": x, "out": np.zeros_like(x)}, {"out": x[::-1].copy()}


# -- bytes and vectors ----------------------------------------------------------------------------


@planted(
    1,
    64,
    some_bytes,
    {
        "words over bytes": race("tile[t //", "tile.at(t"),
        "byte of two threads": race("tile[t //"),
        "alignment": error("out[t] = tile.at"),
    },
)
def bytes_of_a_word(x, out, mistake: tc.Const):
    """Each thread has a byte of its own, which is no race."""
    tile = tc.shared(68, tc.s8, align=16)
    t = tc.threadIdx.x
    tile[t // 2 if mistake == "byte of two threads" else t] = x[t]
    if mistake == "words over bytes":
        if t % 4 == 1:
            tile.at(t - 1).as_type(tc.s32).store(tc.s32(0))
    tc.barrier()
    if mistake == "alignment":
        out[t] = tile.at(63 - t).as_type(tc.s32).load().to(tc.s8)
    else:
        out[t] = tile[63 - t]


# -- views ----------------------------------------------------------------------------------------


@planted(
    2,
    32,
    mapped((8, 24), lambda x: x[:, 8:16].copy()),
    {"column": error("value ="), "row": error("value ="), "overlap": race("target[row, col]")},
)
def views_of_views(x, out, mistake: tc.Const):
    """A row of a half of a matrix."""
    t, b = tc.threadIdx.x, tc.blockIdx.x
    half = x[4 * b : 4 * b + 4, :]
    part = half[:, 8:24]
    target = out[3 * b if mistake == "overlap" else 4 * b :, :]
    row, col = t // 8, t % 8
    value = part[row + 1 if mistake == "row" else row, col + 9 if mistake == "column" else col]
    target[row, col] = value


def turned(draw):
    base = draw.integers(1, 99, (8, 6)).astype(np.int32)
    x = base.T[4:0:-1]  # 4 x 8, negative strides
    return {"x": x, "out": np.zeros((4, 8), np.int32)}, {"out": x.copy()}


@planted(
    1,
    32,
    turned,
    {"transposed": error("out[row, col] = x[col + 4, row]"), "before the first": error("else row")},
)
def reversed_and_transposed(x, out, mistake: tc.Const):
    """x is a transposed, reversed view of the caller's."""
    row, col = tc.threadIdx.x // 8, tc.threadIdx.x % 8
    if mistake == "transposed":
        out[row, col] = x[col + 4, row]
    else:
        out[row, col] = x[row - 1 if mistake == "before the first" else row, col]


def shifted(draw):
    base = np.concatenate((draw.integers(1, 99, 32), np.zeros(64))).astype(np.int32)
    out = base[32:]
    return {"x": base[:64], "out": out}, {"out": np.concatenate((base[:32], base[:32]))}


@planted(2, 32, shifted, race("out[32 * b + t]"))
def the_same_memory_twice(x, out, mistake: tc.Const):
    """Both arguments are views of one array: out begins 32 elements behind x. The mistake reads what
    another block writes."""
    t, b = tc.threadIdx.x, tc.blockIdx.x
    if mistake:
        out[32 * b + t] = x[32 * b + t]
    else:
        if b == 0:
            out[t] = x[t]
        else:
            out[32 + t] = x[t]


def halves(draw):
    import ml_dtypes

    x = draw.integers(-8, 8, (64, 64)).astype(ml_dtypes.bfloat16)
    return {"x": x, "out": np.zeros_like(x)}, {"out": x[::-1].copy()}


@planted(1, 128, halves, {"no barrier": race("else row", "out.at"), "row": error("else row")})
def swizzled_tile(x, out, mistake: tc.Const):
    """Rows of 64 bf16 with a swizzle, half a row for each thread."""
    tile = tc.shared((64, 64), tc.bf16, swizzle=128)
    t = tc.threadIdx.x
    row, col = t // 2, t % 2 * 32
    for i in tc.static_range(4):
        tile.at(row + 1 if mistake == "row" else row, col + 8 * i).store(x.at(row, col + 8 * i).load(8))
    if mistake != "no barrier":
        tc.barrier()
    for i in tc.static_range(4):
        out.at(row, col + 8 * i).store(tile.at(63 - row, col + 8 * i).load(8))


def folded(x):
    return (x[::-1] - x).reshape(8, 8).T.ravel()


@planted(
    1,
    64,
    mapped(64, folded),
    {"no barrier": race("value =", "third[t //"), "end": error("value =")},
    shared_bytes=512,
)
def dynamic_tiles(x, out, mistake: tc.Const):
    """Three tiles of dynamic memory; the third takes the place of the first, on purpose."""
    first = tc.dynamic_shared(64, tc.s32)
    second = tc.dynamic_shared(64, tc.s32, offset=256)
    third = tc.dynamic_shared((8, 8), tc.s32, overlap=True)
    t = tc.threadIdx.x
    first[t] = x[t]
    second[t] = -x[t]
    tc.barrier()
    value = first[63 - t] + second[t + 1 if mistake == "end" else t]
    if mistake != "no barrier":
        tc.barrier()
    third[t // 8, t % 8] = value
    tc.barrier()
    out[t] = third[t % 8, t // 8]


# -- whole tiles and fragments --------------------------------------------------------------------


@planted(
    1,
    64,
    mapped((16, 16), lambda x: x[::-1].copy()),
    {
        "no barrier": race("tc.copy_tile(tile, x, (1 if", "out[place"),
        "box": error("tc.copy_tile(tile, x, (1 if"),
        "half of the threads": error("out[place"),
    },
)
def copied_tile(x, out, mistake: tc.Const):
    """copy_tile to shared memory and back."""
    tc.launch_bounds(64)
    tile = tc.shared((16, 16), tc.s32)
    t = tc.threadIdx.x
    if mistake == "half of the threads":
        if t < 32:
            tc.copy_tile(tile, x, (0, 0), threads=64, thread=t)
    else:
        tc.copy_tile(tile, x, (1 if mistake == "box" else 0, 0))
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    if mistake != "no barrier":
        tc.barrier()
    for i in tc.static_range(4):
        place = 64 * i + t
        out[place // 16, place % 16] = tile[15 - place // 16, place % 16]


def fragments(draw):
    x = draw.integers(-8, 8, (16, 16)).astype(np.float16)
    return {"x": x, "out": np.zeros((2, 16, 16), np.float16)}, {"out": np.stack([x[::-1]] * 2)}


@planted(
    1,
    64,
    fragments,
    {
        "stmatrix": race("tc.stmatrix", "out[warp"),
        "store_elements": race("tc.store_elements", "out[warp"),
        "outside": error("values ="),
        "one tile": race("tc.stmatrix", "out[warp"),
    },
)
def stored_fragment(x, out, mistake: tc.Const):
    """A fragment by way of shared memory."""
    tile = tc.shared((2, 16, 16), tc.f16)
    t, warp = tc.lane_id(), tc.warp_id()
    values = tc.load_elements(x, MMA.a, origin=(8 if mistake == "outside" else 0, 0))
    mine = tile[0 if mistake == "one tile" else warp]
    if mistake == "store_elements":
        tc.store_elements(mine, values)
    else:
        tc.stmatrix(mine, values)
    if mistake not in ("stmatrix", "store_elements"):
        tc.syncwarp()
    for i in tc.static_range(8):
        place = 32 * i + t
        out[warp, place // 16, place % 16] = mine[15 - place // 16, place % 16]


def one_fragment(draw):
    x = draw.integers(-8, 8, (16, 16)).astype(np.float16)
    return {"x": x, "out": np.zeros_like(x)}, {"out": x.copy()}


@planted(
    1,
    64,
    one_fragment,
    {
        "no barrier": race("tile[place", "values = #2"),
        "stored over": race("values = #2", "tile[t //"),
        "lanes": error("values = #1"),
    },
)
def read_by_ldmatrix(x, out, mistake: tc.Const):
    tile = tc.shared((16, 16), tc.f16)
    t = tc.threadIdx.x
    for i in tc.static_range(4):
        place = 64 * i + t
        tile[place // 16, place % 16] = x[place // 16, place % 16]
    if mistake != "no barrier":
        tc.barrier()
    if mistake == "lanes":
        if t % 32 < 16:
            values = tc.ldmatrix(tile, MMA.a)
            tc.store_elements(out, values)
    else:
        values = tc.ldmatrix(tile, MMA.a)
        if mistake == "stored over":
            tile[t // 4, t % 4] = 0.0
        if t < 32:
            tc.store_elements(out, values)


def boxes(draw):
    x = draw.integers(1, 99, (4, 4, 8)).astype(np.int32)
    return {"x": x, "out": np.zeros(64, np.int32)}, {"out": x[2:0:-1].ravel()}


# -- tensor maps ----------------------------------------------------------------------------------


@planted(
    1,
    64,
    boxes,
    {
        "no wait": error("out[t] ="),
        "another warp waits": race("tc.tma_load", "out[t] ="),
        "outside": error("tc.tma_load"),
    },
)
def box_of_rank_three(x, out, mistake: tc.Const):
    map = tc.tensor_map(x, (2, 4, 8))
    tile = tc.shared((2, 4, 8), tc.s32, align=128)
    bar = tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(map.bytes)
        tc.tma_load(tile, map, (9 if mistake == "outside" else 1, 0, 0), bar)
    if mistake == "another warp waits":
        if t < 32:
            bar.wait(0)
    elif mistake != "no wait":
        bar.wait(0)
    out[t] = tile[1 - t // 32, t // 8 % 4, t % 8]


@planted(
    3,
    64,
    mapped((3, 64), lambda x: x.sum(0).astype(np.int32)),
    {
        "no proxy fence": error("tc.tma_store(map"),
        "plain store": race("tc.tma_store(map", "out[t] ="),
        "stores for sums": race("tc.tma_store(map"),
    },
)
def line_of_rank_one(x, out, mistake: tc.Const):
    """Blocks add lines to `out` in bulk."""
    map = tc.tensor_map(out, (64,))
    tile = tc.shared(64, tc.s32, align=128)
    t = tc.threadIdx.x
    tile[t] = x[tc.blockIdx.x, t]
    if mistake != "no proxy fence":
        tc.fence_proxy_async()
    tc.barrier()
    if t == 0:
        tc.tma_store(map, (0,), tile, reduce=None if mistake == "stores for sums" else "add")
        tc.tma_store_commit()
    if mistake == "plain store":
        if tc.blockIdx.x == 1:
            out[t] = 0
    if t == 0:
        tc.tma_store_wait(0)


# -- warps ----------------------------------------------------------------------------------------


@planted(
    1,
    64,
    mapped((2, 32), lambda x: x + x[:, :1]),
    {"part of the warp": error("if tc.elect #1"), "no syncwarp": race("tile[warp] = #2", "out[warp, t]")},
)
def elected_lane(x, out, mistake: tc.Const):
    tile = tc.shared(2, tc.s32)
    t, warp = tc.lane_id(), tc.warp_id()
    if mistake == "part of the warp":
        if t < 8:
            if tc.elect():
                tile[warp] = x[warp, 0]
    else:
        if tc.elect():
            tile[warp] = x[warp, 0]
    if mistake != "no syncwarp":
        tc.syncwarp()
    out[warp, t] = x[warp, t] + tile[warp]


same = lambda x: x.copy()  # noqa: E731


@planted(
    1,
    128,
    mapped(128, same),
    {"one warp": error("tc.setmaxnreg #1"), "half a warp": error("tc.setmaxnreg #2")},
)
def registers_of_a_part(x, out, mistake: tc.Const):
    """setmaxnreg."""
    tc.launch_bounds(128)
    t = tc.threadIdx.x
    if mistake == "one warp":
        if t < 32:
            tc.setmaxnreg(40, grow=False)
    elif mistake == "half a warp":
        if t % 32 < 16:
            tc.setmaxnreg(40, grow=False)
    else:
        tc.setmaxnreg(40, grow=False)
    out[t] = x[t]


# -- atomics --------------------------------------------------------------------------------------


@planted(
    2,
    32,
    mapped(64, lambda x: np.array([x.sum(), 0, 0], np.int32)),
    {"cta scope": race("tc.emit"), "half a word": race("out.at(0).as_type", "tc.reduce #1")},
)
def counters(x, out, mistake: tc.Const):
    """Sums by atomics of all blocks."""
    t, b = tc.threadIdx.x, tc.blockIdx.x
    if mistake == "cta scope":
        tc.emit("red.relaxed.cta.global.add.s32", out.at(0), x[32 * b + t])
    elif mistake == "half a word":
        if (b == 1) & (t == 1):
            out.at(0).as_type(tc.s16).store(tc.s16(0))
        tc.reduce("add", out.at(0), x[32 * b + t])
    else:
        tc.reduce("add", out.at(0), x[32 * b + t])


def halvings(x):
    return np.ceil(np.log2(x)).astype(np.int32)


# -- loops ----------------------------------------------------------------------------------------


@planted(
    1,
    32,
    mapped(32, halvings),
    {"step": error("while value < 2.0"), "equality": error("while value !="), "NaN": error("while not")},
)
def loops_of_floats(x, out, mistake: tc.Const):
    t = tc.threadIdx.x
    value = x[t].to(tc.f32)
    count = 0
    if mistake == "step":
        value = tc.f32(2.0**25) + 0.0 * value
        while value < 2.0**25 + 64:
            value += 1.0
    elif mistake == "equality":
        value = value - value
        while value != 1.0:
            value += 0.3
            value = tc.minimum(value, 10.0)
    elif mistake == "NaN":
        value = (value - value) / (value - value)
        while not (value > 3.0):
            value += 1.0
    else:
        while value > 1.0:
            value = value * 0.5
            count += 1
    out[t] = count
