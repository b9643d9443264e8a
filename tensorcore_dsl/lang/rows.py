"""Row and column values: one value for each row (column) of a fragment, and reductions to them.

They are fragments of layouts with one column (one row), held by every thread that holds an element
of the row. Operators combine them, and broadcast them against fragments with the same rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tensorcore_dsl.dtypes import DType, DTypeLike, as_dtype
from tensorcore_dsl.errors import LayoutError, OperandError
from tensorcore_dsl.isa.spec import Operand
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.lang.fragments import check_extents, layout_of, load_indices, store_indices
from tensorcore_dsl.lang.math import maximum, minimum
from tensorcore_dsl.lang.tiles import Tile
from tensorcore_dsl.lang.warp import shfl_xor
from tensorcore_dsl.layout import Layout, sharing_bits
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.promotion import promote_types
from tensorcore_dsl.values.values import RegisterGroup, Scalar, of_elements, this_thread

Fragments: TypeAlias = RegisterGroup | Sequence[Any]  # a fragment, or (nested) lists of fragments
_AXES = {"rows": 0, "cols": 1}


# -- making them ------------------------------------------------------------------------------


def row_values(
    like: Operand | RegisterGroup, fill: Any | Callable[[Any], Any] = 0, dtype: DTypeLike | None = None
) -> RegisterGroup:
    """A value for each row of a fragment: `fill`, or `fill(row)`.

    Parameters
    ----------
    like : operand or fragment
        Whose rows they are: `mma.d`, or an accumulator.
    fill : number, scalar or function
        The same for all rows, or a function of the row (a run-time integer) that gives one number.
    dtype : dtype, optional
        None: the type in which elements of `like` are computed, f32 for tf32 and s32 for s8.

    Returns
    -------
    fragment
        Row values, rows x 1; they combine with fragments of the same rows.

    Raises
    ------
    OperandError
        Neither an operand nor a fragment, or one whose threads share rows in different ways; a
        function that gives something else than one number.

    Examples
    --------
    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel
    ... def number_rows(out: tc.Array):
    ...     tc.store_elements(out, mma.d.zeros() + tc.row_values(mma.d, lambda row: row))
    >>> out = np.zeros((16, 8), np.float32)
    >>> number_rows[1, 32](out)
    >>> out[:3, 0]
    array([0., 1., 2.], dtype=float32)
    """
    return _filled("rows", like, fill, dtype)


def column_values(
    like: Operand | RegisterGroup, fill: Any | Callable[[Any], Any] = 0, dtype: DTypeLike | None = None
) -> RegisterGroup:
    """A value for each column of a fragment: `fill`, or `fill(col)`.

    Parameters
    ----------
    like : operand or fragment
        Whose columns they are: `mma.d`, or an accumulator.
    fill : number, scalar or function
        The same for all columns, or a function of the column (a run-time integer).
    dtype : dtype, optional
        None: the type in which elements of `like` are computed, f32 for tf32 and s32 for s8.

    Returns
    -------
    fragment
        Column values, 1 x columns; they combine with fragments of the same columns.

    Raises
    ------
    OperandError
        Neither an operand nor a fragment, or one whose threads share columns in different ways; a
        function that gives something else than one number.

    See Also
    --------
    row_values : The same for rows, with an example.
    """
    return _filled("cols", like, fill, dtype)


def _filled(axis: str, like: Any, fill: Any, dtype: DTypeLike | None) -> RegisterGroup:
    of_like = layout_of(like)
    chosen = promote_types(of_like.dtype, of_like.dtype) if dtype is None else as_dtype(dtype)
    layout = along(of_like, axis, chosen)
    if callable(fill):
        thread, axis_index = this_thread(layout), _AXES[axis]
        where = [layout.formula(thread, slot)[axis_index] for slot in range(layout.slots)]
        values = [builder().call(fill, [line], {}) for line in where]
        if several := [value for value in values if isinstance(value, (RegisterGroup, list))]:
            raise OperandError(f"the function gives one number, not {describe(several[0])}")
    else:
        values = [fill] * layout.slots
    elements = [builder().convert(value, layout.dtype) for value in values]
    return of_elements(_operand(layout), layout, elements)


def along(layout: Layout, axis: str, dtype: DType | None = None) -> Layout:
    """The layout of the row or column values of a layout; OperandError if it has none."""
    try:
        return layout.along(axis, dtype)
    except LayoutError as error:
        raise OperandError(str(error)) from None


def _operand(layout: Layout) -> Operand:
    return Operand("values", layout.dtype, layout.registers, "reg", layout)


# -- reductions --------------------------------------------------------------------------------


def row_sum(fragments: Fragments, *, across_lanes: bool = True) -> RegisterGroup:
    """The sum of each row, over all fragments given.

    Parameters
    ----------
    fragments : fragment or list of fragments
        One, or several side by side, which hold the same rows.
    across_lanes : bool
        As for `reduce_rows`.

    Returns
    -------
    fragment
        Row values; each lane that holds a part of a row has its sum. The order is that of
        `reduce_rows`.

    Raises
    ------
    OperandError
        No fragments, fragments of other rows, rows that are spread over several warps.

    Examples
    --------
    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel
    ... def sums(x: tc.Array, out: tc.Array):
    ...     tc.store_rows(out, tc.row_sum(tc.load_elements(x, mma.d)))
    >>> x, out = np.ones((16, 8), np.float32), np.zeros(16, np.float32)
    >>> sums[1, 32](x, out)
    >>> out[:3]
    array([8., 8., 8.], dtype=float32)
    """
    return reduce_rows(fragments, operator.add, across_lanes=across_lanes)


def row_max(fragments: Fragments) -> RegisterGroup:
    """The greatest element of each row, over all fragments given; NaN only if all are.

    Parameters
    ----------
    fragments : fragment or list of fragments
        One, or several side by side, which hold the same rows.

    Returns
    -------
    fragment
        Row values.

    Raises
    ------
    OperandError
        No fragments, fragments of other rows, rows that are spread over several warps.

    See Also
    --------
    row_sum : Used in the same way, with an example.
    """
    return reduce_rows(fragments, maximum)


def row_min(fragments: Fragments) -> RegisterGroup:
    """The least element of each row, over all fragments given; NaN only if all are.

    Parameters
    ----------
    fragments : fragment or list of fragments
        One, or several side by side, which hold the same rows.

    Returns
    -------
    fragment
        Row values.

    Raises
    ------
    OperandError
        No fragments, fragments of other rows, rows that are spread over several warps.

    See Also
    --------
    row_sum : Used in the same way, with an example.
    """
    return reduce_rows(fragments, minimum)


def reduce_rows(
    fragments: Fragments, function: Callable[[Any, Any], Any], *, across_lanes: bool = True
) -> RegisterGroup:
    """Combine the elements of each row: function(...function(function(x0, x1), x2)...).

    A thread combines its own elements in the order of slots and fragments, then shuffles combine
    the lanes that share the row, which differ in bits of their number, from the lowest bit on; all
    of these lanes get the result.

    Parameters
    ----------
    fragments : fragment or list of fragments
        One, or several side by side, which hold the same rows.
    function : function
        Of two scalars, in the kernel language; it should be commutative and associative.
    across_lanes : bool
        False: each lane keeps the result of its own elements, and no shuffles are issued. A loop
        over many tiles combines the lanes once, after the loop: `reduce_rows(values, function)`
        of such row values.

    Returns
    -------
    fragment
        Row values, of the type that the function gives.

    Raises
    ------
    OperandError
        No fragments, fragments of other rows, rows that are spread over several warps.

    Examples
    --------
    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel
    ... def products(x: tc.Array, out: tc.Array):
    ...     tc.store_rows(out, tc.reduce_rows(tc.load_elements(x, mma.d), lambda a, b: a * b))
    >>> x, out = np.full((16, 8), 2, np.float32), np.zeros(16, np.float32)
    >>> products[1, 32](x, out)
    >>> float(out[0])
    256.0
    """
    return _reduced("rows", fragments, function, across_lanes)


def reduce_columns(fragments: Fragments, function: Callable[[Any, Any], Any]) -> RegisterGroup:
    """Combine the elements of each column, in the order of `reduce_rows`.

    Parameters
    ----------
    fragments : fragment or list of fragments
        One, or several below each other, which hold the same columns.
    function : function
        Of two scalars, in the kernel language; it should be commutative and associative.

    Returns
    -------
    fragment
        Column values, of the type that the function gives.

    Raises
    ------
    OperandError
        No fragments, fragments of other columns, columns that are spread over several warps.

    Examples
    --------
    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel
    ... def heights(x: tc.Array, out: tc.Array):
    ...     tc.store_columns(out, tc.reduce_columns(tc.load_elements(x, mma.d), tc.maximum))
    >>> x, out = np.arange(128, dtype=np.float32).reshape(16, 8), np.zeros(8, np.float32)
    >>> heights[1, 32](x, out)
    >>> out[:3]
    array([120., 121., 122.], dtype=float32)
    """
    return _reduced("cols", fragments, function)


def _reduced(
    axis: str, fragments: Fragments, function: Callable[[Any, Any], Any], across_lanes: bool = True
) -> RegisterGroup:
    members = flat(fragments)
    layouts = [along(layout_of(f), axis, f.dtype) for f in members]
    if any(layout != layouts[0] for layout in layouts):
        different = next(f for f, layout in zip(members, layouts, strict=True) if layout != layouts[0])
        raise OperandError(
            f"{members[0].described} and {different.described} hold other {axis}: they are reduced apart"
        )
    axis_index, lines = _AXES[axis], layouts[0]
    call = functools.partial(_called, function)
    partial: list[Any] = [None] * lines.slots
    for group in members:
        assert group.layout is not None
        where = _slots(group.layout, lines, axis_index)
        for slot, element in zip(where, group.elements(), strict=True):
            partial[slot] = element if partial[slot] is None else call(partial[slot], element)
    for bit in _sharing(members[0], axis) if across_lanes else ():
        partial = [call(value, shfl_xor(value, bit)) for value in partial]
    dtypes = {value.dtype for value in partial}
    result = lines.of_type(dtypes.pop())
    return of_elements(_operand(result), result, partial)


def _called(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    return builder().call(function, [left, right], {})


@functools.cache
def _slots(layout: Layout, lines: Layout, axis: int) -> tuple[int, ...]:
    """For each slot of `layout`, the slot of its row or column in `lines`."""
    of_group, of_lines = layout.coords[0, :, axis].tolist(), lines.coords[0, :, axis].tolist()
    return tuple(of_lines.index(line) for line in of_group)


def _sharing(group: RegisterGroup, axis: str) -> tuple[int, ...]:
    """The bits of the lane in which the threads that share a row differ."""
    layout = layout_of(group)
    bits = sharing_bits(layout, axis)
    # Row values that every lane of a row holds may be each lane's own part of the result.
    one_line = (layout.cols if axis == "rows" else layout.rows) == 1
    copies = layout.threads * layout.slots != layout.rows * layout.cols
    if bits is None or (copies and not one_line):
        raise OperandError(
            f"{group.described} holds elements several times, or its {axis} in uneven parts: "
            "store it to shared memory and reduce there"
        )
    if bits and bits[-1] >= 32:
        raise OperandError(
            f"the {axis} of {group.described} are spread over several warps: reduce each warp's "
            "share with shuffles, and combine the shares in shared memory"
        )
    return bits


def flat(fragments: Fragments) -> list[RegisterGroup]:
    """The fragments of nested lists in order; OperandError for anything else."""
    if isinstance(fragments, (list, tuple)):
        leaves = [f for item in fragments for f in flat(item)]
        if not leaves:
            raise OperandError("a fragment or a list of fragments is needed, not an empty list")
        return leaves
    if not isinstance(fragments, RegisterGroup) or fragments.layout is None:
        raise OperandError(f"a fragment is needed, not {describe(fragments)}")
    return [fragments]


# -- memory -----------------------------------------------------------------------------------


def load_rows(
    source: Tile | Array,
    like: Operand | RegisterGroup,
    *,
    origin: Any = None,
    bounded: bool = False,
    otherwise: Any = 0,
    convert: bool = False,
) -> RegisterGroup:
    """Load row values from an array or tile: element origin + i for row i.

    Parameters
    ----------
    source : Array or Tile
        Of one or two dimensions.
    like : operand or fragment
        Whose rows they are.
    origin : integer or tuple, optional
        The element of row 0: an index, or (row, col) in two dimensions, where element (row + i,
        col) is loaded, a column of a matrix. Without it, `source` has as many elements as the
        fragment rows.
    bounded : bool
        Elements beyond the end of `source` are not loaded, and become `otherwise`.
    otherwise : number
        See `bounded`.
    convert : bool
        Convert to the type in which elements of `like` are computed; else they have that of
        `source`.

    Returns
    -------
    fragment
        Row values, rows x 1.

    Raises
    ------
    OperandError
        Another number of dimensions, an origin of another form, an index that is known to be
        outside.
    OutOfBounds
        In emulation, and in checked builds: an element outside the source that is not `bounded`.

    Examples
    --------
    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel
    ... def scale_rows(x: tc.Array, scales: tc.Array):
    ...     tc.store_elements(x, tc.load_elements(x, mma.d) * tc.load_rows(scales, mma.d))
    >>> x, scales = np.ones((16, 8), np.float32), np.arange(16, dtype=np.float32)
    >>> scale_rows[1, 32](x, scales)
    >>> x[:3, 0]
    array([0., 1., 2.], dtype=float32)
    """
    return _loaded("rows", source, like, origin, bounded, otherwise, convert)


def load_columns(
    source: Tile | Array,
    like: Operand | RegisterGroup,
    *,
    origin: Any = None,
    bounded: bool = False,
    otherwise: Any = 0,
    convert: bool = False,
) -> RegisterGroup:
    """Load column values from an array or tile: element origin + j for column j.

    Parameters
    ----------
    source : Array or Tile
        Of one or two dimensions.
    like : operand or fragment
        Whose columns they are.
    origin : integer or tuple, optional
        The element of column 0: an index, or (row, col) in two dimensions, where element (row, col
        + j) is loaded. Without it, `source` has as many elements as the fragment columns.
    bounded : bool
        Elements beyond the end of `source` are not loaded, and become `otherwise`.
    otherwise : number
        See `bounded`.
    convert : bool
        Convert to the type in which elements of `like` are computed; else they have that of
        `source`.

    Returns
    -------
    fragment
        Column values, 1 x columns.

    Raises
    ------
    OperandError
        Another number of dimensions, an origin of another form, an index that is known to be
        outside.
    OutOfBounds
        In emulation, and in checked builds: an element outside the source that is not `bounded`.

    Examples
    --------
    A bias:

    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel
    ... def add_bias(x: tc.Array, bias: tc.Array):
    ...     acc = tc.load_elements(x, mma.d)
    ...     tc.store_elements(x, acc + tc.load_columns(bias, acc))
    >>> x, bias = np.zeros((16, 8), np.float32), np.arange(8, dtype=np.float32)
    >>> add_bias[1, 32](x, bias)
    >>> x[5, :3]
    array([0., 1., 2.], dtype=float32)
    """
    return _loaded("cols", source, like, origin, bounded, otherwise, convert)


def _loaded(
    axis: str, source: Any, like: Any, origin: Any, bounded: bool, otherwise: Any, convert: bool
) -> RegisterGroup:
    of_like = layout_of(like)
    layout = along(of_like, axis, None if convert else _memory(source).dtype)
    indices = _indices(source, layout, axis, origin, bounded)
    elements = load_indices(source, indices, bounded, otherwise)
    if convert:
        elements = [element.to(layout.dtype) for element in elements]
    return of_elements(_operand(layout), layout, elements)


def store_rows(
    target: Tile | Array, values: RegisterGroup, *, origin: Any = None, bounded: bool = False
) -> None:
    """Store row values to an array or tile: row i to element origin + i, or (row + i, col).

    One of the threads that hold a row stores it.

    Parameters
    ----------
    target : Array or Tile
        Of one or two dimensions.
    values : fragment
        Row values; converted to the type of `target`.
    origin : integer or tuple, optional
        The element of row 0, as for `load_rows`.
    bounded : bool
        Rows beyond the end of `target` are not stored.

    Raises
    ------
    OperandError
        Values that are no row values, an origin of another form, an index that is known to be
        outside.
    OutOfBounds
        In emulation, and in checked builds: an element outside the target that is not `bounded`.

    See Also
    --------
    row_sum : With an example.
    """
    _stored("rows", target, values, origin, bounded)


def store_columns(
    target: Tile | Array, values: RegisterGroup, *, origin: Any = None, bounded: bool = False
) -> None:
    """Store column values to an array or tile: column j to element origin + j, or (row, col + j).

    One of the threads that hold a column stores it.

    Parameters
    ----------
    target : Array or Tile
        Of one or two dimensions.
    values : fragment
        Column values; converted to the type of `target`.
    origin : integer or tuple, optional
        The element of column 0, as for `load_columns`.
    bounded : bool
        Columns beyond the end of `target` are not stored.

    Raises
    ------
    OperandError
        Values that are no column values, an origin of another form, an index known to be outside.
    OutOfBounds
        In emulation, and in checked builds: an element outside the target that is not `bounded`.

    See Also
    --------
    reduce_columns : With an example.
    """
    _stored("cols", target, values, origin, bounded)


def _stored(axis: str, target: Any, values: Any, origin: Any, bounded: bool) -> None:
    layout = layout_of(values)
    if (layout.cols if axis == "rows" else layout.rows) != 1:
        name = "row" if axis == "rows" else "column"
        raise OperandError(f"{name} values are needed, not {describe(values)}")
    thread = this_thread(layout)
    bits = sharing_bits(layout, axis) or ()
    first: Any = None if not bits else (thread & sum(bits)) == 0
    memory = _memory(target)
    elements = values.to(memory.dtype).elements()
    store_indices(memory, _indices(memory, layout, axis, origin, bounded), elements, bounded, first)


def _memory(memory: Any) -> Tile | Array:
    if not isinstance(memory, (Tile, Array)) or memory.ndim > 2:
        raise OperandError(
            f"an array or shared tile of one or two dimensions is needed, not {describe(memory)}"
        )
    return memory


def _indices(
    memory: Tile | Array, layout: Layout, axis: str, origin: Any, bounded: bool
) -> list[tuple[Any, ...]]:
    """The index of each value of this thread."""
    first = _origin(memory, origin)
    thread, axis_index, count = this_thread(layout), _AXES[axis], layout.rows * layout.cols
    along = axis_index if memory.ndim == 2 else 0
    sizes = [count if number == along else 1 for number in range(memory.ndim)]
    check_extents(memory, sizes, first, bounded, f"there are {count} values")
    where = [layout.formula(thread, slot)[axis_index] for slot in range(layout.slots)]
    if first is None:
        return [(line,) for line in where]
    return [(*first[:along], line + first[along], *first[along + 1 :]) for line in where]


def _origin(memory: Tile | Array, origin: Any) -> tuple[Any, ...] | None:
    """The indices of the first value, one for each dimension; None: the beginning."""
    if memory.ndim == 1 and (origin is None or isinstance(origin, (int, Scalar))):
        return None if origin is None else (origin,)
    if memory.ndim == 2 and isinstance(origin, (tuple, list)) and len(origin) == 2:
        return tuple(origin)
    form = "the index" if memory.ndim == 1 else "(row, col)"
    raise OperandError(f"origin is {form} of the first value in {memory.described}, not {describe(origin)}")
