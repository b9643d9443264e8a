"""Two layers of an MLP on several GPUs, split over them, with sequence parallelism.

x          rows / world x features on each rank: the rank's rows of the sequence
up         hidden / world x features: y = relu(rows of all ranks, times up)    all_gather_gemm
down       features x hidden / world: this rank's rows of the sum of y down    gemm_reduce_scatter

Neither layer waits for a whole transfer: rows and finished tiles travel while tensor cores multiply.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py    trains on GPUs, beside torch on one GPU
    python examples/tensor_parallel.py --emulate 4             multiplies on four virtual GPUs

prints the largest error as a share of its bound. It needs PyTorch on GPUs only.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import ml_dtypes
import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import kernels

STEPS, RATE = 3, 0.05


def relu(value, row, col):
    """The activation, in the kernel language."""
    return tc.maximum(value, 0.0)


def emulated(world: int, rows: int, features: int, hidden: int) -> float:
    """The error of both layers on virtual GPUs, as a share of its bound."""
    draw, dtype = np.random.default_rng(0), ml_dtypes.bfloat16
    x = [draw.standard_normal((rows // world, features)).astype(dtype) for _ in range(world)]
    up, down = (
        [(draw.standard_normal(shape) / shape[1] ** 0.5).astype(dtype) for _ in range(world)]
        for shape in ((hidden // world, features), (features, hidden // world))
    )
    group = kernels.VirtualGroup(world)
    with tc.devices(world):
        y = kernels.all_gather_gemm(x, [w.T for w in up], group, epilogue=relu)
        z = kernels.gemm_reduce_scatter(y, [w.T for w in down], group)
    full = np.concatenate(x).astype(np.float64)
    inner = [np.maximum(full @ w.astype(np.float64).T, 0) for w in up]
    parts = [y_r @ w.astype(np.float64).T for y_r, w in zip(inner, down, strict=True)]
    sizes = [y_r @ np.abs(w.astype(np.float64)).T for y_r, w in zip(inner, down, strict=True)]
    # Each element of y, each part and the sum are rounded to bf16, of 8 bits.
    bound = 2**-8 * (np.sum(sizes, axis=0) + np.sum(np.abs(parts), axis=0) + 1)
    error = np.abs(np.concatenate(z).astype(np.float64) - np.sum(parts, axis=0))
    return float((error / bound).max())


def trained(rows: int, features: int, hidden: int) -> float:
    """The difference of losses to training on one GPU, as a share of its bound."""
    import torch
    import torch.distributed as dist

    from tensorcore_dsl.torch.distributed import ColumnParallelLinear, RowParallelLinear

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)  # all ranks draw the same, and take their parts
    half: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    x, goal = torch.randn(rows, features, **half), torch.randn(rows, features, **half)
    weights = [torch.randn(hidden, features, **half), torch.randn(features, hidden, **half)]
    weights = [w / w.shape[1] ** 0.5 for w in weights]
    up = ColumnParallelLinear(features, hidden, **half)
    down = RowParallelLinear(hidden, features, **half)
    with torch.no_grad():
        up.weight.copy_(weights[0].chunk(world, 0)[rank])
        down.weight.copy_(weights[1].chunk(world, 1)[rank])
    whole = [w.clone().requires_grad_() for w in weights]
    mine = slice(rank * rows // world, (rank + 1) * rows // world)
    worst = 0.0
    for _ in range(STEPS):
        y = down(torch.relu(up(x[mine])))
        loss = (y - goal[mine]).float().square().sum() / goal.numel()
        reference = (torch.relu(x @ whole[0].t()) @ whole[1].t() - goal).float().square().mean()
        grads = torch.autograd.grad(loss, [up.weight, down.weight])
        expected = torch.autograd.grad(reference, whole)
        with torch.no_grad():
            for weight, grad in zip((up.weight, down.weight, *whole), (*grads, *expected), strict=True):
                weight -= RATE * grad * goal.numel() ** 0.5
        total, alone = loss.detach().clone(), float(reference.detach())
        dist.all_reduce(total)
        worst = max(worst, abs(float(total) - alone) / (0.01 * alone))
    dist.destroy_process_group()
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--emulate", type=int, default=0, metavar="N", help="virtual GPUs, in place of torchrun"
    )
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=512)
    options = parser.parse_args()
    size = options.rows, options.features, options.hidden
    if not options.emulate and "RANK" not in os.environ:
        parser.error("start it with torchrun on GPUs, or with --emulate 4 without any")
    share = emulated(options.emulate, *size) if options.emulate else trained(*size)
    where = "on the CPU, emulated" if options.emulate else "on the GPU"
    if os.environ.get("RANK", "0") == "0":
        print(f"ran {where}; largest error {share:.2f} of its bound")
    return int(share > 1)


if __name__ == "__main__":
    raise SystemExit(main())
