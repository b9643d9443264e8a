"""Boxes of arrays in global memory, as bulk copies and reductions move them.

In shared memory the rows of a box are contiguous; with a swizzle their distance is its span, as on
an H200. A box always has five axes, the innermost first; missing axes have one element.

The compiled loops check every chunk. They return 0, or `code << 32 | address` for the first shared
address that fails a check. `shared` is a `shadow.Shared`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import EmulationError, listing
from tensorcore_dsl.interpreter.core import native, shadow
from tensorcore_dsl.interpreter.memory.global_memory import TensorMapArgument
from tensorcore_dsl.interpreter.sanitizer.async_proxy import CHUNK, unfenced
from tensorcore_dsl.isa import reductions
from tensorcore_dsl.isa.descriptor import spans_of
from tensorcore_dsl.lowering import compiled
from tensorcore_dsl.numerics.scalar import OOB_NAN

RANK = 5
EXTENT, STRIDE, BOX, START = range(4)  # rows of a plan: elements, bytes, elements, coordinates


# Eight bytes of OOB-NaN (PTX manual 5.5.3.3). An H200 fills elements of 4 and 8 bytes with its 16 bits too.
NAN_FILL = OOB_NAN * 0x0001_0001_0001_0001


class Shape(NamedTuple):
    """A box of an array, without its origin, for compiled functions.

    Attributes
    ----------
    real : int
        Real address of the array's first element.
    plan
        (4, RANK).
    element : int
        Bytes of an element.
    mask : int
        Address bits that the swizzle changes, 0 for none.
    pitch, fill : int
        See `TensorBox`.
    """

    real: int
    plan: Any
    element: int
    mask: int
    pitch: int
    fill: int


@dataclass(frozen=True)
class TensorBox(EagerDict):
    """A box, and the array that it is cut from.

    Attributes
    ----------
    real, plan, element, mask
        See `Shape`.
    dtype
        NumPy type of the elements; for contiguous bytes the name of an element type, or None.
    map_at : int
        Real address of its tensor map, 0 for none in global memory.
    fill : int
        Eight bytes of the elements outside of the array.
    """

    name: str
    real: int
    plan: np.ndarray
    element: int
    mask: int
    writable: bool
    dtype: Any = None
    map_at: int = 0
    fill: int = 0

    @classmethod
    def of(cls, argument: TensorMapArgument) -> TensorBox:
        """The box of a tensor map, at no coordinates yet."""
        array, rank = argument.array, len(argument.axes)
        plan = np.ones((4, RANK), np.int64)
        plan[EXTENT, :rank] = [array.shape[axis] for axis in argument.axes]
        plan[STRIDE, :rank] = [array.strides[axis] for axis in argument.axes]
        plan[BOX, : len(argument.box)] = argument.box
        mask = argument.swizzle - 16 if argument.swizzle else 0
        real = array.__array_interface__["data"][0]
        name, writable = f"argument {argument.name!r}", argument.writable and array.flags.writeable
        fill = NAN_FILL if argument.nan_fill else 0
        return cls(name, real, plan, array.itemsize, mask, writable, array.dtype, fill=fill)

    @classmethod
    def contiguous(cls, name: str, real: int, size: int, dtype: str | None = None) -> TensorBox:
        """`size` contiguous bytes, with elements of `dtype` for a reduction."""
        element = dtypes.named(dtype).bits // 8 if dtype else 1
        plan = np.ones((4, RANK), np.int64)
        plan[EXTENT, 0] = plan[BOX, 0] = size // element
        plan[STRIDE, 0] = element
        plan[START] = 0
        return cls(name, real, plan, element, 0, True, dtype)

    def at(self, coordinates: tuple[int, ...], offsets: Sequence[int] = ()) -> TensorBox:
        """The box that starts at these coordinates. offsets: the im2col offsets."""
        plan = self.plan.copy()
        plan[START] = 0
        plan[START, : len(coordinates)] = coordinates
        return replace(self, plan=plan)

    @property
    def start(self) -> tuple[int, ...]:
        """The coordinates of its first element."""
        return tuple(self.plan[START].tolist())

    def outside(self, start: Sequence[int]) -> str:
        """Say that the box at these coordinates lies outside of the array."""
        extent, size = (tuple(self.plan[row, : len(start)].tolist()) for row in (EXTENT, BOX))
        return (
            f"a box of {size} elements at coordinates {tuple(start)} lies outside of the array of "
            f"{extent} (innermost axis first)"
        )

    def write_back(self) -> None:
        """A store or a reduction has changed the box."""

    @cached_property
    def size(self) -> int:
        """Bytes of the whole box, including the part outside of the array."""
        return int(self.plan[BOX].prod()) * self.element

    @property
    def row(self) -> int:
        """Bytes of a row of the box."""
        return int(self.plan[BOX, 0]) * self.element

    @property
    def pitch(self) -> int:
        """Bytes from one row to the next in shared memory."""
        return self.mask + CHUNK if self.mask else self.row

    @property
    def shape(self) -> Shape:
        return Shape(self.real, self.plan, self.element, self.mask, self.pitch, self.fill)

    @cached_property
    def reach(self) -> int:
        """Bytes of shared memory that the box spans."""
        return self.size // self.row * self.pitch

    @property
    def inside(self) -> int:
        """Bytes of the box that lie inside the array."""
        first, last = self.clipped()
        return int(np.maximum(last - first, 0).prod()) * self.element

    def clipped(self) -> tuple[np.ndarray, np.ndarray]:
        """First and past-the-end coordinates of the part inside the array."""
        start = self.plan[START]
        return np.maximum(start, 0), np.minimum(start + self.plan[BOX], self.plan[EXTENT])

    def chunks_at(self, addresses: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`chunks` in box order, `rows` and `spans` of a `Read` of the box at each address."""
        different, rows = np.unique(addresses, return_inverse=True)
        key = tuple(different.tolist())
        chunks, spans = _chunks(self.row, self.pitch, self.reach, self.mask, key)
        return chunks, rows, spans

    def rows_inside(self, starts: np.ndarray) -> np.ndarray:
        """Compute the real addresses of the rows of boxes at coordinates `starts`: (boxes, rows, 2).

        They are the first byte of a row, and the byte past its last one. Rows outside of the array are
        empty.
        """
        ends = np.minimum(starts + self.plan[BOX], self.plan[EXTENT])
        low, high = np.maximum(starts[:, :1], 0), ends[:, :1]
        inside, real = low < high, np.full(low.shape, self.real)
        for axis in range(1, RANK):
            indices = (starts[:, axis, None] + np.arange(self.plan[BOX, axis]))[:, None]
            part = inside[..., None] & (indices >= 0) & (indices < self.plan[EXTENT, axis])
            inside = part.reshape(len(starts), -1)
            real = (real[..., None] + indices * self.plan[STRIDE, axis]).reshape(inside.shape)
        rows = np.stack((real + low * self.element, real + high * self.element), axis=-1)
        return np.where(inside[..., None], rows, 0)

    def reduce(self, data: np.ndarray, address: int, op: str) -> None:
        """Reduce the box in shared memory at `address` into the part of it inside the array.

        This is the reduction of bulk copies (PTX manual 9.7.9.25.4.2).
        """
        name = self.dtype if isinstance(self.dtype, str) else dtypes.from_numpy(self.dtype).name
        if name not in reductions.ALLOWED[op]:
            raise EmulationError(
                f"a bulk reduction .{op} of {self.name}, whose elements are {name}; allowed are "
                + listing(reductions.ALLOWED[op])
            )
        first, last = self.clipped()
        if (last <= first).any():
            return
        bits, start, box = np.dtype(f"u{self.element}"), self.plan[START], self.plan[BOX]
        chunks = data[: len(data) // CHUNK * CHUNK].reshape(-1, CHUNK)
        source = chunks[self.chunks_at([address])[0][0]].reshape(-1).view(bits).reshape(box[::-1])
        part = tuple(slice(a, b) for a, b in zip((first - start)[::-1], (last - start)[::-1]))
        shape, strides = tuple((last - first)[::-1]), tuple(self.plan[STRIDE][::-1])
        reach = int((last - first - 1) @ self.plan[STRIDE]) + self.element
        real = self.real + int(first @ self.plan[STRIDE])
        memory: Any = (ctypes.c_uint8 * reach).from_address(real)
        target = np.ndarray(shape, bits, memory, 0, strides)
        target[...] = reductions.update(op, name)(target.copy(), source[part])


@lru_cache(64)
def _chunks(
    row: int, pitch: int, reach: int, mask: int, addresses: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """(addresses, chunks) numbers of the chunks that a box occupies, and their spans (`spans_of`)."""
    rows, bytes = np.arange(0, reach, pitch), np.arange(0, row, CHUNK)
    bytes_of_rows = np.array(addresses)[:, None] + (rows[:, None] + bytes).ravel()
    numbers = (bytes_of_rows ^ (bytes_of_rows >> 3 & mask)) // CHUNK
    return numbers, spans_of(numbers)


@native.inlined
def _next_row(index: Any, plan: Any) -> None:
    """Advance the index of a row within a box, (RANK,), whose innermost entry stays 0."""
    axis = 1
    while axis < RANK:
        index[axis] += 1
        if index[axis] < plan[BOX, axis]:
            axis = RANK
        else:
            index[axis] = 0
            axis += 1


@native.inlined
def _readers(line: int, length: int, readers: Any) -> Any:
    """Not 0 if one of `length` bytes is being read."""
    reading = np.uint64(0)
    first, last = line // CHUNK, (line + length) // CHUNK
    while first + 4 <= last:
        reading |= native.peek64(readers.ctypes.data + 2 * first)
        first += 4
    for chunk in range(first, last):
        reading |= np.uint64(readers[chunk])
    return reading


@native.inlined
def _line_is_free(line: int, length: int, states: Any, readers: Any) -> bool:
    """True if a load may overwrite `length` bytes: no copy, barrier or reader has any of them."""
    busy = np.uint64(0)
    for byte in range(0, length, 8):
        busy |= native.peek64(states.ctypes.data + line + byte)
    busy &= np.uint64(shadow.BUSY)
    if readers.size:
        busy |= np.uint64(_readers(line, length, readers))
    free: bool = busy == 0
    return free


@native.inlined
def _takes_pages(target: int, end: int, states: Any, pages: Any, readers: Any) -> bool:
    """True if a load from `target` to before `end` fills whole pages that nobody has any byte of.

    Then they are in flight.
    """
    if target % shadow.PAGE or end % shadow.PAGE or end > states.size:
        return False
    for page in range(target // shadow.PAGE, end // shadow.PAGE):
        if pages[page] == shadow.FLYING:
            return False
        at = page * shadow.PAGE
        if pages[page] != shadow.FILLED:
            if not _line_is_free(at, shadow.PAGE, states, readers):
                return False
        elif readers.size and _readers(at, shadow.PAGE, readers):
            return False
    for page in range(target // shadow.PAGE, end // shadow.PAGE):
        if pages[page] != shadow.FILLED:
            for byte in range(page * shadow.PAGE, (page + 1) * shadow.PAGE, 8):
                native.poke64(states.ctypes.data + byte, shadow.ALL_WRITTEN)
        pages[page] = np.uint8(shadow.FLYING)
    return True


@native.inlined
def _load_line(
    source: int, line: int, length: int, mask: int, data: Any, states: Any, checked: bool, stamps: Any
) -> None:
    """Copy a row of a box that fills `length` bytes from `line` on, in swizzled order."""
    stamped = False
    for page in range(line // shadow.PAGE, (line + length - 1) // shadow.PAGE + 1):
        stamped = stamped or shadow.is_stamped(stamps, page * shadow.PAGE)
    if checked:
        for byte in range(0, length, 8):
            native.poke64(states.ctypes.data + line + byte, shadow.ALL_PENDING)
    if stamped:
        for byte in range(0, length, 8):
            native.poke64(stamps.ctypes.data + line + byte, np.uint64(0))
    turn = line >> 3 & mask
    for byte in range(0, length, CHUNK):
        native.copy16(data.ctypes.data + line + (byte ^ turn), source + byte)


@compiled
def load_box(box: Any, start: Any, shared: Any, cta: int, target: int) -> int:  # noqa: PLR0915
    """Copy a box to `target` in a CTA, with its fill outside of the array, and mark it as in flight.

    start: (RANK,) coordinates.
    """
    plan, element, mask, pitch, checked = box.plan, box.element, box.mask, box.pitch, shared.checked
    data, states, pages = shared.data[cta], shared.states[cta], shared.pages[cta]
    stamps, readers = shared.stamps[cta], shared.readers[cta]
    rows = plan[BOX, 1] * plan[BOX, 2] * plan[BOX, 3] * plan[BOX, 4]
    length, first = plan[BOX, 0] * element, start[0]
    low = max(0, -first) * element
    high = min(plan[BOX, 0], plan[EXTENT, 0] - first) * element
    # Do rows fill lines of shared memory, within which the swizzle moves their chunks?
    lines = low == 0 and high == length and length % CHUNK == 0
    lines = lines and (mask == 0 or (length == pitch and target % pitch == 0))
    end, whole = target + rows * pitch, lines and checked
    for axis in range(1, RANK):
        whole = whole and start[axis] >= 0 and start[axis] + plan[BOX, axis] <= plan[EXTENT, axis]
    apart = checked and not (whole and _takes_pages(target, end, states, pages, readers))
    if apart:
        known, last = pages.ctypes.data, min(end, data.size)
        shadow.are_filled(states.ctypes.data, known, target, last)
        for page in range(target // shadow.PAGE, (last - 1) // shadow.PAGE + 1):
            pages[page] = np.uint8(shadow.UNKNOWN)
    index = np.zeros(RANK, np.int64)
    for row in range(rows):
        source, inside = box.real + first * element, True
        for axis in range(1, RANK):
            coordinate = start[axis] + index[axis]
            inside = inside and coordinate >= 0 and coordinate < plan[EXTENT, axis]
            source += coordinate * plan[STRIDE, axis]
        _next_row(index, plan)
        line = target + row * pitch
        fits = lines and inside and line + length <= data.size
        native.prefetch(source + 16 * plan[STRIDE, 1])
        native.prefetch(source + 16 * plan[STRIDE, 1] + 64)
        if fits and (not apart or _line_is_free(line, length, states, readers)):
            _load_line(source, line, length, mask, data, states, apart, stamps)
            continue
        for byte in range(0, length, CHUNK):
            at = line + byte
            at ^= at >> 3 & mask
            if at + CHUNK > data.size:
                return native.error_at(shadow.OUTSIDE, at)
            if readers.size and readers[at >> 4]:
                return native.error_at(shadow.STILL_READ, at)
            if checked:
                if shadow.in_flight(states.ctypes.data + at, CHUNK):
                    return native.error_at(shadow.IN_FLIGHT, at)
                shadow.mark(states.ctypes.data + at, CHUNK, shadow.PENDING)
            if shadow.is_stamped(stamps, at):
                native.poke64(stamps.ctypes.data + at, np.uint64(0))
                native.poke64(stamps.ctypes.data + at + 8, np.uint64(0))
            to = data.ctypes.data + at
            if inside and low <= byte and byte + CHUNK <= high:
                native.copy16(to, source + byte)
                continue
            native.poke64(to, np.uint64(box.fill))
            native.poke64(to + 8, np.uint64(box.fill))
            if inside:
                for i in range(max(low - byte, 0), min(high - byte, CHUNK)):
                    native.poke8(to + i, native.peek8(source + byte + i))
    return 0


@compiled
def load_boxes(box: Any, starts: Any, own: Any, ctas: Any, targets: Any, shared: Any, failed: Any) -> int:
    """Copy boxes at coordinates `starts`, (threads, RANK), each to shared memory of one of `ctas`.

    own: the rows of `starts`. failed: (1,), the box that fails a check.
    """
    for i in range(ctas.size):
        failure = load_box(box, starts[own[i]], shared, ctas[i], targets[i])
        if failure:
            failed[0] = i
            return failure
    return 0


@compiled
def store_box(
    box: Any, start: Any, shared: Any, cta: int, source: int, first_thread: int, copies: bool
) -> int:
    """Copy the part of a box inside the array from `source` in a CTA; without `copies` only check.

    start: (RANK,) coordinates. Whole units of 16 bytes are written, as on an H200: where a row of
    the array ends within one, the rest of it, too, but for the last row, after which the array ends.
    """
    plan, element, mask, pitch = box.plan, box.element, box.mask, box.pitch
    data, states, stamps = shared.data[cta], shared.states[cta], shared.stamps[cta]
    rows = plan[BOX, 1] * plan[BOX, 2] * plan[BOX, 3] * plan[BOX, 4]
    length, first = plan[BOX, 0] * element, start[0]
    low = max(0, -first) * element
    high = min(plan[BOX, 0], plan[EXTENT, 0] - first) * element
    units, end = min((high + CHUNK - 1) & -CHUNK, length), box.real + element
    for axis in range(RANK):
        end += (plan[EXTENT, axis] - 1) * plan[STRIDE, axis]
    index = np.zeros(RANK, np.int64)
    for row in range(rows):
        target, inside = box.real + first * element, copies
        for axis in range(1, RANK):
            coordinate = start[axis] + index[axis]
            inside = inside and coordinate >= 0 and coordinate < plan[EXTENT, axis]
            target += coordinate * plan[STRIDE, axis]
        _next_row(index, plan)
        for byte in range(0, length, CHUNK):
            at = source + row * pitch + byte
            at ^= at >> 3 & mask
            if at + CHUNK > data.size:
                return native.error_at(shadow.OUTSIDE, at)
            if shared.checked and not shadow.all_written(states.ctypes.data + at, CHUNK):
                return native.error_at(shadow.shadow_error(states.ctypes.data + at, CHUNK), at)
            if stamps.size and unfenced(stamps, shared.judged, first_thread, at):
                return native.error_at(shadow.UNFENCED, at)
            if inside and low <= byte and byte + CHUNK <= high:
                native.copy16(target + byte, data.ctypes.data + at)
            elif inside:
                for i in range(max(low - byte, 0), min(units - byte, CHUNK)):
                    if byte + i < high or target + byte + i < end:
                        native.poke8(target + byte + i, native.peek8(data.ctypes.data + at + i))
    return 0


@compiled
def store_boxes(box: Any, starts: Any, ctas: Any, sources: Any, shared: Any, first: Any, failed: Any) -> int:
    """Copy boxes at coordinates `starts`, (boxes, RANK), each from shared memory of one of `ctas`.

    first: of each box the first thread of the cluster. failed: (1,), the box that fails a check.
    """
    for i in range(ctas.size):
        failure = store_box(box, starts[i], shared, ctas[i], sources[i], first[i], True)
        if failure:
            failed[0] = i
            return failure
    return 0


class Coordinates(NamedTuple):
    """(T,) handles of tensor maps, and (T,) uint32 coordinates."""

    handles: Any
    first: Any
    second: Any
    third: Any
    fourth: Any
    fifth: Any


@compiled
def place_boxes(threads: Any, named: Any, box: Any, starts: Any, touching: Any) -> int:
    """The bytes inside the array of the boxes of some threads, and the coordinates of each.

    named: the `Coordinates`. starts: becomes (threads, RANK); touching: (threads,) bool, the boxes
    that have bytes inside. -1 if a thread names another array, or a row is not aligned.
    """
    plan = box.plan
    total = 0
    for i in range(threads.size):
        thread = threads[i]
        if named.handles[thread] != named.handles[threads[0]]:
            return -1
        starts[i, 0], starts[i, 1], starts[i, 2] = (
            named.first[thread],
            named.second[thread],
            named.third[thread],
        )
        starts[i, 3], starts[i, 4] = named.fourth[thread], named.fifth[thread]
        inside = box.element
        for axis in range(RANK):
            start = (starts[i, axis] ^ 1 << 31) - (1 << 31)
            starts[i, axis] = start
            end = min(start + plan[BOX, axis], plan[EXTENT, axis])
            inside *= max(end - max(start, 0), 0)
        if starts[i, 0] * box.element % CHUNK:
            return -1
        touching[i] = inside > 0
        total += inside
    return total
