"""The CUDA driver, through cuda.bindings: loads and launches kernels, copies memory, encodes maps.

`cuda.bindings` is imported when first needed.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.codegen.ptx import STATIC_SHARED_LIMIT
from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import LaunchError
from tensorcore_dsl.runtime import tensor_maps
from tensorcore_dsl.runtime.array_interop import CURRENT_DEVICE
from tensorcore_dsl.runtime.host_staging import Bytes
from tensorcore_dsl.runtime.launch import Loaded
from tensorcore_dsl.runtime.launch_config import LaunchConfig

_NO_INTERLEAVE = 0  # CUtensorMapInterleave
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_IMPLICIT_CAPTURE = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
_USUAL_DEVICE = 0  # A thread without a context gets the context of this device.
_NAME_BYTES = 256  # of a device's name
NO_BINDINGS = (
    "there is a GPU, but no cuda-bindings; pip install 'tensorcore-dsl[cuda]' brings it, "
    "TENSORCORE_DSL_TARGET=cpu hides this warning"
)


@lru_cache
def cuda_available() -> bool:
    """True if kernels can run on a GPU; False without cuda-bindings."""
    if not _count_gpus():
        return False
    if not _has_bindings():
        warnings.warn(f"kernels run on the CPU: {NO_BINDINGS}", RuntimeWarning, stacklevel=2)
        return False
    return True


def _driver_library() -> Any:
    """The CUDA driver, if it can be loaded. Without one, nothing of CUDA is imported."""
    for name in ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so"):
        with suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _count_gpus() -> int:
    library, count = _driver_library(), ctypes.c_int()
    if library is None or library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def _has_bindings() -> bool:
    try:
        return find_spec("cuda.bindings.driver") is not None
    except ImportError:  # there is no package `cuda`
        return False


def compute_capability() -> int:
    """Compute capability of the current GPU, as 90 for 9.0."""
    major, minor = cuda_driver().capability()
    return 10 * major + minor


@lru_cache
def cuda_driver() -> CudaDriver:
    """The driver of this process.

    Returns
    -------
    CudaDriver
        Made once.

    Raises
    ------
    LaunchError
        There is no GPU that kernels can run on.
    """
    if not cuda_available():
        reason = "the driver finds none" if _driver_library() else "there is no CUDA driver"
        raise LaunchError(f"there is no GPU to run on ({NO_BINDINGS if _count_gpus() else reason})")
    return CudaDriver()


class CudaDriver(EagerDict):
    """The driver with the primary contexts of its GPUs (implements `launch.Driver`)."""

    def __init__(self) -> None:
        self._cuda: Any = import_module("cuda.bindings.driver")
        self._library: Any = _driver_library()
        self._loaded: dict[tuple[int, int], Loaded] = {}
        self._primaries: dict[int, Any] = {}
        self._call("cuInit", 0)
        pointer = ctypes.c_void_p
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, pointer)
        self.launch = prototype(("cuLaunchKernelEx", self._library))
        wait = ctypes.CFUNCTYPE(ctypes.c_int, pointer)
        self._wait = wait(("cuStreamSynchronize", self._library))

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a driver function. Return its result, None if it has none."""
        code, *results = getattr(self._cuda, name)(*arguments)
        if int(code):
            raise LaunchError(f"{name}: {self.error_text(int(code))}")
        return results[0] if results else None

    def _attribute(self, name: str, device: int) -> int:
        attribute = getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", attribute, device))

    def _primary(self, device: int) -> Any:
        """Return the primary context of a GPU, which torch, CuPy and Numba also use."""
        if device not in self._primaries:
            handle = self._call("cuDeviceGet", device)
            self._primaries[device] = self._call("cuDevicePrimaryCtxRetain", handle)
        return self._primaries[device]

    def _current(self) -> int:
        """Return the GPU of the current context. Without a context, make the usual GPU's current."""
        self.attach(_USUAL_DEVICE)
        return int(self._call("cuCtxGetDevice"))

    def capability(self) -> tuple[int, int]:
        """Compute capability of the current GPU."""
        device = self._current()
        major = self._attribute("COMPUTE_CAPABILITY_MAJOR", device)
        return major, self._attribute("COMPUTE_CAPABILITY_MINOR", device)

    def load(self, cubin: Cubin, device: int = CURRENT_DEVICE) -> Loaded:
        """Load a kernel in the context of `device`, once for each device."""
        with self.on_device(device):
            current = self._current()
            key = (id(cubin), current)
            if key not in self._loaded:  # `keep` holds the cubin, so its id stays its own
                self._loaded[key] = self._load(cubin, current)
            return self._loaded[key]

    def _load(self, cubin: Cubin, device: int) -> Loaded:
        image = ctypes.create_string_buffer(cubin.code, len(cubin.code))
        try:
            library = self._call("cuLibraryLoadData", ctypes.addressof(image), [], [], 0, [], [], 0)
            kernel = self._call("cuLibraryGetKernel", library, cubin.name.encode())
            function = self._call("cuKernelGetFunction", kernel)
        except LaunchError as error:
            major, minor = self.capability()
            raise LaunchError(
                f"{cubin.name}, assembled for {cubin.arch}, cannot be loaded on GPU {device} "
                f"(compute capability {major}.{minor}): {error.message}"
            ) from error

        def attribute(name: str) -> int:
            number = getattr(self._cuda.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
            return int(self._call("cuFuncGetAttribute", number, function))

        static_shared = attribute("SHARED_SIZE_BYTES")
        return Loaded(
            name=cubin.name,
            function=int(function),
            device=device,
            static_shared=static_shared,
            registers=attribute("NUM_REGS"),
            max_threads=attribute("MAX_THREADS_PER_BLOCK"),
            allowed=STATIC_SHARED_LIMIT - static_shared,
            most_shared=self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", device),
            keep=(cubin, library, kernel, function),
        )

    def allow_shared(self, loaded: Loaded, config: LaunchConfig) -> None:
        """Allow a kernel more than 48 KiB of shared memory, and more than 8 blocks a cluster."""
        wanted = config.shared_bytes
        if wanted > loaded.allowed:
            self._set(loaded, "MAX_DYNAMIC_SHARED_SIZE_BYTES", wanted)
            loaded.allowed = wanted
        x, y, z = config.cluster or (1, 1, 1)
        if x * y * z > 8:
            self._set(loaded, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)

    def _set(self, loaded: Loaded, name: str, value: int) -> None:
        attribute = getattr(self._cuda.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        with self.on_device(loaded.device):
            self._call("cuFuncSetAttribute", loaded.function, attribute, value)

    def encode_tiled(self, pointer: int, tile: tensor_maps.Tiled, device: int) -> bytes:
        """The 128 bytes of a tensor map; the driver encodes at multiples of 64 bytes only."""
        rank = len(tile.extents)
        steps = (1,) * rank
        box: tuple[Any, ...] = ((ctypes.c_uint32 * rank)(*tile.box),)
        if tile.im2col is not None:
            corners = [(ctypes.c_int * rank)(*corner) for corner in tile.im2col[:2]]
            box, steps = (*corners, *tile.box), (1, *tile.im2col.steps, 1)
        encode = self._encode if tile.im2col is None else self._encode_im2col
        buffer = (ctypes.c_char * (tensor_maps.MAP_BYTES + tensor_maps.MAP_ALIGN))()
        address = -(-ctypes.addressof(buffer) // tensor_maps.MAP_ALIGN) * tensor_maps.MAP_ALIGN
        arguments = (
            address, tensor_maps.DATA_TYPES[tile.dtype.name], rank, pointer,
            (ctypes.c_uint64 * rank)(*tile.extents), (ctypes.c_uint64 * rank)(*tile.strides),
            *box, (ctypes.c_uint32 * rank)(*steps),
            _NO_INTERLEAVE, tensor_maps.TENSOR_MAP_SWIZZLES[tile.swizzle],
            tensor_maps.L2_PROMOTION, tile.nan_fill,
        )  # fmt: skip
        code = encode(*arguments)
        if code == _NO_CONTEXT:
            with self.on_device(device):
                code = encode(*arguments)
        if code:
            raise LaunchError(
                f"the driver makes no tensor map of an array at {pointer:#x} with {tile}: "
                f"{self.error_text(code)}"
            )
        return ctypes.string_at(address, tensor_maps.MAP_BYTES)

    @cached_property
    def _encode(self) -> Any:
        return self._encoder("Tiled", "P")

    @cached_property
    def _encode_im2col(self) -> Any:
        return self._encoder("Im2col", "PPII")

    def _encoder(self, mode: str, box: str) -> Any:
        """cuTensorMapEncode* by ctypes: maps of the bindings are at multiples of 16 bytes."""
        kinds = {"I": ctypes.c_uint32, "P": ctypes.c_void_p}
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[kinds[kind] for kind in f"PIIPPP{box}PIIII"])
        try:
            return prototype((f"cuTensorMapEncode{mode}", self._library))
        except AttributeError:
            raise LaunchError("the driver makes no tensor maps; CUDA 12.0 is needed") from None

    def error_text(self, code: int) -> str:
        result = self._cuda.CUresult(code)
        _, text = self._cuda.cuGetErrorString(result)
        return f"{result.name} ({code}), {text.decode() if text else 'no explanation'}"

    @contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        if device == CURRENT_DEVICE:
            yield
            return
        self._call("cuCtxPushCurrent", self._primary(device))
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    def attach(self, device: int) -> bool:
        if int(self._call("cuCtxGetCurrent")):
            return False
        usual = _USUAL_DEVICE if device == CURRENT_DEVICE else device
        self._call("cuCtxSetCurrent", self._primary(usual))
        return True

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", stream)

    def finish(self, stream: int) -> int:
        """Wait for the stream, unless a graph captures it; returns the CUresult of its work."""
        return 0 if self.is_capturing(stream) else int(self._wait(stream))

    def event(self) -> Event:
        """A new event that keeps the time."""
        self._current()
        return Event(self)

    def record(self, event: Event, stream: int) -> None:
        """The event becomes the moment at which the stream's work so far has ended."""
        self._call("cuEventRecord", event.handle, stream)

    def wait(self, event: Event, stream: int) -> None:
        """Later work of the stream waits for the event."""
        self._call("cuStreamWaitEvent", stream, event.handle, 0)

    def seconds_between(self, start: Event, end: Event) -> float:
        """Seconds between two events; waits for the second."""
        end.synchronize()
        return float(self._call("cuEventElapsedTime", start.handle, end.handle)) / 1e3

    def is_capturing(self, stream: int) -> bool:
        """True if a CUDA graph captures the launches on the stream."""
        self._current()
        code, status = self._cuda.cuStreamIsCapturing(stream)
        if int(code) == _IMPLICIT_CAPTURE:  # the default stream, while another one is captured
            return True
        if int(code):
            raise LaunchError(f"cuStreamIsCapturing: {self.error_text(int(code))}")
        return int(status) != 0

    def l2_bytes(self) -> int:
        """Size of the current GPU's L2 cache."""
        return self._attribute("L2_CACHE_SIZE", self._current())

    def device_name(self) -> str:
        """Name of the current GPU, such as "NVIDIA H200"."""
        name: bytes = self._call("cuDeviceGetName", _NAME_BYTES, self._current())
        return name.partition(b"\0")[0].decode()

    def device_count(self) -> int:
        """How many GPUs this process sees."""
        return int(self._call("cuDeviceGetCount"))

    def version(self) -> int:
        """The newest CUDA version of the driver, as 13010 for 13.1."""
        return int(self._call("cuDriverGetVersion"))

    def memory(self, stream: int) -> DeviceMemory:
        return DeviceMemory(self, stream)


class Event:
    """A moment in a stream of the context that is current when it is made."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self.handle = int(driver._call("cuEventCreate", 0))

    def synchronize(self) -> None:
        """Wait until the moment has passed."""
        self._driver._call("cuEventSynchronize", self.handle)

    def __del__(self) -> None:
        if handle := vars(self).get("handle"):
            with suppress(Exception):  # the process may end
                self._driver._cuda.cuEventDestroy(handle)


class DeviceMemory:
    """Memory of the current GPU, used in stream order (implements `host_staging.Memory`)."""

    def __init__(self, driver: CudaDriver, stream: int) -> None:
        self._driver, self._stream = driver, stream

    def allocate(self, size: int) -> tuple[int, Any]:
        owner = Allocation(self._driver, size)
        return owner.address, owner

    def upload(self, address: int, data: Bytes) -> None:
        self._driver._call("cuMemcpyHtoDAsync", address, data.ctypes.data, data.size, self._stream)

    def download(self, address: int, data: Bytes) -> None:
        self._driver._call("cuMemcpyDtoHAsync", data.ctypes.data, address, data.size, self._stream)

    def copy(self, target: int, source: int, size: int) -> None:
        self._driver._call("cuMemcpyDtoDAsync", target, source, size, self._stream)

    def fill(self, address: int, byte: int, size: int) -> None:
        self._driver._call("cuMemsetD8Async", address, byte, size, self._stream)

    def synchronize(self) -> None:
        self._driver.synchronize(self._stream)


class Allocation:
    """Bytes of the current GPU, which are freed with this object."""

    def __init__(self, driver: CudaDriver, size: int) -> None:
        self._driver, self._device = driver, driver._current()
        self.address = int(driver._call("cuMemAlloc", size))

    def __del__(self) -> None:
        if address := vars(self).get("address"):
            with suppress(Exception), self._driver.on_device(self._device):  # the process may end
                self._driver._cuda.cuMemFree(address)
