"""Statements of Python to LLVM's code: the body of one function."""

from __future__ import annotations

import ast
import linecache
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from tensorcore_dsl.lowering import arrays, values
from tensorcore_dsl.lowering.expressions import OPERATORS, Expressions, Variable
from tensorcore_dsl.lowering.values import BOOL, COUNT, Number


class Body(Expressions):
    """The translation of a function. result: the type of its result."""

    def __init__(self, function: ir.Function, scope: dict[str, Any], result: Any) -> None:
        super().__init__(ir.IRBuilder(function.append_basic_block()), scope)
        self.result = result
        self.loops: list[tuple[ir.Block, ir.Block]] = []  # where `continue` and `break` go

    def translate(self, code: Any, arguments: dict[str, Any]) -> None:
        """Add the statements behind a function's code of Python."""
        for name, value in arguments.items():
            self.assign(name, value)
        try:
            self.statements(_definitions(code.co_filename)[code.co_firstlineno].body)
        except NotImplementedError as error:
            where = f"{code.co_filename}:{self.line}"
            raise NotImplementedError(f"{error}, in a compiled loop ({where})") from None
        if not self.builder.block.is_terminated:
            if self.result is types.none:
                self.builder.ret_void()
            else:
                self.builder.unreachable()

    def statements(self, nodes: list[ast.stmt]) -> None:
        """Those behind a jump are left out."""
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
        if node.value is None or self.result is types.none:
            self.builder.ret_void()
            return
        found = self.visit(node.value)
        if isinstance(found, tuple):
            packed = ir.Constant(values.result_type(self.result), ir.Undefined)
            for i, x in enumerate(found):
                part = values.cast(self.builder, COUNT, x).value
                packed = self.builder.insert_value(packed, part, i)
            self.builder.ret(packed)
        else:
            self.builder.ret(values.cast(self.builder, self.result, found).value)

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
        assert isinstance(node.target, ast.Subscript)
        place = self.part(node.target)
        old = arrays.element(self.builder, place)
        arrays.fill(self.builder, place, self.operate(function, old, self.visit(node.value)))

    def bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Tuple):
            for part, item in zip(target.elts, value, strict=True):
                self.bind(part, item)
        elif isinstance(target, ast.Name):
            self.assign(target.id, value)
        else:
            assert isinstance(target, ast.Subscript)
            arrays.fill(self.builder, self.part(target), value)

    def assign(self, name: str, value: Any) -> None:
        """Numbers live in variables, which have the type of the first value, of 64 bits.

        A later value has the same type, or is a constant or a truth value.
        """
        if not isinstance(value, (int, Number)):
            if name in self.variables:
                raise NotImplementedError(f"{name} is assigned again, and is no number")
            self.variables[name] = value
            return
        given = values.number(value)
        wide = given.type
        if wide is not types.boolean:
            wide = COUNT if wide.signed else types.uint64
        if name not in self.variables:
            self.variables[name] = Variable(self.builder, wide)
        kind, slot = self.variables[name].type, self.variables[name].slot
        fits = isinstance(value, int) or wide is types.boolean
        if wide is not kind and (kind is types.boolean or not fits):
            raise NotImplementedError(f"{name} was {kind} before, and {wide} now")
        self.builder.store(values.cast(self.builder, kind, given).value, slot)

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
        assert isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Name)
        given = [self.visit(x) for x in node.iter.args]
        start, stop, step = (0, *given, 1) if len(given) == 1 else (*given, 1)[:3]
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
    """The functions of a file by the line of their first decorator."""
    tree = ast.parse("".join(linecache.getlines(path)))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {min([f.lineno, *(d.lineno for d in f.decorator_list)]): f for f in functions}
