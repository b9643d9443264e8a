"""Elementary operations on the registers of a warp, as vectors of 32 lanes in LLVM's language.

`isa.lanes` says which of them an instruction is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir

from tensorcore_dsl.lowering.arrays import declared, variable
from tensorcore_dsl.lowering.values import WORD

LANES = 32
NAN = 0x7FFFFFFF  # every NaN that f32 arithmetic gives

Emit = Callable[..., Any]  # (builder, *vectors of the operands) -> vector of the result


class Operation(NamedTuple):
    """Bits of the result and of each operand (8 for a predicate, which is 0 or 1), and the code.

    literals: how many numbers, the same for all lanes, the code takes behind the operands.
    """

    result: int
    operands: tuple[int, ...]
    emit: Emit
    literals: int = 0


def vector(bits: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(bits), LANES)


def constant(bits: int, value: int) -> ir.Constant:
    return ir.Constant(vector(bits), [value] * LANES)


_FLOATS = ir.VectorType(ir.FloatType(), LANES)


def _shift(way: str, bits: int) -> Emit:
    """Shift counts above the width act as the width."""

    def emit(builder: Any, a: Any, count: Any) -> Any:
        most = bits - 1 if way == "ashr" else bits
        far = builder.icmp_unsigned(">", count, constant(32, bits - 1))
        near = builder.and_(count, constant(32, bits - 1))
        if bits != 32:
            near = (builder.zext if bits > 32 else builder.trunc)(near, vector(bits))
        if way == "ashr":
            return builder.ashr(a, builder.select(far, constant(bits, most), near))
        return builder.select(far, constant(bits, 0), getattr(builder, way)(a, near))

    return emit


def _extreme(test: str, sign: str) -> Emit:
    def emit(builder: Any, a: Any, b: Any) -> Any:
        compare = builder.icmp_signed if sign == "s" else builder.icmp_unsigned
        return builder.select(compare(test, a, b), a, b)

    return emit


def _wide(sign: str, bits: int) -> Emit:
    """The whole product, plus what is given of its width."""

    def emit(builder: Any, a: Any, b: Any, *c: Any) -> Any:
        extend = builder.sext if sign == "s" else builder.zext
        product = builder.mul(extend(a, vector(2 * bits)), extend(b, vector(2 * bits)))
        return builder.add(product, c[0]) if c else product

    return emit


def _test(way: str, test: str) -> Emit:
    """A comparison; `way` is the builder's method."""

    def emit(builder: Any, a: Any, b: Any) -> Any:
        if way.startswith("fcmp"):
            a, b = _floats(builder, a), _floats(builder, b)
        return builder.zext(getattr(builder, way)(test, a, b), vector(8))

    return emit


def _select(builder: Any, chosen: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_unsigned("!=", chosen, constant(8, 0)), a, b)


