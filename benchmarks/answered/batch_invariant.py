"""Cost of batch invariance: `gemm(bits="batch_invariant")` compared with the free choice, for many M.

Rows of one large A are multiplied by the weights of models. For each M, both choices are timed in
CUDA graphs on the same operands, interleaved; where both plans are equal, one is timed, and the
ratio is 1. The invariant results are compared with the same rows of the largest M, bit by bit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import tensorcore_dsl as tc
from benchmarks.gpu import Monitor, TimedLaunch, cache_bytes, sets_beyond_cache, time_interleaved
from benchmarks.harness import Report, add_seconds, attempt, comma_list, extents, geometric_mean
from benchmarks.products.gemm import torch_with_gpu
from benchmarks.products.gemm_cases import Case, dtypes_of
from benchmarks.products.gemm_gpu import tile
from benchmarks.products.operands import draw, torch_type
from benchmarks.tables import Table, duration, number, one_line
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.host.operands import BITS

FREE, INVARIANT = BITS
# N, K of the weights of models.
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336), (6144, 4096), (7168, 2048))
ROWS = tuple(2**i for i in range(14))
QUICK = {"weights": WEIGHTS[2:3], "rows": (1, 16, 128, 1024)}
GOAL = 0.92  # least geometric mean of the ratios
ROUNDS, WARM_UP = 7, 0.05
METHOD = {
    "clock": "CUDA events around CUDA graphs of launches, without host time",
    "order": "one sample of each choice a round, in alternating order",
    "buffers": "rotating sets of A, B and D that together exceed the L2 cache",
    "ratio": "median time of the free choice over that of the invariant one; 1 for equal plans",
    "correct": "each row has the bits of the same row of the largest M",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--dtypes",
        type=dtypes_of,
        default=("bf16", "e4m3"),
        metavar="T,...",
        help="element types of A and B (default: bf16,e4m3)",
    )
    add(
        "--weights",
        type=comma_list(extents),
        metavar="NxK,...",
        help=f"sizes of B (default: {','.join(f'{N}x{K}' for N, K in WEIGHTS)})",
    )
    add("--rows", type=comma_list(int), metavar="M,...", help="rows of A (default: 1,2,4,...,8192)")
    add("--rounds", type=int, default=ROUNDS, metavar="R", help=f"samples of each choice (default: {ROUNDS})")
    add("--fast", action="store_true", help="leave fp8 sums to the tensor cores")
    add_seconds(parser, 170.0, "weights")


def run(options: argparse.Namespace) -> Report:
    weights = options.weights or (QUICK["weights"] if options.quick else WEIGHTS)
    rows = options.rows or (QUICK["rows"] if options.quick else ROWS)
    names = ("dtypes", "rounds", "fast", "seconds")
    settings = {name: getattr(options, name) for name in names} | {"weights": weights, "rows": rows}
    report = Report("batch-invariant", settings, dict(METHOD), summary={"target": "cuda"})
    begin = time.perf_counter()
    with tc.target("cuda"), Monitor() as monitor:
        bench = Bench(torch_with_gpu(), monitor, options.rounds, options.fast)
        for (N, K), dtype in product(weights, options.dtypes):
            case = Case(dtype, max(rows), N, K, precise=not options.fast)
            if time.perf_counter() - begin > options.seconds:
                about = f"{options.seconds:g} s are over; --seconds allows more"
                report.results += [described(case, M) | {"left_out": about} for M in rows]
                continue
            report.results += bench(case, sorted(rows, reverse=True))[::-1]
            report.summary |= summary(report.results)
            report.save(options.out)
    return report


def described(case: Case, M: int) -> dict[str, Any]:
    return {"dtype": case.dtype, "M": M, "N": case.N, "K": case.K, "layout": case.layout}


class Bench:
    """Measures all M of one weight matrix."""

    def __init__(self, torch: Any, monitor: Monitor, rounds: int, fast: bool) -> None:
        self._torch, self._monitor, self._rounds = torch, monitor, rounds
        self._fast = {"accumulate": "fast"} if fast else {}

    def __call__(self, case: Case, rows: Sequence[int]) -> list[dict[str, Any]]:
        """A result for each M; of `rows`, the first is the largest."""
        a, b = draw(self._torch, case, 0)
        sets = sets_beyond_cache(replace(case, M=1).bytes, cache_bytes(self._torch))
        a, b = ([x, *(x.clone() for _ in range(sets - 1))] for x in (a, b))
        options = {} if case.element.bits > 8 else dict(self._fast)
        if case.precision:
            options["precision"] = case.precision
        multiply = partial(kernels.gemm, **options)
        wanted = multiply(a[0], b[0], bits=INVARIANT)
        measure = partial(self._measure, case, a, b, wanted, multiply, options)
        return [described(case, M) | attempt(measure, M) for M in rows]

    def _measure(
        self,
        case: Case,
        a: list[Any],
        b: list[Any],
        wanted: Any,
        multiply: Any,
        options: dict[str, Any],
        M: int,
    ) -> dict[str, Any]:
        torch = self._torch
        first = (case.M - M) // 2 // 16 * 16
        a = [x[first : first + M] for x in a]
        shape, dtype = (M, case.N), torch_type(torch, case.out)
        d = [torch.empty(shape, dtype=dtype, device=wanted.device) for _ in a]
        wanted = bits_of(torch, wanted[first : first + M])
        plans = {bits: kernels.plan(a[0], b[0], None, d[0], bits=bits, **options) for bits in BITS}
        launches, result = {}, {}
        for bits, plan in plans.items():
            launches[bits] = lambda i, bits=bits: multiply(a[i], b[i], out=d[i], bits=bits)
            launches[bits](0)
            equal = (bits_of(torch, d[0]) == wanted).all(dim=1)
            result[bits] = {"tile": tile(plan.config), "other_rows": int((~equal).sum())}
        result["correct"] = result[INVARIANT]["other_rows"] == 0
        result["operations"] = 2 * M * case.N * case.K
        is_same_plan = plans[FREE] == plans[INVARIANT]
        begin = time.perf_counter()
        timed = [TimedLaunch(torch, launches[bits], len(a)) for bits in BITS[is_same_plan:]]
        timings = time_interleaved(timed, self._rounds, WARM_UP)
        for bits, timing in zip(BITS, timings * (1 + is_same_plan), strict=True):
            result[bits] |= timing.json()
        return result | {
            "same_plan": is_same_plan,
            "ratio": result[FREE]["median"] / result[INVARIANT]["median"],
            "captured": all(launch.captured for launch in timed),
            "state": self._monitor.between(begin, time.perf_counter()),
        }


def bits_of(torch: Any, x: Any) -> Any:
    """View the elements of a matrix as integers."""
    return x.view({2: torch.int16, 4: torch.int32}[x.element_size()])


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of the ratios by type, and by type and weight."""
    ratios: dict[str, list[float]] = {}
    for result in results:
        if "ratio" in result:
            for name in (result["dtype"], weight_of(result)):
                ratios.setdefault(name, []).append(result["ratio"])
    return {"goal": GOAL, "geometric_mean": {n: geometric_mean(x) for n, x in ratios.items()}}


