"""The driver: where there is none, contexts of threads, and all its calls on a stub of the library."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tensorcore_dsl import f32
from tensorcore_dsl.errors import LaunchError
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.tensor_maps import Tiled
from tests.c_compiler import GCC, INCLUDE, STUB, needs_compiler

pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")


@pytest.fixture
def uncached():
    """The machine is asked for a GPU anew, before and after."""
    for function in (driver.cuda_available, driver.cuda_driver):
        function.cache_clear()
    yield
    for function in (driver.cuda_available, driver.cuda_driver):
        function.cache_clear()


def test_a_machine_without_a_gpu_is_told_so():
    if driver.cuda_available():
        pytest.skip("there is a GPU")
    with pytest.raises(LaunchError, match="there is no GPU to run on"):
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
def test_missing_bindings_warn_once(monkeypatch, uncached, recwarn, library, warned):
    """Who has a GPU is told why it is not used, once."""

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(driver, "find_spec", missing)
    monkeypatch.setattr(driver, "_driver_library", lambda: library)
    assert not driver.cuda_available() and not driver.cuda_available()
    assert len(recwarn) == warned
    for one in recwarn:
        assert "on the CPU: there is a GPU, but no cuda-bindings; pip install" in str(one.message)
    with pytest.raises(LaunchError, match=r"tensorcore-dsl\[cuda\]" if warned else "the driver finds none"):
        driver.cuda_driver()


@pytest.mark.skipif(driver.cuda_available(), reason="there is a GPU")
@pytest.mark.skipif(driver._driver_library(), reason="there is a driver")
def test_asking_for_a_gpu_is_cheap():
    """Without a driver, nothing of CUDA is imported. A .pth file of cuda-bindings 12 makes `cuda` itself."""
    code = (
        "import sys; from tensorcore_dsl.runtime import driver; assert not driver.cuda_available();"
        "sys.exit('cuda.bindings' in sys.modules or 'numba' in sys.modules)"
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
        return 0, handle(self.stack[-1] if self.stack else 0)

    def cuCtxGetDevice(self):
        return 0, self.stack[-1] - 100

    def cuCtxSetCurrent(self, context):
        """It replaces the current one (CUDA Driver API, Context Management)."""
        self.stack[-1:] = [int(context)]
        return (0,)

    def cuCtxPushCurrent(self, context):
        self.stack.append(int(context))
        return (0,)

    def cuCtxPopCurrent(self):
        return 0, handle(self.stack.pop())

    def cuDeviceGet(self, ordinal):
        return 0, ordinal

    def cuDevicePrimaryCtxRetain(self, device):
        return 0, handle(100 + device)


@pytest.fixture
def two_gpus():
    """A driver of two GPUs that has contexts alone."""
    made = driver.CudaDriver.__new__(driver.CudaDriver)
    made._cuda, made._primaries = Contexts(), {}
    return made, made._cuda


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
        current.append(int(contexts.cuCtxGetCurrent()[1]))
        return code if len(current) == 1 else 0

    vars(gpu)["_encode"] = encode
    tile = Tiled(f32, (64, 64), (256,), (8, 32), 0)
    assert len(gpu.encode_tiled(4096, tile, 1)) == 128
    assert (current, contexts.stack) == ([0] if code == 0 else [0, 101], [])


def test_a_thread_without_context_is_attached_once(two_gpus):
    gpu, contexts = two_gpus
    assert gpu.attach(1) and contexts.stack == [101]
    assert not gpu.attach(0) and contexts.stack == [101]


# Every call, through cuda.bindings, in a process whose libcuda.so.1 is the stub

CALLS = """
import ctypes, threading
import numpy as np
import tensorcore_dsl as tc
from tensorcore_dsl.errors import LaunchError
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.launch_config import LaunchConfig

@tc.kernel(threads=64)
def scale(x: tc.Array, factor: tc.f32):
    x[tc.blockIdx.x * 64 + tc.threadIdx.x] *= factor

