# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Compiled loops of the matrix products: gather, decode, fused sums, rounding, scatter.

They compute what blocks (see `blocks`) do not: infinities, NaN and extreme exponents. All
arithmetic is in binary64, which is exact here: a product of two elements has at most 22 significant
bits, and all aligned terms of a fused sum are integers below 2**53. NaN and infinities follow the
rules of binary64, which are those of the hardware.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.lowering import arrays, inlined, primitive, vectorised

from .columns import LANES, fused_columns
from .softfloat import as_bits, as_float
from .softfloat import fused as fma

LOW = -(1 << 20)  # exponent of a zero: never the largest of an alignment
HIGH = 200  # at least as large as the exponent of any element

# Indices into the array of settings, which describes a product and its model to the loops.
(
    M,
    N,
    K,
    DEPTH,
    TILES,
    SCALES,
    STEP_A,
    STEP_B,
    STEP_C,
    STEP_D,
    MASK_A,
    MASK_B,
    MASK_C,
    FRACTION_A,
    FRACTION_B,
    FRACTION_C,
    WIDTH_A,
    WIDTH_B,
    WIDTH_C,
    ENGINE,
    LENGTH,
    ALIGNED,
    FLOOR,
    KEPT,
    LEAST,
    LIMIT,
    NEAREST,
    LATE,
    FRACTION_D,
    WIDTH_D,
    CONVERT,
    SATURATE,
    SPARSE,
    OFFSET,
    SETTINGS,
) = range(35)

FUSED, GROUPED, SCALAR = range(3)  # engines

array_at: Any = primitive(arrays.at_address)


@inlined
def words_at(address):
    """View the memory at an address as an array of uint32, without a known end."""
    return array_at(address, (1 << 40,), np.uint32)


@inlined
def power(exponent):
    """2.0**exponent in the normal range."""
    return as_float((np.int64(exponent) + 1023) << 52)


@inlined
def bits_of(value):
    return np.int64(as_bits(np.float64(value)))


@inlined
def exponent_of(value, least):
    """The exponent used for alignment: numbers below `least` are not normalised."""
    field = (bits_of(value) >> 52) & 0x7FF
    return np.int32(min(max(field - 1023, least), HIGH)) if value != 0.0 else np.int32(LOW)


@inlined
def gather(words, base, places, first, count, mask, out):
    """Bits of `count` elements, from places[first] on; a place is 32 * word + shift."""
    for p in range(count):
        place = places[first + p]
        out[p] = (np.int32(words[base + (place >> 5)]) >> (place & 31)) & mask


@inlined
def look_up(bits, tables, operand, values, exponents):
    """Decode elements of at most 8 bits through a table of (values, exponents)."""
    for p in range(values.size):
        values[p] = tables[operand, 0, bits[p]]
        exponents[p] = np.int32(tables[operand, 1, bits[p]])


@inlined
def decode(bits, fraction, width, values, exponents):
    """Decode IEEE-like floats of `fraction` and `width` (exponent) bits."""
    top = (1 << width) - 1
    bias = top >> 1
    for p in range(values.size):
        u = np.int64(bits[p])
        field = (u >> fraction) & top
        tail = u & ((1 << fraction) - 1)
        significand = tail | (np.int64(field != 0) << fraction)
        exponent = max(field, 1) - bias
        value = np.float64(significand) * power(exponent - fraction)
        special = np.inf if tail == 0 else np.nan
        value = special if field == top else value
        values[p] = -value if (u >> (fraction + width)) & 1 else value
        exponents[p] = np.int32(exponent if significand != 0 else LOW)


@inlined
def integers(bits, values, exponents):
    for p in range(values.size):
        values[p] = np.float64(bits[p])
        exponents[p] = np.int32(LOW)


@inlined
def singles(words, base, places, first, values):
    """Gather and decode binary32 words."""
    for p in range(values.size):
        word = np.uint32(words[base + (places[first + p] >> 5)])
        values[p] = np.float64(as_float(np.uint32(word)))


@inlined
def elements(
    address: int,
    operand: int,
    warp: int,
    places: Any,
    first: int,
    tables: Any,
    s: Any,
    bits: Any,
    values: Any,
    exponents: Any,
) -> None:
    """Gather and decode one operand of one tile; operand is 0 for A, 1 for B."""
    fraction, width = s[FRACTION_A + operand], s[WIDTH_A + operand]
    base, mask = warp * s[STEP_A + operand], s[MASK_A + operand]
    gather(words_at(address), base, places, first, values.size, mask, bits)
    if width == 0:
        look_up(bits, tables, operand, values, exponents)
    elif fraction == 0:
        integers(bits, values, exponents)
    else:
        decode(bits, fraction, width, values, exponents)


