"""`gemm(a, b, ...)`: a product of matrices wherever they are, by the kernel that suits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.row_reduction import RowReduction
from tensorcore_dsl.kernels.host.arrays import empty_like, on_stream, with_lines
from tensorcore_dsl.kernels.host.dispatch_cache import launch_of, recall
from tensorcore_dsl.kernels.host.epilogue_function import check_epilogue
from tensorcore_dsl.kernels.host.operands import (
    check_operands,
    check_output,
    output_type,
    scalars,
    shape_of_product,
)
from tensorcore_dsl.kernels.host.padding import copy_matrix, realigned
from tensorcore_dsl.kernels.host.plan import FAST, Plan, plan, sums_of
from tensorcore_dsl.kernels.host.row_reductions import RowReductionResult, row_reductions_of
from tensorcore_dsl.kernels.host.sparse_gemm import sparse_gemm
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1,
    beta: float | None = None,
    out: Any = None,
    out_dtype: Any = None,
    accumulate: Any = None,
    epilogue: Callable[..., Any] | None = None,
    row_reductions: tuple[RowReduction, ...] = (),
    row_out: Any = None,
    family: str | None = None,
    config: Any = None,
    stream: Any = None,
) -> Any:
    """alpha A B + beta C for matrices of NumPy, Numba, torch or CuPy.

    A is M x K, B is K x N, or both are batches of these in a leading axis (wgmma kernels), of
    which one may be a single matrix for all; both of one type: f16, bf16, f32 (multiplied as
    tf32), s8 (summed and returned as s32), f64, or (on sm_90a) e4m3 or e5m2. A may also be a
    `SparseMatrix`. beta is 1 when C is given without it.
    `out` receives the result; otherwise a new array of `out_dtype` is made where A lives.
    accumulate=tc.f16 sums f16 products in f16; "fast" leaves sums of fp8 to the tensor cores, which
    keep 13 bits below the leading one, where otherwise f32 takes over every 128 of K.
    epilogue(value, row, col), a function in the kernel language, is applied to each element before
    it is rounded (wgmma kernels). row_reductions asks for sums, maxima or minima of each row of the finished
    elements: the result is then (D, statistics), these f32 (s32 of s8 products) of shape
    (len(row_reductions), [matrices,] M), in `row_out` or a new array (wgmma kernels). family "sm80"
    (mma.sync) or "sm90" (wgmma), and `config`, the tile, override the choice; see `plan`.
    """
    if beta is None:
        beta = 0 if c is None else 1
    if isinstance(a, SparseMatrix):
        statistics = not isinstance(row_reductions, tuple) or bool(row_reductions) or row_out is not None
        check_for_sparse(accumulate, family, statistics)
        return sparse_gemm(
            a, b, c, alpha=alpha, beta=beta, out=out, out_dtype=out_dtype, epilogue=epilogue,
            config=config, stream=stream,
        )  # fmt: skip
    wishes = (alpha, beta, out_dtype, accumulate, epilogue, row_reductions, family, config, stream)
    given = (a, b, c, out, row_out)
    arrays = [x for x in given if x is not None]
    key = (c is None, row_out is None, *wishes)
    recipe = recall(arrays, key, lambda: prepare(*given, *wishes))
    return recipe(*given)


@dataclass
class Recipe:
    """How operands of certain types, shapes and alignments are multiplied.

    copy: operands need other strides than they have; see with_lines. realign: they are copied to
    lines that TMA reads. launch is None for products without work. found: statistics of rows.
    """

    shape: tuple[int, ...]
    dtype: Any
    scalars: tuple[Any, Any]
    copy: bool = False
    realign: bool = False
    launch: Callable[..., None] | None = None
    found: RowReductionResult | None = None
    stream: Any = None

    def __call__(self, a: Any, b: Any, c: Any, out: Any, row_out: Any) -> Any:
        if out is None:
            out = empty_like(a, self.shape, self.dtype)
        row_reductions: tuple[Any, ...] = ()
        if self.found is not None:
            row_reductions = (self.found.array(a) if row_out is None else row_out,)
        if self.launch is None or self.copy or self.realign:
            with on_stream(a, self.stream):
                self.multiply_otherwise(a, b, c, out, *row_reductions)
        else:
            self.launch(a, b, out if c is None else c, out, *self.scalars, *row_reductions)
        return (out, *row_reductions) if row_reductions else out

    def multiply_otherwise(self, a: Any, b: Any, c: Any, out: Any, *row_reductions: Any) -> None:
        """Without a kernel, or with copies: work of the arrays' library on the current stream."""
        if self.launch is None:
            if self.found is not None:
                self.found.fill(*row_reductions)
            if 0 not in self.shape:
                _without_product(out, c, self.scalars[1])
            return
        if self.copy:
            a, b = with_lines(a, -1), with_lines(b, -2)
        target = out
        if self.realign:
            a, b, target = realigned(a, b, out) or (a, b, out)
        self.launch(a, b, target if c is None else c, target, *self.scalars, *row_reductions)
        if target is not out:
            copy_matrix(target, out)


