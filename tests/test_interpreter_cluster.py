"""Shared memory of the other CTAs of a cluster: what kernels do with it, and the mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import (
    EmulationError,
    Misaligned,
    OperandError,
    OutOfBounds,
    Uninitialised,
)

RNG = np.random.default_rng(23)
COPY = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"


def run(kernel: Any, grid: Any, block: int, *args: Any, **constants: Any) -> Any:
    with tc.target("cpu", "sm_90a"):
        return kernel.emulator("sm_90a")[grid, block](*args, **constants)


def caught(error: type[Exception], words: str, kernel: Any, *args: Any, **constants: Any) -> str:
    """The message of the mistake that the kernel makes."""
    with pytest.raises(error, match=words) as found:
        run(kernel, *args, **constants)
    return str(found.value)


def line_of(message: str) -> str:
    """The source line that a message shows."""
    return message.split("test_interpreter_cluster.py:", 1)[1].splitlines()[1].strip()


# -- reading what peers wrote --------------------------------------------------------------------


@tc.kernel
def total(
    source: tc.Array, out: tc.Array, peers: tc.Const = 4, swizzle: tc.Const = 0,
    mistake: tc.Const = "",
):  # fmt: skip
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
    if mistake not in ("no meeting", "only a barrier"):
        tc.cluster_sync()
    if mistake == "only a barrier":
        tc.barrier()
    who = rank + 1
    if mistake == "rank 9 of 4":
        who = rank + 9
    for half in tc.static_range(2):
        at = (4 * half + row, 4 * part)
        values = [tc.f32(0.0)] * 4
        for step in tc.static_range(peers):
            peer = tile.remote(who % peers if mistake != "rank 9 of 4" else who)
            place = peer.at(*at)
            if mistake == "outside":
                place = place + 2048
            if mistake == "misaligned":
                place = place + 1
            values = [v + x for v, x in zip(values, place.load(4))]
            who += 1
        out.at(tc.blockIdx.x, *at).store(values)
    if mistake != "may be gone":
        tc.cluster_sync()


@tc.kernel
def late(out: tc.Array):
    """CTA 1 reads from CTA 0 when that has ended."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    tile = tc.shared(32, tc.u32)
    t = tc.threadIdx.x
    tile[t] = t
    tc.cluster_sync()
    if tc.cluster_rank() == 1:
        while out[31] == 0:
            tc.emit("nanosleep.u32", 10)
        out[t] = tile.remote(0)[t]
    else:
        out[t] = 1


class TestLoads:
    @pytest.mark.parametrize("peers", [2, 4, 8])
    @pytest.mark.parametrize("swizzle", [0, 128])
    def test_sums_through_peers(self, peers: int, swizzle: int) -> None:
        source = RNG.integers(-99, 99, (2 * peers, 8, 32)).astype(np.float32)
        out = np.zeros_like(source)
        report = run(total, 2 * peers, 32, source, out, peers=peers, swizzle=swizzle)
        sums = source.reshape(2, peers, 8, 32).sum(axis=1, keepdims=True)
        assert np.array_equal(out.reshape(2, peers, 8, 32), np.repeat(sums, peers, axis=1))
        assert report.bytes["shared::cluster", "load"] == source.nbytes * peers

    MISTAKES = [
        ("no meeting", EmulationError, "before the cluster has met .* block 1 may not have"),
        ("only a barrier", EmulationError, "before the cluster has met .* block 1 may not have"),
        ("unwritten", Uninitialised, "uninitialised: shared::cluster load of 16 bytes at 0x200 of"),
        ("rank 9 of 4", EmulationError, "CTA 9 of the cluster does not exist: the cluster has 4"),
        ("outside", OutOfBounds, "load of 16 bytes at 0x2000 of block 1 .*bytes 0 to 0x3ff"),
        ("misaligned", Misaligned, "at 0x4 of block 1 by thread 0 of block 0, which is no mul"),
    ]

    @pytest.mark.parametrize("mistake, error, words", MISTAKES, ids=[m[0] for m in MISTAKES])
    def test_mistakes(self, mistake: str, error: type[Exception], words: str) -> None:
        source, out = (np.zeros((4, 8, 32), np.float32) for _ in range(2))
        message = caught(error, words, total, 4, 32, source, out, mistake=mistake)
        assert line_of(message) == "values = [v + x for v, x in zip(values, place.load(4))]"

    def test_a_peer_that_has_ended(self) -> None:
        words = "peer CTA gone: thread 0 of block 1 reaches for shared 0x0 of block 0"
        message = caught(EmulationError, words, late, 2, 32, np.zeros(32, np.uint32))
        assert line_of(message) == "out[t] = tile.remote(0)[t]"

    def test_a_cta_that_may_end_too_early(self) -> None:
        source, out = (np.zeros((4, 8, 32), np.float32) for _ in range(2))
        words = "block 0 may end before block [123] accesses its shared memory here"
        message = caught(EmulationError, words, total, 4, 32, source, out, mistake="may be gone")
        assert line_of(message) == "values = [v + x for v, x in zip(values, place.load(4))]"


