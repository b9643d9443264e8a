"""`kernels.gemm` and its kin on torch tensors of a GPU, and in CUDA graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.runtime import driver

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not driver.cuda_available(), reason="no GPU")]
TYPES = ["float16", "bfloat16", "float32", "float64"]


def draw(*shape: int, dtype: Any) -> Any:
    values = np.random.default_rng(shape).standard_normal(shape)
    return torch.tensor(values, dtype=getattr(torch, dtype), device="cuda")


def biased(value, row, col, bias):
    return max(value + bias[col].to(value.dtype), 0)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(64, 48, 32), (513, 200, 100), (1024, 512, 768)], ids=str)
def test_products_are_close_to_float64(dtype, shape):
    M, N, K = shape
    a, b, c = draw(M, K, dtype=dtype), draw(K, N, dtype=dtype), draw(M, N, dtype=dtype)
    exact = a.double() @ b.double()
    close = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    out = torch.empty_like(c)
    for found in (kernels.gemm(a, b), kernels.gemm(a, b, out=out), kernels.gemm(a, b.mT.clone().mT)):
        assert torch.allclose(found.double(), exact, rtol=close, atol=close * K**0.5)
    found = kernels.gemm(a, b, c, alpha=2, beta=-1)
    assert torch.allclose(found.double(), 2 * exact - c.double(), rtol=close, atol=close * K**0.5)
    if dtype != "float64":
        bias = draw(N, dtype="float32")
        found = kernels.gemm(a, b, epilogue=biased, epilogue_args={"bias": bias})
        want = (exact + bias.double()).clamp_min(0)
        assert torch.allclose(found.double(), want, rtol=close, atol=close * K**0.5)
    with pytest.raises(tc.ArgumentError, match="lie at one address"):
        kernels.gemm(a, b, out=torch.as_strided(a, (M, N), (1, 1)))
    shifted = torch.as_strided(c, (M, N - 1), (N, 1), 1)
    with pytest.raises(tc.ArgumentError, match="out shares memory with c"):
        kernels.gemm(a, b[:, 1:], c[:, 1:].clone() if N == 1 else c[:, :-1], out=shifted)


@pytest.mark.parametrize("precision", ["f32", "tf32"])
@pytest.mark.parametrize("n", [64, 1000, 2048])
def test_f32_in_a_graph(precision, n):
    """The workspace belongs to the graph; a launch outside of it does not disturb it."""
    a, b = draw(n, n, dtype="float32"), draw(n, n, dtype="float32")
    a[:, 0], out = 0, torch.zeros((n, n), device="cuda")
    want = kernels.gemm(a, b, precision=precision)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.gemm(a, b, out=out, precision=precision)
    kernels.gemm(b, a, precision=precision)
    graph.replay()
    assert torch.equal(out, want)
    exact = a.double() @ b.double()
    bound = (a.abs().double() @ b.abs().double()) * (2**-20 if precision == "f32" else 2**-9)
    assert ((out.double() - exact).abs() <= bound).all()


def test_streams_share_no_workspace():
    """Products on two streams at once give the results of each alone."""
    a, b = draw(300, 4000, dtype="float32"), draw(4000, 200, dtype="float32")
    want = [kernels.gemm(a, b), kernels.gemm(2 * a, b)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    twice, outs = 2 * a, [[torch.empty(300, 200, device="cuda") for _ in range(30)] for _ in "ab"]
    torch.cuda.synchronize()
    for i in range(30):
        for stream, x, out in zip(streams, (a, twice), outs, strict=True):
            with torch.cuda.stream(stream):
                kernels.gemm(x, b, out=out[i])
    torch.cuda.synchronize()
    for out, of_one in zip(outs, want, strict=True):
        assert all(torch.equal(x, of_one) for x in out)


@pytest.mark.parametrize("shape", [(100, 72, 64), (1024, 1024, 1024)], ids=str)
def test_arrays_of_numba(shape):
    from numba import cuda

    M, N, K = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((M, K), (K, N)))
    actual = kernels.gemm(cuda.to_device(a), cuda.to_device(b)).copy_to_host()
    assert np.allclose(actual, a.astype(float) @ b, rtol=1e-4, atol=1e-3)


@tc.kernel
def read_each_other(out: tc.Array, rounds: tc.s32):
    """CTAs of clusters read each other's shared memory all the time."""
    tc.launch_bounds(256)
    tc.cluster_size(4)
    tile, t = tc.shared((24, 256, 2), tc.f64), tc.threadIdx.x
    for i in tc.static_range(24):
        tile.at(i, t, 0).store([tc.f64(1), tc.f64(2)])
    tc.cluster_sync()
    total, peer = tc.f64(0), tc.cluster_rank()
    for _ in tc.range(rounds):
        peer = (peer + 1) % 4
        for i in tc.static_range(24):
            first, second = tile.remote(peer).at(i, t, 0).load(2).elements()
            total += first + second
    out[tc.blockIdx.x, t] = total
    tc.cluster_sync()


@pytest.mark.skipif(not driver.cuda_available() or driver.compute_capability() != 90, reason="needs sm_90a")
def test_f64_beside_clusters_that_read_each_other():
    """Loads of fragments are then so late that TMA overtakes them, were they not fenced.

    Blocks of both kernels share SMs: registers and shared memory suffice for one of each.
    """
    a, b = (torch.randint(-8, 9, (2048, 2048), device="cuda").double() for _ in range(2))
    want, config = a @ b, kernels.AmpereConfig(128, 64, 16, 64, 32, 4)
    out, busy = torch.empty_like(want), torch.empty((128, 256), device="cuda").double()
    kernels.gemm(a, b, out=out, config=config)
    read_each_other[128, 256](busy, 1)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(4):
        out.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[0]):
            read_each_other[128, 256](busy, 1000)
        with torch.cuda.stream(streams[1]):
            kernels.gemm(a, b, out=out, config=config)
        torch.cuda.synchronize()
        assert torch.equal(out, want)
