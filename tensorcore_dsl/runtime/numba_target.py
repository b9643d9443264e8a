"""From PTX text to a loaded kernel: the border to Numba, and the only file that knows it.

`assemble` takes nvJitLink, by Numba's linker, or `ptxas` for what needs a whole program. It needs
no GPU and no driver, `load` does. `numba.cuda` is imported when first needed; an assembled kernel
that the cache holds does not need it.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numba

from tensorcore_dsl import arch as archs
from tensorcore_dsl.codegen import cubin, ptxas
from tensorcore_dsl.codegen.cubin import Cubin, quote
from tensorcore_dsl.errors import AssemblyError, LaunchError
from tensorcore_dsl.runtime.array_interop import CURRENT_DEVICE
from tensorcore_dsl.runtime.host_staging import Bytes
from tensorcore_dsl.runtime.launch import STATIC_SHARED_LIMIT, Loaded
from tensorcore_dsl.runtime.launch_config import LaunchConfig
from tensorcore_dsl.runtime.tensor_maps import (
    DATA_TYPES,
    L2_PROMOTION,
    MAP_ALIGN,
    MAP_BYTES,
    TENSOR_MAP_SWIZZLES,
    Tiled,
)

INSTALL_HINT = "pip install 'tensorcore-dsl[cuda]' brings the assembler (no GPU is needed for it)"
_VERBOSE = "-v"  # ptxas prints registers, spills and stack
_NO_INTERLEAVE, _FILL_ZEROS = 0, 0  # CUtensorMapInterleave, CUtensorMapFloatOOBfill
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_FORCE = "-override-directive-values"  # else .maxntid and .maxnreg beat the caller's limit


def assemble(
    ptx: str, arch: str | archs.Arch, name: str, max_registers: int | None = None
) -> Cubin:
    """Machine code of the kernel `name` in `ptx` for `arch`, from the cache if it is there.

    AssemblyError quotes the PTX lines that ptxas refuses.
    """
    target = archs.arch(arch)
    options = [_VERBOSE] if max_registers is None else [_VERBOSE, _FORCE]
    program = whole_program(ptx)
    made_by = ptxas.identity(program) if program else toolchain()
    key = cubin.cache_key([ptx, target.name, options, max_registers, made_by])
    found = cubin.cached(key)
    if found is None:
        if program:
            found = _run(program, ptx, target, max_registers, options)
        else:
            found = _link(ptx, target, name, max_registers, options)
        cubin.keep(key, *found)
    return Cubin(name, target.name, ptx, *found)


def whole_program(ptx: str) -> Path | None:
    """The ptxas that assembles this text; None: nvJitLink does."""
    return ptxas.find(ptxas.version_of(ptx)) if ptxas.wants_whole_program(ptx) else None


def assembler() -> str:
    """Names and versions of everything that `assemble` may use on this machine."""
    return " ".join([toolchain(), *map(ptxas.identity, ptxas.candidates())])


def _run(
    program: Path, ptx: str, target: archs.Arch, max_registers: int | None, options: list[str]
) -> tuple[bytes, str]:
    """Code and log of ptxas."""
    limit = [] if max_registers is None else [f"-maxrregcount={max_registers}"]
    try:
        code, log = ptxas.assemble(program, ptx, target.name, [*options, *limit])
    except (ptxas.Refusal, OSError) as error:
        raise AssemblyError(_explain(error, ptx, target)) from error
    return code, _tidy(log)


def _link(
    ptx: str, target: archs.Arch, name: str, max_registers: int | None, options: list[str]
) -> tuple[bytes, str]:
    """Code and log of Numba's linker."""
    linker_class = _linker_class()
    try:
        linker = linker_class(max_registers=max_registers, cc=target.cc, lto=False)
        linker.ptxas_options = options
        linker.add_ptx(ptx.encode(), name)
        return bytes(linker.complete().code), _tidy(linker.info_log)
    except Exception as error:  # nvJitLink, its loader and cuda.core each have their own
        raise AssemblyError(_explain(error, ptx, target)) from error


def _tidy(log: str) -> str:
    """The log without what differs from run to run, so that equal texts give equal cubins."""
    lines = log.replace("\0", "").splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip() and "Compile time" not in line)


