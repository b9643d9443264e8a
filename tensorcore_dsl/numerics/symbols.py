"""Symbols: arrays without values, whose arithmetic emits LLVM code.

Semantics of instructions are functions of arrays of register bits. Given symbols, they emit the
vector code of the instruction instead. A symbol stands for some lanes, as a vector of integers; it
has the dtype, the operators and the functions of NumPy that semantics use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.lib.mixins import NDArrayOperatorsMixin

from tensorcore_dsl.lowering import values, vectorised
from tensorcore_dsl.lowering.arrays import declared, variable
from tensorcore_dsl.lowering.entry import kind_of, words_of
from tensorcore_dsl.lowering.values import BOOLEAN, POINTER, WORD, ArrayKind

OUT = object()  # stands for the array of results among the arguments of `Symbol.call`


class Untraceable(TypeError):
    """Semantics use something that symbols do not have."""


class Trace:
    """Emits the code of one function of vectors.

    references: arrays, and compiled loops with the kinds of their arguments, to which the code refers
    by address. numbers: these addresses, in this order; None while the references are counted.
    """

    def __init__(self, builder: ir.IRBuilder, numbers: Sequence[ir.Value] | None = None) -> None:
        self.builder, self.numbers = builder, numbers
        self.references: list[Any] = []

    def address(self, reference: Any) -> ir.Value:
        """Return the address of a reference: an array, or a compiled loop with its kinds."""
        self.references.append(reference)
        if self.numbers is None:
            return ir.Constant(WORD, 0)
        return self.numbers[len(self.references) - 1]


class Symbol(NDArrayOperatorsMixin):
    """A vector in the code of a `Trace`."""

    def __init__(self, trace: Trace, dtype: np.dtype[Any], value: ir.Value) -> None:
        self.trace, self.dtype, self.value = trace, dtype, value

    @property
    def lanes(self) -> int:
        return int(self.value.type.count)

    @property
    def shape(self) -> tuple[int]:
        return (self.lanes,)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise Untraceable("a symbol has no values")

    __index__ = __bool__ = __iter__ = __array__  # type: ignore[assignment]

    def like(self, x: Any, dtype: Any) -> Symbol:
        """Convert a symbol, one number, or a number for each lane to a symbol of a dtype."""
        if isinstance(x, Symbol):
            return x.astype(dtype)
        number = np.asarray(x).astype(dtype, casting="unsafe" if isinstance(x, int) else "same_kind")
        kind = _vector(np.dtype(dtype), self.lanes)
        lanes = np.broadcast_to(number, self.shape).astype(int if number.dtype == BOOLEAN else dtype)
        return Symbol(self.trace, np.dtype(dtype), ir.Constant(kind, lanes.tolist()))

    def astype(self, dtype: Any, **_: Any) -> Symbol:
        to, builder = np.dtype(dtype), self.trace.builder
        if to == self.dtype:
            return self
        kind, value = _vector(to, self.lanes), self.value
        if to == BOOLEAN:
            value = builder.icmp_unsigned("!=", value, ir.Constant(value.type, None))
        elif _bits(to) > _bits(self.dtype):
            value = (builder.sext if self.dtype.kind == "i" else builder.zext)(value, kind)
        elif _bits(to) < _bits(self.dtype):
            value = builder.trunc(value, kind)
        return Symbol(self.trace, to, value)

    def view(self, dtype: Any) -> Symbol:
        to, value = np.dtype(dtype), self.value
        _vector(to, 1)
        if to.itemsize != self.dtype.itemsize:
            lanes = self.lanes * self.dtype.itemsize // to.itemsize
            value = self.trace.builder.bitcast(value, _vector(to, lanes))
        return Symbol(self.trace, to, value)

    def reshape(self, *_: Any) -> Symbol:
        return self

    def call(self, loop: Any, *arguments: Any, dtype: Any) -> Symbol:
        """The results, of a dtype, of a compiled loop over arrays.

        arguments: symbols, arrays and numbers; OUT for the array that takes the results.
        """
        lanes, trace = self.lanes, self.trace
        builder, kinds, words = trace.builder, list[Any](), list[ir.Value]()
        results: Any = None
        for x, annotated in zip(arguments, loop.lowered.parameter_kinds, strict=True):
            if x is OUT or isinstance(x, Symbol):
                kind = x.dtype if isinstance(x, Symbol) else np.dtype(dtype)
                memory = variable(builder, _vector(kind, lanes))
                if isinstance(x, Symbol):
                    builder.store(x.value, memory)
                else:
                    results = memory
                kinds.append(ArrayKind(kind, 1, True))
                words += [builder.bitcast(memory, POINTER), ir.Constant(WORD, lanes)]
            elif isinstance(x, np.ndarray):
                kinds.append(kind_of(x))
                words += [builder.inttoptr(trace.address(x), POINTER)]
                words += [ir.Constant(WORD, n) for n in words_of(kinds[-1], x)[1:]]
            else:
                kinds.append(annotated or kind_of(x))
                words.append(values.cast(builder, kinds[-1], x).value)
        types = [part for kind in kinds for part in values.llvm_types(kind)]
        function = ir.FunctionType(ir.VoidType(), types).as_pointer()
        builder.call(builder.inttoptr(trace.address((loop, tuple(kinds))), function), words)
        return Symbol(trace, np.dtype(dtype), builder.load(results))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, dtype: Any = None, **more: Any) -> Any:
        emit = _UFUNCS.get(ufunc)
        if emit is None or method != "__call__" or more:
            raise Untraceable(f"{ufunc.__name__} of symbols")
        dtypes = tuple(type(x) if isinstance(x, int) else x.dtype for x in inputs)
        chosen = {} if dtype is None else {"signature": (*[None] * len(inputs), np.dtype(dtype))}
        *kinds, result_dtype = ufunc.resolve_dtypes((*dtypes, None), **chosen)
        operands = [self.like(x, kind).value for x, kind in zip(inputs, kinds, strict=True)]
        return Symbol(self.trace, result_dtype, emit(self.trace.builder, kinds[0], *operands))

    def __array_function__(self, function: Any, _: Any, arguments: Any, more: dict[str, Any]) -> Any:
        if function not in _FUNCTIONS or more:
            raise Untraceable(f"{function.__name__} of symbols")
        return _FUNCTIONS[function](self, *arguments)


class _NoContext:
    """Context that refuses every access: symbols have no machine state."""

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(f"{name} of the machine")


def emit(
    function: Callable[..., Any],
    bits: Sequence[int],
    number: int,
    builder: ir.IRBuilder,
    operands: Sequence[ir.Value],
    numbers: Sequence[ir.Value] | None = None,
) -> tuple[ir.Value, list[Any]]:
    """Emit result `number` of `function(context, *symbols)`. Return its vector and its references.

    operands: vectors of registers. bits: their widths. Predicates, also as results, have 8 bits.
    """
    trace = Trace(builder, numbers)
    symbols = [
        Symbol(trace, np.dtype(f"u{max(width, 8) // 8}"), x).astype(
            BOOLEAN if width == 8 else f"u{width // 8}"
        )
        for width, x in zip(bits, operands, strict=True)
    ]
    answer = function(_NoContext(), *symbols)
    result = answer[number] if isinstance(answer, tuple) else answer
    if not isinstance(result, Symbol):  # The result does not depend on the operands.
        result = symbols[0].like(result, result.dtype)
    return (result.astype(np.uint8) if result.dtype == BOOLEAN else result).value, trace.references


def address_of(reference: Any) -> int:
    """Return the address of an array, or of a compiled loop's code."""
    if isinstance(reference, np.ndarray):
        return int(reference.ctypes.data)
    loop, kinds = reference
    return int(loop.address(kinds))


