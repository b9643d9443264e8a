"""Fit the cost model of the wgmma configurations to measured times, correct it, choose its menu.

Times are those of `python -m benchmarks regret --record`. The constants are the ones that make the
choices of the model lose least, and its times differ least from those measured, in logarithms. The
menu holds the configurations of a wide space without which random problems, or those that were
measured, would take longer. Trees correct what the fitted model leaves out
(kernels/host/corrections.py); how well, problems tell that they have not seen: in a
cross-validation, and those of files that are held out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from heapq import heappop, heappush
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks import fit_mma, landscape
from benchmarks.gemm_cases import Case
from benchmarks.harness import RECORDED, Report
from benchmarks.regret import TYPES, percent, problem_of
from benchmarks.tables import Table, progress
from benchmarks.trees import FEW, NEAR, boosted, cross_validated, measured, regrets, slower
from tensorcore_dsl.kernels import HopperConfig
from tensorcore_dsl.kernels.hopper.config import MOST_STAGES
from tensorcore_dsl.kernels.host import corrections, heuristics, padding
from tensorcore_dsl.kernels.host.candidates import (
    MENU,
    Menu,
    configuration,
    is_candidate,
    loaded_columns,
)
from tensorcore_dsl.kernels.host.cost_model import CLOCK, COSTS, Costs, cycles, terms
from tensorcore_dsl.kernels.host.problem_shape import ProblemShape

# The objective
SOFT = 0.02  # configurations whose expected times differ by this part are chosen alike often
MOST = 0.6  # loss of a choice, at most
FAR = 0.5  # difference between problems, at most
SUITE = 8  # weight of problems that are not random
OF_DIFFERENCES, OF_LEVEL, OF_CHANGES = 0.5, 0.15, 2e-4  # weights beside the loss
# Bandwidth of each GPU's memory; 1 is that of an H200, to which the constants are fitted.
H200 = "NVIDIA H200"
MEMORY = {H200: 1.0, "NVIDIA H100 80GB HBM3": 0.7}
# The search
STEP, MIN_STEP, SWEEPS = 0.25, 0.005, 14
# The menu
SIZE, PROBLEMS = 1000, 2000
MEASURED = 2.0  # weight of a measured problem beside a random one
SLOW = 2.0  # times the least: what a problem costs without a configuration of its own
CORRECTED = 400  # configurations of the space that the trees correct, at most
ALWAYS = ("64x64", "64x128", "128x64", "128x128", "128x256", "128x128 pp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--results", type=Path, default=RECORDED, metavar="DIR",
        help="folder of files regret-*.json (default: benchmarks/results)")  # fmt: skip
    add("--size", type=int, default=SIZE, metavar="N",
        help=f"configurations of the menu (default: {SIZE})")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="of the menu's problems (default: 0)")
    add("--keep", action="store_true", help="keep the constants, and choose a menu alone")
    add("--write", action="store_true",
        help="write the trees and the menu to kernels/host")  # fmt: skip


# -- what was measured ---------------------------------------------------------------------------


def bandwidth_of(gpu: str) -> float:
    """Bandwidth of a GPU's memory, times that of an H200's."""
    if gpu not in MEMORY:
        raise ValueError(
            f"timings of {gpu!r}: the bandwidth of its memory is not known, only that of "
            f"{', '.join(MEMORY)}; add it to MEMORY in benchmarks/fit.py"
        )
    return MEMORY[gpu]


class Timings:
    """Measured seconds of configurations, and the problem of each."""

    def __init__(self, results: Iterable[dict[str, Any]]) -> None:
        self.cases: list[Case] = []
        learnt_with: list[float] = []
        bandwidths: list[float] = []
        rows: list[tuple[int, ProblemShape, HopperConfig, float]] = []
        for result in results:
            case, bandwidth = Case.of(result), bandwidth_of(result.get("gpu", H200))
            with tc.target("cpu", "sm_90a"):
                problem = problem_of(case)
                shape = heuristics.shape_of(problem)
            for trial in result["trials"]:
                config = HopperConfig(**trial["config"])
                if heuristics.choose_copies(problem, "sm90", config):
                    continue  # which the time includes
                most = config.stages_of(loaded_columns(config, shape), buffers=2)
                if config.split_k > 1 and config.stages < min(most, MOST_STAGES):
                    continue  # measured when partial sums left room for fewer stages
                seen = shape.swapped if config.swapped else shape
                rows.append((len(self.cases), seen, config, trial["seconds"]))
                learnt_with.append(result.get("weight", 1.0))
                bandwidths.append(bandwidth)
            if rows and rows[-1][0] == len(self.cases):
                self.cases.append(case)
        index, shapes, configs, seconds = zip(*rows, strict=True)
        self.learnt_with = np.array(learnt_with)  # weights
        self._bandwidths = np.array(bandwidths)
        self.index, self.seconds = np.array(index), np.array(seconds)
        names = [field.name for field in fields(ProblemShape)]
        columns = {name: np.array([getattr(shape, name) for shape in shapes]) for name in names}
        self.shapes, self.menu = ProblemShape(**columns), Menu.of(configs)
        self.slower = slower(self.index, self.seconds)
        self._weights = np.exp(-self.slower / NEAR)
        self._sums = self.total(self._weights)
        random = [case.group.startswith(landscape.NAME) for case in self.cases]
        self.weights = np.where(random, 1.0, SUITE)  # of problems
        share = np.minimum(np.bincount(self.index) / FEW, 1) * self.weights
        self._share = share / share.sum()  # of a problem

    def total(self, values: Any) -> Any:
        """Sums of each problem."""
        return np.bincount(self.index, values)

    def terms(self, costs: Costs) -> dict[str, Any]:
        """What the model tells of each timing, by the memory of the GPU that was measured.

        costs: those of an H200.
        """
        return terms(self.menu, self.shapes, replace(costs, dram=costs.dram * self._bandwidths))

    def expected(self, costs: Costs) -> Any:
        return self.terms(costs)["cycles"] / CLOCK

    def regret(self, expected: Any) -> Any:
        return regrets(self.index, self.seconds, expected)

    def objective(self, costs: Costs) -> float:
        """Loss of choices, differences within problems, and differences between them."""
        logs = np.log(self.expected(costs))
        errors = logs - np.log(self.seconds)
        level = self.total(self._weights * errors) / self._sums
        errors = errors - level[self.index]
        spread = np.sum(self._share * self.total(self._weights * errors * errors) / self._sums)
        least = np.full(len(self.cases), np.inf)
        np.minimum.at(least, self.index, logs)
        chances = np.exp((least[self.index] - logs) / SOFT)
        losses = self.total(chances * np.minimum(self.slower, MOST)) / self.total(chances)
        between = np.sqrt(np.mean(np.minimum(abs(level), FAR) ** 2))
        loss = np.sum(self._share * losses)
        return float(loss + OF_DIFFERENCES * np.sqrt(spread) + OF_LEVEL * between)


def fitted(timings: Timings, costs: Costs = COSTS) -> Costs:
    """Search along one constant after the other, in logarithms."""
    names = list(asdict(costs))
    start = np.log(list(asdict(costs).values()))

    def of(x: Any) -> Costs:
        return Costs(**{name: float(value) for name, value in zip(names, np.exp(x), strict=True)})

    def objective(x: Any) -> float:
        return timings.objective(of(x)) + OF_CHANGES * float(np.mean((x - start) ** 2))

    x, steps = start.copy(), np.full(len(names), STEP)
    least = objective(x)
    for sweep in progress(range(SWEEPS), "fit"):
        for j in np.random.default_rng(sweep).permutation(len(names)):
            for sign in (1, -1):
                other = x.copy()
                other[j] += sign * steps[j]
                value = objective(other)
                if value < least:
                    x, least, steps[j] = other, value, steps[j] * 1.5
                    break
            else:
                steps[j] *= 0.5
        if steps.max() < MIN_STEP:
            break
    return of(x)


# -- the trees -----------------------------------------------------------------------------------


def features(timings: Timings, costs: Costs) -> Any:
    """What the trees know of each timing."""
    return corrections.features(timings.menu, timings.shapes, timings.terms(costs))


def grown(timings: Timings, costs: Costs, learnt: Any = True) -> dict[str, Any]:
    """Trees that correct the model, as corrections.py stores them, of the timings of a mask."""
    expected, rows = timings.expected(costs), features(timings, costs)
    return boosted(
        timings.index, timings.seconds, expected, rows, learnt, weights=timings.learnt_with
    )


def corrected(timings: Timings, costs: Costs, trees: dict[str, Any] | None = None) -> Any:
    """Expected seconds of all timings; trees: those of the package."""
    given = trees and corrections.Trees.of(trees)
    return timings.expected(costs) * corrections.factors(features(timings, costs), given)


def unseen(timings: Timings, costs: Costs) -> Any:
    """The same by trees that have not seen a problem of these sizes and layouts."""
    problems: dict[Any, int] = {}
    for case in timings.cases:
        problems.setdefault((case.M, case.N, case.K, case.layout), len(problems))
    groups = np.array([problems[case.M, case.N, case.K, case.layout] for case in timings.cases])
    return cross_validated(
        groups[timings.index],
        lambda learnt: corrected(timings, costs, grown(timings, costs, learnt)),
    )


# -- the menu ------------------------------------------------------------------------------------

WIDTHS = tuple(range(16, 257, 8))
CLUSTERS = (
    "", " c2x1", " c1x2", " c2x2", " c1x4", " c4x1", " c3x1", " c1x3", " c2x4", " c4x2", " c1x8",
    " c8x1",
)  # fmt: skip
FEW_ROWS = (8, 16, 32, 48, 96, 144, 160, 176)
REGISTERS = {3: 88}  # consumers -> accumulators of a thread, at most
SPLIT_REGISTERS = {1: 200, 2: 146, 3: 96}  # the same with the sums of split-K that it stores


def space() -> list[str]:
    """All configurations that may be worth something, as in the menu."""
    found = [f"128x{n}{c} pp" for n, c in product(range(64, 193, 8), CLUSTERS[:3])]
    found += [f"64x{n}{c} pp" for n, c in product((128, 192, 256), CLUSTERS[:3])]
    for BM, BN, cluster in product((64, 128, 192), WIDTHS, CLUSTERS):
        found += [f"{BM}x{BN}{cluster}"] + [f"{BM}x{BN}{cluster} d2"] * (BM * BN <= 64 * 64)
    for BM, BN, parts in product((64, 128, 192), WIDTHS, range(2, 9)):
        found += [f"{BM}x{BN} k{parts}"] + [f"{BM}x{BN} k{parts} d2"] * (BM * BN <= 64 * 64)
        wide = CLUSTERS[1:8] if parts == 2 else CLUSTERS[1:3] if parts <= 4 else ()
        found += [f"{BM}x{BN}{c} k{parts}" for c in wide]
    for BM, BN, cluster in product((64, 128, 192), (64, 96, 128, 160, 192, 256), CLUSTERS[:3]):
        found.append(f"{BM}x{BN}{cluster} sk")
    narrow = {f"192x{n}" for n in WIDTHS[:2]}  # slower than lower tiles wherever measured
    found += [f"{text} t" for text in found if text.split()[0] not in narrow]
    for rows, BN, parts, depth in product(FEW_ROWS, WIDTHS[::2], (1, 2, 4, 8), (1, 2)):
        BM = -(-rows // 64) * 64
        narrow = BN * depth <= 256 and (parts <= 2 or BN <= 128)
        if BN % (8 * parts) == 0 and narrow and (BM <= 128 or depth * parts <= 2):
            words = f" k{parts}" * (parts > 1) + f" d{depth}" * (depth > 1)
            found.append(f"{BM}x{BN}{words} v{rows}")
    return [text for text in dict.fromkeys(found) if _is_built(text)]


def _is_built(text: str) -> bool:
    """Whether a configuration has enough stages and registers, and equal shares."""
    try:
        config = configuration(text)
    except tc.ArgumentError:  # no room for two stages
        return False
    registers = config.accumulator_registers <= REGISTERS.get(config.consumers, 192)
    if config.split_k > 1:
        needed = config.accumulator_registers + config.stored_columns // 2
        registers &= needed <= SPLIT_REGISTERS[config.consumers]
        # Unequal shares of B take predicates, and registers that clusters in both directions lack.
        registers &= 1 in (config.cluster_m, config.cluster_n) or config.BN % 16 == 0
    shares = config.stored_columns <= max(32, 2 * config.BN // config.split_k)
    return registers and shares and config.stages >= 2 + config.k_slabs


def shapes(seed: int) -> list[ProblemShape]:
    """What the wgmma kernels get of random problems; of some with an epilogue, or in a batch."""
    found, draw = [], np.random.default_rng(seed)
    for case in progress(landscape.problems(seed, PROBLEMS, TYPES), "problems"):
        with tc.target("cpu", "sm_90a"):
            problem = problem_of(case)
            if heuristics.choose_family(problem, None, None)[0] == "sm90":
                copies = heuristics.choose_copies(problem, "sm90")
                found.append(heuristics.shape_of(padding.with_copies(problem, copies)))
    kinds = draw.random(len(found))
    found += [replace(s, has_epilogue=True) for s, kind in zip(found, kinds) if kind < 0.08]
    small = [s for s, kind in zip(found, kinds) if kind > 0.92]
    return found + [
        replace(s, batch=16, M=min(s.M, 1024), N=min(s.N, 1024), K=min(s.K, 2048)) for s in small
    ]


def expected_losses(
    texts: Sequence[str], problems: Sequence[ProblemShape], costs: Costs
) -> Any:
    """Of each problem (rows), the loss by each configuration; infinite where it is no candidate."""
    every = Menu.of(tuple(map(configuration, texts)))
    times = np.full((len(problems), len(texts)), np.inf)
    for row, shape in zip(times, problems, strict=True):
        allowed = is_candidate(every, shape)
        row[allowed] = cycles(every.select(allowed), shape, costs, CORRECTED)
    return times / times.min(1)[:, None] - 1


def measured_losses(texts: Sequence[str], timings: Timings) -> tuple[Any, Any]:
    """The same as it was measured, infinite where it was not; and weights of the problems.

    A configuration with slices of K counts as the one of the menu that it is made of.
    """
    places = {configuration(text): place for place, text in enumerate(texts)}
    losses = np.full((len(timings.cases), len(texts)), np.inf)
    for index, config, loss in zip(timings.index, timings.menu.configs, timings.slower):
        place = places.get(replace(config, slices=1))
        if place is not None:
            losses[index, place] = min(losses[index, place], loss)
    known = np.isfinite(losses).any(1)
    return losses[known], timings.weights[known]


def chosen(texts: Sequence[str], losses: Any, weights: Any, size: int) -> list[str]:
    """The most useful `size` texts, each the best beside those before.

    Useful is what lessens the loss, of which large ones count more.
    """
    order = [texts.index(text) for text in ALWAYS]
    columns = np.asfortranarray(losses)
    least = np.minimum(columns[:, order].min(1), SLOW - 1)

    def cost(losses: Any) -> float:
        return float(weights @ (losses + 4 * losses**2))

    # What a text gains becomes no more with others before it: so the last known gain is a bound.
    bounds = [(-np.inf, i) for i in range(len(texts)) if i not in order]
    while len(order) < size:
        before = cost(least)
        while True:
            i = heappop(bounds)[1]
            gain = before - cost(np.minimum(least, columns[:, i]))
            if not bounds or (-gain, i) <= bounds[0]:
                break
            heappush(bounds, (-gain, i))
        order.append(i)
        least = np.minimum(least, columns[:, i])
    return [texts[i] for i in order]


def run(options: argparse.Namespace) -> Report:
    names = ("results", "size", "seed", "keep", "write")
    given = {name: str(getattr(options, name)) for name in names}
    report = Report("fit", given, {"menu": f"of {len(space())} configurations"})
    timings = Timings(measured(options.results))
    costs = COSTS if options.keep else fitted(timings)
    trees = grown(timings, costs)
    others = {
        name: fit_mma.Timings(model, measured(options.results, name))
        for name, model in fit_mma.MODELS.items()
    }
    grown_by_name = {"wgmma": trees} | {name: of.grown() for name, of in others.items()}
    if options.write:
        for name, arrays in grown_by_name.items():
            np.savez_compressed(corrections.PATHS[name], **arrays)
        corrections.stored_trees.cache_clear()
    texts = space()
    random = expected_losses(texts, shapes(options.seed), costs)
    of_measured, weights = measured_losses(texts, timings)
    weights = np.concatenate([np.ones(len(random)), MEASURED * weights])
    menu = chosen(texts, np.vstack([random, of_measured]), weights, options.size)
    if options.write:
        MENU.write_text("\n".join(menu) + "\n", "ascii")
    losses = random[:, [texts.index(text) for text in menu]].min(1)
    report.summary |= {"target": "cpu", "costs": asdict(costs), "menu": ", ".join(menu)}
    found = {
        "regret, before": timings.regret(timings.expected(COSTS)),
        "regret, fitted": timings.regret(timings.expected(costs)),
        "regret, corrected": timings.regret(corrected(timings, costs, trees)),
        "regret, unseen": timings.regret(unseen(timings, costs)),
    }
    if results := measured(options.results, held_out=True):
        held_out = Timings(results)
        found["regret, held out"] = held_out.regret(corrected(held_out, costs, trees))
    for name, of in others.items():
        its = corrections.Trees.of(grown_by_name[name])
        found[f"regret of {name}, model"] = of.regret(of.expected)
        found[f"regret of {name}, corrected"] = of.regret(of.corrected(its))
        found[f"regret of {name}, unseen"] = of.regret(of.cross_validated())
    found["expected loss by the menu"] = losses
    for name, values in found.items():
        about = {"median": np.median(values), "mean": values.mean(), "worst": values.max()}
        about["p95"] = np.quantile(values, 0.95)
        numbers = {key: float(value) for key, value in about.items()}
        report.results.append({"of": name, "problems": len(values)} | numbers)
    return report


def tables(document: dict[str, Any]) -> Iterator[Table]:
    yield Table("Choices", [
        {
            "": r["of"], "problems": str(r["problems"]), "median": percent(r["median"]),
            "mean": percent(r["mean"]), "95th percentile": percent(r["p95"]),
            "worst": percent(r["worst"]),
        }
        for r in document["results"]
    ])  # fmt: skip
    costs = document["summary"]["costs"]
    yield Table("Costs", [{"": name, "value": f"{value:.3g}"} for name, value in costs.items()])
    yield Table("Menu", [{"": document["summary"]["menu"]}])
