"""Batch invariance: the bits of a row of D depend on this row of A, on B and on the options alone.

`gemm(..., bits="batch_invariant")` chooses among configurations with one order of summation only:
all of K in one sum, for f32 in a number of sums that N and K determine. M, the batch, the position
of a row and the layouts of the operands have no influence.
"""

from __future__ import annotations

from dataclasses import replace

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.choosing.ranking import invariant_split
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.problem.families import WGMMA_KERNELS, has_wgmma
from tensorcore_dsl.kernels.problem.gemm_problem import ANY, BATCH_INVARIANT, GemmProblem
from tensorcore_dsl.kernels.problem.summation import Config, Summation, summation_of

ROW_PART = 128  # columns of a part in row reductions


def needed_family(problem: GemmProblem) -> str | None:
    """Family with the order of `problem.bits`, if only one has it; else None."""
    one_order = problem.bits != ANY and problem.multiplied_as == tc.f32
    return "sm90" if one_order and _uses_wgmma(problem) else None


def is_allowed(problem: GemmProblem, config: Config) -> bool:
    """Whether a configuration has an order of summation that `problem.bits` accepts."""
    if problem.bits == ANY:
        return True
    return summation_of(problem, config) == invariant_summation(problem)


def check_config(problem: GemmProblem, config: Config) -> None:
    """Refuse a configuration that sums in another order than `bits` asks for."""
    if is_allowed(problem, config):
        return
    actual, required = summation_of(problem, config).aspects(), invariant_summation(problem).aspects()
    differences = [
        f"{name} must be {required.get(name, 'none')!r}, not {text!r}"
        for name, text in actual.items()
        if text != required.get(name)
    ]
    raise tc.ArgumentError(
        f"{config} sums in another order than bits={BATCH_INVARIANT!r}: " + "; ".join(differences)
    )


def invariant_summation(problem: GemmProblem) -> Summation:
    """Order of summation of all problems with these options, N and K, for every M.

    It is the order of wgmma if a kernel has it. mma.sync has the same order except for f32.
    """
    config: Config = AmpereConfig()
    if _uses_wgmma(problem):
        config = HopperConfig(BN=ROW_PART)
        if problem.multiplied_as == tc.f32:
            config = replace(config, k_slabs=2, split_k=_f32_split(problem))
    return summation_of(problem, config)


def _f32_split(problem: GemmProblem) -> int:
    """Number of parts of K; one with row reductions, whose parts are whole tiles."""
    return 1 if problem.row_reductions else invariant_split(problem.N, problem.K)


def _uses_wgmma(problem: GemmProblem) -> bool:
    return has_wgmma() and problem.multiplied_as in WGMMA_KERNELS
