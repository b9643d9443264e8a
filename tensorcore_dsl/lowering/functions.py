"""The functions that compiled loops consist of, and the decorators that make them.

Numba infers types and chooses among overloads for each operation, which takes seconds for a
function of a hundred lines. Functions that are marked here need none of this: numbers have 64 bits
(see `values`), a variable keeps the type of its first value, and annotations name the types
of parameters and of the result. Numba compiles the call from Python, and keeps the code.

What these functions may contain: numbers, truth values, arrays (elements, views, `.size`,
`.shape`, `.ctypes.data`, `.any()`; values are stored to elements and views), named tuples of
arrays, `np.empty` and `np.zeros` (memory of the call, not inside loops), `min`, `max`, casts such
as `types.uint32(x)`, `for` over `range`, `while`, `if`, and calls of functions of this kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tensorcore_dsl.environment.compiled_loops import compiled_for_function
from tensorcore_dsl.lowering import values
from tensorcore_dsl.lowering.statements import Body
from tensorcore_dsl.lowering.values import COUNT, Number

Function = TypeVar("Function", bound=Callable[..., Any])

_types: Any = types  # without types
SOURCES = tuple(map(str, sorted(Path(__file__).parent.glob("*.py"))))
KINDS = {"int": COUNT, "bool": types.boolean, "Any": COUNT, "None": types.none} | {
    f"tuple[{', '.join(['int'] * n)}]": _types.UniTuple(COUNT, n) for n in (2, 3, 4)
}  # of annotations


class Lowered:
    """A function for compiled loops. py_func: the function of Python."""

    def __init__(self, function: Callable[..., Any], inline: bool) -> None:
        self.py_func, self.inline = function, inline
        self.parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        self.kinds = [function.__annotations__[name] for name in self.parameters]
        self.result = KINDS[function.__annotations__["return"]]

    def call(self, builder: ir.IRBuilder, given: Iterable[Any]) -> Any:
        """Its result for values; it is translated once for each module."""
        arguments = [
            x if kind == "Any" and not isinstance(x, int)
            else values.cast(builder, values.number(x).type if kind == "Any" else KINDS[kind], x)
            for kind, x in zip(self.kinds, given, strict=True)
        ]  # fmt: skip
        function = self._function(builder.module, tuple(x.type for x in arguments))
        found = builder.call(function, [part for x in arguments for part in x.parts])
        if isinstance(self.result, types.UniTuple):
            parts = (builder.extract_value(found, i) for i in range(self.result.count))
            return tuple(Number(COUNT, part) for part in parts)
        return None if self.result is types.none else Number(self.result, found)

    def _function(self, module: ir.Module, kinds: tuple[Any, ...]) -> ir.Function:
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}({','.join(map(str, kinds))})"
        if name in module.globals:
            return module.globals[name]
        result = values.result_type(self.result)
        parts = [part for kind in kinds for part in values.llvm_types(kind)]
        function = ir.Function(module, ir.FunctionType(result, parts), name)
        function.linkage = "internal"
        function.attributes.add("nounwind")
        if self.inline:
            function.attributes.add("alwaysinline")
        left = iter(function.args)
        arguments = [values.of_parts(kind, left) for kind in kinds]
        body = Body(function, self.py_func.__globals__, self.result)
        body.translate(self.py_func.__code__, dict(zip(self.parameters, arguments)))
        return function

    def __call__(self, *arguments: Any) -> Any:
        return self.py_func(*arguments)


class Primitive:
    """A function of the builder of LLVM's code and of values."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function

    def call(self, builder: ir.IRBuilder, given: Iterable[Any]) -> Any:
        return self.py_func(builder, *given)


def primitive(function: Callable[..., Any]) -> Any:
    """To be called with (builder, *values) where compiled code has `f(*values)`."""
    return Primitive(function)


def inlined(function: Function) -> Function:
    """For compiled functions alone, which contain a copy of it for each call."""
    made: Any = Lowered(function, inline=True)
    return made  # type: ignore[no-any-return]


def compiled(function: Function) -> Function:
    """For compiled functions and for Python, without the GIL. Array arguments: `Any`."""
    lowered = Lowered(function, inline=False)

    def typing(kinds: tuple[Any, ...]) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            pairs = zip(kinds, given, strict=True)
            found = lowered.call(builder, [values.of_numba(context, builder, *x) for x in pairs])
            if isinstance(found, tuple):
                parts = [x.value for x in found]
                return context.make_tuple(builder, lowered.result, parts)
            return context.get_dummy_value() if found is None else found.value

        return lowered.result(*kinds), generate

    # Numba asks for functions with as many parameters.
    name, names = function.__name__, ", ".join(lowered.parameters)
    scope: dict[str, Any] = {"__name__": function.__module__, "typing": typing}
    exec(f"def body(context, {names}): return typing(({names},))", scope)
    scope["body"] = intrinsic(scope["body"])
    exec(f"def {name}({names}): return body({names})", scope)
    made = compiled_for_function(scope[name], function, *SOURCES)
    made.lowered = lowered
    return made  # type: ignore[no-any-return]
