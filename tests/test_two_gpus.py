"""Two GPUs: arrays of the one that is not current, its streams, and what is kept for each.

The device of the arrays counts, and the current one is the same afterwards. Operands are small whole
numbers, so that every order of summation gives the same bits as torch's products of f64.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.host import workspace
from tensorcore_dsl.runtime import driver
from tests.hopper_kernels import first_box

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

import tensorcore_dsl.torch as tct  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not driver.cuda_available() or torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
LATE = 100_000_000  # clock cycles for which a stream is kept busy: some 50 ms
FIRST, OTHER = "cuda:0", "cuda:1"


@pytest.fixture(autouse=True)
def first_is_current():
    """Device 0 is current before each test, and no call of a test leaves another one behind."""
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0
    assert torch.equal(torch.arange(4, device="cuda") + 1, torch.arange(1, 5, device=FIRST))


def whole(*shape: int, device: str, dtype: Any = torch.bfloat16) -> Any:
    return torch.randint(-2, 3, shape, device=device).to(dtype)


def check(actual: Any, a: Any, b: Any) -> None:
    """found is the product, on the device of A. Elements beyond 256 are rounded once to bf16."""
    assert actual.device == a.device
    assert torch.equal(actual, (a.double() @ b.double()).to(actual.dtype))


@tc.kernel
def add(x: tc.Array, y: tc.Array, number: tc.f32):
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    if i < x.shape[0]:
        y[i] = x[i] + number


@tct.operator(
    "tests_two_gpus::add",
    grid=lambda x: -(-x.numel() // 128),
    block=128,
    outputs={"y": lambda x: torch.empty_like(x)},
)
@tc.kernel
def added(x: tc.Array, y: tc.Array, number: tc.f32):
    i = tc.blockIdx.x * 128 + tc.threadIdx.x
    if i < x.shape[0]:
        y[i] = x[i] + number


def test_a_kernel_follows_its_arrays():
    """The plain path, the fast path, and turns between the devices."""
    launch = add[8, 128]
    for turn in range(6):
        for device in (OTHER, FIRST, OTHER, OTHER):
            x = torch.full((1000,), 3.0, device=device)
            y = torch.zeros(1000, device=device)
            launch(x, y, float(turn))
            assert (y == 3 + turn).all()


def test_a_prepared_launch():
    x, y = torch.full((1000,), 3.0, device=OTHER), torch.zeros(1000, device=OTHER)
    prepared = add[8, 128].prepare(x, y, 1.0)
    for turn in range(3):
        prepared(x, y, float(turn))
        assert (y == 3 + turn).all()


def test_tensor_maps():
    for device in (OTHER, FIRST, OTHER):
        x = torch.arange(16 * 64.0, device=device).view(16, 64)
        y = torch.zeros_like(x)
        for _ in range(3):
            first_box[1, 32](x, y.zero_())
            assert torch.equal(y[:8], x[:8]) and not y[8:].any()


def test_each_device_has_its_own_machine_code():
    for device in (FIRST, OTHER):
        x = torch.zeros(1000, device=device)
        add[8, 128](x, x.clone(), 1.0)
    cubin = add.specialise((x, x, 1.0), {}).cubin
    devices = {device for code, device in driver.cuda_driver()._loaded if code == id(cubin)}
    assert devices == {0, 1}


def test_arrays_of_both_are_refused():
    x, y = torch.zeros(8, device=FIRST), torch.zeros(8, device=OTHER)
    with pytest.raises(tc.ArgumentError, match="several GPUs: .*GPU 0.*GPU 1"):
        add[1, 128](x, y, 1.0)
    a, b = whole(64, 64, device=FIRST), whole(64, 64, device=OTHER)
    with pytest.raises(tc.ArgumentError, match="several GPUs"):
        kernels.gemm(a, b)


SHAPES = [(64, 64, 64), (64, 128, 8192), (520, 776, 2048), (2048, 2048, 1024)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(shape, dtype):
    """With split-K and stream-K too, whose workspaces belong to a device."""
    M, N, K = shape
    for device in (OTHER, FIRST, OTHER):
        a, b = whole(M, K, device=device, dtype=dtype), whole(K, N, device=device, dtype=dtype)
        for _ in range(3):
            check(kernels.gemm(a, b), a, b)
        out = torch.empty(M, N, device=device, dtype=dtype)
        assert kernels.gemm(a, b, out=out) is out
        check(out, a, b)


def of_both(M: int, N: int, K: int, dtype: Any) -> list[tuple[Any, Any]]:
    return [
        (whole(M, K, device=device, dtype=dtype), whole(K, N, device=device, dtype=dtype))
        for device in (FIRST, OTHER)
    ]


def planned(a: Any, b: Any) -> Any:
    return kernels.plan(a, b, None, a.new_empty(a.shape[0], b.shape[1]))


def stream_k() -> tuple[int, int, int]:
    """A size whose accumulators are exchanged in a workspace."""
    for n in range(1152, 4096, 128):
        a = torch.empty(n, n, device=FIRST, dtype=torch.float64)
        if planned(a, a).streamk is not None:
            return n, n, n
    raise AssertionError("no product takes stream-K")


def split_k() -> tuple[int, int, int]:
    """A size whose partial sums are stored in a workspace."""
    for K in (2048, 4096, 8192, 16384):
        a, b = (torch.empty(shape, device=FIRST) for shape in ((64, K), (K, 128)))
        if planned(a, b).partial_dtype is not None:
            return 64, 128, K
    raise AssertionError("no product takes split-K with partial sums")


CACHES = [(stream_k, torch.float64, "_cached"), (split_k, torch.float32, "_small")]


@pytest.mark.parametrize(("size", "dtype", "cache"), CACHES, ids=["stream-K", "split-K"])
def test_workspaces_belong_to_a_device(size, dtype, cache):
    """The launches of two devices at once do not meet in one workspace."""
    pairs = of_both(*size(), dtype)
    kept = getattr(workspace, cache)
    kept.clear()
    products = [[kernels.gemm(a, b) for a, b in pairs] for _ in range(10)]
    for both in products:
        for product, (a, b) in zip(both, pairs, strict=True):
            check(product, a, b)
    assert {key[0][0] for key in kept} == {0, 1}


def test_streams_of_the_other_device():
    """A product is of what its stream writes before it, late; given, and as the current one."""
    stream = torch.cuda.Stream(device=OTHER)
    a, b, later = (whole(256, 256, device=OTHER) for _ in range(3))
    out = torch.empty_like(a)
    kernels.gemm(a, b, out=out)  # compiles
    kernels.gemm(a, b, out=out, stream=stream)
    torch.cuda.synchronize(OTHER)
    for argument in (stream, None):
        a.zero_()
        out.zero_()
        torch.cuda.synchronize(OTHER)
        with torch.cuda.stream(stream):  # its device is current inside
            torch.cuda._sleep(LATE)
            a.copy_(later)
            if argument is None:
                kernels.gemm(a, b, out=out)
        if argument is not None:
            kernels.gemm(a, b, out=out, stream=stream)
        stream.synchronize()
        check(out, later, b)


def test_a_launch_on_a_stream_of_the_other_device():
    stream = torch.cuda.Stream(device=OTHER)
    x, y = torch.zeros(1000, device=OTHER), torch.zeros(1000, device=OTHER)
    launch = add[8, 128, stream]
    torch.cuda.synchronize(OTHER)
    for turn in range(4):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LATE // 4)
            x.fill_(turn)
        launch(x, y, 1.0)
        stream.synchronize()
        assert (y == turn + 1).all()


def test_checks_wait_for_the_other_device():
    x, y = torch.zeros(1000, device=OTHER), torch.zeros(1000, device=OTHER)
    launch = tc.kernel(checks=True)(add.function)[8, 128]
    for turn in range(3):
        with torch.cuda.device(OTHER):
            torch.cuda._sleep(LATE)
        launch(x, y, float(turn))
        assert torch.cuda.default_stream(OTHER).query()
        assert (y == turn).all()


def test_operators_and_their_gradients():
    a, w = whole(128, 96, device=OTHER).requires_grad_(), whole(64, 96, device=OTHER).requires_grad_()
    for _ in range(3):
        actual = tct.gemm(a, w.t())
        grads = torch.autograd.grad(actual, (a, w), torch.ones_like(actual))
        check(actual.detach(), a.detach(), w.detach().t())
        ones = torch.ones_like(actual)
        check(grads[0], ones, w.detach())
        check(grads[1], ones.t(), a.detach())
        assert torch.cuda.current_device() == 0
    x = torch.arange(300.0, device=OTHER)
    assert torch.equal(added(x, 2.0), x + 2) and torch.cuda.current_device() == 0


def test_training_in_a_graph():
    with torch.cuda.device(1):
        model = tct.MLP(64, 128, device=OTHER)
        x = torch.randn(32, 64, device=OTHER)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(x).square().mean().backward()
        torch.cuda.current_stream().wait_stream(side)
        model.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):  # torch's own is of the device of its first graph
            model(x).square().mean().backward()
    x.copy_(torch.randn_like(x))
    graph.replay()
    gradients = [p.grad.clone() for p in model.parameters()]
    wanted = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    assert all(map(torch.equal, gradients, wanted))


def test_a_thread_for_each_device():
    """Two threads launch at once, each with a device of its own as the current one."""
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            torch.cuda.set_device(number)
            own, other = f"cuda:{number}", f"cuda:{1 - number}"
            for turn in range(50):
                device = other if turn % 5 == 4 else own
                a, b = whole(96, 64, device=device), whole(64, 80, device=device)
                check(kernels.gemm(a, b), a, b)
                x = torch.zeros(1000, device=device)
                y = torch.zeros_like(x)
                add[8, 128](x, y, float(turn))
                assert (y == turn).all() and torch.cuda.current_device() == number
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_numba_arrays_of_the_current_device():
    """They do not name their device: it is the current one, of each launch."""
    cuda: Any = pytest.importorskip("numba.cuda")
    launch = add[8, 128]
    for number in (0, 1, 0, 1):
        with cuda.gpus[number]:
            x, y = cuda.to_device(np.full(1000, 3, np.float32)), cuda.device_array(1000, np.float32)
            for turn in range(3):
                launch(x, y, float(number + turn))
                assert (y.copy_to_host() == 3 + number + turn).all()


def test_numpy_arrays_go_to_the_current_device():
    x, y = np.full(1000, 3, np.float32), np.zeros(1000, np.float32)
    for number in (1, 0, 1):
        with torch.cuda.device(number):
            add[8, 128](x, y, float(number))
        assert (y == 3 + number).all()


def test_times_of_the_other_device():
    a, b = whole(512, 512, device=OTHER), whole(512, 512, device=OTHER)
    with torch.cuda.device(1):
        assert 0 < tc.testing.do_bench(lambda: tct.gemm(a, b), warmup=2, rep=10) < 1000
