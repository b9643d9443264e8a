"""Syntax trees of Python functions, and locations in their source."""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from tensorcore_dsl.errors import Loc, UnsupportedSyntax
from tensorcore_dsl.frontend import recovery

Function = ast.FunctionDef | ast.Lambda
_LOOPS = (ast.For, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_EXITS: dict[type, str] = {ast.Return: "return", ast.Break: "break", ast.Continue: "continue"}


@dataclass(frozen=True)
class Source:
    """The syntax tree of a function, with positions in its file."""

    tree: Function
    filename: str


@lru_cache(maxsize=4096)
def source_of(function: Any) -> Source | None:
    """The tree of a Python function; None if its source is not available."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    filename = code.co_filename
    if filename in recovery.SHARED:
        text, filename = recovery.recovered(code, text) or ("", filename)
    candidates = _functions(text).get((code.co_name, code.co_firstlineno), ())
    if code.co_name == "<lambda>":
        candidates = _lambdas(candidates, code)
    return Source(candidates[0], filename) if len(candidates) == 1 else None


@lru_cache(maxsize=128)
def _functions(text: str) -> dict[tuple[str, int], list[Function]]:
    """The functions of a file by name and first line, as in code objects."""
    functions: dict[tuple[str, int], list[Function]] = {}
    try:
        module = ast.parse(text)
    except SyntaxError:
        return functions
    for node in ast.walk(module):
        if isinstance(node, ast.Lambda):
            functions.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            functions.setdefault((node.name, first), []).append(node)
    return functions


def _lambdas(nodes: Sequence[Function], code: types.CodeType) -> list[Function]:
    """The lambda of a code object among the lambdas that start on its line."""
    named = [n for n in nodes if _parameters(n) == code.co_varnames[: code.co_argcount]]
    if len(named) < 2 or not hasattr(code, "co_positions"):  # Python 3.10
        return named
    spans: list[Any] = [p for p in code.co_positions() if None not in p and p[3] != 0]
    holding = [n for n in named if any(_holds(n.body, *span) for span in spans)]
    return holding[-1:]  # The innermost function: the tree lists outer functions first.


def _parameters(node: Function) -> tuple[str, ...]:
    return tuple(a.arg for a in (*node.args.posonlyargs, *node.args.args))


def _holds(node: Any, line: int, end_line: int, column: int, end_column: int) -> bool:
    """True if the node encloses a range of the source."""
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    return start <= (line, column) and (end_line, end_column) <= end


def _loc_of_yield(function: Any) -> Loc | None:
    """The first `yield` or `await` of a generator or a coroutine."""
    source = source_of(function)
    if source is None:
        return None
    nodes = ast.walk(source.tree)
    yields = [n for n in nodes if isinstance(n, (ast.Yield, ast.YieldFrom, ast.Await))]
    first = min(yields, key=lambda n: (n.lineno, n.col_offset), default=None)
    if first is None:
        return None
    span = first.lineno, first.col_offset, first.end_col_offset or 0
    return Loc(source.filename, *span, function.__name__)


def require_source(function: Any) -> Source:
    """The tree of a kernel or helper; UnsupportedSyntax if there is none."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise UnsupportedSyntax(
            f"{function.__name__} is a generator or coroutine; kernels and their helpers are plain functions",
            _loc_of_yield(function) or Loc.of_function(function),
        )
    source = source_of(function)
    if source is None:
        raise UnsupportedSyntax(
            f"the source of {function.__name__} cannot be read: {recovery.reason(function.__code__)}"
        )
    return source


# -- effects of a piece of source ------------------------------------------------------------


def assigned_names(nodes: Sequence[ast.stmt]) -> frozenset[str]:
    """The names that statements may bind."""
    return frozenset().union(*map(_assigned, nodes))


@cache
def _assigned(statement: ast.AST) -> frozenset[str]:
    return frozenset(filter(None, map(_bound_by, ast.walk(statement))))


def _bound_by(node: ast.AST) -> str | None:
    """The name that a node itself binds: a target, or a capture of a pattern."""
    if isinstance(node, ast.Name):
        return node.id if isinstance(node.ctx, ast.Store) else None
    if isinstance(node, ast.MatchMapping):
        return node.rest
    return node.name if isinstance(node, (ast.MatchAs, ast.MatchStar)) else None


@cache
def bound_names(function: ast.AST) -> frozenset[str]:
    """The names that a function binds: its variables, apart from its parameters."""
    names: set[str] = set()
    outside: set[str] = set()
    todo = list(function.body) if isinstance(function, ast.FunctionDef) else []  # type: list[ast.AST]
    while todo:
        node = todo.pop()
        if name := _bound_by(node):
            names.add(name)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Nonlocal, ast.Global)):
            outside.update(node.names)
        if isinstance(node, _COMPREHENSIONS):
            todo += [n.target for n in ast.walk(node) if isinstance(n, ast.NamedExpr)]
        elif not isinstance(node, _FUNCTIONS):
            todo += ast.iter_child_nodes(node)
    return frozenset(names - outside)


@cache
def exits_of(statement: ast.AST) -> frozenset[str]:
    """Select "return", "break" and "continue" by which control may leave the statement."""
    kind = _EXITS.get(type(statement))
    if kind is not None:
        return frozenset((kind,))
    if isinstance(statement, _FUNCTIONS):
        return frozenset()
    inside = frozenset().union(*map(exits_of, _statements(statement)))
    if isinstance(statement, _LOOPS):
        of_else = frozenset().union(*map(exits_of, statement.orelse))
        return (inside & {"return"}) | of_else
    return inside


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements directly inside a statement."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif not isinstance(child, ast.expr):
            yield from _statements(child)


@cache
def may_change_variables(expression: ast.AST) -> bool:
    """True if evaluating the expression may bind a name or change an object: it has a call or `:=`."""
    return any(isinstance(n, (ast.Call, ast.NamedExpr)) for n in ast.walk(expression))


def always_exits(nodes: Sequence[ast.stmt]) -> bool:
    """True if every path through the statements ends in return, raise, break or continue."""
    if not nodes:
        return False
    last = nodes[-1]
    if isinstance(last, (*_EXITS, ast.Raise)):
        return True
    if isinstance(last, ast.If):
        return always_exits(last.body) and always_exits(last.orelse)
    return False
