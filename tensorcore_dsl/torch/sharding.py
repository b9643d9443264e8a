"""How `gemm` divides DTensors over the ranks of a mesh."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from tensorcore_dsl.torch.operators import ops

Sharding = tuple[list[Any], list[Any]]  # placements of the result, and of a, b and c, if there is one


def gemm_shardings(a: Any, b: Any, c: Any = None, **options: Any) -> list[Sharding]:
    """The ways to divide alpha a b + beta c along one axis of a mesh.

    Batch, rows and columns are divided with the operands that have them. If K is divided, the sum of
    each rank is rounded to the type of the result before these sums are added.
    """
    operands, ndim = [x for x in (a, b, c) if x is not None], max(a.ndim, b.ndim)

    def divided(axis: int, *having: Any) -> Sharding:
        """Divide this axis of the result, counted from the last, and the operands that have it."""
        placements = [
            Shard(x.ndim + axis) if any(x is y for y in having) and has_axis(x, axis) else Replicate()
            for x in operands
        ]
        return [Shard(ndim + axis)], placements

    shardings = [([Replicate()], [Replicate() for _ in operands]), divided(-2, a, c), divided(-1, b, c)]
    if ndim == 3:
        shardings.append(divided(-3, a, b, c))
    if c is None:
        shardings.append(([Partial()], [Shard(a.ndim - 1), Shard(b.ndim - 2)]))
    return shardings


def has_axis(x: Any, axis: int) -> bool:
    """Whether an operand is not broadcast along an axis, counted from the last."""
    return bool(x.ndim >= -axis and x.shape[axis] > 1)


register_sharding(ops.gemm.default)(gemm_shardings)
