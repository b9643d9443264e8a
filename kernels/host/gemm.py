"""`gemm(a, b, ...)`: a product of matrices, where they live, by the kernel that suits it.

A repeated call finds its launch in the dispatch cache. A new call passes through these modules:

    operands     describe and check the operands
    padding      copies of operands, where the kernels need other layouts
    plan         the launch; family and configuration come from heuristics, which ask families,
                 candidates and cost_model, or the tuning_cache
    launch       bind the plan to its kernel, and keep it for the next call
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import describe
from tensorcore_dsl.kernels.hopper.row_reduction import RowReduction
from tensorcore_dsl.kernels.host import operands, padding
from tensorcore_dsl.kernels.host.arrays import on_stream
from tensorcore_dsl.kernels.host.launch import PreparedCall, cached_call
from tensorcore_dsl.kernels.host.operands import FAST, GemmProblem
from tensorcore_dsl.kernels.host.plan import make_plan
from tensorcore_dsl.kernels.host.row_reductions import RowReductionResult, make_row_reduction_result
from tensorcore_dsl.kernels.host.sparse_gemm import sparse_gemm
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix
from tensorcore_dsl.kernels.user_functions import check_epilogue


def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: float = 1, beta: float | None = None,
    out: Any = None, out_dtype: Any = None, accumulate: Any = None,
    epilogue: Callable[..., Any] | None = None, row_reductions: tuple[RowReduction, ...] = (),
    row_out: Any = None, precision: str | None = None, family: str | None = None,
    config: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """alpha A B + beta C for matrices of NumPy, Numba, torch or CuPy.

    A is M x K, B is K x N, or both are batches of these in a leading axis (wgmma kernels), of
    which one may be a single matrix for all; both have one element type: f16, bf16, f32, s8
    (accumulated and returned as s32), f64, or (on sm_90a) e4m3 or e5m2. A may also be a
    `SparseMatrix`. beta is 1 when C is given without it.
    `out` receives the result; otherwise a new array of `out_dtype` is made where A lives.
    precision, of f32 products: "f32", the default, has the accuracy of f32 (each element is split
    in two tf32, which makes three products of one); "tf32" is about three times as fast and
    multiplies only the first 11 significant bits.
    accumulate=tc.f16 accumulates f16 products in f16. fp8 accumulators are promoted to f32 every
    128 of K; accumulate="fast" leaves them in the tensor cores, which keep 13 bits below the
    leading one.
    epilogue(value, row, col), a function in the kernel language, is applied to each element before
    it is rounded (wgmma kernels). row_reductions asks for sums, maxima or minima of each row of
    the finished elements: the result is then (D, row results), these f32 (s32 of s8 products) of
    shape (len(row_reductions), [batch,] M), in `row_out` or a new array (wgmma kernels). family
    "sm80" (mma.sync) or "sm90" (wgmma), and `config`, the tile, override the choice; see `plan`.
    """
    if beta is None:
        beta = 0 if c is None else 1
    if isinstance(a, SparseMatrix):
        _check_for_sparse(accumulate, family, row_reductions, row_out)
        sparse: Any = (alpha, beta, out_dtype, epilogue, precision, config, stream)
        return sparse_gemm(a, b, c, out, *sparse)
    options: Any = (
        alpha, beta, out_dtype, accumulate, epilogue, row_reductions, precision, family, config,
        stream,
    )  # fmt: skip
    given = (a, b, c, out, row_out)
    arrays = [x for x in given if x is not None]
    key = (c is None, row_out is None, *options)
    call = cached_call(arrays, key, lambda: _prepare(*given, *options))
    out = call.result(a, out)
    if call.allocate_rows is None:
        call.launch(a, b, out if c is None else c, out, *call.scalars)
        return out
    if row_out is None:
        row_out = call.allocate_rows(a)
    call.launch(a, b, out if c is None else c, out, *call.scalars, row_out)
    return out, row_out


def _prepare(
    a: Any, b: Any, c: Any, out: Any, row_out: Any, alpha: float, beta: float, out_dtype: Any,
    accumulate: Any, epilogue: Any, row_reductions: Any, precision: str | None,
    family: str | None, config: Any, stream: Any,
) -> PreparedCall:  # fmt: skip
    """Take all steps of a new call up to its launch."""
    in_a, in_b, in_c = operands.describe_operands(a, b, c, beta)
    check_epilogue(epilogue)
    dtype, shape = in_a.type.dtype, operands.product_shape(in_a, in_b)
    d, in_d = operands.result_array(a, out, dtype, shape, out_dtype)
    operands.check_precision(dtype, precision)
    row_dtype = operands.accumulator_dtype(dtype)
    rows = make_row_reduction_result(row_reductions, row_out, shape, row_dtype)
    allocate = rows.allocate if rows else None
    scalars = operands.convert_scalars(dtype, alpha, beta)
    options = (*scalars, accumulate, epilogue, tuple(row_reductions), precision)
    given = GemmProblem(in_a, in_b, in_c, in_d, *options)
    if 0 in shape or given.K == 0:
        launch = _launch_of_empty(given, rows, stream)
        return PreparedCall(shape, in_d.type.dtype, launch, scalars, allocate)

    new_a = padding.contiguous_vectors(a, given.a, -1)
    new_b = padding.contiguous_vectors(b, given.b, -2)
    copied = new_a is not a or new_b is not b
    contiguous = problem = replace(given, a=describe(new_a), b=describe(new_b)) if copied else given
    free = family is None and config is None and accumulate in (None, tc.f32, FAST)
    pad = free and padding.is_worth_padding(a, problem)
    if pad:
        new_a, new_b, d = padding.padded_operands(new_a, new_b, d, problem)
        problem = replace(problem, a=describe(new_a), b=describe(new_b), d=describe(d))

    arguments = (new_a, new_b, d if c is None else c, d, *scalars)
    launch = make_plan(problem, family, config).bind(arguments, stream, rows, row_out)
    if copied or pad:
        launch = padding.launch_with_copies(launch, given, contiguous, pad, stream)
    return PreparedCall(shape, in_d.type.dtype, launch, scalars, allocate)


def _launch_of_empty(
    problem: GemmProblem, rows: RowReductionResult | None, stream: Any
) -> Callable[..., None]:
    """The launch where D has no elements or K is 0: the arrays' library fills the results."""
    has_elements = 0 not in problem.d.shape
    if has_elements and (problem.epilogue is not None or rows is not None):
        raise tc.ArgumentError(
            "K is 0: no kernel runs that could apply `epilogue` or find `row_reductions`"
        )

    def fill(a: Any, b: Any, c: Any, d: Any, alpha: Any, beta: Any, *row_out: Any) -> None:
        with on_stream(a, stream):
            if rows is not None:
                rows.fill_identity(*row_out)
            if has_elements and beta == 0:
                d[...] = 0
            elif has_elements:
                d[...] = (c * beta).astype(d.dtype) if isinstance(c, np.ndarray) else c * beta

    return fill


def _check_for_sparse(
    accumulate: Any, family: str | None, row_reductions: Any, row_out: Any
) -> None:
    """Sparse products have one family of kernels, one accumulator type and no row reductions."""
    if not isinstance(row_reductions, tuple) or row_reductions or row_out is not None:
        raise tc.ArgumentError("a is a SparseMatrix; only dense products have `row_reductions`")
    if accumulate is not None or family not in (None, "sm90"):
        raise tc.ArgumentError(
            f"sparse products take neither accumulate ({accumulate} was given) nor another family "
            f"than sm90 ({family})"
        )
