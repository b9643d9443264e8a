"""Batch invariance: the bits of a row of D depend on this row of A, on B and on the options alone.

`gemm(..., bits="batch_invariant")` chooses only among kernels and configurations of one order of
summation: all of K in one sum; of f32, in as many as suit N and K. M, the batch, the place of a row
and the layouts of the operands have no part in it.
"""

from __future__ import annotations

from dataclasses import replace

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.choosing.ranking import invariant_split
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.families import SM90, has_wgmma
from tensorcore_dsl.kernels.host.operands import ANY, BATCH_INVARIANT, GemmProblem
from tensorcore_dsl.kernels.host.summation import Config, Summation, summation_of

ROW_PART = 128  # columns of the parts of a row that row reductions add up


def needed_family(problem: GemmProblem) -> str | None:
    """The only family whose kernels have the order that `problem.bits` asks for; None: any has."""
    one_order = problem.bits != ANY and problem.multiplied_as == tc.f32
    return "sm90" if one_order and _uses_wgmma(problem) else None


def is_allowed(problem: GemmProblem, config: Config) -> bool:
    """Whether a configuration sums a problem in an order that its caller accepts."""
    if problem.bits == ANY:
        return True
    return summation_of(problem, config) == invariant_summation(problem)


def check_config(problem: GemmProblem, config: Config) -> None:
    """Refuse a configuration that sums in another order than `bits` asks for."""
    if is_allowed(problem, config):
        return
    given, needed = summation_of(problem, config).aspects(), invariant_summation(problem).aspects()
    differences = [
        f"{name} is {text!r}, needed is {needed.get(name, 'none')!r}"
        for name, text in given.items()
        if text != needed.get(name)
    ]
    raise tc.ArgumentError(
        f"bits={BATCH_INVARIANT!r} has one order of summation, which {config} has not: "
        + "; ".join(differences)
    )


def invariant_summation(problem: GemmProblem) -> Summation:
    """The order of summation of all problems with these options, N and K, whatever M is.

    It is that of wgmma where a kernel has it. mma.sync has the same, but for f32.
    """
    config: Config = AmpereConfig()
    if _uses_wgmma(problem):
        config = HopperConfig(BN=ROW_PART)
        if problem.multiplied_as == tc.f32:
            config = replace(config, k_slabs=2, split_k=_f32_split(problem))
    return summation_of(problem, config)


def _f32_split(problem: GemmProblem) -> int:
    """Parts of K; one where rows are added up, in the parts of a whole tile."""
    return 1 if problem.row_reductions else invariant_split(problem.N, problem.K)


def _uses_wgmma(problem: GemmProblem) -> bool:
    return has_wgmma() and problem.multiplied_as in SM90
