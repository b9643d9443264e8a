"""Host time of a launch: an empty kernel with and without three arrays, compared with other libraries.

Each sample is a batch of launches; the wait after the batch is not timed. Cases are interleaved,
and the median over all rounds counts. Without a GPU, a native function that does nothing replaces
the driver, so that the figures are the time spent in Python.
"""

from __future__ import annotations

import argparse
import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numba
import numpy as np

from benchmarks.harness import Report, Timing, elapsed
from benchmarks.tables import Table
from tensorcore_dsl import kernels, tensor_map
from tensorcore_dsl.arch import Arch
from tensorcore_dsl.codegen import assemble
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.environment.numba_cuda import numba_cuda
from tensorcore_dsl.kernel import Kernel, kernel
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.arguments import Description, describe
from tensorcore_dsl.runtime.array_interop import CURRENT_DEVICE
from tensorcore_dsl.runtime.launch import Launcher, Loaded
from tensorcore_dsl.runtime.targets import target as on_target
from tensorcore_dsl.runtime.tensor_maps import MAP_BYTES

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = f"samples of {BATCH} launches each (default: 60, 20 with --quick)"
    parser.add_argument("--rounds", type=int, metavar="N", help=about)


def run(options: argparse.Namespace) -> Report:
    on_gpu = driver.cuda_available()
    rounds = options.rounds or (20 if options.quick else 60)
    if not on_gpu:
        print(
            "NO GPU HERE: a native function that does nothing replaces the driver; the figures "
            "are the time spent in Python.\n"
        )
    report = Report("launch", {"rounds": rounds}, {
        "clock": "time.perf_counter around a batch of launches, without the wait after it",
        "launches_in_a_batch": BATCH,
        "driver": "the GPU's" if on_gpu else "none: a native function that does nothing",
    })  # fmt: skip
    with gpu_cases() if on_gpu else host_cases() as (cases, wait):
        timings = measure(cases, wait, rounds)
    for name, timing in sorted(timings.items(), key=lambda item: item[1].median):
        report.results.append({"case": name, "launch": timing.json()})
    return report


def tables(document: dict[str, Any]) -> Iterator[Table]:
    yield Table(
        "",
        [
            {
                "microseconds per launch": result["case"],
                **{name: f"{result['launch'][name] * 1e6:.2f}" for name in ("median", "best")},
            }
            for result in document["results"]
        ],
    )


def measure(cases: dict[str, Case], wait: Case, rounds: int) -> dict[str, Timing]:
    """Seconds per launch, one sample a round; each round starts with another case."""
    for case in cases.values():
        case()
    wait()
    samples: dict[str, list[float]] = {name: [] for name in cases}
    order = deque(cases)
    for _ in range(rounds):
        for name in order:
            samples[name].append(elapsed(lambda: _batch(cases[name])) / BATCH)  # noqa: B023
            wait()
        order.rotate(-1)
    return {name: Timing(tuple(times)) for name, times in samples.items()}


def _batch(case: Case) -> None:
    for _ in range(BATCH):
        case()


@contextmanager
def gpu_cases() -> Iterator[tuple[dict[str, Case], Case]]:
    """Our launches, and those of the installed libraries."""
    cuda = numba_cuda()
    arrays = [cuda.device_array(SHAPE, np.float16) for _ in range(3)]
    cases = {**_ours("Numba arrays", arrays, touch), **_numba("Numba arrays", arrays)}
    cases |= {**_driver(arrays), **_ours_without_arrays(nothing)}
    empty = cuda.jit(lambda: None)[1, 32]
    cases["Numba, no arguments"] = lambda: empty()
    if find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            tensors = [torch.zeros(SHAPE, dtype=torch.bfloat16, device="cuda") for _ in range(3)]
            cases |= _ours("torch tensors", tensors, touch)
            if driver.compute_capability() == 90:
                cases |= _ours("torch tensors, as tensor maps", tensors, mapped)
                a, b, c = tensors
                cases["ours, kernels.gemm(a, b, out=c)"] = lambda: kernels.gemm(a, b, out=c)
            cases |= _triton(tensors)
            # Numba's array interface has no bfloat16.
            cases |= _numba("torch tensors", [tensor.half() for tensor in tensors])
    yield cases, cuda.synchronize


def _ours(kind: str, arrays: Sequence[Any], run: Kernel, stream: Any = None) -> dict[str, Case]:
    a, b, c = arrays
    configured = run[1, 32, stream]
    configured(a, b, c)
    prepared = configured.prepare(a, b, c)
    return {
        f"ours, kernel[grid, block](3 {kind})": lambda: run[1, 32, stream](a, b, c),
        f"ours, configured, 3 {kind}": lambda: configured(a, b, c),
        f"ours, prepared, 3 {kind}": lambda: prepared(a, b, c),
    }


