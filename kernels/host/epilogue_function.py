"""The caller's own functions of elements of a result: what they must look like."""

from __future__ import annotations

from inspect import signature
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Loc


def check_epilogue(epilogue: Any) -> None:
    """Refuse what cannot be called with an element, its row and its column."""
    if epilogue is not None:
        check_function("epilogue", epilogue, "value", "row", "col")


def check_function(name: str, function: Any, *parameters: str) -> None:
    """Refuse what cannot be called with so many values."""
    wanted = f"{name}({', '.join(parameters)})"
    if not callable(function):
        raise tc.ArgumentError(
            f"{name} is {function!r}; a function {wanted} of the kernel language is needed"
        )
    try:
        found = signature(function)
    except ValueError:  # of a builtin that tells nothing; the kernel language knows which it has
        return
    try:
        found.bind(*parameters)
    except TypeError:
        called = getattr(function, "__name__", type(function).__name__)
        raise tc.ArgumentError(
            f"{name} is {called}{found}; a function {wanted} of the kernel language is needed",
            _definition(function),
        ) from None


def _definition(function: Any) -> Loc | None:
    """The first line of a function of Python, or of what a partial one calls."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    return code and Loc(code.co_filename, code.co_firstlineno)
