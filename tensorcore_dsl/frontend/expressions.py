"""Expressions: Python computes what is known, operators emit what is not."""

from __future__ import annotations

import ast
import builtins
import functools
import operator
import types
from collections.abc import Callable
from contextvars import Token
from typing import Any

from tensorcore_dsl import errors
from tensorcore_dsl.errors import CompileError, Loc, OperandError, TensorCoreError, UnsupportedSyntax
from tensorcore_dsl.frontend import arithmetic, language
from tensorcore_dsl.frontend.builder import Builder, default_type
from tensorcore_dsl.frontend.environment import Frame, Undefined
from tensorcore_dsl.frontend.ranges import RuntimeRange
from tensorcore_dsl.frontend.source import Source, source_of_code
from tensorcore_dsl.frontend.values import Group, Runtime, Scalar, Struct
from tensorcore_dsl.ir.nodes import Assign, Block, Const, If, Jump, Op, Type, walk

BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.MatMult: operator.matmul,
}  # fmt: skip
COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip


class LocalFunction:
    """A function or lambda defined inside a kernel."""

    def __init__(self, tree: Any, frame: Frame, source: Source, defaults: dict[str, Any]) -> None:
        self.tree, self.frame, self.source, self.defaults = tree, frame, source, defaults
        self.__name__ = getattr(tree, "name", "<lambda>")


def has_runtime(value: Any) -> bool:
    """Does a value carry something known only at run time?"""
    if isinstance(value, Runtime):
        return True
    if isinstance(value, (list, tuple)):
        return any(has_runtime(v) for v in value)
    if isinstance(value, dict):
        return any(has_runtime(v) for v in value.values())
    if isinstance(value, Struct):
        return True
    return False


