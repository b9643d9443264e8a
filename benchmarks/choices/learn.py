"""Train the choice of `gemm` (trees and menu of kernels/choosing) from measured times.

`benchmarks/results/timings.npz` holds all recorded timings; `--add` adds files of `python -m
benchmarks regret`. The trees learn the logarithm of a time over the roofline time. The menu keeps
the configurations that were the fastest, or nearly, often enough. Problems that are held out, and a
cross-validation, tell how good the choices are.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import astuple, fields, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks.choices.regret import LONG, percent, problem_of
from benchmarks.harness import RECORDED, Report
from benchmarks.products.gemm_cases import Case
from benchmarks.tables import Table, progress
from tensorcore_dsl.kernels import AmpereConfig, HopperConfig, VectorConfig
from tensorcore_dsl.kernels.choosing import choice, trees
from tensorcore_dsl.kernels.choosing.features import features, rows_of
from tensorcore_dsl.kernels.choosing.menu import (
    CONFIGS,
    F64,
    FRAGMENTS,
    MMA,
    SPLIT_F32,
    VECTORS,
    WGMMA,
    Menu,
    config_of,
    menu,
)
from tensorcore_dsl.kernels.hopper.config import MAX_STAGES
from tensorcore_dsl.kernels.problem import padding
from tensorcore_dsl.kernels.problem.families import family_of
from tensorcore_dsl.kernels.problem.gemm_problem import GemmProblem
from tensorcore_dsl.kernels.problem.problem_shape import SMS, ProblemShape

TIMINGS = RECORDED / "timings.npz"
MEMORY = {"NVIDIA H200": 1.0, "NVIDIA H100 80GB HBM3": 0.7}  # bandwidth over that of an H200
OCTAVE = 4096  # steps of a recorded time in each factor of two: 0.02 %
LEAST_SECONDS = 2.0**-20  # lower bound of a kernel's time
MOST_SLOWER = 20  # times beyond this multiple of the fastest are measurement errors

# The trees
SLOWDOWN_WEIGHT = 0.2  # a timing 20 % slower than the fastest of its problem has the weight 1 / e
MIN_PROBLEM_TIMINGS = 6  # a problem with fewer timings has less weight than others
# The trees learn this share of the mean error of a problem. A kernel that competes with other kinds of
# kernels needs the whole, so that their times compare. wgmma and f64 kernels do not compete.
PROBLEM_ERROR_SHARE, ALONE_ERROR_SHARE = 1.0, 0.5
FEW_WEIGHT = 4.0  # weight of f32 products, and of kinds of kernels with less than MIN_KIND_TIMINGS
SHORT_WEIGHT = 0.2  # weight of long launches in samples too short for the power limit to slow them
TREES, LEAVES, DEPTH, RATE, MIN_TIMINGS, RIDGE = 800, 128, 12, 0.05, 10, 10.0
FOLDS = 5

# A configuration is on the menu of its kind if it was within NEAR_FASTEST of the fastest for at least
# MIN_WINS problems. A kind with less than MIN_KIND_TIMINGS keeps its menu.
NEAR_FASTEST, MIN_KIND_TIMINGS = 0.01, 5000
MIN_WINS = {WGMMA: 4, MMA: 1, F64: 1}
CHUNK = 20_000  # timings whose features are computed at a time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--add",
        type=Path,
        nargs="+",
        default=(),
        metavar="FILE",
        help="files of `regret --record` whose timings are added to the table first",
    )
    add(
        "--timings",
        type=Path,
        default=TIMINGS,
        metavar="FILE",
        help="table of timings (default: benchmarks/results/timings.npz)",
    )
    add("--cross-validate", action="store_true", help="grow trees for each of five folds, too")
    add("--write", action="store_true", help="write kernels/choosing/choices.npz")


# -- the table of timings ------------------------------------------------------------------------


def pack(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Pack problems with `gpu`, `held_out`, `short` and `trials` of (config, seconds) to a table."""
    trials = [trial for result in results for trial in result["trials"]]
    of_kind = lambda kind: {config for config, _ in trials if type(config) is kind}
    tables = {name: sorted(of_kind(kind), key=astuple) for name, kind in CONFIGS.items()}
    place = {config: i for i, config in enumerate(chain(*tables.values()))}
    cases = [Case.of(result) for result in results]
    words = [(c.dtype, c.layout, str(c.precise), r["gpu"]) for c, r in zip(cases, results)]
    names = sorted({word for line in words for word in line})
    logarithms = np.log2([seconds / LEAST_SECONDS for _, seconds in trials])
    return {
        "sizes": np.array([(c.M, c.N, c.K) for c in cases], np.int32),
        "names": np.array(names),
        "words": np.array([[names.index(word) for word in line] for line in words], np.uint8),
        "held_out": np.array([result["held_out"] for result in results]),
        "short": np.array([result["short"] for result in results]),
        "count": np.array([len(result["trials"]) for result in results], np.uint8),
        **{name: np.array([astuple(c) for c in configs], np.int16) for name, configs in tables.items()},
        "config": np.array([place[config] for config, _ in trials], np.uint16),
        "time": np.round(OCTAVE * logarithms).astype(np.uint16),
    }


