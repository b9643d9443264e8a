"""Word accesses that the memories of all state spaces share, and their compiled loops.

The loops move words between registers and memory, and check every access. All return 0, or
`code << 32 | thread` for the first thread whose access fails a check. `shared` is a
`shadow.Shared`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, ClassVar, NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.core import native, shadow
from tensorcore_dsl.interpreter.core.chunk import WARP, Chunk
from tensorcore_dsl.interpreter.sanitizer import strong_accesses
from tensorcore_dsl.interpreter.sanitizer.access_history import CLUSTER, GLOBAL, OWN, StoreEquality
from tensorcore_dsl.interpreter.sanitizer.sanitizer import Sanitizer
from tensorcore_dsl.isa import classify, reductions
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, Context
from tensorcore_dsl.isa.reductions import AND, MAX, MIN, OR, SIGNED_MAX, SIGNED_MIN, XOR

VIRTUAL, SIZE, REAL, WRITABLE, HOME, COLUMNS = range(6)  # columns of the table of allocations
SPACE_BITS = 40  # allocation i lies in the middle of the addresses from (i + 1) << SPACE_BITS on
TOO_MANY = 31  # code of a copy that is to read more bytes than it copies
GLOBAL_SIDE = 32  # added to the code of a failed check of the global side of a copy


_MEMORIES = {"shared": OWN, "shared::cluster": CLUSTER, "global": GLOBAL}


class WordMemory(ABC):
    """Memory of a chunk; a sub-class moves the words of one state space."""

    space: ClassVar[str]

    def __init__(self, chunk: Chunk, sanitizer: Sanitizer) -> None:
        self.chunk = chunk
        self.sanitizer = sanitizer
        self.quiet = False  # the accesses are parts of an atomic

    @abstractmethod
    def move(self, mask: np.ndarray, addresses: np.ndarray, words: np.ndarray, stores: bool) -> int:
        """Load or store (count, T) words; 0, or the error of the first thread that fails a check."""

    @abstractmethod
    def refuse(self, failure: int, addresses: np.ndarray, size: int, verb: str) -> NoReturn:
        """Raise the error of a failed check."""

    def load_words(self, mask: np.ndarray, addresses: np.ndarray, width: int, count: int) -> np.ndarray:
        """(count, T) words of `width` bytes for the threads of `mask`."""
        out = np.empty((count, addresses.size), f"u{width}")
        self._access("load", mask, addresses, out)
        return out

    def store_words(self, mask: np.ndarray, addresses: np.ndarray, values: np.ndarray) -> None:
        """Store (count, T) words of the threads of `mask`; of several at one address, the last wins."""
        detector = self.sanitizer.detector
        # A thread that finds the store of another chunk in the history must also find its values.
        follows = detector is not None and self.space == "global"
        with detector.launch.access if detector and follows else nullcontext():
            self._access("store", mask, addresses, np.ascontiguousarray(values))

    def _access(self, verb: str, mask: np.ndarray, addresses: np.ndarray, words: np.ndarray) -> None:
        size, stores = words.shape[0] * words.dtype.itemsize, verb == "store"
        self.chunk.account(self.space, verb, addresses, mask, size)
        tell_race = self.note(verb, addresses, mask, size, words if stores else None)
        self.check(self.move(mask, addresses, words, stores), mask, addresses, size, verb, tell_race)

    def check(
        self,
        failure: int,
        mask: np.ndarray,
        addresses: np.ndarray,
        size: int,
        verb: str,
        tell_race: Callable[[], None] | None,
    ) -> None:
        """Raise the error of a failed check or of a race; else let a strong access order others."""
        if failure:
            self.refuse(failure, addresses, size, verb)
        if tell_race is not None:
            tell_race()
        self.signal(addresses, mask)

    def note(
        self, verb: str, addresses: np.ndarray, mask: np.ndarray, size: int, values: np.ndarray | None = None
    ) -> Callable[[], None] | None:
        """Show an access to the detector of races; the result raises what it has found.

        values: (count, T) words, of a store.
        """
        detector = self.sanitizer.detector
        if detector is None or self.quiet:
            return None
        instr = self.chunk.instruction(self.chunk.at_step)
        strong = instr is not None and classify.is_strong(instr)
        equality = None if values is None else partial(self._equality, addresses, mask, values)
        return detector.words(_MEMORIES[self.space], verb, addresses, mask, size, equality, strong=strong)

    def _equality(self, addresses: np.ndarray, mask: np.ndarray, values: np.ndarray) -> StoreEquality:
        """Compare what the threads of `mask` store."""
        active = np.flatnonzero(mask)
        locations = self.location(addresses)[active]
        agree, unchanged, repeated = np.zeros((3, mask.size), np.bool_)
        _, first, which = np.unique(locations, return_index=True, return_inverse=True)
        equal = (values[:, active] == values[:, active[first[which]]]).all(axis=0)
        agree[active] = np.bincount(which, weights=~equal)[which] == 0
        in_warps = np.stack([which, active // WARP])
        _, first, which = np.unique(in_warps, axis=1, return_index=True, return_inverse=True)
        leader = active[first[which.ravel()]]
        repeated[active] = (leader != active) & (values[:, active] == values[:, leader]).all(axis=0)
        self.quiet, checks, self.chunk.checks = True, self.chunk.checks, False
        with suppress(EmulationError):
            old = self.load_words(mask, addresses, values.dtype.itemsize, values.shape[0])
            unchanged = mask & (old == values).all(axis=0)
        self.quiet, self.chunk.checks = False, checks
        return StoreEquality(agree, unchanged, repeated)

    def signal(self, addresses: np.ndarray, mask: np.ndarray, old: np.ndarray | None = None) -> None:
        """Let a strong access order what comes before and after it.

        old: (T,) words that the threads have changed, of atomics.
        """
        detector = self.sanitizer.detector
        if detector is None or self.quiet:
            return
        instr = self.chunk.instruction(self.chunk.at_step)
        if instr is not None and classify.is_strong(instr):
            strong_accesses.access(detector, instr, self.location(addresses), mask, old)

    def location(self, addresses: np.ndarray) -> np.ndarray:
        """(T,) numbers that are equal where addresses of two threads name the same byte."""
        return addresses

    def active(self, ctx: Context) -> np.ndarray:
        """The active threads of a context; a chunk may have more threads."""
        return self.chunk.all_threads if ctx.active is None else ctx.active

    def load(self, ctx: Context, addresses: np.ndarray, width: int, count: int) -> np.ndarray:
        """(count, T) words of `width` bytes."""
        return self.load_words(self.active(ctx), addresses, width, count)

    def store(self, ctx: Context, addresses: np.ndarray, values: np.ndarray) -> None:
        """Store (count, T) words."""
        self.store_words(self.active(ctx), addresses, values)

    def real_addresses(self, addresses: np.ndarray, mask: np.ndarray, size: int) -> np.ndarray | None:
        """(T,) for words that the threads of `mask` may change if they may load them.

        None where this is not known.
        """
        return None

    def atomic(
        self, ctx: Context, addresses: np.ndarray, width: int, update: Any, *operands: Any
    ) -> np.ndarray:
        """In thread order: old = word; word = update(old, *operands). Returns (T,) old words.

        No address occurs twice in a round. The simplest updates need no rounds.
        """
        result = np.zeros(addresses.size, f"u{width}")
        everybody = self.active(ctx)
        active = np.flatnonzero(everybody)
        tell_race = self.note("store", addresses, everybody, width)
        self.quiet, code = True, reductions.simple(update) if width >= 4 else 0
        real = self.real_addresses(addresses, everybody, width) if code else None
        if real is not None:
            words = np.ascontiguousarray(np.broadcast_to(operands[0], result.shape), result.dtype)
            result[:] = self.load_words(everybody, addresses, width, 1)[0]
            data = words.view(np.uint8), result.view(np.uint8)
            if change_words(code, real, *data, everybody, width):
                self.chunk.account(self.space, "store", addresses, everybody, width)
            active = active[:0]
        for threads in _rounds(self.location(addresses)[active], active):
            mask = np.zeros(addresses.size, np.bool_)
            mask[threads] = True
            old = self.load_words(mask, addresses, width, 1)[0]
            inputs = [o[threads] if np.ndim(o) else o for o in operands]
            new = old.copy()
            new[threads] = update(old[threads], *inputs)
            if not np.array_equal(new[threads], old[threads]):
                self.store_words(mask, addresses, new[None])
            result[threads] = old[threads]
        self.quiet = False
        if tell_race is not None:
            tell_race()
        self.signal(addresses, everybody, result)
        return result


def _rounds(keys: np.ndarray, threads: np.ndarray) -> list[np.ndarray]:
    """Threads in groups without a repeated key: the n-th group has each key's n-th thread."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    first = np.concatenate(([True], ranked[1:] != ranked[:-1])) if len(ranked) else np.ones(0, bool)
    start = np.maximum.accumulate(np.where(first, np.arange(len(ranked)), 0))
    rank = np.empty(len(ranked), np.int64)
    rank[order] = np.arange(len(ranked)) - start
    if not rank.any():
        return [threads] if len(threads) else []
    by_rank = np.argsort(rank, kind="stable")
    return np.split(threads[by_rank], np.cumsum(np.bincount(rank))[:-1])


