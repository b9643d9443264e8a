"""Compiled loops that move words between registers and memory, with every check.

They work on real addresses, so that one compiled function serves every word size. All return 0 or
`code << 32 | thread` for the first thread that made a mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

OUTSIDE, MISALIGNED, UNWRITTEN, IN_FLIGHT, READ_ONLY, STILL_READ, UNFENCED, NOT_MET = range(1, 9)
# What the shadow of shared memory says of a byte: PENDING ones belong to a copy in flight.
NEVER, WRITTEN, PENDING, BARRIER = range(4)

STAMP_BITS = 14  # of a stamp that hold a thread of a cluster, which has at most 16 * 1024
STAMP_MASK = (1 << STAMP_BITS) - 1

VIRTUAL, SIZE, REAL, WRITABLE, COLUMNS = range(5)  # columns of the table of allocations
SPACE_BITS = 40  # allocation i lies in the middle of the addresses from (i + 1) << SPACE_BITS

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiled once per machine; runs without the interpreter lock."""
    fast: Any = njit(cache=True, nogil=True, error_model="numpy")
    return fast(function)  # type: ignore[no-any-return]


def inlined(function: Function) -> Function:
    """Part of the compiled functions that call it."""
    inline: Any = njit(inline="always")
    return inline(function)  # type: ignore[no-any-return]


def _peek(bits: int) -> Any:
    @intrinsic  # type: ignore[misc]
    def peek(context: Any, address: Any) -> Any:
        """The word at a real address."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=1)

        return getattr(types, f"uint{bits}")(types.int64), generate

    return peek


def _poke(bits: int) -> Any:
    @intrinsic  # type: ignore[misc]
    def poke(context: Any, address: Any, value: Any) -> Any:
        """Store a word at a real address."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store(args[1], pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, getattr(types, f"uint{bits}")), generate

    return poke


peek8, peek16, peek32, peek64 = _peek(8), _peek(16), _peek(32), _peek(64)
poke8, poke16, poke32, poke64 = _poke(8), _poke(16), _poke(32), _poke(64)


@inlined
def move(target: int, source: int, width: int) -> None:
    if width == 4:
        poke32(target, peek32(source))
    elif width == 8:
        poke64(target, peek64(source))
    elif width == 2:
        poke16(target, peek16(source))
    else:
        poke8(target, peek8(source))


@inlined
def locate(address: int, size: int, table: Any) -> int:
    """The real address of `size` bytes at a virtual one, or 0."""
    which = (address >> SPACE_BITS) - 1
    if which < 0 or which >= table.shape[0]:
        return 0
    offset = address - table[which, VIRTUAL]
    if offset < 0 or offset + size > table[which, SIZE]:
        return 0
    real: int = table[which, REAL] + offset
    return real


@inlined
def shadow_says(shadow: int, size: int) -> int:
    """0 when all bytes are written, else what is wrong with the first that is not."""
    for byte in range(size):
        state = peek8(shadow + byte)
        if state == NEVER:
            return UNWRITTEN
        if state != WRITTEN:
            return IN_FLIGHT
    return 0


@inlined
def all_written(shadow: int, size: int) -> bool:
    good = True
    if size >= 8:
        for start in range(0, size, 8):
            good = good and peek64(shadow + start) == 0x0101010101010101
        return good
    if size == 4:
        word: int = peek32(shadow)
        return word == 0x01010101
    return shadow_says(shadow, size) == 0


@inlined
def in_flight(shadow: int, size: int) -> bool:
    """Does an asynchronous copy or an mbarrier own any of the bytes."""
    found = 0
    if size >= 8:
        for start in range(0, size, 8):
            found |= peek64(shadow + start)
    elif size == 4:
        found = peek32(shadow)
    else:
        for byte in range(size):
            found |= peek8(shadow + byte)
    return found & 0x0202020202020202 != 0


@inlined
def mark(shadow: int, size: int, state: int) -> None:
    """Write `state` to the shadow of `size` bytes."""
    if size >= 8:
        for start in range(0, size, 8):
            poke64(shadow + start, state * 0x0101010101010101)
    elif size == 4:
        poke32(shadow, state * 0x01010101)
    else:
        for byte in range(size):
            poke8(shadow + byte, state)


@inlined
def sign(stamps: int, address: int, size: int, stamp: int) -> None:
    """Write `stamp` to the words of `size` bytes from `address` on."""
    if size >= 8:
        for start in range(0, size, 8):
            poke64(stamps + address + start, stamp << 32 | stamp)
    else:
        poke32(stamps + (address & -4), stamp)


@inlined
def mistake(code: int, thread: int) -> int:
    return code << 32 | thread


