# mypy: disable-error-code="no-any-return"
"""PTX integer, logic and shift instructions of one thread, on arrays of register bits.

``instruction("mad.hi", "s32", sat=True)(a, b, c)`` is ``mad.hi.sat.s32``: modifiers between operation
and type are part of the operation (manual 9.7.1, 9.7.8, 9.7.9.7). Division by zero gives all ones
for quotient and remainder, as measured on sm_90; the smallest number divided by -1 wraps. mul24 and
mad24 read the low 24 bits of their operands, sign-extended for s32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np

from tensorcore_dsl.lowering import inlined

from .elementwise import compile_elementwise
from .number_formats import INTS, Bits, IntFormat, find, packed, register_dtype
from .registers import halves, registers
from .softfloat import bit_reverse, clz, high_product
from .symbols import as_array, look_up

Ufunc = Callable[..., Any]
_NONE = np.uint32(0xFFFFFFFF)


# --- loops -------------------------------------------------------------------------------------


def _divide(a: Any, b: Any) -> Any:
    """Quotient rounded towards zero."""
    if b == 0:
        return ~b
    if b == -1:
        return (a ^ a) - a
    q = a // b
    return q + 1 if q < 0 and q * b != a else q


def _remainder(a: Any, b: Any) -> Any:
    """Remainder with the sign of the dividend."""
    if b == 0:
        return ~b
    if b == -1:
        return a ^ a
    r = a % b
    return r - b if r != 0 and (a < 0) != (b < 0) else r


def _divide_unsigned(a: Any, b: Any) -> Any:
    return ~b if b == 0 else a // b


def _remainder_unsigned(a: Any, b: Any) -> Any:
    return ~b if b == 0 else a % b


def _high_loop(a: Any, b: Any) -> Any:
    return high_product(a, b)


def _clz_loop(a: Any) -> Any:
    return clz(a)


def _brev_loop(a: Any) -> Any:
    return bit_reverse(a)


def _fns_loop(mask: Any, base: Any, offset: Any) -> Any:
    """Position of the offset-th set bit from base, upwards, or downwards for a negative offset."""
    position, count, step = np.int64(base), np.int64(offset), np.int64(1)
    if count < 0:
        count, step = -count, -step
    last = np.int64(32)
    if count == 0:
        count, last = np.int64(1), position + 1
    while 0 <= position < last:
        if (mask >> np.uint32(position)) & np.uint32(1):
            count -= 1
            if count == 0:
                return position
        position += step
    return _NONE


def _prmt_loop(a: Any, b: Any, selector: Any) -> Any:
    """Bytes of b:a; each nibble of the selector is a byte index and a sign-replication flag."""
    word = np.uint64(b) << np.uint64(32) | np.uint64(a)
    d = np.uint64(0)
    for i in range(4):
        nibble = np.uint64(selector) >> np.uint64(4 * i) & np.uint64(15)
        byte = word >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
        if nibble & np.uint64(8):
            byte = (byte >> np.uint64(7)) * np.uint64(0xFF)
        d |= byte << np.uint64(8 * i)
    return d


_LOOPS: dict[str, tuple[Callable[..., Any], str]] = {
    #  result and operands; T is the dtype
    "div": (_divide, "T(T,T)"),
    "rem": (_remainder, "T(T,T)"),
    "div unsigned": (_divide_unsigned, "T(T,T)"),
    "rem unsigned": (_remainder_unsigned, "T(T,T)"),
    "high": (_high_loop, "T(T,T)"),
    "clz": (_clz_loop, "uint32(T)"),
    "brev": (_brev_loop, "T(T)"),
    "fns": (_fns_loop, "uint32(uint32,uint32,int32)"),
    "prmt": (_prmt_loop, "uint32(uint32,uint32,uint32)"),
}


@cache
def _loop(name: str, dtype: np.dtype[Any]) -> Ufunc:
    kernel, signature = _LOOPS[name]
    return compile_elementwise(kernel, signature.replace("T", dtype.name))


# --- sums and products: operands are arrays of the type's own dtype ----------------------------


def _clamped_sum(x: Bits, y: Bits) -> Bits:
    """Saturating s32 sum."""
    f = INTS["s32"]
    return np.clip(np.add(x, y, dtype=np.int64), f.low, f.high).astype(np.int32)


def _add(f: IntFormat, a: Bits, b: Bits, sat: bool = False) -> Bits:
    return _clamped_sum(a, b) if sat else np.add(a, b)


def _sub(f: IntFormat, a: Bits, b: Bits, sat: bool = False) -> Bits:
    return _clamped_sum(a, np.negative(b, dtype=np.int64)) if sat else np.subtract(a, b)


def _mul(mode: str) -> Callable[..., Bits]:
    def product(f: IntFormat, a: Bits, b: Bits) -> Bits:
        if mode == "lo":
            return np.multiply(a, b)
        if mode == "hi":
            return as_array(_loop("high", a.dtype)(a, b))
        return np.multiply(a, b, dtype=f"{a.dtype.kind}{2 * a.dtype.itemsize}")

    return product


def _mul24(mode: str) -> Callable[..., Bits]:
    def product(f: IntFormat, a: Bits, b: Bits) -> Bits:
        """Bits 47..16 or 31..0 of the 48-bit product."""
        cut, wide = a.dtype.type(8), np.int64 if f.signed else np.uint64
        x, y = (((v << cut) >> cut).astype(wide) for v in (a, b))
        return (x * y >> wide(16 if mode == "hi" else 0)).astype(a.dtype)

    return product


def _mad(product: Callable[..., Bits]) -> Callable[..., Bits]:
    def accumulate(f: IntFormat, a: Bits, b: Bits, c: Bits, sat: bool = False) -> Bits:
        p = product(f, a, b)
        return _clamped_sum(p, c) if sat else np.add(p, c)

    return accumulate


def _sad(f: IntFormat, a: Bits, b: Bits, c: Bits) -> Bits:
    return np.where(a < b, np.subtract(b, a), np.subtract(a, b)) + c


def _quotient(name: str) -> Callable[..., Bits]:
    def divide(f: IntFormat, a: Bits, b: Bits) -> Bits:
        return as_array(_loop(name if f.signed else f"{name} unsigned", a.dtype)(a, b))

    return divide


def _extreme(choose: Ufunc) -> Callable[..., Bits]:
    def extreme(f: IntFormat, a: Bits, b: Bits, relu: bool = False) -> Bits:
        d: Bits = choose(a, b)
        return np.maximum(d, d.dtype.type(0)) if relu else d

    return extreme


@inlined
def _part(x: Any, at: Any, bits: Any, signed: Any) -> Any:
    value = np.int64(x) >> at & ((1 << bits) - 1)
    return value - (value >> (bits - 1) << bits) if signed else value


@cache
def _dot_loop(mode: str, first: str, second: str) -> Ufunc:
    """dp4a: four bytes by four bytes; dp2a: two halves by the lower or upper two bytes."""
    width, count = (8, 4) if mode == "4a" else (16, 2)
    start = 16 if mode == "hi" else 0
    a_signed, b_signed = first == "s32", second == "s32"

    def dot(a: Any, b: Any, c: Any) -> Any:
        d = np.int64(c)
        for i in range(count):
            d += _part(a, i * width, width, a_signed) * _part(b, start + i * 8, 8, b_signed)
        return d

    return compile_elementwise(dot, "uint32(uint32,uint32,uint32)")


def _dot(mode: str) -> Callable[..., Bits]:
    def dot(kinds: str, a: Bits, b: Bits, c: Bits) -> Bits:
        return as_array(_dot_loop(mode, *kinds.split("."))(a, b, c))

    return dot


# --- logic, shifts and bit fields: operands are registers ---------------------------------------


def _unary(function: Ufunc) -> Callable[..., Bits]:
    return lambda f, a: function(a)


def _binary(function: Ufunc) -> Callable[..., Bits]:
    return lambda f, a, b: function(a, b)


def _shift(function: Ufunc) -> Callable[..., Bits]:
    """Shift counts above the width act as the width, which NumPy's shifts support."""

    def shift(f: IntFormat, a: Bits, n: Bits) -> Bits:
        d: Bits = function(a, np.minimum(n, np.uint32(f.bits)).astype(a.dtype))
        return d

    return shift