def unpack(table: Any) -> list[dict[str, Any]]:
    """Unpack the problems of a table."""
    configs = [config_of(kind, row) for name, kind in CONFIGS.items() for row in table[name].tolist()]
    seconds = LEAST_SECONDS * 2 ** (table["time"] / OCTAVE)
    names, ends = table["names"], np.cumsum(table["count"].astype(int))
    columns = zip(
        table["sizes"].tolist(),
        names[table["words"]].tolist(),
        table["held_out"].tolist(),
        table["short"].tolist(),
        np.split(table["config"], ends[:-1]),
        np.split(seconds, ends[:-1]),
        strict=True,
    )
    return [
        {
            "M": M,
            "N": N,
            "K": K,
            "dtype": dtype,
            "layout": layout,
            "precise": precise == "True",
            "gpu": gpu,
            "held_out": held_out,
            "short": short,
            "trials": [(configs[i], float(s)) for i, s in zip(numbers, times, strict=True)],
        }
        for (M, N, K), (dtype, layout, precise, gpu), held_out, short, numbers, times in columns
    ]


def recorded(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the problems of a result file of `regret`."""
    for result in document["results"]:
        trials, families = [], {result.get("family")}
        fastest = min((trial["seconds"] for trial in result.get("trials", ())), default=0)
        for trial in result.get("trials", ()):
            of_mma = result["dtype"] == "f64" or "sm80" in families | {trial.get("family")}
            kind = VectorConfig if "unroll" in trial["config"] else AmpereConfig if of_mma else HopperConfig
            config = kind(**trial["config"])
            if LEAST_SECONDS <= trial["seconds"] < MOST_SLOWER * fastest:
                trials.append((config, trial["seconds"]))
        if trials:
            short = "order" not in document["method"] and min(s for _, s in trials) > LONG
            yield result | {
                "trials": trials,
                "gpu": document["machine"]["gpu"]["name"],
                "short": short,
                "held_out": bool(document["options"].get("held_out")),
            }


def kind_of(config: Any, is_f32: bool, is_f64: bool) -> int:
    if isinstance(config, HopperConfig):
        return (SPLIT_F32 if config.splits_in_memory else FRAGMENTS) if is_f32 else WGMMA
    return VECTORS if isinstance(config, VectorConfig) else F64 if is_f64 else MMA


class Timings:
    """Measured seconds, the problem of each, and the features of its configuration."""

    def __init__(self, results: list[dict[str, Any]]) -> None:
        self.results, self.configs, samples = results, list[Any](), []
        shapes, kinds = list[ProblemShape](), list[int]()
        for number, result in enumerate(progress(results, "problems")):
            is_f32, is_f64 = (result["dtype"] == dtype for dtype in ("f32", "f64"))
            with tc.target("cpu", "sm_90a"):
                shape_of = _shapes(problem_of(Case.of(result)))
                for config, seconds in result["trials"]:
                    kind, shape = kind_of(config, is_f32, is_f64), shape_of(config)
                    if kind == WGMMA and _has_few_stages(config, shape):
                        continue
                    shapes.append(shape)
                    kinds.append(kind)
                    self.configs.append(config)
                    samples.append((number, seconds, MEMORY[result["gpu"]]))
        index, seconds, memory = (np.array(column) for column in zip(*samples, strict=True))
        self.index, self.seconds, self.kinds = index.astype(int), seconds, np.array(kinds)
        chunks = [slice(i, i + CHUNK) for i in range(0, len(seconds), CHUNK)]
        self.rows = np.concatenate(
            [_rows(self.configs[part], kinds[part], shapes[part], memory[part]) for part in chunks]
        )
        self.roofline = self.rows[:, 0] * 1e-6
        self.held_out = np.array([result["held_out"] for result in results])[self.index]
        weight = np.where([result["short"] for result in results], SHORT_WEIGHT, 1)[self.index]
        count = np.maximum(np.bincount(self.index, minlength=len(results)), MIN_PROBLEM_TIMINGS)
        few = (np.bincount(self.kinds) < MIN_KIND_TIMINGS)[self.kinds]
        few |= np.array([result["dtype"] == "f32" for result in results])[self.index]
        weight = weight * np.where(few, FEW_WEIGHT, 1)
        self.weights = np.exp(-slower(self.index, seconds) / SLOWDOWN_WEIGHT) * weight / count[self.index]

    def regrets(self, expected: Any, chosen: Any) -> Any:
        """Return the regret of the least expected time, for each problem of a mask with several timings."""
        index, seconds, expected = self.index[chosen], self.seconds[chosen], expected[chosen]
        order = np.lexsort((expected, index))
        first = np.flatnonzero(np.diff(index[order], prepend=-1))
        several = np.diff(first, append=len(order)) > 1
        return slower(index, seconds)[order[first[several]]]


def _shapes(problem: GemmProblem) -> Callable[[Any], ProblemShape]:
    """A function from a configuration to the shape of the problem as its kernel gets it."""

    @lru_cache
    def through(copies: tuple[padding.Copy, ...]) -> ProblemShape:
        return choice.shape_of(problem, copies)

    @lru_cache
    def of_family(family: str, config: Any) -> ProblemShape:
        return through(choice.choose_copies(problem, family, config))

    def shape_of(config: Any) -> ProblemShape:
        family = family_of(config)
        one_shape = family == "sm80" or problem.multiplied_as != tc.tf32  # for all configurations
        return of_family(family, HopperConfig() if one_shape else config)

    return shape_of


def _has_few_stages(config: HopperConfig, shape: ProblemShape) -> bool:
    """Whether partial sums left room for fewer stages, as they did in former kernels."""
    seen = shape.swapped if config.swap_ab else shape
    columns = config.loaded_columns(seen.b_k_major, seen.itemsize)
    most = config.stages_of(columns, buffers=2)
    return config.split_k > 1 and config.stages < min(most, MAX_STAGES)


def _rows(configs: list[Any], kinds: list[int], shapes: list[ProblemShape], memory: Any) -> Any:
    names = [field.name for field in fields(ProblemShape)]
    columns = {name: np.array([getattr(shape, name) for shape in shapes]) for name in names}
    columns_of_rows = features(Menu.of(configs, kinds), ProblemShape(**columns), memory)
    return rows_of(columns_of_rows, len(configs))


def slower(index: Any, seconds: Any) -> Any:
    """Return by which share each time is longer than the shortest one of its problem."""
    fastest = np.full(index.max() + 1, np.inf)
    np.minimum.at(fastest, index, seconds)
    return seconds / fastest[index] - 1


# -- the trees -----------------------------------------------------------------------------------


def thresholds_of(column: Any) -> Any:
    """Choose up to 255 thresholds between the values of a feature."""
    values = np.unique(column)
    if len(values) > 255:
        return np.unique(np.quantile(column, np.linspace(0, 1, 257)[1:-1], method="nearest"))
    return (values[1:] + values[:-1]) / 2


def grown(timings: Timings, learnt: Any) -> dict[str, Any]:
    """Train trees on the timings of a mask, and return their arrays (kernels/choosing/trees.py)."""
    import lightgbm

    index, weights = timings.index, timings.weights
    errors = np.log(timings.seconds / timings.roofline)
    level = np.bincount(index, weights * errors) / np.maximum(np.bincount(index, weights), 1e-9)
    alone = np.isin(timings.kinds, (WGMMA, F64))
    errors = errors - (1 - np.where(alone, ALONE_ERROR_SHARE, PROBLEM_ERROR_SHARE)) * level[index]
    thresholds = [thresholds_of(column).astype(np.float32) for column in timings.rows.T]
    codes = trees.Trees(tuple(thresholds), None, None, None, 0).codes(timings.rows)
    dataset = lightgbm.Dataset(codes[learnt], label=errors[learnt], weight=weights[learnt])
    booster = lightgbm.train({
        "objective": "regression", "num_leaves": LEAVES, "max_depth": DEPTH,
        "learning_rate": RATE, "min_data_in_leaf": MIN_TIMINGS, "lambda_l2": RIDGE,
        "feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1, "seed": 0,
        "deterministic": True, "force_row_wise": True, "num_threads": 1, "verbose": -1,
        "num_iterations": TREES, "max_bin": 256, "min_data_in_bin": 1,
    }, dataset)  # fmt: skip
    counts = np.array([len(each) for each in thresholds], np.uint8)
    grown_trees = [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]
    return {"thresholds": np.concatenate(thresholds), "counts": counts} | stored(grown_trees)


def stored(grown_trees: list[dict[str, Any]]) -> dict[str, Any]:
    """Convert lightgbm's trees to arrays of nodes, level by level."""
    nodes: list[tuple[int, int]] = []
    sizes, shifts, depth = [], [], 0
    for tree in grown_trees:
        level, levels = [tree], []
        while level:
            levels.append(level)
            inner = [node for node in level if "split_feature" in node]
            level = [node[side] for node in inner for side in ("left_child", "right_child")]
        of_tree = [node for each in levels for node in each]
        answers = [node["leaf_value"] / trees.UNIT for node in of_tree if "leaf_value" in node]
        largest = max(abs(answer) for answer in answers)
        shift = max(int(np.ceil(np.log2(max(largest, 1) / 127))), 0)
        for node in of_tree:
            if "split_feature" in node:
                nodes.append((node["split_feature"], int(np.floor(node["threshold"]))))
            else:
                answer = round(node["leaf_value"] / trees.UNIT / (1 << shift))
                nodes.append((trees.LEAF, answer & 255))
        sizes.append(len(of_tree))
        shifts.append(shift)
        depth = max(depth, len(levels) - 1)
    feature, code = np.array(nodes, np.uint8).T
    return {
        "feature": feature,
        "code": code.copy(),
        "sizes": np.array(sizes, np.uint8),
        "shifts": np.array(shifts, np.uint8),
        "depth": np.array(depth),
    }


def expected(timings: Timings, arrays: dict[str, Any]) -> Any:
    """Compute the expected seconds of all timings."""
    grown_trees = trees.Trees.of(arrays)
    starts = range(0, len(timings.seconds), 1000)
    factors = [grown_trees(timings.rows[i : i + 1000]) for i in progress(starts, "trees")]
    return timings.roofline * np.concatenate(factors)


# -- the menu ------------------------------------------------------------------------------------


def selected(timings: Timings) -> dict[str, Any]:
    """Select the menu. Configurations that were nearly the fastest most often come first."""
    wins: dict[int, Counter[Any]] = {kind: Counter() for kind in MIN_WINS}
    for kind, of_kind in wins.items():
        mask = timings.kinds == kind
        if mask.sum() < MIN_KIND_TIMINGS:
            continue
        near = slower(timings.index[mask], timings.seconds[mask]) < NEAR_FASTEST
        for place in np.flatnonzero(mask)[near]:
            of_kind[usual(timings.configs[place], timings.results[timings.index[place]])] += 1
    rows: dict[type, list[Any]] = {kind: [] for kind in CONFIGS.values()}
    for kind, of_kind in wins.items():
        for config, count in of_kind.most_common():
            # Of stream-K with several CTAs on an SM the trees expect too much: on 300 random f64 problems
            # it lost up to a third of the speed, and leaving it out cost nothing.
            if count >= MIN_WINS[kind] and getattr(config, "streamk_units", 0) <= SMS:
                rows[type(config)].append((kind, *astuple(config)))
    for config, kind in zip(menu().configs, menu().kind.tolist(), strict=True):
        if not wins.get(kind):
            rows[type(config)].append((kind, *astuple(config)))
    return {name: np.array(rows[kind], np.int16) for name, kind in CONFIGS.items()}


def usual(config: Any, result: dict[str, Any]) -> Any:
    """Normalise a configuration for the menu: all stages that fit, mma.sync of 16 bits."""
    if isinstance(config, HopperConfig):
        below = config.cluster_m > 1 and config.cluster_n == 1 and not config.pingpong
        return replace(config, group_m=16 if below else 8).with_stages()
    itemsize = Case.of(result).element.itemsize
    return replace(config, BK=config.BK * itemsize // 2) if itemsize < 8 else config


# -- the report ----------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> Report:
    settings = {name: str(getattr(options, name)) for name in ("timings", "add", "write")}
    report = Report("learn", settings, {"trees": f"{TREES} of {LEAVES} leaves"})
    results = unpack(np.load(options.timings)) if options.timings.exists() else []
    for path in options.add:
        results += recorded(json.loads(path.read_text("utf-8")))
    if options.add:
        np.savez_compressed(options.timings, **pack(results))
    timings = Timings(results)
    arrays = grown(timings, ~timings.held_out)
    if options.write:
        np.savez_compressed(trees.STORED, **arrays, **selected(timings))
    tables = {"learned": (expected(timings, arrays), ~timings.held_out)}
    tables["held out"] = tables["learned"][0], timings.held_out
    tables["held out, roofline"] = timings.roofline, timings.held_out
    tables["roofline"] = timings.roofline, ~timings.held_out
    if options.cross_validate:
        tables["cross-validated"] = cross_validated(timings), ~timings.held_out
    types = np.array(
        [
            "16 bits" if r["dtype"] in ("f16", "bf16") else r["dtype"] + " promoted" * r["precise"]
            for r in results
        ]
    )[timings.index]
    names = {WGMMA: "wgmma", MMA: "mma.sync", F64: "mma.sync", VECTORS: "vectors"}
    for name, (seconds, mask) in tables.items():
        groups = {"all": mask}
        for dtype in np.unique(types):
            for kind in names:
                of_kind = (types == dtype) & (timings.kinds == kind)
                groups[f"{dtype}, {names[kind]}"] = mask & of_kind
        for group, chosen in groups.items():
            losses = timings.regrets(seconds, chosen) if chosen.any() else ()
            if len(losses):
                quantiles = dict(zip(("median", "p95"), np.quantile(losses, (0.5, 0.95)).tolist()))
                numbers = {"problems": len(losses), "mean": float(np.mean(losses))} | quantiles
                report.results.append({"of": name, "group": group} | numbers)
    report.summary |= {"target": "cpu", "timings": len(timings.seconds)}
    return report


def cross_validated(timings: Timings) -> Any:
    """Predict each timing by trees that were trained without problems of its sizes."""
    sizes: dict[Any, int] = {}
    key = lambda r: (r["M"], r["N"], r["K"], r["layout"])
    groups = np.array([sizes.setdefault(key(r), len(sizes)) for r in timings.results])
    folds = np.random.default_rng(0).integers(FOLDS, size=len(sizes))[groups][timings.index]
    losses = np.empty(len(folds))
    for fold in range(FOLDS):
        arrays = grown(timings, ~timings.held_out & (folds != fold))
        losses[folds == fold] = expected(timings, arrays)[folds == fold]
    return losses


def tables(document: dict[str, Any]) -> Iterator[Table]:
    yield Table(
        "Choices, behind the fastest measured",
        [
            {
                "": r["of"],
                "kernels": r["group"],
                "problems": str(r["problems"]),
                "mean": percent(r["mean"]),
                "median": percent(r["median"]),
                "95th percentile": percent(r["p95"]),
            }
            for r in document["results"]
        ],
    )