# -- writing to peers -----------------------------------------------------------------------------


@tc.kernel
def push(out: tc.Array, rounds: tc.Const = 3, mistake: tc.Const = ""):
    """CTAs in a ring hand numbers on: each stores to the next one, which then reads its own."""
    tc.launch_bounds(64)
    tc.cluster_size(4)
    inbox = tc.shared((2, 64), tc.u32)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    following = inbox.remote((rank + 1) % 4)
    value = tc.u32(100 * rank + t)
    tc.cluster_sync()
    for turn in range(rounds):
        slot = turn & 1 if mistake != "one slot" else 0
        following[slot, t] = value
        if mistake != "no meeting":
            tc.cluster_sync()
        value = inbox[slot, t] + 1
    out[tc.blockIdx.x, t] = value
    tc.cluster_sync()


@tc.kernel
def hand_over(out: tc.Array, mistake: tc.Const = ""):
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
        if mistake != "no wait":
            bar.wait(0)
        value = tile[t]
        peer.store(value * 2)
        bar.remote(0).arrive()
        if mistake == "no wait":
            bar.wait(0)
    if rank == 0:
        out[t] = tile[t]
    tc.cluster_sync()


@tc.kernel
def count(out: tc.Array, operation: tc.Const = "add", returns: tc.Const = True):
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


class TestStores:
    def test_a_ring(self) -> None:
        out = np.zeros((8, 64), np.uint32)
        run(push, 8, 64, out)
        ranks = (np.arange(8) - 3) % 4
        assert np.array_equal(out, 100 * ranks[:, None] + np.arange(64) + 3)

    def test_one_slot_is_stored_to_while_it_may_be_read(self) -> None:
        out = np.zeros((4, 64), np.uint32)
        words = "store of 4 bytes at 0x0 of block 1 by .* block 1 reads byte 0x0 at .*must meet"
        message = caught(EmulationError, words, push, 4, 64, out, mistake="one slot")
        assert line_of(message.split("must meet")[1]) == "following[slot, t] = value"

    def test_reading_without_having_met(self) -> None:
        out = np.zeros((4, 64), np.uint32)
        words = "shared load of 4 bytes at 0x0 by .*: block 3 wrote byte 0x0 at .*must meet"
        message = caught(EmulationError, words, push, 4, 64, out, mistake="no meeting")
        assert line_of(message.split("must meet")[1]) == "value = inbox[slot, t] + 1"

    def test_an_mbarrier_orders_too(self) -> None:
        out = np.zeros(32, np.uint32)
        run(hand_over, 2, 32, out)
        assert np.array_equal(out, 2 * (np.arange(32) + 7))

    def test_an_mbarrier_that_nobody_waits_for(self) -> None:
        out = np.zeros(32, np.uint32)
        words = "block 0 wrote byte 0x0 at|uninitialised"
        caught((EmulationError, Uninitialised), words, hand_over, 2, 32, out, mistake="no wait")

    @pytest.mark.parametrize("returns", [True, False])
    @pytest.mark.parametrize("operation", ["add", "max", "or", "exch"])
    def test_atomics(self, operation: str, returns: bool) -> None:
        if operation == "exch" and not returns:
            pytest.skip("red has no exch")
        out = np.zeros((4, 64, 2), np.uint32)
        run(count, 4, 64, out, operation=operation, returns=returns)
        numbers = np.arange(1, 257, dtype=np.uint32)
        expected = {"add": numbers.sum(), "max": 256, "or": np.bitwise_or.reduce(numbers)}
        assert (out[..., 1] == out[0, 0, 1]).all()
        assert out[0, 0, 1] == expected.get(operation, out[0, 0, 1])
        if returns and operation == "exch":  # all but the last number came back, and the zero
            found = {*out[..., 0].ravel().tolist(), int(out[0, 0, 1])}
            assert found == set(range(257))


