"""Scripts of Numba without a GPU: a driver for numba-cuda that launches kernels in emulation.

Numba compiles kernels, binds arguments and keeps device arrays itself. It asks the driver for memory, copies,
streams, events and modules, and cuda.core for the launch.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import count
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

import numpy as np

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.arch import arch as arch_of
from tensorcore_dsl.dtypes import named
from tensorcore_dsl.environment.numba_cuda import numba_cuda
from tensorcore_dsl.errors import ArgumentError, LaunchError, public
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.interpreter.core.residency import limits, multiprocessors
from tensorcore_dsl.interpreter.memory.global_memory import GlobalPointer, allocation_of, base_of
from tensorcore_dsl.interpreter.scheduling.orders import Order
from tensorcore_dsl.ptx.cuda_kernels import ptx_of
from tensorcore_dsl.ptx.module import Module, PtxKernel, linked

MEMORY = 1 << 36  # bytes of the device, as programs are told
NOTHING = (  # A launch and a copy have ended when they return.
    "cuCtxSynchronize", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset",
    "cuEventDestroy", "cuEventQuery", "cuEventSynchronize", "cuKernelSetAttribute", "cuKernelSetCacheConfig",
    "cuLibraryUnload", "cuProfilerStart", "cuProfilerStop", "cuStreamDestroy", "cuStreamSynchronize",
    "cuStreamWaitEvent",
)  # fmt: skip
ATTRIBUTES = {
    "ASYNC_ENGINE_COUNT": 1, "CAN_MAP_HOST_MEMORY": 1, "MAX_BLOCK_DIM_X": 1024, "MAX_BLOCK_DIM_Y": 1024,
    "MAX_BLOCK_DIM_Z": 64, "MAX_GRID_DIM_X": (1 << 31) - 1, "MAX_GRID_DIM_Y": 65535, "MAX_GRID_DIM_Z": 65535,
    "MAX_SHARED_MEMORY_PER_BLOCK": 48 << 10, "MAX_THREADS_PER_BLOCK": 1024, "UNIFIED_ADDRESSING": 1,
    "WARP_SIZE": 32,
}  # fmt: skip
DESTRUCTORS = ("cuMemFree", "cuMemFreeHost", "cuMemHostUnregister", "cuEventDestroy", "cuStreamDestroy")


@public
@contextmanager
def numba_on_cpu(arch: str = "sm_90a", *, checks: bool = True) -> Iterator[list[Report]]:
    """Run the launches of Numba's `@cuda.jit` kernels inside on the CPU, with all checks.

    Device arrays, copies, pinned and mapped memory, streams and events work; a launch has ended when it
    returns. `tensorcore-dsl check script.py` runs a whole script so.

    Parameters
    ----------
    arch : str
        The architecture that kernels are compiled for, and whose bits they give.
    checks : bool
        All checks, those of races included; else those of bounds alone.

    Yields
    ------
    list of Report
        One for each launch so far.

    Raises
    ------
    UnsupportedSyntax
        At a launch: what `load` does not read.
    ArgumentError
        At a call of CUDA's driver that emulation lacks.

    Examples
    --------
    >>> with tc.ptx.numba_on_cpu() as reports:                                     # doctest: +SKIP
    ...     device = cuda.to_device(x)
    ...     double[4, 32](device)
    """
    driver = Driver(arch, checks)
    with driver.installed():
        yield driver.reports


def _refuse(driver: Any, name: str) -> Any:
    raise ArgumentError(f"{name} of CUDA's driver is not emulated")


def _nothing(*arguments: Any) -> None:
    pass


def _with_lines(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Numba's compiler, with the lines of Python in its PTX."""

    def compile_cuda(*arguments: Any, **options: Any) -> Any:
        try:
            return compiled(*arguments, **options | {"lineinfo": not options.get("debug")})
        except ZeroDivisionError:  # numba-cuda 0.30.4 divides by the length of an empty tuple
            return compiled(*arguments, **options)

    return compile_cuda