@native.inlined
def locate(address: int, size: int, table: Any) -> int:
    """The real address of `size` bytes at a virtual address; 0 when they leave the allocation."""
    which = (address >> SPACE_BITS) - 1
    if which < 0 or which >= table.shape[0]:
        return 0
    offset = address - table[which, VIRTUAL]
    if offset < 0 or offset + size > table[which, SIZE]:
        return 0
    real: int = table[which, REAL] + offset
    return real


@native.compiled
def change_words(code: int, addresses: Any, operands: Any, old: Any, active: Any, width: int) -> bool:
    """Update words of 4 or 8 bytes at real addresses, in the order of threads; return whether any changes.

    code: one of `isa.reductions`. operands, old: (T * width,) bytes; `old` gets what was there.
    """
    changed = False
    for thread in range(active.size):
        if active[thread]:
            pointer, at = int(addresses[thread]), thread * width
            if width == 4:
                a, b = int(native.peek32(pointer)), int(native.peek32(operands.ctypes.data + at))
                native.poke32(old.ctypes.data + at, a)
                top = 1 << 31
            else:
                a = int(native.peek64(pointer))
                b = int(native.peek64(operands.ctypes.data + at))
                native.poke64(old.ctypes.data + at, a)
                top = 1 << 63
            # Words of 32 bits are compared as unsigned, those of 64 bits as signed.
            signed = code in (SIGNED_MIN, SIGNED_MAX)
            flip = top if signed == (width == 4) else 0
            less = (a ^ flip) < (b ^ flip)
            new = a + b
            if code == AND:
                new = a & b
            elif code == OR:
                new = a | b
            elif code == XOR:
                new = a ^ b
            elif code in (MIN, SIGNED_MIN):
                new = a if less else b
            elif code in (MAX, SIGNED_MAX):
                new = b if less else a
            if width == 4:
                native.poke32(pointer, np.uint32(new))
                changed = changed or int(np.uint32(new)) != a
            else:
                native.poke64(pointer, new)
                changed = changed or new != a
    return changed


