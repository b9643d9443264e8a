"""Operators, functions and conversions of all types, compared with NumPy."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorcore_dsl as tc
from tensorcore_dsl import bf16, f16, f32, f64, pred, s8, s16, s32, s64, u8, u16, u32, u64
from tensorcore_dsl.dtypes import DType
from tests.running import launch

pytestmark = pytest.mark.usefixtures("fresh_ir")

N = 64


INTEGERS = (s8, u8, s16, u16, s32, u32, s64, u64)


FLOATS = (f16, bf16, f32, f64)


OPERATORS = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "/": lambda x, y: x / y,
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
    "min": lambda x, y: min(x, y),
    "max": lambda x, y: max(x, y),
}


BITS = ("&", "|", "^")


@tc.kernel
def binary(x, y, out, a: tc.Const = None, b: tc.Const = None, op: tc.Const = None):
    i = tc.threadIdx.x
    left = x[i] if a is None else a
    right = y[i] if b is None else b
    result = op(left, right)
    out[i] = result
    assert result.dtype == out.dtype, f"the result is {result.dtype}"


def promoted(a: DType, b: DType) -> DType:
    """C's promotion, written down once more."""
    if a.is_float or b.is_float:
        if a.is_float and b.is_float:
            if a != b and a.bits == b.bits == 16:
                return f32
            return max(a, b, key=lambda t: t.bits)
        return a if a.is_float else b
    a, b = (t if t.bits >= 32 else s32 for t in (a, b))
    if a.bits != b.bits:
        return max(a, b, key=lambda t: t.bits)
    return u32 if u32 in (a, b) else u64 if u64 in (a, b) else a


def wrapped(value: Any, dtype: DType) -> Any:
    """Python integers in two's complement."""
    bits = 8 * np.dtype(dtype.numpy).itemsize
    value = int(value) & ((1 << bits) - 1)
    return value - (1 << bits) if dtype.kind == "s" and value >> (bits - 1) else value


