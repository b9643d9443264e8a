"""Functions of compiled loops, and the decorators that make them.

Numbers have 64 bits (see `values`). A variable keeps the type of its first value. Annotations name the
types of parameters and result. A function with result `Any` is inlined at each call, where constant
arguments stay constants.

These functions may contain: numbers, truth values, arrays (elements, views, `.size`, `.shape`, `.any()`,
`.ctypes.data` of contiguous ones; values are stored to elements and views), structures, pointers and arrays
of ctypes (fields and items), named tuples of all these,
`np.empty` and `np.zeros` (memory of the call, not inside loops), `min`, `max`, `abs`, casts such as
`np.uint32(x)`, functions of `numeric`, `for` over `range` and over tuples, `while`, `if`,
and calls of functions of this kind.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from llvmlite import ir

from tensorcore_dsl.lowering import machine, values
from tensorcore_dsl.lowering.forms import Compiled
from tensorcore_dsl.lowering.statements import Body
from tensorcore_dsl.lowering.values import BOOLEAN, COUNT, DOUBLE, Number

Function = TypeVar("Function", bound=Callable[..., Any])

KINDS: dict[str, Any] = {"int": COUNT, "bool": BOOLEAN, "float": DOUBLE, "None": None} | {
    f"tuple[{', '.join(['int'] * n)}]": (COUNT,) * n for n in (2, 3, 4)
}  # kind by annotation


class Lowered:
    """A function for compiled loops. py_func: the function of Python."""

    def __init__(self, function: Callable[..., Any], inline: bool) -> None:
        self.py_func, self.inline = function, inline
        self.parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        self.kinds = [function.__annotations__.get(name, "Any") for name in self.parameters]
        result = function.__annotations__.get("return", "Any")
        self.parameter_kinds = [KINDS.get(kind) for kind in self.kinds]  # None: any
        self.in_place = result == "Any"
        self.result = KINDS.get(result)
        self.linked: Compiled | None = None  # makes the code that other modules call

    def call(self, builder: ir.IRBuilder, operands: Iterable[Any]) -> Any:
        """Emit a call. The function is translated once for each module and combination of kinds."""
        pairs = zip(self.kinds, operands, strict=True)
        if self.in_place:
            return self._in_place(
                builder, [x if kind == "Any" else values.cast(builder, KINDS[kind], x) for kind, x in pairs]
            )
        arguments = [
            x
            if kind == "Any" and not isinstance(x, values.KNOWN)
            else values.cast(builder, values.number(x).type if kind == "Any" else KINDS[kind], x)
            for kind, x in pairs
        ]
        function = self.function(builder.module, tuple(x.type for x in arguments))
        result = builder.call(function, [part for x in arguments for part in x.parts])
        if isinstance(self.result, tuple):
            parts = (builder.extract_value(result, i) for i in range(len(self.result)))
            return tuple(map(Number, self.result, parts))
        return None if self.result is None else Number(self.result, result)

    def function(self, module: ir.Module, kinds: tuple[Any, ...]) -> ir.Function:
        """Return the module's LLVM function for these kinds; declare or translate it at the first request."""
        return self.linked.declared(module, kinds) if self.linked else self.translated(module, kinds)

    def type(self, kinds: tuple[Any, ...]) -> ir.FunctionType:
        """Return the type of the LLVM function for these kinds."""
        parts = [part for kind in kinds for part in values.llvm_types(kind)]
        return ir.FunctionType(values.result_type(self.result), parts)

    def translated(self, module: ir.Module, kinds: tuple[Any, ...]) -> ir.Function:
        """Return the LLVM function for these kinds that the module contains."""
        path = f"{self.py_func.__module__}.{self.py_func.__qualname__}.{id(self):x}"
        name = f"{path}({','.join(map(str, kinds))})"
        if name in module.globals:
            return module.globals[name]
        function = ir.Function(module, self.type(kinds), name)
        function.linkage = "internal"
        function.attributes.add("nounwind")
        if self.inline:
            function.attributes.add("alwaysinline")
        left, builder = iter(function.args), ir.IRBuilder(function.append_basic_block())
        arguments = [values.of_parts(builder, kind, left) for kind in kinds]
        body = Body(builder, self._scope(), lambda value: self._return(builder, value))
        body.translate(self.py_func.__code__, dict(zip(self.parameters, arguments)))
        if not builder.block.is_terminated:
            if self.result is None:
                builder.ret_void()
            else:
                builder.unreachable()
        return function

    def _scope(self) -> Mapping[str, Any]:
        function = self.py_func
        cells = (cell.cell_contents for cell in function.__closure__ or ())
        enclosed = dict(zip(function.__code__.co_freevars, cells))
        return ChainMap(enclosed, function.__globals__)

    def _return(self, builder: ir.IRBuilder, value: Any) -> None:
        if self.result is None:
            builder.ret_void()
        elif isinstance(self.result, tuple):
            packed = ir.Constant(values.result_type(self.result), ir.Undefined)
            for i, (kind, x) in enumerate(zip(self.result, value, strict=True)):
                packed = builder.insert_value(packed, values.cast(builder, kind, x).value, i)
            builder.ret(packed)
        else:
            builder.ret(values.cast(builder, self.result, value).value)

    def _in_place(self, builder: ir.IRBuilder, arguments: list[Any]) -> Any:
        end = builder.append_basic_block()
        returned: list[tuple[Any, ir.Block]] = []

        def leave(value: Any) -> None:
            returned.append((value, builder.block))
            builder.branch(end)

        body = Body(builder, self._scope(), leave)
        body.translate(self.py_func.__code__, dict(zip(self.parameters, arguments)))
        if not builder.block.is_terminated:
            if any(value is not None for value, _ in returned):
                builder.unreachable()  # all ways return a value
            else:
                leave(None)
        builder.position_at_end(end)
        return _one_of(body, returned)

    def __call__(self, *arguments: Any) -> Any:
        return self.py_func(*arguments)


