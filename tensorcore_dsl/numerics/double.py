# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False
"""Compiled loop of the binary64 products: chains of fused multiply-adds in any rounding mode."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.lowering import inlined, vectorised

from .softfloat import RN, as_bits, as_float, fma64, fused

fma: Any = fused


@inlined
def step(a, b, c, mode):
    """One fused multiply-add; the native instruction is used where its result is certain."""
    if mode == RN:
        result = fma(as_float(a), as_float(b), as_float(c))
        if result == result:
            return as_bits(result)
    return fma64(a, b, c, mode)


@vectorised
def _products(
    a: Any, b: Any, c: Any, active: Any, places: Any, shape: Any, steps: Any, mode: int, d: Any, total: Any
) -> None:
    """`products`, with memory for the elements of one D."""
    m, n, k = shape[0], shape[1], shape[2]
    to_b = m * k
    to_c = to_b + k * n
    to_d = to_c + m * n
    held = (places.size - to_d) // 2
    for w in range(active.size):
        if not active[w]:
            continue
        for p in range(m * n):
            word = c[w * steps[2] + (places[to_c + p] >> 5)]
            for q in range(k):
                at_a = w * steps[0] + (places[p // n * k + q] >> 5)
                at_b = w * steps[1] + (places[to_b + q * n + p % n] >> 5)
                word = step(a[at_a], b[at_b], word, mode)
            total[p] = word
        for p in range(held):
            d[w * steps[3] + (places[to_d + p] >> 5)] = total[places[to_d + held + p]]


def products(
    a: Any, b: Any, c: Any, active: Any, places: Any, shape: Any, steps: Any, mode: int, d: Any
) -> None:
    """All products of one call; the arguments are those of `loops.products`, in 64-bit words.

    steps: distance of two warps in the words of A, B, C and D. mode: rounding mode of `softfloat`.
    """
    total = np.empty(shape[0] * shape[1], np.uint64)
    _products(a, b, c, active, places, np.array(shape), np.array(steps), mode, d, total)
