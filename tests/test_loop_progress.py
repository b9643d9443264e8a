"""Loops that run long: when the emulator says that no turn brings an end nearer."""

from __future__ import annotations

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.interpreter.execution import watchdog
from tests.hang_cases import message, publish, strong


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
    monkeypatch.setattr(watchdog, "MAX_IDLE_ITERATIONS", 1000)
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
    """The numbers move away from the numbers that end the loop, for thousands of turns."""
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
def test_long_ways_around_a_ring_end(how, monkeypatch):
    monkeypatch.setattr(watchdog, "BATCH_ITERATIONS", 127)
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
    monkeypatch.setattr(watchdog, "DEEP_AFTER_SECONDS", 0)
    monkeypatch.setattr(watchdog, "DEEP_SHARE", 0)
    for how in ("word by word", "the same word", "in turn", "in a loop", "by atomics"):
        x = np.zeros(1024, np.int32)
        block = 64 if how == "in turn" else 1
        writes_what_it_polls.emulator("sm_90a", order=order)[1, block](x, how)
        assert x.any()
