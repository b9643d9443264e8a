"""Products with scales: block-scaled fp8, and s8 with s8 results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, check_stream
from tensorcore_dsl.kernels.choosing.choice import choose, choose_promoted
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.fp8_block_gemm import BLOCK, block_fp8_gemm, with_scales
from tensorcore_dsl.kernels.hopper.s8_gemm import requantised_s8_gemm
from tensorcore_dsl.kernels.host import operands
from tensorcore_dsl.kernels.host.arguments import described, is_array, number
from tensorcore_dsl.kernels.host.arrays import zero_factors, zero_terms
from tensorcore_dsl.kernels.host.launch import (
    EpilogueArgs,
    PreparedCall,
    cached_call,
    call_product,
    launch_nothing,
    without_terms,
)
from tensorcore_dsl.kernels.host.overlap import check_written
from tensorcore_dsl.kernels.host.plan import plan_hopper
from tensorcore_dsl.kernels.problem import padding
from tensorcore_dsl.kernels.problem.families import check_sm90, check_supported, stores_without_tma
from tensorcore_dsl.kernels.problem.gemm_problem import ANY
from tensorcore_dsl.kernels.problem.problem_shape import ProblemShape
from tensorcore_dsl.kernels.sizes import cdiv
from tensorcore_dsl.kernels.user_functions import Epilogue

# Fields of a configuration
NOT_PLAIN = ("pingpong", "split_k", "swap_ab")


def scaled_gemm(
    a: Any,
    b: Any,
    a_scales: Any,
    b_scales: Any,
    *,
    out: Any = None,
    out_dtype: Any = None,
    epilogue: Epilogue | None = None,
    epilogue_args: Mapping[str, Any] | None = None,
    bits: str = ANY,
    config: HopperConfig | None = None,
    stream: Any = None,
) -> Any:
    """Multiply A, scaled by 1 x 128 blocks, by B, scaled by 128 x 128 blocks, on sm_90a.

    Accumulators of 128 of K are scaled and added up in f32.

    Parameters
    ----------
    a, b : array
        M x K and K x N, e4m3 or e5m2 each. Pass weights that are stored as N x K as `w.T`.
        Operands that are not K-major cost a copy.
    a_scales : array
        f32, M x K/128, rounded up, of any strides.
    b_scales : array
        f32, K/128 x N/128, rounded up, of any strides.
    out : array, optional
        M x N. None: a new array.
    out_dtype : dtype, optional
        bf16, f16 or f32. None: that of `out`, else bf16.
    epilogue, epilogue_args : optional
        As for `gemm`.
    bits : {"any", "batch_invariant"}
        All configurations give the same bits, for every M.
    config : HopperConfig, optional
        None: the choice of `kernels.choosing`.
    stream : stream, optional
        As for `gemm`.

    Returns
    -------
    array
        M x N, of the library of A.

    Raises
    ------
    ArgumentError
        Arguments that do not fit, as for `gemm`.

    Examples
    --------
    >>> a = np.ones((64, 128), tc.e4m3.numpy)
    >>> b = np.ones((32, 128), tc.e4m3.numpy).T
    >>> scales = np.full((64, 1), 0.5, np.float32), np.full((1, 1), 2, np.float32)
    >>> d = kernels.scaled_gemm(a, b, *scales)
    >>> d.shape, d.dtype, float(d[0, 0])
    ((64, 32), dtype(bfloat16), 128.0)
    """
    inputs, extra = (a, b, a_scales, b_scales), EpilogueArgs.of(epilogue_args)
    return call_product(_prepare_scaled, inputs, out, extra, epilogue, bits, stream, config, out_dtype)


def _prepare_scaled(
    a: Any,
    b: Any,
    a_scales: Any,
    b_scales: Any,
    out: Any,
    extra: EpilogueArgs,
    epilogue: Callable[..., Any] | None,
    stream: Any,
    config: HopperConfig | None,
    out_dtype: Any,
) -> PreparedCall:
    """Check the operands and scales; choose and bind the kernel."""
    read = described(a=a, b=b, a_scales=a_scales, b_scales=b_scales) | extra.described()
    in_a, in_b = _matrices(read)
    dtype = in_a.type.dtype
    if dtype not in (tc.e4m3, tc.e5m2):
        raise tc.ArgumentError(f"a holds {dtype}; block-scaled products are of e4m3 or e5m2")
    (M, K), N = in_a.shape, in_b.shape[1]
    _check_scales("a_scales", read, (M, cdiv(K, BLOCK)), "a row and 128 of K")
    _check_scales("b_scales", read, (cdiv(K, BLOCK), cdiv(N, BLOCK)), "128 of K and of N")
    d, in_d = operands.result_array(a, out, dtype, (M, N), out_dtype)
    check_written(read, out=out)
    if 0 in (M, N):
        return PreparedCall((M, N), in_d.type.dtype, launch_nothing)
    if K == 0:
        others = out, extra, epilogue, stream, config, out_dtype
        zeros = lambda a, b, sa, sb: (*zero_factors(a, b), zero_terms(sa, -1, 1), zero_terms(sb, -2, 1))
        return without_terms(_prepare_scaled, zeros, (a, b, a_scales, b_scales), stream, *others)
    copies = _copies(in_a, in_b, in_d, d_argument=4)
    stored = stores_without_tma(padding.kernel_argument(in_d, 4, copies))
    traits = HopperTraits(epilogue=epilogue, store_by_threads=stored)
    if config is None:
        # One instruction multiplies the columns of a tile that share a scale: at least sixteen.
        suits = lambda config: is_plain(config) and config.k_slabs == 1 and config.BN % 16 == 0
        config = with_scales(choose_promoted(ProblemShape(M, N, K, 1), suits))
    check_supported("block-scaled products", config, *NOT_PLAIN, "k_slabs")
    plan = plan_hopper(block_fp8_gemm, config, traits, (M, N), copies)
    launch = plan.bind((a, b, a_scales, b_scales, d, *extra.values), stream)
    return PreparedCall((M, N), in_d.type.dtype, launch)


def _matrices(read: Mapping[str, Description]) -> tuple[Description, Description]:
    """Describe A and B; refuse operands that cannot be multiplied."""
    for name in ("a", "b"):
        operands.check_rank(name, read[name], 2)
    operands.check_operands(read["a"], read["b"], None, 0)
    return read["a"], read["b"]


def _check_scales(name: str, read: Mapping[str, Description], shape: tuple[int, int], each: str) -> None:
    scales = read[name]
    if scales.type.dtype != tc.f32 or scales.shape != shape:
        raise tc.ArgumentError(
            f"{name} are {scales.type.dtype} of shape {scales.shape}; they must be one f32 for "
            f"{each}: {shape}"
        )


def requantised_gemm(
    a: Any,
    b: Any,
    scale: Any,
    *,
    zero: float = 0,
    out: Any = None,
    config: HopperConfig | None = None,
    stream: Any = None,
) -> Any:
    """Compute round(A B scale + zero) in s8, on sm_90a, saturated to -128 and 127.

    Accumulators are s32. The exact A B scale + zero is rounded once, and halves round to even.

    Parameters
    ----------
    a, b : array
        M x K and K x N, s8 or u8 each. An operand that is not K-major costs a copy.
    scale : float or array
        A number of Python or NumPy, taken in f64, or N of them (f32), one for each column.
    zero : float
        Taken in f64.
    out : array, optional
        M x N, s8. None: a new array.
    config : HopperConfig, optional
        None: the choice of `kernels.choosing`.
    stream : stream, optional
        As for `gemm`.

    Returns
    -------
    array
        M x N of s8, of the library of A.

    Raises
    ------
    ArgumentError
        Arguments that do not fit, numbers that are not finite.

    Examples
    --------
    >>> a, b = np.ones((64, 128), np.int8), np.ones((32, 128), np.int8).T
    >>> int(kernels.requantised_gemm(a, b, 0.25, zero=1)[0, 0])
    33
    """
    by_column = is_array(scale)
    one: tuple[Any, ...] = ()  # in f64; a parameter without a type takes Python's floats as f32
    if not by_column:
        one = (np.float64(_finite("scale", scale, ", or an f32 array: one a column")),)
    results = () if out is None else (out,)
    arrays = (a, b, scale) if by_column else (a, b)
    options = (one, _finite("zero", zero), config, stream)
    prepare = lambda: _prepare_requantised(a, b, scale, out, *options)
    call = cached_call(results, arrays, ("requantised", *options), prepare)
    out = call.result(a, out)
    call.launch(a, b, out, *(one or (scale,)), *call.scalars)
    return out


def _finite(name: str, scalar: Any, otherwise: str = "") -> float:
    """Convert a number to f64; refuse NaN and infinities, which cannot be rounded to s8."""
    value = number(name, scalar, otherwise)
    if not math.isfinite(value):
        raise tc.ArgumentError(f"{name} is {scalar}; it must be a finite number{otherwise}")
    return value


def _prepare_requantised(
    a: Any,
    b: Any,
    scale: Any,
    out: Any,
    one: tuple[float, ...],
    zero: float,
    config: HopperConfig | None,
    stream: Any,
) -> PreparedCall:
    """Check the operands and the scale; choose and bind the kernel."""
    check_stream(stream)
    read = described(a=a, b=b, **({} if one else {"scale": scale}))
    in_a, in_b = _matrices(read)
    if in_a.type.dtype.is_float:
        raise tc.ArgumentError(f"a holds {in_a.type.dtype}; products of s8 and u8 are requantised")
    (M, K), N = in_a.shape, in_b.shape[1]
    if not one:
        in_scale = read["scale"]
        if in_scale.type.dtype != tc.f32 or in_scale.shape != (N,):
            raise tc.ArgumentError(
                f"scale holds {in_scale.type.dtype} of shape {in_scale.shape}; it must be a number, or an "
                f"f32 for each of the {N} columns"
            )
    d, in_d = operands.result_array_of_type(a, out, (M, N), tc.s8)
    check_written(read, out=out)
    if 0 in (M, N):
        return PreparedCall((M, N), tc.s8, launch_nothing, (zero,))
    if K == 0:
        others = scale, out, one, zero, config, stream
        return without_terms(_prepare_requantised, zero_factors, (a, b), stream, *others)
    copies = _copies(in_a, in_b, in_d, d_argument=2)
    traits = HopperTraits(store_by_threads=stores_without_tma(padding.kernel_argument(in_d, 2, copies)))
    if config is None:
        config = choose(ProblemShape(M, N, K, 1, out_bytes=1), is_plain)
    check_supported("requantised products", config, "swap_ab")
    plan = plan_hopper(requantised_s8_gemm, config, traits, (M, N), copies)
    launch = plan.bind((a, b, d, *(one or (scale,)), zero), stream)
    return PreparedCall((M, N), tc.s8, launch, (zero,))


def is_plain(config: HopperConfig) -> bool:
    """Whether a configuration is cooperative, with one or two consumers, split_k=1, without swap AB."""
    special = config.pingpong or config.split_k > 1 or config.swap_ab
    return not special and config.consumers <= 2


def _copies(a: Description, b: Description, d: Description, d_argument: int) -> tuple[padding.Copy, ...]:
    """List the copies of operands whose layout the kernels cannot read."""
    check_sm90(a.type.dtype)
    return padding.warn_of_copies(
        (
            padding.operand_copy(0, "a", a, padding.ROWS),
            padding.operand_copy(1, "b", b, padding.COLUMNS),
            padding.result_copy(d_argument, d),
        )
    )
