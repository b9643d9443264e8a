"""How `kernels` is called for each kind of GEMM: plain, batched, grouped, fused, sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorcore_dsl as tc
from benchmarks.gemm_cases import Case
from benchmarks.gpu import Launch
from benchmarks.operands import Operands
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.host.operands import FAST


def ours(data: Operands) -> Launch:
    """Launches of our kernel that write to `data.d`."""
    return KINDS[data.case.kind](data)


def gemm_options(case: Case) -> dict[str, Any]:
    """Options of kernels.gemm that a case needs."""
    fast = case.dtype == "e4m3" and not case.precise
    return {"family": case.family or None, "accumulate": FAST if fast else None}


def plain(data: Operands) -> Launch:
    options = gemm_options(data.case)
    return lambda i: kernels.gemm(data.a[i], data.b[i], out=data.d[i], **options)


def grouped(data: Operands) -> Launch:
    return lambda i: kernels.grouped_gemm(data.a[i], data.b[i], data.offsets, out=data.d[i])


def gelu(data: Operands) -> Launch:
    bias = data.bias.expand(data.case.M, data.case.N)
    return lambda i: kernels.gemm(data.a[i], data.b[i], bias, out=data.d[i], epilogue=tanh_gelu)


def tanh_gelu(value, row, col):  # type: ignore[no-untyped-def]  # in the kernel language
    """GELU by the tanh formula, as in cuBLASLt."""
    inner = value * (0.7978845608028654 + 0.035677408136300125 * value * value)
    return 0.5 * value * (1.0 + tc.tanh(inner))


def swiglu(data: Operands) -> Launch:
    N = data.case.N
    return lambda i: kernels.swiglu(data.a[i], data.b[i][:, :N], data.b[i][:, N:], out=data.d[i])


def sparse(data: Operands) -> Launch:
    compressed = [kernels.compress(a) for a in data.a]
    return lambda i: kernels.gemm(compressed[i], data.b[i], out=data.d[i])


KINDS: dict[str, Callable[[Operands], Launch]] = {
    "plain": plain, "batched": plain, "grouped": grouped, "gelu": gelu, "swiglu": swiglu,
    "sparse": sparse,
}  # fmt: skip