def _without_lines(original: Callable[..., Any]) -> Callable[..., Any]:
    """Numba's compiler for links with other code. nvJitLink refuses line tables of both."""

    def get_ltoir(library: Any, cc: Any = None) -> Any:
        texts = [text.replace('!"Debug Info Version"', '!"Lines"') for text in library.llvm_strs]
        with mock.patch.object(library, "_llvm_strs", texts):
            return original(library, cc)

    return get_ltoir


def _view(arrays: Any) -> Callable[..., tuple[Any, bool]]:
    """How Numba sees an array that is an argument of a launch: copied to the device if it is the host's."""
    original = arrays._to_strided_memory_view

    def view(x: Any, stream: Any = 0, copy: bool = True, user_explicit: bool = False) -> tuple[Any, bool]:
        if not isinstance(x, (np.ndarray, np.generic)) and not hasattr(x, "__cuda_array_interface__"):
            return original(x, stream=stream, copy=copy, user_explicit=user_explicit)  # type: ignore[no-any-return]
        device, copied = arrays.auto_device(x, stream=stream, copy=copy, user_explicit=user_explicit)
        shim = device._strided_memory_view_shim
        device.ptr, device._layout = shim.ptr, shim._layout
        return device, copied

    return view


def _without_destructors(driver: dict[str, Any]) -> None:
    """Let arrays outlive the emulated driver where there is no GPU."""
    if driver.get("initialization_error"):
        driver.update(dict.fromkeys(DESTRUCTORS, _nothing))


def _whole(x: Any) -> int:
    """A handle or an address as a number."""
    return int(getattr(x, "value", x) or 0)


