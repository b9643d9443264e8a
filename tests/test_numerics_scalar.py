"""Floating-point and integer instructions of one thread, against exact numbers.

test_golden.py compares them with an H200.
"""

from __future__ import annotations

import itertools
import zlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorcore_dsl.numerics.integer import instruction
from tensorcore_dsl.numerics.scalar import arith, compare
from tensorcore_dsl.numerics.scalar import testp as has_property
from tests import exact_scalar as exact
from tests.exact_scalar import columns

ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1}
DTYPES = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def integer(op, kind, *operands, **modifiers):
    return instruction(op, kind, **modifiers)(*operands)


# --- against exact numbers ---------------------------------------------------------------------

IEEE = [
    (op, kind, rounding, ftz)
    for op, kind, rounding, ftz in itertools.product(
        ARITY, ("f16", "bf16", "f32", "f64"), ("rn", "rz", "rm", "rp"), (False, True)
    )
    if not (kind.endswith("16") and (rounding != "rn" or op in ("div", "sqrt")))
    and not (ftz and kind == "f64")
]


@pytest.mark.parametrize(("op", "kind", "rounding", "ftz"), IEEE)
def test_rounds_the_exact_result(op, kind, rounding, ftz):
    x = columns((kind,) * ARITY[op], 500, f"{op}{kind}{rounding}")
    d = arith(op, kind, *x, rounding=rounding, ftz=ftz)
    for i in range(len(d)):
        codes = [int(c[i]) for c in x]
        want = exact.expected(op, kind, codes, rounding, ftz)
        assert int(d[i]) == want, f"{op} {[hex(c) for c in codes]}: {d[i]:#x}, not {want:#x}"


# CRC-32 of what an H200 gives for 16 x 16 products around the least normal number, and for 64 reciprocals.
LEAST_CRC32 = {
    ("mul", "rn"): 0xD204C8AB,
    ("mul", "rz"): 0xE76851DF,
    ("mul", "rm"): 0xE76851DF,
    ("mul", "rp"): 0x445CDEC1,
    ("rcp", "rn"): 0x5F52D900,
    ("rcp", "rz"): 0xAB04F49B,
    ("rcp", "rm"): 0xAB04F49B,
    ("rcp", "rp"): 0xD64F9F2C,
}


@pytest.mark.parametrize(("op", "rounding"), LEAST_CRC32)
def test_ftz_flushes_after_rounding(op, rounding):
    """A result just below 2**-126 is flushed unless it rounds to 2**-126."""
    below_one, least = np.uint32(0x3F7FFFFF) - np.arange(16, dtype=np.uint32), np.uint32(0x00800000)
    x = [below_one.repeat(16), np.tile(least + np.arange(16, dtype=np.uint32), 16)]
    if op == "rcp":
        x = [np.arange(0x7E7FFFE0, 0x7E800020, dtype=np.uint32)]
    d = arith(op, "f32", *x, rounding=rounding, ftz=True)
    exact_op, operands = ("div", [np.full(64, 0x3F800000), *x]) if op == "rcp" else (op, x)
    want = [
        exact.expected(exact_op, "f32", [*map(int, c)], rounding, True) for c in zip(*operands, strict=True)
    ]
    assert d.tolist() == want
    assert zlib.crc32(d.tobytes()) == LEAST_CRC32[op, rounding]


@settings(max_examples=300, deadline=None)
@given(st.tuples(*[st.integers(0, 0xFFFF)] * 3), st.sampled_from(["f16", "bf16"]))
def test_fma_of_halves_rounds_once(codes, kind):
    d = arith("fma", kind, *(np.array([c], np.uint16) for c in codes))
    assert int(d[0]) == exact.expected("fma", kind, list(codes), "rn", False)


def test_fma_of_halves_at_midpoints():
    """A product on a midpoint of two neighbours, and an addend that tips the scale or does not."""
    for kind, one, tiny in (("bf16", 0x3F80, 0x0001), ("f16", 0x3C00, 0x0001)):
        for a, b in itertools.product(range(one, one + 40), repeat=2):
            for c in (0, tiny, tiny | 0x8000):
                d = arith("fma", kind, *(np.array([x], np.uint16) for x in (a, b, c)))
                assert int(d[0]) == exact.expected("fma", kind, [a, b, c], "rn", False)


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2", "f32x2"])
@pytest.mark.parametrize("op", ["add", "mul", "fma", "max", "neg"])
def test_packed_types_work_on_their_halves(op, kind):
    n = {"fma": 3, "neg": 1}.get(op, 2)
    element = kind[:-2]
    whole = columns((("b64" if element == "f32" else "b32"),) * n, 400, op + kind)
    part = np.uint32 if element == "f32" else np.uint16
    split = [x.view(part) for x in whole]
    want = arith(op, element, *split)
    got = arith(op, kind, *whole)
    assert got.dtype == whole[0].dtype
    np.testing.assert_array_equal(got.view(part), want)


