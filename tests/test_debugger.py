"""The debugger of the emulator, traces of variables, and print of matrices."""
# ruff: noqa: F841  variables that the debugger shows

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import ArgumentError, DebuggerQuit, OperandError
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.kernels.tutorial import hopper_gemm_6_persistent
from tests.running import line_of

X = np.arange(64, dtype=np.float32)


def session(capsys: Any, launch: Any, *commands: str, args: tuple[Any, ...] = ()) -> list[str]:
    """What each command prints, after the lines of the stop itself."""
    capsys.readouterr()
    with tc.debugger.script(*commands):
        launch(*args)
    parts = capsys.readouterr().out.split("(tcdb) ")
    assert [part.split("\n", 1)[0] for part in parts[1:]] == list(commands)
    return [part.split("\n", 1)[1].rstrip("\n") for part in parts[1:]]


def double(value: Any) -> Any:
    twice = value + value
    return twice


@tc.kernel
def sums(x: tc.Array, out: tc.Array, n: tc.s32):
    i = tc.threadIdx.x
    total = 0.0
    for j in range(n):
        total = total + double(x[i])
        if i == 5:
            breakpoint()
    out[i] = total


def session_of_sums(capsys: Any, *commands: str, turns: int = 2) -> list[str]:
    return session(capsys, sums.emulate[1, 64], *commands, args=(X, np.zeros_like(X), turns))


def stop_line(text: str) -> int:
    """The line of the place that a command has printed."""
    return int(text.splitlines()[1].split("(")[1].split(")")[0])


