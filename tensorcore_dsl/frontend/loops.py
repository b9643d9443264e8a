"""Run-time loops: find the loop-carried variables.

The body of a loop is evaluated on trial, from the state before the loop. Slots that it changed
become loop-carried registers, and the body is evaluated again with these, until no other slot
changes. Register coalescing removes the copies that remain.

Most loops are evaluated once, since the first trial carries the slots that the loop is expected to
change. These are the slots that it changed in its last evaluation, for example in an earlier trial
of the enclosing loop. Without one, they are the numbers that it assigns and the lists of fragments.
A trial that does not change all expected slots does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.frontend.control import shaped
from tensorcore_dsl.frontend.loop_plans import Carry, Plans, Slot, again, alike, changes, likely_plan
from tensorcore_dsl.ir.nodes import Block, Jump
from tensorcore_dsl.values.builder import Builder
from tensorcore_dsl.values.operands import describe, integer, is_number, is_simple
from tensorcore_dsl.values.promotion import promote_types
from tensorcore_dsl.values.values import UNSET, RegisterGroup, RuntimeValue, Scalar, Undefined

from tensorcore_dsl.frontend.environment import (  # isort: skip
    MISSING,
    Container,
    Contents,
    Frame,
    Snapshot,
    columns,
    keys_of,
    name_of,
    rebuilt,
    same,
    structure,
)
from tensorcore_dsl.values.variables import (  # isort: skip
    Copies,
    holding_type,
    new_variable,
    register_for,
    write,
)


@dataclass
class Exit:
    """An exit of the body of a loop, or its end: the contents there, and where to write them.

    Attributes
    ----------
    leaves : bool
        The exit ends the loop.
    returns : bool
        It also ends the function.
    """

    contents: Contents
    block: Block
    before: Jump | None = None
    leaves: bool = False
    returns: bool = False


@dataclass
class Loop:
    """The loop under evaluation, from the state `head`; `endless`: only a `break` ends it."""

    head: Snapshot
    endless: bool = False
    exits: list[Exit] = field(default_factory=list)
    tests: list[Contents] = field(default_factory=list)  # the contents after its test

    def leave(
        self, block: Block, before: Jump | None = None, leaves: bool = False, returns: bool = False
    ) -> None:
        """Record that control leaves the body here."""
        self.exits.append(Exit(self.head.frozen(), block, before, leaves, returns))

    @property
    def states(self) -> list[Contents]:
        """The contents at all points where variables are written."""
        return [*self.tests, *(way.contents for way in self.exits)]


def run_loop(
    builder: Builder,
    frames: list[Frame],
    assigned: frozenset[str],
    trial: Callable[[Loop, Callable[[Loop], None]], None],
    last: Plans | None = None,
) -> Plans:
    """Evaluate a loop until its set of carried variables is known, and emit it.

    `trial(loop, settle)` emits the loop with its body and records the exits; it is called again
    after its effects were undone. It calls `settle(loop)` where the test of the loop ends. Names
    in `assigned`, which the body binds, are carried from the start if they hold registers. `last`
    is what an earlier evaluation of the loop returned: how it carried its slots.
    """
    entry = Snapshot(frames)
    variables = _Variables(builder, frames, entry)
    variables.guess(assigned, last)
    while True:  # each pass carries more slots, widens a type, or makes a variable undefined
        mark = builder.mark()
        variables.introduce()
        loop = Loop(variables.head)
        if variables.try_out(trial, loop) and variables.settled(loop):
            variables.write_back(loop)
            variables.leave(loop)
            return variables.carried
        builder.undo(mark)
        entry.restore()


class _Variables:
    """The slots that a loop carries.

    `entry` is the state before the loop. `head` is this state with registers in the carried slots.
    `carried` maps slots of `entry` to the way in which they are carried. A container in a carried
    slot was made by the loop.
    """

    def __init__(self, builder: Builder, frames: list[Frame], entry: Snapshot) -> None:
        self.builder, self.frames, self.entry, self.head = builder, frames, entry, entry
        self.carried: Plans = {}
        self.certain: Plans = {}  # without what is only expected
        self.expected: set[Slot] = set()
        self.ordered = False
        self.born: dict[str, Any] = {}
        self.unsettled = False
        self.later: dict[Slot, list[Any]] = {}  # values of the body that a slot is to follow
        loc = builder.locate()
        self.where = f"the run-time loop at line {loc.line}" if loc else "a run-time loop"

    def guess(self, assigned: frozenset[str], last: Plans | None) -> None:
        """Carry the registers that the body binds from the start, and what it should change."""
        for name, value in self.frames[-1].variables.items():
            if name in assigned and isinstance(value, RuntimeValue):
                self.certain[self._own(self.entry), name] = Carry()
        expected = dict(self._likely(assigned)) if last is None else self._as_before(last)
        self.expected = expected.keys() - self.certain.keys()
        self.carried = self.certain | {s: p for s, p in expected.items() if s in self.expected}

    def _likely(self, assigned: frozenset[str]) -> Iterator[tuple[Slot, Any]]:
        """The variables that loops change (see the module). Lists in items or attributes are replaced."""
        entry_number, replaced = self._own(self.entry), set[int]()
        frames = [self.entry.number(frame.variables) for frame in self.frames]
        for number, copied in enumerate(self.entry.copies):
            if id(self.entry.containers[number]) in replaced:
                continue
            for key, value in _entries(copied):
                if isinstance(copied, list):
                    wanted = isinstance(value, (RegisterGroup, list))
                elif number == entry_number:
                    wanted = key in assigned and (isinstance(value, list) or is_number(value))
                else:
                    wanted = number not in frames and isinstance(value, list)
                plan = likely_plan(value) if wanted else None
                if plan is not None:
                    replaced.add(id(value))
                    yield (number, key), plan

    def _as_before(self, last: Plans) -> Plans:
        """The plans of an earlier evaluation, for the slots that hold the same now."""
        fitting = {}
        for slot, plan in last.items():
            number, key = slot
            copied = self.entry.copies[number] if number < len(self.entry.copies) else ()
            if isinstance(copied, list) != isinstance(key, int) or key not in [*keys_of(copied)]:
                continue
            value = self.entry.resolved(copied[key], self.entry.copies)
            if (fit := again(plan, value)) is not None:
                fitting[slot] = fit
        return fitting

    def _own(self, snapshot: Snapshot) -> int:
        """The number in `snapshot` of the container of the current function's variables."""
        number = snapshot.number(self.frames[-1].variables)
        assert number is not None
        return number

    # before a trial

    def introduce(self) -> None:
        """Put new registers into the carried slots."""
        entry = self.entry
        for (number, key), plan in self.carried.items():
            value = entry.resolved(entry.copies[number][key], entry.copies)
            later = self.later.get((number, key), ())
            entry.containers[number][key] = self._introduced(value, plan, later)
        self.head = Snapshot(self.frames)

    def _introduced(self, entry: Any, plan: Any, later: Sequence[Any]) -> Any:
        if isinstance(plan, Carry):
            if plan.like is not None:
                variable = register_for(self.builder, [plan.like])
                write(self.builder, [(variable, entry)])
                return variable
            return new_variable(self.builder, entry, plan.dtype, later)
        if isinstance(plan, Undefined):
            return plan
        entry = shaped(entry, plan)
        items = columns([entry, plan])
        if items is None:
            return plan if entry is UNSET else entry
        return rebuilt(entry, [self._introduced(a, b, later) for a, b in items])

    def try_out(self, trial: Callable[[Loop, Callable[[Loop], None]], None], loop: Loop) -> bool:
        """Evaluate the body. An error of a trial that carried too much does not count."""
        try:
            trial(loop, self.settle_test)
        except Exception:
            if not self.expected:
                raise
            self._expect_nothing()
            return False
        return True

    # after a trial

    def _expect_nothing(self) -> None:
        self.carried, self.expected, self.unsettled = dict(self.certain), set(), True

    def _verdict(self, slot: Slot, head: Any, afters: list[Any], states: list[Contents]) -> str:
        """True if the body has changed a slot as expected.

        "idle": it left registers as they were. "other type": it gives a number another type.
        """
        entry = self.entry.resolved(self.entry.copies[slot[0]][slot[1]], self.entry.copies)
        if all(after is head for after in afters):
            return "wrong" if is_number(entry) else "idle"
        values = [self.head.resolved(a, c) for a, c in zip(afters, states, strict=True)]
        head = self.head.resolved(head, self.head.copies)
        if not changes(self.carried[slot], entry, head, values):
            return "wrong"
        types = {value.dtype for value in values if isinstance(value, Scalar)}
        return "other type" if is_number(entry) and types - {head.dtype} else "right"

    def _learn(self, expected: Plans, verdicts: dict[Slot, str]) -> None:
        """Carry nothing that the trial has not changed, or that it has changed otherwise."""
        for slot, plan in expected.items():
            verdict = verdicts.get(slot, "wrong")
            retyped = verdict == "other type"
            if verdict == "wrong" or (verdict != "idle" and alike(self.carried[slot], plan) == retyped):
                return self._expect_nothing()
        for slot in expected:
            if verdicts[slot] == "idle":
                del self.carried[slot]
                self.expected.discard(slot)
                self.unsettled = True
        if expected and not self.ordered:
            self._order()
        return None

    def _order(self) -> None:
        """Put what the first trial has found in the order in which slots are compared."""
        self.ordered = True
        slots = ((n, key) for n, copied in enumerate(self.entry.copies) for key in keys_of(copied))
        ordered = {slot: self.carried[slot] for slot in slots if slot in self.carried}
        self.carried = {slot: self.carried[slot] for slot in self.certain} | ordered

    def settled(self, loop: Loop) -> bool:
        """Compare the exits with the head; slots that differ are carried in the next trial."""
        self.unsettled = False
        expected = {slot: self.carried[slot] for slot in self.expected}
        verdicts: dict[Slot, str] = {}
        for number, container in enumerate(self.entry.containers):
            head_number = self.head.number(container)
            if head_number is None:  # no longer referenced
                continue
            exits = [contents[head_number] for contents in loop.states]
            self._check_structure(number, exits)
            for key, head in _entries(self.head.copies[head_number]):
                afters = [self._at(after, key) for after in exits]
                slot = number, key
                if slot in expected:
                    verdicts[slot] = self._verdict(slot, head, afters, loop.states)
                exists = (number, key) in self.carried and structure(head) is not None
                if exists or any(after is not head for after in afters):
                    self._compare(slot, head, afters, loop.states)
        self._learn(expected, verdicts)
        if self.builder.checks and not self.unsettled:
            self._follow(loop)
        return not self.unsettled

    def _follow(self, loop: Loop) -> None:
        """Let slots follow, in the next trial, the products and addresses that the body gives them."""
        for slot in self.carried:
            copies = [pair for contents in loop.states for pair in self._copies(contents, [slot])]
            later = [value for head, value in copies if not self.builder.follows(head, value)]
            if later:
                self.later[slot] = [*self.later.get(slot, ()), *later]
                self.unsettled = True

    def _compare(self, slot: Slot, head: Any, afters: list[Any], states: list[Contents]) -> None:
        entry = self.entry.resolved(self.entry.copies[slot[0]][slot[1]], self.entry.copies)
        plan = self._plan(
            entry,
            self.head.resolved(head, self.head.copies),
            [self.head.resolved(a, c) for a, c in zip(afters, states, strict=True)],
        )
        self.carried[slot] = plan

    def _at(self, container: Container, key: Any) -> Any:
        if isinstance(container, dict) and key not in container:
            return Undefined(f"a path of {self.where} deletes it")
        return container[key]

    def _check_structure(self, number: int, exits: list[Container]) -> None:
        container = self.entry.containers[number]
        if any(container is frame.variables for frame in self.frames):
            return
        before = self.entry.copies[number]
        for after in exits:
            if structure(after) != structure(before):
                raise OperandError(
                    f"{name_of(self.frames, container)} is {describe(before)} before {self.where} "
                    f"and {describe(after)} after a round: its items cannot come and go at run time"
                )

    def _plan(self, entry: Any, head: Any, afters: list[Any]) -> Any:
        """How to carry a slot: a tree of Carry, Undefined and unchanged values."""
        changed = [after for after in afters if not same(after, head)]
        if not changed or isinstance(head, Undefined):
            return self._kept(entry, head)
        changed = [after for after in changed if after is not UNSET] or changed
        entry, head = shaped(entry, changed[0]), shaped(head, changed[0])
        items = columns([entry, head, *[shaped(after, head) for after in afters]])
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
        entry = shaped(entry, head)
        items = columns([entry, head])
        if items is not None:
            return rebuilt(entry, [self._kept(*pair) for pair in items])
        if entry is UNSET:
            return _carried(head) if isinstance(head, RuntimeValue) else head
        return Carry(_carried_type(head) if is_number(entry) else None)

    def _leaf(self, entry: Any, head: Any, afters: list[Any]) -> Any:
        for value in (entry, *afters):
            if isinstance(value, Undefined):
                return value
        if isinstance(entry, RegisterGroup):
            wanted = entry.value.type
            if all(isinstance(a, RegisterGroup) and a.value.type == wanted for a in afters):
                return Carry()
        elif isinstance(entry, Scalar):
            if all(_fits(after, entry.dtype) for after in afters):
                return Carry()
        elif entry is UNSET and (plan := self._from_nothing(head, afters)) is not None:
            return plan
        elif is_number(entry):
            dtype = holding_type([head, *afters])
            if dtype is not None:
                return Carry(dtype)
        after = afters[0]
        hint = "only numbers, predicates, fragments and pointers can change"
        if isinstance(entry, Scalar) and is_simple(after):
            hint = f"convert it with tc.{entry.dtype}(...), or start with another type"
        return Undefined(
            f"it is {describe(entry)} before {self.where} and {describe(after)} after a round; {hint}"
        )

    def _from_nothing(self, head: Any, afters: list[Any]) -> Any:
        """How to carry a slot that was UNSET: its later value, or a register."""
        values = [v for v in (head, *afters) if v is not UNSET]
        if all(same(v, values[0]) and not isinstance(v, RuntimeValue) for v in values):
            return values[0]
        if isinstance(values[0], RegisterGroup):
            alike = all(isinstance(v, RegisterGroup) and v.value.type == values[0].value.type for v in values)
            return Carry(like=values[0]) if alike else None
        dtype = holding_type(values)
        return None if dtype is None else Carry(dtype)

    # the copies

    def settle_test(self, loop: Loop) -> None:
        """At the end of the test of a loop, write its changes to the carried registers."""
        contents = self.head.frozen()
        loop.tests.append(contents)
        variables = self.frames[-1].variables
        head = self.head.copies[self._own(self.head)]
        new = {name: value for name, value in variables.items() if name not in head}
        for name, value in new.items():
            if isinstance(value, RuntimeValue):  # it may be one of the registers written below
                new[name] = new_variable(self.builder, value)
        write(self.builder, self._copies(contents))
        self.head.restore()
        variables.update(new)

    def write_back(self, loop: Loop) -> None:
        """Write the carried registers at every exit."""
        self.born = self._born(loop)
        for way in loop.exits:
            copies = self._copies(way.contents)
            if way.leaves:
                values = {} if way.returns else way.contents[self._own(self.head)]
                born = [(n, v) for n, v in self.born.items() if isinstance(v, RuntimeValue)]
                copies += [(variable, values.get(name, UNSET)) for name, variable in born]
            tail = Block()
            with self.builder.inside(tail):
                write(self.builder, copies)
            position = way.block.nodes.index(way.before) if way.before else len(way.block)
            way.block.nodes[position:position] = tail.nodes

    def _copies(self, contents: Contents, slots: Iterable[Slot] = ()) -> Copies:
        """The copies to the registers of slots, or of all, where the containers hold `contents`."""
        copies: Copies = []
        for number, key in slots or self.carried:
            head_number = self.head.number(self.entry.containers[number])
            if head_number is None:
                continue
            head = self.head.resolved(self.head.copies[head_number][key], self.head.copies)
            after = self.head.resolved(self._at(contents[head_number], key), contents)
            self._collect(head, after, copies)
        return copies

    def _collect(self, head: Any, after: Any, copies: Copies) -> None:
        if isinstance(head, Undefined) or isinstance(after, Undefined) or same(head, after):
            return
        items = columns([head, shaped(after, head)])
        if items is not None:
            for head_item, item in items:
                self._collect(head_item, item, copies)
        elif isinstance(head, RuntimeValue):
            copies.append((head, after))

    def _born(self, loop: Loop) -> dict[str, Any]:
        """The values or registers of names that an endless loop always binds before a break."""
        going = [way for way in loop.exits if way.leaves and not way.returns]
        ways = [way.contents[self._own(self.head)] for way in going]
        born: dict[str, Any] = {}
        if not loop.endless or not ways:
            return born
        head = self.head.copies[self._own(self.head)]
        for name in ways[0]:
            if not isinstance(head.get(name, MISSING), Undefined):
                continue
            values = [way.get(name, MISSING) for way in ways]
            if all(same(values[0], v) and not isinstance(v, RuntimeValue) for v in values):
                born[name] = values[0]
            elif (variable := register_for(self.builder, values)) is not None:
                born[name] = variable
        return born

    # after the loop

    def leave(self, loop: Loop) -> None:
        """After the loop, variables are their registers; names first bound inside are undefined."""
        self.head.restore()
        for frame in self.frames:
            head_number = self.head.number(frame.variables) or 0
            for name in dict.fromkeys(n for way in loop.exits for n in way.contents[head_number]):
                if name not in frame.variables:
                    frame.variables[name] = Undefined(
                        f"it is assigned only inside {self.where}, which may not run"
                    )
        self.frames[-1].variables.update(self.born)


def _entries(container: Container) -> list[tuple[Any, Any]]:
    return list(container.items() if isinstance(container, dict) else enumerate(container))


def _carried(head: RuntimeValue) -> Carry:
    """How to carry a register in a slot that was UNSET."""
    return Carry(like=head) if isinstance(head, RegisterGroup) else Carry(_carried_type(head))


def _carried_type(head: Any) -> DType | None:
    return head.dtype if isinstance(head, Scalar) else None


def _fits(value: Any, dtype: DType) -> bool:
    """True if a register of `dtype` can hold the value without loss."""
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
