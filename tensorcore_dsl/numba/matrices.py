"""Load and store fragments in Numba kernels: ldmatrix, stmatrix, movmatrix, and element by element."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir

from tensorcore_dsl import isa
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.spec import Operand
from tensorcore_dsl.layout import Layout
from tensorcore_dsl.numba import assembly, registers
from tensorcore_dsl.numba.compat import TypingError, literal_intrinsic, types
from tensorcore_dsl.numba.intrinsics import intrinsic

WORD = ir.IntType(32)


def _constant(what: str, name: str, kind: Any, choices: tuple[Any, ...]) -> Any:
    """Return the value of a literal type, or the default value `kind` of an omitted argument."""
    value = kind.literal_value if isinstance(kind, types.Literal) else kind
    if value not in choices:
        raise TypingError(f"{what}: {name} is {kind}; it must be a constant, one of {choices}")
    return value


def _check_element(what: str, array: Any, index: Any) -> None:
    """Raise TypingError unless `index` is an index of `array`."""
    if not isinstance(array, types.Array) or not registers.is_index(array, index):
        raise TypingError(
            f"{what} takes an array and an index of as many integers as it has dimensions, "
            f"not {array} and {index}"
        )


def _shared_address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return the shared-memory address of the element that the first two arguments name."""
    return registers.element_address(context, builder, signature.args[:2], arguments[:2], 32)


@literal_intrinsic
def ldmatrix(typingctx: Any, array: Any, index: Any, count: Any, trans: Any = False) -> Any:
    """Load `count` 8x8 matrices of 16-bit elements from shared memory.

    Parameters
    ----------
    array : shared array
        Of 16-bit elements, or of what has their bytes.
    index : int or tuple of int
        The row that this lane addresses: lane 8 i + j passes that of row j of matrix i, 16 bytes,
        aligned to 16.
    count : int
        1, 2 or 4, a constant.
    trans : bool
        Transposes each matrix; a constant.

    Returns
    -------
    tuple of uint32
        `count` registers of two elements.

    Raises
    ------
    TypingError
        An index of another rank, a count or flag that is not a constant.

    Notes
    -----
    `ldmatrix`, section 9.7.14.5.15 of the PTX manual.
    """
    number = _constant(names.LDMATRIX, "count", count, (1, 2, 4))
    transposed = _constant(names.LDMATRIX, "trans", trans, (False, True))
    instr = isa.instruction(names.ldmatrix(number, transposed))
    _check_element(names.LDMATRIX, array, index)
    code = assembly.assembly(instr, {})
    kind = types.UniTuple(types.uint32, number)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        assembly.check_arch(instr)
        words = code.emit(builder, [_shared_address(context, builder, signature, arguments)])
        return context.make_tuple(builder, kind, words)

    return kind(array, index, count, _flag_type(trans)), generate


@literal_intrinsic
def stmatrix(typingctx: Any, array: Any, index: Any, fragment: Any, trans: Any = False) -> Any:
    """Store 1, 2 or 4 registers in the layout of `ldmatrix`; sm_90 and later.

    Parameters
    ----------
    array : shared array
        Of 16-bit elements, or of what has their bytes.
    index : int or tuple of int
        The row that this lane addresses, as for `ldmatrix`.
    fragment : uint32 or tuple of uint32
        1, 2 or 4 registers of two elements.
    trans : bool
        Transposes each matrix; a constant.

    Raises
    ------
    TypingError
        An index of another rank, another number of registers, a flag that is not a constant.

    Notes
    -----
    `stmatrix`, section 9.7.14.5.16 of the PTX manual.
    """
    length = len(registers.parts(fragment))
    number = _constant(names.STMATRIX, "the length of fragment", length, (1, 2, 4))
    transposed = _constant(names.STMATRIX, "trans", trans, (False, True))
    instr = isa.instruction(names.stmatrix(number, transposed))
    _check_element(names.STMATRIX, array, index)
    operand = instr.operand("r")
    wanted = Operand("fragment", operand.dtype, number)
    for part in registers.parts(fragment):
        registers.check(names.STMATRIX, Operand("fragment", operand.dtype), part)
    code = assembly.assembly(instr, {})

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        assembly.check_arch(instr)
        words = registers.registers(context, builder, wanted, fragment, arguments[2])
        code.emit(builder, [_shared_address(context, builder, signature, arguments), *words])
        return context.get_dummy_value()

    return types.void(array, index, fragment, _flag_type(trans)), generate


