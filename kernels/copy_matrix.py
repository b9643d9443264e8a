"""Copy matrices to row-major order with rows at multiples of 16 bytes; transpose column-major sources.

A thread moves 16 bytes at once. From a misaligned source it loads the two aligned vectors that hold
them, and shifts. To transpose n elements of 16 bytes, it loads 16 bytes of n lines and exchanges
rows and columns in registers. No shared memory and no barrier is needed.
"""

from typing import Any

import tensorcore_dsl as tc

CHUNK = 16  # bytes that a thread loads and stores at once
WARPS = 4  # warps of a CTA
IN_FLIGHT = 4  # chunks that a thread loads before its first store
# ALONG: rows of source and target are contiguous. ACROSS: columns of the source and rows of the
# target are. ELEMENTS: neither, so threads copy elements one by one.
ALONG, ACROSS, ELEMENTS = MODES = ("along", "across", "elements")
# Lanes of a warp along a line of a transposed source. The other axis has 32 / LANES lanes, so a warp
# reads 64 bytes of a line and writes 128 bytes of a row.
LANES = 4


@tc.kernel
def copy_kernel(source: tc.Array, target: tc.Array, mode: tc.Const = ALONG):
    """target = source, [batch x] rows x columns; mode: one of MODES.

    The target may have more columns. The kernel may overwrite those that fill a vector. Grid: `ctas`.
    """
    tc.launch_bounds(32 * WARPS)
    tc.griddep_wait()
    tc.griddep_launch_dependents()
    copy_block(source, target, tc.blockIdx.x, mode)


@tc.kernel
def copy_two_kernel(
    a: tc.Array,
    b: tc.Array,
    a_copy: tc.Array,
    b_copy: tc.Array,
    ctas_of_a: tc.u32,
    mode_a: tc.Const = ALONG,
    mode_b: tc.Const = ALONG,
):
    """Copy two matrices in one launch, see `copy_kernel`. Grid: the CTAs of `a`, then those of `b`."""
    tc.launch_bounds(32 * WARPS)
    tc.griddep_wait()
    tc.griddep_launch_dependents()
    if tc.blockIdx.x < ctas_of_a:
        copy_block(a, a_copy, tc.blockIdx.x, mode_a)
    else:
        copy_block(b, b_copy, tc.blockIdx.x - ctas_of_a, mode_b)


