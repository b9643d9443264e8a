"""Debug builds: marks at each statement, and registers that keep the values of variables.

Coalescing merges registers of variables, and a value that is not used again loses its register.
Therefore a debug build copies each written value of a variable to a register of its own (`Keep`),
which nothing else uses. The kernel computes the same bits as other builds.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from tensorcore_dsl.frontend.environment import Frame
from tensorcore_dsl.frontend.source import assigned_names
from tensorcore_dsl.ir import views
from tensorcore_dsl.ir.nodes import Block, For, Keep, Kernel, Mark, Value, children, walk, writes
from tensorcore_dsl.lang.inspection import view_of

_ASSIGNMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.With)


def scopes_of(frames: list[Frame]) -> tuple[views.Scope, ...]:
    """The variables of the frames now, the innermost first."""
    return tuple(_scope(frame) for frame in reversed(frames))


def _scope(frame: Frame) -> views.Scope:
    variables: dict[str, Any] = {}
    outer: Any = frame
    while isinstance(outer, Frame):
        for name, value in outer.variables.items():
            if not name.startswith("<"):
                variables.setdefault(name, view_of(value))
        outer = outer.enclosing
    outside: tuple[Mapping[str, Any], ...] = (outer or {}, frame.globals)
    return views.Scope(frame.function, variables, outside)


def changed_names(statement: ast.stmt) -> frozenset[str]:
    """The names that a simple statement assigns to, also by their items and attributes."""
    if not isinstance(statement, _ASSIGNMENTS):
        return frozenset()
    if isinstance(statement, ast.With):
        targets = [i.optional_vars for i in statement.items if i.optional_vars is not None]
    else:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return assigned_names([statement]) | frozenset().union(*map(target_names, targets))


def target_names(target: ast.expr) -> frozenset[str]:
    """The variables that an assignment to `target` changes."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return frozenset().union(*map(target_names, target.elts))
    while isinstance(target, (ast.Subscript, ast.Attribute, ast.Starred)):
        target = target.value
    return frozenset((target.id,)) if isinstance(target, ast.Name) else frozenset()


def keep_variables(kernel: Kernel) -> None:
    """Keep every value that the scopes of the kernel's marks show."""
    shown: set[Value] = set()
    for node in walk(kernel.body):
        if isinstance(node, Mark):
            for scope in node.scopes:
                for view in scope.variables.values():
                    shown.update(views.values_of(view))
    written = [v for node in walk(kernel.body) for v in writes(node)]
    number = 1 + max((v.id for v in (*written, *shown)), default=-1)
    kernel.kept = {v: Value(number + i, v.type) for i, v in enumerate(sorted(shown, key=_id))}
    _insert(kernel.body, kernel.kept)
    kernel.body.nodes[:0] = _keeps([p.value for p in kernel.params], kernel.kept)


def _id(value: Value) -> int:
    return value.id


def _keeps(values: Any, kept: dict[Value, Value]) -> list[Any]:
    return [Keep(kept[value], value) for value in values if value in kept]


def _insert(block: Block, kept: dict[Value, Value]) -> None:
    """Insert a Keep after every write."""
    nodes: list[Any] = []
    for node in block.nodes:
        for child in children(node):
            _insert(child, kept)
        nodes.append(node)
        if isinstance(node, For):
            node.body.nodes[:0] = _keeps([node.index], kept)
        else:
            nodes += _keeps(writes(node), kept)
    block.nodes[:] = nodes
