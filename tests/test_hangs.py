"""Kernels that never end, each beside one that is alike and ends."""

from __future__ import annotations

import os
import re
import signal
import threading
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.arch import arch
from tensorcore_dsl.interpreter import launch
from tensorcore_dsl.interpreter.core.residency import resident
from tensorcore_dsl.interpreter.execution import watchdog
from tensorcore_dsl.interpreter.execution.machine import Machine
from tests.running import line_of

ORDERS = [None, 0, 1, 2]


def strong(pointer: Any) -> Any:
    """A load that sees what other threads have written."""
    return tc.emit("ld.relaxed.gpu.global.b32", pointer.address).bits(tc.s32)


def publish(pointer: Any, value: Any) -> None:
    tc.atomic("exch", pointer, value)


@tc.kernel
def without_condition(x, wrong: tc.Const = True):
    turn = 0
    while True:
        turn += 1
        if not wrong and turn == 300:
            break
    x[tc.threadIdx.x] = turn


@tc.kernel
def on_a_register(x, wrong: tc.Const = True):
    done, turn = x[0] > 0, 0
    while not done:
        turn += 1
        if not wrong:
            done = turn == 300
    x[1 + tc.threadIdx.x] = 1


@tc.kernel
def on_a_flag(x, wrong: tc.Const = True):
    """Warp 0 waits for a word that warp 1 writes late."""
    if tc.warp_id() == 0:
        while strong(x.at(0)) == 0:
            tc.emit("nanosleep.u32", 20)
    else:
        total = 0
        for i in range(500):
            total += i
        if tc.lane_id() == 0:
            publish(x.at(1 if wrong else 0), total)
    tc.barrier()
    x[tc.threadIdx.x + 2] = 1


@tc.kernel
def on_a_flag_of_its_own(x, wrong: tc.Const = True):
    """One thread, alone."""
    if not wrong:
        publish(x.at(0), 1)
    while strong(x.at(0)) == 0:
        pass
    x[1] = 1


@tc.kernel
def a_lock(x, wrong: tc.Const = True):
    """One thread of each warp takes a lock; it must give it back."""
    if tc.lane_id() == 0:
        while tc.atomic("cas", x.at(0), 0, 1) != 0:
            pass
        tc.atomic("add", x.at(1), 1)
        if not wrong:
            tc.atomic("exch", x.at(0), 0)


@tc.kernel
def an_mbarrier(x, wrong: tc.Const = True):
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(2)
    tc.barrier()
    if tc.lane_id() == 0 and (not wrong or tc.warp_id() == 0):
        bar.arrive()
    while not bar.test(0):
        tc.emit("nanosleep.u32", 20)
    x[tc.threadIdx.x] = 1


@tc.kernel
def the_parity(x, wrong: tc.Const = True):
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(1)
    tc.barrier()
    if tc.threadIdx.x == 0:
        bar.arrive()
    while not bar.test(1 if wrong else 0):
        pass
    x[tc.threadIdx.x] = 1


@tc.kernel
def in_two_arms(x, wrong: tc.Const = True):
    """The lanes part and meet in each turn."""
    seen = 0
    if tc.warp_id() == 0:
        while strong(x.at(0)) == 0:
            if tc.lane_id() < 16:
                seen = strong(x.at(1))
            else:
                seen = strong(x.at(2))
    elif not wrong:
        publish(x.at(0), 1)
    x[tc.threadIdx.x + 3] = seen


@tc.kernel
def each_waits_for_the_other(x, wrong: tc.Const = True):
    if tc.lane_id() == 0:
        me = tc.warp_id()
        if wrong:
            while strong(x.at(1 - me)) == 0:
                pass
            publish(x.at(me), 1)
        else:
            publish(x.at(me), 1)
            while strong(x.at(1 - me)) == 0:
                pass
    tc.barrier()
    x[tc.threadIdx.x + 2] = 1


@tc.kernel
def a_loop_inside(x, wrong: tc.Const = True):
    total = 0
    while strong(x.at(0)) == 0:
        for i in range(60):
            total += i
        if not wrong:
            publish(x.at(0), total)
    x[1 + tc.threadIdx.x] = total


@tc.kernel
def barriers_in_the_loop(x, wrong: tc.Const = True):
    while strong(x.at(0)) == 0:
        tc.barrier()
        if not wrong and tc.threadIdx.x == 63:
            publish(x.at(0), 1)
        tc.barrier()
    x[1 + tc.threadIdx.x] = 1


@tc.kernel
def the_same_stores(x, wrong: tc.Const = True):
    tile = 0
    while tile < 10:
        x[tc.threadIdx.x] = tile
        if not wrong:
            tile += 1


