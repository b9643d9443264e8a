"""The launch path on a GPU: machine code, handles, streams, graphs, tensor maps."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.codegen import ptxas
from tensorcore_dsl.environment.json_store import read_again
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.fast_launch import native_function
from tests.fake_gpu import is_native
from tests.hopper_kernels import first_box

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not driver.cuda_available(), reason="no GPU")]


@tc.kernel
def add(x: tc.Array, y: tc.Array, number: tc.f32, count: tc.s32):
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    if i < count:
        y[i] = x[i] + number


def test_tensors_of_many_shapes_and_places():
    torch = pytest.importorskip("torch")
    launch = add[8, 128]
    for turn in range(4):
        for size in (1000, 513, 7, 512):
            x = torch.full((size,), float(size), device="cuda")
            y = torch.zeros(size, device="cuda")
            launch(x, y, turn + 0.5, size)
            assert (y == size + turn + 0.5).all()
    assert not native_function.available() or is_native(launch.launcher({}).fast)


def test_handles():
    torch = pytest.importorskip("torch")
    cuda: Any = pytest.importorskip("numba.cuda")
    x, y, z = (torch.full((1000,), 3.0, device="cuda") for _ in range(3))
    prepared = add[8, 128].prepare(x, y, 1.0, 1000)
    prepared(x, y, 2.0, 1000)
    prepared(y, z, 4.0, 999)
    assert y.unique().tolist() == [5.0]
    assert z.tolist() == [9.0] * 999 + [3.0]
    a, b = cuda.to_device(np.full(1000, 3, np.float32)), cuda.device_array(1000, np.float32)
    prepared = add[8, 128].prepare(a, b, 1.0, 1000)
    assert not native_function.available() or is_native(prepared)
    prepared(a, b, 2.0, 1000)
    assert (b.copy_to_host() == 5).all()
    prepared(b, a, 2.0, 1000)
    assert (a.copy_to_host() == 7).all()


def test_handles_follow_the_current_stream():
    torch = pytest.importorskip("torch")
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    prepared = add[8, 128].prepare(x, y, 1.0, 1000)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        prepared(x, y, 1.0, 1000)
        ended = torch.cuda.Event()
        ended.record()
    assert not ended.query()  # the launch waits for what its stream does
    stream.synchronize()
    assert (y == 2).all()


def test_graphs_capture_handles():
    torch = pytest.importorskip("torch")
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    prepared, launch = add[8, 128].prepare(x, y, 1.0, 1000), add[8, 128]
    for _ in range(3):
        launch(x, y, 1.0, 1000)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared(x, y, 4.0, 1000)
        launch(y, x, 1.0, 1000)
    assert (x == 1).all()
    x.fill_(1)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert (x == 11).all() and (y == 10).all()


def test_threads():
    torch = pytest.importorskip("torch")
    launch = add[8, 128]
    tensors = [(torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")) for _ in range(4)]

    def work(x: Any, y: Any, number: float) -> None:
        for _ in range(200):
            launch(x, y, number, 1000)
            launch(y, x, 0.0, 1000)

    threads = [threading.Thread(target=work, args=(*t, n + 1.0)) for n, t in enumerate(tensors)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert [x.unique().tolist() for x, _ in tensors] == [[200.0 * (n + 1)] for n in range(4)]


@pytest.mark.skipif(driver.cuda_available() and driver.compute_capability() < 90, reason="TMA needs sm_90")
def test_tensor_maps_follow_their_pointers():
    torch = pytest.importorskip("torch")
    launch = first_box[1, 32]
    sources = [torch.randn(16, 64, device="cuda") for _ in range(5)]
    targets = [torch.zeros(16, 64, device="cuda") for _ in range(5)]
    prepared = launch.prepare(sources[0], targets[0])
    for turn in range(3):
        for x, y in zip(sources, targets, strict=True):
            y.zero_()
            (launch if turn % 2 else prepared)(x, y)
            assert torch.equal(y[:8], x[:8]) and not y[8:].any()


def test_a_launch_that_fails_and_the_next():
    torch = pytest.importorskip("torch")
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    launch = add.configured(1, 1024, shared_bytes=0, cooperative=True)
    launch(x, y, 1.0, 1000)
    with pytest.raises(tc.LaunchError):
        add.configured(10**6, 1024, cooperative=True)(x, y, 1.0, 1000)
    launch(x, y, 2.0, 1000)
    assert (y == 3).all()


@tc.kernel(threads=256, min_blocks=1)
def changing_registers(x: tc.Array):
    if tc.warpgroup_id() == 0:
        tc.setmaxnreg(24, grow=False)
        x[tc.threadIdx.x] = 1.0
    else:
        tc.setmaxnreg(240, grow=True)
        x[tc.threadIdx.x] = 2.0


@pytest.mark.skipif(driver.cuda_available() and driver.compute_capability() != 90, reason="needs sm_90a")
def test_registers_change_hands_where_ptxas_is():
    """Assembled by ptxas, loaded, and run; by nvJitLink, which ignores it, it runs as well."""
    x = np.zeros(256, np.float32)
    changing_registers[1, 256](x)
    assert np.array_equal(x, np.repeat(np.float32([1, 2]), 128))
    if ptxas.find((8, 0)) is not None:
        assert changing_registers.resources(x, arch="sm_90a").registers == 240


OUTSIDE = """
import sys
import numpy as np
import tensorcore_dsl as tc

