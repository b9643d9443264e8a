"""Fragments and vectors in registers; element-wise loads and stores of fragments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DTypeLike, as_dtype
from tensorcore_dsl.errors import OperandError, listing
from tensorcore_dsl.ir.nodes import Type
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.spec import Operand
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.lang.bounds import check_index, frozen
from tensorcore_dsl.lang.pointer import Pointer, element_size
from tensorcore_dsl.lang.tiles import Tile
from tensorcore_dsl.layout import Layout
from tensorcore_dsl.values.builder import builder

from tensorcore_dsl.values.operands import (  # isort: skip
    check_register,
    constant,
    describe,
    is_number,
    number_type,
)
from tensorcore_dsl.values.values import (  # isort: skip
    Element,
    RegisterGroup,
    Scalar,
    of_converted,
    of_elements,
    of_registers,
    this_thread,
)

Coordinates = tuple[Any, Any]  # row and column, each known at compile time or at run time


# -- fragments of scalars ------------------------------------------------------------------------


def fragment(operand: Operand, values: Sequence[Any] | Callable[[Any, Any], Any]) -> RegisterGroup:
    """The fragment of `operand` that consists of these registers, or of these elements.

    Parameters
    ----------
    operand : operand
        `mma.a`, `mma.b`, `mma.c` or `mma.d` of an instruction.
    values : sequence or function
        The registers of this thread: of the fragment's type, of pairs of it (f16x2), or plain bits.
        Or its elements, of the fragment's type. Python's numbers are elements, or the bits of
        packed registers. Or a function of (row, col), run-time integers, that gives the element
        there, or a list of it and its next neighbours along the row or column in which slots of a
        thread run.

    Returns
    -------
    fragment
        Of the layout of `operand`.

    Raises
    ------
    OperandError
        Another number of values, values of another type, more neighbours than a thread holds.

    Examples
    --------
    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel
    ... def place(out: tc.Array):
    ...     tc.store_elements(out, tc.fragment(mma.d, lambda row, col: tc.f32(10 * row + col)))
    >>> out = np.zeros((16, 8), np.float32)
    >>> place[1, 32](out)
    >>> out[3, :3]
    array([30., 31., 32.], dtype=float32)
    """
    layout = layout_of(operand)
    elements = _computed(layout, values) if callable(values) else list(values)
    if callable(values) or len(elements) == layout.slots != layout.registers:
        return of_elements(operand, layout, [_element(e, layout) for e in elements])
    for register in elements:
        check_register(register, layout)
    return of_registers(operand, layout, elements)


def _computed(layout: Layout, function: Callable[[Any, Any], Any]) -> list[Any]:
    """The elements that `function` gives for the slots of this thread."""
    thread, elements = this_thread(layout), list[Any]()
    while (slot := len(elements)) < layout.slots:
        element = builder().call(function, list(layout.formula(thread, slot)), {})
        several = list(element) if isinstance(element, (list, tuple)) else [element]
        most = _neighbours(layout, slot)
        if not 1 <= len(several) <= most:
            count = f"{most} side by side, from" if most > 1 else "one by itself,"
            raise OperandError(
                f"{len(several)} elements were given for {layout.name}, of which a thread holds "
                f"{count} slot {slot}: give 1{f' to {most}' if most > 1 else ''} at a time"
            )
        elements += several
    return elements


def _neighbours(layout: Layout, slot: int) -> int:
    """How many slots from `slot` on hold successive elements of a row, or of a column."""
    steps = np.diff(layout.coords[:, slot:], axis=1)
    runs = [(steps == step).all(axis=(0, 2)) for step in ((0, 1), (1, 0))]
    return 1 + max(int(np.logical_and.accumulate(run).sum()) for run in runs)


def _element(value: Any, layout: Layout) -> Any:
    """A number or scalar as an element of a fragment; OperandError if it has another type."""
    if is_number(value):
        return builder().scalar(constant(value, layout.dtype).value, layout.dtype)
    if not isinstance(value, Scalar) or value.dtype != layout.dtype:
        raise OperandError(
            f"elements of {layout.name} are {layout.dtype}, not {describe(value)}; .to() converts"
        )
    return value


def vector(elements: Sequence[Any]) -> RegisterGroup:
    """A vector of scalars of one type.

    Parameters
    ----------
    elements : sequence of numbers and scalars
        Python's numbers take the type of the others.

    Returns
    -------
    vector
        For one wide store, for example; `vector[i]` is an element.

    Raises
    ------
    OperandError
        Elements of several types, or none.

    Examples
    --------
    >>> @tc.kernel
    ... def steps(x: tc.Array):
    ...     first = x[2 * tc.threadIdx.x]
    ...     x.at(2 * tc.threadIdx.x).store(tc.vector([first, first + 1]))
    >>> x = np.zeros(64, np.float32)
    >>> steps[1, 32](x)
    >>> x[:4]
    array([0., 1., 0., 1.], dtype=float32)
    """
    known = list(dict.fromkeys(e.dtype for e in elements if isinstance(e, Scalar)))
    types = known or list(dict.fromkeys(number_type(e) for e in elements))
    if len(types) != 1:
        raise OperandError(f"a vector has elements of one type, not {listing(types) or 'none'}")
    dtype = types[0]
    scalars = [
        e if isinstance(e, Scalar) else builder().scalar(constant(e, dtype).value, dtype) for e in elements
    ]
    return builder().pack(scalars, Type(dtype, len(elements)))


def pack(*elements: Any) -> Element:
    """Two elements of 16 bits, or four of 8 bits, of one type in one register, low to high.

    Parameters
    ----------
    *elements : scalar or number
        At least one scalar; numbers take its type.

    Returns
    -------
    scalar
        32 bits: f16x2 of two f16, bf16x2 of two bf16, else plain bits.

    Raises
    ------
    OperandError
        Elements that do not fill a register, or of several types.

    See Also
    --------
    unpack : The other way, with an example.

    Notes
    -----
    `mov.b32` with a vector, section 9.7.9.4 of the PTX manual.
    """
    kinds = list(dict.fromkeys(e.dtype for e in elements if isinstance(e, Scalar)))
    if len(kinds) != 1 or kinds[0].bits * len(elements) != 32 or kinds[0].bits not in (8, 16):
        raise OperandError(
            "two elements of 16 bits or four of 8 bits, all of one type, fill a register; "
            f"{listing(map(describe, elements)) or 'none'} were given"
        )
    dtype = kinds[0]
    return builder().pack_register(
        [e if isinstance(e, Scalar) else constant(e, dtype).value for e in elements], dtype
    )


def unpack(register: Element, dtype: DTypeLike | None = None) -> list[Element]:
    """The elements of a register, low to high.

    Parameters
    ----------
    register : scalar
        8, 16 or 32 bits.
    dtype : dtype, optional
        The type of the elements: 16, 8 or 4 bits. f16x2 and bf16x2 need none.

    Returns
    -------
    list of scalars
        s4 and u4 come as s32, the type in which narrow integers are computed.

    Raises
    ------
    OperandError
        No register, or one that holds no such elements.

    Notes
    -----
    `mov` with a vector (section 9.7.9.4 of the PTX manual), 4 bits by `bfe` (9.7.1.19).

    Examples
    --------
    >>> @tc.kernel
    ... def nibbles(x: tc.Array, out: tc.Array):
    ...     parts = tc.unpack(x[0], tc.u4)
    ...     for i in tc.static_range(8):
    ...         out[i] = parts[i]
    >>> x, out = np.array([0x76543210], np.uint32), np.zeros(8, np.int32)
    >>> nibbles[1, 1](x, out)
    >>> out
    array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)
    """
    have = getattr(register, "dtype", None)
    dtype = None if dtype is None else as_dtype(dtype)
    if dtype is None and have in (dtypes.f16x2, dtypes.bf16x2):
        dtype = dtypes.named(have.name.removesuffix("x2"))
    if not isinstance(register, Scalar) or dtype is None or have is None:
        raise OperandError(f"unpack takes a register and the type of its elements, not {describe(register)}")
    if have.lanes == 2 and dtype.bits == 16 and have.name != f"{dtype}x2" and dtype.kind != "b":
        raise OperandError(f"{describe(register)} holds no {dtype}: give its bits, .bits(b32)")
    if (
        have.bits not in (8, 16, 32)
        or dtype.bits not in (4, 8, 16)
        or dtype.bits >= have.bits
        or (dtype.bits == 4 and not dtype.is_integer)
    ):
        raise OperandError(f"{describe(register)} has no {dtype} elements to unpack")
    build, count = builder(), have.bits // dtype.bits
    word = Scalar(register.value, dtypes.b32)
    if have.register_bits < 32:
        bits = register.bits(dtypes.named(f"b{have.register_bits}"))
        word = build.named(names.pack(32), bits, build.literal(0, dtypes.b16))
    if dtype.bits >= 8:
        return [*build.unpack(word, dtype)[:count]]
    wide = dtypes.named(f"{dtype.kind}32")
    field = names.extract_field(wide)
    fields = [build.named(field, Scalar(word.value, wide), dtype.bits * i, dtype.bits) for i in range(count)]
    return [Scalar(part.value, dtypes.s32) for part in fields]


# -- element-wise loads and stores -------------------------------------------------------------


def load_elements(
    source: Tile | Array,
    operand: Operand,
    *,
    origin: Coordinates | None = None,
    bounded: bool = False,
    otherwise: Any = 0,
    convert: bool = False,
) -> RegisterGroup:
    """Load a fragment element by element, at the coordinates that its layout gives.

    Neighbours are loaded together where their alignment is known.

    Parameters
    ----------
    source : Array or Tile
        Two-dimensional, of the element type of `operand` (plain bits of its width, f32 for tf32).
    operand : operand
        The fragment to load: `mma.a`, ...
    origin : tuple, optional
        (row, col) of element (0, 0) of the fragment in `source`, run-time integers too; without it,
        `source` has the shape of the fragment, which checked builds test.
    bounded : bool
        Elements outside `source` are not loaded, and become `otherwise`.
    otherwise : number
        See `bounded`.
    convert : bool
        Convert elements of another type.

    Returns
    -------
    fragment
        Of the layout of `operand`.

    Raises
    ------
    OperandError
        Another rank, another type without `convert`, an index that is known to be outside.
    OutOfBounds
        In emulation, and in checked builds: an element outside the source that is not `bounded`.

    See Also
    --------
    ldmatrix : From shared memory, with fewer instructions.

    Examples
    --------
    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel
    ... def product(a: tc.Array, b: tc.Array, d: tc.Array):
    ...     acc = mma(tc.load_elements(a, mma.a), tc.load_elements(b, mma.b), mma.d.zeros())
    ...     tc.store_elements(d, acc)
    >>> a, b = np.ones((16, 16), np.float16), np.ones((16, 8), np.float16)
    >>> d = np.zeros((16, 8), np.float32)
    >>> product[1, 32](a, b, d)
    >>> float(d[0, 0])
    16.0
    """
    layout = layout_of(operand)
    origin = check_coordinates(source, layout, origin, bounded)
    if not convert:
        check_type(source, layout, "convert=True converts")
    elements = load_indices(source, _coordinates(layout, origin), bounded, otherwise)
    if convert:
        return of_converted(operand, layout, elements)
    return of_elements(operand, layout, [Scalar(e.value, layout.dtype) for e in elements])


def store_elements(
    target: Tile | Array, value: RegisterGroup, *, origin: Coordinates | None = None, bounded: bool = False
) -> None:
    """Store a fragment element by element, converted to the type of `target`.

    Neighbours are stored together where their alignment is known.

    Parameters
    ----------
    target : Array or Tile
        Two-dimensional, of any element type.
    value : fragment
        Such as an accumulator.
    origin : tuple, optional
        (row, col) of element (0, 0) of the fragment in `target`, run-time integers too; without it,
        `target` has the shape of the fragment, which checked builds test.
    bounded : bool
        Elements outside `target` are not stored.

    Raises
    ------
    OperandError
        No fragment, another rank, an index that is known to be outside.
    OutOfBounds
        In emulation, and in checked builds: an element outside the target that is not `bounded`.

    See Also
    --------
    load_elements : With an example.
    """
    layout = stored_layout(value)
    origin = check_coordinates(target, layout, origin, bounded)
    value = value if value.dtype == target.dtype else value.to(target.dtype)
    store_indices(target, _coordinates(layout, origin), value.elements(), bounded)


def _coordinates(layout: Layout, origin: Coordinates) -> list[Coordinates]:
    thread = this_thread(layout)
    every = (layout.formula(thread, slot) for slot in range(layout.slots))
    return [(row + origin[0], col + origin[1]) for row, col in every]


def load_indices(
    source: Tile | Array, indices: Sequence[tuple[Any, ...]], bounded: bool, otherwise: Any
) -> list[Scalar]:
    """The elements at these coordinates."""
    elements: list[Scalar] = []
    step = 1 if bounded else _together(source, indices)
    for i in range(0, len(indices), step):
        if bounded:
            inside = inside_of(source, indices[i])
            pointer = unchecked_pointer(source, indices[i])
            elements.append(pointer.load(pred=inside, otherwise=otherwise))
        else:
            loaded = source.at(*indices[i]).load(step)
            elements += [loaded] if step == 1 else loaded.elements()
    return elements


def store_indices(
    target: Tile | Array,
    indices: Sequence[tuple[Any, ...]],
    elements: Sequence[Any],
    bounded: bool,
    pred: Any = None,
) -> None:
    """Store elements at these coordinates, those inside the target if `bounded`."""
    step = 1 if bounded else _together(target, indices)
    for i in range(0, len(indices), step):
        if bounded:
            inside = inside_of(target, indices[i])
            inside = inside if pred is None else inside & pred
            unchecked_pointer(target, indices[i]).store(elements[i], pred=inside)
        elif step == 1:
            target.at(*indices[i]).store(elements[i], pred=pred)
        else:
            target.at(*indices[i]).store(elements[i : i + step], pred=pred)


def _together(memory: Tile | Array, indices: Sequence[tuple[Any, ...]]) -> int:
    """How many successive elements one access moves: 2 if all pairs are aligned neighbours."""
    size = element_size(memory.dtype)
    if len(indices) % 2 or not isinstance(memory.strides[-1], int) or memory.strides[-1] != 1:
        return 1
    build = builder()
    for left, right in zip(indices[::2], indices[1::2], strict=True):
        if any(_distance(a, b) != 0 for a, b in zip(left[:-1], right[:-1], strict=True)):
            return 1
        if _distance(left[-1], right[-1]) != 1 or build.divisor(left[-1]) < 2:
            return 1
    return 2 if known_alignment(memory) >= 2 * size and 2 * size <= 16 else 1


def _distance(left: Any, right: Any) -> int | None:
    """right - left, if it is known at compile time."""
    (a, low), (b, high) = builder().split_constant(left), builder().split_constant(right)
    same = a is b or (a is not None and b is not None and a.value is b.value)
    return high - low if same else None


def known_alignment(memory: Tile | Array) -> int:
    """Bytes: the power of two that divides the first address and every stride but those of 1."""
    build, size = builder(), element_size(memory.dtype)
    strides = [build.divisor(s) * size for s in memory.strides if isinstance(s, Scalar) or s != 1]
    if isinstance(memory, Array):
        return min([build.divisor(memory.address), *strides])
    return min([16, build.divisor(memory.offset), build.divisor(memory.origin), *strides])


def inside_of(memory: Tile | Array, indices: tuple[Any, ...]) -> Any:
    """A predicate, or True: the indices are inside the shape of `memory`."""
    inside: Any = True
    for index, extent in zip(indices, memory.shape, strict=True):
        if not isinstance(index, Scalar) and not isinstance(extent, Scalar):
            here: Any = 0 <= index < extent
        elif not isinstance(index, Scalar):
            here = (extent > index) if index >= 0 else False
        else:  # as unsigned numbers, negative indices are greater than every extent
            unsigned = dtypes.named(f"u{index.dtype.bits}")
            limit = (
                extent
                if not isinstance(extent, Scalar)
                else extent.to(dtypes.named(f"s{index.dtype.bits}")).bits(unsigned)
            )
            here = index.bits(unsigned) < limit
        inside = here if inside is True else inside & here
    return inside


def unchecked_pointer(memory: Tile | Array, indices: tuple[Any, ...]) -> Pointer:
    """The pointer to an element that may lie outside: it is then not accessed.

    An access checks the array of which a view is a part.
    """
    if isinstance(memory, Tile):
        address = memory.moved(indices, (), ()).address
        return Pointer(address, memory.dtype, memory.space, memory.bounds)
    address, bounds = memory.address, list(memory.bounds)
    for index, extent, stride, axis in zip(indices, memory.shape, memory.strides, memory.axes, strict=True):
        address = memory._step(address, index, stride)
        if builder().checks:
            bounds += axis.bounds(frozen(index), frozen(extent), stride)
    return Pointer(address, memory.dtype, memory.space, tuple(bounds))


# -- checks -----------------------------------------------------------------------------------


def layout_of(operand: Any) -> Layout:
    """The layout of a fragment operand, or of a fragment; OperandError for anything else."""
    if isinstance(operand, RegisterGroup) and operand.layout is not None:
        return operand.layout
    if not isinstance(operand, Operand) or operand.layout is None:
        raise OperandError(f"{describe(operand)} is not a fragment operand, such as {names.FRAGMENT_EXAMPLE}")
    return operand.layout


def stored_layout(value: Any) -> Layout:
    """The layout of the fragment `value`."""
    if not isinstance(value, RegisterGroup) or value.layout is None:
        raise OperandError(
            f"a fragment is needed, not {describe(value)}; store vectors with pointer.store(...)"
        )
    return value.layout


def check_type(memory: Tile | Array, layout: Layout, advice: str) -> None:
    """OperandError unless elements of `memory` are the layout's: equal types, or plain bits.

    tf32 operands take f32, of which the hardware reads the upper 19 bits. advice: what converts.
    """
    have, want = memory.dtype, layout.dtype
    bits = have.storage_bits == want.storage_bits and "b" in (have.kind, want.kind)
    if have != want and not bits and (have, want) != (dtypes.f32, dtypes.tf32):
        raise OperandError(
            f"{memory.described} cannot hold {layout.name}: its elements are {have}, those of the "
            f"fragment {want}; {advice}"
        )


def check_matrix(memory: Any, spaces: tuple[Any, ...] = (Tile, Array)) -> None:
    """OperandError unless `memory` is a tile (or array) of two dimensions."""
    if not isinstance(memory, spaces) or memory.ndim != 2:
        allowed = " or ".join("array" if s is Array else "shared tile" for s in spaces)
        raise OperandError(f"a two-dimensional {allowed} is needed, not {describe(memory)}")


def check_coordinates(memory: Any, layout: Layout, origin: Coordinates | None, bounded: bool) -> Coordinates:
    """The origin; OperandError unless `memory` has room for the fragment there, as far as known."""
    check_matrix(memory)
    if origin is not None and (not isinstance(origin, (tuple, list)) or len(origin) != 2):
        raise OperandError(f"origin is a row and a column, not {describe(origin)}")
    covers = f"{layout.name} covers {layout.rows}x{layout.cols}"
    check_extents(memory, (layout.rows, layout.cols), origin, bounded, covers)
    return (0, 0) if origin is None else origin


def check_extents(
    memory: Tile | Array, sizes: Sequence[int], origin: Sequence[Any] | None, bounded: bool, covers: str
) -> None:
    """OperandError unless a box of `sizes` fits, as far as known; without origin, exactly.

    Checked builds refuse larger extents of an argument at run time.
    """
    starts = [0] * len(sizes) if origin is None else list(origin)
    for axis, (extent, start, size) in enumerate(zip(memory.shape, starts, sizes, strict=True)):
        if isinstance(extent, Scalar) or isinstance(start, Scalar):
            if origin is None and isinstance(memory, Array) and not memory.axes[axis].outer:
                message = (
                    f"{covers}; {memory.axes[axis].axis} has extent %lld where these are %lld: "
                    "say where they lie, origin=..., or give a view"
                )
                check_index(extent, size, message, count=0)
            continue
        if origin is None and extent > size:
            raise OperandError(
                f"{covers}; {memory.described} has {extent} where these are {size}: say where they "
                "lie, origin=..., or give a view"
            )
        if not bounded and not 0 <= start <= extent - size:
            raise OperandError(
                f"{covers}; from {start} on {size} leave {memory.described}, which has {extent} there"
            )
