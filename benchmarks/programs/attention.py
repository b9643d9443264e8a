"""Attention and its gradients: times and errors on a GPU, compared with PyTorch's cuDNN and FlashAttention 2.

Launches are timed in CUDA graphs on rotating buffers, interleaved. Errors are those of a smaller
problem, root mean square against float64.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import tensorcore_dsl as tc
from benchmarks.gpu import Launch, Monitor
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
    "ratio": "median time of the fastest other launch over that of kernels.attention, or of its gradients",
    "error": "root mean square of the difference to float64, of sequences of 1500 rows",
    "gradients": "cuDNN's: torch's operators get the results of their own forward pass",
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
            for causal, (name, make, errors_of) in product((False, True), PASSES):
                started = time.perf_counter()
                result: dict[str, Any] = {"example": name, "problem": str((*problem, causal))}
                result |= attempt(measure, torch, make, (*problem, causal), options.rounds)
                result["errors"] = attempt(errors_of, torch, problem, causal)
                result["state"] = monitor.between(started, time.perf_counter())
                report.results.append(result)
                ratios = [r["ratio"] for r in report.results if r["example"] == name and "ratio" in r]
                if ratios:
                    report.summary[name] = {"mean": geometric_mean(ratios), "worst": min(ratios)}
                report.save(options.out)
    return report


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """Times, and errors of one row for each problem."""
    yield from examples.tables(document)
    yield Table(
        "errors against float64, root mean square",
        [
            {"function": r["example"], "problem": r["problem"]}
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
    data = drawn_sets(torch, batch, heads, kv_heads, length, dim, width)
    return Case(
        title(batch, heads, kv_heads, length, dim, width, causal),
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


def make_gradients(
    torch: Any, batch: int, heads: int, kv_heads: int, length: int, dim: int, width: int, causal: bool
) -> Case:
    """2 (3 D of q + 2 D of v) operations for each query and key; half of them if causal."""
    sets = drawn_sets(torch, batch, heads, kv_heads, length, dim, width)
    forward = partial(kernels.attention, causal=causal, return_lse=True)
    data = [(grad, q, k, v, *forward(q, k, v)) for q, k, v, grad in sets]
    return Case(
        title(batch, heads, kv_heads, length, dim, width, causal),
        2.0 * batch * heads * length**2 * (3 * dim + 2 * width) * (0.5 if causal else 1),
        "FLOP/s",
        len(data),
        lambda i: kernels.attention_backward(*data[i], causal=causal),
        kernels.attention_backward(*data[0], causal=causal)[0],
        {"cuDNN": cudnn_gradients(torch, data, causal)},
    )


def cudnn_gradients(torch: Any, data: list[Any], causal: bool) -> Launch:
    """Launch cuDNN's backward pass with buffers i. Its forward pass runs once for each set, before."""
    ops = torch.ops.aten
    saved: list[Any] = []

    def launch(i: int) -> Any:
        grad, q, k, v = data[i][:4]
        scale = q.shape[3] ** -0.5
        if not saved:
            options = None, True, 0.0, causal, False
            forward = ops._scaled_dot_product_cudnn_attention
            saved.extend(forward(*arrays[1:4], *options, scale=scale) for arrays in data)
        out, lse, starts_q, starts_k, longest_q, longest_k, seed, offset, _ = saved[i]
        lengths = starts_q, starts_k, longest_q, longest_k
        return ops._scaled_dot_product_cudnn_attention_backward(
            grad, q, k, v, out, lse, seed, offset, None, *lengths, 0.0, causal, scale=scale
        )[0]

    return launch


def drawn_sets(
    torch: Any, batch: int, heads: int, kv_heads: int, length: int, dim: int, width: int
) -> list[list[Any]]:
    """Draw rotating sets of q, k, v and an array of the output's shape."""
    shapes = shapes_of(batch, heads, kv_heads, length, dim, width)
    new = partial(torch.randn, dtype=torch.bfloat16, **drawing(torch))
    return rotating(torch, 2 * sum(map(math.prod, shapes)), lambda: [new(shape) for shape in shapes])


def title(batch: int, heads: int, kv_heads: int, length: int, dim: int, width: int, causal: bool) -> str:
    return f"{batch} x {heads}/{kv_heads} heads, D {dim}/{width}, {length} keys{', causal' * causal}"


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


def errors_of_gradients(torch: Any, problem: tuple[int, ...], causal: bool) -> dict[str, float]:
    """Root mean square differences to float64 over the three gradients, of both families and of cuDNN."""
    _, _, _, _, dim, width = problem
    shapes = shapes_of(1, 4, 4, LENGTH_OF_ERRORS, dim, width)
    *arrays, grad = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes)
    exact_arrays = [x.double().requires_grad_() for x in arrays]
    exact = torch.nn.functional.scaled_dot_product_attention(*exact_arrays, is_causal=causal)
    wanted = torch.autograd.grad(exact, exact_arrays, grad.double())
    results = {}
    for family in ("sm80", "sm90"):
        passed = kernels.attention(*arrays, causal=causal, return_lse=True, family=family)
        results[family] = kernels.attention_backward(grad, *arrays, *passed, causal=causal, family=family)
    leaves = [x.detach().requires_grad_() for x in arrays]
    results["cuDNN"] = torch.autograd.grad(other(torch, "CUDNN_ATTENTION", leaves, causal), leaves, grad)
    flat = lambda gradients: torch.cat([x.double().flatten() for x in gradients])
    return {name: float((flat(x) - flat(wanted)).pow(2).mean().sqrt()) for name, x in results.items()}


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


# Function, its cases, and its errors.
PASSES = (
    ("kernels.attention", make_case, errors),
    ("kernels.attention_backward", make_gradients, errors_of_gradients),
)
