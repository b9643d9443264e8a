"""Copy a matrix whose rows are not aligned to one whose rows start at multiples of 16 bytes."""

from typing import Any

import tensorcore_dsl as tc

WARPS = 8  # of a CTA; each copies one row
CHUNK = 16  # bytes that a thread loads and stores at once
IN_FLIGHT = 4  # chunks of a thread whose loads are issued before the first store


@tc.kernel
def copy_kernel(source: tc.Array, target: tc.Array):
    """Copy 16 bytes a thread: load the two aligned vectors that hold them, shift, store one vector.

    Chunks whose vectors would reach outside the matrix are copied element by element.
    """
    tc.launch_bounds(32 * WARPS)
    tc.griddep_wait()
    tc.griddep_launch_dependents()
    rows, cols = source.shape
    row = tc.blockIdx.x * WARPS + tc.warp_id()
    if row < rows:
        count = CHUNK // source.dtype.itemsize
        first, past = source.at(0, 0).address, source.at(rows - 1, cols).address
        for part in tc.range(tc.lane_id() * count, cols, 32 * IN_FLIGHT * count):
            starts = [part + i * 32 * count for i in range(IN_FLIGHT)]
            places = [source.at(row, col) for col in starts]
            fits = [
                (col + count <= cols) & (aligned(p).address >= first)
                & (aligned(p).address + 2 * CHUNK <= past) & (target.align >= CHUNK)
                for col, p in zip(starts, places, strict=True)
            ]  # fmt: skip
            vectors = [shifted(p, fit) for p, fit in zip(places, fits, strict=True)]
            for col, words, fit in zip(starts, vectors, fits, strict=True):
                if target.align >= CHUNK:
                    target.at(row, col).as_type(tc.b32).store(words, pred=fit)
                if not fit:
                    for i in tc.static_range(count):
                        value = source.at(row, col + i).load(pred=col + i < cols)
                        target.at(row, col + i).store(value, pred=col + i < cols)


def aligned(pointer):
    """The address rounded down to a multiple of 16 bytes."""
    return pointer.with_parts(address=pointer.address & ~tc.u64(CHUNK - 1)).as_type(tc.b32)


def shifted(pointer, pred):
    """The 16 bytes at an address, as words, from the two aligned vectors that hold them."""
    low = aligned(pointer)
    words = [*low.load(4, pred=pred), *(low + 4).load(4, pred=pred)]
    place = (pointer.address & (CHUNK - 1)).to(tc.u32)
    # A run-time shift by 0 to 3 words: by one where bit 0 of the word offset is set, by two where
    # bit 1 is; then `shf` shifts by the remaining bytes.
    for step in (1, 2):
        skip = (place >> 2) & step != 0
        words = [tc.select(skip, words[i + step], words[i]) for i in range(len(words) - step)]
    bits = place % 4 * 8
    return [tc.emit("shf.r.wrap.b32", words[i], words[i + 1], bits) for i in range(4)]


def copy_rows(source: Any, target: Any) -> None:
    """target[...] = source, for matrices of one shape with contiguous rows."""
    ctas = -(-source.shape[0] // WARPS)
    copy_kernel.configured(ctas, 32 * WARPS, pdl=True)(source, target)
