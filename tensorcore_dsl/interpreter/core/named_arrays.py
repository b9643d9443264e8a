"""Addresses of a launch's arguments in memory, to name bytes in messages."""

from __future__ import annotations

from dataclasses import dataclass

from tensorcore_dsl.isa.descriptor import element_index


@dataclass(frozen=True)
class NamedArray:
    """Memory of an argument: name, first and past-the-end real address, elements."""

    name: str
    low: int
    high: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def element(self, real: int, size: int) -> str:
        """The element that `size` bytes at a real address belong to, for messages."""
        first = real - self.low
        index = list(element_index(first, self.shape, self.strides))
        where = f"global bytes {first} to {first + size - 1} of it"
        return f"element {index} of argument {self.name!r} ({where})"
