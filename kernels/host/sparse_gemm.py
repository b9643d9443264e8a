"""`gemm` with a 2:4 sparse A."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, check_stream
from tensorcore_dsl.kernels.choosing.choice import choose_sparse
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.sparse_gemm import sparse_gemm_kernel
from tensorcore_dsl.kernels.host import operands
from tensorcore_dsl.kernels.host.arguments import described, present
from tensorcore_dsl.kernels.host.arrays import ZERO_TERMS, zero_terms
from tensorcore_dsl.kernels.host.launch import EpilogueArgs, PreparedCall, call_with_c, without_terms
from tensorcore_dsl.kernels.host.operands import GemmOptions
from tensorcore_dsl.kernels.host.overlap import check_written
from tensorcore_dsl.kernels.host.plan import Plan, bind_plan, plan_hopper
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix, compress
from tensorcore_dsl.kernels.problem import families, padding
from tensorcore_dsl.kernels.problem.gemm_problem import GemmProblem
from tensorcore_dsl.kernels.problem.summation import summation_of_sparse
from tensorcore_dsl.kernels.user_functions import check_epilogue

log = logging.getLogger(__name__)


def sparse_gemm(
    a: SparseMatrix, b: Any, c: Any, out: Any, row_out: Any, extra: EpilogueArgs, options: GemmOptions
) -> Any:
    """Compute alpha A B + beta C with wgmma.sp; arguments as for `gemm`."""
    operands = a.values, a.metadata, b
    key = ("sparse", a.shape, row_out is None, str(options.alpha), str(options.beta), *options)
    prepare = lambda: _prepare(a, b, c, out, row_out, extra, options)
    return call_with_c(prepare, key, operands, operands, b, c, out, extra)


def _prepare(
    a: SparseMatrix, b: Any, c: Any, out: Any, row_out: Any, extra: EpilogueArgs, options: GemmOptions
) -> PreparedCall:
    operands.check_bits(options.bits)
    check_sparse(options, row_out)
    check_stream(options.stream)
    options = options._replace(epilogue=check_epilogue(options.epilogue, extra.names))
    problem, d, read = describe_sparse(a, b, c, out, options)
    check_written(read | extra.described(), "c", out=out)
    if problem.K == 0 and 0 not in problem.d.shape:

        def zeros(values: Any, metadata: Any, b: Any) -> tuple[Any, ...]:
            sparse, b = zero_sparse_factors(values, b)
            return sparse.values, sparse.metadata, b

        others = c, out, row_out, extra, options._replace(alpha=0)
        return without_terms(
            lambda values, metadata, b: _prepare(
                SparseMatrix(values, metadata, (a.shape[0], ZERO_TERMS)), b, *others
            ),
            zeros,
            (a.values, a.metadata, b),
            options.stream,
        )
    plan = plan_sparse(a, problem, options.config)
    return bind_plan(plan, problem, (a.values, a.metadata, b), c, d, extra, options.stream)


def zero_sparse_factors(values: Any, b: Any) -> tuple[SparseMatrix, Any]:
    """Zeros in place of operands with K = 0. values: of the sparse A."""
    return compress(zero_terms(values, -1)), zero_terms(b, -2)


def describe_sparse(
    a: SparseMatrix, b: Any, c: Any, out: Any, options: GemmOptions
) -> tuple[GemmProblem, Any, dict[str, Description]]:
    """Describe and check a product; returns the result's array and the operands, too."""
    read = described(a=a.values, metadata=a.metadata, b=b, **present(c=c))
    in_a, in_b = read["a"]._replace(shape=a.shape), read["b"]
    operands.check_rank("b", in_b, 2)
    operands.check_operands(in_a, in_b, read.get("c"), options.beta)
    operands.check_precision(a.dtype, options.precision)
    if a.dtype == tc.f32 and options.precision != "tf32":
        raise tc.ArgumentError(
            "sparse f32 is multiplied as tf32 only, of 11 significant bits: precision='tf32'"
        )
    d, in_d = operands.result_array(b, out, a.dtype, (a.shape[0], in_b.shape[1]), options.out_dtype)
    return options.problem(in_a, in_b, read.get("c"), in_d), d, read


def plan_sparse(a: SparseMatrix, problem: GemmProblem, config: HopperConfig | None) -> Plan:
    """Plan the launch for a described problem."""
    if 0 in (*problem.d.shape, problem.K):
        return Plan(None, None, None, 0)
    families.check_sm90(a.dtype)
    operand = padding.operand_copy(2, "b", problem.b, padding.COLUMNS, k_only=a.dtype.bits != 16)
    copies = tuple(copy for copy in (operand, padding.result_copy(4, problem.d)) if copy)
    traits = HopperTraits(
        b_k_major=padding.kernel_argument(problem.b, 2, copies).type.unit[0],
        scaled=problem.alpha != 1,
        has_c=problem.reads_c,
        store_by_threads=families.stores_without_tma(padding.kernel_argument(problem.d, 4, copies)),
        epilogue=problem.epilogue,
    )
    if config is None:
        config = choose_sparse(problem.M, problem.N, problem.K, a.format, traits.b_k_major)
    log.info("product of %r by %d x %d: %s", a, problem.K, problem.N, config)
    families.check_supported("sparse products", config, "k_slabs", "split_k", "swap_ab")
    plan = plan_hopper(sparse_gemm_kernel, config, traits, problem.d.shape, copies, format=a.format)
    return replace(plan, summation=partial(summation_of_sparse, problem, config))


def check_sparse(options: GemmOptions, row_out: Any = None) -> None:
    """Sparse products have one family of kernels, one accumulator type and no row reductions."""
    reductions = options.row_reductions
    if not isinstance(reductions, tuple) or reductions or row_out is not None:
        raise tc.ArgumentError("a is a SparseMatrix; only dense products have `row_reductions`")
    if options.accumulate is not None or options.family not in (None, "sm90"):
        raise tc.ArgumentError(
            f"sparse products take neither accumulate ({options.accumulate} was given) nor another family "
            f"than sm90 ({options.family})"
        )
