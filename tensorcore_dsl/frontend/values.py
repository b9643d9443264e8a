"""Run-time values as the evaluator handles them: scalars and groups of registers.

Operators emit instructions. The partial evaluator needs no rule for them: it applies Python's
operators, and these classes say what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.nodes import Type, Value
from tensorcore_dsl.isa.spec import Operand, emitter


def _binary(name: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        return apply(name, self, other)

    return method


def _reflected(name: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        return apply(name, other, self)

    return method


def _unary(name: str) -> Any:
    def method(self: Any) -> Any:
        return apply(name, self)

    return method


def apply(name: str, *operands: Any) -> Any:
    """Emit operator `name`, element by element where a group takes part."""
    from tensorcore_dsl.frontend import arithmetic

    if any(isinstance(o, Group) for o in operands):
        return _each(name, operands)
    if not all(isinstance(o, (Scalar, bool, int, float)) or hasattr(o, "dtype") for o in operands):
        return NotImplemented
    return arithmetic.apply(emitter(), name, *operands)


def _each(name: str, operands: tuple[Any, ...]) -> Any:
    group = next(o for o in operands if isinstance(o, Group))
    for other in operands:
        if isinstance(other, Group) and other.slots != group.slots:
            raise OperandError(f"groups of {group.slots} and {other.slots} elements do not combine")
    columns = [o.elements() if isinstance(o, Group) else [o] * group.slots for o in operands]
    return group.rebuild([apply(name, *column) for column in zip(*columns, strict=True)])


class Runtime:
    """A value known only at run time, in one IR value."""

    value: Value

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("sub"), _reflected("sub")
    __mul__, __rmul__ = _binary("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _binary("truediv"), _reflected("truediv")
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _reflected("floordiv")
    __mod__, __rmod__ = _binary("mod"), _reflected("mod")
    __and__, __rand__ = _binary("and"), _reflected("and")
    __or__, __ror__ = _binary("or"), _reflected("or")
    __xor__, __rxor__ = _binary("xor"), _reflected("xor")
    __lshift__, __rlshift__ = _binary("shl"), _reflected("shl")
    __rshift__, __rrshift__ = _binary("shr"), _reflected("shr")
    __neg__, __abs__, __invert__ = _unary("neg"), _unary("abs"), _unary("not")
    __lt__, __le__ = _binary("lt"), _binary("le")
    __gt__, __ge__ = _binary("gt"), _binary("ge")
    __eq__, __ne__ = _binary("eq"), _binary("ne")

    def __hash__(self) -> int:
        return id(self.value)

    def __pos__(self) -> Any:
        return self

    def __bool__(self) -> bool:
        raise OperandError(
            "a run-time value has no truth while the kernel is compiled; "
            "use `if`, `and`, `or`, `not` inside the kernel, or compute it from Const parameters"
        )

    def __index__(self) -> int:
        raise OperandError("a compile-time integer is needed here, not a run-time value")

    __int__ = __index__

    def __float__(self) -> float:
        raise OperandError("a compile-time number is needed here, not a run-time value")


class Scalar(Runtime):
    """One register."""

    __slots__ = ("value", "dtype")

    def __init__(self, value: Value, dtype: DType | None = None) -> None:
        self.value = value
        self.dtype = dtype or value.type.dtype

    def to(self, dtype: DType, **options: Any) -> Any:
        """Converted to `dtype`; options: rounding="rn|rz|rm|rp|rna", relu, satfinite."""
        from tensorcore_dsl.frontend import arithmetic

        return arithmetic.convert(emitter(), self, dtype, **options)

    def bits(self, dtype: DType) -> Scalar:
        """The same register read as another type of the same size."""
        if dtype.register_bits != self.dtype.register_bits:
            raise OperandError(f"{self.dtype} and {dtype} differ in size; use .to() to convert")
        if self.value.type.dtype.kind == "b" or self.value.type.dtype == dtype:
            return Scalar(self.value, dtype)
        size = dtype.register_bits
        plain = emitter().named(f"mov.b{size}", Scalar(self.value))  # type: ignore[attr-defined]
        return Scalar(plain.value, dtype)

    def __repr__(self) -> str:
        return f"<{self.value}: {self.dtype}>"


class Group(Runtime):
    """Several registers: a vector, or the fragment that `operand` describes.

    Elements are counted as the layout's slots: 8 halves in the 4 registers of an A fragment.
    """

    __slots__ = ("value", "operand")

    def __init__(self, value: Value, operand: Operand | None = None) -> None:
        self.value = value
        self.operand = operand if operand is not None and operand.layout is not None else None

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype

    @property
    def register_dtype(self) -> DType:
        """The type of one register: packed pairs are f16x2, bf16x2 or plain bits."""
        if self.value.type.layout is None or self.dtype.storage_bits >= 32:
            return self.dtype
        return dtypes.ALL.get(f"{self.dtype.name}x2", dtypes.b32)

    @property
    def per_register(self) -> int:
        return self.dtype.per_register if self.value.type.layout is not None else 1

    @property
    def slots(self) -> int:
        return self.value.type.registers * self.per_register

    def __len__(self) -> int:
        return self.slots

    @property
    def registers(self) -> list[Scalar]:
        """The registers as scalars."""
        return [emitter().part(self, i) for i in range(self.value.type.registers)]  # type: ignore[attr-defined]

    def elements(self) -> list[Any]:
        """One scalar an element, unpacked."""
        from tensorcore_dsl.frontend import arithmetic

        if self.per_register == 1:
            return list(self.registers)
        return [e for r in self.registers for e in arithmetic.unpack(emitter(), r, self.dtype)]

    def rebuild(self, elements: list[Any]) -> Any:
        """A group of the same layout from new elements; a vector when their type changed."""
        from tensorcore_dsl.frontend import arithmetic

        builder: Any = emitter()
        dtype = next((e.dtype for e in elements if isinstance(e, Scalar)), self.dtype)
        if dtype.kind == "p":
            return elements
        if self.per_register == 1:
            type = self.value.type if dtype == self.dtype else Type(dtype, len(elements))
            return builder.pack(elements, type, self.operand if dtype == self.dtype else None)
        if dtype != self.dtype:
            return builder.pack(elements, Type(dtype, len(elements)))
        step = self.per_register
        packed = [
            arithmetic.pack(builder, elements[i : i + step], dtype)
            for i in range(0, len(elements), step)
        ]
        return builder.pack(packed, self.value.type, self.operand)

    def map(self, function: Callable[[Any], Any]) -> Any:
        """`function` of each element."""
        return self.rebuild([function(e) for e in self.elements()])

    def to(self, dtype: DType, **options: Any) -> Any:
        """Each element converted to `dtype`."""
        return self.rebuild([e.to(dtype, **options) for e in self.elements()])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, Runtime):
            raise OperandError("registers are numbered at compile time: index them with an integer")
        return self.elements()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements())

    def coordinates(self, slot: int, thread: Any = None) -> tuple[Any, Any]:
        """(row, col) of element `slot` in this thread, as run-time values."""
        if self.operand is None or self.operand.layout is None:
            raise OperandError("a plain vector has no coordinates; only fragments do")
        from tensorcore_dsl.frontend.language import lane_id, thread_in_warpgroup

        if thread is None:
            thread = lane_id() if self.operand.layout.threads == 32 else thread_in_warpgroup()
        return self.operand.layout.formula(thread, slot)

    def __repr__(self) -> str:
        return f"<{self.value}: {self.value.type}>"


def scalar_of(value: Value) -> Scalar:
    return Scalar(value)


def group_of(value: Value, operand: Operand | None) -> Group:
    return Group(value, operand)


class Struct:
    """A compile-time object that carries run-time values in the attributes named by `parts`.

    Never changed in place; control flow rebuilds it when one of its parts changes.
    """

    parts: ClassVar[tuple[str, ...]] = ()

    def with_parts(self, **changed: Any) -> Any:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.__dict__.update(changed)
        return twin
