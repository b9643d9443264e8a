"""Functions of CUDA's device runtime, in PTX: memory from the heap, and barriers of cooperative grids."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from tensorcore_dsl.ptx import syntax

GRID = "system_grid"  # The workspace of a cooperative grid: its size, and the arrivals at its barrier.


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
