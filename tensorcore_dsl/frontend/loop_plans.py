"""Plans of run-time loops: how a loop carries its slots, and the expected slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.frontend.environment import children, columns, rebuilt, same
from tensorcore_dsl.values.operands import is_number
from tensorcore_dsl.values.values import RegisterGroup, RuntimeValue, Struct
from tensorcore_dsl.values.variables import holding_type

Slot = tuple[int, Any]  # number of a container in the loop's snapshot, key
Plans = dict[Slot, Any]  # of each carried slot: a tree of Carry, Undefined and unchanged values


@dataclass(frozen=True)
class Carry:
    """A slot that becomes a register: of its value's type, or of `dtype` if that is a number."""

    dtype: DType | None = None
    like: RegisterGroup | None = None  # of a slot that was UNSET before the loop


def likely_plan(value: Any) -> Any:
    """A plan for a number, a fragment, a pointer, or a list of these; None for other values."""
    if isinstance(value, RegisterGroup):
        return Carry()
    if is_number(value):
        return None if isinstance(value, bool) else Carry(holding_type([value]))
    if isinstance(value, Struct):
        items = [Carry() if isinstance(p, RuntimeValue) else p for p in children(value) or ()]
        return rebuilt(value, items)
    if type(value) is list and value and isinstance(value[0], (RegisterGroup, Struct)):
        plans = [likely_plan(item) for item in value]
        return None if any(plan is None for plan in plans) else plans
    return None


def again(plan: Any, value: Any) -> Any:
    """A plan for a slot that holds `value` now; None if it does not fit."""
    if isinstance(plan, Carry):
        if isinstance(value, RuntimeValue):
            return Carry()
        return Carry(plan.dtype or holding_type([value])) if is_number(value) else None
    items = columns([plan, value])
    if items is None:
        return plan if same(plan, value) else None
    plans = [again(*pair) for pair in items]
    return None if any(item is None for item in plans) else rebuilt(plan, plans)


def alike(plan: Any, other: Any) -> bool:
    """True if two plans carry equal registers."""
    items = columns([plan, other])
    if items is not None:
        return all(alike(*pair) for pair in items)
    return plan == other if isinstance(plan, Carry) else same(plan, other)


def changes(plan: Any, entry: Any, head: Any, afters: list[Any]) -> bool:
    """True if all registers of a plan change in a round."""
    if isinstance(plan, Carry):
        return not all(same(a, head) or same(a, entry) for a in afters)
    items = columns([plan, entry, head, *afters])
    return items is None or all(changes(p, e, h, rest) for p, e, h, *rest in items)
