"""`plan(...)` and `explain_bits(plan)`: the kernel that `gemm` launches, and its order of summation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from reprlib import repr as brief
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.row_reduction import RowReduction
from tensorcore_dsl.kernels.host import operands
from tensorcore_dsl.kernels.host.arrays import zero_factors
from tensorcore_dsl.kernels.host.attention_plan import AttentionPlan
from tensorcore_dsl.kernels.host.gemm import describe_gemm, with_line_strides_of
from tensorcore_dsl.kernels.host.packed_gemm import check_packed, describe_packed, plan_packed
from tensorcore_dsl.kernels.host.packed_weights import PackedWeights
from tensorcore_dsl.kernels.host.plan import Plan, make_plan
from tensorcore_dsl.kernels.host.sparse_gemm import (
    check_sparse,
    describe_sparse,
    plan_sparse,
    zero_sparse_factors,
)
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix
from tensorcore_dsl.kernels.problem.gemm_problem import ANY
from tensorcore_dsl.kernels.user_functions import check_epilogue, named_arguments


def plan(  # noqa: PLR0913
    a: Any,
    b: Any,
    c: Any = None,
    d: Any = None,
    *,
    out_dtype: Any = None,
    alpha: float = 1,
    beta: float = 0,
    accumulate: Any = None,
    epilogue: Callable[..., Any] | None = None,
    epilogue_args: Iterable[str] = (),
    row_reductions: tuple[RowReduction, ...] = (),
    precision: str | None = None,
    bits: str = ANY,
    family: str | None = None,
    config: Any = None,
) -> Plan:
    """Plan the launch of `gemm` for these operands: kernel, configuration and traits.

    wgmma kernels need sm_90a, and copies of operands that TMA cannot read (rows or columns at
    multiples of 16 bytes); the mma.sync kernels take all rows and columns, but neither
    `row_reductions` nor batches, and fp8 as copies in f16.

    Parameters
    ----------
    a, b, c, d : array
        Operands and result, as for `gemm`. A may be a `SparseMatrix`, and B `PackedWeights`.
    out_dtype : dtype, optional
        Type of the result, as for `gemm`.
    alpha, beta : float
        As for `gemm`.
    accumulate, precision, bits, family, config : optional
        As for `gemm`.
    epilogue : function, optional
        As for `gemm`.
    epilogue_args : iterable of str
        Names of the epilogue's arguments.
    row_reductions : tuple of RowReduction
        As for `gemm`.

    Returns
    -------
    Plan
        With `kernel`, `config`, `traits` (compile-time properties) and `grid`. The first
        three are None and the grid is 0 if no kernel runs: D has no elements, or a dense product has K = 0,
        no epilogue and no row reductions.

    Raises
    ------
    ArgumentError
        Arguments that do not fit.

    See Also
    --------
    explain_bits : The order of summation of a plan, with an example.
    """
    function = check_epilogue(epilogue, named_arguments(epilogue_args))
    chosen: Any = row_reductions, precision, bits, family, config, None
    options = operands.GemmOptions(alpha, beta, out_dtype, accumulate, function, *chosen)
    operands.check_bits(bits)
    if isinstance(a, SparseMatrix):
        check_sparse(options)
        problem = describe_sparse(a, b, c, d, options)[0]
        if problem.K == 0 and 0 not in problem.d.shape:  # like `gemm`
            a, b = zero_sparse_factors(a.values, b)
            problem = describe_sparse(a, b, c, d, options)[0]
        return plan_sparse(a, problem, config)
    if isinstance(b, PackedWeights):
        check_packed(options)
        return plan_packed(b, describe_packed(a, b, c, d, options)[0], family, config)
    problem = describe_gemm(a, b, c, d, options)[0]
    if problem.K == 0 and (epilogue is not None or row_reductions):  # like `gemm`
        a, b = zero_factors(a, b)
        problem = describe_gemm(a, b, c, d, options)[0]
    return make_plan(with_line_strides_of(problem, a, b), family, config)


def explain_bits(plan: Plan | AttentionPlan) -> str:
    """Explain how an element of the result is summed and rounded, line by line.

    Plans of one text give equal bits. The text holds for the target that is current.

    Parameters
    ----------
    plan : Plan or AttentionPlan
        What `kernels.plan` or `kernels.plan_attention` returns.

    Returns
    -------
    str
        Several lines.

    Raises
    ------
    ArgumentError
        Something else than a plan.

    Examples
    --------
    >>> a, b = np.ones((32, 64), np.float16), np.ones((64, 48), np.float16)
    >>> text = kernels.explain_bits(kernels.plan(a, b, None, None))
    >>> len(text.splitlines()) > 1
    True
    """
    if isinstance(plan, AttentionPlan):
        return plan.explained()
    if not isinstance(plan, Plan):
        raise tc.ArgumentError(
            f"plan is {brief(plan)}; it must be what kernels.plan or kernels.plan_attention returns"
        )
    if plan.summation is None:
        return "no kernel runs: D has no elements, or K is 0, so D = beta C"
    return str(plan.summation())
