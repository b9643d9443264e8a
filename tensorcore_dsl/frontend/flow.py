"""Control flow: evaluate it if its conditions are known, else emit it.

If control leaves an inlined function or an unrolled loop under a run-time condition, a flag is set.
The flag is a variable of the function, which branches join and loops carry. Threads whose flag is
not set execute the statements that follow.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import CompileError, OperandError, PerformanceWarning, UnsupportedSyntax
from tensorcore_dsl.frontend.calls import RESULT, RETURNED, UNTRACKED, Calls
from tensorcore_dsl.frontend.control import run_branches
from tensorcore_dsl.frontend.debug_build import changed_names, scopes_of, target_names
from tensorcore_dsl.frontend.environment import Snapshot
from tensorcore_dsl.frontend.loop_plans import Plans
from tensorcore_dsl.frontend.loops import Loop, run_loop
from tensorcore_dsl.ir.nodes import Block, Const, For, Jump, Mark, Type, While
from tensorcore_dsl.lang.ranges import RuntimeRange
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.values import NeedsConstant, RuntimeValue, Scalar, Undefined
from tensorcore_dsl.values.variables import new_variable

from tensorcore_dsl.frontend.source import (  # isort: skip
    always_exits,
    assigned_names,
    exits_of,
    may_change_variables,
)

EXITS = ("continue", "break", "return")
MAX_UNROLL = 4096  # iterations of a `for` over compile-time values
WARN_UNROLL = 1024  # copies of one statement, whose kernel took 1.3 s to compile for emulation
MAX_WHILE = 128  # compile-time iterations of a `while`; a longer one becomes a run-time loop

_COMPARED = (ast.MatchValue, ast.MatchSingleton, ast.MatchClass)
UNCHANGING = frozenset(
    (
        "copy",
        "count",
        "index",
        "union",
        "difference",
        "intersection",
        "symmetric_difference",
        "issubset",
        "issuperset",
        "isdisjoint",
        "hex",
        "decode",
        "tobytes",
        "tolist",
    )
)

# How statements ended, on all paths. None: control reaches their end, or flags say where not.
# "jump": a jump of the kernel was emitted. "break", "continue", "return": at compile time.
Status = str | None
Rest = Callable[[], Status]


@dataclass(frozen=True)
class Unrolled:
    """A loop unrolled at compile time.

    copies: of its body, multiplied by the copies of enclosing loops. `tc.static_range` counts as 1.
    """

    copies: int = 1


class Flow(Calls):
    """Evaluates blocks, branches and loops."""

    def __init__(self) -> None:
        super().__init__()
        self.loops: list[Loop | Unrolled] = []  # of the current function
        self.plans: dict[ast.For | ast.While, Plans] = {}  # of the last evaluation of a loop
        self.warned: set[ast.For] = set()  # loops with many copies
        self.snapshots: list[Snapshot] = []  # before the run-time branches and loops around here

    # -- blocks --------------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt]) -> Status:
        """Evaluate statements; the result says how they ended."""
        for position, statement in enumerate(statements):
            self.mark(statement, "line")
            following = statements[position + 1 :]
            leaves = self._leaves(statement)
            if (
                leaves
                and isinstance(statement, ast.If)
                and (always_exits(statement.body) or always_exits(statement.orelse))
            ):
                return self.guarded(statement, partial(self._exiting_if, following=following))  # type: ignore[no-any-return]
            status = self.statement(statement)
            if self.builder.scopes is not None:
                self.assigned(statement, changed_names(statement))
            if status is not None:
                return status
            if leaves:
                status = self._going_on(partial(self.block, following))
                if status != "everywhere":
                    return status
        return None

    def mark(self, node: ast.AST, kind: str, names: frozenset[str] = frozenset()) -> None:
        """Add a point at which the emulator may stop; only debug builds have any."""
        if self.builder.scopes is not None:
            self.guarded(node, lambda _: self.builder.append(self._mark(kind, names)))

    def assigned(self, node: ast.AST, names: frozenset[str]) -> None:
        """Mark that the variables `names` have just been assigned."""
        if names:
            self.mark(node, "assigned", names)

    def _mark(self, kind: str, names: frozenset[str]) -> Mark:
        return Mark(kind, scopes_of(self.frames), names)

    def statement(self, node: ast.stmt) -> Status:
        """Evaluate one statement."""
        return self.guarded(node, self.method("run", node))  # type: ignore[no-any-return]

    # -- flags ---------------------------------------------------------------------------------

    def _leaves(self, statement: ast.stmt) -> bool:
        """True if the statement may leave an inlined function or an unrolled loop."""
        exits = exits_of(statement)
        if "return" in exits and not self.frame.is_kernel:
            return True
        unrolled = bool(self.loops) and isinstance(self.loops[-1], Unrolled)
        return unrolled and bool(exits & {"break", "continue"})

    def _flag(self, kind: str) -> str:
        """The flag of "break", "continue" or "return": the name of its variable."""
        return RETURNED if kind == "return" else f"<{kind} {len(self.loops)}>"

    def _going_on(self, following: Rest) -> Status:
        """Evaluate the rest where no flag is set; "everywhere": none can be, the caller goes on."""
        variables = self.frame.variables
        flags = {k: variables.get(self._flag(k), False) for k in EXITS}
        for kind, flag in flags.items():
            if flag is True:
                return kind
        pending = [self._flag(kind) for kind, flag in flags.items() if isinstance(flag, Scalar)]
        if not pending:
            return "everywhere"
        either = partial(arithmetic.logic, self.builder, "or")
        gone = reduce(either, [variables[name] for name in pending])

        def go_on() -> Status:
            for name in pending:
                self.frame.variables[name] = False
            return following()

        def stop() -> Status:
            if len(pending) == 1:
                self.frame.variables[pending[0]] = True
            if self.loops and isinstance(self.loops[-1], Loop):
                return self._leave_by("break", returns=True)
            return None

        return self._branches(gone, stop, go_on)

    def check_tracked(self, container: Any, method: str = "") -> None:
        """OperandError if run-time control flow changes a container that it does not follow.

        It follows no sets, deques and iterators, unless the branch or loop has made them.
        """
        if not isinstance(container, UNTRACKED) or method in UNCHANGING:
            return
        if any(before.holds(container) for before in self.snapshots):
            raise OperandError(
                f"{describe(container)} cannot be changed under a run-time condition or in a "
                "run-time loop; lists, dicts and dataclasses can"
            )

    # -- branches ------------------------------------------------------------------------------

    def run_If(self, node: ast.If) -> Status:
        condition = arithmetic.truth(self.builder, self.eval(node.test))
        if not isinstance(condition, Scalar):
            return self.block(node.body if condition else node.orelse)
        return self._branches(condition, partial(self.block, node.body), partial(self.block, node.orelse))

    def _exiting_if(self, node: ast.If, following: Sequence[ast.stmt]) -> Status:
        """An `if` with a side that always exits: the statements after it go to the other side."""
        condition = arithmetic.truth(self.builder, self.eval(node.test))
        sides = [
            partial(self.block, side if always_exits(side) else [*side, *following])
            for side in (node.body, node.orelse)
        ]
        if not isinstance(condition, Scalar):
            return sides[0 if condition else 1]()
        status = self._branches(condition, *sides)
        return status or self._status()

    def _status(self) -> Status:
        """How control has left, if it has on all paths."""
        for kind in EXITS:
            if self.frame.variables.get(self._flag(kind)) is True:
                return kind
        return None

    def _branches(self, condition: Scalar, then: Rest, orelse: Rest) -> Status:
        frame = self.frame
        frame.conditions += 1
        self.snapshots.append(Snapshot(self.frames))
        try:
            ended, _ = run_branches(
                self.builder,
                self.frames,
                self.snapshots[-1],
                condition,
                lambda: (then() == "jump", None),
                lambda: (orelse() == "jump", None),
            )
        finally:
            frame.conditions -= 1
            self.snapshots.pop()
        return "jump" if ended else self._status()

    def branch(self, condition: Scalar, then: Callable[[], None], orelse: Callable[[], None]) -> None:
        """A run-time `if` whose sides are two functions; neither exits the current function."""
        self._branches(condition, then, orelse)

    def run_Match(self, node: ast.Match) -> Status:
        """The first case that matches, as Python compares the subject, which is known."""
        subject = self.eval(node.subject)
        for case in node.cases:
            captured = self.guarded(case.pattern, partial(self._captured, subject))
            if captured is None:
                continue
            for name, value in captured.items():
                self.assign(ast.Name(name), value)
            self.assigned(case.pattern, frozenset(captured))
            if case.guard is None or self._known(case.guard, self.eval(case.guard)):
                return self.block(case.body)
        return None

    def _captured(self, subject: Any, pattern: ast.pattern) -> dict[str, Any] | None:
        """Values that the names of a pattern capture; None if it does not match.

        A run-time value is only told from None.
        """
        for part in ast.walk(pattern):
            if isinstance(part, _COMPARED) and getattr(part, "value", part) is not None:
                self._known(part, subject)
        tree: Any = ast.parse("def _match(_match):\n match _match:\n  case _:\n   return locals()")
        tree.body[0].body[0].cases[0].pattern = pattern
        names = {n.id: self.eval(n) for n in ast.walk(pattern) if isinstance(n, ast.Name)}
        exec(compile(tree, "<match>", "exec"), names)
        captured: dict[str, Any] | None
        try:
            captured = names["_match"](subject)
        except NeedsConstant as error:
            captured = self._known(pattern, error.value)
        return captured and {name: captured[name] for name in captured if name != "_match"}

    def _known(self, node: ast.AST, value: Any) -> Any:
        """The value, in which a `match` sees only what is known at compile time."""
        if isinstance(value, RuntimeValue):
            raise OperandError(
                f"`match` asks at compile time, and this compares {describe(value)}: use `if` and "
                "`elif`, which ask at run time too",
                self.locate(node),
            )
        return value

    # -- exits ---------------------------------------------------------------------------------

    def run_Break(self, node: ast.Break) -> Status:
        return self._leave("break")

    def run_Continue(self, node: ast.Continue) -> Status:
        return self._leave("continue")

    def _leave(self, kind: str) -> Status:
        if isinstance(self.loops[-1], Loop):
            return self._leave_by(kind)
        self.frame.variables[self._flag(kind)] = True
        return kind

    def _leave_by(self, kind: str, returns: bool = False) -> Status:
        """Emit a jump of the innermost loop, which is a run-time loop."""
        loop = self.loops[-1]
        assert isinstance(loop, Loop)
        jump = Jump(kind)
        self.builder.append(jump)
        loop.leave(self.builder.block, jump, kind == "break", returns)
        return "jump"

    def run_Return(self, node: ast.Return) -> Status:
        value = self.eval(node.value) if node.value else None
        if self.frame.is_kernel:
            if value is not None:
                raise UnsupportedSyntax("a kernel returns nothing: store results to an array")
            self.builder.append(Jump("return"))
            return "jump"
        self.frame.variables[RESULT] = value
        self.frame.variables[RETURNED] = True
        if self.loops and isinstance(self.loops[-1], Loop):
            return self._leave_by("break", returns=True)
        return "return"

    # -- loops ---------------------------------------------------------------------------------

    def run_For(self, node: ast.For) -> Status:
        items = self.eval(node.iter)
        if isinstance(items, RuntimeRange):
            self._runtime_for(node, items)
            return None
        self.check_advance(items)
        rounds = list(islice(items, MAX_UNROLL + 1))
        if len(rounds) > MAX_UNROLL:
            raise CompileError(
                f"this loop would be unrolled more than {MAX_UNROLL} times; use tc.range for a run-time loop"
            )
        around = [loop.copies for loop in self.loops if isinstance(loop, Unrolled)]
        copies = around[-1] if around else 1
        if "static_range" not in (text := ast.unparse(node.iter)):
            copies *= len(rounds)
            if copies > WARN_UNROLL and node not in self.warned:
                self.warned.add(node)
                self._warn_of_unrolling(copies, text)
        self.loops.append(Unrolled(copies))
        try:
            flag = self._flag("break")
            self.frame.variables[flag] = False
            status = self._unrolled(node, rounds, 0)
            self.frame.variables.pop(flag, None)
        finally:
            self.loops.pop()
        return status if status in ("jump", "return") else None

    def _warn_of_unrolling(self, copies: int, items: str) -> None:
        if loc := self.locate():
            warnings.warn_explicit(
                f"this loop over {items} is unrolled when the kernel is compiled: {copies} copies "
                f"of its body take seconds or minutes. tc.range(...) makes a loop that the kernel "
                "runs; tc.static_range(...) unrolls without this warning",
                PerformanceWarning,
                loc.filename,
                loc.line,
            )

    def _unrolled(self, node: ast.For, rounds: list[Any], first: int) -> Status:
        """The iterations from `first` on, each where no earlier one has left the loop."""
        for number in range(first, len(rounds)):
            flag = self._flag("continue")
            self.frame.variables[flag] = False
            self.assign(node.target, rounds[number])
            self.assigned(node, target_names(node.target))
            status = self.block(node.body)
            self.frame.variables[flag] = False
            if status in ("jump", "break", "return"):
                return status
            status = self._going_on(partial(self._unrolled, node, rounds, number + 1))
            if status != "everywhere":
                return status
        inside = self.loops.pop()
        try:
            return self.block(node.orelse)
        finally:
            self.loops.append(inside)

    def _runtime_for(self, node: ast.For, items: RuntimeRange) -> None:
        self._check_no_else(node)
        names = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        for name in names:
            self.frame.variables[name] = Undefined("it counts a run-time loop that has ended")
        dtype, bounds = items.dtype, items.bounds()
        for bound in (items.start, items.stop, items.step):
            self.builder.check_products(bound, what="a range")

        def trial(loop: Loop, settle: Callable[[Loop], None]) -> None:
            index = self.builder.new_value(Type(dtype))
            start, _, step = bounds
            self.builder.multiples[index] = min(map(self.builder.divisor_of, (start, step)))
            loop_node = For(index, *bounds, Block())
            self.builder.append(loop_node)
            with self.builder.inside(loop_node.body):
                self.assign(node.target, Scalar(index, dtype))
                self.assigned(node, target_names(node.target))
                self._loop_body(loop, node.body)

        self._run_loop(node, assigned_names(node.body) - names, trial)

    def _run_loop(
        self,
        node: ast.For | ast.While,
        assigned: frozenset[str],
        trial: Callable[[Loop, Callable[[Loop], None]], None],
    ) -> None:
        last = self.plans.get(node)
        self.plans[node] = run_loop(self.builder, self.frames, assigned, trial, last)

    def _check_no_else(self, node: ast.For | ast.While) -> None:
        if node.orelse:
            raise UnsupportedSyntax(
                "a run-time loop has no else: set a variable before `break`, and test it afterwards"
            )

    def _loop_body(self, loop: Loop, body: list[ast.stmt]) -> None:
        self.loops.append(loop)
        self.snapshots.append(loop.head)
        try:
            status = self.block(body)
            if status == "return":  # from an unrolled loop inside
                self._leave_by("break", returns=True)
        finally:
            self.loops.pop()
            self.snapshots.pop()
        if status is None:
            loop.leave(self.builder.block)

    def run_While(self, node: ast.While) -> Status:
        """A `while`: unrolled as long as its condition is known, then a run-time loop."""
        exits = frozenset().union(*map(exits_of, node.body))
        if not isinstance(node.test, ast.Constant) and exits.isdisjoint({"break", "continue"}):
            status = self._unrolled_while(node)
            if status != "goes on":
                return status
        elif isinstance(node.test, ast.Constant) and not node.test.value:
            return self.block(node.orelse)
        self._check_no_else(node)
        self._run_loop(node, assigned_names(node.body), self._while_trial(node))
        return None

    def _unrolled_while(self, node: ast.While) -> Status:
        """The iterations known at compile time; "goes on": a run-time loop must do the rest."""
        start, state = self.builder.mark(), Snapshot(self.frames)
        for _ in range(MAX_WHILE):
            mark = self.builder.mark()
            before = Snapshot(self.frames if may_change_variables(node.test) else [])
            condition = arithmetic.truth(self.builder, self.eval(node.test))
            if isinstance(condition, Scalar):
                self.builder.undo(mark)
                before.restore()
                return "goes on"
            if not condition:
                return self.block(node.orelse)
            self.loops.append(Unrolled())
            try:
                status = self.block(node.body)
            finally:
                self.loops.pop()
            if status is not None:
                return status
            if "return" in exits_of(node):
                status = self._going_on(partial(self.statement, node))
                if status != "everywhere":
                    return status
        self.builder.undo(start)
        state.restore()
        return "goes on"

    def _while_trial(self, node: ast.While) -> Callable[[Loop, Callable[[Loop], None]], None]:
        def trial(loop: Loop, settle: Callable[[Loop], None]) -> None:
            loop_node = While(Block(), Const(True, dtypes.pred), Block())
            self.builder.append(loop_node)
            with self.builder.inside(loop_node.test):
                condition = arithmetic.truth(self.builder, self.eval(node.test))
                if isinstance(condition, Scalar):
                    if may_change_variables(node.test):
                        condition = new_variable(self.builder, condition)
                    loop_node.condition = condition.value
                elif not condition:
                    loop_node.condition = Const(False, dtypes.pred)
                settle(loop)
            loop.endless = condition is True
            with self.builder.inside(loop_node.body):
                self._loop_body(loop, node.body)

        return trial
