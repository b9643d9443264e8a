"""A kernel as flat code: a list of steps with jumps.

All registers and constants of a kernel live in one list; a *place* is an index into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError, Loc
from tensorcore_dsl.interpreter.core.loops import Loop
from tensorcore_dsl.ir.nodes import Kernel, Mark
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.spec import Instruction

# Executes a step for the active threads of the machine that it gets. Returns None to go on with
# the next step, the position that all active threads jump to, STOP when none of them goes on, or
# AFTER minus a position when the steps up to there have been executed, too.
Run = Callable[[Any], "int | None"]

STOP, AFTER = -1, -2
_WORDS = {1: np.bool_, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_TRACKED = frozenset({"tracked", "bulk", "cluster"})
_CHANGING = frozenset({"blocking", "async", "bulk", "cluster", "tracked", "print"})


def word(bits: int) -> Any:
    """The NumPy type of a register of `bits`."""
    if bits not in _WORDS:
        raise EmulationError(f"registers of {bits} bits are not emulated; 1, 16, 32 and 64 are")
    return _WORDS[bits]


@dataclass
class Step:
    """One position of the program.

    reads: places that the threads that execute the step must have written. guard: a place and
    whether it is negated; only threads where it holds execute the step. Copies of registers have
    no `reads`, because they may copy registers that nothing has written: those are in `copies`.
    writes: places that the step writes.
    """

    run: Run
    loc: Loc | None
    instr: Instruction | None = None
    reads: tuple[int, ...] = ()
    guard: tuple[int, bool] | None = None
    writes: tuple[int, ...] = ()
    copies: tuple[int, ...] = ()

    @cached_property
    def counted(self) -> str:
        """The instruction as reports count it; "" for what is none, and for checks of indices."""
        check = self.instr is not None and self.instr.opcode == names.CHECK_OPCODE
        return "" if self.instr is None or check else self.instr.mnemonic

    @cached_property
    def tracked(self) -> bool:
        """Does the step start or await something whose later messages name this step?"""
        return self.instr is not None and not _TRACKED.isdisjoint(self.instr.effects)

    @cached_property
    def changes(self) -> bool:
        """May it change anything but registers and memory, such as barriers or copies in flight?

        Waiting for an mbarrier and meeting other lanes change nothing.
        """
        if self.instr is None or "convergent" in self.instr.effects:
            return False
        if self.instr.uses_mbarrier:
            return not self.instr.results and "blocking" not in self.instr.effects
        return not _CHANGING.isdisjoint(self.instr.effects)


@dataclass(frozen=True)
class Fused:
    """The steps from `start` to `end`, which compiled code may execute at once.

    number: of this part of the program. rows: its part of the program's `rows`. reads: places that
    the steps must find written. writes: places that they write. level: when it may be used, see
    `lanes.runs.Forms`. By row of the part: positions: the step that it belongs to; accesses: how
    it loads or stores. whole: some step needs whole warps.
    """

    number: int
    start: int
    end: int
    rows: slice
    reads: frozenset[int]
    writes: frozenset[int]
    level: int
    positions: tuple[int, ...]
    accesses: dict[int, Any]
    whole: bool


@dataclass
class Program:
    """The steps of a kernel, and what stands in its registers at the start.

    shapes: by place, the type and number of its registers and whether they are a group; None for a
    constant. constants: (place, value, registers): None for one value that all threads share, 0 for
    a scalar in every thread, or the registers of a group. params: places of the kernel's
    parameters. unit: threads of the largest group that one instruction needs as a whole, a warp or
    a warpgroup. asynchronous: operations may be in flight when a CTA ends, or other CTAs access its
    memory.
    reads_shared: some instruction reads shared memory through the async proxy. ranked: the kernel
    fixes its cluster shape, so shared addresses of all CTAs but the first of a cluster have bits
    above CLUSTER_SHIFT. kept: in a debug build, the
    places where the debugger reads the values of variables. marks: its marks by position. loops: by
    the position that they jump back to. values: the places of values, and of constants. fused:
    steps that compiled code may execute at once; rows: the operations of these (see `lanes.runs`).
    runs: what machines execute at each step, by whether each step is noted before. flags: places of
    the conditions of counted loops, which steps write before they read them.
    """

    kernel: Kernel
    steps: list[Step] = field(default_factory=list)
    places: int = 0
    shapes: list[tuple[np.dtype[Any], int, bool] | None] = field(default_factory=list)
    constants: list[tuple[int, Any, int | None]] = field(default_factory=list)
    params: list[int] = field(default_factory=list)
    unit: int = 32
    asynchronous: bool = False
    reads_shared: bool = False
    ranked: bool = False
    kept: dict[Any, int] = field(default_factory=dict)
    marks: dict[int, Mark] = field(default_factory=dict)
    loops: dict[int, Loop] = field(default_factory=dict)
    values: dict[Any, int] = field(default_factory=dict)
    fused: list[Fused] = field(default_factory=list)
    rows: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.int64))
    runs: dict[bool, list[Run]] = field(default_factory=dict)
    flags: list[int] = field(default_factory=list)

    @property
    def register_bytes(self) -> int:
        """Bytes of the registers of a thread."""
        return int(self.sizes.sum())

    @cached_property
    def sizes(self) -> np.ndarray:
        """By place, the bytes of the registers of a thread; 0 for constants."""
        shapes = self.shapes
        return np.array([0 if s is None else s[1] * s[0].itemsize for s in shapes], np.int64)

    @cached_property
    def words(self) -> list[np.ndarray]:
        """For each of the `constants`, its value for the lanes of a warp, for compiled code."""
        return [np.full(32, item) for _, item, _ in self.constants]

    def classify(self, instr: Instruction) -> None:
        """Note what the machine must track because the kernel has this instruction."""
        self.unit = max(self.unit, instr.threads)
        self.reads_shared |= "async_proxy" in instr.effects
        self.asynchronous |= instr.accesses_cluster or not _TRACKED.isdisjoint(instr.effects)
