"""Processors that this process may use, their caches, and the features that compilations omit."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

DEFAULT_CACHE_BYTES = 1 << 20  # bytes, where the system does not say


def cores() -> int:
    """Count the processors that this process may use.

    Returns
    -------
    int
        Fewer than the machine has where an affinity mask (taskset, a container's cpuset) limits
        the process.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def cache_bytes() -> int:
    """Bytes of the second-level cache of a processor."""
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        with suppress(OSError, ValueError):
            if int((folder / "level").read_text()) == 2:
                return int((folder / "size").read_text().strip().removesuffix("K")) << 10
    return DEFAULT_CACHE_BYTES


@contextmanager
def without_collections() -> Iterator[None]:
    """For compilations: trees and code are many objects that stay in use to the end, and searches
    for garbage among them take up to a quarter of the time."""
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if usual:
            gc.enable()
