"""Rules for the grid of an exported kernel: one expression for each axis, evaluated in Python and in C."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

from tensorcore_dsl.errors import ArgumentError, listing
from tensorcore_dsl.runtime.arguments import ArrayType, ScalarType

Types = Mapping[str, Any]  # name of an argument -> ArrayType, ScalarType or None

_OPERATORS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "min": min,
    "max": max,
    "cdiv": lambda value, divisor: -(-value // divisor),
}
_ALLOWED = (
    "integers, names of integer arguments, array.shape[axis], + - * // %, and min, max and cdiv of two values"
)


@dataclass(frozen=True)
class GridRule:
    """The grid as three Python expressions of the arguments.

    Attributes
    ----------
    texts : tuple of str
        Such as ("cdiv(x.shape[0], 128)", "1", "1").
    """

    texts: tuple[str, str, str]

    @classmethod
    def of(cls, grid: Any, types: Types) -> GridRule:
        """Check a grid: an integer or an expression, or up to three of them."""
        axes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
        if len(axes) == 1 and isinstance(axes[0], str):
            body = _parsed(axes[0]).body
            axes = tuple(map(ast.unparse, body.elts)) if isinstance(body, ast.Tuple) else axes
        if not 1 <= len(axes) <= 3:
            raise ArgumentError(f"grid has {len(axes)} axes; one to three are allowed")
        x, y, z = (*map(_text, axes), "1", "1")[:3]
        rule = cls((x, y, z))
        for text in rule.texts:
            _c(_parsed(text), text, types)
        return rule

    def blocks(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        """Evaluate the grid for arguments by name: numbers, and objects with a shape."""
        scope = {**_FUNCTIONS, **values, "__builtins__": {}}
        return tuple(int(eval(compile(_parsed(text), "<grid>", "eval"), scope)) for text in self.texts)

    def c_expressions(self, types: Types, c_names: Mapping[str, str]) -> tuple[str, ...]:
        """The expressions in C. They call floor_div, floor_mod, least, greatest and cdiv."""
        return tuple(_c(_parsed(text), text, types, c_names) for text in self.texts)


def _text(axis: Any) -> str:
    if isinstance(axis, str):
        return axis
    if callable(axis) or isinstance(axis, bool) or not isinstance(axis, SupportsIndex):
        raise ArgumentError(
            f"grid has {axis!r}; allowed are integers and texts such as 'cdiv(x.shape[0], 128)', which "
            "C evaluates too"
        )
    return str(axis.__index__())


def _parsed(text: str) -> ast.Expression:
    try:
        return ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        raise ArgumentError(f"grid {text!r} is not an expression; allowed are {_ALLOWED}") from None


def _c(node: ast.AST, text: str, types: Types, c_names: Mapping[str, str] | None = None) -> str:
    """Translate an expression to C; ArgumentError for syntax that is not allowed."""

    def c(part: ast.AST) -> str:
        return _c(part, text, types, c_names)

    def c_name(name: str) -> str:
        return c_names[name] if c_names else name

    match node:
        case ast.Expression(body=body):
            return c(body)
        case ast.Constant(value=int() as value) if type(value) is int:
            return f"{value}LL"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"(-{c(operand)})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            sign = _OPERATORS[type(op)]
            function = {"//": "floor_div", "%": "floor_mod"}.get(sign)
            if function:
                return f"{function}({c(left)}, {c(right)})"
            return f"({c(left)} {sign} {c(right)})"
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _FUNCTIONS:
            function = {"min": "least", "max": "greatest"}.get(name, name)
            return f"{function}({c(left)}, {c(right)})"
        case ast.Name(id=name) if name in types:
            kind = types[name]
            if isinstance(kind, ScalarType) and kind.dtype.is_integer:
                return f"(int64_t){c_name(name)}"
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=axis)
        ) if isinstance(types.get(name), ArrayType):
            if type(axis) is int and 0 <= axis < types[name].ndim:
                return f"(int64_t){c_name(name)}.shape[{axis}]"
    expression = ast.unparse(node)
    raise ArgumentError(
        f"grid {text!r}: {expression} is not possible; allowed are {_ALLOWED}; the arguments are "
        f"{listing(_described(types))}"
    )


def _described(types: Types) -> Sequence[str]:
    return [f"{name} ({kind})" for name, kind in types.items() if kind is not None]
