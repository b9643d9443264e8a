"""Run-time loops: which variables a loop carries from one round to the next.

A loop's body is evaluated on trial, from the state before the loop. Places that it changed
become variables, registers that live through the loop, and the body is evaluated again with
them, until no other place changes. Copies that this leaves behind are merged away later, by
register coalescing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.frontend.builder import Builder
from tensorcore_dsl.frontend.control import (
    Copies,
    holding_type,
    new_variable,
    register_for,
    write,
)  # fmt: skip
from tensorcore_dsl.frontend.environment import (
    MISSING,
    Container,
    Frame,
    Snapshot,
    columns,
    keys_of,
    name_of,
    rebuilt,
    same,
    structure,
)  # fmt: skip
from tensorcore_dsl.frontend.operands import describe, integer, is_number, is_simple
from tensorcore_dsl.frontend.promotion import promote_types
from tensorcore_dsl.frontend.values import Group, Runtime, Scalar, Undefined
from tensorcore_dsl.ir.nodes import Block, Jump

Slot = tuple[int, Any]  # number of a container in the loop's snapshot, key


@dataclass(frozen=True)
class Carry:
    """A place that becomes a register: of its own type, or of `dtype` if it holds a number."""

    dtype: DType | None = None


@dataclass
class Exit:
    """One way out of (or around) a loop's body: the contents there, and where to write them.

    `leaves` says that the loop ends with it.
    """

    contents: list[Container]
    block: Block
    before: Jump | None = None
    leaves: bool = False


@dataclass
class Loop:
    """The loop being evaluated. `endless`: it ends by `break` alone."""

    snapshot: Snapshot
    endless: bool = False
    exits: list[Exit] = field(default_factory=list)
    tests: list[list[Container]] = field(default_factory=list)  # the contents after its test

    @property
    def states(self) -> list[list[Container]]:
        """The contents wherever variables are written."""
        return [*self.tests, *(way.contents for way in self.exits)]

    def leave(self, block: Block, before: Jump | None = None, leaves: bool = False) -> None:
        """Note that control leaves the body here."""
        self.exits.append(Exit(self.snapshot.contents(), block, before, leaves))


def run_loop(
    builder: Builder,
    frames: list[Frame],
    assigned: frozenset[str],
    trial: Callable[[Loop, Callable[[Loop], None]], None],
) -> None:
    """Evaluate a loop until the set of carried variables is known, and emit it.

    `trial(loop, settle)` emits the loop with its body and records the exits; it is called again
    after everything it did was taken back. It calls `settle(loop)` where the loop's test ends.
    `assigned` are names that the body binds: if they hold registers, they are carried at once.
    """
    snapshot = Snapshot(frames)
    variables = _Variables(builder, frames, snapshot)
    variables.guess(assigned)
    while True:  # every round carries more places, wider types, or gives one up
        mark = builder.mark()
        variables.introduce()
        loop = Loop(snapshot)
        trial(loop, variables.settle_test)
        if variables.settled(loop):
            variables.write_back(loop)
            variables.leave(loop)
            return
        builder.undo(mark)
        snapshot.restore()


class _Variables:
    """The places that a loop carries: `carried` says how, `head` what stands there at its head."""

    def __init__(self, builder: Builder, frames: list[Frame], snapshot: Snapshot) -> None:
        self.builder, self.frames, self.snapshot = builder, frames, snapshot
        self.carried: dict[Slot, Any] = {}
        self.head: list[Container] = []
        self.unsettled = False
        loc = builder.locate()
        self.where = f"the run-time loop at line {loc.line}" if loc else "a run-time loop"

    def guess(self, assigned: frozenset[str]) -> None:
        number = self.snapshot.number(self.frames[-1].variables)
        for name, value in self.frames[-1].variables.items():
            if name in assigned and isinstance(value, Runtime):
                self.carried[number, name] = Carry()

    # before a trial

    def introduce(self) -> None:
        """Registers for the carried places, in the containers."""
        for (number, key), plan in self.carried.items():
            entry = self.snapshot.copies[number][key]
            self.snapshot.containers[number][key] = self._introduced(entry, plan)
        self.head = self.snapshot.contents()

    def _introduced(self, entry: Any, plan: Any) -> Any:
        if isinstance(plan, Carry):
            return new_variable(self.builder, entry, plan.dtype)
        if isinstance(plan, Undefined):
            return plan
        items = columns([entry, plan])
        if items is None:
            return entry
        return rebuilt(entry, [self._introduced(*pair) for pair in items])

    # after a trial

    def settled(self, loop: Loop) -> bool:
        """Compare the exits with the head; what differs and is no variable is carried next."""
        self.unsettled = False
        for number, head in enumerate(self.head):
            exits = [contents[number] for contents in loop.states]
            self._check_structure(number, exits)
            for key in keys_of(head):
                afters = [self._at(after, key) for after in exits]
                if all(after is head[key] for after in afters):
                    continue
                entry = self.snapshot.copies[number][key]
                plan = self._plan(entry, head[key], afters)
                if plan is not None:
                    self.carried[number, key] = plan
        return not self.unsettled

    def _at(self, container: Container, key: Any) -> Any:
        if isinstance(container, dict) and key not in container:
            return Undefined(f"a path of {self.where} deletes it")
        return container[key]

    def _check_structure(self, number: int, exits: list[Container]) -> None:
        container = self.snapshot.containers[number]
        if any(container is frame.variables for frame in self.frames):
            return
        before = self.snapshot.copies[number]
        for after in exits:
            if structure(after) != structure(before):
                raise OperandError(
                    f"{name_of(self.frames, container)} is {describe(before)} before {self.where} "
                    f"and {describe(after)} after a round: its items cannot come and go at run time"
                )

    def _plan(self, entry: Any, head: Any, afters: list[Any]) -> Any:
        """How to carry a place: a tree of Carry, Undefined and what stays as it is."""
        changed = [after for after in afters if not same(after, head)]
        if not changed or isinstance(head, Undefined):
            return self._kept(entry, head)
        items = columns([entry, head, *changed])
        if items is not None:
            return rebuilt(entry, [self._plan(c[0], c[1], c[2:]) for c in items])
        plan = self._leaf(entry, head, changed)
        widened = isinstance(plan, Carry) and plan.dtype not in (None, _carried_type(head))
        if not isinstance(plan, Carry) or same(entry, head) or widened:
            self.unsettled = True
        return plan

    def _kept(self, entry: Any, head: Any) -> Any:
        if isinstance(head, Undefined) or same(entry, head):
            return head
        items = columns([entry, head])
        if items is not None:
            return rebuilt(entry, [self._kept(*pair) for pair in items])
        return Carry(_carried_type(head) if is_number(entry) else None)

    def _leaf(self, entry: Any, head: Any, afters: list[Any]) -> Any:
        for value in (entry, *afters):
            if isinstance(value, Undefined):
                return value
        if isinstance(entry, Group):
            if all(isinstance(a, Group) and a.value.type == entry.value.type for a in afters):
                return Carry()
        elif isinstance(entry, Scalar):
            if all(_fits(after, entry.dtype) for after in afters):
                return Carry()
        elif is_number(entry):
            dtype = holding_type([head, *afters])
            if dtype is not None:
                return Carry(dtype)
        after = afters[0]
        hint = "only numbers, predicates, fragments and pointers can change"
        if isinstance(entry, Scalar) and is_simple(after):
            hint = f"convert it with {entry.dtype}(...), or start with another type"
        return Undefined(
            f"it is {describe(entry)} before {self.where} and {describe(after)} after a round; "
            f"{hint}"
        )

    # the copies

    def settle_test(self, loop: Loop) -> None:
        """At the end of a loop's test: what it changed goes to the variables."""
        loop.tests.append(self.snapshot.contents())
        copies: Copies = []
        for number, key in self.carried:
            container = self.snapshot.containers[number]
            head = self.head[number][key]
            self._collect(head, container[key], copies)
            container[key] = head
        write(self.builder, copies)

    def write_back(self, loop: Loop) -> None:
        """Variables are written at every exit."""
        born = self._born(loop)
        for way in loop.exits:
            copies: Copies = []
            for number, key in self.carried:
                after = self._at(way.contents[number], key)
                self._collect(self.head[number][key], after, copies)
            if way.leaves:
                copies += [
                    (variable, way.contents[number][name])
                    for (number, name), variable in born.items()
                    if isinstance(variable, Runtime)
                ]
            tail = Block()
            with self.builder.inside(tail):
                write(self.builder, copies)
            place = way.block.nodes.index(way.before) if way.before else len(way.block)
            way.block.nodes[place:place] = tail.nodes
        self.born = born

    def _collect(self, head: Any, after: Any, copies: Copies) -> None:
        if isinstance(head, Undefined) or isinstance(after, Undefined) or same(head, after):
            return
        items = columns([head, after])
        if items is not None:
            for head_item, item in items:
                self._collect(head_item, item, copies)
        elif isinstance(head, Runtime):
            copies.append((head, after))

    def _born(self, loop: Loop) -> dict[Slot, Any]:
        """Names that an endless loop always binds before it breaks: registers for them."""
        ways = [way for way in loop.exits if way.leaves]
        born: dict[Slot, Any] = {}
        if not loop.endless or not ways:
            return born
        number = self.snapshot.number(self.frames[-1].variables)
        for name in ways[0].contents[number]:
            if not isinstance(self.head[number].get(name, MISSING), Undefined):
                continue
            values = [way.contents[number].get(name, MISSING) for way in ways]
            if all(same(values[0], v) and not isinstance(v, Runtime) for v in values):
                born[number, name] = values[0]
            elif (variable := register_for(self.builder, values)) is not None:
                born[number, name] = variable
        return born

    # after the loop

    def leave(self, loop: Loop) -> None:
        """Variables hold their registers; names first bound in the body have no value."""
        self.snapshot.put(self.head)
        for frame in self.frames:
            number = self.snapshot.number(frame.variables)
            for way in loop.exits:
                for name in way.contents[number]:
                    if name not in frame.variables:
                        frame.variables[name] = Undefined(
                            f"it is assigned only inside {self.where}, which may not run"
                        )
        for (number, name), variable in self.born.items():
            self.snapshot.containers[number][name] = variable


def _carried_type(head: Any) -> DType | None:
    return head.dtype if isinstance(head, Scalar) else None


def _fits(value: Any, dtype: DType) -> bool:
    """Can a variable of `dtype` take the value without harm?"""
    if isinstance(value, Scalar):
        have = value.dtype
        if have == dtype or (have.is_integer and dtype.is_integer and have.bits == dtype.bits):
            return True
        try:
            return promote_types(have, dtype) == dtype
        except OperandError:
            return False
    if not is_number(value):
        return False
    try:
        integer(value, dtype) if dtype.is_integer else float(value)
    except OperandError:
        return False
    return dtype.kind != "p" or isinstance(value, bool)
