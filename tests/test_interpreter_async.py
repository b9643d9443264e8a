"""Arrivals, stores and reductions that complete later, against what the manual says of them."""

from __future__ import annotations

from typing import Any

import async_kernels as kernels
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Deadlock, EmulationError, OutOfBounds, Race, Uninitialised

RNG = np.random.default_rng(5)
ORDERS = (None, 1, 2, 3)


def run(kernel: Any, grid: int, block: int, *args: Any, order: Any = None, **constants: Any) -> Any:
    with tc.target("cpu", "sm_90a"):
        return kernel.emulator("sm_90a", order=order)[grid, block](*args, **constants)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


# -- arrivals that leave (9.7.13.15.14) ----------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_later_phases_expect_fewer_arrivals(order: Any) -> None:
    out = zeros(3, 64)
    run(kernels.drops, 1, 64, out, order=order)
    assert (out[:, 32:] == np.array([[1], [2], [3]])).all() and not out[:, :32].any()


DROPS = [
    ("everybody", EmulationError, "drops all 1 arrivals that a phase expects; one at least must"),
    ("arrives again", EmulationError, "more arrive than the 32 that a phase expects"),
]


@pytest.mark.parametrize("mistake, error, words", DROPS, ids=[m[0] for m in DROPS])
def test_mistakes_of_drops(mistake: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run(kernels.drops, 1, 64, zeros(3, 64), mistake=mistake)


# -- bytes without a copy (9.7.13.15.12) ---------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_bytes_are_counted_without_a_copy(order: Any) -> None:
    out = zeros(2, 32)
    run(kernels.cancels, 2, 32, out, order=order)
    assert (out == 512).all()


CANCELS = [
    ("too few", Deadlock, "16 bytes are missing"),
    ("no fence", EmulationError, "did not fence after it was initialised"),
    ("no such rank", OutOfBounds, "rank 2 leaves the cluster"),
]


@pytest.mark.parametrize("mistake, error, words", CANCELS, ids=[m[0] for m in CANCELS])
def test_mistakes_of_counted_bytes(mistake: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run(kernels.cancels, 2, 32, zeros(2, 32), mistake=mistake)


# -- copies that arrive (9.7.13.15.15) -----------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("noinc", [False, True])
@pytest.mark.parametrize("groups", [False, True])
def test_copies_arrive_at_an_mbarrier(noinc: bool, groups: bool, order: Any) -> None:
    x, out = RNG.integers(-99, 99, (3, 128)).astype(np.int32), zeros(4, 128)
    run(kernels.copies, 1, 64, x, out, order=order, noinc=noinc, groups=groups)
    assert np.array_equal(out[:3], x[:, ::-1])
    assert not groups or np.array_equal(out[3, ::4], x[2, ::4])


COPIES = [
    ("no wait", (Uninitialised, Race), "still owns byte|nothing orders"),
    ("reads its own", Uninitialised, "still owns byte .*: nobody has waited for phase 0 of bars"),
    ("late copies", Uninitialised, "still owns byte|in no group yet"),
    ("none", Uninitialised, "in no group yet, so no wait awaits it"),
]


@pytest.mark.parametrize("mistake, error, words", COPIES, ids=[m[0] for m in COPIES])
def test_mistakes_of_copies_that_arrive(mistake: str, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        run(kernels.copies, 1, 64, zeros(3, 128), zeros(4, 128), mistake=mistake)


def test_copies_that_arrive_are_seen_without_the_detector_of_races() -> None:
    x, out = RNG.integers(-99, 99, (3, 128)).astype(np.int32), zeros(4, 128)
    kernels.copies.emulator("sm_90a", checks=False)[1, 64](x, out)
    assert np.array_equal(out[:3], x[:, ::-1])


def test_copies_arrive_at_the_mbarriers_of_their_own_cta() -> None:
    @tc.kernel
    def kernel(x: tc.Array):
        bar = tc.mbarriers(1)[0]
        bar.remote(0).arrive_cp_async()

    with pytest.raises(tc.TensorCoreError, match=r"arrive_cp_async\(\) works on the CTA's own"):
        run(kernel, 2, 32, zeros(1))