@tc.kernel
def put(x: tc.Array, i):
    x[i, tc.threadIdx.x] = 1.0

x = np.zeros((8, 4), np.float32)
put[2, 4](x, 1)
assert x[1].all()
try:
    put[2, 4](x, 8)
except tc.LaunchError as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.parametrize("asked", ["decorator", "environment"])
def test_a_check_that_fails_prints_its_line(tmp_path, asked):
    """In a process of its own, because the trap ends the context."""
    script, environment = tmp_path / "outside.py", dict(os.environ)
    if asked == "environment":
        environment["TENSORCORE_DSL_CHECKS"] = "1"
    decorator = "@tc.kernel(checks=True)" if asked == "decorator" else "@tc.kernel"
    script.write_text(OUTSIDE.replace("@tc.kernel", decorator))
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 3, done.stderr
    line = f"{script}:8: OutOfBounds: index 8 leaves axis 0 of 'x', which has extent 8 (CTA ("
    assert line in done.stdout
    assert "put, a build with checks, was stopped: CUDA_ERROR_LAUNCH_FAILED (719)" in done.stdout


@tc.kernel(checks=True)
def add_checked(x: tc.Array, y: tc.Array):
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    y.at(i).store(x.at(i).load(pred=i < x.shape[0]) + 1.0, pred=i < y.shape[0])


def test_checks_let_good_kernels_pass():
    x, y = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    add_checked[8, 128](x, y)
    assert np.array_equal(y, x + 1)


