"""Virtual GPUs: arguments of each rank, memory of peers, signals, and what is reported across ranks."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.checking.session import checking
from tensorcore_dsl.errors import ArgumentError, AssertionFailed, Deadlock, EmulationError, OperandError, Race
from tensorcore_dsl.interpreter.sanitizer import access_history
from tests import arrays
from tests.planted import devices as planted

WORLD = 4


def zeros(*shape: int, dtype: Any = np.int32) -> list[np.ndarray]:
    return [arrays.zeros(*shape, dtype=dtype) for _ in range(WORLD)]


def ranks(*shape: int, dtype: Any = np.int32) -> list[np.ndarray]:
    return [np.full(shape or 64, 10 * rank, dtype) for rank in range(WORLD)]


@tc.kernel
def places(out: tc.Array, number: tc.s32):
    """Name the CTA, its grid and its rank."""
    out[tc.blockIdx.y, tc.blockIdx.x, tc.threadIdx.x] = (
        number + 10 * tc.blockIdx.y + tc.blockIdx.x + tc.gridDim.x
    )


def test_each_rank_runs_the_grid_with_its_own_arguments():
    out = zeros(2, 3, 32)
    with tc.devices(WORLD):
        places[(3, 2), 32](out, [100 * rank for rank in range(WORLD)])
    for rank, found in enumerate(out):
        expected = 100 * rank + 10 * np.arange(2)[:, None] + np.arange(3) + 3
        assert (found == expected[..., None]).all()


def test_clusters_are_of_one_rank():
    @tc.kernel(threads=32)
    def exchange(out: tc.Array, number: tc.s32):
        tc.cluster_size(2)
        cell = tc.shared(1, tc.s32)
        if tc.threadIdx.x == 0:
            cell[0] = number + tc.blockIdx.x
        tc.cluster_sync()
        out[tc.blockIdx.x, tc.threadIdx.x] = cell.remote(1 - tc.cluster_rank())[0]
        tc.cluster_sync()

    out = zeros(4, 32)
    with tc.devices(WORLD):
        exchange[4, 32](out, [100 * rank for rank in range(WORLD)])
    assert [found[:, 0].tolist() for found in out] == [[r + 1, r, r + 3, r + 2] for r in range(0, 400, 100)]


@tc.kernel(threads=64)
def ring_load(peers: tc.PeerArray, out: tc.Array, back: tc.PeerArray, how: tc.Const = "load"):
    """Rank r reads the array of rank r + 1, and writes it into `back` of rank r + 2."""
    i, rank, world = tc.threadIdx.x, peers.rank, peers.world
    source, target = peers[(rank + 1) % world], back[(rank + 2) % world]
    if how == "load":
        out[0, i] = source[0, i]
        target[0, i] = source[0, i]
    else:
        tile, bar = tc.shared((1, 64), tc.f32, align=128), tc.mbarriers(1)[0]
        boxes = tc.tensor_map(source, (1, 64))
        if i == 0:
            bar.init(1)
            tc.fence_mbarrier_init()
            bar.arrive_expect_tx(boxes.bytes)
            tc.tma_load(tile, boxes, (0, 0), bar)
        tc.barrier()
        bar.wait(0)
        out[0, i] = tile[0, i]
        if i == 0:
            reduce = "add" if how == "reduce" else None
            tc.tma_store(tc.tensor_map(target, (1, 64)), (0, 0), tile, reduce=reduce)
            tc.tma_store_commit()
            tc.tma_store_wait(0)


@pytest.mark.parametrize("how", ["load", "store", "reduce"])
def test_memory_of_peers(how):
    x, out, back = (
        ranks(1, 64, dtype=np.float32),
        zeros(1, 64, dtype=np.float32),
        zeros(1, 64, dtype=np.float32),
    )
    with tc.devices(WORLD):
        ring_load[1, 64](tc.PeerArray(x), out, tc.PeerArray(back), how)
    assert [int(o[0, 0]) for o in out] == [10, 20, 30, 0]
    assert [int(b[0, 63]) for b in back] == [30, 0, 10, 20]


@tc.kernel
def count_up(pads: tc.PeerArray, goal: tc.s64):
    """Every rank signals to all, and waits for all."""
    if tc.threadIdx.x < pads.world:
        tc.signal(pads[tc.threadIdx.x].at(0))
    if tc.threadIdx.x == 0:
        tc.wait_signal(pads[pads.rank].at(0), goal)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_counters_wrap_around(dtype):
    """Two launches wait for values on both sides of 0, or of the end of the range."""
    start = np.iinfo(dtype).max - 1 if np.dtype(dtype).kind == "i" else -2
    pads = [np.array([start]).astype(dtype) for _ in range(WORLD)]
    with tc.devices(WORLD):
        for launch in (1, 2):
            goal = (start + WORLD * launch + 2**63) % 2**64 - 2**63
            count_up[1, 32](tc.PeerArray(pads), goal)
    bits = 8 * np.dtype(dtype).itemsize
    assert [int(pad[0]) % 2**bits for pad in pads] == [(start + 2 * WORLD) % 2**bits] * WORLD


@tc.kernel
def publish(boxes: tc.PeerArray, pads: tc.PeerArray, out: tc.Array, goal: tc.s32, how: tc.Const = "thread 0"):
    """Two ranks read what the other one has written."""
    i, rank = tc.threadIdx.x, boxes.rank
    pad = pads[1 - rank].at(0)
    boxes[rank][i] = i
    if how == "each thread":
        tc.signal(pad, i + 1)
    tc.barrier()
    if i == 0:
        if how in ("thread 0", "constant"):
            tc.signal(pad)
        elif how == "store":
            tc.emit("st.release.sys.global.b32", pad, 5)
        elif how == "cas":
            tc.atomic("cas", pad, 0, 1, order="acq_rel", scope="sys")
            tc.atomic("cas", pad, 0, 1, order="acq_rel", scope="sys")
        elif how == "lowers":
            tc.signal(pad, 2)
            tc.atomic("add", pad, -1, order="relaxed", scope="sys")
            tc.signal(pad)
        tc.wait_signal(pads[rank].at(0), 0 if how == "constant" else goal)
    tc.barrier()
    out[i] = boxes[1 - rank][i]


@pytest.mark.parametrize(
    ("start", "goal", "how", "races"),
    [
        (0, 1, "thread 0", False),
        (0, 0, "thread 0", True),
        (0, -3, "thread 0", True),
        (0, 0, "constant", True),
        (-1, 0, "constant", False),
        (5, 6, "thread 0", False),
        (5, 5, "thread 0", True),
        (5, 3, "thread 0", True),
        (-1, 0, "thread 0", False),
        (-1, -1, "thread 0", True),
        (2**31 - 1, -(2**31), "thread 0", False),
        (2**31 - 1, 2**31 - 1, "thread 0", True),
        (7, 7 + 2080, "each thread", False),
        (7, 7 + 2080 - 64, "each thread", True),
        (7, 7, "each thread", True),
        (0, 5, "store", False),
        (0, 3, "store", False),
        (0, 1, "cas", False),
        (0, 0, "cas", True),
        (0, 1, "lowers", False),
    ],
)
@pytest.mark.parametrize("order", [None, 1])
def test_a_wait_learns_of_the_signals_that_it_counts(start, goal, how, races, order):
    """The counter may have reached the value before any signal."""
    boxes, pads = zeros(64)[:2], [np.full(1, start, np.int32) for _ in range(2)]
    arguments = tc.PeerArray(boxes), tc.PeerArray(pads), zeros(64)[:2], goal, how
    expected = pytest.raises(Race, match="boxes") if races else nullcontext()
    with tc.devices(2), checking(collect=False, order=order), expected:
        publish[1, 64](*arguments)


def test_a_wait_learns_of_signals_of_earlier_launches():
    """The third launch waits for the signal of the second one only."""
    arguments = [tc.PeerArray(zeros(64)[:2]), tc.PeerArray(zeros(1)[:2]), zeros(64)[:2]]
    with tc.devices(2) as group:
        for goal in (1, 2):
            publish[1, 64](*arguments, goal)
            group.barrier()
        with pytest.raises(Race, match="boxes"):
            publish[1, 64](*arguments, 2)


def test_text_of_signals():
    arrays = [tc.ArrayType(tc.s32, 1, (True,), 16)] * WORLD
    text = count_up.ptx(tc.PeerArray(arrays, 1), tc.s64)
    assert "red.release.sys.global.add.s32" in text and "ld.acquire.sys.global.b32" in text
    assert count_up.resources(tc.PeerArray(arrays, 1), tc.s64).registers


def test_one_rank_alone():
    """A PeerArray with a rank is that of one process."""
    x = ranks()

    @tc.kernel
    def total(peers: tc.PeerArray, out: tc.Array):
        value = peers.rank
        for rank in tc.static_range(peers.world):
            value += peers[rank][tc.threadIdx.x]
        out[tc.threadIdx.x] = value

    out = np.zeros(64, np.int32)
    total[1, 64](tc.PeerArray(x, 2), out)
    assert (out == 62).all()


def test_a_deadlock_names_the_ranks():
    arguments, _ = planted.alone(np.random.default_rng(0))
    with tc.devices(3), pytest.raises(Deadlock) as error:
        planted.wait_first[1, 64](**arguments, mistake="planted")
    text = str(error.value)
    for rank in range(3):
        assert f"CTA 0 of rank {rank} warps 0" in text
        assert f"-> pads[{rank}][0] to reach 1, and it is 0; nobody has changed it" in text
    assert "no rank has reached the signal at" in text


def test_a_race_across_launches_names_the_ranks():
    arguments, _ = planted.pushed(np.random.default_rng(0))
    with tc.devices(3), pytest.raises(Race, match="each rank runs its launches at its own time"):
        for launch in (1, 2):
            planted.push[1, 64](**arguments, launch=launch, mistake="no wait for the reader")


def test_a_barrier_orders_launches():
    arguments, expected = planted.pushed(np.random.default_rng(0))
    with tc.devices(3) as group:
        for launch in (1, 2):
            planted.push[1, 64](**arguments, launch=launch, mistake="no wait for the reader")
            group.barrier()
    assert np.array_equal(arguments["out"], expected["out"])


def test_explore_changes_the_order_of_ranks():
    @tc.kernel
    def last(peers: tc.PeerArray):
        if tc.threadIdx.x == 0:
            tc.atomic("exch", peers[0].at(0), peers.rank, scope="sys")

    with tc.devices(WORLD):
        exploration = last.explore(20)[1, 32](tc.PeerArray(zeros(1)))
    assert [d.argument for d in exploration.differences] == ["peers[0]"]


def test_check_and_explore_of_correct_launches():
    arguments, expected = planted.ringed(np.random.default_rng(0))
    with tc.devices(3):
        assert planted.ring.check(1, 64)(**arguments).ok
        assert planted.ring.explore(4)[1, 64](**arguments).ok


def test_a_timeline_has_the_blocks_of_each_rank(tmp_path):
    with tc.devices(WORLD):
        report = places.emulator(timeline=True)[(1, 1), 32](zeros(1, 1, 32), 0)
    report.timeline.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [f"CTA 0 of rank {rank}" in name for rank, name in enumerate(names)] == [True] * WORLD


@tc.kernel
def next_rank(peers: tc.PeerArray, out: tc.Array):
    out[tc.threadIdx.x] = peers[peers.rank + 1][tc.threadIdx.x]


def test_a_rank_that_does_not_exist():
    with tc.devices(WORLD), pytest.raises(AssertionFailed, match="a rank from 0 to 3"):
        next_rank[1, 32](tc.PeerArray(ranks()), zeros())


REFUSED = {
    "devices": (lambda: tc.devices(1).__enter__(), "2 to 16 virtual GPUs"),
    "one array": (lambda: places[1, 32](np.zeros((1, 1, 32)), 0), "pass a list of 4 arrays"),
    "too few": (lambda: places[1, 32](zeros(1, 1, 32)[:3], 0), "a list of 3"),
    "types": (lambda: places[1, 32]([*zeros(1, 1, 32)[:3], np.zeros((1, 1, 32))], 0), "different types"),
    "no peers": (lambda: next_rank[1, 32](ranks(), zeros()), "takes a tc.PeerArray"),
    "world": (lambda: next_rank[1, 32](tc.PeerArray(ranks()[:3]), zeros()), "has 3 arrays"),
    "rank": (lambda: next_rank[1, 32](tc.PeerArray(ranks(), 0), zeros()), "and no rank"),
    "shapes": (lambda: tc.PeerArray([np.zeros(1), np.zeros(2)]), "all of one shape and type"),
    "shared": (
        lambda: tc.PeerArray([ranks()[0], *[ranks()[1]] * 2]),
        "ranks 1 and 2 of a PeerArray share memory; each rank needs its own",
    ),
    "beyond": (lambda: tc.PeerArray(ranks(), 4), "does not exist"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_arguments(case):
    call, message = REFUSED[case]
    with tc.devices(WORLD), pytest.raises(ArgumentError, match=message):
        call()


def test_peers_may_be_columns_of_one_array():
    x = np.zeros((64, WORLD), np.int32)
    assert tc.PeerArray(list(x.T)).world == WORLD
    with pytest.raises(ArgumentError, match="ranks 0 and 1 of a PeerArray share memory"):
        tc.PeerArray([x[:2], x[1:3]])


def test_a_peer_array_needs_a_rank():
    with pytest.raises(ArgumentError, match="without a rank"):
        next_rank[1, 32](tc.PeerArray(ranks()), zeros()[0])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x, peers: tc.signal(x), "takes a pointer"),
        (lambda x, peers: tc.wait_signal(x.at(0).as_type(tc.f32), 1), "a counter is s32"),
        (lambda x, peers: tc.wait_signal(x.at(0), 1, scope="node"), "the scope of a wait"),
        (lambda x, peers: peers[4], "rank 4 does not exist"),
        (lambda x, peers: peers[1.5], "a rank is an integer"),
    ],
)
def test_refused_in_kernels(body, message):
    @tc.kernel
    def wrong(x: tc.Array, peers: tc.PeerArray):
        body(x, peers)

    with tc.devices(WORLD), pytest.raises((OperandError, ArgumentError), match=message):
        wrong[1, 32](zeros(), tc.PeerArray(zeros()))


def put(pad: Any, order: str = "release") -> None:
    """Raise a flag, as put_signal of torch's symmetric memory does."""
    while tc.atomic("cas", pad, 0, 1, order=order, scope="sys") != 0:
        pass


