"""Kernels that use the shared memory of a cluster's other CTAs, for the emulator and for a GPU.

`mistake` plants one, for the emulator to find.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import tensorcore_dsl as tc

COPY = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
TINY = [np.float32(1e-40), np.float16(1e-7), ml_dtypes.bfloat16(1e-39)]  # subnormals


@tc.kernel
def total(source, out, peers: tc.Const = 4, swizzle: tc.Const = 0, mistake: tc.Const = ""):
    """Each CTA of a cluster adds up the lines that the CTAs of its cluster hold, 32 each."""
    tc.launch_bounds(32)
    tc.cluster_size(peers)
    tile = tc.shared((8, 32), tc.f32, swizzle=swizzle)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    row, part = t // 8, t % 8
    for half in tc.static_range(2):
        line = 4 * half + row
        if (mistake != "unwritten") | (half == 0):
            tile.at(line, 4 * part).store(source.at(tc.blockIdx.x, line, 4 * part).load(4))
    tc.cluster_sync()
    who = rank + 1
    for half in tc.static_range(2):
        at = (4 * half + row, 4 * part)
        values = [tc.f32(0.0)] * 4
        for step in tc.static_range(peers):
            place = tile.remote(who % peers).at(*at)
            if mistake == "outside":
                place = place + 2048
            if mistake == "misaligned":
                place = place + 1
            values = [v + x for v, x in zip(values, place.load(4))]
            who += 1
        out.at(tc.blockIdx.x, *at).store(values)
    tc.cluster_sync()


@tc.kernel
def late(out):
    """CTA 1 reads from CTA 0 when that has ended."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    tile = tc.shared(32, tc.u32)
    t = tc.threadIdx.x
    tile[t] = t
    tc.cluster_sync()
    if tc.cluster_rank() == 1:
        while tc.atomic("or", out.at(31), 0) == 0:
            tc.emit("nanosleep.u32", 10)
        out[t] = tile.remote(0)[t]
    else:
        tc.atomic("exch", out.at(t), 1)


@tc.kernel
def push(out, rounds: tc.Const = 3):
    """CTAs in a ring hand numbers on: each stores to the next one, which then reads its own."""
    tc.launch_bounds(64)
    tc.cluster_size(4)
    inbox = tc.shared((2, 64), tc.u32)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    following = inbox.remote((rank + 1) % 4)
    value = tc.u32(100 * rank + t)
    tc.cluster_sync()
    for turn in range(rounds):
        slot = turn & 1
        following[slot, t] = value
        tc.cluster_sync()
        value = inbox[slot, t] + 1
    out[tc.blockIdx.x, t] = value
    tc.cluster_sync()


@tc.kernel
def hand_over(out):
    """CTA 0 stores to CTA 1 and arrives at its mbarrier; CTA 1 waits, reads, and answers."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    tile = tc.shared(32, tc.u32)
    bar = tc.mbarriers(1)[0]
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if t == 0:
        bar.init(32)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    peer = tile.at(t).remote(1 - rank)
    if rank == 0:
        peer.store(tc.u32(t + 7))
        bar.remote(1).arrive()
        bar.wait(0)
    else:
        bar.wait(0)
        value = tile[t]
        peer.store(value * 2)
        bar.remote(0).arrive()
    if rank == 0:
        out[t] = tile[t]
    tc.cluster_sync()


@tc.kernel
def count(out, operation: tc.Const = "add", returns: tc.Const = True):
    """All threads of the cluster combine their numbers in a word of CTA 0."""
    tc.launch_bounds(64)
    tc.cluster_size(4)
    word = tc.shared(1, tc.u32)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if t == 0:
        word[0] = 0
    tc.cluster_sync()
    place = word.at(0).remote(0)
    old = tc.u32(0)
    if returns:
        old = tc.atomic(operation, place, 64 * rank + t + 1)
    else:
        tc.reduce(operation, place, 64 * rank + t + 1)
    tc.cluster_sync()
    out[rank, t, 0], out[rank, t, 1] = old, place.load()
    tc.cluster_sync()


@tc.kernel
def add_tiny(values, out, returns: tc.Const = True):
    """A thread of each CTA adds the same number to a word of the last CTA, which starts with it."""
    tc.launch_bounds(32)
    tc.cluster_size(4)
    word = tc.shared(1, values.dtype)
    if tc.threadIdx.x == 0:
        word[0] = values[0]
    tc.cluster_sync()
    if tc.threadIdx.x == 0:
        place = word.at(0).remote(3)
        if returns:
            tc.atomic("add", place, values[0])
        else:
            tc.reduce("add", place, values[0])
    tc.cluster_sync()
    if (tc.cluster_rank() == 3) & (tc.threadIdx.x == 0):
        out[0] = word[0]
    tc.cluster_sync()


@tc.kernel
def fill_peer(target, mistake: tc.Const = ""):
    """Each CTA stores into the tile of its peer, which brings it to global memory in bulk."""
    tc.launch_bounds(64)
    tc.cluster_size(2)
    tile = tc.shared((1, 64), tc.u32, align=128)
    map = tc.tensor_map(target, (1, 64))
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    tc.cluster_sync()
    tile.remote(1 - rank)[0, t] = 10 * tc.blockIdx.x + t
    if mistake != "no fence":
        tc.fence_proxy_async()
    tc.cluster_sync()
    if t == 0:
        tc.tma_store(map, (tc.blockIdx.x, 0), tile)
        tc.tma_store_commit()
        if mistake != "no wait":
            tc.tma_store_wait(0, read=True)
    if mistake == "no wait":
        tc.cluster_sync()
        tile.remote(1 - rank)[0, t] = 0
        tc.tma_store_wait(0)
    tc.cluster_sync()


@tc.kernel
def copy(source, out, mistake: tc.Const = ""):
    """Each CTA copies its line to the next one's shared memory, in bulk."""
    tc.launch_bounds(64)
    tc.cluster_size(4)
    line, inbox = tc.shared(64, tc.u32, align=128), tc.shared(64, tc.u32, align=128)
    bar = tc.mbarriers(1)[0]
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(inbox.bytes)
    line[t] = source[tc.blockIdx.x, t]
    tc.fence_proxy_async()
    tc.cluster_sync()
    if (t == 0) & (mistake == ""):
        tc.bulk_copy(inbox.remote((rank + 1) % 4), line, bar.remote((rank + 1) % 4))
    if (t == 0) & (mistake != ""):
        to = (rank + 1) % 4 if mistake != "to itself" else rank
        size = 256 if mistake != "odd size" else 250
        tc.emit(COPY, inbox.at(0).remote(to).address, line.at(0).address, size, bar.remote(to).address)
    bar.wait(0)
    out[tc.blockIdx.x, t] = inbox[t]
    tc.cluster_sync()


