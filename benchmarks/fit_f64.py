"""Trees that correct the model of f64's configurations, of measured times; see fit.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks.gemm_cases import Case
from benchmarks.regret import problem_of
from benchmarks.trees import boosted, cross_validated, regrets
from tensorcore_dsl.kernels import AmpereConfig
from tensorcore_dsl.kernels.host import corrections, heuristics
from tensorcore_dsl.kernels.host.f64_heuristics import f64_terms

# Of lightgbm, for a tenth of the timings that the configurations of wgmma have
PARAMETERS = {"num_leaves": 12, "num_iterations": 300, "min_data_in_leaf": 10}


class Timings:
    """Measured seconds of configurations, the problem of each, and what the model knows of it."""

    def __init__(self, results: Iterable[dict[str, Any]]) -> None:
        index, seconds, rows = [], [], []
        for number, result in enumerate(results):
            case = Case.of(result)
            with tc.target("cpu", "sm_90a"):
                aligned = heuristics.alignment(problem_of(case))
            for trial in result["trials"]:
                config = AmpereConfig(**trial["config"])
                terms = f64_terms(config, case.M, case.N, case.K, aligned)
                index.append(number)
                seconds.append(trial["seconds"])
                rows.append(list(terms.values()))
        self.index, self.seconds, self.rows = map(np.array, (index, seconds, rows))
        self.expected = self.rows[:, 0] * 1e-6

    def grown(self, learnt: Any = True) -> dict[str, Any]:
        return boosted(self.index, self.seconds, self.expected, self.rows, learnt, **PARAMETERS)

    def corrected(self, trees: dict[str, Any]) -> Any:
        """Expected seconds by these trees."""
        return self.expected * corrections.factors(self.rows, corrections.Trees.of(trees))

    def cross_validated(self) -> Any:
        """The same by trees that have not seen the problem."""
        return cross_validated(self.index, lambda learnt: self.corrected(self.grown(learnt)))

    def regret(self, expected: Any) -> Any:
        return regrets(self.index, self.seconds, expected)
