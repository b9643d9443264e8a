"""Last step of a call: bind a kernel to its launch, so that repeated calls decide nothing more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tensorcore_dsl.host import current_target


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
