"""Run-time control flow: which variables a loop carries and a branch joins.

A loop body is evaluated on trial; the leaves that it changed become variables (mutable
registers) and the body is evaluated again with them. Copies that this leaves behind are merged
away later, by register coalescing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.frontend import arithmetic
from tensorcore_dsl.frontend.builder import Builder, constant, default_type, element_type
from tensorcore_dsl.frontend.environment import (
    Frame, Path, Snapshot, Undefined, cannot_carry, capture, name_of, same, visit,
)
from tensorcore_dsl.frontend.values import Group, Runtime, Scalar
from tensorcore_dsl.ir.nodes import Assign, Block, If, Jump, Type

NUMBERS = (bool, int, float)


@dataclass
class Exit:
    """One way out of (or around) a loop body: the state there and where to write variables."""

    leaves: dict[Path, Any]
    block: Block
    before: Jump | None = None


@dataclass
class Loop:
    """The loop being evaluated: its exits, and how deep the function calls were."""

    depth: int
    exits: list[Exit] = field(default_factory=list)


@dataclass
class Carried:
    """A variable of a loop: its place in the environment, its register."""

    path: Path
    variable: Any


def run_loop(
    builder: Builder, frames: list[Frame], guess: set[str], trial: Callable[[Loop], None]
) -> None:
    """Evaluate a loop body until the set of carried variables is known.

    `trial(loop)` emits the loop node with its body and records exits; it is called again
    after everything it did was taken back.
    """
    wanted: dict[Path, DType | None] = _guessed(frames, guess)
    for _ in range(12):
        snapshot, mark = Snapshot(frames), builder.mark()
        carried = _introduce(builder, frames, wanted)
        entry = capture(frames)
        loop = Loop(len(frames))
        trial(loop)
        found = _changed(entry, loop, wanted, carried)
        if not found:
            _write_back(builder, loop, carried)
            snapshot.restore()
            _restore_entry(frames, entry, carried, loop)
            return
        builder.undo(mark)
        snapshot.restore()
        wanted.update(found)
    raise OperandError("the variables of this loop do not settle; write it with fewer aliases")


def _guessed(frames: list[Frame], names: set[str]) -> dict[Path, DType | None]:
    """Run-time leaves under names that the body assigns: surely carried or harmless."""
    depth = len(frames) - 1
    return {
        path: None
        for path, leaf in capture(frames).items()
        if isinstance(leaf, Runtime) and path[0] == depth and path[1] in names
    }


def _introduce(
    builder: Builder, frames: list[Frame], wanted: dict[Path, DType | None]
) -> dict[Path, Carried]:
    carried: dict[Path, Carried] = {}

    def replace(path: Path, leaf: Any) -> Any:
        if path not in wanted:
            return leaf
        variable = new_variable(builder, leaf, wanted[path])
        carried[path] = Carried(path, variable)
        return variable

    visit(frames, replace)
    return carried


def new_variable(builder: Builder, leaf: Any, dtype: DType | None) -> Any:
    """A fresh register that starts as `leaf`."""
    if isinstance(leaf, Group):
        register = builder.new_value(leaf.value.type)
        builder.append(Assign(register, (leaf.value,)))
        return Group(register, leaf.operand)
    if isinstance(leaf, Scalar):
        register = builder.new_value(Type(leaf.dtype))
        builder.append(Assign(register, (leaf.value,)))
        return Scalar(register, leaf.dtype)
    return builder.literal(leaf, dtype or default_type(leaf))


def _changed(
    entry: dict[Path, Any], loop: Loop, wanted: dict[Path, DType | None], carried: dict[Path, Carried]
) -> dict[Path, DType | None]:
    """Leaves that some exit leaves different and that are not variables yet."""
    found: dict[Path, DType | None] = {}
    for way in loop.exits:
        for path, before in entry.items():
            after = way.leaves.get(path, before)
            if isinstance(after, Undefined):
                after = before
            if path in carried or same(before, after):
                continue
            found[path] = _carried_type(path, before, after, found.get(path))
    return found


def _carried_type(path: Path, before: Any, after: Any, known: DType | None) -> DType | None:
    if isinstance(before, Undefined):
        return None
    if isinstance(before, Runtime) and isinstance(after, (Runtime, *NUMBERS)):
        return None
    if isinstance(before, NUMBERS) and isinstance(after, Scalar):
        return after.dtype
    if isinstance(before, NUMBERS) and isinstance(after, NUMBERS):
        return known or (dtypes.f32 if float in (type(before), type(after)) else default_type(before))
    raise cannot_carry(path, before, after, "a run-time loop")


def _write_back(builder: Builder, loop: Loop, carried: dict[Path, Carried]) -> None:
    for way in loop.exits:
        copies = []
        for path, entry in carried.items():
            after = way.leaves.get(path, entry.variable)
            if not same(after, entry.variable):
                copies.append((path, entry.variable, after))
        tail: list[Any] = []
        scratch = Block(tail)
        with builder.inside(scratch):
            parallel_copies(builder, copies, "a run-time loop")
        place = way.block.nodes.index(way.before) if way.before else len(way.block.nodes)
        way.block.nodes[place:place] = tail


def parallel_copies(builder: Builder, copies: list[tuple[Path, Any, Any]], where: str) -> None:
    """variable <- value for all at once: sources that are targets too are saved first."""
    targets = {id(variable.value) for _, variable, _ in copies}
    ready = []
    for path, variable, value in copies:
        value = _as_variable(builder, path, variable, value, where)
        if isinstance(value, Runtime) and id(value.value) in targets:
            value = new_variable(builder, value, None)
        ready.append((variable, value))
    for variable, value in ready:
        write_variable(builder, variable, value)


def _as_variable(builder: Builder, path: Path, variable: Any, value: Any, where: str) -> Any:
    """The value in the variable's type, or an error that names the place."""
    if isinstance(variable, Group):
        if isinstance(value, Group) and value.value.type == variable.value.type:
            return value
        raise cannot_carry(path, variable, value, where)
    if isinstance(value, Scalar):
        if value.dtype.register_bits == variable.dtype.register_bits and (
            value.dtype == variable.dtype or (value.dtype.is_integer and variable.dtype.is_integer)
        ):
            return value
        raise OperandError(
            f"{name_of(path)} is {variable.dtype} before and {value.dtype} after {where}; "
            f"convert it with {variable.dtype}(...)"
        )
    if isinstance(value, NUMBERS):
        return value
    raise cannot_carry(path, variable, value, where)