def _funnel(left: bool, wrap: bool) -> Callable[..., Bits]:
    """32 bits of b:a."""

    def funnel(f: IntFormat, a: Bits, b: Bits, n: Bits) -> Bits:
        word = b.astype(np.uint64) << np.uint64(32) | a
        count = (n & np.uint32(31) if wrap else np.minimum(n, np.uint32(32))).astype(np.uint64)
        return (word >> (np.uint64(32) - count if left else count)).astype(np.uint32)

    return funnel


@cache
def _xor_of_products(table: int) -> list[int]:
    """Reed-Muller form of a truth table of three variables: the sets of variables to multiply."""
    bits = [table >> i & 1 for i in range(8)]
    for step in (1, 2, 4):
        for i in range(8):
            if i & step:
                bits[i] ^= bits[i ^ step]
    return [i for i in range(8) if bits[i]]


def _lop3(f: IntFormat, a: Bits, b: Bits, c: Bits, table: Any) -> Bits:
    """Bit i of the result is the bit of the table numbered by bits i of a, b, c (a the highest)."""
    d: Any = np.uint32(0)
    for term in _xor_of_products(int(table)):
        factors = [x for bit, x in ((4, a), (2, b), (1, c)) if term & bit]
        d = d ^ (reduce(np.bitwise_and, factors) if factors else np.uint32(0xFFFFFFFF))
    shape = np.broadcast_shapes(a.shape, b.shape, c.shape)
    return as_array(d if d.shape == shape else np.broadcast_to(d, shape))


