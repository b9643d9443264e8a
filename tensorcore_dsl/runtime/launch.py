"""The launch path: from Python arguments to one driver call, with the least work in between.

A `Launcher` belongs to one kernel and one configuration. The first call with arguments of new
types or shapes makes a `Plan`: a kernel for these types, and slots of memory that hold the whole
launch but for pointers, scalars and the stream. Later calls run code written for the arguments'
kinds, machine code (`native`) for tensors and numbers, Python (`readers`) for what else there is:
it finds the plan, writes those numbers, and calls the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import ArgumentError, LaunchError
from tensorcore_dsl.runtime import host_staging as transfer
from tensorcore_dsl.runtime.argument_readers import launcher, reader
from tensorcore_dsl.runtime.arguments import ArgumentType, Description, Packer, class_name, describe
from tensorcore_dsl.runtime.array_interop import (
    CURRENT_DEVICE,
    cupy_stream,
    is_torch,
    stream_handle,
    torch_stream,
)
from tensorcore_dsl.runtime.launch_config import LaunchConfig, Slot
from tensorcore_dsl.runtime.native import driver_call
from tensorcore_dsl.runtime.native_layout import Kind
from tensorcore_dsl.runtime.native_plans import Chain, kinds_of
from tensorcore_dsl.runtime.tensor_maps import Maps, Tiled, tiled

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
    def launch(self) -> Callable[[int, int, int | None, int | None], int]:
        """cuLaunchKernelEx(config, function, parameters, extra) -> CUresult."""

    def load(self, cubin: Cubin, device: int) -> Loaded: ...
    def allow_shared(self, loaded: Loaded, config: LaunchConfig) -> None: ...
    def error_text(self, code: int) -> str: ...
    def encode_tiled(self, pointer: int, tile: Tiled, device: int) -> bytes:
        """The tensor map of an array at `pointer` (`cuTensorMapEncodeTiled`)."""

    def on_device(self, device: int) -> AbstractContextManager[Any]:
        """The device's context is current inside; CURRENT_DEVICE keeps the one that is."""

    def attach(self, device: int) -> None:
        """Make the device's context current in this thread, which had none."""

    def synchronize(self, stream: int) -> None: ...
    def memory(self, stream: int) -> transfer.Memory: ...


# Plans and launchers.

# What happens before a launch with arguments that are new, bad or too large for their parameter,
# or without a free slot.
_BEFORE_LAUNCH = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)
_LEGACY_STREAM = 1  # the handle that means what 0 means
_NO_CONTEXT, _WRONG_CONTEXT = 201, 400  # CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE


