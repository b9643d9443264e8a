"""The CUDA driver, through Numba: loads and launches kernels, copies memory, encodes maps.

`numba.cuda` is imported when first needed.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tensorcore_dsl.codegen.assemble import INSTALL_HINT
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.codegen.ptx import STATIC_SHARED_LIMIT
from tensorcore_dsl.environment.numba_cuda import numba_cuda
from tensorcore_dsl.errors import LaunchError
from tensorcore_dsl.runtime import tensor_maps
from tensorcore_dsl.runtime.array_interop import CURRENT_DEVICE
from tensorcore_dsl.runtime.host_staging import Bytes
from tensorcore_dsl.runtime.launch import Loaded
from tensorcore_dsl.runtime.launch_config import LaunchConfig

_NO_INTERLEAVE, _FILL_ZEROS = 0, 0  # CUtensorMapInterleave, CUtensorMapFloatOOBfill
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_IMPLICIT_CAPTURE = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
NO_NUMBA_CUDA = (
    "there is a GPU, but no numba-cuda; pip install 'tensorcore-dsl[cuda]' brings it, "
    "TENSORCORE_DSL_TARGET=cpu hides this warning"
)


@lru_cache
def cuda_available() -> bool:
    """Whether there is a GPU that Numba can use; False where numba-cuda is missing."""
    if not _driver_library() or simulated():
        return False
    try:
        driver = numba_cuda("numba.cuda.cudadrv.driver")
    except ImportError as error:
        reason = str(error)
        if find_spec("numba_cuda") is None:
            reason = NO_NUMBA_CUDA if _sees_gpus() else ""
        if reason:
            warnings.warn(f"kernels run on the CPU: {reason}", RuntimeWarning, stacklevel=2)
        return False
    try:
        return bool(driver.driver.is_available and driver.driver.get_device_count())
    except driver.CudaSupportError:
        return False


def simulated() -> bool:
    """Whether Numba simulates CUDA, and so has no driver. Imports Numba, if it is there."""
    if find_spec("numba") is None:
        return False
    return bool(getattr(import_module("numba").config, "ENABLE_CUDASIM", False))


def _driver_library() -> Any:
    """The CUDA driver, if it can be loaded. Without one, numba.cuda is not imported."""
    names = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
    for name in filter(None, (os.environ.get("NUMBA_CUDA_DRIVER"), *names)):
        with suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _sees_gpus() -> bool:
    """Whether the driver has a GPU, asked without numba-cuda."""
    library, count = _driver_library(), ctypes.c_int()
    failed = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    return not failed and count.value > 0


def compute_capability() -> int:
    """Compute capability of the current GPU, as 90 for 9.0."""
    major, minor = cuda_driver().capability()
    return 10 * major + minor


@lru_cache
def cuda_driver() -> NumbaDriver:
    """The driver of this process.

    Returns
    -------
    NumbaDriver
        Made once.

    Raises
    ------
    LaunchError
        There is no GPU that Numba can use.
    """
    if not cuda_available():
        raise LaunchError(f"there is no GPU that Numba can use ({_reason()})")
    return NumbaDriver()


def _reason() -> str:
    if simulated():
        return "NUMBA_ENABLE_CUDASIM is set"
    try:
        return str(numba_cuda().cuda_error() or "no device").strip()
    except ImportError as error:
        return f"{error}; {INSTALL_HINT}"


class NumbaDriver:
    """Numba's driver and contexts (implements `launch.Driver`)."""

    def __init__(self) -> None:
        driver = numba_cuda("numba.cuda.cudadrv.driver")
        self._cuda: Any = numba_cuda()
        self._driver: Any = driver.driver
        self._binding: Any = driver.binding
        self._loaded: dict[tuple[int, int], Loaded] = {}
        pointer = ctypes.c_void_p
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, pointer)
        self._driver.ensure_initialized()
        self.launch = prototype(("cuLaunchKernelEx", self._driver.lib))
        wait = ctypes.CFUNCTYPE(ctypes.c_int, pointer)
        self._wait = wait(("cuStreamSynchronize", self._driver.lib))

    def capability(self) -> tuple[int, int]:
        """Compute capability of the current GPU."""
        major, minor = self._cuda.current_context().device.compute_capability
        return int(major), int(minor)

    def load(self, cubin: Cubin, device: int = CURRENT_DEVICE) -> Loaded:
        """The kernel in the context of `device`; loaded once for each."""
        with self.on_device(device):
            context = self._cuda.current_context()
            key = (id(cubin), int(context.device.id))
            if key not in self._loaded:  # `keep` holds the cubin, so its id stays its own
                self._loaded[key] = self._load(cubin, context)
            return self._loaded[key]

    def _load(self, cubin: Cubin, context: Any) -> Loaded:
        image = import_module("cuda.core").ObjectCode.from_cubin(cubin.code, name=cubin.name)
        try:
            module = context.create_module_image(image)
            kernel = module.get_function(cubin.name)
        except Exception as error:  # the driver's and cuda.core's own
            raise LaunchError(
                f"{cubin.name}, assembled for {cubin.arch}, cannot be loaded on GPU "
                f"{context.device.id} (compute capability {context.device.compute_capability}): "
                f"{error}"
            ) from error
        function = self._driver.cuKernelGetFunction(kernel.handle)
        attribute = self._binding.CUdevice_attribute
        limit = attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        return Loaded(
            name=cubin.name,
            function=int(function),
            device=int(context.device.id),
            static_shared=kernel.attrs.shared,
            registers=kernel.attrs.regs,
            max_threads=kernel.attrs.maxthreads,
            allowed=STATIC_SHARED_LIMIT - kernel.attrs.shared,
            most_shared=self._driver.cuDeviceGetAttribute(limit, context.device.id),
            keep=(cubin, module, kernel, function),
        )

    def allow_shared(self, loaded: Loaded, config: LaunchConfig) -> None:
        """Allow a kernel more than 48 KiB of shared memory, and more than 8 blocks a cluster."""
        attribute = self._binding.CUfunction_attribute
        wanted = config.shared_bytes
        if wanted > loaded.allowed:
            self._set(loaded, attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, wanted)
            loaded.allowed = wanted
        x, y, z = config.cluster or (1, 1, 1)
        if x * y * z > 8:
            self._set(loaded, attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)

    def _set(self, loaded: Loaded, attribute: Any, value: int) -> None:
        function = loaded.keep[-1]
        with self.on_device(loaded.device):
            self._driver.cuFuncSetAttribute(function, attribute, value)

    def encode_tiled(self, pointer: int, tile: tensor_maps.Tiled, device: int) -> bytes:
        """The 128 bytes of a tensor map; the driver encodes at multiples of 64 bytes only."""
        rank = len(tile.extents)
        buffer = (ctypes.c_char * (tensor_maps.MAP_BYTES + tensor_maps.MAP_ALIGN))()
        address = -(-ctypes.addressof(buffer) // tensor_maps.MAP_ALIGN) * tensor_maps.MAP_ALIGN
        arguments = (
            address, tensor_maps.DATA_TYPES[tile.dtype.name], rank, pointer,
            (ctypes.c_uint64 * rank)(*tile.extents), (ctypes.c_uint64 * rank)(*tile.strides),
            (ctypes.c_uint32 * rank)(*tile.box), (ctypes.c_uint32 * rank)(*(1,) * rank),
            _NO_INTERLEAVE, tensor_maps.TENSOR_MAP_SWIZZLES[tile.swizzle],
            tensor_maps.L2_PROMOTION, _FILL_ZEROS,
        )  # fmt: skip
        code = self._encode(*arguments)
        if code == _NO_CONTEXT:
            with self.on_device(device):
                code = self._encode(*arguments)
        if code:
            raise LaunchError(
                f"the driver makes no tensor map of an array at {pointer:#x} with {tile}: "
                f"{self.error_text(code)}"
            )
        return ctypes.string_at(address, tensor_maps.MAP_BYTES)

    @cached_property
    def _encode(self) -> Any:
        """cuTensorMapEncodeTiled by ctypes: maps of the bindings are at multiples of 16 bytes."""
        number, pointer = ctypes.c_uint32, ctypes.c_void_p
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_int, pointer, number, number, pointer, *[pointer] * 4, *[number] * 4
        )
        try:
            return prototype(("cuTensorMapEncodeTiled", self._driver.lib))
        except AttributeError:
            raise LaunchError("the driver makes no tensor maps; CUDA 12.0 is needed") from None

    def error_text(self, code: int) -> str:
        result = self._binding.CUresult(code)
        _, text = self._binding.cuGetErrorString(result)
        return f"{result.name} ({code}), {text.decode() if text else 'no explanation'}"

    @contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        if device == CURRENT_DEVICE:
            yield
            return
        gpu = self._cuda.gpus[device]
        if gpu.primary_context is None:
            # numba-cuda 0.30.4 makes it current and pops it again. But cuda.core has replaced the
            # context that was current, which so is lost: in a thread of its own, there is none.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(gpu.get_primary_context).result()
        with gpu:
            yield

    def attach(self, device: int) -> bool:
        with self._driver.get_active_context() as active:
            if active:
                return False
        self._cuda.current_context(None if device == CURRENT_DEVICE else device)
        return True

    def synchronize(self, stream: int) -> None:
        self._driver.cuStreamSynchronize(stream)

    def finish(self, stream: int) -> int:
        """Wait for the stream, unless a graph captures it; returns the CUresult of its work."""
        return 0 if self.is_capturing(stream) else int(self._wait(stream))

    def event(self) -> Any:
        """A new event that keeps the time."""
        return self._cuda.event(timing=True)

    def record(self, event: Any, stream: int) -> None:
        """The event becomes the moment at which the stream's work so far has ended."""
        self._driver.cuEventRecord(int(event.handle), stream)

    def wait(self, event: Any, stream: int) -> None:
        """Later work of the stream waits for the event."""
        self._driver.cuStreamWaitEvent(stream, int(event.handle), 0)

    def seconds_between(self, start: Any, end: Any) -> float:
        """Seconds between two events; waits for the second."""
        end.synchronize()
        return float(self._cuda.event_elapsed_time(start, end)) / 1e3

    def is_capturing(self, stream: int) -> bool:
        """Whether a CUDA graph captures the launches on the stream."""
        self._cuda.current_context()
        try:
            return int(self._driver.cuStreamIsCapturing(stream)) != 0
        except Exception as error:  # the default stream, while another one is captured
            if int(getattr(error, "code", 0)) == _IMPLICIT_CAPTURE:
                return True
            raise

    def l2_bytes(self) -> int:
        """Size of the current GPU's L2 cache."""
        attribute = self._binding.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        device = self._cuda.current_context().device.id
        return int(self._driver.cuDeviceGetAttribute(attribute, device))

    def device_name(self) -> str:
        """Name of the current GPU, such as "NVIDIA H200"."""
        name = self._cuda.get_current_device().name
        return name.decode() if isinstance(name, bytes) else str(name)

    def version(self) -> int:
        """The newest CUDA version of the driver, as 13010 for 13.1."""
        return int(self._driver.cuDriverGetVersion())

    def memory(self, stream: int) -> NumbaMemory:
        return NumbaMemory(self._cuda, self._driver, stream)


class NumbaMemory:
    """Numba's device memory, used in stream order (implements `host_staging.Memory`)."""

    def __init__(self, cuda: Any, driver: Any, stream: int) -> None:
        self._cuda, self._driver, self._stream = cuda, driver, stream

    def allocate(self, size: int) -> tuple[int, Any]:
        owner = self._cuda.current_context().memalloc(size)
        return int(owner.device_pointer), owner

    def upload(self, address: int, data: Bytes) -> None:
        self._driver.cuMemcpyHtoDAsync(address, data.ctypes.data, data.size, self._stream)

    def download(self, address: int, data: Bytes) -> None:
        self._driver.cuMemcpyDtoHAsync(data.ctypes.data, address, data.size, self._stream)

    def copy(self, target: int, source: int, size: int) -> None:
        self._driver.cuMemcpyDtoDAsync(target, source, size, self._stream)

    def fill(self, address: int, byte: int, size: int) -> None:
        self._driver.cuMemsetD8Async(address, byte, size, self._stream)

    def synchronize(self) -> None:
        self._driver.cuStreamSynchronize(self._stream)
