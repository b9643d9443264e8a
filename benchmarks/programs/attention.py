"""`kernels.attention` beside cuDNN and FlashAttention 2 of PyTorch, on a GPU: times, and errors.

Launches are timed in CUDA graphs on rotating buffers, interleaved. Errors are those of a smaller
problem, root mean square against float64.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import tensorcore_dsl as tc
from benchmarks.gpu import Monitor
from benchmarks.harness import Report, attempt, geometric_mean
from benchmarks.products.gemm import torch_with_gpu
from benchmarks.programs import examples
from benchmarks.programs.examples import Case, drawing, measure, rotating
from benchmarks.tables import Table, number
from tensorcore_dsl import kernels

# Batch, heads, key heads, length, D of q and k, D of v.
PROBLEMS = (
    (8, 16, 16, 2048, 128, 128), (2, 16, 16, 8192, 128, 128), (1, 16, 16, 16384, 128, 128),
    (2, 32, 32, 8192, 64, 64), (4, 32, 32, 4096, 64, 64), (16, 32, 32, 1024, 64, 64),
    (2, 64, 8, 4096, 128, 128), (2, 8, 8, 8192, 256, 256), (2, 16, 16, 4096, 96, 96),
    (2, 16, 16, 4096, 192, 128),
)  # fmt: skip
QUICK = PROBLEMS[1:2]
LENGTH_OF_ERRORS = 1500
ROUNDS = 11
METHOD = {
    "clock": "CUDA events around CUDA graphs of launches, without host time",
    "order": "one sample of each launch a round, in alternating order",
    "ratio": "median time of the fastest other launch over that of kernels.attention",
    "error": "root mean square of the difference to float64, of sequences of 1500 rows",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="R", help=f"samples of each launch (default: {ROUNDS})"
    )


def run(options: argparse.Namespace) -> Report:
    torch = torch_with_gpu()
    settings = {"rounds": options.rounds}
    report = Report("attention", settings, dict(METHOD), summary={"target": "cuda"})
    with tc.target("cuda"), Monitor() as monitor:
        for problem in QUICK if options.quick else PROBLEMS:
            for causal in (False, True):
                started = time.perf_counter()
                title = {"example": "kernels.attention", "problem": str((*problem, causal))}
                result: dict[str, Any] = dict(title)
                result |= attempt(measure, torch, make_case, (*problem, causal), options.rounds)
                result["errors"] = attempt(errors, torch, problem, causal)
                result["state"] = monitor.between(started, time.perf_counter())
                report.results.append(result)
                ratios = [r["ratio"] for r in report.results if "ratio" in r]
                report.summary["ratio"] = {"mean": geometric_mean(ratios), "worst": min(ratios)}
                report.save(options.out)
    return report


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """Times, and errors of one row for each problem."""
    yield from examples.tables(document)
    yield Table(
        "errors against float64, root mean square",
        [
            {"problem": r["problem"]}
            | {
                name: number(value, ".3e") if isinstance(value, float) else str(value)
                for name, value in r["errors"].items()
            }
            for r in document["results"]
        ],
    )


def make_case(
    torch: Any, batch: int, heads: int, kv_heads: int, length: int, dim: int, width: int, causal: bool
) -> Case:
    """2 (D of q + D of v) operations for each query and key; half of them if causal."""
    shapes = shapes_of(batch, heads, kv_heads, length, dim, width)
    new = partial(torch.randn, dtype=torch.bfloat16, **drawing(torch))
    sizes = 2 * sum(map(math.prod, shapes))
    data = rotating(torch, sizes, lambda: [new(shape) for shape in shapes])
    heads_and_d = f"{heads}/{kv_heads} heads, D {dim}/{width}"
    return Case(
        f"{batch} x {heads_and_d}, {length} keys{', causal' * causal}",
        2.0 * batch * heads * length**2 * (dim + width) * (0.5 if causal else 1),
        "FLOP/s",
        len(data),
        lambda i: kernels.attention(*data[i][:3], causal=causal, out=data[i][3]),
        data[0][3],
        {
            name: partial(launch_other, torch, backend, data, causal)
            for name, backend in (("cuDNN", "CUDNN_ATTENTION"), ("FA2", "FLASH_ATTENTION"))
        },
    )


def launch_other(torch: Any, backend: str, data: list[Any], causal: bool, i: int) -> Any:
    """A launch of PyTorch's attention with buffers i."""
    return other(torch, backend, data[i], causal)


def shapes_of(
    batch: int, heads: int, kv_heads: int, length: int, dim: int, width: int
) -> list[tuple[int, ...]]:
    """The shapes of q, k, v and the result."""
    places = (heads, dim), (kv_heads, dim), (kv_heads, width), (heads, width)
    return [(batch, count, length, columns) for count, columns in places]


def other(torch: Any, backend: str, arrays: Any, causal: bool) -> Any:
    """A launch of PyTorch's attention, by one of its backends."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = arrays[:3]
    with sdpa_kernel(getattr(SDPBackend, backend)):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        )


def errors(torch: Any, problem: tuple[int, ...], causal: bool) -> dict[str, float]:
    """Root mean square differences to float64, of both families and of cuDNN."""
    _, _, _, _, dim, width = problem
    largest = {}
    for dtype in (torch.bfloat16, torch.float16):
        shapes = shapes_of(1, 4, 2, LENGTH_OF_ERRORS, dim, width)
        arrays = [torch.randn(shape, dtype=dtype, device="cuda") for shape in shapes[:3]]
        exact = torch.nn.functional.scaled_dot_product_attention(
            *(x.double() for x in arrays), is_causal=causal, enable_gqa=True
        )
        results = {
            family: kernels.attention(*arrays, causal=causal, family=family) for family in ("sm80", "sm90")
        }
        results["cuDNN"] = other(torch, "CUDNN_ATTENTION", arrays, causal)
        for name, result in results.items():
            rms = (result.double() - exact).pow(2).mean().sqrt()
            largest[f"{name} {str(dtype).removeprefix('torch.')}"] = float(rms)
    return largest