@inlined
def accumulators(words, warp, places, first, s, bits, values, exponents):
    """Gather and decode C, without exponents."""
    fraction, base = s[FRACTION_C], warp * s[STEP_C]
    if fraction == 23:
        singles(words, base, places, first, values)
        return
    gather(words, base, places, first, values.size, s[MASK_C], bits)
    if fraction == 0:
        integers(bits, values, exponents)
    else:
        decode(bits, fraction, s[WIDTH_C], values, exponents)


@inlined
def rounded(x, fraction, least, limit, nearest):
    """x to `fraction` bits, subnormal below 2**least, infinite from limit on; -0 becomes +0."""
    exponent = min(max(((bits_of(x) >> 52) & 0x7FF) - 1023, least), HIGH)
    scaled = x * power(fraction - exponent)
    scaled = np.rint(scaled) if nearest else np.trunc(scaled)
    value = scaled * power(exponent - fraction) + 0.0
    value = np.inf if value >= limit else value
    return -np.inf if value <= -limit else value


@inlined
def round_all(x, fraction, least, limit, nearest, values, exponents):
    for p in range(x.size):
        value = rounded(x[p], fraction, least, limit, nearest)
        values[p] = value
        exponents[p] = exponent_of(value, least)


@inlined
def encode(values, fraction, width, bits):
    """Bits of values that the format represents exactly; every NaN becomes the canonical one."""
    top = (1 << width) - 1
    bias = top >> 1
    least = power(1 - bias)
    for p in range(values.size):
        value = values[p]
        u = bits_of(value)
        size = abs(value)
        small = np.int64(np.int32(min(size, least) * power(fraction + bias - 1)))
        large = ((u & 0x7FFFFFFFFFFFFFFF) >> (52 - fraction)) - ((1023 - bias) << fraction)
        magnitude = small if size < least else min(large, top << fraction)
        word = magnitude | (((u >> 63) & 1) << (fraction + width))
        bits[p] = np.int32(word if value == value else (1 << (fraction + width)) - 1)


@inlined
def encode_singles(values, bits):
    """`encode` for binary32."""
    for p in range(values.size):
        word = np.int32(as_bits(np.float32(values[p])))
        bits[p] = word if values[p] == values[p] else np.int32(0x7FFFFFFF)


@inlined
def encode_integers(values, saturate, bits):
    for p in range(values.size):
        value = values[p]
        if saturate:
            value = min(max(value, -2147483648.0), 2147483647.0)
        bits[p] = np.int32(np.int64(value))


@inlined
def scatter(bits, places, first, positions, held, words, base):
    """Write each element of a tile to all threads that hold it, lowest element of a word first."""
    for p in range(held):
        place = places[first + p]
        word = np.uint32(bits[places[positions + p]]) << np.uint32(place & 31)
        words[base + (place >> 5)] = words[base + (place >> 5)] | word if place & 31 else word


@inlined
def scatter_words(bits, places, first, positions, held, words, base):
    """`scatter` for 32-bit elements."""
    for p in range(held):
        words[base + (places[first + p] >> 5)] = np.uint32(bits[places[positions + p]])


@inlined
def fused(va, ea, vb, eb, rows, vc, ec, x, s):
    """The chain of fused steps; vc, ec hold the accumulator before and after."""
    m, n, k, length = s[M], s[N], s[K], s[LENGTH]
    row_step = k if s[SPARSE] else 0
    for first in range(0, k, length):
        step = min(length, k - first)
        for j in range(0, n, LANES):
            for i in range(m):
                fused_columns(
                    va,
                    ea,
                    vb,
                    eb,
                    rows,
                    vc,
                    ec,
                    x,
                    i * k + first,
                    i * row_step + first,
                    i * n + j,
                    j,
                    step,
                    s[ALIGNED],
                    s[FLOOR],
                )
        limit = power(s[LIMIT])
        if s[NEAREST]:
            round_all(x, s[KEPT], s[LEAST], limit, True, vc, ec)
        else:
            round_all(x, s[KEPT], s[LEAST], limit, False, vc, ec)


