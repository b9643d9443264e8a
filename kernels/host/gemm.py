"""`gemm(a, b, ...)`: choose a kernel for a product of matrices, and launch it.

A repeated call finds its launch in the dispatch cache. A new call passes through these modules:

    operands     describe and check the operands
    plan         plan the launch; kernels/choosing chooses family and configuration
    copies       copy operands whose layout no kernel takes, see kernels/problem/padding.py
    launch       bind the plan to its kernel, and keep it for the next call
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, check_stream, describe
from tensorcore_dsl.kernels.hopper.row_reduction import RowReduction
from tensorcore_dsl.kernels.host import operands
from tensorcore_dsl.kernels.host.arguments import element_type, present
from tensorcore_dsl.kernels.host.arrays import astype, on_stream, with_line_strides, zero_factors
from tensorcore_dsl.kernels.host.launch import (
    NO_ARGS,
    EpilogueArgs,
    PreparedCall,
    bind_with_c,
    cached_call,
    without_terms,
)
from tensorcore_dsl.kernels.host.operands import GemmOptions
from tensorcore_dsl.kernels.host.overlap import check_written
from tensorcore_dsl.kernels.host.packed_gemm import multiply_packed
from tensorcore_dsl.kernels.host.packed_weights import PackedWeights
from tensorcore_dsl.kernels.host.plan import make_plan
from tensorcore_dsl.kernels.host.row_reductions import (
    RowReductionResult,
    check_row_reductions,
    make_row_reduction_result,
)
from tensorcore_dsl.kernels.host.sparse_gemm import sparse_gemm
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix
from tensorcore_dsl.kernels.problem import padding
from tensorcore_dsl.kernels.problem.gemm_problem import ANY, GemmProblem, accumulator_dtype
from tensorcore_dsl.kernels.user_functions import Epilogue, check_epilogue


def gemm(  # noqa: PLR0913
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1,
    beta: float | None = None,
    out: Any = None,
    out_dtype: Any = None,
    accumulate: Any = None,
    epilogue: Epilogue | None = None,
    epilogue_args: Mapping[str, Any] | None = None,
    row_reductions: tuple[RowReduction, ...] = (),
    row_out: Any = None,
    precision: str | None = None,
    bits: str = ANY,
    family: str | None = None,
    config: Any = None,
    stream: Any = None,
) -> Any:
    """Compute epilogue(alpha A B + beta C) for arrays of NumPy, Numba, torch or CuPy, on their device.

    Parameters
    ----------
    a, b : array
        A is M x K and B is K x N, of one element type: f16, bf16, f32, f64, s8, u8, e4m3 or e5m2;
        or one of s8 and one of u8, or one of e4m3 and one of e5m2. fp8 is converted to f16 where
        the GPU is no sm_90a. Both may be batches of matrices in a leading axis, or one of them a
        batch and the other one matrix for all (wgmma kernels). A may be a `SparseMatrix`. B may be
        `PackedWeights` of 4 or 8 bits, with A f16 or bf16. If these have scales of groups, and A has 128
        rows or more, the kernel may round each weight times its scale to the type of A. It never does
        with config=HopperPackedConfig(...).
    c : array, optional
        Added to the product: as large as the product, or of a shape that NumPy broadcasts to it,
        such as a row (N,) or a column (M, 1). None: nothing is added.
    alpha : float
        A whole number for s8.
    beta : float, optional
        A whole number for s8. None: 1 with C, else 0.
    out : array, optional
        Receives the result, and is returned. It shares no memory with the operands, but may be C
        itself. None: a new array on A's device.
    out_dtype : dtype, optional
        Type of the result: f16 or f32 of f16 operands, bf16 or f32 of bf16, f32 of f32, s32 of s8, f64
        of f64, bf16, f16 or f32 of fp8. None: the type of `out`, else the first of these.
    accumulate : dtype or "fast", optional
        tc.f16 adds f16 products up in f16. "fast" leaves accumulators of fp8 products in the tensor
        cores, which keep 13 bits below the leading one; None is to promote them to f32 every 128 of
        K. Otherwise sums are f32, s32 of s8, f64 of f64.
    epilogue : function, optional
        epilogue(value, row, col), in the kernel language, whose result replaces each element before
        it is rounded to the type of D. It may also take `batch`, the number of the matrix, and what
        `epilogue_args` names.
    epilogue_args : mapping, optional
        Arrays and numbers by name. The epilogue reads any of their elements, as in bias[col].
    row_reductions : tuple of RowReduction
        Sums, maxima or minima over each row of the finished elements; the result of the call is
        then (D, row results) (wgmma kernels).
    row_out : array, optional
        Receives the row results, f32 (s32 of s8 products) of shape (len(row_reductions), [batch,]
        M). None: a new array.
    precision : {"f32", "tf32"}, optional
        Precision of f32 products. "f32", the default, has the accuracy of f32: each element is split in two
        tf32, which makes three products of one. "tf32" is about three times as fast, and multiplies
        only the first 11 significant bits.
    bits : {"any", "batch_invariant"}
        "any" leaves the order of summation to the choice of the kernel. "batch_invariant" has one
        order for all M, batches and places in them: a row of D depends on its row of A, on B and on
        the options alone.
    family : {"sm80", "sm90"}, optional
        Kernels with mma.sync or without tensor cores, or with wgmma. None: the choice of `plan`.
    config : AmpereConfig, VectorConfig or HopperConfig, optional
        The tile and its pipeline. None: the choice of `plan`. Packed weights take a PackedConfig (of
        family "sm80"), a HopperPackedConfig, or a HopperConfig with swap_ab=True.
    stream : stream, optional
        A stream of Numba, torch, CuPy or cuda.core, or its handle. None: the current stream of the
        library of the arrays.

    Returns
    -------
    array
        D, [batch x] M x N, of the library of A; with row_reductions (D, row results).

    Raises
    ------
    ArgumentError
        Arguments that do not fit, among them torch tensors that require a gradient while torch
        records gradients, or that have a tangent in forward mode: `tensorcore_dsl.torch.gemm` has
        derivatives, and this has none.
    CompileError
        Errors in the epilogue, at its line.

    Examples
    --------
    >>> a, b = np.ones((32, 64), np.float16), np.ones((64, 48), np.float16)
    >>> d = kernels.gemm(a, b, alpha=0.5, out_dtype=tc.f32)
    >>> d.shape, d.dtype, float(d[0, 0])
    ((32, 48), dtype('float32'), 32.0)
    """
    if beta is None:
        beta = 0 if c is None else 1
    extra = NO_ARGS if epilogue_args is None else EpilogueArgs.of(epilogue_args)
    options: Any = (
        alpha,
        beta,
        out_dtype,
        accumulate,
        epilogue,
        row_reductions,
        precision,
        bits,
        family,
        config,
        stream,
    )
    if isinstance(a, SparseMatrix) or isinstance(b, PackedWeights):
        product = sparse_gemm if isinstance(a, SparseMatrix) else multiply_packed
        return product(a, b, c, out, row_out, extra, GemmOptions(*options))
    results = () if out is None else (out,)
    if row_out is not None:
        results = (*results, row_out)
    arrays = (a, b, *extra.arrays) if c is None else (a, b, c, *extra.arrays)
    numbers = str(alpha), str(beta)  # True, 1j ** 4 and -0.0 equal other numbers
    key = (c is None, row_out is None, *numbers, *extra.key, *options)
    prepare = lambda: _prepare(a, b, c, out, row_out, extra, GemmOptions(*options))
    call = cached_call(results, arrays, key, prepare)
    out = call.result(a, out)
    if call.allocate_rows is None:
        call.launch(a, b, out if c is None else c, out, *call.scalars, *extra.values)
        return out
    if row_out is None:
        row_out = call.allocate_rows(a)
    call.launch(a, b, out if c is None else c, out, *call.scalars, *extra.values, row_out)
    return out, row_out


def _prepare(
    a: Any, b: Any, c: Any, out: Any, row_out: Any, extra: EpilogueArgs, options: GemmOptions
) -> PreparedCall:
    """Check the operands, plan and bind the launch of a new call."""
    check_stream(options.stream)
    epilogue = check_epilogue(options.epilogue, extra.names)
    problem, d, read = describe_gemm(a, b, c, out, options._replace(epilogue=epilogue))
    dtype, shape, K = problem.dtype, problem.d.shape, problem.K
    rows = make_row_reduction_result(options.row_reductions, row_out, shape, accumulator_dtype(dtype))
    allocate = rows.allocate if rows else None
    check_written(read | extra.described(), "c", out=out, row_out=row_out)
    scalars: Any = problem.alpha, problem.beta
    if dtype == tc.f64 and extra.names:  # un-annotated parameters take Python's floats as f32
        scalars = tuple(map(np.float64, scalars))
    if K == 0 and 0 not in shape and (epilogue is not None or rows):
        others = c, out, row_out, extra, options._replace(alpha=0)
        return without_terms(_prepare, zero_factors, (a, b), options.stream, *others)
    if 0 in (*shape, K):
        _check_fillable(problem, c, d)
        bind = lambda arguments: _launch_of_empty(problem, rows, options.stream)
    else:
        bind = partial(_bind, problem, options, rows, row_out)
    launch = bind_with_c(bind, (a, b), c, read.get("c"), d, shape, *scalars, *extra.values)
    return PreparedCall(shape, problem.d.type.dtype, launch, scalars, allocate)


def describe_gemm(
    a: Any, b: Any, c: Any, out: Any, options: GemmOptions
) -> tuple[GemmProblem, Any, dict[str, Description]]:
    """Describe and check a dense product; returns the result's array and the operands, too."""
    in_a, in_b, in_c = operands.describe_operands(a, b, c, options.beta)
    dtype, shape = in_a.type.dtype, operands.product_shape(in_a, in_b)
    accumulate = options.accumulate
    accumulate = accumulate if isinstance(accumulate, str) else element_type(accumulate)
    operands.check_accumulate(dtype, accumulate)
    d, in_d = operands.result_array(a, out, dtype, shape, options.out_dtype)
    operands.check_precision(dtype, options.precision)
    operands.check_bits(options.bits)
    check_row_reductions(options.row_reductions)
    problem = replace(
        options.problem(in_a, in_b, in_c and operands.broadcast(in_c, shape), in_d),
        accumulate=accumulate,
        row_reductions=tuple(options.row_reductions),
        bits=options.bits,
    )
    return problem, d, present(a=in_a, b=in_b, c=in_c)


