"""Random calls of `tc.emulate` over the whole table."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.isa.spec import Instruction, Operand

ARCHS = ("sm_80", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a")
NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 7, 15, 16, 31, 32, 33, 255, -1, -2, 4096, 4095, 1 << 24, (1 << 24) + 8, 1 << 31, (1 << 32) - 1,
    (1 << 32) - 16, 1 << 40, 3 << 39, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 200, -(1 << 63),
    -(1 << 100), 0.0, -0.0, 0.5, 1.5, 1e-45, 65504.0, 1e38, 1e308, float("nan"), float("inf"),
    -float("inf"), True, False, np.float32(2.5), np.int8(-3), np.uint64(1 << 63), np.bool_(True),
    ml_dtypes.bfloat16(1.5), 10**400, np.longdouble(2), np.complex64(1),
)  # fmt: skip
THINGS: tuple[Any, ...] = (
    None, "1", b"1", [1, 2], (1, 2), (), {}, object(), 1j, slice(3), np.array(3), np.array([]), np.array("x"),
    np.array([None] * 32, object), np.zeros(32, np.float16), np.zeros((0, 32), np.uint32), range(32),
    np.zeros((32, 0), np.uint32), np.zeros(32, "datetime64[s]"), np.array(3, np.uint8), np.array(3, np.uint32), np.zeros(32, [("a", "u4")]), Ellipsis,
)  # fmt: skip
BATCHES = ((), (), (), (1,), (2,), (3,), (2, 3), (0,), (1, 1, 1))


@cache
def table() -> dict[str, list[Instruction]]:
    return {opcode: list(isa.instructions(opcode)) for opcode in isa.opcodes()}


def prepare() -> None:
    """What takes long, before the time of the cases is counted."""
    table()


def case(draw: random.Random) -> None:
    instr = draw.choice(table()[draw.choice(list(table()))])
    text: Any = instr if draw.random() < 0.3 else instr.mnemonic
    if draw.random() < 0.03:
        text = draw.choice([*THINGS, *NUMBERS, "", ".", "mma", instr.mnemonic[:-2], instr.mnemonic + ".x"])
    size = draw.choice((0, 1, 8, 16, 100, 128, 256, 1024, 4096, 1 << 16))
    batch = draw.choice(BATCHES)
    operands = [operand(draw, instr, o, batch, size) for o in instr.operands]
    if draw.random() < 0.03:
        operands = operands[:-1]
    if draw.random() < 0.02:
        operands.append(draw.choice(NUMBERS))
    shared: Any = np.frombuffer(draw.randbytes(size), np.uint8)
    if draw.random() < 0.2:
        shared = np.broadcast_to(shared, (*draw.choice(BATCHES), size))
    if draw.random() < 0.15:
        shared = None
    elif draw.random() < 0.03:
        shared = draw.choice(THINGS)
    arch: Any = draw.choice(ARCHS) if draw.random() < 0.6 else "sm_90a"
    if draw.random() < 0.02:
        arch = draw.choice(("sm_1", "", None, 90, [], "sm_90b"))
    tc.emulate(text, *operands, arch=arch, shared=shared)


def operand(draw: random.Random, instr: Instruction, o: Operand, batch: tuple[int, ...], size: int) -> Any:
    kind = draw.random()
    if kind < 0.02:
        return draw.choice(THINGS)
    if o.kind == "imm":
        values = (*(o.values or ()), *range(5))
        return draw.choice(values) if kind < 0.85 else draw.choice(NUMBERS)
    group = o.registers > 1 or o.is_fragment
    if not group and kind < 0.35:
        return draw.choice(NUMBERS)
    tail = (instr.threads, o.registers) if group else (instr.threads,)
    shape = (*batch, *tail)
    if kind < 0.05:
        shape = draw.choice(((), (31,), (64,), (*shape, 1), shape[:-1], (5, *shape), (*shape, 2)))
    if o.register_bits == 1:
        return np.frombuffer(draw.randbytes(int(np.prod(shape))), np.uint8).reshape(shape) > 100
    return bits(draw, shape, o, size)


def bits(draw: random.Random, shape: tuple[int, ...], o: Operand, size: int) -> np.ndarray:
    """Register images: addresses near what `size` bytes hold, or bits of any kind."""
    kind = np.dtype(f"u{max(o.register_bits, 8) // 8}")
    count = int(np.prod(shape))
    if o.kind == "addr" or draw.random() < 0.2:
        unit = draw.choice((1, 2, 4, 8, 16, 128))
        low, high = draw.choice(((0, size), (max(size - 64, 0), size + 16), (0, 1 << 8 * kind.itemsize)))
        values = [draw.randrange(low, high + 1) // unit * unit for _ in range(count)]
        top = (1 << 8 * kind.itemsize) - 1
        return np.array([min(v, top) for v in values], kind).reshape(shape)
    array = np.frombuffer(draw.randbytes(count * kind.itemsize), kind).reshape(shape)
    style = draw.randrange(4)
    if style == 0:
        return array
    if style == 1:
        return array.view(f"i{kind.itemsize}")
    odd = [
        0,
        (1 << 8 * kind.itemsize) - 1,
        1 << (8 * kind.itemsize - 1),
        1,
        0x7F80 << 8 * (kind.itemsize - 2),
    ]
    chosen = np.array([v % (1 << 8 * kind.itemsize) for v in odd], kind)[array % 5]
    return chosen[..., ::-1] if style == 3 and shape else np.asfortranarray(chosen)
