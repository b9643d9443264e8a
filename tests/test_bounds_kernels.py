"""The library's own kernels, emulated with checks of every index."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import tutorial
from tests import whole_numbers

pytestmark = pytest.mark.thorough


@pytest.fixture(params=["sm_80", "sm_90a"])
def arch(request, monkeypatch):
    """The library's kernels are emulated with checks."""
    monkeypatch.setenv("TENSORCORE_DSL_CHECKS", "1")
    with tc.target("cpu", arch=request.param):
        yield request.param


whole = partial(whole_numbers.whole, most=2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [(1, 8, 8), (129, 72, 40), (33, 7, 19)], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.int8], ids=["f16", "s8"])
def test_products_with_checks(arch, size, dtype):
    m, n, k = size
    a, b = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype)
    actual = kernels.gemm(a, b)
    assert np.array_equal(actual.astype(int), a.astype(int) @ b.astype(int))
    b = whole(n, k, dtype=dtype).T
    actual = kernels.gemm(a, b, c=np.ones((m, n), actual.dtype))
    assert np.array_equal(actual.astype(int), 1 + a.astype(int) @ b.astype(int))


def test_batches_with_checks(monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CHECKS", "1")
    a, b = whole(3, 40, 24), whole(3, 24, 136)
    actual = kernels.gemm(a, b, out_dtype=tc.f32)
    assert np.array_equal(actual, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("sizes", [(5, 0, 66), (1, 1, 1)], ids=str)
def test_groups_and_gates_with_checks(monkeypatch, sizes):
    monkeypatch.setenv("TENSORCORE_DSL_CHECKS", "1")
    a, b = whole(sum(sizes), 72), whole(3, 72, 40)
    offsets = np.cumsum((0, *sizes)).astype(np.int32)
    actual = kernels.grouped_gemm(a, b, offsets)
    parts = [a[i:j].astype(int) @ w.astype(int) for i, j, w in zip(offsets, offsets[1:], b)]
    assert np.array_equal(actual.astype(int), np.concatenate(parts).astype(actual.dtype).astype(int))
    assert kernels.swiglu(a, whole(40, 72).T, whole(40, 72).T).shape == (sum(sizes), 40)


def test_row_reductions_with_checks(monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CHECKS", "1")
    a, b = whole(70, 64), whole(64, 40)
    out, (most,) = kernels.gemm(a, b, row_reductions=[kernels.RowReduction("max")])
    assert np.array_equal(np.squeeze(most), out.astype(np.float32).max(axis=1))


@pytest.mark.parametrize("number", [1, 3, 5, 7, 8])
def test_the_tutorial_with_checks(monkeypatch, number):
    monkeypatch.setenv("TENSORCORE_DSL_CHECKS", "1")
    module = tutorial.load_step(number)
    size = (392, 264, 200) if number > 3 else (256, 256, 128)
    M, N, K = size
    a, b, d = whole(M, K), whole(N, K), np.zeros((M, N), np.float32 if number < 6 else tc.bf16.numpy)
    module.gemm(a, b, d, module.matmul)
    exact = a.astype(np.float32) @ b.astype(np.float32).T
    assert np.array_equal(d, exact.astype(d.dtype))
