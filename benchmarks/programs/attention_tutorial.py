"""The steps of docs/attention_tutorial.md compared with `kernels.attention` and cuDNN, on an H100 or H200."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.gpu import Launch, TimedLaunch
from benchmarks.harness import Report
from benchmarks.products.gemm import torch_with_gpu
from benchmarks.programs.attention import Problem, drawn_sets, other
from benchmarks.programs.examples import difference
from benchmarks.programs.tutorial import METHOD as TIMING
from benchmarks.programs.tutorial import add_rounds, add_timings, rounds_of, table_of
from benchmarks.tables import Table
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import tutorial

# Batch, heads, length and D.
PROBLEMS = ((1, 16, 16384, 128), (4, 16, 4096, 128), (4, 16, 4096, 64))
TOLERANCE = 2.0**-6  # largest error, relative to the largest magnitude
REFERENCE, LIBRARY = "cuDNN", "kernels.attention"
METHOD = {
    **{name: TIMING[name] for name in ("clock", "order", "settle_s", "settling")},
    "operands": "standard normal bf16",
    "buffers": "rotating sets of q, k, v and o that together exceed the L2 cache",
    "reference": "cuDNN through PyTorch's scaled_dot_product_attention",
    "share": "median over rounds of the reference's time over the kernel's",
}


add_arguments = add_rounds


def run(options: argparse.Namespace) -> Report:
    torch = torch_with_gpu()
    rounds = rounds_of(options)
    report = Report("attention-tutorial", {"rounds": rounds}, dict(METHOD))
    for problem in PROBLEMS[: 1 if options.quick else None]:
        for causal in (False, True):
            report.results += measure(torch, problem, causal, rounds)
            report.save(options.out)
    return report


def measure(
    torch: Any, problem: tuple[int, int, int, int], causal: bool, rounds: int
) -> list[dict[str, Any]]:
    """One result for each kernel, the reference last."""
    batch, heads, length, dim = problem
    sizes = Problem(batch, heads, heads, length, length, dim, dim, causal)
    sets, work = drawn_sets(torch, sizes), sizes.operations(2 * dim)
    exact = other(torch, "CUDNN_ATTENTION", sets[0], causal)
    results, launches = [], []
    for name, launch in compared(torch, sets, causal):
        sets[0][3].zero_()  # all but the reference write to the same results
        result = launch(0)
        apart = difference(sets[0][3] if result is None else result, exact)
        correct = apart is not None and apart <= TOLERANCE
        results.append({"name": name, "problem": [*problem, causal], "error": apart, "correct": correct})
        launches.append(TimedLaunch(torch, launch, len(sets)))
    add_timings(results, launches, rounds, work)
    return results


def compared(torch: Any, sets: list[list[Any]], causal: bool) -> Iterator[tuple[str, Launch]]:
    """The launches: those of the steps and of the library write to o and return None."""
    for number, name in enumerate(tutorial.ATTENTION_NAMES, 1):
        step, options = tutorial.load_step(number, tutorial.ATTENTION_NAMES), {}
        if number == len(tutorial.ATTENTION_NAMES):
            options["tickets"] = torch.zeros(1, dtype=torch.int32, device="cuda")
        yield name, partial(launch_step, partial(step.attention, causal=causal, **options), sets)
    yield LIBRARY, partial(launch_library, sets, causal)
    yield REFERENCE, lambda i: other(torch, "CUDNN_ATTENTION", sets[i], causal)


def launch_step(attention: Any, sets: list[list[Any]], i: int) -> None:
    attention(*sets[i])


def launch_library(sets: list[list[Any]], causal: bool, i: int) -> None:
    q, k, v, o = sets[i]
    kernels.attention(q, k, v, causal=causal, out=o)


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """A table for each problem."""
    results = document["results"]
    for problem in {tuple(r["problem"]): None for r in results}:
        batch, heads, length, dim, causal = problem
        title = f"bf16, {batch} x {heads} heads, {length} keys, D {dim}{', causal' * causal}"
        yield table_of(title, [r for r in results if tuple(r["problem"]) == problem], REFERENCE)