def _one_of(body: Body, returned: list[tuple[Any, ir.Block]]) -> Any:
    """Join the values of a function's `return` statements to its result."""
    first, _ = returned[0]
    if len(returned) == 1 or first is None:
        return first
    if isinstance(first, tuple):
        columns = zip(*(x for x, _ in returned), strict=True)
        blocks = [block for _, block in returned]
        return tuple(_one_of(body, list(zip(column, blocks))) for column in columns)
    numbers = [(values.number(x), block) for x, block in returned]
    return body.one_of(values.joined([x.type for x, _ in numbers]), numbers)


class Primitive:
    """A function that emits its code: it takes the LLVM builder and values."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function

    def call(self, builder: ir.IRBuilder, operands: Iterable[Any]) -> Any:
        return self.py_func(builder, *operands)


def primitive(function: Callable[..., Any]) -> Any:
    """Decorate a function f(builder, *values) that emits the code of `f(*values)`."""
    return Primitive(function)


def inlined(function: Function) -> Function:
    """Decorate a function that compiled functions inline at each call."""
    lowered: Any = Lowered(function, inline=True)
    return lowered  # type: ignore[no-any-return]


def compiled(function: Function) -> Function:
    """Decorate a function that Python and compiled functions call; it runs without the GIL.

    Array arguments are annotated `Any`. Few optimisation passes run, which takes a third of the time of
    `vectorised`.
    """
    callable_object: Any = Compiled(Lowered(function, inline=False), machine.PLAIN)
    return callable_object  # type: ignore[no-any-return]


def compiled_once(function: Function) -> Function:
    """Decorate a function like `compiled`. Other modules link to its code and do not contain it."""
    callable_object: Any = compiled(function)
    callable_object.lowered.linked = callable_object
    return callable_object  # type: ignore[no-any-return]


def vectorised(function: Function) -> Function:
    """Decorate a function like `compiled`, and let LLVM vectorise its loops over elements."""
    callable_object: Any = Compiled(Lowered(function, inline=False), machine.VECTORS)
    return callable_object  # type: ignore[no-any-return]
