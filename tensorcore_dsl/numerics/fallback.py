# mypy: disable-error-code="no-any-return"
"""Matrix products in NumPy for the results that blocks cannot compute: infinities, NaN, extreme exponents.

Arithmetic is in binary64, which is exact here. A product of two elements has at most 22 significant
bits, and all aligned terms of a fused sum are integers below 2**53. NaN and infinities follow the rules of
binary64, as on hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .architectures import Model, Product
from .formats import BIT_VALUES, FORMATS, LOW, scale_table
from .ieee import ieee
from .number_formats import values
from .plans import OperandPositions, ProductPlan

Array = npt.NDArray[Any]
BATCH = 1 << 14  # elements of D that are computed at a time: terms then stay in the cache


def compute(plan: ProductPlan, uses: Sequence[tuple[Array, ...]], left: Array, extra: Array) -> None:
    """Compute d = a * b + c for the warps marked in `left`, (uses, warps) bool.

    uses: the contiguous words of a, b, c and d; those of d are written. extra: the result of
    `plans.extra_operands`.
    """
    product, model = plan.product, plan.model
    shapes = (product.m, product.stored), (product.k, product.n), (product.m, product.n)
    kinds, size = (product.a, product.b, product.c), max(BATCH // (product.m * product.n), 1)
    pairs = np.argwhere(left)
    for some in (pairs[i : i + size] for i in range(0, len(pairs), size)):
        uses_of_words = [(uses[use], some[some[:, 0] == use, 1]) for use in np.unique(some[:, 0])]
        a, b, c = (
            np.concatenate([_gathered(operand, words[i], warps, kind) for words, warps in uses_of_words])
            for i, (operand, kind) in enumerate(zip(plan.abc, kinds, strict=True))
        )
        # The products are the last axis, along which NumPy is fast.
        a, b, c = (
            np.ascontiguousarray(x.reshape(-1, *shape).transpose(1, 2, 0))
            for x, shape in zip((a, b, c), shapes, strict=True)
        )
        rows, further = None, (extra[some[:, 1]] if extra.size else extra).T
        if product.sparse:
            count = product.m * product.stored
            rows, further = further[:count].reshape(a.shape), further[count:]
        with np.errstate(all="ignore"):
            bits = _ENGINES[model.engine](product, model, a, b, c, rows, further)
        ends = np.cumsum([len(warps) for _, warps in uses_of_words])
        for (words, warps), results in zip(
            uses_of_words, np.split(bits.transpose(2, 0, 1).reshape(len(some), -1), ends[:-1]), strict=True
        ):
            _scatter(plan.d, words[3], warps, results)


def _gathered(operand: OperandPositions, words: Array, warps: Array, kind: str) -> Array:
    """Bits of all elements of an operand, (warps, tiles, elements)."""
    at = warps[:, None, None] * operand.step + (operand.bit_offsets >> 5)
    shifts = (operand.bit_offsets & 31).astype(words.dtype)
    return (words[at] >> shifts) & words.dtype.type((1 << FORMATS[kind].bits) - 1)


def _scatter(operand: OperandPositions, words: Array, warps: Array, bits: Array) -> None:
    """Write the elements of d, (warps, elements of all tiles), to all threads that hold them."""
    tiles = len(operand.bit_offsets)
    at = warps[:, None, None] * operand.step + (operand.bit_offsets >> 5)
    assert operand.positions is not None
    positions = np.broadcast_to(operand.positions, at.shape)
    elements = np.take_along_axis(bits.reshape(len(warps), tiles, -1), positions, 2)
    words[at] = 0
    np.bitwise_or.at(
        words, at, elements.astype(words.dtype) << (operand.bit_offsets & 31).astype(words.dtype)
    )


# -- elements ------------------------------------------------------------------------------------


def _values(bits: Array, kind: str, operation: str = "mul", operand: int = 0) -> Array:
    """The numbers that elements represent."""
    form = FORMATS[kind]
    if kind == "b1":
        return np.array(BIT_VALUES[operation][operand])[bits]
    if not form.width:
        shift = 64 - form.bits
        wide = bits.astype(np.uint64) << np.uint64(shift)
        return ((wide.view(np.int64) if form.signed else wide) >> shift).astype(np.float64)
    if form.bits <= 16:
        return values(kind)[bits]
    return (bits.astype(np.uint32) << np.uint32(32 - form.bits)).view(np.float32).astype(np.float64)


def _exponents(numbers: Array, kind: str, least: int | None = None) -> Array:
    """Exponents as alignment sees them; LOW for zeros and integers.

    least: exponent of the smallest normalised number; None: of the type.
    """
    form = FORMATS[kind]
    exponents = np.maximum(np.frexp(numbers)[1] - 1, form.least if least is None else least)
    return np.where(numbers == 0, LOW, exponents) if form.width else np.full(numbers.shape, LOW)


def _rounded(x: Array, fraction: int, least: int, limit: int, nearest: bool) -> Array:
    """Round x to `fraction` bits, subnormal below 2**least, infinite from 2**limit on; -0 becomes +0."""
    exponents = np.maximum(np.frexp(x)[1] - 1, least)
    scaled = np.ldexp(x, fraction - exponents)
    value = np.ldexp(np.rint(scaled) if nearest else np.trunc(scaled), exponents - fraction) + 0.0
    return np.where(abs(value) >= np.ldexp(1.0, limit), np.copysign(np.inf, value), value)


def _encoded(x: Array, kind: str, saturate: bool) -> Array:
    """Bits of numbers that the type represents exactly; every NaN becomes the canonical one."""
    if kind == "s32":
        bounds = np.iinfo(np.int32)
        return (np.clip(x, bounds.min, bounds.max) if saturate else x).astype(np.int64).astype(np.uint32)
    narrow = x.astype(np.float32 if kind == "f32" else np.float16)
    bits = narrow.view(f"u{narrow.itemsize}")
    return np.where(np.isnan(x), bits.dtype.type((1 << FORMATS[kind].bits - 1) - 1), bits)


# -- engines -------------------------------------------------------------------------------------


def _fused(
    product: Product, model: Model, a: Array, b: Array, c: Array, rows: Array | None, scales: Array
) -> Array:
    """Sums of aligned, truncated terms: of products, or of groups of them that are scaled."""
    form, converts = FORMATS[product.d], product.d == "f16" and model.accumulator != "f16"
    va, vb = (
        _values(x, kind, product.operation, i) for i, (x, kind) in enumerate(((a, product.a), (b, product.b)))
    )
    ea, eb = (_exponents(x, kind, model.least) for x, kind in ((va, product.a), (vb, product.b)))
    vc = _values(c, product.c) + (product.k / 2 if product.operation == "xor" else 0)
    total = np.zeros_like(vc) if model.late else vc
    if model.engine == "grouped":
        total = _step(model, total, *zip(*_groups(product, model, va, vb, rows, scales)))
    else:
        if product.scale_kind:
            sa, sb = _scales(product, scales)
            va, ea = va * np.ldexp(*sa), ea + sa[1]
            vb, eb = vb * np.ldexp(*sb), eb + sb[1]
        for first in range(0, product.stored, model.length):
            part = range(first, min(first + model.length, product.stored))
            terms = (va[:, k, None] * _row(vb, rows, k) for k in part)
            exponents = (ea[:, k, None] + _row(eb, rows, k) for k in part)
            total = _step(model, total, terms, exponents)
    if model.late or converts:
        total = total + vc if model.late else total
        near = _rounded(total, form.fraction, form.least, 1 << form.width - 1, True)
        total = np.copysign(near, total) if converts else near
    return _encoded(total, product.d, product.satfinite)


def _row(b: Array, rows: Array | None, k: int) -> Array:
    """The row of B that is multiplied by stored column k of A: (n, products), or (m, n, products)."""
    if rows is None:
        return b[k]
    _, n, count = b.shape
    return b[rows[:, k, None], np.arange(n)[:, None], np.arange(count)]


def _step(model: Model, c: Array, terms: Iterable[Array], exponents: Iterable[Array]) -> Array:
    """One fused step: add the terms to c, all truncated at the largest exponent's `fraction` bits."""
    accumulator = FORMATS[model.accumulator]
    largest = np.maximum(_exponents(c, model.accumulator), model.floor)
    for of_term in exponents:
        largest = np.maximum(largest, of_term)
    unit = np.ldexp(1.0, largest - model.fraction)
    scale = 1 / unit
    total = np.trunc(c * scale)
    for term in terms:
        term *= scale
        total += np.trunc(term, out=term)
    total *= unit
    if not accumulator.width:
        return total
    return _rounded(total, model.kept, accumulator.least, 1 << accumulator.width - 1, model.nearest)


