"""Simple statements, and the complete evaluator."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import CompileError, OperandError, TensorCoreError, UnsupportedSyntax
from tensorcore_dsl.frontend.calls import RESULT, RETURNED, cells_of
from tensorcore_dsl.frontend.environment import Frame, children, is_record
from tensorcore_dsl.frontend.expressions import BINARY, check_index, is_library_function
from tensorcore_dsl.frontend.flow import Flow, Status
from tensorcore_dsl.frontend.source import Function, require_source
from tensorcore_dsl.ir.nodes import Op
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.debugging import assert_
from tensorcore_dsl.lang.mbarrier import Mbarrier, MbarrierArray, name_barriers
from tensorcore_dsl.values.builder import Builder
from tensorcore_dsl.values.operands import describe, is_simple
from tensorcore_dsl.values.values import UNSET, RegisterGroup, RuntimeValue, Undefined

INPLACE: dict[type, Callable[[Any, Any], Any]] = {
    node: getattr(operator, f"i{function.__name__.strip('_')}") for node, function in BINARY.items()
}
PRODUCTS = names.MMA, names.WMMA, names.WGMMA  # opcodes


class Evaluator(Flow):
    """Evaluates a kernel's function into its builder."""

    def __init__(self, builder: Builder) -> None:
        super().__init__()
        self.builder = builder
        builder.locate = self.locate
        builder.call, builder.branch = self.call, self.branch

    def run(self, function: Any, variables: dict[str, Any]) -> None:
        """Evaluate the body of the kernel `function`."""
        source = require_source(function)
        if not isinstance(source.tree, ast.FunctionDef):
            raise UnsupportedSyntax("a kernel is a function with a name, not a lambda")
        frame = Frame(function.__name__, source, variables, cells_of(function), function.__globals__)
        frame.is_kernel = True
        for name, value in variables.items():
            self._enter_leaves(value, name)
        self.frames.append(frame)
        self.assigned(source.tree, frozenset(variables))
        if self.block(source.tree.body) != "jump":
            self.mark(source.tree.body[-1], "end")
        self.frames.pop()

    def _enter_leaves(self, value: Any, name: str) -> None:
        """Note the objects in a Const argument, whose containers are copies of the kernel's own."""
        items = children(value)
        if items is None:
            self.surroundings.enter(value, name)
        for item in items or ():
            self._enter_leaves(item, name)

    def run_body(self, tree: Function) -> None:
        variables = self.frame.variables
        self.assigned(tree, frozenset(variables) - {RESULT, RETURNED})
        outer, self.loops = self.loops, []
        try:
            if isinstance(tree, ast.Lambda):
                variables[RESULT] = self.eval(tree.body)
                return
            self.block(tree.body)
        finally:
            self.loops = outer
        returned, result = variables[RETURNED], variables[RESULT]
        if returned is False or result is UNSET:
            variables[RESULT] = None
        elif returned is not True and result is not None:
            variables[RESULT] = Undefined(
                f"it is {describe(result)} where the function returns and None where it ends"
            )

    # -- simple statements -----------------------------------------------------------------------

    def run_Expr(self, node: ast.Expr) -> None:
        value = self.eval(node.value)
        if is_library_function(value):
            text = ast.unparse(node.value)
            raise OperandError(f"{text} is a function, which this line does not call: {text}()")
        if isinstance(node.value, ast.Call) and self._is_last_product(value):
            text = ast.unparse(node.value.func)
            raise OperandError(
                f"the result of {text}(...) is dropped: the new accumulators are what it returns, "
                f"acc = {text}(...); objects that it takes stay as they are"
            )

    def _is_last_product(self, value: Any) -> bool:
        """True if a matrix product gives this value (or an item of it), and nothing uses it yet."""
        if isinstance(value, (list, tuple)):
            return any(map(self._is_last_product, value))
        last = self.builder.block.nodes[-1:]
        return (
            isinstance(value, RegisterGroup)
            and bool(last)
            and isinstance(last[0], Op)
            and value.value in last[0].results
            and last[0].instr.opcode in PRODUCTS
            and last[0].instr.results[0].name == "d"  # not a load of a fragment
        )

    def run_Pass(self, node: ast.Pass) -> None:
        pass

    def run_Assign(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        for target in node.targets:
            self.assign(target, value)

    def run_AnnAssign(self, node: ast.AnnAssign) -> None:
        """`x: tc.f32 = 0` converts the value; other annotations have no effect, as in Python."""
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
            old = self.eval(load)
            self._check_changeable(old)
            value = self.binary(kind, INPLACE[kind], old, self.eval(node.value))
            self.assign(target, value)
        elif isinstance(target, ast.Subscript):
            container, index = self.eval(target.value), self.eval(target.slice)
            self._check_changeable(container)
            check_index(container, index)
            operand = self.eval(node.value)
            value = self.binary(kind, INPLACE[kind], container[index], operand)
            self._assign_item(target, container, index, value)
        else:
            owner = self.eval(target.value)
            self._check_attribute(owner)
            operand = self.eval(node.value)
            value = self.binary(kind, INPLACE[kind], getattr(owner, target.attr), operand)
            setattr(owner, target.attr, value)

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(value, (Mbarrier, MbarrierArray)) and not isinstance(target, (ast.Tuple, ast.List)):
            name_barriers(value, ast.unparse(target), len(self.frames))
        if isinstance(target, ast.Name):
            frame = self.frame
            if target.id in frame.nonlocals and isinstance(frame.enclosing, Frame):
                frame = frame.enclosing.owner(target.id) or frame
            frame.variables[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Subscript):
            container, index = self.eval(target.value), self.eval(target.slice)
            self._check_changeable(container)
            check_index(container, index)
            self._assign_item(target, container, index, value)
        elif isinstance(target, ast.Attribute):
            owner = self.eval(target.value)
            self._check_attribute(owner)
            setattr(owner, target.attr, value)
        else:
            raise UnsupportedSyntax(f"cannot assign to {ast.unparse(target)}")

    def _assign_item(self, target: ast.Subscript, container: Any, index: Any, value: Any) -> None:
        """`container[index] = value`; a fragment is a value, so its variable gets a new one."""
        if not isinstance(container, RegisterGroup):
            if not hasattr(type(container), "__setitem__"):
                raise OperandError(f"items of {describe(container)} cannot be assigned: make a new one")
            container[index] = value
            return
        changed = container.replaced(index, value)
        owner = self.frame.owner(target.value.id) if isinstance(target.value, ast.Name) else None
        if isinstance(target.value, ast.Name) and owner is not None:
            owner.variables[target.value.id] = changed
        elif isinstance(target.value, (ast.Subscript, ast.Attribute)):
            self.assign(target.value, changed)
        else:
            raise OperandError(
                f"an element of {container.described} is assigned through the variable that holds "
                f"it; {ast.unparse(target.value)!r} is none of the kernel"
            )

    def _check_changeable(self, container: Any) -> None:
        """OperandError unless the kernel owns the container, so that control flow tracks it."""
        if isinstance(container, np.ndarray):
            raise OperandError("NumPy arrays are constants in a kernel; use a list or tc.local")
        self.surroundings.check(container)
        self.check_tracked(container)

    def _check_attribute(self, owner: Any) -> None:
        if not is_record(owner):
            raise OperandError(
                f"attributes of {describe(owner)} cannot be assigned in a kernel: only attributes of "
                "dataclasses (without slots) can"
            )
        self._check_changeable(owner)

    def _unpack(self, targets: list[ast.expr], value: Any) -> None:
        values = list(value)
        stars = [i for i, t in enumerate(targets) if isinstance(t, ast.Starred)]
        if stars and len(values) >= len(targets) - 1:
            star = stars[0]
            end = len(values) - (len(targets) - star - 1)
            values = [*values[:star], values[star:end], *values[end:]]
        if len(values) != len(targets):
            raise CompileError(f"{len(list(value))} values for {len(targets)} names")
        for target, item in zip(targets, values, strict=True):
            self.assign(target.value if isinstance(target, ast.Starred) else target, item)

    def run_Assert(self, node: ast.Assert) -> None:
        condition = self.eval(node.test)
        if condition is False and isinstance(node.test, ast.Constant) and self.frame.conditions:
            condition = self.builder.literal(False, dtypes.pred)  # in a branch that is not taken
        if isinstance(condition, RuntimeValue) or not condition:
            assert_(condition, self.eval(node.msg) if node.msg else ast.unparse(node.test))

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
        for name in node.names:
            if name in self.frame.cells:
                raise UnsupportedSyntax(
                    f"{name!r} belongs to the code around the kernel and cannot be changed by it"
                )
        self.frame.nonlocals.update(node.names)

    def run_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                container = self.eval(target.value)
                self._check_changeable(container)
                del container[self.eval(target.slice)]
            elif isinstance(target, ast.Name) and target.id in self.frame.variables:
                del self.frame.variables[target.id]
            else:
                raise UnsupportedSyntax("del takes variables of the kernel, and items")

    def run_With(self, node: ast.With) -> Status:
        with ExitStack() as stack:
            for item in node.items:
                manager = self.eval(item.context_expr)
                if not hasattr(type(manager), "__enter__"):
                    raise OperandError(
                        f"`with` takes context managers of Python, which act at compile time, not "
                        f"{describe(manager)}"
                    )
                entered = stack.enter_context(manager)
                if item.optional_vars is not None:
                    self.assign(item.optional_vars, entered)
            return self.block(node.body)