# Byte indices, highest first, for values 0 to 3 of the two selector bits (9.7.9.7).
_PRMT_MODES = {
    mode: np.array(indices, np.uint32)
    for mode, indices in {
        "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
        "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
        "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
        "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
        "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
        "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
    }.items()
}


def _prmt(mode: str | None) -> Callable[..., Bits]:
    def permute(f: IntFormat, a: Bits, b: Bits, c: Bits) -> Bits:
        if mode:
            c = look_up(_PRMT_MODES[mode], c & np.uint32(3))
        return as_array(_loop("prmt", a.dtype)(a, b, c))

    return permute


def _field(a: Bits, *numbers: Bits) -> tuple[Bits, ...]:
    """Position and length modulo 256; clamped for 64-bit words, as measured on sm_90."""
    if a.dtype.itemsize == 8:
        return tuple(np.minimum(x, np.uint32(0xFF)).astype(a.dtype) for x in numbers)
    return tuple(x & np.uint32(0xFF) for x in numbers)


def _bfe(f: IntFormat, a: Bits, position: Bits, length: Bits) -> Bits:
    u = a.dtype.type
    p, n = _field(a, position, length)
    ones = ~u(0)
    mask = (u(1) << n) - u(1)
    d = (a >> p) & mask
    if not f.signed:
        return d
    last = np.minimum(p + n - u(1), u(f.bits - 1))
    negative = ((a >> last) & u(1) != 0) & (n != 0)
    return np.where(negative, d | ~(mask & (ones >> p)), d)


def _bfi(f: IntFormat, a: Bits, b: Bits, position: Bits, length: Bits) -> Bits:
    u = a.dtype.type
    p, n = _field(a, position, length)
    mask = ((u(1) << n) - u(1)) << p
    return (b & ~mask) | ((a << p) & mask)


def _bfind(shift_amount: bool) -> Callable[..., Bits]:
    def find_bit(f: IntFormat, a: Bits) -> Bits:
        if f.signed:
            a = a ^ (a.view(f"i{a.dtype.itemsize}") >> (f.bits - 1)).view(a.dtype)
        zeros = as_array(_loop("clz", a.dtype)(a))
        if shift_amount:
            return np.where(zeros == f.bits, _NONE, zeros)
        return np.subtract(np.uint32(f.bits - 1), zeros)

    return find_bit


