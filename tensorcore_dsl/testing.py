"""`tc.testing.do_bench`: time of a function on the GPU, or on the CPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np

from tensorcore_dsl.errors import ArgumentError, check_call, listing, public
from tensorcore_dsl.runtime.array_interop import stream_handle
from tensorcore_dsl.runtime.targets import current_target
from tensorcore_dsl.runtime.timing import Clock, DeviceClock, HostClock, current_stream, separately

_MODES: dict[str, Callable[[list[float]], Any]] = {
    "median": statistics.median,
    "mean": statistics.fmean,
    "min": min,
    "max": max,
    "all": list,
}


@overload
def do_bench(
    function: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    *,
    quantiles: None = None,
    return_mode: Literal["median", "mean", "min", "max"] = "median",
    setup: Callable[[], Any] | None = None,
    cold: bool = True,
    stream: Any = None,
) -> float: ...


@overload
def do_bench(
    function: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    *,
    quantiles: Sequence[float],
    return_mode: str = "median",
    setup: Callable[[], Any] | None = None,
    cold: bool = True,
    stream: Any = None,
) -> list[float]: ...


@overload
def do_bench(
    function: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    *,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "median",
    setup: Callable[[], Any] | None = None,
    cold: bool = True,
    stream: Any = None,
) -> Any: ...


@public
def do_bench(
    function: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    *,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "median",
    setup: Callable[[], Any] | None = None,
    cold: bool = True,
    stream: Any = None,
) -> Any:
    """Milliseconds that a call of the function takes, as in Triton: the median of many calls.

    Parameters
    ----------
    function : function
        Without parameters. What it launches on a GPU is timed by CUDA events around each call;
        where the target is the CPU, the system's clock times it.
    warmup, rep : float
        Milliseconds for which it is called before, and while measuring.
    quantiles : sequence of float, optional
        Return a list of these quantiles, such as (0.5, 0.2, 0.8).
    return_mode : {"median", "mean", "min", "max", "all"}
        "all" gives the list of all times.
    setup : function, optional
        Called before each call, and not timed.
    cold : bool
        Empty the L2 cache before each call, and not timed.
    stream : stream, optional
        The stream on which the function launches; None is torch's current one, if torch uses the
        GPU, else the default stream.

    Returns
    -------
    float or list of float
        Milliseconds.

    Raises
    ------
    ArgumentError
        Numbers or a mode that are not allowed; no function without parameters.

    Examples
    --------
    >>> times = tc.testing.do_bench(lambda: sum(range(100)), warmup=1, rep=2, return_mode="all")
    >>> len(times) >= 1 and min(times) > 0
    True
    """
    _check("warmup", warmup, least=0)
    _check("rep", rep, least=0)
    if return_mode not in _MODES:
        raise ArgumentError(f"return_mode is {return_mode!r}; it may be {listing(_MODES)}")
    for quantile in quantiles or ():
        _check("a quantile", quantile, least=0, most=1)
    for name, argument in (("function", function), ("setup", setup)):
        if not (callable(argument) or (argument is None and name == "setup")):
            raise ArgumentError(f"{name} is {argument!r}; a function without parameters is needed")
        if argument is not None:
            check_call(argument, f"{name} is called without arguments: {name}", (), {}, ArgumentError)
    clock = _clock(stream)
    seconds = separately(function, clock, warmup / 1e3, rep / 1e3, setup=setup, cold=cold)
    times = [second * 1e3 for second in seconds]
    if quantiles is not None:
        return [float(value) for value in np.quantile(times, list(quantiles))]
    return _MODES[return_mode](times)


def _clock(stream: Any) -> Clock:
    if current_target() == "cpu":
        return HostClock()
    return DeviceClock(current_stream() if stream is None else stream_handle(stream))


def _check(name: str, value: Any, least: float, most: float = float("inf")) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        limits = f"from {least} to {most}" if most < float("inf") else f"of at least {least}"
        raise ArgumentError(f"{name} is {value!r}; a number {limits} is needed")


__all__ = ["do_bench"]
