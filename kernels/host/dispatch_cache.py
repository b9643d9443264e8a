"""What was decided for operands of certain types and shapes, kept for the next call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.runtime.fast_launch import key_function
from tensorcore_dsl.runtime.targets import current_target
from tensorcore_dsl.runtime.targets import target_key as target_now

Recipe = TypeVar("Recipe")
MOST = 1024
_kept: dict[Any, Any] = {}


@dataclass(frozen=True)
class Ready:
    """A product whose operands have been checked and whose kernel has been chosen.

    numbers: what the launch takes behind the arrays.
    """

    shape: tuple[int, ...]
    dtype: Any
    launch: Callable[..., None]
    numbers: tuple[Any, ...] = ()

    def result(self, like: Any, out: Any) -> Any:
        """`out`, or a new array where `like` lives."""
        return empty_like(like, self.shape, self.dtype) if out is None else out

    def into(self, out: Any, *operands: Any) -> Any:
        """The product of these operands, in `out` or a new array."""
        out = self.result(operands[0], out)
        self.launch(*operands, out)
        return out


def no_work(*operands: Any) -> None:
    """What launches a product without elements."""


def recall(arrays: Sequence[Any], wishes: tuple[Any, ...], make: Callable[[], Recipe]) -> Recipe:
    """`make()`, or what it gave before: for the same wishes, and arrays of the same classes,
    types, shapes, strides and alignment, on the same target. Errors are not kept."""
    key: Any
    try:
        key = (key_function(tuple(map(type, arrays)))(*arrays), wishes, target_now())
        found: Recipe | None = _kept.get(key)
    except Exception:  # a new or wrong argument, or no hashable wish: the long way tells
        key = found = None
    if found is None:
        found = make()
        if key is not None:
            _kept[key] = found
            if len(_kept) > MOST:
                del _kept[next(iter(_kept))]
    return found


def ready(
    prepare: Callable[..., Ready], operands: tuple[Any, ...], out: Any, *wishes: Any
) -> Ready:
    """prepare(*operands, out, *wishes), or what it gave before."""
    arrays = operands if out is None else (*operands, out)
    return recall(arrays, (prepare, *wishes), lambda: prepare(*operands, out, *wishes))


def launch_of(plan: Any, stream: Any, operands: tuple[Any, ...]) -> Callable[..., None]:
    """What launches a plan's kernel on operands like these, with no more to decide."""
    configured, options = plan.configured(stream), dict(plan.options)
    if current_target() == "cpu":
        return partial(configured, **options)
    launch: Callable[..., None] = configured.launcher(plan.kernel.split(operands, options)[1])
    return launch
