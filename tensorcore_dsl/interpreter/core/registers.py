"""The registers of all threads of a chunk.

Every vreg has memory of its own, so that compiled code finds it by its address.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tensorcore_dsl import errors
from tensorcore_dsl.interpreter.core import memory_pool
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.geometry import PerRank
from tensorcore_dsl.interpreter.core.program import Step
from tensorcore_dsl.interpreter.core.threads import BoundedCache, scalar

_LINE = 64  # bytes of a cache line
MAX_ANSWERS = 1 << 12  # kept answers about masks
_APART = 2 * _LINE  # bytes between two vregs, so that one warp's registers lie in different sets


class RegisterFile:
    """Registers by vreg, written in place.

    Attributes
    ----------
    values : list
        (T,) or (registers, T) arrays, or constants; None where nothing has been written.
    partial : dict
        (T,) bool of the threads that have written a register, where it is not all of them.
    addresses
        Of the first register of each vreg.
    fixed : dict
        Parameters that nothing writes, as numbers; regions take these and constants, and `fill` gives them
        to the threads.
    """

    def __init__(self, chunk: Chunk, parameters: list[Any]) -> None:
        self.chunk = chunk
        program, threads = chunk.program, chunk.threads
        self.shapes = program.shapes
        self.values: list[Any] = [None] * program.vregs
        self.partly_written: dict[int, np.ndarray] = {}
        # Masks of threads for which a check or a note is done, until a register is forgotten: the set of
        # written registers only grows. Keys: vregs or a step whose reads were checked; vregs whose writes
        # were noted; an entry of a region, for both.
        self.checks_passed, self._noted = BoundedCache(MAX_ANSWERS), BoundedCache(MAX_ANSWERS)
        self.region_checks_passed = BoundedCache(MAX_ANSWERS)
        room = -(-(program.sizes * threads) // _LINE) * _LINE + _APART
        self._memory = memory_pool.empty(int(room.sum()) + _LINE)
        start = -self._memory.ctypes.data % _LINE
        self._starts = start + np.cumsum(room) - room
        self.addresses = self._memory.ctypes.data + self._starts
        for vreg, item, registers in program.constants:
            if registers is None:
                self.values[vreg] = item
        self.fixed: dict[int, int] = {}
        for vreg, bits in zip(program.params, parameters, strict=True):
            if isinstance(bits, PerRank):
                ctas = np.arange(chunk.geometry.ctas)
                each = np.array(bits)[chunk.geometry.device(ctas)]
                self.home(vreg)[...] = np.repeat(each, chunk.group)
            elif vreg in program.fixed:
                self.fixed[vreg] = int(bits.view(f"i{bits.itemsize}"))
            else:
                self.home(vreg)[...] = bits
        self._filled = False
        for vreg in program.flags:
            self.home(vreg)[...] = False

    def fill(self) -> None:
        """Give fixed parameters and constants to all threads, for steps that are executed alone."""
        if not self._filled:
            self._filled = True
            for vreg, item, registers in self.chunk.program.constants:
                if registers is not None:
                    shape = (registers, self.chunk.threads) if registers else (self.chunk.threads,)
                    self.values[vreg] = np.full(shape, item)
            for vreg, bits in self.fixed.items():
                home = self.home(vreg)
                home.view(f"i{home.itemsize}")[...] = bits

    def goal(self, at: int, thread: int) -> int:
        """The value that `tc.wait_signal` waits for, whose load is at this position."""
        vreg = self.chunk.program.awaited[at]
        if isinstance(vreg, tuple):
            return vreg[0]
        return self.fixed[vreg] if vreg in self.fixed else int(scalar(self.values[vreg], thread))

    def home(self, vreg: int) -> Any:
        """The memory of a vreg, as the array that its value is; it never moves."""
        new = self.values[vreg] is None
        value = self._home(vreg)
        if new and not self.chunk.checks:
            value[...] = 0  # With checks, nobody reads an unwritten register.
        return value

    def _home(self, vreg: int) -> Any:
        """The memory of a vreg, with whatever it held."""
        value = self.values[vreg] = self.memory(vreg)
        return value

    def memory(self, vreg: int) -> Any:
        """The memory of a vreg, or its constant; it does not count as written."""
        value = self.values[vreg]
        if value is None:
            shape = self.shapes[vreg]
            assert shape is not None, "a constant is not written"
            dtype, registers, group = shape
            threads = self.chunk.threads
            size = (registers, threads) if group else (registers * threads,)
            value = np.ndarray(size, dtype, self._memory, int(self._starts[vreg]))
        return value

    def write(self, vreg: int, value: Any, dtype: np.dtype[Any]) -> None:
        """Set a register in the active threads."""
        if value.dtype is not dtype and value.dtype != dtype:
            raise TypeError(f"a result has type {value.dtype}, the register {dtype}")
        new, chunk = self.values[vreg] is None, self.chunk
        if chunk.active is None:
            home = self._home(vreg)
            if value is not home:
                home[...] = value
        else:
            np.copyto(self.home(vreg), value, where=chunk.active)
        self.wrote((vreg,), new)

    def put(self, vreg: int, value: Any) -> None:
        """Set a register in all threads, without noting the threads as its writers."""
        self.home(vreg)[...] = value

    def wrote(self, vregs: Iterable[int], new: bool) -> None:
        """Note that the active threads have written registers, which are all `new`, or none is."""
        chunk, partial = self.chunk, self.partly_written
        if new:
            if chunk.checks and not chunk.masks.covers(chunk.mask, chunk.alive):
                partial.update(dict.fromkeys(vregs, chunk.mask))
            return
        for vreg in vregs if partial else ():
            if vreg in partial:
                now = chunk.masks.union(partial[vreg], chunk.mask)
                if chunk.masks.covers(now, chunk.alive):
                    del partial[vreg]
                else:
                    partial[vreg] = now

    def wrote_all(self, vregs: frozenset[int]) -> None:
        """Note that the active threads have written registers, some of them for the first time."""
        key = vregs, id(self.chunk.mask)
        if key in self._noted:
            return
        new = [vreg for vreg in vregs if self.values[vreg] is None]
        for vreg in new:
            self._home(vreg)
        self.wrote([vreg for vreg in vregs if vreg in self.partly_written], False)
        self.wrote(new, True)
        self._noted.keep(key, self.chunk.mask)

    def clear(self, vregs: frozenset[int]) -> None:
        """Clear registers that nothing has written, where others than the active threads may read
        them: those in which checks do not find that."""
        if not self.chunk.checks and self.chunk.active is not None:
            for vreg in vregs:
                self.home(vreg)

    def lacks(self, vregs: frozenset[int]) -> bool:
        """True if some active threads have not written some of these registers."""
        chunk, partial = self.chunk, self.partly_written
        key = vregs, id(chunk.mask)
        if key in self.checks_passed:
            return False
        for vreg in vregs:
            written = partial.get(vreg, chunk.mask)
            if self.values[vreg] is None or not chunk.masks.covers(written, chunk.mask):
                return True
        self.checks_passed.keep(key, chunk.mask)
        return False

    def copy(self, vreg: int, value: Any, dtype: np.dtype[Any], sources: tuple[int, ...]) -> None:
        """Set a register; it stays unwritten in threads that have not written all `sources`."""
        written = [self.partly_written[s] for s in sources if s in self.partly_written]
        if not written:
            self.write(vreg, value, dtype)
            return
        chunk, mask = self.chunk, self.chunk.mask
        good = np.logical_and.reduce([mask, *written])
        chunk.narrow(good)
        self.write(vreg, value, dtype)
        chunk.narrow(mask)
        self.forget(vreg, mask & ~good)

    def forget(self, vreg: int, mask: np.ndarray) -> None:
        """Make a register count as unwritten in these threads."""
        if self.values[vreg] is not None and mask.any():
            left = self.partly_written.get(vreg, self.chunk.all_threads) & ~mask
            self.partly_written[vreg] = self.chunk.masks.find(left).threads
            for known in (self.checks_passed, self._noted, self.region_checks_passed):
                known.clear()

    def check_reads(self, at: int, step: Step) -> None:
        """Raise Uninitialised where a thread that executes `step`, number `at`, has not written
        what it reads; else `found` has the number and the mask."""
        chunk, passed = self.chunk, True
        for vreg in step.reads:
            written = self.partly_written.get(vreg)
            if written is None or chunk.masks.covers(written, chunk.mask):
                passed = passed and self.values[vreg] is not None
                continue
            passed, lacking = False, chunk.mask & ~written
            if step.guard is not None:
                lacking = lacking & (self.values[step.guard[0]] ^ step.guard[1])
            if lacking.any():
                raise errors.Uninitialised(
                    f"{step.instr or 'a branch'} reads a register that nothing has written in "
                    + chunk.describe(int(np.argmax(lacking)))
                )
        if passed:
            self.checks_passed.keep((at, id(chunk.mask)), chunk.mask)
