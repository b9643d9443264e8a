"""Divisions by zero, shifts by negative counts, ranges without an end, and constants that their type does not hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from twins import Twins

import tensorcore_dsl as tc
from tensorcore_dsl.errors import InvalidArithmetic, OperandError

twin = Twins()
S8, S32 = dict(dtype=np.int8), dict(dtype=np.int32)


@twin(InvalidArithmetic, "division of 0 by 0 (block (0,0,0), thread (0,0,0))", (32,), 0, **S32)
def quotient(x, n, bad: tc.Const):
    x[tc.threadIdx.x] = tc.threadIdx.x // (n if bad else n + 1)  # here


@twin(InvalidArithmetic, "division of 3 by 0 (block (0,0,0), thread (3,0,0))", (32,), 3, **S32)
def remainder(x, n, bad: tc.Const):
    x[tc.threadIdx.x] = tc.threadIdx.x % (tc.threadIdx.x - (n if bad else 40))  # here


@twin(InvalidArithmetic, "division of -1 by 0", (32,), 0, **S32)
def wide(x, n, bad: tc.Const):
    x[0] = (tc.s64(-1) // n.to(tc.s64) if bad else tc.s64(-1) // 3).to(tc.s32)  # here


@twin(InvalidArithmetic, "division of 7 by 0", (32,), 0, **S32)
def unsigned(x, n, bad: tc.Const):
    x[0] = (tc.u64(7) % tc.maximum(n, 0 if bad else 1).to(tc.u64)).to(tc.s32)  # here


@twin(InvalidArithmetic, "division of 5 by 0", (32,), 0, **S32)
def by_name(x, n, bad: tc.Const):
    tc.emit("div.s32", n + 5, n, pred=n > (-1 if bad else 0))  # here


@twin(InvalidArithmetic, "division of 9 by 0", (32,), 0, **S32)
def narrow(x, n, bad: tc.Const):
    tc.emit("rem.u16", tc.u16(9), n.to(tc.u16) if bad else tc.u16(2))  # here


@twin(InvalidArithmetic, "division of 5 by 0", (32,), 0, **S32)
def guarded_by_a_branch(x, n, bad: tc.Const):
    x[0] = 5 // n if n != (7 if bad else 0) else 1  # here


@twin(InvalidArithmetic, "division of 5 by 0", (32,), 0, **S32)
def guarded_by_and(x, n, bad: tc.Const):
    if n != (7 if bad else 0) and 5 // n > 2:  # here
        x[0] = 2


@twin(InvalidArithmetic, "shift by -1: counts are 0 or more (block (0,0,0), thread (0,0,0))", (32,), 1, **S32)
def negative_count(x, n, bad: tc.Const):
    x[tc.threadIdx.x] = 1 << (tc.threadIdx.x - (n if bad else 0))  # here


@twin(
    InvalidArithmetic,
    "range(0, 9, 0): the step is 0, with which no range ends (block (0,0,0), thread (4,0,0))",
    (32,),
    9,
    **S32,
)
def step_of_zero(x, n, bad: tc.Const):
    for i in range(0, n, tc.threadIdx.x - 4 if bad else tc.threadIdx.x + 1):  # here
        x[tc.threadIdx.x] = i


@twin(
    InvalidArithmetic,
    "range(2147483641, 2147483647, 4): the index has 32 bits, in which 2147483645 + 4 wraps around, "
    "so the range does not end there (block (0,0,0), thread (0,0,0))",
    (32,),
    2**31 - 1,
    **S32,
)
def range_to_the_end(x, n, bad: tc.Const):
    for i in range(n - 6, n, 4 if bad else 3):  # here
        x[tc.threadIdx.x] = i


@twin(InvalidArithmetic, "in which -2147483642 + -9 wraps around", (32,), -(2**31), **S32)
def range_down_to_the_end(x, n, bad: tc.Const):
    for i in range(n + 6, n, -9 if bad else -1):  # here
        x[tc.threadIdx.x] = i


@twin(
    OperandError,
    "200 does not fit in s8, whose largest is 127: it would be read back as another number; -56",
    (32,),
    **S8,
)
def constant(x, bad: tc.Const):
    x[0] = 200 if bad else -56  # here


@twin(OperandError, "128 does not fit in s8", (32,), **S8)
def constants(x, bad: tc.Const):
    tc.shared(32, tc.s8).at(0).store([1, 2, 3, 128 if bad else 127])  # here


@twin(OperandError, "2147483648 does not fit in s32", (32,), **S32)
def local_constant(x, bad: tc.Const):
    items = tc.local(4, tc.s32)
    items[0] = 2**31 if bad else 2**31 - 1  # here


@pytest.mark.parametrize("case", twin, ids=str)
def test_bad(case):
    case.check_bad()


@pytest.mark.parametrize("case", twin, ids=str)
def test_good(case):
    case.check_good()


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
