"""`match` on values that are known at compile time: Python itself is the oracle."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc


class Activation(enum.Enum):
    NONE, RELU = 0, 1


@dataclass(frozen=True)
class Clamp:
    low: float
    high: float


def chosen(how: Any) -> Any:
    """The number of the case, and what it captures."""
    match how:
        case None:
            return 0
        case True:
            return 1
        case 2 | 3 as number if number == 3:
            return 10 + number
        case -4:
            return 4
        case "relu" | Activation.RELU:
            return 5
        case Activation.NONE:
            return 6
        case Clamp(low=0, high=high):
            return 20 + high
        case Clamp(low, _):
            return 30 + low
        case [first, *rest] if rest:
            return 40 + first + len(rest)
        case {"scale": scale, **others}:
            return 50 + scale + len(others)
        case int() | float():
            return 7
        case tc.bf16:
            return 8
        case _:
            return 9


SUBJECTS = (
    None,
    True,
    1,
    2,
    3,
    -4,
    7.5,
    "relu",
    "gelu",
    Activation.RELU,
    Activation.NONE,
    Clamp(0, 2),
    Clamp(3, 4),
    (1, 2, 3),
    [5],
    [],
    {"scale": 2, "a": 1},
    {},
    tc.bf16,
    tc.f16,
)


@pytest.mark.parametrize("how", SUBJECTS, ids=str)
def test_cases_as_in_python(how):
    @tc.kernel
    def stored(out, how: tc.Const):
        out[0] = chosen(how)

    stored.emulate[1, 1](out := np.zeros(1, np.float32), how)
    assert out[0] == chosen(how)


@tc.kernel
def activated(x, kind: tc.Const = "none", bias: tc.Array = None, factor: tc.f32 = None):
    i = tc.threadIdx.x
    value = x[i]
    match kind, value:
        case "relu", _:
            if value < 0:
                value = 0.0
        case "leaky", taken:
            value = tc.select(taken < 0, 0.5 * taken, taken)
        case "none", _:
            pass
        case _:
            raise ValueError(f"kind is {kind}")
    match bias:
        case None:
            pass
        case _:
            value += bias[i]
    match factor:
        case None:
            x[i] = value
        case given:
            x[i] = value * given


X = np.array([-2, 4], np.float32)


@pytest.mark.parametrize(
    ("args", "wanted"),
    [(("relu",), [0, 4]), (("leaky",), [-1, 4]), (("none",), [-2, 4]), (("none", X, 3.0), [-12, 24])],
)
def test_bodies_have_run_time_values(args, wanted):
    activated.emulate[1, 2](x := X.copy(), *args)
    assert x.tolist() == wanted
    with pytest.raises(tc.CompileError, match="kind is gelu"):
        activated.emulate[1, 2](x, "gelu")


def test_exits_from_cases():
    @tc.kernel
    def summed(out, kinds: tc.Const):
        total = 0
        for kind in kinds:
            match kind:
                case "skip":
                    continue
                case "stop":
                    break
                case int(step):
                    total += step * out[0]
        for i in tc.range(4):
            match len(kinds):
                case 1:
                    break
                case _:
                    total += i
        out[0] = total

    for kinds, wanted in ((("skip",), 0), ((2, "skip", 3, "stop", 9), 5 + 6), ((1, 1), 2 + 6)):
        summed.emulate[1, 1](out := np.ones(1, np.int32), kinds)
        assert out[0] == wanted


def refused(x: tc.Array, n: tc.s32):
    match n:
        case 1:
            x[0] = 1


def refused_inside(x: tc.Array, n: tc.s32):
    match ("kind", n):
        case "kind", 1:
            x[0] = 1


def refused_guard(x: tc.Array, n: tc.s32):
    match "kind":
        case "kind" if n > 1:
            x[0] = 1


def refused_class(x: tc.Array, n: tc.s32):
    match n:
        case None:
            pass
        case int():
            x[0] = 1


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (refused, "case 1:"),
        (refused_guard, 'case "kind" if n > 1:'),
        (refused_class, "case int():"),
        (refused_inside, 'case "kind", 1:'),
    ],
)
def test_run_time_values_are_refused(function, line):
    with pytest.raises(tc.OperandError) as error:
        tc.kernel(function).emulate[1, 1](X.copy(), 1)
    assert "`match` asks at compile time, and this compares" in error.value.message
    assert "use `if` and `elif`" in error.value.message and line in str(error.value)