def result_type(op: str, a: DType, b: DType) -> DType:
    common = promoted(a, b)
    if op in ("<", "<=", "==", "!=", ">", ">="):
        return pred
    if op == "/" and not common.is_float:
        return f64 if common.bits == 64 else f32
    return common


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_integer_operators_agree_with_python(data):
    a, b = (data.draw(st.sampled_from(INTEGERS)) for _ in range(2))
    op = data.draw(st.sampled_from([o for o in OPERATORS if o != "/"]))
    common = promoted(a, b)
    low, high = (int(v) for v in (np.iinfo(a.numpy).min, np.iinfo(a.numpy).max))
    xs = data.draw(
        st.lists(st.integers(low, high) | st.integers(max(low, -9), min(high, 9)), min_size=N, max_size=N)
    )
    low, high = (int(v) for v in (np.iinfo(b.numpy).min, np.iinfo(b.numpy).max))
    ys = data.draw(
        st.lists(st.integers(low, high) | st.integers(max(low, -9), min(high, 9)), min_size=N, max_size=N)
    )
    if op in ("//", "%"):
        ys = [y or 3 for y in ys]
    instr = data.draw(st.sampled_from(["registers", "left", "right"]))
    constants: dict[str, Any] = {}
    if instr == "left":  # a Python number is weak: it takes the other's type
        a = common = promoted(b, b)
        xs = [wrapped(xs[0] % 1000, a)] * N
        constants["a"] = xs[0]
    elif instr == "right":
        b = common = promoted(a, a)
        ys = [wrapped(ys[0] % 1000, b) or 3] * N
        constants["b"] = ys[0]
    wanted = result_type(op, a, b)
    expected = []
    for x, y in zip(xs, ys, strict=True):
        x, y = wrapped(x, common), wrapped(y, common)
        if op in ("//", "%") and y == 0:
            y = 1
        value = OPERATORS[op](x, y)
        expected.append(bool(value) if wanted == pred else wrapped(value, wanted))
    if op in ("//", "%"):
        keep = [i for i, y in enumerate(ys) if wrapped(y, common)]
    else:
        keep = list(range(N))
    out = np.zeros(N, wanted.numpy)
    ys = [y if wrapped(y, common) or op not in ("//", "%") else 1 for y in ys]
    launch(binary, np.array(xs, a.numpy), np.array(ys, b.numpy), out, op=OPERATORS[op], **constants)
    assert [out[i].item() for i in keep] == [expected[i] for i in keep], (op, a, b, instr)


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_float_operators_agree_with_numpy(data):
    a, b = (data.draw(st.sampled_from((*FLOATS, s32, u8))) for _ in range(2))
    if not (a.is_float or b.is_float):
        a = f32
    op = data.draw(st.sampled_from([o for o in OPERATORS if o not in (*BITS, "%")]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, y = (_numbers(rng, t) for t in (a, b))
    wanted, common = result_type(op, a, b), promoted(a, b)
    wide = np.float64 if common == f64 else np.float32
    with np.errstate(all="ignore"):
        left, right = (v.astype(common.numpy).astype(wide) for v in (x, y))
        function = {
            "min": np.minimum,
            "max": np.maximum,
            "//": lambda p, q: np.floor(_rounded(p / q, common)),
        }
        expected = _rounded(function.get(op, OPERATORS[op])(left, right), common).astype(wanted.numpy)
    out = np.zeros(N, wanted.numpy)
    launch(binary, x, y, out, op=OPERATORS[op], arch=data.draw(st.sampled_from(["sm_80", "sm_90a"])))
    assert np.array_equal(out, expected, equal_nan=wanted.is_float), (op, a, b)


def _numbers(rng: Any, dtype: DType) -> np.ndarray:
    if dtype.is_integer:
        return rng.integers(1, 100, N).astype(dtype.numpy)
    values = rng.standard_normal(N) * 2.0 ** rng.integers(-8, 8, N)
    return values.astype(dtype.numpy)


def _rounded(values: np.ndarray, dtype: DType) -> np.ndarray:
    return values.astype(dtype.numpy).astype(values.dtype) if dtype.is_float else values


@pytest.mark.parametrize(
    "dtype, number, wanted",
    [
        (s32, 1.5, f32),
        (s64, 1.5, f64),
        (f16, 2, f16),
        (f16, 1.5, f16),
        (bf16, 3, bf16),
        (u8, 1, s32),
        (u32, -1, u32),
        (f64, 1.5, f64),
        (f32, np.float64(2), f64),
        (s32, np.int64(2), s64),
        (s32, True, s32),
    ],
)
def test_numbers_are_weak(dtype, number, wanted):
    x = np.arange(1, N + 1).astype(dtype.numpy)
    for left in (True, False):
        out = np.zeros(N, wanted.numpy)
        launch(binary, x, x, out, op=OPERATORS["+"], **{"a" if left else "b": number})
        assert np.array_equal(out, (x.astype(wanted.numpy) + np.asarray(number).astype(wanted.numpy)))


@tc.kernel
def shifts(x, n, out):
    i = tc.threadIdx.x
    v = x[i]
    results = [v << n[i], v >> n[i], v << 3, v >> 2, 1 << n[i], -v, abs(v), ~v, +v, v**3, v << 0]
    for k, r in enumerate(results):
        out[k, i] = r


@pytest.mark.parametrize("dtype", [s32, u32, s64, u64, s8, u16])
def test_shifts_and_unary_operators(dtype):
    rng = np.random.default_rng(3)
    x = rng.integers(0 if dtype.kind == "u" else -100, 100, N).astype(dtype.numpy)
    n = rng.integers(0, 20, N).astype(np.int32)
    wide = promoted(dtype, dtype)
    out = np.zeros((11, N), wide.numpy)
    launch(shifts, x, n, out)
    for i in range(N):
        v, k = int(x[i]), int(n[i])
        absolute = v if wide.kind == "u" else abs(v)
        expected = [v << k, v >> k, v << 3, v >> 2, 1 << k, -v, absolute, ~v, v, v**3, v]
        assert [int(r) for r in out[:, i]] == [wrapped(e, wide) for e in expected]


@tc.kernel
def address_arithmetic(x, out):
    i = tc.threadIdx.x
    p = x.at(0) + i
    p = p + 3
    p -= 1
    q = 2 + p
    out[0, i] = p.load()
    out[1, i] = q[-2]
    out[2, i] = q - p
    out[3, i] = (q > p) & (p == q - 2) & (p != q)
    r = out.at(4, 0) + i
    r[0] = p[1]
    step = tc.u32(2)
    out[5, i] = x[i + step - 2]


def test_pointer_arithmetic_counts_elements():
    x = np.arange(100, dtype=np.int32) * 7
    out = np.zeros((6, N), np.int32)
    launch(address_arithmetic, x, out)
    i = np.arange(N)
    expected = [(i + 2) * 7, (i + 2) * 7, 2 + 0 * i, 1 + 0 * i, (i + 3) * 7, i * 7]
    assert np.array_equal(out, expected)


@tc.kernel
def pointers_into_a_swizzle(out, dtype: tc.Const, swizzle: tc.Const):
    """Steps from several elements of a tile whose elements hold their numbers, modulo 128."""
    cols = 2 * (swizzle or 128) // dtype.itemsize
    tile, t = tc.shared((16, cols), dtype, swizzle=swizzle), tc.lane_id()
    for i in tc.range(t, 16 * cols, 32):
        tile[i // cols, i % cols] = (i % 128).to(dtype)
    tc.syncwarp()
    first, middle = tile.at(0, 0), tile.at(8, 3)
    place = first + 5 * t
    place += 2 * cols
    out[0, t] = first[9 * t]
    out[1, t] = place.load()
    out[2, t] = middle[-t]
    out[3, t] = tile[3, 5:].at(1)[t % 16]
    out[4, t] = (first + 8 * cols)[3].to(tc.s32) + middle[0].to(tc.s32)
    out[5, t] = (middle + t) - middle
    out[6, t] = (middle + t > middle) & (middle + t == t + middle) & (middle - 1 < middle)
    out[7, t] = (first.as_type(tc.u8) + 7 * t).load().to(tc.s32) if dtype is tc.s8 else 7 * t % 128
    tc.syncwarp()
    if t < 9:
        middle[11 * t] = 100
        out[8, t] = tile[(8 * cols + 3 + 11 * t) // cols, (3 + 11 * t) % cols]


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("dtype", [s8, f16], ids=lambda t: t.name)
def test_pointers_follow_the_swizzle(dtype, swizzle):
    out = np.zeros((9, 32), np.int32)
    pointers_into_a_swizzle.emulator()[1, 32](out, dtype, swizzle)
    cols, t = 2 * (swizzle or 128) // dtype.itemsize, np.arange(32)
    expected = [
        9 * t % 128, (5 * t + 2 * cols) % 128, (8 * cols + 3 - t) % 128,
        (3 * cols + 6 + t % 16) % 128, ((8 * cols + 3) % 128) * 2 + 0 * t, t,
        (t > 0).astype(int), 7 * t % 128, 100 * (t < 9),
    ]  # fmt: skip
    assert np.array_equal(out, expected)


def test_pointers_of_different_swizzles():
    @tc.kernel
    def differ(out):
        plain, permuted = tc.shared((8, 64), f16), tc.shared((8, 64), f16, swizzle=128)
        out[0] = permuted.at(0, 0) - plain.at(0, 0)

    words = "a shared pointer to f16, 128-byte swizzle and a shared pointer to f16 do not combine"
    with pytest.raises(tc.OperandError, match=words):
        differ.emulator()[1, 32](np.zeros(1, np.int32))


@tc.kernel
def unsigned_indices(x, out):
    i = tc.u32(tc.threadIdx.x) + 0xFFFFFFFF
    out[tc.threadIdx.x] = x[i + 1]


def test_unsigned_indices_wrap_before_they_are_widened():
    x, out = np.arange(N, dtype=np.int32), np.zeros(N, np.int32)
    launch(unsigned_indices, x, out)
    assert np.array_equal(out, x)


@tc.kernel
def python_functions(x, y, out):
    i = tc.threadIdx.x
    v, w = x[i], y[i]
    quotient, remainder = divmod(int(v), 3)
    results = [
        min(v, w), max(v, w, 0), max([v, w]), min(v, 1.5), abs(v), sum([v, w, 1]), sum((v * k for k in range(3)), w), round(v), math.floor(v),
        math.ceil(v), math.trunc(v), int(v), float(int(w)), pow(v, 2), math.fabs(v), math.copysign(w, v), quotient, remainder,
        bool(v), any([v > w, w > 9]), all([v > w, w > -9]), math.isnan(v), math.isinf(v), math.isfinite(w), len([v, w]),
        x.shape[0], len(x),
    ]  # fmt: skip
    for k, r in enumerate(results):
        out[k, i] = r


def test_pythons_functions():
    rng = np.random.default_rng(4)
    x, y = ((rng.standard_normal(N) * 4).astype(np.float32) for _ in range(2))
    x[:3] = 0.5, 1.5, 2.5
    out = np.zeros((27, N), np.float32)
    launch(python_functions, x, y, out)
    for i in range(N):
        v, w = x[i], y[i]
        q, r = divmod(int(v), 3)
        expected = [
            min(v, w), max(v, w, 0), max(v, w), min(v, 1.5), abs(v), np.float32(np.float32(v + w) + 1), np.float32(np.float32(w + v * 0) + v) + v * 2,
            round(float(v)), math.floor(v), math.ceil(v), int(v), int(v), float(int(w)), v * v, abs(v),
            math.copysign(w, v), q, r, bool(v), v > w or w > 9, v > w and w > -9, False, False, True, 2, N, N,
        ]  # fmt: skip
        assert np.allclose(out[:, i], np.array(expected, np.float32), rtol=0, atol=0), i


@tc.kernel
def float_functions(out, n: tc.s32, a: tc.f32, b: tc.f32):
    h = a.to(tc.f16)
    out[0], out[1], out[2] = math.hypot(n, 1), math.hypot(a, b), math.hypot(h, h)
    out[3], out[4], out[5] = math.hypot(a.to(tc.f64), b), math.hypot(a), math.pow(n, 3)
    out[6], out[7], out[8] = math.isnan(n), math.isinf(n), math.isfinite(n)
    out[9], out[10] = math.copysign(n, b), math.pow(h, 2)


@pytest.mark.parametrize(
    "a, b",
    [
        (3, -4),
        (3e19, 4e19),
        (1e-30, 1e-30),
        (3e38, 1e38),
        (300, 1e-45),
        (1e-45, 0),
        (0, -0.0),
        (math.inf, math.nan),
        (math.nan, -math.inf),
        (math.nan, 1),
        (-math.inf, 2),
    ],
)
def test_functions_of_math_compute_in_floats(a, b):
    """Integers and halves too, and beyond the range of the squares."""
    n, out = 50000, np.zeros(11)
    float_functions.emulate[1, 1](out, n, a, b)
    with np.errstate(over="ignore"):
        a, b, h = (float(v) for v in (np.float32(a), np.float32(b), np.float16(a)))
        cube, double = float(np.float32(n) ** 3), float(np.float32(h) ** 2)
    expected = [n, math.hypot(a, b), math.hypot(h, h), math.hypot(a, b), abs(a), cube]
    expected += [False, False, True, math.copysign(n, b), double]
    near = np.isclose(out, expected, rtol=2.0**-22, atol=2.0**-149, equal_nan=True)
    assert near.all(), (out, expected)


@tc.kernel
def float_functions_of_fragments(x, n, out):
    c = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32).c
    v, w = tc.load_elements(x, c), tc.load_elements(n, c, convert=True)
    results = [
        tc.select(math.isnan(v), 1.0, 0.0),
        tc.select(math.isinf(v), 1.0, 0.0),
        tc.select(math.isfinite(v), 1.0, 0.0),
        math.copysign(v, w),
        math.hypot(v, w, 2),
        math.pow(v, 2),
        tc.select(math.isnan(w.to(tc.s32)), 1.0, 0.0),
    ]
    for k, r in enumerate(results):
        tc.store_elements(out[k], r)


def test_functions_of_math_take_fragments():
    x = np.arange(128, dtype=np.float32).reshape(16, 8)
    x[1, 2], x[3, 4], x[5, 6] = math.nan, math.inf, -math.inf
    n = np.where(np.arange(128).reshape(16, 8) % 3, 5, -5).astype(np.int32)
    out = np.zeros((7, 16, 8), np.float32)
    float_functions_of_fragments.emulate[1, 32](x, n, out)
    expected = [
        np.isnan(x),
        np.isinf(x),
        np.isfinite(x),
        np.copysign(x, n),
        np.sqrt(x * x + n * n + 4),
        x * x,
        np.zeros((16, 8)),
    ]
    for got, wanted in zip(out, expected, strict=True):
        assert np.allclose(got, wanted, rtol=2.0**-22, atol=0, equal_nan=True)


@tc.kernel
def mathematics(x, out):
    i = tc.threadIdx.x
    v = x[i]
    out[0, i], out[1, i], out[2, i] = tc.exp2(v), tc.log2(v), tc.sqrt(v)
    out[3, i], out[4, i], out[5, i] = tc.rcp(v), tc.rsqrt(v), tc.tanh(v)
    out[6, i], out[7, i], out[8, i] = tc.sin(v), tc.cos(v), tc.exp(v)
    out[9, i], out[10, i], out[11, i] = math.sqrt(v), math.exp(v), tc.fma(v, v, 1.0)
    out[12, i], out[13, i] = tc.minimum(v, 1), tc.maximum(2, v)
    out[14, i] = tc.select(v > 1, v, 0)


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_mathematics_agrees_with_numpy(dtype):
    x = np.linspace(0.1, 3, N).astype(dtype.numpy)
    out = np.zeros((15, N), dtype.numpy)
    launch(mathematics, x, out, arch="sm_90a")
    v = x.astype(np.float64)
    expected = [
        np.exp2(v),
        np.log2(v),
        np.sqrt(v),
        1 / v,
        v**-0.5,
        np.tanh(v),
        np.sin(v),
        np.cos(v),
        np.exp(v),
        np.sqrt(v),
        np.exp(v),
        v * v + 1,
        np.minimum(v, 1),
        np.maximum(v, 2),
        np.where(v > 1, v, 0),
    ]
    tolerance = {f32: 2e-3, f16: 2e-3, bf16: 8e-3}[dtype]
    assert np.allclose(out.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


ALL = (*INTEGERS, *FLOATS)


@tc.kernel
def conversions(x, out):
    i = tc.threadIdx.x
    out[i] = x[i].to(out.dtype)


@pytest.mark.parametrize("to", ALL, ids=str)
@pytest.mark.parametrize("of", ALL, ids=str)
def test_conversions_agree_with_numpy(of, to):
    rng = np.random.default_rng(5)
    if of.is_float:
        x = (rng.standard_normal(N) * 30).astype(of.numpy)
        x = abs(x) if to.kind == "u" else x
    else:
        info = np.iinfo(of.numpy)
        x = rng.integers(info.min, info.max, N, of.numpy, endpoint=True)
        if to == f16:
            x = (x % np.array(min(info.max, 1000), of.numpy)).astype(of.numpy)
    out = np.zeros(N, to.numpy)
    launch(conversions, x, out)
    if of.is_float and not to.is_float:
        expected = np.trunc(x.astype(np.float64)).astype(to.numpy)
    elif to == bf16:
        expected = np.array([_nearest_bf16(v) for v in x.tolist()], to.numpy)
    else:
        expected = x.astype(to.numpy)
    assert np.array_equal(out, expected)


def _nearest_bf16(value: float) -> Any:
    """Rounded once, whatever the type: exact fractions decide."""
    from fractions import Fraction

    near = ml_dtypes.bfloat16(float(value))
    bits = int(np.asarray(near).view(np.uint16))
    candidates = [
        np.asarray(b & 0xFFFF, np.uint16).view(ml_dtypes.bfloat16) for b in (bits - 1, bits, bits + 1)
    ]
    distance = [
        (abs(Fraction(float(c)) - Fraction(value)), int(c.view(np.uint16)) & 1, c)
        for c in candidates
        if np.isfinite(float(c))
    ]
    return min(distance, key=lambda d: d[:2])[2]


@tc.kernel
def special_conversions(x, out, bits, flags):
    i = tc.threadIdx.x
    v = x[i]
    out[0, i] = v.to(tc.f16, rounding="rz").to(f32)
    out[1, i] = tc.f32(tc.bf16(v))
    out[2, i] = v.to(tc.f16, relu=True).to(f32)
    out[3, i] = v.to(tc.tf32).bits(f32)
    out[4, i] = tc.f64(v).to(f32) + tc.s32(v > 0)
    bits[i] = v.bits(u32)
    flags[i] = v > 0
    flags[i] = flags[i] == (i % 2 == 0)


def test_rounding_modes_bits_and_predicates():
    rng = np.random.default_rng(6)
    x = rng.standard_normal(N).astype(np.float32)
    out, bits, flags = np.zeros((5, N), np.float32), np.zeros(N, np.uint32), np.zeros(N, np.bool_)
    launch(special_conversions, x, out, bits, flags)
    half = x.astype(np.float16)
    toward_zero = np.where(abs(half.astype(np.float32)) > abs(x), np.nextafter(half, np.float16(0)), half)
    tf32 = ((x.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)
    expected = [toward_zero, x.astype(ml_dtypes.bfloat16), np.maximum(half, 0), tf32, x + (x > 0)]
    assert np.array_equal(out, np.array([e.astype(np.float32) for e in expected]))
    assert np.array_equal(bits, x.view(np.uint32))
    assert np.array_equal(flags, (x > 0) == (np.arange(N) % 2 == 0))


@tc.kernel
def narrow_floats(x, out, dtype: tc.Const = tc.e4m3):
    i = tc.threadIdx.x
    out[i] = x[i].to(dtype)
    out[i] = out[i].to(f32).to(dtype)


@pytest.mark.parametrize("dtype", [tc.e4m3, tc.e5m2], ids=str)
def test_narrow_floats_are_converted_both_ways(dtype):
    x = (np.random.default_rng(7).standard_normal(N) * 8).astype(np.float32)
    out = np.zeros(N, dtype.numpy)
    launch(narrow_floats, x, out, dtype=dtype, arch="sm_90a")
    assert np.array_equal(out.view(np.uint8), x.astype(dtype.numpy).view(np.uint8))
