"""Run-time branches: which variables the two sides leave different, and what joins them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.frontend.environment import (
    Container,
    Frame,
    Snapshot,
    children,
    columns,
    keys_of,
    name_of,
    rebuilt,
    same,
    structure,
)  # fmt: skip
from tensorcore_dsl.ir.nodes import Assign, Block, Const, If, Type, Value
from tensorcore_dsl.values.arithmetic import coerce
from tensorcore_dsl.values.builder import Builder
from tensorcore_dsl.values.conversion import literal
from tensorcore_dsl.values.operands import describe, is_number, is_simple
from tensorcore_dsl.values.promotion import common_type
from tensorcore_dsl.values.values import UNSET, Group, Runtime, Scalar, Undefined

Copies = list[tuple[Any, Any]]  # (variable, value)


@dataclass
class Side:
    """One side of a run-time `if` after evaluation: how it ended, its value, its variables."""

    block: Block
    ended: bool  # by a jump of the kernel
    value: Any
    contents: list[Container] | None  # None: it changed nothing


def evaluate_side(
    builder: Builder, before: Snapshot, evaluate: Callable[[], tuple[bool, Any]]
) -> Side:
    """Evaluate one side from the state `before`, which is put back."""
    block = Block()
    with builder.inside(block):
        ended, value = evaluate()
    if not before.changed():
        return Side(block, ended, value, None)
    contents = before.contents()
    before.restore()
    return Side(block, ended, value, contents)


def run_branches(
    builder: Builder,
    frames: list[Frame],
    condition: Scalar,
    then: Callable[[], tuple[bool, Any]],
    orelse: Callable[[], tuple[bool, Any]],
) -> tuple[bool, Any]:
    """Evaluate both sides, each to (ended by a jump?, value), from one state and join them.

    The result is the same pair: ended when neither side goes on.
    """
    before = Snapshot(frames)
    left, right = (evaluate_side(builder, before, side) for side in (then, orelse))
    node = If(condition.value, left.block, right.block)
    builder.append(node)
    joined = join_sides(builder, frames, condition, before, left, right)
    if not (node.then.nodes or node.orelse.nodes):
        builder.block.nodes.remove(node)
    return joined


def join_sides(
    builder: Builder,
    frames: list[Frame],
    condition: Scalar,
    before: Snapshot,
    left: Side,
    right: Side,
) -> tuple[bool, Any]:
    """Leave the variables of the sides that go on, joined; (does neither?, the value)."""
    going = [side for side in (left, right) if not side.ended]
    if not going:
        return True, None
    if len(going) == 1:
        if going[0].contents is not None:
            before.put(going[0].contents)
        return False, going[0].value
    join = Join(builder, frames, condition)
    value = join.values(left.value, right.value)
    if left.contents is not None or right.contents is not None:
        join.containers(before, left.contents or before.copies, right.contents or before.copies)
    join.finish(left.block, right.block)
    return False, value


class Join:
    """Variables that two sides leave different become registers that both sides write."""

    def __init__(self, builder: Builder, frames: list[Frame], condition: Scalar) -> None:
        self.builder, self.frames, self.condition = builder, frames, condition
        self.left: Copies = []
        self.right: Copies = []
        loc = builder.locate()
        self.where = f"the run-time condition at line {loc.line}" if loc else "a run-time condition"

    def containers(self, before: Snapshot, left: list[Container], right: list[Container]) -> None:
        """Put what joins `left` and `right` into the containers."""
        frames = [id(frame.variables) for frame in self.frames]
        for container, a, b in zip(before.containers, left, right, strict=True):
            if id(container) not in frames and structure(a) != structure(b):
                raise OperandError(
                    f"{name_of(self.frames, container)} is {describe(a)} on one path of "
                    f"{self.where} and {describe(b)} on the other: its items cannot come and go "
                    "at run time"
                )
            for key in dict.fromkeys((*keys_of(a), *keys_of(b))):
                if not isinstance(a, list) and (key not in a or key not in b):
                    container[key] = Undefined(f"only one path of {self.where} assigns it")
                elif a[key] is b[key]:
                    container[key] = a[key]
                else:
                    container[key] = self.values(
                        before.resolved(a[key], left), before.resolved(b[key], right)
                    )

    def values(self, a: Any, b: Any) -> Any:
        """One value for both: itself, a register, or a container of such."""
        if same(a, b):
            return a
        if a is True and b is False:
            return self.condition
        for side, other in ((a, b), (b, a)):
            if isinstance(side, Undefined):
                return side
            if side is UNSET and children(other) is None and not isinstance(other, Runtime):
                return other
        a, b = shaped(a, b), shaped(b, a)
        items = columns([a, b])
        if items is not None:
            return rebuilt(a, [self.values(x, y) for x, y in items])
        variable = register_for(self.builder, [v for v in (a, b) if v is not UNSET])
        if variable is not None:
            self.left.append((variable, a))
            self.right.append((variable, b))
            return variable
        return Undefined(
            f"it is {describe(a)} on one path of {self.where} and {describe(b)} on the other; "
            "only numbers, predicates, fragments, pointers and containers of such can differ"
        )

    def finish(self, left: Block, right: Block) -> None:
        """Write the registers at the end of both sides."""
        for block, copies in ((left, self.left), (right, self.right)):
            with self.builder.inside(block):
                write(self.builder, copies)


# -- registers of variables ------------------------------------------------------------------


def shaped(value: Any, other: Any) -> Any:
    """UNSET as a container of the structure of `other`; any other value as it is."""
    items = children(other) if value is UNSET else None
    return value if items is None else rebuilt(other, [UNSET] * len(items))


def register_for(builder: Builder, values: Sequence[Any]) -> Any:
    """A register that can hold each of the values, or None."""
    first = values[0]
    if isinstance(first, Group):
        if all(isinstance(v, Group) and v.value.type == first.value.type for v in values):
            return Group(builder.new_value(first.value.type), first.operand)
        return None
    dtype = holding_type(values)
    return None if dtype is None else Scalar(builder.new_value(Type(dtype)), dtype)


def holding_type(values: Sequence[Any]) -> DType | None:
    """The type of a variable that can hold each of these scalars and numbers, or None."""
    if not all(map(is_simple, values)):
        return None
    strongest_first = sorted(values, key=is_number)
    try:
        return reduce(common_type, strongest_first, strongest_first[0])  # type: ignore[no-any-return]
    except OperandError:  # types that do not meet
        return None


def new_variable(builder: Builder, value: Any, dtype: DType | None = None) -> Any:
    """A fresh register that starts as `value`."""
    if isinstance(value, Group):
        variable: Any = Group(builder.new_value(value.value.type), value.operand)
    else:
        variable = Scalar(builder.new_value(Type(dtype or value.dtype)))
    write(builder, [(variable, value)])
    return variable


def write(builder: Builder, copies: Copies) -> None:
    """variable <- value for all at once: values that are variables written here are saved."""
    targets = {variable.value for variable, _ in copies}
    ready: Copies = []
    for variable, value in copies:
        if isinstance(variable, Scalar) and value is not UNSET:
            value = coerce(builder, value, variable.dtype)
        if isinstance(value, Runtime) and value.value in targets:
            if value.value is variable.value:
                continue
            value = new_variable(builder, value)
        ready.append((variable, value))
    for variable, value in ready:
        builder.append(Assign(variable.value, (_source(value, variable),)))


def _source(value: Any, variable: Runtime) -> Value | Const:
    if isinstance(value, Runtime):
        return value.value
    type = variable.value.type
    if value is UNSET:
        return Const(0, dtypes.pred if type.register_bits == 1 else _BITS[type.register_bits])
    return literal(value, type.dtype)


_BITS = {bits: dtypes.named(f"b{bits}") for bits in (16, 32, 64, 128)}
