"""Arithmetic of sizes and of numbers of tiles."""

from typing import Any


def cdiv(value: Any, divisor: Any) -> Any:
    """Divide and round up: integers, or arrays of integers."""
    return -(-value // divisor)