def prepare(
    a: Any, b: Any, c: Any, out: Any, row_out: Any, alpha: float, beta: float, out_dtype: Any,
    accumulate: Any, epilogue: Any, row_reductions: Any, family: str | None, config: Any, stream: Any,
) -> Recipe:  # fmt: skip
    """Check the operands and choose their kernel."""
    dtype = check_operands(a, b, c)
    shape = shape_of_product(a, b)
    if c is None and beta != 0:
        raise tc.ArgumentError(f"beta is {beta}, but there is no C")
    check_epilogue(epilogue)
    result = output_type(dtype, out_dtype)
    if out is not None:
        check_output(out, dtype, shape)
    found_of_rows = row_reductions_of(row_reductions, row_out, shape, sums_of(dtype))
    recipe = Recipe(shape, result, scalars(dtype, alpha, beta), found=found_of_rows, stream=stream)
    if 0 in shape or a.shape[-1] == 0:
        if (epilogue is not None or row_reductions) and 0 not in shape:
            raise tc.ArgumentError(
                "K is 0: no kernel runs that could apply `epilogue` or find `row_reductions`"
            )
        return recipe
    lines = with_lines(a, -1), with_lines(b, -2)
    recipe.copy = lines[0] is not a or lines[1] is not b
    a, b = lines
    target = empty_like(a, shape, result) if out is None else out
    if family is None and config is None and accumulate in (None, tc.f32, FAST):
        found = realigned(a, b, target)
        recipe.realign = found is not None
        a, b, target = found or (a, b, target)
    chosen = plan(
        a, b, c, target, alpha=alpha, beta=beta, accumulate=accumulate, epilogue=epilogue,
        row_reductions=tuple(row_reductions), family=family, config=config,
    )  # fmt: skip
    given = (a, b, target if c is None else c, target, *recipe.scalars)
    recipe.launch = whole_launch(chosen, given, recipe.found, row_out, stream)
    return recipe


def whole_launch(
    chosen: Plan, given: tuple[Any, ...], found: RowReductionResult | None, row_out: Any, stream: Any
) -> Callable[..., None]:
    """What launches a plan on operands like these, and adds what its kernel needs on the stream.

    It takes the array for statistics of rows last, if they are wanted, and combines their parts.
    """
    room = chosen.room(given[0], stream)
    launch = launch_of(chosen, stream, (*given, *room))
    if found is not None:
        row_out = found.array(given[0]) if row_out is None else row_out
        combine = launch_of(found, stream, (room[0], row_out))

    def with_room(a: Any, *others: Any) -> None:
        launch(a, *others, *chosen.room(a, stream))

    def with_rows(a: Any, *others: Any) -> None:
        room = chosen.room(a, stream)
        launch(a, *others[:-1], *room)
        combine(room[0], others[-1])

    if not room:
        return launch
    return with_room if found is None else with_rows


def check_for_sparse(accumulate: Any, family: str | None, row_reductions: bool) -> None:
    """Sparse products have one family of kernels, and one way to sum."""
    if row_reductions:
        raise tc.ArgumentError("a is a SparseMatrix; `rows` are found of dense products alone")
    if accumulate is not None or family not in (None, "sm90"):
        raise tc.ArgumentError(
            f"sparse products take neither accumulate ({accumulate} was given) nor another family "
            f"than sm90 ({family})"
        )


def _without_product(out: Any, c: Any, beta: float) -> None:
    """K = 0: the product is zero."""
    if c is None or beta == 0:
        out[...] = 0
    else:
        out[...] = (c * beta).astype(out.dtype) if isinstance(c, np.ndarray) else c * beta
