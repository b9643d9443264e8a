"""Sums, differences and products of several words, by carries (9.7.2), against Python's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError
from tests import carry_kernels as kernels

RNG = np.random.default_rng(8)
THREADS = 128


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
def test_sums_and_differences(dtype, sign):
    a, b = numbers(4, dtype), numbers(4, dtype)
    sums, differences = np.zeros((2, 5, THREADS), dtype)
    kernels.long_sums.emulator("sm_90a")[1, THREADS](a, b, sums, differences, sign=sign)
    span = 1 << 8 * a.itemsize * 5
    for thread in range(THREADS):
        left, right = whole(a, thread), whole(b, thread)
        assert whole(sums, thread) == left + right
        assert whole(differences, thread) == (left - right) % span


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_long_products_agree_with_python(dtype):
    a, b, out = numbers(2, dtype), numbers(2, dtype), np.zeros((4, THREADS), dtype)
    kernels.long_products.emulator("sm_90a")[1, THREADS](a, b, out)
    for thread in range(THREADS):
        assert whole(out, thread) == whole(a, thread) * whole(b, thread)


def test_high_products_of_signed_words_carry_as_unsigned_sums():
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


def test_sums_and_differences_share_the_carry():
    """The carry of a difference says that nothing is borrowed, on an H200 too."""
    a, b, out = numbers(1, np.uint32), numbers(1, np.uint32), np.zeros((4, THREADS), np.uint32)
    kernels.mixed_carries.emulator("sm_90a")[1, THREADS](a, b, out)
    wide = a[0].astype(np.uint64) + b[0]
    assert np.array_equal(out[0], a[0] - b[0]) and np.array_equal(out[1], a[0] >= b[0])
    assert np.array_equal(out[2], a[0] + b[0])
    assert np.array_equal(out[3], np.where(wide >> np.uint64(32), 0, 0xFFFFFFFF))


def test_each_thread_has_its_own_carry():
    a, out = numbers(1, np.uint32)[0], np.zeros(THREADS, np.uint32)
    kernels.carries_apart.emulator("sm_90a")[1, THREADS](a, out)
    even = np.arange(THREADS) % 2 == 0
    assert np.array_equal(out, np.where(even, a >> 31, 1))


def test_a_carry_that_nothing_has_written():
    with pytest.raises(EmulationError, match=r"addc.u32 reads a carry, which no instruction with"):
        kernels.reads_nothing.emulator("sm_90a")[1, 32](np.zeros(32, np.uint32))
    with pytest.raises(EmulationError, match=r"addc.cc.u64 reads a carry"):
        tc.emulate("addc.cc.u64", 1, 2)
    assert (tc.emulate("add.cc.u32", 0xFFFFFFFF, 2) == 1).all()


def test_the_assembler_takes_the_kernels():
    a = numbers(4, np.uint64)
    assert kernels.long_sums.resources(a, a, a, a, sign="s", arch="sm_90a").registers > 0
    assert kernels.long_products.resources(a, a, a, arch="sm_90a").registers > 0