def cases() -> dict[str, tuple[Any, int, int, list[np.ndarray], dict[str, Any]]]:
    """Launches whose results do not hang on who comes first: kernel, grid, block, arguments."""
    draw = np.random.default_rng(29)
    lines = draw.standard_normal((16, 8, 32)).astype(np.float32)
    words = draw.integers(0, 1 << 30, (16, 64)).astype(np.uint32)
    launches: dict[str, Any] = {
        "push": (push, 16, 64, [np.zeros_like(words)], {}),
        "hand over": (hand_over, 2, 32, [np.zeros(32, np.uint32)], {}),
        "fill peer": (fill_peer, 4, 64, [np.zeros((4, 64), np.uint32)], {}),
        "copy": (copy, 16, 64, [words, np.zeros_like(words)], {}),
    }
    for peers in (2, 4, 8):
        for swizzle in (0, 128):
            constants = {"peers": peers, "swizzle": swizzle}
            launches[f"total {peers} {swizzle}"] = (total, 16, 32, [lines, np.zeros_like(lines)], constants)
    for operation in ("add", "min", "max", "and", "or", "xor"):
        out = np.zeros((4, 64, 2), np.uint32)
        launches[f"red {operation}"] = (count, 4, 64, [out], {"operation": operation, "returns": False})
    for tiny in TINY:
        for returns in (False, True):
            launches[f"add {tiny!r} {returns}"] = (
                add_tiny,
                4,
                32,
                [np.array([tiny]), np.zeros(1, tiny.dtype)],
                {"returns": returns},
            )
    return launches


@tc.kernel
def counts_clusters(out, together: tc.Const):
    """All threads of a cluster count in its element, or `together` in element 0."""
    tc.cluster_size(2)
    place = 0 if together else tc.blockIdx.x // 2
    tc.emit("red.relaxed.cluster.global.add.s32", out.at(place), 1)
    tc.emit("atom.acq_rel.cluster.global.add.s32", out.at(place), 1)


@tc.kernel
def hands_on(x, flag, release: tc.Const, acquire: tc.Const):
    """CTA 0 writes and sets a flag; CTA 1 of the cluster polls it and reads."""
    tc.cluster_size(2)
    if tc.cluster_rank() == 0:
        x[0] = 7
        tc.emit(f"red.{release}.global.or.b32", flag.at(0), tc.u32(1).bits(tc.b32))
    else:
        seen = tc.u32(0)
        while seen == 0:
            found = tc.emit(f"atom.{acquire}.global.exch.b32", flag.at(1), tc.u32(0).bits(tc.b32))
            found = tc.emit(f"atom.{acquire}.global.cas.b32", flag.at(0), found, found)
            seen = found.bits(tc.u32)
        x[1] = x[0]
