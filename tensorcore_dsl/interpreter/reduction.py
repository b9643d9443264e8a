"""What a bulk reduction does to each element of global memory (PTX manual 9.7.9.25.4.2).

Floating-point sums round to nearest even and keep subnormals. (The manual has those of f32 flush
them; an H200 does not.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import EmulationError, listing
from tensorcore_dsl.interpreter.tensor import BOX, CHUNK, EXTENT, START, STRIDE, Tensor, real_bytes

FLOATS = ("f16", "bf16", "f32", "f64")
_BITS: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, limit: np.where(old >= limit, old - old, old + old.dtype.type(1)),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1)),
}
_INTEGERS: dict[str, Callable[..., Any]] = {"add": np.add, "min": np.minimum, "max": np.maximum}
# Element types of each operation on global memory: the manual's table, b32 and b64 being the
# types of tensor maps that an H200 takes for them.
ALLOWED = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64", "u32", "s32", "u64")),
}


def combine(box: Tensor, data: np.ndarray, address: int, op: str) -> None:
    """Combine the box in shared memory at `address` with what lies inside the array."""
    name = box.dtype if isinstance(box.dtype, str) else dtypes.from_numpy(box.dtype).name
    if name not in ALLOWED[op]:
        raise EmulationError(
            f"a bulk reduction .{op} of {box.name}, whose elements are {name}; allowed are "
            + listing(ALLOWED[op])
        )
    whole = len(data) // CHUNK * CHUNK
    bits = np.dtype(f"u{dtypes.named(name).bits // 8}")
    given = data[:whole].reshape(-1, CHUNK)[box.chunks(address)].reshape(-1).view(bits)
    plan = box.plan.copy()
    if isinstance(box.dtype, str):  # a line of bytes, seen as elements
        plan[[EXTENT, BOX], 0] //= bits.itemsize
    plan[STRIDE, 0] = bits.itemsize
    given = given.reshape(plan[BOX][::-1])
    first, last = np.maximum(plan[START], 0), np.minimum(plan[START] + plan[BOX], plan[EXTENT])
    if (last <= first).any():
        return
    start, size = first - plan[START], last - first
    given = given[tuple(slice(a, a + n) for a, n in zip(start[::-1], size[::-1], strict=True))]
    target = _view(box.real + int(first @ plan[STRIDE]), bits, size[::-1], plan[STRIDE][::-1])
    target[...] = _update(op, name)(target.copy(), given)


def _view(real: int, bits: Any, shape: Any, strides: Any) -> np.ndarray:
    """Real memory as an array."""
    reach = int(sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) + bits.itemsize
    return np.ndarray(tuple(shape), bits, real_bytes(real, reach), 0, tuple(strides))


def _update(op: str, name: str) -> Callable[..., Any]:
    """`update(old, given)` on bits."""
    if op in _BITS:
        return _BITS[op]
    if name not in FLOATS:
        view = np.dtype(name.replace("s", "i")[0] + str(int(name[1:]) // 8))
        ufunc = _INTEGERS[op]
        return lambda old, given: ufunc(old.view(view), given.view(view)).view(old.dtype)
    from tensorcore_dsl.numerics import scalar

    rounding = "rn" if op == "add" else None

    def update(old: np.ndarray, given: np.ndarray) -> Any:
        values = old.ravel(), np.ascontiguousarray(given).ravel()
        found = scalar.arith(op, name, *values, rounding=rounding)
        return np.asarray(found).reshape(old.shape)

    return update
