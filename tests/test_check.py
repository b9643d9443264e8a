"""`kernel.check`, and scripts whose launches are checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.__main__ import main
from tensorcore_dsl.checking.copies import copied
from tensorcore_dsl.checking.session import Session, checking
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.kernel import compiled
from tests.arrays import zeros

HERE = __file__


@tc.kernel
def fill(x: tc.Array, value: tc.Const = 1):
    x[tc.threadIdx.x] = value


@tc.kernel
def unwritten(out: tc.Array):
    tile = tc.shared(64, tc.s32)
    if tc.threadIdx.x < 40:
        tile[tc.threadIdx.x] = 5
    tc.barrier()
    out[tc.threadIdx.x] = tile[tc.threadIdx.x]


@tc.kernel
def ranks(out: tc.Array):
    out[tc.blockIdx.x] = tc.special("cluster_ctarank")


@tc.kernel
def dynamic(out: tc.Array):
    tile = tc.dynamic_shared((32,), tc.s32)
    tile[tc.threadIdx.x] = 7
    out[tc.threadIdx.x] = tile[tc.threadIdx.x]


FILLED = fill.function.__code__.co_firstlineno + 2
UNWRITTEN = unwritten.function.__code__.co_firstlineno + 6


# -- kernel.check --------------------------------------------------------------------------------


def test_a_correct_launch_has_no_findings():
    x = zeros()
    result = fill.check(1, 64)(x, value=3)
    assert result and result.ok and not result.findings and not result.warnings
    assert str(result) == repr(result) == "1 launch checked: no findings, no warnings"
    assert not x.any() and (result.arguments["x"] == 3).all()
    assert result.report is not None and sum(result.report.instructions.values()) > 0
    result.raise_first()


def test_a_finding_has_its_place():
    result = unwritten.check(1, 64)(zeros())
    assert not result and len(result.findings) == 1 and result.report is None
    finding = result.findings[0]
    assert (finding.kind, finding.kernel, finding.file, finding.line) == (
        "Uninitialised",
        "unwritten",
        HERE,
        UNWRITTEN,
    )
    assert (finding.other, finding.calls, finding.launch, finding.times) == (None, [], 1, 1)
    assert finding.memory == "shared load of 4 bytes at 0xa0" and finding.cure == ""
    assert finding.who.endswith(" of CTA 0") and finding.who in finding.message
    assert "out[tc.threadIdx.x] = tile[tc.threadIdx.x]" in str(result)  # the quoted line
    assert str(result).endswith("1 launch checked: 1 finding, no warnings")
    with pytest.raises(tc.Uninitialised):
        result.raise_first()


def test_indices_are_checked_whatever_the_kernel_says():
    lax = tc.kernel(checks=False)(fill.function)
    finding = lax.check(1, 64)(zeros(40)).findings[0]
    assert (finding.kind, finding.line) == ("OutOfBounds", FILLED) and "thread (40,0,0)" in finding.who


def test_a_result_has_a_form_in_json():
    result = unwritten.check(1, 64)(zeros())
    said = json.loads(result.json())
    assert said == result.as_dict() and not said["ok"] and said["launches"] == 1 and said["warnings"] == []
    (finding,) = said["findings"]
    assert finding["kind"] == "Uninitialised" and finding["line"] == UNWRITTEN and finding["file"] == HERE
    assert (finding["thread"], finding["cta"]) == ([40, 0, 0], [0, 0, 0])


def test_in_place_writes_the_arguments():
    x = zeros()
    result = fill.check(1, 64, in_place=True)(x)
    assert x.all() and result.arguments["x"] is x


def test_the_launch_has_the_configuration_that_was_asked_for():
    result = ranks.check(4, 32, cluster=2)(zeros(4))
    assert result and result.arguments["out"].tolist() == [0, 1, 0, 1]
    assert dynamic.check(1, 32, shared_bytes=128)(zeros(32)).arguments["out"].tolist() == [7] * 32
    assert not dynamic.check(1, 32)(zeros(32))
    for order in (3, "down", None):
        assert fill.check((1,), (64, 1), order=order, arch="sm_80")(zeros())


def test_mistakes_of_the_caller_are_raised():
    for wrong in (
        lambda: fill.check(1, 64)(),
        lambda: fill.check(1, 64)(zeros(), vlaue=3),
        lambda: fill.check(1, 64)("x"),
        lambda: fill.check(1, 64, order=-1),
        lambda: fill.check(1, 64, blocks=3),  # type: ignore[call-arg]
        lambda: fill.check(1)(zeros()),  # type: ignore[call-arg]
    ):
        with pytest.raises(tc.ArgumentError):
            wrong()
    with pytest.raises(tc.LaunchError):
        fill.check(1, 2000)
    with pytest.raises(tc.ArchError):
        fill.check(1, 64, arch="sm_1")(zeros())


@tc.kernel
def hurried(x: tc.Array, out: tc.Array):
    tile = tc.shared(64, tc.s32)
    tile[tc.threadIdx.x] = x[tc.threadIdx.x]
    out[tc.threadIdx.x] = tile[(tc.threadIdx.x + 32) % 64]


@tc.kernel
def alike(out: tc.Array):
    if tc.lane_id() == 0:
        out[0] = 5


def test_a_race_has_two_places():
    with executing(regions=False):  # compiled regions may meet the two accesses in the other order
        finding = hurried.check(1, 64)(zeros(), zeros()).findings[0]
    first = hurried.function.__code__.co_firstlineno
    assert finding.other is not None and (finding.kind, finding.file, finding.other.file) == (
        "Race",
        HERE,
        HERE,
    )
    assert (finding.line, finding.other.line) == (first + 4, first + 3)
    assert (finding.who, finding.other.who) == ("thread 0 of CTA 0", "thread 32 of CTA 0")
    assert finding.memory.startswith("element [32] of a shared s32 tile of 64")
    assert finding.cure == "tc.barrier() between the two would order them"


def test_a_race_of_equal_values_is_a_warning():
    result = alike.check(1, 64)(zeros())
    assert result and [found.kind for found in result.warnings] == ["RaceWarning"]
    found = result.warnings[0]
    assert found.other is not None and found.file == HERE and found.line == found.other.line
    assert {found.who, found.other.who} == {"thread 0 of CTA 0", "thread 32 of CTA 0"}
    assert found.severity == "warning" and HERE not in found.message and f"at {HERE}:" in str(found)


def test_warnings_do_not_make_a_launch_wrong(recwarn):
    result = tc.CheckResult()

    def launch() -> Report:
        warnings.warn_explicit("the same value", tc.RaceWarning, "a.py", 7)
        warnings.warn("something else", UserWarning)
        return Report()

    for _ in range(3):
        result.collect("k", launch)
    assert result and len(result.warnings) == 1
    warning = result.warnings[0]
    assert (warning.kind, warning.file, warning.line, warning.times) == ("RaceWarning", "a.py", 7, 3)
    assert str(result) == (
        "RaceWarning in kernel k (found in 3 launches): the same value\n  at a.py:7\n\n"
        "3 launches checked: no findings, 1 warning"
    )
    assert {str(w.message) for w in recwarn} == {"something else"}


# -- copies --------------------------------------------------------------------------------------


def test_copies_overlap_and_are_laid_out_like_the_arrays():
    memory = np.arange(4000, dtype=np.int32)
    arrays = [
        memory[3:67],
        memory[60:100:2],
        memory[500:400:-1],
        memory[1000:1600].reshape(20, 30).T,
        np.float32(3),
        5,
        memory[:0],
        np.broadcast_to(np.int32(4), (7, 3)),
    ]
    copies = copied(arrays)
    for old, new in zip(arrays, copies, strict=True):
        assert np.array_equal(old, new)
        if isinstance(old, np.ndarray) and old.size:
            assert old.strides == new.strides and old.dtype == new.dtype
            assert old.flags.writeable == new.flags.writeable
            assert (old.ctypes.data - new.ctypes.data) % 256 == 0
            assert not np.shares_memory(old, new)
    assert np.shares_memory(copies[0], copies[1]) and not np.shares_memory(copies[1], copies[2])
    assert fill.types_of(arrays[:1]) == fill.types_of(copies[:1])


# -- sessions ------------------------------------------------------------------------------------


def test_every_launch_is_emulated_with_all_checks(monkeypatch):
    """Those of the library too, whatever target they ask for, in every thread."""
    built: list[tuple[str, bool]] = []
    specialised = compiled.CompiledKernel.specialised

    def noted(self: Any, types: Any, constants: Any, arch: Any, checks: Any = None) -> Any:
        built.append((self.__name__, checks))
        return specialised(self, types, constants, arch, checks)

    monkeypatch.setattr(compiled.CompiledKernel, "specialised", noted)
    ones = np.ones((32, 32), np.float16)
    with checking() as session, tc.target("cuda"):
        thread = threading.Thread(target=lambda: fill[1, 64](zeros()))
        thread.start()
        thread.join()
        kernels.gemm(ones, ones)
        fill.emulator(checks=False)[1, 64](zeros())
    assert session.result.launches == 3 and session.result
    assert len(built) >= 3 and all(checks for _, checks in built)


def test_errors_are_noted_or_raised():
    with checking() as session:
        assert isinstance(fill.emulate[1, 64](zeros(9)), Report)
    assert [found.kind for found in session.result.findings] == ["OutOfBounds"]
    with checking(collect=False) as session, pytest.raises(tc.OutOfBounds):
        fill[1, 64](zeros(9))
    with pytest.raises(tc.OutOfBounds):
        Session(collect=False).run("fill", lambda: fill.emulate[1, 64](zeros(9)))


def test_a_session_leaves_the_target_as_it_was(monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_TARGET", "cuda")
    with checking(arch="sm_80"):
        assert tc.current_target() == "cpu"
    assert tc.current_target() == "cuda" and os.environ["TENSORCORE_DSL_TARGET"] == "cuda"
    with tc.target("cpu"), pytest.raises(tc.ArchError), checking(arch="sm_1"):
        pass


# -- scripts -------------------------------------------------------------------------------------

NEIGHBOUR = """
import numpy as np
WORDS = np.arange(20, dtype=np.int32)
"""

SCRIPT = """
import sys
from pathlib import Path
import tensorcore_dsl as tc
from neighbour import WORDS

