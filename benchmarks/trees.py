"""Trees that correct the models of configurations, grown of measured times.

What they know of a configuration, its model tells; how they answer: kernels/host/corrections.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.regret import LONG
from benchmarks.tables import progress
from tensorcore_dsl.kernels.host import corrections

NEAR = 0.2  # times that are longer than the best by this part count by 1 / e
FEW = 6  # timings of a problem that has its whole weight
LEAVES, DEPTH, TREES, RATE, LEAST = 128, 12, 1500, 0.03, 10  # LEAST: timings of a leaf
RIDGE = 10.0  # draws answers of leaves with few timings towards 0
OF_PROBLEM = 0.5  # see boosted
# Weight of problems of long launches in runs whose samples were so short that the power which a
# configuration takes made no difference: see LONG in regret.py.
SHORTLY_MEASURED = 0.2
FOLDS = 5  # of a cross-validation


def measured(
    directory: Path, model: str = "wgmma", held_out: bool = False
) -> list[dict[str, Any]]:
    """Problems with timings of the kernels of one model; model: one of corrections.MODELS.

    Their `weight` is what the trees learn them with, their `gpu` the name of what they ran on.
    held_out: those of the files that nothing is learned of, which tell how good choices are.
    """
    found = []
    for file in sorted(directory.glob("regret-*.json")):
        document = json.loads(file.read_text("utf-8"))
        if document["options"].get("held_out", False) != held_out:
            continue
        gpu = document["machine"]["gpu"]["name"]
        for result in document["results"]:
            trials = [t for t in result.get("trials", ()) if _model_of(result, t) == model]
            if trials:
                is_long = min(trial["seconds"] for trial in trials) > LONG
                shortly = is_long and "order" not in document["method"]
                weight = SHORTLY_MEASURED if shortly else 1.0
                found.append(result | {"trials": trials, "weight": weight, "gpu": gpu})
    return found


def _model_of(result: dict[str, Any], trial: dict[str, Any]) -> str:
    if result["dtype"] == "f64":
        return "f64"
    family = trial.get("family") or result.get("family")
    if result["dtype"] == "f32":
        return "f32" if family == "sm80" else "f32 by wgmma"  # which has no trees
    return "mma" if family == "sm80" else "wgmma"


def slower(index: Any, seconds: Any) -> Any:
    """By which part each timing is longer than the shortest one of its problem."""
    fastest = np.full(index.max() + 1, np.inf)
    np.minimum.at(fastest, index, seconds)
    return seconds / fastest[index] - 1


def regrets(index: Any, seconds: Any, expected: Any) -> Any:
    """The loss of the configuration of the least expected time.

    Of each problem that has more than one timing. index: the problem of each timing.
    """
    found, losses = [], slower(index, seconds)
    for i in np.flatnonzero(np.bincount(index) > 1):
        mine = np.flatnonzero(index == i)
        found.append(losses[mine[np.argmin(expected[mine])]])
    return np.array(found)


def boosted(
    index: Any, seconds: Any, expected: Any, rows: Any, learnt: Any = True,
    of_problem: float = OF_PROBLEM, weights: Any = 1.0, size: float = 1.0,
) -> dict[str, Any]:  # fmt: skip
    """Trees of the features `rows` that tell the logarithm of measured over expected times.

    index: the problem of each timing. learnt: a mask. of_problem: part of a problem's own level
    that they learn, beside differences in a problem. weights: of the timings, or of all. size: how
    many times LEAVES and TREES they have.
    """
    import lightgbm

    errors, count = np.log(seconds) - np.log(expected), np.bincount(index)
    near = np.exp(-slower(index, seconds) / NEAR)
    weights = near * np.minimum(FEW / count, 1)[index] * weights
    level = np.bincount(index, weights * errors) / np.bincount(index, weights)
    errors = errors - (1 - of_problem) * level[index]
    chosen = np.broadcast_to(learnt, errors.shape)
    data = lightgbm.Dataset(rows[chosen], label=errors[chosen], weight=weights[chosen])
    booster = lightgbm.train({
        "objective": "regression", "num_leaves": int(size * LEAVES), "max_depth": DEPTH,
        "learning_rate": RATE, "min_data_in_leaf": LEAST, "lambda_l2": RIDGE,
        "feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1, "seed": 0,
        "deterministic": True, "force_row_wise": True, "num_threads": 2, "verbose": -1,
        "num_iterations": int(size * TREES),
    }, data)  # fmt: skip
    return stored([tree["tree_structure"] for tree in booster.dump_model()["tree_info"]])


def cross_validated(groups: Any, expected: Callable[[Any], Any]) -> Any:
    """Expected seconds of each timing by trees that have not seen its group.

    groups: numbers from 0 on. expected: those of all by trees that learn the timings of a mask.
    """
    found = np.empty(len(groups))
    folds = np.random.default_rng(0).integers(FOLDS, size=groups.max() + 1)[groups]
    for fold in progress(range(FOLDS), "folds"):
        found[folds == fold] = expected(folds != fold)[folds == fold]
    return found


def stored(trees: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The arrays of trees as lightgbm describes them, the nodes of each from the root down."""
    columns: list[tuple[int, float, int, int]] = []
    nodes, depth = [], 0
    for tree in trees:
        level, count, below = [tree], 1, 0
        while level:
            inner = [node for node in level if "split_feature" in node]
            place = count - len(level)
            for offset, node in enumerate(level):
                if "split_feature" in node:
                    columns.append((node["split_feature"], node["threshold"], count, 0))
                    count += 2
                else:
                    answer = round(node["leaf_value"] / corrections.UNIT)
                    columns.append((0, np.inf, place + offset, answer))
            level = [node[side] for node in inner for side in ("left_child", "right_child")]
            below += bool(level)
        nodes.append(count)
        depth = max(depth, below)
    types = (("feature", np.uint8), ("threshold", np.float32), ("below", np.uint8),
             ("answer", np.int16))  # fmt: skip
    arrays = {name: np.array(own, kind) for (name, kind), own in zip(types, zip(*columns))}
    return arrays | {"nodes": np.array(nodes, np.uint8), "depth": np.array(depth, np.uint8)}
