"""Global memory through which workers hand over sums of divided tiles: kept, one for each stream.

kernels/hopper/streamk_gemm.py uses it. Launches that may run at a time must not share it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.runtime.array_interop import cupy_stream, stream_handle, torch_stream

Pair = tuple[Any, Any]
_kept: dict[Any, Pair] = {}


def exchange(config: HopperConfig, dtype: Any, like: Any, stream: Any = None) -> Pair:
    """The sums and the flags, all 0, for a launch on `stream` (None: the current one).

    sums: a row for each consumer of the grid. What a CUDA graph captures gets its own, which the
    graph clears; NumPy arrays too, as threads may emulate at a time.
    """
    rows = config.streamk_units * config.cluster_size * config.consumers
    shape = (rows, 64 * config.BN)
    if _passing(like):
        return _pair(like, shape, dtype)
    key = (*_place(like, stream), shape, dtype)
    found = _kept.get(key)
    if found is None:
        found = _kept[key] = _pair(like, shape, dtype)
        _synchronize(like)  # the flags are cleared on the current stream, which may be another
    return found


def _pair(like: Any, shape: tuple[int, int], dtype: Any) -> Pair:
    flags = empty_like(like, shape[:1], tc.s32)
    flags[:] = 0
    return empty_like(like, shape, dtype), flags


def _library(like: Any) -> str:
    return type(like).__module__.partition(".")[0]


def _passing(like: Any) -> bool:
    """Is the memory for one launch, or one graph, only?"""
    if _library(like) == "torch":
        return not like.is_cuda or sys.modules["torch"].cuda.is_current_stream_capturing()
    return not hasattr(like, "__cuda_array_interface__")


def _place(like: Any, stream: Any) -> tuple[Any, int]:
    """The device and the stream that a launch with this array goes to."""
    library = _library(like)
    current: Callable[[], int] = int
    if library == "torch":
        device = like.device.index
        current = torch_stream(device)
    elif library == "cupy":
        device, current = like.device.id, cupy_stream()
    else:
        device = import_module("numba.cuda").get_current_device().id
    return device, current() if stream is None else stream_handle(stream)


def _synchronize(like: Any) -> None:
    library = _library(like)
    if library == "torch":
        sys.modules["torch"].cuda.current_stream(like.device).synchronize()
    elif library == "cupy":
        sys.modules["cupy"].cuda.get_current_stream().synchronize()
    else:
        import_module("numba.cuda").synchronize()
