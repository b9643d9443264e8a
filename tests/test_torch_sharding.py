"""`gemm` of DTensors of two ranks on the CPU, eager and compiled as one graph."""

from __future__ import annotations

from typing import Any

import pytest

import tensorcore_dsl as tc

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, init_device_mesh  # noqa: E402

import tensorcore_dsl.torch as tct  # noqa: E402
from tests.torch_ranks import WORLD, on_ranks  # noqa: E402

BATCH, ROWS, COLUMNS, SUMS, WHOLE = Shard(0), Shard(-2), Shard(-1), Partial(), Replicate()
SHAPES = ((64, 128), (128, 32))
# Shapes of a, b and c; placements of the operands; options; placement of the result.
CASES: dict[str, Any] = {
    "rows": (SHAPES, (ROWS, WHOLE), {}, ROWS),
    "columns": (SHAPES, (WHOLE, COLUMNS), {}, COLUMNS),
    "K": (SHAPES, (COLUMNS, ROWS), {}, SUMS),
    "neither": (SHAPES, (WHOLE, WHOLE), {}, WHOLE),
    "another type": (SHAPES, (ROWS, WHOLE), {"out_dtype": torch.float32}, ROWS),
    "c": ((*SHAPES, (64, 32)), (ROWS, WHOLE, ROWS), {"beta": 2.0}, ROWS),
    "c of one row": ((*SHAPES, (32,)), (ROWS, WHOLE, WHOLE), {}, ROWS),
    "c of one row, columns": ((*SHAPES, (32,)), (WHOLE, COLUMNS, COLUMNS), {}, COLUMNS),
    "batch": (((2, 16, 32), (2, 32, 8)), (BATCH, BATCH), {}, BATCH),
    "batch of a": (((2, 16, 32), (32, 8)), (BATCH, WHOLE), {}, BATCH),
}


def _divide(rank: int) -> None:
    import tensorcore_dsl.torch.distributed  # noqa: F401

    mesh = init_device_mesh("cpu", (WORLD,))
    for name, (shapes, placements, options, placement) in CASES.items():
        torch.manual_seed(0)
        whole = [torch.randint(-3, 4, shape).half().requires_grad_() for shape in shapes]
        parts = [
            distribute_tensor(x.detach(), mesh, [place]).requires_grad_()
            for x, place in zip(whole, placements, strict=True)
        ]
        torch.compiler.reset()
        compiled = torch.compile(tct.gemm, fullgraph=True, backend="aot_eager")
        with tc.target("cpu", "sm_90a"):
            expected = tct.gemm(*whole, **options)
            wanted = torch.autograd.grad(expected.float().sum(), whole)
            for gemm in (tct.gemm, compiled):
                result = gemm(*parts, **options)
                grads = torch.autograd.grad(result.float().sum(), parts)
                assert result.placements == (_counted_from_0(placement, result.ndim),), name
                assert torch.equal(result.full_tensor(), expected), name
                for grad, whole_grad in zip(grads, wanted, strict=True):
                    assert torch.equal(grad.full_tensor(), whole_grad), name


def _counted_from_0(placement: Any, ndim: int) -> Any:
    return Shard(placement.dim % ndim) if isinstance(placement, Shard) else placement


def test_each_rank_multiplies_its_part() -> None:
    on_ranks(_divide, "gloo")
