"""Products: public hardware results, and vectors for constants that random operands do not show."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensorcore_dsl.numerics.architectures import model
from tensorcore_dsl.numerics.products import matmul
from tests.numerics_cases import mma

FLOATS = {
    "f16": (5, 10),
    "bf16": (8, 7),
    "tf32": (8, 10),
    "f32": (8, 23),
    "e4m3": (4, 3),
    "e5m2": (5, 2),
    "e2m1": (2, 1),
}


def first_element(p, arch, a, b, c, **more):
    """d[0, 0] of a row of A, a column of B, and c, given as bits; all other elements are zero."""
    word = {"f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32}.get(p.a, np.uint8)
    full_a = np.zeros((1, p.m, p.stored), word)
    full_b = np.zeros((1, p.k, p.n), word)
    full_c = np.zeros((1, p.m, p.n), np.uint16 if p.c == "f16" else np.uint32)
    full_a[0, 0, : len(a)] = a
    full_b[0, : len(b), 0] = b
    full_c[0, 0, 0] = c
    return int(matmul(p, arch, full_a, full_b, full_c, **more)[0, 0, 0])


def words(text):
    return [int(word, 16) for word in text.split()]


# Results of real GPUs that others published; bf16 operands are written as binary32.

H100_FLOOR_A = words(
    "9b940000 19f30000 9a2e0000 1a670000 9a250000 9b4e0000 9b290000 9a330000 "
    "99e00000 1a140000 99140000 99d10000 9ae90000 1b1a0000 9a9c0000 1b3a0000"
)
H100_FLOOR_B = words(
    "9aaf0000 99f30000 9acc0000 1b7c0000 19ed0000 1b250000 9a1b0000 9a200000 "
    "9af70000 9a480000 1ae10000 1b320000 1b120000 1b0e0000 9a680000 17350000"
)
B200_CARRY_A = words(
    "0e 0e 0b 06 00 08 0f 09 0a 0b 03 09 0f 07 0e 00 "
    "02 06 01 05 0a 08 06 04 07 0c 06 0b 01 0c 06 0d "
    "0b 0b 08 06 0c 08 0c 05 00 04 01 0f 01 06 0f 05 "
    "02 04 06 05 0a 07 0b 07 00 01 0a 0d 0b 0f 0e 07"
)
B200_CARRY_B = words(
    "06 0c 0b 02 08 09 0b 04 03 0d 02 09 09 0c 01 08 "
    "07 02 06 03 0d 02 09 0a 05 09 0f 05 0a 08 06 00 "
    "08 0d 0d 02 0c 0c 05 02 08 03 04 0f 0f 01 01 0a "
    "0b 0a 05 0b 0f 03 0b 0e 0a 05 07 01 01 07 08 0a"
)
# No GPU has decided these two: they hold the rule that is implemented.
OPEN_E8_A = bytes.fromhex(
    "010d0203010a090e030a0e0700090e050a070e0b0f04000003040b0e07000b06"
    "04090b0d0b07050a08070605050509060000080706090f03000503080a090204"
)
OPEN_E8_B = bytes.fromhex(
    "020e0a070602060e0d0e020e0f010c0f0705040d0300050b000c020807020d00"
    "07030d080504020d0a080c0208060204050d0506060103090a04070402030302"
)
OPEN_E4_A = bytes.fromhex(
    "0c000000000000000000000000000100020000000f090007000509000000000a"
    "050000000600060b000a00000000000900000000000000000500080000000000"
)
OPEN_E4_B = bytes.fromhex(
    "0d070506080d0704070b0a0b0b08070a060a030f0e000009080e030b0903070c"
    "0d010b0f0403090908080a0f070b070e05060a03050e0006080d01080a060e07"
)


def nvf4(name):
    return mma((16, 8, 64), "e2m1", "f32", scale_kind="mxf4nvf4", scale_vec=4, scale_type=name)


def scales(p, a, b):
    scale_a = np.zeros((1, p.m, p.scale_vec), np.uint8)
    scale_b = np.zeros((1, p.scale_vec, p.n), np.uint8)
    scale_a[0, 0], scale_b[0, :, 0] = a, b
    return {"scale_a": scale_a, "scale_b": scale_b}


@pytest.mark.parametrize("family", ["mma", "wgmma"])
def test_h100_aligns_no_lower_than_its_floor(family):
    p = mma((64, 8, 16) if family == "wgmma" else (16, 8, 16), "bf16", "f32", family=family)
    a, b = ([word >> 16 for word in side] for side in (H100_FLOOR_A, H100_FLOOR_B))
    assert first_element(p, "sm_90a", a, b, 0) == 0x0000000B


@pytest.mark.parametrize(
    ("name", "a", "b", "c", "scale_a", "scale_b", "want"),
    [
        ("ue4m3", B200_CARRY_A, B200_CARRY_B, 0x094E5986, "09 7c 6d 44", "07 78 26 79", 0x49FCAFB7),
        ("ue8m0", OPEN_E8_A, OPEN_E8_B, 0, "24 45 1b 1b", "2b 28 30 2a", 0x228),
        ("ue4m3", OPEN_E4_A, OPEN_E4_B, 0xC9000000, "7e 78 01 02", "02 78 08 7e", 0x48C801F8),
    ],
)
def test_groups_of_block_scaled_4_bit_products(name, a, b, c, scale_a, scale_b, want):
    p = nvf4(name)
    more = scales(p, words(scale_a), words(scale_b))
    assert first_element(p, "sm_120a", list(a), list(b), c, **more) == want


@pytest.mark.parametrize(
    ("kind", "a", "b", "want"),
    [
        ("tf32", 0x7F800001, 0x3F800000, 0x7F800000),
        ("tf32", 0x00002000, 0x3F800000, 0x00002000),
        ("bf16", 0x0001, 0x3F80, 0x00010000),
        ("f16", 0x0001, 0x3C00, 0x33800000),
        ("e4m3", 0x01, 0x38, 0x3B000000),
        ("e5m2", 0x01, 0x3C, 0x37800000),
        ("f16", 0x7C00, 0x0000, 0x7FFFFFFF),
        ("bf16", 0xFFC1, 0x0000, 0x7FFFFFFF),
        ("e4m3", 0xFF, 0x38, 0x7FFFFFFF),
    ],
)
def test_edges_seen_on_b200(kind, a, b, want):
    shape = {"tf32": (16, 8, 8), "e4m3": (16, 8, 32), "e5m2": (16, 8, 32)}.get(kind, (16, 8, 16))
    for arch in ("sm_90a", "sm_100a", "sm_120a"):
        assert first_element(mma(shape, kind, "f32"), arch, [a], [b], 0) == want


def test_zero_products_make_minus_zero_plus_zero_and_nan_of_f16_is_canonical():
    wide, half = (mma((16, 8, 16), "f16", d) for d in ("f32", "f16"))
    assert first_element(wide, "sm_100a", [0x8000], [0x3C00], 1 << 31) == 0
    assert first_element(half, "sm_100a", [0xFE01], [0x3C00], 0) == 0x7FFF


@pytest.mark.parametrize(
    ("p", "arch"),
    [(mma((16, 8, 32), "e4m3", "f32"), "sm_89"), (mma((64, 8, 32), "e5m2", "f32", family="wgmma"), "sm_90a")],
)
def test_native_8_bit_units_keep_13_bits_of_c(p, arch):
    c = np.random.default_rng(3).integers(0, 1 << 32, (1, p.m, p.n), np.uint32)
    a, b = np.zeros((1, p.m, p.k), np.uint8), np.zeros((1, p.k, p.n), np.uint8)
    finite = (c >> 23 & 255) != 255
    want = np.where(c << 1 < 1 << 11, 0, c & 0xFFFFFC00)
    assert (matmul(p, arch, a, b, c) == want)[finite].all()


# Directed vectors for what the random operands of test_numerics_products.py do not show: the last
# bit of a fraction where D is f16, and the floor. Written again from the evidence, a unit a row:
# fraction bits of the alignment, and the exponent below which it does not align.

UNITS = [
    *((mma((8, 8, 4), "f16", "f16"), arch, 23, -19) for arch in ("sm_70", "sm_75")),
    (mma((16, 8, 8), "f16", "f16"), "sm_75", 24, -20),
    *(
        row
        for arch in ("sm_80", "sm_86", "sm_89")
        for row in (
            (mma((16, 8, 16), "f16", "f16"), arch, 24, -20),
            (mma((16, 8, 16), "bf16", "f32"), arch, 24, -132),
            (mma((16, 8, 8), "tf32", "f32"), arch, 24, -132),
            (mma((16, 16, 8), "tf32", "f32", family="wmma"), arch, 24, -132),
        )
    ),
    *(
        row
        for arch in ("sm_90a", "sm_100a", "sm_120a")
        for row in (
            (mma((16, 8, 16), "f16", "f16"), arch, 25, -21),
            (mma((16, 8, 16), "bf16", "f32"), arch, 25, -133),
            (mma((16, 8, 8), "tf32", "f32"), arch, 25, -133),
            (mma((16, 16, 8), "tf32", "f32", family="wmma"), arch, 25, -133),
            (mma((16, 8, 32), "e5m2", "f16"), arch, 25, None),  # no operands can show its floor
        )
    ),
]


def code(kind, value):
    """Bits of a number that the type holds exactly."""
    width, fraction = FLOATS[kind]
    bias = (1 << width - 1) - 1
    sign = (1 << width + fraction) * (math.copysign(1, value) < 0)
    value = abs(value)
    exponent = max(math.frexp(value)[1] - 1, 1 - bias) if value else 1 - bias
    units = math.ldexp(value, fraction - exponent)
    assert units == int(units) and exponent <= bias, f"{kind} does not hold {value}"
    word = sign + int(units) + (exponent - 1 + bias << fraction)
    return word << 13 if kind == "tf32" else word


def powers(kind, exponent, sign=1):
    """A product of +-2**exponent as two elements."""
    least = {"f16": -24, "e5m2": -16, "e4m3": -9}.get(kind, -120)
    first = max(exponent // 2, least)
    return code(kind, sign * math.ldexp(1, first)), code(kind, math.ldexp(1, exponent - first))


def run(p, arch, terms):
    """d of products of sign * 2**exponent, {n: (sign, exponent)}.

    n counts the products in the order in which the hardware meets them.
    """
    a, b = [0] * p.k, [0] * p.k
    for n, (sign, exponent) in terms.items():
        k = nth(p, model(p, arch), n)
        a[k], b[k] = powers(p.a, exponent, sign)
    return first_element(p, arch, a, b, 0)


def nth(p, base, n):
    half = p.k // 2
    return n % half // 2 * 4 + n % 2 + n // half * 2 if base.order == "interleaved" else n


@pytest.mark.parametrize(("p", "arch", "fraction", "floor"), UNITS, ids=lambda v: str(v).replace(" ", "-"))
def test_fraction(p, arch, fraction, floor):
    """Beside 2**12 and its negative, 2**(12 - F) survives and half of it does not."""
    last = {0: (1, 12), 1: (-1, 12), 2: (1, 12 - fraction)}
    lost = last | {2: (1, 11 - fraction)}
    assert run(p, arch, last) == code(p.d, 2.0 ** (12 - fraction))
    assert run(p, arch, lost) == 0


@pytest.mark.parametrize(
    ("p", "arch", "fraction", "floor"),
    [row for row in UNITS if row[3] is not None],
    ids=lambda v: str(v).replace(" ", "-"),
)
def test_floor(p, arch, fraction, floor):
    """The smallest result, less what is just above (or below) the floor's last bit."""
    last, lost = floor - fraction, floor - fraction - 1
    if p.d == "f16":  # a tie, which a kept term decides
        edge, sign, kept_result, lost_result = -25, 1, 1, 0
    else:
        edge, sign, kept_result, lost_result = -149, -1, 0, 1
    assert run(p, arch, {0: (1, edge), 1: (sign, last)}) == kept_result
    assert run(p, arch, {0: (1, edge), 1: (sign, lost)}) == lost_result


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_scalar_m8n8k4_adds_c_before_the_second_pair(arch):
    """Each pair adds 3/8 of a unit of binary32 to a tie of f16; together they would decide it."""
    p = mma((8, 8, 4), "f16", "f16")
    small = math.ldexp(3, -13), math.ldexp(1, -13)
    pairs = [(2.0**-11, 1.0), small, small, (0.0, 0.0)]
    a, b = zip(*((code("f16", x), code("f16", y)) for x, y in pairs), strict=True)
    assert first_element(p, arch, a, b, code("f16", 1.0)) == code("f16", 1.0)