class Expressions:
    """Evaluates expression nodes; the statements' evaluator builds on it."""

    builder: Builder
    frames: list[Frame]

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    # -- places --------------------------------------------------------------------------------

    def loc(self, node: Any) -> Loc:
        frame = self.frame
        source: Source = frame.source  # type: ignore[attr-defined]
        return Loc(
            frame.filename,
            node.lineno + source.line_offset,
            node.col_offset + source.column_offset,
            (node.end_col_offset or 0) + source.column_offset
            if node.end_lineno == node.lineno
            else 0,
            frame.function,
            frame.caller,  # type: ignore[attr-defined]
        )

    def enter(self, node: Any) -> Token[Loc | None]:
        return errors._current.set(self.loc(node))

    def eval(self, node: ast.expr) -> Any:
        method = getattr(self, f"eval_{type(node).__name__}", None)
        token = self.enter(node)
        try:
            if method is None:
                kind = type(node).__name__
                raise UnsupportedSyntax(f"{kind} expressions are not part of the kernel language")
            return method(node)
        except TensorCoreError:
            raise
        except Exception as error:  # Python's own error on compile-time values
            raise CompileError(f"{type(error).__name__}: {error}") from error
        finally:
            errors._current.reset(token)

    # -- leaves --------------------------------------------------------------------------------

    def eval_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def eval_Name(self, node: ast.Name) -> Any:
        value = self.lookup(node.id)
        if isinstance(value, Undefined):
            raise CompileError(f"{node.id!r} may be undefined here: {value.reason}")
        return value

    def lookup(self, name: str) -> Any:
        frame: Any = self.frame
        while isinstance(frame, Frame):
            if name in frame.variables:
                return frame.variables[name]
            if not isinstance(frame.enclosing, Frame):
                break
            frame = frame.enclosing
        if isinstance(frame.enclosing, dict) and name in frame.enclosing:
            return frame.enclosing[name]
        if name in frame.globals:
            return frame.globals[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise CompileError(f"name {name!r} is not defined")

    def eval_Attribute(self, node: ast.Attribute) -> Any:
        owner = self.eval(node.value)
        if not hasattr(owner, node.attr):
            raise CompileError(f"{type(owner).__name__} has no attribute {node.attr!r}")
        return getattr(owner, node.attr)

    def eval_Subscript(self, node: ast.Subscript) -> Any:
        return self.eval(node.value)[self.eval(node.slice)]

    def eval_Slice(self, node: ast.Slice) -> slice:
        parts = (node.lower, node.upper, node.step)
        return slice(*(None if p is None else self.eval(p) for p in parts))

    def eval_Tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self._items(node.elts))

    def eval_List(self, node: ast.List) -> list[Any]:
        return self._items(node.elts)

    def eval_Set(self, node: ast.Set) -> set[Any]:
        return set(self._items(node.elts))

    def _items(self, nodes: list[ast.expr]) -> list[Any]:
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

    def eval_JoinedStr(self, node: ast.JoinedStr) -> str:
        return "".join(self.eval(part) for part in node.values)

    def eval_FormattedValue(self, node: ast.FormattedValue) -> str:
        value = self.eval(node.value)
        if isinstance(value, Runtime):
            raise OperandError("an f-string is made at compile time; print(...) run-time values instead")
        conversion = {-1: str, 115: str, 114: repr, 97: ascii}[node.conversion]
        text = value if node.conversion == -1 else conversion(value)
        return format(text, self.eval(node.format_spec) if node.format_spec else "")

    def eval_NamedExpr(self, node: ast.NamedExpr) -> Any:
        value = self.eval(node.value)
        self.frame.variables[node.target.id] = value
        return value

    def eval_Lambda(self, node: ast.Lambda) -> LocalFunction:
        return self.local_function(node)

    def local_function(self, node: Any) -> LocalFunction:
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        values = [self.eval(d) for d in node.args.defaults]
        defaults = dict(zip(names[len(names) - len(values) :], values, strict=True))
        for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if default is not None:
                defaults[arg.arg] = self.eval(default)
        return LocalFunction(node, self.frame, self.frame.source, defaults)  # type: ignore[attr-defined]

    # -- operators -----------------------------------------------------------------------------

    def eval_BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.eval(node.left), self.eval(node.right)
        return self.binary(type(node.op), left, right)

    def binary(self, kind: type, left: Any, right: Any) -> Any:
        if kind is ast.Pow and isinstance(left, Runtime):
            return self._power(left, right)
        try:
            return BINARY[kind](left, right)
        except TypeError as error:
            if has_runtime(left) or has_runtime(right):
                from tensorcore_dsl.frontend.builder import describe

                raise OperandError(
                    f"{kind.__name__} is not defined for {describe(left)} and {describe(right)}"
                ) from error
            raise

    def _power(self, base: Any, exponent: Any) -> Any:
        if isinstance(exponent, int) and 1 <= exponent <= 16:
            return functools.reduce(operator.mul, [base] * exponent)
        raise OperandError("** of a run-time value takes a compile-time exponent from 1 to 16")

    def eval_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.eval(node.operand)
        if isinstance(node.op, ast.Not):
            return arithmetic.logical_not(self.builder, value)
        return UNARY[type(node.op)](value)

    def eval_Compare(self, node: ast.Compare) -> Any:
        left, result = self.eval(node.left), True
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.eval(right_node)
            step = self._compare(op, left, right)
            result = step if result is True else self._both(result, step)
            if result is False:
                return False
            left = right
        return result

    def _compare(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        if isinstance(op, (ast.In, ast.NotIn)):
            if isinstance(left, Runtime):
                tests = [self._compare(ast.Eq(), left, item) for item in right]
                found = functools.reduce(lambda a, b: a | b, tests, False)
                return arithmetic.logical_not(self.builder, found) if isinstance(op, ast.NotIn) else found
            return (left in right) == isinstance(op, ast.In)
        return COMPARE[type(op)](left, right)

    def _both(self, left: Any, right: Any) -> Any:
        if not isinstance(left, Runtime):
            return right if left else left
        return left & arithmetic.truth(self.builder, right)

    def eval_BoolOp(self, node: ast.BoolOp) -> Any:
        result = self.eval(node.values[0])
        for follower in node.values[1:]:
            result = self._bool_step(isinstance(node.op, ast.And), result, follower)
        return result

    def _bool_step(self, is_and: bool, left: Any, node: ast.expr) -> Any:
        """`left and right`, the right side evaluated only where Python would."""
        if not isinstance(left, Runtime):
            return self.eval(node) if bool(left) == is_and else left
        left = arithmetic.truth(self.builder, left)
        block = Block()
        with self.builder.inside(block):
            right = arithmetic.truth(self.builder, self.eval(node))
        if not isinstance(right, Scalar):
            return (left if right else False) if is_and else (True if right else left)
        if all(isinstance(n, (Op, Assign)) and cheap(n) for n in walk(block)):
            self.builder.block.nodes.extend(block.nodes)
            return left & right if is_and else left | right
        result = self.builder.literal(not is_and, right.dtype)
        with self.builder.inside(block):
            self.builder.append(Assign(result.value, (right.value,)))
        orelse = Block()
        branches = (block, orelse) if is_and else (orelse, block)
        self.builder.append(If(left.value, *branches))
        return result

    def eval_IfExp(self, node: ast.IfExp) -> Any:
        condition = arithmetic.truth(self.builder, self.eval(node.test))
        if not isinstance(condition, Scalar):
            return self.eval(node.body if condition else node.orelse)
        sides, blocks = [], []
        for part in (node.body, node.orelse):
            block = Block()
            with self.builder.inside(block):
                sides.append(self.eval(part))
            blocks.append(block)
        if all(cheap(n) for block in blocks for n in walk(block)):
            for block in blocks:
                self.builder.block.nodes.extend(block.nodes)
            return arithmetic.select(self.builder, condition, *sides)
        return self._branch_value(condition, blocks, sides)

    def _branch_value(self, condition: Scalar, blocks: list[Block], sides: list[Any]) -> Any:
        """A conditional expression whose sides must not both run."""
        from tensorcore_dsl.frontend.control import _join_variable, write_variable

        variable = _join_variable(self.builder, (0, "this expression"), *sides)
        for block, side in zip(blocks, sides, strict=True):
            with self.builder.inside(block):
                if isinstance(variable, Scalar):
                    side = arithmetic.coerce(self.builder, side, variable.dtype)
                write_variable(self.builder, variable, side)
        self.builder.append(If(condition.value, *blocks))
        return variable

    # -- comprehensions ------------------------------------------------------------------------

    def eval_ListComp(self, node: ast.ListComp) -> list[Any]:
        return list(self._comprehend(node.generators, lambda: self.eval(node.elt)))

    def eval_GeneratorExp(self, node: ast.GeneratorExp) -> list[Any]:
        return list(self._comprehend(node.generators, lambda: self.eval(node.elt)))

    def eval_SetComp(self, node: ast.SetComp) -> set[Any]:
        return set(self._comprehend(node.generators, lambda: self.eval(node.elt)))

    def eval_DictComp(self, node: ast.DictComp) -> dict[Any, Any]:
        pairs = self._comprehend(
            node.generators, lambda: (self.eval(node.key), self.eval(node.value))
        )
        return dict(pairs)

    def _comprehend(self, generators: list[ast.comprehension], item: Callable[[], Any]) -> list[Any]:
        hidden = dict(self.frame.variables)
        results: list[Any] = []
        names = {n.id for g in generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        self._generate(generators, item, results)
        for name in names:
            self.frame.variables.pop(name, None)
            if name in hidden:
                self.frame.variables[name] = hidden[name]
        return results

    def _generate(self, generators: list[ast.comprehension], item: Callable[[], Any], results: list[Any]) -> None:
        if not generators:
            results.append(item())
            return
        first, rest = generators[0], generators[1:]
        for value in self.static_items(self.eval(first.iter)):
            self.assign(first.target, value)
            if all(self._static_test(test) for test in first.ifs):
                self._generate(rest, item, results)

    def _static_test(self, node: ast.expr) -> bool:
        condition = arithmetic.truth(self.builder, self.eval(node))
        if isinstance(condition, Scalar):
            raise OperandError("the condition of a comprehension must be known at compile time")
        return bool(condition)

    def static_items(self, items: Any) -> Any:
        """The items of a compile-time sequence."""
        if isinstance(items, RuntimeRange):
            raise OperandError(
                "a comprehension or unrolled loop needs a range known at compile time; "
                "a run-time range can only be looped over with `for`"
            )
        if isinstance(items, Scalar):
            raise OperandError("a run-time scalar cannot be iterated over")
        return items

    def assign(self, target: ast.expr, value: Any) -> None:
        raise NotImplementedError

    # -- calls ---------------------------------------------------------------------------------

    def eval_Call(self, node: ast.Call) -> Any:
        function = self.eval(node.func)
        args = self._items(node.args)
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.eval(keyword.value)
            if keyword.arg is None:
                keywords.update(value)
            else:
                keywords[keyword.arg] = value
        return self.call(function, args, keywords)

    def call(self, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        while isinstance(function, functools.partial):
            args = [*function.args, *args]
            keywords = {**function.keywords, **keywords}
            function = function.func
        function = getattr(function, "__kernel_function__", function)
        special = self._builtin(function, args)
        if special is not None:
            return special(*args, **keywords)
        if isinstance(function, LocalFunction):
            return self.inline(function, args, keywords)
        if isinstance(function, types.MethodType) and _inlines(function.__func__):
            return self.inline(function.__func__, [function.__self__, *args], keywords)
        if isinstance(function, types.FunctionType) and _inlines(function):
            return self.inline(function, args, keywords)
        return function(*args, **keywords)

    def _builtin(self, function: Any, args: list[Any]) -> Any:
        if function is print:
            return language.printf
        if function is range and any(isinstance(a, Runtime) for a in args):
            return RuntimeRange
        if not has_runtime(args):
            return None
        return {
            min: functools.partial(self._reduce, language.minimum),
            max: functools.partial(self._reduce, language.maximum),
            float: lambda x: self.builder.convert(x, language.dtypes.f32),
            int: lambda x: self.builder.convert(x, language.dtypes.s32),
            bool: lambda x: arithmetic.truth(self.builder, x),
            sum: lambda items, start=0: functools.reduce(operator.add, items, start),
        }.get(function if isinstance(function, (type, types.BuiltinFunctionType)) else None)

    @staticmethod
    def _reduce(function: Any, *items: Any) -> Any:
        if len(items) == 1 and isinstance(items[0], (list, tuple)):
            items = tuple(items[0])
        return functools.reduce(function, items)

    def inline(self, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        raise NotImplementedError


def _inlines(function: types.FunctionType) -> bool:
    """User functions are evaluated like the kernel itself; the library's own are called."""
    module = function.__module__ or ""
    if module.split(".")[0] in ("tensorcore_dsl", "builtins", "numpy", "math", "functools"):
        return False
    filename = function.__code__.co_filename
    if "site-packages" in filename or filename.startswith("<frozen"):
        return False
    return source_of_code(function) is not None


def cheap(node: Any) -> bool:
    """May the node run although Python would have skipped it? Pure and short enough."""
    if isinstance(node, Op):
        return not node.form.effects and node.form.opcode not in ("div", "rem", "sqrt")
    return isinstance(node, Assign)


__all__ = ["Const", "Expressions", "Group", "Jump", "LocalFunction", "Type", "default_type"]
