"""Conversions among all pairs of element types: exact, or refused in the words of a kernel."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.dtypes import ALL, DType
from tensorcore_dsl.errors import OperandError, UnknownInstruction
from tests import exact_scalar as exact

RAW = {16: tc.u16, 32: tc.u32, 64: tc.u64}
NARROW = {"s4", "u4"}
NUMBERS = [t for t in ALL.values() if t.kind in "fsu" and t.lanes == 1 and t.name not in NARROW]
# Codes of a type as those of a format of the oracle.
SAME_CODES = {"tf32": "f32", "ue4m3": "e4m3"}


@cache
def kernel(source: DType, to: DType, options: tuple[tuple[str, Any], ...] = ()) -> Any:
    given = dict(options)

    @tc.kernel
    def converted(x: tc.Array, y: tc.Array):
        i = tc.threadIdx.x
        value = x[i] != 0 if source.kind == "p" else x[i].bits(source)
        result = value.to(to, **given)
        y[i] = result.to(tc.u32) if to.kind == "p" else result.bits(y.dtype)

    return converted


def run(source: DType, to: DType, codes: Any, **options: Any) -> list[int]:
    raw = tc.u32 if source.kind == "p" else RAW[source.register_bits]
    out = tc.u32 if to.kind == "p" else RAW[to.register_bits]
    x = np.array([c % (1 << raw.bits) for c in codes], raw.numpy)
    y = np.zeros(len(x), out.numpy)
    kernel(source, to, tuple(options.items())).emulator(arch="sm_100a")[1, len(x)](x, y)
    return [int(v) for v in y & out.numpy.type((1 << to.bits) - 1)]


def codes_of(dtype: DType) -> list[int]:
    """Every code of 8 bits; of wider types random ones, and those around powers of two."""
    if dtype.bits <= 8:
        return list(range(1 << min(dtype.bits, 7 if dtype.name == "ue4m3" else 8)))
    draw = random.Random(dtype.bits)
    some = [draw.getrandbits(dtype.bits) for _ in range(64)]
    edges = [(1 << i) + j for i in range(dtype.bits) for j in (-1, 0, 1)]
    codes = some + edges + [-c for c in edges]
    if dtype.is_float:  # numbers of the size that 8 bits have, and near their ties
        wanted = [exact.decode(c, "e4m3") for c in range(127)] + [
            Fraction(1, 3),
            Fraction(464),
            Fraction(2**40),
        ]
        near = [exact.encode(v, SAME_CODES.get(dtype.name, dtype.name)) for v in wanted]
        codes += [c + j for c in near for j in (-1, 0, 1)]
    if dtype.name == "tf32":
        codes = [c & ~0x1FFF for c in codes]
    return sorted({c % (1 << dtype.bits) for c in codes})


def value_of(code: int, dtype: DType) -> exact.Number:
    if dtype.is_integer:
        negative = dtype.kind == "s" and code >> (dtype.bits - 1)
        return Fraction(code - (1 << dtype.bits) if negative else code)
    if dtype.name == "ue8m0":
        return "nan" if code == 255 else Fraction(2) ** (code - 127)
    return exact.decode(code, SAME_CODES.get(dtype.name, dtype.name))


def to_integer(value: exact.Number, to: DType) -> int:
    low = -(1 << (to.bits - 1)) if to.kind == "s" else 0
    high = low + (1 << to.bits) - 1
    if isinstance(value, str):
        value = Fraction({"+inf": high, "-inf": low}.get(value, 0))
    cut = abs(value).__floor__() * (-1 if value < 0 else 1)
    return max(low, min(high, cut)) % (1 << to.bits)


def to_scale(value: exact.Number, rounding: str) -> int:
    """The code of ue8m0: the exponent of the magnitude."""
    largest = 254 if rounding == "rz" else 255
    if isinstance(value, str):
        return 0 if value == "-0" else 255
    if value == 0:
        return 0
    exponent = exact.logarithm(abs(value))
    exponent += rounding == "rp" and abs(value) != Fraction(2) ** exponent
    return max(0, min(largest, exponent + 127))


def to_tf32(value: exact.Number) -> int:
    """Rounded to nearest, ties away from zero."""
    code = exact.encode(value, "f32", "rna")
    if isinstance(value, str) or value == 0:
        return code
    step = Fraction(2) ** (max(exact.logarithm(abs(value)), -126) - 10)
    rounded = exact.integral(abs(value) / step, "rna", value < 0) * step
    return exact.encode(exact.signed(rounded, value < 0), "f32")


def expected(value: exact.Number, source: DType, to: DType, rounding: str) -> int:
    if to.is_integer:
        if source.is_integer:
            return int(exact.real(value)) % (1 << to.bits)
        return to_integer(value, to)
    if to.name == "ue8m0":
        return to_scale(value, rounding)
    if to.name == "tf32":
        return to_tf32(value)
    if to.name == "ue4m3" and value != "nan" and exact.negative(value):
        return 0
    name = SAME_CODES.get(to.name, to.name)
    return exact.encode(value, name, satfinite=to.bits <= 8)


PAIRS = list(itertools.product(NUMBERS, NUMBERS))


@pytest.mark.quick(lambda to: to.bits)
@pytest.mark.parametrize("to", NUMBERS, ids=str)
def test_every_pair_of_types_converts_exactly(to):
    for source in NUMBERS:
        codes = codes_of(source)
        for rounding in ("rz", "rp") if to.name == "ue8m0" and source != to else ("rn",):
            options = {"rounding": rounding} if to.name == "ue8m0" else {}
            for code, got in zip(codes, run(source, to, codes, **options), strict=True):
                value = code if source == to else value_of(code, source)
                if value == "nan" and source != to:  # integers of NaN: test_numerics_convert.py
                    # cvt.rna.tf32 truncates a NaN like a number.
                    unlike = to.is_integer or to.name == "tf32" or to.bits < 8
                    assert unlike or value_of(got, to) == "nan"
                    continue
                want = code if source == to else expected(value, source, to, rounding)  # type: ignore[arg-type]
                assert got == want, f"{code:#x} of {source} to {to}: {got:#x}, not {want:#x}"


def refused(source: DType, to: DType) -> bool:
    """Tell whether the pair is refused, because one of its types holds no numbers."""
    if source.name == "pred":
        return to.lanes == 2 or to.name == "ue8m0"
    if to.name == "pred":
        return (
            (source.is_float and source.bits <= 8)
            or source.lanes == 2
            or source.name in NARROW
            or source.kind == "b"
        )
    if "b" in (source.kind, to.kind):
        return source.register_bits != to.register_bits
    return source != to


OTHERS = [p for p in itertools.product(ALL.values(), ALL.values()) if p not in PAIRS and tc.b128 not in p]


@pytest.mark.quick(lambda source: source.bits)
@pytest.mark.parametrize("source", dict.fromkeys(s for s, _ in OTHERS), ids=str)
def test_other_pairs_are_refused_in_words(source):
    for to in (t for s, t in OTHERS if s == source):
        if not refused(source, to):
            got = run(source, to, range(8))
            if source.name == "pred":
                one = int(np.array(1, to.numpy or np.uint8).view(f"u{max(to.bits, 8) // 8}"))
                assert got == [0, *[one] * 7]
            elif to.name == "pred":
                assert got == [0, *[1] * 7]
            else:
                assert got == [v % (1 << to.bits) for v in range(8)]
        else:
            with pytest.raises(OperandError) as caught:
                run(source, to, range(8))
            assert "instruction '" not in str(caught.value), (source, to)


@pytest.mark.parametrize("dtype", [tc.f16, tc.bf16, tc.e4m3, tc.e5m2], ids=str)
def test_options_count_for_a_value_that_has_the_type(dtype):
    minus_one, infinity = (exact.encode(v, dtype.name) for v in (Fraction(-1), "+inf"))
    assert run(dtype, dtype, [minus_one], relu=True) == [0]
    largest = exact.encode("+inf", dtype.name, satfinite=True)
    assert run(dtype, dtype, [infinity], satfinite=True) == [largest]
    assert run(tc.e5m2, dtype, [exact.encode("-inf", "e5m2")], relu=True) == [0]


@pytest.mark.parametrize(
    "dtype, to", [(tc.f32, tc.f32), (tc.f64, tc.f64), (tc.s32, tc.u32), (tc.tf32, tc.f32)], ids=str
)
def test_options_without_an_instruction_are_refused(dtype, to):
    with pytest.raises(UnknownInstruction, match=r"\.relu\."):
        run(dtype, to, [0], relu=True)


def test_ue8m0_says_which_roundings_it_has():
    with pytest.raises(
        OperandError, match="not to nearest: write .to.tc.ue8m0, rounding='rz'. or rounding='rp'"
    ):
        run(tc.f32, tc.ue8m0, [0])


@tc.kernel
def stored(x: tc.Array, y: tc.Array, z: tc.Array, w: tc.Array, operand: tc.Const):
    fragment = tc.load_elements(x, operand, origin=(0, 0), convert=True)
    tc.store_elements(y, fragment, origin=(0, 0))
    tc.store_elements(z, fragment.to(z.dtype), origin=(0, 0))
    for i in tc.range(tc.threadIdx.x, 256, 32):
        w[i // 8, i % 8] = x[i // 8, i % 8]


HALF = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)


@pytest.mark.parametrize("source", ["e4m3", "e5m2", "ue8m0"])
@pytest.mark.parametrize("to", ["f16", "bf16", "f32"])
def test_stores_convert(source, to):
    codes = np.arange(256, dtype=np.uint8) % 64 + (96 if source == "ue8m0" else 32)
    x = codes.view(ALL[source].numpy).reshape(32, 8)
    y, z, w = (np.zeros((32, 8), ALL[to].numpy) for _ in range(3))
    operand = HALF.b if source == "ue8m0" else tc.mma.m16n8k32(source, source, tc.f32).b
    stored.emulator(arch="sm_120a")[1, 32](x, y, z, w, operand=operand)
    with np.errstate(over="ignore"):
        want = x.astype(np.float64).astype(ALL[to].numpy).astype(np.float64)
    for out in (y[: operand.layout.rows], z[: operand.layout.rows], w):
        np.testing.assert_array_equal(out.astype(np.float64), want[: len(out)])
