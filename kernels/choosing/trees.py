"""Regression trees that correct the roofline time of a configuration (features.py).

Each tree asks up to twelve questions of the form "is this feature above this threshold?". Its
answer is a part of the logarithm of the measured time over the roofline time. The answers of all
trees are added up. `python -m benchmarks learn` grows the trees from measured times.

A feature has at most 255 thresholds, so a node stores a number of a feature and a number of a
threshold. Answers are integers, so sums, and with them choices, are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

STORED = Path(__file__).with_name("choices.npz")
LEAF = 255  # number in place of a feature
UNIT = 2.0**-16  # unit of answers, in natural logarithms


@dataclass(frozen=True)
class Trees:
    """Trees, the nodes of each from the root down, level by level.

    thresholds: of each feature, ascending. root: the first node of each tree. nodes: 8 bits each
    for the first child, counted from the root, the feature, and the threshold; the second child
    comes after the first. A leaf is its own child. answers: of leaves, in UNIT. depth: questions
    on the longest way.
    """

    thresholds: tuple[Any, ...]
    root: Any
    nodes: Any
    answers: Any
    depth: int

    @classmethod
    def of(cls, stored: Any) -> Trees:
        """The trees of the arrays in which `benchmarks.choices.learn` stores them.

        counts: thresholds of each feature. sizes: nodes of each tree. feature: of each node, or
        LEAF. code: the number of a node's threshold, or a leaf's answer, 8 bits with a sign.
        shifts: of each tree, by how many bits its answers are shifted.
        """
        thresholds = np.split(stored["thresholds"], np.cumsum(stored["counts"].astype(int))[:-1])
        sizes, feature = stored["sizes"].astype(np.int32), stored["feature"].astype(np.int32)
        root = np.cumsum(sizes, dtype=np.int32) - sizes
        inner = feature != LEAF
        before = np.cumsum(inner, dtype=np.int32) - inner  # inner nodes before this one
        in_tree = before - np.repeat(before[root], sizes)
        leaf = np.arange(len(feature), dtype=np.int32) - np.repeat(root, sizes)
        child = np.where(inner, 1 + 2 * in_tree, leaf)
        code = stored["code"]
        nodes = child << 16 | np.where(inner, feature << 8 | code, 255)
        answers = code.view(np.int8).astype(np.int64) << np.repeat(stored["shifts"], sizes)
        return cls(tuple(thresholds), root, nodes, answers, int(stored["depth"]))

    def codes(self, rows: Any) -> Any:
        """The number of thresholds that each feature of each row is above."""
        counts = np.empty(rows.shape, np.uint8)
        for feature, thresholds in enumerate(self.thresholds):
            counts[:, feature] = np.searchsorted(thresholds, rows[:, feature])
        return counts

    def __call__(self, rows: Any) -> Any:
        """The factor between the expected time and the roofline time of each row of features."""
        codes = self.codes(rows).ravel()
        first = np.arange(len(rows), dtype=np.int32)[:, None] * rows.shape[1]
        index = np.tile(self.root, (len(rows), 1))
        for _ in range(self.depth):
            node = self.nodes.take(index)
            asked = codes.take(first + (node >> 8 & 255))
            index = self.root + (node >> 16) + (asked > (node & 255))
        x = self.answers.take(index).sum(1) * UNIT
        # exp(x / 2) by additions and products, whose rounding is the same everywhere.
        half = 1 + x / 2 * (1 + x / 4 * (1 + x / 6))
        return half * half


@lru_cache(maxsize=1)
def stored() -> dict[str, Any]:
    """The arrays of the package: trees and menu."""
    with np.load(STORED) as arrays:
        return dict(arrays)


@lru_cache(maxsize=1)
def stored_trees() -> Trees:
    return Trees.of(stored())
