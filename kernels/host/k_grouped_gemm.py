"""`k_grouped_gemm(a, b, offsets)`: one product for each part of K."""

from __future__ import annotations

from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import check_stream
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.hopper.k_grouped_gemm import TRAITS, k_grouped_gemm_kernel
from tensorcore_dsl.kernels.host import operands
from tensorcore_dsl.kernels.host.arguments import described
from tensorcore_dsl.kernels.host.arrays import on_stream
from tensorcore_dsl.kernels.host.grouped_gemm import with_check
from tensorcore_dsl.kernels.host.launch import PreparedCall, cached_call, launch_nothing
from tensorcore_dsl.kernels.host.overlap import check_written
from tensorcore_dsl.kernels.host.plan import Plan
from tensorcore_dsl.kernels.problem import padding
from tensorcore_dsl.kernels.problem.families import check_sm90, check_supported
from tensorcore_dsl.kernels.problem.gemm_problem import ANY
from tensorcore_dsl.kernels.problem.problem_shape import active_clusters, cluster_tiles

DEFAULT = HopperConfig(BN=192).with_stages()


def k_grouped_gemm(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    out: Any = None,
    bits: str = ANY,
    config: HopperConfig | None = None,
    stream: Any = None,
) -> Any:
    """Multiply columns offsets[g] to offsets[g + 1] of A by these rows of B, for each g, on sm_90a.

    This is the gradient of the matrices of `grouped_gemm`.

    Parameters
    ----------
    a : array
        M x K, bf16 or f16; M not contiguous (x.T of an array with K rows is) costs a copy.
    b : array
        K x N, of the type of A; N not contiguous costs a copy.
    offsets : array
        groups + 1 ascending s32 where A lives, from 0 to K. Groups may be empty.
    out : array, optional
        groups x M x N. None: a new array.
    bits : {"any", "batch_invariant"}
        All configurations give the same bits. Only the group's own part of K counts.
    config : HopperConfig, optional
        None: tiles of 128 x 192.
    stream : stream, optional
        As for `gemm`.

    Returns
    -------
    array
        groups x M x N, of the library of A; zeros for an empty group.

    Raises
    ------
    ArgumentError
        Arguments that do not fit, as for `gemm`.

    Examples
    --------
    >>> x, y = np.ones((40, 64), np.float16), np.ones((40, 16), np.float16)
    >>> d = kernels.k_grouped_gemm(x.T, y, np.array([0, 8, 8, 40], np.int32))
    >>> d.shape, d[:, 0, 0].tolist()
    ((3, 64, 16), [8.0, 0.0, 32.0])
    """
    prepare = lambda: _prepare_k_grouped(a, b, offsets, out, bits, stream, config)
    results, options = () if out is None else (out,), ("k_grouped", bits, stream, config)
    return cached_call(results, (a, b, offsets), options, prepare).run(out, a, b, offsets)


def _prepare_k_grouped(
    a: Any, b: Any, offsets: Any, out: Any, bits: str, stream: Any, config: HopperConfig | None
) -> PreparedCall:
    """Check the operands, but not the values of the offsets; choose and bind the kernel."""
    check_stream(stream)
    operands.check_bits(bits)
    read = described(a=a, b=b, offsets=offsets)
    in_a, in_b, in_offsets = read.values()
    dtype = operands.check_half_precision(a=in_a, b=in_b)
    M, K = operands.check_rank("a", in_a, 2)
    depth, N = operands.check_rank("b", in_b, 2)
    if depth != K:
        raise tc.ArgumentError(f"a is {M}x{K} and b {depth}x{N}: K differs")
    (count,) = operands.check_rank("offsets", in_offsets, 1)
    if in_offsets.type.dtype != tc.s32 or count == 0:
        raise tc.ArgumentError(
            f"offsets are {in_offsets.type.dtype} of shape {in_offsets.shape}; they must be s32, one "
            f"more than there are groups"
        )
    shape = (count - 1, M, N)
    d, in_d = operands.result_array_of_type(a, out, shape, dtype)
    check_written(read, out=out)
    if 0 in shape or K == 0:

        def fill(a: Any, b: Any, offsets: Any, d: Any) -> None:
            with on_stream(a, stream):
                d[...] = 0

        launch = fill if 0 not in shape else launch_nothing
        return PreparedCall(shape, dtype, with_check(launch, in_offsets, K))
    check_sm90(dtype)
    copies = padding.warn_of_copies((
        padding.operand_copy(0, "a", in_a, padding.COLUMNS, k_only=True, called="M"),
        padding.operand_copy(1, "b", in_b, padding.ROWS, k_only=True, called="N"),
        padding.result_copy(3, in_d, by_tma=True),
    ))  # fmt: skip
    if config is None:
        config = DEFAULT
    unsupported = ("pingpong", "split_k", "k_slabs", "mma_in_flight")
    check_supported("groups along K", config, *unsupported, "swap_ab")
    # Groups with a long K take longer. The largest grid lets few CTAs take two tiles.
    clusters = min(active_clusters(config), cluster_tiles(config, *shape[1:], shape[0]))
    grid = clusters * config.cluster_size
    plan = Plan(k_grouped_gemm_kernel, config, TRAITS, grid, copies=copies)
    launch = plan.bind((a, b, offsets, d), stream)
    return PreparedCall(shape, dtype, with_check(launch, in_offsets, K))
