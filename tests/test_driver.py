"""The driver where there is no GPU, no numba-cuda, or Numba's simulator."""

import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from tensorcore_dsl import f32
from tensorcore_dsl.errors import LaunchError
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.tensor_maps import Tiled

pytest.importorskip("cuda.core", reason="needs nvJitLink")


@pytest.fixture
def uncached():
    """Numba is asked for a GPU anew, before and after."""
    for function in (driver.cuda_available, driver.cuda_driver):
        function.cache_clear()
    yield
    for function in (driver.cuda_available, driver.cuda_driver):
        function.cache_clear()


def test_no_gpu():
    if driver.cuda_available():
        pytest.skip("there is a GPU")
    with pytest.raises(LaunchError, match="there is no GPU that Numba can use"):
        driver.cuda_driver()


class Library:
    """A CUDA driver with so many GPUs; error: what cuInit returns."""

    def __init__(self, gpus, error=0):
        self.gpus, self.error = gpus, error

    def cuInit(self, flags):
        return self.error

    def cuDeviceGetCount(self, reference):
        reference._obj.value = self.gpus
        return 0


@pytest.mark.parametrize("library, warned", [(Library(2), 1), (Library(0), 0), (Library(1, 100), 0)])
def test_no_numba_cuda(monkeypatch, uncached, recwarn, library, warned):
    """Who has a GPU is told why it is not used, once."""

    def missing(name="numba.cuda"):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(driver, "numba_cuda", missing)
    monkeypatch.setattr(driver, "find_spec", lambda name: None)
    monkeypatch.setattr(driver, "_driver_library", lambda: library)
    assert not driver.cuda_available() and not driver.cuda_available()
    assert len(recwarn) == warned
    for one in recwarn:
        assert "on the CPU: there is a GPU, but no numba-cuda; pip install" in str(one.message)
    with pytest.raises(LaunchError, match=r"tensorcore-dsl\[cu13\]"):
        driver.cuda_driver()


def test_simulator(monkeypatch, uncached):
    monkeypatch.setattr(driver, "simulated", lambda: True)
    assert not driver.cuda_available()
    with pytest.raises(LaunchError, match="NUMBA_ENABLE_CUDASIM"):
        driver.cuda_driver()


@pytest.mark.skipif(driver.cuda_available(), reason="there is a GPU")
@pytest.mark.skipif(driver._driver_library(), reason="there is a driver")
def test_asking_for_a_gpu_is_cheap():
    """Without a driver, nobody waits for the import of numba.cuda."""
    code = (
        "import sys; from tensorcore_dsl.runtime import driver; assert not driver.cuda_available();"
        "sys.exit('numba.cuda' in sys.modules)"
    )
    root = Path(__file__).resolve().parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def handle(number):
    return pytest.importorskip("cuda.bindings.driver").CUcontext(number)


class Contexts:
    """The driver's stack of contexts of each thread; GPU n has the primary context 100 + n."""

    def __init__(self):
        self.threads = threading.local()

    @property
    def stack(self):
        if not hasattr(self.threads, "stack"):
            self.threads.stack = []
        return self.threads.stack

    def cuCtxGetCurrent(self):
        return handle(self.stack[-1] if self.stack else 0)

    def cuCtxGetDevice(self):
        return self.stack[-1] - 100

    def cuCtxSetCurrent(self, context):
        """It replaces the current one (CUDA Driver API, Context Management)."""
        self.stack[-1:] = [int(context)]

    def cuCtxPushCurrent(self, context):
        self.stack.append(int(context))

    def cuCtxPopCurrent(self):
        return handle(self.stack.pop())

    def cuDeviceGetCount(self):
        return 2


class Device:
    """A GPU as cuda.core has it: `set_current` without a context is cuCtxSetCurrent."""

    def __init__(self, contexts, number):
        self.contexts, self.number = contexts, number
        own = handle(100 + number)
        self.context = types.SimpleNamespace(handle=own, _handle=own)

    def set_current(self):
        self.contexts.cuCtxSetCurrent(self.context.handle)


@pytest.fixture
def two_gpus(monkeypatch):
    """numba-cuda's own contexts, on a driver of two GPUs that has contexts alone."""
    cudadrv = pytest.importorskip("numba.cuda.cudadrv.driver", reason="numba-cuda is not installed")
    devices = pytest.importorskip("numba.cuda.cudadrv.devices")
    contexts = Contexts()
    for name in filter(lambda name: name.startswith("cu"), dir(contexts)):
        monkeypatch.setitem(vars(cudadrv.driver), name, getattr(contexts, name))
    gpus = {}
    for number in range(2):
        gpu = gpus[number] = cudadrv.Device.__new__(cudadrv.Device)
        gpu._dev, gpu.id, gpu.primary_context = Device(contexts, number), number, None
        gpu.compute_capability = 9, 0
    monkeypatch.setattr(cudadrv.driver, "devices", gpus)
    monkeypatch.setattr(cudadrv.Context, "prepare_for_use", lambda self: None)
    runtime = devices._Runtime()
    managers = [devices._DeviceContextManager(gpus[number]) for number in range(2)]
    monkeypatch.setattr(type(runtime.gpus), "lst", managers)
    monkeypatch.setattr(devices, "_runtime", runtime)
    made = driver.NumbaDriver.__new__(driver.NumbaDriver)
    made._driver = cudadrv.driver
    made._cuda = types.SimpleNamespace(gpus=runtime.gpus, current_context=runtime.get_or_create_context)
    return made, contexts


@pytest.mark.parametrize("before", [[], [100], [101], [101, 100], [100, 100]])
def test_contexts_of_the_caller_stay(two_gpus, before):
    """When a GPU is first used too, and after an error."""
    gpu, contexts = two_gpus
    contexts.stack[:] = before
    for device in (1, 1, 0, -1):
        with gpu.on_device(device):
            assert contexts.stack == (before if device == -1 else [*before, 100 + device])
        assert contexts.stack == before
        with pytest.raises(LaunchError), gpu.on_device(device):
            raise LaunchError("no")
        assert contexts.stack == before


@pytest.mark.parametrize("code", [0, 201])
def test_maps_of_another_gpu_leave_the_context(two_gpus, code):
    gpu, contexts = two_gpus
    current = []

    def encode(*_):
        current.append(int(contexts.cuCtxGetCurrent()))
        return code if len(current) == 1 else 0

    vars(gpu)["_encode"] = encode
    tile = Tiled(f32, (64, 64), (256,), (8, 32), 0)
    assert len(gpu.encode_tiled(4096, tile, 1)) == 128
    assert (current, contexts.stack) == ([0] if code == 0 else [0, 101], [])


def test_a_thread_without_context_is_attached_once(two_gpus):
    gpu, contexts = two_gpus
    assert gpu.attach(0) and set(contexts.stack) == {100}  # numba-cuda 0.26 pushes it twice
    attached = list(contexts.stack)
    assert not gpu.attach(1) and contexts.stack == attached
