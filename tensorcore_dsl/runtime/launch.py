"""The launch path: from Python arguments to one call of the driver (docs/launch.md).

A `Launcher` belongs to one kernel and one configuration. The first call with arguments of new
types or shapes makes a `LaunchPlan`: the kernel for these types, loaded and checked. From its second
launch on, a plan is launched by machine code (`fast_launch`), if that can read the arguments.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np

from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.codegen.ptx import STATIC_SHARED_LIMIT
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import ArgumentError, LaunchError, TensorCoreError, hide_library
from tensorcore_dsl.runtime import array_interop
from tensorcore_dsl.runtime.arguments import (
    NO_ARGUMENT,
    ArgumentType,
    Description,
    Packer,
    arguments_key,
    class_name,
    describe,
)
from tensorcore_dsl.runtime.fast_launch import FastPath
from tensorcore_dsl.runtime.host_staging import Memory, Staging
from tensorcore_dsl.runtime.launch_buffer import LaunchBuffer
from tensorcore_dsl.runtime.launch_config import LaunchConfig
from tensorcore_dsl.runtime.tensor_maps import Tiled, tiled

log = logging.getLogger(__name__)
MAX_PLANS = 1024  # of one launcher; beyond, the oldest is dropped
MAX_MAPS = 4096  # encoded tensor maps of one plan


@dataclass
class Loaded:
    """A kernel in one GPU's context. `function` is its CUfunction, `keep` owns it."""

    name: str
    function: int
    device: int
    static_shared: int = 0
    registers: int = 0
    max_threads: int = 1024
    most_shared: int = STATIC_SHARED_LIMIT  # of one block, static and dynamic, with consent
    keep: Any = None
    allowed: int = field(default=STATIC_SHARED_LIMIT)  # dynamic bytes consented to so far


class Driver(Protocol):
    """The CUDA driver, as the launch path uses it."""

    @property
    def launch(self) -> Callable[[int, int, int | None, int | None], int]:
        """cuLaunchKernelEx(config, function, parameters, extra) -> CUresult."""

    def load(self, cubin: Cubin, device: int) -> Loaded: ...
    def allow_shared(self, loaded: Loaded, config: LaunchConfig) -> None: ...
    def error_text(self, code: int) -> str: ...
    def encode_tiled(self, pointer: int, tile: Tiled, device: int) -> bytes:
        """The tensor map of an array at `pointer` (`cuTensorMapEncodeTiled`)."""

    def on_device(self, device: int) -> AbstractContextManager[Any]:
        """Makes the device's context current inside; CURRENT_DEVICE changes nothing."""

    def attach(self, device: int) -> bool:
        """Make the device's context current in a thread that has none; False where one is."""

    def synchronize(self, stream: int) -> None: ...
    def finish(self, stream: int) -> int:
        """Wait for the stream, unless a graph captures it; returns the CUresult of its work."""

    def memory(self, stream: int) -> Memory: ...

    def event(self) -> Any:
        """A new event that keeps the time."""

    def record(self, event: Any, stream: int) -> None:
        """The event becomes the moment at which the stream's work so far has ended."""

    def wait(self, event: Any, stream: int) -> None:
        """Later work of the stream waits for the event."""

    def seconds_between(self, start: Any, end: Any) -> float:
        """Seconds between two events; waits for the second."""

    def is_capturing(self, stream: int) -> bool:
        """True if a CUDA graph captures the launches on the stream."""

    def l2_bytes(self) -> int: ...
    def device_name(self) -> str: ...


_LEGACY_STREAM = 1  # the handle that names the same stream as 0
_USUAL_DEVICE = 0  # the CUDA runtime's current one, in a thread that has not chosen any
_NO_CONTEXT, _WRONG_CONTEXT = 201, 400  # CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE


class LaunchPlan:
    """A kernel in a GPU's context, with a configuration and arguments of known types and shapes.

    `stream` reads the stream of a launch. `tiles` are the arrays of the kernel's tensor maps. A
    plan on CURRENT_DEVICE follows its user from one GPU to another.
    """

    def __init__(
        self,
        cubin: Cubin,
        device: int,
        config: LaunchConfig,
        arguments: Sequence[Description],
        driver: Driver,
        stream: Callable[[], int],
        tiles: Sequence[Tiled] = (),
    ) -> None:
        self.stream = stream
        self.map_arguments = [tensor_map.argument for tensor_map in cubin.tensor_maps]
        self._cubin, self._config, self._tiles = cubin, config, tiles
        self._driver, self._device = driver, device
        self._packer = Packer([argument.type for argument in arguments])
        self._producers = {a.stream for a in arguments if a.stream is not None}
        self.encoded_map = lru_cache(MAX_MAPS)(self._encode)
        self._load()

    @property
    def fast(self) -> bool:
        """The fast path may launch it: no producer to wait for, no copies, blocks to run."""
        return not (self._producers or self._cubin.checks or self._config.is_empty)

    @property
    def function(self) -> int:
        return self._loaded.function

    def launch(self, arguments: Sequence[Description]) -> None:
        """Launch with these arguments."""
        stream = self.stream()
        for producer in self._producers:  # __cuda_array_interface__ has the consumer wait
            if producer != (stream or _LEGACY_STREAM):
                with self._driver.on_device(self._device):  # handles 1 and 2 are of each device
                    self._driver.synchronize(producer)
        self._launch(arguments, stream)

    def buffer(self, arguments: Sequence[Description]) -> LaunchBuffer:
        """A launch with these arguments in memory, on stream 0."""
        pointers = [arguments[argument].pointer for argument in self.map_arguments]
        maps = [self.encoded_map(number, pointer) for number, pointer in enumerate(pointers)]
        return LaunchBuffer(self._config, self._packer, arguments, maps)

    def retry(self, code: int, buffer: LaunchBuffer) -> None:
        """Launch again in the right context, if another one was current, or none."""
        device = self._device
        if code in (_NO_CONTEXT, _WRONG_CONTEXT):
            follows = device == array_interop.CURRENT_DEVICE
            usual = self._loaded.device if follows else _USUAL_DEVICE
            attached = code == _NO_CONTEXT and self._driver.attach(usual)
            if not attached and follows:
                self._load()
            with self._driver.on_device(device):
                code = self._call(buffer)
        if code:
            raise LaunchError(_explain(self._driver.error_text(code), self._loaded, self._config))

    def _launch(self, arguments: Sequence[Description], stream: int) -> None:
        buffer = self.buffer(arguments)
        buffer.stream = stream
        if code := self._call(buffer):
            self.retry(code, buffer)
        if self._cubin.checks:
            with self._driver.on_device(self._device):  # Stream 0 belongs to the current device.
                code = self._driver.finish(stream)
            if code:
                failure = self._driver.error_text(code)
                raise LaunchError(_explain_checked(failure, self._loaded.name))

    def _call(self, buffer: LaunchBuffer) -> int:
        if self._config.is_empty:  # which the driver refuses
            return 0
        return self._driver.launch(buffer.config, self.function, buffer.parameters, buffer.extra)

    def _load(self) -> None:
        self._loaded = self._driver.load(self._cubin, self._device)
        _check(self._loaded, self._config)
        self._driver.allow_shared(self._loaded, self._config)

    def _encode(self, number: int, pointer: int) -> ctypes.Array[ctypes.c_char]:
        """One tensor map of an array at `pointer`."""
        image = self._driver.encode_tiled(pointer, self._tiles[number], self._loaded.device)
        return ctypes.create_string_buffer(image, len(image))


@dataclass(frozen=True)
class Repeatable:
    """A launch without arguments, to be repeated; `arguments` describe what it works on."""

    launch: Callable[[], None]
    arguments: Sequence[Description]
    stream: int
    device: int


