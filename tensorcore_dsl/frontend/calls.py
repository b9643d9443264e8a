"""Calls: inline users' functions, and let Python call all others."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import random
import sys
import types
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from tensorcore_dsl.frontend.comprehensions import Comprehensions
from tensorcore_dsl.frontend.environment import Frame
from tensorcore_dsl.frontend.source import Function, Source, require_source, source_of
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.lang.builtin import has_runtime, replacement
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.origins import PACKAGE, is_foreign, is_library, is_of_package
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.values import UNSET, NeedsConstant, Undefined

from tensorcore_dsl.errors import (  # isort: skip
    CompileError,
    Loc,
    OperandError,
    TensorCoreError,
    UnsupportedSyntax,
    check_call,
    listing,
    misfit,
    plain_signature,
)

_HIGHER_ORDER = (functools.reduce, map, filter, itertools.starmap)  # call their first argument
MAX_DEPTH = 64
RESULT = "<result>"  # the variable that holds an inlined function's result
RETURNED = "<returned>"  # whether it has returned: False, True, or a predicate
_NOT_IN_KERNELS = (
    ast.Try,
    ast.Yield,
    ast.YieldFrom,
    ast.Await,
    ast.ClassDef,
    ast.Global,
    ast.Import,
    ast.ImportFrom,
    ast.AsyncFunctionDef,
)
UNTRACKED = (set, deque, bytearray, array, Iterator)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_SHARED_GENERATORS = (random.random.__self__, np.random.rand.__self__)  # type: ignore[attr-defined]
_CHANGES_NOTHING = frozenset(
    map(
        id,
        (
            len,
            range,
            min,
            max,
            abs,
            sum,
            any,
            all,
            int,
            float,
            bool,
            str,
            tuple,
            list,
            dict,
            set,
            zip,
            enumerate,
            isinstance,
            getattr,
            hasattr,
            type,
            repr,
            round,
            divmod,
            pow,
            reversed,
        ),
    )
)


class LocalFunction:
    """A function or lambda defined inside a kernel."""

    def __init__(self, evaluator: Calls, tree: Function, defaults: dict[str, Any]) -> None:
        self.evaluator, self.tree, self.frame = evaluator, tree, evaluator.frame
        self.__name__ = getattr(tree, "name", "<lambda>")
        self.signature = _signature(tree.args, defaults)
        named = self.__name__ != "<lambda>"
        self.described = f"the function {self.__name__}" if named else "a lambda"

    def __repr__(self) -> str:
        return self.described

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """For Python's own higher-order functions, such as map and functools.reduce."""
        return self.evaluator.inline(self, list(args), keywords)


