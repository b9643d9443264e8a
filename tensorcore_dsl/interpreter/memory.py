"""Global and shared memory of the interpreter: addresses, checks, atomics, asynchronous copies.

Array i of a launch becomes allocation i, amid the virtual addresses from `(i + 1) << 40` on; its
bytes are those of the array itself. No two allocations are neighbours, so that whatever
leaves one is caught. Shared memory has a shadow, one byte for each byte: never written,
written, or owned by an asynchronous copy in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import (
    ArgumentError,
    EmulationError,
    Misaligned,
    OutOfBounds,
    Uninitialised,
)
from tensorcore_dsl.interpreter import gather
from tensorcore_dsl.interpreter.traces import Access
from tensorcore_dsl.isa.context import CLUSTER_SHIFT

if TYPE_CHECKING:
    from tensorcore_dsl.interpreter.machine import Machine

_WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
MAP_SHIFT, MAP_BASE = 40, 0xF000  # tensor map i has the address (MAP_BASE + i) << MAP_SHIFT
_ALIGNMENT = 256  # what a device allocation starts at a multiple of


@dataclass(frozen=True)
class GlobalPointer:
    """An argument of a launch: the data pointer of an array."""

    array: np.ndarray
    name: str
    writable: bool = True


@dataclass(frozen=True)
class TensorMapArgument:
    """A tensor map of an array: its `axes`, the innermost first, and `box` elements a copy."""

    array: np.ndarray
    name: str
    axes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    writable: bool = True


class Arguments:
    """The arrays of a launch as allocations of global memory."""

    def __init__(
        self, pointers: Sequence[GlobalPointer], maps: Sequence[TensorMapArgument] = ()
    ) -> None:
        self.pointers, self.maps = list(pointers), list(maps)
        self.table = np.zeros((max(len(self.pointers), 1), gather.COLUMNS), np.int64)
        for i, pointer in enumerate(self.pointers):
            self.table[i] = _allocation(i, pointer)

    def address(self, index: int) -> int:
        """The virtual address of element 0 of array `index`."""
        start = self.pointers[index].array.__array_interface__["data"][0]
        row = self.table[index]
        return int(row[gather.VIRTUAL] + start - row[gather.REAL])

    def describe(self, address: int) -> str:
        """What lies at or near a virtual address."""
        index = (address >> gather.SPACE_BITS) - 1
        if not 0 <= index < len(self.pointers):
            return "it belongs to no argument of the launch"
        pointer, row = self.pointers[index], self.table[index]
        offset, size = address - int(row[gather.VIRTUAL]), int(row[gather.SIZE])
        array = pointer.array
        return (
            f"byte {offset} of argument {pointer.name!r}, which has bytes 0 to {size - 1} "
            f"(shape {array.shape}, dtype {array.dtype})"
        )


def _allocation(index: int, pointer: GlobalPointer) -> tuple[int, int, int, int]:
    """(virtual start, bytes, real start, writable); keeps the alignment within the base array."""
    array = pointer.array
    if not isinstance(array, np.ndarray):
        raise ArgumentError(
            f"argument {pointer.name!r} is a {type(array).__name__}, not a NumPy array"
        )
    low, high = _span(array)
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    shift = (low - _span(owner)[0]) % _ALIGNMENT
    writable = pointer.writable and array.flags.writeable
    start = ((2 * index + 3) << (gather.SPACE_BITS - 1)) + shift
    return start, high - low, low, int(writable)


def _span(array: np.ndarray) -> tuple[int, int]:
    """First and past-the-end real address of an array's elements."""
    start = array.__array_interface__["data"][0]
    if array.size == 0:
        return start, start
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low = start + sum(s for s in steps if s < 0)
    return low, start + sum(s for s in steps if s > 0) + array.itemsize


NOT_MET = "a bulk load brought these bytes; its mbarrier must be waited for first"


