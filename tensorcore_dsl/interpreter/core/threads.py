"""Operands of threads, and compiled questions about masks of threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.lowering import vectorised


def scalar(value: Any, thread: Any) -> int:
    """A thread's element of an operand: an array with one for each thread, or one constant."""
    return int(value[thread]) if np.ndim(value) else int(value)


def words(values: Any, threads: int) -> np.ndarray:
    """An operand as (T,) uint32."""
    return np.ascontiguousarray(np.broadcast_to(values, (threads,)), dtype=np.uint32)


@vectorised
def census(active: Any) -> int:
    """`warps << 32 | lanes` of a mask over whole warps."""
    warps, lanes = 0, 0
    for warp in range(active.size // 32):
        count = 0
        for lane in range(warp * 32, warp * 32 + 32):
            count += active[lane]
        lanes += count
        warps += count > 0
    return warps << 32 | lanes


@vectorised
def among(flags: Any, active: Any) -> int:
    """How many active threads have a flag set."""
    count = 0
    for thread in range(active.size):
        count += flags[thread] and active[thread]
    return count


@vectorised
def divided(active: Any, unit: int, out: Any) -> None:
    """out: active threads whose unit of `unit` threads is not active as a whole."""
    for first in range(0, active.size, unit):
        count = 0
        for thread in range(first, first + unit):
            count += active[thread]
        for thread in range(first, first + unit):
            out[thread] = active[thread] and count != unit


@vectorised
def absent(active: Any, named: Any, excused: Any, out: Any) -> None:
    """out: active lanes whose `named` mask has a lane of their warp that is neither active nor
    `excused`."""
    for warp in range(active.size // 32):
        here = np.uint32(0)
        for lane in range(32):
            if active[warp * 32 + lane] or excused[warp * 32 + lane]:
                here |= np.uint32(1) << np.uint32(lane)
        for thread in range(warp * 32, warp * 32 + 32):
            out[thread] = active[thread] and (np.uint32(named[thread]) & ~here) != 0
