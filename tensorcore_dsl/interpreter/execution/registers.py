"""The registers of a chunk, and which threads have written them.

Arrays in the register file are never written in place: several places may share one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError, Uninitialised
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.program import Step


class RegisterFile:
    """Registers by place.

    values: (T,) or (registers, T) arrays, or constants; None where nothing has been written.
    partial: (T,) bool of the threads that have written a register, where it is not all of them.
    """

    def __init__(self, chunk: Chunk, parameters: list[Any]) -> None:
        self.chunk = chunk
        program = chunk.program
        self.values: list[Any] = [None] * program.places
        self.partial: dict[int, np.ndarray] = {}
        for place, item in program.constants:
            self.values[place] = item
        for place, item, registers in program.fills:
            shape = (registers, chunk.threads) if registers else (chunk.threads,)
            self.values[place] = np.full(shape, item)
        for (place, _), bits in zip(program.params, parameters, strict=True):
            self.values[place] = np.full(chunk.threads, bits)

    def write(self, place: int, value: Any, dtype: np.dtype[Any]) -> None:
        """Set a register in the active threads."""
        if value.dtype is not dtype and value.dtype != dtype:
            raise EmulationError(f"a result has type {value.dtype}, the register {dtype}")
        if value.ndim == 0:
            value = np.full(self.chunk.threads, value)
        if self.chunk.active is None:
            if self.partial:
                self.partial.pop(place, None)
        else:
            value = self._merge(place, value)
        self.values[place] = value

    def _merge(self, place: int, value: Any) -> Any:
        """The register after a write by the active threads; notes who has written it."""
        chunk = self.chunk
        old, written = self.values[place], self.partial.get(place)
        if old is not None:
            value = np.where(chunk.mask, value, old)
        if written is not chunk.active if written is not None else chunk.checks and old is None:
            written = chunk.mask if written is None else written | chunk.mask
            if (written | chunk.gone).all():
                self.partial.pop(place, None)
            else:
                self.partial[place] = written
        return value

    def copy(self, place: int, value: Any, dtype: np.dtype[Any], sources: tuple[int, ...]) -> None:
        """Set a register; it stays unwritten in threads that have not written all `sources`."""
        written = [self.partial[s] for s in sources if s in self.partial]
        if not written:
            self.write(place, value, dtype)
            return
        chunk, mask = self.chunk, self.chunk.mask
        active, good = chunk.active, np.logical_and.reduce([mask, *written])
        chunk.active = chunk.mask = good
        self.write(place, value, dtype)
        chunk.active, chunk.mask = active, mask
        self.forget(place, mask & ~good)

    def forget(self, place: int, mask: np.ndarray) -> None:
        """Make a register count as unwritten in these threads."""
        if self.values[place] is not None and mask.any():
            self.partial[place] = self.partial.get(place, self.chunk.all_threads) & ~mask

    def check_reads(self, step: Step) -> None:
        """Raise Uninitialised where a thread that executes `step` has not written what it reads."""
        chunk = self.chunk
        for place in step.reads:
            written = self.partial.get(place)
            if written is None or written is chunk.active:
                continue
            lacking = chunk.mask & ~written
            if step.guard is not None:
                lacking = lacking & (self.values[step.guard[0]] ^ step.guard[1])
            if lacking.any():
                raise Uninitialised(
                    f"{step.instr or 'a branch'} reads a register that nothing has written in "
                    + chunk.describe(int(np.argmax(lacking)))
                )