@native.compiled
def global_move(
    addresses: Any, active: Any, table: Any, words: Any, width: int, count: int, aligned: bool, stores: bool
) -> int:
    """Load `words`, (count, T * width) bytes, or store them."""
    step = addresses.size * width
    for thread in range(addresses.size):
        if active[thread]:
            register = words.ctypes.data + thread * width
            address = int(addresses[thread])
            failure = global_word(address, register, step, table, width, count, aligned, stores)
            if failure:
                return native.error_at(failure, thread)
    return 0


@native.inlined
def global_word(
    address: int, register: int, step: int, table: Any, width: int, count: int, aligned: bool, stores: bool
) -> int:
    """`global_move` for one thread, whose registers lie `step` bytes apart; 0, or an error."""
    size = width * count
    real = locate(address, size, table)
    if real == 0:
        return shadow.OUTSIDE
    if stores and table[(address >> SPACE_BITS) - 1, WRITABLE] == 0:
        return shadow.READ_ONLY
    if aligned and address & (size - 1):
        return shadow.MISALIGNED
    for word in range(count):
        if stores:
            native.move(real + word * width, register + word * step, width)
        else:
            native.move(register + word * step, real + word * width, width)
    return 0


@native.compiled
def shared_move(
    addresses: Any,
    active: Any,
    shared: Any,
    words: Any,
    width: int,
    count: int,
    stores: bool,
    cluster: int,
    gone: Any,
) -> int:
    """Load `words`, (count, T * width) bytes, or store them.

    cluster: CTAs of a cluster, whose ranks the addresses name; 0 for addresses in the own CTA. gone:
    (CTAs,) bool, which CTAs have ended.
    """
    group, step = addresses.size // shared.data.shape[0], addresses.size * width
    for thread in range(addresses.size):
        if active[thread]:
            address, cta = int(addresses[thread]), thread // group
            register = words.ctypes.data + thread * width
            if cluster > 0:
                rank, address = address >> CLUSTER_SHIFT, address & shadow.OFFSET
                if rank > cluster:
                    return native.error_at(shadow.NO_CTA, thread)
                if rank > 0:
                    cta = cta // cluster * cluster + rank - 1
                if gone[cta]:
                    return native.error_at(shadow.NO_CTA, thread)
            failure = shared_word(address, thread, cta, register, step, shared, width, count, stores)
            if failure:
                return native.error_at(failure, thread)
    return 0


