"""Products with scales: block-scaled fp8, and s8 rounded back to s8."""

from __future__ import annotations

from collections.abc import Callable
from reprlib import repr as brief
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperTraits
from tensorcore_dsl.kernels.hopper.fp8_block_gemm import BLOCK, block_fp8_gemm, with_scales
from tensorcore_dsl.kernels.hopper.s8_gemm import requantised_s8_gemm
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.host.cost_model import choose, plain
from tensorcore_dsl.kernels.host.dispatch_cache import Ready, launch_of, ready, recall
from tensorcore_dsl.kernels.host.epilogue_function import check_epilogue
from tensorcore_dsl.kernels.host.operands import check_operands, check_output, output_type
from tensorcore_dsl.kernels.host.plan import (
    Plan,
    check_valid_m,
    choose_promoted,
    why_not_sm90,
    written_by_threads,
)
from tensorcore_dsl.kernels.host.problem_shape import Shape, blocks_of_grid
from tensorcore_dsl.runtime.arguments import describe


def scaled_gemm(
    a: Any, b: Any, a_scales: Any, b_scales: Any, *, out: Any = None, out_dtype: Any = None,
    epilogue: Callable[..., Any] | None = None, config: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """(A, scaled by 1 x 128 blocks) times (B, scaled by 128 x 128 blocks), on sm_90a.

    A is M x K and B is K x N, e4m3 or e5m2 with K contiguous; a_scales are f32, M x K/128, and
    b_scales K/128 x N/128, rounded up, of any strides: weights that are kept as N x K with scales
    N/128 x K/128 come as `w.T, scales.T`. D is bf16, f16 or f32. Products of 128 of K are summed
    in the tensor cores, scaled and added up in f32.
    """
    operands = (a, b, a_scales, b_scales)
    found = ready(_prepare_scaled, operands, out, out_dtype, epilogue, config, stream)
    return found.into(out, *operands)


def _prepare_scaled(
    a: Any, b: Any, a_scales: Any, b_scales: Any, out: Any, out_dtype: Any, epilogue: Any,
    config: Any, stream: Any,
) -> Ready:  # fmt: skip
    dtype = check_operands(a, b, None)
    check_epilogue(epilogue)
    if dtype not in (tc.e4m3, tc.e5m2):
        raise tc.ArgumentError(f"a holds {dtype}; block-scaled products are of e4m3 or e5m2")
    (M, K), N = a.shape, b.shape[1]
    _check_scales("a_scales", a_scales, (M, -(-K // BLOCK)), "a row and 128 of K")
    _check_scales("b_scales", b_scales, (-(-K // BLOCK), -(-N // BLOCK)), "128 of K and of N")
    result = output_type(dtype, out_dtype)
    out = empty_like(a, (M, N), result) if out is None else out
    check_output(out, dtype, (M, N))
    traits = _variant(a, b, out, epilogue)
    config = config or with_scales(choose_promoted(Shape(M, N, K, 1)))
    operands = (a, b, a_scales, b_scales, out)
    chosen = _plan(block_fp8_gemm, config, (M, N), traits)
    return Ready((M, N), result, launch_of(chosen, stream, operands))


def _check_scales(name: str, scales: Any, shape: tuple[int, int], each: str) -> None:
    found = describe(scales, name)
    if found.type.dtype != tc.f32 or found.shape != shape:
        raise tc.ArgumentError(
            f"{name} are {found.type.dtype} of shape {found.shape}; needed is one f32 for {each}: "
            f"{shape}"
        )


def requantised_gemm(
    a: Any, b: Any, scale: Any, *, zero: float = 0, out: Any = None, config: Any = None,
    stream: Any = None,
) -> Any:  # fmt: skip
    """round(A B scale + zero) in s8, on sm_90a; what is out of range becomes -128 or 127.

    A is M x K and B is K x N, s8 with K contiguous. scale and zero are numbers of Python or NumPy;
    instead of one scale there may be N (an f32 array), one for each column. Sums are s32, then
    f32; halves round to even.
    """
    by_column = hasattr(scale, "shape") and not isinstance(scale, np.generic)
    number = () if by_column else (_number("scale", scale, ", or an f32 array: one a column"),)
    arrays = [x for x in (a, b, *(() if number else (scale,)), out) if x is not None]
    wishes = (number, _number("zero", zero), config, stream)
    found = recall(
        arrays, ("requantised", *wishes, out is None),
        lambda: _prepare_requantised(a, b, scale, out, *wishes),
    )  # fmt: skip
    out = found.result(a, out)
    found.launch(a, b, out, *(number or (scale,)), *found.numbers)
    return out


def _number(name: str, given: Any, otherwise: str = "") -> float:
    """As Python's float: what Python would turn into one, text and True too, is no number here."""
    if isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, bool):
        return float(given)
    raise tc.ArgumentError(
        f"{name} is {brief(given)} ({type(given).__name__}); needed is a number{otherwise}"
    )


def _prepare_requantised(
    a: Any, b: Any, scale: Any, out: Any, number: tuple[float, ...], zero: float, config: Any,
    stream: Any,
) -> Ready:  # fmt: skip
    dtype = check_operands(a, b, None)
    if dtype != tc.s8:
        raise tc.ArgumentError(f"a holds {dtype}; products of s8 are requantised")
    shape = (a.shape[0], b.shape[1])
    if not number:
        found = describe(scale, "scale")
        if found.type.dtype != tc.f32 or found.shape != shape[1:]:
            raise tc.ArgumentError(
                f"scale holds {found.type.dtype} of shape {found.shape}; needed is a number, or an "
                f"f32 for each of the {shape[1]} columns"
            )
    out = empty_like(a, shape, tc.s8) if out is None else out
    kind = describe(out, "out")
    if kind.shape != shape or kind.type.dtype != tc.s8:
        raise tc.ArgumentError(
            f"out holds {kind.type.dtype} of shape {kind.shape}; the product is s8 of {shape}"
        )
    traits = _variant(a, b, out, None)
    config = config or choose(Shape(*shape, a.shape[1], 1), plain)
    operands = (a, b, out, *(number or (scale,)), zero)
    chosen = _plan(requantised_s8_gemm, config, shape, traits)
    return Ready(shape, tc.s8, launch_of(chosen, stream, operands), (zero,))


def _variant(a: Any, b: Any, out: Any, epilogue: Any) -> HopperTraits:
    """Of operands that TMA reads; refuses others."""
    if any(0 in matrix.shape for matrix in (a, b)):
        raise tc.ArgumentError("products with scales need at least one row, column and term")
    types = {name: describe(x, name).type for name, x in (("a", a), ("b", b), ("d", out))}
    obstacle = why_not_sm90(types)
    if obstacle:
        raise tc.ArgumentError(f"the wgmma kernels cannot take this product: {obstacle}")
    return HopperTraits(epilogue=epilogue, store_by_threads=written_by_threads(out))


def _plan(kernel: Any, config: Any, shape: tuple[int, int], traits: HopperTraits) -> Plan:
    check_valid_m(config, shape[0])
    grid = blocks_of_grid(config, *shape)
    return Plan(kernel, config, grid, (("config", config), ("traits", traits)))
