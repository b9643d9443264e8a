"""Run-time loops are evaluated once where they change what they are expected to, and right elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.frontend.flow import Flow

pytestmark = pytest.mark.usefixtures("fresh_ir")

MMA = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)


@pytest.fixture
def trials(monkeypatch):
    """The times that the bodies of a kernel's loops are evaluated, by the loops' lines."""

    def count(kernel: Any, *args: Any) -> list[int]:
        counts: dict[int, int] = {}
        evaluate = Flow._loop_body

        def counting(self: Any, loop: Any, body: Any) -> None:
            counts[body[0].lineno] = counts.get(body[0].lineno, 0) + 1
            evaluate(self, loop, body)

        with monkeypatch.context() as patch:
            patch.setattr(Flow, "_loop_body", counting)
            kernel.ir(*args)
        return [counts[line] for line in sorted(counts)]

    return count


@tc.kernel
def counts_up(x: tc.Array):
    stage, phase = 0, 1
    for i in range(x.shape[0]):
        x[i] = 10 * stage + phase
        stage = (stage + 1) % 3
        phase = 1 - phase


@tc.kernel(threads=32)
def multiplies(x: tc.Array):
    acc = [MMA.d.zeros(), MMA.d.zeros()]
    parts = [[MMA.d.zeros()]]
    a, b = MMA.a.zeros(), MMA.b.zeros()
    for _ in tc.range(x.shape[0]):
        for _ in tc.range(2):
            acc[0], acc[1] = acc[1], MMA(a, b, acc[0])
            parts[0] = [MMA(a, b, parts[0][0])]
    x[0] = acc[0][0] + parts[0][0][0]


@tc.kernel
def starts_again(x: tc.Array):
    number = 7
    for i in range(x.shape[0]):
        x[i] = number
        number = i
        number = 7


@tc.kernel
def reads_alone(x: tc.Array):
    left, total = [tc.f32(1), tc.f32(2)], 0
    for i in range(x.shape[0]):
        total = total + left[0] * x[i]
    x[0] = total


@tc.kernel
def changes_in_place(x: tc.Array):
    rows = [[tc.f32(0), tc.f32(0)]]
    row = rows[0]
    for i in range(x.shape[0]):
        rows[0][1] = rows[0][1] + x[i]
    x[0] = row[1]


@tc.kernel
def divides_by_what_is_known(x: tc.Array):
    places = (1, 2)
    place = 0
    for i in range(x.shape[0]):
        x[i] = places[place]  # an error where the place is a register
        place = 0


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [
        (counts_up, [1]),
        (multiplies, [1, 1]),
        (starts_again, [2]),
        (reads_alone, [2]),
        (changes_in_place, [2]),
        (divides_by_what_is_known, [2]),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_bodies_are_evaluated(trials, kernel, wanted):
    dtype = np.float32 if kernel not in (counts_up, starts_again) else np.int32
    assert trials(kernel, np.zeros(4, dtype)) == wanted


@pytest.mark.parametrize(
    ("kernel", "dtype", "wanted"),
    [
        (counts_up, np.int32, [1, 10, 21, 0, 11]),
        (starts_again, np.int32, [7] * 5),
        (reads_alone, np.float32, [5, 1, 1, 1, 1]),
        (changes_in_place, np.float32, [5, 1, 1, 1, 1]),
        (divides_by_what_is_known, np.float32, [1] * 5),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_loops_give_their_results(kernel, dtype, wanted):
    x = np.ones(5, dtype)
    kernel[1, 1](x)
    assert x.tolist() == wanted


def test_what_does_not_change_is_no_register():
    """Nothing is copied to a register before the loop."""
    _, first, *_ = str(starts_again.ir(np.zeros(4, np.int32))).splitlines()
    assert first.startswith("  for ")
