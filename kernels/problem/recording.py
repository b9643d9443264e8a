"""Record the launches that calls would make, without making them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc

_recorder: ContextVar[list[Bound] | None] = ContextVar("_recorder", default=None)


@dataclass(frozen=True)
class Bound:
    """A launch that is not made: kernel, types and shapes of arguments, Const values and configuration.

    shapes: of the arrays among the arguments, by name.
    """

    kernel: tc.Kernel
    types: tuple[Any, ...]
    constants: dict[str, Any]
    arch: str
    grid: Any
    threads: int
    pdl: bool
    shapes: dict[str, tuple[int, ...]]

    @property
    def key(self) -> Any:
        """Equal keys mean equal machine code."""
        return self.kernel, self.types, tuple(sorted(self.constants.items())), self.arch

    def compile(self) -> None:
        """Compile the kernel, or find it in the cache on disk."""
        _ = self.kernel.specialised(self.types, self.constants, self.arch).cubin


@contextmanager
def recorded() -> Iterator[list[Bound]]:
    """Context that lists the kernels that calls bind; calls inside launch nothing."""
    bound: list[Bound] = []
    token = _recorder.set(bound)
    try:
        yield bound
    finally:
        _recorder.reset(token)


def recorder() -> list[Bound] | None:
    """List of the active `recorded` context; None outside of such contexts."""
    return _recorder.get()


def is_recording() -> bool:
    """Whether a `recorded` context is active, so that calls launch nothing."""
    return _recorder.get() is not None