def _join(bits: int) -> Emit:
    def emit(builder: Any, low: Any, high: Any) -> Any:
        low, high = (builder.zext(part, vector(bits)) for part in (low, high))
        return builder.or_(low, builder.shl(high, constant(bits, bits // 2)))

    return emit


def _half(bits: int, high: bool) -> Emit:
    def emit(builder: Any, a: Any) -> Any:
        part = builder.lshr(a, constant(bits, bits // 2)) if high else a
        return builder.trunc(part, vector(bits // 2))

    return emit


def _resize(way: str, bits: int) -> Emit:
    return lambda builder, a: getattr(builder, way)(a, vector(bits))


# -- f32, to nearest ---------------------------------------------------------------------------


def _floats(builder: Any, bits: Any) -> Any:
    return builder.bitcast(bits, _FLOATS)


def _bits(builder: Any, value: Any) -> Any:
    """The bits of floats; every NaN is the same."""
    nan = builder.fcmp_unordered("uno", value, value)
    return builder.select(nan, constant(32, NAN), builder.bitcast(value, vector(32)))


def _arithmetic(method: str) -> Emit:
    def emit(builder: Any, *operands: Any) -> Any:
        values = [_floats(builder, x) for x in operands]
        return _bits(builder, getattr(builder, method)(*values))

    return emit


def _fused(builder: Any, *operands: Any) -> Any:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    function = declared(builder, kind, f"llvm.fma.v{LANES}f32")
    return _bits(builder, builder.call(function, [_floats(builder, x) for x in operands]))


def _root(builder: Any, a: Any) -> Any:
    function = declared(builder, ir.FunctionType(_FLOATS, [_FLOATS]), f"llvm.sqrt.v{LANES}f32")
    return _bits(builder, builder.call(function, [_floats(builder, a)]))


def _unit(builder: Any, a: Any, function: Any, *more: Any) -> Any:
    """A function of the function unit: see `function_unit.for_lanes`."""
    given, made = variable(builder, vector(32)), variable(builder, vector(32))
    builder.store(a, given)
    numbers = [*(builder.ptrtoint(end, WORD) for end in (given, made)), *more]
    kind = ir.FunctionType(ir.VoidType(), [WORD] * len(numbers))
    builder.call(builder.inttoptr(function, kind.as_pointer()), numbers)
    return builder.load(made)


def _is_nan(builder: Any, a: Any) -> Any:
    magnitude = builder.and_(a, constant(32, 0x7FFFFFFF))
    return builder.icmp_unsigned(">", magnitude, constant(32, 0x7F800000))


def _sign(builder: Any, a: Any, changed: Any) -> Any:
    return builder.select(_is_nan(builder, a), constant(32, NAN), changed)


def _negative(builder: Any, a: Any) -> Any:
    return _sign(builder, a, builder.xor(a, constant(32, 1 << 31)))


def _magnitude(builder: Any, a: Any) -> Any:
    return _sign(builder, a, builder.and_(a, constant(32, 0x7FFFFFFF)))


def _float_extreme(largest: bool) -> Emit:
    """-0.0 is less than +0.0; one NaN gives the other operand."""

    def key(builder: Any, a: Any) -> Any:
        """An integer in the order of the floats."""
        sign = builder.ashr(a, constant(32, 31))
        return builder.xor(a, builder.and_(sign, constant(32, 0x7FFFFFFF)))

    def emit(builder: Any, a: Any, b: Any) -> Any:
        test = builder.icmp_signed(">" if largest else "<", key(builder, a), key(builder, b))
        a_nan, b_nan = _is_nan(builder, a), _is_nan(builder, b)
        chosen = builder.select(builder.or_(b_nan, test), a, b)
        chosen = builder.select(builder.and_(a_nan, builder.not_(b_nan)), b, chosen)
        return builder.select(builder.and_(a_nan, b_nan), constant(32, NAN), chosen)

    return emit


# -- the table ---------------------------------------------------------------------------------

_TESTS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}


def _of_width(bits: int) -> dict[tuple[str, int], Operation]:
    """Integer operations, and those for any word."""
    one, two = (bits,), (bits, bits)
    found: dict[str, Operation] = {
        "add": Operation(bits, two, lambda builder, a, b: builder.add(a, b)),
        "sub": Operation(bits, two, lambda builder, a, b: builder.sub(a, b)),
        "mul.lo": Operation(bits, two, lambda builder, a, b: builder.mul(a, b)),
        "mad.lo": Operation(
            bits, (bits,) * 3, lambda builder, a, b, c: builder.add(builder.mul(a, b), c)
        ),
        "and": Operation(bits, two, lambda builder, a, b: builder.and_(a, b)),
        "or": Operation(bits, two, lambda builder, a, b: builder.or_(a, b)),
        "xor": Operation(bits, two, lambda builder, a, b: builder.xor(a, b)),
        "not": Operation(bits, one, lambda builder, a: builder.not_(a)),
        "neg": Operation(bits, one, lambda builder, a: builder.sub(constant(bits, 0), a)),
        "shl": Operation(bits, (bits, 32), _shift("shl", bits)),
        "shr.u": Operation(bits, (bits, 32), _shift("lshr", bits)),
        "shr.s": Operation(bits, (bits, 32), _shift("ashr", bits)),
        "select": Operation(bits, (8, bits, bits), _select),
    }
    for sign, way in (("s", "icmp_signed"), ("u", "icmp_unsigned")):
        found[f"min.{sign}"] = Operation(bits, two, _extreme("<", sign))
        found[f"max.{sign}"] = Operation(bits, two, _extreme(">", sign))
        for name, test in _TESTS.items():
            if sign == "u" or test in ("<", "<="):
                found[f"{name}.{sign}"] = Operation(8, two, _test(way, test))
    if bits < 64:
        for sign, extend in (("s", "sext"), ("u", "zext")):
            found[f"mul.wide.{sign}"] = Operation(2 * bits, two, _wide(sign, bits))
            found[f"mad.wide.{sign}"] = Operation(2 * bits, (*two, 2 * bits), _wide(sign, bits))
            for wider in (w for w in (32, 64) if w > bits):
                found[f"extend to {wider}.{sign}"] = Operation(wider, one, _resize(extend, wider))
    if bits > 16:
        half = bits // 2
        found["join"] = Operation(bits, (half, half), _join(bits))
        found["low half"] = Operation(half, one, _half(bits, False))
        found["high half"] = Operation(half, one, _half(bits, True))
        for narrower in (w for w in (16, 32) if w < bits):
            found[f"cut to {narrower}"] = Operation(narrower, one, _resize("trunc", narrower))
    found["copy"] = found[f"cut to {bits}"] = Operation(bits, one, lambda builder, a: a)
    return {(name, bits): operation for name, operation in found.items()}


def _of_predicates() -> dict[tuple[str, int], Operation]:
    found = {
        "and": Operation(8, (8, 8), lambda builder, a, b: builder.and_(a, b)),
        "or": Operation(8, (8, 8), lambda builder, a, b: builder.or_(a, b)),
        "xor": Operation(8, (8, 8), lambda builder, a, b: builder.xor(a, b)),
        "flip": Operation(8, (8,), lambda builder, a: builder.xor(a, constant(8, 1))),
        "copy": Operation(8, (8,), lambda builder, a: a),
    }
    return {(name, 8): operation for name, operation in found.items()}


def _of_floats() -> dict[tuple[str, int], Operation]:
    found = {
        "add.f": Operation(32, (32, 32), _arithmetic("fadd")),
        "sub.f": Operation(32, (32, 32), _arithmetic("fsub")),
        "mul.f": Operation(32, (32, 32), _arithmetic("fmul")),
        "div.f": Operation(32, (32, 32), _arithmetic("fdiv")),
        "sqrt.f": Operation(32, (32,), _root),
        "fma.f": Operation(32, (32, 32, 32), _fused),
        "neg.f": Operation(32, (32,), _negative),
        "abs.f": Operation(32, (32,), _magnitude),
        "min.f": Operation(32, (32, 32), _float_extreme(False)),
        "max.f": Operation(32, (32, 32), _float_extreme(True)),
        "unit": Operation(32, (32,), _unit, literals=4),
        "num.f": Operation(8, (32, 32), _test("fcmp_ordered", "ord")),
        "nan.f": Operation(8, (32, 32), _test("fcmp_unordered", "uno")),
    }
    for name, test in _TESTS.items():
        found[f"{name}.f"] = Operation(8, (32, 32), _test("fcmp_ordered", test))
        found[f"{name}u.f"] = Operation(8, (32, 32), _test("fcmp_unordered", test))
    return {(name, 32): operation for name, operation in found.items()}


OPERATIONS: dict[tuple[str, int], Operation] = {
    **_of_width(16), **_of_width(32), **_of_width(64), **_of_predicates(), **_of_floats()
}  # fmt: skip
CODES = {key: code for code, key in enumerate(OPERATIONS)}
