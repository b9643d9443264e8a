"""Expressions: Python computes compile-time values, operators emit run-time ones."""

from __future__ import annotations

import ast
import builtins
import functools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.frontend.control import BranchSide, evaluate_side, join_sides
from tensorcore_dsl.frontend.environment import Frame, Snapshot, columns, rebuilt, same
from tensorcore_dsl.frontend.source import bound_names, may_change_variables
from tensorcore_dsl.frontend.surroundings import Surroundings
from tensorcore_dsl.ir.nodes import Assign, If, Op, walk
from tensorcore_dsl.isa.names import EXPENSIVE_OPCODES
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.lang.builtin import has_runtime
from tensorcore_dsl.lang.printing import Text
from tensorcore_dsl.lang.ranges import RuntimeRange
from tensorcore_dsl.lang.synonyms import advice, attribute_advice, variable_advice
from tensorcore_dsl.origins import is_library
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import Builder
from tensorcore_dsl.values.operands import describe, is_number
from tensorcore_dsl.values.values import NeedsConstant, RuntimeValue, Scalar, Struct, Undefined

from tensorcore_dsl.errors import (  # isort: skip
    CompileError,
    Loc,
    OperandError,
    TensorCoreError,
    UnsupportedSyntax,
    place_of_error,
)

BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.MatMult: operator.matmul,
}  # fmt: skip
SIGNS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|",
    ast.BitXor: "^", ast.MatMult: "@", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.USub: "-", ast.UAdd: "+", ast.Invert: "~",
}  # fmt: skip
COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_OTHER_LANGUAGES = ("numba.cuda", "triton", "cutlass")
_COROUTINES = "a kernel runs in all its threads at once; tc.cp_async and TMA copy asynchronously"
# Python that kernels lack, by the class of its node: how it is spelled, and what to use instead.
LACKING = {
    "Try": (
        "try", "errors of the compilation cannot be caught, and at run time there are none; use "
        "`if`, and tc.trap() to end the kernel",
    ),
    "TryStar": ("try", "use `if`, and tc.trap() to end the kernel"),
    "ClassDef": ("class", "define the class outside the kernel; dataclasses hold run-time values"),
    "Global": (
        "global", "a kernel cannot change variables around it; return values, or store to an array",
    ),
    "Import": ("import", "import the module outside the kernel"),
    "ImportFrom": ("import", "import the names outside the kernel"),
    "Yield": ("yield", "use a list, or call a function for each value"),
    "YieldFrom": ("yield", "use a list, or call a function for each value"),
    "Await": ("await", _COROUTINES), "AsyncFor": ("async for", _COROUTINES),
    "AsyncWith": ("async with", _COROUTINES), "AsyncFunctionDef": ("async def", _COROUTINES),
    "Starred": ("*", "only lists and tuples known at compile time can be unpacked"),
}  # fmt: skip
UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


