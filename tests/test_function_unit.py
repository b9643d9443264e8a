"""The approximate f32 instructions: the bits of an H200, and the manual's bounds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tensorcore_dsl.numerics.scalar import arith
from tests import capture_approximate as captured

WANTED = json.loads((captured.GOLDEN / "approximate_samples.json").read_text())
CASES = captured.cases()
RNG = np.random.RandomState(5)


@pytest.mark.parametrize("name", WANTED)
def test_as_an_h200_does(name):
    form, base = CASES[name]
    results = captured.on_cpu(form, captured.inputs(form, base))
    assert captured.checksum(results) == WANTED[name]


def test_every_form_was_captured():
    assert set(captured.forms()) <= set(WANTED)


def numbers(low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Random numbers with exponents in a range, as bits and as float64."""
    x = RNG.randint(low + 127 << 23, high + 127 << 23, 1 << 18).astype(np.uint32)
    return x, x.view(np.float32).astype(np.float64)


def approximate(op: str, x: np.ndarray) -> np.ndarray:
    return arith(op, "f32", x, rounding="approx").view(np.float32).astype(np.float64)


RELATIVE = [
    ("rcp", lambda x: 1 / x, -126, 126, 2.0**-23),
    ("sqrt", np.sqrt, -126, 128, 2.0**-23),
    ("rsqrt", lambda x: 1 / np.sqrt(x), -126, 128, 2.0**-22.9),
    ("ex2", np.exp2, -126, 7, 2.0**-22),
    ("lg2", np.log2, 1, 128, 2.0**-22),
    ("lg2", np.log2, -126, -1, 2.0**-22),
    ("tanh", np.tanh, -126, 10, 2.0**-11),
]


@pytest.mark.parametrize(("op", "exact", "low", "high", "bound"), RELATIVE)
def test_relative_error(op, exact, low, high, bound):
    x, value = numbers(low, high)
    want = exact(value)
    assert (np.abs(approximate(op, x) - want) <= bound * np.abs(want)).all()


ABSOLUTE = [
    ("lg2", np.log2, -1, 1, 2.0**-22),
    ("sin", np.sin, -126, 2, 2.0**-20.5),
    ("cos", np.cos, -126, 2, 2.0**-20.5),
]


@pytest.mark.parametrize(("op", "exact", "low", "high", "bound"), ABSOLUTE)
def test_absolute_error(op, exact, low, high, bound):
    x, value = numbers(low, high)
    assert (np.abs(approximate(op, x) - exact(value)) <= bound).all()


def test_functions_take_broadcast_and_strided_arrays():
    a = np.arange(0x3F800000, 0x3F800000 + 12, dtype=np.uint32).reshape(3, 4)
    quotient = arith("div", "f32", a, a[:, :1], rounding="approx")
    full = arith("div", "f32", a, np.repeat(a[:, :1], 4, 1), rounding="approx")
    np.testing.assert_array_equal(quotient, full)
    np.testing.assert_array_equal(arith("ex2", "f32", a.T), arith("ex2", "f32", a).T)
    assert int(arith("rcp", "f32", np.uint32(0x40000000), rounding="approx")) == 0x3F000000
