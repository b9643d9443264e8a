"""Named barriers, waiting and deadlocks in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.isa.lookup import instruction
from tests.kit import (
    ADD,
    ARRIVE,
    BUMP_SHARED,
    COUNT,
    EQUAL,
    LESS,
    LOAD_SHARED,
    MUL,
    STORE_GLOBAL,
    STORE_SHARED,
    SYNC,
    SYNC_COUNT,
    TID,
    WARP_ID,
    Builder,
    pred,
    u64,
)

UNALIGNED_SYNC = instruction("barrier.sync")
UNALIGNED_ARRIVE = instruction("barrier.arrive")


class TestBarriers:
    def test_producer_and_consumers_hand_over(self):
        """Warp 0 produces ten values, one at a time; warps 1 and 2 add them up."""
        b = Builder(("out", u64), shared=4)
        t, total = b.op(TID), b.variable(0)
        with b.when(b.op(EQUAL, b.op(WARP_ID), 0)) as consumers:
            with b.loop(0, 10) as i:
                b.op(SYNC_COUNT, 2, 96)  # empty
                b.op(STORE_SHARED, 0, b.op(MUL, i, i))
                b.op(ARRIVE, 1, 96)  # full
            with b.inside(consumers), b.loop(0, 10):
                b.op(ARRIVE, 2, 96)
                b.op(SYNC_COUNT, 1, 96)
                b.op(ADD, total, b.op(LOAD_SHARED, 0), into=total)
        b.op(STORE_GLOBAL, b.element(b.params[0], t), total)
        out = np.zeros(96, np.uint32)
        report = b.run(out, block=96)
        assert np.array_equal(out, np.where(np.arange(96) < 32, 0, sum(i * i for i in range(10))))
        assert report.instructions["bar.arrive"] == 10 + 20

    def test_different_instructions_meet_at_one_barrier(self):
        b = Builder(("out", u64), shared=4)
        with b.when(b.op(EQUAL, b.op(WARP_ID), 0)) as others:
            b.op(STORE_SHARED, 0, 5)
            b.op(SYNC, 3)
            with b.inside(others):
                b.op(SYNC_COUNT, 3, 64)
        b.op(STORE_GLOBAL, b.element(b.params[0], b.op(TID)), b.op(LOAD_SHARED, 0))
        out = np.zeros(64, np.uint32)
        b.run(out, block=64)
        assert set(out) == {5}

    @pytest.mark.parametrize("count", [None, 96])
    def test_exited_warps_are_not_waited_for(self, count):
        b = Builder(("out", u64))
        t = b.op(TID)
        with b.when(b.op(LESS, t, 40)):  # warp 0, and a quarter of warp 1
            b.jump("return")
        b.op(SYNC, 0) if count is None else b.op(SYNC_COUNT, 0, count)
        b.op(STORE_GLOBAL, b.element(b.params[0], t), 1)
        out = np.zeros(96, np.uint32)
        b.run(out, block=96)
        assert np.array_equal(out, np.arange(96) >= 40)

    def test_a_broken_last_warp_counts_whole(self):
        b = Builder(("out", u64))
        b.op(SYNC_COUNT, 1, 64)
        b.op(STORE_GLOBAL, b.element(b.params[0], b.op(TID)), 1)
        out = np.zeros(40, np.uint32)
        b.run(out, block=40)
        assert out.all()

    def test_lanes_of_a_warp_may_arrive_apart_where_it_is_not_aligned(self):
        b = Builder(("out", u64))
        t = b.op(TID)
        with b.when(b.op(LESS, t, 10)) as rest:
            b.op(UNALIGNED_SYNC, 0)
            with b.inside(rest):
                b.op(UNALIGNED_SYNC, 0)
        b.op(STORE_GLOBAL, b.element(b.params[0], t), 1)
        out = np.zeros(64, np.uint32)
        b.run(out, block=64)
        assert out.all()

    def test_reduction(self):
        b = Builder(("out", u64))
        t = b.thread(64)
        first = b.op(COUNT, 0, b.op(LESS, t, 70))
        second = b.op(COUNT, 0, b.op(LESS, b.op(TID), 5))
        b.op(STORE_GLOBAL, b.element(b.params[0], t), b.op(ADD, b.op(MUL, first, 100), second))
        out = np.zeros(128, np.uint32)
        b.run(out, grid=2, block=64)
        assert np.array_equal(out, np.where(np.arange(128) < 64, 6405, 605))

    def test_a_guard_lets_the_others_go_on(self):
        """Warp 0 waits under a guard; warp 1 passes the same instruction and releases it."""
        b = Builder(("out", u64), shared=4)
        first = b.op(EQUAL, b.op(WARP_ID), 0)
        b.op(SYNC_COUNT, 1, 64, guard=first)
        b.op(STORE_SHARED, 0, 6, guard=first, negated=True)
        b.op(ARRIVE, 1, 64, guard=first, negated=True)
        b.op(STORE_GLOBAL, b.element(b.params[0], b.op(TID)), b.op(LOAD_SHARED, 0))
        out = np.zeros(64, np.uint32)
        report = b.run(out, block=64)
        assert set(out) == {6}
        assert report.instructions["st.globals"] == 2

    def test_one_instruction_may_stop_some_and_let_others_pass(self):
        """Warps 0 and 1 meet; warp 2 waits for warp 3, which is held up until warp 0 is through."""
        b = Builder(("out", u64), shared=4)
        warp = b.op(WARP_ID)
        with b.when(b.op(EQUAL, warp, 3)):
            b.op(SYNC_COUNT, 5, 64)
            b.op(STORE_SHARED, 0, 8)
        barrier = b.variable(1)
        b.assign(barrier, 1)
        with b.when(b.op(LESS, 1, warp)):
            b.assign(barrier, 2)
        b.op(SYNC_COUNT, barrier, 64)
        with b.when(b.op(EQUAL, warp, 0)):
            b.op(ARRIVE, 5, 64)
        with b.when(b.op(LESS, 1, warp)):
            b.op(STORE_GLOBAL, b.element(b.params[0], b.op(TID)), b.op(LOAD_SHARED, 0))
        out = np.zeros(128, np.uint32)
        b.run(out, block=128)
        assert np.array_equal(out, np.where(np.arange(128) < 64, 0, 8))

    def test_a_warp_that_arrived_and_exited_counts_once(self):
        """Warp 0 waits; warp 1 arrives and ends; warp 2 loops long enough to let warp 0 ask again."""
        b = Builder(("out", u64), shared=8)
        warp = b.op(WARP_ID)
        with b.when(b.op(EQUAL, warp, 0)) as others:
            b.op(SYNC, 1)
            b.op(STORE_GLOBAL, b.params[0], b.op(LOAD_SHARED, 0))
            with b.inside(others), b.when(b.op(EQUAL, warp, 1)) as last:
                b.op(ARRIVE, 1, 96)
                b.jump("return")
                with b.inside(last):
                    b.op(STORE_SHARED, 4, 0)
                    with b.loop(0, 200):
                        b.op(LOAD_SHARED, 4)
                    b.op(STORE_SHARED, 0, 4)
                    b.op(SYNC, 1)
        out = np.zeros(1, np.uint32)
        b.run(out, block=96)
        assert out == [4]


class TestMistakes:
    @pytest.mark.parametrize(
        ("instr", "operands", "message"),
        [
            (SYNC, (16,), "barrier 16 does not exist: a CTA has barriers 0 to 15"),
            (SYNC_COUNT, (0, 48), "thread count 48 is not a positive multiple of 32"),
            (SYNC_COUNT, (0, 128), "at most 64"),
            (ARRIVE, (0, 0), "thread count 0 is not a positive"),
        ],
    )
    def test_operands(self, instr, operands, message):
        b = Builder()
        b.op(instr, *operands)
        with pytest.raises(EmulationError, match=message):
            b.run(block=64)

    def test_counts_that_differ(self):
        b = Builder()
        with b.when(b.op(EQUAL, b.op(WARP_ID), 0)) as others:
            b.op(SYNC_COUNT, 0, 64)
            with b.inside(others):
                b.op(SYNC_COUNT, 0, 96)
        with pytest.raises(EmulationError, match="expects 96 threads, those before it"):
            b.run(block=96)

    def test_a_warp_that_arrives_too_often(self):
        b = Builder()
        with b.when(b.op(LESS, b.op(TID), 40)):
            b.op(UNALIGNED_ARRIVE, 0, 96)
            b.op(UNALIGNED_ARRIVE, 0, 96)
        with pytest.raises(EmulationError, match="thread 0 of CTA 0 arrives a second time"):
            b.run(block=96)

    def test_a_warp_that_gives_itself_the_signal_of_another(self):
        """It arrives, and arrives again as it waits. The barrier then expects both groups again."""
        b = Builder()
        with b.when(b.op(EQUAL, b.op(WARP_ID), 0)) as others:
            b.op(ARRIVE, 1, 64)
            b.op(SYNC_COUNT, 1, 64)
            b.op(ARRIVE, 2, 64)
            b.op(SYNC_COUNT, 1, 64)
            with b.inside(others):
                b.op(SYNC_COUNT, 2, 64)
                b.op(ARRIVE, 1, 64)
        b.run(block=64)

    def test_more_warps_than_are_expected(self):
        """The report counts them, and names a thread that is one too many."""
        b = Builder()
        with b.when(b.op(LESS, b.op(WARP_ID), 4)) as others:
            b.op(SYNC, 0)
            with b.inside(others):
                b.op(SYNC_COUNT, 1, 160)
        with pytest.raises(
            EmulationError,
            match=r"barrier 1: 256 threads arrive, and 160 are expected: thread 288 of CTA 0 is one too "
            r"many; expect 256 if all are to meet, as in `tc.barrier\(1, 256\)`, or give each group of 160",
        ):
            b.run(block=384)


class TestFairness:
    def test_a_spinning_warp_does_not_starve_those_a_barrier_released(self):
        """Warp 0 polls; warps 1 and 2 meet at a barrier; warp 1, there first, sets the flag."""
        b = Builder(shared=4)
        b.op(STORE_SHARED, 0, 0, guard=b.op(EQUAL, b.op(TID), 0))
        b.op(SYNC, 0)
        with b.when(b.op(EQUAL, b.op(WARP_ID), 0)) as others:
            waits = b.value(pred)
            with b.forever(waits) as test, b.inside(test):
                b.op(EQUAL, b.op(LOAD_SHARED, 0), 0, into=waits)
            with b.inside(others), b.when(b.op(EQUAL, b.op(WARP_ID), 1)) as last:
                b.op(SYNC_COUNT, 1, 64)
                b.op(STORE_SHARED, 0, 1)
                with b.inside(last):
                    b.op(SYNC_COUNT, 1, 64)
        b.run(block=96)

    def test_a_lock_within_a_warp(self):
        """Lanes take turns: each waits for its number, and passes it on inside the loop."""
        b = Builder(("out", u64), shared=8)
        t = b.op(TID)
        with b.when(b.op(EQUAL, t, 0)):
            b.op(STORE_SHARED, 0, 0)
            b.op(STORE_SHARED, 4, 0)
        b.op(SYNC, 0)
        with b.forever(), b.when(b.op(EQUAL, b.op(LOAD_SHARED, 0), t)):
            order = b.op(BUMP_SHARED, 4, 1)
            b.op(STORE_GLOBAL, b.element(b.params[0], t), order)
            b.op(STORE_SHARED, 0, b.op(ADD, t, 1))
            b.jump("break")
        out = np.zeros(64, np.uint32)
        b.run(out, block=64)
        assert np.array_equal(out, np.arange(64))