@compiled
def global_load(
    addresses: Any, active: Any, table: Any, out: Any, width: int, count: int, aligned: bool
) -> int:
    """out: (count, T * width) bytes."""
    threads, size, base = addresses.size, width * count, out.ctypes.data
    for thread in range(threads):
        if active[thread]:
            address = types.int64(addresses[thread])
            real = locate(address, size, table)
            if real == 0:
                return mistake(OUTSIDE, thread)
            if aligned and address & (size - 1):
                return mistake(MISALIGNED, thread)
            for word in range(count):
                move(base + (word * threads + thread) * width, real + word * width, width)
    return 0


@compiled
def global_store(
    addresses: Any, active: Any, table: Any, values: Any, width: int, count: int, aligned: bool
) -> int:
    """values: (count, T * width) bytes."""
    threads, size, base = addresses.size, width * count, values.ctypes.data
    for thread in range(threads):
        if active[thread]:
            address = types.int64(addresses[thread])
            real = locate(address, size, table)
            if real == 0:
                return mistake(OUTSIDE, thread)
            if table[(address >> SPACE_BITS) - 1, WRITABLE] == 0:
                return mistake(READ_ONLY, thread)
            if aligned and address & (size - 1):
                return mistake(MISALIGNED, thread)
            for word in range(count):
                move(real + word * width, base + (word * threads + thread) * width, width)
    return 0


@compiled
def shared_load(
    addresses: Any, active: Any, data: Any, shadow: Any, out: Any, width: int, count: int,
    checked: bool, landed: Any, met: Any,
) -> int:  # fmt: skip
    """data, shadow: (CTAs, bytes); out: (count, T * width) bytes; the rest is `Proxies`'s."""
    threads, size, base = addresses.size, width * count, out.ctypes.data
    ctas, limit = data.shape
    group = threads // ctas
    for cta in range(ctas):
        bytes_at, shadow_at = data.ctypes.data + cta * limit, shadow.ctypes.data + cta * limit
        for thread in range(cta * group, cta * group + group):
            if active[thread]:
                address = types.int64(addresses[thread])
                if address + size > limit:
                    return mistake(OUTSIDE, thread)
                if checked:
                    if address & (size - 1):
                        return mistake(MISALIGNED, thread)
                    if not all_written(shadow_at + address, size):
                        return mistake(shadow_says(shadow_at + address, size), thread)
                if landed.shape[1] and landed[cta, address >> 4] > met[thread]:
                    return mistake(NOT_MET, thread)
                source = bytes_at + address
                for word in range(count):
                    move(base + (word * threads + thread) * width, source + word * width, width)
    return 0


@compiled
def shared_store(
    addresses: Any, active: Any, data: Any, shadow: Any, values: Any, width: int, count: int,
    checked: bool, stamps: Any, readers: Any, epochs: Any,
) -> int:  # fmt: skip
    """data, shadow: (CTAs, bytes); values: (count, T * width) bytes; the rest is `Proxies`'s."""
    threads, size, base = addresses.size, width * count, values.ctypes.data
    ctas, limit = data.shape
    group = threads // ctas
    proxies = epochs.size > 0
    for cta in range(ctas):
        bytes_at, shadow_at = data.ctypes.data + cta * limit, shadow.ctypes.data + cta * limit
        for thread in range(cta * group, cta * group + group):
            if active[thread]:
                address = types.int64(addresses[thread])
                if address + size > limit:
                    return mistake(OUTSIDE, thread)
                if checked:
                    if address & (size - 1):
                        return mistake(MISALIGNED, thread)
                    if in_flight(shadow_at + address, size):
                        return mistake(IN_FLIGHT, thread)
                    mark(shadow_at + address, size, WRITTEN)
                if proxies:
                    if readers[cta, address >> 4]:
                        return mistake(STILL_READ, thread)
                    stamp = types.int64(epochs[thread]) << STAMP_BITS | thread & STAMP_MASK
                    sign(stamps.ctypes.data + cta * stamps.shape[1] * 4, address, size, stamp)
                target = bytes_at + address
                for word in range(count):
                    move(target + word * width, base + (word * threads + thread) * width, width)
    return 0


