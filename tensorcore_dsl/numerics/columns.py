# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""The innermost loop of the fused sums in binary64, emitted as vectors of eight columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from tensorcore_dsl.lowering import arrays, primitive
from tensorcore_dsl.lowering.values import COUNT, Number, cast, llvm_type

LANES = 8  # columns per vector


def _vector(element: ir.Type) -> ir.VectorType:
    return ir.VectorType(element, LANES)


def _splat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    vector = _vector(value.type)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    lanes = ir.Constant(_vector(ir.IntType(32)), [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), lanes)


class _Columns:
    """Emitter of the fused sums of eight columns; `self.data` maps names to data pointers."""

    def __init__(self, builder: ir.IRBuilder, given: Sequence[Any]) -> None:
        self.builder = builder
        names = ("va", "ea", "vb", "eb", "rows", "vc", "ec", "out")
        self.data = {
            name: builder.bitcast(x.address, llvm_type(x.type.dtype).as_pointer())
            for name, x in zip(names, given, strict=False)
        }
        numbers = ("at_a", "at_row", "at_c", "column", "length", "aligned", "floor")
        self.number = {
            name: cast(builder, COUNT, x).value for name, x in zip(numbers, given[8:], strict=True)
        }
        name, kind = f"llvm.trunc.v{LANES}f64", _vector(ir.DoubleType())
        self.trunc = arrays.declared(builder, ir.FunctionType(kind, [kind]), name)

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
        with arrays.counted(self.builder, 0, Number(COUNT, self.number["length"])) as loop:
            k = loop.index.value
            at_row = self.builder.add(self.number["at_row"], k)
            row = self.builder.load(self.pointer("rows", at_row))
            at_b = self.builder.add(self.builder.sext(row, ir.IntType(64)), self.number["column"])
            yield self.builder.add(self.number["at_a"], k), at_b

    def largest_exponent(self) -> ir.Value:
        narrow = ir.IntType(32)
        floor = _splat(self.builder, self.builder.trunc(self.number["floor"], narrow))
        largest = arrays.variable(self.builder, _vector(narrow))
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
        total = arrays.variable(builder, _vector(ir.DoubleType()))
        c = self.load("vc", self.number["at_c"])
        builder.store(builder.call(self.trunc, [builder.fmul(c, up)]), total)
        with self.over_k() as (a, b):
            product = builder.fmul(self.at("va", a), self.load("vb", b))
            term = builder.call(self.trunc, [builder.fmul(product, up)])
            builder.store(builder.fadd(builder.load(total), term), total)
        out = self.pointer("out", self.number["at_c"])
        out = builder.bitcast(out, _vector(ir.DoubleType()).as_pointer())
        builder.store(builder.fmul(builder.load(total), down), out, align=8)


@primitive
def fused_columns(builder: ir.IRBuilder, *given: Any) -> None:
    """One fused step for eight neighbouring columns of one row, as vector code.

    given: va, ea, vb, eb, rows, vc, ec, out, contiguous arrays; at_a, at_row, at_c, column, length,
    aligned, floor. out[at_c + j] =
    sum(trunc(t * 2**(aligned - E)) for t in (c, *products)) * 2**(E - aligned), where E =
    max(exponents of the nonzero terms, floor). rows[at_row + k] is the start of the row of B that
    is multiplied by element k of A.
    """
    _Columns(builder, given).emit()