@lru_cache
def _linker_class() -> Any:
    """Numba's linker, told to let ptxas speak."""
    if _simulated():
        raise AssemblyError("NUMBA_ENABLE_CUDASIM is set: Numba has no linker")
    try:
        linker = import_module("numba.cuda.cudadrv.driver")._Linker
    except ImportError as error:
        raise AssemblyError(f"numba-cuda cannot be imported ({error}); {INSTALL_HINT}") from error

    class SpeakingLinker(linker):  # type: ignore[misc, valid-type]
        ptxas_options: list[str]

        def _get_linker_options(self, ptx: bool) -> Any:
            options = super()._get_linker_options(ptx)
            options.ptxas_options = self.ptxas_options
            return options

    return SpeakingLinker


def _explain(error: Exception, ptx: str, target: archs.Arch) -> str:
    """ptxas' complaints, each with its PTX line; else what the linker said."""
    text = str(error)
    found = re.findall(r"(?:line (\d+); )?(?:error|fatal) +: (.*)", text)
    complaints = [
        quote(f"line {line}: {message}" if line else message, ptx)
        for line, message in found
        if "aborted due to errors" not in message
    ]
    if complaints:
        return "\n".join([f"ptxas refuses the PTX for {target}:", *complaints])
    return f"cannot assemble for {target}: {type(error).__name__}: {text[:2000]}"


@lru_cache
def toolchain() -> str:
    """Names and versions of what turns PTX into machine code, without importing it."""
    names = ("nvidia-nvjitlink", "nvidia-nvjitlink-cu12", "cuda-bindings", "cuda-core")
    installed = _installed()
    found = {name: installed[name] for name in names if name in installed}
    if not any("nvjitlink" in name for name in found):
        found["libnvJitLink"] = _library_version()
    return " ".join(f"{name}={version}" for name, version in found.items())


def _installed() -> dict[str, str]:
    """Versions of installed packages, by what their folders are called: quicker than metadata."""
    found: dict[str, str] = {}
    for entry in reversed(sys.path):  # the first wins, as for imports
        with suppress(OSError):
            for name in os.listdir(entry or "."):
                package, _, version = name.removesuffix(".dist-info").partition("-")
                if name.endswith(".dist-info"):
                    found[package.replace("_", "-").lower()] = version
    return found


def _library_version() -> str:
    """Of an nvJitLink that no wheel brought: the CUDA toolkit's."""
    try:
        return str(import_module("cuda.bindings.nvjitlink").version())
    except Exception as error:  # no bindings, or no library for them
        raise AssemblyError(f"there is no nvJitLink ({error}); {INSTALL_HINT}") from error


# The driver.


@lru_cache
def cuda_available() -> bool:
    """Whether there is a GPU that Numba can use; False where numba-cuda is missing."""
    if not _driver_library() or _simulated():
        return False
    try:
        driver = import_module("numba.cuda.cudadrv.driver")
    except ImportError:
        return False
    try:
        return bool(driver.driver.is_available and driver.driver.get_device_count())
    except driver.CudaSupportError:
        return False


def _driver_library() -> bool:
    """Whether a CUDA driver can be loaded: spares most machines the import of numba.cuda."""
    if "NUMBA_CUDA_DRIVER" in os.environ:
        return True
    for name in ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


def _simulated() -> bool:
    """Numba runs kernels as plain Python, and has no driver or linker."""
    return bool(getattr(numba.config, "ENABLE_CUDASIM", False))


def device_number() -> int:
    """Compute capability of the current GPU, as 90 for 9.0."""
    major, minor = gpu().capability()
    return 10 * major + minor


@lru_cache
def gpu() -> NumbaTarget:
    """The one target of this process; LaunchError where there is no GPU."""
    if not cuda_available():
        raise LaunchError(f"there is no GPU that Numba can use ({_why_not()})")
    return NumbaTarget()


def _why_not() -> str:
    if _simulated():
        return "NUMBA_ENABLE_CUDASIM is set"
    try:
        return str(import_module("numba.cuda").cuda_error() or "no device").strip()
    except ImportError as error:
        return f"{error}; {INSTALL_HINT}"


