"""The launch path: from Python arguments to one driver call, with the least work in between.

A `Launcher` belongs to one kernel and one configuration. The first call with arguments of new
types or shapes makes a `Plan`: a kernel for these types, and slots of memory that hold the whole
launch but for pointers, scalars and the stream. Later calls find the plan by a key that a reader
for each argument's class computes, write those numbers, and call `cuLaunchKernelEx`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tensorcore_dsl import transfer
from tensorcore_dsl.arguments import (
    ArgumentType,
    Description,
    Packer,
    class_name,
    describe,
)
from tensorcore_dsl.cubin import Cubin
from tensorcore_dsl.errors import ArgumentError, LaunchError
from tensorcore_dsl.launch_config import Config, Slot
from tensorcore_dsl.protocols import (
    CURRENT_DEVICE,
    cupy_stream,
    is_torch,
    stream_handle,
    torch_stream,
)
from tensorcore_dsl.readers import READERS

STATIC_SHARED_LIMIT = 48 * 1024  # dynamic shared memory beyond this needs the kernel's consent
MOST_PLANS = 1024  # of one launcher; beyond, the oldest go

# What launches.


@dataclass
class Loaded:
    """A kernel in one GPU's context. `function` is its CUfunction, `keep` what owns it."""

    name: str
    function: int
    device: int
    static_shared: int = 0
    registers: int = 0
    max_threads: int = 1024
    most_shared: int = STATIC_SHARED_LIMIT  # of one block, static and dynamic, with consent
    keep: Any = None
    allowed: int = field(default=STATIC_SHARED_LIMIT)  # dynamic bytes consented to so far


class Target(Protocol):
    """The driver, as the launch path needs it."""

    @property
    def launch(self) -> Callable[[int, int, int | None, int], int]:
        """cuLaunchKernelEx(config, function, parameters, extra) -> CUresult."""

    def load(self, cubin: Cubin, device: int) -> Loaded: ...
    def allow_shared(self, loaded: Loaded, config: Config) -> None: ...
    def error_text(self, code: int) -> str: ...
    def on_device(self, device: int) -> AbstractContextManager[Any]:
        """The device's context is current inside; CURRENT_DEVICE keeps the one that is."""

    def attach(self, device: int) -> None:
        """Make the device's context current in this thread, which had none."""

    def synchronize(self, stream: int) -> None: ...
    def memory(self, stream: int) -> transfer.Memory: ...


# Plans and launchers.

# What reading arguments that were never seen, or cannot be read, may raise.
_NEW_OR_BAD = (KeyError, ArgumentError, RuntimeError, TypeError, AttributeError)
_LEGACY_STREAM = 1  # the handle that means what 0 means
_NO_CONTEXT, _WRONG_CONTEXT = 201, 400  # CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE


class Plan:
    """A loaded kernel with a configuration and arguments of known types, shapes and strides."""

    def __init__(
        self,
        loaded: Loaded,
        config: Config,
        arguments: Sequence[Description],
        target: Target,
        stream: Callable[[], int],
    ) -> None:
        self._loaded = loaded
        self._config = config
        self._arguments = tuple(arguments)
        self._packer = Packer([argument.type for argument in arguments])
        self._target = target
        self._call = target.launch
        self._function = loaded.function
        self._stream = stream
        self._producers = {a.stream for a in arguments if a.stream is not None}
        self._free: list[Slot] = []  # pop and append are atomic: threads never share a slot

    def launch(self, values: Sequence[Any], args: Sequence[Any] = ()) -> None:
        """Launch with these pointers and numbers. `args` are their owners."""
        stream = self._stream()
        if self._producers:
            self._await_producers(stream)
        self._run(values, stream)

    def _run(self, values: Sequence[Any], stream: int) -> None:
        try:
            slot = self._free.pop()
        except IndexError:
            slot = Slot(self._config, self._packer, self._arguments)
        for place, value in zip(slot.places, values):
            place[0] = value
        slot.stream[0] = stream
        code = self._call(slot.config, self._function, None, slot.extra)
        if code:
            self._retry(code, slot)
        self._free.append(slot)

    def _await_producers(self, stream: int) -> None:
        """`__cuda_array_interface__` asks it of the consumer, unless both use one stream."""
        for producer in self._producers:
            if producer != (stream or _LEGACY_STREAM):
                self._target.synchronize(producer)

    def _retry(self, code: int, slot: Slot) -> None:
        """Once more in the kernel's own context, if another one was current, or none."""
        if code == _NO_CONTEXT:
            self._target.attach(self._loaded.device)
            code = self._call(slot.config, self._function, None, slot.extra)
        elif code == _WRONG_CONTEXT:
            with self._target.on_device(self._loaded.device):
                code = self._call(slot.config, self._function, None, slot.extra)
        if code:
            raise LaunchError(_explain(self._target.error_text(code), self._loaded, self._config))


