"""Corrections of the cost model: regression trees on what it knows of a launch.

What the model leaves out, trees have learned from measured times. Each tree asks up to twelve
questions about a configuration and the problem, of which none is the problem's size itself (`5
waves or less? 0.8 of the last one full or less?`), and answers by how much the model's time is
wrong, in logarithms; the answers of all trees are added up. `python -m benchmarks fit` grows them.

Thresholds are compared with numbers that come of additions, multiplications, divisions and square
roots alone, and answers are integers: sums and choices are the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tensorcore_dsl.kernels.host.candidates import Menu
from tensorcore_dsl.kernels.host.problem_shape import ProblemShape

# By what they correct: the models of wgmma configurations (cost_model.py), of f64's, of mma.sync,
# and of mma.sync for f32.
MODELS = "wgmma", "f64", "mma", "f32"
PATHS = {name: Path(__file__).with_name(f"{name}_corrections.npz") for name in MODELS}
OF_MENU = (
    "BM", "BN", "cluster_m", "cluster_n", "split_k", "k_slabs", "valid_m", "pingpong",
    "streamk_units", "swapped", "stages", "cluster_size", "rows", "slices",
)  # fmt: skip
OF_SHAPE = (
    "itemsize", "a_k_major", "b_k_major", "misaligned", "store_by_threads", "promoted", "out_bytes",
    "in_fragments", "transposed", "k_slabs",
)  # fmt: skip
OF_TERMS = (
    "cycles", "tiles", "busy", "steps", "waves", "step", "epilogue", "received", "operands",
    "in_flight", "full", "last", "used", "divided", "mainloop", "epilogues", "launch", "dram",
    "tensor", "sent", "tensor_sent", "tensor_received", "intensity", "readers", "height", "asked",
)  # fmt: skip
FEATURES = (*OF_MENU, *(f"problem's {name}" for name in OF_SHAPE), *OF_TERMS)
UNIT = 2.0**-16  # of answers, in natural logarithms


def features(menu: Menu, shape: ProblemShape, terms: dict[str, Any]) -> Any:
    """A row for each configuration; terms: of the cost model."""
    columns = [getattr(menu, name) for name in OF_MENU]
    columns += [getattr(shape, name) for name in OF_SHAPE]
    columns += [terms[name] for name in OF_TERMS]
    found = np.empty((len(menu.configs), len(columns)))
    for place, column in enumerate(columns):
        found[:, place] = column
    return found


@dataclass(frozen=True)
class Trees:
    """Trees, whose nodes follow each other.

    root: the first node of each tree. below: the node where the feature is at most the threshold;
    the next one is that where it is more. Of a leaf it is the leaf, whose threshold is infinite.
    answer: of a leaf, in UNIT. depth: questions on the longest way.
    """

    root: Any
    feature: Any
    threshold: Any
    below: Any
    answer: Any
    depth: int

    @classmethod
    def of(cls, arrays: Any) -> Trees:
        """Trees of their stored arrays, in which nodes count from their root."""
        nodes = arrays["nodes"].astype(np.int64)
        root = np.cumsum(nodes) - nodes
        below = arrays["below"] + np.repeat(root, nodes)
        feature, answer = (arrays[name].astype(np.int64) for name in ("feature", "answer"))
        threshold = arrays["threshold"].astype(np.float64)
        return cls(root, feature, threshold, below, answer, int(arrays["depth"]))

    def __call__(self, features: Any) -> Any:
        """The sum of all trees' answers for each row of features."""
        row = np.arange(len(features))[:, None] * features.shape[1]
        values, node = features.ravel(), np.tile(self.root, (len(features), 1))
        for _ in range(self.depth):
            asked = values.take(row + self.feature.take(node))
            node = self.below.take(node) + (asked > self.threshold.take(node))
        return self.answer.take(node).sum(1)


@lru_cache
def stored_trees(name: str = "wgmma") -> Trees:
    """Those of the package."""
    with np.load(PATHS[name]) as arrays:
        return Trees.of(arrays)


def factors(features: Any, trees: Trees | None = None) -> Any:
    """How many times as long as the model expects; trees: the stored ones of wgmma."""
    x = (trees or stored_trees())(features) * UNIT
    return 1 + x * (1 + x / 2 * (1 + x / 3))  # of exp(x) what is computed alike everywhere


def ranked(
    configs: Any, terms: Sequence[dict[str, float]], trees: Trees | None = None,
    near: float = math.inf,
) -> tuple[tuple[float, Any], ...]:  # fmt: skip
    """(expected time, configuration), the fastest first.

    terms: what a model knows of each configuration, the features of the trees, with its "time".
    trees: None leaves times as they are. near: times the least one, up to which times are corrected
    each for itself, and longer ones as the slowest of these.
    """
    times = np.array([each["time"] for each in terms])
    if trees is not None:
        is_near = times <= near * times.min()
        features = [list(each.values()) for each, close in zip(terms, is_near) if close]
        found = factors(np.array(features), trees)
        times[is_near] *= found
        times[~is_near] *= found.max()
    return tuple((float(times[i]), configs[i]) for i in np.argsort(times, kind="stable"))