class Driver:
    """The functions of CUDA's driver and of cuda.core that numba-cuda calls, for one emulated device.

    arrays: the device's memory; allocation i is at the address `base_of(i)`. host: page-locked memory of
    the host, by address. device_addresses: of page-locked memory and of variables of modules.
    """

    def __init__(self, arch: str, checks: bool) -> None:
        numba_cuda()
        self.arch, self.checks = arch_of(arch), checks
        self.bridge = numba_cuda("numba.cuda.cudadrv.driver")
        self.binding = self.bridge.binding
        self.order: Order | None = None
        self.reports: list[Report] = []
        self.arrays: list[np.ndarray] = []
        self.host: dict[int, np.ndarray] = {}
        self.device_addresses: dict[Any, int] = {}
        self.handles, self.recorded = count(1 << 8), dict[int, float]()
        self.contexts, self.lock = threading.local(), threading.RLock()
        self.caches = WeakKeyDictionary[Any, dict[str, Any]]()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take the place of numba-cuda's own driver."""
        bridge, devices = self.bridge, numba_cuda("numba.cuda.cudadrv.devices")
        arrays = numba_cuda("numba.cuda.cudadrv.devicearray")
        dispatcher = numba_cuda("numba.cuda.dispatcher")
        library = numba_cuda("numba.cuda.codegen").CUDACodeLibrary
        memory = numba_cuda("numba.cuda.memory_management.nrt")
        real = vars(bridge.driver)
        bridge._logger = bridge.make_logger()  # which Numba makes only where it finds a driver
        with ExitStack() as stack:
            stack.callback(_without_destructors, real)
            stack.enter_context(mock.patch.dict(real, self.functions()))
            for owner, name, value in (
                (bridge, "ExperimentalDevice", self.device),
                (type(bridge.driver), "_cuda_python_wrap_fn", _refuse),
                (arrays, "_to_strided_memory_view", _view(arrays)),
                (arrays, "_make_strided_memory_view", self.host_view),
                (library, "get_cufunc", self.loaded(library.get_cufunc)),
                (library, "get_ltoir", _without_lines(library.get_ltoir)),
                (dispatcher, "launch", self.launch),
                (dispatcher._Kernel, "launch", self.named(dispatcher._Kernel.launch)),
                (dispatcher, "LaunchConfig", SimpleNamespace),  # cuda.core's asks for a device
                (memory, "launch", self.launch),
                (memory, "_Linker", _linker(bridge._Linker, self.arch)),
                (dispatcher, "compile_cuda", _with_lines(dispatcher.compile_cuda)),
            ):
                stack.enter_context(mock.patch.object(owner, name, value))
            list_of_devices = devices._DeviceList.lst.fget
            stack.callback(list_of_devices.cache_clear)
            list_of_devices.cache_clear()
            yield

    def functions(self) -> dict[str, Any]:
        """Attributes of Numba's driver: its state, and functions of CUDA."""
        state: dict[str, Any] = {
            "is_initialized": True,
            "initialization_error": None,
            "pid": None,
            "devices": {},
        }
        functions = {name: getattr(self, name) for name in dir(self) if name.startswith("cu")}
        moving = [name for name in functions if name.startswith(("cuMemcpy", "cuMemset"))]
        later = {f"{name}Async": functions[name] for name in moving}
        return state | dict.fromkeys(NOTHING, _nothing) | functions | later

    def device(self, number: int) -> Any:
        """The device of cuda.core."""
        return SimpleNamespace(
            device_id=number,
            compute_capability=divmod(self.arch.number, 10),
            name=f"emulated {self.arch.name}",
            uuid="emulated",
            context=SimpleNamespace(handle=self.binding.CUcontext(1)),
            set_current=_nothing,
        )

    def host_view(self, x: Any, *, stream_ptr: Any) -> Any:
        """Memory of the host as cuda.core has it; a copy of a read-only array, which no kernel changes."""
        if isinstance(x, np.ndarray) and not x.flags.writeable:
            x = x.copy("K")
        return SimpleNamespace(ptr=self.bridge.host_pointer(x), array=x)

    # -- device and contexts -----------------------------------------------------------------------

    def cuDeviceGetCount(self) -> int:
        return 1

    def cuDriverGetVersion(self) -> int:
        return 13000

    def cuDeviceGetAttribute(self, code: Any, number: int) -> int:
        name = code.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        if name not in ATTRIBUTES and name != "MULTIPROCESSOR_COUNT":
            raise ArgumentError(f"the attribute {name} of a device is not emulated")
        return ATTRIBUTES.get(name) or multiprocessors(self.arch)

    def cuDeviceCanAccessPeer(self, *devices: Any) -> int:
        return 0

    def cuCtxGetDevice(self) -> int:
        return 0

    def cuCtxPushCurrent(self, context: Any) -> None:
        vars(self.contexts).setdefault("stack", []).append(context)

    def cuCtxPopCurrent(self) -> Any:
        return self.contexts.stack.pop()

    def cuCtxGetCurrent(self) -> Any:
        stack = getattr(self.contexts, "stack", None)
        return stack[-1] if stack else self.binding.CUcontext(0)

    # -- memory ------------------------------------------------------------------------------------

    def allocate(self, array: np.ndarray) -> int:
        """Put an array into memory; returns its address."""
        with self.lock:
            free = (i for i, old in enumerate(self.arrays) if not old.size)
            index = next(free, len(self.arrays))
            self.arrays[index:] = [array, *self.arrays[index + 1 :]]
        return base_of(index)

    def free(self, address: int) -> None:
        self.arrays[allocation_of(address)] = np.zeros(0, np.uint8)

    def on_device(self, address: Any) -> int:
        """The address on the device of memory that the host shares with it, and other numbers as they are."""
        number = _whole(address)
        for host, start in self.device_addresses.items():
            if isinstance(host, int) and host <= number < host + self.host[host].size:
                return start + number - host
        return number

    def bytes_at(self, address: Any, size: int) -> np.ndarray:
        """Memory from an address on."""
        start = self.on_device(address)
        index = allocation_of(start)
        array = self.arrays[index] if 0 <= index < len(self.arrays) else np.zeros(0, np.uint8)
        offset = start - base_of(index)
        if size and not 0 <= offset <= array.size - size:
            raise ArgumentError(f"{size} bytes at {_whole(address):#x} are in no allocation of the device")
        return array[offset : offset + size]

    def cuMemAlloc(self, size: int) -> Any:
        return self.binding.CUdeviceptr(self.allocate(np.zeros(max(size, 1), np.uint8)))

    def cuMemAllocManaged(self, size: int, flags: int) -> Any:
        host = self.cuMemHostAlloc(size, flags)
        self.cuMemHostGetDevicePointer(host, flags)
        return self.binding.CUdeviceptr(host)

    def cuMemFree(self, address: Any) -> None:
        if _whole(address) in self.host:
            self.cuMemFreeHost(_whole(address))
        else:
            self.free(_whole(address))

    def cuMemGetInfo(self) -> tuple[int, int]:
        return MEMORY - sum(array.size for array in self.arrays), MEMORY

    def cuMemGetAddressRange(self, address: Any) -> tuple[int, int]:
        index = allocation_of(_whole(address))
        return base_of(index), self.arrays[index].size

    def cuPointerGetAttribute(self, attribute: Any, address: Any) -> Any:
        return address

    def cuMemHostAlloc(self, size: int, flags: int) -> int:
        array = np.zeros(max(size, 1), np.uint8)
        self.host[array.ctypes.data] = array
        return array.ctypes.data

    def cuMemHostRegister(self, address: int, size: int, flags: int) -> None:
        self.host[_whole(address)] = _memory(address, size)

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> Any:
        host = _whole(address)
        self.device_addresses[host] = self.allocate(self.host[host])
        return self.binding.CUdeviceptr(self.device_addresses[host])

    def cuMemFreeHost(self, address: int) -> None:
        host = _whole(address)
        del self.host[host]
        if host in self.device_addresses:
            self.free(self.device_addresses.pop(host))

    def cuMemHostUnregister(self, address: int) -> None:
        self.cuMemFreeHost(address)

    def cuMemcpyHtoD(self, to: Any, source: Any, size: int, stream: Any = 0) -> None:
        self.bytes_at(to, size)[:] = _memory(source, size)

    def cuMemcpyDtoH(self, to: Any, source: Any, size: int, stream: Any = 0) -> None:
        _memory(to, size)[:] = self.bytes_at(source, size)

    def cuMemcpyDtoD(self, to: Any, source: Any, size: int, stream: Any = 0) -> None:
        self.bytes_at(to, size)[:] = self.bytes_at(source, size)

    def cuMemsetD8(self, to: Any, value: int, size: int, stream: Any = 0) -> None:
        self.bytes_at(to, size)[:] = value & 0xFF

    # -- streams and events ------------------------------------------------------------------------

    def cuStreamCreate(self, flags: int) -> Any:
        return self.binding.CUstream(next(self.handles))

    def cuEventCreate(self, flags: int) -> Any:
        return self.binding.CUevent(next(self.handles))

    def cuEventRecord(self, event: Any, stream: Any) -> None:
        self.recorded[_whole(event)] = time.perf_counter()

    def cuEventElapsedTime(self, first: Any, last: Any) -> float:
        return 1e3 * (self.recorded[_whole(last)] - self.recorded[_whole(first)])

    # -- modules and launches ----------------------------------------------------------------------

    def loaded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """How Numba loads a kernel: linked here, and not kept for a GPU."""

        def get_cufunc(library: Any) -> Any:
            with self.lock:
                caches = self.caches.setdefault(library, {"_cufunc_cache": {}, "_cubin_cache": {}})
                with (
                    mock.patch.multiple(library, **caches),
                    mock.patch.object(self.bridge, "_Linker", _linker(self.bridge._Linker, self.arch)),
                ):
                    return original(library)

        return get_cufunc

    def cuLibraryGetGlobal(self, code: _Code, name: bytes) -> tuple[Any, int]:
        memory = code.module.memory(name.decode())
        if (code, name) not in self.device_addresses:
            self.device_addresses[code, name] = self.allocate(memory)
        return self.binding.CUdeviceptr(self.device_addresses[code, name]), memory.size

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, kernel: PtxKernel, threads: int, shared: int
    ) -> int:
        return min(limits(self.arch, threads, kernel.ir.shared_bytes + shared).values())

    def named(self, original: Callable[..., None]) -> Callable[..., None]:
        """Numba's launch of a kernel; keeps its name, and the names and types of its arrays, for messages."""

        def launch(kernel: Any, *arguments: Any, **options: Any) -> None:
            pairs = zip(inspect.signature(kernel.py_func).parameters, kernel.argument_types, strict=False)
            arrays = [(name, str(kind.dtype)) for name, kind in pairs if hasattr(kind, "ndim")]
            self.contexts.named = kernel.py_func.__name__, arrays
            original(kernel, *arguments, **options)

        return launch

    def launch(self, stream: Any, config: Any, kernel: Any, *arguments: Any) -> None:
        ptx: PtxKernel = kernel.handle
        values = [self.value(x, p.type) for x, p in zip(arguments, ptx.function.params, strict=True)]
        name, arrays = vars(self.contexts).pop("named", (ptx.name, ()))
        launch = replace(ptx, name=name, checks=self.checks, order=self.order).configured(
            config.grid,
            config.block,
            shared_bytes=config.shmem_size if ptx.ir.dynamic else 0,
            cooperative=config.is_cooperative,
        )
        indices = [index for x in values if isinstance(x, int) and (index := allocation_of(x)) >= 0]
        with self.lock:
            memory = [GlobalPointer(x, f"allocation {i}") for i, x in enumerate(self.arrays)]
            # Empty arrays have no allocation, and arrays of a tuple no name.
            named = zip(indices, arrays, strict=True) if len(indices) == len(arrays) else ()
            for index, (of, kind) in named:
                memory[index] = GlobalPointer(_typed(self.arrays[index], kind), of)
            try:
                self.reports.append(launch(*values, memory=memory))
            except LaunchError as error:
                raise _launch_error()(f"CUDA_ERROR_INVALID_VALUE: {error.message}", error.loc) from None

    def value(self, x: Any, kind: str) -> Any:
        """An argument of a launch as a parameter of some type in PTX."""
        x, dtype = getattr(x, "value", x), named(kind)
        if dtype.kind == "f":
            return float(x)
        return (self.on_device(int(x)) if dtype.bits == 64 else int(x)) % (1 << dtype.bits)


