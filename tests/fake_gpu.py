"""A driver that records launches, and memory of a GPU that is host memory."""

from __future__ import annotations

import ctypes
import struct
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.arguments import Packer, describe
from tensorcore_dsl.runtime.launch import Loaded

CUBIN = Cubin("fake", "sm_90a", "", b"", "")


@dataclass
class Record:
    """One launch as cuLaunchKernelEx got it. `config` is the bytes of CUlaunchConfig."""

    function: int
    config: bytes
    attributes: bytes
    parameters: bytes

    @property
    def grid(self):
        return struct.unpack_from("3I", self.config)

    @property
    def block(self):
        return struct.unpack_from("3I", self.config, 12)

    @property
    def shared_bytes(self):
        return struct.unpack_from("I", self.config, 24)[0]

    @property
    def stream(self):
        return struct.unpack_from("Q", self.config, 32)[0]


@dataclass
class FakeGpu:
    """`launch.Driver` without a GPU; `kernel(parameters)` stands for the kernel.

    `codes` are results of the next launches, `context` is the device whose context is current
    (None: no context); functions are numbered 1000 + device.
    """

    kernel: Any = None
    codes: list[int] = field(default_factory=list)
    context: int | None = 0
    max_threads: int = 1024
    records: list[Record] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    consents: list[int] = field(default_factory=list)
    synchronized: list[int] = field(default_factory=list)
    waited_in: list[int | None] = field(default_factory=list)  # the context, for each of these
    allocations: list[Any] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    encoded: list[Any] = field(default_factory=list)
    mismatch: int = 400  # the code for a function of another context than the current one
    failure: int = 0  # of the kernel, seen when a stream is waited for
    events: list[Any] = field(default_factory=list)
    duration: Any = None  # seconds of a launch, from its record
    now: float = 0.0
    captured: tuple[int, ...] = ()  # streams
    device_names: tuple[str, ...] = ("FAKE GPU",)

    def __post_init__(self):
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
        self.launch = prototype(self._launch)

    def of_the_machine(self, monkeypatch):
        """The driver of the package from now on: an H200."""
        monkeypatch.setattr(driver, "cuda_available", lambda: True)
        monkeypatch.setattr(driver, "compute_capability", lambda: 90)
        monkeypatch.setattr(driver, "cuda_driver", lambda: self)
        return self

    def _launch(self, config, function, parameters, extra):
        if self.codes:
            return self.codes.pop(0)
        if self.context is None:
            return 201
        if function != 1000 + self.context:
            return self.mismatch
        data = self._in_one_piece(extra) if extra else self._one_by_one(parameters)
        assert not (extra and parameters)
        raw = ctypes.string_at(config, 56)
        attributes_at, count = struct.unpack_from("QI", raw, 40)
        attributes = ctypes.string_at(attributes_at, 72 * count) if count else b""
        self.records.append(Record(function, raw, attributes, data))
        if self.kernel is not None:
            self.kernel(data)
        if self.duration is not None:
            self.now += self.duration(self.records[-1])
        return 0

    @staticmethod
    def _in_one_piece(extra):
        begin, address, size_tag, size_at, end = struct.unpack("5Q", ctypes.string_at(extra, 40))
        assert (begin, size_tag, end) == (1, 2, 0)
        return ctypes.string_at(address, ctypes.c_size_t.from_address(size_at).value)

    def _one_by_one(self, parameters):
        """The values at the addresses, as a kernel with `sizes` bytes of parameters reads them."""
        table = struct.unpack(f"{len(self.sizes)}Q", ctypes.string_at(parameters, 8 * len(self.sizes)))
        return b"".join(ctypes.string_at(a, n) for a, n in zip(table, self.sizes, strict=True))

    def encode_tiled(self, pointer, tile, device):
        self.encoded.append((pointer, tile, device))
        return struct.pack("Q", pointer) + repr(tile).encode().ljust(120)[:120]

    def load(self, cubin, device):
        device = self.context if device == -1 else device
        self.loads.append(device)
        return Loaded("fake", 1000 + device, device, max_threads=self.max_threads, most_shared=232448)

    def capability(self):
        return 9, 0

    def allow_shared(self, loaded, config):
        self.consents.append(config.shared_bytes)

    def error_text(self, code):
        return f"CUDA_ERROR_{code}"

    @contextmanager
    def on_device(self, device):
        before = self.context
        if device != -1:
            self.context = device
        yield
        self.context = before

    def attach(self, device):
        if self.context is not None:
            return False
        self.context = device
        return True

    def synchronize(self, stream):
        self.synchronized.append(stream)
        self.waited_in.append(self.context)

    def finish(self, stream):
        self.synchronize(stream)
        return self.failure

    def memory(self, stream):
        return FakeMemory(self, stream)

    def event(self):
        self.events.append(Event(self.context))
        return self.events[-1]

    def record(self, event, stream):
        event.stream, event.at = stream, self.now

    def seconds_between(self, start, end):
        return end.at - start.at

    def is_capturing(self, stream):
        return stream in self.captured

    def l2_bytes(self):
        return 1024

    def device_name(self):
        return self.device_names[self.context or 0]

    def version(self):
        return 13010


@dataclass
class Event:
    device: int
    stream: int | None = None
    at: float | None = None


@dataclass
class FakeMemory:
    gpu: FakeGpu
    stream: int

    def allocate(self, size):
        owner = np.full(size + 255, 0xA5, np.uint8)
        self.gpu.allocations.append(owner)
        return -(-owner.ctypes.data // 256) * 256, owner

    def upload(self, address, data):
        ctypes.memmove(address, data.ctypes.data, data.size)

    def download(self, address, data):
        ctypes.memmove(data.ctypes.data, address, data.size)

    def copy(self, target, source, size):
        ctypes.memmove(target, source, size)

    def fill(self, address, byte, size):
        ctypes.memset(address, byte, size)

    def synchronize(self):
        self.gpu.synchronize(self.stream)


class OnGpu:
    """An array that speaks __cuda_array_interface__ over host memory."""

    def __init__(self, array, stream=None, readonly=False, **more):
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "strides": array.strides,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, readonly),
            "version": 3,
            "stream": stream,
            **more,
        }
        self.dtype = array.dtype


def packed(*values):
    """The bytes of the parameters that a launch passes for the values."""
    description = [describe(value) for value in values]
    packer = Packer([d.type for d in description])
    buffer = bytearray(packer.size)
    packer.pack_into(buffer, description)
    return bytes(buffer)


class DeviceNDArray:
    """Imitates Numba's device array: attributes only."""

    def __init__(self, array):
        self.dtype, self.shape, self.strides = array.dtype, array.shape, array.strides
        self.device_ctypes_pointer = ctypes.c_void_p(array.ctypes.data)
        self.__cuda_array_interface__ = OnGpu(array).__cuda_array_interface__


DeviceNDArray.__module__ = "numba.cuda.cudadrv.devicearray"


def is_native(function: Any) -> bool:
    """True for a launch in machine code."""
    return isinstance(function, type(len))


def fake_cupy(monkeypatch: Any, empty: Any) -> list[int]:
    """Install a CuPy with the function `empty`; [the handle of its current stream]."""
    current = [0]

    @contextmanager
    def external(handle: int) -> Any:
        current[0] = handle
        yield
        current[0] = 0

    cuda = SimpleNamespace(ExternalStream=external)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, empty=empty))
    return current
