"""Split-K of the mma.sync kernels: partial sums in memory, which a second kernel adds up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereTraits
from tensorcore_dsl.kernels.ampere.split_k import COLUMNS, THREADS, sum_partials
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.host.launch import bind
from tensorcore_dsl.kernels.host.workspace import scratch
from tensorcore_dsl.kernels.user_functions import kernel_of_epilogue


def bind_split_k(
    bind_product: Callable[[tuple[Any, ...]], Callable[..., None]], arguments: tuple[Any, ...],
    split_k: int, traits: AmpereTraits, stream: Any,
) -> Callable[..., None]:  # fmt: skip
    """A launch that stores `split_k` partial sums for each element of D, and then adds them up.

    bind_product: binds the product for arguments like those given, with the partial sums as D.
    traits: those of D and C.
    """
    a, b, c, d, *scalars = arguments
    shape = (split_k, *d.shape)
    kind, size = ("split-K", shape), 4 * math.prod(shape)
    partials = empty_like(a, shape, tc.f32)
    product = bind_product((a, b, partials, partials, 1.0, 0.0))
    M, N = d.shape
    used = AmpereTraits(scaled=traits.scaled, has_c=traits.has_c, epilogue=traits.epilogue)
    options: dict[str, Any] = {"parts": split_k, "traits": used}
    kernel, options = kernel_of_epilogue(sum_partials, options, used.epilogue, first=5)
    total = bind(
        kernel, M * -(-N // (THREADS * COLUMNS)), THREADS, options, (partials, c, d, *scalars),
        stream=stream, pdl=True,
    )  # fmt: skip

    def launch(a: Any, b: Any, c: Any, d: Any, *scalars: Any) -> None:
        partials = scratch(a, stream, kind, size, lambda: empty_like(a, shape, tc.f32))
        product(a, b, partials, partials, 1.0, 0.0)
        total(partials, c, d, *scalars)

    return launch
