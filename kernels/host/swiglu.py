"""`swiglu(x, w_gate, w_up)`: two products in one kernel; one gates the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.choosing.choice import choose_swiglu
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.swiglu_gemm import swiglu_kernel
from tensorcore_dsl.kernels.host import operands
from tensorcore_dsl.kernels.host.arguments import described
from tensorcore_dsl.kernels.host.arrays import zero_factors
from tensorcore_dsl.kernels.host.launch import (
    EpilogueArgs,
    PreparedCall,
    call_product,
    launch_nothing,
    without_terms,
)
from tensorcore_dsl.kernels.host.overlap import check_written
from tensorcore_dsl.kernels.host.plan import plan_hopper
from tensorcore_dsl.kernels.problem import padding
from tensorcore_dsl.kernels.problem.families import check_sm90, check_supported
from tensorcore_dsl.kernels.problem.gemm_problem import ANY
from tensorcore_dsl.kernels.user_functions import Epilogue


def swiglu(
    x: Any,
    w_gate: Any,
    w_up: Any,
    *,
    out: Any = None,
    epilogue: Epilogue | None = None,
    epilogue_args: Mapping[str, Any] | None = None,
    bits: str = ANY,
    config: HopperConfig | None = None,
    stream: Any = None,
) -> Any:
    """Compute silu(x w_gate) * (x w_up) in one kernel, on sm_90a; silu(y) = y / (1 + exp(-y)).

    Parameters
    ----------
    x : array
        M x K, bf16 or f16.
    w_gate, w_up : array
        K x N, of the type of x. Pass weights that are stored as N x K as `w.T`. Operands that are
        not K-major cost a copy.
    out : array, optional
        M x N. None: a new array.
    epilogue, epilogue_args : optional
        As for `gemm`.
    bits : {"any", "batch_invariant"}
        All configurations give the bits of gemm's "batch_invariant" for both products.
    config : HopperConfig, optional
        None: the choice of `kernels.choosing`.
    stream : stream, optional
        As for `gemm`.

    Returns
    -------
    array
        M x N, of the library of x.

    Raises
    ------
    ArgumentError
        Arguments that do not fit, as for `gemm`.

    Examples
    --------
    >>> x, w = np.ones((32, 64), np.float16), np.full((16, 64), 1 / 64, np.float16)
    >>> y = kernels.swiglu(x, w.T, w.T)
    >>> y.shape, round(float(y[0, 0]), 2)
    ((32, 16), 0.73)
    """
    extra, inputs = EpilogueArgs.of(epilogue_args), (x, w_gate, w_up)
    return call_product(_prepare_swiglu, inputs, out, extra, epilogue, bits, stream, config)


def _prepare_swiglu(
    x: Any,
    w_gate: Any,
    w_up: Any,
    out: Any,
    extra: EpilogueArgs,
    epilogue: Callable[..., Any] | None,
    stream: Any,
    config: HopperConfig | None,
) -> PreparedCall:
    """Check the operands; choose and bind the kernel."""
    descriptions = described(x=x, w_gate=w_gate, w_up=w_up)
    dtype = operands.check_half_precision(**descriptions)
    shapes = [operands.check_rank(name, operand, 2) for name, operand in descriptions.items()]
    (M, K), (depth, N), up = shapes
    if depth != K or up != (depth, N):
        text = ", ".join(f"{name} {operand.shape}" for name, operand in descriptions.items())
        raise tc.ArgumentError(f"the shapes do not fit x (M, K), weights (K, N): {text}")
    d, in_d = operands.result_array_of_type(x, out, (M, N), dtype)
    check_written(descriptions | extra.described(), out=out)
    if 0 in (M, N):
        return PreparedCall((M, N), dtype, launch_nothing)
    if K == 0:
        others = out, extra, epilogue, stream, config
        return without_terms(_prepare_swiglu, zero_factors, (x, w_gate, w_up), stream, *others)
    check_sm90(dtype)
    axes = padding.ROWS, padding.COLUMNS, padding.COLUMNS
    operand_copies = (
        padding.operand_copy(argument, name, operand, axis, k_only=True)
        for argument, ((name, operand), axis) in enumerate(zip(descriptions.items(), axes, strict=True))
    )
    copies = padding.warn_of_copies((*operand_copies, padding.result_copy(3, in_d, by_tma=True)))
    if config is None:
        config = choose_swiglu(M, N, K)
    unsupported = ("k_slabs", "split_k", "swap_ab")
    check_supported("products with a gate", config, *unsupported)
    if config.BN % 16 or config.BN < 32:
        raise tc.ArgumentError(
            f"BN must be 32, 48, 64, ..., as half of a tile's columns belong to the gate: {config}"
        )
    # Each column of D takes two columns of a tile: one of the gate, one of the gated product.
    traits = HopperTraits(epilogue=epilogue)
    plan = plan_hopper(swiglu_kernel, config, traits, (M, 2 * N), copies)
    return PreparedCall((M, N), dtype, plan.bind((x, w_gate, w_up, d, *extra.values), stream))
