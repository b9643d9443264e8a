"""Functions that users pass to kernels, an epilogue or a transform of elements, and their arguments.

An epilogue f(value, row, col) is called for each element of D. It takes further arguments by name:
`batch`, the number of the matrix, and the arrays and numbers of `epilogue_args`.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView, Mapping
from dataclasses import dataclass, replace
from inspect import Signature, signature
from reprlib import repr as brief
from typing import Any, TypeAlias

import tensorcore_dsl as tc
from tensorcore_dsl.host import Loc

# Both forms, so that checkers know the parameters of a lambda.
Epilogue: TypeAlias = Callable[[Any, Any, Any], Any] | Callable[..., Any]
ELEMENT = ("value", "row", "col")  # positional parameters of every epilogue


@dataclass(frozen=True)
class EpilogueCall:
    """An epilogue with further arguments by name. Methods are inlined into kernels.

    Attributes
    ----------
    function : function
        The user's epilogue.
    names : tuple of str
        Names of the arguments of `epilogue_args`.
    takes_batch : bool
        The epilogue takes the number of the matrix, too.
    values : tuple
        The arguments, in kernels.
    last : tuple
        The last row and column of D.
    """

    function: Callable[..., Any]
    names: tuple[str, ...] = ()
    takes_batch: bool = False
    values: tuple[Any, ...] = ()
    last: tuple[Any, ...] = ()

    def apply(self, value, coord):
        """Call the function for an element at `coord`: [matrix,] row, column.

        Tiles reach beyond D. Elements outside get the coordinates of D's last row or column, so that
        the function reads arrays as large as D inside their bounds. They are not stored.
        """
        named = dict(zip(self.names, self.values, strict=True))
        if self.takes_batch:
            named["batch"] = coord[0] if len(coord) == 3 else 0
        position = coord[-2:]
        if len(self.last) > 0:
            position = [min(x, last) for x, last in zip(position, self.last, strict=True)]
        return self.function(value, *position, **named)


def apply_epilogue(epilogue, value, coord):
    """Call the epilogue for an element at `coord`, and convert its result; in kernels."""
    if isinstance(epilogue, EpilogueCall):
        function, result = epilogue.function, epilogue.apply(value, coord)
    else:
        function, result = epilogue, epilogue(value, *coord[-2:])
    if isinstance(result, (bool, int, float)):
        return value.dtype(result)
    if not hasattr(result, "dtype") or hasattr(result, "shape") or result.dtype == tc.pred:
        raise tc.CompileError(
            f"the epilogue {name_of(function)} returns {kind_of(result)}; it must be a number, the "
            f"element of D",
            definition(function),
        )
    # The store packs f32 accumulators in pairs.
    return result.to(tc.f32) if value.dtype == tc.f32 and result.dtype != tc.f32 else result


@tc.kernel
def with_epilogue_args(
    *arguments, kernel: tc.Const, first: tc.Const, result: tc.Const, epilogue: tc.Const, options: tc.Const
):
    """Run `kernel` with the arguments of its epilogue inserted after its `first` arguments.

    result: number of the argument that is D. options: the Const values by name; the epilogue is
    one of them, or belongs to the traits.
    """
    end = first + len(epilogue.names)
    operands, named = (*arguments[:first], *arguments[end:]), dict(options)
    last = [extent - 1 for extent in operands[result].shape[-2:]]
    bound = replace(epilogue, values=arguments[first:end], last=last)
    if "traits" in named:
        named["traits"] = replace(named["traits"], epilogue=bound)
    else:
        named["epilogue"] = bound
    kernel(*operands, **named)


# -- checks on the host ------------------------------------------------------------------------


def split_args(epilogue_args: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Split `epilogue_args` into names and values."""
    if epilogue_args is None:
        return (), ()
    if not isinstance(epilogue_args, Mapping) or not all(isinstance(n, str) for n in epilogue_args):
        raise tc.ArgumentError(
            f"epilogue_args is {brief(epilogue_args)}; it must be a dictionary of names and values, "
            f"such as {{'bias': bias}}"
        )
    return tuple(epilogue_args), tuple(epilogue_args.values())