class HostPlan(Plan):
    """A plan with NumPy arrays: they are copied to the GPU, and back when the kernel has ended."""

    def launch(self, values: Sequence[Any], args: Sequence[Any] = ()) -> None:
        with self._target.on_device(self._loaded.device):
            stream = self._stream()
            memory = self._target.memory(stream)
            staged = transfer.Staging(self._arguments, values, args, memory)
            self._run(staged.values, stream)
            staged.finish()


def _explain(failure: str, loaded: Loaded, config: Config) -> str:
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


class Launcher:
    """`launcher(*args)` launches a kernel on the GPU with one configuration.

    `specialise` gives the cubin for the types of the arguments, and is asked once for each.
    `stream` None means the current stream of the library that the arrays come from (torch,
    CuPy), else the default stream. `names` are the parameters' names, for messages.
    """

    def __init__(
        self,
        specialise: Callable[[tuple[ArgumentType, ...]], Cubin],
        config: Config,
        target: Target,
        stream: Any = None,
        names: Sequence[str] = (),
    ) -> None:
        self._specialise = specialise
        self._config = config
        self._target = target
        self._stream_object = stream  # kept alive
        self._handle = None if stream is None else stream_handle(stream)
        self._names = tuple(names)
        self._plans: dict[tuple[Hashable, ...], Plan] = {}

    def __call__(self, *args: Any) -> None:
        keys = []
        values = []
        try:
            for arg in args:
                key, value = READERS[arg.__class__](arg)
                keys.append(key)
                values.append(value)
            plan = self._plans[tuple(keys)]
        except _NEW_OR_BAD:
            plan = self.prepare(*args)
            if len(keys) == len(args):
                self._remember(tuple(keys), plan)
            else:  # a reader failed where describing did not
                values = [READERS[arg.__class__](arg)[1] for arg in args]
        plan.launch(values, args)

    def prepare(self, *args: Any) -> Plan:
        """The plan for these arguments: compiles, loads and checks, and launches nothing."""
        arguments = [describe(arg, self._name(index)) for index, arg in enumerate(args)]
        device = self._device(arguments, args)
        cubin = self._specialise(tuple(argument.type for argument in arguments))
        loaded = self._target.load(cubin, device)
        self._check(loaded)
        self._target.allow_shared(loaded, self._config)
        host = any(argument.on_host for argument in arguments)
        plan = HostPlan if host else Plan
        return plan(
            loaded, self._config, arguments, self._target, self._stream(args, loaded.device)
        )

    def _remember(self, key: tuple[Hashable, ...], plan: Plan) -> None:
        if len(self._plans) >= MOST_PLANS:
            self._plans.pop(next(iter(self._plans)), None)
        self._plans[key] = plan

    def _name(self, index: int) -> str:
        return (
            f"argument {self._names[index]!r}" if index < len(self._names) else f"argument {index}"
        )

    def _device(self, arguments: Sequence[Description], args: Sequence[Any]) -> int:
        """Which GPU the arrays are on; NumPy arrays go to any, other host arrays to none."""
        devices = {}
        for index, (argument, arg) in enumerate(zip(arguments, args, strict=True)):
            if argument.on_host and not isinstance(arg, np.ndarray):
                raise ArgumentError(
                    f"{self._name(index)} is a {class_name(arg)} in host memory; the kernel runs "
                    f"on the GPU: move it there, or run the kernel on the CPU"
                )
            if argument.device is not None and argument.device != CURRENT_DEVICE:
                devices[argument.device] = self._name(index)
        if len(devices) > 1:
            places = ", ".join(f"{name} on GPU {device}" for device, name in devices.items())
            raise ArgumentError(f"the arguments lie on several GPUs: {places}")
        return next(iter(devices), CURRENT_DEVICE)

    def _check(self, loaded: Loaded) -> None:
        config = self._config
        if config.threads > loaded.max_threads:
            failure = f"block of {config.threads} threads, {loaded.max_threads} are possible"
            raise LaunchError(_explain(failure, loaded, config))
        if config.shared_bytes + loaded.static_shared > loaded.most_shared:
            raise LaunchError(_explain("too much shared memory", loaded, config))

    def _stream(self, args: Sequence[Any], device: int) -> Callable[[], int]:
        if self._handle is not None:
            handle = self._handle
            return lambda: handle
        for arg in args:
            if is_torch(type(arg)):
                return torch_stream(device)
            if type(arg).__module__.partition(".")[0] == "cupy":
                return cupy_stream()
        return lambda: 0
