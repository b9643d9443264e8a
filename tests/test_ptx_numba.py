"""Kernels of Numba's `@cuda.jit`, run on the CPU through their PTX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc

cuda = pytest.importorskip("numba.cuda")
from numba import float32  # noqa: E402


@cuda.jit
def total(x: Any, out: Any) -> None:
    part = cuda.shared.array(128, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    part[t] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    if t == 0:
        s = float32(0)
        for j in range(128):
            s += part[j]
        cuda.atomic.add(out, 0, s)


@cuda.jit
def product(a: Any, b: Any, c: Any, factor: Any) -> None:
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        s = 0.0
        for k in range(a.shape[1]):
            s += a[i, k] * b[k, j]
        c[i, j] = s * factor


@cuda.jit
def no_barrier(x: Any) -> None:
    part = cuda.shared.array(64, float32)
    part[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    x[cuda.threadIdx.x] = part[63 - cuda.threadIdx.x]  # RACE


def test_shared_memory_and_atomics():
    x, out = np.arange(1000, dtype=np.float32), np.zeros(1, np.float32)
    tc.ptx.from_numba(total)[8, 128](x, out)
    assert out[0] == x.sum()


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_with_strides(transposed):
    rng = np.random.default_rng(0)
    a, b, c = rng.random((20, 30)), rng.random((30, 10)), np.zeros((20, 10))
    b = b.T.copy().T if transposed else b
    kernel = tc.ptx.from_numba(product)
    kernel[(3, 2), (8, 8)](a, b, c, 2.0)
    np.testing.assert_allclose(c, 2 * a @ b)
    assert len(kernel._compiled) == 1


def test_a_race_is_at_its_line_of_python():
    kernel = tc.ptx.from_numba(no_barrier)
    with pytest.raises(tc.Race) as error:
        kernel[1, 64](np.ones(64, np.float32))
    assert error.value.loc.filename == __file__
    with open(__file__) as file:
        assert "# RACE" in file.read().splitlines()[error.value.loc.line - 1]
    kernel.emulator(checks=False)[1, 64](np.ones(64, np.float32))


def test_what_is_refused():
    with pytest.raises(tc.ArgumentError, match="3 is no kernel of Numba"):
        tc.ptx.from_numba(3)
    with pytest.raises(tc.ArgumentError, match="a list cannot be read by the CPU"):
        tc.ptx.from_numba(total)[1, 32]([1, 2], np.zeros(1))


@cuda.jit(device=True)
def triangle(n: Any) -> Any:
    total = 0
    for i in range(n):
        total += i
    return total


@cuda.jit
def printed(x: Any, factors: Any) -> None:
    own = cuda.local.array(8, float32)
    i = cuda.grid(1)
    for j in range(8):
        own[j] = j * i * factors[0]
    if i < 2:
        print("thread", i, factors[1])
    x[i] = own[3 * i & 7] + triangle(i)


def test_device_functions_printing_and_tuples(capsys):
    x = np.zeros(16)
    tc.ptx.from_numba(printed)[1, 16](x, (2.0, 7))
    i = np.arange(16)
    assert np.array_equal(x, (3 * i & 7) * i * 2 + i * (i - 1) // 2)
    assert capsys.readouterr().out == "thread 0 7\nthread 1 7\n"