def take(pad: Any) -> None:
    """Wait for a flag and lower it, as wait_signal of torch does."""
    while tc.atomic("cas", pad, 1, 0, order="acquire", scope="sys") != 1:
        pass


@tc.kernel
def flags(x: tc.Array, boxes: tc.PeerArray, pads: tc.PeerArray, out: tc.Array, mistake: tc.Const = ""):
    """Two blocks send to the right neighbour, through a channel each, in each of two launches."""
    i, block, rank, world = tc.threadIdx.x, tc.blockIdx.x, boxes.rank, boxes.world
    left, right = (rank + world - 1) % world, (rank + 1) % world
    channel = 0 if mistake == "one channel" else 2 * block
    boxes[right][block, i] = x[i]
    tc.barrier()
    if i == 0:
        put(pads[right].at(channel), "relaxed" if mistake == "relaxed" else "release")
        take(pads[rank].at(channel))
    tc.barrier()
    out[block, i] = boxes[rank][block, i]
    tc.barrier()
    if i == 0 and not mistake:
        put(pads[left].at(channel + 1))
        take(pads[rank].at(channel + 1))


@pytest.mark.parametrize(("mistake", "found"), [("", False), ("one channel", True), ("relaxed", True)])
def test_flags_that_are_raised_and_lowered(mistake: str, found: bool) -> None:
    """Blocks that share a channel take each other's signals, which some orders show."""
    x, out = ranks(32)[:2], zeros(2, 32)[:2]
    arguments = x, tc.PeerArray(zeros(2, 32)[:2]), tc.PeerArray(zeros(4)[:2]), out
    with tc.devices(2):
        explored = flags.explore(6)[2, 32](*arguments, mistake)
        assert isinstance(explored.error, Race) == found
        for _ in range(0 if mistake else 2):
            flags[2, 32](*arguments)
    assert found or [int(of_rank[1, 0]) for of_rank in out] == [10, 0]


