"""Divisions by zero, shifts by negative counts, ranges without an end, and constants that their type does not hold."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import InvalidArithmetic, OperandError
from tests.planted.harness import Planted

planted = Planted()
S8, S32 = dict(dtype=np.int8), dict(dtype=np.int32)


@planted.marked(InvalidArithmetic, "division of 0 by 0 (CTA (0,0,0), thread (0,0,0))", (32,), 0, **S32)
def quotient(x, n, mistake: tc.Const):
    x[tc.threadIdx.x] = tc.threadIdx.x // (n if mistake else n + 1)  # here


@planted.marked(InvalidArithmetic, "division of 3 by 0 (CTA (0,0,0), thread (3,0,0))", (32,), 3, **S32)
def remainder(x, n, mistake: tc.Const):
    x[tc.threadIdx.x] = tc.threadIdx.x % (tc.threadIdx.x - (n if mistake else 40))  # here


@planted.marked(InvalidArithmetic, "division of -1 by 0", (32,), 0, **S32)
def wide(x, n, mistake: tc.Const):
    x[0] = (tc.s64(-1) // n.to(tc.s64) if mistake else tc.s64(-1) // 3).to(tc.s32)  # here


@planted.marked(InvalidArithmetic, "division of 7 by 0", (32,), 0, **S32)
def unsigned(x, n, mistake: tc.Const):
    x[0] = (tc.u64(7) % tc.maximum(n, 0 if mistake else 1).to(tc.u64)).to(tc.s32)  # here


@planted.marked(InvalidArithmetic, "division of 5 by 0", (32,), 0, **S32)
def by_name(x, n, mistake: tc.Const):
    tc.emit("div.s32", n + 5, n, pred=n > (-1 if mistake else 0))  # here


@planted.marked(InvalidArithmetic, "division of 9 by 0", (32,), 0, **S32)
def narrow(x, n, mistake: tc.Const):
    tc.emit("rem.u16", tc.u16(9), n.to(tc.u16) if mistake else tc.u16(2))  # here


@planted.marked(InvalidArithmetic, "division of 5 by 0", (32,), 0, **S32)
def guarded_by_a_branch(x, n, mistake: tc.Const):
    x[0] = 5 // n if n != (7 if mistake else 0) else 1  # here


@planted.marked(InvalidArithmetic, "division of 5 by 0", (32,), 0, **S32)
def guarded_by_and(x, n, mistake: tc.Const):
    if n != (7 if mistake else 0) and 5 // n > 2:  # here
        x[0] = 2


@planted.marked(
    InvalidArithmetic, "shift by -1: counts are 0 or more (CTA (0,0,0), thread (0,0,0))", (32,), 1, **S32
)
def negative_count(x, n, mistake: tc.Const):
    x[tc.threadIdx.x] = 1 << (tc.threadIdx.x - (n if mistake else 0))  # here


@planted.marked(
    InvalidArithmetic,
    "range(0, 9, 0): the step is 0, with which no range ends (CTA (0,0,0), thread (4,0,0))",
    (32,),
    9,
    **S32,
)
def step_of_zero(x, n, mistake: tc.Const):
    for i in range(0, n, tc.threadIdx.x - 4 if mistake else tc.threadIdx.x + 1):  # here
        x[tc.threadIdx.x] = i


@planted.marked(
    InvalidArithmetic,
    "range(2147483641, 2147483647, 4): the index has 32 bits, in which 2147483645 + 4 wraps around, "
    "so the range does not end there (CTA (0,0,0), thread (0,0,0))",
    (32,),
    2**31 - 1,
    **S32,
)
def range_to_the_end(x, n, mistake: tc.Const):
    for i in range(n - 6, n, 4 if mistake else 3):  # here
        x[tc.threadIdx.x] = i


@planted.marked(InvalidArithmetic, "in which -2147483642 + -9 wraps around", (32,), -(2**31), **S32)
def range_down_to_the_end(x, n, mistake: tc.Const):
    for i in range(n + 6, n, -9 if mistake else -1):  # here
        x[tc.threadIdx.x] = i


@planted.marked(
    OperandError,
    "200 does not fit in s8, whose largest is 127: it would be read back as another number; -56",
    (32,),
    **S8,
)
def constant(x, mistake: tc.Const):
    x[0] = 200 if mistake else -56  # here


@planted.marked(OperandError, "128 does not fit in s8", (32,), **S8)
def constants(x, mistake: tc.Const):
    tc.shared(32, tc.s8).at(0).store([1, 2, 3, 128 if mistake else 127])  # here


@planted.marked(OperandError, "2147483648 does not fit in s32", (32,), **S32)
def local_constant(x, mistake: tc.Const):
    items = tc.local(4, tc.s32)
    items[0] = 2**31 if mistake else 2**31 - 1  # here
