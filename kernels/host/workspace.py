"""Workspaces in global memory that launches on one stream share, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import cupy_stream, stream_handle, torch_stream
from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.host.arrays import empty_like, library_of, on_stream

MAX_CACHED = 64  # small workspaces. Beyond, the oldest one goes.
SMALL_BYTES = 8 << 20  # Workspaces up to this size are cached for a stream.
_cached: dict[Any, Any] = {}
_small: dict[Any, Any] = {}


def cached_workspace(like: Any, stream: Any, kind: tuple[Any, ...], allocate: Callable[[], Any]) -> Any:
    """Return the cached allocate() of this stream and kind; None is the current stream.

    A captured launch gets a workspace of its own, which the CUDA graph clears. Launches on NumPy
    arrays also do, since several threads may emulate at the same time.
    """
    stream_key = _stream_key(like, stream)
    if stream_key is None:
        return allocate()
    key = stream_key, kind
    workspace = _cached.get(key)
    if workspace is None:
        workspace = _cached[key] = allocate()
        _synchronize(like)  # the current stream clears the workspace, and `stream` may differ
    return workspace


def scratch(like: Any, stream: Any, kind: tuple[Any, ...], size: int, allocate: Callable[[], Any]) -> Any:
    """Allocate for one launch on the stream, in the order of the stream.

    A small workspace (size: bytes) is cached for the next launch on the stream, as allocation would
    take longer than the kernel.
    """
    stream_key = _stream_key(like, stream) if size <= SMALL_BYTES else None
    key = stream_key, kind
    cached = None if stream_key is None else _small.get(key)
    if cached is not None:
        return cached
    with on_stream(like, stream):
        workspace = allocate()
    if stream_key is not None:
        _small[key] = workspace
        if len(_small) > MAX_CACHED:
            del _small[next(iter(_small))]
    return workspace


def streamk_workspace(
    config: AmpereConfig, dtype: tc.DType, like: Any, stream: Any = None
) -> tuple[Any, Any]:
    """Accumulators and flags (all 0) of stream-K for a launch on `stream`; None is the current stream.

    Each unit has a row of BM x BN accumulators, and a flag of one s32. A CTA that starts inside a tile
    hands its accumulators over to the CTA that started the tile (hopper/streamk_scheduler.py).
    Launches that may overlap must not share a workspace.
    """
    shape = config.streamk_units, config.BM * config.BN

    def allocate() -> tuple[Any, Any]:
        flags = empty_like(like, shape[:1], tc.s32)
        flags[:] = 0
        return empty_like(like, shape, dtype), flags

    workspace: tuple[Any, Any] = cached_workspace(like, stream, ("stream-K", shape, dtype), allocate)
    return workspace


def _stream_key(like: Any, stream: Any) -> tuple[Any, int] | None:
    """The device and the stream of a launch with this array.

    None if a workspace serves a single launch, or a single graph.
    """
    library = library_of(like)
    if library == "torch":
        if not like.is_cuda or sys.modules["torch"].cuda.is_current_stream_capturing():
            return None
        device = like.get_device()
        current = torch_stream(device)
    elif not hasattr(like, "__cuda_array_interface__"):
        return None
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