@compiled
def matrix_load(
    addresses: Any, active: Any, data: Any, shadow: Any, out: Any, matrices: int, transposed: bool,
    checked: bool, landed: Any, met: Any,
) -> int:  # fmt: skip
    """ldmatrix of 8x8 matrices of 16-bit elements; lane 8 m + r names row r of matrix m.

    out: (matrices, T) words. Rows of 16 bytes go to four neighbouring lanes, columns (if
    transposed) to halves of the words of every fourth lane.
    """
    threads = addresses.size
    ctas, limit = data.shape
    group, base = threads // ctas, out.ctypes.data
    for thread in range(threads):
        if active[thread]:
            address, cta = types.int64(addresses[thread]), thread // group
            if address + 16 > limit:
                return mistake(OUTSIDE, thread)
            at = cta * limit + address
            if checked:
                if address & 15:
                    return mistake(MISALIGNED, thread)
                if not all_written(shadow.ctypes.data + at, 16):
                    return mistake(shadow_says(shadow.ctypes.data + at, 16), thread)
            if landed.shape[1] and landed[cta, address >> 4] > met[thread]:
                return mistake(NOT_MET, thread)
            source, matrix, row = data.ctypes.data + at, thread % 32 // 8, thread % 8
            target = base + 4 * (matrix * threads + thread - thread % 32)
            if transposed:
                for column in range(8):
                    poke16(target + 16 * column + 2 * row, peek16(source + 2 * column))
            else:
                poke64(target + 16 * row, peek64(source))
                poke64(target + 16 * row + 8, peek64(source + 8))
    return 0


@compiled
def copy_check(
    targets: Any, sources: Any, valid: Any, active: Any, table: Any, data: Any, shadow: Any,
    size: int, checked: bool, readers: Any,
) -> int:  # fmt: skip
    """Check asynchronous copies and mark their targets. A mistake of the global side has its
    code plus 8."""
    threads = targets.size
    ctas, limit = data.shape
    group = threads // ctas
    for thread in range(threads):
        if active[thread]:
            target, source = types.int64(targets[thread]), types.int64(sources[thread])
            if target + size > limit:
                return mistake(OUTSIDE, thread)
            if valid[thread] and locate(source, types.int64(valid[thread]), table) == 0:
                return mistake(OUTSIDE + 8, thread)
            if readers.shape[1] and readers[thread // group, target >> 4]:
                return mistake(STILL_READ, thread)
            if checked:
                if target & (size - 1):
                    return mistake(MISALIGNED, thread)
                if source & (size - 1):
                    return mistake(MISALIGNED + 8, thread)
                at = shadow.ctypes.data + (thread // group) * limit + target
                if in_flight(at, size):
                    return mistake(IN_FLIGHT, thread)
                mark(at, size, PENDING)
    return 0


@compiled
def copy_finish(
    targets: Any, sources: Any, valid: Any, active: Any, table: Any, data: Any, shadow: Any,
    size: int, checked: bool, stamps: Any, epochs: Any,
) -> None:  # fmt: skip
    """Carry out copies that were checked before."""
    threads = targets.size
    ctas, limit = data.shape
    group = threads // ctas
    for thread in range(threads):
        if active[thread]:
            at = (thread // group) * limit + types.int64(targets[thread])
            target, read = data.ctypes.data + at, types.int64(valid[thread])
            if read == size and size >= 8:
                source = locate(types.int64(sources[thread]), size, table)
                for start in range(0, size, 8):
                    poke64(target + start, peek64(source + start))
            else:
                if read:
                    source = locate(types.int64(sources[thread]), read, table)
                    for byte in range(read):
                        poke8(target + byte, peek8(source + byte))
                for byte in range(read, size):
                    poke8(target + byte, 0)
            if checked:
                mark(shadow.ctypes.data + at, size, WRITTEN)
            if epochs.size:
                stamp = types.int64(epochs[thread]) << STAMP_BITS | thread & STAMP_MASK
                line = stamps.ctypes.data + (thread // group) * stamps.shape[1] * 4
                sign(line, types.int64(targets[thread]), size, stamp)


@compiled
def census(active: Any) -> int:
    """`warps << 32 | lanes` of a mask over whole warps."""
    warps, lanes = 0, 0
    for warp in range(active.size // 32):
        count = 0
        for lane in range(warp * 32, warp * 32 + 32):
            count += active[lane]
        lanes += count
        warps += count > 0
    return warps << 32 | lanes


@compiled
def divided(active: Any, unit: int, out: Any) -> None:
    """out: active threads whose unit of so many threads is not active as a whole."""
    for first in range(0, active.size, unit):
        count = 0
        for thread in range(first, first + unit):
            count += active[thread]
        for thread in range(first, first + unit):
            out[thread] = active[thread] and count != unit


@compiled
def absent(active: Any, named: Any, excused: Any, out: Any) -> None:
    """out: active lanes that name a lane of their warp which is neither here nor excused."""
    for warp in range(active.size // 32):
        here = types.uint32(0)
        for lane in range(32):
            if active[warp * 32 + lane] or excused[warp * 32 + lane]:
                here |= types.uint32(1) << types.uint32(lane)
        for thread in range(warp * 32, warp * 32 + 32):
            out[thread] = active[thread] and (types.uint32(named[thread]) & ~here) != 0