class NumbaTarget:
    """Numba's driver and contexts, as the launch path needs them (`launch.Target`)."""

    def __init__(self) -> None:
        driver = import_module("numba.cuda.cudadrv.driver")
        self._cuda: Any = import_module("numba.cuda")
        self._driver: Any = driver.driver
        self._binding: Any = driver.binding
        self._loaded: dict[tuple[int, int], Loaded] = {}
        pointer = ctypes.c_void_p
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, pointer)
        self._driver.ensure_initialized()
        self.launch = prototype(("cuLaunchKernelEx", self._driver.lib))

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
        """Let the kernel have more than 48 KiB of shared memory and over 8 blocks a cluster."""
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

    def encode_tiled(self, pointer: int, tile: Tiled, device: int) -> bytes:
        """The 128 bytes of a tensor map; the driver wants them made at a multiple of 64."""
        rank = len(tile.extents)
        buffer = (ctypes.c_char * (MAP_BYTES + MAP_ALIGN))()
        address = -(-ctypes.addressof(buffer) // MAP_ALIGN) * MAP_ALIGN
        given = (
            address, DATA_TYPES[tile.dtype.name], rank, pointer,
            (ctypes.c_uint64 * rank)(*tile.extents), (ctypes.c_uint64 * rank)(*tile.strides),
            (ctypes.c_uint32 * rank)(*tile.box), (ctypes.c_uint32 * rank)(*(1,) * rank),
            _NO_INTERLEAVE, TENSOR_MAP_SWIZZLES[tile.swizzle], L2_PROMOTION, _FILL_ZEROS,
        )  # fmt: skip
        code = self._encode(*given)
        if code == _NO_CONTEXT:
            self.attach(device)
            code = self._encode(*given)
        if code:
            raise LaunchError(
                f"the driver makes no tensor map of an array at {pointer:#x} with {tile}: "
                f"{self.error_text(code)}"
            )
        return ctypes.string_at(address, MAP_BYTES)

    @cached_property
    def _encode(self) -> Any:
        """cuTensorMapEncodeTiled, called past the bindings: their maps lie at multiples of 16."""
        number, pointer, wide = ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_int, pointer, number, number, pointer, *[wide] * 4, *[number] * 4
        )
        try:
            return prototype(("cuTensorMapEncodeTiled", self._driver.lib))
        except AttributeError:
            raise LaunchError("the driver makes no tensor maps; CUDA 12.0 is needed") from None

    def error_text(self, code: int) -> str:
        result = self._binding.CUresult(code)
        _, text = self._binding.cuGetErrorString(result)
        return f"{result.name} ({code}), {text.decode() if text else 'no explanation'}"

    def on_device(self, device: int) -> AbstractContextManager[Any]:
        here: AbstractContextManager[Any] = nullcontext()
        return here if device == CURRENT_DEVICE else self._cuda.gpus[device]

    def attach(self, device: int) -> None:
        self._cuda.current_context(None if device == CURRENT_DEVICE else device)

    def synchronize(self, stream: int) -> None:
        self._driver.cuStreamSynchronize(stream)

    def memory(self, stream: int) -> NumbaMemory:
        return NumbaMemory(self._cuda, self._driver, stream)


class NumbaMemory:
    """Device memory from Numba, used in the order of one stream (`transfer.Memory`)."""

    def __init__(self, cuda: Any, driver: Any, stream: int) -> None:
        self._cuda, self._driver, self._stream = cuda, driver, stream

    def allocate(self, size: int) -> tuple[int, Any]:
        owner = self._cuda.current_context().memalloc(size)
        return int(owner.device_pointer), owner

    def upload(self, address: int, data: Bytes) -> None:
        self._driver.cuMemcpyHtoDAsync(address, data.ctypes.data, data.size, self._stream)

    def download(self, address: int, data: Bytes) -> None:
        self._driver.cuMemcpyDtoHAsync(data.ctypes.data, address, data.size, self._stream)

    def synchronize(self) -> None:
        self._driver.cuStreamSynchronize(self._stream)
