"""Regions, strip by strip, give what single steps give: bits, counts, and errors at the same place."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from fragment_kernels import F16, F64, S8, TF32, short

import tensorcore_dsl as tc
from tensorcore_dsl.interpreter import launch
from tensorcore_dsl.interpreter.core.team import Team
from tensorcore_dsl.interpreter.execution import strips
from tensorcore_dsl.interpreter.execution.strips import Strips
from tensorcore_dsl.kernel import specialisation
from tensorcore_dsl.numerics.products import Uses

BLOCKS, THREADS, SIZE = 5, 96, 128
FAR = 1000  # beyond a tile


@tc.kernel
def chain(
    a: tc.Array, b: tc.Array, x: tc.Array, out: tc.Array, mma: tc.Const, wrong: tc.Const,
    unwritten: tc.Const, skipped: tc.Const, more: tc.Const,
):  # fmt: skip
    """Loads of shared memory, each before products that need what it gives.

    wrong: (turn, load, block, thread) of loads beyond the tile. unwritten: (block, thread) of words
    that nobody writes. skipped: the first thread of a block that takes no part. more: turns of a
    warp more than of the one before it.
    """
    t, block = tc.threadIdx.x, tc.blockIdx.x
    tile = tc.shared(SIZE, mma.d.dtype)
    tile[t] = x[block * THREADS + t]
    written = (block != unwritten[0]) | (t + THREADS != unwritten[1])
    if (t < SIZE - THREADS) & written:
        tile[t + THREADS] = x[t]
    tc.barrier()
    left, right = tc.load_elements(a, mma.a), tc.load_elements(b, mma.b)
    first, second = mma.d.zeros(), mma.d.zeros()
    if t < skipped:
        for turn in tc.range(3 + t // 32 * more):
            i, j = (t + 3 * turn) % SIZE, (t + 40 + turn) % SIZE
            for when, load, where, thread in wrong:
                here = (turn == when) & (block == where) & (t == thread)
                if load == 0:
                    i = tc.select(here, FAR, i)
                else:
                    j = tc.select(here, FAR, j)
            v = tile[i]
            first = mma(left, right, first + v)
            w = tile[j]
            second = mma(left, right, second + w)
            first = mma(left, right, first)
    out[block * THREADS + t] = first[0] + second[1] + first[1]


def outcome(ways: str, mma: Any, special: bool = False, **constants: Any) -> tuple[Any, ...]:
    """All that a launch leaves: the result, the error and its line, counts; and the strips that ran.

    ways: "alone": no regions. "tiny": a CTA is a strip. "shared": and four threads share these.
    "shared whole": they do, and all blocks of a thread are a strip.
    Races are looked for in the way "races" alone.
    """
    rng = np.random.default_rng(3)
    kind, wide = mma.a.dtype.numpy, mma.d.dtype.numpy
    a = rng.integers(-4, 5, (mma.a.layout.rows, mma.a.layout.cols)).astype(kind)
    b = rng.integers(-4, 5, (mma.b.layout.rows, mma.b.layout.cols)).astype(kind)
    x = rng.integers(-99, 99, BLOCKS * THREADS).astype(wide)
    if special:  # blocks hand these over to other loops
        x[70], x[THREADS + 3], x[4 * THREADS] = np.inf, np.nan, np.finfo(wide).max
        for i in range(12):  # of a warp in every second turn
            x[3 * THREADS + 1 + 3 * i] = (-1) ** i * 2.0**126
    out, error, report, ran = np.zeros(BLOCKS * THREADS, wide), None, None, []
    run = Strips._some

    def counted(self: Any, low: int, high: int, number: int) -> Any:
        ran.append(-(-(high - low) // self.size))
        return run(self, low, high, number)

    given = {"wrong": (), "unwritten": (-1, 0), "skipped": THREADS, "more": 0} | constants
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Strips, "_some", counted)
        plain = partial(specialisation.run, races=ways == "races")
        patch.setattr(specialisation, "run", lambda *x, **named: plain(*x, **named | plain.keywords))
        patch.setattr(launch, "cores", lambda: 4 if "shared" in ways else 1)
        if ways == "alone":
            patch.setattr(strips, "ALL", 99)  # no machine is as free
        if ways in ("tiny", "shared"):
            patch.setattr(strips, "STRIP", 1)
        if "shared" in ways:
            patch.setattr(Team, "part", 1)
        try:
            report = chain.emulator("sm_90a")[BLOCKS, THREADS](a, b, x, out, mma=mma, **given)
        except tc.EmulationError as found:
            error = type(found), str(found), str(found.loc)
    counts = None if report is None else (report.instructions, report.bytes)
    return (out.tobytes(), error, counts), ran


MMAS = [F16, TF32, S8, F64, tc.mma.m16n8k8(tc.f64, tc.f64, tc.f64)]


@pytest.mark.parametrize("mma", MMAS, ids=short)
def test_bits_and_counts(mma: Any) -> None:
    alone, ran = outcome("alone", mma)
    assert not ran and alone[1] is None
    for ways, count in (("whole", 1), ("tiny", BLOCKS), ("shared", None)):
        found, ran = outcome(ways, mma)
        assert found == alone
        assert ran and (count is None or {*ran} == {count})


@pytest.mark.parametrize("mma", [F16, TF32, F64], ids=short)
def test_products_that_blocks_leave(mma: Any) -> None:
    alone, _ = outcome("alone", mma, special=True)
    assert alone[1] is None and not np.isfinite(np.frombuffer(alone[0], mma.d.dtype.numpy)).all()
    for ways in ("whole", "tiny", "shared"):
        found, ran = outcome(ways, mma, special=True)
        assert found == alone and ran


@pytest.mark.parametrize("ways", ["shared", "shared whole"])
def test_threads_finish_their_own_blocks(ways: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strip ends with the blocks of its thread: those behind are another one's."""
    own, finish, some, asked = threading.local(), Uses.finish, Strips._some, 0

    def noted(self: Any, low: int, high: int, number: int) -> Any:
        own.warps = slice(low // 32, high // 32)
        for _, left in self.uses.values():  # the other threads have something to finish, too
            left[:, : own.warps.start] = left[:, own.warps.stop :] = True
        return some(self, low, high, number)

    def checked(self: Any, left: np.ndarray) -> None:
        nonlocal asked
        asked += 1
        assert left.any() and left.sum() == left[:, own.warps].sum()
        finish(self, left)

    monkeypatch.setattr(Strips, "_some", noted)
    monkeypatch.setattr(Uses, "finish", checked)
    found, _ = outcome(ways, TF32, special=True)
    assert asked and found[1] is None


MISTAKES = {
    "one": [(1, 0, 2, 37)],
    "an earlier step in a later block": [(1, 1, 0, 5), (1, 0, 4, 70)],
    "an earlier thread of the same step": [(0, 1, 3, 64), (0, 1, 1, 90)],
    "a later step in a later block": [(1, 0, 0, 5), (1, 1, 4, 70)],
    "an earlier turn in a later block": [(2, 0, 0, 5), (1, 1, 4, 70)],
    "the last load": [(2, 1, 4, 95)],
}


@pytest.mark.parametrize("wrong", MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("special", [False, True])
def test_errors_are_those_of_single_steps(wrong: Any, special: bool) -> None:
    alone, _ = outcome("alone", F16, special, wrong=tuple(wrong))
    assert alone[1] is not None
    for ways in ("whole", "tiny", "shared"):
        found, ran = outcome(ways, F16, special, wrong=tuple(wrong))
        assert found == alone and ran


@pytest.mark.parametrize("block, thread", [(0, 100), (4, 97), (2, 127)])
def test_a_word_that_nobody_has_written(block: int, thread: int) -> None:
    alone, _ = outcome("alone", F64, unwritten=(block, thread))
    assert alone[1] is not None and "nothing has written" in alone[1][1]
    for ways in ("whole", "tiny", "shared"):
        assert outcome(ways, F64, unwritten=(block, thread))[0] == alone


@pytest.mark.parametrize("given", [{"skipped": 64}, {"more": 1}, {"more": 2, "skipped": 64}], ids=str)
def test_some_warps(given: Any) -> None:
    """Warps that take no part keep their registers."""
    alone, _ = outcome("alone", F16, **given)
    for ways in ("whole", "tiny", "shared"):
        found, ran = outcome(ways, F16, **given)
        assert found == alone and ran and alone[1] is None


def test_parts_of_warps_take_single_steps() -> None:
    alone, _ = outcome("alone", F16, skipped=50)
    assert alone[1] is not None and alone[1][0] is tc.Divergence
    found, ran = outcome("tiny", F16, skipped=50)
    assert found == alone and not ran


def test_a_detector_of_races_sees_single_steps() -> None:
    alone, _ = outcome("alone", F16)
    found, ran = outcome("races", F16)
    assert found == alone and not ran
