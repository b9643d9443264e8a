"""Statements: run by Python where they are known, turned into control flow where not."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import CompileError, OperandError, TensorCoreError, UnsupportedSyntax
from tensorcore_dsl.frontend import arithmetic
from tensorcore_dsl.frontend.builder import Builder
from tensorcore_dsl.frontend.calls import RESULT, Calls, cells_of
from tensorcore_dsl.frontend.control import new_variable, run_branches
from tensorcore_dsl.frontend.environment import Frame, Snapshot, is_record, storage
from tensorcore_dsl.frontend.loops import Loop, run_loop
from tensorcore_dsl.frontend.operands import describe, is_simple
from tensorcore_dsl.frontend.ranges import RuntimeRange
from tensorcore_dsl.frontend.source import (
    Function,
    always_exits,
    assigned_names,
    exits_of,
    may_change_variables,
    require_source,
)  # fmt: skip
from tensorcore_dsl.frontend.values import Runtime, Scalar, Undefined
from tensorcore_dsl.ir.nodes import Block, Const, For, Jump, Type, While

INPLACE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.iadd, ast.Sub: operator.isub, ast.Mult: operator.imul,
    ast.Div: operator.itruediv, ast.FloorDiv: operator.ifloordiv, ast.Mod: operator.imod,
    ast.LShift: operator.ilshift, ast.RShift: operator.irshift, ast.BitAnd: operator.iand,
    ast.BitOr: operator.ior, ast.BitXor: operator.ixor, ast.Pow: operator.ipow,
    ast.MatMult: operator.imatmul,
}  # fmt: skip

MAX_UNROLL = 4096  # rounds of a `for` over something known at compile time
MAX_WHILE = 128  # rounds of a `while` known at compile time; one that goes on is a loop

# How statements ended. None: they ran through; "jump": a run-time break, continue or return was
# emitted; "break", "continue": of an unrolled loop; "return": of an inlined function.
Status = str | None


@dataclass(frozen=True)
class Unrolled:
    """A loop done at compile time. `whole`: all its rounds are one list of statements."""

    whole: bool = False


class Bind(ast.stmt):
    """Assigns a value known to the evaluator: the start of a round of an unrolled loop."""

    def __init__(self, target: ast.expr, value: Any) -> None:
        super().__init__()
        self.target, self.value = target, value
        ast.copy_location(self, target)


class Evaluator(Calls):
    """Evaluates a kernel's function into its builder."""

    def __init__(self, builder: Builder) -> None:
        super().__init__()
        self.builder = builder
        builder.locate = self.locate
        self.loops: list[Loop | Unrolled] = []

    def run(self, function: Any, variables: dict[str, Any]) -> None:
        """Evaluate the body of the kernel `function`."""
        source = require_source(function)
        if not isinstance(source.tree, ast.FunctionDef):
            raise UnsupportedSyntax("a kernel is a function with a name, not a lambda")
        frame = Frame(
            function.__name__, source, variables, cells_of(function), function.__globals__
        )
        frame.is_kernel = True
        self.frames.append(frame)
        self.block(source.tree.body)
        self.frames.pop()

    def run_body(self, tree: Function) -> None:
        outer, self.loops = self.loops, []
        try:
            if isinstance(tree, ast.Lambda):
                self.frame.variables[RESULT] = self.eval(tree.body)
            else:
                self.block(tree.body)
        finally:
            self.loops = outer

    # -- blocks --------------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt]) -> Status:
        """Run statements; the result says how they ended."""
        for place, statement in enumerate(statements):
            rest = statements[place + 1 :]
            if isinstance(statement, ast.If) and self._may_leave(statement):
                return self.guarded(statement, partial(self._leaving_if, rest=rest))  # type: ignore[no-any-return]
            if isinstance(statement, ast.For) and self._may_return(statement):
                spliced = self.guarded(statement, self._spliced)
                if spliced is not None:
                    return self.block([*spliced, *rest])
            status = self.statement(statement)
            if status is not None:
                return status
        return None

    def statement(self, node: ast.stmt) -> Status:
        """Run one statement."""
        method = self._methods.get(type(node))
        if method is None:
            method = self._methods[type(node)] = getattr(
                self, f"run_{type(node).__name__}", self.unsupported
            )
        return self.guarded(node, method)  # type: ignore[no-any-return]

    # -- simple statements -----------------------------------------------------------------------

    def run_Expr(self, node: ast.Expr) -> None:
        self.eval(node.value)

    def run_Pass(self, node: ast.Pass) -> None:
        pass

    def run_Bind(self, node: Bind) -> None:
        self.assign(node.target, node.value)

    def run_Assign(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        for target in node.targets:
            self.assign(target, value)

    def run_AnnAssign(self, node: ast.AnnAssign) -> None:
        """`x: tc.f32 = 0` converts; other annotations mean nothing, as in Python."""
        if node.value is None:
            return
        value = self.eval(node.value)
        try:
            wanted = self.eval(node.annotation)
        except TensorCoreError:
            wanted = None
        if isinstance(wanted, dtypes.DType) and is_simple(value):
            value = self.builder.convert(value, wanted)
        self.assign(node.target, value)

    def run_AugAssign(self, node: ast.AugAssign) -> None:
        target, kind = node.target, type(node.op)
        if isinstance(target, ast.Name):
            load = ast.copy_location(ast.Name(target.id, ast.Load()), target)
            value = self.binary(kind, INPLACE[kind], self.eval(load), self.eval(node.value))
            self.assign(target, value)
        elif isinstance(target, ast.Subscript):
            container, index = self.eval(target.value), self.eval(target.slice)
            self._check_changeable(target, container)
            operand = self.eval(node.value)
            container[index] = self.binary(kind, INPLACE[kind], container[index], operand)
        else:
            owner = self.eval(target.value)
            self._check_attribute(target, owner)
            operand = self.eval(node.value)
            value = self.binary(kind, INPLACE[kind], getattr(owner, target.attr), operand)
            setattr(owner, target.attr, value)

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            frame = self.frame
            if target.id in frame.nonlocals and isinstance(frame.enclosing, Frame):
                frame = frame.enclosing.owner(target.id) or frame
            frame.variables[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Subscript):
            container, index = self.eval(target.value), self.eval(target.slice)
            self._check_changeable(target, container)
            container[index] = value
        elif isinstance(target, ast.Attribute):
            owner = self.eval(target.value)
            self._check_attribute(target, owner)
            setattr(owner, target.attr, value)
        else:
            raise UnsupportedSyntax(f"cannot assign to {type(target).__name__}")

    def _check_changeable(self, target: ast.expr, container: Any) -> None:
        """Only what the kernel owns can change: control flow must see it."""
        if isinstance(container, np.ndarray):
            raise OperandError("NumPy arrays are constants in a kernel; use a list or tc.local")
        root: ast.expr = target
        while isinstance(root, (ast.Subscript, ast.Attribute)):
            root = root.value
        owned = not isinstance(root, ast.Name) or self.frame.owner(root.id) is not None
        if storage(container) is not None and not owned:
            raise OperandError(
                f"{ast.unparse(root)!r} belongs to the code around the kernel and cannot be "
                "changed by it; copy it first"
            )

    def _check_attribute(self, target: ast.Attribute, owner: Any) -> None:
        if not is_record(owner):
            raise OperandError(
                f"attributes of {describe(owner)} cannot be assigned in a kernel: only those of "
                "dataclasses (without slots) can"
            )
        self._check_changeable(target, owner)

    def _unpack(self, targets: list[ast.expr], value: Any) -> None:
        values = list(value)
        stars = [i for i, t in enumerate(targets) if isinstance(t, ast.Starred)]
        if stars and len(values) >= len(targets) - 1:
            place = stars[0]
            end = len(values) - (len(targets) - place - 1)
            values = [*values[:place], values[place:end], *values[end:]]
        if len(values) != len(targets):
            raise CompileError(f"{len(list(value))} values for {len(targets)} names")
        for target, item in zip(targets, values, strict=True):
            self.assign(target.value if isinstance(target, ast.Starred) else target, item)

    def run_Assert(self, node: ast.Assert) -> None:
        condition = self.eval(node.test)
        if isinstance(condition, Runtime):
            raise OperandError(
                "assert checks values known at compile time; at run time use `if` with print or "
                "tc.trap()"
            )
        if not condition:
            text = self.eval(node.msg) if node.msg else ast.unparse(node.test)
            raise CompileError(f"assertion failed: {text}")

    def run_Raise(self, node: ast.Raise) -> None:
        if self.frame.conditions:
            raise UnsupportedSyntax(
                "raise under a run-time condition: errors are raised while the kernel is compiled; "
                "at run time use print or tc.trap()"
            )
        error = self.eval(node.exc) if node.exc else None
        if isinstance(error, TensorCoreError):
            raise error
        name = error.__name__ if isinstance(error, type) else type(error).__name__
        text = "" if isinstance(error, type) or error is None else f": {error}"
        raise CompileError(f"{name if error is not None else 'raise'}{text}")

    def run_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.frame.variables[node.name] = self.local_function(node)

    def run_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.frame.nonlocals.update(node.names)

    def run_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                container = self.eval(target.value)
                self._check_changeable(target, container)
                del container[self.eval(target.slice)]
            elif isinstance(target, ast.Name) and target.id in self.frame.variables:
                del self.frame.variables[target.id]
            else:
                raise UnsupportedSyntax("del takes variables of the kernel, and items")

    def run_With(self, node: ast.With) -> Status:
        with ExitStack() as stack:
            for item in node.items:
                entered = stack.enter_context(self.eval(item.context_expr))
                if item.optional_vars is not None:
                    self.assign(item.optional_vars, entered)
            return self.block(node.body)

    # -- branches ------------------------------------------------------------------------------

    def run_If(self, node: ast.If) -> Status:
        condition = arithmetic.truth(self.builder, self.eval(node.test))
        if not isinstance(condition, Scalar):
            return self.block(node.body if condition else node.orelse)
        return self._branches(condition, node.body, node.orelse)

    def _branches(
        self, condition: Scalar, body: Sequence[ast.stmt], orelse: Sequence[ast.stmt]
    ) -> Status:
        def side(statements: Sequence[ast.stmt]) -> tuple[bool, Any]:
            return self.block(statements) == "jump", None

        frame = self.frame
        frame.conditions += 1
        try:
            ended, _ = run_branches(
                self.builder, self.frames, condition, lambda: side(body), lambda: side(orelse)
            )
        finally:
            frame.conditions -= 1
        return "jump" if ended else None

    def _may_return(self, statement: ast.stmt) -> bool:
        return not self.frame.is_kernel and "return" in exits_of(statement)

    def _may_leave(self, statement: ast.If) -> bool:
        """May it leave an inlined function or an unrolled loop?"""
        if self._may_return(statement):
            return True
        unrolled = bool(self.loops) and isinstance(self.loops[-1], Unrolled)
        return unrolled and bool(exits_of(statement) & {"break", "continue"})

    def _leaving_if(self, node: ast.If, rest: Sequence[ast.stmt]) -> Status:
        """An `if` by which control may leave: what follows it belongs to the sides that go on."""
        condition = arithmetic.truth(self.builder, self.eval(node.test))
        if not isinstance(condition, Scalar):
            return self.block([*(node.body if condition else node.orelse), *rest])
        kind = self._way_out(node)
        sides = [s if always_exits(s) else [*s, *rest] for s in (node.body, node.orelse)]
        if kind == "return":
            self.frame.variables[RESULT] = None
        return self._branches(condition, sides[0], sides[1]) or kind

    def _way_out(self, node: ast.If) -> str:
        """How a run-time `if` leaves; refuses what cannot be joined."""
        exits = exits_of(node)
        loop = self.loops[-1] if self.loops else None
        if self._may_return(node):
            if self.loops:
                raise UnsupportedSyntax(
                    "an inlined function cannot return from inside a loop under a run-time "
                    "condition, unless the loop is unrolled and has neither break nor continue: "
                    "set a variable instead"
                )
            return "return"
        if "break" not in exits:
            return "continue"
        if isinstance(loop, Unrolled) and loop.whole and "continue" not in exits:
            return "break"
        raise UnsupportedSyntax(
            "an unrolled loop with break under a run-time condition has neither continue nor else; "
            "use tc.range for a run-time loop"
        )

    # -- loops ---------------------------------------------------------------------------------

    def run_For(self, node: ast.For) -> Status:
        items = self.eval(node.iter)
        if isinstance(items, RuntimeRange):
            self._runtime_for(node, items)
            return None
        return self._unrolled(node, self._rounds(items))

    def _rounds(self, items: Any) -> list[Any]:
        rounds = list(islice(items, MAX_UNROLL + 1))
        if len(rounds) > MAX_UNROLL:
            raise CompileError(
                f"this loop would be unrolled more than {MAX_UNROLL} times; use tc.range for a "
                "run-time loop"
            )
        return rounds

    def _spliced(self, node: ast.For) -> list[ast.stmt] | None:
        """The rounds of a loop that may return, as statements of the block around it."""
        exits = frozenset().union(*map(exits_of, node.body))
        if exits & {"break", "continue"}:
            return None
        items = self.eval(node.iter)
        if isinstance(items, RuntimeRange):
            return None
        return [*_statements(node, self._rounds(items)), *node.orelse]

    def _unrolled(self, node: ast.For, rounds: list[Any]) -> Status:
        exits = frozenset().union(*map(exits_of, node.body))
        whole = "break" in exits and not node.orelse and exits.isdisjoint({"continue", "return"})
        self.loops.append(Unrolled(whole))
        try:
            if whole:
                status = self.block(_statements(node, rounds))
                return None if status == "break" else status
            for item in rounds:
                self.assign(node.target, item)
                status = self.block(node.body)
                if status == "break":
                    return None
                if status in ("jump", "return"):
                    return status
        finally:
            self.loops.pop()
        return self.block(node.orelse)

    def run_Break(self, node: ast.Break) -> Status:
        return self._leave("break")

    def run_Continue(self, node: ast.Continue) -> Status:
        return self._leave("continue")

    def _leave(self, kind: str) -> Status:
        loop = self.loops[-1]
        if isinstance(loop, Unrolled):
            return kind
        jump = Jump(kind)
        self.builder.append(jump)
        loop.leave(self.builder.block, jump, kind == "break")
        return "jump"

    def run_Return(self, node: ast.Return) -> Status:
        value = self.eval(node.value) if node.value else None
        if self.frame.is_kernel:
            if value is not None:
                raise UnsupportedSyntax("a kernel returns nothing: store results to an array")
            self.builder.append(Jump("return"))
            return "jump"
        if any(isinstance(loop, Loop) for loop in self.loops):
            raise UnsupportedSyntax(
                "an inlined function cannot return from inside a run-time loop: set a variable "
                "instead, and break"
            )
        self.frame.variables[RESULT] = value
        return "return"

    def _runtime_for(self, node: ast.For, items: RuntimeRange) -> None:
        self._check_no_else(node)
        names = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        for name in names:
            self.frame.variables[name] = Undefined("it counts a run-time loop that has ended")
        dtype, bounds = items.dtype, items.bounds()

        def trial(loop: Loop, settle: Callable[[Loop], None]) -> None:
            index = self.builder.new_value(Type(dtype))
            loop_node = For(index, *bounds, Block())
            self.builder.append(loop_node)
            with self.builder.inside(loop_node.body):
                self.assign(node.target, Scalar(index, dtype))
                self._loop_body(loop, node.body)

        run_loop(self.builder, self.frames, assigned_names(node.body) - names, trial)

    def _check_no_else(self, node: ast.For | ast.While) -> None:
        if node.orelse:
            raise UnsupportedSyntax("a run-time loop has no else")

    def _loop_body(self, loop: Loop, body: list[ast.stmt]) -> None:
        self.loops.append(loop)
        try:
            status = self.block(body)
        finally:
            self.loops.pop()
        if status is None:
            loop.leave(self.builder.block)

    def run_While(self, node: ast.While) -> Status:
        """Unrolled while its condition is known at compile time, else a run-time loop."""
        exits = frozenset().union(*map(exits_of, node.body))
        if not isinstance(node.test, ast.Constant) and exits.isdisjoint({"break", "continue"}):
            status = self._unrolled_while(node)
            if status != "goes on":
                return status
        elif isinstance(node.test, ast.Constant) and not node.test.value:
            return self.block(node.orelse)
        self._check_no_else(node)
        run_loop(self.builder, self.frames, assigned_names(node.body), self._while_trial(node))
        return None

    def _unrolled_while(self, node: ast.While) -> Status:
        """The rounds known at compile time; "goes on": a run-time loop does the rest."""
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


def _statements(node: ast.For, rounds: list[Any]) -> list[ast.stmt]:
    """The rounds of an unrolled loop, one after the other."""
    return [s for item in rounds for s in (Bind(node.target, item), *node.body)]
