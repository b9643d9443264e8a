"""Semantics of the instructions on scalar registers, as functions from raw bits to raw bits.

The arithmetic is in `tensorcore_dsl.numerics`, which is imported when an instruction first runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.isa.context import Context, active_threads
from tensorcore_dsl.isa.spec import Instruction

Bits = np.ndarray
WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def integer(ctx: Context, instr: Instruction, *operands: Any) -> Bits:
    """Two's complement arithmetic, logic, shifts, permutations and bit counts."""
    return _integer(instr)(*operands)


@cache
def _integer(instr: Instruction) -> Callable[..., Bits]:
    from tensorcore_dsl.numerics import integer as numerics

    p = instr.params
    op = f"{instr.opcode}.{p['m'].lstrip('.')}" if p.get("m") else instr.opcode
    kind = f"{p['t']}.{p['u']}" if "u" in p else p["t"]
    flags = {name: bool(p.get(name)) for name in ("sat", "relu")}
    return numerics.instruction(op, kind, **flags)


UNSET = 2  # a condition code that no instruction has written


def carrying(ctx: Context, instr: Instruction, a: Bits, b: Bits, *c: Bits) -> Bits:
    """add, sub and mad that read or write the carry of each thread (9.7.2).

    A difference is a sum with all bits of b inverted and a carry in. A carry out means no borrow, as on an
    H200. So sums and differences can follow each other.
    """
    from tensorcore_dsl.numerics import integer as numerics

    op, kind = instr.opcode, instr.params["t"]
    if c:
        a, b = numerics.instruction(f"mul{instr.params['m']}", kind)(a, b), c[0]
    a, b = np.broadcast_arrays(a, b, np.empty(ctx.threads))[:2]
    active = active_threads(ctx)
    carry_in = np.full(ctx.threads, op == "sub", a.dtype)
    if op.endswith("c"):
        if (ctx.carry[active] == UNSET).any():
            raise EmulationError(f"{instr} reads a carry, which no instruction with .cc has written")
        carry_in[active] = ctx.carry[active]
    result = a + (~b if op.startswith("sub") else b) + carry_in
    if instr.params["cc"]:
        over = (result < a) | ((result == a) & (carry_in > 0))
        ctx.carry[active] = over[active]
    return np.asarray(result)


def boolean(ctx: Context, instr: Instruction, *operands: Any) -> Bits:
    """Logic on predicates."""
    result: Bits = _COMBINE[instr.opcode](*operands)
    return result


def floating(ctx: Context, instr: Instruction, *operands: Any) -> Bits:
    """IEEE and approximate arithmetic."""
    from tensorcore_dsl.numerics import scalar

    p = instr.params
    op = instr.opcode + p.get("x", "") + ("." + p["cls"] if "cls" in p else "")
    flags = {name: bool(p.get(name)) for name in ("ftz", "sat", "relu", "nan", "oob")}
    return scalar.arith(op, p["t"], *operands, rounding=p.get("rnd", "").lstrip(".") or None, **flags)


def compare(ctx: Context, instr: Instruction, a: Bits, b: Bits, *condition: Bits) -> Any:
    """setp: one predicate, or one per half of packed types."""
    from tensorcore_dsl.numerics import scalar

    p = instr.params
    result = scalar.compare(p["cmp"], p["t"], a, b, bool(p.get("ftz")))
    return _COMBINE[p["bool"]](result, condition[0]) if condition else result


_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not}


def select(ctx: Context, instr: Instruction, a: Bits, b: Bits, c: Bits) -> Bits:
    """selp by a predicate, slct by a sign; -0.0 and flushed numbers count as >= 0."""
    by = instr.params.get("by")
    if by == "s32":
        c = c >> np.uint32(31) == 0
    elif by == "f32":
        magnitude = c & np.uint32(0x7FFFFFFF)
        zero = magnitude < 0x00800000 if instr.params["ftz"] else magnitude == 0
        negative = c >> np.uint32(31) == 1
        c = (zero | ~negative) & (magnitude <= 0x7F800000)
    return np.where(c, a, b)


def lookup(ctx: Context, instr: Instruction, *operands: Any) -> Any:
    """lop3; with a predicate, also `d != 0` combined with it."""
    from tensorcore_dsl.numerics import integer as numerics

    d = numerics.instruction("lop3", "b32")(*operands[:4])
    if len(operands) == 4:
        return d
    return d, _COMBINE[instr.params["bool"]](d != 0, operands[4])


def copy(ctx: Context, instr: Instruction, a: Bits) -> Bits:
    return np.array(a)


def pack(ctx: Context, instr: Instruction, *elements: Bits) -> Bits:
    """Vector to scalar, the first element lowest."""
    bits = instr.results[0].register_bits
    result: Any = WORDS[bits](0)
    for i, element in enumerate(elements):
        result = result | element.astype(WORDS[bits]) << WORDS[bits](i * (bits // len(elements)))
    return result  # type: ignore[no-any-return]


def unpack(ctx: Context, instr: Instruction, a: Bits) -> tuple[Bits, ...]:
    """Scalar to vector, the lowest part first."""
    count = len(instr.results)
    width = a.dtype.itemsize * 8 // count
    return tuple((a >> a.dtype.type(width * i)).astype(WORDS[width]) for i in range(count))
