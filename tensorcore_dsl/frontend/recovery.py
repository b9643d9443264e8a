"""Sources without a file: of `python -c`, of scripts on standard input, of Python prompts.

Python 3.13 keeps what is typed and the text of `-c`; before, it is found again in the command line,
in the redirected file, and in the prompt's history. A text counts only if it compiles to the very
code of the function, so that a wrong source is never used.
"""

from __future__ import annotations
import __future__

import io
import itertools
import linecache
import os
import re
import stat
import sys
import textwrap
import tokenize
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache

COMMAND, STANDARD_INPUT, CONSOLE = "<string>", "<stdin>", "<console>"
SHARED = (COMMAND, STANDARD_INPUT, CONSOLE)  # names that Python gives to different texts
MAX_LINES_ABOVE = 60  # lines of a prompt's statement above the function
MAX_ENDS = 30  # candidate last lines of such a statement
_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag


def recovered(code: types.CodeType, text: str) -> tuple[str, str] | None:
    """The source of a function and a name for it; None if there is none.

    `text` is what linecache has under the function's file name.
    """
    if code.co_filename not in SHARED:
        return None
    for source, name in _candidates(code, text):
        if _holds(source, code):
            return source, name if linecache.getlines(name) else _kept(source, name)
    return None


def _candidates(code: types.CodeType, text: str) -> Iterator[tuple[str, str]]:
    name = code.co_filename
    if text:
        yield text, name
    if name == COMMAND:
        yield from ((source, "<python -c>") for source in _command_texts())
    elif name == STANDARD_INPUT and (source := standard_input()):
        yield source, name
    if name in (STANDARD_INPUT, CONSOLE):
        yield from ((source, f"<input {_number(source)}>") for source in _statements(code, _history()))


def _kept(text: str, name: str) -> str:
    """Keep the text for messages, which quote lines by name; returns the name."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return name


_numbers = itertools.count(1)


@cache
def _number(text: str) -> int:
    """A number for each text that was typed."""
    return next(_numbers)


def _holds(text: str, code: types.CodeType) -> bool:
    """True if the text compiles to this code, at its lines."""
    compiled = _compiled(text, code.co_flags & _FUTURE)
    return compiled is not None and any(inner == code for inner in _codes(compiled))


@cache
def _compiled(text: str, flags: int) -> types.CodeType | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code: types.CodeType = compile(text, "<recovered>", "exec", flags, dont_inherit=True)
            return code
    except (SyntaxError, ValueError):
        return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


# -- where texts are ---------------------------------------------------------------------------


def _command_texts() -> Iterator[str]:
    """Texts that `python -c` may run: arguments of the command line, also after the option's letter."""
    for argument in sys.orig_argv[1:] if sys.argv[:1] == ["-c"] else ():
        for text in (argument, re.sub(r"^-\w*?c", "", argument)):
            yield text
            yield textwrap.dedent(text)  # as Python 3.14 does


@cache
def standard_input() -> str:
    """The file that standard input was redirected from; empty for pipes and terminals."""
    try:
        facts = os.fstat(0)
        if not stat.S_ISREG(facts.st_mode):
            return ""
        source = os.pread(0, facts.st_size, 0)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        return io.TextIOWrapper(io.BytesIO(source), encoding).read()
    except (OSError, AttributeError, SyntaxError, UnicodeDecodeError):
        return ""


def _history() -> list[str]:
    """The lines typed at the prompt, as readline keeps them: no blank ones, repeated ones once."""
    readline = sys.modules.get("readline")
    if readline is None:
        return []
    with suppress(Exception):  # implementations differ
        count = readline.get_current_history_length()
        return [readline.get_history_item(number) or "" for number in range(1, count + 1)]
    return []


def _statements(code: types.CodeType, lines: Sequence[str]) -> Iterator[str]:
    """Texts of the prompt that may define a function, the latest first."""
    name = "lambda" if code.co_name == "<lambda>" else rf"def\s+{re.escape(code.co_name)}"
    defines = re.compile(rf"\b{name}\b")
    for at in range(len(lines) - 1, -1, -1):
        if not defines.search(lines[at]):
            continue
        for start in range(at, max(-1, at - MAX_LINES_ABOVE), -1):
            if lines[start][:1].strip():  # a statement starts in the first column
                yield from _from(lines, start, at)


def _from(lines: Sequence[str], start: int, at: int) -> Iterator[str]:
    """Statements that start at one line and end past another, with a line repeated, or none."""
    outside = (n for n in range(at + 1, len(lines)) if lines[n][:1].strip())
    ends = itertools.islice(itertools.chain(outside, [len(lines)]), MAX_ENDS)
    for end in ends:
        text = "\n".join(lines[start:end]) + "\n"
        if _compiled(text, 0) is None:
            continue
        yield text
        for twice in range(start, end):
            yield "\n".join([*lines[start : twice + 1], *lines[twice:end]]) + "\n"


def reason(code: types.CodeType) -> str:
    """Why the source of a function is not there, and what to do."""
    name = code.co_filename
    if name in (STANDARD_INPUT, CONSOLE) and (hasattr(sys, "ps1") or name == CONSOLE):
        return (
            "it was typed at a prompt that does not keep its lines (Python 3.13 does, and earlier "
            "ones do in a terminal with readline); define it in a file"
        )
    if name == STANDARD_INPUT:
        return (
            "the program came through a pipe, which can be read only once; run `python file.py`, "
            "or `python - < file.py`"
        )
    if name.startswith("<"):
        return (
            "it was made from a string; give the string a name of its own, "
            "`linecache.cache[name] = (len(text), None, text.splitlines(True), name)`, and run "
            "`exec(compile(text, name, 'exec'))`"
        )
    if not linecache.getlines(name):
        return f"there is no {name}"
    return (
        "its file has changed, or lambdas of the same parameters stand on one line; start Python "
        "again, or give each lambda a line of its own"
    )
