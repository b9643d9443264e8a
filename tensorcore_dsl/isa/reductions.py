"""Reductions of bulk copies in global memory: element types and arithmetic (9.7.9.25.4.2).

Atomic operations share the arithmetic of integers. Floating-point sums round to nearest even and
keep subnormals. (The manual says that sums of f32 flush subnormals; an H200 does not.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

FLOATS = ("f16", "bf16", "f32", "f64")
BIT_UPDATES: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, limit: np.where(old >= limit, old - old, old + old.dtype.type(1)),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1)),
}
INTEGERS: dict[str, Callable[..., Any]] = {"add": np.add, "min": np.minimum, "max": np.maximum}
# Element types of each operation: the manual's table; b32 and b64 are the types of tensor maps that
# an H200 accepts for them.
ALLOWED = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64", "u32", "s32", "u64")),
}


def update(op: str, name: str) -> Callable[..., Any]:
    """A function of the old and the new words, as arrays of bits, for elements of type `name`."""
    if op in BIT_UPDATES:
        return BIT_UPDATES[op]
    if name not in FLOATS:
        return integer_update(op, name)
    from tensorcore_dsl.numerics import scalar

    rounding = "rn" if op == "add" else None

    def combine(old: np.ndarray, new: np.ndarray) -> Any:
        values = old.ravel(), np.ascontiguousarray(new).ravel()
        return np.asarray(scalar.arith(op, name, *values, rounding=rounding)).reshape(old.shape)

    return combine


@dataclass(frozen=True)
class IntegerUpdate:
    """`update` for add, min or max of integers; `kind` is the type of NumPy."""

    op: str
    kind: str

    def __call__(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        view = np.dtype(self.kind)
        return np.asarray(INTEGERS[self.op](old.view(view), new.view(view)).view(old.dtype))


def integer_update(op: str, name: str) -> IntegerUpdate:
    """`update` for add, min or max of integers such as "s32"."""
    return IntegerUpdate(op, name.replace("s", "i")[0] + str(int(name[1:]) // 8))


_BITWISE = np.bitwise_and, np.bitwise_or, np.bitwise_xor
ADD, AND, OR, XOR, MIN, MAX, SIGNED_MIN, SIGNED_MAX = range(1, 9)


def simple(update: Callable[..., Any]) -> int:
    """One of the constants above for the updates of whole words that are as simple, else 0."""
    if isinstance(update, IntegerUpdate):
        signed = update.kind[0] == "i"
        return {"add": ADD, "min": SIGNED_MIN if signed else MIN, "max": SIGNED_MAX if signed else MAX}[
            update.op
        ]
    return AND + _BITWISE.index(update) if update in _BITWISE else 0