# -- the async proxy -----------------------------------------------------------------------------


@tc.kernel
def fill_peer(target: tc.Array, mistake: tc.Const = ""):
    """Each CTA stores into the tile of its peer, which brings it to global memory in bulk."""
    tc.launch_bounds(64)
    tc.cluster_size(2)
    tile = tc.shared((1, 64), tc.u32, align=128)
    map = tc.tensor_map(target, (1, 64))
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    tc.cluster_sync()
    tile.remote(1 - rank)[0, t] = 10 * tc.blockIdx.x + t
    if mistake != "no fence":
        tc.fence_async()
    tc.cluster_sync()
    if t == 0:
        tc.tma_store(map, (tc.blockIdx.x, 0), tile)
        tc.tma_commit()
        if mistake != "no wait":
            tc.tma_wait(0, reading=True)
    if mistake == "no wait":
        tc.cluster_sync()
        tile.remote(1 - rank)[0, t] = 0
        tc.tma_wait(0)
    tc.cluster_sync()


@tc.kernel
def copy(source: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """Each CTA copies its line to the next one's shared memory, in bulk."""
    tc.launch_bounds(64)
    tc.cluster_size(4)
    line, inbox = tc.shared(64, tc.u32, align=128), tc.shared(64, tc.u32, align=128)
    bar = tc.mbarriers(1)[0]
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        if mistake != "no bytes":
            bar.expect(256)
        else:
            bar.arrive()
    line[t] = source[tc.blockIdx.x, t]
    if mistake != "no fence":
        tc.fence_async()
    tc.cluster_sync()
    if t == 0:
        to = (rank + 1) % 4 if mistake != "to itself" else rank
        size = 256 if mistake != "odd size" else 250
        there = bar.remote(to).address if mistake != "own barrier" else bar.address
        tc.emit(COPY, inbox.at(0).remote(to).address, line.at(0).address, size, there)
    if mistake == "overwritten":
        line[t] = 0
    if mistake != "no wait":
        bar.wait(0)
    out[tc.blockIdx.x, t] = inbox[t]
    tc.cluster_sync()


class TestAsyncProxy:
    def test_peers_fill_a_tile(self) -> None:
        target = np.zeros((4, 64), np.uint32)
        run(fill_peer, 4, 64, target)
        assert np.array_equal(target, 10 * (np.arange(4) ^ 1)[:, None] + np.arange(64))

    @pytest.mark.parametrize("mistake, words", [
        ("no fence", "which thread 0 of block 1 wrote by an ordinary store and did not fence"),
        ("no wait", "store of 4 bytes at 0x0 of block 1 .* still read by a bulk store of thread 0"),
    ])  # fmt: skip
    def test_mistakes_of_stores(self, mistake: str, words: str) -> None:
        target = np.zeros((2, 64), np.uint32)
        caught(EmulationError, words, fill_peer, 2, 64, target, mistake=mistake)

    def test_bulk_copies_to_peers(self) -> None:
        source = RNG.integers(0, 1 << 30, (8, 64)).astype(np.uint32)
        out = np.zeros_like(source)
        run(copy, 8, 64, source, out)
        assert np.array_equal(out.reshape(2, 4, 64), np.roll(source.reshape(2, 4, 64), 1, axis=1))

    MISTAKES = [
        ("no fence", EmulationError, "wrote by an ordinary store and did not fence"),
        ("to itself", EmulationError, "stays in its CTA: another one is needed"),
        ("own barrier", EmulationError, "its mbarrier is not there"),
        ("odd size", Misaligned, "names a size of 0xfa, which is no multiple of 16"),
        ("no wait", Uninitialised, "is in flight: nobody has waited for phase 0"),
        ("overwritten", EmulationError, "still read by a bulk copy to another CTA of thread 0"),
        ("no bytes", EmulationError, "phase"),
    ]

    @pytest.mark.parametrize("mistake, error, words", MISTAKES, ids=[m[0] for m in MISTAKES])
    def test_mistakes_of_copies(self, mistake: str, error: type[Exception], words: str) -> None:
        source = np.zeros((4, 64), np.uint32)
        caught(error, words, copy, 4, 64, source, source.copy(), mistake=mistake)


# -- what is refused while a kernel is compiled ----------------------------------------------------


@tc.kernel
def misuse(out: tc.Array, what: tc.Const = ""):
    tc.cluster_size(2)
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tile = tc.shared((16, 64), tc.bf16, swizzle=128)
    peer = tile.remote(1)
    if what == "rank":
        tile.remote(2)
    if what == "kind of rank":
        tile.at(0, 0).remote(0.5)
    if what == "twice":
        peer.remote(1)
    if what == "global":
        out.at(0, 0).remote(1)
    if what == "ldmatrix":
        tc.ldmatrix(peer[:, :16], mma.a)
    if what == "stmatrix":
        tc.stmatrix(peer[:, :16], mma.a.zeros())
    if what == "descriptor":
        tc.descriptor(peer)
    if what == "tensor copy":
        tc.tma_store(tc.tensor_map(out, (16, 64), swizzle=128), (0, 0), peer)
    if what == "cp.async":
        tc.cp_async(peer.at(0, 0), out.at(0, 0), 16)
    if what == "difference":
        peer.at(0, 0) - tile.at(0, 0)


REFUSED = [
    ("rank", "CTA 2 of the cluster does not exist: ranks are 0 to 1"),
    ("kind of rank", "the rank of a CTA is an integer, not 0.5"),
    ("twice", "a remote shared bf16 tile of 16x64, 128-byte swizzle is another CTA's already"),
    ("global", "a global pointer to bf16 has no peers"),
    ("ldmatrix", "ldmatrix works on the CTA's own shared memory, not on a remote shared bf16"),
    ("stmatrix", "stmatrix works on the CTA's own shared memory, not on a remote shared bf16"),
    ("descriptor", "wgmma works on the CTA's own shared memory, not on a remote shared bf16"),
    ("tensor copy", "a tensor copy works on the CTA's own shared memory, not on a remote"),
    ("cp.async", "copies from global to shared memory, not from global to shared::cluster"),
    ("difference", "a shared::cluster pointer to bf16 and a shared pointer to bf16 do not combine"),
]


@pytest.mark.parametrize("what, words", REFUSED, ids=[r[0] for r in REFUSED])
def test_what_is_refused(what: str, words: str) -> None:
    with pytest.raises(OperandError, match=words):
        misuse.ir(tc.ArrayType(tc.bf16, 2, (False, True), 16), what=what, arch="sm_90a")


@tc.kernel
def read_all(out: tc.Array):
    """Elements and vectors of two swizzled tiles of one peer."""
    tc.cluster_size(2)
    tiles = [tc.shared((16, 32), tc.f32, swizzle=128) for _ in range(2)]
    t = tc.threadIdx.x
    tc.cluster_sync()
    for peer in [tile.remote(1) for tile in tiles]:
        for row in range(16):
            out.at(row, 0).store(peer[row:, 4:].at(0, 0).load(4))
        out[0, t] = peer[t, t]
    tc.cluster_sync()


def test_vectors_and_swizzles_reach_ptx() -> None:
    """One mapa serves all that is read from a rank."""
    array = tc.ArrayType(tc.f32, 2, (False, True), 16)
    ptx = read_all.ptx(array, arch="sm_90a")
    assert ptx.count("mapa.shared::cluster.u32") == 1
    assert ptx.count("ld.shared::cluster.v4.b32") == 2 * 16
    assert ptx.count("ld.shared::cluster.b32") == 2
    assert read_all.cubin(array, arch="sm_90a")
