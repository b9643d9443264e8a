"""Fragments and vectors in registers; element-wise loads and stores of fragments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorcore_dsl.errors import OperandError, listing
from tensorcore_dsl.ir.nodes import Type
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.spec import Operand
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.lang.special_registers import lane_id, thread_in_warpgroup
from tensorcore_dsl.lang.tiles import Tile
from tensorcore_dsl.layout import Layout
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe, number_type, type_of
from tensorcore_dsl.values.values import RegisterGroup, Scalar


def fragment(operand: Operand, registers: Sequence[Any]) -> RegisterGroup:
    """The fragment of `operand` that consists of these registers."""
    if not isinstance(operand, Operand) or operand.layout is None:
        raise OperandError(
            f"{describe(operand)} is no fragment operand, such as {names.FRAGMENT_EXAMPLE}"
        )
    return builder().pack(list(registers), type_of(operand), operand)


def vector(elements: Sequence[Any]) -> RegisterGroup:
    """A vector of scalars of one type; Python's numbers take the type of the others."""
    known = list(dict.fromkeys(e.dtype for e in elements if isinstance(e, Scalar)))
    types = known or list(dict.fromkeys(number_type(e) for e in elements))
    if len(types) != 1:
        raise OperandError(f"a vector has elements of one type, not {listing(types) or 'none'}")
    return builder().pack(
        [builder().scalar(e, types[0]) for e in elements], Type(types[0], len(elements))
    )


def load_elements(tile: Tile | Array, operand: Operand) -> RegisterGroup:
    """Load a fragment element by element, at the coordinates that its layout gives."""
    layout = fragment_layout(tile, operand, (Tile, Array))
    thread = _thread(layout)
    elements = [tile.at(*layout.formula(thread, slot)).load() for slot in range(layout.slots)]
    registers, step = elements, layout.per_register
    if step > 1:
        narrow = [e.bits(layout.dtype) for e in elements]
        starts = range(0, len(narrow), step)
        registers = [builder().pack_register(narrow[i : i + step], layout.dtype) for i in starts]
    return builder().pack(registers, type_of(operand), operand)


def store_elements(target: Tile | Array, value: RegisterGroup) -> None:
    """Store a fragment element by element to a tile or an array view of its shape."""
    layout = stored_layout(target, value, (Tile, Array))
    thread = _thread(layout)
    for slot, element in enumerate(value.elements()):
        target.at(*layout.formula(thread, slot)).store(element)


def fragment_layout(tile: Any, operand: Any, spaces: tuple[Any, ...] = (Tile,)) -> Layout:
    """The layout of `operand`; OperandError unless `tile`, in one of `spaces`, can hold it."""
    if not isinstance(operand, Operand) or operand.layout is None:
        raise OperandError(
            f"a fragment operand, such as {names.FRAGMENT_EXAMPLE}, is needed, not "
            f"{describe(operand)}"
        )
    layout = operand.layout
    if not isinstance(tile, spaces) or tile.ndim != 2:
        allowed = " or ".join("array" if s is Array else "shared tile" for s in spaces)
        raise OperandError(f"a two-dimensional {allowed} is needed, not {describe(tile)}")
    if tile.dtype.storage_bits != layout.dtype.storage_bits:
        raise OperandError(f"{tile.described} cannot hold {layout.name}, which has {layout.dtype}")
    if isinstance(tile, Tile) and (
        tile.shape[0] % layout.rows or tile.shape[1] % layout.cols or 0 in tile.shape
    ):
        raise OperandError(
            f"{layout.name} covers {layout.rows}x{layout.cols}; {tile.described} is no multiple "
            "of it"
        )
    return layout


def stored_layout(target: Any, value: Any, spaces: tuple[Any, ...]) -> Layout:
    """The layout of the fragment `value`; OperandError unless `target` can hold it."""
    if not isinstance(value, RegisterGroup) or value.operand is None:
        raise OperandError(
            f"a fragment is needed, not {describe(value)}; store vectors with pointer.store(...)"
        )
    return fragment_layout(target, value.operand, spaces)


def _thread(layout: Layout) -> Any:
    """The thread's number in the layout: its lane, or its place in the warpgroup."""
    return lane_id() if layout.threads == 32 else thread_in_warpgroup()
