"""Mutants of the package: the same functions and tables with one constant changed by one.

A mutant is applied by putting the changed object wherever a module of the package holds the
original, and forgetting everything that was cached; forms are then made anew from their rows.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import _lru_cache_wrapper, cache
from typing import Any

from tensorcore_dsl.isa import lookup
from tensorcore_dsl.isa.spec import Instruction


@dataclass(frozen=True)
class Mutant:
    """`owner.name` is replaced by `value`."""

    owner: Any  # a module or a class
    name: str
    value: Any
    says: str

    def __str__(self) -> str:
        return self.says


class _Change(ast.NodeTransformer):
    """Adds `by` to the integer literal number `which`."""

    def __init__(self, which: int, by: int) -> None:
        self.which, self.by, self.at = which, by, -1
        self.found: tuple[int, int, int] | None = None  # line, column and value

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is not int:
            return node
        self.at += 1
        if self.at != self.which:
            return node
        self.found = node.lineno, node.col_offset, node.value
        return ast.copy_location(ast.Constant(node.value + self.by), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """-1 says "the rest" or "the last" to NumPy; it is no constant of a formula."""
        return node if ast.unparse(node) == "-1" else self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node  # no annotations

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node


def of_function(owner: Any, name: str) -> Iterator[Mutant]:
    """All mutants of a function of a module, or a method of a class."""
    original = inspect.getattr_static(owner, name)
    function = inspect.unwrap(getattr(original, "__func__", original))
    source = textwrap.dedent(inspect.getsource(function))
    for tree, change in _changes(source):
        definition = tree.body[0]
        definition.decorator_list = [
            d for d in definition.decorator_list if ast.unparse(d) in ("classmethod", "staticmethod")
        ]
        definition.returns = None
        scope: dict[str, Any] = {}
        module = sys.modules[function.__module__]
        exec(compile(tree, "<mutant>", "exec"), vars(module) | {"__name__": module.__name__}, scope)
        yield Mutant(owner, name, scope[definition.name], _says(owner, name, source, change))


def of_table(module: Any, name: str) -> Iterator[Mutant]:
    """All mutants of a constant or a table of a module, from the expression that makes it."""
    source = inspect.getsource(module)
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            text = ast.get_source_segment(source, node)
            assert text is not None
            for tree, change in _changes(text):
                scope = dict(vars(module))
                exec(compile(tree, "<mutant>", "exec"), scope)
                yield Mutant(module, name, scope[name], _says(module, name, text, change))


def _changes(source: str) -> Iterator[tuple[Any, _Change]]:
    count = sum(type(n.value) is int for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
    for which in range(count):
        for by in (1, -1):
            change = _Change(which, by)
            tree = ast.fix_missing_locations(change.visit(ast.parse(source)))
            if change.found is not None:
                yield tree, change


def _says(owner: Any, name: str, source: str, change: _Change) -> str:
    assert change.found is not None
    line, column, value = change.found
    whole = source.splitlines()[line - 1]
    before, after = whole[:column].lstrip(), whole[column + len(str(value)) :]
    where = owner.__name__.removeprefix("tensorcore_dsl.")
    if not whole[column:].startswith(str(value)):  # hexadecimal
        after = whole[column:].partition(" ")[2]
    return f"{where}.{name}: {before}<{value + change.by}>{after}"


@contextlib.contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The package with the mutant in it."""
    original = inspect.getattr_static(mutant.owner, mutant.name)
    places = [(mutant.owner, mutant.name)]
    if inspect.ismodule(mutant.owner):
        places += [
            (module, name)
            for module in _modules()
            for name, value in vars(module).items()
            if value is original and (module, name) != places[0]
        ]
    rows = [r for rows in lookup._ROWS.values() for r in rows if _semantics(r) is original]
    _put(places, rows, mutant.value)
    try:
        yield
    finally:
        _put(places, rows, original)


def _semantics(row: Any) -> Any:
    return getattr(row, "execute", None)


def _put(places: list[tuple[Any, str]], rows: list[Any], value: Any) -> None:
    for owner, name in places:
        setattr(owner, name, value)
    for row in rows:  # rows are frozen
        object.__setattr__(row, "execute", value)
    forget()


def _modules() -> list[Any]:
    parts = ("tensorcore_dsl.isa", "tensorcore_dsl.numerics", "tensorcore_dsl.interpreter")
    return [m for name, m in sys.modules.items() if name.startswith(parts)]


def forget() -> None:
    """Clear what the package has cached, but for the table itself."""
    for module in _modules():
        for value in list(vars(module).values()):
            if isinstance(value, _lru_cache_wrapper) and value is not lookup._family:
                value.cache_clear()


@cache
def _row(mnemonic: str) -> Any:
    for row in lookup._ROWS[mnemonic.split(".")[0]]:
        if any(f.mnemonic == mnemonic for f in row.instructions()):
            return row
    raise KeyError(mnemonic)


def remade(mnemonic: str) -> Instruction:
    """The instruction, made again from its row."""
    return next(f for f in _row(mnemonic).instructions() if f.mnemonic == mnemonic)
