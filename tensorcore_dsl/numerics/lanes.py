"""Elementary operations on the registers of a warp, emitted as LLVM vectors.

`isa.lanes` maps instructions to these operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir

from tensorcore_dsl.lowering.arrays import declared, splat, variable

LANES = 16  # lanes of a vector: half a warp, which compiles and runs faster than 32
WARP = 2 * LANES
NAN = 0x7FFFFFFF  # the NaN of f32 arithmetic

# Kinds of vectors: words, and floats in which a NaN may have any bits. Few operations read the bits of
# a NaN, so f32 arithmetic leaves them as they are.
WORDS, FLOATS = "w", "f"

Emit = Callable[..., Any]  # (builder, *vectors of the operands) -> vector of the result


class Operation(NamedTuple):
    """An elementary operation: bits of the result and operands, and its code.

    Attributes
    ----------
    result : int
        Bits of the result; 8 for a predicate, which is 0 or 1. 0 for a check, whose code gives the
        lanes that fail.
    operands : tuple of int
        Bits of each operand.
    emit : function
        The code.
    literals : int
        Numbers after the operands that are equal in all lanes.
    whole : bool
        Vectors have the 32 lanes of a warp.
    kinds : str
        A letter for the kind of the result and of each operand; empty: all are WORDS.
    """

    result: int
    operands: tuple[int, ...]
    emit: Emit
    literals: int = 0
    whole: bool = False
    kinds: str = ""


@cache  # a type or a constant prints its text once
def vector(bits: int, lanes: int = LANES) -> ir.VectorType:
    return ir.VectorType(ir.IntType(bits), lanes)


@cache
def constant(bits: int, value: int, lanes: int = LANES) -> ir.Constant:
    return ir.Constant(vector(bits, lanes), [value] * lanes)


_FLOATS = ir.VectorType(ir.FloatType(), LANES)


def _test(way: str, test: str) -> Emit:
    """Comparison by the builder's method `way`."""

    def emit(builder: Any, a: Any, b: Any) -> Any:
        return builder.zext(getattr(builder, way)(test, a, b), vector(8))

    return emit


# -- f32, to nearest ---------------------------------------------------------------------------


def _floats(builder: Any, bits: Any) -> Any:
    return builder.bitcast(bits, _FLOATS)


def _intrinsic(name: str) -> Emit:
    def emit(builder: Any, *operands: Any) -> Any:
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(operands))
        return builder.call(declared(builder, kind, f"llvm.{name}.v{LANES}f32"), operands)

    return emit


def _float_extreme(largest: bool) -> Emit:
    """-0.0 is less than +0.0; one NaN gives the other operand."""

    def emit(builder: Any, a: Any, b: Any) -> Any:
        words = [builder.bitcast(x, vector(32)) for x in (a, b)]
        equal = _floats(builder, (builder.and_ if largest else builder.or_)(*words))
        test = ">" if largest else "<"
        chosen = builder.select(builder.fcmp_ordered(test, b, a), b, equal)
        chosen = builder.select(builder.fcmp_ordered(test, a, b), a, chosen)
        chosen = builder.select(builder.fcmp_unordered("uno", a, a), b, chosen)
        return builder.select(builder.fcmp_unordered("uno", b, b), a, chosen)

    return emit


# -- checks ------------------------------------------------------------------------------------


def _outside(bits: int) -> Emit:
    """Not 0 <= index and index + count <= extent."""

    def emit(builder: Any, index: Any, extent: Any, count: Any) -> Any:
        one = count if bits == 64 else builder.trunc(count, ir.IntType(bits))
        last = builder.sub(extent, splat(builder, one, LANES))
        below = builder.icmp_signed("<", index, constant(bits, 0))
        return builder.or_(below, builder.icmp_signed(">", index, last))

    return emit


# -- exchange between all lanes of a warp ----------------------------------

_INDEX = ir.IntType(32)
_LANE = ir.Constant(vector(32, WARP), list(range(WARP)))


def _source(builder: Any, mode: str, step: Any, clamp: Any) -> tuple[Any, Any]:
    """Lane that each lane reads with shfl.sync, and whether it is another lane of its segment
    (PTX manual, 9.7.9.6)."""
    step = builder.and_(step, constant(32, 31, WARP))
    segment = builder.and_(builder.lshr(clamp, constant(32, 8, WARP)), constant(32, 31, WARP))
    free = builder.and_(builder.not_(segment), constant(32, 31, WARP))
    low = builder.and_(_LANE, segment)
    last = builder.or_(low, builder.and_(builder.and_(clamp, constant(32, 31, WARP)), free))
    if mode == "up":
        lane = builder.sub(_LANE, step)
    elif mode == "down":
        lane = builder.add(_LANE, step)
    elif mode == "bfly":
        lane = builder.xor(_LANE, step)
    else:
        lane = builder.or_(low, builder.and_(step, free))
    inside = builder.icmp_signed(">=" if mode == "up" else "<=", lane, last)
    return builder.select(inside, lane, _LANE), inside


