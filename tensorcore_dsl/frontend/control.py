"""Run-time branches: join the variables that the two sides assign differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.nodes import Block, If
from tensorcore_dsl.values.builder import Builder
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.values import UNSET, RuntimeValue, Scalar, Undefined
from tensorcore_dsl.values.variables import Copies, register_for, write

from tensorcore_dsl.frontend.environment import (  # isort: skip
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
)


@dataclass
class BranchSide:
    """One evaluated side of a run-time `if`: its nodes, its value and its variables."""

    block: Block
    ended: bool  # in a jump of the kernel, so that nothing follows
    value: Any
    contents: list[Container] | None  # of the containers; None: unchanged


def evaluate_side(builder: Builder, before: Snapshot, evaluate: Callable[[], tuple[bool, Any]]) -> BranchSide:
    """Evaluate one side from the state `before`, and restore that state."""
    block = Block()
    with builder.inside(block):
        ended, value = evaluate()
    if not before.changed():
        return BranchSide(block, ended, value, None)
    contents = before.contents()
    before.restore()
    return BranchSide(block, ended, value, contents)


def run_branches(
    builder: Builder,
    frames: list[Frame],
    before: Snapshot,
    condition: Scalar,
    then: Callable[[], tuple[bool, Any]],
    orelse: Callable[[], tuple[bool, Any]],
) -> tuple[bool, Any]:
    """Evaluate both sides from the state `before` and join them.

    A side gives (ended in a jump?, value); so does the result, which ended if both sides did.
    """
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
    left: BranchSide,
    right: BranchSide,
) -> tuple[bool, Any]:
    """Join the variables of the sides that did not end in a jump.

    Returns (did both end in a jump?, the joined value).
    """
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
    """Joins two sides: what differs becomes a register that both sides write."""

    def __init__(self, builder: Builder, frames: list[Frame], condition: Scalar) -> None:
        self.builder, self.frames, self.condition = builder, frames, condition
        self.left: Copies = []
        self.right: Copies = []
        loc = builder.locate()
        self.where = f"the run-time condition at line {loc.line}" if loc else "a run-time condition"

    def containers(self, before: Snapshot, left: list[Container], right: list[Container]) -> None:
        """Store the joined values of `left` and `right` in the containers."""
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
        """The joined value of a and b: the common value, a register, or a container of these."""
        if same(a, b):
            return a
        if a is True and b is False:
            return self.condition
        for side, other in ((a, b), (b, a)):
            if isinstance(side, Undefined):
                return side
            if side is UNSET and children(other) is None and not isinstance(other, RuntimeValue):
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
        """Write the registers of the joined values at the end of both sides."""
        for block, copies in ((left, self.left), (right, self.right)):
            with self.builder.inside(block):
                write(self.builder, copies)


def shaped(value: Any, other: Any) -> Any:
    """UNSET as a container with the structure of `other`; any other value unchanged."""
    items = children(other) if value is UNSET else None
    return value if items is None else rebuilt(other, [UNSET] * len(items))
