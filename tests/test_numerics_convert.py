"""cvt among all types, against exact numbers and other implementations.

test_golden.py compares it with an H200.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from tensorcore_dsl.numerics.convert import convert, convert_pack, convert_several
from tensorcore_dsl.numerics.number_formats import FLOATS, values
from tests import exact_scalar as exact

WIDE = ("f16", "bf16", "f32", "f64")
DIRECTED = ("rn", "rz", "rm", "rp")
SMALL = ("e5m2", "e4m3", "e3m2", "e2m3", "e2m1")
WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def column(kind: str, count: int, seed: str) -> np.ndarray:
    return exact.columns((kind,), count, seed)[0]


def near_ties(to: str, source: str, chosen: slice = slice(None)) -> np.ndarray:
    """Codes of ``source`` at, just below and just above the codes of ``to`` and their midpoints."""
    codes = range(1 << (FLOATS[to].bits - 1))[chosen]
    pairs = [(exact.decode(c, to), exact.decode(c + 1, to)) for c in codes]
    finite = [(a, b) for a, b in pairs if not isinstance(a, str) and not isinstance(b, str)]
    points = [p for a, b in finite for p in (a, b, (a + b) / 2)]
    largest = exact.real(exact.decode(FLOATS[to].max_finite, to))
    step = largest - exact.real(exact.decode(FLOATS[to].max_finite - 1, to))
    points += [largest, largest + step / 2, largest + step]
    middle = [exact.encode(p, source) for p in points]
    every = {max(c + d, 0) | s for c in middle for d in (-1, 0, 1) for s in (0, 1 << (WIDTH[source] - 1))}
    return np.array(sorted(every), exact.register_type(source))


# --- floats ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "to", "rounding"), [(s, t, r) for s, t in itertools.permutations(WIDE, 2) for r in DIRECTED]
)
def test_floats_round_the_exact_value(source, to, rounding):
    x = column(source, 400, f"{source}{to}{rounding}")
    d = convert(x, source, to, rounding)
    for code, got in zip(x.tolist(), d.tolist(), strict=True):
        value = exact.decode(code, source)
        if value != "nan":
            assert got == exact.encode(value, to, rounding)
        else:
            assert exact.decode(got, to) == "nan"


# What an H200 gives next to each change of the result: by the place of the f64 number, counted in f64
# numbers from 2**-126 - 2**-149 on. 2**-126 has place 0x40000000, and its f32 neighbours are 2**29 away.
LEAST = {
    "rn": {0x2FFC5256: 0, 0x3009CD30: 0x800000, 0x4FD9424C: 0x800000, 0x50010C0F: 0x800001},
    "rz": {0x3FFD64F5: 0, 0x40042D09: 0x800000, 0x5FFB36E8: 0x800000, 0x6010ABE5: 0x800001},
    "rm": {0x3FC1AEC1: 0, 0x402C71E2: 0x800000, 0x5FFD941F: 0x800000, 0x6005428D: 0x800001},
    "rp": {0x1FCC3466: 0, 0x2002090C: 0x800000, 0x3FDDDAC1: 0x800000, 0x400DD776: 0x800001},
}


@pytest.mark.parametrize("rounding", LEAST)
def test_ftz_flushes_after_rounding(rounding):
    """A result just below 2**-126 is flushed unless it rounds to 2**-126."""
    near = [at + by for at in range(0, 1 << 31, 1 << 27) for by in (-1, 0, 1)]
    x = np.array([0x380FFFFFC0000000 + at for at in (*LEAST[rounding], *near)], np.uint64)
    d = convert(x, "f64", "f32", rounding, ftz=True).tolist()
    assert d == [exact.encode(exact.decode(c, "f64"), "f32", rounding, ftz=True) for c in x.tolist()]
    assert d[:4] == [*LEAST[rounding].values()]


@pytest.mark.parametrize("to", SMALL)
@pytest.mark.parametrize("source", ["f32", "f16", "bf16"])
def test_small_floats_saturate(source, to):
    """e2m1, e2m3 and e3m2 turn NaN into their largest number; the others have a NaN."""
    x = np.concatenate([near_ties(to, source), column(source, 500, f"{source}{to}")])
    if source == "f32":
        d = convert_several((x, np.zeros_like(x)), "f32", f"{to}x2", "rn", satfinite=True)
    else:
        d = convert(x.astype(np.uint32) << np.uint32(16), f"{source}x2", f"{to}x2", "rn", satfinite=True)
    shift = 4 if to == "e2m1" else 8
    want = [exact.encode(exact.decode(int(c), source), to, satfinite=True) for c in x]
    assert (d >> np.uint16(shift)).tolist() == want
    assert not (d & np.uint16((1 << shift) - 1)).any()


@pytest.mark.parametrize("to", [*SMALL, "f16", "bf16"])
def test_relu_makes_negative_results_zero(to):
    x = column("f32", 2000, to)
    plain = convert_several((x, x), "f32", f"{to}x2", "rn", satfinite=True)
    clamped = convert_several((x, x), "f32", f"{to}x2", "rn", satfinite=True, relu=True)
    nan = (x & np.uint32(0x7FFFFFFF)) > 0x7F800000
    want = np.where((x >> np.uint32(31) == 1) & ~nan, 0, plain)
    np.testing.assert_array_equal(clamped, want)


@pytest.mark.parametrize("source", SMALL)
def test_every_pair_of_small_floats_unpacks(source):
    bits = 8 if source == "e2m1" else 16
    x = np.arange(1 << bits).astype(np.uint16)
    slot = 4 if source == "e2m1" else 8
    mask = (1 << FLOATS[source].bits) - 1
    d = convert(x, f"{source}x2", "f16x2", "rn")
    assert d.dtype == np.uint32
    table = np.array([exact.encode(exact.decode(c, source), "f16") for c in range(mask + 1)])
    np.testing.assert_array_equal(d & np.uint32(0xFFFF), table[x & mask])
    np.testing.assert_array_equal(d >> np.uint32(16), table[(x >> slot) & mask])


@pytest.mark.parametrize("name", [*SMALL, "f16", "bf16"])
def test_values_are_those_of_ml_dtypes(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    names = {"f16": "float16", "bf16": "bfloat16", "e5m2": "float8_e5m2", "e4m3": "float8_e4m3fn"}
    names |= {"e3m2": "float6_e3m2fn", "e2m3": "float6_e2m3fn", "e2m1": "float4_e2m1fn"}
    kind = np.float16 if name == "f16" else getattr(ml_dtypes, names[name])
    bits = FLOATS[name].bits
    codes = np.arange(1 << bits).astype(np.uint16 if bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):
        want = codes.view(kind).astype(np.float64)
    np.testing.assert_array_equal(values(name)[: 1 << bits], want)


@pytest.mark.parametrize(
    ("to", "dtype"),
    [("f16", "float16"), ("bf16", "bfloat16"), ("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2")],
)
def test_nearest_is_that_of_torch(to, dtype):
    torch = pytest.importorskip("torch")
    codes = slice(None, None, 1 if FLOATS[to].bits == 8 else 97)
    x = np.concatenate([near_ties(to, "f32", codes), column("f32", 3000, to)])
    value = x.view(np.float32)
    keep = np.abs(value) <= float(exact.decode(FLOATS[to].max_finite, to))
    want = torch.from_numpy(value[keep]).to(getattr(torch, dtype))
    word = torch.uint8 if to.startswith("e") else torch.int16
    bits = want.view(word).numpy().astype(np.uint16)
    bits &= np.uint16(0xFF if to.startswith("e") else 0xFFFF)
    np.testing.assert_array_equal(convert(x[keep], "f32", to, "rn"), bits)


def test_tf32_agrees_with_the_exact_model():
    x = column("f32", 4000, "tf32")
    for rounding in ("rn", "rz", "rna"):
        d = convert(x, "f32", "tf32", rounding)
        assert not (d & np.uint32(0x1FFF)).any()
        for code, got in zip(x.tolist(), d.tolist(), strict=True):
            value = exact.decode(code, "f32")
            if isinstance(value, Fraction) and abs(value) < Fraction(2) ** 127 and value:
                exponent = max(exact.logarithm(abs(value)), -126)
                step = Fraction(2) ** (exponent - 10)
                want = exact.integral(abs(value) / step, rounding, value < 0) * step
                assert abs(exact.real(exact.decode(got, "f32"))) == want


def test_ue8m0_is_the_exponent():
    x = column("f32", 4000, "ue8m0")
    for rounding, satfinite in itertools.product(("rz", "rp"), (False, True)):
        d = convert_several((x, x), "f32", "ue8m0x2", rounding, satfinite=satfinite)
        np.testing.assert_array_equal(d >> np.uint16(8), d & np.uint16(0xFF))
        for code, got in zip(x.tolist(), (d & np.uint16(0xFF)).tolist(), strict=True):
            value = exact.decode(code, "f32")
            if value == "nan":
                want = 0xFF
            elif isinstance(value, str) and value != "-0":
                want = 0xFE if satfinite else 0xFF
            elif exact.real(value) == 0:
                want = 0
            else:
                e = exact.logarithm(abs(value))
                up = rounding == "rp" and abs(value) != Fraction(2) ** e
                want = min(max(e + up + 127, 0), 0xFE if satfinite else 0xFF)
            assert got == want, hex(code)
    back = convert(np.array([0x7F00, 0xFF80, 0x01FE], np.uint16), "ue8m0x2", "bf16x2", "rn")
    assert [hex(v) for v in back] == ["0x3f800040", "0x7fff4000", "0x807f00"]


def test_s2f6_counts_sixty_fourths():
    pairs = [(1.0, 64), (-2.0, 128), (5.0, 127), (-5.0, 128), (0.0078125, 0), (0.0234375, 2), (np.nan, 127)]
    x = np.array([v for v, _ in pairs], np.float32).view(np.uint32)
    d = convert_several((x, x), "f32", "s2f6x2", "rn", satfinite=True)
    assert (d & np.uint16(0xFF)).tolist() == [c for _, c in pairs]
    halved = convert_several((x[:2], x[:2]), "f32", "s2f6x2", "rn", satfinite=True, scale=0x807F)
    assert [hex(v) for v in halved] == ["0x2040", "0xc080"]
    every = np.arange(1 << 16).astype(np.uint16)
    back = convert(every, "s2f6x2", "bf16x2", "rn", scale=0x7F80)
    low = (every & np.uint16(0xFF)).astype(np.uint8).view(np.int8) / 64 * 2
    np.testing.assert_array_equal((back << np.uint32(16)).view(np.float32), low.astype(np.float32))
    clamped = convert(every, "s2f6x2", "bf16x2", "rn", relu=True)
    assert not (clamped & np.uint32(0x80008000)).any()


@pytest.mark.parametrize("to", ["f16", "bf16"])
def test_stochastic_rounding_carries(to):
    """Down for no random bits, up for all of them; the chance is what is cut off."""
    x = np.array([0x3F801234, 0xBF801234, 0x3F800000], np.uint32)
    zero, full = np.zeros(3, np.uint32), np.full(3, 0xFFFFFFFF, np.uint32)
    down = convert_several((x, x), "f32", f"{to}x2", "rs", rbits=zero)
    up = convert_several((x, x), "f32", f"{to}x2", "rs", rbits=full)
    np.testing.assert_array_equal(down, convert_several((x, x), "f32", f"{to}x2", "rz"))
    np.testing.assert_array_equal(up[:2], down[:2] + np.uint32(0x00010001))
    assert up[2] == down[2]
    every = np.arange(1 << 16, dtype=np.uint32)
    once = np.full(1 << 16, x[0])
    low = convert_several((once, once), "f32", f"{to}x2", "rs", rbits=every) & np.uint32(0xFFFF)
    cut = 13 if to == "f16" else 16
    assert np.mean(low != low.min()) == (0x1234 & ((1 << cut) - 1)) / (1 << cut)


@pytest.mark.parametrize("to", SMALL)
def test_four_floats_pack_from_the_top(to):
    x = [np.array([v], np.float32).view(np.uint32) for v in (1.0, -1.0, 2.0, 0.5)]
    slot = 4 if to == "e2m1" else 8
    d = int(convert_several(x, "f32", f"{to}x4", "rs", satfinite=True, rbits=np.zeros(1, np.uint32))[0])
    got = [exact.decode(d >> slot * k & ((1 << FLOATS[to].bits) - 1), to) for k in (3, 2, 1, 0)]
    assert got == [1, -1, 2, Fraction(1, 2)]


# --- integers ----------------------------------------------------------------------------------

INTS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


def limits(kind: str) -> tuple[int, int]:
    w = int(kind[1:])
    return (-(1 << (w - 1)), (1 << (w - 1)) - 1) if kind[0] == "s" else (0, (1 << w) - 1)


def register(value: int, kind: str) -> int:
    return value % (1 << max(int(kind[1:]), 16))


@pytest.mark.parametrize(("source", "to"), [*itertools.product(WIDE, INTS)])
def test_floats_to_integers(source, to):
    x = column(source, 300, f"{source}{to}")
    low, high = limits(to)
    for rounding in ("rni", "rzi", "rmi", "rpi"):
        d = convert(x, source, to, rounding)
        for code, got in zip(x.tolist(), d.tolist(), strict=True):
            value = exact.decode(code, source)
            if value == "nan":
                special = source == "f64" or to.endswith("64")
                w = int(to[1:])
                want = (-(1 << (w - 1)) if to[0] == "s" else 1 << (w - 1)) if special else 0
            elif isinstance(value, str) and value != "-0":
                want = low if value == "-inf" else high
            else:
                real = exact.real(value)
                magnitude = exact.integral(abs(real), rounding[:2], real < 0)
                want = min(max(-magnitude if real < 0 else magnitude, low), high)
            assert got == register(want, to), hex(code)


@pytest.mark.parametrize(("source", "to"), [*itertools.product(INTS, WIDE)])
def test_integers_to_floats(source, to):
    x = column(source, 300, f"{source}{to}")
    low, _ = limits(source)
    w = int(source[1:])
    ints = [int(v) % (1 << w) for v in x]
    ints = [v - (1 << w) if v > limits(source)[1] else v for v in ints]
    for rounding in DIRECTED:
        want = [exact.encode(Fraction(v), to, rounding) for v in ints]
        assert convert(x, source, to, rounding).tolist() == want


@pytest.mark.parametrize(("source", "to"), [*itertools.product(INTS, INTS)])
def test_integers_to_integers(source, to):
    x = column(source, 300, f"{source}{to}")
    w = int(source[1:])
    ints = [int(v) % (1 << w) for v in x]
    ints = [v - (1 << w) if v > limits(source)[1] else v for v in ints]
    low, high = limits(to)
    cut = [(v - low) % (1 << int(to[1:])) + low for v in ints]
    assert convert(x, source, to).tolist() == [register(v, to) for v in cut]
    saturated = [register(min(max(v, low), high), to) for v in ints]
    assert convert(x, source, to, sat=True).tolist() == saturated


@pytest.mark.parametrize("to", ["u2", "s2", "u4", "s4", "u8", "s8", "u16", "s16"])
def test_packing_of_integers(to):
    w = int(to[1:])
    low, high = limits(to)
    a, b = (np.array(v, np.int64).astype(np.uint32) for v in ([-300, 5, 1, 70000], [9, -1, 2, -70000]))
    c = np.full(4, 0xABCDEF12, np.uint32)
    d = convert_pack(a, b, None if w == 16 else c, to)
    for x, y, got in zip([-300, 5, 1, 70000], [9, -1, 2, -70000], d.tolist(), strict=True):
        x, y = (min(max(v, low), high) % (1 << w) for v in (x, y))
        rest = 0 if w == 16 else 0xABCDEF12 << 2 * w
        assert got == (rest | x << w | y) % (1 << 32)


# --- errors --------------------------------------------------------------------------------------

X = np.zeros(4, np.uint32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: convert(X, "f32", "s32", "rn"), "cvt.s32.f32 rounds rni rzi rmi rpi, not 'rn'"),
        (lambda: convert(X, "s32", "f32"), "cvt.f32.s32 rounds rn rz rm rp, not None"),
        (lambda: convert(X, "f32", "f16", "rni"), "cvt.f16.f32 rounds .*not 'rni'"),
        (lambda: convert(X, "f32", "f8"), "destination type 'f8' is not supported; there are"),
        (lambda: convert(X, "s32", "u8", relu=True), "for floats, not cvt.u8.s32"),
        (lambda: convert(X, "f16x2", "e4m3x4"), "f16x2 has 2 elements and e4m3x4 has 4"),
        (lambda: convert_several((X, X), "f32", "f16"), "2 sources .* as many elements, not f16"),
        (lambda: convert_several((X, X), "f32", "f16x2", "rs"), ".rs needs rbits"),
        (lambda: convert_several((X, X), "f32", "ue8m0x2", "rn"), "ue8m0 rounds rz or rp, not 'rn'"),
        (lambda: convert_several([X], "f32", "e4m3x4", rbits=X), "1 sources .* as many elements, not e4m3x4"),
        (lambda: convert_pack(X, X, X, "u32"), "type 'u32' is not supported"),
    ],
)
def test_errors_say_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call()