@tc.kernel
def counts_its_turns(x, wrong: tc.Const = True):
    """Two warps wait for a word, and count their turns in others; one of them stands at a barrier."""
    turns, waits = tc.shared(3, tc.s32), 0
    if tc.lane_id() == 0:
        turns[tc.warp_id()] = 0
        if tc.warp_id() < 2:
            while strong(x.at(0)) == 0:
                waits += 1
                x[1 + tc.warp_id()] = waits
                turns[tc.warp_id()] += 1
                tc.atomic("add", x.at(3), 1)
        elif not wrong:
            for i in range(200):
                waits += i
            publish(x.at(0), 1 + 0 * waits)
    tc.barrier()


@tc.kernel
def blocks_in_a_row(x, wrong: tc.Const = True):
    """Each block waits for the next one; the last one waits for itself."""
    block = tc.blockIdx.x
    if tc.threadIdx.x == 0:
        if not wrong and block == 3:
            publish(x.at(4), 1)
        while strong(x.at(block + 1)) == 0:
            pass
        publish(x.at(block), 1)


LOOPS: list[tuple[Any, int, int, str]] = [
    (without_condition, 1, 32, "while True:"),
    (on_a_register, 1, 64, "while not done:"),
    (on_a_flag, 1, 64, "while strong(x.at(0)) == 0:"),
    (on_a_flag_of_its_own, 1, 1, "while strong(x.at(0)) == 0:"),
    (a_lock, 1, 64, "while tc.atomic("),
    (an_mbarrier, 1, 64, "while not bar.test(0):"),
    (the_parity, 1, 64, "while not bar.test("),
    (in_two_arms, 1, 64, "while strong(x.at(0)) == 0:"),
    (each_waits_for_the_other, 1, 64, "while strong("),
    (a_loop_inside, 1, 64, "while strong(x.at(0)) == 0:"),
    (barriers_in_the_loop, 1, 64, "while strong(x.at(0)) == 0:"),
    (the_same_stores, 1, 64, "while tile < 10:"),
    (counts_its_turns, 1, 96, "while strong(x.at(0)) == 0:"),
    (blocks_in_a_row, 4, 32, "while strong("),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel, grid, block, line", LOOPS, ids=[k[0].__name__ for k in LOOPS])
def test_endless_loops(kernel, grid, block, line, order):
    run = kernel.emulator("sm_90a", order=order)[grid, block]
    with pytest.raises(tc.Deadlock, match="endless loop: nothing") as error:
        run(np.zeros(256, np.int32))
    assert line in str(error.value)
    x = np.zeros(256, np.int32)
    run(x, wrong=False)
    assert x.any()


def message(kernel: Any, grid: Any, block: int, *args: Any, **options: Any) -> str:
    with pytest.raises(tc.Deadlock) as error:
        kernel.emulator("sm_90a", **options)[grid, block](*args)
    return str(error.value)


def test_what_a_loop_polls():
    text = message(on_a_flag, 1, 64, np.zeros(256, np.int32))
    line = line_of(on_a_flag, "while strong")
    assert f"CTA 0 warps 0: in the loop at {__file__}:{line}, " in text and " iterations so far" in text
    assert "polls x[0]: 0" in text
    assert "barrier 0 of CTA 0: 32 of 64 threads have arrived; missing are CTA 0 warps 0" in text
    assert f"CTA 0 warps 1 (:{line_of(on_a_flag, 'tc.barrier()')}) -> CTA 0 warps 0 (:{line})" in text
    text = message(a_lock, 1, 64, np.zeros(256, np.int32))
    assert "polls x[0]: 1" in text
    text = message(an_mbarrier, 1, 64, np.zeros(256, np.int32))
    assert "polls for parity 0: it waits in CTA 0 for phase 0" in text and "1 of 2 arrivals" in text
    text = message(on_a_register, 1, 64, np.zeros(256, np.int32))
    assert "in the loop at" in text and "polls" not in text


# -- deadlocks -------------------------------------------------------------------------------------


@tc.kernel
def producer_and_consumer(x, wrong: tc.Const = True):
    """The consumer does not give its only slot back."""
    full, empty = tc.mbarriers(1)[0], tc.mbarriers(1)[0]
    tile = tc.shared(32, tc.s32)
    if tc.threadIdx.x == 0:
        full.init(32)
        empty.init(32)
    tc.barrier()
    if tc.warp_id() == 0:
        for k in range(3):
            empty.wait((k & 1) ^ 1)  # the producer waits
            tile[tc.lane_id()] = k
            full.arrive()
    elif tc.warp_id() == 1:
        for k in range(3):
            full.wait(k & 1)  # the consumer waits
            x[tc.lane_id()] += tile[tc.lane_id()]
            if not wrong:
                empty.arrive()


@tc.kernel
def different_barriers(x, wrong: tc.Const = True):
    if tc.warp_id() == 0:
        tc.barrier(1)
    else:
        tc.barrier(2 if wrong else 1)
    x[tc.threadIdx.x] = 1


@tc.kernel
def one_returns_before_it_arrives(x, wrong: tc.Const = True):
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(32 if wrong else 64)
    tc.barrier()
    if tc.warp_id() == 0:
        bar.wait(0)
    elif not wrong:
        bar.arrive()
    x[tc.threadIdx.x] = 1


@tc.kernel
def one_block_leaves_out_the_cluster(x, wrong: tc.Const = True):
    tc.cluster_size(2)
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if not wrong or tc.cluster_rank() == 0:
        tc.cluster_sync()
    else:
        bar.wait(0)
    x[tc.threadIdx.x + 32 * tc.blockIdx.x] = 1


DEADLOCKS: list[tuple[Any, int, int]] = [
    (producer_and_consumer, 1, 96),
    (different_barriers, 1, 64),
    (one_returns_before_it_arrives, 1, 96),
    (one_block_leaves_out_the_cluster, 2, 32),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel, grid, block", DEADLOCKS, ids=[k[0].__name__ for k in DEADLOCKS])
def test_deadlocks(kernel, grid, block, order):
    run = kernel.emulator("sm_90a", order=order)[grid, block]
    with pytest.raises(tc.Deadlock, match="every thread that is left waits"):
        run(np.zeros(256, np.int32))
    x = np.zeros(256, np.int32)
    run(x, wrong=False)
    assert x.any()


def test_a_cycle():
    text = message(producer_and_consumer, 1, 96, np.zeros(256, np.int32))
    producer = line_of(producer_and_consumer, "# the producer waits")
    consumer = line_of(producer_and_consumer, "# the consumer waits")
    wait = f"`empty.wait((k & 1) ^ 1)` at {__file__}:{producer} (mbarrier.try_wait.parity.shared::cta.b64)"
    assert f"CTA 0 warps 0: {wait}" in text
    assert "32 of 32 arrivals are missing" in text
    ends = f"CTA 0 warps 0 (:{producer})", f"CTA 0 warps 1 (:{consumer})"
    assert " -> ".join((*ends, ends[0])) in text
    arrives = line_of(producer_and_consumer, "full.arrive")
    assert f"the arrivals so far are from {__file__}:{arrives} (CTA 0 warps 0)" in text
    assert f"nobody has arrived there; {__file__}:{arrives} arrived at other mbarriers" in text
    assert "CTA 0 warps 2: ended" in text


def test_blocks_that_wait_alike_are_named_together():
    text = message(waits_in_each_block, 12, 64, np.zeros(256, np.int32))
    assert text.count("32 of 32 arrivals are missing") == 1
    assert "CTAs 0 to 11 warps 0: `bar.wait(0)` at" in text
    assert "it waits in CTAs 0 to 11 for phase 0 (parity 0) of bar (initialised at" in text
    text = message(different_barriers, (2, 3), 64, np.zeros(256, np.int32))
    barrier = "barrier 1 of CTAs (0, 0) to (1, 2): 32 of 64 threads have arrived"
    assert f"{barrier}; missing are CTAs (0, 0) to (1, 2) warps 1" in text
    text = message(blocks_of_two_kinds, 12, 96, np.zeros(256, np.int32))
    assert "barrier 1 of CTAs 0, 2, 4, 6, ... (2 more): 32 of 96 threads have arrived" in text
    assert "barrier 1 of CTAs 1, 3, 5, 7, ... (2 more): 64 of 96 threads have arrived" in text


@tc.kernel
def waits_in_each_block(x):
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(32)
    tc.barrier()
    if tc.warp_id() == 0:
        bar.wait(0)


@tc.kernel
def arrivals_of_another_block(x):
    """CTA 0 lacks one arrival at `bar`, CTA 1 both."""
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(2)
        tc.fence_mbarrier_init()
    tc.barrier()
    if tc.blockIdx.x == 0:
        if tc.threadIdx.x == 0:
            bar.arrive()  # arrives
        bar.wait(0)
    else:
        bar.wait(0)
        bar.arrive()


def test_arrivals_are_those_of_the_block_that_waits():
    text = message(arrivals_of_another_block, 2, 32, np.zeros(1, np.int32))
    line = line_of(arrivals_of_another_block, "# arrives")
    assert re.search(rf"the arrivals so far are from \S+:{line} \(CTA 0 warps 0\)", text)
    assert text.count("the arrivals so far") == 1
    assert re.search(rf"nobody has arrived there; not reached yet: \S+:{line}, \S+:{line + 4}\n", text)


@tc.kernel
def blocks_of_two_kinds(x):
    if tc.warp_id() == 0 or (tc.blockIdx.x % 2 == 1 and tc.warp_id() == 1):
        tc.barrier(1)
    else:
        tc.barrier(2)


def made_elsewhere():
    inner = tc.mbarriers(2)
    return inner


@tc.kernel
def named_barriers(x, which: tc.Const):
    full, outer, single = tc.mbarriers(2), made_elsewhere(), tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        for stage in tc.static_range(2):
            for ring in (full, outer):
                bar = ring[stage]  # not how a user calls it
                bar.init(1)
        single.init(1)
    tc.barrier()
    stage = x[0]
    if which == "array":
        full[stage + 1].wait(0)
    elif which == "returned":
        outer[stage + 1].wait(0)
    elif which == "one":
        single.wait(0)
    else:
        outer[1].arrive(2)


def test_mbarriers_are_called_as_in_the_kernel():
    """Hang reports name variables, not addresses."""
    for which, name in (("array", "full[1]"), ("returned", "outer[1]"), ("one", "single")):
        text = message(named_barriers, 1, 32, np.zeros(32, np.int32), which)
        assert f"phase 0 (parity 0) of {name} (initialised at {__file__}:" in text
    with pytest.raises(tc.EmulationError, match=r"^outer\[1\] \(initialised at .* arrives 2 times"):
        named_barriers.emulate[1, 32](np.zeros(32, np.int32), "arrives")


def test_who_is_missing_at_a_named_barrier():
    text = message(different_barriers, 1, 64, np.zeros(256, np.int32))
    assert "barrier 1 of CTA 0: 32 of 64 threads have arrived; missing are CTA 0 warps 1" in text
    assert "barrier 2 of CTA 0: 32 of 64 threads have arrived; missing are CTA 0 warps 0" in text
    assert "a cycle: CTA 0 warps 0 " in text
    text = message(one_returns_before_it_arrives, 1, 96, np.zeros(256, np.int32))
    assert "32 of 32 arrivals are missing" in text and "CTA 0 warps 1-2: ended" in text
    assert "nobody has arrived there, and no line of the kernel arrives" in text
    assert "-> nobody is left who could bring it on" in text


# -- limits ----------------------------------------------------------------------------------------


@tc.kernel
def counting(x, step: tc.Const = 2):
    """The counter passes by its end if the step does not divide it."""
    i = tc.u32(0)
    while i != 3001:
        i += step
    x[tc.threadIdx.x] = i.to(tc.s32)


def test_a_limit_of_turns(monkeypatch):
    x = np.zeros(32, np.int32)
    text = message(counting, 1, 32, x, limit=500)
    assert "more iterations than the limit of 500" in text and "while i != 3001" in text
    assert "decides by setp.ne.u32(1002, 3001) = True" in text
    counting.emulator(limit=3001)[1, 32](x, step=1)
    assert (x == 3001).all()
    with pytest.raises(tc.Deadlock, match="limit of 3,000"):
        counting.emulator(limit=3000)[1, 32](x, step=1)
    monkeypatch.setenv("TENSORCORE_DSL_LIMIT", "400")
    with pytest.raises(tc.Deadlock, match="limit of 400"):
        counting.emulate[1, 32](x, step=1)
    counting.emulator(limit=5000)[1, 32](x, step=1)
    monkeypatch.setenv("TENSORCORE_DSL_LIMIT", "many")
    with pytest.raises(tc.ArgumentError, match="TENSORCORE_DSL_LIMIT='many': a whole number"):
        counting.emulate[1, 32](x, step=1)
    for bad in (0, -1, 1.5, True, "3"):
        with pytest.raises(tc.ArgumentError, match="the most iterations that a loop may take"):
            counting.emulator(limit=bad)  # type: ignore[arg-type]


def test_nothing_but_registers_changes_for_long(monkeypatch):
    monkeypatch.setattr(watchdog, "PATIENCE", 1000)
    x = np.zeros(32, np.int32)
    text = message(drawing, 1, 32, x)
    assert "iterations nothing but registers has changed" in text


@tc.kernel
def drawing(x):
    """Random numbers until one comes that does not come."""
    state = tc.u32(0)
    while state & 0xFFFF != 1:
        state = state * 1664525 + 1013904224
    x[tc.threadIdx.x] = state.bits(tc.s32)


@tc.kernel
def long_computations(x):
    """Loops that poll nothing, and end."""
    i, state = tc.threadIdx.x, tc.u32(1)
    while i < 20_000:
        i += 1
        state = state * 1664525 + 1013904223
    for turn in range(3000):
        state = state ^ tc.u32(turn)
    x[tc.threadIdx.x] = state.bits(tc.s32)


@tc.kernel
def a_time_out(x):
    """Registers, memory and barriers stay the same, but time passes."""
    start, turns = tc.special("clock"), 0
    while tc.special("clock") - start < 2000:
        turns = turns ^ 0
    x[tc.threadIdx.x] = 1


@tc.kernel
def around_a_ring(x, how: tc.Const):
    """The numbers move away from those that end the loop, for thousands of turns."""
    i, step, stop, turns = tc.s32(101), tc.s32(1), tc.s32(100), tc.s32(0)
    going = x[1] == 101
    if how == "large steps":
        while i << 18 != 100 << 18:
            i += 1
        i = 101 << 18
        while i != 100 << 18:
            i += 1 << 18
    elif how == "atomic inc":
        while tc.emit("atom.global.inc.u32", x.at(0).address, tc.u32(9_999)) != 100:
            pass
    elif how == "atomic exch":
        while tc.atomic("add", x.at(0), 1) != 100:
            turns += 1
            if turns == 9_000:
                tc.atomic("exch", x.at(0), 0)
    elif how == "store":
        while tc.atomic("add", x.at(0), 1) != 100:
            turns += 1
            if turns == 9_000:
                x[0] = 0
    elif how == "nested":
        for _turn in range(200):
            i = 0
            while i != 129:
                i += 1
    elif how == "large steps, in s64":
        while (i << 18).to(tc.s64) != 100 << 18:
            i += 1
    elif how == "multiples":
        factor = 2**32 // 127 + 1  # 127 turns move by 111
        i = 0
        while i * factor != (9_000 * factor + 2**31) % 2**32 - 2**31:
            i += 1
    elif how == "doubles":
        i = 1
        while i != 0:
            turns += 1
            if turns % 127 == 0:
                i = 2 * i
    elif how == "atomic exchanges":
        while strong(x.at(0)) != 99:
            i = (i + 1) % 10_000
            publish(x.at(0), i)
    elif how == "another end":
        while going:
            i += 1
            going = i != 100
            if i == 9_000:
                going = False
    elif how == "words":
        while x[i - 101] != 100:
            i += 1
    elif how == "select":
        while i != stop:
            i = 0 if i == 9_999 else i + 1
    else:
        while i != stop:
            if how == "%":
                i = (i + 1) % 10_000
            elif how == "&":
                i = (i + 1) & 0x3FFF
            else:
                i += step
            if how == "reset" and i == 10_000:
                i = 0
            if how == "back" and i == 9_000:
                step = -1
            if how == "stop" and i == 9_000:
                stop = 9_100
            if how == "jump" and i == 9_000:
                i -= 9_000
    x[1] = 1


RINGS = (
    *("%", "&", "reset", "select", "back", "stop", "jump", "large steps", "nested", "another end"),
    *("atomic inc", "atomic exch", "store", "words", "large steps, in s64", "multiples", "doubles"),
    "atomic exchanges",
)


@pytest.mark.quick(lambda how: how in ("store", "words") or "atomic" in how)
@pytest.mark.parametrize("how", RINGS)
def test_rings(how, monkeypatch):
    monkeypatch.setattr(watchdog, "TOGETHER", 127)
    x = np.append(np.arange(101, 9_000), 100).astype(np.int32)
    x[1] = 101
    around_a_ring.emulate[1, 1](x, how)
    assert x[1] == 1


@tc.kernel
def overshoots(x, how: tc.Const, stop: tc.Const):
    """Numbers that only == or != ends; they pass by their end where `stop` is odd."""
    word, t = tc.shared(4, tc.s32), tc.threadIdx.x
    i, j, n = tc.s32(0), tc.s32(0), tc.s32(0)
    if t == 0:
        word[0] = 0
    tc.barrier()
    if how == "stride":
        while i != stop:
            x[t] = i
            i += tc.blockDim.x
    elif how == "nested":
        while i != stop:
            j = 0
            while j < 3:
                x[t] = j
                j += 1
            i += 2
    elif how == "break":
        i = 40
        while True:
            x[t] = i
            if i == stop:
                break
            i -= 2
    elif how == "two numbers":
        j = 26 - stop
        while i != j:
            x[t] = i
            i += 1
            j += 3 if stop % 2 else -1
    elif how == "or":
        while i != stop or j != 2 * stop:
            x[t] = i
            i += 2
            j += 4
    elif how == "multiples":
        while 2 * i + 1 != stop + 1:
            x[t] = i
            i += 1
    elif how == "multiples of a word":
        if t == 0:
            while 50 - (word[0] << 1) != 50 - stop:
                word[0] += 1
    elif how == "in s64":
        while tc.s64(-i) != -stop:
            x[t] = i
            i += 2
    elif how == "exchanges":
        if t == 0:
            while word[0] != stop:
                n += 2
                tc.atomic("exch", word.at(0), n)
                word[1] = n
    elif how == "results of exchanges":
        if t == 0:
            while tc.atomic("exch", x.at(0), n) != stop:
                n += 2
                x[1] = n
    elif how == "in a branch":
        while n != stop:
            x[t] = n
            if i % 3 == 0:
                n += 2
            i += 1
    elif how == "continue":
        while i != stop:
            i += 2
            if x[t + 100] != 0:
                continue
            x[t] = i
    elif how == "tickets":
        if tc.lane_id() == 0:
            while n != stop:
                tc.reduce("add", x.at(n % 100), 1)
                n = tc.atomic("add", word.at(0), 2)
                if stop % 2 == 0 and n > stop:
                    n = stop
        tc.barrier()
    elif how == "a word":
        if t == 0:
            while word[0] != stop:
                word[0] += 2
                word[1] = 7
    elif how == "global atomics":
        if t == 0:
            while tc.atomic("add", x.at(0), 2) != stop:
                x[1] = 1
    elif t == 0:
        while strong(x.at(0)) != stop:
            n += 2
            x[0] = n


WAYS = (
    *("stride", "nested", "break", "two numbers", "or", "in a branch", "continue", "tickets"),
    *("a word", "global atomics", "stores", "multiples", "multiples of a word", "in s64", "exchanges"),
    "results of exchanges",
)


@pytest.mark.thorough
@pytest.mark.parametrize("order", [None, 1])
@pytest.mark.parametrize("how", WAYS)
def test_numbers_that_pass_by_the_end(how, order):
    block = 96 if how == "tickets" else 2 if how == "stride" else 32
    run = overshoots.emulator("sm_90a", order=order)[1, block]
    even = np.zeros(256, np.int32)
    run(even, how, 10)
    with pytest.raises(tc.Deadlock, match="numbers that it compares move further and further"):
        run(np.zeros(256, np.int32), how, 7)


@tc.kernel
def comes_back(x, how: tc.Const):
    """Numbers that move apart for thousands of turns, and meet."""
    word, t = tc.shared(2, tc.s32), tc.threadIdx.x
    i, j, done = tc.s32(0), tc.s32(-1), tc.s32(0) != 0
    if t == 0:
        word[0] = 50
    tc.barrier()
    if how == "follows":
        while i != j:
            if i < 6_000:
                i += 1
            if i == 6_000:
                j += 1
    elif how == "kept":
        while not done:
            i += 1
            if i > 6_000:
                done = i != 100
    elif how == "rarely":
        while True:
            i += 1
            if i > 6_000:
                j += 1
                if i != 100:
                    break
    elif how == "behind a barrier":
        if tc.warp_id() == 0:
            while i != 20:
                if j == 4_000:
                    tc.barrier_arrive(1, 64)
                j += 1
                if tc.lane_id() == 0:
                    i = tc.atomic("add", word.at(0), 1)
                i = tc.shfl(i, 0)
        else:
            tc.barrier(1, 64)
            if tc.lane_id() == 0:
                tc.atomic("exch", word.at(0), 0)
    elif t == 0 if how == "block" else tc.lane_id() == 0 if how == "warp" else t < 2:
        if (tc.blockIdx.x if how == "block" else tc.warp_id() if how == "warp" else t) == 0:
            while tc.atomic("add", x.at(1) if how == "block" else word.at(0), 1) != 20:
                pass
        else:
            while i < 9_000:
                i += 1
            tc.atomic("exch", x.at(1) if how == "block" else word.at(0), 0)
    if t == 0:
        x[0] = 1


@pytest.mark.parametrize("how", ["follows", "kept", "rarely", "behind a barrier", "block", "warp", "lane"])
def test_numbers_that_meet_again(how):
    x = np.full(2, 50, np.int32)
    run = comes_back.emulator("sm_90a", checks=how != "block")
    run[2 if how == "block" else 1, 64 if how in ("behind a barrier", "warp") else 32](x, how)
    assert x[0] == 1


@pytest.mark.thorough
def test_loops_that_end():
    for kernel in (long_computations, a_time_out):
        for order in (None, 0):
            x = np.zeros(64, np.int32)
            kernel.emulator("sm_90a", order=order)[1, 64](x)
            assert x.all()


@tc.kernel
def writes_what_it_polls(x, how: tc.Const):
    """The words that end the loops are written by the loops themselves."""
    n = tc.threadIdx.x * 0
    if how == "word by word":
        while strong(x.at(190)) == 0:
            x[100 + n] = 1
            n += 1
    elif how == "the same word":
        while strong(x.at(0)) < 90:
            n += 1
            x[0] = n
    elif how == "in turn":
        while strong(x.at(32 * tc.warp_id())) < 90:
            n += 1
            publish(x.at(32 - 32 * tc.warp_id()), n)
        publish(x.at(32 - 32 * tc.warp_id()), 90)
    elif how == "in a loop":
        while strong(x.at(7)) < 90:
            n += 1
            for i in tc.range(8):
                x[i] = n
    else:
        while tc.atomic("add", x.at(0), 1) < 90:
            n += 1
            x[1] = n


@pytest.mark.parametrize("order", [None, 0])
def test_loops_that_write_what_they_poll(order, monkeypatch):
    monkeypatch.setattr(watchdog, "DEEP_AFTER", 0)
    monkeypatch.setattr(watchdog, "DEEP_SHARE", 0)
    for how in ("word by word", "the same word", "in turn", "in a loop", "by atomics"):
        x = np.zeros(1024, np.int32)
        block = 64 if how == "in turn" else 1
        writes_what_it_polls.emulator("sm_90a", order=order)[1, block](x, how)
        assert x.any()


# -- more blocks than a device holds ---------------------------------------------------------------


@tc.kernel
def grid_barrier(x):
    """All blocks wait for all blocks."""
    if tc.threadIdx.x == 0:
        tc.atomic("add", x.at(0), 1)
        while strong(x.at(0)) < tc.gridDim.x:
            pass
    tc.barrier()
    if tc.threadIdx.x == 0:
        x[1 + tc.blockIdx.x] = 1


@tc.kernel
def in_the_order_of_blocks(x):
    """Each block waits for the one before it. 132 times 4 blocks have room."""
    tile = tc.shared(12000, tc.s32)
    tile[tc.threadIdx.x] = 1
    if tc.threadIdx.x == 0:
        while strong(x.at(tc.blockIdx.x)) == 0:
            pass
        publish(x.at(tc.blockIdx.x + 1), 1)


@tc.kernel
def neighbours(x):
    """CTA 0 waits for one that has room only when others have ended."""
    tile = tc.shared(12000, tc.s32)
    tile[tc.threadIdx.x] = 1
    if tc.threadIdx.x == 0:
        if tc.blockIdx.x == 0:
            while strong(x.at(530)) == 0:
                pass
        publish(x.at(tc.blockIdx.x), 1)


@tc.kernel
def all_wait_for_the_last(x):
    tile = tc.shared(12000, tc.s32)
    tile[tc.threadIdx.x] = 1
    if tc.threadIdx.x == 0:
        if tc.blockIdx.x == tc.gridDim.x - 1:
            publish(x.at(0), 1)
        while strong(x.at(0)) == 0:
            pass
    if tc.threadIdx.x == 0:
        x[1 + tc.blockIdx.x] = 1


@pytest.mark.parametrize("blocks, ends", [(264, True), (265, False)])
def test_a_barrier_of_the_grid(blocks, ends):
    """An H100 holds 132 times 2 blocks of 1024 threads."""
    x = np.zeros(300, np.int32)
    if ends:
        grid_barrier.emulator("sm_90a")[blocks, 1024](x)
        assert x[1 : 1 + blocks].all()
        return
    text = message(grid_barrier, blocks, 1024, x)
    assert "CTAs 264 to 264 have not started: sm_90a holds at most 264 of these CTAs" in text


@pytest.mark.thorough
def test_blocks_that_wait_for_those_that_will_be_there():
    x = np.zeros(700, np.int32)
    x[0] = 1
    in_the_order_of_blocks.emulator("sm_90a")[540, 32](x)
    assert x[:541].all()
    for order in (None, 0):
        x = np.zeros(700, np.int32)
        neighbours.emulator("sm_90a", order=order)[540, 32](x)
        assert x[:540].all()


def test_blocks_that_wait_for_one_that_has_no_room():
    x = np.zeros(700, np.int32)
    all_wait_for_the_last.emulator("sm_90a")[528, 32](x)
    assert x[:529].all()
    text = message(all_wait_for_the_last, 529, 32, np.zeros(700, np.int32))
    assert "CTAs 528 to 528 have not started: sm_90a holds at most 528 of these CTAs" in text


@tc.kernel
def plain_loads(x):
    """The first block waits for the last; the compiler may keep x[0], the emulator does not."""
    if tc.blockIdx.x == 0:
        while x[0] == 0:
            pass
    if tc.blockIdx.x == tc.gridDim.x - 1:
        x[0] = 1
    if tc.threadIdx.x == 0:
        x[1 + tc.blockIdx.x] = 1


def test_blocks_that_poll_with_plain_loads():
    x = np.zeros(300, np.int32)
    plain_loads.emulator("sm_90a", checks=False)[256, 128](x)
    assert x[:257].all()


def test_residency():
    hopper = arch("sm_90a")
    assert resident(hopper, 1, 0) == 132 * 32
    assert resident(hopper, 1024, 0) == 132 * 2
    assert resident(hopper, 384, 227 * 1024) == 132
    assert resident(hopper, 128, 48 * 1024) == 132 * 4


def test_cooperative_launches():
    x = np.zeros(600, np.int32)
    with tc.target("cpu"):
        grid_barrier.configured(200, 1024, cooperative=True)(x)
        assert x[1:201].all()
        with pytest.raises(tc.LaunchError, match="holds at most 264 CTAs of 1024 threads"):
            grid_barrier.configured(265, 1024, cooperative=True)(x)


# -- interrupts ------------------------------------------------------------------------------------


@tc.kernel
def busy(x, turns: tc.s32 = 1 << 30):
    """Warp 1 computes for very long; warp 0 waits for it."""
    total = tc.u32(0)
    if tc.warp_id() == 1:
        for i in tc.range(turns):
            total += tc.u32(i)
    tc.barrier()
    x[tc.threadIdx.x] = total.bits(tc.s32)


def test_an_interrupt_shows_where_everybody_stands(monkeypatch):
    run, x = busy.emulator("sm_90a")[1, 64], np.zeros(64, np.int32)
    run(x, 1)  # compiles
    stop = threading.Event()
    monkeypatch.setattr(launch, "Event", lambda: stop)
    threading.Timer(2.0, stop.set).start()
    with pytest.raises(KeyboardInterrupt) as error:
        run(x)  # takes hours
    text = str(error.value)
    assert text.startswith("interrupted")
    line = line_of(busy, "for i in tc.range")
    assert "CTA 0 warps 1: " in text and f"in the loop at {__file__}:{line}, " in text
    assert "32 of 64 threads have arrived; missing are CTA 0 warps 1" in text


@pytest.mark.parametrize("where", ["one chunk", "threads", "processes", "between cohorts"])
def test_ctrl_c_shows_where_everybody_stands(where, monkeypatch, request):
    monkeypatch.setattr(launch, "_workers", lambda _: 2)
    monkeypatch.setattr(launch, "_is_long", lambda *_: where == "processes")
    run = busy.emulator("sm_90a")
    run[1, 64](np.zeros(64, np.int32), 1)
    if where == "between cohorts":
        selected = iter([*"abcde"])
        select = Machine._select

        def interrupted(machine: Machine) -> Any:
            if next(selected, None) is None:
                raise KeyboardInterrupt
            return select(machine)

        monkeypatch.setattr(Machine, "_select", interrupted)
    else:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
        request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
        timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
        request.addfinalizer(timer.cancel)  # a launch that ends early leaves no signal for other tests
        timer.start()
    blocks = 2000 if where in ("threads", "processes") else 2
    with pytest.raises(KeyboardInterrupt) as error:
        run[blocks, 64](np.zeros(64, np.int32))
    text = str(error.value)
    assert text.startswith("interrupted") and f"in the loop at {__file__}:" in text
    assert "holds at most" not in text  # the emulator keeps blocks back, not the device


@tc.kernel
def polls_beside_a_wait(x):
    """Warp 0 waits for ever, warp 1 polls for ever, once warp 2 has let it go on."""
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(1)
    tc.barrier()
    if tc.warp_id() == 0:
        bar.wait(0)
    elif tc.warp_id() == 1:
        tc.barrier(1, 64)
        while strong(x.at(0)) == 0:
            pass
    else:
        tc.barrier(1, 64)


def test_threads_that_wait_count_as_asked_when_nothing_they_wait_for_has_changed():
    """The moment of a report, which names iterations, does not depend on who is really asked."""
    with pytest.raises(tc.errors.Deadlock, match="147 iterations so far"):
        polls_beside_a_wait.emulator("sm_90a")[1, 96](np.zeros(1, np.int32))


@tc.kernel
def polls_beside_lanes_that_wait(x):
    """A lane polls for ever, while those beside it have gone on to the barrier."""
    if tc.threadIdx.x == 0:
        while strong(x.at(0)) == 0:
            tc.emit("nanosleep.u32", 20)
    tc.barrier()


@pytest.mark.parametrize("order", [*ORDERS, "up"])
def test_lanes_that_wait_outside_of_loops(order):
    """In some orders they stay one by one, and nobody marks them as waiting."""
    emulator = polls_beside_lanes_that_wait.emulator("sm_90a", order=order)
    with pytest.raises(tc.errors.Deadlock, match=r"\(bar\.sync\)(.*\n)+  who waits for whom"):
        emulator[1, 64](np.zeros(1, np.int32))


@tc.kernel
def waits_for_one_parity(x, turns: tc.s32, how: tc.Const = "parameter"):
    bar, parity = tc.mbarriers(1)[0], tc.u32(0)
    if tc.threadIdx.x == 0:
        bar.init(32)
    tc.barrier()
    if how == "unrolled":
        for _ in tc.static_range(3):
            bar.arrive()
            bar.wait(0)
    else:
        for turn in tc.range(turns):
            bar.arrive()
            bar.wait(parity)
            if how == "late":
                parity ^= turn < 3
    x[tc.threadIdx.x] = 1


@pytest.mark.parametrize("how", ["parameter", "unrolled", "late"])
def test_a_parity_that_stays(how):
    with pytest.raises(tc.Deadlock) as error:
        waits_for_one_parity.emulator("sm_90a")[1, 32](np.zeros(32, np.int32), 9, how)
    stays = "this wait asks for parity 0 each time, but phases alternate between parity 0 and 1"
    assert (stays in str(error.value)) == (how != "late")
    assert "parity 1) is over: was it meant?" in str(error.value) or how == "late"


@tc.kernel
def waits_for_a_signal(pads, goal: tc.s32, how: tc.Const):
    if tc.threadIdx.x == 0 and tc.blockIdx.x == 0:
        tc.signal(pads.at(3), 2, scope="gpu")
        tc.wait_signal(pads.at(3), 5 if how == "constant" else goal, scope="gpu")


@pytest.mark.parametrize("how", ["constant", "parameter"])
def test_a_signal_that_never_comes(how):
    text = message(waits_for_a_signal, 1, 32, np.zeros(4, np.int32), 5, how)
    assert "\n    waits for pads[3] to reach 5, and it is 2\n" in text and "decides by" not in text
