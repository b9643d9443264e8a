"""Checks of the functions that users pass to kernels: an epilogue, a transform of elements."""

from __future__ import annotations

from inspect import signature
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Loc


def check_epilogue(epilogue: Any) -> None:
    """Refuse what cannot be called as epilogue(value, row, col); None is allowed."""
    if epilogue is not None:
        check_function("epilogue", epilogue, "value", "row", "col")


def check_function(name: str, function: Any, *parameters: str) -> None:
    """Refuse what cannot be called with these positional parameters."""
    wanted = f"{name}({', '.join(parameters)})"
    if not callable(function):
        raise tc.ArgumentError(
            f"{name} is {function!r}; a function {wanted} of the kernel language is needed"
        )
    try:
        given = signature(function)
    except ValueError:  # a builtin without a signature; the kernel language checks those itself
        return
    try:
        given.bind(*parameters)
    except TypeError:
        called = getattr(function, "__name__", type(function).__name__)
        raise tc.ArgumentError(
            f"{name} is {called}{given}; a function {wanted} of the kernel language is needed",
            _definition(function),
        ) from None


def _definition(function: Any) -> Loc | None:
    """The first line of a Python function, or of the function inside a partial."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    return code and Loc(code.co_filename, code.co_firstlineno)