class Plan:
    """A kernel in a GPU's context, with a configuration and arguments of known types and shapes.

    `free` are its slots that no thread is using: the places of the values and of the stream, what
    reads the current stream, four arguments of the driver, and what to do if it fails. A plan on
    CURRENT_DEVICE follows its user from one GPU to another.
    """

    def __init__(
        self,
        cubin: Cubin,
        device: int,
        config: LaunchConfig,
        arguments: Sequence[Description],
        target: Target,
        stream: Callable[[], int],
        tiles: Sequence[Tiled] = (),
    ) -> None:
        self.free: list[tuple[Any, ...]] = []  # its operations are atomic
        self._cubin = cubin
        self._device = device
        self._config = config
        self._arguments = tuple(arguments)
        self._packer = Packer([argument.type for argument in arguments])
        self._target = target
        self._stream = stream
        self._producers = {a.stream for a in arguments if a.stream is not None}
        self._load()
        self._maps: Maps | None = None
        if tiles:
            self._maps = Maps(cubin.tensor_maps, tiles, self._packer.size, self._encode)

    @property
    def plain(self) -> bool:
        """Nothing is to be done but to write values and to launch."""
        return not self._producers

    def launch(self, values: Sequence[Any], args: Sequence[Any]) -> None:
        """Launch with these pointers and numbers. `args` are their owners."""
        stream = self._stream()
        for producer in self._producers:  # __cuda_array_interface__ has the consumer wait
            if producer != (stream or _LEGACY_STREAM):
                self._target.synchronize(producer)
        self._run(values, stream)

    def _load(self) -> None:
        self._loaded = self._target.load(self._cubin, self._device)
        _check(self._loaded, self._config)
        self._target.allow_shared(self._loaded, self._config)

    def _encode(self, pointer: int, tile: Tiled) -> bytes:
        return self._target.encode_tiled(pointer, tile, self._loaded.device)

    # What machine code is laid out for (`native_plans.NativePlan`).

    def slot(self) -> Slot:
        """Memory for a launch, which nobody else uses."""
        return Slot(self._config, self._packer, self._arguments, self._maps)

    @property
    def function(self) -> int:
        return self._loaded.function

    def stream(self) -> int:
        return self._stream()

    def images(self, argument: int, pointer: int) -> tuple[bytes, ...]:
        """The tensor maps of an argument that lies at `pointer`."""
        assert self._maps is not None
        return self._maps.by_argument[argument][pointer]

    def retry(self, code: int, slot: Slot) -> None:
        self._retry(code, slot.config, slot.parameters, slot.extra)

    # Launching.

    def new_slot(self) -> tuple[Any, ...]:
        """Memory for a launch beside those in `free`, in the same order."""
        slot = self.slot()
        call = (slot.config, self._loaded.function, slot.parameters, slot.extra)
        return (*slot.places, slot.stream, self._stream, *call, self._retry)

    def _run(self, values: Sequence[Any], stream: int) -> None:
        try:
            slot = self.free.pop()
        except IndexError:
            slot = self.new_slot()
        *places, stream_place, _, config, function, parameters, extra, _ = slot
        for place, value in zip(places, values, strict=True):
            place[0] = value
        stream_place[0] = stream
        if code := self._target.launch(config, function, parameters, extra):
            self._retry(code, config, parameters, extra)
        else:
            self.free.append(slot)

    def _retry(self, code: int, config: int, parameters: int | None, extra: int | None) -> None:
        """Once more in the right context, if another one was current, or none.

        The slot, which may be for the function of another context, is not used again.
        """
        device = self._device
        if code == _NO_CONTEXT:
            self._target.attach(self._loaded.device)
        elif code == _WRONG_CONTEXT and device == CURRENT_DEVICE:
            self._load()
        if code in (_NO_CONTEXT, _WRONG_CONTEXT):
            with self._target.on_device(device):
                code = self._target.launch(config, self._loaded.function, parameters, extra)
        if code:
            raise LaunchError(_explain(self._target.error_text(code), self._loaded, self._config))


class HostPlan(Plan):
    """A plan with NumPy arrays: they are copied to the GPU, and back when the kernel has ended."""

    plain = False

    def launch(self, values: Sequence[Any], args: Sequence[Any]) -> None:
        with self._target.on_device(self._device):
            stream = self._stream()
            staged = transfer.Staging(self._arguments, values, args, self._target.memory(stream))
            self._run(staged.values, stream)
            staged.finish()


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


def _check(loaded: Loaded, config: LaunchConfig) -> None:
    if config.threads > loaded.max_threads:
        failure = f"a block of {config.threads} threads is too large"
        raise LaunchError(_explain(failure, loaded, config))
    if config.shared_bytes + loaded.static_shared > loaded.most_shared:
        raise LaunchError(_explain("too much shared memory", loaded, config))