def _flag_type(kind: Any) -> Any:
    """Return the type of an optional flag."""
    return kind if isinstance(kind, types.Type) else types.boolean


movmatrix = intrinsic(names.MOVMATRIX)


def _operators(name: str) -> tuple[Callable[..., Index], Callable[..., Index]]:
    """Return an operator that calls the builder's method `name`, and its reflected form."""

    def apply(left: Index, right: Any) -> Index:
        second = right if isinstance(right, Index) else Index(left.builder, right)
        return Index(left.builder, getattr(left.builder, name)(left.value, second.value))

    return apply, lambda right, left: apply(Index(right.builder, left), right)


class Index:
    """Unsigned 32-bit LLVM arithmetic with the operators that layout formulas use."""

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __floordiv__, _ = _operators("udiv")
    __mod__, _ = _operators("urem")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value if isinstance(value, ir.Value) else ir.Constant(WORD, value)


def _located(builder: Any, layout: Layout, thread: Any, slot: Any) -> tuple[Any, Any]:
    """Return (row, col) of an element as LLVM values."""
    position = layout.formula(Index(builder, thread), Index(builder, slot))
    row, col = (x if isinstance(x, Index) else Index(builder, int(x)) for x in position)
    return row.value, col.value


def _layout(operand: Operand) -> Layout:
    if operand.layout is None:
        raise OperandError(f"operand {operand.name} is not a fragment")
    return operand.layout


def _integers(what: str, **types_by_name: Any) -> None:
    for name, kind in types_by_name.items():
        if not isinstance(kind, types.Integer):
            raise TypingError(f"{what}: {name} is {kind}; allowed is an integer")


@cache
def coordinates(operand: Operand) -> Any:
    """A function `(thread, element) -> (row, col)`: the matrix element that a thread holds.

    Parameters
    ----------
    operand : Operand
        A fragment: `product.a`.

    Returns
    -------
    function
        For kernels. `thread` is the lane, or the thread in the warpgroup; elements count from the
        low end of the first register.

    Raises
    ------
    OperandError
        An operand that is not a fragment.
    """
    layout = _layout(operand)

    def place(typingctx: Any, thread: Any, element: Any) -> Any:
        _integers(f"coordinates of {layout.name}", thread=thread, element=element)
        kind = types.UniTuple(types.int32, 2)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            typed = zip(arguments, signature.args, strict=True)
            words = [context.cast(builder, v, k, types.uint32) for v, k in typed]
            return context.make_tuple(builder, kind, _located(builder, layout, *words))

        return kind(thread, element), generate

    return literal_intrinsic(place)


_ARRAYS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "tf32": "float32", "f64": "float64"}


def _check_array(what: str, layout: Layout, array: Any, exact: bool) -> None:
    """Raise TypingError unless the array has the layout's element type, or integers with its bits."""
    name, bits = layout.dtype.name, _element_bits(layout)
    expected = _ARRAYS.get(name, f"{'int' if name[0] == 's' else 'uint'}{bits}")
    fits = isinstance(array, types.Array) and array.ndim == 2
    dtype = array.dtype if fits else None
    raw = isinstance(dtype, types.Integer) and dtype.bitwidth == bits
    convertible = isinstance(dtype, (types.Integer, types.Float)) and not exact
    if not fits or not (raw or convertible or str(dtype).removeprefix("__nv_") == expected):
        also = "any number" if not exact else f"{expected}, or {bits}-bit integers with the same bits"
        raise TypingError(f"{what}: array is {array}; allowed are two-dimensional arrays of {also}")


def _pointer(
    context: Any, builder: Any, array: Any, value: Any, origin: list[Any], coordinates: tuple[Any, Any]
) -> Any:
    """Return a pointer to the element at `coordinates` of the matrix that starts at `origin`."""
    wide = [builder.zext(x, origin[0].type) for x in coordinates]
    index = [builder.add(o, x) for o, x in zip(origin, wide, strict=True)]
    return registers.element(context, builder, array, value, index)


