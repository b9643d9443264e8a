"""`gemm` with a 2:4 sparse A."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import describe
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.sparse_gemm import sparse_gemm_kernel
from tensorcore_dsl.kernels.host import families, operands
from tensorcore_dsl.kernels.host.heuristics import choose_sparse
from tensorcore_dsl.kernels.host.launch import PreparedCall, cached_call
from tensorcore_dsl.kernels.host.plan import plan_hopper
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix
from tensorcore_dsl.kernels.user_functions import check_epilogue


def sparse_gemm(a: SparseMatrix, b: Any, c: Any, out: Any, *options: Any) -> Any:
    """alpha A B + beta C with wgmma.sp; the arguments are those of `gemm`, see `_prepare`."""
    arrays = [x for x in (a.values, a.metadata, b, c, out) if x is not None]
    key = ("sparse", a.shape, c is None, *options)
    call = cached_call(arrays, key, lambda: _prepare(a, b, c, out, *options))
    out = call.result(b, out)
    call.launch(a.values, a.metadata, b, out if c is None else c, out, *call.scalars)
    return out


def _prepare(
    a: SparseMatrix, b: Any, c: Any, out: Any, alpha: float, beta: float, out_dtype: Any,
    epilogue: Callable[..., Any] | None, precision: str | None, config: HopperConfig | None,
    stream: Any,
) -> PreparedCall:  # fmt: skip
    check_epilogue(epilogue)
    in_a, in_b = describe(a.values, "a")._replace(shape=a.shape), describe(b, "b")
    if len(in_b.shape) != 2 or 0 in in_b.shape:
        raise tc.ArgumentError(f"b has shape {in_b.shape}; a matrix with elements is needed")
    operands.check_operands(in_a, in_b, None if c is None else describe(c, "c"), beta)
    dtype, (M, K), N = a.dtype, a.shape, in_b.shape[1]
    operands.check_precision(dtype, precision)
    if dtype == tc.f32 and precision != "tf32":
        raise tc.ArgumentError(
            "sparse f32 is multiplied as tf32 only, of 11 significant bits: precision='tf32'"
        )
    d, in_d = operands.result_array(b, out, dtype, (M, N), out_dtype)
    families.check_sm90(in_a, in_b, in_d)
    traits = HopperTraits(
        b_k_major=in_b.type.unit[0], scaled=alpha != 1, has_c=c is not None and beta != 0,
        store_by_threads=families.stores_without_tma(in_d), epilogue=epilogue,
    )  # fmt: skip
    config = config or choose_sparse(M, N, K, a.format, traits.b_k_major)
    unsupported = ("k_slabs", "split_k", "valid_m", "streamk_units")
    families.check_supported("sparse products", config, *unsupported)
    plan = plan_hopper(sparse_gemm_kernel, config, traits, (M, N), format=a.format)
    scalars = operands.convert_scalars(dtype, alpha, beta)
    launch = plan.bind((a.values, a.metadata, b, d if c is None else c, d, *scalars), stream)
    return PreparedCall((M, N), in_d.type.dtype, launch, scalars)