stub = ctypes.CDLL("libcuda.so.1")
number = lambda name: ctypes.c_int.in_dll(stub, name).value
assert tc.current_target() == "cuda"
gpu = driver.cuda_driver()
assert (gpu.capability(), gpu.device_name(), gpu.l2_bytes(), gpu.version()) == ((9, 0), "Stub A", 4096, 13000)
assert gpu.device_count() == 2
with gpu.on_device(1):
    assert gpu.device_name() == "Stub B"
try:
    with gpu.on_device(5):
        raise AssertionError
except LaunchError as error:
    assert "cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101), some error" in str(error), error

# A launch of a NumPy array: staged, launched, copied back, freed.
x = np.arange(128, dtype=np.float32)
launch = scale[2, 64]
for _ in range(3):
    launch(x, 2.0)
assert np.array_equal(x, np.arange(128)) and number("stub_launches") == 3 and number("stub_allocations") == 0
assert ctypes.string_at(stub.stub_function) == b"scale"

cubin = scale.specialise((x, 2.0), {}).cubin
loaded = gpu.load(cubin, 1)
assert (loaded.device, loaded.registers, loaded.static_shared, loaded.max_threads) == (1, 40, 1024, 512)
assert (loaded.most_shared, loaded.allowed) == (232448, 48 * 1024 - 1024) and gpu.load(cubin, 1) is loaded
gpu.allow_shared(loaded, LaunchConfig.of((16, 1, 1), 64, 100_000, (16, 1, 1)))
attributes = (ctypes.c_int * 64).in_dll(stub, "stub_attribute_values")
assert (attributes[8], attributes[14], loaded.allowed) == (100_000, 1, 100_000)
try:
    gpu.load(type(cubin)("bad", "sm_75", "", b"none", ""))
except LaunchError as error:
    assert "bad, assembled for sm_75, cannot be loaded on GPU 0 (compute capability 9.0)" in str(error)
    assert "INVALID_IMAGE (200), device kernel image is invalid" in str(error)

memory = gpu.memory(0)
(address, owner), (other, more) = memory.allocate(100), memory.allocate(100)
assert address % 256 == 0 and number("stub_allocations") == 2
data, back = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)
memory.upload(address, data)
memory.fill(address, 7, 50)
memory.copy(other, address, 100)
memory.download(other, back)
memory.synchronize()
assert (back[:50] == 7).all() and (back[50:] == data[50:]).all()
thread = threading.Thread(target=owner.__del__)  # a thread without a context
thread.start()
thread.join()
owner.address = 0
del owner, more
assert number("stub_allocations") == 0

start, end = gpu.event(), gpu.event()
gpu.record(start, 16)
gpu.record(end, 18)
gpu.wait(end, 16)
assert abs(gpu.seconds_between(start, end) - 2e-3) < 1e-9
del start, end
assert number("stub_events") == 0
assert [gpu.is_capturing(stream) for stream in (0, 7, 8)] == [False, True, True]
assert (gpu.finish(0), gpu.finish(7), gpu.finish(13)) == (0, 0, 719)
event = tc.Event()
event.record(16)
event.wait(17)
event.synchronize()

seen = []
def elsewhere():
    seen.append((gpu.attach(1), gpu.device_name(), gpu.attach(0)))
thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
assert seen == [(True, "Stub B", False)]
image = gpu.encode_tiled(4096, driver.tensor_maps.Tiled(tc.f32, (64, 64), (256,), (8, 32), 0), 0)
assert int.from_bytes(image[:8], "little") == 4096 and len(image) == 128
print("done")
"""


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="builds a shared library for Linux")
def test_every_call_on_a_stub(tmp_path):
    library = tmp_path / "libcuda.so.1"
    options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-isystem", str(INCLUDE)]
    subprocess.run([GCC, *options, str(STUB), "-o", str(library), "-ldl"], check=True)
    script = tmp_path / "calls.py"
    script.write_text(CALLS)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    environment.pop("TENSORCORE_DSL_TARGET", None)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