def weight_of(result: dict[str, Any]) -> str:
    return f"{result['dtype']} {result['N']}x{result['K']}"


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """Every M of every weight, and the geometric means."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in document["results"]:
        groups.setdefault(weight_of(result), []).append(result)
    for name, results in groups.items():
        yield Table(f"{name} (N x K)", [row_of(result) for result in results])
    means = document["summary"].get("geometric_mean", {})
    if means:
        yield Table(
            f"free choice over invariant one, geometric mean over M (goal: {GOAL})",
            [{"": name, "ratio": number(mean, ".3f")} for name, mean in means.items()],
        )


def row_of(result: dict[str, Any]) -> dict[str, str]:
    free, invariant = result.get(FREE, {}), result.get(INVARIANT, {})
    notes = result.get("failure") or result.get("left_out") or ""
    if result.get("same_plan"):
        notes = "one plan for both"
    if result.get("correct") is False:
        notes = f"{invariant['other_rows']} ROWS HAVE OTHER BITS"
    return {
        "M": str(result["M"]),
        "free": duration(free.get("median")),
        "invariant": duration(invariant.get("median")),
        "ratio": number(result.get("ratio"), ".3f"),
        "free tile": free.get("tile", "-"),
        "invariant tile": invariant.get("tile", "-"),
        "rows that differ": str(free.get("other_rows", "-")),
        "notes": one_line(notes),
    }
