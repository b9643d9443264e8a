"""Operands of instructions, which are an array with an element for each thread, or one constant."""

from __future__ import annotations

from typing import Any

import numpy as np


def scalar(value: Any, thread: Any) -> int:
    """A thread's element of an operand."""
    return int(value[thread]) if np.ndim(value) else int(value)


def words(values: Any, threads: int) -> np.ndarray:
    """An operand as (T,) uint32."""
    return np.ascontiguousarray(np.broadcast_to(values, (threads,)), dtype=np.uint32)
