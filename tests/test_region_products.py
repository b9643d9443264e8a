"""Products in compiled regions give what single steps give: bits, counts, and errors at the same
place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.interpreter.regions import run as regions
from tensorcore_dsl.interpreter.regions.plan import PRODUCTS
from tensorcore_dsl.numerics.plans import without_blocks
from tensorcore_dsl.numerics.products import Uses
from tests.fragment_kernels import F16, F64, S8, TF32, short
from tests.fuzz.ways import options

BLOCKS, THREADS, SIZE = 5, 96, 128
FAR = 1000  # beyond a tile


@tc.kernel
def chain(
    a: tc.Array,
    b: tc.Array,
    x: tc.Array,
    out: tc.Array,
    mma: tc.Const,
    wrong: tc.Const,
    unwritten: tc.Const,
    skipped: tc.Const,
    more: tc.Const,
):
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
    """All that a launch leaves: the result, the error and its line, counts; and how many regions
    with products ran.

    ways: "alone": no regions. "shared": four threads share the blocks. "races": with the detector.
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
    out, error, report, ran = np.zeros(BLOCKS * THREADS, wide), None, None, 0
    execute = regions.execute

    def counted(machine: Any, frames: Any, code: Any, region: Any, *more: Any) -> Any:
        nonlocal ran
        ran += any(row.name == PRODUCTS for block in region.blocks for _, row in block.micro_ops)
        return execute(machine, frames, code, region, *more)

    given = {"wrong": (), "unwritten": (-1, 0), "skipped": THREADS, "more": 0} | constants
    policy: dict[str, Any] = {"alone": {"regions": False}, "shared": {"cores": 4, "shared_work": 1}}.get(
        ways, {}
    )
    # Processes might run a region, uncounted.
    one_core = executing(compile_cost=0, regions_on_disk=False, processes=False, cores=1)
    with pytest.MonkeyPatch.context() as patch, one_core, executing(**policy):
        patch.setattr(regions, "execute", counted)
        try:
            with options(races=ways == "races"):
                report = chain.emulator("sm_90a")[BLOCKS, THREADS](a, b, x, out, mma=mma, **given)
        except tc.EmulationError as found:
            error = type(found), str(found), str(found.loc)
    counts = None if report is None else (report.instructions, report.bytes)
    return (out.tobytes(), error, counts), ran


MMAS = [F16, TF32, S8, F64, tc.mma.m16n8k8(tc.f64, tc.f64, tc.f64)]


@pytest.mark.parametrize("mma", MMAS, ids=short)
def test_bits_and_counts(mma):
    alone, ran = outcome("alone", mma)
    assert not ran and alone[1] is None
    for ways in ("whole", "shared", "races"):
        found, ran = outcome(ways, mma)
        assert found == alone and ran


@pytest.mark.parametrize("mma", [F16, TF32, F64], ids=short)
def test_products_that_blocks_leave(mma, monkeypatch):
    """Each is finished in the thread that met it, for its warp alone."""
    alone, _ = outcome("alone", mma, special=True)
    assert alone[1] is None and not np.isfinite(np.frombuffer(alone[0], mma.d.dtype.numpy)).all()
    finish, warps = Uses.finish, set()

    def noted(self: Any, left: np.ndarray) -> None:
        (warp,) = np.flatnonzero(left.any(axis=0))
        warps.add(int(warp))
        finish(self, left)

    monkeypatch.setattr(Uses, "finish", noted)
    for ways in ("whole", "shared"):
        warps.clear()
        found, ran = outcome(ways, mma, special=True)
        assert found == alone and ran
        assert mma is F64 or {2, 3, 12} <= warps


def test_an_error_of_what_finishes_products_is_raised(monkeypatch):
    def fails(self: Any, left: np.ndarray) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Uses, "finish", fails)
    with pytest.raises(MemoryError, match="no room"):
        outcome("whole", TF32, special=True)


def test_products_without_blocks_take_single_steps():
    with without_blocks():
        alone, _ = outcome("alone", F16)
        found, ran = outcome("whole", F16)
    assert found == alone and not ran


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
def test_an_error_is_that_of_a_single_step(wrong, special):
    """Warps go through the loop one after the other: which of several errors comes first may differ."""
    alone = {outcome("alone", F16, special, wrong=(one,))[0][1] for one in wrong}
    assert len(alone) == len(wrong) and None not in alone
    for ways in ("whole", "shared"):
        (_, error, _), ran = outcome(ways, F16, special, wrong=tuple(wrong))
        assert error in alone and ran


@pytest.mark.parametrize("block, thread", [(0, 100), (4, 97), (2, 127)])
def test_a_word_that_nobody_has_written(block, thread):
    alone, _ = outcome("alone", F64, unwritten=(block, thread))
    assert alone[1] is not None and "nothing has written" in alone[1][1]
    for ways in ("whole", "shared"):  # which warp and turn are found first may differ
        (_, error, _), _ = outcome(ways, F64, unwritten=(block, thread))
        assert error[0] is alone[1][0] and "nothing has written" in error[1]


@pytest.mark.parametrize("given", [{"skipped": 64}, {"more": 1}, {"more": 2, "skipped": 64}], ids=str)
def test_some_warps(given):
    """Warps that take no part keep their registers."""
    alone, _ = outcome("alone", F16, **given)
    for ways in ("whole", "shared"):
        found, ran = outcome(ways, F16, **given)
        assert found == alone and ran and alone[1] is None


def test_parts_of_warps_take_single_steps():
    alone, _ = outcome("alone", F16, skipped=50)
    assert alone[1] is not None and alone[1][0] is tc.Divergence
    assert outcome("whole", F16, skipped=50)[0] == alone
