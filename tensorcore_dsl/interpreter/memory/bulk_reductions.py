"""Reductions of boxes in shared memory into arrays in global memory (PTX manual 9.7.9.25.4.2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import EmulationError, listing
from tensorcore_dsl.interpreter.memory.tensor_box import (
    BOX,
    CHUNK,
    EXTENT,
    START,
    STRIDE,
    TensorBox,
    real_bytes,
)
from tensorcore_dsl.isa import reductions


def combine(box: TensorBox, data: np.ndarray, address: int, op: str) -> None:
    """Reduce the box in shared memory at `address` into the part of it inside the array."""
    name = box.dtype if isinstance(box.dtype, str) else dtypes.from_numpy(box.dtype).name
    if name not in reductions.ALLOWED[op]:
        raise EmulationError(
            f"a bulk reduction .{op} of {box.name}, whose elements are {name}; allowed are "
            + listing(reductions.ALLOWED[op])
        )
    bits = np.dtype(f"u{dtypes.named(name).bits // 8}")
    chunks = data[: len(data) // CHUNK * CHUNK].reshape(-1, CHUNK)
    source = chunks[box.chunks(address)].reshape(-1).view(bits)
    plan = box.plan.copy()
    if isinstance(box.dtype, str):  # contiguous bytes, seen as elements
        plan[[EXTENT, BOX], 0] //= bits.itemsize
    plan[STRIDE, 0] = bits.itemsize
    source = source.reshape(plan[BOX][::-1])
    first, last = np.maximum(plan[START], 0), np.minimum(plan[START] + plan[BOX], plan[EXTENT])
    if (last <= first).any():
        return
    start, size = first - plan[START], last - first
    source = source[tuple(slice(a, a + n) for a, n in zip(start[::-1], size[::-1], strict=True))]
    target = _view(box.real + int(first @ plan[STRIDE]), bits, size[::-1], plan[STRIDE][::-1])
    target[...] = reductions.update(op, name)(target.copy(), source)


def _view(real: int, bits: Any, shape: Any, strides: Any) -> np.ndarray:
    """Real memory as an array."""
    reach = int(sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) + bits.itemsize
    return np.ndarray(tuple(shape), bits, real_bytes(real, reach), 0, tuple(strides))
