"""Arithmetic at the ends of types that is right, and what builds with and without checks say of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import InvalidArithmetic


def test_counts_beyond_the_width_shift_all_bits_out():
    @tc.kernel
    def shifts(x, n):
        x[0], x[1], x[2] = 1 << n, -5 >> n, (tc.u32(5) >> n).bits(tc.s32)

    x = np.ones(3, np.int32)
    shifts.emulate[1, 1](x, 32)
    assert x.tolist() == [0, -1, 0]
    shifts.emulate[1, 1](x, 1000)
    assert x.tolist() == [0, -1, 0]


def test_ranges_near_the_end_of_their_type():
    @tc.kernel
    def sums(x, a, b, step: tc.Const, first: tc.Const):
        for i in range(a, b, step):
            x[0] += 1
            if first:
                break

    def count(*bounds: Any, first: bool = False, **options: Any) -> int:
        x = np.zeros(1, np.int32)
        sums.emulator(**options)[1, 1](x, *bounds, first)
        return int(x[0])

    most = 2**31 - 1
    assert count(most - 2, most, 1) == 2
    assert count(most - 9, most, 4, first=True) == 1  # leaves before its index wraps
    assert count(np.int64(most - 9), np.int64(most), 4) == 3
    assert count(np.uint32(2**32 - 9), np.uint32(2**32 - 1), 8) == 1
    for bounds in (
        (most - 9, most, 4),
        (np.uint32(2**32 - 9), np.uint32(2**32 - 1), 9),
        (np.int64(2**63 - 9), np.int64(2**63 - 1), 9),
    ):
        for options in ({}, {"checks": False}):
            with pytest.raises(InvalidArithmetic, match="wraps around"):
                count(*bounds, **options)


def test_builds_without_checks_divide_as_before():
    @tc.kernel
    def divide(x, n):
        x[0] = 5 // n

    x = np.ones(1, np.int32)
    text = divide.ir(x, 0, arch="sm_90a")
    assert "check" not in text
    divide.emulator(checks=False)[1, 1](x, 0)
    assert divide.emulator(checks=False)[1, 1](x, 5) and x[0] == 1


def test_the_line_on_the_gpu_names_the_error():
    @tc.kernel(checks=True)
    def divide(x, n):
        x[0] = 5 // n

    text = divide.ptx(np.ones(1, np.int32), 3, arch="sm_90a")
    line = "".join(f"{ord(c)}, " for c in "InvalidArithmetic: division of")
    assert "InvalidArithmetic: division of" in text or line in text


def test_values_may_wrap():
    @tc.kernel
    def total(x: tc.Array, i, j, n):
        place, other = tc.s32(0), tc.s32(0)
        for _ in range(n):
            place += i * j
            x[other] = place
            other += 1

    x = np.zeros(9, np.int32)
    text = total.ir(x, 1, 2, 3, arch="sm_90a")
    assert text.count("mul.wide") == 1  # of the address
    total.emulator("sm_90a", checks=True)[1, 1](x, 65536, 65537, 3)
    assert list(x[:3]) == [65536, 131072, 196608]
