"""Products of s32 that wrap, and become an index, an address or a range behind control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from twins import Twins

import tensorcore_dsl as tc
from tensorcore_dsl.errors import InvalidArithmetic

SIDE = np.int32(65536)
twins = Twins()


def twin(function: Any) -> Any:
    """Kernels of x, i, j = 65536 and n = 2; the product of i and j is the only one that wraps."""
    message = "in 32 bits: compute it in s64"
    return twins(InvalidArithmetic, message, (1 << 17,), SIDE, SIDE, np.int32(2), block=1)(function)


@twin
def branch(x, i, j, n, bad: tc.Const):
    place = tc.s32(0)
    if n > (1 if bad else 2):
        place = i * j
    x[place] = 2.0  # here


@twin
def branch_with_effects(x, i, j, n, bad: tc.Const):
    place = i
    if n == 2:
        x[0] = 2.0
        place = i * (j if bad else 1) + 1
    else:
        place = i * j
    x[place] = 2.0  # here


@twin
def selection(x, i, j, n, bad: tc.Const):
    x[1 + tc.select(n > (1 if bad else 2), i * j, 0)] = 2.0  # here


@twin
def conditional_expression(x, i, j, n, bad: tc.Const):
    x[(i * j if n > (1 if bad else 2) else 5) + 1] = 2.0  # here


@twin
def before_a_loop(x, i, j, n, bad: tc.Const):
    place = i * j
    for turn in tc.range(n):
        place = place + 1 if bad else turn
    x[place] = 2.0  # here


@twin
def in_a_loop(x, i, j, n, bad: tc.Const):
    place = tc.s32(0)
    for turn in tc.range(n + 1):
        x[place] = 2.0  # here
        if turn == n - (1 if bad else 0):
            place += i * j


@twin
def sum_in_a_loop(x, i, j, n, bad: tc.Const):
    place = tc.s32(0)
    for turn in tc.range(n):
        place += i * (j + turn) if bad else i - turn
    x[place % 7] = 2.0
    x[place] = 2.0  # here


@twin
def in_an_inner_loop(x, i, j, n, bad: tc.Const):
    place, turn = tc.s32(0), tc.s32(0)
    while turn < n:
        for inner in range(n):
            if inner + turn == (2 if bad else 3):
                place = i * j
        turn += 1
    x[place] = 2.0  # here


@twin
def at_a_break(x, i, j, n, bad: tc.Const):
    place, turn = tc.s32(0), tc.s32(0)
    while True:
        turn += 1
        if turn == n:
            if bad:
                place = i * j
            break
    x[place] = 2.0  # here


@twin
def first_bound_in_a_loop(x, i, j, n, bad: tc.Const):
    turn = tc.s32(0)
    while True:
        turn += 1
        place = i * (j if bad else 1) + turn
        if turn == n:
            break
    x[place] = 2.0  # here


@twin
def exchanged(x, i, j, n, bad: tc.Const):
    place, other = i * j, tc.s32(0)
    for _ in tc.range(n):
        place, other = other, place
    x[place if bad else other] = 2.0  # here


@twin
def in_a_list(x, i, j, n, bad: tc.Const):
    places = [tc.s32(0), tc.s32(0)]
    for _ in tc.range(n):
        places[0] = i * j
    x[places[0 if bad else 1]] = 2.0  # here


@twin
def in_a_local_array(x, i, j, n, bad: tc.Const):
    places = tc.local(3, tc.s32)
    places[n] = i * j
    x[places[n if bad else n - 1]] = 2.0  # here


@twin
def stop_of_a_range(x, i, j, n, bad: tc.Const):
    for turn in tc.range(i * j + 3 if bad else n):  # here
        x[turn] = 2.0


@twin
def start_of_a_range(x, i, j, n, bad: tc.Const):
    first = i * j
    if n == (3 if bad else 2):
        first = n
    for turn in tc.range(first, first + 3):  # here
        x[turn] = 2.0


@twin
def address(x, i, j, n, bad: tc.Const):
    tc.emit("st.global.b32", x.address + 4 * (i * j if bad else n), 0)  # here
    tc.emit("st.global.b32", x.address + tc.u64(i * j & 0xFF), 0)


@twin
def address_of_a_step_in_a_loop(x, i, j, n, bad: tc.Const):
    place = x.address
    for _ in tc.range(n):
        tc.emit("st.global.b32", place, 0)  # here
        place += 4 * (i * j if bad else n)


@twin
def hashes(x, i, j, n, bad: tc.Const):
    key = tc.s32(1)
    for turn in tc.range(n):
        key = (key * i + turn) * j
        if turn == 1:
            key *= 31 * i
    x[key & 7] = 1.0
    x[tc.select(n > 1, i * j, 1) % 7] = 1.0
    x[key.bits(tc.u32) >> 29] = 1.0
    x[key if bad else 0] = 1.0  # here


@pytest.mark.parametrize("case", twins, ids=str)
def test_bad(case):
    case.check_bad()


@pytest.mark.parametrize("case", twins, ids=str)
def test_good(case):
    case.check_good()


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