def with_line_strides_of(problem: GemmProblem, a: Any, b: Any) -> GemmProblem:
    """Describe A and B with the strides of whole lines in single rows and columns."""
    a, b = with_line_strides(a, b, problem.a, problem.b)
    return replace(problem, a=describe(a), b=describe(b))


def _bind(
    problem: GemmProblem,
    options: GemmOptions,
    rows: RowReductionResult | None,
    row_out: Any,
    arguments: tuple[Any, ...],
) -> Callable[..., None]:
    """Plan a product and bind its launch; single rows and columns get the strides of whole lines."""
    a, b, *others = arguments
    views = partial(with_line_strides, in_a=problem.a, in_b=problem.b)
    a_view, b_view = views(a, b)
    plan = make_plan(replace(problem, a=describe(a_view), b=describe(b_view)), options.family, options.config)
    padding.warn_of_copies(plan.copies)
    launch = plan.bind((a_view, b_view, *others), options.stream, rows, row_out)
    if a_view is a and b_view is b:
        return launch
    return lambda a, b, *others: launch(*views(a, b), *others)


def _check_fillable(problem: GemmProblem, c: Any, d: Any) -> None:
    """Refuse arrays whose library cannot fill D with beta C; no kernel runs here."""
    for name, x, method in (("out", d, "__setitem__"), ("c", c, "__mul__")):
        used = x is not None and 0 not in problem.d.shape and (name == "out" or problem.reads_c)
        if used and not hasattr(type(x), method):
            raise tc.ArgumentError(
                f"K is 0, so no kernel runs, and {name} is a {type(x).__name__}, with which its "
                f"library does not compute: pass an array of NumPy, torch or CuPy"
            )


def _launch_of_empty(
    problem: GemmProblem, rows: RowReductionResult | None, stream: Any
) -> Callable[..., None]:
    """Bind the launch for an empty D or K = 0: the arrays' library fills the results."""
    has_elements = 0 not in problem.d.shape

    def fill(a: Any, b: Any, c: Any, d: Any, alpha: Any, beta: Any, *others: Any) -> None:
        with on_stream(a, stream):
            if rows is not None:
                rows.fill_identity(others[-1])
            if has_elements and beta == 0:
                d[...] = 0
            elif has_elements:  # round like the kernels: to the type of the sums first
                product = astype(c, accumulator_dtype(problem.dtype)) * beta
                d[...] = product.astype(d.dtype) if isinstance(c, np.ndarray) else product

    return fill
