"""Run-time values as the evaluator handles them: scalars and groups of registers.

The evaluator applies Python's operators to them, and each operator asks the current emitter to
append instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType, DTypeLike, as_dtype
from tensorcore_dsl.errors import OperandError, listing
from tensorcore_dsl.ir.nodes import Type, Value
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.spec import Operand
from tensorcore_dsl.layout import Layout
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


class NeedsConstant(OperandError):
    """Python asked for the number or the truth of a run-time value."""

    def __init__(self, message: str, value: RuntimeValue) -> None:
        super().__init__(message)
        self.value = value


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
        raise NeedsConstant(
            "the keys of a dict and the items of a set are known at compile time, to compare them; "
            f"{self.described} is not",
            self,
        )

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
            f"{getattr(exponent, 'described', repr(exponent))} was given"
        )

    def __bool__(self) -> bool:
        raise NeedsConstant(
            "a run-time value has no truth while the kernel is compiled: `if`, `while`, `and`, "
            "`or` and `not` inside the kernel test it at run time, Python's own code cannot",
            self,
        )

    def __index__(self) -> int:
        raise NeedsConstant(f"a compile-time integer is needed here, not {self.described}", self)

    __int__ = __index__

    def __float__(self) -> float:
        raise NeedsConstant(f"a compile-time number is needed here, not {self.described}", self)

    @property
    def described(self) -> str:
        """The value in words, for messages."""
        raise NotImplementedError


class Scalar(RuntimeValue, Element):
    """A run-time value in one register of each thread.

    Python's operators work on it and give scalars, comparisons predicates; numbers take its type.

    Attributes
    ----------
    dtype : dtype
        Its type.

    Examples
    --------
    >>> @tc.kernel
    ... def halves(x: tc.Array, out: tc.Array):
    ...     value = x[tc.threadIdx.x]            # a scalar of s32
    ...     out[tc.threadIdx.x] = value.to(tc.f32) / 2
    >>> x, out = np.arange(4, dtype=np.int32), np.zeros(4, np.float32)
    >>> halves[1, 4](x, out)
    >>> out
    array([0. , 0.5, 1. , 1.5], dtype=float32)
    """

    __slots__ = ("dtype", "value")

    def __init__(self, value: Value, dtype: DType | None = None) -> None:
        self.value = value
        self.dtype = dtype or value.type.dtype

    def to(
        self, dtype: DTypeLike, *, rounding: str | None = None, relu: bool = False, satfinite: bool = False
    ) -> Any:
        """Convert to another type.

        Parameters
        ----------
        dtype : dtype
            The type of the result.
        rounding : str, optional
            "rn", "rz", "rm", "rp" or "rna"; None: to nearest, and of floats to integers towards
            zero. ue8m0 needs "rz" or "rp", and drops the sign. ue4m3 gets 0 for negative values.
        relu : bool
            Negative values and NaN become zero (f16, bf16, tf32 and narrower floats).
        satfinite : bool
            What is too large becomes the largest number instead of infinity.

        Returns
        -------
        Scalar
            Of type `dtype`.

        Raises
        ------
        OperandError
            Types that do not convert.
        UnknownInstruction
            Options that the conversion does not have.

        Notes
        -----
        `cvt`, section 9.7.9.21 of the PTX manual.
        """
        return emitter().convert(self, dtype, rounding=rounding, relu=relu, satfinite=satfinite)

    def bits(self, dtype: DTypeLike) -> Scalar:  # type: ignore[override]
        """Read the register as another type of the same size.

        Parameters
        ----------
        dtype : dtype
            Of as many bits as the register has.

        Returns
        -------
        Scalar
            The same bits.

        Raises
        ------
        OperandError
            A type of another size.
        """
        dtype = as_dtype(dtype)
        if dtype.register_bits != self.dtype.register_bits:
            raise OperandError(
                f"{self.dtype} has {self.dtype.register_bits} bits and {dtype} has "
                f"{dtype.register_bits}; .bits() keeps the size, .to() converts"
            )
        have = self.value.type.dtype
        if have == dtype or "b" in (have.kind, dtype.kind) or (have.is_integer and dtype.is_integer):
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


class CheckedAddress(Scalar):
    """The address of an access whose bounds have been checked; swizzle: of its shared tile."""

    __slots__ = ("swizzle",)

    swizzle: int


class RegisterGroup(RuntimeValue):
    """A fragment, the value of an operand of a matrix instruction; or a vector.

    Elements are counted as the layout's slots: 8 halves in the 4 registers of an A fragment. Row
    and column values are fragments too, of layouts with one column or one row. Operators work
    element by element, and `fragment[slot]` is an element of this thread.

    Examples
    --------
    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel
    ... def upper(out: tc.Array):
    ...     acc = mma.d.zeros()
    ...     acc = acc.map_coordinates(lambda value, row, col: tc.select(col > row, 1, value))
    ...     tc.store_elements(out, acc)
    >>> out = np.zeros((16, 8), np.float32)
    >>> upper[1, 32](out)
    >>> int(out.sum())
    28
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
        pair = f"{self.dtype.name}x2" if self.per_register == 2 else ""
        return dtypes.ALL.get(pair, dtypes.b32)

    @property
    def layout(self) -> Layout | None:
        """Layout of the elements in a matrix; None for a vector."""
        return self.operand.layout if self.operand is not None else None

    @property
    def per_register(self) -> int:
        """Elements in one register."""
        return self.layout.per_register if self.layout is not None else 1

    @property
    def slots(self) -> int:
        """Elements that this thread holds."""
        return self.value.type.registers * self.per_register

    def __len__(self) -> int:
        return self.slots

    @property
    def registers(self) -> list[Scalar]:
        """The registers as scalars."""
        return [emitter().part(self, i) for i in range(self.value.type.registers)]

    def elements(self) -> list[Scalar]:
        """One scalar for each element that this thread holds, unpacked.

        Returns
        -------
        list of Scalar
            In the order of slots.
        """
        whole = self.layout is None or self.dtype.storage_bits >= 32
        if whole and self.per_register == 1:
            return list(self.registers)
        step = self.per_register
        return [e for r in self.registers for e in emitter().unpack(r, self.dtype)[:step]]

    def rebuild(self, elements: Sequence[Any]) -> Any:
        """A group of the same layout from new elements, of their type; a `Mask` of predicates."""
        kinds = list(dict.fromkeys(e.dtype for e in elements if isinstance(e, Scalar)))
        if len(kinds) > 1:
            raise OperandError(
                f"the elements of {self.described} would have several types, {listing(kinds)}: "
                "convert them to one"
            )
        dtype = kinds[0] if kinds else self.dtype
        cut = [e for e in elements if isinstance(e, float) and not e.is_integer()]
        if cut and dtype.is_integer:
            raise OperandError(f"{cut[0]} is no {dtype}: convert it, {dtype}({cut[0]})")
        if dtype.kind == "p" or (not kinds and all(isinstance(e, bool) for e in elements)):
            return Mask(elements, self)
        if self.operand is None or self.layout is None:
            return emitter().pack(elements, Type(dtype, len(elements)))
        return of_elements(self.operand, self.layout.of_type(dtype), elements)

    def map(self, function: Callable[[Any], Any]) -> Any:
        """The fragment of `function(element)` for each element.

        Parameters
        ----------
        function : function
            Of a scalar, in the kernel language.

        Returns
        -------
        RegisterGroup or Mask
            Of the type that the function gives; a mask, if it gives predicates.

        Raises
        ------
        OperandError
            Results of several types.
        """
        call = emitter().call
        return self.rebuild([call(function, [e], {}) for e in self.elements()])

    def map_coordinates(self, function: Callable[[Any, Any, Any], Any]) -> Any:
        """The fragment of `function(element, row, col)` for each element.

        Parameters
        ----------
        function : function
            Of a scalar and two run-time integers, in the kernel language.

        Returns
        -------
        RegisterGroup or Mask
            Of the type that the function gives; a mask, if it gives predicates.

        Raises
        ------
        OperandError
            A vector, which has no coordinates; results of several types.
        """
        call = emitter().call
        return self.rebuild(
            [call(function, [e, *self.coordinates(i)], {}) for i, e in enumerate(self.elements())]
        )

    def to(
        self, dtype: DTypeLike, *, rounding: str | None = None, relu: bool = False, satfinite: bool = False
    ) -> RegisterGroup:
        """Each element converted to `dtype`; the layout stays.

        Parameters
        ----------
        dtype : dtype
            The type of the elements of the result.
        rounding, relu, satfinite : optional
            As of `Scalar.to`.

        Returns
        -------
        RegisterGroup
            Narrower elements share registers.

        Raises
        ------
        OperandError, UnknownInstruction
            As of `Scalar.to`.
        """
        modifiers = {"rounding": rounding, "relu": relu, "satfinite": satfinite}
        options: dict[str, Any] = {name: value for name, value in modifiers.items() if value}
        chosen = as_dtype(dtype)
        if chosen == self.dtype and not (relu or satfinite):
            return self
        elements = self.elements()
        if self.operand is None or self.layout is None or chosen.kind == "p":
            return self.rebuild([e.to(chosen, **options) for e in elements])  # type: ignore[no-any-return]
        return of_converted(self.operand, self.layout.of_type(chosen), elements, **options)

    def replaced(self, index: Any, value: Any) -> RegisterGroup:
        """The group with `value`, converted to its type, as element `index` (or as a slice)."""
        elements: list[Any] = self.elements()
        indices = range(len(elements))[self._checked(index)]
        chosen = [indices] if isinstance(indices, int) else list(indices)
        values = [value] if isinstance(indices, int) else list(value)
        if len(values) != len(chosen):
            raise OperandError(f"{len(chosen)} elements are assigned, {len(values)} were given")
        for index, new in zip(chosen, values, strict=True):
            if isinstance(new, RegisterGroup):
                raise OperandError(f"an element is one register, not {new.described}")
            elements[index] = emitter().convert(new, self.dtype)
        return self.rebuild(elements)  # type: ignore[no-any-return]

    def _checked(self, index: Any) -> Any:
        """A slot or a slice of slots; OperandError for anything else."""
        if isinstance(index, Mask):
            raise OperandError(
                f"a condition selects no elements of {self.described}: x = tc.select(condition, "
                "new, x) replaces those where it holds"
            )
        if isinstance(index, RuntimeValue):
            raise OperandError(
                "registers are numbered at compile time: index a fragment or vector with a "
                f"compile-time integer, not {index.described}"
            )
        try:
            range(self.slots)[index]
        except (IndexError, TypeError):
            text = getattr(index, "described", repr(index))
            raise OperandError(f"{self.described} has elements 0 to {self.slots - 1}, not {text}") from None
        return index

    if TYPE_CHECKING:  # the frontend gives the variable a new value

        def __setitem__(self, index: Any, value: Any) -> None: ...

    def __getitem__(self, index: Any) -> Any:
        return self.elements()[self._checked(index)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements())

    def coordinates(self, slot: int, thread: Any = None) -> tuple[Any, Any]:
        """The row and the column of element `slot` of this thread in the matrix.

        Parameters
        ----------
        slot : int
            Known at compile time, from 0 on.
        thread : integer, optional
            Another thread of the warp or warpgroup; None: this one.

        Returns
        -------
        tuple
            (row, col), run-time integers.

        Raises
        ------
        OperandError
            A vector, which has no coordinates, or no such slot.
        """
        if self.layout is None:
            raise OperandError(f"{self.described} has no coordinates; only fragments do")
        if not 0 <= slot < self.slots:
            raise OperandError(f"{self.described} has elements 0 to {self.slots - 1}, not {slot}")
        return self.layout.formula(this_thread(self.layout) if thread is None else thread, slot)

    @property
    def described(self) -> str:
        if self.operand is None or self.layout is None:
            return f"a vector of {len(self)} {self.dtype}"
        if 1 in (self.layout.rows, self.layout.cols):
            line = "row" if self.layout.cols == 1 else "column"
            return f"{self.layout.rows * self.layout.cols} {line} values of {self.dtype}"
        return f"a fragment {self.operand.type_name}"

    def __repr__(self) -> str:
        return f"<{self.value}: {self.value.type}>"