class Launcher:
    """`launcher(*args)` launches a kernel on the GPU with one configuration.

    `specialise` gives the cubin for the types of the arguments, and is asked once for each.
    `stream` None means the current stream of the library that the arrays come from (torch,
    CuPy), else the default stream. `names` are the parameters' names, for messages; `declared`
    are the element types of those that take scalars of one type alone, None for the others.
    """

    def __init__(
        self,
        specialise: Callable[[tuple[ArgumentType, ...]], Cubin],
        config: LaunchConfig,
        target: Target,
        stream: Any = None,
        names: Sequence[str] = (),
        declared: Sequence[DType | None] = (),
    ) -> None:
        self._specialise = specialise
        self._config = config
        self._target = target
        self._stream_object = stream  # kept alive
        self._handle = None if stream is None else stream_handle(stream)
        self._names = tuple(names)
        self._declared = tuple(declared)
        self._plans: dict[tuple[Hashable, ...], Plan] = {}
        self._slots: dict[tuple[Hashable, ...], list[Any]] = {}  # of the plain plans
        self._by_classes: dict[tuple[type, ...], Callable[..., None]] = {}
        self._by_kinds: dict[tuple[Kind, ...], Chain] = {}
        self._written: Callable[..., None] | None = None  # for the classes of the last call
        self.fast: Callable[..., None] = self._launch  # for the last call's kinds; takes any

    def __call__(self, *args: Any) -> None:
        self.fast(*args)

    def _launch(self, *args: Any) -> None:
        """Any launch: of new classes, types or shapes, with host arrays, or with bad arguments."""
        arguments = self._describe(args)  # tells what is wrong with them, if anything is
        key, values = self._read(args)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._prepare(args, arguments)
            self._remember(key, plan)
        elif plan.plain:
            self.fast = self._faster(key, plan, args)
        plan.launch(values, args)

    def _read(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], list[Any]]:
        return reader(tuple(map(type, args)), self._declared_for(args))(*args)

    def _faster(self, key: Any, plan: Plan, args: Sequence[Any]) -> Callable[..., None]:
        """What launches with arguments like these, and leaves others to `_launch`."""
        kinds = kinds_of(args, self._declared_for(args))
        if kinds is not None:
            chain = self._by_kinds.get(kinds)
            if chain is None:
                chain = self._by_kinds[kinds] = self._chain(kinds, self._launch)
            if chain.launch is not None:
                chain.add(key, plan, args)
                return chain.launch
        self._written = self._written_for(tuple(map(type, args)))
        return self._by_python

    def _chain(self, kinds: tuple[Kind, ...], otherwise: Any, kept: Any = None) -> Chain:
        return Chain(kinds, self._target.launch, otherwise, self._handle is None, kept)

    def _by_python(self, *args: Any) -> None:
        try:
            assert self._written is not None
            return self._written(*args)
        except _BEFORE_LAUNCH:
            pass  # and out of the handler: an error of what follows has no other in its back
        return self._launch(*args)

    def _written_for(self, classes: tuple[type, ...]) -> Callable[..., None]:
        if classes not in self._by_classes:
            declared = self._declared_for(classes)
            call = driver_call(self._target.launch)
            self._by_classes[classes] = launcher(classes, declared, self._slots, call)
        return self._by_classes[classes]

    def prepared(self, *args: Any) -> Callable[..., None]:
        """What launches with these arguments at the least cost, and with any others too.

        It keeps the arguments alive.
        """
        plan = self.prepare(*args)
        kinds = kinds_of(args, self._declared_for(args), kept=True)
        if kinds is None or not plan.plain:
            return self
        chain = self._chain(kinds, self, args)
        chain.add(None, plan, args)
        return chain.launch or self

    def prepare(self, *args: Any) -> Plan:
        """The plan for these arguments: compiles, loads and checks, and launches nothing."""
        plan = self._prepare(args, self._describe(args))
        self._remember(self._read(args)[0], plan)
        return plan

    def _prepare(self, args: Sequence[Any], arguments: Sequence[Description]) -> Plan:
        device = self._device(arguments, args)
        cubin = self._specialise(tuple(argument.type for argument in arguments))
        plan = HostPlan if any(argument.on_host for argument in arguments) else Plan
        stream = self._stream(args, device)
        config = self._config.of_kernel(cubin.block_shared, cubin.threads, cubin.cluster)
        tiles = [tiled(arguments[m.argument], m, self._name(m.argument)) for m in cubin.tensor_maps]
        return plan(cubin, device, config, arguments, self._target, stream, tiles)

    def _describe(self, args: Sequence[Any]) -> list[Description]:
        declared = self._declared_for(args)
        return [
            describe(arg, self._name(index), dtype)
            for index, (arg, dtype) in enumerate(zip(args, declared, strict=True))
        ]

    def _declared_for(self, args: Sequence[Any]) -> tuple[DType | None, ...]:
        return (*self._declared, *(None,) * len(args))[: len(args)]

    def _remember(self, key: tuple[Hashable, ...], plan: Plan) -> None:
        if len(self._plans) >= MOST_PLANS:
            oldest = next(iter(self._plans))
            self._plans.pop(oldest, None)
            self._slots.pop(oldest, None)
        self._plans[key] = plan
        if plan.plain:
            self._slots[key] = plan.free

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
            if argument.device is not None and argument.device != CURRENT_DEVICE:
                devices[argument.device] = self._name(index)
        if len(devices) > 1:
            places = ", ".join(f"{name} on GPU {device}" for device, name in devices.items())
            raise ArgumentError(f"the arguments lie on several GPUs: {places}")
        return next(iter(devices), CURRENT_DEVICE)

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
