"""Orders of threads: schedules as text, lanes that run apart, and `kernel.explore`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.checking.variations import one_switch, variations
from tensorcore_dsl.interpreter.scheduling.orders import Journal, Schedule, Switch, order_of
from tensorcore_dsl.kernels import tutorial
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.wgmma_gemm import half_gemm
from tests.arrays import normal
from tests.whole_numbers import BF16

HERE = __file__


def line(text: str) -> str:
    """file:line of a line of this file."""
    lines = Path(HERE).read_text().splitlines()
    return f"{HERE}:{1 + next(i for i, each in enumerate(lines) if each.strip() == text)}"


def words(n: int) -> Any:
    return np.arange(1, n + 1, dtype=np.int32)


# -- the text of schedules -----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["up", "down", "drawn7", "up b0w2@17", "down b3w0l4@1 b0w31l16-31@9 b0w0@2"])
def test_schedules_are_what_their_text_says(text):
    schedule = order_of(text)
    assert isinstance(schedule, Schedule) and str(schedule) == text
    assert order_of(schedule) is schedule


def test_switches_are_read():
    assert Schedule.parse("up b3w0l4@1 b0w2@17") == Schedule(
        "up", (Switch(3, 0, 1, (4, 4)), Switch(0, 2, 17))
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sideways",
        "up b0w2",
        "up b0w2@0",
        "up b0w32@1",
        "b0w2@1",
        "up b0w0l5-4@1",
        "up b0w0l32@1",
        "drawn",
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(tc.ArgumentError, match="is not a seed: .* a schedule as kernel.explore prints"):
        in_pairs.emulator(order=text)


# -- what schedules do ---------------------------------------------------------------------------


@tc.kernel
def tickets(count, out):
    if tc.lane_id() == 0:
        out[tc.threadIdx.x // 32] = tc.atomic("add", count.at(0), 1)


def taken(order: Any, warps: int = 4) -> list[int]:
    out = words(warps)
    tickets.emulator(order=order)[1, 32 * warps](np.zeros(1, np.int32), out)
    return list(out)


def test_warps_run_in_the_order_of_the_base():
    assert taken("up") == [0, 1, 2, 3] and taken("down") == [3, 2, 1, 0]
    drawn = {tuple(taken(f"drawn{seed}")) for seed in range(4)}
    assert len(drawn) > 1 and all(sorted(t) == [0, 1, 2, 3] for t in drawn)
    assert taken("drawn1") == taken("drawn1")


def test_a_warp_stops_at_a_switch():
    assert taken("up b0w0@1") == [3, 0, 1, 2]
    assert taken("up b0w1@1 b0w0@1") == [2, 3, 0, 1]
    assert taken("up b0w2@2") == taken("up b0w7@1") == taken("up b5w0@1") == [0, 1, 2, 3]


@tc.kernel
def in_pairs(x, out, how: tc.Const = "races"):
    """Each thread reads what its neighbour in the warp has written."""
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    tile[t] = 0
    tc.barrier()
    tile[t] = x[t]
    if how == "meets":
        tc.syncwarp()
    if how == "exchanges":
        out[t] = tc.shfl_xor(tile[t], 1)
    else:
        out[t] = tile[t ^ 1]


def pairs(order: Any, how: str = "races") -> list[int]:
    out = words(64)
    in_pairs.emulator(order=order, checks=False)[1, 64](words(64), out, how=how)
    return list(out)


SWAPPED = [t + 1 for i in range(0, 64, 2) for t in (i + 1, i)]


def test_lanes_run_apart():
    assert pairs(None) == pairs("up") == SWAPPED
    late = pairs("up b0w0l1@3")
    assert late[0] == 0 and late[1:] == SWAPPED[1:]
    assert pairs("up b0w1l16-31@3")[48:] == SWAPPED[48:]  # whose neighbours wait too


def test_drawn_orders_split_warps():
    """Every fourth seed; the others keep warps whole, so that this race cannot show."""
    assert all(pairs(seed) == SWAPPED for seed in range(12) if seed % 4 != 3)
    assert any(pairs(seed) != SWAPPED for seed in range(3, 40, 4))


@pytest.mark.parametrize("how", ["meets", "exchanges"])
def test_lanes_meet_where_they_must(how):
    for order in (*range(3, 24, 4), "up b0w0l1@3", "down b0w0l0-3@3 b0w1l7@4", "up b0w1l1-31@1"):
        assert pairs(order, how) == SWAPPED


@tc.kernel
def polled(flag, out):
    """Warps that poll a word in memory let the one run that sets it."""
    if tc.warp_id() == 1:
        tc.atomic("exch", flag.at(0), 7)
    else:
        while tc.atomic("add", flag.at(0), 0) == 0:
            pass
    out[tc.threadIdx.x] = 1


@tc.kernel
def never(flag):
    while tc.atomic("add", flag.at(0), 0) == 0:
        pass


@tc.kernel
def unmatched(out):
    if tc.warp_id() == 0:
        tc.barrier(1, 64)
    else:
        tc.barrier(2, 64)
    out[tc.threadIdx.x] = 1


@pytest.mark.parametrize("order", ["up", "down", "up b0w1@1", "drawn3 b0w1l3-9@1"])
def test_polls_and_deadlocks(order):
    out = np.zeros(128, np.int32)
    polled.emulator(order=order)[1, 128](np.zeros(1, np.int32), out)
    assert out.all()
    with pytest.raises(tc.Deadlock):
        never.emulator(order=order)[1, 64](np.zeros(1, np.int32))
    with pytest.raises(tc.Deadlock):
        unmatched.emulator(order=order)[1, 64](out)


# -- kernel.explore ------------------------------------------------------------------------------


def test_a_correct_kernel():
    x, out = words(64), words(64)
    exploration = in_pairs.explore(40)[1, 64](x, out, how="meets")
    assert exploration and exploration.ok and exploration.orders == 40 and exploration.order is None
    assert str(exploration) == "40 orders of in_pairs: the same bits in all, no error"
    assert (x == words(64)).all() and (out == words(64)).all()  # it ran on copies


def test_results_that_differ():
    out = words(64)
    exploration = in_pairs.explore(100, checks=False)[1, 64](words(64), out)
    assert not exploration and exploration.error is None and exploration.orders < 100
    (difference,) = exploration.differences
    assert difference.argument == "out" and 1 <= difference.count < 64 and difference.size == 64
    index = difference.index[0]
    assert difference.expected == SWAPPED[index] and difference.found == 0
    replayed = pairs(exploration.order)
    assert replayed[index] == 0
    assert sum(a != b for a, b in zip(replayed, SWAPPED)) == difference.count
    schedule = order_of(exploration.order)
    assert isinstance(schedule, Schedule) and len(schedule.switches) == len(exploration.switches) == 1
    for part in (f"emulator(order={exploration.order!r})", "lanes ", " of warp 0 of CTA 0 wait before "):
        assert part in str(exploration)
    assert line("tile[t] = x[t]") in exploration.switches[0]
    said = json.loads(exploration.json())
    assert said["order"] == exploration.order and said["differences"][0]["argument"] == "out"


@tc.kernel
def depends(flag, out):
    """Warp 0 goes wrong if warp 1 has run between its two accesses; nothing else shows that."""
    if tc.threadIdx.x == 0:
        before = tc.atomic("add", flag.at(0), 0)
        after = tc.atomic("add", flag.at(0), 0)
        if before != after:
            out[500] = 1
    if tc.threadIdx.x == 32:
        tc.atomic("exch", flag.at(0), 1)


def test_an_error_is_reported_with_the_switch_that_leads_to_it():
    arrays = np.zeros(1, np.int32), np.zeros(64, np.int32)
    exploration = depends.explore(60)[1, 64](*arrays)
    assert not exploration and isinstance(exploration.error, tc.OutOfBounds) and not exploration.differences
    stop = line('after = tc.atomic("add", flag.at(0), 0)')
    meanwhile = line('tc.atomic("exch", flag.at(0), 1)')
    assert exploration.switches == [
        f"warp 0 of CTA 0 waits before {stop} while warp 1 of CTA 0 runs {meanwhile}"
    ]
    assert exploration.order == "up b0w0@2"
    assert "60 orders" not in str(exploration) and "OutOfBounds: index 500 leaves axis 0" in str(exploration)
    with pytest.raises(tc.OutOfBounds):
        depends.emulator(order=exploration.order)[1, 64](*(a.copy() for a in arrays))
    assert json.loads(exploration.json())["error"]["kind"] == "OutOfBounds"


def test_an_error_of_the_first_order():
    exploration = tickets.explore(9)[1, 64](np.zeros(1, np.int32), words(1))
    assert (
        not exploration and exploration.orders == 1 and exploration.order is None and not exploration.switches
    )
    assert "it shows in the emulator's own order" in str(exploration)


@tc.kernel
def unique(count, total):
    """Which warp comes first does not matter to the sum."""
    if tc.lane_id() == 0:
        tc.atomic("add", total.at(0), tc.atomic("add", count.at(0), 1))


def test_several_blocks():
    assert unique.explore(30)[5, 64](np.zeros(1, np.int32), np.zeros(1, np.int32))
    exploration = tickets.explore(30, checks=False)[2, 64](np.zeros(1, np.int32), words(2))
    assert not exploration and exploration.differences[0].argument == "out"


def test_mistakes_of_the_caller_are_raised():
    for wrong in (
        lambda: tickets.explore(0),
        lambda: tickets.explore(True),
        lambda: tickets.explore("x"),
        lambda: tickets.explore(3)[1](words(1)),
        lambda: tickets.explore(3)[1, 32](words(1)),
    ):
        with pytest.raises(tc.ArgumentError):
            wrong()


def test_bits_are_compared():
    """Zeros of both signs differ, NaNs of the same bits do not."""

    @tc.kernel
    def last(count, out):
        if tc.lane_id() == 0:
            place = tc.atomic("add", count.at(0), 1)
            if place == 1:
                out[0] = tc.select(tc.warp_id() == 0, tc.f32(0.0), tc.f32(-0.0))

    out = np.array([np.nan, np.nan], np.float32)
    exploration = last.explore(20)[1, 64](np.zeros(1, np.int32), out)
    assert [(d.argument, d.count, d.index) for d in exploration.differences] == [("out", 1, (0,))]


def test_variations_are_many_and_do_not_repeat():
    journal = Journal()
    args = [np.zeros(1, np.int32), words(4)]
    tickets.emulator(order=Schedule("up", journal=journal))[1, 128](*args)  # type: ignore[arg-type]
    source = variations(journal)
    tried = [str(next(source)) for _ in range(90)]
    assert len(set(tried)) == 90
    single = [str(s) for s in one_switch(journal)]
    assert len(set(single)) == len(single) >= 2 * 4 * 2 and set(single) <= {*tried, *single}


# -- no false alarms -----------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config",
    [HopperConfig(BM=64, BN=32, stages=2, pingpong=True), HopperConfig(BM=64, BN=32, stages=2, split_k=2)],
    ids=["ping-pong", "split"],
)
def test_the_library_has_no_false_alarm(config):
    a, b, d = normal(64, 128), normal(32, 128).T, np.zeros((64, 32), BF16)
    explorer = half_gemm.explore(9, arch="sm_90a")[config.cluster_size, config.threads]
    assert explorer(a, b, d, d, 1.0, 0.0, config=config, traits=HopperTraits())


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(1, 9))
def test_the_tutorial_has_no_false_alarm(number):
    step = tutorial.load_step(number)
    a, b, d = normal(128, 128), normal(256, 128), np.zeros((128, 256), BF16)
    few = {"ctas": 1 if number == 6 else 2} if number >= 6 else {}
    assert step.gemm(a, b, d, step.matmul.explore(3, arch="sm_90a"), **few)


# -- what PTX leaves open ----------------------------------------------------------------------------


@tc.kernel
def by_the_elected_lane(x, out, bug: tc.Const):
    """The elected lane may be any lane."""
    if tc.elect():
        out[0] = x[tc.lane_id() if bug else 0]


@tc.kernel
def asked_once(x, out, asks: tc.Const, bug: tc.Const):
    """The answer of the first test decides nothing. The twin asks until the copy has come."""
    tc.launch_bounds(64)
    source, tile, bar = tc.tensor_map(x, (1, 32)), tc.shared((1, 32), tc.s32, align=128), tc.mbarriers(1)[0]
    if tc.warp_id() == 0 and tc.elect():
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(source.bytes)
        tc.tma_load(tile, source, (0, 0), bar)
    tc.barrier()
    if asks == "test":
        done = bar.test(0)
        while not done:
            if bug:
                break
            done = bar.test(0)
    elif bug == 1:
        while not tc.emit("mbarrier.try_wait.parity.shared::cta.b64", bar.accessed(), 0):
            break
    elif bug == 2:
        tc.emit("mbarrier.try_wait.parity.shared::cta.b64", bar.accessed(), 0)
    else:
        bar.wait(0)
    out[tc.threadIdx.x] = tile[0, tc.lane_id()]


@tc.kernel(threads=64)
def handed_on(x, out, bug: tc.Const):
    """Warp 0 stores and arrives; warp 1 waits and loads."""
    tile, bar = tc.shared(32, tc.s32), tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(32)
    tc.barrier()
    if tc.warp_id() == 0:
        tile[tc.lane_id()] = x[tc.lane_id()]
        bar.arrive()
    else:
        if bug:
            tc.emit("mbarrier.try_wait.parity.shared::cta.b64", bar.accessed(), 0)
        else:
            bar.wait(0)
        out[tc.lane_id()] = tile[tc.lane_id()]


@pytest.mark.parametrize("asks", ["test", "wait"])
def test_bulk_copies_are_late_in_some_orders(asks):
    x, out = np.arange(32, dtype=np.int32).reshape(1, 32), np.zeros(64, np.int32)
    with tc.target("cpu", "sm_90a"):
        exploration = asked_once.explore(20)[1, 64](x, out, asks, bug=True)
        assert isinstance(exploration.error, tc.errors.Uninitialised) and "in flight" in str(
            exploration.error
        )
        assert asked_once.explore(20)[1, 64](x, out, asks, bug=False)
    asked_once.emulator("sm_90a")[1, 64](x, out, asks, bug=True)
    assert (out.reshape(2, 32) == x).all()
    asked_once.emulator("sm_90a", order=2)[1, 64](x, out, asks, bug=True)
    with pytest.raises(tc.errors.Uninitialised, match="in flight"):
        asked_once.emulator("sm_90a", order=1)[1, 64](x, out, asks, bug=True)


def test_a_wait_whose_answer_nothing_reads_ends_early():
    """Behind a wait in vain the copy is still in flight, in the emulator's own order, too."""
    x, out = np.arange(32, dtype=np.int32).reshape(1, 32), np.zeros(64, np.int32)
    with pytest.raises(tc.errors.Uninitialised, match="in flight: nobody has waited") as raised:
        asked_once.emulator("sm_90a")[1, 64](x, out, "wait", 2)
    assert "tile[0, tc.lane_id()]" in raised.value.loc.excerpt()


@pytest.mark.parametrize("order", [None, "up", "down", 2])
def test_a_wait_whose_answer_nothing_reads_orders_nothing(order):
    """It may end before the arrivals have come."""
    x, out = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    handed_on.emulator("sm_90a", order=order)[1, 64](x, out, 0)
    assert (out == x).all()
    with pytest.raises(tc.errors.Race, match=r"at line \d+ \(mbarrier.try_wait\)"):
        handed_on.emulator("sm_90a", order=order)[1, 64](x, out, 1)


def test_the_elected_lane_is_another_in_some_orders():
    x, out = np.arange(5, 37, dtype=np.int32), np.zeros(1, np.int32)
    with tc.target("cpu", "sm_90a"):
        exploration = by_the_elected_lane.explore(20)[1, 32](x, out, bug=True)
        assert exploration.differences and exploration.order == "down"
        assert by_the_elected_lane.explore(20)[1, 32](x, out, bug=False)