def symbol_in(*operands: Any) -> Symbol | None:
    """The first symbol among operands, None if all have values."""
    return next((x for x in operands if isinstance(x, Symbol)), None)


def as_array(x: Any) -> Any:
    """Convert to an array; a symbol stays."""
    return x if isinstance(x, Symbol) else np.asarray(x)


def flat(x: Any) -> Any:
    """Return all elements along one axis."""
    return x if isinstance(x, Symbol) else np.ascontiguousarray(x).reshape(-1)


@vectorised
def _gather(table: Any, index: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = table[index[i]]


def look_up(table: np.ndarray, index: Any) -> Any:
    """table[index], for an index inside of it."""
    if isinstance(index, Symbol):
        return index.call(_gather, table, index, OUT, dtype=table.dtype)
    return table[index]


# -- NumPy functions of symbols --------------------------------------------------------------------


def _bits(dtype: np.dtype[Any]) -> int:
    return 1 if dtype == BOOLEAN else 8 * dtype.itemsize


def _vector(dtype: np.dtype[Any], lanes: int) -> ir.VectorType:
    """The type of a vector; Untraceable for numbers that are not whole."""
    if dtype.kind not in "biu":
        raise Untraceable(f"a symbol of {dtype}")
    return ir.VectorType(ir.IntType(_bits(dtype)), lanes)


def _plain(name: str) -> Callable[..., Any]:
    return lambda builder, _, *operands: getattr(builder, name)(*operands)


def _compare(test: str) -> Callable[..., Any]:
    def emit(builder: Any, kind: np.dtype[Any], a: Any, b: Any) -> Any:
        return (builder.icmp_signed if kind.kind == "i" else builder.icmp_unsigned)(test, a, b)

    return emit


def _extreme(test: str) -> Callable[..., Any]:
    return lambda builder, kind, a, b: builder.select(_compare(test)(builder, kind, a, b), a, b)


def _shift(name: str) -> Callable[..., Any]:
    """Counts above the width shift everything out."""

    def emit(builder: Any, kind: np.dtype[Any], a: Any, n: Any) -> Any:
        bits = _bits(kind)
        way = "ashr" if name == "lshr" and kind.kind == "i" else name
        counts = [x.constant for x in n.constant] if isinstance(n, ir.Constant) else [bits]
        if max(counts) < bits:
            return getattr(builder, way)(a, n) if any(counts) else a
        near = builder.icmp_unsigned("<", n, ir.Constant(n.type, [bits] * n.type.count))
        if way == "ashr":
            return builder.ashr(a, builder.select(near, n, ir.Constant(n.type, [bits - 1] * n.type.count)))
        return builder.select(near, getattr(builder, way)(a, n), ir.Constant(a.type, None))

    return emit


def _negative(builder: Any, _: Any, a: Any) -> Any:
    return builder.sub(ir.Constant(a.type, None), a)


def _absolute(builder: Any, kind: np.dtype[Any], a: Any) -> Any:
    low = builder.icmp_signed("<", a, ir.Constant(a.type, None))
    return builder.select(low, _negative(builder, kind, a), a) if kind.kind == "i" else a


def _count(builder: Any, _: Any, a: Any) -> Any:
    kind = ir.FunctionType(a.type, [a.type])
    ones = builder.call(declared(builder, kind, f"llvm.ctpop.v{a.type.count}i{a.type.element.width}"), [a])
    return (
        builder.trunc(ones, ir.VectorType(ir.IntType(8), a.type.count)) if a.type.element.width > 8 else ones
    )


def _logical(name: str) -> Callable[..., Any]:
    def emit(builder: Any, _: Any, *operands: Any) -> Any:
        truths = [builder.icmp_unsigned("!=", x, ir.Constant(x.type, None)) for x in operands]
        return getattr(builder, name)(*truths)

    return emit


_UFUNCS: dict[Any, Callable[..., Any]] = {
    np.add: _plain("add"), np.subtract: _plain("sub"), np.multiply: _plain("mul"),
    np.bitwise_and: _plain("and_"), np.bitwise_or: _plain("or_"), np.bitwise_xor: _plain("xor"),
    np.invert: _plain("not_"), np.negative: _negative, np.absolute: _absolute, np.bitwise_count: _count,
    np.minimum: _extreme("<"), np.maximum: _extreme(">"),
    np.left_shift: _shift("shl"), np.right_shift: _shift("lshr"),
    np.equal: _compare("=="), np.not_equal: _compare("!="), np.less: _compare("<"),
    np.less_equal: _compare("<="), np.greater: _compare(">"), np.greater_equal: _compare(">="),
    np.logical_and: _logical("and_"), np.logical_or: _logical("or_"), np.logical_xor: _logical("xor"),
    np.logical_not: _logical("not_"),
}  # fmt: skip


def _where(of: Symbol, chosen: Any, a: Any, b: Any) -> Symbol:
    dtype = np.result_type(*(x if isinstance(x, int) else x.dtype for x in (a, b)))
    operands = [of.like(x, kind).value for x, kind in ((chosen, BOOLEAN), (a, dtype), (b, dtype))]
    return Symbol(of.trace, dtype, of.trace.builder.select(*operands))


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _where,
    np.clip: lambda of, x, low, high: np.minimum(np.maximum(x, low), high),
    np.broadcast_to: lambda of, x, shape: x,
    np.shape: lambda of, x: x.shape,
}
