"""Global memory: arguments of a launch, and accesses of its threads.

Array i of a launch becomes allocation i, in the middle of the virtual addresses from
`(i + 1) << 40` on. It shares its bytes with the array. Allocations are far apart, so that an access
outside of them is always caught.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import ArgumentError, EmulationError, Misaligned, OutOfBounds
from tensorcore_dsl.interpreter.core import shadow
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.geometry import PerRank
from tensorcore_dsl.interpreter.core.named_arrays import NamedArray
from tensorcore_dsl.interpreter.memory import accesses
from tensorcore_dsl.interpreter.sanitizer.sanitizer import Sanitizer
from tensorcore_dsl.ir.nodes import Im2col
from tensorcore_dsl.isa.context import MULTIMEM_SHIFT, Context
from tensorcore_dsl.isa.spec import Instruction

MAP_SHIFT, MAP_BASE = 40, 0xF000  # tensor map i has the address (MAP_BASE + i) << MAP_SHIFT
ALIGNMENT = 256  # bytes; alignment of an allocation on a device


@dataclass(frozen=True)
class GlobalPointer:
    """An argument of a launch: the data pointer of an array.

    home: the real address that the array has outside of the launch, if it was moved for it.
    """

    array: np.ndarray
    name: str
    writable: bool = True
    home: int | None = None


@dataclass(frozen=True)
class TensorMapArgument:
    """A tensor map of an array: its `axes`, the innermost first, and the `box` of one copy; in im2col
    mode the box counts channels and pixels."""

    array: np.ndarray
    name: str
    axes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    writable: bool = True
    im2col: Im2col | None = None
    nan_fill: bool = False


class Arguments:
    """The arrays of a launch as allocations of global memory."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        arguments = [a for one in arguments for a in (one if isinstance(one, PerRank) else (one,))]
        self.pointers = [a for a in arguments if isinstance(a, GlobalPointer)]
        self.maps = [a for a in arguments if isinstance(a, TensorMapArgument)]
        self.table = np.zeros((max(len(self.pointers), 1), accesses.COLUMNS), np.int64)
        for i, pointer in enumerate(self.pointers):
            self.table[i] = _allocation(i, pointer)

    def spans(self) -> list[tuple[int, int]]:
        """First and past-the-end real address of each array."""
        pointers, maps = self.pointers, self.maps
        return [span(a.array) for a in pointers] + [span(a.array) for a in maps]

    def address(self, index: int) -> int:
        """The virtual address of element 0 of array `index`."""
        start = self.pointers[index].array.__array_interface__["data"][0]
        row = self.table[index]
        return int(row[accesses.VIRTUAL] + start - row[accesses.REAL])

    def virtual(self, real: int) -> int | None:
        """The virtual address for an address in an array outside of the launch, None if it is in none."""
        for start, size, _, _, home in self.table.tolist():
            if home <= real < home + size:
                return int(start + real - home)
        return None

    def describe(self, address: int) -> str:
        """Describe the memory at or near a virtual address, for messages."""
        if address >> MULTIMEM_SHIFT:
            return "it is a multimem address, which multimem.* instructions alone take (PTX manual, 8.2.3)"
        if address >> MAP_SHIFT >= MAP_BASE and address < MAP_BASE + len(self.maps) << MAP_SHIFT:
            name = self.maps[(address >> MAP_SHIFT) - MAP_BASE].name
            return (
                f"it lies in the tensor map {name!r}; pass {{0: map}} to a kernel that reads the map's bytes"
            )
        index = allocation_of(address)
        if not 0 <= index < len(self.pointers):
            return "it belongs to no argument of the launch"
        pointer, row = self.pointers[index], self.table[index]
        offset, size = address - int(row[accesses.VIRTUAL]), int(row[accesses.SIZE])
        array = pointer.array
        return (
            f"byte {offset} of argument {pointer.name!r}, which has bytes 0 to {size - 1} "
            f"(shape {array.shape}, dtype {array.dtype})"
        )

    def arrays(self) -> Iterator[tuple[NamedArray, np.ndarray]]:
        """Every array; the arrays of tensor maps come last."""
        arrays = [(a.name, a.array) for a in self.pointers]
        for name, array in arrays + [(a.name, a.array) for a in self.maps]:
            yield NamedArray(name, *span(array), array.shape, array.strides), array

    def element(self, real: int, size: int) -> str:
        """The element that `size` bytes at a real address belong to, for messages."""
        for named, _ in self.arrays():
            if named.low <= real < named.high:
                return named.element(real, size)
        return f"bytes {real:#x} to {real + size - 1:#x} of global memory"


def base_of(index: int) -> int:
    """The virtual address of an allocation."""
    return (2 * index + 3) << (accesses.SPACE_BITS - 1)


def allocation_of(address: Any) -> Any:
    """The index of the allocation to which a virtual address, or each of an array, belongs."""
    return (address >> accesses.SPACE_BITS) - 1


def _allocation(index: int, pointer: GlobalPointer) -> tuple[int, int, int, int, int]:
    """(virtual start, bytes, real start, writable, home); keeps the alignment within the base array."""
    array = pointer.array
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"argument {pointer.name!r} is a {type(array).__name__}, not a NumPy array")
    low, high = span(array)
    shift = (low - owner_of(array)) % ALIGNMENT
    writable = pointer.writable and array.flags.writeable
    return base_of(index) + shift, high - low, low, int(writable), pointer.home or low


