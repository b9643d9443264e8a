"""Trees that correct the models of mma.sync configurations, of measured times; see fit.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks.gemm_cases import Case
from benchmarks.regret import problem_of
from benchmarks.trees import OF_PROBLEM, boosted, cross_validated, regrets
from tensorcore_dsl.kernels import AmpereConfig
from tensorcore_dsl.kernels.host import corrections, heuristics
from tensorcore_dsl.kernels.host.ampere_heuristics import ampere_terms
from tensorcore_dsl.kernels.host.f64_heuristics import f64_terms
from tensorcore_dsl.kernels.host.operands import GemmProblem


@dataclass(frozen=True)
class Model:
    """A model, and how its trees grow.

    terms: of a configuration and a problem. of_problem: part of a problem's own level that trees
    learn. size: of the trees, see `boosted`; of larger ones, choices gain nothing.
    """

    terms: Callable[[AmpereConfig, GemmProblem], dict[str, float]]
    of_problem: float = OF_PROBLEM
    size: float = 0.5


def _terms(config: AmpereConfig, problem: GemmProblem) -> dict[str, float]:
    sizes, lines = (problem.M, problem.N, problem.K), heuristics.lines_of(problem)
    return ampere_terms(problem.multiplied_as, config, *sizes, lines)


def _terms_of_f64(config: AmpereConfig, problem: GemmProblem) -> dict[str, float]:
    return f64_terms(config, problem.M, problem.N, problem.K, heuristics.alignment(problem))


# Times of "mma" and "f32" are compared with those of wgmma, so that the level of each problem
# counts whole. Of f32 there are few timings.
MODELS = {
    "f64": Model(_terms_of_f64), "mma": Model(_terms, of_problem=1.0),
    "f32": Model(_terms, of_problem=1.0, size=0.25),
}  # fmt: skip


class Timings:
    """Measured seconds of configurations, the problem of each, and what its model knows of it."""

    def __init__(self, model: Model, results: Iterable[dict[str, Any]]) -> None:
        index, seconds, rows, weights = [], [], [], []
        for number, result in enumerate(results):
            with tc.target("cpu", "sm_90a"):
                problem = problem_of(Case.of(result))
            for trial in result["trials"]:
                config = AmpereConfig(**trial["config"])
                if config.is_of_vectors:  # whose model has no trees
                    continue
                terms = model.terms(config, problem)
                index.append(number)
                seconds.append(trial["seconds"])
                rows.append(list(terms.values()))
                weights.append(result.get("weight", 1.0))
        self.model = model
        self.index = np.unique(index, return_inverse=True)[1]  # of problems with tiles, one by one
        self.seconds, self.rows = map(np.array, (seconds, rows))
        self.weights = np.array(weights)
        self.expected = self.rows[:, 0] * 1e-6

    def grown(self, learnt: Any = True) -> dict[str, Any]:
        return boosted(
            self.index, self.seconds, self.expected, self.rows, learnt, self.model.of_problem,
            self.weights, self.model.size,
        )  # fmt: skip

    def corrected(self, trees: corrections.Trees) -> Any:
        """Expected seconds by these trees."""
        return self.expected * corrections.factors(self.rows, trees)

    def cross_validated(self) -> Any:
        """The same by trees that have not seen the problem."""
        grown = lambda learnt: corrections.Trees.of(self.grown(learnt))
        return cross_validated(self.index, lambda learnt: self.corrected(grown(learnt)))

    def regret(self, expected: Any) -> Any:
        return regrets(self.index, self.seconds, expected)
