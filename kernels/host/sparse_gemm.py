"""`gemm` with a 2:4 sparse A."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.choosing.choice import choose_sparse
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.sparse_gemm import sparse_gemm_kernel
from tensorcore_dsl.kernels.host import families, operands, padding
from tensorcore_dsl.kernels.host.arguments import check_stream, described, present
from tensorcore_dsl.kernels.host.arrays import TERMS, zero_terms
from tensorcore_dsl.kernels.host.launch import (
    EpilogueArgs,
    PreparedCall,
    bind_with_c,
    call_with_c,
    launch_nothing,
    without_terms,
)
from tensorcore_dsl.kernels.host.overlap import check_written
from tensorcore_dsl.kernels.host.plan import plan_hopper
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix, compress
from tensorcore_dsl.kernels.user_functions import check_epilogue

log = logging.getLogger(__name__)


def sparse_gemm(
    a: SparseMatrix, b: Any, c: Any, out: Any, extra: EpilogueArgs, alpha: float, beta: float, *others: Any
) -> Any:
    """Compute alpha A B + beta C with wgmma.sp; arguments as for `gemm`, see `_prepare`."""
    options = (alpha, beta, *others)
    operands = a.values, a.metadata, b
    key = ("sparse", a.shape, str(alpha), str(beta), *options)
    prepare = lambda: _prepare(a, b, c, out, extra, *options)
    return call_with_c(prepare, key, operands, operands, b, c, out, extra)


def _prepare(
    a: SparseMatrix,
    b: Any,
    c: Any,
    out: Any,
    extra: EpilogueArgs,
    alpha: float,
    beta: float,
    out_dtype: Any,
    epilogue: Callable[..., Any] | None,
    precision: str | None,
    config: HopperConfig | None,
    stream: Any,
) -> PreparedCall:
    check_stream(stream)
    epilogue = check_epilogue(epilogue, extra.names)
    read = described(a=a.values, metadata=a.metadata, b=b, **present(c=c)) | extra.described()
    in_a, in_b = read["a"]._replace(shape=a.shape), read["b"]
    operands.check_rank("b", in_b, 2)
    in_c = read.get("c")
    operands.check_operands(in_a, in_b, in_c, beta)
    dtype, (M, K), N = a.dtype, a.shape, in_b.shape[1]
    operands.check_precision(dtype, precision)
    if dtype == tc.f32 and precision != "tf32":
        raise tc.ArgumentError(
            "sparse f32 is multiplied as tf32 only, of 11 significant bits: precision='tf32'"
        )
    d, in_d = operands.result_array(b, out, dtype, (M, N), out_dtype)
    check_written(described(**present(out=out)), read, in_place="c")
    if 0 in (M, N):
        scalars = operands.convert_scalars(dtype, alpha, beta)
        return PreparedCall((M, N), in_d.type.dtype, launch_nothing, scalars)
    if K == 0:

        def zeros(values: Any, metadata: Any, b: Any) -> tuple[Any, ...]:
            sparse = compress(zero_terms(values, -1))
            return sparse.values, sparse.metadata, zero_terms(b, -2)

        others = c, out, extra, 0, beta, out_dtype, epilogue, precision, config, stream
        return without_terms(
            lambda values, metadata, b: _prepare(SparseMatrix(values, metadata, (M, TERMS)), b, *others),
            zeros,
            (a.values, a.metadata, b),
            stream,
        )
    families.check_sm90(dtype)
    copies = padding.announced(
        (
            padding.operand_copy(2, "b", in_b, padding.COLUMNS, k_only=dtype.bits != 16),
            padding.result_copy(4, in_d),
        )
    )
    seen_b, seen_d = padding.kernel_argument(in_b, 2, copies), padding.kernel_argument(in_d, 4, copies)
    scalars = operands.convert_scalars(dtype, alpha, beta)
    traits = HopperTraits(
        b_k_major=seen_b.type.unit[0],
        scaled=scalars[0] != 1,
        has_c=c is not None and scalars[1] != 0,
        store_by_threads=families.stores_without_tma(seen_d),
        epilogue=epilogue,
    )
    if config is None:
        config = choose_sparse(M, N, K, a.format, traits.b_k_major)
    log.info("product of %r by %d x %d: %s", a, K, N, config)
    unsupported = ("k_slabs", "split_k", "swapped")
    families.check_supported("sparse products", config, *unsupported)
    plan = plan_hopper(sparse_gemm_kernel, config, traits, (M, N), copies, format=a.format)
    bind = lambda arguments: plan.bind(arguments, stream)
    values = *scalars, *extra.values
    launch = bind_with_c(bind, (a.values, a.metadata, b), c, in_c, d, (M, N), *values)
    return PreparedCall((M, N), in_d.type.dtype, launch, scalars)
