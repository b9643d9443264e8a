"""Last step of a call: bind its launch, and store it in the dispatch cache for calls like it.

A call whose operands and options are known costs one key, one look-up and one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import (
    Description,
    check_stream,
    current_target,
    describe,
    key_function,
    target_arch,
    target_key,
)
from tensorcore_dsl.kernels.host.arguments import described, is_array, shown
from tensorcore_dsl.kernels.host.arrays import broadcast_to, empty_like, on_stream
from tensorcore_dsl.kernels.host.operands import check_bits
from tensorcore_dsl.kernels.problem.recording import Bound, is_recording, recorder
from tensorcore_dsl.kernels.user_functions import Epilogue, check_epilogue, split_args

MAX_ENTRIES = 1024  # calls in the dispatch cache; a further one replaces the oldest
_cached: dict[Any, Any] = {}


def bind(
    kernel: tc.Kernel,
    grid: Any,
    threads: int,
    options: dict[str, Any],
    operands: tuple[Any, ...],
    *,
    stream: Any = None,
    pdl: bool = False,
) -> Callable[..., None]:
    """Bind a function that launches `kernel` on operands like these.

    options: values of the kernel's Const parameters. pdl: programmatic dependent launch, which
    lets the kernel start before the previous kernel of the stream has ended.
    """
    launches = recorder()
    if launches is not None:
        runtime, constants = kernel.split(operands, options)
        types = kernel.types_of(runtime)
        shapes = {
            name: describe(x).shape
            for name, x, kind in zip(kernel.runtime_names, runtime, types, strict=True)
            if isinstance(kind, tc.ArrayType)
        }
        launches.append(Bound(kernel, types, constants, target_arch().name, grid, threads, pdl, shapes))
        return launch_nothing
    configured = kernel.configured(grid, threads, stream=stream, pdl=pdl)
    if current_target() == "cpu":
        return partial(configured, **options)
    launch: Callable[..., None] = configured.launcher(kernel.split(operands, options)[1])
    return launch


@dataclass(frozen=True)
class PreparedCall:
    """An entry of the dispatch cache: the operands are checked, and the kernel is chosen and bound.

    Attributes
    ----------
    shape, dtype : tuple, DType
        Shape and element type of the result.
    launch : function
        The bound launch.
    scalars : tuple
        Arguments of the launch after the arrays.
    allocate_rows : function or None
        Makes an array like its argument for the results of row reductions. None: there are none.
    """

    shape: tuple[int, ...]
    dtype: tc.DType
    launch: Callable[..., None]
    scalars: tuple[Any, ...] = ()
    allocate_rows: Callable[[Any], Any] | None = None

    def result(self, like: Any, out: Any) -> Any:
        """`out`, or a new array on the device of `like`."""
        return empty_like(like, self.shape, self.dtype) if out is None else out

    def run(self, out: Any, *operands: Any, values: tuple[Any, ...] = ()) -> Any:
        """Launch with `operands` before the result and `values` after it; returns the result."""
        out = self.result(operands[0], out)
        self.launch(*operands, out, *values)
        return out


def bind_with_c(
    bind: Callable[[tuple[Any, ...]], Callable[..., None]],
    operands: tuple[Any, ...],
    c: Any,
    in_c: Description | None,
    d: Any,
    shape: tuple[int, ...],
    *values: Any,
) -> Callable[..., None]:
    """Bind a launch on operands, C, D and values, whose C is broadcast to the shape of the product.

    in_c: the description of C. None: D takes the place of C.
    """
    if in_c is None or in_c.shape == shape:
        return bind((*operands, d if in_c is None else c, d, *values))
    c_index = len(operands)
    launch = bind((*operands, broadcast_to(c, shape), d, *values))
    return lambda *arguments: launch(
        *arguments[:c_index], broadcast_to(arguments[c_index], shape), *arguments[c_index + 1 :]
    )


def call_with_c(
    prepare: Callable[[], PreparedCall],
    key: tuple[Any, ...],
    arrays: tuple[Any, ...],
    operands: tuple[Any, ...],
    like: Any,
    c: Any,
    out: Any,
    extra: EpilogueArgs,
) -> Any:
    """Launch the cached call of prepare() on operands, C, the result, scalars and epilogue arguments.

    arrays: the arrays of the operands. like: an operand on the device of a new result.
    """
    results = () if out is None else (out,)
    key = (*key, c is None, *extra.key)
    call = cached_call(results, (*arrays, *(() if c is None else (c,)), *extra.arrays), key, prepare)
    out = call.result(like, out)
    call.launch(*operands, out if c is None else c, out, *call.scalars, *extra.values)
    return out


def launch_nothing(*operands: Any) -> None:
    """The launch of a product without elements."""


def cached_call(
    results: Sequence[Any],
    arrays: Sequence[Any],
    options: tuple[Any, ...],
    prepare: Callable[[], PreparedCall],
    known: dict[Any, Any] = _cached,
) -> PreparedCall:
    """Return the cached result of prepare() for equal options and similar arrays, or call it.

    results: the caller's arrays that the launch writes. arrays: the arrays that it reads. Similar
    arrays have the same class, type, shape, strides, alignment and device. If a result shares memory
    with another array, their distance is the same, too. The target belongs to the key. Errors are
    not cached. known: the cache.
    """
    key: Any
    all_arrays = (*results, *arrays)
    if is_recording():
        return prepare()
    try:
        array_key = key_function(tuple(map(type, all_arrays)), len(results))(*all_arrays)
        key = (array_key, len(results), options, target_key())
        call: PreparedCall | None = known.get(key)
    except Exception:  # no array, or an option that is not hashable: `prepare` reports errors
        key = call = None
    if call is None:
        call = prepare()
        if key is not None:
            known[key] = call
            if len(known) > MAX_ENTRIES:
                del known[next(iter(known))]
    return call


def without_terms(
    prepare: Callable[..., PreparedCall],
    zeros: Callable[..., tuple[Any, ...]],
    operands: tuple[Any, ...],
    stream: Any,
    *others: Any,
) -> PreparedCall:
    """Prepare a product with K = 0: prepare(*zeros(*operands), *others), whose terms are all zero.

    The kernels then apply the epilogue and the row reductions. operands: the first arguments of each
    launch, for which it makes zeros(*operands).
    """

    def replaced(*arguments: Any) -> tuple[Any, ...]:
        with on_stream(arguments[0], stream):
            return *zeros(*arguments[: len(operands)]), *arguments[len(operands) :]

    call = prepare(*replaced(*operands), *others)
    return replace(call, launch=lambda *arguments: call.launch(*replaced(*arguments)))


def call_product(
    prepare: Callable[..., PreparedCall],
    operands: tuple[Any, ...],
    out: Any,
    extra: EpilogueArgs,
    epilogue: Epilogue | None,
    bits: str,
    stream: Any,
    *options: Any,
) -> Any:
    """Launch the cached call of prepare(*operands, out, extra, epilogue, stream, *options)."""

    def checked() -> PreparedCall:
        check_stream(stream)
        check_bits(bits)
        return prepare(*operands, out, extra, check_epilogue(epilogue, extra.names), stream, *options)

    results = () if out is None else (out,)
    key = (prepare, *extra.key, epilogue, bits, stream, *options)
    call = cached_call(results, (*operands, *extra.arrays), key, checked)
    return call.run(out, *operands, values=extra.values)


@dataclass(frozen=True)
class EpilogueArgs:
    """Arguments of an epilogue by name, in the order of the caller's mapping.

    arrays: the arrays among the values. key: names, and types of numbers; part of the cache's key.
    """

    names: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    arrays: tuple[Any, ...] = ()
    key: tuple[Any, ...] = ()

    @classmethod
    def of(cls, mapping: Any) -> EpilogueArgs:
        """Make the arguments of a mapping; None has no arguments."""
        if mapping is None:
            return NO_ARGS
        names, values = split_args(mapping)
        is_number = [isinstance(x, NUMBERS) for x in values]
        arrays = [x for x, number in zip(values, is_number, strict=True) if not number]
        types = [type(x) if number else None for x, number in zip(values, is_number, strict=True)]
        return cls(names, values, tuple(arrays), (names, *types))

    def described(self) -> dict[str, Description]:
        """Describe the arrays, by their names in messages."""
        arrays = {}
        for name, x in zip(self.names, self.values, strict=True):
            label = f"epilogue_args[{name!r}]"
            if isinstance(x, NUMBERS):
                describe(x, label)
            elif is_array(x):
                arrays[label] = x
            else:
                raise tc.ArgumentError(f"{label} is {shown(x)}; it must be an array or a number")
        return described(**arrays)


NO_ARGS = EpilogueArgs()
NUMBERS = (bool, int, float, np.generic)
