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
from tensorcore_dsl.lang.fragments import check_extents, layout_of, load_places, store_places
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
    like: Operand | RegisterGroup, fill: Any = 0, dtype: DTypeLike | None = None
) -> RegisterGroup:
    """`fill` for each row of a fragment of `like`.

    They have the type in which its elements are computed (f32 for tf32, s32 for s8), or `dtype`.
    """
    return _filled("rows", like, fill, dtype)


def column_values(
    like: Operand | RegisterGroup, fill: Any = 0, dtype: DTypeLike | None = None
) -> RegisterGroup:
    """`fill` for each column of a fragment of `like`; the type is as that of `row_values`."""
    return _filled("cols", like, fill, dtype)


def _filled(axis: str, like: Any, fill: Any, dtype: DTypeLike | None) -> RegisterGroup:
    of_like = layout_of(like)
    chosen = promote_types(of_like.dtype, of_like.dtype) if dtype is None else as_dtype(dtype)
    layout = along(of_like, axis, chosen)
    value = builder().convert(fill, layout.dtype)
    return of_elements(_operand(layout), layout, [value] * layout.slots)


def along(layout: Layout, axis: str, dtype: DType | None = None) -> Layout:
    """The layout of the row or column values of a layout; OperandError if it has none."""
    try:
        return layout.along(axis, dtype)
    except LayoutError as error:
        raise OperandError(str(error)) from None


def _operand(layout: Layout) -> Operand:
    return Operand("values", layout.dtype, layout.registers, "reg", layout)


# -- reductions --------------------------------------------------------------------------------


def row_sum(fragments: Fragments) -> RegisterGroup:
    """The sum of each row, over all fragments given: one, or a list of fragments side by side."""
    return reduce_rows(fragments, operator.add)


def row_max(fragments: Fragments) -> RegisterGroup:
    """The greatest element of each row, over all fragments given; NaN only if all are."""
    return reduce_rows(fragments, maximum)


def row_min(fragments: Fragments) -> RegisterGroup:
    """The least element of each row, over all fragments given; NaN only if all are."""
    return reduce_rows(fragments, minimum)


def reduce_rows(fragments: Fragments, function: Callable[[Any, Any], Any]) -> RegisterGroup:
    """Row values: function(...function(function(x0, x1), x2)...) over the elements of each row.

    A thread combines its own elements in the order of slots and fragments, then shuffles combine
    the lanes that share the row, which differ in bits of their number, from the lowest bit on; all
    of these lanes get the result.
    """
    return _reduced("rows", fragments, function)


def reduce_columns(fragments: Fragments, function: Callable[[Any, Any], Any]) -> RegisterGroup:
    """Column values: the same over the elements of each column."""
    return _reduced("cols", fragments, function)


def _reduced(axis: str, fragments: Fragments, function: Callable[[Any, Any], Any]) -> RegisterGroup:
    given = flat(fragments)
    layouts = [along(layout_of(f), axis, f.dtype) for f in given]
    if any(layout != layouts[0] for layout in layouts):
        other = next(f for f, layout in zip(given, layouts, strict=True) if layout != layouts[0])
        raise OperandError(
            f"{given[0].described} and {other.described} hold other {axis}: they are reduced apart"
        )
    place, lines = _AXES[axis], layouts[0]
    call = functools.partial(_called, function)
    partial: list[Any] = [None] * lines.slots
    for group in given:
        assert group.layout is not None
        where = _slots(group.layout, lines, place)
        for slot, element in zip(where, group.elements(), strict=True):
            partial[slot] = element if partial[slot] is None else call(partial[slot], element)
    for bit in _sharing(given[0], axis):
        partial = [call(value, shfl_xor(value, bit)) for value in partial]
    dtypes = {value.dtype for value in partial}
    result = lines.of_type(dtypes.pop())
    return of_elements(_operand(result), result, partial)


