"""Products that tests of numerics compute: shapes, types, targets, operands, and their register images."""

from __future__ import annotations

import numpy as np

from tensorcore_dsl.numerics.architectures import UNITS
from tensorcore_dsl.numerics.formats import FORMATS
from tensorcore_dsl.numerics.products import FragmentMaps, Product
from tests import exact_products as exact

ARCHS = tuple(UNITS)
SINCE_TURING, SINCE_AMPERE, SINCE_HOPPER = ARCHS[1:], ARCHS[2:], ARCHS[5:]
FLOATS = {"f16": (5, 10), "bf16": (8, 7), "tf32": (8, 10), "f32": (8, 23), "e4m3": (4, 3), "e5m2": (5, 2)}
BITS = {
    **exact.WIDTHS,
    "e3m2": 6,
    "e2m3": 6,
    "e2m1": 4,
    "e4m3": 8,
    "e5m2": 8,
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f32": 32,
    "f64": 64,
}


def mma(shape, a, d, b=None, c=None, family="mma", **more):
    return Product(family, *shape, a, b or a, c or d, d, **more)


def scaled(k, a, b, kind, vec, name, **more):
    return mma((16, 8, k), a, "f32", b, scale_kind=kind, scale_vec=vec, scale_type=name, **more)


F4 = (("mxf4", 2, "ue8m0"), ("mxf4nvf4", 2, "ue8m0"), ("mxf4nvf4", 4, "ue8m0"), ("mxf4nvf4", 4, "ue4m3"))
CASES = [
    *((mma((8, 8, 4), "f16", d, c=c), ARCHS) for d, c in (
        ("f16", "f16"), ("f32", "f32"), ("f32", "f16"))),
    *((mma((16, 8, 8), "f16", d), SINCE_TURING) for d in ("f16", "f32")),
    *((mma((16, 8, 16), "f16", d), SINCE_AMPERE) for d in ("f16", "f32")),
    *((mma((16, 8, k), "bf16", "f32"), SINCE_AMPERE) for k in (8, 16)),
    *((mma((16, 8, k), "tf32", "f32"), SINCE_AMPERE) for k in (4, 8)),
    *(
        (mma((16, 8, k), a, d, b), ("sm_89", "sm_90a", "sm_100a", "sm_120a"))
        for k in (16, 32) for d in ("f16", "f32")
        for a, b in (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e5m2"))
    ),
    *((mma((16, 8, 32), a, d, b), ("sm_120a",)) for a, b, d in (
        ("e3m2", "e2m1", "f32"), ("e2m3", "e4m3", "f16"), ("e2m1", "e5m2", "f32"))),
    *((scaled(32, a, b, "mxf8f6f4", 1, "ue8m0"), ("sm_120a",)) for a, b in (
        ("e4m3", "e4m3"), ("e5m2", "e2m1"), ("e3m2", "e2m3"))),
    *((scaled(64, "e2m1", "e2m1", *kind), ("sm_120a",)) for kind in F4),
    *((scaled(128, "e2m1", "e2m1", *kind, sparse=True), ("sm_120a",)) for kind in F4[2:]),
    (scaled(64, "e4m3", "e2m1", "mxf8f6f4", 1, "ue8m0", sparse=True), ("sm_120a",)),
    *((mma((16, 8, 32), a, d, sparse=True), SINCE_AMPERE) for a, d in (
        ("f16", "f16"), ("f16", "f32"), ("bf16", "f32"))),
    (mma((16, 8, 16), "tf32", "f32", sparse=True), SINCE_AMPERE),
    *((mma((16, 8, 64), "e4m3", d, "e5m2", sparse=True), ARCHS[4:]) for d in ("f16", "f32")),
    *(
        (mma((16, 8, k), a, "s32", b, satfinite=sat), ("sm_75", "sm_90a"))
        for k, a, b in ((16, "s8", "u8"), (32, "u8", "s8"), (64, "s4", "u4"), (32, "u4", "u4"))
        for sat in (False, True)
    ),
    (mma((16, 8, 64), "u8", "s32", "s8", sparse=True, satfinite=True), ("sm_80",)),
    *((mma((16, 8, 128), "b1", "s32", operation=op), ("sm_80",)) for op in ("and", "xor")),
    *(
        (mma((16, 16, 16), "f16", d, c=c, family="wmma"), ("sm_70", "sm_75", "sm_80", "sm_90a"))
        for c in ("f16", "f32") for d in ("f16", "f32")
    ),
    (mma((16, 16, 8), "tf32", "f32", family="wmma"), SINCE_AMPERE),
    *((mma((64, 16, 16), "f16", d, family="wgmma"), ("sm_90a",)) for d in ("f16", "f32")),
    *((mma((64, 8, 32), "e5m2", d, "e4m3", family="wgmma"), ("sm_90a",)) for d in ("f16", "f32")),
    (mma((64, 8, 32), "bf16", "f32", family="wgmma", sparse=True), ("sm_90a",)),
]  # fmt: skip
IDS = [(p, arch) for p, archs in CASES for arch in archs]


def raw(rng, name, shape):
    bits = BITS[name]
    word = np.dtype(f"u{max(bits, 8) // 8}")
    return rng.integers(0, 1 << bits, shape, word if bits >= 8 else np.uint8)


def near(rng, name, shape, low, high):
    """Floats with exponents in a band, low and high relative to one; others are raw."""
    if name not in FLOATS:
        return raw(rng, name, shape)
    width, fraction = FLOATS[name]
    bias = (1 << width - 1) - 1
    field = np.clip(rng.integers(low, high + 1, shape) + bias, 0, 2 * bias)
    tail = rng.integers(0, 1 << fraction, shape) & rng.integers(0, 1 << fraction, shape)
    word = rng.integers(0, 2, shape) << width + fraction | field << fraction | tail
    return (word << (13 if name == "tf32" else 0)).astype(f"u{BITS[name] // 8}")


def special(rng, name, shape):
    """Zeros, subnormals, largest numbers, infinities and NaNs among small numbers."""
    if name not in FLOATS:
        return raw(rng, name, shape)
    width, fraction = FLOATS[name]
    top = ((1 << width) - 1) << fraction
    codes = np.array([0, 0, 0, 1, top - 1, 1 << fraction, top // 2, top // 2 + 1, top, top | 1])
    picks = codes[rng.choice(len(codes), shape, p=[0.1] * 8 + [0.17, 0.03])]
    if rng.integers(2):
        picks = np.where(picks >= top, 0, picks)
    word = picks | rng.integers(0, 2, shape) << width + fraction
    return (word << (13 if name == "tf32" else 0)).astype(f"u{BITS[name] // 8}")


def tiny(rng, name, shape):
    least = {"bf16": -80, "tf32": -80, "f16": -16, "e5m2": -16}.get(name, -8)
    return near(rng, name, shape, least, least + 10)


REGIMES = {
    "raw": raw,
    "near": lambda rng, name, shape: near(rng, name, shape, -3, 3),
    "wide": lambda rng, name, shape: near(rng, name, shape, -14, 14),
    "tiny": tiny,
    "special": special,
}


def selected(rng, p, batch):
    """Two of each four (of tf32: one of each two, of packed pairs: four of eight), ascending."""
    group = {"tf32": 2, "e2m1": 8 if p.scale_kind in ("mxf4", "mxf4nvf4") else 4}.get(p.a, 4)
    chunks = p.k // group
    if group == 8:
        every = np.tile(np.arange(4), (batch, p.m, chunks, 1))
        pairs = np.sort(rng.permuted(every, axis=-1)[..., :2])
        chosen = np.stack([2 * pairs, 2 * pairs + 1], axis=-1).reshape(batch, p.m, chunks, 4)
    else:
        every = np.tile(np.arange(group), (batch, p.m, chunks, 1))
        chosen = np.sort(rng.permuted(every, axis=-1)[..., : group // 2])
    return (chosen + group * np.arange(chunks)[:, None]).reshape(batch, p.m, p.k // 2)


def operands(p, regime, rng, batch):
    draw = REGIMES[regime]
    a = draw(rng, p.a, (batch, p.m, p.stored))
    b = draw(rng, p.b, (batch, p.k, p.n))
    c = draw(rng, p.c, (batch, p.m, p.n))
    if regime == "tiny":
        c = np.where(rng.integers(0, 2, c.shape), c, 0).astype(c.dtype)
    more = {}
    if p.sparse:
        more["selection"] = selected(rng, p, batch)
    if p.scale_kind:
        low, high = {"raw": (0, 256), "tiny": (40, 60)}.get(regime, (115, 135))
        if p.scale_type == "ue4m3":
            low, high = (0, 256) if regime in ("raw", "special") else (40, 70)
        more["scale_a"] = rng.integers(low, high, (batch, p.m, p.scale_vec), np.uint8)
        more["scale_b"] = rng.integers(low, high, (batch, p.scale_vec, p.n), np.uint8)
    return a, b, c, more


def filled(threads, slots, place):
    """A map from place(row, column) = (thread, slot), over all rows and columns that fit."""
    result = np.full((threads, slots, 2), -1)
    for row, column, thread, slot in place:
        result[thread, slot] = row, column
    assert (result >= 0).all()
    return result


def mma_maps(p, packed_a, packed_b):
    """Maps of the usual m16n8 fragments for so many elements of A and B to a register."""
    e, f = packed_a, packed_b
    a = filled(
        32,
        p.m * p.stored // 32,
        (
            (r, k, r % 8 * 4 + k // e % 4, k % e + e * (r // 8) + 2 * e * (k // (4 * e)))
            for r in range(p.m)
            for k in range(p.stored)
        ),
    )
    b = filled(
        32,
        p.n * p.k // 32,
        ((k, n, n * 4 + k // f % 4, k % f + f * (k // (4 * f))) for k in range(p.k) for n in range(p.n)),
    )
    return FragmentMaps(a, b, accumulators(p, 32), accumulators(p, 32))


def accumulators(p, threads):
    return filled(
        threads,
        p.m * p.n // threads,
        (
            (r, n, r // 16 * 32 + r % 8 * 4 + n % 8 // 2, n % 2 + 2 * (r % 16 // 8) + 4 * (n // 8))
            for r in range(p.m)
            for n in range(p.n)
        ),
    )


def packed(lies, matrices, bits, shift=0, word=np.uint32):
    """The register image (registers, T) of matrices (warps, rows, columns)."""
    threads, slots, _ = lies.shape
    each = max(1, 32 // bits)
    image = np.zeros((-(-slots // each), len(matrices) * threads), word)
    for warp, matrix in enumerate(matrices):
        for thread, slot in np.ndindex(threads, slots):
            element = word(int(matrix[tuple(lies[thread, slot])]) << slot % each * bits + shift)
            image[slot // each, warp * threads + thread] |= element
    return image


def storage(p, kind):
    if kind == "e2m1":
        return (4, 0) if p.scale_kind in ("mxf4", "mxf4nvf4") else (8, 2)
    return {"tf32": 32, "e3m2": 8, "e2m3": 8}.get(kind, FORMATS[kind].bits), 0
