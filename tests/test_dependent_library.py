"""The library's launches overlap safely: calls one behind the other, in a session of checks.

Each call reads what the call in front has written, or writes what that reads. All kernels of the
library are launched with pdl=True on sm_90a.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorcore_dsl import kernels
from tensorcore_dsl.checking.session import checking
from tensorcore_dsl.interpreter.sanitizer import stream_order
from tensorcore_dsl.kernels import AmpereConfig, HopperConfig
from tests import whole_numbers

F16, F32, F64, BF16 = np.float16, np.float32, np.float64, np.dtype(ml_dtypes.bfloat16)


whole = partial(whole_numbers.whole, dtype=F16, most=2)


def products(dtype: Any = F16, size: int = 128, **options: Any) -> Callable[[], None]:
    """A product in front of another one that reads it, and then the same again in place."""

    def calls() -> None:
        a, b = whole(size, size, dtype=dtype), whole(size, size, dtype=dtype, order="F")
        for _ in range(2):
            d = kernels.gemm(a, b, out_dtype=dtype, **options)
            kernels.gemm(d, b, out=a, **options)

    return calls


def grouped() -> None:
    a, b = whole(200, 64), whole(3, 64, 72)
    offsets = np.array([0, 70, 70, 200], np.int32)
    d = kernels.grouped_gemm(a, b, offsets)
    kernels.grouped_gemm(d[:, :64].copy(), b, offsets, out=d)
    kernels.k_grouped_gemm(a.T, d, offsets)


def attention() -> None:
    q, k, v = (whole(1, 1, 128, 64) for _ in range(3))
    out = kernels.attention(q, k, v)
    kernels.attention(out, k, out, causal=True)


def swiglu() -> None:
    x, gate, up = whole(64, 64), whole(64, 64), whole(64, 64)
    hidden = kernels.swiglu(x, gate, up)
    kernels.swiglu(hidden, gate, up)


def sparse() -> None:
    a, b = kernels.compress(whole(128, 128), prune=True), whole(128, 128, order="F")
    d = kernels.gemm(a, b)
    kernels.gemm(a, d.astype(F16), out_dtype=F32)


def strided() -> None:
    """Operands that are copied first, and a result that is copied back."""
    a, b = whole(128, 192)[:, ::3], whole(64, 66)[:, 1:65]
    out = np.zeros((128, 192), F16)[:, ::3]
    kernels.gemm(a, b, out=out)
    kernels.gemm(out, b, out=a)


CALLS = {
    "bf16": products(BF16),
    "pingpong": products(config=HopperConfig(BM=64, BN=64, stages=2, pingpong=True)),
    "cluster": products(config=HopperConfig(BM=64, BN=64, stages=2, cluster_n=2)),
    "split-K": products(F32, config=HopperConfig(BM=64, BN=64, stages=2, split_k=2)),
    "skinny": products(size=16),
    "few rows": lambda: kernels.gemm(kernels.gemm(whole(1, 128), whole(128, 128)), whole(128, 128)),
    "mma": products(family="sm80"),
    "mma split-K": products(config=AmpereConfig(BM=64, BN=64, WM=32, WN=32, split_k=2)),
    "f64": products(F64, 64),
    "f64 split-K": products(F64, 64, config=AmpereConfig(32, 32, 32, 16, 16, 3, split_k=2)),
    "f32 from tf32": products(F32, precision="f32"),
    "grouped": grouped, "attention": attention, "swiglu": swiglu, "sparse": sparse,
    "strided": strided,
}  # fmt: skip


@pytest.mark.quick(lambda name: name if name in ("grouped", "attention", "sparse") else "f32" in name)
@pytest.mark.filterwarnings("ignore:each product copies")
@pytest.mark.parametrize("name", CALLS)
def test_calls_in_a_row(name):
    with checking(arch="sm_90a") as session:
        CALLS[name]()
    assert session.result.launches > 1 and session.result.ok, str(session.result)
    (stream,) = stream_order._streams.values()
    assert all(launch.queue.pdl and launch.footprint for launch in stream.launches[1:])
    assert stream.launches[-1].waits
