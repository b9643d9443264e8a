"""What would give a wrong result without a word is refused, or is right."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc

COUNTER = itertools.count()
GENERATOR = np.random.default_rng(0)
FACTOR = 3
SIZES = [1, 2]


class Holder:
    factor = 3


def key_of_dict(x: tc.Array):
    x[0] = {x[0]: 1}.get(1, 0)


def item_of_set(x: tc.Array):
    x[0] = len({x[0], x[0]})


def identity(x: tc.Array):
    x[0] = (x[0] > 0) is True


def beyond_s32(x: tc.Array):
    x[0] = tc.s32(x[0]) < 2**31


def negative_for_u32(x: tc.Array):
    x[0] = max(tc.u32(x[0]), -1)


def negative_divisor(x: tc.Array):
    x[0] = tc.u32(x[0]) // -2


def beyond_e4m3(x: tc.Array):
    x[0] = tc.e4m3(1e6).to(tc.f32)


def beyond_the_warp(x: tc.Array):
    x[0] = tc.shfl_xor(x[0], 32)


def advances_in_a_loop(x: tc.Array):
    items = iter([1, 2, 3])
    for i in range(x.shape[0]):
        x[i] = next(items)


def advances_a_global(x: tc.Array):
    x[0] = next(COUNTER)


def draws(x: tc.Array):
    x[0] = random.random()


def draws_from_a_global(x: tc.Array):
    x[0] = GENERATOR.random()


def shuffle_of_some(x: tc.Array):
    if tc.lane_id() < 16:
        x[tc.lane_id()] = tc.shfl_xor(x[tc.lane_id()], 1)


def ragged_vote(x: tc.Array):
    for i in range(tc.lane_id(), 40, 32):
        x[0] = tc.vote("any", i > 3)


REFUSED = {
    key_of_dict: "the keys of a dict", item_of_set: "the items of a set",
    identity: "are never one object: compare values with ==",
    beyond_s32: "2147483648, which s32 does not hold", negative_for_u32: "which u32 does not hold",
    negative_divisor: "which u32 does not hold", beyond_e4m3: "does not fit in e4m3",
    beyond_the_warp: "by 0 to 31 lanes, not by 32",
    advances_in_a_loop: "cannot be changed under a run-time condition",
    advances_a_global: "'COUNTER' belongs to the code around", draws: "draws a number when",
    draws_from_a_global: "draws a number when",
    shuffle_of_some: "lanes 16-31 have run to the end", ragged_vote: "have run to the end",
}  # fmt: skip


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_refused(function):
    with pytest.raises(tc.TensorCoreError) as error:
        tc.kernel(function).emulator("sm_90a")[1, 32](np.zeros(32, np.float32))
    assert REFUSED[function] in error.value.message


@tc.kernel
def reads(x, given: tc.Const = None):
    x[0], x[1], x[2] = FACTOR, SIZES[0], Holder.factor
    if given is not None:
        x[3] = given.n


def result(*given: Any) -> list[float]:
    x = np.zeros(4, np.float32)
    reads.emulate[1, 1](x, *given)
    return x.tolist()


def test_changes_around_a_kernel_compile_it_again(monkeypatch):
    assert result() == [3, 1, 3, 0]
    monkeypatch.setitem(globals(), "FACTOR", 5)
    monkeypatch.setitem(globals(), "SIZES", [7])
    assert result() == [5, 7, 3, 0]
    SIZES[0] = 8
    monkeypatch.setattr(Holder, "factor", 9)
    assert result() == [5, 8, 9, 0]
    compiled = reads._specialisations
    assert result() == [5, 8, 9, 0] and reads._specialisations is compiled


def test_const_objects_are_told_apart_by_their_contents():
    given = SimpleNamespace(n=1)
    assert result(given)[3] == 1
    given.n = 2
    assert result(given)[3] == 2


def test_a_closure_that_changes():
    n = 1

    @tc.kernel
    def closed(x):
        x[0] = n

    x = np.zeros(1, np.float32)
    closed.emulate[1, 1](x)
    n = 2
    closed.emulate[1, 1](x)
    assert x[0] == 2