def ctas(shape, itemsize: int, mode: str):
    """Number of CTAs that copy [batch x] rows x columns; integers of the host or of a kernel."""
    *batch, rows, cols = shape
    count = CHUNK // itemsize
    if mode == ACROSS:
        units = divided_up(rows, LANES * count) * divided_up(cols, 32 // LANES * count)
        units = divided_up(units, WARPS)
    else:
        units = divided_up(rows * divided_up(cols, count), 32 * WARPS * IN_FLIGHT)
    for matrices in batch:
        units = units * matrices
    return units


def divided_up(number, divisor):
    return (number + (divisor - 1)) // divisor


def copy_block(source, target, block, mode: str):
    """Copy the elements of CTA `block`."""
    if source.ndim == 3:
        ctas_per_matrix = ctas(source.shape[1:], source.dtype.itemsize, mode)
        matrix, block = block // ctas_per_matrix, block % ctas_per_matrix
        source, target = source[matrix], target[matrix]
    if mode == ACROSS:
        copy_across(source.T, target, block * WARPS + tc.warp_id())
    else:
        copy_along(source, target, block, mode)


def copy_along(source, target, block, mode: str):
    """Copy the IN_FLIGHT chunks of each thread; chunks are numbered row by row."""
    rows, cols = source.shape
    count = CHUNK // source.dtype.itemsize
    chunks = divided_up(cols, count)
    first = block * (32 * WARPS * IN_FLIGHT) + tc.threadIdx.x
    starts = [first + i * (32 * WARPS) for i in range(IN_FLIGHT)]
    origins = [(start // chunks, start % chunks * count) for start in starts]
    exist = [row < rows for row, _ in origins]
    if mode == ELEMENTS or target.align < CHUNK:
        for (row, col), exists in zip(origins, exist, strict=True):
            if exists:
                copy_elements(source, target, row, col, count)
    else:
        in_vectors = [
            exists & fits(source, row, col) & (col + count <= target.shape[1])
            for (row, col), exists in zip(origins, exist, strict=True)
        ]
        words = [load_chunk(source, *origin, fit) for origin, fit in zip(origins, in_vectors, strict=True)]
        for (row, col), fit, vector in zip(origins, in_vectors, words, strict=True):
            target.at(row, col).as_type(tc.b32).store(vector, pred=fit)
        for (row, col), exists, fit in zip(origins, exist, in_vectors, strict=True):
            if exists & ~fit:
                copy_elements(source, target, row, col, count)


def copy_elements(source, target, row, col, count: int):
    """Copy `count` elements from (row, col) on one by one, without those outside the source."""
    inside = [col + i < source.shape[1] for i in range(count)]
    values = [source.at(row, col + i).load(pred=inside[i]) for i in range(count)]
    for i, value in enumerate(values):
        target.at(row, col + i).store(value, pred=inside[i])


def copy_across(lines, target, unit):
    """Transpose the chunks of warp `unit`.

    A thread loads one chunk of `count` elements from each of `count` lines, and stores `count` chunks.
    """
    count, length = CHUNK // lines.dtype.itemsize, lines.shape[1]
    across = divided_up(length, LANES * count)
    first = unit // across * (32 // LANES * count) + tc.lane_id() // LANES * count
    start = unit % across * (LANES * count) + tc.lane_id() % LANES * count
    if start < length:
        starts = [(first + i, start) for i in range(count)]
        readable = [fits(lines, *start) for start in starts]
        vectors = [
            load_chunk(lines, *start, (start[0] < lines.shape[0]) & fit)
            for start, fit in zip(starts, readable, strict=True)
        ]
        in_vectors = (first + count <= target.shape[1]) & (target.align >= CHUNK)
        if target.align >= CHUNK:
            for i, vector in enumerate(transposed(vectors, count)):
                row = target.at(start + i, first).as_type(tc.b32)
                row.store(vector, pred=in_vectors & (start + i < length))
        # The vector stores above wrote zeros for chunks that reach outside the memory of the source.
        # The same thread now overwrites them element by element.
        read = readable[0]
        for fit in readable[1:]:
            read = read & fit
        if not (read & in_vectors):
            for i in tc.range(count):
                if first + i < lines.shape[0] and not (in_vectors & fits(lines, first + i, start)):
                    copy_elements(lines, target.T, first + i, start, count)


def fits(matrix, row, col):
    """Whether the aligned vectors that hold the chunk at (row, col) lie in the memory of a matrix."""
    rows, cols = matrix.shape
    low = align_down(matrix.at(row, col)).address
    first, past = matrix.at(0, 0).address, matrix.at(rows - 1, cols).address
    if matrix.align >= CHUNK:
        return low + CHUNK <= past
    return (low >= first) & (low + 2 * CHUNK <= past)


def load_chunk(matrix, row, col, pred):
    """Load four words from (row, col) on; zeros where `pred` does not hold."""
    pointer = matrix.at(row, col)
    if matrix.align >= CHUNK:
        return [*pointer.as_type(tc.b32).load(4, pred=pred)]
    return shifted(pointer, pred)


def align_down(pointer):
    """Round the pointer's address down to a multiple of 16 bytes."""
    return pointer.with_parts(address=pointer.address & ~tc.u64(CHUNK - 1)).as_type(tc.b32)


def shifted(pointer, pred):
    """Load 16 bytes at any address: four words, from the two aligned vectors that hold them."""
    low = align_down(pointer)
    words = [*low.load(4, pred=pred), *(low + 4).load(4, pred=pred)]
    offset = (pointer.address & (CHUNK - 1)).to(tc.u32)
    # A run-time shift by 0 to 3 words: by one where bit 0 of the word offset is set, by two where
    # bit 1 is; then `shf` shifts by the remaining bytes.
    for step in (1, 2):
        skip = (offset >> 2) & step != 0
        words = [tc.select(skip, words[i + step], words[i]) for i in range(len(words) - step)]
    bits = offset % 4 * 8
    return [tc.emit("shf.r.wrap.b32", words[i], words[i + 1], bits) for i in range(4)]


def transposed(vectors, count: int):
    """Transpose chunks of four words: result i holds element i of each of the `count` vectors."""
    if count == 2:
        return [[v[2 * i + half] for v in vectors for half in range(2)] for i in range(2)]
    if count == 4:
        return [[v[i] for v in vectors] for i in range(4)]
    if count == 8:
        return [
            [picked(vectors[w], vectors[w + 1], i // 2, 0x7632 if i % 2 else 0x5410) for w in range(0, 8, 2)]
            for i in range(8)
        ]
    chunks: list[list[Any]] = [[] for _ in range(16)]
    for w in range(0, 16, 4):
        for word in range(4):
            # First interleave bytes 0 and 1, then 2 and 3, of two lines; then join all four lines.
            pairs = [
                [picked(vectors[w + i], vectors[w + i + 1], word, order) for i in (0, 2)]
                for order in (0x5140, 0x7362)
            ]
            for byte in range(4):
                lower, upper = pairs[byte // 2]
                order = 0x7632 if byte % 2 else 0x5410
                chunks[4 * word + byte].append(tc.emit("prmt.b32", lower, upper, order))
    return chunks


def picked(lower, upper, word: int, order: int):
    """Select four bytes of word `word` of two chunks; order: the `prmt` selector."""
    return tc.emit("prmt.b32", lower[word], upper[word], order)
