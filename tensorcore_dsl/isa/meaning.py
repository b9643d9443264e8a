"""What the rows for one thread's registers mean: raw bits in, raw bits out.

The arithmetic itself lives in `tensorcore_dsl.numerics`, which is loaded when a form first runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.spec import Instruction

Bits = np.ndarray


def integer(ctx: Context, form: Instruction, *operands: Any) -> Bits:
    """Two's complement arithmetic, shifts and bit counts."""
    from tensorcore_dsl.numerics import integer as numerics

    p = form.params
    op = f"{form.opcode}.{p['m'].lstrip('.')}" if p.get("m") else form.opcode
    kinds = f"{p['t']}.{p['u']}" if "u" in p else p["t"]
    return numerics.execute(
        op, kinds, *operands, sat=bool(p.get("sat")), relu=bool(p.get("relu"))
    )


def floating(ctx: Context, form: Instruction, *operands: Any) -> Bits:
    """IEEE and approximate arithmetic; f32x2 is done as twice as many f32."""
    p = form.params
    if p["t"] == "f32x2":
        halves = [np.ascontiguousarray(_whole(ctx, o)).view(np.uint32) for o in operands]
        return _arith(form, "f32", halves).view(np.uint64)
    return _arith(form, p["t"], operands)


def mixed(ctx: Context, form: Instruction, *operands: Any) -> Bits:
    """f32 arithmetic with f16 or bf16 sources: conversion up is exact."""
    from tensorcore_dsl.numerics import convert

    source = form.params["s"]
    wide = [convert.convert(o, source, "f32", "rn") for o in operands[:-1]]
    return _arith(form, "f32", [*wide, operands[-1]])


def _arith(form: Instruction, kind: str, operands: Any) -> Bits:
    from tensorcore_dsl.numerics import scalar

    p = form.params
    rounding, op = p.get("rnd", "").lstrip("."), form.opcode
    if rounding in ("approx", "full"):
        op, rounding = f"{op}.{rounding}", ""
    op += p.get("x", "") + ("." + p["cls"] if "cls" in p else "")
    flags = {name: bool(p.get(name)) for name in ("ftz", "sat", "relu", "nan")}
    return scalar.arith(op, kind, *operands, rounding=rounding or "rn", **flags)


def compare(ctx: Context, form: Instruction, a: Bits, b: Bits, *condition: Bits) -> Any:
    """setp: predicates; packed types give one for each half."""
    from tensorcore_dsl.numerics import scalar

    p, ftz = form.params, bool(form.params.get("ftz"))
    kind = p["t"].removesuffix("x2")
    halves = [(a, b)] if kind == p["t"] else list(zip(_split(a, 2), _split(b, 2), strict=True))
    found = [scalar.compare(p["cmp"], kind, x, y, ftz) for x, y in halves]
    if condition:
        found = [_BITWISE[p["bool"]](f, condition[0]) for f in found]
    return found[0] if len(found) == 1 else tuple(found)


def select(ctx: Context, form: Instruction, a: Bits, b: Bits, c: Bits) -> Bits:
    """selp by a predicate, slct by a sign: -0.0 and every flushed number count as >= 0."""
    by = form.params.get("by")
    if by == "s32":
        c = np.asarray(c, np.uint32) >> 31 == 0
    elif by == "f32":
        magnitude = np.asarray(c, np.uint32) & 0x7FFFFFFF
        zero = magnitude < 0x00800000 if form.params["ftz"] else magnitude == 0
        negative = np.asarray(c, np.uint32) >> 31 == 1
        c = (zero | ~negative) & (magnitude <= 0x7F800000)
    return np.where(c, a, b)


_BITWISE = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "cnot": lambda a: (a == 0).astype(np.asarray(a).dtype),
}


def logic(ctx: Context, form: Instruction, *operands: Bits) -> Bits:
    return np.asarray(_BITWISE[form.opcode](*operands))


def lookup3(ctx: Context, form: Instruction, a: Bits, b: Bits, c: Bits, lut: int) -> Bits:
    """lop3: bit i of the result is bit (a_i b_i c_i) of the table."""
    a, b, c = (np.asarray(x, np.uint32) for x in (a, b, c))
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
    for minterm in range(8):
        if lut >> minterm & 1:
            terms = (x if minterm >> bit & 1 else ~x for bit, x in ((2, a), (1, b), (0, c)))
            result |= np.bitwise_and.reduce(np.broadcast_arrays(*terms))
    return result


def funnel_shift(ctx: Context, form: Instruction, a: Bits, b: Bits, n: Bits) -> Bits:
    """shf: 32 bits of the 64-bit word b:a."""
    direction, mode = form.params["m"].split(".")
    word = np.asarray(b, np.uint64) << np.uint64(32) | np.asarray(a, np.uint64)
    n = np.asarray(n, np.uint64)
    n = np.minimum(n, np.uint64(32)) if mode == "clamp" else n & np.uint64(31)
    shift = n if direction == "r" else np.uint64(32) - n
    return (word >> shift & np.uint64(0xFFFFFFFF)).astype(np.uint32)


# Byte numbers, low to high, for each value of the two selector bits (table of 9.7.9.7).
_PERMUTE_MODES = {
    ".f4e": ("0123", "1234", "2345", "3456"),
    ".b4e": ("0765", "1076", "2107", "3210"),
    ".rc8": ("0000", "1111", "2222", "3333"),
    ".ecl": ("0123", "1123", "2223", "3333"),
    ".ecr": ("0000", "0111", "0122", "0123"),
    ".rc16": ("0101", "2323", "0101", "2323"),
}


def permute(ctx: Context, form: Instruction, a: Bits, b: Bits, c: Bits) -> Bits:
    """prmt: bytes of b:a, each a copy or eight times its sign."""
    word = np.asarray(b, np.uint64) << np.uint64(32) | np.asarray(a, np.uint64)
    selector = np.asarray(c, np.uint32)
    if form.params["m"]:
        table = [int(s[::-1], 16) for s in _PERMUTE_MODES[form.params["m"]]]
        selector = np.array(table, np.uint32)[selector & 3]
    result = np.zeros(np.broadcast_shapes(word.shape, selector.shape), np.uint32)
    for byte in range(4):
        nibble = selector >> np.uint32(4 * byte) & np.uint32(15)
        value = (word >> (nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8)).astype(np.uint32)
        value = value & np.uint32(0xFF)
        sign = np.where(value & 0x80, np.uint32(0xFF), np.uint32(0))
        result |= np.where(nibble & 8, sign, value) << np.uint32(8 * byte)
    return result


def copy(ctx: Context, form: Instruction, a: Bits) -> Bits:
    return np.array(a)


_WORDS = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def pack(ctx: Context, form: Instruction, *parts: Bits) -> Bits:
    """Vector to scalar, first part lowest."""
    bits = form.results[0].register_bits
    result: Any = _WORDS[bits](0)
    for i, part in enumerate(parts):
        result = result | np.asarray(part, _WORDS[bits]) << _WORDS[bits](i * (bits // len(parts)))
    return np.asarray(result)


def unpack(ctx: Context, form: Instruction, a: Bits) -> tuple[Bits, ...]:
    return tuple(_split(a, len(form.results)))


def _split(a: Bits, count: int) -> list[Bits]:
    """Equal parts of a word, lowest first."""
    a = np.asarray(a)
    width = a.dtype.itemsize * 8 // count
    return [(a >> a.dtype.type(width * i)).astype(_WORDS[width]) for i in range(count)]


def _whole(ctx: Context, value: Any) -> Bits:
    """A constant as one value for each thread."""
    return np.broadcast_to(value, (ctx.threads,))