class Mask(list[Any]):
    """A predicate for each element of `group`, as its comparisons give; `tc.select` takes it."""

    def __init__(self, elements: Sequence[Any], group: RegisterGroup) -> None:
        super().__init__(elements)
        self.group = group

    def _combined(self, name: str, *others: Any) -> Any:
        return emitter().apply(name, self, *others)

    def __and__(self, other: Any) -> Any:
        return self._combined("and", other)

    def __or__(self, other: Any) -> Any:
        return self._combined("or", other)

    def __xor__(self, other: Any) -> Any:
        return self._combined("xor", other)

    def __invert__(self) -> Any:
        return self._combined("invert")

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    @property
    def described(self) -> str:
        return f"the predicates of {self.group.described}"


def this_thread(layout: Layout) -> Any:
    """The thread's number in a layout: its lane, or its number in the warpgroup."""
    if layout.threads == 32:
        return emitter().special("laneid")
    return emitter().special("tid.x") % layout.threads


def of_registers(operand: Operand, layout: Layout, registers: Sequence[Any]) -> RegisterGroup:
    """The fragment in `layout`, named after `operand`, of one scalar for each register."""
    if layout is not operand.layout:
        operand = Operand(operand.name, layout.dtype, layout.registers, "reg", layout)
    type = Type(layout.dtype, layout.registers, layout.name)
    return emitter().pack(registers, type, operand)  # type: ignore[no-any-return]


def of_elements(operand: Operand, layout: Layout, elements: Sequence[Any]) -> RegisterGroup:
    """Make a fragment of one scalar (of the layout's type) or number for each element."""
    step, build = layout.per_register, emitter()
    if layout.dtype.storage_bits < 32:
        registers = (list(elements[i : i + step]) for i in range(0, len(elements), step))
        elements = [build.pack_register(part, layout.dtype) for part in registers]
    return of_registers(operand, layout, elements)


def of_converted(operand: Operand, layout: Layout, elements: list[Scalar], **options: Any) -> RegisterGroup:
    """Make a fragment of elements of another type, converted in pairs where an instruction does."""
    if layout.per_register > 1:
        packed = emitter().convert_pairs(elements, layout.dtype, **options)
        if packed is not None:
            return of_registers(operand, layout, packed)
    return of_elements(operand, layout, [e.to(layout.dtype, **options) for e in elements])


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