class HostPlan(LaunchPlan):
    """A plan with NumPy arrays: they are copied to the GPU, and back when the kernel has ended."""

    fast = False

    def launch(self, arguments: Sequence[Description]) -> None:
        with self._driver.on_device(self._device):
            stream = self.stream()
            log.debug("%s: NumPy arrays are copied to the GPU and back", self._loaded.name)
            staged = Staging(arguments, self._driver.memory(stream))
            self._launch(staged.arguments, stream)
            staged.finish()

    def repeatable(self, arguments: Sequence[Description]) -> Repeatable:
        """Launches that work on one copy of the arrays."""
        with self._driver.on_device(self._device):
            stream = self.stream()
            staged = Staging(arguments, self._driver.memory(stream))

        def launch() -> None:
            with self._driver.on_device(self._device):
                self._launch(staged.arguments, stream)  # `staged` owns the copies

        return Repeatable(launch, staged.arguments, stream, self._device)


def _explain(failure: str, loaded: Loaded, config: LaunchConfig) -> str:
    asked = [f"grid {config.grid}", f"block {config.block}"]
    asked += [f"cluster {config.cluster}"] if config.cluster else []
    asked += ["cooperative"] if config.cooperative else []
    asked += [f"{config.shared_bytes} B of dynamic shared memory"]
    return (
        f"launch of {loaded.name} failed: {failure}. It was asked to run with {', '.join(asked)}; "
        f"the kernel takes {loaded.registers} registers a thread and {loaded.static_shared} B of "
        f"static shared memory, and GPU {loaded.device} allows it {loaded.max_threads} threads and "
        f"{loaded.most_shared} B of shared memory a block"
    )


def _explain_checked(failure: str, name: str) -> str:
    return (
        f"{name}, a build with checks, was stopped: {failure}. A check that failed has printed its "
        "line to the standard output: file:line, index, axis, extent, block and thread. The GPU's "
        "context is lost; start a new process"
    )


def _check(loaded: Loaded, config: LaunchConfig) -> None:
    if config.threads > loaded.max_threads:
        failure = f"a block of {config.threads} threads is too large"
        raise LaunchError(_explain(failure, loaded, config))
    if config.shared_bytes + loaded.static_shared > loaded.most_shared:
        raise LaunchError(_explain("too much shared memory", loaded, config))


