"""Comprehensions: Python's loops over compile-time items, in one expression."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.frontend.expressions import Expressions
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.values import Scalar


class Comprehensions(Expressions):
    """Evaluates comprehensions."""

    def check_advance(self, items: Any) -> None:
        """OperandError if `items` is an iterator that must not advance here."""
        raise NotImplementedError

    def eval_ListComp(self, node: ast.ListComp) -> list[Any]:
        return self._comprehend(node.generators, lambda: self.eval(node.elt))

    def eval_GeneratorExp(self, node: ast.GeneratorExp) -> list[Any]:
        return self._comprehend(node.generators, lambda: self.eval(node.elt))

    def eval_SetComp(self, node: ast.SetComp) -> set[Any]:
        return set(self._comprehend(node.generators, lambda: self.eval(node.elt)))

    def eval_DictComp(self, node: ast.DictComp) -> dict[Any, Any]:
        pairs = self._comprehend(node.generators, lambda: (self.eval(node.key), self.eval(node.value)))
        return dict(pairs)

    def _comprehend(self, generators: list[ast.comprehension], item: Callable[[], Any]) -> list[Any]:
        variables = self.frame.variables
        names = {n.id for g in generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        hidden = {name: variables[name] for name in names if name in variables}
        results: list[Any] = []
        self._generate(generators, item, results)
        for name in names:
            variables.pop(name, None)
        variables.update(hidden)
        return results

    def _generate(
        self, generators: list[ast.comprehension], item: Callable[[], Any], results: list[Any]
    ) -> None:
        if not generators:
            results.append(item())
            return
        first, inner = generators[0], generators[1:]
        items = self.eval(first.iter)
        self.check_advance(items)
        for value in items:
            self.assign(first.target, value)
            if all(self._static_test(test) for test in first.ifs):
                self._generate(inner, item, results)

    def _static_test(self, node: ast.expr) -> bool:
        condition = arithmetic.truth(self.builder, self.eval(node))
        if isinstance(condition, Scalar):
            raise OperandError("the condition of a comprehension must be known at compile time")
        return bool(condition)