class Expressions:
    """Evaluates expression nodes; the statements' evaluator builds on it."""

    builder: Builder

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.node: ast.AST | None = None  # under evaluation
        self.surroundings = Surroundings()
        self._methods: dict[type, Callable[[Any], Any]] = {}

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    # -- locations -----------------------------------------------------------------------------

    def locate(self, node: ast.AST | None = None) -> Loc | None:
        """The location in the user's source of `node`, or of the node under evaluation."""
        node = node or self.node
        if not self.frames or node is None:
            return None
        frame = self.frames[-1]
        loc = frame.locs.get(node)
        if loc is None:
            loc = frame.locs[node] = _loc(frame, node)
        return loc

    def guarded(self, node: ast.AST, evaluate: Callable[[Any], Any]) -> Any:
        """`evaluate(node)`; ops and errors get the location of the node."""
        outer, self.node = self.node, node
        try:
            return evaluate(node)
        except NeedsConstant as error:
            if error.loc is not None or not isinstance(node, (ast.Set, ast.Dict, ast.Compare)):
                raise
            raise OperandError(error.message, self.locate()) from None
        except TensorCoreError as error:
            if error.loc is None:
                error.loc = self.locate()
            raise
        except RecursionError:
            raise CompileError(
                "calls and branches nest too deeply here; does a recursion end at compile time?",
                self.locate(),
            ) from None
        except Exception as error:  # Python's own, on compile-time values
            text = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise CompileError(text, place_of_error(error, self.locate())) from None
        finally:
            self.node = outer

    def eval(self, node: ast.expr) -> Any:
        """The value of an expression."""
        value = self.guarded(node, self.method("eval", node))
        if isinstance(value, Undefined):
            self.guarded(node, lambda node: _complain(node, value))
        return value

    def method(self, prefix: str, node: ast.AST) -> Callable[[Any], Any]:
        """The method that evaluates nodes of this class, such as `eval_Name`."""
        kind = type(node)
        if kind not in self._methods:
            self._methods[kind] = getattr(self, f"{prefix}_{kind.__name__}", self.unsupported)
        return self._methods[kind]

    def unsupported(self, node: ast.AST) -> Any:
        word, instead = LACKING.get(type(node).__name__, (type(node).__name__, ""))
        raise UnsupportedSyntax(
            f"`{word}` is not part of the kernel language" + (f": {instead}" if instead else "")
        )

    # -- leaves --------------------------------------------------------------------------------

    def eval_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def eval_Name(self, node: ast.Name) -> Any:
        name, frame = node.id, self.frames[-1]
        if name in frame.variables:
            return frame.variables[name]
        owner = frame.owner(name)
        if owner is not None:
            return owner.variables[name]
        if name in bound_names(frame.source.tree):
            raise CompileError(
                f"{name!r} is used before it has a value: {frame.function} assigns it, which makes "
                "it a variable of this function"
            )
        for names in (frame.cells, frame.globals):
            if name in names:
                self.surroundings.enter(names[name], name)
                return names[name]
        if name in vars(builtins):
            return vars(builtins)[name]
        scopes = [frame.variables, frame.cells, frame.globals, vars(builtins)]
        raise CompileError(f"name {name!r} is not defined{variable_advice(name, scopes)}")

    def eval_Attribute(self, node: ast.Attribute) -> Any:
        owner = self.eval(node.value)
        if isinstance(owner, types.ModuleType) and owner.__name__.startswith(_OTHER_LANGUAGES):
            hint = advice(node.attr) or "; use the functions of tc"
            raise CompileError(f"{ast.unparse(node)} is of another kernel language{hint}")
        try:
            value = getattr(owner, node.attr)
            if self._is_shared(owner, node.attr):
                self.surroundings.enter(value, ast.unparse(node))
            return value
        except AttributeError as error:
            if isinstance(error, TensorCoreError):
                raise
            text = str(error) or f"no attribute {node.attr!r}"
            if hasattr(owner, "described") and not hasattr(type(owner), "__getattr__"):
                text = f"{describe(owner)} has no attribute {node.attr!r}"
            raise CompileError(text + attribute_advice(owner, node.attr)) from None

    def _is_shared(self, owner: Any, name: str) -> bool:
        """True if an attribute belongs to the code around the kernel: to a module, class or object."""
        if isinstance(owner, (RuntimeValue, Struct, DType, Instruction)):
            return False
        if isinstance(owner, (types.ModuleType, type)):
            return not is_library(owner.__name__)
        is_attribute = name in getattr(owner, "__dict__", ()) and self.surroundings.name_of(owner) is None
        return not is_attribute and not is_library(type(owner).__module__)

    def eval_Subscript(self, node: ast.Subscript) -> Any:
        container, index = self.eval(node.value), self.eval(node.slice)
        check_index(container, index)
        return container[index]

    def eval_Slice(self, node: ast.Slice) -> slice:
        bounds = (node.lower, node.upper, node.step)
        return slice(*(None if p is None else self.eval(p) for p in bounds))

    def eval_Tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self.items(node.elts))

    def eval_List(self, node: ast.List) -> list[Any]:
        return self.items(node.elts)

    def eval_Set(self, node: ast.Set) -> set[Any]:
        return set(self.items(node.elts))

    def items(self, nodes: list[ast.expr]) -> list[Any]:
        """The values of expressions, starred ones unpacked."""
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items.extend(self.eval(node.value))
            else:
                items.append(self.eval(node))
        return items

    def eval_Dict(self, node: ast.Dict) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                result.update(self.eval(value))
            else:
                result[self.eval(key)] = self.eval(value)
        return result

    def eval_JoinedStr(self, node: ast.JoinedStr) -> Any:
        """A string, or for `print` a `Text` if it contains run-time values."""
        pieces = [
            self._formatted(part) if isinstance(part, ast.FormattedValue) else self.eval(part)
            for part in node.values
        ]
        if all(isinstance(part, str) for part in pieces):
            return "".join(pieces)
        inside = [part.parts if isinstance(part, Text) else [part] for part in pieces]
        return Text([piece for pieces in inside for piece in pieces])

    def _formatted(self, node: ast.FormattedValue) -> Any:
        value = self.eval(node.value)
        spec = self.eval(node.format_spec) if node.format_spec else ""
        if has_runtime(value):
            return value, spec
        if isinstance(value, Text) and not spec:
            return value
        conversion = {-1: None, 115: str, 114: repr, 97: ascii}[node.conversion]
        return format(conversion(value) if conversion else value, spec)

    def eval_NamedExpr(self, node: ast.NamedExpr) -> Any:
        value = self.eval(node.value)
        self.assign(node.target, value)
        return value

    # -- operators -----------------------------------------------------------------------------

    def eval_BinOp(self, node: ast.BinOp) -> Any:
        left = self.eval(node.left)
        return self.binary(type(node.op), BINARY[type(node.op)], left, self.eval(node.right))

    def binary(self, kind: type, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        """A binary operator; a TypeError for run-time values becomes an OperandError."""
        try:
            return function(left, right)
        except NeedsConstant:
            raise OperandError(
                f"{SIGNS[kind]} of {describe(left)} and {describe(right)} needs a number known at "
                "compile time"
            ) from None
        except TypeError:
            if has_runtime(left) or has_runtime(right):
                several = isinstance(left, (list, tuple)) or isinstance(right, (list, tuple))
                each = f"; [x {SIGNS[kind]} y for x in values] computes with each item"
                raise OperandError(
                    f"{SIGNS[kind]} is not defined for {describe(left)} and {describe(right)}"
                    + (each if several else "")
                ) from None
            raise

    def eval_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.eval(node.operand)
        if isinstance(node.op, ast.Not):
            return arithmetic.logical_not(self.builder, value)
        return UNARY[type(node.op)](value)

    def eval_Compare(self, node: ast.Compare) -> Any:
        return self._chain(self.eval(node.left), node.ops, node.comparators)

    def _chain(self, left: Any, ops: Sequence[ast.cmpop], rights: Sequence[ast.expr]) -> Any:
        """left < rights[0] < rights[1] ...: each is evaluated once, and only if Python would."""
        right = self.eval(rights[0])
        first = self._compare(ops[0], left, right)
        if len(ops) == 1:
            return first
        pure = not any(map(may_change_variables, rights[1:]))
        follow = functools.partial(self._chain, right, ops[1:], rights[1:])
        return self._short_circuit(True, first, follow, pure)

    def _compare(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        if isinstance(op, (ast.In, ast.NotIn)):
            inside = self._contained(left, right)
            return inside if isinstance(op, ast.In) else arithmetic.logical_not(self.builder, inside)
        function = COMPARE[type(op)]
        for value, other in ((left, right), (right, left)):
            if is_library_function(value) and isinstance(other, (RuntimeValue, int, float)):
                name = f"tc.{value.__name__}"
                raise OperandError(f"{name} is a function: call it, {name}()")
        if isinstance(op, (ast.Eq, ast.NotEq)) and any(map(_compares_by_identity, (left, right))):
            raise OperandError(
                f"{'==' if isinstance(op, ast.Eq) else '!='} is not defined for {describe(left)} "
                f"and {describe(right)}: compare elements; `is` tells whether two are one object"
            )
        if isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
            return self.binary(type(op), function, left, right)
        pairs = ((left, right), (right, left))
        if any(isinstance(a, RuntimeValue) and is_number(b) for a, b in pairs) and isinstance(
            op, (ast.Is, ast.IsNot)
        ):
            raise OperandError(
                f"{describe(left)} and {describe(right)} are never one object: compare values with "
                f"{'==' if isinstance(op, ast.Is) else '!='}"
            )
        return function(left, right)

    def _contained(self, item: Any, items: Any) -> Any:
        if isinstance(items, RuntimeRange):
            return items.holds(item)
        if isinstance(items, range) and isinstance(item, Scalar) and items.step == 1:
            return RuntimeRange(items.start, items.stop).holds(item)
        if not has_runtime(item) and not has_runtime(items):
            return item in items
        tests = [arithmetic.truth(self.builder, item == other) for other in items]
        either = functools.partial(arithmetic.logic, self.builder, "or")
        return functools.reduce(either, tests, False)

    def eval_BoolOp(self, node: ast.BoolOp) -> Any:
        result = self.eval(node.values[0])
        for follower in node.values[1:]:
            result = self._short_circuit(
                isinstance(node.op, ast.And),
                result,
                functools.partial(self.eval, follower),
                not may_change_variables(follower),
            )
        return result

    def _short_circuit(self, is_and: bool, left: Any, follow: Callable[[], Any], pure: bool) -> Any:
        """`left and follow()` or `left or follow()`, where `follow` may be skipped at run time.

        pure: `follow` changes no variable.
        """
        if not isinstance(left, RuntimeValue):
            return follow() if bool(left) == is_and else left
        condition = arithmetic.truth(self.builder, left)
        stay = (not is_and) if condition is left else left
        if is_and:
            return self._choose(condition, follow, lambda: stay, pure)
        return self._choose(condition, lambda: stay, follow, pure)

    def eval_IfExp(self, node: ast.IfExp) -> Any:
        condition = arithmetic.truth(self.builder, self.eval(node.test))
        if not isinstance(condition, Scalar):
            return self.eval(node.body if condition else node.orelse)
        pure = not (may_change_variables(node.body) or may_change_variables(node.orelse))
        return self._choose(condition, lambda: self.eval(node.body), lambda: self.eval(node.orelse), pure)

    def _choose(
        self, condition: Scalar, then: Callable[[], Any], orelse: Callable[[], Any], pure: bool
    ) -> Any:
        """The value of one of two expressions: a selection if both are cheap, else a branch."""
        before = Snapshot([] if pure else self.frames)
        left, right = (
            evaluate_side(self.builder, before, lambda e=e: (False, e()))  # type: ignore[misc]
            for e in (then, orelse)
        )
        if left.contents is None and right.contents is None and _cheap(left) and _cheap(right):
            self.builder.block.nodes += left.block.nodes + right.block.nodes
            return self._selected(condition, left.value, right.value)
        self.builder.append(If(condition.value, left.block, right.block))
        _, value = join_sides(self.builder, self.frames, condition, before, left, right)
        if isinstance(value, Undefined):
            raise OperandError(f"this expression has no one type: {value.reason}")
        return value

    def _selected(self, condition: Scalar, yes: Any, no: Any) -> Any:
        if same(yes, no):
            return yes
        items = columns([yes, no])
        if items is not None:
            return rebuilt(yes, [self._selected(condition, *pair) for pair in items])
        return arithmetic.select(self.builder, condition, yes, no)

    def assign(self, target: ast.expr, value: Any) -> None:
        """Assign to a name, an item, an attribute, or a tuple of these."""
        raise NotImplementedError


def is_library_function(value: Any) -> bool:
    """A function such as tc.lane_id, which is nothing before it is called."""
    return isinstance(value, types.FunctionType) and is_library(value.__module__)


def _compares_by_identity(value: Any) -> bool:
    """True if it is an array or another object with run-time values that defines no ==."""
    return isinstance(value, Struct) and type(value).__eq__ is object.__eq__


def check_index(container: Any, index: Any) -> None:
    """OperandError for a run-time index of a container that exists at compile time alone."""
    if not isinstance(container, (list, tuple, dict, str, range, np.ndarray)):
        return
    if not has_runtime(index) and not isinstance(index, slice):
        return
    indices = [index] if not isinstance(index, slice) else [index.start, index.stop, index.step]
    late = [i for i in indices if has_runtime(i)]
    if not late:
        return
    kind = "key" if isinstance(container, dict) else "index"
    instead = "pass the array to the kernel, or copy it to tc.local"
    if not isinstance(container, np.ndarray):
        instead = "use tc.local, shared memory or an array, or choose among items with tc.select"
    raise OperandError(
        f"a {type(container).__name__} exists only at compile time, and so must its {kind}, which "
        f"is {describe(late[0])}; {instead}"
    )


def _loc(frame: Frame, node: Any) -> Loc:
    one_line = node.end_lineno == node.lineno
    return Loc(
        frame.source.filename,
        node.lineno,
        node.col_offset,
        node.end_col_offset or 0 if one_line else 0,
        frame.function,
        frame.caller,
    )


def _complain(node: ast.AST, value: Undefined) -> None:
    raise OperandError(f"{ast.unparse(node)!r} cannot be used here: {value.reason}")


def _cheap(side: BranchSide) -> bool:
    """True if the side is pure and cheap, so that it may run although Python would skip it."""
    return all(_is_cheap(node) for node in walk(side.block))


def _is_cheap(node: Any) -> bool:
    if isinstance(node, Op):
        return not node.instr.effects and node.instr.opcode not in EXPENSIVE_OPCODES
    return isinstance(node, Assign)
