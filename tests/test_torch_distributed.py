"""Products on the GPUs of a process group: bits of runs and graphs, gradients, and the emulated bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.runtime import driver

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.torch_ranks import WORLD, on_ranks  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not driver.cuda_available() or torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
RUNS = 100


def operands(M: int, N: int, K: int, gathered: bool, seed: int) -> Any:
    """x and w of each rank as NumPy arrays of f16."""
    draw, rows = np.random.default_rng(seed), M // WORLD if gathered else M
    x = [draw.standard_normal((rows, K)).astype(np.float16) for _ in range(WORLD)]
    w = [draw.standard_normal((N, K)).astype(np.float16) for _ in range(WORLD)]
    return x, w


def _bits(rank: int) -> None:
    import tensorcore_dsl.torch.distributed as tcd

    for name in ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce"):
        for seed, (M, N, K) in enumerate([(256, 128, 192), (512, 264, 136)]):
            x, w = operands(M, N, K, name == "all_gather_gemm", seed)
            layout = "FC"[seed]  # the weight is contiguous along N, then along K
            mine = [torch.from_numpy(one).cuda() for one in (x[rank], w[rank].copy(layout))]
            with torch.no_grad():
                results = [getattr(tcd, name)(*mine).clone() for _ in range(RUNS)]
            assert all(torch.equal(one, results[0]) for one in results)
            with tc.devices(WORLD):
                expected = getattr(kernels, name)(x, [one.T for one in w], kernels.VirtualGroup(WORLD))
            assert np.array_equal(results[0].cpu().numpy(), expected[rank]), (name, M, N, K)


def test_bits() -> None:
    on_ranks(_bits, "nccl")


def _gradients(rank: int) -> None:
    import tensorcore_dsl.torch.distributed as tcd

    x, w = operands(256, 128, 192, True, 0)
    mine = [torch.from_numpy(one[rank]).cuda().requires_grad_() for one in (x, w)]
    y = tcd.all_gather_gemm(*mine)
    y.float().square().mean().backward()
    whole = [torch.from_numpy(np.concatenate(one)).cuda().float().requires_grad_() for one in (x, w)]
    full = whole[0] @ whole[1].t()
    sum(part.square().mean() for part in full.chunk(WORLD, 1)).backward()
    for own, expected in zip(mine, whole, strict=True):
        part = expected.grad.chunk(WORLD, 0)[rank]
        assert (own.grad.float() - part).abs().max() < 0.01 * part.abs().max()


def test_gradients() -> None:
    on_ranks(_gradients, "nccl")


def _graphs(rank: int) -> None:
    """A compiled and a captured training step have the bits of an eager one, replay by replay."""
    from tensorcore_dsl.torch.distributed import ColumnParallelLinear, RowParallelLinear

    torch.manual_seed(rank)
    half: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    model = torch.nn.Sequential(
        ColumnParallelLinear(192, 256, **half), torch.nn.ReLU(), RowParallelLinear(256, 192, **half)
    )
    x, goal = torch.randn(128, 192, **half).requires_grad_(), torch.randn(128, 192, **half)

    def step(model: Any = model) -> list[Any]:
        y = model(x)
        return [y, *torch.autograd.grad(y, [x, *model.parameters()], goal)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(10):
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
        eager = step()
        graph.replay()
        assert all(map(torch.equal, captured, eager))
        assert all(map(torch.equal, step(compiled), eager))


def test_compiled_and_captured_steps() -> None:
    on_ranks(_graphs, "nccl")
