"""Kernels without a file: from `python -c`, standard input, the prompt, strings and doctest."""

from __future__ import annotations

import doctest
import linecache
import os
import pty
import select
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.frontend import recovery
from tensorcore_dsl.frontend.source import source_of

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TENSORCORE_DSL_TARGET": "cpu", "PYTHONSTARTUP": ""}

PROGRAM = '''
import numpy as np
import tensorcore_dsl as tc

def twice(value):
    return 2 * value

@tc.kernel
def fill(x: tc.Array, n: tc.Const = 3):
    """A docstring."""
    x[tc.threadIdx.x] = twice(n) + 0.5

@tc.kernel
def wrong(x: tc.Array):
    x[0] = undefined

x = np.zeros(4, np.float32)
fill[1, 4](x)
print(x)
try:
    wrong[1, 1](x)
except tc.TensorCoreError as error:
    print(error)
'''
PRINTED = """[6.5 6.5 6.5 6.5]
{message}
  at {place}:15 in wrong
    x[0] = undefined
           ^^^^^^^^^
"""


def run(*command: str, **options: Any) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env=ENVIRONMENT,
        text=True,
        timeout=120,
        cwd=ROOT,
        capture_output=True,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(printed: str, place: str) -> None:
    message = printed.splitlines()[1]
    assert "'undefined'" in message
    assert printed == PRINTED.format(place=place, message=message)


@pytest.mark.parametrize(
    "command", [["-B", "-X", "dev", "-c", PROGRAM], ["-Bc" + PROGRAM]], ids=["apart", "behind"]
)
def test_command(command):
    place = "<string>" if sys.version_info >= (3, 13) else "<python -c>"
    check(run(*command, "-c", "more"), place)


@pytest.mark.parametrize(
    "command, encoding", [(["-"], "latin-1"), ([], "utf-8-sig")], ids=["dash", "nothing"]
)
def test_redirected_file(tmp_path, command, encoding):
    text = PROGRAM.replace("A docstring", "Für alle")
    if encoding == "latin-1":
        text = "# coding: latin-1" + text
    (tmp_path / "program").write_bytes(text.replace("\n", "\r\n").encode(encoding))
    with open(tmp_path / "program") as file:
        check(run(*command, stdin=file), "<stdin>")


def test_a_pipe_cannot_be_read_again():
    program = PROGRAM.replace("fill[1, 4](x)\n", "")
    printed = run("-", input=program)
    assert "the source of wrong cannot be read: the program came through a pipe" in printed
    assert "run `python file.py`, or `python - < file.py`" in printed


def test_a_string_in_a_command():
    """A text that is executed has the same file name as the command, and is not mistaken for it."""
    inner = PROGRAM.replace("twice(n)", "twice(7 * n)").partition("x = np")[0]
    outer = PROGRAM.replace(
        "x = np",
        f"SPACE = {{}}\nexec({inner!r}, SPACE)\ntry:\n"
        "    SPACE['fill'][1, 4](np.zeros(4))\nexcept tc.TensorCoreError as error:\n"
        "    print(error)\nx = np",
        1,
    )
    first, rest = run("-c", outer).split("\n", 1)
    assert first.startswith(
        "the source of fill cannot be read: it was made from a string; give the string a name"
    )
    check(rest, "<string>" if sys.version_info >= (3, 13) else "<python -c>")


# -- the prompt --------------------------------------------------------------------------------

TYPED = """
import numpy as np
import tensorcore_dsl as tc
x = np.zeros(4, np.float32)
def twice(value): return 2 * value

@tc.kernel
def fill(x: tc.Array):
    x[tc.threadIdx.x] = 1

fill[1, 4](x); print("first", x)
@tc.kernel
def fill(x: tc.Array):
    t = tc.threadIdx.x
    x[t] = twice(2)
    x[t] += 1
    x[t] += 1
    if t < 2:
        x[t] = 0
    else:
        x[t] += 0.5

fill[1, 4](x); print("second", x)
if True:
    @tc.kernel(
        max_registers=32,
    )
    def nested(x: tc.Array, f: tc.Const):
        x[tc.threadIdx.x] = f(3)

nested[1, 4](x, lambda v: v * 5); print("third", x)
@tc.kernel
def wrong(x: tc.Array):
    x[0] = undefined

wrong[1, 1](x)
"""


