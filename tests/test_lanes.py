"""Runs of instructions of single threads: compiled code gives the bits of each `execute`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorcore_dsl import isa
from tensorcore_dsl.interpreter.core.geometry import Geometry, SpecialRegisters
from tensorcore_dsl.interpreter.core.program import Program, word
from tensorcore_dsl.interpreter.core.threads import Mask
from tensorcore_dsl.interpreter.regions import layout, plan
from tensorcore_dsl.interpreter.regions.code import RegionCode
from tensorcore_dsl.interpreter.regions.frame import NEVER, ProductFallback, RegionFrame
from tensorcore_dsl.ir.nodes import Block, Kernel
from tensorcore_dsl.isa import bounds
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.lanes import operations
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.numerics.lanes import OPERATIONS

COMPILED = [instr for instr in isa.instructions() if operations(instr)]
OF_THREADS = [instr for instr in COMPILED if Effect.CONVERGENT not in instr.effects]
OF_WARPS = [instr for instr in COMPILED if Effect.CONVERGENT in instr.effects]
CHECKS = [bounds.instruction(f"check.index.{name}") for name in bounds.TYPES]
THREADS = 4096
EVERY = Mask(np.ones(THREADS, bool))
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
    anything = (
        rng.integers(0, 1 << bits, THREADS, kind, endpoint=False)
        if bits < 64
        else (rng.integers(0, 1 << 63, THREADS, np.uint64) * np.uint64(2) + np.uint64(1))
    )
    return np.choose(rng.integers(0, 3, THREADS), [corners, near, anything])


def run_rows(rows: list[plan.MicroOp], arrays: list[np.ndarray], mask: np.ndarray) -> list[int]:
    """Execute rows, each a step of its own, on arrays by place; what is noted of a mistake."""
    steps = [(at, row) for at, row in enumerate(rows)]
    kept = frozenset(range(len(arrays)))
    block = plan.RegionBlock(0, len(rows), tuple(steps))
    region = plan.Region(0, len(rows), (block,), (len(rows),), {0: kept}, kept, kept, kept, kept)
    addresses = np.array([array.ctypes.data for array in arrays])
    code = RegionCode(Program(Kernel("one", [], Block())), [region])
    registers: Any = SimpleNamespace(chunk=SimpleNamespace(threads=THREADS), addresses=addresses, fixed={})
    special = SpecialRegisters(Geometry((1, 1, 1), (THREADS, 1, 1), 0, 1, 0, 0))
    rest = ProductFallback(THREADS // 32)
    frame = RegionFrame(registers, special, np.zeros(1, np.int64), rest, code, region, {})
    frame.words[layout.ACTIVE] = mask.ctypes.data
    failed = frame.call(frame.address, 0, THREADS)
    assert failed == (frame.mistake[layout.POSITION] != NEVER)
    return frame.mistake.tolist()


def execute(
    cases: list[tuple[Instruction, list[np.ndarray], dict[int, int]]], mask: np.ndarray
) -> list[list[np.ndarray]]:
    """The results of the compiled forms of instructions, zero where `mask` is not set."""
    rows: list[plan.MicroOp] = []
    arrays: list[np.ndarray] = []
    found = []
    for instr, operands, immediate in cases:
        results = [np.zeros(THREADS, word(o.register_bits)) for o in instr.results]
        slots = []
        for array in (*results, *operands):
            slots.append((len(arrays), 0, array.itemsize))
            arrays.append(array)
        given = iter(slots[len(results) :])
        sides = [plan.NO_SLOT if i in immediate else next(given) for i in range(len(instr.operands))]
        made = plan.instruction_ops(instr, slots[: len(results)], sides, immediate)
        assert made, f"{instr.mnemonic} has no compiled form for its own registers"
        rows += made
        found.append(results)
    assert run_rows(rows, arrays, mask)[layout.POSITION] == NEVER
    return found


def check(cases: list[tuple[Instruction, list[np.ndarray], dict[int, int]]], masks: list[np.ndarray]) -> None:
    context: Any = SimpleNamespace(threads=THREADS, active=None, exited=None, units=EVERY.units)
    wanted = []
    for instr, operands, immediate in cases:
        given = iter(operands)
        sides = [immediate[i] if i in immediate else next(given) for i in range(len(instr.operands))]
        with np.errstate(all="ignore"):
            answer = instr.execute(context, instr, *sides)
        wanted.append(answer if isinstance(answer, tuple) else (answer,))
    for mask in masks:
        for (instr, *_), found, results in zip(cases, execute(cases, mask), wanted, strict=True):
            for one, result in zip(found, results, strict=True):
                bits = np.asarray(result).view(one.dtype)
                np.testing.assert_array_equal(one, np.where(mask, bits, one.dtype.type(0)), instr.mnemonic)


def in_parts(instructions: list[Instruction], size: int = 32) -> list[Any]:
    """Instructions of one opcode, a few at a time."""
    of: dict[str, list[Instruction]] = {}
    for instr in instructions:
        of.setdefault(instr.opcode, []).append(instr)
    return [
        pytest.param(some[at : at + size], id=f"{opcode}-{at}")
        for opcode, some in of.items()
        for at in range(0, len(some), size)
    ]


@pytest.mark.quick(lambda some: some[0].opcode)
@pytest.mark.parametrize("some", in_parts(OF_THREADS))
def test_compiled_instructions_agree_with_execute(some):
    rng = np.random.default_rng(len(some[0].mnemonic))
    cases = [(instr, [values(o.register_bits, rng) for o in instr.operands], {}) for instr in some]
    lanes = rng.random(THREADS) < 0.7
    lanes[:512], lanes[512:1024] = False, True
    check(cases, [EVERY.threads, lanes])


@pytest.mark.parametrize("mnemonic", ["lop3.b32", "lop3.or.b32", "lop3.and.b32"])
def test_an_instruction_with_an_immediate_operand(mnemonic):
    rng, instr = np.random.default_rng(1), isa.instruction(mnemonic)
    kinds = [o.register_bits for o in instr.operands if o.kind != "imm"]
    cases = [
        (instr, [values(bits, rng) for bits in kinds], {3: table}) for table in (0, 0x96, 0xE8, 0x1B, 255)
    ]
    check(cases, [EVERY.threads])


def test_what_computes_with_registers_alone_has_a_compiled_form():
    """But for special registers, and what refers to the memory of a machine."""
    missing = {
        instr.opcode
        for instr in isa.instructions()
        if not instr.effects and instr not in COMPILED and "s2f6" not in instr.mnemonic
        if not any(o.kind == "imm" for o in instr.operands)
    }
    assert missing == {"mov", "createpolicy", "cvta", "shared"}


@pytest.mark.parametrize("instr", OF_WARPS, ids=lambda instr: instr.mnemonic)
def test_an_instruction_of_warps(instr):
    rng = np.random.default_rng(len(instr.mnemonic))
    operands = [values(o.register_bits, rng) for o in instr.operands]
    if "vote" in instr.mnemonic:  # not all warps have lanes that differ
        operands[0][1024:2048] = True
        operands[0][2048:3072] = False
    operands[-1][:] = 0xFFFFFFFF
    masks = [EVERY.threads, np.repeat(rng.random(THREADS // 32) < 0.5, 32)]
    check([(instr, operands, {})], masks)


@pytest.mark.parametrize("instr", CHECKS, ids=lambda instr: instr.mnemonic)
@pytest.mark.parametrize("count", [1, 4, 2**31 - 1])
def test_a_check(instr, count):
    """The first active thread that `execute` refuses is the first that compiled code refuses."""
    rng, bits = np.random.default_rng(count), instr.operands[1].register_bits
    refused: list[np.ndarray] = []
    for _ in range(20):
        index, extent = values(bits, rng), values(bits, rng)
        mask = rng.random(THREADS) < rng.random()
        first = rng.integers(0, THREADS)
        index[:first], extent[:first] = 3, 7
        mask[:first] &= count < 5

        def refuse(text: int, outside: np.ndarray, at: np.ndarray, end: np.ndarray) -> None:
            refused.append(outside)

        context: Any = SimpleNamespace(threads=THREADS, active=mask, refuse_index=refuse)
        refused.clear()
        bounds.execute(context, instr, 0, index, extent, count)
        slots = [plan.NO_SLOT, (0, 0, bits // 8), (1, 0, bits // 8), plan.NO_SLOT]
        rows = plan.instruction_ops(instr, [], slots, {0: 0, 3: count})
        at, wrong, lanes = run_rows(rows, [index, extent], mask)
        if refused:
            thread = int(np.argmax(refused[0]))
            assert (at, wrong) == (0, layout.CHECK << 32 | thread)
            first = thread // 32 * 32
            assert lanes == int(np.packbits(mask[first : first + 32], bitorder="little").view("u4")[0])
        else:
            assert at == NEVER


def test_the_first_row_that_fails_counts():
    """A later warp that fails earlier wins, and what a warp that fails has computed is not stored."""
    check, add = CHECKS[0], next(i for i in OF_THREADS if i.mnemonic == "add.s32")
    moved, index, extent = np.zeros((3, THREADS), np.uint32)
    one = np.ones(THREADS, np.uint32)
    extent[:] = 10
    index[100], index[300], index[400], index[1000] = 9, 10, 10, 10
    places = {"moved": 0, "index": 1, "one": 2, "extent": 3}
    slot = lambda name: (places[name], 0, 4)
    check_of = lambda name: plan.instruction_ops(
        check, [], [plan.NO_SLOT, slot(name), slot("extent"), plan.NO_SLOT], {0: 0, 3: 1}
    )
    rows = [
        *plan.instruction_ops(add, [slot("moved")], [slot("index"), slot("one")]),
        *check_of("index"),
        *plan.instruction_ops(add, [slot("moved")], [slot("moved"), slot("one")]),
        *check_of("moved"),
    ]
    at, wrong, _ = run_rows(rows, [moved, index, one, extent], np.ones(THREADS, bool))
    assert (at, wrong & 0xFFFFFFFF) == (1, 300)  # not row 3, where thread 100 fails before
    assert moved[0] == 2 and moved[301] == 0


def test_every_operation_belongs_to_an_instruction():
    used = {(op.name, op.bits) for instr in COMPILED + CHECKS for op in operations(instr) if op.bits}
    of_loops = {(name, bits) for name in ("add", "lt.s", "lt.u") for bits in (16, 32, 64)}
    assert used | of_loops == set(OPERATIONS) and used.isdisjoint(of_loops)
