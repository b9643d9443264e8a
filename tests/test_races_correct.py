"""Correct kernels whose order is easily missed: the detector of races has nothing to say of them."""

from __future__ import annotations

import warnings
from threading import Thread
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Race, RaceWarning
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.interpreter.sanitizer import access_history
from tensorcore_dsl.interpreter.sanitizer.launch_history import LaunchHistory
from tensorcore_dsl.interpreter.sanitizer.races import Races
from tests.arrays import zeros
from tests.planted.global_races import load, store
from tests.running import line_of


def run(kernel: Any, grid: Any, block: Any, *arguments: Any) -> None:
    """Run a kernel in three orders; a race, or a warning of one, is an error."""
    for order in (None, 1, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RaceWarning)
            copies = [np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
            kernel.emulator("sm_90a", order=order)[grid, block](*copies)
    for array, copy in zip(arguments, copies, strict=True):
        if isinstance(array, np.ndarray):
            array[...] = copy


# -- observation ----------------------------------------------------------------------------------


@tc.kernel
def tickets(counter, each: tc.Const):
    """The thread that draws the last ticket has observed all others: it resets the counter."""
    total = tc.gridDim.x * (tc.blockDim.x if each else 1)
    drawn = -1
    if each or tc.threadIdx.x == 0:
        drawn = tc.atomic("add", counter.at(0), 1)
    if drawn == total - 1:
        counter[0] = 0


@pytest.mark.parametrize("each", [False, True])
def test_the_last_ticket(each):
    counter = zeros(1)
    run(tickets, 4, 64, counter, each)
    assert counter[0] == 0


@tc.kernel
def mailbox(x, out, data, flag, fenced: tc.Const):
    """CTA 1 polls relaxed, and resets the flag that it has seen by an ordinary store."""
    if tc.threadIdx.x == 0:
        if tc.blockIdx.x == 0:
            data[0] = 2 * x[0]
            tc.emit("fence.acq_rel.gpu")
            store(".relaxed.gpu", flag.at(0), 1)
        else:
            while load(".relaxed.gpu", flag.at(0)) == 0:
                tc.emit("nanosleep.u32", 20)
            if fenced:
                tc.emit("fence.acq_rel.gpu")
                out[0] = data[0]
            flag[0] = 0 if fenced else flag[0] + 1


@pytest.mark.parametrize("fenced", [False, True])
def test_a_flag_that_was_seen(fenced):
    out, flag = zeros(1), zeros(1)
    run(mailbox, 2, 32, np.array([7], np.int32), out, zeros(1), flag, fenced)
    assert (out[0], flag[0]) == ((14, 0) if fenced else (0, 2))


@tc.kernel
def unseen_flag(out):
    """Nobody has looked whether the other block has stored already."""
    if tc.blockIdx.x == 0:
        store(".relaxed.gpu", out.at(0), 1)
    else:
        out[0] = 2
    tc.emit("ld.relaxed.gpu.global.b32", out.at(1))


def test_without_a_look_it_is_a_race():
    with pytest.raises(Race, match="nothing orders the two"):
        unseen_flag.emulate[2, 1](zeros(2))


# -- what is morally strong -----------------------------------------------------------------------


@tc.kernel
def found_it(x, found):
    """Every block that has found something says so by a strong store; nobody reads it here."""
    if x[tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x] % 2:
        store(".relaxed.gpu", found.at(0), 1)
        store(".volatile", found.at(1), tc.blockIdx.x)


@pytest.mark.parametrize("blocks", [5, 700])
def test_strong_stores_by_many_blocks(blocks):
    found = zeros(2)
    run(found_it, blocks, 64, np.arange(blocks * 64, dtype=np.int32), found)
    assert found[0] == 1


@tc.kernel
def scalars_of_vectors(words, sums):
    """A vector is its scalars in any order; bf16 elements are added and read by strong accesses."""
    if tc.threadIdx.x < 32:
        tc.emit("st.relaxed.gpu.global.b32", words.at(tc.threadIdx.x % 4), tc.u32(1))
    else:
        tc.emit("ld.relaxed.gpu.global.v4.b32", words.at(0))
    tc.reduce("add", sums.at(0), 1.0)
    tc.emit("ld.relaxed.gpu.global.b16", sums.at(0))


def test_sizes_of_strong_accesses():
    sums = np.zeros(1, tc.bf16.numpy)
    run(scalars_of_vectors, 1, 64, np.zeros(4, np.uint32), sums)
    assert sums[0] == 64


# -- releases and acquires ------------------------------------------------------------------------


@tc.kernel
def handed(x, out, data, flag, way: tc.Const):
    """CTA 0 hands a row to CTA 1, by release patterns and acquire patterns of two accesses."""
    t = tc.threadIdx.x
    if tc.blockIdx.x == 0:
        data[t] = 2 * x[t]
        tc.barrier()
        if t == 0:
            store(".release.gpu", flag.at(0), 1)
            if way == "store after release":
                store(".relaxed.gpu", flag.at(0), 2)
            if way == "atomic after release":
                tc.reduce("add", flag.at(0), 1)
    else:
        if t == 0:
            if way == "acquire after load":
                while load(".relaxed.gpu", flag.at(0)) == 0:
                    tc.emit("nanosleep.u32", 20)
                load(".acquire.gpu", flag.at(0))
            else:
                while load(".acquire.gpu", flag.at(0)) < 2:
                    tc.emit("nanosleep.u32", 20)
        tc.barrier()
        out[t] = data[63 - t]


@pytest.mark.parametrize("way", ["store after release", "atomic after release", "acquire after load"])
def test_patterns_of_two_accesses(way):
    x, out = np.arange(64, dtype=np.int32), zeros(64)
    run(handed, 2, 64, x, out, zeros(64), zeros(1), way)
    assert np.array_equal(out, 2 * x[::-1])


@tc.kernel
def grid_barrier(x, out, data, flag):
    """Six rounds of a barrier of all blocks, with fences and relaxed accesses; two buffers."""
    t, b, blocks = tc.threadIdx.x, tc.blockIdx.x, tc.gridDim.x
    data[b, t] = x[b, t]
    for i in tc.range(6):
        tc.barrier()
        if t == 0:
            tc.emit("fence.acq_rel.gpu")
            tc.atomic("add", flag.at(0), 1)
            while load(".relaxed.gpu", flag.at(0)) < blocks * (i + 1):
                tc.emit("nanosleep.u32", 20)
            tc.emit("fence.acq_rel.gpu")
        tc.barrier()
        if i % 2 == 0:
            out[b, t] = data[(b + 1) % blocks, 63 - t] + 1
        else:
            data[b, t] = out[(b + 1) % blocks, 63 - t] + 1


def test_rounds_of_a_grid_barrier():
    x, data = np.arange(256, dtype=np.int32).reshape(4, 64), zeros(4, 64)
    run(grid_barrier, 4, 64, x, zeros(4, 64), data, zeros(1))
    assert np.array_equal(data, np.roll(x, -6, axis=0) + 6)


@tc.kernel
def look_back(x, out, part, whole, flag):
    """A scan over blocks: each adds up what the blocks before have published."""
    b = tc.blockIdx.x
    if tc.threadIdx.x == 0:
        before, j = tc.s32(0), b - 1
        if b > 0:
            part[b] = x[b]
            store(".release.gpu", flag.at(b), 1)
        while j >= 0:
            state = load(".acquire.gpu", flag.at(j))
            if state == 2:
                before += whole[j]
                break
            if state == 0:
                continue
            before += part[j]
            j -= 1
        whole[b] = before + x[b]
        store(".release.gpu", flag.at(b), 2)
        out[b] = before + x[b]


def test_look_back():
    x, out = np.arange(24, dtype=np.int32), zeros(24)
    run(look_back, 24, 32, x, out, zeros(24), zeros(24), zeros(24))
    assert np.array_equal(out, np.cumsum(x))


# -- lanes, warps and barriers --------------------------------------------------------------------


@tc.kernel
def parts_of_a_warp(x, out):
    """Groups of 8 and of 4 lanes exchange at their own pace, in different branches."""
    tile, t = tc.shared(32, tc.s32), tc.threadIdx.x
    tile[t] = x[t]
    if t < 8:
        tc.syncwarp(0xFF)
        out[t] = tile[t ^ 1]
    elif t < 16:
        tc.syncwarp(0xFF00)
        out[t] = tile[t ^ 1]
    else:
        tc.syncwarp(tc.u32(15) << (t // 4 * 4).to(tc.u32))
        out[t] = tile[t ^ 1]


def test_parts_of_a_warp():
    x, out = np.arange(32, dtype=np.int32), zeros(32)
    run(parts_of_a_warp, 1, 32, x, out)
    assert np.array_equal(out, x[np.arange(32) ^ 1])


@tc.kernel
def handed_barrier(x, out):
    """Barrier 1 joins warps 0 and 1, then 2 and 3 twice; barrier 2 hands warp 1's part on."""
    tile = tc.shared(128, tc.s32)
    t, warp, lane, total = tc.threadIdx.x, tc.warp_id(), tc.lane_id(), tc.s32(0)
    tile[t] = x[t]
    if warp == 0:
        tc.barrier_arrive(1, 64)
    elif warp == 1:
        tc.barrier(1, 64)
        total = tile[lane]
        tc.barrier_arrive(2, 96)
    elif warp == 2:
        tc.barrier(2, 96)
        total = tile[lane] + tile[32 + lane]
        tc.barrier(1, 64)
        total += tile[96 + lane]
    else:
        tc.barrier(2, 96)
        tc.barrier(1, 64)
        total = tile[64 + lane]
    out[t] = total


def test_a_barrier_that_is_handed_on():
    x, out = np.arange(128, dtype=np.int32), zeros(128)
    run(handed_barrier, 1, 128, x, out)
    a, b, c, d = x.reshape(4, 32)
    assert np.array_equal(out, np.concatenate((0 * a, a, a + b + d, c)))


@tc.kernel
def rings_of_named_barriers(x, out):
    """Warps 0 and 1 fill two slots, warps 2 and 3 empty them: bar.arrive and bar.sync, full and empty."""
    slots = tc.shared((2, 64), tc.s32)
    t, total = tc.threadIdx.x % 64, tc.s32(0)
    if tc.warp_id() < 2:
        for i in tc.range(6):
            if i >= 2:
                tc.barrier(3 + i % 2, 128)
            slots[i % 2, t] = x[64 * i + t]
            tc.barrier_arrive(1 + i % 2, 128)
    else:
        for i in tc.range(6):
            tc.barrier(1 + i % 2, 128)
            total += slots[i % 2, 63 - t]
            if i < 4:
                tc.barrier_arrive(3 + i % 2, 128)
        out[t] = total


@tc.kernel
def turns_in_order(x, out):
    """Two groups of two warps take turns, as those of a ping-pong kernel; each has a barrier of its own too."""
    total = tc.shared(64, tc.s32)
    t, group = tc.threadIdx.x % 64, tc.threadIdx.x // 64
    if group == 1:
        total[t] = 0
        tc.barrier_arrive(1, 128)
    for i in tc.range(4):
        tc.barrier(1 + group, 128)
        total[t] += x[128 * i + 64 * group + t]
        tc.barrier(3 + group, 64)
        total[63 - t] += group
        if i < 3 or group == 0:
            tc.barrier_arrive(2 - group, 128)
    if group == 1:
        tc.barrier(3 + group, 64)
        out[t] = total[t]


@tc.kernel
def one_lane_waits_for_its_warp(x, out):
    """Lane 0 alone learns that warps 0 and 1 have met; warps arrive as a whole. Barrier 1 has three pairs."""
    tile, bar = tc.shared(128, tc.s32), tc.mbarriers(1)[0]
    t, warp = tc.threadIdx.x, tc.warp_id()
    if t == 0:
        bar.init(2)
        tc.fence_mbarrier_init()
    tile[t] = 0
    tc.barrier(1)
    if warp < 2:
        tc.barrier(1, 64)
        if tc.lane_id() == 0:
            bar.arrive()
    else:
        if tc.lane_id() == 0:
            bar.wait(0)
        tile[t] = x[t]
        tc.barrier(1, 64)
        out[t - 64] = tile[191 - t]
    tc.barrier()


@tc.kernel
def the_same_value(out):
    out[0] = 5


def test_a_warning_that_is_an_error_stays_a_warning():
    with pytest.raises(RaceWarning, match="is written here by"):
        run(the_same_value, 1, 64, zeros(1))


ORDERS = [None, 0, 3, "up", "down"]


@pytest.mark.parametrize("order", ORDERS)
def test_pairs_of_named_barriers_that_no_order_changes(order):
    x, out = np.arange(512, dtype=np.int32), zeros(64)
    rings_of_named_barriers.emulator("sm_90a", order=order)[1, 128](x, out)
    assert np.array_equal(out, x[:384].reshape(6, 64).sum(0)[::-1])
    out = zeros(64)
    turns_in_order.emulator("sm_90a", order=order)[1, 128](x, out)
    assert np.array_equal(out, x.reshape(8, 64).sum(0) + 4)
    out = zeros(64)
    one_lane_waits_for_its_warp.emulator("sm_90a", order=order)[1, 128](x, out)
    assert np.array_equal(out, x[127:63:-1])


@tc.kernel
def two_roles_at_one_barrier(x, out):
    tile = tc.shared(128, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    if tc.warp_id() < 2:
        tc.barrier(1, 64)  # first
        out[t] = tile[63 - t]
    else:
        tc.barrier(1, 64)  # second
        out[t] = tile[191 - t]


@tc.kernel
def one_warp_told_of_the_first_role(x, out):
    """Warp 2 learns that warps 0 and 1 have met, warp 3 does not."""
    tile = tc.shared(128, tc.s32)
    t, warp = tc.threadIdx.x, tc.warp_id()
    tile[t] = x[t]
    if warp < 2:
        tc.barrier(1, 64)  # first
        out[t] = tile[63 - t]
        tc.barrier_arrive(2, 96)
    else:
        if warp == 2:
            tc.barrier(2, 96)
        tc.barrier(1, 64)  # second
        out[t] = tile[191 - t]


@pytest.mark.parametrize("kernel", [two_roles_at_one_barrier, one_warp_told_of_the_first_role])
def test_pairs_of_named_barriers_by_chance(kernel):
    with pytest.raises(tc.EmulationError, match="barrier 1 pairs warps in the order in which they") as error:
        run(kernel, 1, 128, np.arange(128, dtype=np.int32), zeros(128))
    assert error.value.loc is not None and error.value.loc.line == line_of(kernel, "# second")
    assert f"test_races_correct.py:{line_of(kernel, '# first')}," in str(error.value)
    assert "warp 2 of CTA 0 arrives" in str(error.value) or "warp 3 of CTA 0 arrives" in str(error.value)


@tc.kernel
def arrivals_of_two_roles(x, out, apart: tc.Const = ""):
    """Warps 0 and 1 arrive, then warps 2 and 3: where nothing keeps them apart, by chance."""
    tile, bars, behind = tc.shared(128, tc.s32), tc.mbarriers(2), tc.mbarriers(1)[0]
    t, role = tc.threadIdx.x, tc.threadIdx.x // 64
    if t == 0:
        bars[0].init(64)
        bars[1].init(64)
        behind.init(64)
        tc.fence_mbarrier_init()
    tile[t] = x[t]
    tc.barrier()
    tile[t] += 1
    if role == 0:
        bars[0].arrive()  # first
        bars[0].wait(0)
        if apart == "by a wait":
            behind.arrive()
        out[t] = tile[63 - t]
    elif apart == "at two mbarriers":
        bars[1].arrive()
        bars[1].wait(0)
        out[t] = tile[191 - t]
    else:
        if apart == "by a wait":
            behind.wait(0)
        bars[0].arrive()  # second
        bars[0].wait(1)
        out[t] = tile[191 - t]


def test_arrivals_at_an_mbarrier_that_count_by_chance():
    with pytest.raises(
        tc.EmulationError, match=r"bars\[0\] .* counts arrivals in the order in which they"
    ) as error:
        arrivals_of_two_roles.emulator("sm_90a")[1, 128](np.arange(128, dtype=np.int32), zeros(128))
    first, second = (line_of(arrivals_of_two_roles, mark) for mark in ("# first", "# second"))
    assert error.value.loc is not None and error.value.loc.line == second
    assert (
        f"warp 2 of CTA 0 arrives here after warp 0 of CTA 0 arrived for the phase before, at {__file__}:{first}"
        in str(error.value)
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("apart", ["by a wait", "at two mbarriers"])
def test_arrivals_at_mbarriers_that_no_order_changes(apart, order):
    x, out = np.arange(128, dtype=np.int32), zeros(128)
    arrivals_of_two_roles.emulator("sm_90a", order=order)[1, 128](x, out, apart)
    assert np.array_equal(out.reshape(2, 64), x.reshape(2, 64)[:, ::-1] + 1)


@tc.kernel
def arrivals_of_a_peer(x, out):
    """Both blocks hand words to CTA 0 in two rounds; CTA 1 goes on when CTA 0 has taken them."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    tile, full, empty = tc.shared((2, 2, 32), tc.s32), tc.mbarriers(1)[0], tc.mbarriers(1)[0]
    lane, rank = tc.lane_id(), tc.cluster_rank()
    if lane == 0:
        full.init(64)
        empty.init(32)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    for turn in tc.static_range(2):
        tile.remote(0)[turn, rank, lane] = x[64 * turn + 32 * rank + lane]
        if rank == 0:
            full.arrive()
        else:
            tc.emit("mbarrier.arrive.release.cluster.shared::cluster.b64", full.remote(0))
        if rank == 0:
            full.wait(turn)
            out[lane] += tile[turn, 0, 31 - lane] + tile[turn, 1, 31 - lane]
            tc.emit("mbarrier.arrive.release.cluster.shared::cluster.b64", empty.remote(1))
        else:
            empty.wait(turn)
    tc.cluster_sync()


@pytest.mark.parametrize("order", ORDERS)
def test_arrivals_of_a_peer_in_rounds(order):
    x, out = np.arange(128, dtype=np.int32), zeros(32)
    arrivals_of_a_peer.emulator("sm_90a", order=order)[2, 32](x, out)
    assert np.array_equal(out, x.reshape(4, 32).sum(0)[::-1])


# -- chunks of blocks that run at once ------------------------------------------------------------


@tc.kernel
def reversals(x, rounds: tc.s32):
    """Each round reverses the block's part of x, through shared memory."""
    tile = tc.shared((128,), tc.s32)
    first = tc.blockIdx.x * 128
    for _ in range(rounds):
        tile[tc.threadIdx.x] = x[first + tc.threadIdx.x]
        tc.barrier()
        x[first + tc.threadIdx.x] = tile[127 - tc.threadIdx.x] + 1
        tc.barrier()


class Interrupted:
    """A lock behind whose release another thread at once does something, if it can."""

    def __init__(self, lock: Any, other: Any) -> None:
        self.lock, self.other = lock, other

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self.lock.release()
        self.thread = Thread(target=self.other)
        self.thread.start()
        self.thread.join(0.1)


@pytest.mark.parametrize("stretch", ["pages", "nodes"])
def test_no_two_chunks_have_the_same_numbers(stretch, monkeypatch):
    made = []
    monkeypatch.setattr(LaunchHistory, "retire", lambda history, races: made.append(history))
    reversals.emulator("sm_90a")[1, 128](zeros(128), 1)
    history, others = made[0], []
    take = {"pages": lambda: history.pages_for(1, 5000), "nodes": lambda: history.nodes_for()}[stretch]
    lock = history.lock

    def other() -> None:
        history.lock = lock
        others.append(take())

    history.lock = interrupted = Interrupted(lock, other)
    first = take()
    interrupted.thread.join()
    assert others and (first[1] <= others[0][0] or others[0][1] <= first[0])


def test_serial_numbers_are_given_anew(monkeypatch):
    """Chunks that run at once begin again together when all numbers are used up."""
    turns = []
    retire = LaunchHistory.retire
    monkeypatch.setattr(access_history, "SERIALS", 6 << access_history.PAGE_BITS)
    monkeypatch.setattr(
        LaunchHistory, "retire", lambda history, races: (turns.append(history.turn), retire(history, races))
    )
    x = zeros(96 * 128)
    with executing(cores=2):
        reversals.emulator("sm_90a")[96, 128](x, 64)
    assert max(turns) > 4
    assert (x == 64).all()


@tc.kernel
def copies_out(x, out, late: tc.Const):
    """Two bulk stores; the target of the second is read before it is over, if `late`."""
    tile = tc.shared(32, tc.s32, align=128)
    if tc.threadIdx.x == 0:
        for i in tc.range(32):
            tile[i] = i
        tc.fence_proxy_async()
        for i in tc.range(7_500):
            x[i % 64] = i
        for turn in tc.static_range(2):
            tc.emit(BULK_STORE, out[turn].address, tile.at(0).address, 128)
            tc.tma_store_commit()
            for i in tc.range(1_500 * (1 - turn)):
                x[i % 64] = i
            if not late or turn == 0:
                tc.tma_store_wait()
        x[0] = out[0, 3] + out[1, 3]


BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group"


@pytest.mark.parametrize("where", ["between operations", "inside of one"])
def test_operations_of_an_earlier_turn(where, monkeypatch):
    """Numbers are used up by this chunk while a store goes on, or by another one as it begins."""
    issue, turns = Races.operations, list[int]()

    def wrapped(races: Races, threads: np.ndarray, columns: np.ndarray) -> access_history.Operations:
        operations = issue(races, threads, columns)
        if where == "inside of one" and len(turns) == 1:
            races.launch.pages = access_history.SERIALS
            races.launch.pages_for(races.number, 1)
        turns.append(races.launch.turn)
        return operations

    monkeypatch.setattr(Races, "operations", wrapped)
    if where == "between operations":
        monkeypatch.setattr(access_history, "SERIALS", 3 << access_history.PAGE_BITS)
    run = copies_out.emulator("sm_90a")[1, 32]
    run(zeros(64), zeros(2, 32), False)
    wanted = [0, 1, 1, 1] if where == "inside of one" else [0, 0, 1, 1]
    assert [turn - turns[0] for turn in turns] == wanted
    turns.clear()
    with pytest.raises(Race, match="bulk"):
        run(zeros(64), zeros(2, 32), True)