def _shuffle(mode: str) -> Emit:
    def emit(builder: Any, a: Any, step: Any, clamp: Any) -> Any:
        lanes, _ = _source(builder, mode, step, clamp)
        memory = variable(builder, vector(32, WARP))
        builder.store(a, memory)
        first = builder.bitcast(memory, ir.IntType(32).as_pointer())
        shuffled = ir.Constant(vector(32, WARP), ir.Undefined)
        for lane in range(WARP):
            at = ir.Constant(_INDEX, lane)
            word = builder.load(builder.gep(first, [builder.extract_element(lanes, at)]))
            shuffled = builder.insert_element(shuffled, word, at)
        return shuffled

    return emit


def _shuffle_inside(mode: str) -> Emit:
    return lambda builder, a, step, clamp: builder.zext(
        _source(builder, mode, step, clamp)[1], vector(8, WARP)
    )


def _vote(mode: str) -> Emit:
    def emit(builder: Any, a: Any) -> Any:
        ballot = lanes_of(builder, builder.icmp_unsigned("!=", a, constant(8, 0, WARP)))
        if mode == "ballot":
            return splat(builder, ballot, WARP)
        none, every = (ir.Constant(_INDEX, word) for word in (0, 0xFFFFFFFF))
        unanimous = builder.icmp_unsigned("==", ballot, every)
        if mode == "any":
            unanimous = builder.icmp_unsigned("!=", ballot, none)
        elif mode == "uni":
            unanimous = builder.or_(unanimous, builder.icmp_unsigned("==", ballot, none))
        return splat(builder, builder.zext(unanimous, ir.IntType(8)), WARP)

    return emit


def lanes_of(builder: Any, truths: Any) -> Any:
    """Pack a vector of truth values into a word, lane 0 lowest."""
    return builder.bitcast(truths, _INDEX)


def _reduction(name: str) -> Emit:
    def emit(builder: Any, a: Any) -> Any:
        kind = ir.FunctionType(_INDEX, [vector(32, WARP)])
        function = declared(builder, kind, f"llvm.vector.reduce.{name}.v{WARP}i32")
        return splat(builder, builder.call(function, [a]), WARP)

    return emit


def _of_warps() -> dict[tuple[str, int], Operation]:
    operations = {}
    for mode in ("up", "down", "bfly", "idx"):
        operations[f"shfl.{mode}"] = Operation(32, (32, 32, 32), _shuffle(mode))
        operations[f"shfl.{mode}.inside"] = Operation(8, (32, 32, 32), _shuffle_inside(mode))
    for mode in ("all", "any", "uni", "ballot"):
        operations[f"vote.{mode}"] = Operation(32 if mode == "ballot" else 8, (8,), _vote(mode))
    for name in ("add", "smin", "smax", "umin", "umax", "and", "or", "xor"):
        operations[f"redux.{name}"] = Operation(32, (32,), _reduction(name))
    return {(name, 32): operation._replace(whole=True) for name, operation in operations.items()}


# -- the table ---------------------------------------------------------------------------------

_TESTS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}


def _of_width(bits: int) -> dict[tuple[str, int], Operation]:
    """Return the integer operations of one width: copies, sums, comparisons and checks."""
    two = (bits, bits)
    named: dict[str, Operation] = {"copy": Operation(bits, (bits,), lambda builder, a: a)}
    if bits > 8:
        named["add"] = Operation(bits, two, lambda builder, a, b: builder.add(a, b))
        named["lt.s"] = Operation(8, two, _test("icmp_signed", "<"))
        named["lt.u"] = Operation(8, two, _test("icmp_unsigned", "<"))
    if bits > 16:
        named["check"] = Operation(0, two, _outside(bits), literals=1)
    return {(name, bits): operation for name, operation in named.items()}


def _of_floats() -> dict[tuple[str, int], Operation]:
    operations = {
        f"{name}.f": Operation(32, (32,) * operands, emit, kinds=FLOATS * (1 + operands))
        for name, operands, emit in (
            ("add", 2, lambda builder, a, b: builder.fadd(a, b)),
            ("sub", 2, lambda builder, a, b: builder.fsub(a, b)),
            ("mul", 2, lambda builder, a, b: builder.fmul(a, b)),
            ("div", 2, lambda builder, a, b: builder.fdiv(a, b)),
            ("sqrt", 1, _intrinsic("sqrt")),
            ("fma", 3, _intrinsic("fma")),
            ("neg", 1, lambda builder, a: builder.fneg(a)),
            ("abs", 1, _intrinsic("fabs")),
            ("min", 2, _float_extreme(False)),
            ("max", 2, _float_extreme(True)),
        )
    }
    tests = {"num": ("fcmp_ordered", "ord"), "nan": ("fcmp_unordered", "uno")}
    for name, test in _TESTS.items():
        tests[name] = "fcmp_ordered", test
        tests[f"{name}u"] = "fcmp_unordered", test
    for name, (way, test) in tests.items():
        operations[f"{name}.f"] = Operation(8, (32, 32), _test(way, test), kinds=WORDS + 2 * FLOATS)
    return {(name, 32): operation for name, operation in operations.items()}


OPERATIONS: dict[tuple[str, int], Operation] = {
    **_of_width(8),
    **_of_width(16),
    **_of_width(32),
    **_of_width(64),
    **_of_floats(),
    **_of_warps(),
}