def _szext(wrap: bool) -> Callable[..., Bits]:
    def extend(f: IntFormat, a: Bits, width: Bits) -> Bits:
        n = width & np.uint32(31)
        high = ~np.uint32(0) << n
        d = a & ~high
        if f.signed:
            negative = (a >> ((n - np.uint32(1)) & np.uint32(31)) & np.uint32(1) != 0) & (n != 0)
            d = np.where(negative, d | high, d)
        return d if wrap else np.where(width >= 32, a, d)

    return extend


def _bmsk(wrap: bool) -> Callable[..., Bits]:
    def mask(f: IntFormat, position: Bits, width: Bits) -> Bits:
        if wrap:
            position, width = position & np.uint32(31), width & np.uint32(31)
        p, n = (np.minimum(x, np.uint32(32)) for x in (position, width))
        return ((np.uint32(1) << n) - np.uint32(1)) << p

    return mask


# --- the table ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Operation:
    """``operands``: t the type, r its register, w twice as wide, u u32, s s32, n unconverted.

    ``modifiers`` maps "sat" and "relu" to the types that have them.
    """

    function: Callable[..., Bits]
    operands: str
    types: str
    modifiers: str = ""


_INT, _SIGNED, _BITS = "u16 s16 u32 s32 u64 s64", "s16 s32 s64", "b16 b32 b64"
_PAIR, _WIDE, _WORD = "u16x2 s16x2", "u16 s16 u32 s32", "u32 s32"
_WORDS, _FIELD = "b32 b64", "u32 s32 u64 s64"
_DOT = "u32.u32 u32.s32 s32.u32 s32.s32"

OPERATIONS: dict[str, _Operation] = {
    "add": _Operation(_add, "tt", f"{_INT} {_PAIR}", "sat s32"),
    "sub": _Operation(_sub, "tt", f"{_INT} {_PAIR}", "sat s32"),
    **{f"mul.{m}": _Operation(_mul(m), "tt", _INT) for m in ("lo", "hi")},
    "mul.wide": _Operation(_mul("wide"), "tt", _WIDE),
    "mad.lo": _Operation(_mad(_mul("lo")), "ttt", _INT),
    "mad.hi": _Operation(_mad(_mul("hi")), "ttt", _INT, "sat s32"),
    "mad.wide": _Operation(_mad(_mul("wide")), "ttw", _WIDE),
    **{f"mul24.{m}": _Operation(_mul24(m), "tt", _WORD) for m in ("lo", "hi")},
    "mad24.lo": _Operation(_mad(_mul24("lo")), "ttt", _WORD),
    "mad24.hi": _Operation(_mad(_mul24("hi")), "ttt", _WORD, "sat s32"),
    "sad": _Operation(_sad, "ttt", _INT),
    "div": _Operation(_quotient("div"), "tt", _INT),
    "rem": _Operation(_quotient("rem"), "tt", _INT),
    "neg": _Operation(_unary(np.negative), "t", _SIGNED),
    "abs": _Operation(_unary(np.absolute), "t", _SIGNED),
    "min": _Operation(_extreme(np.minimum), "tt", f"{_INT} {_PAIR}", "relu s32 s16"),
    "max": _Operation(_extreme(np.maximum), "tt", f"{_INT} {_PAIR}", "relu s32 s16"),
    "and": _Operation(_binary(np.bitwise_and), "rr", f"pred {_BITS}"),
    "or": _Operation(_binary(np.bitwise_or), "rr", f"pred {_BITS}"),
    "xor": _Operation(_binary(np.bitwise_xor), "rr", f"pred {_BITS}"),
    "not": _Operation(_unary(np.invert), "r", f"pred {_BITS}"),
    "cnot": _Operation(lambda f, a: (a == 0).astype(a.dtype), "r", _BITS),
    "shl": _Operation(_shift(np.left_shift), "ru", _BITS),
    "shr": _Operation(_shift(np.right_shift), "tu", f"{_BITS} {_INT}"),
    **{
        f"shf.{d}.{m}": _Operation(_funnel(d == "l", m == "wrap"), "rru", "b32")
        for d in "lr"
        for m in ("clamp", "wrap")
    },
    "lop3": _Operation(_lop3, "rrrn", "b32"),
    "prmt": _Operation(_prmt(None), "rrr", "b32"),
    **{f"prmt.{m}": _Operation(_prmt(m), "rrr", "b32") for m in _PRMT_MODES},
    "popc": _Operation(lambda f, a: np.bitwise_count(a).astype(np.uint32), "r", _WORDS),
    "clz": _Operation(lambda f, a: as_array(_loop("clz", a.dtype)(a)), "r", _WORDS),
    "brev": _Operation(lambda f, a: as_array(_loop("brev", a.dtype)(a)), "r", _WORDS),
    "bfind": _Operation(_bfind(False), "r", _FIELD),
    "bfind.shiftamt": _Operation(_bfind(True), "r", _FIELD),
    "fns": _Operation(lambda f, m, b, n: as_array(_loop("fns", m.dtype)(m, b, n)), "rus", "b32"),
    "bfe": _Operation(_bfe, "ruu", _FIELD),
    "bfi": _Operation(_bfi, "rruu", _WORDS),
    **{f"szext.{m}": _Operation(_szext(m == "wrap"), "ru", _WORD) for m in ("clamp", "wrap")},
    **{f"bmsk.{m}": _Operation(_bmsk(m == "wrap"), "uu", "b32") for m in ("clamp", "wrap")},
    "dp4a": _Operation(_dot("4a"), "uuu", _DOT),
    **{f"dp2a.{m}": _Operation(_dot(m), "uuu", _DOT) for m in ("lo", "hi")},
}