class GlobalMemory:
    """The arrays of a launch, as one chunk of CTAs sees them."""

    space = "global"

    def __init__(self, arguments: Arguments, checks: bool) -> None:
        self.arguments = arguments
        self.table = arguments.table
        self.checks = checks

    def load(self, ctx: Machine, addresses: np.ndarray, width: int, count: int) -> np.ndarray:
        """(count, T) words."""
        out = np.empty((count, addresses.size), _WORDS[width])
        mask = active_threads(ctx)
        ctx.account(self.space, "load", addresses, mask, width * count)
        wrong = gather.global_load(
            addresses, mask, self.table, out.view(np.uint8), width, count, self.checks
        )
        if wrong:
            self.refuse(ctx, wrong, addresses, width * count, "load")
        return out

    def store(self, ctx: Machine, addresses: np.ndarray, values: np.ndarray) -> None:
        """values: (count, T) words."""
        values = np.ascontiguousarray(values)
        count, width = values.shape[0], values.dtype.itemsize
        mask = active_threads(ctx)
        ctx.account(self.space, "store", addresses, mask, width * count)
        wrong = gather.global_store(
            addresses, mask, self.table, values.view(np.uint8), width, count, self.checks
        )
        if wrong:
            self.refuse(ctx, wrong, addresses, width * count, "store")

    def atomic(
        self, ctx: Machine, addresses: np.ndarray, width: int, update: Any, *operands: Any
    ) -> np.ndarray:
        """In thread order: old = word; word = update(old, *operands); (T,) old words."""
        return atomically(self, ctx, addresses, addresses, width, update, operands)

    def place(
        self, ctx: Machine, address: int, size: int, verb: str, thread: int
    ) -> tuple[str, int]:
        """The argument that `size` bytes at a virtual address belong to, and their real address."""
        index = (address >> gather.SPACE_BITS) - 1
        row = self.table[index] if 0 <= index < len(self.arguments.pointers) else np.zeros(4, int)
        offset = address - int(row[gather.VIRTUAL])
        wrong = 0 if 0 <= offset <= row[gather.SIZE] - size else gather.OUTSIDE
        if not wrong and "store" in verb and not row[gather.WRITABLE]:
            wrong = gather.READ_ONLY
        if wrong:
            addresses = np.full(thread + 1, address, np.uint64)
            self.refuse(ctx, wrong << 32 | thread, addresses, size, verb)
        return f"argument {self.arguments.pointers[index].name!r}", int(row[gather.REAL]) + offset

    def refuse(
        self, ctx: Machine, wrong: int, addresses: np.ndarray, size: int, verb: str
    ) -> NoReturn:
        code, thread = wrong >> 32, wrong & 0xFFFFFFFF
        address = int(addresses[thread])
        what = f"global {verb} of {size} bytes at {address:#x} by {ctx.describe(thread)}"
        where = self.arguments.describe(address)
        if code == gather.OUTSIDE:
            raise OutOfBounds(f"out of bounds: {what}: {where}")
        if code == gather.READ_ONLY:
            raise EmulationError(f"read-only memory: {what}: {where}")
        raise Misaligned(f"misaligned: {what}, which is no multiple of {size}: {where}")