def _called(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    return builder().call(function, [left, right], {})


@functools.cache
def _slots(layout: Layout, lines: Layout, axis: int) -> tuple[int, ...]:
    """For each slot of `layout`, the slot of its row or column in `lines`."""
    own, of_lines = layout.coords[0, :, axis].tolist(), lines.coords[0, :, axis].tolist()
    return tuple(of_lines.index(line) for line in own)


def _sharing(group: RegisterGroup, axis: str) -> tuple[int, ...]:
    """The bits of the lane in which the threads that share a row differ."""
    layout = layout_of(group)
    bits = sharing_bits(layout, axis)
    if bits is None or layout.threads * layout.slots != layout.rows * layout.cols:
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
        found = [f for item in fragments for f in flat(item)]
        if not found:
            raise OperandError("a fragment or a list of fragments is needed, not an empty list")
        return found
    if not isinstance(fragments, RegisterGroup) or fragments.layout is None:
        raise OperandError(f"a fragment is needed, not {describe(fragments)}")
    return [fragments]


# -- memory -----------------------------------------------------------------------------------


def load_rows(
    source: Tile | Array, like: Operand | RegisterGroup, *, origin: Any = None,
    bounded: bool = False, otherwise: Any = 0, convert: bool = False,
) -> RegisterGroup:  # fmt: skip
    """Row values from a one-dimensional array or tile: element origin + i for row i.

    Without origin, `source` has as many elements as the fragment has rows.
    like: the fragment, or operand, whose rows they are. They have the type of `source`, or with
    `convert` that of `like`. bounded: those beyond the end of `source` become `otherwise`.
    """
    return _loaded("rows", source, like, origin, bounded, otherwise, convert)


def load_columns(
    source: Tile | Array, like: Operand | RegisterGroup, *, origin: Any = None,
    bounded: bool = False, otherwise: Any = 0, convert: bool = False,
) -> RegisterGroup:  # fmt: skip
    """Column values from a one-dimensional array or tile: element origin + j for column j.

    Otherwise as `load_rows`: a bias is `acc + tc.load_columns(bias, acc, origin=n)`.
    """
    return _loaded("cols", source, like, origin, bounded, otherwise, convert)


def _loaded(
    axis: str, source: Any, like: Any, origin: Any, bounded: bool, otherwise: Any, convert: bool
) -> RegisterGroup:
    of_like = layout_of(like)
    layout = along(of_like, axis, None if convert else _memory(source).dtype)
    places = _places(source, layout, axis, origin, bounded)
    elements = load_places(source, places, bounded, otherwise)
    if convert:
        elements = [element.to(layout.dtype) for element in elements]
    return of_elements(_operand(layout), layout, elements)


def store_rows(
    target: Tile | Array, values: RegisterGroup, *, origin: Any = None, bounded: bool = False
) -> None:
    """Store row values to a one-dimensional array or tile: row i to element origin + i.

    One of the threads that hold a row stores it, converted to the type of `target`. bounded: those
    beyond the end of `target` are not stored.
    """
    _stored("rows", target, values, origin, bounded)


def store_columns(
    target: Tile | Array, values: RegisterGroup, *, origin: Any = None, bounded: bool = False
) -> None:
    """Store column values to a one-dimensional array or tile, as `store_rows` does."""
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
    store_places(memory, _places(memory, layout, axis, origin, bounded), elements, bounded, first)


def _memory(memory: Any) -> Tile | Array:
    if not isinstance(memory, (Tile, Array)) or memory.ndim != 1:
        raise OperandError(
            f"a one-dimensional array or shared tile is needed, not {describe(memory)}"
        )
    return memory


def _places(
    memory: Tile | Array, layout: Layout, axis: str, origin: Any, bounded: bool
) -> list[tuple[Any]]:
    if origin is not None and not isinstance(origin, (int, Scalar)):
        raise OperandError(f"origin is the index of the first value, not {describe(origin)}")
    thread, place, count = this_thread(layout), _AXES[axis], layout.rows * layout.cols
    where = None if origin is None else (origin,)
    check_extents(memory, (count,), where, bounded, f"there are {count} values")
    first = 0 if origin is None else origin
    return [(layout.formula(thread, slot)[place] + first,) for slot in range(layout.slots)]