@pytest.mark.parametrize("source", ["f16", "bf16"])
@pytest.mark.parametrize(("op", "narrow"), [("add", 1), ("sub", 1), ("fma", 2)])
def test_mixed_precision_widens_first(op, narrow, source):
    n = ARITY[op]
    x = columns((source,) * narrow + ("f32",) * (n - narrow), 500, op + source)
    d = arith(op, f"f32.{source}", *x, rounding="rz")
    for i in range(len(d)):
        value = [exact.decode(int(v[i]), source if k < narrow else "f32") for k, v in enumerate(x)]
        assert int(d[i]) == exact.encode(exact.arith(op, value, "rz"), "f32", "rz")


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_three_operands_fold(op, kind):
    a, b, c = columns((kind,) * 3, 600, op + kind)
    want = arith(op, kind, arith(op, kind, a, b), c)
    np.testing.assert_array_equal(arith(op, kind, a, b, c), want)


@pytest.mark.parametrize("op", ["min", "max"])
def test_min_and_max_of_two_f64_nans_are_the_second_made_quiet(op):
    signalling, quiet_with_payload = np.uint64(0x7FF0000000000003), np.uint64(0x7FF8000000000005)
    assert int(arith(op, "f64", quiet_with_payload, signalling)) == 0x7FF8000000000003


def test_broadcasting_and_shapes():
    a = np.arange(12, dtype=np.uint32).reshape(3, 4) + np.uint32(0x3F800000)
    b = np.uint32(0x40000000)
    assert arith("mul", "f32", a, b).shape == (3, 4)
    assert arith("add", "f16x2", a, a[:, :1]).shape == (3, 4)
    np.testing.assert_array_equal(
        arith("add", "f16x2", a, a[:, :1]), arith("add", "f16x2", a, np.repeat(a[:, :1], 4, 1))
    )
    np.testing.assert_array_equal(integer("add", "u32", a.T, 1), a.T + np.uint32(1))
    assert int(integer("add", "s32", np.zeros((), np.uint32), -1)) == 0xFFFFFFFF


# --- approximate functions -----------------------------------------------------------------------

INF, NAN = 0x7F800000, 0x7FFFFFFF
SIGN = 0x80000000
ONE = 0x3F800000
CORNERS = {  # results for -inf, -0, +0, +inf, NaN (the tables of 9.7.3.13 to 9.7.3.22)
    "rcp": (SIGN, SIGN | INF, INF, 0, NAN),
    "sqrt": (NAN, SIGN, 0, INF, NAN),
    "rsqrt": (NAN, SIGN | INF, INF, 0, NAN),
    "sin": (NAN, SIGN, 0, NAN, NAN),
    "cos": (NAN, ONE, ONE, NAN, NAN),
    "lg2": (NAN, SIGN | INF, SIGN | INF, INF, NAN),
    "ex2": (0, ONE, ONE, INF, NAN),
    "tanh": (SIGN | ONE, SIGN, 0, ONE, NAN),
}


@pytest.mark.parametrize("op", CORNERS)
def test_corners_of_approximate_functions(op):
    x = np.array([SIGN | INF, SIGN, 0, INF, 0xFFC00001], np.uint32)
    d = arith(op, "f32", x, rounding="approx")
    assert [hex(v) for v in d] == [hex(v) for v in CORNERS[op]]


H200_CRC32 = {  # of the results for every input
    ("ex2", "f16"): 0xD5350E3B,
    ("ex2", "bf16"): 0xEAB02565,
    ("tanh", "f16"): 0x4FDBEBF7,
    ("tanh", "bf16"): 0xA1373044,
}


@pytest.mark.parametrize(("op", "kind"), H200_CRC32)
def test_half_functions_for_every_input(op, kind):
    x = np.arange(1 << 16).astype(np.uint16)
    d = arith(op, kind, x, ftz=(op, kind) == ("ex2", "bf16"))
    assert zlib.crc32(d.tobytes()) == H200_CRC32[op, kind]
    function = {"ex2": lambda v: 2.0**v, "tanh": np.tanh}[op]
    bound = {("ex2", "f16"): 2**-9.9, ("ex2", "bf16"): 2**-7, ("tanh", "f16"): 2**-10.987}
    for code in range(0, 1 << 16, 37):
        value, got = exact.decode(code, kind), exact.decode(int(d[code]), kind)
        if isinstance(value, str) or isinstance(got, str):
            continue
        want = float(function(min(float(value), 200.0)))
        error = abs(float(got) - want)
        assert error <= bound.get((op, kind), 2**-8) * (want if op == "ex2" else 1) + 2.0**-24