def _scales(product: Product, scales: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Significands and exponents of the scales of A (m, blocks, products) and B (blocks, n, products)."""
    significands, exponents = scale_table(product.scale_type)
    cut, blocks = product.m * product.scale_vec, product.scale_vec
    of_a = scales[:cut].reshape(blocks, product.m, -1).swapaxes(0, 1)
    of_b = scales[cut:].reshape(blocks, product.n, -1)
    return tuple((significands[x], exponents[x].astype(np.int64)) for x in (of_a, of_b))  # type: ignore[return-value]


def _groups(
    product: Product, model: Model, va: Array, vb: Array, rows: Array | None, scales: Array
) -> Iterator[tuple[Array, Array]]:
    """Exact sums of groups of 4-bit products, scaled; their exponents are those of the scales."""
    (sa, ea), (sb, eb) = _scales(product, scales)
    for first in range(0, product.stored, model.length):
        exact, alive = np.zeros(()), np.zeros((), np.bool_)
        for k in range(first, min(first + model.length, product.stored)):
            numbers = va[:, k, None] * _row(vb, rows, k)
            exact, alive = exact + numbers, alive | (numbers != 0)
        block = first * product.scale_vec // product.stored
        significand = sa[:, block, None] * sb[block]
        exponent = ea[:, block, None] + eb[block]
        alive = alive & (significand != 0)
        yield np.ldexp(exact * significand, exponent), np.where(alive, exponent, LOW)


def _scalar(
    product: Product, model: Model, a: Array, b: Array, c: Array, rows: Array | None, scales: Array
) -> Array:
    """m8n8k4 in scalar binary32 instructions, as on GPUs without that unit."""
    va, vb, vc = (_values(x, kind).astype(np.float32) for x, kind in ((a, "f16"), (b, "f16"), (c, product.c)))
    fma, halves = ieee("fma", "f32", "rn", False), product.d == "f16"
    sums = []
    for k in range(4):
        x, y = np.broadcast_arrays(va[:, k, None], vb[k])
        if k == 0 or (halves and k == 2):
            # The first product is rounded like a sum with zero, except that it keeps -0.
            sums.append(x * y if halves else x * y + np.float32(0))
        else:
            sums[-1] = fma(*(v.view(np.uint32) for v in (x.copy(), y.copy(), sums[-1]))).view(np.float32)
    total = vc
    for partial in sums:
        total = total + partial
    if not halves:
        return _encoded(total.astype(np.float64), product.d, False)
    wide, form = total.astype(np.float64), FORMATS["f16"]
    near = _rounded(wide, form.fraction, form.least, 1 << form.width - 1, True)
    return _encoded(np.copysign(near, wide), product.d, False)


def _double(
    product: Product, model: Model, a: Array, b: Array, c: Array, rows: Array | None, scales: Array
) -> Array:
    """Chains of binary64 fused multiply-adds."""
    fma = ieee("fma", "f64", product.rounding, False)
    for k in range(product.k):
        c = fma(a[:, k, None], b[k], c)
    return c


_ENGINES = {"fused": _fused, "grouped": _fused, "scalar": _scalar, "double": _double}
