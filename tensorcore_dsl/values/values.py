"""Run-time values as the evaluator handles them: scalars and groups of registers.

The evaluator applies Python's operators to them, and each operator asks the current emitter to
append instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.nodes import Type, Value
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.spec import Operand
from tensorcore_dsl.tracing import emitter

if TYPE_CHECKING:
    # Operators with types, and the class that `tc.f32` names in an annotation.
    from tensorcore_dsl._typing import Element as Element
    from tensorcore_dsl._typing import Operators
else:
    Element = Operators = object


def _binary(name: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        return emitter().apply(name, self, other)

    return method


def _reflected(name: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        return emitter().apply(name, other, self)

    return method


def _unary(name: str) -> Any:
    def method(self: Any) -> Any:
        return emitter().apply(name, self)

    return method


class RuntimeValue(Operators):
    """A value known only at run time, in one IR value."""

    value: Value
    __slots__ = ()
    __array_ufunc__ = None  # NumPy's scalars leave operators to this class

    if not TYPE_CHECKING:
        __add__, __radd__ = _binary("add"), _reflected("add")
        __sub__, __rsub__ = _binary("sub"), _reflected("sub")
        __mul__, __rmul__ = _binary("mul"), _reflected("mul")
        __truediv__, __rtruediv__ = _binary("truediv"), _reflected("truediv")
        __floordiv__, __rfloordiv__ = _binary("floordiv"), _reflected("floordiv")
        __mod__, __rmod__ = _binary("mod"), _reflected("mod")
        __and__, __rand__ = _binary("and"), _reflected("and")
        __or__, __ror__ = _binary("or"), _reflected("or")
        __xor__, __rxor__ = _binary("xor"), _reflected("xor")
        __lshift__, __rlshift__ = _binary("lshift"), _reflected("lshift")
        __rshift__, __rrshift__ = _binary("rshift"), _reflected("rshift")
        __neg__, __abs__, __invert__ = _unary("neg"), _unary("abs"), _unary("invert")
        __lt__, __le__ = _binary("lt"), _binary("le")
        __gt__, __ge__ = _binary("gt"), _binary("ge")
        __eq__, __ne__ = _binary("eq"), _binary("ne")

    def __hash__(self) -> int:
        return id(self.value)

    def __pos__(self) -> Any:
        return self

    def __pow__(self, exponent: Any) -> Any:
        if isinstance(exponent, int) and 1 <= exponent <= 16:
            result: Any = self
            for _ in range(exponent - 1):
                result = result * self
            return result
        raise OperandError(
            "** of a run-time value takes a compile-time exponent from 1 to 16, "
            f"{exponent!r} was given"
        )

    def __bool__(self) -> bool:
        raise OperandError(
            "a run-time value has no truth while the kernel is compiled: `if`, `while`, `and`, "
            "`or` and `not` inside the kernel test it at run time, Python's own code cannot"
        )

    def __index__(self) -> int:
        raise OperandError(f"a compile-time integer is needed here, not {self.described}")

    __int__ = __index__

    def __float__(self) -> float:
        raise OperandError(f"a compile-time number is needed here, not {self.described}")

    @property
    def described(self) -> str:
        """The value in words, for messages."""
        raise NotImplementedError


class Scalar(RuntimeValue, Element):
    """One register."""

    __slots__ = ("dtype", "value")

    def __init__(self, value: Value, dtype: DType | None = None) -> None:
        self.value = value
        self.dtype = dtype or value.type.dtype

    def to(self, dtype: DType, **options: Any) -> Any:
        """Converted to `dtype`; options: rounding="rn|rz|rm|rp|rna", relu, satfinite."""
        return emitter().convert(self, dtype, **options)

    def bits(self, dtype: DType) -> Scalar:  # type: ignore[override]
        """The same register read as another type of the same size."""
        if dtype.register_bits != self.dtype.register_bits:
            raise OperandError(
                f"{self.dtype} has {self.dtype.register_bits} bits and {dtype} has "
                f"{dtype.register_bits}; .bits() keeps the size, .to() converts"
            )
        have = self.value.type.dtype
        if (
            have == dtype
            or "b" in (have.kind, dtype.kind)
            or (have.is_integer and dtype.is_integer)
        ):
            return Scalar(self.value, dtype)
        plain = emitter().named(names.move(have), Scalar(self.value))
        return Scalar(plain.value, dtype)

    def __iter__(self) -> Iterator[Any]:
        raise OperandError(f"{self.described} cannot be iterated over or unpacked")

    @property
    def described(self) -> str:
        return f"a run-time value of type {self.dtype}"

    def __repr__(self) -> str:
        return f"<{self.value}: {self.dtype}>"


class RegisterGroup(RuntimeValue):
    """Several registers: a vector, or the fragment that `operand` describes.

    Elements are counted as the layout's slots: 8 halves in the 4 registers of an A fragment.
    """

    __slots__ = ("operand", "value")

    def __init__(self, value: Value, operand: Operand | None = None) -> None:
        self.value = value
        self.operand = operand if operand is not None and operand.layout is not None else None

    @property
    def dtype(self) -> DType:
        """The type of one element."""
        return self.value.type.dtype

    @property
    def register_dtype(self) -> DType:
        """The type of one register: packed pairs are f16x2, bf16x2 or plain bits."""
        if self.value.type.layout is None or self.dtype.storage_bits >= 32:
            return self.dtype
        return dtypes.ALL.get(f"{self.dtype.name}x2", dtypes.b32)

    @property
    def per_register(self) -> int:
        layout = self.operand.layout if self.operand is not None else None
        return layout.per_register if layout is not None else 1

    @property
    def slots(self) -> int:
        return self.value.type.registers * self.per_register

    def __len__(self) -> int:
        return self.slots

    @property
    def registers(self) -> list[Scalar]:
        """The registers as scalars."""
        return [emitter().part(self, i) for i in range(self.value.type.registers)]

    def elements(self) -> list[Any]:
        """One scalar an element, unpacked."""
        if self.per_register == 1:
            return list(self.registers)
        return [e for r in self.registers for e in emitter().unpack(r, self.dtype)]

    def rebuild(self, elements: list[Any]) -> Any:
        """A group of the same layout from new elements; a vector when their type changed.

        Predicates stay a list: there are no groups of them.
        """
        build = emitter()
        dtype = next((e.dtype for e in elements if isinstance(e, Scalar)), self.dtype)
        if dtype.kind == "p":
            return elements
        if dtype != self.dtype:
            return build.pack(elements, Type(dtype, len(elements)))
        if self.per_register > 1:
            step = self.per_register
            starts = range(0, len(elements), step)
            elements = [build.pack_register(elements[i : i + step], dtype) for i in starts]
        return build.pack(elements, self.value.type, self.operand)

    def map(self, function: Callable[[Any], Any]) -> Any:
        """`function` of each element."""
        return self.rebuild([function(e) for e in self.elements()])

    def to(self, dtype: DType, **options: Any) -> Any:
        """Each element converted to `dtype`."""
        return self.rebuild([e.to(dtype, **options) for e in self.elements()])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, RuntimeValue):
            raise OperandError(
                "registers are numbered at compile time: index a fragment or vector with a "
                f"compile-time integer, not {index.described}"
            )
        return self.elements()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements())

    def coordinates(self, slot: int, thread: Any = None) -> tuple[Any, Any]:
        """(row, col) of element `slot` in this thread, as run-time values."""
        if self.operand is None or self.operand.layout is None:
            raise OperandError(f"{self.described} has no coordinates; only fragments do")
        layout = self.operand.layout
        if not 0 <= slot < self.slots:
            raise OperandError(f"{self.described} has elements 0 to {self.slots - 1}, not {slot}")
        if thread is None:
            one_warp = layout.threads == 32
            thread = emitter().special("laneid" if one_warp else "tid.x")
            thread = thread if one_warp else thread % layout.threads
        return layout.formula(thread, slot)

    @property
    def described(self) -> str:
        if self.operand is None:
            return f"a vector of {len(self)} {self.dtype}"
        return f"a fragment {self.operand.type_name}"

    def __repr__(self) -> str:
        return f"<{self.value}: {self.value.type}>"


class Undefined:
    """A variable that has no single value known to the evaluator.

    `reason` completes the sentence "x cannot be used here: ...".
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def complain(self, *_: Any) -> NoReturn:
        raise OperandError(f"an item of a container cannot be used here: {self.reason}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = complain
    __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __and__ = __or__ = __xor__ = complain
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __bool__ = __index__ = complain

    def __repr__(self) -> str:
        return "<undefined>"


class Unset:
    """The result of a function that has not returned yet; it is never read."""

    def __repr__(self) -> str:
        return "<unset>"


UNSET = Unset()
Self = TypeVar("Self", bound="Struct")


class Struct:
    """A compile-time object with run-time values in the attributes that `parts` names.

    It is immutable: control flow makes a new one when a part changes.
    """

    parts: ClassVar[tuple[str, ...]] = ()

    def with_parts(self: Self, **changed: Any) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.__dict__.update(changed)
        return twin

    def fixed(self) -> dict[str, Any]:
        """The compile-time attributes: control flow joins two objects only if these agree."""
        return {k: v for k, v in self.__dict__.items() if k not in self.parts}

    def joined(self: Self, parts: list[Any]) -> Self:
        """The object with these parts, in the order of `parts`, after control flow."""
        return self.with_parts(**dict(zip(self.parts, parts, strict=True)))