def test_graphs_capture_checked_launches():
    torch = pytest.importorskip("torch")
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    add_checked[8, 128](x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_checked[8, 128](x, y)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert (y == 2).all()


# -- tuning -----------------------------------------------------------------------------------


@tc.kernel
def reduce_rows(x: tc.Array, sums: tc.Array, n: tc.s32, THREADS: tc.Const, PER_THREAD: tc.Const):
    """Adds parts of x to sums[0]; every launch adds to what is there."""
    total = tc.f32(0)
    first = tc.blockIdx.x * THREADS * PER_THREAD + tc.threadIdx.x
    for k in tc.static_range(PER_THREAD):
        if first + k * THREADS < n:
            total += x[first + k * THREADS]
    for step in (16, 8, 4, 2, 1):
        total += tc.shfl_xor(total, step)
    if tc.lane_id() == 0:
        tc.reduce("add", sums.at(0), total)


def parts(meta: dict[str, Any]) -> int:
    return -(-meta["n"] // (meta["THREADS"] * meta["PER_THREAD"]))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path))
    read_again()
    yield tmp_path / "autotune.json"
    read_again()


def tuned() -> Any:
    configs = [tc.Config(THREADS=threads, PER_THREAD=n) for threads in (32, 256) for n in (1, 16)]
    configs += [tc.Config(THREADS=2048, PER_THREAD=1)]
    return tc.autotune(configs, key=["n"], reset_to_zero=["sums"], warmup=2, rep=10)(
        tc.kernel(reduce_rows.function)
    )


@pytest.mark.parametrize("library", ["torch", "numba", "numpy"])
def test_tuning(library, cache):
    n = 1 << 22
    host = np.ones(n, np.float32), np.zeros(4, np.float32)
    if library == "torch":
        torch = pytest.importorskip("torch")
        x, sums = (torch.from_numpy(array).cuda() for array in host)
    elif library == "numba":
        cuda: Any = pytest.importorskip("numba.cuda")
        x, sums = map(cuda.to_device, host)
    else:
        x, sums = host

    def total() -> float:
        if library == "torch":
            return float(sums[0].item())
        return float((sums.copy_to_host() if library == "numba" else sums)[0])

    kernel = tuned()
    launch = kernel[parts, lambda meta: meta["THREADS"]]
    launch(x, sums, n)
    assert total() == n, "reset before the launch"
    (tuning,) = kernel.cache.values()
    assert tuning.trials[-1].config["THREADS"] == 2048 and "block" in tuning.trials[-1].failure
    usable = tuning.trials[:-1]
    assert len(usable) == 4 and all(1e-6 < trial.seconds < 1e-2 for trial in usable)
    assert tuning.best["PER_THREAD"] == 16 or tuning.best["THREADS"] == 256
    launch(x, sums, n)
    assert total() == 2 * n, "measured once"
    read_again()
    again = tuned()
    again[parts, lambda meta: meta["THREADS"]](x, sums, n)
    assert total() == 3 * n and again.best_config == kernel.best_config, "remembered"
    handle = again[parts, lambda meta: meta["THREADS"]].prepare(x, sums, n)
    handle(x, sums, n)
    assert total() == 4 * n


def test_tuning_restores(cache):
    torch = pytest.importorskip("torch")
    base = torch.arange(2000, dtype=torch.float32, device="cuda")
    x = base[::2]

    @tc.autotune([tc.Config(BLOCK=64), tc.Config(BLOCK=128)], restore_value=["x"], warmup=1, rep=2)
    @tc.kernel
    def double(x: tc.Array, BLOCK: tc.Const) -> None:
        i = tc.blockIdx.x * BLOCK + tc.threadIdx.x
        if i < x.shape[0]:
            x[i] *= 2

    wanted = base.clone()
    wanted[::2] *= 2
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        double[lambda meta: -(-1000 // meta["BLOCK"]), lambda meta: meta["BLOCK"]](x)
    stream.synchronize()
    assert torch.equal(base, wanted)


def test_tuning_and_graphs(cache):
    torch = pytest.importorskip("torch")
    x, sums = torch.ones(1 << 16, device="cuda"), torch.zeros(4, device="cuda")
    kernel = tuned()
    launch = kernel[parts, lambda meta: meta["THREADS"]]
    graph = torch.cuda.CUDAGraph()
    refused = pytest.raises(tc.ArgumentError, match="a CUDA graph captures this one")
    with refused, torch.cuda.graph(graph):
        launch(x, sums, 1 << 16)
    torch.cuda.synchronize()
    launch(x, sums, 1 << 16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(x, sums, 1 << 16)
    assert float(sums[0].item()) == 1 << 16
    graph.replay()
    graph.replay()
    assert float(sums[0].item()) == 3 << 16


def test_do_bench():
    torch = pytest.importorskip("torch")
    x = torch.zeros(1 << 26, device="cuda")
    x.fill_(1)
    cold = tc.testing.do_bench(lambda: x.fill_(2), warmup=5, rep=20)
    assert 1 < x.nbytes / cold / 1e9 < 20  # TB/s
    low, high = tc.testing.do_bench(lambda: x.fill_(2), warmup=5, rep=20, quantiles=(0, 1))
    assert low <= high
    with torch.cuda.stream(torch.cuda.Stream()):
        slept = tc.testing.do_bench(lambda: torch.cuda._sleep(2_000_000), warmup=0, rep=5)
    assert 0.3 < slept < 10
    small = torch.zeros(1 << 20, device="cuda")
    warm = tc.testing.do_bench(lambda: small.fill_(1), warmup=5, rep=10, cold=False)
    assert 1e-3 < warm < 1
