"""The processors that this process may use."""

from __future__ import annotations

import os


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