def test_more_warps_at_a_time_than_the_detector_of_races_tells_apart():
    out = zeros(1, 264, 1024)
    with (
        tc.devices(WORLD),
        pytest.raises(EmulationError, match="33792 warps at a time on 4 devices, .* 32768"),
    ):
        places[264, 1024](out, [0] * WORLD)


def test_a_program_longer_than_the_detector_of_races_tells_apart(monkeypatch):
    monkeypatch.setattr(access_history, "STEPS", 8)
    out = zeros(2, 3, 32)
    with tc.devices(WORLD), pytest.raises(EmulationError, match="instructions, and races are found among 8"):
        places[(3, 2), 32](out, [0] * WORLD)


def test_one_array_for_several_ranks():
    x = np.zeros(32, np.int32)
    with (
        tc.devices(3),
        pytest.raises(tc.ArgumentError, match="'out' is a list with one array for several ranks"),
    ):
        places[1, 32]([x, x.copy(), x], 1)


@tc.kernel(threads=32)
def count_by_turns(pads: tc.PeerArray, first: tc.Const, scope: tc.Const):
    """Rank 0 counts in its first launch, rank 1 in its second one."""
    if (tc.threadIdx.x == 0) & (pads.rank == 1 - first):
        tc.atomic("add", pads[0].at(0), 1, scope=scope)


def test_atomics_of_another_ranks_earlier_launch_need_the_scope_of_all_ranks() -> None:
    for scope in ("sys", "gpu"):
        pads = tc.PeerArray([np.zeros(1, np.int32) for _ in range(2)])
        with tc.devices(2):
            count_by_turns[1, 32](pads, 1, scope)
            if scope == "sys":
                count_by_turns[1, 32](pads, 0, scope)
                continue
            with pytest.raises(tc.errors.Race, match="each rank runs its launches at its own time"):
                count_by_turns[1, 32](pads, 0, scope)
