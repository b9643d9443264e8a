"""Host staging: copy NumPy arguments to the GPU before the kernel, and back after it.

The bytes from an array's lowest to its highest element are copied unchanged, so strides of any
sign and order stay valid, and views of one buffer still overlap on the GPU. The bytes that a view
skips are copied too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tensorcore_dsl.runtime.arguments import ArrayType, Description, array_element_bits

GRAIN = 256  # device addresses equal host addresses modulo this, so alignments are the same

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Memory(Protocol):
    """Device memory, used in the order of one stream."""

    def allocate(self, size: int) -> tuple[int, Any]:
        """Address and owner of `size` fresh bytes, at a multiple of GRAIN."""

    def upload(self, address: int, data: Bytes) -> None: ...
    def download(self, address: int, data: Bytes) -> None: ...
    def copy(self, target: int, source: int, size: int) -> None: ...
    def fill(self, address: int, byte: int, size: int) -> None: ...
    def synchronize(self) -> None: ...


class Span(NamedTuple):
    """Bytes [low, high) of host memory, and the indices of the arguments in them."""

    low: int
    high: int
    members: tuple[int, ...]


def span_of(argument: Description, pointer: int, index: int) -> Span:
    """The bytes between an array's lowest and highest element."""
    size = array_element_bits(argument.type.dtype) // 8
    low = high = pointer
    for extent, stride in zip(argument.shape, argument.strides, strict=True):
        reach = (extent - 1) * stride * size
        low, high = min(low, low + reach), max(high, high + reach)
    return Span(low, high + size, (index,))


def merged(spans: Sequence[Span]) -> list[Span]:
    """Join overlapping spans, whose arguments may alias."""
    result: list[Span] = []
    for span in sorted(spans):
        if result and span.low < result[-1].high:
            last = result.pop()
            span = Span(last.low, max(last.high, span.high), last.members + span.members)
        result.append(span)
    return result


class Staging:
    """The device copies of one launch. `arguments` hold device addresses."""

    def __init__(self, arguments: Sequence[Description], memory: Memory) -> None:
        self._values = [argument.value for argument in arguments]
        self._memory = memory
        self._back: list[tuple[int, Bytes]] = []
        self._keep: list[Any] = []
        spans = []
        for index, argument in enumerate(arguments):
            if not argument.on_host:
                continue
            if 0 in argument.shape:
                self._values[index] = 0
            else:
                spans.append(span_of(argument, argument.pointer, index))
        for span in merged(spans):
            self._send(span, arguments)
        placed = zip(arguments, self._values, strict=True)
        self.arguments = [argument._replace(value=value) for argument, value in placed]

    def finish(self) -> None:
        """Wait for the kernel, and copy back the arrays that it may have written."""
        for address, copy in self._back:
            self._memory.download(address, copy)
        self._memory.synchronize()

    def _send(self, span: Span, arguments: Sequence[Description]) -> None:
        shift = span.low % GRAIN
        address, owner = self._memory.allocate(shift + span.high - span.low)
        self._keep.append(owner)
        self._memory.upload(address + shift, host_bytes(span.low, span.high))
        written = []
        for index in span.members:
            host = self._values[index]
            kind = arguments[index].type
            if isinstance(kind, ArrayType) and kind.writable:
                written.append(span_of(arguments[index], host, index))
            self._values[index] = address + shift + host - span.low
        for part in merged(written):
            start = address + shift + part.low - span.low
            self._back.append((start, host_bytes(part.low, part.high)))


def host_bytes(low: int, high: int) -> Bytes:
    """The host memory [low, high) as an array; its owner must outlive the array."""
    interface = {"data": (low, False), "shape": (high - low,), "typestr": "|u1", "version": 3}
    return np.asarray(type("HostBytes", (), {"__array_interface__": interface})())
