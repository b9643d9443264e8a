"""Last step of a call: bind its launch, and store it in the dispatch cache for calls like it.

A call whose operands and options are known costs one key, one look-up and one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, current_target, describe, key_function, target_arch, target_key
from tensorcore_dsl.kernels.host.arguments import described, is_array, shown
from tensorcore_dsl.kernels.host.arrays import broadcast_to, empty_like, on_stream
from tensorcore_dsl.kernels.user_functions import split_args

MAX_ENTRIES = 1024  # beyond, the oldest goes
_cached: dict[Any, Any] = {}
_recorder: ContextVar[list[Bound] | None] = ContextVar("_recorder", default=None)


@dataclass(frozen=True)
class Bound:
    """A kernel for types of arguments and Const values, on an architecture, as it is compiled."""

    kernel: Any
    types: tuple[Any, ...]
    constants: dict[str, Any]
    arch: str

    @property
    def key(self) -> Any:
        """What it is the same for as another one."""
        return self.kernel, self.types, tuple(sorted(self.constants.items())), self.arch

    def compile(self) -> None:
        """Compile it, or find it in the cache on disk."""
        _ = self.kernel.specialised(self.types, self.constants, self.arch).cubin


@contextmanager
def recorded() -> Iterator[list[Bound]]:
    """What is bound inside is listed, and calls launch nothing."""
    found: list[Bound] = []
    token = _recorder.set(found)
    try:
        yield found
    finally:
        _recorder.reset(token)


def is_recording() -> bool:
    """Whether calls launch nothing, as `recorded` lists what they bind."""
    return _recorder.get() is not None


def bind(
    kernel: Any,
    grid: Any,
    threads: int,
    options: dict[str, Any],
    operands: tuple[Any, ...],
    *,
    stream: Any = None,
    pdl: bool = False,
) -> Callable[..., None]:
    """A function that launches `kernel` on operands like these.

    options: values of the kernel's Const parameters. pdl: programmatic dependent launch, which
    lets the kernel start before the one ahead of it in the stream has ended.
    """
    recorder = _recorder.get()
    if recorder is not None:
        runtime, constants = kernel.split(operands, options)
        types = kernel.types_of(runtime)
        recorder.append(Bound(kernel, types, constants, target_arch().name))
        return launch_nothing
    configured = kernel.configured(grid, threads, stream=stream, pdl=pdl)
    if current_target() == "cpu":
        return partial(configured, **options)
    launch: Callable[..., None] = configured.launcher(kernel.split(operands, options)[1])
    return launch


@dataclass(frozen=True)
class PreparedCall:
    """An entry of the cache: the operands are checked, and the kernel is chosen and bound.

    shape, dtype: of the result. scalars: what the launch takes behind the arrays. allocate_rows:
    makes an array beside a given one for the results of row reductions, if they are asked for.
    """

    shape: tuple[int, ...]
    dtype: Any
    launch: Callable[..., None]
    scalars: tuple[Any, ...] = ()
    allocate_rows: Callable[[Any], Any] | None = None

    def result(self, like: Any, out: Any) -> Any:
        """`out`, or a new array beside `like`."""
        return empty_like(like, self.shape, self.dtype) if out is None else out

    def run(self, out: Any, *operands: Any, values: tuple[Any, ...] = ()) -> Any:
        """Launch on operands that the kernel takes before its result; returns the result.

        values: what it takes behind the result.
        """
        out = self.result(operands[0], out)
        self.launch(*operands, out, *values)
        return out


def launch_with_c(
    launch: Callable[..., None], c: Description | None, shape: tuple[int, ...], place: int
) -> Callable[..., None]:
    """`launch`, whose argument `place` is C, with a view of C as large as the product.

    c: the caller's C; nothing changes if it has that shape.
    """
    if c is None or c.shape == shape:
        return launch

    def launch_broadcast(*arguments: Any) -> None:
        view = broadcast_to(arguments[place], shape)
        launch(*arguments[:place], view, *arguments[place + 1 :])

    return launch_broadcast


def launch_nothing(*operands: Any) -> None:
    """The launch of a product without elements."""


def cached_call(
    results: Sequence[Any],
    arrays: Sequence[Any],
    options: tuple[Any, ...],
    prepare: Callable[[], PreparedCall],
) -> PreparedCall:
    """prepare(), or what it returned before for the same options and arrays alike.

    results: the caller's arrays that the launch writes; arrays: those that it reads. Arrays are
    alike that have the same class, type, shape, strides, alignment and device, where a result
    shares memory with another array also the same distance; the target belongs to the key as well.
    Errors are not cached.
    """
    key: Any
    given = (*results, *arrays)
    if is_recording():
        return prepare()
    try:
        array_key = key_function(tuple(map(type, given)), len(results))(*given)
        key = (array_key, len(results), options, target_key())
        call: PreparedCall | None = _cached.get(key)
    except Exception:  # no array, or an option that is not hashable: `prepare` reports errors
        key = call = None
    if call is None:
        call = prepare()
        if key is not None:
            _cached[key] = call
            if len(_cached) > MAX_ENTRIES:
                del _cached[next(iter(_cached))]
    return call


def without_terms(
    prepare: Callable[..., PreparedCall],
    zeros: Callable[..., tuple[Any, ...]],
    operands: tuple[Any, ...],
    stream: Any,
) -> PreparedCall:
    """prepare(*zeros(*operands)), where K is 0: the call of a product whose terms are all zero.

    The kernels then apply epilogues, and whatever else comes behind the sums. operands: those that
    launches get first; zeros(*operands) are made for each launch.
    """

    def replaced(*arguments: Any) -> tuple[Any, ...]:
        with on_stream(arguments[0], stream):
            return *zeros(*arguments[: len(operands)]), *arguments[len(operands) :]

    call = prepare(*replaced(*operands))
    return replace(call, launch=lambda *arguments: call.launch(*replaced(*arguments)))


def prepared_call(
    prepare: Callable[..., PreparedCall],
    operands: tuple[Any, ...],
    out: Any,
    epilogue_args: EpilogueArgs,
    *options: Any,
) -> PreparedCall:
    """prepare(*operands, out, epilogue_args, *options), or what it returned before."""
    results = () if out is None else (out,)
    return cached_call(
        results,
        (*operands, *epilogue_args.arrays),
        (prepare, *epilogue_args.key, *options),
        lambda: prepare(*operands, out, epilogue_args, *options),
    )


@dataclass(frozen=True)
class EpilogueArgs:
    """What an epilogue takes by name: arrays and numbers, in the order of the caller's mapping.

    arrays: those among the values. key: what distinguishes calls beside them, the names and the
    types of numbers.
    """

    names: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    arrays: tuple[Any, ...] = ()
    key: tuple[Any, ...] = ()

    @classmethod
    def of(cls, given: Any) -> EpilogueArgs:
        """The arguments of a mapping; none of None."""
        if given is None:
            return NO_ARGS
        names, values = split_args(given)
        is_number = [isinstance(x, NUMBERS) for x in values]
        arrays = [x for x, number in zip(values, is_number, strict=True) if not number]
        types = [type(x) if number else None for x, number in zip(values, is_number, strict=True)]
        return cls(names, values, tuple(arrays), (names, *types))

    def described(self) -> dict[str, Description]:
        """Descriptions of the arrays, by the names that messages give them."""
        arrays = {}
        for name, x in zip(self.names, self.values, strict=True):
            label = f"epilogue_args[{name!r}]"
            if isinstance(x, NUMBERS):
                describe(x, label)
            elif is_array(x):
                arrays[label] = x
            else:
                raise tc.ArgumentError(f"{label} is {shown(x)}; needed is an array or a number")
        return described(**arrays)


NO_ARGS = EpilogueArgs()
NUMBERS = (bool, int, float, np.generic)