@inlined
def grouped_sum(va, vb, rows, c, ec, i, j, row, scales, scale_b, s):
    """One element: exact sums of groups, scaled, then aligned by the exponents of the scales."""
    k, n, length, blocks = s[K], s[N], s[LENGTH], s[SCALES]
    largest = max(np.int64(ec), s[FLOOR])
    for phase in range(2):
        total = np.trunc(c * power(s[ALIGNED] - largest))
        for first in range(0, k, length):
            exact, alive = 0.0, False
            for q in range(first, min(first + length, k)):
                product = va[i * k + q] * vb[rows[row + q] + j]
                exact += product
                alive |= product != 0.0
            block = first * blocks // k
            at_a, at_b = block * s[M] + i, scale_b + block * n + j
            significand = scales[0, at_a] * scales[0, at_b]
            exponent = np.int64(scales[1, at_a] + scales[1, at_b])
            if phase == 1:
                total += np.trunc(exact * significand * power(exponent + s[ALIGNED] - largest))
            elif alive and significand != 0.0:
                largest = max(largest, exponent)
    return total * power(largest - s[ALIGNED])


@inlined
def grouped(va, vb, rows, vc, ec, scales, x, s):
    """Block-scaled 4-bit products: one fused step adds the sums of groups of LENGTH elements."""
    m, n, k = s[M], s[N], s[K]
    for i in range(m):
        row = i * k if s[SPARSE] else 0
        for j in range(n):
            p = i * n + j
            x[p] = grouped_sum(va, vb, rows, vc[p], ec[p], i, j, row, scales, m * s[SCALES], s)
    round_all(x, s[KEPT], s[LEAST], power(s[LIMIT]), False, vc, ec)


@inlined
def scalar(va, vb, vc, s):
    """m8n8k4 in scalar binary32 instructions, as on GPUs without that unit."""
    m, n = s[M], s[N]
    zero = np.float32(0)
    for i in range(m):
        for j in range(n):
            c = np.float32(vc[i * n + j])
            total, low = zero, zero
            for q in range(4):
                a, b = np.float32(va[4 * i + q]), np.float32(vb[q * n + j])
                if s[CONVERT] and q == 2:
                    low, total = total, zero
                # The first product of a sum is rounded as one that zero is added to, but for -0.
                total = a * b if s[CONVERT] and q % 2 == 0 else fma(a, b, total)
            vc[i * n + j] = (c + low) + total if s[CONVERT] else c + total


@inlined
def scales_of(extra, w, tables, s, scales):
    """Significands and exponents of the scales: by block those of the rows of A, then of B."""
    first = s[M] * s[K] if s[SPARSE] else 0
    for p in range((s[M] + s[N]) * s[SCALES]):
        scales[0, p] = tables[2, 0, extra[w, first + p]]
        scales[1, p] = tables[2, 1, extra[w, first + p]]


@inlined
def scale_elements(va, ea, vb, eb, scales, s):
    """Multiply each element by the scale of its block, in value and exponent."""
    k, n, depth, blocks = s[K], s[N], s[DEPTH], s[SCALES]
    for p in range(va.size):
        at = p % k * blocks // k * s[M] + p // k
        va[p] *= scales[0, at] * power(np.int64(scales[1, at]))
        ea[p] += np.int32(scales[1, at])
    for p in range(vb.size):
        at = s[M] * blocks + p // n * blocks // depth * n + p % n
        vb[p] *= scales[0, at] * power(np.int64(scales[1, at]))
        eb[p] += np.int32(scales[1, at])


@inlined
def begin(vc, ec, late, s):
    """Set the accumulator's exponents; with LATE, exclude c from the sum."""
    least, offset = s[LEAST], np.float64(s[OFFSET])
    for p in range(vc.size):
        if s[LATE]:
            late[p] = vc[p]
            vc[p] = 0.0
        if s[FRACTION_C] == 0:
            vc[p] += offset
            ec[p] = LOW
        else:
            ec[p] = exponent_of(vc[p], least)


@inlined
def finish(vc, late, s, bits):
    """Steps after the chain: late addition of c, conversion to D's type, encoding."""
    fraction, width = s[FRACTION_D], s[WIDTH_D]
    if s[LATE] or s[CONVERT]:
        least, limit = 2 - (1 << (width - 1)), power(1 << (width - 1))
        for p in range(vc.size):
            x = vc[p] + late[p] if s[LATE] else vc[p]
            value = rounded(x, fraction, least, limit, True)
            vc[p] = np.copysign(value, x) if s[CONVERT] else value
    if fraction == 0:
        encode_integers(vc, s[SATURATE], bits)
    elif fraction == 23:
        encode_singles(vc, bits)
    else:
        encode(vc, fraction, width, bits)


