"""Statements: run by Python where they are known, turned into control flow where not."""

from __future__ import annotations

import ast
import inspect
import operator
from typing import Any

from tensorcore_dsl import dtypes, errors
from tensorcore_dsl.errors import CompileError, OperandError, TensorCoreError, UnsupportedSyntax
from tensorcore_dsl.frontend import arithmetic
from tensorcore_dsl.frontend.builder import Builder, constant
from tensorcore_dsl.frontend.control import Exit, Loop, run_branches, run_loop
from tensorcore_dsl.frontend.environment import Frame, Undefined, capture
from tensorcore_dsl.frontend.expressions import Expressions, LocalFunction
from tensorcore_dsl.frontend.ranges import RuntimeRange
from tensorcore_dsl.frontend.source import (
    Source, always_returns, assigned_names, contains_return, require_source,
)
from tensorcore_dsl.frontend.values import Group, Runtime, Scalar
from tensorcore_dsl.ir.nodes import Block, For, Jump, Type, While

INPLACE = {
    ast.Add: operator.iadd, ast.Sub: operator.isub, ast.Mult: operator.imul, ast.Div: operator.itruediv,
    ast.FloorDiv: operator.ifloordiv, ast.Mod: operator.imod, ast.LShift: operator.ilshift,
    ast.RShift: operator.irshift, ast.BitAnd: operator.iand, ast.BitOr: operator.ior,
    ast.BitXor: operator.ixor, ast.Pow: operator.ipow,
}  # fmt: skip

RESULT = "return value"
MAX_UNROLL = 4096
MAX_DEPTH = 64
STATIC = "static loop"


