"""GEMMs on several GPUs of one host, compared with NCCL followed by cuBLAS, and torch's fused operators.

Each rank is a process. A time is the median of rounds, and the maximum over the ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, attempt, geometric_mean
from benchmarks.products.gemm import torch_with_gpu
from benchmarks.tables import Table

PROBLEMS = ((8192, 28672, 8192), (4096, 14336, 4096), (2048, 28672, 8192), (16384, 14336, 4096))
QUICK = PROBLEMS[1:2]
ROUNDS, LAUNCHES, WARM = 9, 10, 3
METHOD = {
    "clock": "CUDA events around 10 calls, after a barrier of all ranks; the slowest rank counts",
    "in turn": "NCCL's collective, then torch.mm (cuBLAS), or the other way around",
    "fused": "torch.ops.symm_mem.fused_all_gather_matmul and fused_matmul_reduce_scatter",
    "bound": "the larger of the collective and the product",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="ranks (default: all GPUs)")
    parser.add_argument(
        "--random", type=int, default=0, metavar="R", help="random shapes after the fixed ones (default: 0)"
    )
    parser.add_argument("--repeats", type=int, default=20, metavar="R", help="runs whose bits are compared")


def run(options: argparse.Namespace) -> Report:
    torch = torch_with_gpu()
    world = options.gpus or torch.cuda.device_count()
    if not 2 <= world <= torch.cuda.device_count():
        raise RuntimeError(f"{world} ranks on {torch.cuda.device_count()} GPUs; 2 or more are needed")
    problems = [*(QUICK if options.quick else PROBLEMS), *random_shapes(options.random, world)]
    report = Report("distributed", {"ranks": world}, dict(METHOD), summary={"target": "cuda"})
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port, path = probe.getsockname()[1], Path(folder) / "results.jsonl"
        probe.close()
        with suppress(KeyboardInterrupt):
            torch.multiprocessing.spawn(
                _rank, (world, port, str(path), problems, options.repeats), nprocs=world
            )
        report.results += [json.loads(line) for line in path.read_text().splitlines()]
    ratios = [r["in turn"] / r["ours"] for r in report.results if "ours" in r and "in turn" in r]
    if ratios:
        report.summary["ratio"] = {"mean": geometric_mean(ratios), "worst": min(ratios)}
    return report


def random_shapes(count: int, world: int) -> list[tuple[int, int, int]]:
    """M, N, K of a fixed seed: rows of a rank in whole tiles, N and K split over the ranks."""
    draw = random.Random(0)
    return [
        (
            128 * world * draw.randint(2, 32),
            64 * world * draw.randint(16, 224),
            64 * world * draw.randint(8, 64),
        )
        for _ in range(count)
    ]


def _rank(rank: int, world: int, port: int, path: str, problems: Any, repeats: int) -> None:
    import torch
    import torch.distributed as dist

    address = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
    }
    os.environ.update(address)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    torch.manual_seed(rank)
    for M, N, K in problems:
        for name in ("all-gather + GEMM", "GEMM + reduce-scatter", "GEMM + all-reduce"):
            result = {"kernel": name, "ranks": world, "M": M, "N": N, "K": K}
            result |= attempt(_measure, name, M, N, K, repeats)
            if rank == 0:
                with open(path, "a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
                print(json.dumps(result), flush=True)
    dist.destroy_process_group()


def _time(launch: Callable[[], Any]) -> float:
    """Milliseconds of a call: the median of rounds, of the slowest rank."""
    import torch
    import torch.distributed as dist

    for _ in range(WARM):
        launch()
    samples = []
    for _ in range(ROUNDS):
        dist.barrier()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(LAUNCHES):
            launch()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / LAUNCHES)
    slowest = torch.tensor([statistics.median(samples)], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest.item())


def _measure(name: str, M: int, N: int, K: int, repeats: int) -> dict[str, Any]:
    """Times in milliseconds of a kernel, of its parts, and of torch's operator; error and bits."""
    import torch
    import torch.distributed as dist

    import tensorcore_dsl.torch.distributed as tcd

    world = dist.get_world_size()
    half: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    gathers, reduces_all = name.startswith("all-gather"), name.endswith("all-reduce")
    if gathers:
        x, w = torch.randn(M // world, K, **half), torch.randn(N // world, K, **half) / 64
        full, product = torch.empty(M, K, **half), torch.empty(M, N // world, **half)
        collective = lambda: dist.all_gather_into_tensor(full, x)
        multiply = lambda: torch.mm(full, w.t(), out=product)
        steps, ours = (collective, multiply), lambda: tcd.all_gather_gemm(x, w)
        fused = lambda: torch.ops.symm_mem.fused_all_gather_matmul(x, [w.t()], 0, dist.group.WORLD.group_name)
        result = product
    else:
        x, w = torch.randn(M, N // world, **half), torch.randn(K, N // world, **half) / 64
        product, scattered = torch.empty(M, K, **half), torch.empty(M // world, K, **half)
        multiply = lambda: torch.mm(x, w.t(), out=product)
        collective = lambda: dist.reduce_scatter_tensor(scattered, product)
        ours = lambda: tcd.gemm_reduce_scatter(x, w)
        fused = lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(
            x, w.t(), "sum", 0, dist.group.WORLD.group_name
        )
        if reduces_all:
            collective, ours, fused = (
                lambda: dist.all_reduce(product),
                lambda: tcd.gemm_all_reduce(x, w),
                None,
            )
        steps, result = (multiply, collective), product if reduces_all else scattered
    with torch.no_grad():
        first = ours().clone()
        for step in steps:
            step()
        torch.cuda.synchronize()
        error = (first.float() - result.float()).abs().max() / result.float().abs().max()
        is_same = all(bool(torch.equal(ours(), first)) for _ in range(repeats))
        measured: dict[str, Any] = {
            "error": float(error),
            "same bits": is_same,
            "correct": float(error) < 0.02,
        }
        times = {"collective": _time(collective), "GEMM": _time(multiply)}
        times["in turn"] = _time(lambda: [step() for step in steps])
        times["ours"] = _time(ours)
        if fused is not None:
            with suppress(RuntimeError):
                times["fused"] = _time(fused)
    bound = max(times["collective"], times["GEMM"])
    measured |= {key: round(value, 4) for key, value in times.items()}
    return measured | {"of the bound": round(times["ours"] / bound, 3)}


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """One row for each problem; times in milliseconds."""
    columns = (
        "kernel",
        "M",
        "N",
        "K",
        "collective",
        "GEMM",
        "in turn",
        "fused",
        "ours",
        "of the bound",
        "error",
    )
    for failed in (r for r in document["results"] if "failure" in r):
        yield Table(f"{failed['kernel']} {failed['M']} failed", [{"failure": failed["failure"]}])
    rows = [{c: str(r.get(c, "")) for c in columns} for r in document["results"] if "ours" in r]
    yield Table("several GPUs, ms", rows)