def _typed(memory: np.ndarray, kind: str) -> np.ndarray:
    """An allocation as an array of a type of Numba, or of bytes."""
    try:
        return memory.view(kind)
    except (TypeError, ValueError):  # unknown to NumPy, or no whole number of elements
        return memory


@functools.cache
def _launch_error() -> type[LaunchError]:
    """A LaunchError that is an error of cuda.core, too, for programs that catch those."""
    cuda_error = import_module("cuda.core._utils.cuda_utils").CUDAError
    return type("LaunchError", (LaunchError, cuda_error), {"__module__": LaunchError.__module__})


def _memory(address: Any, size: int) -> np.ndarray:
    """Memory of the host."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(_whole(address)))


class _Code:
    """A module in PTX, as cuda.core has it."""

    def __init__(self, module: Module, arch: Arch) -> None:
        self.module, self.arch, self.handle = module, arch, self

    def get_kernel(self, name: str) -> Any:
        kernel = self.module[name].emulator(self.arch.name)
        constants = sum(v.size for v in self.module._variables.values() if v.space == "const")
        attributes = SimpleNamespace(
            num_regs=0,
            const_size_bytes=constants,
            local_size_bytes=kernel.local_bytes,
            shared_size_bytes=kernel.ir.shared_bytes,
            max_threads_per_block=prod(kernel.function.directives.get(".maxntid", (1024,))),
        )
        return SimpleNamespace(handle=kernel, attributes=attributes)


@functools.cache
def _linker(original: Any, arch: Arch) -> Any:
    """Numba's linker, for PTX alone."""

    class Linker(original):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"lto": False})
            self._info_log, self.linker, self._complete = "", self, True

        def add_cu(self, source: str | bytes, name: str = "<cudapy-cu>") -> None:
            text = source.decode() if isinstance(source, bytes) else source
            folder = Path(numba_cuda().__file__).parent
            include = [folder / "include" / "13", folder / "memory_management"]
            self.add_ptx(ptx_of(text, name, arch.name, include, ["-rdc=true"]).encode(), name)

        def complete(self) -> _Code:
            texts = []
            for code in self._object_codes:
                if code.code_type == "ptx":
                    texts.append(code.code.decode())
                elif "cudadevrt" not in str(code.name):  # `system_library` has its functions
                    raise ArgumentError(f"{code.code_type} is linked; emulation runs PTX and CUDA C++")
            return _Code(linked(texts), arch)

    return Linker