def write_variable(builder: Builder, variable: Any, value: Any) -> None:
    if isinstance(value, Runtime):
        if value.value is not variable.value:
            builder.append(Assign(variable.value, (value.value,)))
        return
    dtype = variable.dtype if isinstance(variable, Scalar) else element_type(variable.operand)
    builder.append(Assign(variable.value, (constant(value, dtype),)))


def _restore_entry(
    frames: list[Frame], entry: dict[Path, Any], carried: dict[Path, Carried], loop: Loop
) -> None:
    """After the loop: variables hold their registers; names born in the body are undefined."""

    def replace(path: Path, leaf: Any) -> Any:
        return carried[path].variable if path in carried else leaf

    visit(frames, replace)
    for way in loop.exits:
        for path in way.leaves:
            if path[0] < len(frames):
                variables = frames[path[0]].variables
                if path[1] not in variables:
                    variables[path[1]] = Undefined("it is assigned only inside a run-time loop")


# -- branches ---------------------------------------------------------------------------------


@dataclass
class Branch:
    """One side of a run-time `if` after evaluation."""

    block: Block
    leaves: dict[Path, Any]
    ended: bool  # by break, continue or return
    snapshot: Snapshot


def run_branches(
    builder: Builder,
    frames: list[Frame],
    condition: Scalar,
    then: Callable[[], bool],
    orelse: Callable[[], bool],
) -> bool:
    """Evaluate both sides from the same state and join them; True when neither goes on."""
    before = Snapshot(frames)
    sides = []
    for evaluate in (then, orelse):
        block = Block()
        with builder.inside(block):
            ended = evaluate()
        sides.append(Branch(block, capture(frames), ended, Snapshot(frames)))
        before.restore()
    node = If(condition.value, sides[0].block, sides[1].block)
    builder.append(node)
    going = [side for side in sides if not side.ended]
    if not going:
        return True
    going[0].snapshot.restore()
    if len(going) == 2:
        _join(builder, frames, sides[0], sides[1])
    return False


def _join(builder: Builder, frames: list[Frame], left: Branch, right: Branch) -> None:
    """Variables that the two sides leave different become registers."""
    copies: tuple[list[Any], list[Any]] = ([], [])
    joined: dict[Path, Any] = {}
    for path in {**left.leaves, **right.leaves}:
        a, b = (side.leaves.get(path, Undefined("one branch of an if does not assign it")) for side in (left, right))
        if same(a, b):
            continue
        joined[path] = _join_leaf(builder, path, a, b, copies)
    for side, pending in zip((left, right), copies, strict=True):
        with builder.inside(side.block):
            parallel_copies(builder, pending, "a run-time if")

    def replace(path: Path, leaf: Any) -> Any:
        return joined.get(path, leaf)

    visit(frames, replace)
    for path, value in joined.items():
        if len(path) == 2:
            frames[path[0]].variables[path[1]] = value


def _join_leaf(
    builder: Builder, path: Path, a: Any, b: Any, copies: tuple[list[Any], list[Any]]
) -> Any:
    for side in (a, b):
        if isinstance(side, Undefined):
            return side
    variable = _join_variable(builder, path, a, b)
    for value, pending in zip((a, b), copies, strict=True):
        if isinstance(value, Scalar) and value.dtype != variable.dtype:
            pending.append((path, variable, value))
        else:
            pending.append((path, variable, value))
    return variable


def _join_variable(builder: Builder, path: Path, a: Any, b: Any) -> Any:
    if isinstance(a, Group) and isinstance(b, Group) and a.value.type == b.value.type:
        return Group(builder.new_value(a.value.type), a.operand)
    if isinstance(a, (Scalar, *NUMBERS)) and isinstance(b, (Scalar, *NUMBERS)):
        if isinstance(a, Scalar) and isinstance(b, Scalar):
            dtype = a.dtype
        elif isinstance(a, Scalar) or isinstance(b, Scalar):
            dtype = a.dtype if isinstance(a, Scalar) else b.dtype
        else:
            dtype = dtypes.f32 if float in (type(a), type(b)) else default_type(a)
        return Scalar(builder.new_value(Type(dtype)), dtype)
    raise cannot_carry(path, a, b, "a run-time if")


__all__ = ["Exit", "Loop", "arithmetic", "run_branches", "run_loop"]
