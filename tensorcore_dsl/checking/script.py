"""Runs a script with every launch checked: `tensorcore-dsl check script.py`."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tensorcore_dsl.checking.findings import CheckResult
from tensorcore_dsl.checking.session import Stopped, checking
from tensorcore_dsl.errors import ArgumentError


def check_script(
    script: str, arguments: Sequence[str] = (), *, json: str | None = None, **options: Any
) -> int:
    """Run a script as `python script.py arguments` does; its exit status, 1 if there are findings.

    json: the file that the findings are written to, "-" for the standard output, where what the
    script prints then goes to the standard error. options: arch, first, order, of `checking`.
    """
    source = _source(script)
    to_stdout = json == "-"
    output = contextlib.redirect_stdout(sys.stderr) if to_stdout else contextlib.nullcontext()
    with output, checking(**options) as session, _as_main(script, arguments) as module:
        status, failure = _execute(source, module)
    result = session.result
    if json is not None:
        _write(result, None if to_stdout else json)
    out = sys.stderr if to_stdout else sys.stdout
    encoding = out.encoding or "utf-8"  # which may lack what the user's lines contain
    print(str(result).encode(encoding, "backslashreplace").decode(encoding), file=out)
    if failure:
        print(f"the script failed ({failure}): what comes after that was not checked", file=out)
    return status if result.ok else 1


def _source(script: str) -> types.CodeType:
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
    """Has Python put the current folder in front of the search path, as `python -m` does?"""
    return not getattr(sys.flags, "safe_path", False) and sys.path[:1] in ([""], [os.getcwd()])


def _execute(source: types.CodeType, module: types.ModuleType) -> tuple[int, str]:
    """Run a script to its end; its exit status, and the name of the error that ended it."""
    try:
        exec(source, module.__dict__)
    except Stopped:
        return 1, ""
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0, ""
        print(error.code, file=sys.stderr)
        return 1, ""
    except Exception as error:
        trace = error.__traceback__
        traceback.print_exception(type(error), error, trace and trace.tb_next)
        return 1, type(error).__name__
    return 0, ""


def _write(result: CheckResult, path: str | None) -> None:
    if path is None:
        print(result.json())
        return
    try:
        Path(path).write_text(result.json() + "\n")
    except OSError as error:
        raise ArgumentError(f"cannot write {path!r}: {error.strerror or error}") from None