@tc.kernel
def double(x: tc.Array):
    x[tc.threadIdx.x] = 2 * x[tc.threadIdx.x]

if __name__ == "__main__":
    print("arguments", sys.argv[1:], Path(__file__).name, sys.modules["__main__"].double is double)
    for threads in map(int, sys.argv[2:]):
        try:
            double[1, threads](WORDS)
        except tc.TensorCoreError:
            print("raised")
    print("words", WORDS[:3])
    if sys.argv[1] == "fails":
        1 / 0
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "neighbour.py").write_text(NEIGHBOUR)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    yield str(path)
    sys.modules.pop("neighbour", None)


def checked(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    status = main(["check", *arguments])
    return (status, *capsys.readouterr())


def test_a_script_runs_as_python_runs_it(script, capsys):
    before = sys.argv, sys.path[:]
    status, out, _ = checked(capsys, script, "0", "20", "4")
    assert (status, out) == (
        0,
        "arguments ['0', '20', '4'] script.py True\nwords [0 4 8]\n"
        "2 launches checked: no findings, no warnings\n",
    )
    assert (sys.argv, sys.path) == before


def test_options_behind_a_script_go_to_the_script(script, capsys):
    _, out, err = checked(capsys, script, "0", "20", "--first")
    assert "'--first'" in out and "--first goes to the script; options of check stand before it" in err


def test_launches_of_a_file_are_for_ptx(script, capsys):
    status, _, err = checked(capsys, "--launch", "launch.toml", script)
    assert status == 2 and "--launch is for files of PTX" in err


def test_a_script_goes_on_after_findings(script, capsys):
    status, out, _ = checked(capsys, script, "0", "32", "20", "32")
    assert status == 1 and "words" in out and "raised" not in out
    assert "OutOfBounds in kernel double (found in 2 launches): index 20 leaves axis 0" in out
    assert f"at {script}:9 in double" in out
    assert out.endswith("3 launches checked: 1 finding, no warnings\n")


def test_a_script_stops_at_the_first_finding(script, capsys):
    status, out, _ = checked(capsys, "--first", script, "0", "20", "32", "20")
    assert status == 1 and "words" not in out and "2 launches checked: 1 finding" in out


def test_the_status_of_a_script(script, capsys):
    status, out, _ = checked(capsys, script, "5", "20")
    assert status == 3 and "the script failed (exit status 5)" in out
    assert checked(capsys, script, "5", "32")[0] == 1
    status, out, err = checked(capsys, script, "fails", "20")
    assert status == 3
    assert out.endswith(
        "1 launch checked: no findings, no warnings\n"
        "the script failed (ZeroDivisionError): what comes after that was not checked\n"
    )
    assert err.startswith(f'Traceback (most recent call last):\n  File "{script}", line 20')
    assert err.endswith("ZeroDivisionError: division by zero\n")


CALLS = """
import sys
import numpy as np
import tensorcore_dsl as tc

@tc.kernel
def store(x: tc.Array):
    x[tc.threadIdx.x] = 1

@tc.kernel
def last(x: tc.Array):
    tc.atomic("exch", x.at(0), tc.blockIdx.x)

calls = {
    "check": lambda kernel, grid, x: kernel.check(grid, 8)(x),
    "explore": lambda kernel, grid, x: kernel.explore(9, checks=False)[grid, 8](x),
    "launches": lambda kernel, grid, x: tc.explore(lambda: [kernel[1, 1](x), kernel[grid, 8](x)], 3)(),
    "emulator": lambda kernel, grid, x: kernel.emulator(checks=False)[grid, 8](x),
}
call, kernel, grid, size, times = sys.argv[1:]
for _ in range(int(times)):
    calls[call](globals()[kernel], int(grid), np.zeros(int(size), np.int32))
print("the end")
"""


@pytest.mark.parametrize("call, launches", [("check", 1), ("explore", 1), ("launches", 2), ("emulator", 1)])
def test_calls_inside_a_script_count_as_its_launches(call, launches, tmp_path, capsys):
    path = tmp_path / "calls.py"
    path.write_text(CALLS)
    status, out, _ = checked(capsys, str(path), call, "store", "1", "8", "2")
    assert status == 0 and f"{2 * launches} launches checked: no findings, no warnings" in out
    status, out, _ = checked(capsys, str(path), call, "store", "1", "7", "2")
    assert status == 1 and "the end" in out
    assert "OutOfBounds in kernel store (found in 2 launches): index 7 leaves axis 0 of 'x'" in out
    assert f"{2 * launches} launches checked: 1 finding" in out
    status, out, _ = checked(capsys, "--first", str(path), call, "store", "1", "7", "2")
    assert status == 1 and "the end" not in out and "checked: 1 finding" in out


def test_orders_that_differ_are_a_finding_of_the_script(tmp_path, capsys):
    path = tmp_path / "calls.py"
    path.write_text(CALLS)
    assert checked(capsys, str(path), "check", "last", "4", "1", "1")[0] == 0
    status, out, _ = checked(capsys, str(path), "explore", "last", "4", "1", "1")
    assert status == 1 and "EmulationError in kernel last: " in out
    assert "results differ" in out and "argument 'x': 1 of 1 elements differ" in out


def test_a_check_inside_a_script_has_its_order(tmp_path, capsys):
    path = tmp_path / "order.py"
    path.write_text(
        CALLS.partition("calls =")[0] + "print(last.check(4, 1)(np.zeros(1, np.int32)).arguments)"
    )
    texts = [checked(capsys, "--order", order, str(path))[1].splitlines()[0] for order in ("up", "down")]
    assert "[3]" in texts[0] and "[0]" in texts[1]


def test_a_script_without_launches(tmp_path, capsys):
    path = tmp_path / "calls.py"
    path.write_text(CALLS)
    status, out, _ = checked(capsys, str(path), "check", "store", "1", "8", "0")
    assert (status, out) == (4, "the end\nno launch was made, so nothing was checked\n")
    assert checked(capsys, str(path), "check", "nothing", "1", "8", "1")[0] == 3


@pytest.mark.parametrize("order", ["3", "down", "up b0w0@2"])
def test_orders_of_a_script(script, capsys, order):
    assert checked(capsys, "--order", order, "--arch", "sm_80", script, "0", "20")[0] == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["missing.py"], "error: cannot read 'missing.py': No such file"),
        (["--order", "x", HERE], "error: order 'x' is not a seed"),
        (["--arch", "sm_1", HERE], "sm_1"),
        (["--output", "/no/such/folder/x", "SCRIPT", "0"], "error: cannot write '/no/such/folder/x'"),
        ([str(Path(HERE).parent.parent / "README.md")], "is no Python"),
    ],
)
def test_mistakes_on_the_command_line(script, capsys, arguments, message):
    status, _, err = checked(capsys, *(script if a == "SCRIPT" else a for a in arguments))
    assert status == 2 and message in err


