"""`gemm` with a 2:4 sparse A: checks, choices and the launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import (
    SMEM_BYTES,
    SWIZZLE_BYTES,
    HopperConfig,
    HopperTraits,
)
from tensorcore_dsl.kernels.hopper.sparse_gemm import sparse_gemm_kernel
from tensorcore_dsl.kernels.hopper.sparse_packing import ROWS, THREADS, Format
from tensorcore_dsl.kernels.host import cost_model as cost
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.host.dispatch_cache import Ready, launch_of, recall
from tensorcore_dsl.kernels.host.epilogue_function import check_epilogue
from tensorcore_dsl.kernels.host.operands import check_output, output_type, scalars
from tensorcore_dsl.kernels.host.plan import Plan, why_not_sm90, written_by_threads
from tensorcore_dsl.kernels.host.problem_shape import at_once, blocks_of_grid, clusters
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix
from tensorcore_dsl.runtime.arguments import describe


def sparse_gemm(
    a: SparseMatrix, b: Any, c: Any = None, *, alpha: float = 1, beta: float = 0, out: Any = None,
    out_dtype: Any = None, epilogue: Callable[..., Any] | None = None, config: HopperConfig | None = None,
    stream: Any = None,
) -> Any:  # fmt: skip
    """alpha A B + beta C with wgmma.sp; the arguments are those of `gemm`."""
    arrays = [x for x in (a.values, a.metadata, b, c, out) if x is not None]
    wishes = (a.shape, c is None, alpha, beta, out_dtype, epilogue, config, stream)
    ready = recall(arrays, ("sparse", *wishes), lambda: prepare(a, b, c, out, *wishes[2:]))
    out = ready.result(b, out)
    ready.launch(a.values, a.metadata, b, out if c is None else c, out, *ready.numbers)
    return out


def prepare(
    a: SparseMatrix, b: Any, c: Any, out: Any, alpha: float, beta: float, out_dtype: Any,
    epilogue: Any, config: HopperConfig | None, stream: Any,
) -> Ready:  # fmt: skip
    """Check the operands and choose the tile."""
    check_epilogue(epilogue)
    types = _check(a, b, c, beta)
    dtype, shape = a.dtype, (a.shape[0], b.shape[1])
    result = output_type(dtype, out_dtype)
    out = empty_like(b, shape, result) if out is None else out
    check_output(out, dtype, shape)
    types["d"] = describe(out, "out").type
    obstacle = why_not_sm90(types)
    if obstacle:
        raise tc.ArgumentError(f"the sparse kernel cannot take this product: {obstacle}")
    traits = HopperTraits(
        b_k_major=types["b"].unit[0], scaled=alpha != 1, has_c=c is not None and beta != 0,
        store_by_threads=written_by_threads(out), epilogue=epilogue,
    )  # fmt: skip
    config = config or choose_sparse(*shape, a.shape[1], a.format, traits.b_k_major)
    if config.split_k > 1 or config.valid_m or config.k_slabs > 1 or config.streamk_units:
        raise tc.ArgumentError(
            f"sparse products have no tiles split, divided or of few rows, nor deep slots: {config}"
        )
    options = (("format", a.format), ("config", config), ("traits", traits))
    chosen = Plan(sparse_gemm_kernel, config, blocks_of_grid(config, *shape), options)
    numbers = scalars(dtype, alpha, beta)
    operands = (a.values, a.metadata, b, out if c is None else c, out, *numbers)
    return Ready(shape, result, launch_of(chosen, stream, operands), numbers)


TILES = ((128, 256), (192, 192), (256, 128), (128, 128), (64, 256), (64, 128), (64, 64))
SHARED_BYTES = 128  # that the tensor cores read in a cycle
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2))


def choose_sparse(M: int, N: int, K: int, form: Format, b_k_major: bool = True) -> HopperConfig:
    """The cheapest tile. Tensor cores are twice as fast as with dense operands, the L2 cache is
    not: here clusters that share tiles win, where they would not otherwise."""
    steps = -(-K // form.depth)

    def cycles(config: HopperConfig) -> float:
        waves = -(-clusters(config, M, N) // at_once(config))
        tile = steps * _step_cycles(config, form)
        return waves * (tile + cost.epilogue_cycles(config) + cost.DRAIN)

    return min(_candidates(M, N, form, b_k_major), key=cycles)


def _candidates(M: int, N: int, form: Format, b_k_major: bool) -> Iterator[HopperConfig]:
    """Tiles and clusters that the problem has room for; B's rows come in boxes of 128 bytes."""
    width = SWIZZLE_BYTES // form.dtype.itemsize
    for (BM, BN), (cluster, across) in product(TILES, CLUSTERS):
        boxes = b_k_major or BN % (width * cluster) == 0
        if boxes and BM * (cluster - 1) < M and BN * (across - 1) < N:
            config = HopperConfig(BM=BM, BN=BN, cluster_m=cluster, cluster_n=across)
            room = (SMEM_BYTES - config.epilogue_bytes - 2048) // _slot_bytes(config, form)
            yield replace(config, stages=min(8, room))


def _slot_bytes(config: HopperConfig, form: Format, across: int = 1, cluster: int = 1) -> int:
    """Of A, which takes half a line, of its metadata and of B, when blocks share A and B."""
    words = config.BM // ROWS * THREADS * form.words * 4
    return config.BM * SWIZZLE_BYTES // 2 // across + words + config.BN * SWIZZLE_BYTES // cluster


def _step_cycles(config: HopperConfig, form: Format) -> float:
    """Of a slot; see kernels/cost.py. Each 64 rows read the slot's B from shared memory again."""
    tensor = config.BM * config.BN / (2 * cost.TENSOR)
    read = config.BM // ROWS * (ROWS * SWIZZLE_BYTES // 2 + config.BN * SWIZZLE_BYTES) / SHARED_BYTES
    brought = _slot_bytes(config, form, config.cluster_n, config.cluster_m) / cost.L2_BYTES
    barriers = cost.STEP if config.multicast_peers == 1 else cost.CLUSTER_STEP
    return max(tensor, read, brought, barriers)


def _check(a: SparseMatrix, b: Any, c: Any, beta: float) -> dict[str, Any]:
    """The types of A's values and of B; refuses what does not multiply."""
    kind = describe(b, "b")
    if len(kind.shape) != 2 or 0 in kind.shape:
        raise tc.ArgumentError(f"b has shape {kind.shape}; a matrix with elements is needed")
    if kind.type.dtype != a.dtype:
        raise tc.ArgumentError(f"a holds {a.dtype} but b holds {kind.type.dtype}; convert one")
    if kind.shape[0] != a.shape[1]:
        raise tc.ArgumentError(
            f"a is {a.shape[0]}x{a.shape[1]} and b is {kind.shape[0]}x{kind.shape[1]}: "
            "a's columns must be as many as b's rows"
        )
    if c is None and beta != 0:
        raise tc.ArgumentError(f"beta is {beta}, but there is no C")
    wanted = (a.shape[0], kind.shape[1])
    if c is not None and describe(c, "c").shape != wanted:
        raise tc.ArgumentError(f"c has shape {describe(c, 'c').shape}; the product has {wanted}")
    return {"a": describe(a.values, "a").type, "b": kind.type}