def typed(lines: str, *command: str, **environment: str) -> str:
    """What a Python on a terminal shows when these lines are typed."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        os.execve(sys.executable, [sys.executable, *command], {**ENVIRONMENT, "TERM": "dumb", **environment})
    shown = b""

    def until(prompt: bytes) -> None:
        nonlocal shown
        end, start = time.monotonic() + 60, len(shown)
        while prompt not in shown[start:]:
            assert time.monotonic() < end, shown.decode()
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 4096)

    try:
        until(b">>> ")
        for line in lines.strip().split("\n"):
            os.write(terminal, line.encode() + b"\n")
            until(b">>> " if not shown.endswith(b"... ") and not _continues(line) else b" ")
            while select.select([terminal], [], [], 0.03)[0]:
                shown += os.read(terminal, 4096)
        os.write(terminal, b"exit()\n")
    finally:
        time.sleep(0.2)
        os.close(terminal)
        os.waitpid(process, 0)
    return shown.decode()


def _continues(line: str) -> bool:
    return line.startswith(("@", "def", " ", "if", ")"))


@pytest.mark.parametrize(
    "command", [["-q"], ["-q", "-c", "import code, readline; code.interact('')"]], ids=["python", "code"]
)
def test_prompt(command):
    pytest.importorskip("readline")
    shown = typed(TYPED, *command, PYTHON_BASIC_REPL="1")
    assert "first [1. 1. 1. 1.]" in shown
    assert "second [0.  0.  6.5 6.5]" in shown, "the newest definition, with its repeated lines"
    assert "third [15. 15. 15. 15.]" in shown
    assert (
        "'undefined'" in shown
        and "in wrong" in shown
        and "x[0] = undefined" in shown.rpartition("in wrong")[2]
    )


def test_a_prompt_without_history():
    shown = typed(
        TYPED.partition("fill[1")[0] + "fill[1, 4](x)",
        "-q",
        "-S",
        "-c",
        "import sys, code; sys.modules['readline'] = None; sys.path += sys.argv[1:]; code.interact('')",
        *[p for p in sys.path if p],
        PYTHON_BASIC_REPL="1",
        TENSORCORE_DSL_CACHE="off",
    )
    if sys.version_info < (3, 13):  # without the cache, which may know what another prompt evaluated
        assert (
            "the source of fill cannot be read: it was typed at a prompt that does not keep its lines"
            in shown
        )


def test_history_is_searched_for_the_very_code():
    lines = [
        "def f(x):",
        "    return x + 1",
        "def f(x):",
        "    return x + 2",
        "y = 1",
        "z = (lambda v:",
        "  v + 3)",
    ]
    space: dict[str, Any] = {}
    for start, end in ((0, 2), (2, 4), (5, 7)):
        exec(compile("\n".join(lines[start:end]) + "\n", "<stdin>", "exec"), space)
        for name in ("f", "z"):
            if name in space:
                code = space[name].__code__
                texts = [t for t in recovery._statements(code, lines) if recovery._holds(t, code)]
                assert texts and all(t.startswith("\n".join(lines[start:end])) for t in texts), (name, texts)
        space.clear()
    stranger = compile("def f(x):\n    return x + 4\n", "<stdin>", "exec").co_consts[0]
    assert isinstance(stranger, types.CodeType)
    assert not [t for t in recovery._statements(stranger, lines) if recovery._holds(t, stranger)]


def test_future_statements_of_the_prompt():
    """`from __future__ import annotations` in an earlier line changes the code of later ones."""
    import __future__

    text = "def f(x: int):\n    def g(y: x): return y\n    return g\n"
    for flag in (0, __future__.annotations.compiler_flag):
        space: dict[str, Any] = {}
        exec(compile(text, "<stdin>", "exec", flag, True), space)
        assert recovery._holds(text, space["f"].__code__)
        assert not recovery._holds("\n" + text, space["f"].__code__)
        assert not recovery._holds(text.replace("return y", "return x"), space["f"].__code__)


# -- strings -----------------------------------------------------------------------------------


def test_strings_with_a_name():
    text = (
        "import tensorcore_dsl as tc\n@tc.kernel\ndef made(x: tc.Array):\n    x[0] = 7\n    x[1] = missing\n"
    )
    name = "<generated 17>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    with pytest.raises(tc.TensorCoreError, match=r"(?s)at <generated 17>:5 in made.*x\[1\] = missing"):
        space["made"].emulate[1, 1](np.zeros(2))


def test_modules_that_give_their_source():
    """Such as those of zip files."""

    class Loader:
        def get_source(self, name: str) -> str:
            return "def helper(v):\n    return v + 2\n"

    space: dict[str, Any] = {"__name__": "zipped", "__loader__": Loader(), "__file__": "/zipped.py"}
    exec(compile(Loader().get_source(""), "/zipped.py", "exec"), space)

    @tc.kernel
    def run(x: tc.Array):
        x[0] = space["helper"](x[0])

    x = np.zeros(1, np.float32)
    run.emulate[1, 1](x)
    assert x[0] == 2


def test_doctest():
    text = """
    >>> import numpy as np, tensorcore_dsl as tc
    >>> @tc.kernel
    ... def fill(x: tc.Array):
    ...     x[tc.threadIdx.x] = 4
    >>> x = np.zeros(2)
    >>> fill.emulate[1, 2](x) is not None
    True
    >>> x.tolist()
    [4.0, 4.0]
    """
    test = doctest.DocTestParser().get_doctest(text, {}, "example", None, None)
    result = doctest.DocTestRunner(verbose=False).run(test, out=lambda text: None)
    assert result.failed == 0 and result.attempted == 5


@tc.kernel
def documented(x: tc.Array):
    """
    >>> x = np.zeros(2)
    >>> _ = documented.emulate[1, 2](x)
    >>> x.tolist()
    [1.0, 1.0]
    """
    x[tc.threadIdx.x] = 1


def test_doctests_of_kernels_are_found():
    (test,) = doctest.DocTestFinder().find(documented, "documented", sys.modules[__name__])
    assert len(test.examples) == 3
    assert doctest.DocTestRunner().run(test, out=lambda text: None).failed == 0


def test_files_that_are_gone():
    space: dict[str, Any] = {}
    exec(compile("def gone(x):\n    return x\n", "/nowhere/gone.py", "exec"), space)
    assert source_of(space["gone"]) is None
    with pytest.raises(tc.UnsupportedSyntax, match=r"cannot be read: there is no /nowhere/gone.py"):
        tc.kernel(space["gone"]).ir(tc.s32)


def test_files_that_have_changed(tmp_path):
    path = tmp_path / "changing.py"
    path.write_text("def changing(x):\n    return x\n")
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    path.write_text("\n\ndef changing(x):\n    return x + 1\n")
    with pytest.raises(tc.UnsupportedSyntax, match="its file has changed"):
        tc.kernel(space["changing"]).ir(tc.s32)
