"""Parameters of a kernel, and the meaning of their annotations: `Array`, `Const`, element types."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args

from tensorcore_dsl.dtypes import ALL, DType, as_dtype
from tensorcore_dsl.errors import ArgumentError, Loc, OperandError
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.lang.peers import PeerArray


class Const:
    """Annotation of a parameter whose value is known at compile time: `Const`, or `Const[int]`.

    A value that differs, by its contents or its type, compiles a new specialisation. Numbers,
    dtypes, strings, lists, arrays, dataclasses and functions serve.

    Examples
    --------
    >>> @tc.kernel
    ... def power(x: tc.Array, n: tc.Const[int] = 2):
    ...     value = x[tc.threadIdx.x]
    ...     for _ in tc.static_range(n - 1):
    ...         value *= x[tc.threadIdx.x]
    ...     x[tc.threadIdx.x] = value
    >>> x = np.full(32, 2, np.float32)
    >>> power[1, 32](x, n=5)
    >>> float(x[0])
    32.0
    """

    def __class_getitem__(cls, kind: Any) -> type[Const]:
        """The kind of value is for readers and type checkers."""
        return cls


@dataclass(frozen=True)
class Parameter:
    """A parameter of the function: Const, or a run-time argument (of type `dtype` if annotated).

    Attributes
    ----------
    by_name : bool
        The parameter follows `*` or `*arguments`, so it has no position.
    optional : bool
        The argument may be None; the kernel is then compiled for None.
    peers : bool
        The argument is a PeerArray.
    shared : bool
        The argument is the array of one rank of a PeerArray.
    """

    name: str
    const: bool = False
    array: bool = False
    dtype: DType | None = None
    default: Any = inspect.Parameter.empty
    by_name: bool = False
    optional: bool = True
    peers: bool = False
    shared: bool = False

    @property
    def kind(self) -> str:
        """The annotation in short."""
        if self.peers:
            return "PeerArray"
        return "Const" if self.const else "Array" if self.array else str(self.dtype or "")

    def __str__(self) -> str:
        text = f"{self.name}: {self.kind}" if self.kind else self.name
        return text if self.default is inspect.Parameter.empty else f"{text} = {self.default!r}"


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters of a function in order, without `*arguments` (see Definition)."""
    parameters = []
    for p in inspect.signature(function).parameters.values():
        if p.kind == p.VAR_KEYWORD:
            raise ArgumentError(f"kernel {function.__name__}: {p} is not possible; name every parameter")
        if p.kind == p.VAR_POSITIONAL:
            continue
        note, optional = _meaning(function, p.name, p.annotation)
        dtype = None
        if note in (p.empty, None, Any):
            optional = True
        elif note not in (Array, Const, PeerArray):
            dtype = _declared(function, p.name, note)
        known = note is Const, note is Array, dtype, p.default, p.kind == p.KEYWORD_ONLY
        optional = optional or p.default is None
        parameters.append(Parameter(p.name, *known, optional, note is PeerArray))
    in_class = not f"<locals>.{function.__qualname__}".rpartition(".")[0].endswith("<locals>")
    if in_class and any(p.name == "self" and not p.const for p in parameters[:1]):
        raise ArgumentError(
            f"kernel {function.__name__}: a launch passes no 'self', although the kernel is "
            "defined in a class; leave it out, and pass what the kernel needs of the object as "
            "arguments (tc.Const for what is known at compile time)",
            Loc.of_function(function),
        )
    return parameters


def _meaning(function: Callable[..., Any], name: str, note: Any) -> tuple[Any, bool]:
    """Return the meaning of an annotation without None, and whether it allows None."""
    note = getattr(note, "__forward_arg__", note)
    if isinstance(note, str):
        return _meaning(function, name, _evaluated(function, name, note))
    members = get_args(note)
    if NoneType in members and len(members) == 2:
        return _meaning(function, name, members[members[0] is NoneType])[0], True
    return note, False


def _evaluated(function: Callable[..., Any], name: str, note: str) -> Any:
    """Evaluate a quoted or postponed annotation in the function's scope."""
    if note in ALL:
        return ALL[note]
    scope = inspect.getclosurevars(function).nonlocals
    frame = inspect.currentframe()
    while frame and frame.f_globals is not function.__globals__:
        frame = frame.f_back
    try:  # the frame that defines the function has names that the function's body does not use
        return eval(note, function.__globals__, {**(frame.f_locals if frame else {}), **scope})
    except Exception as error:
        raise ArgumentError(
            f"kernel {function.__name__}: the annotation {note!r} of {name!r} cannot be evaluated: "
            f"{type(error).__name__}: {error}"
        ) from None


def _declared(function: Callable[..., Any], name: str, note: Any) -> DType:
    """Return the element type that an annotation names."""
    try:
        dtype = as_dtype(note)
        if dtype.bits <= 64:
            return dtype
        raise OperandError("no parameter is wider")
    except OperandError:
        text = note.__name__ if isinstance(note, type) else repr(note)
        meant = {"list": "tc.Array", "ndarray": "tc.Array", "Tensor": "tc.Array", "str": "tc.Const"}
        hint = f"; did you mean {meant[text]}?" if text in meant else ""
        raise ArgumentError(
            f"kernel {function.__name__}: {name!r} cannot be annotated with {text}; allowed are "
            "tc.Array, tc.PeerArray, tc.Const (a value known at compile time), element types such as "
            f"tc.f32 or np.float32, int, float, bool, one of these | None, or nothing{hint}",
            Loc.of_function(function),
        ) from None
