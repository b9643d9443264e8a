"""Run a script with every launch checked: `tensorcore-dsl check script.py`."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from tensorcore_dsl.checking.formats import FORMATS
from tensorcore_dsl.checking.session import Stopped, checking
from tensorcore_dsl.errors import ArgumentError

# Exit statuses of `check`; argparse has 2 for wrong usage.
CLEAN, FINDINGS, USAGE, FAILED, NO_LAUNCH = range(5)


def check_script(
    script: str,
    arguments: Sequence[str] = (),
    *,
    form: str = "text",
    output: str | None = None,
    body: Callable[[], str] | None = None,
    **options: Any,
) -> int:
    """Run a script as `python script.py arguments` does, and report what its launches have found.

    form: a key of `FORMATS`. output: the file that the report is written to; None for the standard
    output, which then has the report alone unless it is text. body: runs instead of the script, and
    returns what made it fail, "" for nothing. options: arch, first, order, of
    `checking`. Returns CLEAN, FINDINGS, FAILED if the script fails by itself without findings, or
    NO_LAUNCH if it makes no launch.
    """
    body = body or partial(run, source_of(script), script, arguments)
    alone = form != "text" and output is None
    prints = _to_stderr() if alone else contextlib.nullcontext()
    with prints, checking(**options) as session:
        failure = body()
    result = session.result
    result.failure = failure
    if output is not None:
        _write(FORMATS[form](result), output)
    elif alone:
        _print(FORMATS[form](result), sys.stdout)
    _print(str(result), sys.stderr if alone else sys.stdout)
    if not result.ok:
        return FINDINGS
    return FAILED if failure else CLEAN if result.launches else NO_LAUNCH


def run(source: types.CodeType, script: str, arguments: Sequence[str]) -> str:
    """Run a script as `python script.py arguments` does; returns what made it fail, "" for nothing."""
    with _as_main(script, arguments) as module:
        return _execute(source, module)


@contextlib.contextmanager
def _to_stderr() -> Iterator[None]:
    """Inside, what the script and the processes that it starts print goes to the standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _print(text: str, file: TextIO) -> None:
    encoding = file.encoding or "utf-8"  # which may lack what the user's lines contain
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=file)


def source_of(script: str) -> types.CodeType:
    """The code of a script; ArgumentError if it cannot be read or is no Python."""
    try:
        text = Path(script).read_bytes()
    except OSError as error:
        raise ArgumentError(f"cannot read {script!r}: {error.strerror or error}") from None
    try:
        return compile(text, script, "exec")
    except (SyntaxError, ValueError) as error:
        raise ArgumentError(f"{script!r} is no Python: {error}") from None


@contextlib.contextmanager
def _as_main(script: str, arguments: Sequence[str]) -> Iterator[types.ModuleType]:
    """The module `__main__` of a script, with the arguments and the search path that it expects."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=script, __builtins__=__builtins__)
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    sys.argv, sys.modules["__main__"] = [script, *arguments], module
    folder = os.path.dirname(os.path.realpath(script))
    sys.path[:] = [folder, *sys.path[_first_is_added() :]]
    try:
        yield module
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = before


def _first_is_added() -> bool:
    """True if Python has put the current folder in front of the search path, as `python -m` does."""
    return not getattr(sys.flags, "safe_path", False) and sys.path[:1] in ([""], [os.getcwd()])


def _execute(source: types.CodeType, module: types.ModuleType) -> str:
    """Run a script to its end; what made it fail: the name of an error, "exit status 3", or ""."""
    try:
        exec(source, module.__dict__)
    except Stopped:
        return ""
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return f"exit status {int(error.code)}" if error.code else ""
        print(error.code, file=sys.stderr)
        return "exit status 1"
    except Exception as error:
        trace = error.__traceback__
        traceback.print_exception(type(error), error, trace and trace.tb_next)
        return type(error).__name__
    return ""


def _write(text: str, path: str) -> None:
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot write {path!r}: {error.strerror or error}") from None