def _ours_without_arrays(run: Kernel) -> dict[str, Case]:
    bare = run[1, 32].prepare()
    return {"ours, prepared, no arguments": lambda: bare()}


def _numba(kind: str, arrays: Sequence[Any]) -> dict[str, Case]:
    a, b, c = arrays
    three = import_module("numba.cuda").jit(lambda a, b, c: None)[1, 32]
    return {f"Numba, 3 {kind}": lambda: three(a, b, c)}


def _driver(arrays: Sequence[Any]) -> dict[str, Case]:
    """cuda.core with plain numbers, and the driver's call alone, with everything prepared."""
    from cuda.core import Device, LaunchConfig, ObjectCode, launch

    target = driver.cuda_driver()
    cubin = touch.specialise(arrays, {}).cubin
    loaded = ObjectCode.from_cubin(cubin.code).get_kernel(cubin.name)
    device = Device()
    device.set_current()
    stream, config = device.default_stream, LaunchConfig(grid=1, block=32)
    pointers = [array.device_ctypes_pointer.value for array in arrays]
    sizes = [np.int32(SHAPE[0]), np.int32(SHAPE[1]), np.int64(SHAPE[1])]
    flat = [value for pointer in pointers for value in (pointer, *sizes)]
    plan = touch[1, 32].launcher({}).prepare(*arrays)
    buffer = plan.buffer([describe(array) for array in arrays])
    call, arguments = target.launch, (plan.function, buffer.parameters, buffer.extra)
    return {
        "cuda.core, 3 arrays as 12 numbers": lambda: launch(stream, config, loaded, *flat),
        "the driver's call alone, by ctypes": lambda: call(buffer.config, *arguments),
    }


def _triton(tensors: Sequence[Any]) -> dict[str, Case]:
    if not find_spec("triton"):
        return {}
    empty, (a, b, c) = import_module("benchmarks.products.triton_kernels").touch, tensors
    return {"Triton, 3 torch tensors": lambda: empty[(1,)](a, b, c, *SHAPE)}


def no_driver() -> SimpleNamespace:
    """A target whose driver is a native function that returns 0."""
    signature = numba.types.int32(*[numba.types.voidptr] * 4)
    native = numba.cfunc(signature)(lambda c, f, p, e: 0)
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    return SimpleNamespace(
        native=native,  # keeps the code alive
        launch=prototype(int(native.address or 0)),
        load=lambda cubin, device: Loaded(cubin.name, 1, 0),
        allow_shared=lambda loaded, config: None,
        encode_tiled=lambda pointer, tile, device: bytes(MAP_BYTES),
        on_device=lambda device: nullcontext(),
    )


class HostArraysAsDevice(Launcher):
    """Treats host arrays as arrays on the GPU; nothing reads them."""

    def _describe(self, args: Sequence[Any]) -> list[Description]:
        described = super()._describe(args)
        return [d._replace(device=CURRENT_DEVICE) if d.on_host else d for d in described]


class DeviceNDArray:
    """Numba's device array, over host memory."""

    def __init__(self, array: Any) -> None:
        self.dtype, self.shape, self.strides = array.dtype, array.shape, array.strides
        self._array = array
        self.device_ctypes_pointer = ctypes.c_void_p(array.ctypes.data)
        self.gpu_data = SimpleNamespace(device_ctypes_pointer=self.device_ctypes_pointer)
        self.__cuda_array_interface__ = array.__array_interface__


DeviceNDArray.__module__ = "numba.cuda.cudadrv.devicearray"


def _no_code(ptx: str, arch: Arch, name: str, lineinfo: bool = False) -> Cubin:
    log = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads, Used 8 registers"
    return Cubin(name, arch.name, ptx, b"", log)


@contextmanager
def host_cases() -> Iterator[tuple[dict[str, Case], Case]]:
    """Our launches with everything but the driver."""
    target = no_driver()
    fake_driver: dict[str, Any] = {"cuda_driver": lambda: target, "compute_capability": lambda: 90}
    fake_assembler: dict[str, Any] = {"assemble": _no_code, "versions": str}
    with ExitStack() as stack:
        stack.enter_context(on_target("cuda"))
        stack.enter_context(patch.multiple(driver, **fake_driver))
        stack.enter_context(patch.multiple(assemble, **fake_assembler))
        stack.enter_context(patch("tensorcore_dsl.kernel.launch.Launcher", HostArraysAsDevice))
        stack.enter_context(patch.dict(os.environ, TENSORCORE_DSL_CACHE="off"))
        empty, three, maps = (Kernel(k.function) for k in (nothing, touch, mapped))
        numbers = Kernel(_numbers)[1, 32]
        cases: dict[str, Case] = {
            "a ctypes call that does nothing": lambda: target.launch(1, 2, None, 3),
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
