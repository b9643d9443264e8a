"""Split-K of the mma.sync kernels: partial sums in memory, which a second kernel adds up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.split_k import COLUMNS, THREADS, sum_partials
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.host.launch import bind
from tensorcore_dsl.kernels.host.workspace import scratch


def bind_split_k(
    bind_product: Callable[[tuple[Any, ...]], Callable[..., None]], arguments: tuple[Any, ...],
    split_k: int, has_c: bool, stream: Any,
) -> Callable[..., None]:  # fmt: skip
    """A launch that stores `split_k` partial sums for each element of D, and then adds them up.

    bind_product: binds the product for arguments like those given, with the partial sums as D.
    """
    a, b, c, d, *scalars = arguments
    shape = (split_k, *d.shape)
    kind, size = ("split-K", shape), 4 * math.prod(shape)
    partials = empty_like(a, shape, tc.f32)
    product = bind_product((a, b, partials, partials, 1.0, 0.0))
    M, N = d.shape
    total = bind(
        sum_partials, M * -(-N // (THREADS * COLUMNS)), THREADS,
        {"parts": split_k, "has_c": has_c}, (partials, c, d, *scalars), stream=stream, pdl=True,
    )  # fmt: skip

    def launch(a: Any, b: Any, c: Any, d: Any, alpha: float, beta: float) -> None:
        partials = scratch(a, stream, kind, size, lambda: empty_like(a, shape, tc.f32))
        product(a, b, partials, partials, 1.0, 0.0)
        total(partials, c, d, alpha, beta)

    return launch
