"""Sums, differences and products of several words, by carries (9.7.2), against Python's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError

RNG = np.random.default_rng(8)
THREADS = 128


@tc.kernel
def long_sums(a: tc.Array, b: tc.Array, sums: tc.Array, differences: tc.Array, sign: tc.Const):
    """Numbers of four words each, (words, threads), the lowest first; the fifth is the carry."""
    t, kind = tc.threadIdx.x, f"{sign}{8 * a.dtype.itemsize}"
    for op, out in (("add", sums), ("sub", differences)):
        for i in tc.static_range(4):
            name = f"{op}.cc" if i == 0 else f"{op}c.cc"
            word = tc.emit(f"{name}.{kind}", a[i, t].bits(kind), b[i, t].bits(kind))
            out[i, t] = word.bits(a.dtype)
        out[4, t] = tc.emit(f"{op}c.{kind}", 0, 0).bits(a.dtype)


@tc.kernel
def long_products(a: tc.Array, b: tc.Array, out: tc.Array):
    """Products of two words by two, as the manual's example computes them (9.7.2.6)."""
    t, kind = tc.threadIdx.x, a.dtype
    a0, a1, b0, b1 = a[0, t], a[1, t], b[0, t], b[1, t]
    r0 = tc.emit(f"mul.lo.{kind}", a0, b0)
    r1 = tc.emit(f"mul.hi.{kind}", a0, b0)
    r1 = tc.emit(f"mad.lo.cc.{kind}", a1, b0, r1)
    r2 = tc.emit(f"madc.hi.{kind}", a1, b0, 0)
    r1 = tc.emit(f"mad.lo.cc.{kind}", a0, b1, r1)
    r2 = tc.emit(f"madc.hi.cc.{kind}", a0, b1, r2)
    r3 = tc.emit(f"addc.{kind}", 0, 0)
    r2 = tc.emit(f"mad.lo.cc.{kind}", a1, b1, r2)
    r3 = tc.emit(f"madc.hi.{kind}", a1, b1, r3)
    for i, word in enumerate((r0, r1, r2, r3)):
        out[i, t] = word


@tc.kernel
def carries_apart(a: tc.Array, out: tc.Array):
    """Only even threads add a second time; all read their own carry, after a barrier."""
    t = tc.threadIdx.x
    tc.emit("add.cc.u32", 0xFFFFFFFF, 1)
    if t % 2 == 0:
        tc.emit("add.cc.u32", a[t], a[t])
    tc.barrier()
    out[t] = tc.emit("addc.u32", 0, 0)


@tc.kernel
def reads_nothing(out: tc.Array):
    out[tc.threadIdx.x] = tc.emit("addc.u32", 0, 0)


def numbers(words: int, dtype: Any) -> np.ndarray:
    """(words, threads), with many words at the ends of their range."""
    top = np.iinfo(dtype).max
    values = RNG.integers(0, top, (words, THREADS), dtype, endpoint=True)
    ends = RNG.choice(np.array([0, 1, top, top - 1, top >> 1], dtype), values.shape)
    return np.where(RNG.random(values.shape) < 0.6, ends, values)


def whole(words: np.ndarray, thread: int) -> int:
    bits = 8 * words.itemsize
    return sum(int(word) << bits * i for i, word in enumerate(words[:, thread]))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("sign", ["u", "s"])
def test_sums_and_differences(dtype: Any, sign: str) -> None:
    a, b = numbers(4, dtype), numbers(4, dtype)
    sums, differences = np.zeros((2, 5, THREADS), dtype)
    long_sums.emulator("sm_90a")[1, THREADS](a, b, sums, differences, sign=sign)
    span = 1 << 8 * a.itemsize * 5
    for thread in range(THREADS):
        left, right = whole(a, thread), whole(b, thread)
        assert whole(sums, thread) == left + right
        assert whole(differences, thread) == (left - right) % span


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_products(dtype: Any) -> None:
    a, b, out = numbers(2, dtype), numbers(2, dtype), np.zeros((4, THREADS), dtype)
    long_products.emulator("sm_90a")[1, THREADS](a, b, out)
    for thread in range(THREADS):
        assert whole(out, thread) == whole(a, thread) * whole(b, thread)


def test_high_products_of_signed_words_carry_as_unsigned_sums() -> None:
    a, b, c = (numbers(1, np.uint32)[0].view(np.int32) for _ in range(3))
    low, over = np.zeros((2, THREADS), np.uint32)

    @tc.kernel
    def kernel(a: tc.Array, b: tc.Array, c: tc.Array, low: tc.Array, over: tc.Array):
        t = tc.threadIdx.x
        low[t] = tc.emit("mad.hi.cc.s32", a[t], b[t], c[t]).bits(tc.u32)
        over[t] = tc.emit("addc.u32", 0, 0)

    kernel.emulator("sm_90a")[1, THREADS](a, b, c, low, over)
    for thread in range(THREADS):
        high = int(a[thread]) * int(b[thread]) >> 32 & 0xFFFFFFFF
        total = high + (int(c[thread]) & 0xFFFFFFFF)
        assert (int(over[thread]), int(low[thread])) == divmod(total, 1 << 32)


def test_each_thread_has_its_own_carry() -> None:
    a, out = numbers(1, np.uint32)[0], np.zeros(THREADS, np.uint32)
    carries_apart.emulator("sm_90a")[1, THREADS](a, out)
    even = np.arange(THREADS) % 2 == 0
    assert np.array_equal(out, np.where(even, a >> 31, 1))


def test_a_carry_that_nothing_has_written() -> None:
    with pytest.raises(EmulationError, match=r"addc.u32 reads a carry, which no instruction with"):
        reads_nothing.emulator("sm_90a")[1, 32](np.zeros(32, np.uint32))
    with pytest.raises(EmulationError, match=r"addc.cc.u64 reads a carry"):
        tc.emulate("addc.cc.u64", 1, 2)
    assert (tc.emulate("add.cc.u32", 0xFFFFFFFF, 2) == 1).all()


def test_the_assembler_takes_the_kernels() -> None:
    a = numbers(4, np.uint64)
    assert long_sums.resources(a, a, a, a, sign="s", arch="sm_90a").registers > 0
    assert long_products.resources(a, a, a, arch="sm_90a").registers > 0
