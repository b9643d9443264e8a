"""Call users' functions with the arguments that their parameters name, for operators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from tensorcore_dsl.errors import ArgumentError, listing


@cache
def _taken(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a function's parameters."""
    return tuple(inspect.signature(function).parameters)


def check_names(function: Callable[..., Any], known: Sequence[str]) -> None:
    """Raise ArgumentError if a parameter names none of the arguments `known`."""
    for name in _taken(function):
        if name not in known:
            raise ArgumentError(
                f"a function of the operator takes {name!r}; the arguments are {listing(known)}"
            )


def called(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call the function with the arguments that its parameters name."""
    return function(*[values[name] for name in _taken(function)])