@pytest.mark.parametrize(
    ("c", "wraps", "clamps"),
    [
        (0x7FFFFFFF, 0x80000000 - 1 + 127 * 127, 0x7FFFFFFF),
        (0x80000000, 0x7FFFFFFF + 1 - 128 * 127, 0x80000000),
        (0x80000000 + 128 * 127, 0x80000000, 0x80000000),
        (5, 5 + 127 * 127, 5 + 127 * 127),
    ],
)
def test_integers_wrap_or_clamp_the_exact_total(c, wraps, clamps):
    first = 0x7F if c < 1 << 31 else 0x80  # 127 or -128
    for sat, want in ((False, wraps), (True, clamps)):
        p = mma((16, 8, 32), "s8", "s32", satfinite=sat)
        assert first_element(p, "sm_80", [first], [0x7F], c) == want & 0xFFFFFFFF


def grouped(elements, scale_exponents):
    """nvf4 with ue8m0 scales on the side of A: elements {k: code of A}, all of B are one."""
    p = nvf4("ue8m0")
    a = [elements.get(k, 0) for k in range(64)]
    scale_a = [e + 127 + 60 for e in scale_exponents]
    return first_element(p, "sm_120a", a, [2] * 64, 0, **scales(p, scale_a, [127 - 60] * 4))