def owner_of(array: np.ndarray) -> int:
    """The first real address of the array that an array is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return span(array)[0]


def span(array: np.ndarray) -> tuple[int, int]:
    """First and past-the-end real address of an array's elements."""
    start = array.__array_interface__["data"][0]
    if array.size == 0:
        return start, start
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low = start + sum(s for s in steps if s < 0)
    return low, start + sum(s for s in steps if s > 0) + array.itemsize


class GlobalMemory(accesses.WordMemory):
    """The arrays of a launch, as one chunk of CTAs accesses them."""

    space = "global"

    def __init__(self, chunk: Chunk, arguments: Arguments, sanitizer: Sanitizer) -> None:
        super().__init__(chunk, sanitizer)
        self.arguments = arguments
        self.table = arguments.table

    def move(self, mask: np.ndarray, addresses: np.ndarray, words: np.ndarray, stores: bool) -> int:
        count, width = words.shape[0], words.dtype.itemsize
        data, checks = words.view(np.uint8), self.chunk.checks
        return accesses.global_move(addresses, mask, self.table, data, width, count, checks, stores)

    def real_addresses(self, addresses: np.ndarray, mask: np.ndarray, size: int) -> np.ndarray | None:
        if not (self._rows(addresses)[:, accesses.WRITABLE] > 0)[mask].all():
            return None
        return self.location(addresses)

    def location(self, addresses: np.ndarray) -> np.ndarray:
        rows = self._rows(addresses)
        start = rows[:, accesses.REAL] - rows[:, accesses.VIRTUAL]
        return np.asarray(addresses.astype(np.int64) + start)

    def home(self, addresses: np.ndarray) -> np.ndarray:
        """The real addresses, outside of the launch, of virtual addresses."""
        rows = self._rows(addresses)
        return np.asarray(addresses.astype(np.int64) + rows[:, accesses.HOME] - rows[:, accesses.VIRTUAL])

    def each_rank(self, ctx: Context, instr: Instruction, addresses: Any) -> list[np.ndarray]:
        active = self.active(ctx)
        addresses = np.broadcast_to(addresses, active.shape)
        worlds = addresses >> np.uint64(MULTIMEM_SHIFT)
        pointers = len(self.arguments.pointers)
        refused = active & ((worlds == 0) | (pointers == 0))
        if refused.any():
            thread = int(np.argmax(refused))
            raise EmulationError(
                f"{instr.mnemonic} of {self.chunk.describe(thread)} is given {int(addresses[thread]):#x}, "
                f"no multimem address: peers.multicast() of a tc.PeerArray makes one ({instr.section})"
            )
        offsets = addresses & np.uint64((1 << MULTIMEM_SHIFT) - 1)
        starts = np.array([*map(self.arguments.address, range(pointers))], np.uint64)
        first = allocation_of(offsets.astype(np.int64))
        ranks = np.clip(first + np.arange(int(worlds[active].max(initial=0)))[:, None], 0, len(starts) - 1)
        return list(offsets + starts[ranks] - starts[ranks[:1]])

    def _rows(self, addresses: np.ndarray) -> np.ndarray:
        """The rows of the table for virtual addresses; any row for an address outside of all arrays."""
        last = len(self.table) - 1
        return self.table[np.clip((addresses >> accesses.SPACE_BITS).astype(np.int64) - 1, 0, last)]

    def locate(self, address: int, size: int, verb: str, thread: int) -> tuple[str, int]:
        """The argument that `size` bytes at a virtual address belong to, and their real address."""
        index = allocation_of(address)
        inside = 0 <= index < len(self.arguments.pointers)
        row = self.table[index] if inside else np.zeros(accesses.COLUMNS, int)
        offset = address - int(row[accesses.VIRTUAL])
        failure = 0 if 0 <= offset <= row[accesses.SIZE] - size else shadow.OUTSIDE
        if not failure and "store" in verb and not row[accesses.WRITABLE]:
            failure = shadow.READ_ONLY
        if failure:
            addresses = np.full(thread + 1, address, np.uint64)
            self.refuse(failure << 32 | thread, addresses, size, verb)
        return f"argument {self.arguments.pointers[index].name!r}", int(row[accesses.REAL]) + offset

    def read_only(self, address: int) -> bool:
        """True if no thread may write the argument at a virtual address."""
        return not self.table[allocation_of(address), accesses.WRITABLE]

    def refuse(self, failure: int, addresses: np.ndarray, size: int, verb: str) -> NoReturn:
        """Raise the error of a failed check."""
        code, thread = failure >> 32, failure & 0xFFFFFFFF
        address = int(addresses[thread])
        what = f"global {verb} of {size} bytes at {address:#x} by {self.chunk.describe(thread)}"
        where = self.arguments.describe(address)
        if code == shadow.OUTSIDE:
            raise OutOfBounds(f"{what}: {where}")
        if code == shadow.READ_ONLY:
            raise EmulationError(f"read-only memory: {what}: {where}")
        raise Misaligned(f"{what}, which is not a multiple of {size}: {where}")
