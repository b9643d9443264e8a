"""Control flow, registers, warps and launches in the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorcore_dsl.errors import (
    ArgumentError,
    Deadlock,
    Divergence,
    EmulationError,
    OutOfBounds,
    Uninitialised,
)
from tensorcore_dsl.interpreter import EmulatedLaunch, GlobalPointer, compile_program, launch
from tensorcore_dsl.ir.nodes import Part
from tensorcore_dsl.isa.effects import Effect
from tests.kit import (
    ADD,
    ADD64,
    AND,
    BUMP_GLOBAL,
    CTAID,
    EQUAL,
    LANE,
    LESS,
    LOAD_GLOBAL,
    LOAD_GLOBAL4,
    MEET,
    MUL,
    STORE_GLOBAL,
    TID,
    VOTE,
    WARP,
    WARP_ID,
    WIDE,
    XOR,
    Builder,
    instr,
    pred,
    reported_line,
    s32,
    u32,
    u64,
)


def outputs(build: Any, threads: int = 64, grid: int = 2, **options: Any) -> np.ndarray:
    """Run `build(b, thread) -> value`; what each thread stored."""
    b = Builder(("out", u64))
    out = np.full(threads * grid, 0xDEAD, np.uint32)
    thread = b.thread(threads)
    found = build(b, thread)
    b.op(STORE_GLOBAL, b.element(b.params[0], thread), found)
    b.run(out, grid=grid, block=threads, **options)
    return out


class TestControl:
    def test_a_loop_counts_down(self):
        def build(b: Builder, t: Any) -> Any:
            total = b.variable(0, s32)
            with b.loop(5, -3, -2, s32) as i:
                b.op(ADD, b.op(MUL, total, 10), i, into=total)
            return total

        assert outputs(build)[0] == np.uint32(((5 * 10 + 3) * 10 + 1) * 10 - 1)

    def test_the_step_of_a_loop_may_differ_in_sign(self):
        def build(b: Builder, t: Any) -> Any:
            even = b.op(EQUAL, b.op(AND, t, 1), 0)
            step, stop = b.variable(-1, s32), b.variable(-4, s32)
            with b.when(even):
                b.assign(step, 1)
                b.assign(stop, 6)
            turns = b.variable(0)
            with b.loop(0, stop, step, s32):
                b.op(ADD, turns, 1, into=turns)
            return turns

        assert outputs(build)[:4].tolist() == [6, 4, 6, 4]

    def test_constants_alone_make_a_value_for_every_thread(self):
        assert set(outputs(lambda b, t: b.op(ADD, 3, 4))) == {7}

    def test_a_block_of_three_dimensions_and_a_broken_last_warp(self):
        b = Builder(("out", u64))
        out = np.zeros((5, 3, 3), np.uint32)
        x, y, z = (
            b.op(instr(f"mov.tid.{axis}", "d:u32 =", lambda c, f, axis=axis: c.special(f"tid.{axis}")))
            for axis in "xyz"
        )
        index = b.op(ADD, b.op(MUL, b.op(ADD, b.op(MUL, z, 3), y), 3), x)
        b.op(BUMP_GLOBAL, b.element(b.params[0], index), b.op(ADD, index, 1))
        b.run(out, block=(3, 3, 5))
        assert np.array_equal(out.ravel(), np.arange(45) + 1)


class TestGroups:
    def test_registers_of_a_vector(self):
        b = Builder(("a", u64), ("out", u64))
        a, out = np.arange(128, dtype=np.uint32), np.zeros(32, np.uint32)
        t = b.op(TID)
        vector = b.op(LOAD_GLOBAL4, b.element(b.params[0], t, 16))
        swapped = b.value(u32, 4)
        b.assign(swapped, *(Part(vector, i) for i in (3, 2, 1, 0)))
        b.assign(swapped, Part(swapped, 1), Part(swapped, 0), t, 9)  # all read before any is written
        digits = b.variable(0)
        for i in range(4):
            b.op(ADD, b.op(MUL, digits, 10), Part(swapped, i), into=digits)
        b.op(STORE_GLOBAL, b.element(b.params[1], t), digits)
        b.run(a, out)
        t = np.arange(32)
        assert np.array_equal(out, (4 * t + 2) * 1000 + (4 * t + 3) * 100 + t * 10 + 9)

    def test_one_constant_fills_a_vector(self):
        def build(b: Builder, t: Any) -> Any:
            vector = b.value(u32, 3)
            b.assign(vector, 4)
            return b.op(ADD, Part(vector, 0), Part(vector, 2))

        assert set(outputs(build)) == {8}


class TestWarps:
    def test_a_warp_reconverges_after_a_branch(self):
        def build(b: Builder, t: Any) -> Any:
            flag = b.op(LESS, b.op(LANE), 5)
            with b.when(flag):
                b.op(ADD, t, 0)
            return b.op(VOTE, flag)

        assert set(outputs(build)) == {5}

    def test_what_follows_a_branch_runs_once_for_a_warp(self):
        b = Builder(("out", u64))
        lane = b.op(LANE)
        with b.loop(0, lane):
            b.op(XOR, lane, 1)
        with b.when(b.op(LESS, lane, 5)) as orelse:
            b.op(AND, lane, 0)
            with b.inside(orelse):
                b.op(AND, lane, 0)
        with b.when(b.op(LESS, lane, 7)):
            b.op(MUL, lane, 0)
        b.op(STORE_GLOBAL, b.params[0], lane)
        report = b.run(np.zeros(32, np.uint32), block=64)
        assert report.instructions["st.globals"] == 2
        assert report.instructions["xor.u32"] == 2 * 31
        assert report.instructions["and.u32"] == 2 * 2
        assert report.instructions["mul.u32"] == 2

    def test_an_exited_lane_is_missed(self):
        def build(b: Builder, t: Any) -> Any:
            with b.when(b.op(EQUAL, b.op(LANE), 31)):
                b.jump("return")
            return b.op(VOTE, b.op(LESS, t, 5))

        with pytest.raises(Divergence, match="lanes 31 have exited"):
            outputs(build)

    def test_a_guard_may_not_split_a_warp(self):
        def build(b: Builder, t: Any) -> Any:
            flag = b.op(LESS, b.op(LANE), 5)
            votes = b.variable(0)
            b.op(VOTE, flag, into=votes, guard=flag)
            return votes

        with pytest.raises(Divergence, match="lanes 0-4"):
            outputs(build)

    def test_whole_warps_may_differ(self):
        def build(b: Builder, t: Any) -> Any:
            votes = b.variable(9)
            with b.when(b.op(EQUAL, b.op(WARP_ID), 1)):
                b.op(VOTE, b.op(LESS, b.op(LANE), 3), into=votes)
            return votes

        assert np.array_equal(outputs(build), np.where(np.arange(128) % 64 < 32, 9, 3))

    def test_lanes_of_a_mask_wait_for_each_other(self):
        def build(b: Builder, t: Any) -> Any:
            total = b.variable(0)
            with b.when(b.op(LESS, b.op(LANE), 4)):
                b.op(MEET, b.op(LANE), 0xF, into=total)
            return total

        assert outputs(build)[:6].tolist() == [6, 6, 6, 6, 0, 0]

    def test_an_exited_lane_of_a_mask_is_excused(self):
        def build(b: Builder, t: Any) -> Any:
            with b.when(b.op(LESS, b.op(LANE), 4)):
                b.jump("return")
            return b.op(MEET, 1, 0xFFFFFFFF)

        assert np.array_equal(outputs(build), np.where(np.arange(128) % 32 < 4, 0xDEAD, 28))

    def test_a_named_lane_that_never_comes(self):
        def build(b: Builder, t: Any) -> Any:
            with b.when(b.op(LESS, b.op(LANE), 4)):
                b.op(MEET, t, 0x1F)
            b.op(MEET, t, 0xFFFFFFFF)
            return t

        with pytest.raises(Divergence, match="lanes 4-31 wait at kernel.py"):
            outputs(build)


class TestWarpgroups:
    """Forms of warpgroups want four warps together; blocks need not be whole warpgroups."""

    FENCE = instr("wgmma.together", "d:u32 =", lambda c, f: c.special("warpid"), WARP | Effect.WGMMA)

    def test_the_warps_of_a_warpgroup_wait_for_each_other(self):
        b = Builder(("out", u64), shared=4)
        t = b.op(TID)
        with b.loop(0, b.op(WARP_ID)):  # each warp comes later than the one before
            b.op(ADD, t, 1)
        with b.when(b.op(LESS, t, 128)):
            b.op(STORE_GLOBAL, b.element(b.params[0], t), b.op(self.FENCE))
        out = np.full(160, 9, np.uint32)
        b.run(np.tile(out, 3), grid=3, block=160)
        b.run(out, block=160)
        assert np.array_equal(out, np.where(np.arange(160) < 128, np.arange(160) // 32, 9))

    @pytest.mark.parametrize(("warps", "where"), [(3, "0-95 of warpgroup 0"), (7, "0-95 of warpgroup 1")])
    def test_a_divided_warpgroup(self, warps, where):
        def build(b: Builder, t: Any) -> Any:
            with b.when(b.op(LESS, b.op(WARP_ID), warps)):
                b.op(self.FENCE)
            return t

        with pytest.raises(Divergence, match=f"needs all four warps: threads {where} of CTA 0"):
            outputs(build, 256)


class TestMistakes:
    def test_a_register_that_nothing_wrote(self):
        with pytest.raises(Uninitialised, match="add.u32 reads a register that nothing") as error:
            outputs(lambda b, t: b.op(ADD, b.value(), t))
        assert reported_line(error) == 5

    def test_a_register_that_only_some_threads_wrote(self):
        def build(b: Builder, t: Any, stop: int) -> Any:
            partly, copied = b.value(), b.value()
            with b.when(b.op(LESS, t, 40)):
                b.op(ADD, t, 1, into=partly)
            b.assign(copied, partly)
            with b.when(b.op(LESS, t, stop)):
                b.op(ADD, copied, 1)
                self.line = b.line
            return t

        outputs(lambda b, t: build(b, t, 40))
        with pytest.raises(Uninitialised, match="in thread 40 of CTA 0") as error:
            outputs(lambda b, t: build(b, t, 41))
        assert reported_line(error) == self.line

    @pytest.mark.parametrize("written", [40, 0])
    def test_a_copy_of_what_nothing_wrote_is_unwritten(self, written):
        def build(b: Builder, t: Any) -> Any:
            partly, copied = b.value(), b.variable(0)
            b.op(ADD, t, 1, into=partly, guard=b.op(LESS, t, written))
            b.assign(copied, partly)
            return b.op(ADD, copied, 1)

        with pytest.raises(
            Uninitialised, match="in thread 40 of CTA 0" if written else "nothing has written"
        ):
            outputs(build)

    def test_a_guard_hides_what_is_unwritten(self):
        def build(b: Builder, t: Any, negated: bool) -> Any:
            few, partly = b.op(LESS, t, 40), b.value()
            b.op(ADD, t, 1, into=partly, guard=few)
            b.op(ADD, partly, 1, into=b.variable(0), guard=few, negated=negated)
            return t

        outputs(lambda b, t: build(b, t, False))
        with pytest.raises(Uninitialised, match="in thread 40 of CTA 0"):
            outputs(lambda b, t: build(b, t, True))

    def test_threads_that_ended_need_no_value(self):
        def build(b: Builder, t: Any) -> Any:
            with b.when(b.op(LESS, t, 40)):
                b.jump("return")
            found = b.op(ADD, t, 1)
            with b.when(b.op(LESS, t, 100)) as orelse:
                other = b.op(ADD, found, 1)
                with b.inside(orelse):
                    b.op(ADD, found, 2, into=other)
            return other

        t = np.arange(128)
        expected = np.where(t < 40, 0xDEAD, np.where(t < 100, t + 2, t + 3))
        assert np.array_equal(outputs(build), expected)

    def test_a_form_that_fails_says_where(self):
        broken = instr("broken.u32", "d:u32 = a:u32", lambda ctx, instr, a: 1 // 0)
        with pytest.raises(EmulationError, match="broken.u32 failed: ZeroDivisionError") as error:
            outputs(lambda b, t: b.op(broken, t))
        assert reported_line(error) == 5

    def test_a_result_of_the_wrong_type(self):
        wrong = instr("wrong.u32", "d:u32 = a:u32", lambda ctx, instr, a: a.astype(np.float32))
        with pytest.raises(EmulationError, match="float32, the register uint32"):
            outputs(lambda b, t: b.op(wrong, t))

    def test_a_loop_that_only_polls(self):
        def build(b: Builder, t: Any) -> Any:
            with b.forever():
                b.op(LOAD_GLOBAL, b.params[0])
            return t

        with pytest.raises(Deadlock, match="endless loop: nothing"):
            outputs(build)

    def test_launches_that_cannot_be(self):
        b = Builder(("n", u32))
        for options, message in (
            (dict(block=2048), "1024 is the most"),
            (dict(grid=-1), "three positive numbers"),
            (dict(dynamic_shared=16), "no dynamic shared memory"),
        ):
            with pytest.raises(ArgumentError, match=message):
                b.run(1, **options)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=r"has 1 parameters \(n\), 0 values given"):
            EmulatedLaunch(b.kernel, (1, 1, 1), (32, 1, 1), [], arch="sm_80").run()
        with pytest.raises(ArgumentError, match="is a list, not a NumPy array"):
            array = GlobalPointer([1], "n")  # type: ignore[arg-type]
            EmulatedLaunch(b.kernel, (1, 1, 1), (32, 1, 1), [array], arch="sm_80").run()


class TestChunks:
    def test_results_do_not_depend_on_how_the_grid_is_cut(self):
        def build(b: Builder, t: Any) -> Any:
            total = b.variable(0)
            with b.loop(0, b.op(AND, t, 15)) as i:
                b.op(ADD, b.op(MUL, total, 3), i, into=total)
            return total

        one = outputs(build, 128, 40, workers=1)
        assert np.array_equal(one, outputs(build, 128, 40, workers=3))

    def test_a_program_serves_many_runs(self):
        b = Builder(("out", u64), ("n", u32))
        b.op(STORE_GLOBAL, b.element(b.params[0], b.op(TID)), b.op(ADD, b.params[1], b.op(CTAID)))
        program = compile_program(b.kernel)
        for n in (3, 4):
            out = np.zeros(32, np.uint32)
            b.run(out, n, program=program)
            assert set(out) == {n}

    def test_a_mistake_ends_the_run(self):
        """Only the queued ones of 24 chunks run."""
        b = Builder(("out", u64))
        t = b.thread(1024)
        b.op(STORE_GLOBAL, b.element(b.params[0], t), 1)
        with b.when(b.op(LESS, t, 1)):
            b.op(LOAD_GLOBAL, 0)
        out = np.zeros((4800, 1024), np.uint32)
        queued = 2 * launch.QUEUED_CHUNKS * launch._chunks(compile_program(b.kernel), 4800, 1024, 2, 1, 0)[0]
        assert queued < 4800
        with pytest.raises(OutOfBounds):
            b.run(out, grid=4800, block=1024, workers=2)
        assert not out[-1].any()

    def test_where_order_matters_chunks_run_in_order(self):
        for access, workers in ((LOAD_GLOBAL, 2), (BUMP_GLOBAL, 1)):
            b = Builder(("a", u64))
            b.op(access, *[b.params[0], 1][: len(access.operands)])
            assert launch._chunks(compile_program(b.kernel), 100, 128, 2, 1, 0)[1] == workers

    def test_ctas_may_wait_for_each_other(self):
        """The last of 40 CTAs to add sets free all that poll the counter."""
        b = Builder(("count", u64))
        arrived = b.op(BUMP_GLOBAL, b.params[0], 1)
        waiting = b.value(pred)
        with b.forever(waiting) as test, b.inside(test):
            b.op(LESS, b.op(BUMP_GLOBAL, b.params[0], 0), 40 * 128, into=waiting)
        b.op(BUMP_GLOBAL, b.op(ADD64, b.params[0], b.op(WIDE, 4)), b.op(AND, arrived, 1))
        count = np.zeros(2, np.uint32)
        b.run(count, grid=40, block=128)
        assert count.tolist() == [40 * 128, 20 * 128]