@cache
def _operand_types(op: str, type: str) -> tuple[tuple[np.dtype[Any], np.dtype[Any]] | None, ...]:
    """Register dtype and computation dtype of each operand; None means unconverted."""
    row = find(OPERATIONS, op, "integer operation")
    if type not in row.types.split():
        raise ValueError(f"{op} takes {row.types}, not {type}")
    u32 = np.dtype(np.uint32)
    if type == "pred":
        return ((np.dtype(np.bool_), np.dtype(np.bool_)),) * len(row.operands)
    f = INTS.get(type, INTS["u32"])
    word, wide = register_dtype(f.bits), register_dtype(2 * f.bits)
    element = np.dtype(f"i{word.itemsize}") if f.signed else word
    kinds = {
        "t": (word, element),
        "r": (word, word),
        "w": (wide, np.dtype(f"{element.kind}{wide.itemsize}")),
        "u": (u32, u32),
        "s": (u32, np.dtype(np.int32)),
        "n": None,
    }
    return tuple(kinds[letter] for letter in row.operands)


@cache
def instruction(op: str, type: str, sat: bool = False, relu: bool = False) -> Callable[..., Bits]:
    """The function of an integer, logic or shift instruction; ``op`` is a key of `OPERATIONS`.

    Its operands are registers of the instruction's operand types (shift counts, positions and lengths
    are u32). The table of lop3 is a Python int; for lop3.BoolOp, the caller combines ``d != 0``
    with q.
    """
    element, count = packed(type)
    if count == 2 and element in ("u16", "s16"):
        part = instruction(op, element, sat, relu)
        return lambda *operands: halves(part, 16, *operands)
    types, row = _operand_types(op, type), OPERATIONS[op]
    modifiers = {name: True for name, on in (("sat", sat), ("relu", relu)) if on}
    for name in modifiers:
        if name not in row.modifiers or type not in row.modifiers.split():
            raise ValueError(f"{op}.{type} has no .{name}")
    numbers, function = INTS.get(type, type), row.function

    def run(*operands: Any) -> Bits:
        if len(operands) != len(types):
            raise ValueError(f"{op}.{type} takes {len(types)} operands, not {len(operands)}")
        x = [v if t is None else registers(v, t[0]).view(t[1]) for v, t in zip(operands, types, strict=True)]
        d = as_array(function(numbers, *x, **modifiers))
        return d if d.dtype == np.bool_ else d.view(register_dtype(8 * d.dtype.itemsize))

    return run
