"""The caller's own function of each element of a result: what it must look like."""

from __future__ import annotations

from inspect import signature
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Loc

WANTED = "finish(value, row, col)"


def check_finish(finish: Any) -> None:
    """Refuse what cannot be called with an element, its row and its column."""
    if finish is None:
        return
    if not callable(finish):
        raise tc.ArgumentError(
            f"finish is {finish!r}; a function {WANTED} of the kernel language is needed"
        )
    try:
        parameters = signature(finish)
    except ValueError:  # of a builtin that tells nothing; the kernel language knows which it has
        return
    try:
        parameters.bind("value", "row", "col")
    except TypeError:
        name = getattr(finish, "__name__", type(finish).__name__)
        raise tc.ArgumentError(
            f"finish is {name}{parameters}; a function {WANTED} is needed: it is called with an "
            "element, its row and its column",
            _definition(finish),
        ) from None


def _definition(function: Any) -> Loc | None:
    """The first line of a function of Python, or of what a partial one calls."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    return code and Loc(code.co_filename, code.co_firstlineno)
