"""Loops without an end are reported with what they poll; an interrupt shows where all threads stand."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.interpreter import launch
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.interpreter.execution.machine import Machine
from tests.hang_cases import ORDERS, message, publish, strong
from tests.running import line_of


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
def test_loops_without_an_end_are_reported(kernel, grid, block, line, order):
    run = kernel.emulator("sm_90a", order=order)[grid, block]
    with pytest.raises(tc.Deadlock, match="endless loop: nothing") as error:
        run(np.zeros(256, np.int32))
    assert line in str(error.value)
    x = np.zeros(256, np.int32)
    run(x, wrong=False)
    assert x.any()


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
    policy = executing(cores=2, processes=where == "processes")
    with policy, pytest.raises(KeyboardInterrupt) as error:
        run[blocks, 64](np.zeros(64, np.int32))
    text = str(error.value)
    assert text.startswith("interrupted") and f"in the loop at {__file__}:" in text
    assert "holds at most" not in text  # the emulator keeps blocks back, not the device
