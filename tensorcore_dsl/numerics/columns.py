# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""The innermost loop of the fused sums in binary64, emitted as vectors of eight columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8  # columns per vector

inlined: Any = intrinsic


def _vector(element: ir.Type) -> ir.VectorType:
    return ir.VectorType(element, LANES)


def _splat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    vector = _vector(value.type)
    first = builder.insert_element(
        ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0)
    )
    lanes = ir.Constant(_vector(ir.IntType(32)), [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), lanes)


class _Columns:
    """Emitter of the fused sums of eight columns; `self.data` maps names to data pointers."""

    def __init__(self, context: Any, builder: ir.IRBuilder, kinds: Any, values: Any) -> None:
        self.builder = builder
        self.data = {}
        self.number = {}
        names = ("va", "ea", "vb", "eb", "rows", "vc", "ec", "out")
        for name, kind, value in zip(names, kinds, values, strict=False):
            self.data[name] = context.make_array(kind)(context, builder, value).data
        numbers = ("at_a", "at_row", "at_c", "column", "length", "aligned", "floor")
        for name, kind, value in zip(numbers, kinds[8:], values[8:], strict=True):
            self.number[name] = context.cast(builder, value, kind, types.int64)
        self.trunc = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(_vector(ir.DoubleType()), [_vector(ir.DoubleType())]),
            f"llvm.trunc.v{LANES}f64",
        )

    def at(self, name: str, index: ir.Value) -> ir.Value:
        """The scalar at an index, broadcast to all lanes."""
        return _splat(self.builder, self.builder.load(self.pointer(name, index)))

    def pointer(self, name: str, index: ir.Value) -> ir.Value:
        return self.builder.gep(self.data[name], [index])

    def load(self, name: str, index: ir.Value) -> ir.Value:
        pointer = self.pointer(name, index)
        vector = _vector(pointer.type.pointee)
        width = 8 if isinstance(pointer.type.pointee, ir.DoubleType) else 4
        return self.builder.load(self.builder.bitcast(pointer, vector.as_pointer()), align=width)

    def power(self, exponent: ir.Value) -> ir.Value:
        """2.0**exponent for int32 lanes in the normal range."""
        wide = _vector(ir.IntType(64))
        biased = self.builder.add(self.builder.sext(exponent, wide), ir.Constant(wide, [1023] * 8))
        bits = self.builder.shl(biased, ir.Constant(wide, [52] * LANES))
        return self.builder.bitcast(bits, _vector(ir.DoubleType()))

    @contextmanager
    def over_k(self) -> Iterator[tuple[ir.Value, ir.Value]]:
        """A loop over the elements of the step, with their indices into A and into B."""
        with cgutils.for_range(self.builder, self.number["length"]) as loop:
            k = loop.index
            at_row = self.builder.add(self.number["at_row"], k)
            row = self.builder.load(self.pointer("rows", at_row))
            at_b = self.builder.add(self.builder.sext(row, ir.IntType(64)), self.number["column"])
            yield self.builder.add(self.number["at_a"], k), at_b

    def largest_exponent(self) -> ir.Value:
        narrow = ir.IntType(32)
        floor = _splat(self.builder, self.builder.trunc(self.number["floor"], narrow))
        largest = cgutils.alloca_once(self.builder, _vector(narrow))
        self._raise_to(largest, floor, self.load("ec", self.number["at_c"]))
        with self.over_k() as (a, b):
            exponent = self.builder.add(self.at("ea", a), self.load("eb", b))
            self._raise_to(largest, self.builder.load(largest), exponent)
        return self.builder.load(largest)

    def _raise_to(self, slot: ir.Value, one: ir.Value, other: ir.Value) -> None:
        greater = self.builder.icmp_signed(">", one, other)
        self.builder.store(self.builder.select(greater, one, other), slot)

    def emit(self) -> None:
        builder = self.builder
        aligned = _splat(builder, builder.trunc(self.number["aligned"], ir.IntType(32)))
        shift = builder.sub(aligned, self.largest_exponent())
        up = self.power(shift)
        down = self.power(builder.neg(shift))
        total = cgutils.alloca_once(builder, _vector(ir.DoubleType()))
        c = self.load("vc", self.number["at_c"])
        builder.store(builder.call(self.trunc, [builder.fmul(c, up)]), total)
        with self.over_k() as (a, b):
            product = builder.fmul(self.at("va", a), self.load("vb", b))
            term = builder.call(self.trunc, [builder.fmul(product, up)])
            builder.store(builder.fadd(builder.load(total), term), total)
        out = self.pointer("out", self.number["at_c"])
        out = builder.bitcast(out, _vector(ir.DoubleType()).as_pointer())
        builder.store(builder.fmul(builder.load(total), down), out, align=8)


@inlined
def fused_columns(
    typing: Any, va: Any, ea: Any, vb: Any, eb: Any, rows: Any, vc: Any, ec: Any, out: Any,
    at_a: Any, at_row: Any, at_c: Any, column: Any, length: Any, aligned: Any, floor: Any,
) -> Any:  # fmt: skip
    """One fused step for eight neighbouring columns of one row, as vector code.

    out[at_c + j] = sum(trunc(t * 2**(aligned - E)) for t in (c, *products)) * 2**(E - aligned),
    where E = max(exponents of the nonzero terms, floor). rows[at_row + k] is the start of the row
    of B that is multiplied by element k of A.
    """
    arrays = (va, ea, vb, eb, rows, vc, ec, out)
    arguments = (*arrays, at_a, at_row, at_c, column, length, aligned, floor)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _Columns(context, builder, signature.args, values).emit()
        return context.get_dummy_value()

    return types.void(*arguments), codegen
