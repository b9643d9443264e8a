"""Attention and its gradients: times and errors on a GPU, compared with PyTorch's cuDNN and FlashAttention 2.

Launches are timed in CUDA graphs on rotating buffers, interleaved. Errors are those of smaller
problems, root mean square against float64.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import tensorcore_dsl as tc
from benchmarks.gpu import Launch, Monitor
from benchmarks.harness import Report, add_seconds, attempt, geometric_mean
from benchmarks.products.gemm import torch_with_gpu
from benchmarks.programs import examples
from benchmarks.programs.examples import Case, drawing, measure, rotating
from benchmarks.tables import Table, number
from tensorcore_dsl import kernels


class Problem(NamedTuple):
    """Sizes of a problem: D of q and k is dim, D of v is width; the mask ends with the last key."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    width: int
    causal: bool = False

    def __str__(self) -> str:
        return (
            f"{self.batch} x {self.heads}/{self.kv_heads} heads, D {self.dim}/{self.width}, "
            f"{self.queries} queries, {self.keys} keys{', causal' * self.causal}"
        )

    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of q, k, v and the result."""
        batch, heads, kv_heads, queries, keys, dim, width, _ = self
        places = (
            (heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, width), (heads, queries, width)
        )  # fmt: skip
        return [(batch, *place) for place in places]

    def operations(self, per_column: int) -> float:
        """Operations of per_column products of D elements for each pair of a query and a key it sees."""
        hidden = (self.queries - 1) / (2 * self.keys) if self.causal else 0.0
        return 2.0 * per_column * self.batch * self.heads * self.queries * self.keys * (1 - hidden)


SQUARE = [
    Problem(batch, heads, kv_heads, length, length, dim, width)
    for batch, heads, kv_heads, length, dim, width in (
        (8, 16, 16, 2048, 128, 128), (2, 16, 16, 8192, 128, 128), (1, 16, 16, 16384, 128, 128),
        (2, 32, 32, 8192, 64, 64), (4, 32, 32, 4096, 64, 64), (16, 32, 32, 1024, 64, 64),
        (2, 64, 8, 4096, 128, 128), (2, 8, 8, 8192, 256, 256), (2, 16, 16, 4096, 96, 96),
        (2, 16, 16, 4096, 192, 128),
    )
]  # fmt: skip
DECODE = [
    Problem(batch, 32, kv_heads, queries, keys, 128, 128)
    for batch, kv_heads, keys in ((64, 8, 8192), (128, 8, 2048), (64, 32, 4096))
    for queries in (1, 8, 16)
]
QUICK = SQUARE[1:2]
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
    add = parser.add_argument
    add("--rounds", type=int, default=ROUNDS, metavar="R", help=f"samples of each launch (default: {ROUNDS})")
    add("--random", type=int, default=0, metavar="N", help="random problems to measure, too (default: 0)")
    add_seconds(parser, 600.0, "case")


def run(options: argparse.Namespace) -> Report:
    torch = torch_with_gpu()
    seed = random.randrange(2**32)
    settings = {"rounds": options.rounds, "random": options.random, "seed": seed}
    report = Report("attention", settings, dict(METHOD), summary={"target": "cuda"})
    begin = time.perf_counter()
    with tc.target("cuda"), Monitor() as monitor:
        for group, passes, problem in cases(options, seed):
            for name in passes:
                if (started := time.perf_counter()) - begin > options.seconds:
                    return report
                make, errors_of = PASSES[name]
                result: dict[str, Any] = {"example": name, "group": group, "problem": str(problem)}
                result |= attempt(measure, torch, make, (problem,), options.rounds)
                if group == "square":
                    result["errors"] = attempt(errors_of, torch, problem)
                result["state"] = monitor.between(started, time.perf_counter())
                report.results.append(result)
                summarise(report, name, group)
                report.save(options.out)
    return report


def cases(options: argparse.Namespace, seed: int) -> Iterator[tuple[str, tuple[str, ...], Problem]]:
    """Groups, the functions that are timed, and problems."""
    both = tuple(PASSES)
    for problem in QUICK if options.quick else SQUARE:
        for causal in (False, True):
            yield "square", both, problem._replace(causal=causal)
    for problem in [] if options.quick else DECODE:
        yield "decode", both[:1], problem
    draw = random.Random(seed)
    for _ in range(options.random):
        yield "random", both, random_problem(draw)


def random_problem(draw: random.Random) -> Problem:
    """Lengths of any size, from 256 to 16,384 and log-uniform; 8,192 to 32,768 queries in all."""
    dim = draw.choice((64, 64, 96, 128, 128, 128, 256))
    length = int(2 ** draw.uniform(8, 14))
    heads = draw.choice((8, 16, 32))
    batch = max(1, round(draw.randint(8192, 32768) / length))
    return Problem(
        batch, heads, heads // draw.choice((1, 1, 2, 4, 8)), length, length, dim, dim, draw.random() < 0.5
    )


def summarise(report: Report, name: str, group: str) -> None:
    """Mean, lowest tenth and worst of the ratios of a function in a group so far."""
    ratios = sorted(
        r["ratio"] for r in report.results if (r["example"], r["group"]) == (name, group) and "ratio" in r
    )
    if ratios:
        statistics = {"mean": geometric_mean(ratios), "lowest tenth": ratios[len(ratios) // 10]}
        report.summary[f"{name}, {group}"] = {**statistics, "worst": ratios[0]}


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """Times, and errors of one row for each problem."""
    yield from examples.tables(document)
    for function in PASSES:
        rows = [r for r in document["results"] if r["example"] == function and "errors" in r]
        if rows:
            yield Table(
                f"{function}: errors against float64, root mean square",
                [
                    {"problem": r["problem"]}
                    | {
                        name: number(value, ".3e") if isinstance(value, float) else str(value)
                        for name, value in r["errors"].items()
                    }
                    for r in rows
                ],
            )


def make_case(torch: Any, problem: Problem) -> Case:
    """Work: operations, or the bytes of q, k, v and the result of up to 16 queries."""
    data, shapes = drawn_sets(torch, problem), problem.shapes()
    work, unit = problem.operations(problem.dim + problem.width), "FLOP/s"
    if problem.queries <= DECODE[-1].queries:
        work, unit = 2.0 * sum(map(math.prod, shapes)), "B/s"
    return Case(
        str(problem),
        work,
        unit,
        len(data),
        lambda i: kernels.attention(*data[i][:3], causal=problem.causal, out=data[i][3]),
        data[0][3],
        {
            name: partial(launch_other, torch, backend, data, problem.causal)
            for name, backend in (("cuDNN", "CUDNN_ATTENTION"), ("FA2", "FLASH_ATTENTION"))
        },
    )


def make_gradients(torch: Any, problem: Problem) -> Case:
    """Three products with D of q, two with D of v, for each query and key."""
    causal = problem.causal
    forward = partial(kernels.attention, causal=causal, return_lse=True)
    data = [(grad, q, k, v, *forward(q, k, v)) for q, k, v, grad in drawn_sets(torch, problem)]
    return Case(
        str(problem),
        problem.operations(3 * problem.dim + 2 * problem.width),
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


def drawn_sets(torch: Any, problem: Problem) -> list[list[Any]]:
    """Draw rotating sets of q, k, v and an array of the output's shape."""
    shapes = problem.shapes()
    new = partial(torch.randn, dtype=torch.bfloat16, **drawing(torch))
    return rotating(torch, 2 * sum(map(math.prod, shapes)), lambda: [new(shape) for shape in shapes])


