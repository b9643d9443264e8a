"""Runs of instructions of single threads: compiled code gives the bits of each `execute`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorcore_dsl import isa
from tensorcore_dsl.interpreter.core.program import Program, word
from tensorcore_dsl.interpreter.lanes import runner, runs
from tensorcore_dsl.ir.nodes import Block, Kernel
from tensorcore_dsl.isa.lanes import operations
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.numerics.lanes import OPERATIONS

COMPILED = [instr for instr in isa.instructions() if operations(instr)]
THREADS = 4096
CORNERS = {
    16: [0, 1, 0x7FFF, 0x8000, 0xFFFF, 15, 16, 17],
    32: [
        0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 31, 32, 33, 64, 0x3F800000, 0xBF800000, 0x7F800000,
        0xFF800000, 0x7FC00001, 0xFFA00000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x33800000,
    ],
    64: [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 63, 64, 1 << 32],
}  # fmt: skip


def values(bits: int, rng: np.random.Generator) -> np.ndarray:
    """Random registers, of which two thirds are corners and numbers near to these."""
    if bits == 1:
        return rng.integers(0, 2, THREADS).astype(bool)
    kind = np.dtype(word(bits))
    corners = rng.choice(np.array(CORNERS[bits], kind), THREADS)
    near = corners + rng.integers(-2, 3, THREADS).astype(np.int64).astype(kind)
    anything = rng.integers(0, 1 << bits, THREADS, kind, endpoint=False) if bits < 64 else (
        rng.integers(0, 1 << 63, THREADS, np.uint64) * np.uint64(2) + np.uint64(1)
    )
    return np.choose(rng.integers(0, 3, THREADS), [corners, near, anything])


def execute(instr: Instruction, operands: list[np.ndarray], mask: np.ndarray) -> list[np.ndarray]:
    """The results of the compiled form, zero where `mask` is not set."""
    results = [np.zeros(THREADS, word(o.register_bits)) for o in instr.results]
    arrays = [*results, *operands]
    slots = [(place, 0, array.itemsize) for place, array in enumerate(arrays)]
    rows = runs.instruction_rows(instr, slots[: len(results)], slots[len(results) :])
    assert rows, "it has no compiled form for its own registers"
    program = Program(Kernel("one", [], Block()))
    program.rows = np.array(rows, np.int64)
    addresses = np.array([array.ctypes.data for array in arrays])
    table = runs.located(program.rows, addresses, np.ones_like(addresses), THREADS)
    runner.run(table, mask, bool(mask.all()))
    return results


@pytest.mark.parametrize("instr", COMPILED, ids=lambda instr: instr.mnemonic)
def test_an_instruction(instr: Instruction) -> None:
    rng = np.random.default_rng(len(instr.mnemonic))
    operands = [values(o.register_bits, rng) for o in instr.operands]
    context: Any = None
    with np.errstate(all="ignore"):
        wanted = instr.execute(context, instr, *operands)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    some = rng.random(THREADS) < 0.7
    some[:512], some[512:1024] = False, True
    for mask in (np.ones(THREADS, bool), some):
        for found, result in zip(execute(instr, operands, mask), wanted, strict=True):
            np.testing.assert_array_equal(found, np.where(mask, result, found.dtype.type(0)))


def test_every_operation_belongs_to_an_instruction() -> None:
    used = {(op.name, op.bits) for instr in COMPILED for op in operations(instr)}
    assert used == set(OPERATIONS)