class TestStops:
    def test_the_thread_that_reaches_it_stops_at_the_line(self, capsys):
        out = np.zeros_like(X)
        printed = session(
            capsys, sums.emulate[1, 64], "p i", "p total", "p i + 1", "c", "p total", "c", args=(X, out, 2)
        )
        assert printed[0] == "5  (lane 5)"
        assert printed[1] == "10.0  (lane 5)"
        assert printed[2] == "6  (lane 5)"
        assert printed[3].splitlines() == [
            "CTA 0, warp 0, lane 5",
            f"> {__file__}({line_of(sums, 'breakpoint')})sums()",
            "-> breakpoint()",
        ]
        assert printed[4] == "20.0  (lane 5)"
        assert np.array_equal(out, 4 * X)  # the debug build computes the same

    def test_steps_follow_the_thread_into_calls_and_out(self, capsys):
        printed = session_of_sums(capsys, "n", "s", "s", "s", "r", "c", "c", turns=3)
        assert stop_line(printed[0]) == line_of(sums, "double(")
        assert stop_line(printed[1]) == line_of(double, "twice = ")
        assert stop_line(printed[2]) == line_of(double, "return")
        assert stop_line(printed[3]) == line_of(sums, "if i == 5")
        # `r` from the kernel itself goes on to the next breakpoint.
        assert stop_line(printed[4]) == line_of(sums, "breakpoint")

    def test_next_stays_in_the_function(self, capsys):
        printed = session_of_sums(capsys, "n", "n", "n", "unt", "n", "n")
        assert stop_line(printed[0]) == line_of(sums, "double(")
        assert stop_line(printed[1]) == line_of(sums, "if i == 5")
        assert stop_line(printed[2]) == line_of(sums, "breakpoint")
        assert stop_line(printed[3]) == line_of(sums, "out[i]")
        assert printed[4].splitlines()[2] == "-> (the end of the kernel)"
        assert printed[5] == ""

    def test_where_and_up_show_the_calls(self, capsys):
        printed = session_of_sums(
            capsys, "n", "s", "where", "p total", "up", "p total", "down", "l", "c", "c"
        )
        assert printed[2].splitlines()[0] == f"-> {__file__}({line_of(double, 'twice =')})double()"
        assert f"   {__file__}({line_of(sums, 'double(')})sums()" in printed[2]
        assert "    total = total + double(x[i])" in printed[2]
        assert printed[3].startswith("*** NameError: name 'total'")
        assert printed[4].splitlines()[1] == f"> {__file__}({line_of(sums, 'double(')})sums()"
        assert printed[5].startswith("[ 0.  2.  4.  6.")
        assert f"{line_of(double, 'twice')} ->     twice = value + value" in printed[7]

    def test_breakpoints_at_lines(self, capsys):
        out, end = line_of(sums, "out[i]"), line_of(sums, "def sums")
        printed = session_of_sums(
            capsys, f"b test_debugger.py:{out}", "b", f"b {end}", "b x", "clear 1", "c", "c", "cl", "b", "c"
        )
        assert printed[0] == f"breakpoint at {__file__}:{out}"
        assert printed[1] == f"{__file__}:{out}"
        assert printed[2].startswith(f"*** no statement of the kernel starts at {__file__}:{end}")
        assert printed[3].startswith("*** a line, or file:line, is needed, not 'x'")
        assert printed[6].splitlines()[2] == "-> out[i] = total"
        assert printed[6].splitlines()[0] == "CTA 0, warp 0, lanes 0-31 (of 64 threads that are here)"
        assert printed[8] == ""

    def test_quit_and_the_end_of_the_input(self, capsys, monkeypatch):
        args = X, np.zeros_like(X), 2
        with pytest.raises(DebuggerQuit, match="left with quit") as error:
            session(capsys, sums.emulate[1, 64], "q", args=args)
        assert error.value.loc is not None
        assert error.value.loc.line == line_of(sums, "breakpoint")
        with pytest.raises(DebuggerQuit, match="input ended"), tc.debugger.script("p i"):
            sums.emulate[1, 64](*args)
        monkeypatch.setattr("sys.stdin", io.StringIO("p i\nwhere\n"))
        with pytest.raises(DebuggerQuit, match="input ended"):
            sums.emulate[1, 64](*args)
        assert "5  (lane 5)" in capsys.readouterr().out

    def test_input_that_cannot_be_read(self, capsys, monkeypatch):
        def refuse(*_: Any) -> str:
            raise OSError("it is captured!")

        monkeypatch.setattr("builtins.input", refuse)
        with pytest.raises(DebuggerQuit, match=r"it is captured! tc.debugger.script\(...\) gives"):
            sums.emulate[1, 64](X, np.zeros_like(X), 2)

    def test_ctrl_c_leaves_the_line(self, capsys, monkeypatch):
        typed = iter([KeyboardInterrupt(), "p total", "c", "c"])

        def keyboard(*_: Any) -> str:
            line = next(typed)
            if isinstance(line, KeyboardInterrupt):
                raise line
            return line

        monkeypatch.setattr("builtins.input", keyboard)
        out = np.zeros_like(X)
        sums.emulate[1, 64](X, out, 2)
        text = capsys.readouterr().out
        assert "(quit stops the emulation)\n10.0  (lane 5)\n" in text and out[5] == 20

    def test_input_that_is_replaced(self, capsys, monkeypatch):
        monkeypatch.setattr("sys.stdin", io.StringIO("p total\nc\nc\n"))
        sums.emulate[1, 64](X, np.zeros_like(X), 2)
        assert "10.0  (lane 5)" in capsys.readouterr().out

    def test_it_can_be_switched_off(self, capsys, monkeypatch):
        monkeypatch.setenv("PYTHONBREAKPOINT", "0")
        out = np.zeros_like(X)
        sums.emulate[1, 64](X, out, 2)
        assert np.array_equal(out, 4 * X) and capsys.readouterr().out == ""

    def test_a_condition_stops_only_its_lanes(self, capsys):
        @tc.kernel
        def checked(x: tc.Array, always: tc.Const = False):
            i = tc.threadIdx.x
            tc.breakpoint(x[i] > 40)
            tc.breakpoint(always)

        printed = session(capsys, checked.emulate[1, 64], "p x[i[lane]] if False else i", "c", args=(X,))
        assert printed[0].startswith("[-- -- -- -- -- -- -- -- -- 41 42")
        session(capsys, lambda: checked.emulate[1, 64](X, always=True), "c", "c")

    def test_threads_of_several_warps_stop_together(self, capsys):
        @tc.kernel
        def apart(x: tc.Array):
            i = tc.threadIdx.x
            if i % 35 == 5:
                breakpoint()

        session(capsys, apart.emulate[1, 64], "c", args=(X,))
        with tc.debugger.script("p blockIdx", "c"):
            apart.emulate[1, 64](X)
        first, *_, last = capsys.readouterr().out.splitlines()
        assert first == "CTA 0, warp 0, lane 5 (of 2 threads that are here)"
        assert last == "(tcdb) c"

    def test_the_gpu_ignores_it(self):
        @tc.kernel
        def without(x: tc.Array, out: tc.Array, n: tc.s32):
            i = tc.threadIdx.x
            total = 0.0
            for j in range(n):
                total = total + double(x[i])
            out[i] = total

        args = X, np.zeros_like(X), 2
        text = sums.ptx(*args, arch="sm_90a").replace("sums", "without")
        assert text == without.ptx(*args, arch="sm_90a")

    def test_several_chunks_of_blocks_stop_one_after_the_other(self, capsys):
        @tc.kernel
        def blocks(x: tc.Array):
            b = tc.blockIdx.x
            if tc.threadIdx.x == 0:
                tc.breakpoint(b % 1000 == 50)

        commands = "p b", "p blockIdx.x", "thread (51) (3)", "p b", "c", "p b", "c"
        with executing(chunk_threads=1000 * 64):
            printed = session(capsys, blocks.emulate[2000, 64], *commands, args=(X,))
        assert printed[0] == printed[1].replace("all 32 lanes", "lane 0") == "50  (lane 0)"
        assert printed[2].splitlines()[0] == "CTA 51, warp 0, lane 3"
        assert printed[3] == "51"
        assert printed[5] == "1050  (lane 0)"


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class State:
    count: int
    scale: Any