@inlined
def starts(extra, w, s, rows):
    """Start of the row of B that is multiplied by each stored element of A."""
    for p in range(rows.size):
        rows[p] = (extra[w, p] if s[SPARSE] else p) * s[N]


@vectorised
def _products(  # noqa: PLR0913
    first: Any,
    second: Any,
    uses: Any,
    extra: Any,
    active: Any,
    places: Any,
    tables: Any,
    s: Any,
    bits: Any,
    va: Any,
    ea: Any,
    vb: Any,
    eb: Any,
    vc: Any,
    ec: Any,
    x: Any,
    late: Any,
    rows: Any,
    scales: Any,
) -> None:
    """`products`, with memory for decoded operands, accumulators and scales."""
    tiles = s[TILES]
    size_a, size_b, size_c = s[M] * s[K], s[DEPTH] * s[N], s[M] * s[N]
    end_a = tiles * size_a
    end_b = end_a + tiles * size_b
    end_c = end_b + tiles * size_c
    held = (places.size - end_c) // (2 * tiles)
    for w in range(active.size):
        if not active[w]:
            continue
        starts(extra, w, s, rows)
        scales_of(extra, w, tables, s, scales)
        for t in range(tiles):
            at_c, at_d = end_b + t * size_c, end_c + t * held
            positions = at_d + tiles * held
            for i in range(first.size):
                elements(first[i], 0, w, places, t * size_a, tables, s, bits, va[i], ea[i])
            for i in range(second.size):
                at_b = end_a + t * size_b
                elements(second[i], 1, w, places, at_b, tables, s, bits, vb[i], eb[i])
            for use in range(uses.shape[0]):
                a, b = uses[use, 0], uses[use, 1]
                accumulators(words_at(uses[use, 2]), w, places, at_c, s, bits, vc, ec)
                begin(vc, ec, late, s)
                if s[ENGINE] == GROUPED:
                    grouped(va[a], vb[b], rows, vc, ec, scales, x, s)
                elif s[ENGINE] == SCALAR:
                    scalar(va[a], vb[b], vc, s)
                else:
                    if s[SCALES]:
                        scale_elements(va[a], ea[a], vb[b], eb[b], scales, s)
                    fused(va[a], ea[a], vb[b], eb[b], rows, vc, ec, x, s)
                finish(vc, late, s, bits)
                d, step = words_at(uses[use, 3]), w * s[STEP_D]
                if s[FRACTION_D] == 23 or s[FRACTION_D] == 0:
                    scatter_words(bits, places, at_d, positions, held, d, step)
                else:
                    scatter(bits, places, at_d, positions, held, d, step)


def products(
    first: Any, second: Any, uses: Any, extra: Any, active: Any, places: Any, tables: Any, settings: Any
) -> None:
    """All products of one call.

    first, second: addresses of the words of each A and each B (register images or matrices). uses:
    for each operation the indices of its A and B, and the addresses of the words of its C and D.
    extra: (products, n) int32: the logical k of each stored element of A if sparse, then the scale
    bytes of A by block of K and row, then of B; they belong to one operation. active: one bool per
    warp. places: of the elements of A, B, C and D, then the position in the tile of each element of
    D. tables: (3, 2, 256), values and exponents of all 8-bit patterns of A, B and the scales.
    """
    m, n, k, depth, _, blocks = map(int, settings[: SCALES + 1])
    size_a, size_b, size_c = m * k, depth * n, m * n
    count_a, count_b = (first.size, size_a), (second.size, size_b)
    _products(
        first,
        second,
        uses,
        extra,
        active,
        places,
        tables,
        settings,
        np.empty(max(size_a, size_b, size_c), np.int32),
        np.empty(count_a),
        np.empty(count_a, np.int32),
        np.empty(count_b),
        np.empty(count_b, np.int32),
        np.empty(size_c),
        np.empty(size_c, np.int32),
        np.empty(size_c),
        np.empty(size_c),
        np.empty(size_a if settings[SPARSE] else k, np.int32),
        np.empty((2, (m + n) * blocks)),
    )
