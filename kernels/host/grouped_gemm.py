"""`grouped_gemm(a, b, offsets)`: multiply groups of rows, each by its own matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description
from tensorcore_dsl.kernels.choosing.choice import choose_grouped
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.grouped_gemm import MAX_GROUPS, grouped_gemm_kernel
from tensorcore_dsl.kernels.host import operands
from tensorcore_dsl.kernels.host.arguments import check_ascends, described, on_host
from tensorcore_dsl.kernels.host.arrays import zero_factors
from tensorcore_dsl.kernels.host.launch import (
    EpilogueArgs,
    PreparedCall,
    call_product,
    launch_nothing,
    without_terms,
)
from tensorcore_dsl.kernels.host.overlap import check_written
from tensorcore_dsl.kernels.host.plan import Plan
from tensorcore_dsl.kernels.problem import padding
from tensorcore_dsl.kernels.problem.families import check_sm90, check_supported
from tensorcore_dsl.kernels.problem.gemm_problem import ANY
from tensorcore_dsl.kernels.problem.problem_shape import active_clusters
from tensorcore_dsl.kernels.user_functions import Epilogue


def grouped_gemm(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    out: Any = None,
    epilogue: Epilogue | None = None,
    epilogue_args: Mapping[str, Any] | None = None,
    bits: str = ANY,
    config: HopperConfig | None = None,
    stream: Any = None,
) -> Any:
    """Multiply rows offsets[g] to offsets[g + 1] of A by B[g], on sm_90a.

    Parameters
    ----------
    a : array
        rows x K, bf16 or f16; K not contiguous costs a copy.
    b : array
        groups x K x N, of the type of A.
    offsets : array
        groups + 1 ascending s32 where A lives, from 0 to rows. Groups may be empty.
    out : array, optional
        rows x N. None: a new array.
    epilogue, epilogue_args : optional
        As for `gemm`; row counts the rows of all groups.
    bits : {"any", "batch_invariant"}
        All configurations give the bits of gemm's "batch_invariant".
    config : HopperConfig, optional
        None: the choice of `kernels.choosing`.
    stream : stream, optional
        As for `gemm`.

    Returns
    -------
    array
        rows x N, of the library of A.

    Raises
    ------
    ArgumentError
        Arguments that do not fit, as for `gemm`.

    Examples
    --------
    >>> a, b = np.ones((40, 64), np.float16), np.ones((3, 64, 16), np.float16)
    >>> b *= np.arange(3, dtype=np.float16)[:, None, None]
    >>> d = kernels.grouped_gemm(a, b, np.array([0, 8, 8, 40], np.int32))
    >>> d.shape, float(d[0, 0]), float(d[39, 0])
    ((40, 16), 0.0, 128.0)
    """
    extra = EpilogueArgs.of(epilogue_args)
    return call_product(_prepare_grouped, (a, b, offsets), out, extra, epilogue, bits, stream, config)


def _prepare_grouped(
    a: Any,
    b: Any,
    offsets: Any,
    out: Any,
    extra: EpilogueArgs,
    epilogue: Callable[..., Any] | None,
    stream: Any,
    config: HopperConfig | None,
) -> PreparedCall:
    """Check the operands, but not the values of the offsets; choose and bind the kernel."""
    read = described(a=a, b=b, offsets=offsets) | extra.described()
    in_a, in_b, in_offsets = read["a"], read["b"], read["offsets"]
    dtype = operands.check_half_precision(a=in_a, b=in_b)
    rows, K = operands.check_rank("a", in_a, 2)
    groups, depth, N = operands.check_rank("b", in_b, 3)
    if depth != K:
        raise tc.ArgumentError(f"a is {rows}x{K} and each matrix of b {depth}x{N}: K differs")
    fits = in_offsets.type.dtype == tc.s32 and in_offsets.shape == (groups + 1,)
    if not fits or groups > MAX_GROUPS:
        raise tc.ArgumentError(
            f"offsets are {in_offsets.type.dtype} of shape {in_offsets.shape}; they must be "
            f"{groups + 1} s32, one more than b has matrices, of which there may be {MAX_GROUPS}"
        )
    d, in_d = operands.result_array_of_type(a, out, (rows, N), dtype)
    check_written(read, out=out)
    if 0 in (rows, N, groups):
        return PreparedCall((rows, N), dtype, with_check(launch_nothing, in_offsets, rows))
    if K == 0:
        others = offsets, out, extra, epilogue, stream, config
        return without_terms(_prepare_grouped, zero_factors, (a, b), stream, *others)
    check_sm90(dtype)
    copies = padding.warn_of_copies((
        padding.operand_copy(0, "a", in_a, padding.ROWS, k_only=True),
        padding.operand_copy(1, "b", in_b, padding.COLUMNS),
        padding.result_copy(3, in_d, by_tma=True),
    ))  # fmt: skip
    if config is None:
        config = choose_grouped(rows, groups)
    unsupported = ("cluster_m", "split_k", "swap_ab")
    check_supported("groups of rows", config, *unsupported)
    b_k_major = padding.kernel_argument(in_b, 1, copies).type.unit[1]
    traits = HopperTraits(b_k_major=b_k_major, epilogue=epilogue)
    grid = active_clusters(config) * config.cluster_size
    plan = Plan(grouped_gemm_kernel, config, traits, grid, copies=copies)
    launch = plan.bind((a, b, offsets, d, *extra.values), stream)
    return PreparedCall((rows, N), dtype, with_check(launch, in_offsets, rows))


def with_check(launch: Callable[..., None], offsets: Description, rows: int) -> Callable[..., None]:
    """Wrap `launch` with a check of offsets in host memory.

    Offsets on a GPU are not checked, since the check would wait for the GPU.
    """
    if not offsets.on_host:
        return launch

    def checked(a: Any, b: Any, offsets: Any, *others: Any) -> None:
        check_order(on_host(offsets), rows)
        launch(a, b, offsets, *others)

    return checked


def check_order(offsets: np.ndarray, rows: int) -> None:
    """Refuse offsets that do not ascend from 0 to `rows`."""
    if offsets[0] != 0 or offsets[-1] != rows:
        raise tc.ArgumentError(
            f"offsets go from {offsets[0]} to {offsets[-1]}; they must go from 0 to {rows}, the rows of a"
        )
    check_ascends("offsets", offsets)
