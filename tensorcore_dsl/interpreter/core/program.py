"""A kernel as flat code: a list of steps with jumps.

All registers and constants of a kernel live in one list; a *vreg* is an index into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import EmulationError, Loc
from tensorcore_dsl.interpreter.core.loops import LoopAnalysis
from tensorcore_dsl.ir.nodes import Block, For, Kernel, Mark, Op, While, walk
from tensorcore_dsl.isa import classify, names
from tensorcore_dsl.isa.descriptor import SharedTiles
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.spec import Instruction

# Executes a step for the active threads of a machine. Returns the position to which all active threads
# jump; None: they continue at the next step; STOP: none of them continues; AFTER - position: all steps
# before the position have been executed, too.
Run = Callable[[Any], "int | None"]

STOP, AFTER = -1, -2
_WORDS = {1: np.bool_, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_TRACKED = Effect.TRACKED | Effect.BULK | Effect.CLUSTER
_CHANGING = Effect.BLOCKING | Effect.ASYNC | Effect.BULK | Effect.CLUSTER | Effect.TRACKED | Effect.PRINT


def word(bits: int) -> Any:
    """The NumPy type of a register of `bits`."""
    if bits not in _WORDS:
        raise EmulationError(f"registers of {bits} bits are not emulated; 1, 16, 32 and 64 are")
    return _WORDS[bits]


@dataclass
class Step(EagerDict):
    """One position of the program.

    Attributes
    ----------
    reads : tuple
        Places that the threads that execute the step must have written.
    guard : tuple or None
        A vreg and whether it is negated; only threads where it holds execute the step. Copies of registers
        have no `reads`, because they may copy registers that nothing has written: those are in `copies`.
    writes : tuple
        Places that the step writes.
    check : bool
        The emulator's own, which no GPU executes.
    fetch : function or None
        Of an exchange between the lanes of a mask, finds the operands; the mask is the last one.
    swizzle : int or None
        Of the tile of shared memory that it accesses, if it is known.
    """

    run: Run
    loc: Loc | None
    instr: Instruction | None = None
    reads: tuple[int, ...] = ()
    guard: tuple[int, bool] | None = None
    writes: tuple[int, ...] = ()
    copies: tuple[int, ...] = ()
    check: bool = False
    fetch: Callable[[list[Any]], tuple[Any, ...]] | None = None
    swizzle: int | None = None

    @cached_property
    def counted(self) -> str:
        """The instruction as reports count it; "" for what is none, and for checks of indices."""
        check = self.instr is not None and self.instr.opcode == names.CHECK_OPCODE
        return "" if self.instr is None or check else self.instr.mnemonic

    @cached_property
    def uses_mbarrier(self) -> bool:
        """True if it initialises, arrives at or waits for an mbarrier."""
        return self.instr is not None and classify.uses_mbarrier(self.instr)

    @cached_property
    def tracked(self) -> bool:
        """True if it may start or await something whose later messages name this step."""
        return self.instr is not None and Effect.VOLATILE in self.instr.effects

    @cached_property
    def changes(self) -> bool:
        """True if it may change anything but registers and memory, such as barriers or copies in flight.

        Waiting for an mbarrier and meeting other lanes change nothing.
        """
        if self.instr is None or Effect.CONVERGENT in self.instr.effects:
            return False
        if self.uses_mbarrier:
            return not self.instr.results and Effect.BLOCKING not in self.instr.effects
        return bool(self.instr.effects & _CHANGING)


@dataclass
class Program(EagerDict):
    """The steps of a kernel, and what stands in its registers at the start.

    A *vreg* is the number of a value or constant; *by position* means a dict of positions of steps.

    Attributes
    ----------
    shapes : list
        By vreg, the type and number of its registers and whether they are a group; None for a constant.
    constants : list
        (vreg, value, registers): None for one value that all threads share, 0 for a scalar in every
        thread, or the registers of a group.
    params : list
        Places of the kernel's parameters.
    fixed : frozenset
        Places of parameters that nothing writes.
    shown : set
        Places that regions leave in registers, since the watchdog reads them there.
    unit : int
        Threads of a warp or warpgroup, the largest group that one instruction needs as a whole.
    asynchronous : bool
        Operations may be in flight when a CTA ends, or other CTAs access its memory.
    reads_shared : bool
        Some instruction reads shared memory through the async proxy.
    ranked : bool
        The kernel fixes its cluster shape, so shared addresses of all CTAs but the first of a cluster have
        bits above CLUSTER_SHIFT.
    kept, marks : dict
        In a debug build, the vregs of the values of variables, and the marks by position.
    loops : dict
        By the position that they jump back to.
    ops : dict
        By position, the operations that access words.
    values : dict
        The vregs of values, and of constants.
    micro_ops : dict
        By position, what compiled code executes (see `regions.plan`).
    flow
        Where threads go, a `RegionFlow`.
    cuts : set
        Positions over which no region goes.
    copied : dict
        By position, the uses of registers of asynchronous products.
    products : dict
        By position, the products of warps without a guard.
    unheard : set
        Positions of waits for mbarriers that may end early, since nothing reads their answers.
    runs : dict
        The functions of all steps, by whether each notes its position first, and the level of regions.
    fills : dict
        By level, whether steps outside of regions read parameters of `fixed`.
    flags : list
        Places of the conditions of counted loops, which steps write before they read them.
    awaited : dict
        By position of a load that `tc.wait_signal` repeats, the vreg of the value that it waits for, or
        (the value,).
    seconds : float or None
        Seconds of a core for each CTA of the last launch, None before it.
    serial : int
        Key in PROGRAMS, -1 while the program is made.
    """

    kernel: Kernel
    steps: list[Step] = field(default_factory=list)
    vregs: int = 0
    shapes: list[tuple[np.dtype[Any], int, bool] | None] = field(default_factory=list)
    constants: list[tuple[int, Any, int | None]] = field(default_factory=list)
    params: list[int] = field(default_factory=list)
    fixed: frozenset[int] = frozenset()
    shown: set[int] = field(default_factory=set)
    unit: int = 32
    asynchronous: bool = False
    reads_shared: bool = False
    ranked: bool = False
    kept: dict[Any, int] = field(default_factory=dict)
    marks: dict[int, Mark] = field(default_factory=dict)
    loops: dict[int, LoopAnalysis] = field(default_factory=dict)
    ops: dict[int, Op] = field(default_factory=dict)
    values: dict[Any, int] = field(default_factory=dict)
    micro_ops: dict[int, list[Any]] = field(default_factory=dict)
    flow: Any = None
    cuts: set[int] = field(default_factory=set)
    copied: dict[int, Any] = field(default_factory=dict)
    products: dict[int, Any] = field(default_factory=dict)
    unheard: set[int] = field(default_factory=set)
    runs: dict[tuple[bool, int], list[Run]] = field(default_factory=dict)
    flags: list[int] = field(default_factory=list)
    fills: dict[int, bool] = field(default_factory=dict)
    awaited: dict[int, int | tuple[int]] = field(default_factory=dict)
    seconds: float | None = None
    serial: int = -1

    def publish(self) -> None:
        """Make the program, which is complete now, one of PROGRAMS."""
        self.serial = next_serial()
        PROGRAMS[self.serial] = self

    @property
    def register_bytes(self) -> int:
        """Bytes of the registers of a thread."""
        return int(self.sizes.sum())

    @cached_property
    def sizes(self) -> np.ndarray:
        """By vreg, the bytes of the registers of a thread; 0 for constants."""
        shapes = self.shapes
        return np.array([0 if s is None else s[1] * s[0].itemsize for s in shapes], np.int64)

    @cached_property
    def instructions(self) -> list[Instruction]:
        """The instructions of the steps, each once."""
        return [*{id(step.instr): step.instr for step in self.steps if step.instr is not None}.values()]

    @cached_property
    def couplings(self) -> tuple[bool, bool]:
        """Two flags: the kernel can observe the order of its CTAs; a CTA may wait."""
        ordered = any(_couples(node) for node in walk(self.kernel.body))
        loops = [loop for loop in self._loops if isinstance(loop, While)]
        blocks = [block for loop in loops for block in (loop.test, loop.body)]
        return ordered, any(_couples(node) for block in blocks for node in walk(block))

    @cached_property
    def has_roles(self) -> bool:
        """True if warps may have roles: the kernel has instructions of warpgroups, or mbarriers."""
        ops = (node.instr for node in walk(self.kernel.body) if isinstance(node, Op))
        return any(instr.threads > 32 or classify.uses_mbarrier(instr) for instr in ops)

    @cached_property
    def multiplies_in_loops(self) -> bool:
        """True if a loop multiplies matrices."""
        inside = (node for loop in self._loops for node in walk(Block([loop])))
        return any(isinstance(node, Op) and node.instr.shape for node in inside)

    @cached_property
    def sum_bytes(self) -> int:
        """Bytes of a thread's registers to which products of warps add."""
        sums = {
            self.values[node.results[0]]
            for node in walk(self.kernel.body)
            if isinstance(node, Op)
            and node.instr.threads == 32
            and node.instr.shape
            and "d" in node.instr.params
        }
        return int(self.sizes[[*sums]].sum())

    @property
    def _loops(self) -> list[For | While]:
        return [node for node in walk(self.kernel.body) if isinstance(node, (For, While))]

    @cached_property
    def tiles(self) -> SharedTiles:
        """The tiles of shared memory, with what is kept of the descriptors that name them."""
        return SharedTiles(self.kernel.tiles)

    @cached_property
    def numbers(self) -> dict[int, int]:
        """By vreg, the bits of the constants that compiled code may contain."""
        return {vreg: int(item) for vreg, item, _ in self.constants}

    def classify(self, instr: Instruction) -> None:
        """Note what the machine must track because the kernel has this instruction."""
        self.unit = max(self.unit, instr.threads)
        self.reads_shared |= Effect.ASYNC_PROXY in instr.effects
        self.asynchronous |= classify.accesses_peer_cta(instr) or bool(instr.effects & _TRACKED)


def _couples(node: Any) -> bool:
    """True if the node shows in which order CTAs run: strong or atomic global accesses, and prints.

    Accesses to shared memory do not count: a chunk has whole clusters.
    """
    if not isinstance(node, Op):
        return False
    instr = node.instr
    if Effect.BULK in instr.effects:
        return "op" in instr.params  # a reduction
    strong = (Effect.LOAD | Effect.VOLATILE) in instr.effects
    strong = strong and any(o.kind == "addr" for o in instr.operands)
    return Effect.PRINT in instr.effects or (strong and not instr.space.startswith("shared"))


PROGRAMS: WeakValueDictionary[int, Program] = WeakValueDictionary()  # complete programs by serial number
_serials = count()


def next_serial() -> int:
    """A number above the numbers of all programs."""
    return next(_serials)
