"""Functions of CUDA's device runtime, in PTX: memory from the heap, and barriers of cooperative grids."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files

import numpy as np

from tensorcore_dsl.ptx import syntax

GRID = "system_grid"  # The workspace of a cooperative grid: its size, and the arrivals at its barrier.
REFUSED = "system_heap_refused"  # Not zero after a `malloc` that returned NULL.


@cache
def library() -> syntax.Text:
    """Parse the functions."""
    text = files(__package__).joinpath("system_library.ptx").read_text("utf-8")
    return syntax.parse(text, "system_library.ptx")


def link(text: syntax.Text) -> None:
    """Add the memory of the system, and define its functions where the text only declares them."""
    text.variables += library().variables
    for name, function in library().functions.items():
        if name in text.functions and text.functions[name].declared:
            text.functions[name] = function


@contextmanager
def full_heap_told(name: str, memory: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Warn after a launch of the kernel `name` whose `malloc` returned NULL.

    memory: the bytes of variables, by name.
    """
    try:
        yield
    finally:
        refused = memory.get(REFUSED, np.zeros(0))
        if refused.any():
            refused[:] = 0
            text = f"{name}: malloc returned NULL, because the heap of 8 MiB has no room"
            warnings.warn(text, RuntimeWarning, stacklevel=4)  # past contextlib and `_run`