ONE, MINUS_ONE = 0x2, 0xA


def test_groups_have_16_products_and_keep_35_bits():
    cancel = {62: ONE, 63: MINUS_ONE}  # a group that cancels takes part in the alignment
    last, lost = [-35, -35, -35, 0], [-36, -36, -36, 0]
    together, apart = {14: ONE, 15: ONE}, {15: ONE, 16: ONE}
    assert grouped(cancel | {0: ONE}, last) == code("f32", 2.0**-35)
    assert grouped(cancel | {0: ONE}, lost) == 0
    assert grouped(cancel | together, lost) == code("f32", 2.0**-35)
    assert grouped(cancel | apart, lost) == 0


def test_groups_align_no_lower_than_their_floor():
    terms = {0: ONE, 16: MINUS_ONE}
    assert grouped(terms, [-149, -174, 0, 0]) == 0
    assert grouped(terms, [-149, -175, 0, 0]) == 1


def test_scaled_8_bit_floor():
    """2**-149 less the floor's last bit, in one block whose scales are tiny."""
    p = mma((16, 8, 32), "e4m3", "f32", scale_kind="mxf8f6f4", scale_vec=1, scale_type="ue8m0")
    more = scales(p, [127 - 70], [127 - 72])  # 2**-142

    def result(exponent):
        a, b = zip(powers("e4m3", -7), powers("e4m3", exponent + 142, -1), strict=True)
        return first_element(p, "sm_120a", a, b, 0, **more)

    assert [result(-158), result(-159)] == [0, 1]
