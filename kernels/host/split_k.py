"""Split-K with partial sums in memory, which a second kernel adds up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import target_arch
from tensorcore_dsl.kernels.ampere.config import AmpereTraits
from tensorcore_dsl.kernels.ampere.split_k import BYTES, SUMS, THREADS
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.host.launch import bind
from tensorcore_dsl.kernels.host.workspace import scratch
from tensorcore_dsl.kernels.sizes import cdiv
from tensorcore_dsl.kernels.user_functions import kernel_of_epilogue


def bind_split_k(
    bind_product: Callable[[tuple[Any, ...]], Callable[..., None]],
    arguments: tuple[Any, ...],
    split_k: int,
    dtype: tc.DType,
    traits: AmpereTraits,
    stream: Any,
) -> Callable[..., None]:
    """Bind a launch that stores `split_k` partial sums of each element of D, and then adds them up.

    bind_product: binds the product with the partial sums as D. dtype: type of the partial sums.
    traits: traits of D and C.
    """
    a, b, c, d, *scalars = arguments
    shape = (split_k, *d.shape)
    kind, size = ("split-K", dtype, shape), dtype.itemsize * math.prod(shape)
    one, zero = (1.0, 0.0) if dtype.is_float else (1, 0)
    partials = empty_like(a, shape, dtype)
    product = bind_product((a, b, partials, partials, one, zero))
    M, N = d.shape
    width = BYTES // dtype.itemsize if N * dtype.itemsize % BYTES == 0 else 1
    used = AmpereTraits(
        vec_d=traits.vec_d, scaled=traits.scaled, has_c=traits.has_c, epilogue=traits.epilogue
    )
    options: dict[str, Any] = {"parts": split_k, "width": width, "traits": used}
    kernel, options = kernel_of_epilogue(SUMS[dtype], options, used.epilogue, first=5)
    total = bind(
        kernel,
        M * cdiv(N, THREADS * width),
        THREADS,
        options,
        (partials, c, d, *scalars),
        stream=stream,
        pdl=target_arch().number >= 90,
    )

    def launch(a: Any, b: Any, c: Any, d: Any, *scalars: Any) -> None:
        partials = scratch(a, stream, kind, size, lambda: empty_like(a, shape, dtype))
        product(a, b, partials, partials, one, zero)
        total(partials, c, d, *scalars)

    return launch
