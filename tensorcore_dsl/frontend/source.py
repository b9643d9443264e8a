"""Syntax trees of Python functions, with the places they came from."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tensorcore_dsl.errors import UnsupportedSyntax


@dataclass(frozen=True)
class Source:
    """A function's tree; add `line_offset` and `column_offset` to the positions in it."""

    tree: ast.FunctionDef | ast.Lambda
    filename: str
    line_offset: int
    column_offset: int


@lru_cache(maxsize=4096)
def source_of_code(function: Any) -> Source | None:
    """The tree of a Python function, or None when its source cannot be had."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return None
    text = "".join(lines)
    dedented = textwrap.dedent(text)
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    try:
        module = ast.parse(dedented)
    except SyntaxError:
        return None  # a lambda inside a larger expression
    tree = _find(module, function.__code__, first)
    if tree is None:
        return None
    return Source(tree, function.__code__.co_filename, first - 1, indent)


def _find(module: ast.Module, code: types.CodeType, first: int) -> Any:
    if code.co_name != "<lambda>":
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
                return node
        return None
    names = code.co_varnames[: code.co_argcount]
    lambdas = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.Lambda) and tuple(a.arg for a in node.args.args) == names
    ]
    if len(lambdas) > 1 and hasattr(code, "co_positions"):
        positions = [p for p in code.co_positions() if p[0] is not None and p[2] is not None]
        lambdas = [n for n in lambdas if _holds(n, positions, first)]
    return lambdas[0] if len(lambdas) == 1 else None


def _holds(node: ast.Lambda, positions: list[Any], first: int) -> bool:
    body = node.body
    place = (body.lineno + first - 1, body.col_offset)
    return any((line, column) == place for line, _, column, _ in positions)


def require_source(function: Any) -> Source:
    """The tree of a kernel, or an error that says why there is none."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise UnsupportedSyntax(f"{function.__name__} is a generator or coroutine, not a function")
    found = source_of_code(function)
    if found is None:
        raise UnsupportedSyntax(
            f"the source of {function.__name__} cannot be read: kernels and their helpers must be "
            "defined in a file, or in a notebook cell"
        )
    return found


def assigned_names(nodes: list[ast.stmt]) -> set[str]:
    """Names that statements may change: stored, or whose items or attributes are stored."""
    names: set[str] = set()
    for statement in nodes:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                root: Any = node
                while isinstance(root, (ast.Subscript, ast.Attribute)):
                    root = root.value
                if isinstance(root, ast.Name):
                    names.add(root.id)
    return names


def always_returns(nodes: list[ast.stmt]) -> bool:
    """Does every path through the statements end in `return`?"""
    if not nodes:
        return False
    last = nodes[-1]
    if isinstance(last, (ast.Return, ast.Raise)):
        return True
    if isinstance(last, ast.If):
        return always_returns(last.body) and always_returns(last.orelse)
    return False


def contains_return(node: ast.AST) -> bool:
    return any(isinstance(child, ast.Return) for child in ast.walk(node))