@native.inlined
def shared_word(
    address: int,
    thread: int,
    cta: int,
    register: int,
    step: int,
    shared: Any,
    width: int,
    count: int,
    stores: bool,
) -> int:
    """`shared_move` for one thread, whose registers lie `step` bytes apart; 0, or an error."""
    size, limit = width * count, shared.data.shape[1]
    if address + size > limit:
        return shadow.OUTSIDE
    if shared.checked:
        state = shared.states.ctypes.data + cta * limit + address
        if address & (size - 1):
            return shadow.MISALIGNED
        if stores:
            if shadow.in_flight(state, size):
                return shadow.IN_FLIGHT
            shadow.mark(state, size, shadow.WRITTEN)
        elif not shadow.all_written(state, size):
            return shadow.shadow_error(state, size)
    if stores and shared.epochs.size > 0:
        if shared.readers[cta, address >> 4]:
            return shadow.STILL_READ
        shadow.stamp_words(shared, cta, address, size, thread)
    pointer = shared.data.ctypes.data + cta * limit + address
    for word in range(count):
        if stores:
            native.move(pointer + word * width, register + word * step, width)
        else:
            native.move(register + word * step, pointer + word * width, width)
    return 0


@native.compiled
def matrix_load(addresses: Any, active: Any, shared: Any, out: Any, transposed: bool) -> int:
    """Load 8x8 matrices of 16-bit elements; lane 8 m + r gives the address of row r of matrix m.

    out: (matrices, T) words. A row of 16 bytes goes to four neighbouring lanes; if transposed, a
    column goes to the halves of the words of every fourth lane.
    """
    threads = addresses.size
    group = threads // shared.data.shape[0]
    for thread in range(threads):
        if active[thread]:
            lane, cta = thread % 32, thread // group
            register = out.ctypes.data + 4 * (thread - lane)
            failure = matrix_row(int(addresses[thread]), cta, lane, register, 4 * threads, shared, transposed)
            if failure:
                return native.error_at(failure, thread)
    return 0


