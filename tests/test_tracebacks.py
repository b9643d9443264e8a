"""What a process prints of an error: the user's frames, the error, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import traceback
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels

X = np.zeros(32, np.float32)
HALF = np.zeros((64, 64), np.float16)


def half(value):
    return value / 0


def careful(value):
    try:
        return 5 // value
    finally:
        pass


@tc.kernel
def divides(x: tc.Array):
    x[0] = half(3)


@tc.kernel
def cares(x: tc.Array):
    x[0] = careful(0)


@tc.kernel
def plain(x: tc.Array):
    x[tc.threadIdx.x] = 1


@tc.kernel
def endless(x: tc.Array):
    x[0] = again(1)


def again(value):
    return again(value + 1)


@tc.kernel
def too_many(x: tc.Array):
    x[0] = tc.select(True, 1, 2, 3)


def enter(name):
    with tc.target(name):
        pass


DOORS: dict[str, Any] = {
    "launch": lambda: divides[1, 32](X),
    "keywords": lambda: plain[1, 32](y=X),
    "prepare": lambda: divides[1, 32].prepare(X),
    "prepared": lambda: plain[1, 32].prepare(X)(X, X),
    "emulate": lambda: divides.emulate[1, 32](X),
    "at run time": lambda: plain.emulate[1, 64](X),
    "emulator": lambda: divides.emulator("sm_80")[1, 32](X),
    "order": lambda: plain.emulator(order=-1),
    "grid": lambda: plain[-1, 32],
    "emulated grid": lambda: plain.emulate[-1, 32],
    "configured": lambda: plain.configured(1, 32, shared_bytes=-1),
    "no grid": lambda: plain(X),
    "ir": lambda: divides.ir(X),
    "ptx": lambda: divides.ptx(X),
    "cubin": lambda: divides.cubin(X),
    "resources": lambda: divides.resources(X),
    "decorator": lambda: tc.kernel(3),
    "types": lambda: tc.mma.m16n8k16(tc.f16),
    "shape": lambda: tc.mma.m16n8k17,
    "instruction": lambda: tc.instruction("add.f33"),
    "emulated instruction": lambda: tc.emulate("add.f32", 1),
    "outside of a kernel": lambda: tc.barrier(),
    "type outside of a kernel": lambda: tc.f32(3),
    "call outside of a kernel": lambda: tc.instruction("add.f32")(1, 2),
    "target": lambda: enter("tpu"),
    "gemm": lambda: kernels.gemm(X, X),
    "grouped_gemm": lambda: kernels.grouped_gemm(X, X, X),
    "tune": lambda: kernels.tune(X, X),
    "epilogue": lambda: kernels.gemm(HALF, HALF, epilogue=lambda value, row, col: value.nothing),
    "parameters of an epilogue": lambda: kernels.gemm(HALF, HALF, epilogue=lambda value: value),
    "no configurations": lambda: tc.autotune([])(plain),
    "one configuration": lambda: tc.autotune(tc.Config(n=3))(plain),
    "parameters of prune": lambda: tc.autotune([tc.Config()], prune=lambda configs: configs),
    "prune": lambda: tc.autotune([tc.Config()], prune=3),
    "configuration": lambda: tc.Config(3),
    "do_bench": lambda: tc.testing.do_bench(3),
    "quantiles": lambda: tc.testing.do_bench(int, quantiles=2, warmup=0, rep=0),
    "a keyword of do_bench": lambda: tc.testing.do_bench(int, repetitions=3),
    "commands": lambda: tc.debugger.script(3),
    "text of an instruction": lambda: tc.emulate(3, 4),
    "arguments inside of a kernel": lambda: too_many.ptx(X),
    "compress": lambda: kernels.compress(X),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("door", DOORS)
def test_only_frames_of_users_are_shown(door):
    with pytest.raises(tc.TensorCoreError) as caught:
        DOORS[door]()
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert set(files) == {__file__} and len(files) == 2 + (door == "target")
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback") == 1 and "another exception" not in shown


CALLBACKS: dict[str, Any] = {
    "do_bench": lambda: tc.testing.do_bench(lambda: 1 // 0, warmup=0, rep=0),
    "grid": lambda: tuned()[lambda meta: 1 // 0, 32](X),
    "prune": lambda: tuned(prune=lambda configs, arguments: 1 // 0)[1, 32](X),
    "timer": lambda: tuned(timer=lambda launch: 1 // 0)[1, 32](X),
}


def tuned(**options: Any) -> Any:
    return tc.autotune([tc.Config(), tc.Config(grid=1)], remember=False, **options)(plain)


@pytest.mark.parametrize("name", CALLBACKS)
def test_errors_of_functions_that_the_library_calls(name):
    with pytest.raises(ZeroDivisionError) as caught:
        CALLBACKS[name]()
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files == [__file__] * 3


def test_calls_among_kernels_of_the_library_are_left_out(monkeypatch):
    with pytest.raises(tc.TensorCoreError) as caught:
        DOORS["epilogue"]()
    assert len(str(caught.value).splitlines()) == 4
    monkeypatch.setenv("TENSORCORE_DSL_TRACEBACK", "full")
    assert "apply_epilogue" in str(caught.value)


def test_all_frames_are_shown_on_demand(monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_TRACEBACK", "full")
    with pytest.raises(tc.TensorCoreError) as caught:
        cares.ptx(X)
    shown = "".join(traceback.format_exception(caught.value))
    assert "frontend" in shown and "ZeroDivisionError: integer" in shown and "During" in shown


def test_what_the_user_was_handling_stays():
    with pytest.raises(tc.TensorCoreError) as caught:
        try:
            {}["a"]
        except KeyError:
            divides.ptx(X)
    assert isinstance(caught.value.__context__, KeyError)
    shown = "".join(traceback.format_exception(caught.value))
    assert "KeyError: 'a'" in shown and "During handling" in shown and "frontend" not in shown


def test_frames_of_users_inside_the_library_are_shown():
    """A function of the user that the library calls, and that fails in the library again."""

    def outer() -> None:
        divides.ptx(X)

    with pytest.raises(tc.TensorCoreError) as caught:
        tc.errors.public(outer)()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "outer" and len(names) == 2


def test_errors_of_python_are_shown_at_the_lines_of_the_kernel():
    for kernel, at, helper in ((divides, "value / 0", "half"), (cares, "5 // value", "careful")):
        with pytest.raises(tc.CompileError) as caught:
            kernel.ptx(X)
        lines = str(caught.value).splitlines()
        assert lines[0].startswith("ZeroDivisionError: ") and "zero" in lines[0]
        assert lines[1].startswith(f"  at {__file__}:") and lines[1].endswith(f" in {helper}")
        assert at in lines[2]
        assert lines[4].endswith(f" in {kernel.__name__}") and f"{helper}(" in lines[5]


def test_a_recursion_is_short():
    with pytest.raises(tc.CompileError) as caught:
        endless.ptx(X)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("calls nest deeper than 64")
    assert sum("again(value + 1)" in line for line in lines) == 2
    assert any(line.endswith("in again, 62 times") for line in lines)
    assert len(lines) == 10


SCRIPT = """
import numpy as np
import tensorcore_dsl as tc

@tc.kernel
def wrong(x: tc.Array):
    x[0] = y

wrong[1, 32](np.zeros(4, np.float32))
"""


def test_a_process_prints_few_lines(tmp_path):
    script = tmp_path / "wrong.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    shown = done.stderr[done.stderr.index("Traceback (most recent call last):\n  File") :]
    lines = [line for line in shown.splitlines() if not set(line.strip()) <= {"^", "~"}]
    assert lines[1] == f'  File "{script}", line 9, in <module>'
    assert "name 'y' is not defined" in lines[3] and len(lines) == 6
