"""Compile Python statements to LLVM: the body of one function."""

from __future__ import annotations

import ast
import linecache
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import CodeType
from typing import Any

from llvmlite import ir

from tensorcore_dsl.lowering import arrays, values
from tensorcore_dsl.lowering.expressions import OPERATORS, Expressions, Variable
from tensorcore_dsl.lowering.values import BOOL, BOOLEAN, Number


class Body(Expressions):
    """Translates the body of a function.

    leave: emits the code of `return value`.
    """

    def __init__(self, builder: ir.IRBuilder, scope: Mapping[str, Any], leave: Callable[[Any], None]) -> None:
        super().__init__(builder, scope)
        self.leave = leave
        self.loops: list[tuple[ir.Block, ir.Block]] = []  # targets of `continue` and `break`
        self.stores: Mapping[str, int] = {}
        self.line = 0

    def translate(self, code: CodeType, arguments: dict[str, Any]) -> None:
        """Translate the statements of a code object's source."""
        definition = _definitions(code.co_filename)[code.co_firstlineno]
        self.stores = _stores(definition)
        for name, value in arguments.items():
            if self.stores[name]:
                self.assign(name, value)
            else:
                self.variables[name] = value
        try:
            self.statements(definition.body)
        except NotImplementedError as error:
            if "in a compiled loop" in str(error):
                raise
            where = f"{code.co_filename}:{self.line}"
            raise NotImplementedError(f"{error}, in a compiled loop ({where})") from None

    def statements(self, nodes: list[ast.stmt]) -> None:
        """Compile statements up to the first jump."""
        for node in nodes:
            if self.builder.block.is_terminated:
                return
            self.line = node.lineno
            self.visit(node)

    def _expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def _pass(self, node: ast.Pass) -> None:
        pass

    def _return(self, node: ast.Return) -> None:
        self.leave(None if node.value is None else self.visit(node.value))

    def _assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self.bind(target, value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        assert node.value is not None
        self.bind(node.target, self.visit(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        function = OPERATORS[type(node.op)]
        if isinstance(node.target, ast.Name):
            old = self.visit(ast.Name(node.target.id, ast.Load()))
            self.assign(node.target.id, self.operate(function, old, self.visit(node.value)))
            return
        target = self.target(node.target)
        old = arrays.element(self.builder, target)
        arrays.fill(self.builder, target, self.operate(function, old, self.visit(node.value)))

    def bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Tuple):
            for part, item in zip(target.elts, value, strict=True):
                self.bind(part, item)
        elif isinstance(target, ast.Name):
            self.assign(target.id, value)
        else:
            arrays.fill(self.builder, self.target(target), value)

    def assign(self, name: str, value: Any) -> None:
        """Assign to a local name. A number goes to a variable of the first value's type.

        Integer variables have 64 bits. A later value has the variable's type, or is a constant or a truth
        value. A constant that is assigned once stays a constant.
        """
        known = isinstance(value, values.KNOWN)
        if not isinstance(value, Number) and (not known or self.stores[name] < 2):
            if name in self.variables:
                raise NotImplementedError(f"{name} is assigned again, and is not a number")
            self.variables[name] = value
            return
        assigned = values.number(value)
        wide = values.wide(assigned.type)
        if name not in self.variables:
            self.variables[name] = Variable(self.builder, wide)
        kind, slot = self.variables[name].type, self.variables[name].slot
        to_integer = kind.kind in "iu" and (isinstance(value, int) or wide == BOOLEAN)
        if wide != kind and not to_integer:
            raise NotImplementedError(f"{name} was {kind} before, and {wide} now")
        self.builder.store(values.cast(self.builder, kind, assigned).value, slot)

    def _if(self, node: ast.If) -> None:
        condition = values.truth(self.builder, self.visit(node.test))
        if isinstance(condition, bool):
            self.statements(node.body if condition else node.orelse)
            return
        then, orelse, end = (self.builder.append_basic_block() for _ in range(3))
        self.builder.cbranch(condition, then, orelse)
        for block, body in ((then, node.body), (orelse, node.orelse)):
            self.builder.position_at_end(block)
            self.statements(body)
            arrays.jump(self.builder, end)
        self.builder.position_at_end(end)

    def _while(self, node: ast.While) -> None:
        top, body, end = (self.builder.append_basic_block() for _ in range(3))
        self.builder.branch(top)
        self.builder.position_at_end(top)
        condition = values.truth(self.builder, self.visit(node.test))
        if isinstance(condition, bool):
            condition = ir.Constant(BOOL, int(condition))
        self.builder.cbranch(condition, body, end)
        self.loops.append((top, end))
        self.builder.position_at_end(body)
        self.statements(node.body)
        arrays.jump(self.builder, top)
        self.loops.pop()
        self.builder.position_at_end(end)

    def _for(self, node: ast.For) -> None:
        """Translate a loop over a range, or unroll one over a tuple."""
        assert isinstance(node.target, ast.Name)
        if not isinstance(node.iter, ast.Call):
            for item in self.visit(node.iter):
                self.assign(node.target.id, item)
                self.statements(node.body)
            return
        bounds = [self.visit(x) for x in node.iter.args]
        start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        with arrays.counted(self.builder, start, stop, step) as loop:
            self.loops.append((loop.again, loop.end))
            self.assign(node.target.id, loop.index)
            self.statements(node.body)
            self.loops.pop()

    def _break(self, node: ast.Break) -> None:
        self.builder.branch(self.loops[-1][1])

    def _continue(self, node: ast.Continue) -> None:
        self.builder.branch(self.loops[-1][0])


@cache
def _definitions(path: str) -> dict[int, ast.FunctionDef]:
    """Return the functions of a file by the line of their first decorator."""
    tree = ast.parse("".join(linecache.getlines(path)))
    functions = [node for node in _statements(tree) if isinstance(node, ast.FunctionDef)]
    return {min([f.lineno, *(d.lineno for d in f.decorator_list)]): f for f in functions}


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Iterate over the statements inside a node, without expressions, which are most of a tree."""
    for field in ("body", "orelse", "finalbody"):
        for part in getattr(node, field, ()):
            yield part
            yield from _statements(part)


@cache
def _stores(definition: ast.FunctionDef) -> Counter[str]:
    """Count the assignments to each name. One inside a loop counts more than once."""
    stores: Counter[str] = Counter()
    for statement in _statements(definition):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        for node in (node for target in targets if target for node in ast.walk(target)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stores[node.id] += 3 if isinstance(statement, ast.For) else 1
    return stores