@native.inlined
def matrix_row(
    address: int, cta: int, lane: int, register: int, step: int, shared: Any, transposed: bool
) -> int:
    """`matrix_load` of a lane's row; register: that of lane 0, others lie `step` bytes apart."""
    if address + 16 > shared.data.shape[1]:
        return shadow.OUTSIDE
    at = cta * shared.data.shape[1] + address
    if shared.checked:
        if address & 15:
            return shadow.MISALIGNED
        if not shadow.all_written(shared.states.ctypes.data + at, 16):
            return shadow.shadow_error(shared.states.ctypes.data + at, 16)
    source, row = shared.data.ctypes.data + at, lane % 8
    target = register + lane // 8 * step
    if transposed:
        for column in range(8):
            native.poke16(target + 16 * column + 2 * row, native.peek16(source + 2 * column))
    else:
        native.copy16(target + 16 * row, source)
    return 0


@native.compiled
def copy_check(
    targets: Any, sources: Any, valid: Any, active: Any, table: Any, shared: Any, size: int
) -> int:
    """Check asynchronous copies and mark their targets as pending."""
    group = targets.size // shared.data.shape[0]
    for thread in range(targets.size):
        if active[thread]:
            target, source, read = int(targets[thread]), int(sources[thread]), int(valid[thread])
            failure = copy_begun(target, source, read, thread // group, table, shared, size)
            if failure:
                return native.error_at(failure, thread)
    return 0


@native.inlined
def copy_begun(target: int, source: int, valid: int, cta: int, table: Any, shared: Any, size: int) -> int:
    """`copy_check` of one thread's copy; 0, or an error."""
    if valid > size:
        return TOO_MANY
    if target + size > shared.data.shape[1]:
        return shadow.OUTSIDE
    if valid and locate(source, valid, table) == 0:
        return shadow.OUTSIDE + GLOBAL_SIDE
    if shared.readers.shape[1] and shared.readers[cta, target >> 4]:
        return shadow.STILL_READ
    if shared.checked:
        if target & (size - 1):
            return shadow.MISALIGNED
        if source & (size - 1):
            return shadow.MISALIGNED + GLOBAL_SIDE
        at = shared.states.ctypes.data + cta * shared.data.shape[1] + target
        if shadow.in_flight(at, size):
            return shadow.IN_FLIGHT
        shadow.mark(at, size, shadow.PENDING)
    return 0


@native.compiled
def copies_finish(
    addresses: Any, active: Any, table: Any, shared: Any, size: int, first: int, last: int
) -> None:
    """Carry out copies that `copy_check` has checked, of threads `first` to `last`.

    addresses: of each copy, the real ones of its (T,) targets, sources and bytes to read.
    """
    limit, threads = shared.data.shape[1], active.size
    group = threads // shared.data.shape[0]
    for copy in range(addresses.shape[0]):
        targets = native.array_at(addresses[copy, 0], (threads,), np.uint32)
        sources = native.array_at(addresses[copy, 1], (threads,), np.uint64)
        valid = native.array_at(addresses[copy, 2], (threads,), np.uint32)
        for thread in range(first, last):
            if active[thread]:
                address, read = int(targets[thread]), int(valid[thread])
                at = (thread // group) * limit + address
                target = shared.data.ctypes.data + at
                if read == 16 and size == 16:
                    native.copy16(target, locate(int(sources[thread]), 16, table))
                elif read == 8 and size == 8:
                    native.poke64(target, native.peek64(locate(int(sources[thread]), 8, table)))
                else:
                    if read:
                        source = locate(int(sources[thread]), read, table)
                        for byte in range(read):
                            native.poke8(target + byte, native.peek8(source + byte))
                    for byte in range(read, size):
                        native.poke8(target + byte, 0)
                if shared.checked:
                    shadow.mark(shared.states.ctypes.data + at, size, shadow.WRITTEN)
                if shared.epochs.size:
                    shadow.stamp_words(shared, thread // group, address, size, thread)
