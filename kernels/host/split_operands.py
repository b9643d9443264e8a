"""Parts of f32 operands in memory, for the wgmma kernels; see split_f32.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import describe
from tensorcore_dsl.kernels.host.arrays import empty_like, transposed
from tensorcore_dsl.kernels.host.launch import bind
from tensorcore_dsl.kernels.host.workspace import scratch
from tensorcore_dsl.kernels.sizes import cdiv
from tensorcore_dsl.kernels.split_f32 import ROWS, SLAB, WARPS, depth_of_parts, split_kernel


def bind_split(
    bind_product: Callable[[tuple[Any, ...]], Callable[..., None]], arguments: tuple[Any, ...], stream: Any
) -> Callable[..., None]:
    """Bind a launch that splits its first two arguments, and then launches the product of the parts.

    bind_product: binds the product for its arguments.
    """
    a, b, *others = arguments
    *batch_a, M, K = a.shape
    *batch_b, _, N = b.shape
    depth = depth_of_parts(K)
    shape_a, shape_b = (*batch_a, M, depth), (*batch_b, N, depth)
    kind, size = ("f32", shape_a, shape_b), 4 * (math.prod(shape_a) + math.prod(shape_b))

    def parts_like(a: Any) -> tuple[Any, Any, Any]:
        """Allocate the parts of A and of B; also returns the transpose of the latter for the product."""
        parts_a, parts_b = empty_like(a, shape_a, tc.f32), empty_like(a, shape_b, tc.f32)
        return parts_a, parts_b, transposed(parts_b)

    parts_a, parts_b, columns = parts_like(a)
    options = {"a_k_major": describe(a, "a").type.unit[-1], "b_k_major": describe(b, "b").type.unit[-2]}
    ctas = _ctas(shape_a) + _ctas(shape_b)
    split = bind(split_kernel, ctas, 32 * WARPS, options, (a, b, parts_a, parts_b), stream=stream, pdl=True)
    product = bind_product((parts_a, columns, *others))

    def launch(a: Any, b: Any, *others: Any) -> None:
        parts_a, parts_b, columns = scratch(a, stream, kind, size, lambda: parts_like(a))
        split(a, b, parts_a, parts_b)
        product(parts_a, columns, *others)

    return launch


def _ctas(parts: tuple[int, ...]) -> int:
    """Number of CTAs that write parts of this shape."""
    *batch, rows, depth = parts
    return math.prod(batch) * cdiv(rows, ROWS) * (depth // (2 * SLAB))