def named_arguments(names: Any) -> tuple[str, ...]:
    """Check the names of an epilogue's arguments; refuse an object that is no sequence of texts."""
    several = isinstance(names, (tuple, list, set, frozenset, Mapping, KeysView))
    if several and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise tc.ArgumentError(f"epilogue_args is {brief(names)}; they must be names, such as ('bias',)")


def kernel_of_epilogue(
    kernel: Any, options: dict[str, Any], epilogue: Any, first: int
) -> tuple[Any, dict[str, Any]]:
    """The kernel that takes the epilogue's arguments from `first` on, and its Const values.

    `kernel` with its own options, if the epilogue has no arguments.
    """
    names = getattr(epilogue, "names", ())
    if not names:
        return kernel, options
    operands = kernel.runtime_names
    constants = {
        "kernel": kernel,
        "first": first,
        "result": operands.index("d"),
        "epilogue": epilogue,
        "options": tuple(options.items()),
    }
    taken = [*operands, *constants]
    for name in names:  # a parameter has the name of its argument, for messages
        while name in taken:
            name = f"epilogue_{name}"
        taken.append(name)
    named = taken[-len(names) :]
    return with_epilogue_args.with_arguments(*operands[:first], *named, *operands[first:]), constants


def check_epilogue(epilogue: Any, names: tuple[str, ...] = ()) -> Any:
    """The epilogue as the traits of kernels hold it: None, a function, or an EpilogueCall.

    names: of `epilogue_args`. Refuses what cannot be called with these.
    """
    if epilogue is None:
        if names:
            text = ", ".join(names)
            raise tc.ArgumentError(f"epilogue_args has {text}, but there is no epilogue")
        return None
    signature = _signature("epilogue", epilogue, (*ELEMENT, *names))
    takes_batch = signature is not None and "batch" in signature.parameters and "batch" not in names
    named = (*names, "batch") if takes_batch else names
    _check_call("epilogue", epilogue, signature, ELEMENT, named)
    return EpilogueCall(epilogue, names, takes_batch) if named else epilogue


def check_function(name: str, function: Any, *parameters: str) -> None:
    """Refuse what cannot be called with these positional parameters."""
    _check_call(name, function, _signature(name, function, parameters), parameters, ())


def _signature(name: str, function: Any, parameters: tuple[str, ...]) -> Signature | None:
    """None for a builtin without a signature; the kernel language checks those itself."""
    if not callable(function):
        raise tc.ArgumentError(
            f"{name} is {function!r}; a function {name}({', '.join(parameters)}) of the kernel "
            f"language is needed"
        )
    try:
        return signature(function)
    except ValueError:
        return None


def _check_call(
    name: str,
    function: Any,
    signature: Signature | None,
    positional: tuple[str, ...],
    by_name: tuple[str, ...],
) -> None:
    """Refuse a function that cannot be called with these parameters."""
    try:
        if signature is not None:
            signature.bind(*positional, **dict.fromkeys(by_name))
    except TypeError as error:
        wanted = f"{name}({', '.join((*positional, *by_name))})"
        raise tc.ArgumentError(
            f"{name} is {name_of(function)}{signature}; a function {wanted} of the kernel language is "
            f"needed: {error}",
            definition(function),
        ) from None


def name_of(function: Any) -> str:
    """Name of a function for messages."""
    return getattr(function, "__name__", type(function).__name__)


def definition(function: Any) -> Loc | None:
    """The first line of a Python function, or of the function inside a partial."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    return code and Loc(code.co_filename, code.co_firstlineno)


def kind_of(result: Any) -> str:
    """Describe the result of an epilogue, for messages."""
    if result is None:
        return "None"
    dtype = getattr(result, "dtype", None)
    return f"a {type(result).__name__}" + (f" of {dtype}" if dtype is not None else "")