def test_approximate_division():
    """Beyond 2**126 the divisor's reciprocal is zero; div.full has no such gap."""
    a = np.array([ONE, INF, ONE | SIGN], np.uint32)
    b = np.full(3, 0x7F000000, np.uint32)  # 2**127
    assert [hex(v) for v in arith("div", "f32", a, b, rounding="approx")] == [
        "0x0",
        "0x7fffffff",
        "0x80000000",
    ]
    assert int(arith("div.full", "f32", a, b)[0]) == 0x00400000


# --- modifiers -----------------------------------------------------------------------------------


def test_words_of_the_mnemonic_are_modifiers():
    a, b = columns(("f32", "f32"), 300, "words")
    for words, flags in (
        ("div.approx", {"op": "div", "rounding": "approx"}),
        ("min.xorsign.abs", {"op": "min", "xorsign": True, "abs": True}),
    ):
        flags = dict(flags)
        np.testing.assert_array_equal(arith(words, "f32", a, b), arith(flags.pop("op"), "f32", a, b, **flags))
    np.testing.assert_array_equal(arith("testp.finite", "f32", a), has_property("finite", "f32", a))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: arith("add", "f8", x, x), "type of floating-point arithmetic 'f8'.*f16, bf16"),
        (lambda x: arith("pow", "f32", x, x), "operation pow f32 is not supported; there are"),
        (lambda x: arith("add", "f32", x), "add.f32 takes 2 operands, not 1"),
        (lambda x: arith("add", "f32", x, x, rounding="rna"), "add.f32 rounds rn rz rm rp, not 'rna'"),
        (lambda x: arith("add", "f32", x, x, nan=True), "NaN, .abs and .xorsign are for min max"),
        (lambda x: arith("fma", "f32", x, x, x, relu=True), "relu is for f16 bf16, not for fma.f32"),
        (lambda x: arith("min", "f32", x, x, x, xorsign=True, abs=True), "three without .xorsign"),
        (lambda x: arith("sin", "f64", x), "sin.approx is for f32, not f64"),
        (lambda x: arith("add.wide", "f32", x, x), "add has no modifier .wide"),
        (lambda x: compare("lo", "f32", x, x), "comparison of f32 'lo' is not supported"),
        (lambda x: compare("lt", "b32", x, x), "comparison of b32 'lt'.*eq, ne"),
        (lambda x: has_property("even", "f32", x), "test of testp 'even'"),
        (lambda x: integer("add", "f32", x, x), "add takes u16 s16 .*not f32"),
        (lambda x: integer("mul", "s32", x, x), "integer operation 'mul' is not supported"),
        (lambda x: integer("mul.wide", "s64", x, x), "mul.wide takes u16 s16 u32 s32, not s64"),
        (lambda x: integer("add", "u32", x, x, sat=True), "add.u32 has no .sat"),
        (lambda x: integer("bfi", "b32", x), "bfi.b32 takes 4 operands, not 1"),
    ],
)
def test_errors_say_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.zeros(4, np.uint32))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("kind", "one"), [("f16", 0x3C00), ("bf16", 0x3F80)])
def test_marker_of_either_sign_is_out_of_bounds(kind, one, relu):
    """The markers in a and in b give +0.0; in c, and beside them, NaNs are NaNs."""
    markers, neighbours = np.array([0x7FF7, 0xFFF7], np.uint16), np.array([0x7FF6, 0xFFF8], np.uint16)
    ones = np.full(2, one, np.uint16)
    nan = np.full(2, 0x7FFF, np.uint16)
    for place in range(3):
        for value, want in ((markers, nan if place == 2 else np.zeros(2)), (neighbours, nan)):
            x = [value if place == i else ones for i in range(3)]
            np.testing.assert_array_equal(arith("fma", kind, *x, oob=True, relu=relu), want)