def test_the_command_checks_a_script_of_another_folder(script, tmp_path):
    """Users call it so, from another folder."""
    command = [sys.executable, "-m", "tensorcore_dsl", "check", script, "0", "32"]
    environment = {**os.environ, "PYTHONPATH": str(Path(HERE).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "words" in done.stdout and "OutOfBounds in kernel double" in done.stdout


# -- products that wrap ----------------------------------------------------------------------------


@tc.kernel
def indexed(x: tc.Array, a: tc.s32, b: tc.s32, how: tc.Const):
    product = a * b + 3
    if how == "index":
        x[31] = x[product]
    elif how == "pointer":
        x[31] = x.at(product).load()
    elif how == "view":
        x[31] = x[product - 3 :][3]
    elif how == "masked":
        x[31] = x[product & 31] + x[product % 32] + x[(product >> 1) - (product >> 1)]
    elif how == "unsigned":
        x[31] = x[a.to(tc.u32) * b.to(tc.u32) + 3]
    elif how == "guarded":
        if a < 100:
            x[31] = x[product]
        x[31] = x.at(product).load(pred=a < 100)
    else:  # in later turns the factors are other numbers
        for turn in range(2):
            found = a * b + 3
            for _ in range(2):
                a += 1 << 15
                b += 1 << 15
                x[31] = x[found]
            if how == "loop":
                a, b = turn, turn


@pytest.mark.parametrize(
    "how, a, b, wraps",
    [
        ("index", 1 << 16, 1 << 16, True),
        ("index", -(1 << 16), 1 << 16, True),
        ("index", 2, 5, False),
        ("index", -1, 3, False),
        ("pointer", 1 << 16, 1 << 16, True),
        ("view", 1 << 16, 1 << 16, True),
        ("masked", 1 << 16, 1 << 16, False),
        ("unsigned", 1 << 16, 1 << 16, False),
        ("guarded", 1 << 16, 1 << 16, False),
        ("loop", 1, 5, False),
        ("turns", 0, 0, True),
    ],
)
def test_a_product_that_wraps_back_into_the_array(how, a, b, wraps):
    result = indexed.check(1, 1)(np.zeros(32, np.float32), a, b, how)
    assert [finding.kind for finding in result.findings] == ["InvalidArithmetic"] * wraps
    if wraps and how != "turns":
        text = f"the product {a * b} in an index is 0 in 32 bits: compute it in s64"
        assert text in str(result.findings[0])


def test_products_of_sizes_of_tiles_cost_no_check(monkeypatch):
    @tc.kernel
    def tiled(x: tc.Array, size: tc.Const):
        block = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
        for k in range(x.shape[0]):
            x[block * size + k * 64] = 1

    line = tc.ArrayType(tc.f32, 1, (True,), 16)
    monkeypatch.setenv("TENSORCORE_DSL_CHECKS", "1")
    assert "check.index.s64" not in tiled.ir(line, 128)
    assert "check.index.s64" in tiled.ir(line, 1 << 20)


def test_what_is_called_shows_its_kernel_and_configuration():
    checked, explored = repr(fill.check(1, 32, order=3)), repr(fill.explore(5))
    assert "kernel=<kernel fill" in checked and "grid=(1, 1, 1), block=(32, 1, 1)" in checked
    assert explored == "Explorer(name='fill', n=5)"