class SharedMemory:
    """Shared memory of a chunk of CTAs: `data` and `shadow` are (CTAs, bytes)."""

    space = "shared"

    def __init__(self, data: np.ndarray, checks: bool, written: bool = False) -> None:
        self.data = np.ascontiguousarray(data)
        self.shadow = np.zeros(data.shape, np.uint8)  # NEVER
        if written:
            self.shadow += np.uint8(gather.WRITTEN)
        self.checks = checks

    def load(self, ctx: Machine, addresses: np.ndarray, width: int, count: int) -> np.ndarray:
        """(count, T) words."""
        out = np.empty((count, addresses.size), _WORDS[width])
        mask = active_threads(ctx)
        ctx.account(self.space, "load", addresses, mask, width * count)
        wrong = gather.shared_load(
            addresses, mask, self.data, self.shadow, out.view(np.uint8), width, count,
            self.checks, ctx.proxies.landed, ctx.met,
        )  # fmt: skip
        if wrong:
            self.refuse(ctx, wrong, addresses, width * count, "load")
        if ctx.traces is not None:
            ctx.traces.load(Access.own(ctx, addresses, mask, width * count, "load"))
        return out

    def load_matrices(
        self, ctx: Machine, addresses: np.ndarray, matrices: int, transposed: bool
    ) -> np.ndarray:
        """(matrices, T) words: 8x8 matrices of 16 bits from the rows that the lanes name."""
        out = np.empty((matrices, addresses.size), np.uint32)
        mask = active_threads(ctx)
        ctx.account(self.space, "load", addresses, mask, 16)
        wrong = gather.matrix_load(
            addresses, mask, self.data, self.shadow, out, matrices, transposed, self.checks,
            ctx.proxies.landed, ctx.met,
        )  # fmt: skip
        if wrong:
            self.refuse(ctx, wrong, addresses, 16, "load")
        if ctx.traces is not None:
            ctx.traces.load(Access.own(ctx, addresses, mask, 16, "load"))
        return out

    def store(self, ctx: Machine, addresses: np.ndarray, values: np.ndarray) -> None:
        """values: (count, T) words."""
        values = np.ascontiguousarray(values)
        count, width = values.shape[0], values.dtype.itemsize
        mask = active_threads(ctx)
        ctx.account(self.space, "store", addresses, mask, width * count)
        wrong = gather.shared_store(
            addresses, mask, self.data, self.shadow, values.view(np.uint8), width, count,
            self.checks, ctx.proxies.stamps, ctx.proxies.readers, ctx.proxies.epochs,
        )  # fmt: skip
        if wrong:
            self.refuse(ctx, wrong, addresses, width * count, "store")
        if ctx.traces is not None:
            ctx.traces.store(Access.own(ctx, addresses, mask, width * count, "store"))

    def atomic(
        self, ctx: Machine, addresses: np.ndarray, width: int, update: Any, *operands: Any
    ) -> np.ndarray:
        """In thread order: old = word; word = update(old, *operands); (T,) old words."""
        keys = addresses + (
            np.arange(addresses.size, dtype=np.uint64) // ctx.group << np.uint64(32)
        )
        return atomically(self, ctx, addresses, keys, width, update, operands)

    def copy_async(
        self, ctx: Machine, target: np.ndarray, source: np.ndarray, size: int, valid: np.ndarray
    ) -> None:
        """cp.async: `size` bytes to `target`, `valid` of them from global `source`, then zeros."""
        ctx.copies.issue(ctx, target, source, size, valid)

    def refuse(
        self, ctx: Machine, wrong: int, addresses: np.ndarray, size: int, verb: str
    ) -> NoReturn:
        code, thread = wrong >> 32, wrong & 0xFFFFFFFF
        address = int(addresses[thread])
        what = f"shared {verb} of {size} bytes at {address:#x} by {ctx.describe(thread)}"
        self.refuse_at(ctx, code, thread // ctx.group, address, size, what)

    def refuse_at(
        self, ctx: Machine, code: int, cta: int, address: int, size: int, what: str
    ) -> NoReturn:
        """`what` went wrong with `size` bytes of a CTA."""
        total = self.data.shape[1]
        if code == gather.OUTSIDE:
            has = f"bytes 0 to {total - 1:#x}" if total else "no shared memory"
            if address >> CLUSTER_SHIFT:
                has += "; this is an address in another CTA of the cluster"
            raise OutOfBounds(f"out of bounds: {what}: the CTA has {has}")
        if code == gather.MISALIGNED:
            raise Misaligned(f"misaligned: {what}, which is no multiple of {size}")
        if code == gather.STILL_READ:
            raise EmulationError(
                f"{what}: these bytes are still read by " + ctx.proxies.reader(ctx, cta, address)
            )
        if code == gather.NOT_MET:
            raise Uninitialised(f"{what}: {NOT_MET}")
        away = self.shadow[cta, address : address + size] != gather.WRITTEN
        if code == gather.IN_FLIGHT:
            away &= self.shadow[cta, address : address + size] != gather.NEVER
            raise Uninitialised(f"{what}: " + self.held(ctx, cta, address + int(np.argmax(away))))
        byte = address + int(np.argmax(away))
        raise Uninitialised(f"uninitialised: {what}: nothing has written byte {byte:#x}")

    def held(self, ctx: Machine, cta: int, byte: int) -> str:
        """Who owns a byte that ordinary accesses must leave alone."""
        if self.shadow[cta, byte] == gather.BARRIER:
            return f"byte {byte:#x} belongs to the " + ctx.mbarriers.name(cta, byte // 8)
        return ctx.bulk.owner(cta, byte)


class Lanes:
    """A context in which only some threads are active."""

    def __init__(self, ctx: Any, threads: np.ndarray) -> None:
        self._ctx = ctx
        self.active = np.zeros(ctx.threads, np.bool_)
        self.active[threads] = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def active_threads(ctx: Any) -> np.ndarray:
    """The active threads of a context, as an array."""
    active: np.ndarray | None = ctx.active
    every: np.ndarray = ctx.all_threads
    return every if active is None else active


def atomically(
    memory: Any, ctx: Machine, addresses: np.ndarray, keys: np.ndarray, width: int, update: Any,
    operands: tuple[Any, ...],
) -> np.ndarray:  # fmt: skip
    """Rounds in which no address occurs twice; an address meets its threads in their order."""
    result = np.zeros(addresses.size, _WORDS[width])
    who = np.flatnonzero(active_threads(ctx))
    for threads in _rounds(keys[who], who):
        lanes = Lanes(ctx, threads)
        old = memory.load(lanes, addresses, width, 1)[0]
        given = [o[threads] if np.ndim(o) else o for o in operands]
        new = old.copy()
        new[threads] = update(old[threads], *given)
        if not np.array_equal(new[threads], old[threads]):
            memory.store(lanes, addresses, new[None])
        result[threads] = old[threads]
    return result


def _rounds(keys: np.ndarray, who: np.ndarray) -> list[np.ndarray]:
    """Threads in groups without a repeated key: the n-th group has each key's n-th thread."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    first = np.concatenate(([True], ranked[1:] != ranked[:-1])) if len(ranked) else np.ones(0, bool)
    start = np.maximum.accumulate(np.where(first, np.arange(len(ranked)), 0))
    rank = np.empty(len(ranked), np.int64)
    rank[order] = np.arange(len(ranked)) - start
    if not rank.any():
        return [who] if len(who) else []
    by_rank = np.argsort(rank, kind="stable")
    return np.split(who[by_rank], np.cumsum(np.bincount(rank))[:-1])


@dataclass
class _Copy:
    """One cp.async of a cohort, for the threads of `mask`; `group` counts commits before it."""

    mask: np.ndarray
    group: np.ndarray
    target: np.ndarray
    source: np.ndarray
    size: int
    valid: np.ndarray


class Copies:
    """Asynchronous copies in flight and how many groups each thread has committed."""

    def __init__(self, threads: int) -> None:
        self.groups = np.zeros(threads, np.int64)
        self.queue: list[_Copy] = []

    def issue(
        self, ctx: Machine, target: np.ndarray, source: np.ndarray, size: int, valid: np.ndarray
    ) -> None:
        shared, table = ctx.shared, ctx.globals.table
        valid = np.ascontiguousarray(np.broadcast_to(valid, target.shape), dtype=np.uint32)
        mask = active_threads(ctx)
        ctx.account("global", "load", source, mask, size)
        ctx.account("shared", "store", target, mask, size)
        wrong = gather.copy_check(
            target, source, valid, mask, table, shared.data, shared.shadow, size, shared.checks,
            ctx.proxies.readers,
        )  # fmt: skip
        if wrong >> 32 > 8:
            ctx.globals.refuse(ctx, wrong - (8 << 32), source, size, "asynchronous copy")
        if wrong:
            shared.refuse(ctx, wrong, target, size, "asynchronous copy")
        self.queue.append(_Copy(mask, self.groups, target, source, size, valid))

    def commit(self, ctx: Machine) -> None:
        self.groups = self.groups + ctx.mask

    def wait(self, ctx: Machine, pending: int) -> None:
        """Finish all but the last `pending` groups of each active thread."""
        done_before = self.groups - pending
        left = []
        for copy in self.queue:
            due = copy.mask & ctx.mask & (copy.group < done_before)
            if due.any():
                self._finish(ctx, copy, due)
                copy.mask = copy.mask & ~due
                if not copy.mask.any():
                    continue
            left.append(copy)
        self.queue = left

    def _finish(self, ctx: Machine, copy: _Copy, due: np.ndarray) -> None:
        shared = ctx.shared
        ctx.writes += 1
        gather.copy_finish(
            copy.target, copy.source, copy.valid, due, ctx.globals.table, shared.data,
            shared.shadow, copy.size, shared.checks, ctx.proxies.stamps, ctx.proxies.epochs,
        )  # fmt: skip
        if ctx.traces is not None:
            ctx.traces.store(Access.own(ctx, copy.target, due, copy.size, "store"))