class Calls(Comprehensions):
    """Evaluates calls."""

    def eval_Call(self, node: ast.Call) -> Any:
        function = self.eval(node.func)
        function = getattr(function, "__kernel_function__", function)
        args = self.items(node.args)
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.eval(keyword.value)
            for name, item in value.items() if keyword.arg is None else ((keyword.arg, value),):
                if name in keywords:
                    raise CompileError(f"the keyword argument {name!r} is given twice")
                keywords[name] = item
        try:
            return self.call(function, args, keywords)
        except OperandError as error:
            if error.loc is None and (function is emit or isinstance(function, Instruction)):
                error.loc = self._loc_of_operand(node, error, first=int(function is emit))
            raise

    def _loc_of_operand(self, node: ast.Call, error: OperandError, first: int) -> Loc | None:
        """The location of the argument that an instruction rejected; `first` is its first operand."""
        misfit = self.builder.misfit
        starred = any(isinstance(arg, ast.Starred) for arg in node.args)
        if misfit is None or misfit[0] is not error or starred:
            return None
        return self.locate(node.args[first + misfit[1]])

    def call(self, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Inline a user's function, or let Python call any other one."""
        while isinstance(function, functools.partial):
            args = [*function.args, *args]
            keywords = {**function.keywords, **keywords}
            function = function.func
        function = getattr(function, "__kernel_function__", function)
        if args and any(function is known for known in _HIGHER_ORDER):
            args = [functools.partial(self._called, args[0]), *args[1:]]
        special = replacement(function, args)
        if special is not None:
            return special(*args, **keywords)
        if isinstance(function, LocalFunction):
            return self.inline(function, args, keywords)
        target = _python_function(function)
        if target is None:
            return self._by_python(function, args, keywords)
        arguments = [function.__self__, *args] if isinstance(function, types.MethodType) else args
        if target is not function and not isinstance(function, types.MethodType):
            arguments = args if hasattr(function, "__wrapped__") else [function, *args]
        if _is_kernel_code(target) and (_is_plain(target) or has_runtime([arguments, keywords])):
            return self.inline(target, arguments, keywords)
        return self._by_python(function, args, keywords)

    def _by_python(self, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Let Python call a function, which must change nothing around the kernel."""
        for argument in args:
            self.check_advance(argument)
        module = getattr(function, "__module__", None) or type(function).__module__
        if is_library(module) or id(function) in _CHANGES_NOTHING:
            return self._called_by_python(function, args, keywords)
        self._check_repeatable(function)
        if isinstance(function, type) and has_runtime([args, keywords]):
            self.surroundings.enter_class(function)
        if isinstance(getattr(function, "__self__", None), UNTRACKED):
            self.check_tracked(function.__self__, function.__name__)
        result = self._called_by_python(function, args, keywords)
        self.surroundings.check_all()
        return result

    def _called_by_python(self, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        """`function(*args, **keywords)`; its errors name the function and its parameters."""
        try:
            return function(*args, **keywords)
        except NeedsConstant as error:
            if error.loc is not None:
                raise
            raise _named_constant(function, args, keywords, error) from None
        except (AttributeError, TypeError, ValueError, LookupError, AssertionError) as error:
            if isinstance(error, TensorCoreError):
                raise
            check_call(function, _name_of(function), args, keywords, CompileError)
            if not callable(function):
                raise OperandError(f"{describe(function)} cannot be called") from None
            if is_library(getattr(function, "__module__", None) or ""):
                complaint = misfit(function, _name_of(function), args, keywords, describe)
                if complaint:
                    raise OperandError(complaint) from None
                named = (f"{key}={describe(value)}" for key, value in keywords.items())
                why = f": {error}" if isinstance(error, ValueError) else ""
                raise OperandError(
                    f"{_name_of(function)}{plain_signature(inspect.signature(function))} cannot "
                    f"take ({listing([*map(describe, args), *named])}){why}"
                ) from None
            raise

    def _check_repeatable(self, function: Any) -> None:
        """OperandError for a function that gives another result whenever a kernel is compiled."""
        owner = getattr(function, "__self__", None)
        if isinstance(owner, _GENERATORS) and (
            owner in _SHARED_GENERATORS or self.surroundings.name_of(owner) is not None
        ):
            raise OperandError(
                f"{function.__name__} draws a number when the kernel is compiled, not at run time: "
                "pass an array of random numbers, or make the generator in the kernel"
            )
        if getattr(function, "__module__", None) == "time":
            raise OperandError(
                f"time.{function.__name__} runs when the kernel is compiled; "
                'tc.special("clock64") is the clock of the GPU'
            )

    def check_advance(self, items: Any) -> None:
        """OperandError if taking items changes what is around the kernel, or is not followed."""
        if isinstance(items, Iterator):
            self.surroundings.check(items)
            self.check_tracked(items)

    def check_tracked(self, container: Any, method: str = "") -> None:
        """OperandError if run-time control flow changes a container that it does not follow."""
        raise NotImplementedError

    def _called(self, function: Any, *args: Any) -> Any:
        return self.call(function, list(args), {})

    def inline(self, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Evaluate the body of a function; the locations of its ops include the chain of calls."""
        if len(self.frames) >= MAX_DEPTH:
            raise CompileError(
                f"calls nest deeper than {MAX_DEPTH} here: a recursion must end at compile time"
            )
        frame = self._frame_of(function, args, keywords)
        frame.caller = self.locate()
        frame.variables.update({RESULT: UNSET, RETURNED: False})
        self.frames.append(frame)
        try:
            self.run_body(frame.source.tree)
            result = frame.variables[RESULT]
            if isinstance(result, Undefined):
                raise OperandError(
                    f"the result of {frame.function} has no one type: {result.reason}",
                    self.locate(frame.source.tree) if self._is_called_by_library() else None,
                )
        finally:
            self.frames.pop()
        return result

    def _is_called_by_library(self) -> bool:
        """True if a kernel of the library has called the user's function under evaluation."""
        return is_of_package(str(self.frames[-2].globals.get("__name__", "")))

    def _frame_of(self, function: Any, args: list[Any], keywords: dict[str, Any]) -> Frame:
        name = function.__name__
        if isinstance(function, LocalFunction):
            outer = function.frame
            source = Source(function.tree, outer.source.filename)
            variables = _bound(function.signature, name, args, keywords)
            return Frame(name, source, variables, outer, outer.globals)
        source = require_source(function)
        variables = _bound(_signature_of(function), name, args, keywords)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.surroundings.enter(value, f"a default of {name}")
        return Frame(name, source, variables, cells_of(function), function.__globals__)

    def run_body(self, tree: Function) -> None:
        """Evaluate a function's body in its frame; its result becomes the variable RESULT."""
        raise NotImplementedError

    # -- functions defined in kernels ------------------------------------------------------------

    def eval_Lambda(self, node: ast.Lambda) -> LocalFunction:
        return self.local_function(node)

    def local_function(self, node: Function) -> LocalFunction:
        if getattr(node, "decorator_list", None):
            raise UnsupportedSyntax("a function inside a kernel has no decorators")
        arguments = node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        values = [self.eval(d) for d in arguments.defaults]
        defaults = dict(zip(names[len(names) - len(values) :], values, strict=True))
        for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if default is not None:
                defaults[arg.arg] = self.eval(default)
        return LocalFunction(self, node, defaults)


def cells_of(function: Any) -> dict[str, Any]:
    """The variables of enclosing Python functions."""
    variables: dict[str, Any] = {}
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            variables[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return variables


# -- arguments -------------------------------------------------------------------------------


def _signature(arguments: ast.arguments, defaults: dict[str, Any]) -> inspect.Signature:
    kind = inspect.Parameter
    groups: list[tuple[Any, list[ast.arg]]] = [
        (kind.POSITIONAL_ONLY, arguments.posonlyargs),
        (kind.POSITIONAL_OR_KEYWORD, arguments.args),
        (kind.VAR_POSITIONAL, [arguments.vararg] if arguments.vararg else []),
        (kind.KEYWORD_ONLY, arguments.kwonlyargs),
        (kind.VAR_KEYWORD, [arguments.kwarg] if arguments.kwarg else []),
    ]
    return inspect.Signature(
        [
            kind(a.arg, which, default=defaults.get(a.arg, kind.empty))
            for which, group in groups
            for a in group
        ]
    )


@lru_cache(maxsize=4096)
def _signature_of(function: Any) -> inspect.Signature:
    return inspect.signature(function)


class _Signed:
    """Something with the signature of a function."""

    def __init__(self, signature: inspect.Signature) -> None:
        self.__signature__ = signature

    def __call__(self) -> None:
        raise NotImplementedError


def _bound(
    signature: inspect.Signature, name: str, args: list[Any], keywords: dict[str, Any]
) -> dict[str, Any]:
    """The value of each parameter, as Python binds arguments."""
    try:
        bound = signature.bind(*args, **keywords)
    except TypeError:
        check_call(_Signed(signature), name, args, keywords, CompileError)
        raise
    bound.apply_defaults()
    return dict(bound.arguments)


def _name_of(function: Any) -> str:
    """A function as users call it: tc.shfl, math.gamma, .load of an object."""
    name = getattr(function, "__name__", type(function).__name__)
    module = getattr(function, "__module__", None) or ""
    if is_library(module):
        public = vars(sys.modules[PACKAGE]).get(name)
        public = getattr(public, "__kernel_function__", public)
        return f"tc.{name}" if public is function else f".{name}"
    return name if module in ("", "builtins") else f"{module}.{name}"


def _named_constant(
    function: Any, args: list[Any], keywords: dict[str, Any], error: NeedsConstant
) -> OperandError:
    """The error with the name of the argument that must be known at compile time, if it is one."""
    by_name: dict[str, Any] = dict(keywords)
    with suppress(TypeError, ValueError):
        by_name = inspect.signature(function).bind(*args, **keywords).arguments
    names = [key for key, item in by_name.items() if item is error.value]
    if not names:
        return OperandError(error.message)
    return OperandError(
        f"the argument {names[0]!r} of {_name_of(function)} must be known at compile time, as a "
        f"tc.Const parameter is; {error.value.described} was given"
    )


# -- which functions are kernel code ---------------------------------------------------------


def _python_function(function: Any) -> types.FunctionType | None:
    """The Python function behind a function, method, cached function or callable object."""
    if isinstance(function, types.FunctionType):
        return function
    if isinstance(function, types.MethodType):
        target: Any = function.__func__
    elif isinstance(function, functools._lru_cache_wrapper):
        target = function.__wrapped__
    elif isinstance(function, (type, types.BuiltinFunctionType)):
        return None
    else:
        target = vars(type(function)).get("__call__")
    return target if isinstance(target, types.FunctionType) else None


@lru_cache(maxsize=4096)
def _is_kernel_code(function: types.FunctionType) -> bool:
    """True if the body may be part of a kernel. False for functions of the library, Python and NumPy."""
    module, filename = function.__module__ or "", function.__code__.co_filename
    if is_foreign(module, filename, function.__globals__):
        return False
    return source_of(function) is not None


@lru_cache(maxsize=4096)
def _is_plain(function: types.FunctionType) -> bool:
    """True if it has only syntax of kernels. Python may call other functions at compile time."""
    source = source_of(function)
    if source is None or inspect.isgeneratorfunction(function):
        return False
    return not any(isinstance(node, _NOT_IN_KERNELS) for node in ast.walk(source.tree))
