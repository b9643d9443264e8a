"""Mutants of kernels: the same IR without one of its synchronisations, or with a weaker one.

All instructions of one line and one kind change together, as if the line had been edited. What a
mutant does is found out by running it: `survives`.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.interpreter import compile_program
from tensorcore_dsl.ir.nodes import Block, Const, Node, Op, Type, Value, While
from tensorcore_dsl.isa import lookup

SYNCHRONISING = (
    "bar.", "barrier.", "fence.", "griddepcontrol.", "mbarrier.", "cp.async.wait_", "cp.async.commit_",
    "cp.async.mbarrier.", "cp.async.bulk.wait_", "cp.async.bulk.commit_", "wgmma.fence",
    "wgmma.commit_", "wgmma.wait_",
)  # fmt: skip
Places = list[tuple[Block, Node]]  # nodes, and the blocks that they stand in


@dataclass(frozen=True)
class Mutant:
    """What changes, in words; `edit` changes the nodes at `places` in their blocks."""

    says: str
    places: Places
    edit: Callable[[Block, Any], None]

    def __str__(self) -> str:
        return self.says


def mutants_of(body: Block) -> Iterator[Mutant]:
    """The mutants of a kernel's body."""
    mutants: dict[str, Places] = {}
    for block in _blocks(body):
        for node in block.nodes:
            op = _waits(node) if isinstance(node, While) else node
            if isinstance(op, Op) and op.instr.mnemonic.startswith(SYNCHRONISING):
                loc = node.loc or op.loc
                assert loc is not None
                line = linecache.getline(loc.filename, loc.line).strip()
                opcode = ".".join(op.instr.mnemonic.split(".")[:3])
                mutants.setdefault(f"{loc.function}: {line} ({opcode})", []).append((block, node))
    for where, places in mutants.items():
        for what, edit in _edits(places[0][1]):
            yield Mutant(f"{where}: {what}", places, edit)


@contextlib.contextmanager
def applied(specialisation: Any, mutant: Mutant) -> Iterator[None]:
    """The specialisation with the mutant's IR and program."""
    blocks = {id(block): block for block, _ in mutant.places}.values()
    inside = [node.test for _, node in mutant.places if isinstance(node, While)]
    nodes = [(block, block.nodes.copy()) for block in (*blocks, *inside)]
    operands = [(op, op.operands) for _, kept in nodes for op in kept if isinstance(op, Op)]
    program = specialisation.program
    try:
        for block, node in mutant.places:
            mutant.edit(block, node)
        specialisation.__dict__["program"] = compile_program(specialisation.ir)
        yield
    finally:
        specialisation.__dict__["program"] = program
        for block, kept in nodes:
            block.nodes = kept
        for op, kept_operands in operands:
            op.operands = kept_operands


def survives(specialisation: Any, mutant: Mutant, run: Callable[[], np.ndarray], wanted: np.ndarray) -> bool:
    """Tell whether `run` with the mutant gives the bits that are wanted, and no error."""
    with applied(specialisation, mutant):
        try:
            return run().tobytes() == wanted.tobytes()
        except TensorCoreError:
            return False


def _blocks(block: Block) -> Iterator[Block]:
    """The block and those inside; a loop that waits is one instruction."""
    yield block
    for node in block.nodes:
        if isinstance(node, While) and _waits(node) is not None:
            continue
        for part in vars(node).values():
            if isinstance(part, Block):
                yield from _blocks(part)


def _waits(loop: While) -> Op | None:
    """The instruction by which a loop polls an mbarrier, if it does nothing else."""
    tests = [n for n in loop.test if isinstance(n, Op) and n.instr.mnemonic.startswith("mbarrier.")]
    return tests[0] if tests and not loop.body.nodes else None


def _edits(node: Any) -> Iterator[tuple[str, Callable[[Block, Any], None]]]:
    if isinstance(node, While):
        yield "deleted", _delete
        yield "other parity", _other_parity
        return
    if not node.results:
        yield "deleted", _delete
    mnemonic, last = node.instr.mnemonic, node.operands[-1] if node.operands else None
    if isinstance(last, Const):
        if "wait_group" in mnemonic:
            yield "one more pending", _changed(1)
        elif mnemonic.startswith("mbarrier.init"):
            yield "one more arrival", _changed(1)
            yield "one arrival less", _changed(-1)
        elif "expect_tx" in mnemonic:
            yield "16 bytes more", _changed(16)
            yield "16 bytes less", _changed(-16)


def _delete(block: Block, node: Node) -> None:
    block.nodes = [n for n in block.nodes if n is not node]


def _changed(by: int) -> Callable[[Block, Op], None]:
    def change(block: Block, op: Op) -> None:
        last = op.operands[-1]
        assert isinstance(last, Const)
        op.operands = (*op.operands[:-1], replace(last, value=last.value + by))

    return change


_new = itertools.count(10**6)


def _other_parity(block: Block, loop: While) -> None:
    op = _waits(loop)
    assert op is not None
    flipped = Value(next(_new), Type(tc.u32))
    xor = lookup.instruction("xor.b32")
    flip = Op(xor, (flipped,), (op.operands[-1], Const(1, tc.u32)), loc=op.loc)
    at = loop.test.nodes.index(op)
    loop.test.nodes = [*loop.test.nodes[:at], flip, *loop.test.nodes[at:]]
    op.operands = (*op.operands[:-1], flipped)
