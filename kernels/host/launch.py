"""Last step of a call: bind its launch, and store it in the dispatch cache for calls like it.

A call whose operands and options are known costs one key, one look-up and one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensorcore_dsl.host import current_target, key_function, target_key
from tensorcore_dsl.kernels.host.arrays import empty_like

MAX_ENTRIES = 1024  # beyond, the oldest goes
_cached: dict[Any, Any] = {}


def bind(
    kernel: Any, grid: Any, threads: int, options: dict[str, Any], operands: tuple[Any, ...], *,
    stream: Any = None, pdl: bool = False,
) -> Callable[..., None]:  # fmt: skip
    """A function that launches `kernel` on operands like these.

    options: values of the kernel's Const parameters. pdl: programmatic dependent launch, which
    lets the kernel start before the one ahead of it in the stream has ended.
    """
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

    def run(self, out: Any, *operands: Any) -> Any:
        """Launch on operands that the kernel takes before its result; returns the result."""
        out = self.result(operands[0], out)
        self.launch(*operands, out)
        return out


def launch_nothing(*operands: Any) -> None:
    """The launch of a product without elements."""


def cached_call(
    arrays: Sequence[Any], options: tuple[Any, ...], prepare: Callable[[], PreparedCall]
) -> PreparedCall:
    """prepare(), or what it returned before for the same options and arrays alike.

    Arrays are alike that have the same class, type, shape, strides, alignment and device; the
    target belongs to the key as well. Errors are not cached.
    """
    key: Any
    try:
        key = (key_function(tuple(map(type, arrays)))(*arrays), options, target_key())
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


def prepared_call(
    prepare: Callable[..., PreparedCall], operands: tuple[Any, ...], out: Any, *options: Any
) -> PreparedCall:
    """prepare(*operands, out, *options), or what it returned before."""
    arrays = operands if out is None else (*operands, out)
    return cached_call(arrays, (prepare, *options), lambda: prepare(*operands, out, *options))
