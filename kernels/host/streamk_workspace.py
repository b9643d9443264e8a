"""Workspace of stream-K: accumulators and flags in global memory, cached for each stream.

A CTA that starts inside a tile hands its accumulators over to the CTA that started the tile
(kernels/hopper/streamk_gemm.py). Launches that may overlap must not share a workspace.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import cupy_stream, stream_handle, torch_stream
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.arrays import empty_like, library_of

Workspace = tuple[Any, Any]
_cached: dict[Any, Workspace] = {}


def streamk_workspace(
    config: HopperConfig, dtype: Any, like: Any, stream: Any = None
) -> Workspace:
    """Accumulators and flags (all 0) for a launch on `stream`; None is the current stream.

    The accumulators have a row of 64 x BN for each consumer of the grid, the flags one s32. A
    launch that a CUDA graph captures gets a workspace of its own, which the graph clears; NumPy
    arrays as well, since several threads may emulate at the same time.
    """
    rows = config.streamk_units * config.cluster_size * config.consumers
    shape = (rows, 64 * config.BN)
    if _is_for_one_launch(like):
        return _allocate(like, shape, dtype)
    key = (*_device_and_stream(like, stream), shape, dtype)
    workspace = _cached.get(key)
    if workspace is None:
        workspace = _cached[key] = _allocate(like, shape, dtype)
        _synchronize(like)  # the current stream clears the flags, and `stream` may be another one
    return workspace


def _allocate(like: Any, shape: tuple[int, int], dtype: Any) -> Workspace:
    flags = empty_like(like, shape[:1], tc.s32)
    flags[:] = 0
    return empty_like(like, shape, dtype), flags


def _is_for_one_launch(like: Any) -> bool:
    """Whether a workspace serves a single launch, or a single graph."""
    if library_of(like) == "torch":
        return not like.is_cuda or sys.modules["torch"].cuda.is_current_stream_capturing()
    return not hasattr(like, "__cuda_array_interface__")


def _device_and_stream(like: Any, stream: Any) -> tuple[Any, int]:
    """The device and the stream of a launch with this array."""
    library = library_of(like)
    if library == "torch":
        device, current = like.device.index, torch_stream(like.device.index)
    elif library == "cupy":
        device, current = like.device.id, cupy_stream()
    else:
        device, current = import_module("numba.cuda").get_current_device().id, int
    return device, current() if stream is None else stream_handle(stream)


def _synchronize(like: Any) -> None:
    library = library_of(like)
    if library == "torch":
        sys.modules["torch"].cuda.current_stream(like.device).synchronize()
    elif library == "cupy":
        sys.modules["cupy"].cuda.get_current_stream().synchronize()
    else:
        import_module("numba.cuda").synchronize()
