"""What a launch costs the host: an empty kernel with and without three arrays.

    python -m benchmarks.launch [--rounds N] [--json FILE]

Each case launches a batch, then waits; the time up to the wait counts. Cases take turns, and the
median over all rounds is reported. Without a GPU, a native function that does nothing stands for
the driver, so the figures are the part that Python spends.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import numba
import numpy as np

from tensorcore_dsl import tensor_map
from tensorcore_dsl.arch import Arch
from tensorcore_dsl.codegen import assemble
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.kernel import Array, Kernel, kernel
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.arguments import Description, describe
from tensorcore_dsl.runtime.array_interop import CURRENT_DEVICE
from tensorcore_dsl.runtime.launch import Launcher, Loaded
from tensorcore_dsl.runtime.launch_config import LaunchConfig
from tensorcore_dsl.runtime.targets import target as on_target
from tensorcore_dsl.runtime.tensor_maps import MAP_BYTES, Tiled

BATCH = 200  # launches between two waits: less than the driver queues
SHAPE = (512, 512)

Case = Callable[[], None]


@kernel
def nothing() -> None:
    pass


@kernel
def touch(a: Array, b: Array, c: Array) -> None:
    pass


@kernel
def mapped(a: Array, b: Array, c: Array) -> None:
    for array in (a, b, c):
        tensor_map(array, (64, 64), swizzle=128)


# Measuring


def measure(cases: dict[str, Case], wait: Case, rounds: int) -> dict[str, list[float]]:
    """Microseconds a launch, one number a round; every round starts with another case."""
    for case in cases.values():
        case()
    wait()
    times: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            times[name].append(_batch(cases[name]))
            wait()
    return times


def _batch(case: Case) -> float:
    repeat = range(BATCH)
    begin = time.perf_counter()
    for _ in repeat:
        case()
    return (time.perf_counter() - begin) / BATCH * 1e6


def report(times: dict[str, list[float]]) -> list[str]:
    width = max(map(len, times))
    lines = [f"{'us a launch':{width}}  median     min     p90"]
    for name, found in sorted(times.items(), key=lambda item: statistics.median(item[1])):
        ordered = sorted(found)
        p90 = ordered[len(ordered) * 9 // 10]
        median = statistics.median(found)
        lines.append(f"{name:{width}} {median:7.2f} {ordered[0]:7.2f} {p90:7.2f}")
    return lines


# With a GPU


@contextmanager
def gpu_cases() -> Iterator[tuple[dict[str, Case], Case]]:
    """Our launches beside those of others that are installed."""
    cuda: Any = import_module("numba.cuda")
    arrays = [cuda.device_array(SHAPE, np.float16) for _ in range(3)]
    cases = {**_ours("Numba arrays", arrays), **_numba(arrays), **_driver(arrays)}
    cases |= _ours_without_arrays()
    if find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            tensors = [torch.zeros(SHAPE, dtype=torch.bfloat16, device="cuda") for _ in range(3)]
            cases |= _ours("torch tensors", tensors)
            if driver.compute_capability() == 90:
                cases |= _ours("torch tensors, as tensor maps", tensors, mapped)
                cases |= _gemm(tensors)
            cases |= _triton(tensors)
            cases |= _numba_of_torch(tensors)
    yield cases, cuda.synchronize


def _ours(
    kind: str, arrays: Sequence[Any], run: Kernel = touch, stream: Any = None
) -> dict[str, Case]:
    a, b, c = arrays
    configured = run[1, 32, stream]
    configured(a, b, c)
    prepared = configured.prepare(a, b, c)
    return {
        f"ours, kernel[grid, block](3 {kind})": lambda: run[1, 32, stream](a, b, c),
        f"ours, configured, 3 {kind}": lambda: configured(a, b, c),
        f"ours, prepared, 3 {kind}": lambda: prepared(a, b, c),
    }


def _ours_without_arrays(run: Kernel = nothing) -> dict[str, Case]:
    bare = run[1, 32].prepare()
    return {"ours, prepared, no arguments": lambda: bare()}


def _gemm(tensors: Sequence[Any]) -> dict[str, Case]:
    from tensorcore_dsl import kernels

    a, b, c = tensors
    return {"ours, kernels.gemm(a, b, out=c)": lambda: kernels.gemm(a, b, out=c)}


def _numba(arrays: Sequence[Any]) -> dict[str, Case]:
    cuda: Any = import_module("numba.cuda")
    a, b, c = arrays
    empty = cuda.jit(lambda: None)[1, 32]
    three = cuda.jit(lambda a, b, c: None)[1, 32]
    return {
        "Numba, no arguments": lambda: empty(),
        "Numba, 3 Numba arrays": lambda: three(a, b, c),
    }


def _numba_of_torch(tensors: Sequence[Any]) -> dict[str, Case]:
    """Numba has no bfloat16 in __cuda_array_interface__: float16 tensors."""
    cuda: Any = import_module("numba.cuda")
    a, b, c = (tensor.half() for tensor in tensors)
    three = cuda.jit(lambda a, b, c: None)[1, 32]
    return {"Numba, 3 torch tensors": lambda: three(a, b, c)}


def _driver(arrays: Sequence[Any]) -> dict[str, Case]:
    """cuda.core with pointers alone, and the driver's own share: one call, all prepared."""
    from cuda.core import Device, LaunchConfig, launch

    target = driver.cuda_driver()
    loaded = target.load(touch.specialise(arrays, {}).cubin).keep[2].kernel
    device = Device()
    device.set_current()
    stream, config = device.default_stream, LaunchConfig(grid=1, block=32)
    pointers = [array.device_ctypes_pointer.value for array in arrays]
    sizes = [np.int32(SHAPE[0]), np.int32(SHAPE[1]), np.int64(SHAPE[1])]
    flat = [value for pointer in pointers for value in (pointer, *sizes)]
    plan = touch[1, 32].launcher({}).prepare(*arrays)
    buffer = plan.buffer([describe(array) for array in arrays])
    call, function = target.launch, plan.function
    return {
        "cuda.core, 3 arrays as 12 numbers": lambda: launch(stream, config, loaded, *flat),
        "the driver's call alone, by ctypes": lambda: call(
            buffer.config, function, buffer.parameters, buffer.extra
        ),
    }