@cache
def load_elements(operand: Operand) -> Any:
    """A function `(array, row, col, thread) -> fragment` that loads element by element.

    Parameters
    ----------
    operand : Operand
        A fragment: `product.a`.

    Returns
    -------
    function
        For kernels. The fragment's matrix starts at [row, col] of a two-dimensional array in any
        memory, and lies within it. B is a matrix (k, n): pass `b.T` for one stored by columns.

    Raises
    ------
    OperandError
        An operand that is not a fragment, or whose elements are smaller than a byte.
    """
    layout = _layout(operand)
    generate = _loader(operand, layout)
    what = f"load_elements of {layout.name}"

    def load(typingctx: Any, array: Any, row: Any, col: Any, thread: Any) -> Any:
        _check_array(what, layout, array, exact=True)
        _integers(what, row=row, col=col, thread=thread)
        kind = registers.numba_type(operand)
        return kind(array, row, col, thread), generate

    return literal_intrinsic(load)


def _element_bits(layout: Layout) -> int:
    """Return the bits of one element in an array; OperandError for sub-byte elements."""
    bits = layout.container or layout.dtype.storage_bits
    if bits < 8:
        raise OperandError(
            f"{layout.dtype} elements are smaller than a byte: make fragments of whole registers"
        )
    return bits


def _origin(context: Any, builder: Any, kinds: Any, values: Any) -> tuple[list[Any], Any]:
    """Convert the arguments after the array: the origin [row, col] and the thread."""
    wanted = (registers.INDEX, registers.INDEX, types.uint32)
    arguments = zip(values[1:4], kinds[1:4], wanted, strict=True)
    row, col, thread = (context.cast(builder, v, kind, to) for v, kind, to in arguments)
    return [row, col], thread


def _loader(operand: Operand, layout: Layout) -> Callable[..., Any]:
    wanted = registers.slot(operand)
    width = _element_bits(layout)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, values = signature.args[0], arguments
        origin, thread = _origin(context, builder, signature.args, values)
        words = []
        for first in range(0, layout.slots, layout.per_register):
            word = ir.Constant(ir.IntType(wanted.bits), 0)
            for part in range(layout.per_register):
                coordinates = _located(builder, layout, thread, first + part)
                pointer = _pointer(context, builder, array, values[0], origin, coordinates)
                pointer = builder.bitcast(pointer, ir.PointerType(ir.IntType(width)))
                bits = builder.zext(builder.load(pointer), word.type)
                shift = ir.Constant(word.type, width * part)
                word = builder.or_(word, builder.shl(bits, shift))
            words.append(builder.bitcast(word, wanted.llvm))
        return registers.result(context, builder, operand, words)

    return generate


@cache
def store_elements(operand: Operand) -> Any:
    """A function `(array, row, col, thread, fragment)` that stores element by element.

    Parameters
    ----------
    operand : Operand
        A fragment: `product.d`.

    Returns
    -------
    function
        For kernels. Registers with one element (f32, f64, s32) are converted to the array's type.

    Raises
    ------
    OperandError
        An operand that is not a fragment, or whose elements are smaller than a byte.
    """
    layout = _layout(operand)
    generate = _storer(operand, layout)
    what = f"store_elements of {layout.name}"

    def store(typingctx: Any, array: Any, row: Any, col: Any, thread: Any, fragment: Any) -> Any:
        _check_array(what, layout, array, exact=layout.per_register > 1)
        _integers(what, row=row, col=col, thread=thread)
        registers.check(what, operand, fragment)
        return types.void(array, row, col, thread, fragment), generate

    return literal_intrinsic(store)


def _storer(operand: Operand, layout: Layout) -> Callable[..., Any]:
    width = _element_bits(layout)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, values = signature.args[0], arguments
        origin, thread = _origin(context, builder, signature.args, values)
        words = registers.registers(context, builder, operand, signature.args[4], values[4])
        for slot in range(layout.slots):
            coordinates = _located(builder, layout, thread, slot)
            pointer = _pointer(context, builder, array, values[0], origin, coordinates)
            word = words[slot // layout.per_register]
            if layout.per_register == 1:
                value = context.cast(builder, word, registers.element_type(operand), array.dtype)
                context.pack_value(builder, array.dtype, value, pointer)
                continue
            shift = ir.Constant(word.type, width * (slot % layout.per_register))
            bits = builder.trunc(builder.lshr(word, shift), ir.IntType(width))
            builder.store(bits, builder.bitcast(pointer, ir.PointerType(bits.type)))
        return context.get_dummy_value()

    return generate
