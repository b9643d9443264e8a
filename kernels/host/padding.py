"""Copies of operands that TMA cannot read, with lines that it can."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.kernels.copy_rows import copy_rows
from tensorcore_dsl.kernels.host.plan import SM90, on_hopper, why_not_sm90
from tensorcore_dsl.runtime.arguments import describe

WORTH_COPYING = 1 << 30  # products (M N K) from which copies that TMA can read pay for themselves


def realigned(a: Any, b: Any, d: Any) -> tuple[Any, Any, Any] | None:
    """Copies that the wgmma kernels can read, and room for their result; None if not worth it.

    Lines of A and B that do not start at multiples of 16 bytes, and operands that wgmma wants
    with K contiguous, are copied to padded lines: a pass over memory, but then the product runs
    at full speed.
    """
    types = {name: describe(x, name).type for name, x in (("a", a), ("b", b), ("d", d))}
    worth = d.ndim == 2 and a.shape[0] * a.shape[1] * b.shape[1] >= WORTH_COPYING
    if not worth or not on_hopper() or types["a"].dtype not in SM90 or not hasattr(a, "is_cuda"):
        return None
    if not why_not_sm90(types):
        return None
    k_major = types["a"].dtype.bits != 16
    return (
        padded(a, k_major or types["a"].unit[1]),
        padded(b.T, k_major or types["b"].unit[0]).T,
        d if types["d"].unit[1] else room(d.shape, d),
    )


def padded(x: Any, rows: bool) -> Any:
    """`x`, or a copy with lines (rows, else columns) at multiples of 16 bytes."""
    kind = describe(x).type
    if kind.unit[1 if rows else 0] and kind.align == 16 and not all(kind.unit):
        return x
    if not rows:
        return padded(x.T, True).T
    copy = room(x.shape, x)
    copy_matrix(x, copy)
    return copy


def copy_matrix(source: Any, target: Any) -> None:
    """By our own kernel where rows are contiguous, as torch is slow on rows that start anywhere."""
    if source.stride(1) == target.stride(1) == 1:
        copy_rows(source, target)
    else:
        target.copy_(source)


def room(shape: Any, like: Any) -> Any:
    """An uninitialised torch tensor, its rows padded to lines of the L2 cache: read fastest."""
    per_line = 128 // like.element_size()
    width = -(-shape[1] // per_line) * per_line
    return like.new_empty((shape[0], width))[:, : shape[1]]