@tc.kernel
def mixed(x: tc.Array, n: tc.s32, size: tc.Const = 3):
    i = tc.threadIdx.x
    pair = [i, i * 2]
    point = Point(i, 1)
    named = {"one": i, "two": 2}
    state = State(size, x[i])
    state.count += 1
    local = tc.local((2, 2), tc.f32, fill=1)
    local[0, 1] = x[i]
    vector = x.at(4 * (i % 8)).load(4)
    flag = i > 3
    half = tc.f16(x[i])
    if n > 5:
        once = i
    breakpoint()


def session_of_mixed(capsys: Any, *commands: str) -> list[str]:
    return session(capsys, mixed.emulate[1, 32], *commands, args=(X, 1))


class TestValues:
    def test_fragments_tiles_and_arrays(self, capsys):
        @tc.kernel
        def product(a: tc.Array, d: tc.Array):
            mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
            tile = tc.shared((16, 64), tc.bf16, swizzle=128)
            lane = tc.lane_id()
            for j in range(8):
                tile[lane // 2, 16 + lane % 2 * 8 + j] = a[lane // 2, lane % 2 * 8 + j]
            tc.syncwarp()
            part = tile[:, 16:32]
            fa = tc.ldmatrix(part, mma.a)
            acc = mma(fa, mma.b.zeros(), mma.d.zeros() + 1.5)
            row = a[lane % 16]
            pointer = d.at(lane // 2, 1)
            breakpoint()
            tc.store_elements(d, acc)

        a = np.arange(256).reshape(16, 16).astype(ml_dtypes.bfloat16)
        d = np.full((16, 8), 7, np.float32)
        wide = a.astype(np.float32)
        shows = {
            "fa.tolist() == part.tolist()": "True",
            "(fa == a).all()": "True",
            "acc.shape, acc[15, 7]": None,
            "np.ma.is_masked(tile), tile[:, 16:32].tolist() == a.tolist()": "(True, True)",
            "tile[3, 16], tile[0, 0] is np.ma.masked": f"({wide[3, 0]}, True)",
            "d.sum()": None,
            "row[:2]": "[0. 1.]",
        }
        printed = session(
            capsys,
            product.emulate[1, 32],
            *(f"p {e}" for e in shows),
            "lane 4",
            "p row[:2]",
            "p pointer",
            "locals",
            "c",
            args=(a, d),
        )
        for got, wanted in zip(printed, shows.values()):
            assert wanted is None or got == wanted or got.replace("np.", "") == wanted.replace("np.", "")
        assert "(16, 8)" in printed[2] and "1.5" in printed[2]
        assert "896.0" in printed[5]
        assert printed[-4] == "[64. 65.]"
        assert printed[-3].startswith("byte 68 of argument 'd'") and printed[-3].endswith("-> 7.0")
        assert "acc     = a f32 fragment of 16x8" in printed[-2]
        assert "tile    = a shared bf16 tile of 16x64, 128-byte swizzle" in printed[-2]
        assert "a       = a 2-dimensional bf16 array" in printed[-2]

    def test_the_layouts_of_all_sizes(self, capsys):
        """Fragments of 8-bit, 16-bit, 32-bit and 64-bit elements are assembled by their layouts."""

        @tc.kernel
        def loads(x8: tc.Array, x64: tc.Array):
            narrow = tc.mma.m16n8k32(tc.e4m3, tc.e4m3, tc.f32)
            wide = tc.mma.m8n8k4(tc.f64, tc.f64, tc.f64)
            tile = tc.shared((16, 32), tc.e4m3)
            doubles = tc.shared((8, 4), tc.f64)
            for j in range(16):
                tile[tc.lane_id() // 2, tc.lane_id() % 2 * 16 + j] = x8[
                    tc.lane_id() // 2, tc.lane_id() % 2 * 16 + j
                ]
            doubles[tc.lane_id() // 4, tc.lane_id() % 4] = x64[tc.lane_id() // 4, tc.lane_id() % 4]
            tc.syncwarp()
            a = tc.load_elements(tile, narrow.a)
            b = tc.load_elements(doubles, wide.a)
            breakpoint()

        x8 = (np.arange(512).reshape(16, 32) % 13).astype(ml_dtypes.float8_e4m3fn)
        x64 = np.arange(32.0).reshape(8, 4)
        printed = session(
            capsys,
            loads.emulator("sm_90a")[1, 32],
            "p a.shape, (a == x8).all()",
            "p b.shape, (b == x64).all()",
            "c",
            args=(x8, x64),
        )
        assert "(16, 32)" in printed[0] and "True" in printed[0]
        assert "(8, 4)" in printed[1] and "True" in printed[1]

    def test_containers_are_printed(self, capsys):
        commands = "p pair", "p named", "p state", "p state.scale", "p local", "p vector", "p flag, half"
        printed = session_of_mixed(capsys, "lane 6", *commands, "p point, point.x", "c")
        assert printed[1:9] == [
            "[6, 12]",
            "{'one': 6, 'two': 2}",
            "State(count=4, scale=6.0)",
            "6.0",
            "[[1. 6.]\n [1. 1.]]",
            "[24. 25. 26. 27.]",
            "(True, 6.0)",
            "(Point(x=6, y=1), 6)",
        ]

    def test_constants_are_printed(self, capsys):
        printed = session_of_mixed(capsys, "p size, X[3], double.__name__", "c")
        assert printed[0].replace("np.float32(3.0)", "3.0") == "(3, 3.0, 'double')"

    def test_missing_values_and_mistakes(self, capsys):
        commands = "p once", "p i *", "p unknown", "p", "lane 32", "warp 3", "thread x", "thread (9) (0)"
        printed = session_of_mixed(capsys, *commands, "thread (32)", "c")
        for text, start in zip(
            printed,
            (
                "*** NameError: once cannot be shown: only one path",
                "*** SyntaxError",
                "*** NameError: name 'unknown' is not defined",
                "*** print takes an expression",
                "*** lanes are 0 to 31",
                "*** warps of the CTA are 0 to 0",
                "*** thread takes one or two indices",
                "*** CTA (9",
                "*** thread (32",
            ),
            strict=False,
        ):
            assert text.startswith(start)

    def test_values_of_all_lanes_have_an_axis(self, capsys):
        """Where no lane is chosen, values have an axis of lanes."""
        commands = "lane 6", "lane", "p flag", "p vector.shape", "p pair[1]", "p threadIdx.x + 1"
        printed = session_of_mixed(capsys, *commands, "p blockDim.x, gridDim", "c")
        assert printed[2].startswith("[False False False False  True")
        assert printed[3] == "(32, 4)"
        assert re.match(r"\[ ?0 +2 +4", printed[4]) and re.match(r"\[ ?1 +2 +3", printed[5])
        assert printed[6] == "(32, x = 1, y = 1, z = 1)"

    def test_variables_named_like_commands(self, capsys):
        @tc.kernel
        def letters(a: tc.Array, d: tc.Array):
            n = tc.threadIdx.x
            c, lane, p = (n, n * 2), n % 32, [n]
            breakpoint()
            a[n] = d[n]

        shows = {
            "c[1][:3]": "[0 2 4]", "d[2]": "2.0", "n[:2] + 1": "[1 2]", "(n + 1)[0]": "1",
            "n == 70": "False  (all 32 lanes)", "lane % 1": "0  (all 32 lanes)", "p[0][:2]": "[0 1]",
            "a[:3].sum()": "3.0", "[n[k] for k in range(2)]": "[0, 1]", "c in (1, 2)": "False",
            "n = 3": "*** the debugger evaluates expressions; it runs no statements and changes no "
            "variables", "b[0]": "*** NameError: name 'b' is not defined",
        }  # fmt: skip
        printed = session(capsys, letters.emulate[1, 64], *shows, "c", args=(X.copy(), X))
        assert dict(zip(shows, printed)) == shows

    def test_lists_of_fragments_and_masks(self, capsys):
        @tc.kernel
        def several(x: tc.Array):
            mma = tc.mma.m8n8k4(tc.f64, tc.f64, tc.f64)
            acc = [mma.d.zeros() + j for j in range(2)]
            grid = [acc, acc]
            mask = acc[1].map_coordinates(lambda v, i, j: v * j) > 6
            breakpoint()

        printed = session(
            capsys, several.emulate[1, 32], "p mask[2], mask.sum()", "p acc", "locals", "c", args=(X,)
        )
        assert printed[0] == "([False False False False False False False  True], 8)"
        lines = printed[1].splitlines()
        assert lines[0] == "[[[0. 0. 0. 0. 0. 0. 0. 0.]" and lines[8] == " [[1. 1. 1. 1. 1. 1. 1. 1.]"
        assert printed[2].splitlines()[2:] == [
            "acc  = 2 f64 fragments of 8x8",
            "grid = 2 x 2 f64 fragments of 8x8",
            "mask = a mask of 8x8",
        ]

    def test_masked_values_print_with_the_same_precision(self, capsys):
        @tc.kernel
        def thirds(x: tc.Array):
            i = tc.threadIdx.x
            tile = tc.shared((2, 8), tc.f32)
            third, tiny = x[i] / 3, x[i] * 1e-30
            if i < 3:
                tile[1, i] = third
                breakpoint()

        printed = session(
            capsys,
            thirds.emulate[1, 32],
            "p third[:4]",
            "p tile",
            "p tiny[:3]",
            "lane 1",
            "p third",
            "c",
            args=(X,),
        )
        assert printed[0] == "[0.       0.333333 0.666667       --]".replace("      --", "      --")
        assert printed[1].splitlines()[1].startswith(" [0.       0.333333 0.666667       --")
        assert printed[2] == "[0.e+00 1.e-30 2.e-30]"
        assert printed[4] == "0.33333334"

    def test_a_value_that_is_not_used_again_is_kept(self, capsys):
        """Registers are merged and dead code is removed, but not what variables hold."""

        @tc.kernel
        def reused(x: tc.Array):
            first = x[tc.threadIdx.x] + 1
            unused = first * 3
            second = first * 2
            first_again = first
            for k in tc.range(3):
                second = second + 1
                breakpoint()
            x[tc.threadIdx.x] = second

        names = "p first, unused, second, first_again, k"
        printed = session(
            capsys, reused.emulate[1, 32], "lane 4", names, "c", names, "c", names, "c", args=(X.copy(),)
        )
        assert printed[1] == "(5.0, 15.0, 11.0, 5.0, 0)"
        assert printed[3] == "(5.0, 15.0, 12.0, 5.0, 1)"
        assert printed[5] == "(5.0, 15.0, 13.0, 5.0, 2)"

    def test_threads_elsewhere_show_what_they_hold_there(self, capsys):
        @tc.kernel
        def apart(x: tc.Array):
            warp = tc.warp_id()
            state = warp + 10
            if warp == 0:
                tc.barrier(1, 64)
            else:
                state = warp + 20
                breakpoint()
                tc.barrier(1, 64)

        at = line_of(apart.function, "tc.barrier(1, 64)")
        printed = session(
            capsys, apart.emulate[1, 64], "p state", "warp 0", "p state", "warps", "barriers", "c", args=(X,)
        )
        assert printed[0] == "21  (all 32 lanes)"
        assert printed[1].splitlines()[1:] == [f"> {__file__}({at})apart()", "-> tc.barrier(1, 64)"]
        assert printed[2] == "10  (all 32 lanes)"
        rows = printed[3].splitlines()
        assert rows[0].startswith(f"CTA 0  warp 0  lanes 0-31  waits at {__file__}:{at}: barrier 1: 32")
        assert rows[1].startswith("CTA 0  warp 1  lanes 0-31  stopped at")
        assert printed[4] == "barrier 1: 32 of 64 threads have arrived"

    def test_an_index_on_which_all_lanes_agree_is_one_number(self, capsys):
        @tc.kernel
        def staged(x: tc.Array):
            tile, full = tc.shared((2, 4, 32), tc.f32), tc.mbarriers(2)
            for s in tc.static_range(2):
                for i in tc.static_range(4):
                    tile[s, i, tc.lane_id()] = s
            if tc.threadIdx.x == 0:
                for s in tc.static_range(2):
                    full[s].init(s + 3)
            tc.barrier()
            stage, lane = (x[0] * 0).to(tc.s32) + 1, tc.lane_id()
            flag, where = stage == 1, {0: stage, 1: lane}
            if lane < 3:
                breakpoint()
                x[lane + 1] = tile[stage, 0, lane]

        printed = session(
            capsys,
            staged.emulator("sm_90a")[1, 32],
            "p tile[stage].shape",
            "p tile[stage, 3].max()",
            "p tile[stage - 1:, stage].shape",
            "p tile[0, 0][lane].shape",
            "p full[stage]",
            "p tile[flag].shape",
            "p where[stage]",
            "p full[lane]",
            "c",
            args=(X.copy(),),
        )
        assert printed[:4] == ["(4, 32)", "1.0", "(2, 32)", "(32,)"]
        assert printed[4] == "phase 0 (parity 0), 4 of 4 arrivals pending"
        assert printed[5].startswith("*** IndexError") and printed[6].startswith("[0 1 2 --")
        assert printed[7].startswith("*** TypeError")

    def test_mbarriers(self, capsys):
        @tc.kernel
        def phases(x: tc.Array):
            bars = tc.mbarriers(2)
            if tc.threadIdx.x == 0:
                bars[0].init(2)
                bars[1].init(1)
                tc.fence_mbarrier_init()
            tc.barrier()
            one = bars[1]
            if tc.threadIdx.x == 0:
                bars[0].arrive()
                one.arrive()
            one.wait(0)
            breakpoint()
            if tc.threadIdx.x == 0:
                bars[0].arrive()

        printed = session(
            capsys,
            phases.emulator("sm_90a")[1, 32],
            "barriers",
            "p bars[1].phase",
            "p one",
            "locals",
            "c",
            args=(X,),
        )
        assert "bars = 2 mbarriers, phase 0, 1" in printed[3]
        assert printed[0].splitlines() == [
            "bars[0]: phase 0 (parity 0), 1 of 2 arrivals pending",
            "bars[1]: phase 1 (parity 1), 1 of 1 arrivals pending",
        ]
        assert printed[1] == "1"
        assert printed[2] == "phase 1 (parity 1), 1 of 1 arrivals pending"

    def test_help_lists_and_describes_commands(self, capsys):
        printed = session_of_sums(capsys, "help", "help s", "", "a", "c", "c")
        for word in ("step", "next", "warps", "barriers", "locals", "thread", "lane", "quit"):
            assert word in printed[0]
        assert printed[1].startswith("step (s): go on to the next line of this thread")


@tc.kernel
def traced(x: tc.Array, out: tc.Array, n: tc.s32):
    i = tc.threadIdx.x
    total = 0.0
    for j in range(n):
        if i % 32 < 16:
            total += x[i]
        else:
            total -= 1.0
    out[i] = total


class TestTrace:
    def test_each_assignment_is_recorded(self):
        out = np.zeros_like(X)
        report = traced.emulator(trace=("total", "j"))[2, 64](X, out, 2)
        trace = report.trace
        assert np.array_equal(out, np.where(np.arange(64) % 32 < 16, 2 * X, -2))
        records = trace.of("total", cta=1, warp=1)
        assert [r.line for r in records] == [
            line_of(traced, "total = 0.0"),
            line_of(traced, "total +="),
            line_of(traced, "total -="),
            line_of(traced, "total +="),
            line_of(traced, "total -="),
        ]
        assert [r.step for r in trace] == list(range(len(trace)))
        low, high = np.arange(32, 48), np.arange(48, 64)
        assert np.array_equal(records[1].threads, low) and np.array_equal(records[2].threads, high)
        assert np.array_equal(records[3].value, 2 * X[32:48])
        assert np.array_equal(records[4].value, np.full(16, -2.0))
        assert records[0].cta == (1, 0, 0) and records[0].warp == 1
        assert records[0].value.dtype == np.float32
        assert [r.value[0] for r in trace.of("j", cta=0, warp=0)] == [0, 1]

    def test_only_chosen_threads_are_traced(self):
        trace = traced.emulator(trace={"total": (1, 33), "i": 40})[1, 64](X, np.zeros_like(X), 1).trace
        assert [r.threads.tolist() for r in trace.of("i")] == [[40]]
        assert trace.of("i")[0].value.tolist() == [40]
        assert [(r.threads.tolist(), r.value.tolist()) for r in trace.of("total")] == [
            ([1], [0.0]),
            ([33], [0.0]),
            ([1], [1.0]),
            ([33], [33.0]),
        ]

    def test_a_trace_prints_as_a_table(self):
        trace = traced.emulator(trace={"total": range(3)})[1, 32](X, np.zeros_like(X), 1).trace
        first = line_of(traced, "total = 0.0")
        assert str(trace).splitlines() == [
            "line  CTA  warp  lanes  variable  value",
            f"{first:<4}  0    0     0-2    total     [0. 0. 0.]",
            f"{first + 3:<4}  0    0     0-2    total     [0. 1. 2.]",
        ]
        assert str(trace[1]) == (f"{__file__}:{first + 3} CTA 0 warp 0 lanes 0-2: total = [0. 1. 2.]")

    def test_fragments_are_matrices_and_calls_are_followed(self):
        def step(acc: Any, mma: Any, a: Any) -> Any:
            acc = mma(a, mma.b.zeros(), acc + 1.0)
            return acc

        @tc.kernel
        def loop(d: tc.Array):
            mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
            acc = mma.d.zeros()
            for k in tc.range(3):
                acc = step(acc, mma, mma.a.zeros())
            tc.store_elements(d, acc)

        d = np.zeros((16, 8), np.float32)
        trace = loop.emulator(trace="acc")[1, 32](d).trace
        assert (d == 3).all()
        values = [(r.function, float(r.value[0, 0]), r.value.shape) for r in trace]
        inside = lambda n: [("step", n - 1.0, (16, 8)), ("step", float(n), (16, 8))]
        assert values == [
            ("loop", 0.0, (16, 8)),
            *(v for n in (1, 2, 3) for v in (*inside(n), ("loop", float(n), (16, 8)))),
        ]

    def test_asynchronous_products_and_roles(self):
        """A debug build keeps accumulators in flight and changes no bit, nor does it add hazards."""
        random = np.random.default_rng(0)
        a, b = (random.standard_normal((n, 192)).astype(ml_dtypes.bfloat16) for n in (128, 256))
        plain, recorded = np.zeros((2, 128, 256), ml_dtypes.bfloat16)
        matmul = hopper_gemm_6_persistent.matmul
        matmul.emulator("sm_90a")[1, 384](a, b, plain)
        trace = matmul.emulator("sm_90a", trace=("acc", "stage"))[1, 384](a, b, recorded).trace
        assert plain.any() and np.array_equal(plain.view(np.uint16), recorded.view(np.uint16))
        exact = a.astype(np.float32) @ b.astype(np.float32).T
        last = [trace.of("acc", warp=warp)[-1].value for warp in (4, 8)]
        assert np.allclose(np.concatenate(last), exact, atol=1e-3)
        stages = [int(record.value[0]) for record in trace.of("stage", warp=4)]
        assert stages[0] == 0 and 1 in stages and len(stages) >= 4

    def test_wrong_traces_are_refused(self):
        args = X, np.zeros_like(X), 1
        with pytest.raises(ArgumentError, match="trace: traced has no variable 'toal'; it has i, j,"):
            traced.emulator(trace="toal")[1, 64](*args)
        with pytest.raises(ArgumentError, match="names of variables of the kernel, not 3"):
            traced.emulator(trace=(3,))[1, 64](*args)
        with pytest.raises(ArgumentError, match="takes the numbers of threads in a CTA"):
            traced.emulator(trace={"total": "warp 0"})[1, 64](*args)

    def test_threads_that_no_block_has(self):
        out = np.zeros_like(X)
        with pytest.raises(ArgumentError, match="a CTA has threads 0 to 63, not 99"):
            sums.emulator(trace={"total": [3, 99]})[1, 64](X, out, 2)
        assert not out.any()

    def test_without_a_trace_the_report_has_none(self):
        assert traced.emulator()[1, 64](X, np.zeros_like(X), 1).trace is None


class TestPrint:
    def test_a_fragment_prints_once_for_each_warp(self, capsys):
        @tc.kernel
        def shows(x: tc.Array):
            mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
            acc = mma.d.zeros() + tc.f32(tc.warp_id())
            print("warp", tc.warp_id(), acc, "100%")
            print(f"{acc:.1f}", tc.lane_id() % 2)

        shows.emulate[1, 64](X)
        text = capsys.readouterr().out
        both = [np.full((16, 8), float(w), np.float32) for w in (0, 1)]
        lanes = f"[{' '.join(['0 1'] * 16)}]"
        fixed = [str(m).replace("0.", "0.0").replace("1.", "1.0") for m in both]
        assert text == (
            f"warp 0 {both[0]} 100%\nwarp 1 {both[1]} 100%\n{fixed[0]} {lanes}\n{fixed[1]} {lanes}\n"
        )

    def test_tiles_and_arrays_print_their_elements(self, capsys):
        @tc.kernel
        def shows(x: tc.Array):
            tile = tc.shared((2, 64), tc.f16, swizzle=128)
            tile[0, tc.threadIdx.x] = x[tc.threadIdx.x]
            tc.barrier()
            if tc.threadIdx.x == 32:
                print("tile", tile[:, 1:3])
                print(x[:3], x)
                print(f"{tile[:, 1:3]:,.1f}")

        shows.emulate[1, 64](1000 * X)
        assert capsys.readouterr().out == (
            f"tile [[1.e+03 2.e+03]\n [    --     --]]\n[   0. 1000. 2000.] {1000 * X}\n"
            "[[1,000.0 2,000.0]\n [     --      --]]\n"
        )

    def test_lists_of_fragments_and_masks(self, capsys):
        @tc.kernel
        def shows(x: tc.Array):
            mma = tc.mma.m8n8k4(tc.f64, tc.f64, tc.f64)
            acc = [mma.d.zeros() + j for j in range(2)]
            print("acc", acc, (acc[0] > 0, 3))

        zeros, ones = ("[" + "\n ".join([f"[{' '.join([n] * 8)}]"] * 8) + "]" for n in ("0.", "1."))
        shows.emulate[1, 32](X)
        mask = zeros.replace(".", "")
        assert capsys.readouterr().out == f"acc [{zeros},\n{ones}] ({mask},\n3)\n"
        assert "acc [[%.9g %.9g], [%.9g %.9g]] ([%d, %d], 3)" in shows.ir(X)  # on the GPU

    def test_a_warpgroup_prints_one_matrix(self, capsys):
        @tc.kernel
        def shows(x: tc.Array):
            acc = tc.wgmma.m64n8k16(tc.f16, tc.f16, tc.f32).d.zeros()
            print(acc + tc.f32(tc.warp_id()))

        shows.emulator("sm_90a")[1, 128](X)
        wanted = np.repeat(np.arange(4, dtype=np.float32), 16)[:, None] * np.ones(8, np.float32)
        assert capsys.readouterr().out == f"{wanted}\n"

    def test_on_the_gpu_tiles_are_refused_and_fragments_print_by_thread(self):
        @tc.kernel
        def tiles(x: tc.Array):
            print(tc.shared(4, tc.f32))

        @tc.kernel
        def arrays(x: tc.Array):
            print(x)

        @tc.kernel
        def fragments(x: tc.Array):
            print(tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32).d.zeros())

        for kernel, what in ((tiles, "a shared tile"), (arrays, "an array")):
            with pytest.raises(OperandError, match=f"print of {what} works in emulation only") as e:
                kernel.ptx(X, arch="sm_90a")
            assert e.value.loc is not None and e.value.loc.line == line_of(kernel, "print(")
        assert "vprintf" in fragments.ptx(X, arch="sm_90a")
