"""Regret of `gemm`'s choice: the time of its configuration over the fastest measured one, less one.

The problems are random ones of the landscape that wgmma kernels run. For each problem, the
configurations that the trees rank first, and the first of every kind, are measured together with
cuBLASLt's best algorithm. If wgmma needs copies of the operands, mma.sync may be faster. Then its first
configurations are measured too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks.gpu import MAX_LAUNCHES, Launch, Loop, TimedLaunch, cache_bytes, sets_beyond_cache
from benchmarks.gpu import SAMPLE as SAMPLE_OF_BENCHMARKS
from benchmarks.harness import GPU_STATE, Report, add_seconds, ask_gpu, attempt, failure, geometric_mean
from benchmarks.products import gemm_cases, landscape
from benchmarks.products.baselines import CublasLt
from benchmarks.products.gemm import GPU_METHOD, torch_with_gpu
from benchmarks.products.gemm_cases import Case
from benchmarks.products.gemm_gpu import gemm_options, tile
from benchmarks.products.operands import Operands, draw, operands
from benchmarks.tables import Table, duration, number, progress
from tensorcore_dsl import kernels
from tensorcore_dsl.host import describe
from tensorcore_dsl.kernels.choosing import choice
from tensorcore_dsl.kernels.choosing.ranking import ranking
from tensorcore_dsl.kernels.host.arrays import with_line_strides
from tensorcore_dsl.kernels.host.warming import kernels_of
from tensorcore_dsl.kernels.problem.families import family_of, obstacles
from tensorcore_dsl.kernels.problem.gemm_problem import GemmProblem

COUNT, BEST, ROUNDS = 60, 16, 8
BEST_MMA = 5  # configurations of mma.sync to measure if they may be faster
SAMPLE = 0.003  # seconds of a sample, at least
# Launches of more seconds than LONG are limited by power. Their samples take LONG_SAMPLE seconds:
# shorter ones would run at the speed that the mean power of all configurations allows, and those of
# 30 ms while the GPU is still changing its speed.
LONG, LONG_SAMPLE, LONG_ROUNDS, LONG_HOPELESS = 1.5e-4, 0.1, 4, 1.15
NEAR, PASSES = 4, 6  # samples before and after one, and steps, that tell the GPU's speed then
PLAUSIBLE = 1.4  # measure the first of a kind if predicted within this multiple of the fastest
HOPELESS = 1.5  # configurations beyond this multiple of the fastest are measured only twice
WORST = 12  # rows of the table of the worst choices
ORDER = {
    "order": f"{ROUNDS} rounds, each in a random order, and the median of them, less the speed of "
    "the GPU at that time: a GPU that gets slower and faster, as its power allows, gives no place "
    f"an advantage; what takes {HOPELESS} times as long as the fastest takes part in the first two "
    f"rounds only; of launches of more than {LONG * 1e6:g} us samples of {LONG_SAMPLE * 1e3:g} ms, "
    f"{LONG_ROUNDS} rounds and {LONG_HOPELESS} times"
}
TYPES = ("bf16", "e4m3", "s8", "tf32", "f16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--dtypes",
        type=gemm_cases.dtypes_of,
        default=TYPES,
        metavar="T,...",
        help=f"element types (default: {', '.join(TYPES)})",
    )
    add("--count", type=int, default=COUNT, metavar="N", help=f"problems (default: {COUNT})")
    add(
        "--best",
        type=int,
        default=BEST,
        metavar="N",
        help=f"configurations that are measured with the first of each kind (default: {BEST})",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the problems (default: 0)")
    add_seconds(parser, 200.0, "problem")


def problems(seed: int, count: int, dtypes: Sequence[str]) -> list[Case]:
    """The first `count` problems of the landscape that wgmma kernels run as they are."""
    chosen = []
    for case in landscape.problems(seed, 8 * count, dtypes):
        with tc.target("cpu", "sm_90a"):
            if not obstacles(problem_of(case))["sm90"]:
                chosen.append(case)
    return chosen[:count]


def arrays(case: Case) -> tuple[Any, Any, Any]:
    """A, B and D of the case as kernels get them, uninitialised; nobody touches their memory."""

    def matrix(rows: int, cols: int, order: str) -> Any:
        return np.empty((rows, cols), case.element.numpy, order="C" if order == "row" else "F")

    a_order, b_order = case.orders
    a, b = matrix(case.M, case.K, a_order), matrix(case.K, case.N, b_order)
    a, b = with_line_strides(a, b, describe(a), describe(b))
    return a, b, np.empty((case.M, case.N), case.out.numpy)


def problem_of(case: Case) -> GemmProblem:
    a, b, d = arrays(case)
    options = gemm_options(case)
    return GemmProblem.of(a, b, None, d, precision=options["precision"], accumulate=options["accumulate"])


def chosen(case: Case) -> Any:
    """The configuration that `gemm` takes."""
    a, b, d = arrays(case)
    with tc.target("cpu", "sm_90a"):
        return kernels.plan(a, b, None, d, **gemm_options(case)).config


def configurations(case: Case, best: int) -> list[Any]:
    """Configurations to measure: the choice, the best of the ranking, and the first of every kind.

    Where mma.sync may be faster than wgmma, the best of its configurations, too.
    """
    mma_configs: list[Any] = []
    with tc.target("cpu", "sm_90a"):
        problem = problem_of(case)
        shape = choice.shape_of(problem, choice.choose_copies(problem, "sm90"))
        if choice.may_prefer_sm80(problem):
            ranked = choice.ranked_configs(problem, choice.kinds_of(problem, "sm80"))
            mma_configs = [config for _, config in islice(ranked, BEST_MMA)]
    expected = ranking(shape)
    ranked = [config for _, config in expected]
    kinds: dict[Any, Any] = {}
    for seconds, config in expected:
        if seconds < PLAUSIBLE * expected[0][0]:
            kinds.setdefault(kind_of(config), config)
    return list(dict.fromkeys([chosen(case), *ranked[:best], *kinds.values(), *mma_configs]))


def kind_of(config: Any) -> tuple[Any, ...]:
    """Return the kind of a configuration: all fields but its columns."""
    return (config.BM, config.pingpong, config.cluster_m, config.cluster_n, config.split_k, config.k_slabs)


def compile_ahead(case: Case, config: Any) -> str:
    """Compile a configuration into the disk cache. Return the error, or ''."""
    a, b, d = arrays(case)
    warnings.simplefilter("ignore")
    try:
        product = a, b, gemm_options(case) | {"out": d, "config": config}
        for bound in kernels_of([product], "sm_90a"):
            bound.compile()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Compilers:
    """Processes that compile configurations in the order of their measurement."""

    def __init__(self, wanted: Sequence[tuple[Case, Sequence[Any]]]) -> None:
        context = multiprocessing.get_context("spawn")
        workers = max(1, len(os.sched_getaffinity(0)) - 3)  # one core prepares launches
        self._pool = ProcessPoolExecutor(workers, mp_context=context)
        self._futures: dict[Any, Future[str]] = {}
        for case, configs in wanted:
            for config in configs:
                key = self._key(case, config)
                if key not in self._futures:
                    self._futures[key] = self._pool.submit(compile_ahead, case, config)

    def _key(self, case: Case, config: Any) -> Any:
        problem = problem_of(case)
        return case.precise, problem.a.type, problem.b.type, problem.d.type, config

    def __len__(self) -> int:
        return len(self._futures)

    def wait(self, case: Case, config: Any) -> str:
        return self._futures[self._key(case, config)].result(timeout=120)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def run(options: argparse.Namespace) -> Report:
    names = ("dtypes", "count", "best", "seed", "seconds")
    method = {name: GPU_METHOD[name] for name in ("operands", "clock", "buffers")} | ORDER
    options_given = {name: getattr(options, name) for name in names}
    report = Report("regret", options_given, method, summary={"target": "cuda"})
    begin = time.perf_counter()
    with tc.target("cuda"):
        torch = torch_with_gpu()
        report.machine["gpu_before"] = ask_gpu(GPU_STATE)
        wanted = [
            (case, configurations(case, options.best))
            for case in problems(options.seed, options.count, options.dtypes)
        ]
        menus, compilers = dict(wanted), Compilers(wanted)
        report.summary["kernels"] = len(compilers)
        baseline = CublasLt(torch)
        try:
            for case in progress([case for case, _ in wanted], "regret"):
                result = asdict(case) | {"operations": case.operations}
                if time.perf_counter() - begin > options.seconds:
                    result["left_out"] = f"{options.seconds:g} s are over"
                else:
                    result |= attempt(measure, torch, baseline, compilers, case, menus[case])
                report.results.append(result)
                report.save(options.out)
        finally:
            compilers.close()
        report.machine["gpu_after"] = ask_gpu(GPU_STATE)
    report.summary |= summarise(report.results)
    return report


def measure(
    torch: Any, baseline: CublasLt, compilers: Compilers, case: Case, configs: Sequence[Any]
) -> dict[str, Any]:
    """Measure all configurations, the choice first, and the reference."""
    a, b = draw(torch, case, 0)
    sets = min(sets_beyond_cache(case.bytes, cache_bytes(torch)), MAX_LAUNCHES)
    buffers = operands(torch, case, a, b, sets)
    launches, timed, failures, sampler = [], [], [], Sampler(torch, sets)
    begin, waited = time.perf_counter(), 0.0
    for config in configs:
        before = time.perf_counter()
        error = compilers.wait(case, config)
        waited += time.perf_counter() - before
        try:
            if error:
                raise RuntimeError(error)
            launches.append(sampler(partial(ours, buffers, config)))
            timed.append(config)
        except Exception as failed:
            failures.append({"config": asdict(config), **failure(failed)})
            torch.cuda.synchronize()
    if not timed or timed[0] != configs[0]:
        raise RuntimeError(f"the choice could not be measured: {failures[0]}")
    result: dict[str, Any] = {"sets": sets, "failures": failures, "compilers_s": waited}
    result["prepared_s"] = time.perf_counter() - begin
    prepared = None
    with suppress(Exception):
        separate = replace(buffers, d=[torch.zeros_like(d) for d in buffers.d])
        prepared = baseline.prepare(case, separate)
        launches.append(sampler(prepared.launch))
    samples = sampled(launches, *((LONG_ROUNDS, LONG_HOPELESS) if sampler.is_long else ()))
    times = at_one_speed(samples)
    result["trials"] = [
        {
            "tile": tile(config),
            "seconds": times[i],
            "samples": [x for at, x in samples if at == i],
            "family": family_of(config),
            "config": differing(config),
        }
        for i, config in enumerate(timed)
    ]
    if prepared is not None:
        if len(launches) > len(timed):
            result["reference"] = times[-1]
        prepared.close()
    return result


def ours(buffers: Operands, config: Any, i: int) -> None:
    options = gemm_options(buffers.case)
    kernels.gemm(buffers.a[i], buffers.b[i], out=buffers.d[i], config=config, **options)


class Sampler:
    """Graphs of as many launches as the first one needs, for a problem's other configurations.

    is_long: whether the first launch is so large that power limits the GPU. Launches that no graph
    can capture are refused: the host might be slower than they are.
    """

    def __init__(self, torch: Any, sets: int) -> None:
        self._torch, self._sets, self._first, self.is_long = torch, sets, None, False

    def __call__(self, launch: Launch) -> Callable[[], float]:
        """Return a function that measures the seconds of one launch."""
        if self._first is None:
            first = TimedLaunch(self._torch, launch, self._sets)
            _check_captured(first.loop)
            self._first = first
            self.is_long = first.sample() > LONG
            sample = LONG_SAMPLE if self.is_long else SAMPLE
            first.replays = max(1, round(first.replays * sample / SAMPLE_OF_BENCHMARKS))
            return first.sample
        launch(0)
        loop = Loop(self._torch, launch, self._sets, self._first.loop.count)
        _check_captured(loop)
        return partial(loop.seconds, self._first.replays)


def _check_captured(loop: Loop) -> None:
    if loop.graph is None:
        raise RuntimeError(f"no graph captured the launches: {loop.error}")


def sampled(
    launches: Sequence[Callable[[], float]], rounds: int = ROUNDS, hopeless: float = HOPELESS
) -> list[tuple[int, float]]:
    """Measure launches in rounds. Return (index of the launch, seconds) in the order of the samples.

    A launch that takes `hopeless` times the round's fastest in both of the first two rounds is dropped.
    One round is not enough, because the power limit may slow down a single sample.
    """
    for launch in launches:  # a warm-up
        launch()
    rng, order = np.random.default_rng(len(launches)), np.arange(len(launches))
    samples: list[tuple[int, float]] = []
    for turn in range(rounds):
        samples += [(int(i), launches[i]()) for i in rng.permutation(order)]
        if turn == 1:
            count = len(launches)
            first, second = (
                np.array([seconds for _, seconds in sorted(of_round)])
                for of_round in (samples[:count], samples[count:])
            )
            hopeful = (first < hopeless * first.min()) | (second < hopeless * second.min())
            order = np.flatnonzero(hopeful)
    return samples


def at_one_speed(samples: Sequence[tuple[int, float]]) -> list[float]:
    """Correct the seconds of each launch for changes of the GPU's speed.

    Neighbouring samples belong to different launches. The median of their slowdowns is the GPU's speed
    at this moment.
    """
    which = np.array([i for i, _ in samples])
    logs = np.log([seconds for _, seconds in samples])
    speed = np.zeros(len(logs))
    for _ in range(PASSES):
        usual = np.array([np.median((logs - speed)[which == i]) for i in range(which.max() + 1)])
        longer = logs - usual[which]
        near = (slice(max(0, i - NEAR), i + NEAR + 1) for i in range(len(logs)))
        speed = np.array([np.median(longer[part]) for part in near])
    return [float(x) for x in np.exp(usual)]


def differing(config: Any) -> dict[str, Any]:
    """Fields that differ from the default, and the tile."""
    default = vars(type(config)())
    return {k: v for k, v in vars(config).items() if v != default[k] or k in ("BM", "BN", "stages", "unroll")}


def regret(result: dict[str, Any]) -> float:
    """Return the choice's time over the fastest configuration's, less one."""
    trials = result["trials"]
    return float(trials[0]["seconds"] / fastest(result)["seconds"]) - 1


def fastest(result: dict[str, Any]) -> dict[str, Any]:
    trial: dict[str, Any] = min(result["trials"], key=lambda trial: trial["seconds"])
    return trial


def name_of(result: dict[str, Any]) -> str:
    return f"{result['dtype']} promoted" if result["precise"] else str(result["dtype"])


def summarise(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Quantiles of the regret by element type, and for all."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        if result.get("trials"):
            groups.setdefault(name_of(result), []).append(result)
            groups.setdefault("all", []).append(result)
    names = sorted(groups, key=lambda name: (name == "all", name))
    return {"groups": {name: _summary(groups[name]) for name in names}}


def _summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    regrets = [regret(r) for r in results]
    with_reference = [r for r in results if "reference" in r]
    best = lambda r: fastest(r)["seconds"]
    return {
        "problems": len(results),
        "median": float(np.median(regrets)),
        "p95": float(np.quantile(regrets, 0.95)),
        "worst": max(regrets),
        "ratio": geometric_mean(r["reference"] / r["trials"][0]["seconds"] for r in with_reference),
        "ratio_of_best": geometric_mean(r["reference"] / best(r) for r in with_reference),
    }


def percent(value: float | None) -> str:
    return number(value, ".1%")


def tables(document: dict[str, Any]) -> Iterator[Table]:
    yield Table(
        "Regret of the choice",
        [
            {
                "type": name,
                "problems": str(group["problems"]),
                "median": percent(group["median"]),
                "95th percentile": percent(group["p95"]),
                "worst": percent(group["worst"]),
                "cuBLASLt's time / ours": number(group["ratio"], ".3f"),
                "/ the best measured": number(group["ratio_of_best"], ".3f"),
            }
            for name, group in document["summary"]["groups"].items()
        ],
    )
    known = [r for r in document["results"] if r.get("trials")]
    rows = []
    for result in sorted(known, key=regret, reverse=True)[:WORST]:
        best = fastest(result)
        rows.append(
            {
                "problem": str(Case.of(result)),
                "type": name_of(result),
                "chosen": result["trials"][0]["tile"],
                "time": duration(result["trials"][0]["seconds"]),
                "best": best["tile"],
                "its time": duration(best["seconds"]),
                "regret": percent(regret(result)),
            }
        )
    yield Table("The worst", rows)
