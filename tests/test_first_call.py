"""The first emulated launch: what it compiles, what it says of that, and what later processes do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorcore_dsl.environment import compile_notice
from tensorcore_dsl.environment.compile_notice import CompileNotice

ROOT = Path(__file__).resolve().parent.parent
LAUNCH = """
import os
import sys
import numpy as np
import tensorcore_dsl as tc
from tensorcore_dsl.environment import compile_notice
from tensorcore_dsl.lowering.forms import COMPILED

compile_notice.AFTER_SECONDS = float(os.environ["AFTER"])

@tc.kernel(threads=64)
def reverse(x: tc.Array, y: tc.Array):
    tile = tc.shared((64,), tc.f32)
    i = tc.threadIdx.x
    tile[i] = x[i]
    tc.barrier()
    y[i] = tile[63 - i] + 1.0

x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
reverse[1, 64](x, y)
assert "numba" not in sys.modules, "its import takes half as long as the launch"
assert y.tolist() == (x[::-1] + 1).tolist()
print(*sorted(name.rpartition(".")[2] for name, _ in COMPILED))
"""


def launch(home, **variables):
    """The functions that the first checked launch of a process compiles, and its stderr."""
    path = home / "reverse.py"
    path.write_text(LAUNCH)
    unset = ("TENSORCORE_DSL_CACHE", "TENSORCORE_DSL_NOTICE", "XDG_CACHE_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    settings = {"HOME": str(home), "AFTER": "1000", "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [sys.executable, "-B", path],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**kept, "TENSORCORE_DSL_TARGET": "cpu", **settings},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_a_later_process_compiles_nothing(tmp_path):
    compiled, said = launch(tmp_path)
    assert "touch_words" in compiled, "a user's kernel is checked for races"
    assert len(compiled) <= 12
    assert said == ""
    assert launch(tmp_path) == ([], "")


def test_one_line_says_what_takes_long(tmp_path):
    _, said = launch(tmp_path, AFTER="0")
    (line,) = said.splitlines()
    assert line.startswith("tensorcore_dsl: loops of the emulator are compiled, which usually")
    assert f"later processes find them in {tmp_path}/.cache/tensorcore_dsl/loops" in line
    assert launch(tmp_path, AFTER="0") == ([], "")


@pytest.mark.thorough
def test_the_line_can_be_switched_off(tmp_path):
    assert launch(tmp_path, AFTER="0", TENSORCORE_DSL_NOTICE="off")[1] == ""


@pytest.mark.thorough
def test_where_nothing_can_be_kept(tmp_path):
    """Below a file no directory can be made; every process compiles, and says so."""
    (tmp_path / "file").write_text("")
    for _ in range(2):
        compiled, said = launch(tmp_path, AFTER="0", HOME=str(tmp_path / "file"))
        assert "touch_words" in compiled
        assert said.count("\n") == 1
        assert "in each process, as they cannot be kept on disk: TENSORCORE_DSL_CACHE may" in said


def test_nested_compilations_count_once(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 3.0, 4.0, 9.0, 9.5, 20.0])
    monkeypatch.setattr(compile_notice.time, "monotonic", lambda: next(clock))
    monkeypatch.delenv(compile_notice.VARIABLE, raising=False)
    monkeypatch.setattr(compile_notice, "AFTER_SECONDS", 4.25)
    notice = CompileNotice(None)
    notice.begins()  # 0 to 4, with another one from 1 to 3
    notice.begins()
    notice.ends()
    notice.ends()
    notice.begins()  # 9 to 9.5
    notice.ends()
    assert capsys.readouterr().err == ""
    notice.begins()
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("stream", [None, "closed"])
def test_no_stderr_is_no_error(monkeypatch, tmp_path, stream):
    monkeypatch.delenv(compile_notice.VARIABLE, raising=False)
    monkeypatch.setattr(compile_notice, "AFTER_SECONDS", -1.0)
    with open(tmp_path / "log", "w") as file:
        pass
    monkeypatch.setattr(sys, "stderr", None if stream is None else file)
    CompileNotice(None).begins()
