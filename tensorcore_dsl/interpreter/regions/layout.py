"""Layout of the words of a frame, by which a machine passes data to the code of a region."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.regions.plan import NO_SLOT, PRODUCTS, SPECIAL_REGISTER, MicroOp, Region, Slot
from tensorcore_dsl.isa.lanes import (
    COPY,
    LOAD_GLOBAL,
    LOAD_SHARED,
    STORE_GLOBAL,
    STORE_SHARED,
    LaneAccess,
    operation,
)

# Words of a frame.
(
    ACTIVE,  # address of the flags of the active threads
    ENTRY,  # number of the block at which they start
    MEMORY,  # address of the words of `memory.Memories`
    COUNTERS,  # address of the counters: see `FrameLayout`
    LEAVING,  # address of the flags of threads that leave, by exit
    MISTAKE,  # address of the first mistake
    KEPT,  # address of the table of kept registers: see `memory.merge`
    BUDGET,  # backward jumps of a warp before other warps run
    WARPS,  # warps of a CTA
    GLOBAL,  # address of `memory.global_access`
    SHARED,  # address of `memory.shared_access`
    MATRIX,  # address of `memory.matrix_access`
    ASYNC,  # address of `memory.async_copy`
    MERGE,  # address of `memory.merge`
    FINISH,  # address of the function that finishes products
    FIRST,  # the first of `FrameLayout.words`
) = range(16)
# The first mistake: its position, its code and thread, and the lanes of its warp.
POSITION, WRONG, LANES_THERE, NOTED = range(4)
REFERENCE = "reference"  # kind of a word: an address to which the code of an operation refers
CHECK = 63  # code of a failed check of an operation; accesses have other codes
Key = tuple[int, int, int]  # a slot: vreg, register, bytes

HELPERS = {LOAD_GLOBAL: GLOBAL, STORE_GLOBAL: GLOBAL, LOAD_SHARED: SHARED, STORE_SHARED: SHARED}
# Numbers of a micro-operation that accesses memory: what is added to the address, whether addresses of
# the own CTA may hold its rank; of a copy: what is added to its target and to its source, and its bytes.
OFFSET, RANKED = range(2)
TO_OFFSET, FROM_OFFSET, SIZE = range(3)


def helper(how: LaneAccess) -> int:
    """The word of the function for an access."""
    return HELPERS.get(how.kind, ASYNC if how.kind == COPY else MATRIX)


def _group(slot: Slot, count: int) -> tuple[Slot, ...]:
    """Registers of a group, from one on."""
    return tuple((slot[0], slot[1] + i, slot[2]) for i in range(count))


def results(micro_op: MicroOp) -> tuple[Slot, ...]:
    """The registers that a micro-operation writes."""
    if micro_op.name == PRODUCTS:
        return micro_op.slots[: micro_op.numbers[0]]
    if micro_op.slots[0] == NO_SLOT:
        return ()
    how = micro_op.access
    return _group(micro_op.slots[0], 1 if how is None else how.words if how.kind in HELPERS else 4)


def operands(micro_op: MicroOp) -> tuple[Slot, ...]:
    """The registers, and constants, that a micro-operation reads."""
    if micro_op.name == PRODUCTS:
        return micro_op.slots[micro_op.numbers[0] :]
    if micro_op.access is None or micro_op.access.kind not in (STORE_GLOBAL, STORE_SHARED):
        return micro_op.slots[1:]
    return (micro_op.slots[1], *_group(micro_op.slots[2], micro_op.access.words))


class FrameLayout:
    """Meaning of the words of a region's frame from FIRST on, and of its counters.

    The counters of a block are the warps that executed it, their lanes, and the most jumps of a warp
    back to it. After all blocks come the lanes that leave at each of `stops`, and the lanes of each guarded
    access.

    Attributes
    ----------
    region : Region
        The region.
    constants : dict
        Constants, by vreg.
    parameters : set
        Vregs of parameters that nothing writes.
    words : dict
        Number of the word of a slot, of (REFERENCE, function, number), ("copy", position, number),
        (SPECIAL_REGISTER, register, number), or (PRODUCTS, position, number).
    fixed : list
        Slots of parameters, whose values are their words.
    inputs : list
        Special registers, each with the first of two words: the address of its values, and their
        distance by CTA in bytes.
    written : set
        Registers that the region writes.
    registers : tuple of arrays
        Places of registers, bytes of a thread before each in its group, and their words.
    kept : tuple of lists
        Words and sizes of the registers that the region stores.
    stops : tuple of int
        Positions where threads may leave or stop.
    guarded : dict
        By position of a guarded access, its counter.
    """

    def __init__(self, region: Region, constants: dict[int, int], parameters: frozenset[int]) -> None:
        self.region, self.constants, self.parameters = region, constants, parameters
        self.words: dict[Any, int] = {}
        self.written: set[Slot] = set()
        guarded: list[int] = []
        for block in region.blocks:
            for at, micro_op in block.micro_ops:
                self.written.update(results(micro_op))
                for slot in (*results(micro_op), *operands(micro_op)):
                    if slot[0] not in constants:
                        self._add(slot)
                if micro_op.guard is not None:
                    self._add((micro_op.guard[0], 0, 1))
                    guarded.append(at)
                if micro_op.name == SPECIAL_REGISTER:
                    for number in range(2):
                        self._add((SPECIAL_REGISTER, micro_op.function, number))
                elif micro_op.name == PRODUCTS:
                    for number in range(2):
                        self._add((PRODUCTS, at, number))
                elif micro_op.function:
                    for number in range(operation(micro_op.name, micro_op.bits).literals):
                        self._add((REFERENCE, micro_op.function, number))
                if micro_op.access is not None and micro_op.access.kind == COPY:
                    for number in range(4):
                        self._add(("copy", at, number))
            if block.jump is not None and block.jump[1] is not None:
                self._add((block.jump[1], 0, 1))
        numbers = [(w, n) for w, n in self.words.items() if isinstance(w[0], int)]
        self.fixed = [(w, n) for w, n in numbers if w[0] in parameters]
        slots = [(w, n) for w, n in numbers if w[0] not in parameters]
        self.inputs = [(w[1], n) for w, n in self.words.items() if w[0] == SPECIAL_REGISTER and w[2] == 0]
        self.products = [(w[1], n) for w, n in self.words.items() if w[0] == PRODUCTS and w[2] == 0]
        self.references = [(w, n) for w, n in self.words.items() if w[0] == REFERENCE]
        self.registers = tuple(
            np.array(column, np.int64)
            for column in ([w[0] for w, _ in slots], [w[1] * w[2] for w, _ in slots], [n for _, n in slots])
        )
        kept = [(n, w[2]) for w, n in slots if w[0] in region.kept and w in self.written]
        self.kept = [n for n, _ in kept], [size for _, size in kept]
        blocks = region.blocks if region.stops else ()
        self.stops = (*region.exits, *(block.start for block in blocks))
        first = 3 * len(region.blocks) + len(self.stops)
        self.guarded = {at: first + i for i, at in enumerate(guarded)}
        self.counters = first + len(guarded)

    def _add(self, word: Any) -> None:
        self.words.setdefault(word, FIRST + len(self.words))
