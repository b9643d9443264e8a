"""Products of s32 that wrap, and become an index, an address or a range behind control flow."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import InvalidArithmetic
from tests.planted.harness import Planted

SIDE = np.int32(65536)
planted = Planted()


def twin(function: Any) -> Any:
    """Kernels of x, i, j = 65536 and n = 2; the product of i and j is the only one that wraps."""
    message = "in 32 bits: compute it in s64"
    return planted.marked(InvalidArithmetic, message, (1 << 17,), SIDE, SIDE, np.int32(2), block=1)(function)


@twin
def branch(x, i, j, n, mistake: tc.Const):
    place = tc.s32(0)
    if n > (1 if mistake else 2):
        place = i * j
    x[place] = 2.0  # here


@twin
def branch_with_effects(x, i, j, n, mistake: tc.Const):
    place = i
    if n == 2:
        x[0] = 2.0
        place = i * (j if mistake else 1) + 1
    else:
        place = i * j
    x[place] = 2.0  # here


@twin
def selection(x, i, j, n, mistake: tc.Const):
    x[1 + tc.select(n > (1 if mistake else 2), i * j, 0)] = 2.0  # here


@twin
def conditional_expression(x, i, j, n, mistake: tc.Const):
    x[(i * j if n > (1 if mistake else 2) else 5) + 1] = 2.0  # here


@twin
def before_a_loop(x, i, j, n, mistake: tc.Const):
    place = i * j
    for turn in tc.range(n):
        place = place + 1 if mistake else turn
    x[place] = 2.0  # here


@twin
def in_a_loop(x, i, j, n, mistake: tc.Const):
    place = tc.s32(0)
    for turn in tc.range(n + 1):
        x[place] = 2.0  # here
        if turn == n - (1 if mistake else 0):
            place += i * j


@twin
def sum_in_a_loop(x, i, j, n, mistake: tc.Const):
    place = tc.s32(0)
    for turn in tc.range(n):
        place += i * (j + turn) if mistake else i - turn
    x[place % 7] = 2.0
    x[place] = 2.0  # here


@twin
def in_an_inner_loop(x, i, j, n, mistake: tc.Const):
    place, turn = tc.s32(0), tc.s32(0)
    while turn < n:
        for inner in range(n):
            if inner + turn == (2 if mistake else 3):
                place = i * j
        turn += 1
    x[place] = 2.0  # here


@twin
def at_a_break(x, i, j, n, mistake: tc.Const):
    place, turn = tc.s32(0), tc.s32(0)
    while True:
        turn += 1
        if turn == n:
            if mistake:
                place = i * j
            break
    x[place] = 2.0  # here


@twin
def first_bound_in_a_loop(x, i, j, n, mistake: tc.Const):
    turn = tc.s32(0)
    while True:
        turn += 1
        place = i * (j if mistake else 1) + turn
        if turn == n:
            break
    x[place] = 2.0  # here


@twin
def exchanged(x, i, j, n, mistake: tc.Const):
    place, other = i * j, tc.s32(0)
    for _ in tc.range(n):
        place, other = other, place
    x[place if mistake else other] = 2.0  # here


@twin
def in_a_list(x, i, j, n, mistake: tc.Const):
    places = [tc.s32(0), tc.s32(0)]
    for _ in tc.range(n):
        places[0] = i * j
    x[places[0 if mistake else 1]] = 2.0  # here


@twin
def in_a_local_array(x, i, j, n, mistake: tc.Const):
    places = tc.local(3, tc.s32)
    places[n] = i * j
    x[places[n if mistake else n - 1]] = 2.0  # here


@twin
def stop_of_a_range(x, i, j, n, mistake: tc.Const):
    for turn in tc.range(i * j + 3 if mistake else n):  # here
        x[turn] = 2.0


@twin
def start_of_a_range(x, i, j, n, mistake: tc.Const):
    first = i * j
    if n == (3 if mistake else 2):
        first = n
    for turn in tc.range(first, first + 3):  # here
        x[turn] = 2.0


@twin
def address(x, i, j, n, mistake: tc.Const):
    tc.emit("st.global.b32", x.address + 4 * (i * j if mistake else n), 0)  # here
    tc.emit("st.global.b32", x.address + tc.u64(i * j & 0xFF), 0)


@twin
def address_of_a_step_in_a_loop(x, i, j, n, mistake: tc.Const):
    place = x.address
    for _ in tc.range(n):
        tc.emit("st.global.b32", place, 0)  # here
        place += 4 * (i * j if mistake else n)


@twin
def hashes(x, i, j, n, mistake: tc.Const):
    key = tc.s32(1)
    for turn in tc.range(n):
        key = (key * i + turn) * j
        if turn == 1:
            key *= 31 * i
    x[key & 7] = 1.0
    x[tc.select(n > 1, i * j, 1) % 7] = 1.0
    x[key.bits(tc.u32) >> 29] = 1.0
    x[key if mistake else 0] = 1.0  # here