def launch_other(torch: Any, backend: str, data: list[Any], causal: bool, i: int) -> Any:
    """A launch of PyTorch's attention with buffers i."""
    return other(torch, backend, data[i], causal)


def other(torch: Any, backend: str, arrays: Any, causal: bool) -> Any:
    """A launch of PyTorch's attention, by one of its backends."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = arrays[:3]
    with sdpa_kernel(getattr(SDPBackend, backend)):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        )


def problem_of_errors(problem: Problem, kv_heads: int) -> Problem:
    """A smaller problem of the same D and mask."""
    length = LENGTH_OF_ERRORS
    return problem._replace(batch=1, heads=4, kv_heads=kv_heads, queries=length, keys=length)


def errors_of_gradients(torch: Any, problem: Problem) -> dict[str, float]:
    """Root mean square differences to float64 over the three gradients, of both families and of cuDNN."""
    causal, shapes = problem.causal, problem_of_errors(problem, 4).shapes()
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


def errors(torch: Any, problem: Problem) -> dict[str, float]:
    """Root mean square differences to float64, of both families and of cuDNN."""
    causal, shapes = problem.causal, problem_of_errors(problem, 2).shapes()
    largest = {}
    for dtype in (torch.bfloat16, torch.float16):
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


PASSES = {
    "kernels.attention": (make_case, errors),
    "kernels.attention_backward": (make_gradients, errors_of_gradients),
}