class Launcher:
    """`launcher(*args)` launches a kernel on the GPU with one configuration.

    `specialise` returns the cubin for the types of the arguments, and is called once for each.
    `stream` None is the current stream of the library that the arrays come from (torch, CuPy),
    else the default stream. `names` are the parameters' names, for messages; `declared` are the
    element types of those that take scalars of one type alone, None for the others. `planned` is
    called for each new plan, with the arguments and the configuration of its launch.

    `fast` launches too: by machine code where the arguments fit a plan, else by `_launch`.
    """

    def __init__(
        self,
        specialise: Callable[[tuple[ArgumentType, ...]], Cubin],
        config: LaunchConfig,
        driver: Driver,
        stream: Any = None,
        names: Sequence[str] = (),
        declared: Sequence[DType | None] = (),
        planned: Callable[[Sequence[Description], LaunchConfig], None] | None = None,
    ) -> None:
        self._planned = planned
        self._specialise, self._config, self._driver = specialise, config, driver
        self._stream_object = stream  # keeps the stream alive
        self._handle = None if stream is None else array_interop.stream_handle(stream)
        self._names, self._declared = tuple(names), tuple(declared)
        self._plans: dict[Hashable, LaunchPlan] = {}
        self._fast_path = self._new_fast_path(self._launch)
        self.fast: Callable[..., None] = self._launch

    def __call__(self, *args: Any) -> None:
        try:  # a prepared handle is this launcher, or falls back to it
            self.fast(*args)
        except TensorCoreError as error:
            hide_library(error)
            raise

    def _launch(self, *args: Any) -> None:
        """Any launch: with new types or shapes, host arrays, or arguments that do not fit."""
        arguments = self._describe(args)
        key = arguments_key(args, arguments)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._new_plan(args, arguments, key)
        elif plan.fast:  # its second launch
            self.fast = self._fast_path.add(plan, args, arguments) or self._launch
        plan.launch(arguments)

    def prepared(self, *args: Any) -> Callable[..., None]:
        """A function that launches with these arguments at the least cost, and with others too.

        It keeps the arguments alive.
        """
        arguments = self._describe(args)
        plan = self._new_plan(args, arguments, arguments_key(args, arguments))
        fast_path = self._new_fast_path(self, keep=args)
        return (fast_path.add(plan, args, arguments) if plan.fast else None) or self

    def prepare(self, *args: Any) -> LaunchPlan:
        """The plan for these arguments: compiles, loads and checks, and launches nothing."""
        arguments = self._describe(args)
        return self._new_plan(args, arguments, arguments_key(args, arguments))

    def repeatable(self, *args: Any) -> Repeatable:
        """A launch with these arguments to be repeated; NumPy arrays are copied once, not back."""
        plan, arguments = self.prepare(*args), self._describe(args)
        if isinstance(plan, HostPlan):
            return plan.repeatable(arguments)
        device = self._device(arguments, args)
        launch = partial(self.prepared(*args), *args)
        return Repeatable(launch, arguments, plan.stream(), device)

    def _new_fast_path(self, fallback: Callable[..., None], keep: Any = None) -> FastPath:
        fixed_stream = self._handle is not None
        return FastPath(self._driver.launch, fallback, self._declared_for, fixed_stream, keep)

    def _new_plan(self, args: Sequence[Any], arguments: Sequence[Description], key: Hashable) -> LaunchPlan:
        """The plan for these arguments, cached under `key`; the oldest of too many is dropped."""
        device = self._device(arguments, args)
        cubin = self._specialise(tuple(argument.type for argument in arguments))
        kind = HostPlan if any(argument.on_host for argument in arguments) else LaunchPlan
        stream = self._stream(args, device)
        config = self._config.of_kernel(cubin.block_shared, cubin.threads, cubin.cluster)
        tiles = [tiled(arguments[m.argument], m, self._name(m.argument)) for m in cubin.tensor_maps]
        plan = kind(cubin, device, config, arguments, self._driver, stream, tiles)
        if len(self._plans) >= MAX_PLANS:
            self._plans.pop(next(iter(self._plans)), None)
        self._plans[key] = plan
        log.debug(
            "launch of %s: grid %s, block %s, cluster %s",
            cubin.name,
            config.grid,
            config.block,
            config.cluster,
        )
        if self._planned is not None:
            self._planned(arguments, config)
        return plan

    def _describe(self, args: Sequence[Any]) -> list[Description]:
        declared = self._declared_for(args)
        return [
            NO_ARGUMENT if arg is None else describe(arg, self._name(index), dtype)
            for index, (arg, dtype) in enumerate(zip(args, declared, strict=True))
        ]

    def _declared_for(self, args: Sequence[Any]) -> tuple[DType | None, ...]:
        return (*self._declared, *(None,) * len(args))[: len(args)]

    def _name(self, index: int) -> str:
        named = index < len(self._names)
        return f"argument {self._names[index]!r}" if named else f"argument {index}"

    def _device(self, arguments: Sequence[Description], args: Sequence[Any]) -> int:
        """Which GPU the arrays are on; NumPy arrays go to any, other host arrays to none."""
        devices = {}
        for index, (argument, arg) in enumerate(zip(arguments, args, strict=True)):
            if argument.on_host and not isinstance(arg, np.ndarray):
                raise ArgumentError(
                    f"{self._name(index)} is a {class_name(arg)} in host memory; the kernel runs "
                    f"on the GPU: move it there, or run the kernel on the CPU"
                )
            if argument.device is not None and argument.device != array_interop.CURRENT_DEVICE:
                devices[argument.device] = self._name(index)
        if len(devices) > 1:
            on_devices = ", ".join(f"{name} on GPU {device}" for device, name in devices.items())
            raise ArgumentError(f"the arguments lie on several GPUs: {on_devices}")
        return next(iter(devices), array_interop.CURRENT_DEVICE)

    def _stream(self, args: Sequence[Any], device: int) -> Callable[[], int]:
        if self._handle is not None:
            handle = self._handle
            return lambda: handle
        return array_interop.stream_of(args, device) or (lambda: 0)