class Evaluator(Expressions):
    """Evaluates a kernel's function into its builder."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.frames: list[Frame] = []
        self.loops: list[Any] = []

    # -- functions -----------------------------------------------------------------------------

    def run(self, function: Any, variables: dict[str, Any]) -> None:
        """Evaluate the body of the kernel `function`."""
        source = require_source(function)
        self.frames.append(self._frame(function, source, variables, None))
        self.frame.is_kernel = True
        assert isinstance(source.tree, ast.FunctionDef)
        self.block(source.tree.body)
        self.frames.pop()

    def _frame(self, function: Any, source: Source, variables: dict[str, Any], caller: Any) -> Frame:
        if isinstance(function, LocalFunction):
            enclosing: Any = function.frame
            names = function.frame.globals
        else:
            cells = function.__closure__ or ()
            enclosing = {}
            for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
                try:
                    enclosing[name] = cell.cell_contents
                except ValueError:
                    continue
            names = function.__globals__
        frame = Frame(
            function.__name__, source.filename, source.line_offset, variables, enclosing, names
        )
        frame.source, frame.caller = source, caller  # type: ignore[attr-defined]
        return frame

    def inline(self, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        if len(self.frames) >= MAX_DEPTH:
            raise CompileError(f"calls nest deeper than {MAX_DEPTH}: recursion must end at compile time")
        local = isinstance(function, LocalFunction)
        source = function.source if local else require_source(function)
        tree = function.tree if local else source.tree
        variables = bind(function, tree, args, keywords)
        outer_loops, self.loops = self.loops, []
        self.frames.append(self._frame(function, source, variables, errors.current_loc()))
        try:
            if isinstance(tree, ast.Lambda):
                return self.eval(tree.body)
            status = self.block(tree.body)
            if status == "jump":
                return None
            return self.frame.variables.get(RESULT)
        finally:
            self.frames.pop()
            self.loops = outer_loops

    # -- blocks --------------------------------------------------------------------------------

    def block(self, statements: list[ast.stmt]) -> str | None:
        """Run statements; the result says how they ended.

        None: they ran through; "jump": a run-time break, continue or return was emitted;
        "break", "continue": of an unrolled loop; "return": of an inlined function.
        """
        for place, statement in enumerate(statements):
            if self._returns_at_run_time(statement):
                status = self._returning_if(statement, statements[place + 1 :])  # type: ignore[arg-type]
                if status != "static":
                    return status
            status = self.statement(statement)
            if status is not None:
                return status
        return None

    def statement(self, node: ast.stmt) -> str | None:
        method = getattr(self, f"run_{type(node).__name__}", None)
        token = self.enter(node)
        try:
            if method is None:
                raise UnsupportedSyntax(
                    f"{type(node).__name__} statements are not part of the kernel language"
                )
            return method(node)  # type: ignore[no-any-return]
        except TensorCoreError:
            raise
        except Exception as error:
            raise CompileError(f"{type(error).__name__}: {error}") from error
        finally:
            errors._current.reset(token)

    # -- simple statements -----------------------------------------------------------------------

    def run_Expr(self, node: ast.Expr) -> None:
        self.eval(node.value)

    def run_Pass(self, node: ast.Pass) -> None:
        pass

    def run_Assign(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        for target in node.targets:
            self.assign(target, value)

    def run_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            return
        value = self.eval(node.value)
        wanted = self.eval(node.annotation)
        if isinstance(wanted, dtypes.DType) and (isinstance(value, (int, float, Scalar))):
            value = self.builder.convert(value, wanted)
        self.assign(node.target, value)

    def run_AugAssign(self, node: ast.AugAssign) -> None:
        load: Any = ast.copy_location(
            type(node.target)(**{f: getattr(node.target, f) for f in node.target._fields if f != "ctx"}, ctx=ast.Load()),
            node.target,
        )
        before, operand = self.eval(load), self.eval(node.value)
        if isinstance(before, Runtime) or isinstance(operand, Runtime):
            after = self.binary(type(node.op), before, operand)
        else:
            after = INPLACE[type(node.op)](before, operand)
        self.assign(node.target, after)

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.frame.variables[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Subscript):
            self.eval(target.value)[self.eval(target.slice)] = value
        elif isinstance(target, ast.Attribute):
            setattr(self.eval(target.value), target.attr, value)
        else:
            raise UnsupportedSyntax(f"cannot assign to {type(target).__name__}")

    def _unpack(self, targets: list[ast.expr], value: Any) -> None:
        if isinstance(value, Scalar):
            raise OperandError(f"a run-time scalar cannot be unpacked into {len(targets)} names")
        values = list(value)
        starred = [i for i, t in enumerate(targets) if isinstance(t, ast.Starred)]
        if starred:
            place = starred[0]
            extra = len(values) - len(targets) + 1
            values = [*values[:place], values[place : place + extra], *values[place + extra :]]
            targets = [t.value if isinstance(t, ast.Starred) else t for t in targets]
        if len(values) != len(targets):
            raise CompileError(f"{len(values)} values for {len(targets)} names")
        for target, item in zip(targets, values, strict=True):
            self.assign(target, item)

    def run_Assert(self, node: ast.Assert) -> None:
        condition = self.eval(node.test)
        if isinstance(condition, Runtime):
            raise OperandError(
                "assert checks values known at compile time; at run time use `if` with print or tc.trap()"
            )
        if not condition:
            text = self.eval(node.msg) if node.msg else ast.unparse(node.test)
            raise CompileError(f"assertion failed: {text}")

    def run_Raise(self, node: ast.Raise) -> None:
        error = self.eval(node.exc) if node.exc else None
        if isinstance(error, TensorCoreError):
            raise error
        raise CompileError(f"{type(error).__name__}: {error}" if error else "raise")

    def run_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.frame.variables[node.name] = self.local_function(node)

    def run_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if not isinstance(target, ast.Name):
                raise UnsupportedSyntax("del takes names")
            self.frame.variables.pop(target.id, None)

    def run_With(self, node: ast.With) -> str | None:
        managers = []
        for item in node.items:
            manager = self.eval(item.context_expr)
            if not hasattr(manager, "__enter__"):
                raise CompileError(f"{type(manager).__name__} is no context manager")
            entered = manager.__enter__()
            managers.append(manager)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, entered)
        status = self.block(node.body)
        for manager in reversed(managers):
            manager.__exit__(None, None, None)
        return status

    # -- branches ------------------------------------------------------------------------------

    def run_If(self, node: ast.If) -> str | None:
        condition = arithmetic.truth(self.builder, self.eval(node.test))
        if not isinstance(condition, Scalar):
            return self.block(node.body if condition else node.orelse)
        return self._branch(condition, node.body, node.orelse)

    def _branch(self, condition: Scalar, body: list[ast.stmt], orelse: list[ast.stmt]) -> str | None:
        def side(statements: list[ast.stmt]) -> bool:
            status = self.block(statements)
            if status in ("break", "continue"):
                raise UnsupportedSyntax(
                    f"{status} under a run-time condition needs a run-time loop: use tc.range"
                )
            return status == "jump"

        ended = run_branches(
            self.builder, self.frames, condition, lambda: side(body), lambda: side(orelse)
        )
        return "jump" if ended else None

    def _returns_at_run_time(self, statement: ast.stmt) -> bool:
        inlined = not self.frame.is_kernel
        return inlined and isinstance(statement, ast.If) and contains_return(statement)

    def _returning_if(self, node: ast.If, rest: list[ast.stmt]) -> str | None:
        """An `if` with `return` in an inlined function: what follows joins the sides."""
        token = self.enter(node)
        try:
            condition = arithmetic.truth(self.builder, self.eval(node.test))
        finally:
            errors._current.reset(token)
        body, orelse = list(node.body), list(node.orelse)
        if not isinstance(condition, Scalar):
            return self.block([*(body if condition else orelse), *rest]) or "return"
        if any(loop is not STATIC for loop in self.loops) or self.loops:
            raise UnsupportedSyntax("an inlined function cannot return from inside a loop at run time")
        sides = [part if always_returns(part) else [*part, *rest] for part in (body, orelse)]

        def side(statements: list[ast.stmt]) -> bool:
            self.frame.variables[RESULT] = None
            return self.block(statements) == "jump"

        ended = run_branches(
            self.builder, self.frames, condition, lambda: side(sides[0]), lambda: side(sides[1])
        )
        return "jump" if ended else "return"

    # -- loops ---------------------------------------------------------------------------------

    def run_For(self, node: ast.For) -> str | None:
        items = self.eval(node.iter)
        if isinstance(items, RuntimeRange):
            self._runtime_for(node, items)
            return None
        return self._unrolled(node, items)

    def _unrolled(self, node: ast.For, items: Any) -> str | None:
        items = list(self.static_items(items))
        if len(items) > MAX_UNROLL:
            raise CompileError(
                f"this loop would be unrolled {len(items)} times; use tc.range for a run-time loop"
            )
        self.loops.append(STATIC)
        try:
            for item in items:
                self.assign(node.target, item)
                status = self.block(node.body)
                if status == "break":
                    return None
                if status in ("jump", "return"):
                    return status
        finally:
            self.loops.pop()
        return self.block(node.orelse)

    def run_Break(self, node: ast.Break) -> str:
        return self._leave("break")

    def run_Continue(self, node: ast.Continue) -> str:
        return self._leave("continue")

    def _leave(self, kind: str) -> str:
        loop = self.loops[-1]
        if loop is STATIC:
            return kind
        jump = Jump(kind)
        self.builder.append(jump)
        loop.exits.append(Exit(capture(self.frames[: loop.depth]), self.builder.block, jump))
        return "jump"

    def run_Return(self, node: ast.Return) -> str:
        if self.frame.is_kernel:
            if node.value is not None and self.eval(node.value) is not None:
                raise UnsupportedSyntax("a kernel returns nothing: store results to an array")
            self.builder.append(Jump("return"))
            return "jump"
        if any(loop is not STATIC for loop in self.loops):
            raise UnsupportedSyntax("an inlined function cannot return from inside a run-time loop")
        self.frame.variables[RESULT] = self.eval(node.value) if node.value else None
        return "return"

    def _runtime_for(self, node: ast.For, bounds: RuntimeRange) -> None:
        if node.orelse:
            raise UnsupportedSyntax("a run-time loop has no else")
        step = bounds.step
        if not isinstance(step, Runtime) and step < 0:
            self._downward_for(node, bounds)
            return
        dtype = _bound_type(bounds)
        start, stop, by = (_bound(self.builder, b, dtype) for b in (bounds.start, bounds.stop, step))

        def trial(loop: Loop) -> None:
            index = self.builder.new_value(Type(dtype))
            loop_node = For(index, start, stop, by, Block())
            self.builder.append(loop_node)
            with self.builder.inside(loop_node.body):
                self.assign(node.target, Scalar(index, dtype))
                self._loop_body(loop, node.body)

        names = assigned_names(node.body) - _target_names(node.target)
        run_loop(self.builder, self.frames, names, trial)
        for name in _target_names(node.target):
            self.frame.variables[name] = Undefined("it counts a run-time loop that has ended")

    def _downward_for(self, node: ast.For, bounds: RuntimeRange) -> None:
        down = -bounds.step
        count = (bounds.start - bounds.stop + down - 1) // down
        inner = RuntimeRange(count if isinstance(count, Scalar) else max(count, 0))
        dtype = _bound_type(inner)
        stop = _bound(self.builder, inner.stop, dtype)

        def trial(loop: Loop) -> None:
            index = self.builder.new_value(Type(dtype))
            loop_node = For(index, constant(0, dtype), stop, constant(1, dtype), Block())
            self.builder.append(loop_node)
            with self.builder.inside(loop_node.body):
                self.assign(node.target, bounds.start - Scalar(index, dtype) * down)
                self._loop_body(loop, node.body)

        names = assigned_names(node.body) - _target_names(node.target)
        run_loop(self.builder, self.frames, names, trial)

    def _loop_body(self, loop: Loop, body: list[ast.stmt]) -> None:
        self.loops.append(loop)
        try:
            status = self.block(body)
        finally:
            self.loops.pop()
        if status is None:
            loop.exits.append(Exit(capture(self.frames[: loop.depth]), self.builder.block))

    def run_While(self, node: ast.While) -> str | None:
        if node.orelse:
            raise UnsupportedSyntax("a run-time loop has no else")

        def trial(loop: Loop) -> None:
            loop_node = While(Block(), constant(True, dtypes.pred), Block())
            self.builder.append(loop_node)
            with self.builder.inside(loop_node.test):
                condition = arithmetic.truth(self.builder, self.eval(node.test))
            if isinstance(condition, Scalar):
                loop_node.condition = condition.value
            elif not condition:
                raise CompileError("the condition of this loop is false at compile time")
            with self.builder.inside(loop_node.body):
                self._loop_body(loop, node.body)

        if self._static_while(node):
            return None
        run_loop(self.builder, self.frames, assigned_names(node.body), trial)
        return None

    def _static_while(self, node: ast.While) -> bool:
        """`while` whose condition is false at once at compile time."""
        mark = self.builder.mark()
        condition = arithmetic.truth(self.builder, self.eval(node.test))
        self.builder.undo(mark)
        return not isinstance(condition, Scalar) and not condition


def _target_names(target: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}


def _bound_type(bounds: RuntimeRange) -> dtypes.DType:
    known = [b.dtype for b in (bounds.start, bounds.stop, bounds.step) if isinstance(b, Scalar)]
    dtype = dtypes.s32
    for other in known:
        dtype = arithmetic.promote_types(dtype if dtype.bits > 32 else other, other)
    return dtype


def _bound(builder: Builder, bound: Any, dtype: dtypes.DType) -> Any:
    if isinstance(bound, Scalar):
        return arithmetic.convert(builder, bound, dtype).value
    return constant(bound, dtype)


def bind(function: Any, tree: Any, args: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Parameters to values, as Python binds them."""
    if not isinstance(function, LocalFunction):
        bound = inspect.signature(function).bind(*args, **keywords)
        bound.apply_defaults()
        return dict(bound.arguments)
    empty = inspect.Parameter.empty
    kinds = inspect.Parameter
    parameters = [
        kinds(a.arg, kinds.POSITIONAL_OR_KEYWORD, default=function.defaults.get(a.arg, empty))
        for a in (*tree.args.posonlyargs, *tree.args.args)
    ]
    if tree.args.vararg:
        parameters.append(kinds(tree.args.vararg.arg, kinds.VAR_POSITIONAL))
    parameters += [
        kinds(a.arg, kinds.KEYWORD_ONLY, default=function.defaults.get(a.arg, empty))
        for a in tree.args.kwonlyargs
    ]
    if tree.args.kwarg:
        parameters.append(kinds(tree.args.kwarg.arg, kinds.VAR_KEYWORD))
    bound = inspect.Signature(parameters).bind(*args, **keywords)
    bound.apply_defaults()
    return dict(bound.arguments)


__all__ = ["Evaluator", "Group"]