# --- comparison ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_comparisons_of_floats(kind):
    a, b = columns((kind, kind), 700, f"compare{kind}")
    for i in range(len(a)):
        x, y = (exact.decode(int(v[i]), kind) for v in (a, b))
        unordered = "nan" in (x, y)
        order = {"+inf": Fraction(2) ** 2000, "-inf": -(Fraction(2) ** 2000), "-0": Fraction(0)}
        x, y = (order.get(v, v) if isinstance(v, str) else v for v in (x, y))
        if unordered:
            x = y = Fraction(0)
        results = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}
        for op, truth in results.items():
            one = slice(i, i + 1)
            assert bool(compare(op, kind, a[one], b[one])[0]) == (truth and not unordered)
            assert bool(compare(f"{op}u", kind, a[one], b[one])[0]) == (truth or unordered)
        if i > 150:
            break


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64", "b16", "b32", "b64"])
def test_comparisons_of_integers(kind):
    a, b = columns((kind, kind), 400, f"compare{kind}")
    x, y = (as_ints(v, kind) for v in (a, b))
    truths = {"eq": lambda p, q: p == q, "ne": lambda p, q: p != q}
    if kind[0] != "b":
        truths |= {"lt": lambda p, q: p < q, "le": lambda p, q: p <= q}
        truths |= {"gt": lambda p, q: p > q, "ge": lambda p, q: p >= q}
    if kind[0] == "u":
        truths |= {"lo": truths["lt"], "ls": truths["le"], "hi": truths["gt"], "hs": truths["ge"]}
    for op, truth in truths.items():
        assert compare(op, kind, a, b).tolist() == [truth(*p) for p in zip(x, y, strict=True)]


def test_comparison_of_pairs_gives_both_halves():
    a, b = (np.array([v], np.uint32) for v in (0x3C003C00, 0x3C004000))
    low, high = compare("lt", "f16x2", a, b)
    assert low.tolist() == [True] and high.tolist() == [False]


# --- integers, as the manual's pseudocode has them -----------------------------------------------


def as_ints(bits: np.ndarray, kind: str) -> list[int]:
    w = int(kind[1:])
    values = [int(v) & ((1 << w) - 1) for v in bits]
    return [v - (v >> (w - 1) << w) for v in values] if kind[0] == "s" else values


