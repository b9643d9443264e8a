"""Operators, functions, memory and warps of the kernel language, against NumPy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorcore_dsl as tc
from tensorcore_dsl import bf16, f16, f32, f64, pred, s8, s16, s32, s64, u8, u16, u32, u64
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import CompileError
from tests.running import ASSEMBLES, compare_with_python, execute_text, launch

pytestmark = pytest.mark.usefixtures("fresh_ir")

N = 64


# -- operators --------------------------------------------------------------------------------

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
def test_integer_operators(data):
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
def test_float_operators(data):
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


def test_pointers():
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


# -- functions --------------------------------------------------------------------------------


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
    """Of integers and halves too, and beyond the range of the squares."""
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
def test_mathematics(dtype):
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


# -- conversions ------------------------------------------------------------------------------

ALL = (*INTEGERS, *FLOATS)


@tc.kernel
def conversions(x, out):
    i = tc.threadIdx.x
    out[i] = x[i].to(out.dtype)


@pytest.mark.parametrize("to", ALL, ids=str)
@pytest.mark.parametrize("of", ALL, ids=str)
def test_conversions(of, to):
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
def test_narrow_floats(dtype):
    x = (np.random.default_rng(7).standard_normal(N) * 8).astype(np.float32)
    out = np.zeros(N, dtype.numpy)
    launch(narrow_floats, x, out, dtype=dtype, arch="sm_90a")
    assert np.array_equal(out.view(np.uint8), x.astype(dtype.numpy).view(np.uint8))


# -- memory -----------------------------------------------------------------------------------


@tc.kernel
def array_views(x, out):
    i = tc.threadIdx.x % 4
    row = x[i]
    part = x[1:, 2:6]
    steps = x[::2, 1::3]
    block = x[i : i + 2, 1:-1]
    last = x[-1, ...]
    results = [
        row[3],
        x.T[3, i],
        part[0, 1],
        part.T[1, 0],
        steps[1, 1],
        steps.shape[0],
        steps.shape[1],
        block[1, 0],
        block.shape[1],
        last[-2],
        x[..., 2][i],
        x[i, -1],
        part.shape[0],
        x[-1, i],
        x[i, 1:3].shape[0],
    ]
    for k, r in enumerate(results):
        out[k, tc.threadIdx.x] = r


@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_views_of_arrays(order):
    base = np.arange(5 * 8, dtype=np.int32).reshape(5, 8)
    x = np.asfortranarray(base) if order == "F" else base
    if order == "strided":
        x = np.zeros((10, 16), np.int32)[::2, ::2]
        x[:] = base
    compare_with_python(array_views, x, np.zeros((15, 8), np.int32), block=8)


@tc.kernel
def tiles(x, out, swizzle: tc.Const = 0, padded: tc.Const = False):
    t = tc.threadIdx.x
    tile = tc.shared((8, 64), tc.f16, swizzle=swizzle, strides=(72, 1) if padded else None)
    for k in tc.static_range(8):
        tile[k, t] = x[k, t]
    tc.barrier()
    half = tile[2:6, 16:48]
    column = tile.T[t % 64]
    every = tile[::2, 1::2]
    out[0, t] = tile[t % 8, t]
    out[1, t] = half[t % 4, t % 32]
    out[2, t] = half.T[t % 32, 3]
    out[3, t] = column[5]
    out[4, t] = every[t % 4, t % 32]
    out[5, t] = tile[-1, -2]
    corner = tile.at(t % 8, 8 * (t // 8))
    vector = corner.load(8)
    out[6, t] = vector[3] + 0 * len(half)
    tc.barrier()
    corner.store([v + 1 for v in vector])
    tc.barrier()
    out[7, t] = tile[t // 8, t % 8]


@pytest.mark.parametrize("swizzle, padded", [(0, False), (32, False), (64, False), (128, False), (0, True)])
def test_shared_tiles(swizzle, padded):
    x = np.arange(8 * 64).reshape(8, 64).astype(np.float16)
    out = np.zeros((8, 64), np.float16)
    launch(tiles, x, out, swizzle=swizzle, padded=padded)
    for t in range(64):
        half = x[2:6, 16:48]
        expected = [
            x[t % 8, t],
            half[t % 4, t % 32],
            half[3, t % 32],
            x[5, t],
            x[::2, 1::2][t % 4, t % 32],
            x[-1, -2],
            x[t % 8, 8 * (t // 8) + 3],
            x[t // 8, t % 8] + 1,
        ]
        assert out[:, t].tolist() == expected


@tc.kernel
def dynamic(x, out, big: tc.Const = 0):
    t = tc.threadIdx.x
    fixed = tc.shared(64, tc.s32)
    large = tc.shared((big, 64), tc.s32) if big else fixed
    first = tc.dynamic_shared(64, tc.s32)
    second = tc.dynamic_shared((2, 64), tc.s16, offset=256, swizzle=32)
    fixed[t], first[t], second[0, t], second[1, t] = x[t], x[t] * 2, x[t] * 3, 7
    if big:
        large[big - 1, t] = x[t] * 5
    tc.barrier()
    other = 63 - t
    out[0, t], out[1, t], out[2, t], out[3, t] = (
        fixed[other],
        first[other],
        second[0, other],
        second[1, other],
    )
    out[4, t] = large[big - 1, other] if big else 0


@pytest.mark.parametrize("big", [0, 4, 250])
def test_dynamic_shared_memory_behind_static(big):
    x, out = np.arange(N, dtype=np.int32), np.zeros((5, N), np.int32)
    dynamic.emulator("sm_80")[1, N, None, 512](x, out, big=big)
    back = x[::-1]
    assert np.array_equal(out, [back, 2 * back, 3 * back, 7 + 0 * back, (5 if big else 0) * back])
    assert not ASSEMBLES or dynamic.cubin(x, out, arch="sm_80", big=big)


@tc.kernel
def swizzled_behind_static(x, out, swizzle: tc.Const):
    """TMA permutes by address, so a swizzled tile starts where the swizzle does."""
    tc.launch_bounds(32)
    bar, t = tc.mbarriers(1)[0], tc.lane_id()
    tile = tc.dynamic_shared((8, swizzle // 4), f32, swizzle=swizzle)
    source = tc.tensor_map(x, tile.shape, swizzle=swizzle)
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(source.bytes)
        tc.tma_load(tile, source, (0, 0), bar)
    tc.syncwarp()
    bar.wait(0)
    for i in tc.range(t, 2 * swizzle, 32):
        out[0, i] = tile[i // tile.shape[1], i % tile.shape[1]]
        out[1, i] = tile.at(0, 0)[i]


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_swizzled_dynamic_memory_behind_static(swizzle):
    x = np.arange(2 * swizzle, dtype=np.float32).reshape(8, -1)
    out = np.zeros((2, x.size), np.float32)
    swizzled_behind_static.emulator("sm_90a")[1, 32, None, x.nbytes](x, out, swizzle)
    assert np.array_equal(out, [x.ravel()] * 2)
    ptx = swizzled_behind_static.ptx(x, out, swizzle, arch="sm_90a")
    assert f".extern .shared .align {8 * swizzle} .b8 dynamic_shared_memory[];" in ptx


@tc.kernel
def local_arrays(x, out):
    i = tc.threadIdx.x
    line = tc.local(5, f32, fill=1.5)
    grid = tc.local((3, 4), s32)
    for k in tc.static_range(3):
        for j in tc.static_range(4):
            grid[k, j] = k * 10 + j
    line[x[i]] = 9
    line[-1] += 2
    grid[1][2] = i
    grid.T[3, x[i] % 3] = -5
    grid[x[i] % 3, x[i] % 4] += 100
    for k in range(x[i]):
        line[k] += 1
    results = [
        line[x[i]],
        line[0],
        line[4],
        grid[0, 3],
        grid[1, 2],
        grid[2, x[i] % 4],
        sum(grid[1]),
        sum(grid[:, 1]),
        len(grid),
        grid[1:, ::2][1, 1],
    ]
    for k, r in enumerate(results):
        out[k, i] = r


def test_local_arrays():
    compare_with_python(
        local_arrays, (np.arange(N) % 5).astype(np.int32), np.zeros((10, N), np.float32), block=N
    )


@tc.kernel
def vectors(x, out):
    i = tc.threadIdx.x
    v = x.at(4 * i).load(4)
    w = v * 2 + 1
    u = w.map(lambda e: -e)
    total = sum(v)
    out.at(0, 4 * i).store(w)
    out.at(1, 4 * i).store(tc.vector([total, v[1], v[-1], len(v)]))
    out.at(2, 4 * i).store(u - v, pred=i % 2 == 0)
    out.at(3, 4 * i).store((1, 2, v[2], 4))
    a, b, c, d = v
    out[4, 4 * i + 3] = a + b * c - d
    chosen = v if i > 7 else w
    out.at(5, 4 * i).store(chosen)
    out.at(6, 4 * i).store(tc.fma(v, w, 1))
    guarded = x.at(4 * i).load(pred=i < 4, otherwise=-3)
    out[7, 4 * i] = guarded
    out.at(8, 4 * i).store(v.to(out.dtype))
    flags = v > 5
    out[9, 4 * i] = tc.select(flags[0], 1, 0) + tc.select(flags[3], 10, 0)


@pytest.mark.parametrize("dtype", [s32, f32, f16, s8, s16, u8], ids=str)
def test_vectors(dtype):
    M = 16
    x = (np.arange(4 * M) % 30).astype(dtype.numpy)
    out = np.zeros((10, 4 * M), dtype.numpy)
    if dtype.bits <= 16 and dtype.is_integer:
        with pytest.raises(tc.TensorCoreError):
            launch(vectors, x, out.astype(np.float64), block=M)
        return
    launch(vectors, x, out, block=M)
    v = x.reshape(M, 4).astype(np.float64)
    w = v * 2 + 1
    expected = np.zeros((10, M, 4))
    expected[0] = w
    expected[1] = np.stack([v.sum(1), v[:, 1], v[:, 3], 0 * v[:, 0] + 4], 1)
    expected[2, ::2] = (-w - v)[::2]
    expected[3] = np.stack([0 * v[:, 0] + 1, 0 * v[:, 0] + 2, v[:, 2], 0 * v[:, 0] + 4], 1)
    expected[4, :, 3] = v[:, 0] + v[:, 1] * v[:, 2] - v[:, 3]
    expected[5] = np.where(np.arange(M)[:, None] > 7, v, w)
    expected[6] = v * w + 1
    expected[7, :, 0] = np.where(np.arange(M) < 4, v[:, 0], -3)
    expected[8] = v
    expected[9, :, 0] = (v[:, 0] > 5) + 10 * (v[:, 3] > 5)
    assert np.array_equal(out.astype(np.float64), expected.reshape(10, -1))


@tc.kernel
def narrow_vectors(x, out):
    i = tc.threadIdx.x
    v = x.at(8 * i).load(8)
    out.at(8 * i).store([v[7 - k] for k in range(8)])


@pytest.mark.parametrize("dtype", [s8, u8, f16, bf16, s16], ids=str)
def test_vectors_of_narrow_elements(dtype):
    x = np.arange(8 * N).astype(np.int8).astype(dtype.numpy)
    out = np.zeros(8 * N, dtype.numpy)
    launch(narrow_vectors, x, out)
    assert np.array_equal(out.reshape(N, 8), x.reshape(N, 8)[:, ::-1])


# -- threads ----------------------------------------------------------------------------------


@tc.kernel
def indices(out):
    x, y, z = tc.threadIdx.x, tc.threadIdx.y, tc.threadIdx.z
    bx, by, bz = tc.blockIdx.x, tc.blockIdx.y, tc.blockIdx.z
    place = ((bz * tc.gridDim.y + by) * tc.gridDim.x + bx) * 32
    inside = (z * tc.blockDim.y + y) * tc.blockDim.x + x
    out[place + inside] = (
        tc.lane_id() + 100 * tc.warp_id() + 1000 * (bx + 10 * by + 100 * bz) + 0 * tc.gridDim.z
    )
    if inside == 0:
        out[place] = -tc.blockDim.z


def test_indices_in_three_dimensions():
    out = np.zeros(3 * 2 * 2 * 32, np.int32)
    launch(indices, out, grid=(3, 2, 2), block=(4, 4, 2))
    block = 0
    for bz in range(2):
        for by in range(2):
            for bx in range(3):
                expected = np.arange(32) + 1000 * (bx + 10 * by + 100 * bz)
                expected[0] = -2
                found = out[block * 32 : block * 32 + 32]
                x_only = np.arange(32) % 4 // 32 * 100
                assert np.array_equal(found, expected + x_only)
                block += 1


@tc.kernel
def warp_exchange(x, out, wide, half):
    i, lane = tc.threadIdx.x, tc.lane_id()
    v = x[i]
    total = v
    for step in (16, 8, 4, 2, 1):
        total += tc.shfl_xor(total, step)
    results = [
        total, tc.shfl(v, 3), tc.shfl_up(v, 1), tc.shfl_down(v, 2), tc.shfl(v, lane ^ 5), tc.vote("ballot", v > 20),
        tc.vote("all", v >= 0), tc.vote("any", v == 7), tc.vote("uni", v < 100), tc.match_any(v % 4), tc.redux("add", v),
        tc.redux("max", v), tc.redux("or", v), tc.shfl(v > 10, 0),
    ]  # fmt: skip
    for k, r in enumerate(results):
        out[k, i] = r
    wide[i] = tc.shfl_down(tc.f64(v) / 3, 1)
    half[i] = tc.shfl_xor(tc.f16(v), 1)
    tc.syncwarp()


def test_warp_exchange():
    x = np.arange(32, dtype=np.int32)[::-1].copy()
    out, wide, half = np.zeros((14, 32), np.int64), np.zeros(32), np.zeros(32, np.float16)
    launch(warp_exchange, x, out, wide, half, block=32)
    lanes = np.arange(32)
    ballot = sum(1 << i for i in range(32) if x[i] > 20)
    match = [sum(1 << j for j in range(32) if x[j] % 4 == x[i] % 4) for i in range(32)]
    up, down = x[np.maximum(lanes - 1, 0)], np.where(lanes < 30, x[np.minimum(lanes + 2, 31)], x)
    expected = [x.sum(), x[3], up, down, x[lanes ^ 5], ballot, 1, 1, 1, match, x.sum(), 31, 31, 1]
    for k, e in enumerate(expected):
        assert np.array_equal(out[k], np.broadcast_to(np.array(e, np.int64), 32)), k
    assert np.array_equal(wide, np.where(lanes < 31, x[np.minimum(lanes + 1, 31)], x) / 3)
    assert np.array_equal(half, x[lanes ^ 1])


@tc.kernel
def atomics(x, totals, old, wide, floats):
    i = tc.threadIdx.x
    count = tc.shared(2, tc.u32)
    if i < 2:
        count[i] = 0
    tc.barrier()
    tc.atomic("add", count.at(0), 1)
    tc.reduce("max", count.at(1), tc.u32(x[i]))
    old[i] = tc.atomic("add", totals.at(0), x[i])
    tc.atomic("min", totals.at(1), x[i])
    tc.atomic("max", totals.at(2), x[i])
    tc.atomic("or", totals.at(3), 1 << (i % 8))
    tc.atomic("exch", totals.at(4), 42)
    tc.atomic("cas", totals.at(5), 7, 8)
    tc.reduce("add", wide.at(0), tc.s64(x[i]))
    tc.reduce("add", floats.at(0), 0.5)
    tc.barrier()
    if i == 0:
        totals[6], totals[7] = count[0], count[1]


def test_atomics():
    x = np.arange(N, dtype=np.int32)
    totals = np.array([0, 99, -1, 0, 0, 7, 0, 0], np.int32)
    old, wide, floats = np.zeros(N, np.int32), np.zeros(1, np.int64), np.zeros(1, np.float32)
    launch(atomics, x, totals, old, wide, floats)
    assert totals.tolist() == [x.sum(), 0, N - 1, 255, 42, 8, N, N - 1]
    assert np.array_equal(np.sort(old), np.concatenate([[0], np.cumsum(x)[:-1]]).astype(np.int32))
    assert wide[0] == x.sum() and floats[0] == N / 2


@tc.kernel
def clocks(out):
    first = tc.special("clock")
    second = tc.special("clock")
    long = tc.special("clock64")
    out[0], out[1], out[2] = (second - first, tc.s32(long), tc.special("warpid") + tc.special("nctaid.x"))


def test_clocks_are_read_each_time():
    out = np.zeros(3, np.int32)
    launch(clocks, out, block=1)
    assert out[0] > 0 and out[1] > 0
    assert clocks.ptx(out, arch="sm_80").count("%clock;") == 2


# -- fragments --------------------------------------------------------------------------------


@tc.kernel
def fragments(a, b, d, sums):
    lane = tc.lane_id()
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile_a, tile_b = tc.shared((16, 16), tc.f16), tc.shared((16, 8), tc.f16)
    for k in tc.static_range(8):
        tile_a[lane // 16 + 2 * k, lane % 16] = a[lane // 16 + 2 * k, lane % 16]
    for k in tc.static_range(4):
        tile_b[lane // 8 + 4 * k, lane % 8] = b[lane // 8 + 4 * k, lane % 8]
    tc.syncwarp()
    fa = tc.ldmatrix(tile_a, mma.a)
    fb = tc.load_elements(b, mma.b)
    acc = {"now": [mma.d.zeros()], "twice": (mma.d.zeros(), 1)}
    for k in range(2):
        acc["now"][0] = mma(fa, fb, acc["now"][0])
        if k == 1:
            acc["twice"] = (acc["now"][0] * 2.0, 2)
    result = acc["now"][0] if sums.shape[0] > 0 else acc["twice"][0]
    tc.store_elements(d, result + 1)
    for slot in tc.static_range(len(fa)):
        row, col = fa.coordinates(slot)
        tc.atomic("add", sums.at(row), tc.f32(fa[slot]))
    packed = fa * 2 - fa + abs(-fa) - abs(fa)
    tc.atomic("add", sums.at(16), tc.f32(packed[0] - fa[0]))
    tc.atomic("add", sums.at(17), sum(e for e in acc["twice"][0]))


@pytest.mark.parametrize("transposed", [False, True])
def test_fragments_in_containers(transposed):
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-4, 5, (16, 16)).astype(np.float16), rng.integers(-4, 5, (16, 8)).astype(np.float16))
    b = np.asfortranarray(b) if transposed else b
    d, sums = np.zeros((16, 8), np.float32), np.zeros(18, np.float32)
    launch(fragments, a, b, d, sums, block=32)
    product = a.astype(np.float32) @ b.astype(np.float32)
    assert np.array_equal(d, 2 * product + 1)
    assert np.array_equal(sums[:16], a.astype(np.float32).sum(1))
    assert sums[16] == 0 and sums[17] == 4 * product.sum()


@tc.kernel
def matrix_moves(x, out, dtype: tc.Const = tc.f16, turned: tc.Const = False, swizzle: tc.Const = 0):
    lane = tc.lane_id()
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((64, 64), tc.f16, swizzle=swizzle)
    for k in tc.static_range(64):
        tile[k, 2 * lane] = x[k, 2 * lane]
        tile[k, 2 * lane + 1] = x[k, 2 * lane + 1]
    tc.syncwarp()
    view = tile.T if turned else tile
    for i, line in enumerate(tc.ldmatrix(view[16:48, 16:], mma.a)):
        for j, fragment in enumerate(line):
            tc.store_elements(out[16 * i : 16 * i + 16, 16 * j : 16 * j + 16], fragment)
    found = tc.ldmatrix(view[:16, 8:48], mma.b)
    for j, fragment in enumerate(found):
        tc.store_elements(out[32:, 8 * j : 8 * j + 8], fragment)


@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize("turned", [False, True])
def test_ldmatrix_of_many_fragments(turned, swizzle):
    x = np.random.default_rng(9).integers(0, 100, (64, 64)).astype(np.float16)
    out = np.zeros((48, 48), np.float16)
    launch(matrix_moves, x, out, block=32, turned=turned, swizzle=swizzle)
    view = x.T if turned else x
    assert np.array_equal(out[:32], view[16:48, 16:])
    assert np.array_equal(out[32:, :40], view[:16, 8:48])


@tc.kernel
def packed_arithmetic(x, out, dtype: tc.Const = tc.f16):
    mma = tc.mma.m16n8k16(dtype, dtype, tc.f32)
    a = tc.load_elements(x, mma.a)
    scalar = x[0, 1]
    results = [
        a + a,
        a - 1,
        2 * a,
        -a,
        abs(a),
        a * scalar - a,
        tc.fma(a, a, scalar),
        tc.minimum(a, 0.5),
        tc.maximum(scalar, a),
        a / 2,
        a * tc.f32(3),
        a + np.float64(1),
    ]
    for k, result in enumerate(results):
        out[k, tc.lane_id()] = tc.f64(result[k % 8])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_fragments_of_halves_are_computed_in_pairs(dtype, arch):
    x = np.random.default_rng(11).standard_normal((16, 16)).astype(dtype.numpy)
    out = np.zeros((12, 32))
    launch(packed_arithmetic, x, out, block=32, dtype=dtype, arch=arch)
    layout = tc.mma.m16n8k16(dtype, dtype, tc.f32).a.layout
    a = x[layout.coords[..., 0], layout.coords[..., 1]]
    s, one = x[0, 1], dtype.numpy.type(1)
    wide = a.astype(np.float32)
    expected = [
        a + a,
        a - one,
        a + a,
        -a,
        abs(a),
        a * s - a,
        (wide * wide + np.float32(s)).astype(dtype.numpy),
        np.minimum(a, dtype.numpy.type(0.5)),
        np.maximum(s, a),
        a / dtype.numpy.type(2),
        wide * 3,
        a.astype(np.float64) + 1,
    ]
    for k, e in enumerate(expected):
        assert np.array_equal(out[k], e[:, k % 8].astype(np.float64)), k
    text = packed_arithmetic.ptx(x, out, arch=arch, dtype=dtype)
    assert text.count(f".{dtype}x2") >= 9


# -- printing ---------------------------------------------------------------------------------


@tc.kernel
def prints(x, y: tc.f32):
    i = tc.threadIdx.x
    if i < 2:
        print("thread", i, "has", x[i], "and 100%", y)
        print(
            f"{i:03d}: {x[i]:x} {y:.3f} {tc.f16(y)} {i > 0} {tc.s64(i):5d} {[i, 1]} {{}}", end="|\n", sep=""
        )
        print(i, tc.u64(1) << 40, (i, y), tc.vector([i, 2]), "a" * 2, sep=", ")
        print()


def test_print(capsys):
    x = np.array([10, 255], np.int32)
    launch(prints, x, 2.5, block=32)
    lines = capsys.readouterr().out.splitlines()
    blocks = [lines[k : k + 2] for k in range(0, len(lines), 2)]
    assert blocks == [
        ["thread 0 has 10 and 100% 2.5", "thread 1 has 255 and 100% 2.5"],
        ["000: a 2.500 2.5 0     0 [0, 1] {}|", "001: ff 2.500 2.5 1     1 [1, 1] {}|"],
        ["0, 1099511627776, (0, 2.5), [0 2], aa", "1, 1099511627776, (1, 2.5), [1 2], aa"],
        ["", ""],
    ]


@dataclass
class Pair:
    a: Any
    b: Any


@tc.kernel
def formats(y: tc.f32, n: tc.Const):
    i, width = tc.s32(tc.threadIdx.x) - 7, 9
    print(f"{i=} {i = } {i!r} {y!s:.1f} {n=:>4} {n!r:<3}|{None}")
    print(
        f"{y:8.3f}|{y:<8.3f}|{y:>8.3f}|{y:-8.3f}|{y:+8.3f}|{y: .1f}|{y:08.2f}|{y:{width}.{n}f}|{i:>{width}}|"
    )
    print(f"<{f'{i:4}'}>" + " " + f"{n}" + f"{f'{n}'}%{i}", "", sep="%", end=None)
    print((i,), {"a": i, "b": [y]}, str(i) + repr(y), sep=None, flush=True)
    print([(i, "%"), [[]]], Pair(1, i), [f"{n}", n], f"{[y, Pair(y, 'x')]:.2f}")


def test_formats(capsys):
    launch(formats, 2.5, 3, block=1)
    y, i, n, width = 2.5, -7, 3, 9
    assert capsys.readouterr().out.splitlines() == [
        f"{i=} {i = } {i!r} {y:.1f} {n=:>4} {n!r:<3}|{None}",
        f"{y:8.3f}|{y:<8.3f}|{y:>8.3f}|{y:-8.3f}|{y:+8.3f}|{y: .1f}|{y:08.2f}|{y:{width}.{n}f}|{i:>{width}}|",
        f"<{i:4}> {n}{n}%{i}%",
        f"{(i,)} {{'a': -7, 'b': [2.5]}} -72.5",
        "[(-7, '%'), [[]]] Pair(a=1, b=-7) ['3', 3] [2.50, Pair(a=2.50, b='x')]",
    ]


# -- chains of branches ------------------------------------------------------------------------


def chain(links: int) -> Any:
    text = "".join(f"    elif i == {k}:\n        r = tc.u32({k})\n" for k in range(1, links))
    source = (
        "@tc.kernel\ndef kernel(x):\n    i = tc.threadIdx.x\n    r = tc.u32(0)\n"
        f"    if i == 0:\n        r = tc.u32(0)\n{text}    x[i] = r\n"
    )
    return execute_text(source, f"<chain of {links}>", {"tc": tc})["kernel"]


def test_long_chains_of_branches_run():
    out = np.zeros(32, np.uint32)
    chain(150).emulate[1, 32](out)
    assert (out == np.arange(32)).all()


@pytest.mark.parametrize("links", [400, 600])
def test_longer_chains_are_refused(links):
    with pytest.raises(CompileError, match=r"nest 201 deep; 200 are allowed") as error:
        chain(links).emulate[1, 32](np.zeros(32, np.uint32))
    assert error.value.loc is not None
