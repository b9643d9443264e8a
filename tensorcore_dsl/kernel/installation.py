"""`tensorcore-dsl info`: versions, GPUs, assemblers, caches, variables, and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

from tensorcore_dsl.codegen import assemble, nvdisasm, ptxas
from tensorcore_dsl.codegen.programs import installed
from tensorcore_dsl.environment import cache_contents
from tensorcore_dsl.environment.cache_directory import cache_directory
from tensorcore_dsl.environment.distributions import versions_of
from tensorcore_dsl.errors import TensorCoreError, nearest
from tensorcore_dsl.runtime import driver, targets

PREFIX = "TENSORCORE_DSL_"
VARIABLES = tuple(
    PREFIX + name
    for name in (
        "ARCH", "CACHE", "CACHE_LIMIT", "CHECKS", "DUMP", "LIMIT", "LINEINFO", "NOTICE", "PROCESSES", "PTXAS",
        "TARGET", "TRACEBACK",
    )
)  # fmt: skip
_PACKAGES = (
    "numpy", "ml_dtypes", "llvmlite", "rich", "cuda-bindings", "cuda-core", "nvidia-nvjitlink",
    "nvidia-nvjitlink-cu12", "nvidia-cuda-nvcc", "nvidia-cuda-nvdisasm", "numba", "numba-cuda", "torch",
    "jax", "cupy-cuda12x", "cupy-cuda13x", "triton", "matplotlib",
)  # fmt: skip
# Module, what needs it, and how it is installed.
_OPTIONAL = (
    ("numba.cuda", "tensorcore_dsl.numba", "pip install 'tensorcore-dsl[cuda]'"),
    ("torch", "tensorcore_dsl.torch", "pip install 'tensorcore-dsl[torch]'"),
    ("matplotlib", "drawings", "pip install 'tensorcore-dsl[plot]'"),
)


def report() -> Iterator[tuple[str, list[str]]]:
    """Titles, each with its lines."""
    versions = versions_of(("tensorcore-dsl", *_PACKAGES))
    yield "versions", [f"Python {platform.python_version()} on {platform.platform()}", *versions]
    yield "GPUs", list(_gpus())
    yield "kernels run", [_target()]
    yield "assemblers", list(_assemblers())
    yield "cache", list(_cache())
    yield "variables", list(_variables()) or ["none is set"]
    yield "missing", list(_missing()) or ["nothing"]


def _gpus() -> Iterator[str]:
    try:
        gpu = driver.cuda_driver()
    except TensorCoreError as error:
        yield str(error)
        return
    major, minor = divmod(gpu.version() // 10, 100)
    yield f"driver for CUDA {major}.{minor}"
    for device in range(gpu.device_count()):
        with gpu.on_device(device):
            major, minor = gpu.capability()
            yield f"{device}: {gpu.device_name()}, compute capability {major}.{minor}"


def _target() -> str:
    try:
        return f"on {targets.current_target()}, as {targets.target_arch()}"
    except TensorCoreError as error:
        return f"nowhere: {error}"


def _assemblers() -> Iterator[str]:
    try:
        yield assemble.toolchain()
    except TensorCoreError as error:
        yield str(error).partition("\n")[0]
    yield from (f"ptxas: {path}" for path in ptxas.candidates())
    yield from (f"nvdisasm: {path}" for path in installed("nvdisasm") if path.is_file())


def _cache() -> Iterator[str]:
    root = cache_directory()
    if root is None:
        yield "off"
        return
    size = sum(file.size for file in cache_contents.files(root))
    yield f"{root}, {size / 2**20:.1f} MiB"


def _variables() -> Iterator[str]:
    for name in sorted(name for name in os.environ if name.startswith(PREFIX)):
        meant = "" if name in VARIABLES else "  (unknown"
        if meant:
            close = nearest(name, VARIABLES)
            meant += f"; did you mean {close}?)" if close else ")"
        yield f"{name}={os.environ[name]}{meant}"


def _missing() -> Iterator[str]:
    if not driver.cuda_available():
        yield "a GPU: kernels run on the CPU, with the same bits"
    try:
        import_module("cuda.bindings.nvjitlink").version()
    except Exception:  # no bindings, or no library for them
        yield f"nvJitLink, for machine code: {assemble.INSTALL_HINT}"
    if not ptxas.candidates():
        yield "ptxas, for kernels with setmaxnreg: pip install 'tensorcore-dsl[ptxas]'"
    if not any(path.is_file() for path in installed("nvdisasm")):
        yield f"nvdisasm, for SASS: {nvdisasm.INSTALL_HINT}"
    for module, purpose, how in _OPTIONAL:
        if not _there(module):
            yield f"{module.partition('.')[0]}, for {purpose}: {how}"


def _there(module: str) -> bool:
    try:
        return module in sys.modules or find_spec(module) is not None
    except ImportError:
        return False