def truncated(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def clamp(v: int, kind: str) -> int:
    w = int(kind[1:])
    low, high = (-(1 << (w - 1)), (1 << (w - 1)) - 1) if kind[0] == "s" else (0, (1 << w) - 1)
    return min(max(v, low), high)


PYTHON = {
    "add": lambda w, a, b: a + b,
    "sub": lambda w, a, b: a - b,
    "mul.lo": lambda w, a, b: a * b,
    "mul.hi": lambda w, a, b: a * b >> w,
    "mad.lo": lambda w, a, b, c: a * b + c,
    "mad.hi": lambda w, a, b, c: (a * b >> w) + c,
    "sad": lambda w, a, b, c: abs(a - b) + c,
    "div": lambda w, a, b: truncated(a, b) if b else -1,
    "rem": lambda w, a, b: a - truncated(a, b) * b if b else -1,
    "min": lambda w, a, b: min(a, b),
    "max": lambda w, a, b: max(a, b),
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("op", PYTHON)
def test_integer_arithmetic(op, kind):
    n = 3 if op in ("mad.lo", "mad.hi", "sad") else 2
    x = columns((kind,) * n, 900, op + kind)
    w = int(kind[1:])
    rows = zip(*(as_ints(v, kind) for v in x), strict=True)
    want = [PYTHON[op](w, *row) % (1 << w) for row in rows]
    got = integer(op, kind, *x)
    assert got.dtype == DTYPES[w]
    assert got.tolist() == want


@pytest.mark.parametrize("op", ["add", "sub", "mad.hi"])
def test_saturating_arithmetic(op):
    x = columns(("s32",) * (3 if op == "mad.hi" else 2), 900, op)
    rows = zip(*(as_ints(v, "s32") for v in x), strict=True)
    want = [clamp(PYTHON[op](32, *row), "s32") % (1 << 32) for row in rows]
    assert integer(op, "s32", *x, sat=True).tolist() == want


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_products(kind):
    w = int(kind[1:])
    a, b = columns((kind, kind), 900, f"wide{kind}")
    (c,) = columns((f"b{2 * w}",), 900, f"addend{kind}")
    c = np.resize(c, a.shape)
    products = [p * q for p, q in zip(as_ints(a, kind), as_ints(b, kind), strict=True)]
    assert integer("mul.wide", kind, a, b).tolist() == [p % (1 << 2 * w) for p in products]
    want = [(p + int(q)) % (1 << 2 * w) for p, q in zip(products, c, strict=True)]
    assert integer("mad.wide", kind, a, b, c).tolist() == want


@pytest.mark.parametrize("w", [16, 32, 64])
def test_shifts_clamp_their_counts(w):
    a, n = columns((f"b{w}", "u32"), 900, f"shift{w}")
    full = 1 << w
    rows = list(zip(as_ints(a, f"u{w}"), (min(int(v), w) for v in n), strict=True))
    assert integer("shl", f"b{w}", a, n).tolist() == [(x << k) % full for x, k in rows]
    assert integer("shr", f"u{w}", a, n).tolist() == [x >> k for x, k in rows]
    signed = zip(as_ints(a, f"s{w}"), (k for _, k in rows), strict=True)
    assert integer("shr", f"s{w}", a, n).tolist() == [(x >> k) % full for x, k in signed]


@pytest.mark.parametrize("w", [32, 64])
@pytest.mark.parametrize("s", ["u", "s"])
def test_bit_fields(w, s):
    """Positions and lengths of 0 to 255, bit by bit."""
    a, p, n = columns((f"b{w}", "u8", "u8"), 400, f"bfe{s}{w}")
    p, n = (np.where(np.arange(len(v)) % 3 == 0, v, v % np.uint16(w + 4)) for v in (p, n))
    got = integer("bfe", f"{s}{w}", a, p.astype(np.uint32), n.astype(np.uint32))
    inserted = integer("bfi", f"b{w}", a, a[::-1], p.astype(np.uint32), n.astype(np.uint32))
    for i in range(len(a)):
        x, b, pos, length = (int(v[i]) for v in (a, a[::-1], p, n))
        bit = lambda k: x >> k & 1
        fill = bit(min(pos + length - 1, w - 1)) if s == "s" and length else 0
        bits = [bit(pos + k) if k < length and pos + k < w else fill for k in range(w)]
        assert int(got[i]) == sum(v << k for k, v in enumerate(bits))
        want = [bit(k - pos) if pos <= k < pos + length else b >> k & 1 for k in range(w)]
        assert int(inserted[i]) == sum(v << k for k, v in enumerate(want))


@pytest.mark.parametrize("table", range(0, 256, 5))
def test_lop3_is_its_table(table):
    a, b, c = (np.array([v], np.uint32) for v in (0xF0, 0xCC, 0xAA))
    assert int(integer("lop3", "b32", a, b, c, table)[0]) & 0xFF == table


@settings(max_examples=200, deadline=None)
@given(*[st.integers(0, 0xFFFFFFFF)] * 3)
def test_prmt_picks_bytes(a, b, c):
    source = (b << 32 | a).to_bytes(8, "little")
    want = []
    for k in range(4):
        control = c >> 4 * k & 15
        byte = source[control & 7]
        want.append((0xFF if byte & 0x80 else 0) if control & 8 else byte)
    got = integer("prmt", "b32", *(np.array([v], np.uint32) for v in (a, b, c)))
    assert int(got[0]) == int.from_bytes(bytes(want), "little")


@pytest.mark.parametrize("kinds", ["u32.u32", "u32.s32", "s32.u32", "s32.s32"])
def test_dot_products(kinds):
    a, b, c = columns(("b32",) * 3, 500, f"dot{kinds}")
    first, second = (k[0] for k in kinds.split("."))

    def parts(v: int, width: int, s: str) -> list[int]:
        values = [v >> k & ((1 << width) - 1) for k in range(0, 32, width)]
        return [x - (x >> (width - 1) << width) if s == "s" else x for x in values]

    for i in range(len(a)):
        x, y, z = (int(v[i]) for v in (a, b, c))
        one = [v[i : i + 1] for v in (a, b, c)]
        dot = lambda p, q: (z + sum(m * n for m, n in zip(p, q, strict=True))) % (1 << 32)
        ys = parts(y, 8, second)
        if i < 60:
            assert int(integer("dp4a", kinds, *one)[0]) == dot(parts(x, 8, first), ys)
            assert int(integer("dp2a.lo", kinds, *one)[0]) == dot(parts(x, 16, first), ys[:2])
            assert int(integer("dp2a.hi", kinds, *one)[0]) == dot(parts(x, 16, first), ys[2:])


def test_logic_of_predicates():
    a, b = (np.array(v, np.bool_) for v in ([0, 0, 1, 1], [0, 1, 0, 1]))
    assert integer("and", "pred", a, b).tolist() == [False, False, False, True]
    assert integer("xor", "pred", a, b).tolist() == [False, True, True, False]
    assert integer("not", "pred", a).tolist() == [True, True, False, False]
