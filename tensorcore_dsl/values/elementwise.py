"""Operators on fragments and vectors: matching elements, and elements that stay in pairs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.layout import Layout, broadcast_slots
from tensorcore_dsl.values.conversion import pack
from tensorcore_dsl.values.instructions import InstructionBuilder
from tensorcore_dsl.values.operands import is_simple
from tensorcore_dsl.values.promotion import weak
from tensorcore_dsl.values.values import Mask, RegisterGroup, Scalar, of_registers

GROUPS = (RegisterGroup, Mask)
PACKED = ("add", "sub", "mul", "neg", "abs", "min", "max", "fma")  # operators of f16x2, bf16x2


def on_groups(
    builder: InstructionBuilder, function: Callable[..., Any], name: str, operands: tuple[Any, ...]
) -> Any:
    """`function` of the elements of groups; scalars, numbers, row and column values are broadcast.

    Fragments of 16-bit floats stay packed for operators that exist on pairs.
    """
    if not all(isinstance(o, GROUPS) or is_simple(o) for o in operands):
        return NotImplemented
    group, common = _common_slots([o for o in operands if isinstance(o, GROUPS)])
    slots = iter(common)
    chosen = [next(slots) if isinstance(o, GROUPS) else None for o in operands]
    if name in PACKED and (operand := group.operand) is not None and group.layout is not None:
        pairs = [_pairs(builder, o, group, s) for o, s in zip(operands, chosen, strict=True)]
        if all(p is not None for p in pairs):
            results = [function(*column) for column in zip(*pairs, strict=True)]  # type: ignore[arg-type]
            return of_registers(operand, group.layout, results)
    columns = [
        [o] * group.slots if s is None else _elements_at(o, s) for o, s in zip(operands, chosen, strict=True)
    ]
    return group.rebuild([function(*column) for column in zip(*columns, strict=True)])


def _elements_at(group: RegisterGroup | Mask, slots: Sequence[int]) -> list[Any]:
    elements = list(group) if isinstance(group, Mask) else group.elements()
    return [elements[slot] for slot in slots]


def _common_slots(operands: Sequence[RegisterGroup | Mask]) -> tuple[RegisterGroup, list[Sequence[int]]]:
    """The group whose layout the result has, and for each group its slots in that order."""
    groups = [g.group if isinstance(g, Mask) else g for g in operands]
    for group in sorted(groups, key=lambda g: g.operand is None):
        slots = [_slots_in(other, group) for other in groups]
        if all(p is not None for p in slots):
            return group, slots  # type: ignore[return-value]
    first, second = next(
        (a, b)
        for a, b in itertools.combinations(groups, 2)
        if _slots_in(a, b) is None and _slots_in(b, a) is None
    )
    why = ": their slots hold other elements of a matrix" if first.layout and second.layout else ""
    if why and any(1 in (g.layout.rows, g.layout.cols) for g in (first, second) if g.layout):
        why += "; row and column values combine with fragments of the operand `like`"
    raise OperandError(f"{first.described} and {second.described} do not combine{why}")


def _slots_in(group: RegisterGroup, target: RegisterGroup) -> Sequence[int] | None:
    """The slots of `group` that correspond to the slots of `target`; None if none do."""
    layout, wanted = group.layout, target.layout
    if layout is wanted or layout is None or wanted is None:
        return range(target.slots) if group.slots == target.slots else None
    return _between(layout, wanted)


@cache
def _between(layout: Layout, wanted: Layout) -> Sequence[int] | None:
    if np.array_equal(layout.coords, wanted.coords):
        return range(wanted.slots)
    return broadcast_slots(layout, wanted)


def _pairs(
    builder: InstructionBuilder, operand: Any, group: RegisterGroup, slots: Sequence[int] | None
) -> list[Scalar] | None:
    """Convert the operand to one f16x2 or bf16x2 for each register of `group`; None if impossible."""
    dtype = group.dtype
    if dtype not in (dtypes.f16, dtypes.bf16) or group.per_register != 2:
        return None
    if isinstance(operand, RegisterGroup):
        if operand.value.type == group.value.type:
            return operand.registers
        if operand.dtype != dtype or slots is None:
            return None
        each = _elements_at(operand, slots)
        return [pack(builder, each[i : i + 2], dtype) for i in range(0, len(each), 2)]
    if isinstance(operand, Scalar):
        both = pack(builder, [operand] * 2, dtype) if operand.dtype == dtype else None
    else:
        both = builder.literal(operand, group.register_dtype) if weak(operand, dtype) == dtype else None
    return None if both is None else [both] * group.value.type.registers