def _triton(tensors: Sequence[Any]) -> dict[str, Case]:
    if not find_spec("triton"):
        return {}
    from benchmarks.triton_kernels import touch as theirs

    a, b, c = tensors
    return {"Triton, 3 torch tensors": lambda: theirs[(1,)](a, b, c, *SHAPE)}


# Without a GPU


class NoDriver:
    """A target whose driver is a native function that returns 0."""

    def __init__(self) -> None:
        pointers = [numba.types.voidptr] * 4
        self._nothing = numba.cfunc(numba.types.int32(*pointers))(lambda c, f, p, e: 0)
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
        self.launch = prototype(int(self._nothing.address or 0))

    def load(self, cubin: Cubin, device: int) -> Loaded:
        return Loaded(cubin.name, 1, 0)

    def allow_shared(self, loaded: Loaded, config: LaunchConfig) -> None:
        pass

    def encode_tiled(self, pointer: int, tile: Tiled, device: int) -> bytes:
        return bytes(MAP_BYTES)

    def on_device(self, device: int) -> AbstractContextManager[Any]:
        return nullcontext()


class AsIfOnGpu(Launcher):
    """Takes arrays in host memory for arrays on the GPU; nothing reads them."""

    def _describe(self, args: Sequence[Any]) -> list[Description]:
        found = super()._describe(args)
        return [d._replace(device=CURRENT_DEVICE) if d.on_host else d for d in found]


class DeviceNDArray:
    """As Numba's device array, over host memory."""

    def __init__(self, array: Any) -> None:
        self.dtype, self.shape, self.strides = array.dtype, array.shape, array.strides
        self._array, self.gpu_data = array, _Memory(array.ctypes.data)
        self.__cuda_array_interface__ = array.__array_interface__

    @property
    def device_ctypes_pointer(self) -> ctypes.c_void_p:
        return self.gpu_data.device_ctypes_pointer


class _Memory:
    def __init__(self, pointer: int) -> None:
        self.device_ctypes_pointer = ctypes.c_void_p(pointer)


DeviceNDArray.__module__ = "numba.cuda.cudadrv.devicearray"


def _no_code(ptx: str, arch: Arch, name: str) -> Cubin:
    log = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads, Used 8 registers"
    return Cubin(name, arch.name, ptx, b"", log)


@contextmanager
def host_cases() -> Iterator[tuple[dict[str, Case], Case]]:
    """What Python spends: everything but the driver is as it would be, inside."""
    target: Any = NoDriver()
    call = target.launch
    fake_driver: dict[str, Any] = {"cuda_driver": lambda: target, "compute_capability": lambda: 90}
    fake_assembler: dict[str, Any] = {"assemble": _no_code, "versions": str}
    with ExitStack() as stack:
        stack.enter_context(on_target("cuda"))
        stack.enter_context(patch.multiple(driver, **fake_driver))
        stack.enter_context(patch.multiple(assemble, **fake_assembler))
        stack.enter_context(patch("tensorcore_dsl.kernel.Launcher", AsIfOnGpu))
        stack.enter_context(patch.dict(os.environ, TENSORCORE_DSL_CACHE="off"))
        empty, three, maps = (Kernel(k.function) for k in (nothing, touch, mapped))
        numbers = Kernel(_numbers)[1, 32]
        cases: dict[str, Case] = {
            "a ctypes call that does nothing": lambda: call(1, 2, None, 3),
            "ours, configured, 3 scalars": lambda: numbers(1, 2, 0.5),
            **_ours_without_arrays(empty),
        }
        arrays = [DeviceNDArray(np.zeros(SHAPE, np.float16)) for _ in range(3)]
        cases |= _ours("Numba arrays", arrays, three)
        if find_spec("torch"):
            import torch

            tensors = [torch.zeros(SHAPE, dtype=torch.bfloat16) for _ in range(3)]
            cases |= _ours("torch tensors", tensors, three, stream=0)
            cases |= _ours("torch tensors, as tensor maps", tensors, maps, stream=0)
        yield cases, lambda: None


def _numbers(a: Any, b: Any, c: Any) -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", help="also write all times to this file")
    options = parser.parse_args()
    on_gpu = driver.cuda_available()
    if on_gpu:
        made = gpu_cases()
    else:
        print("NO GPU HERE: a function that does nothing stands for the driver.")
        made = host_cases()
    with made as (cases, wait):
        times = measure(cases, wait, options.rounds)
    print("\n".join(report(times)))
    if options.json:
        machine = {"python": platform.python_version(), "processor": _processor(), "gpu": on_gpu}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "unit": "us", "times": times}, file, indent=1)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line for line in file if "model name" in line).partition(":")[2].strip()
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
