"""What only a GPU can show; skipped where there is none."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.runtime import driver
from tests import cluster_kernels, hopper_kernels

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not driver.cuda_available(), reason="no GPU")]


@tc.kernel
def scale(x: tc.Array, y: tc.Array, factor: tc.f32):
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    if i < x.shape[0]:
        y[i] = x[i] * factor


@pytest.mark.parametrize("library", ["numpy", "numba", "torch", "cupy"])
def test_arrays_of_every_library(library):
    host = np.arange(1000, dtype=np.float32)
    if library == "numpy":
        x, y = host, np.zeros_like(host)
        scale[8, 128](x, y, 2.0)
        assert np.array_equal(y, 2 * host)
        return
    module: Any = pytest.importorskip("numba.cuda" if library == "numba" else library)
    if library == "numba":
        x, y = module.to_device(host), module.device_array(1000, np.float32)
    elif library == "torch":
        x, y = module.from_numpy(host).cuda(), module.zeros(1000, device="cuda")
    else:
        x, y = module.asarray(host), module.zeros(1000, np.float32)
    scale[8, 128](x, y, 2.0)
    doubled = y.copy_to_host() if library == "numba" else y.cpu().numpy() if library == "torch" else y.get()
    assert np.array_equal(doubled, 2 * host)


def test_streams():
    torch = pytest.importorskip("torch")
    x = torch.ones(1000, device="cuda")
    y = torch.zeros(1000, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        scale[8, 128](x, y, 3.0)
    stream.synchronize()
    assert (y == 3).all()
    scale[8, 128, stream](x, y, 4.0)
    stream.synchronize()
    assert (y == 4).all()


def test_graphs_capture_launches():
    torch = pytest.importorskip("torch")
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    scale[8, 128](x, y, 1.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale[8, 128](x, y, 5.0)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert (y == 5).all()


@tc.kernel
def through_much_shared_memory(x: tc.Array, y: tc.Array):
    tile = tc.shared(20000, tc.f32)
    for i in range(tc.threadIdx.x, 20000, 256):
        tile[i] = x[i]
    tc.barrier()
    for i in range(tc.threadIdx.x, 20000, 256):
        y[i] = tile[19999 - i]


def test_more_than_48_kib_of_shared_memory():
    x, y = np.arange(20000, dtype=np.float32), np.zeros(20000, np.float32)
    through_much_shared_memory[1, 256](x, y)
    assert np.array_equal(y, x[::-1])


@tc.kernel
def dynamic(x: tc.Array, y: tc.Array, n: tc.s32):
    tile = tc.dynamic_shared(1, tc.f32)
    tile.at(0)
    i = tc.threadIdx.x
    (tile.at(0) + i).store(x[i])
    tc.barrier()
    y[i] = (tile.at(0) + (n - 1 - i)).load()


def test_dynamic_shared_memory():
    x, y = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    dynamic[1, 256, 0, 1024](x, y, 256)
    assert np.array_equal(y, x[::-1])


@tc.kernel
def atomics(x: tc.Array, total: tc.Array):
    tc.atomic("add", total.at(0), x[tc.blockIdx.x * 128 + tc.threadIdx.x])


def test_atomics():
    x, total = np.arange(1280, dtype=np.int32), np.zeros(1, np.int32)
    atomics[10, 128](x, total)
    assert total[0] == x.sum()


@tc.kernel
def greet(n: tc.s32):
    if tc.threadIdx.x == 3:
        print("thread", tc.threadIdx.x, "of", n, 1.5 * n)


def test_print(capfd):
    greet[1, 32](np.int32(32))
    from numba import cuda

    cuda.synchronize()
    assert "thread 3 of 32 48" in capfd.readouterr().out


HOPPER = pytest.mark.skipif(
    not driver.cuda_available() or driver.compute_capability() != 90, reason="needs sm_90a"
)


@HOPPER
@pytest.mark.parametrize("shape", [(200, 72, 136), (8, 8, 8), (129, 264, 520), (1, 512, 256)])
@pytest.mark.parametrize("layouts", ["nn", "nt", "tn", "tt"])
def test_wgmma_gives_the_bits_of_mma(shape, layouts):
    torch = pytest.importorskip("torch")
    M, N, K = (-(-n // 8) * 8 for n in shape)
    a = torch.randn(M, K, device="cuda").bfloat16()
    b = torch.randn(K, N, device="cuda").bfloat16()
    a = a.t().contiguous().t() if layouts[0] == "t" else a
    b = b.t().contiguous().t() if layouts[1] == "t" else b
    c = torch.randn(M, N, device="cuda").bfloat16()
    for extra in ({}, {"c": c, "alpha": 2.0, "beta": -1.0}):
        configs = kernels.HopperConfig(), kernels.AmpereConfig()  # K in one part
        new, old = (kernels.gemm(a, b, **extra, config=config) for config in configs)
        assert torch.equal(new, old)


@HOPPER
def test_epilogue_function_and_odd_lines():
    torch = pytest.importorskip("torch")
    a, b = torch.randn(256, 128, device="cuda").bfloat16(), torch.randn(128, 512, device="cuda").bfloat16()
    plain = kernels.gemm(a, b)
    fused = kernels.gemm(a, b, epilogue=lambda v, row, col: tc.maximum(v, 0.0))
    assert torch.equal(fused, plain.relu())
    x, y = (
        torch.randn(1025, 1027, device="cuda").bfloat16(),
        torch.randn(1027, 1029, device="cuda").bfloat16(),
    )
    assert torch.equal(kernels.gemm(x, y), kernels.gemm(x, y, family="sm80"))


@HOPPER
@pytest.mark.parametrize("name", cluster_kernels.cases())
def test_clusters_share_memory_as_in_emulation(name):
    kernel, grid, block, arrays, constants = cluster_kernels.cases()[name]
    here, there = ([a.copy() for a in arrays] for _ in range(2))
    kernel.emulator("sm_90a")[grid, block](*here, **constants)
    kernel[grid, block](*there, **constants)
    assert [a.tobytes() for a in here] == [a.tobytes() for a in there]


@HOPPER
@pytest.mark.parametrize("consumers, registers", [(1, (24, 240)), (2, (40, 232)), (3, (32, 160)), (2, None)])
def test_roles_and_their_registers(consumers, registers):
    x = np.random.default_rng(7).integers(-99, 99, (100, 128)).astype(np.int32)
    out = np.zeros((consumers, 128), np.int32)
    hopper_kernels.by_roles[1, 128 * (1 + consumers)](x, out, consumers=consumers, registers=registers)
    assert np.array_equal(out, x.sum(axis=0) * np.arange(1, consumers + 1)[:, None])


def test_ml_dtypes_on_the_gpu():
    a = np.ones((16, 32), ml_dtypes.bfloat16)
    assert (kernels.gemm(a, np.ascontiguousarray(a.T)).astype(np.float32) == 32).all()
