"""`gemm` with a 2:4 sparse A."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import describe
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.sparse_gemm import sparse_gemm_kernel
from tensorcore_dsl.kernels.host.dispatch_cache import PreparedCall, cached_call
from tensorcore_dsl.kernels.host.families import check_sm90, check_supported, stores_without_tma
from tensorcore_dsl.kernels.host.heuristics import choose_sparse
from tensorcore_dsl.kernels.host.operands import (
    check_operands,
    convert_scalars,
    output_dtype,
    result_array,
)
from tensorcore_dsl.kernels.host.plan import plan_hopper
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix
from tensorcore_dsl.kernels.user_functions import check_epilogue


def sparse_gemm(
    a: SparseMatrix, b: Any, c: Any = None, *, alpha: float = 1, beta: float = 0, out: Any = None,
    out_dtype: Any = None, epilogue: Callable[..., Any] | None = None,
    config: HopperConfig | None = None, stream: Any = None,
) -> Any:  # fmt: skip
    """alpha A B + beta C with wgmma.sp; the arguments are those of `gemm`."""
    arrays = [x for x in (a.values, a.metadata, b, c, out) if x is not None]
    options = (a.shape, c is None, alpha, beta, out_dtype, epilogue, config, stream)
    call = cached_call(arrays, ("sparse", *options), lambda: _prepare(a, b, c, out, *options[2:]))
    out = call.result(b, out)
    call.launch(a.values, a.metadata, b, out if c is None else c, out, *call.scalars)
    return out


def _prepare(
    a: SparseMatrix, b: Any, c: Any, out: Any, alpha: float, beta: float, out_dtype: Any,
    epilogue: Any, config: HopperConfig | None, stream: Any,
) -> PreparedCall:  # fmt: skip
    """Check the operands; choose and bind the kernel."""
    check_epilogue(epilogue)
    in_a, in_b = describe(a.values, "a")._replace(shape=a.shape), describe(b, "b")
    if len(in_b.shape) != 2 or 0 in in_b.shape:
        raise tc.ArgumentError(f"b has shape {in_b.shape}; a matrix with elements is needed")
    check_operands(in_a, in_b, None if c is None else describe(c, "c"), beta)
    dtype, (M, K), N = a.dtype, a.shape, in_b.shape[1]
    result = output_dtype(dtype, out_dtype)
    d, in_d = result_array(b, out, dtype, (M, N), result)
    check_sm90(in_a, in_b, in_d)
    traits = HopperTraits(
        b_k_major=in_b.type.unit[0], scaled=alpha != 1, has_c=c is not None and beta != 0,
        store_by_threads=stores_without_tma(in_d), epilogue=epilogue,
    )  # fmt: skip
    config = config or choose_sparse(M, N, K, a.format, traits.b_k_major)
    check_supported("sparse products", config, "k_slabs", "split_k", "valid_m", "streamk_units")
    plan = plan_hopper(sparse_gemm_kernel, config, traits, (M, N), format=a.format)
    scalars = convert_scalars(dtype, alpha, beta)
    operands = (a.values, a.metadata, b, d if c is None else c, d, *scalars)
    return PreparedCall((M, N), result, plan.bind(operands, stream), scalars)
