"""Measure a kernel with one configuration: launches, arrays between them, clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensorcore_dsl.errors import ArgumentError, TensorCoreError
from tensorcore_dsl.kernel import Launch
from tensorcore_dsl.runtime import driver, restore
from tensorcore_dsl.runtime.arguments import ArrayType, describe
from tensorcore_dsl.runtime.array_interop import stream_handle
from tensorcore_dsl.runtime.targets import current_target
from tensorcore_dsl.runtime.timing import DeviceClock, HostClock, current_stream, separately
from tensorcore_dsl.runtime.trials import DeviceFailure
from tensorcore_dsl.tuning.config import Config

Timer = Callable[[Callable[[], Any]], float]
Prune = Callable[[list[Config], dict[str, Any]], Iterable[Config]]


@dataclass(frozen=True)
class Settings:
    """How an autotuned kernel is measured, as `autotune` describes it."""

    key: tuple[str, ...]
    prune: Prune | None
    restore_value: tuple[str, ...]
    reset_to_zero: tuple[str, ...]
    warmup: float
    rep: float
    timer: Timer | None
    remember: bool


@dataclass(frozen=True)
class Call:
    """Arguments of a launch: run-time ones by name, and Const values that are not tuned."""

    runtime_named: dict[str, Any]
    constants: dict[str, Any]

    @property
    def runtime(self) -> list[Any]:
        """The run-time arguments in order."""
        return list(self.runtime_named.values())

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by name."""
        return {**self.runtime_named, **self.constants}


def check(name: str, call: Call, settings: Settings, stream: Any) -> None:
    """ArgumentError where these arguments cannot be measured, whatever the configuration."""
    for title in ("restore_value", "reset_to_zero"):
        for parameter in getattr(settings, title):
            value = call.runtime_named[parameter]
            if not isinstance(describe(value, f"argument {parameter!r}").type, ArrayType):
                raise ArgumentError(
                    f"{name}: {title} names {parameter!r}, which is not an array but {value!r}"
                )
    if current_target() == "cpu":
        return
    handle = current_stream(call.runtime) if stream is None else stream_handle(stream)
    if driver.cuda_driver().is_capturing(handle):
        raise ArgumentError(
            f"{name} is tuned at its first launch, and a CUDA graph captures this one: launch or "
            "tune it with such arguments before"
        )


def seconds(
    launch: Launch, constants: dict[str, Any], call: Call, settings: Settings, share: float = 1
) -> float:
    """Seconds of a launch with these Const values: the median of many, or of a share of them."""
    warmup, rep = (share * ms / 1e3 for ms in (settings.warmup, settings.rep))
    with _prepared(launch, constants, call, settings) as (once, reset, clock):
        if settings.timer is None:
            return statistics.median(separately(once, clock, warmup, rep, setup=reset))
        if reset is None:
            return settings.timer(once)
        return settings.timer(lambda: (reset(), once())[1])


@contextmanager
def _prepared(
    launch: Launch, constants: dict[str, Any], call: Call, settings: Settings
) -> Iterator[tuple[Callable[[], None], Callable[[], None] | None, Any]]:
    """A launch without arguments, what resets its arrays, and the clock that measures it."""
    names = list(call.runtime_named)
    kept = [names.index(name) for name in settings.restore_value]
    zeroed = [names.index(name) for name in settings.reset_to_zero]
    if current_target() == "cpu":
        once = partial(launch, **call.runtime_named, **constants)
        with restore.on_cpu(call.runtime, kept, zeroed) as reset:
            yield once, reset if kept or zeroed else None, HostClock()
        return
    again = launch.launcher(constants).repeatable(*call.runtime)
    clock = DeviceClock(again.stream, again.device)
    failures = _failures(launch.kernel.__name__, constants)
    with failures, restore.on_gpu(again, kept, zeroed) as reset:
        yield again.launch, reset if kept or zeroed else None, clock


@contextmanager
def _failures(name: str, constants: dict[str, Any]) -> Iterator[None]:
    """The driver's own errors become a DeviceFailure: the GPU's context is lost."""
    try:
        yield
    except (TensorCoreError, ValueError, RuntimeError):
        raise
    except Exception as error:
        raise DeviceFailure(
            f"{name}: the GPU failed while a configuration was measured with {constants}: {error}; "
            "the kernel is wrong with it, and this process cannot use the GPU any more"
        ) from error
