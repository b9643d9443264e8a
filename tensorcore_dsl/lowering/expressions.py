"""Compile Python expressions to LLVM. The methods have the names of the nodes."""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from llvmlite import ir

from tensorcore_dsl.lowering import arrays, values
from tensorcore_dsl.lowering.numeric import CASTS, NUMERIC
from tensorcore_dsl.lowering.values import BOOLEAN, COUNT, WORD, Array, CObject, Kind, Number, Record

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}  # fmt: skip


class Variable:
    """A stack slot for a number. Integers have 64 bits."""

    def __init__(self, builder: ir.IRBuilder, kind: Kind) -> None:
        self.type, self.slot = kind, arrays.variable(builder, values.llvm_type(kind))


class Expressions:
    """Evaluates expressions to numbers, arrays, objects of ctypes, records, or constants of Python.

    Attributes
    ----------
    scope
        Global and enclosing names of the function.
    variables : dict
        The local names; a number that changes is a `Variable`.
    """

    def __init__(self, builder: ir.IRBuilder, scope: Mapping[str, Any]) -> None:
        self.builder, self.scope = builder, scope
        self.variables: dict[str, Any] = {}

    def visit(self, node: ast.AST) -> Any:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise NotImplementedError(type(node).__name__)
        return method(node)

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(map(self.visit, node.elts))

    def _name(self, node: ast.Name) -> Any:
        if node.id not in self.variables:
            known = self.scope.get(node.id, getattr(builtins, node.id, None))
            if isinstance(known, np.ndarray):
                return arrays.constant(self.builder, known)
            return known
        variable = self.variables[node.id]
        if isinstance(variable, Variable):
            return Number(variable.type, self.builder.load(variable.slot))
        return variable

    def _attribute(self, node: ast.Attribute) -> Any:
        owner = self.visit(node.value)
        if isinstance(owner, Record):
            return owner.fields[owner.type.named._fields.index(node.attr)]
        if isinstance(owner, CObject):
            return self.loaded(arrays.field(self.builder, owner, node.attr))
        if not isinstance(owner, Array):
            return getattr(owner, node.attr)
        if node.attr == "shape":
            return tuple(Number(COUNT, extent) for extent in owner.shape)
        if node.attr == "size":
            return owner.size(self.builder)
        if node.attr == "any":
            return lambda builder: arrays.any_of(builder, owner)
        assert node.attr == "ctypes"
        if not owner.type.contiguous:
            raise NotImplementedError("the address of an array that is not contiguous")
        return SimpleNamespace(data=Number(COUNT, self.builder.ptrtoint(owner.address, WORD)))

    def _subscript(self, node: ast.Subscript) -> Any:
        owner = self.visit(node.value)
        if not isinstance(owner, (Array, CObject)):
            return owner[self.visit(node.slice)]
        return self.loaded(self.item(owner, node))

    def item(self, owner: Array | CObject, node: ast.Subscript) -> Array | CObject:
        items = self.visit(node.slice)
        if isinstance(owner, CObject):
            return arrays.item(self.builder, owner, items)
        return arrays.view(self.builder, owner, items if isinstance(items, tuple) else (items,))

    def loaded(self, part: Array | CObject) -> Any:
        """Load a part of an array or object if it is a number."""
        if isinstance(part, CObject) or part.shape:
            return part
        return arrays.element(self.builder, part)

    def target(self, node: ast.expr) -> Array:
        """Return the memory of an attribute or subscript that is assigned to."""
        assert isinstance(node, (ast.Attribute, ast.Subscript))
        owner = self.visit(node.value)
        if isinstance(node, ast.Attribute):
            part = arrays.field(self.builder, owner, node.attr)
        else:
            part = self.item(owner, node)
        assert isinstance(part, Array)
        return part

    def _slice(self, node: ast.Slice) -> slice:
        bounds = (None if x is None else self.visit(x) for x in (node.lower, node.upper))
        return slice(*bounds)

    def operate(self, function: Callable[..., Any], left: Any, right: Any) -> Any:
        return values.binary(self.builder, function, left, right)

    def _binop(self, node: ast.BinOp) -> Any:
        function = OPERATORS[type(node.op)]
        return self.operate(function, self.visit(node.left), self.visit(node.right))

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        x = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            known = values.truth(self.builder, x)
            if isinstance(known, bool):
                return not known
            return Number(BOOLEAN, self.builder.not_(known))
        if isinstance(node.op, ast.Invert):
            return ~x if isinstance(x, int) else values.inverted(self.builder, x)
        if isinstance(x, Number) and values.is_float(x):
            return Number(x.type, self.builder.fneg(x.value))
        return self.operate(operator.sub, 0, x) if isinstance(x, Number) else -x

    def _compare(self, node: ast.Compare) -> Any:
        left, *others = map(self.visit, (node.left, *node.comparators))
        if not isinstance(node.ops[0], ast.In):
            together: Any = True
            for op, right in zip(node.ops, others, strict=True):
                holds = self.operate(OPERATORS[type(op)], left, right)
                together, left = self.operate(operator.and_, together, holds), right
            return together
        result: Any = False
        for item in others[0]:
            result = self.operate(operator.or_, result, self.operate(operator.eq, left, item))
        return result

    def _boolop(self, node: ast.BoolOp) -> Any:
        """Evaluate `and` and `or` of truth values, with short circuit."""
        decides = isinstance(node.op, ast.Or)
        first, *others = node.values
        left = values.truth(self.builder, self.visit(first))
        if isinstance(left, bool):
            if left is decides or not others:
                return left
            return self._boolop(ast.BoolOp(node.op, others))
        if not others:
            return Number(BOOLEAN, left)
        more = lambda: self._boolop(ast.BoolOp(node.op, others))
        known = lambda: decides
        return self.choose(left, known if decides else more, more if decides else known)

    def _ifexp(self, node: ast.IfExp) -> Any:
        condition = values.truth(self.builder, self.visit(node.test))
        if isinstance(condition, bool):
            return self.visit(node.body if condition else node.orelse)
        return self.choose(condition, lambda: self.visit(node.body), lambda: self.visit(node.orelse))

    def choose(self, condition: ir.Value, then: Callable[[], Any], orelse: Callable[[], Any]) -> Number:
        """Evaluate one of two numbers, depending on a condition."""
        blocks = [self.builder.append_basic_block() for _ in range(2)]
        self.builder.cbranch(condition, *blocks)
        choices = []
        for block, make in zip(blocks, (then, orelse)):
            self.builder.position_at_end(block)
            choices.append((values.number(make()), self.builder.block))
        kind = values.joined([x.type for x, _ in choices])
        end = self.builder.append_basic_block()
        for _, block in choices:
            self.builder.position_at_end(block)
            self.builder.branch(end)
        self.builder.position_at_end(end)
        return self.one_of(kind, choices)

    def one_of(self, kind: Kind, choices: list[tuple[Any, ir.Block]]) -> Number:
        """Return the phi of numbers, one for each predecessor block."""
        ready = []
        for x, block in choices:
            with self.builder.goto_block(block):
                ready.append((values.cast(self.builder, kind, x).value, block))
        phi = self.builder.phi(values.llvm_type(kind))
        for value, block in ready:
            phi.add_incoming(value, block)
        return Number(kind, phi)

    def _call(self, node: ast.Call) -> Any:
        function = self.visit(node.func)
        arguments = [self.visit(x) for x in node.args]
        function = getattr(function, "lowered", function)
        if call := getattr(function, "call", None):
            return call(self.builder, arguments)
        if function in (np.empty, np.zeros):
            return arrays.memory(self.builder, function is np.zeros, *arguments)
        if function in (min, max):
            return self.extreme(operator.lt if function is min else operator.gt, arguments)
        if function in CASTS:
            return values.cast(self.builder, CASTS[function], *arguments)
        if hasattr(function, "_fields"):
            return values.record(function, arguments)
        return NUMERIC.get(function, function)(self.builder, *arguments)

    def extreme(self, better: Callable[..., Any], numbers: list[Any]) -> Any:
        extremum = numbers[0]
        for x in numbers[1:]:
            is_better = self.operate(better, x, extremum)
            if isinstance(is_better, Number):
                wide = [values.wide(values.number(y).type) for y in (x, extremum)]
                kind = values.joined(wide)
                a, b = (values.cast(self.builder, kind, y).value for y in (x, extremum))
                extremum = Number(kind, self.builder.select(is_better.value, a, b))
            elif is_better:
                extremum = x
        return extremum
