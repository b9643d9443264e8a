"""Arrivals, stores and reductions that complete later, against what the manual says of them."""

from __future__ import annotations

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Deadlock, EmulationError, Misaligned, OutOfBounds, Race, Uninitialised
from tests import async_kernels as kernels
from tests.arrays import zeros
from tests.running import run

RNG = np.random.default_rng(5)
ORDERS = (None, 1, 2, 3)


# -- arrivals that leave (9.7.13.15.14) ----------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_later_phases_expect_fewer_arrivals(order):
    out = zeros(3, 64)
    run(kernels.drops, 1, 64, out, order=order)
    assert (out[:, 32:] == np.array([[1], [2], [3]])).all() and not out[:, :32].any()


DROPS = [
    ("everybody", EmulationError, "drops all 1 arrivals that a phase expects; one at least must"),
    ("arrives again", EmulationError, "more arrive than the 32 that a phase expects"),
]


@pytest.mark.parametrize("mistake, error, words", DROPS, ids=[m[0] for m in DROPS])
def test_mistakes_of_drops(mistake, error, words):
    with pytest.raises(error, match=words):
        run(kernels.drops, 1, 64, zeros(3, 64), mistake=mistake)


# -- bytes without a copy (9.7.13.15.12) ---------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_bytes_are_counted_without_a_copy(order):
    out = zeros(2, 32)
    run(kernels.cancels, 2, 32, out, order=order)
    assert (out == 512).all()


CANCELS = [
    ("too few", Deadlock, "16 bytes are missing"),
    ("no fence", EmulationError, "did not fence after it was initialised"),
    ("no such rank", OutOfBounds, "rank 2 leaves the cluster"),
]


@pytest.mark.parametrize("mistake, error, words", CANCELS, ids=[m[0] for m in CANCELS])
def test_mistakes_of_counted_bytes(mistake, error, words):
    with pytest.raises(error, match=words):
        run(kernels.cancels, 2, 32, zeros(2, 32), mistake=mistake)


# -- copies that arrive (9.7.13.15.15) -----------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("noinc", [False, True])
@pytest.mark.parametrize("groups", [False, True])
def test_copies_arrive_at_an_mbarrier(noinc, groups, order):
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
def test_mistakes_of_copies_that_arrive(mistake, error, words):
    with pytest.raises(error, match=words):
        run(kernels.copies, 1, 64, zeros(3, 128), zeros(4, 128), mistake=mistake)


def test_copies_that_arrive_are_seen_without_the_detector_of_races():
    x, out = RNG.integers(-99, 99, (3, 128)).astype(np.int32), zeros(4, 128)
    kernels.copies.emulator("sm_90a", checks=False)[1, 64](x, out)
    assert np.array_equal(out[:3], x[:, ::-1])


def test_copies_arrive_at_the_mbarriers_of_their_own_cta():
    @tc.kernel
    def kernel(x: tc.Array):
        bar = tc.mbarriers(1)[0]
        bar.remote(0).arrive_cp_async()

    with pytest.raises(tc.TensorCoreError, match=r"arrive_cp_async\(\) works on the CTA's own"):
        run(kernel, 2, 32, zeros(1))


# -- stores to the cluster (9.7.9.12) ------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "ctas, width, rounds, dtype",
    [
        (2, 1, 1, np.int32),
        (4, 2, 3, np.float32),
        (2, 4, 2, np.uint32),
        (2, 1, 4, np.int64),
        (8, 2, 2, np.float64),
    ],
)
def test_stores_go_round(ctas, width, rounds, dtype, order):
    x = RNG.integers(0, 99, (2 * ctas, 32 * width)).astype(dtype)
    out = np.zeros_like(x)
    constants = {"ctas": ctas, "width": width, "rounds": rounds}
    report = run(kernels.sends, 2 * ctas, 32, x, out, order=order, **constants)
    rows = np.roll(x.reshape(2, ctas, -1), rounds, axis=1).reshape(x.shape)
    assert np.array_equal(out, rows + dtype(rounds))
    assert report.bytes["shared::cluster", "store"] == rounds * x.nbytes


SENDS = [
    ("no wait", Uninitialised, "the st.async at .* is in flight: nobody has waited for phase 0"),
    ("another barrier", EmulationError, "of CTA 1: its mbarrier is in CTA 0"),
    ("no cluster", EmulationError, "stays in its CTA: it needs a cluster of more than one CTA"),
    ("too many bytes", Deadlock, "4 bytes are missing"),
    ("writes too", Race, "is written here by the st.async of warp 0 of CTA 1; thread . of CTA 0"),
    ("overwrites", (EmulationError, Race), "the st.async of|st.async at|before any thread has"),
]


@pytest.mark.parametrize("mistake, error, words", SENDS, ids=[m[0] for m in SENDS])
def test_mistakes_of_stores(mistake, error, words):
    ctas = 1 if mistake == "no cluster" else 2
    rounds = 2 if mistake == "overwrites" else 1
    with pytest.raises(error, match=words):
        constants = {"ctas": ctas, "rounds": rounds, "mistake": mistake}
        run(kernels.sends, ctas, 32, zeros(2, 32), zeros(2, 32), **constants)


# -- reductions in the cluster (9.7.13.7) --------------------------------------------------------

WHOLE = {
    "add": np.add.reduce,
    "min": np.min,
    "max": np.max,
    "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce,
    "xor": np.bitwise_xor.reduce,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "operation, dtype",
    [
        ("add", np.uint32),
        ("add", np.int32),
        ("add", np.uint64),
        ("min", np.int32),
        ("min", np.uint32),
        ("max", np.int32),
        ("max", np.uint32),
        ("and", np.int32),
        ("or", np.uint32),
        ("xor", np.int32),
    ],
)
def test_reductions_of_a_cluster(operation, dtype, order):
    info = np.iinfo(dtype)
    x = RNG.integers(info.min, info.max, (8, 32), dtype, endpoint=True)
    out = np.zeros_like(x)
    run(kernels.collects, 8, 32, x, out, order=order, operation=operation)
    rows = x.reshape(2, 4, 32)
    twice = np.concatenate((rows, rows[:, :1]), axis=1)  # CTA 0 adds its own row to itself
    assert np.array_equal(out[::4], WHOLE[operation](twice, axis=1).astype(dtype))


@pytest.mark.parametrize("operation", ["inc", "dec"])
def test_reductions_that_wrap(operation):
    """9.7.13.6: inc gives old >= b ? 0 : old + 1, dec gives old == 0 or old > b ? b : old - 1."""
    x = np.full((2, 32), 3, np.uint32)
    x[:, :8], out = np.arange(8), np.zeros((2, 32), np.uint32)
    run(kernels.collects, 2, 32, x, out, operation=operation, ctas=2)
    for place, old in enumerate(x[0].tolist()):
        for limit in (old, old):
            up = 0 if old >= limit else old + 1
            down = limit if old == 0 or old > limit else old - 1
            old = up if operation == "inc" else down
        assert out[0, place] == old


COLLECTS = [
    ("no wait", Race, "red.async"),
    ("itself", EmulationError, "stays in its CTA: it needs another CTA"),
    ("no meeting", (EmulationError, Race), "before the cluster has met|nothing orders|not initial"),
]


@pytest.mark.parametrize("mistake, error, words", COLLECTS, ids=[m[0] for m in COLLECTS])
def test_mistakes_of_reductions(mistake, error, words):
    x = np.ones((4, 32), np.int32)
    with pytest.raises(error, match=words):
        run(kernels.collects, 4, 32, x, np.zeros_like(x), operation="add", mistake=mistake)


# -- what compiling refuses, what the assembler takes --------------------------------------------

REFUSED = [
    (lambda tile, bar: tc.store(tile.at(0), 1, barrier=bar), "goes to tile.remote"),
    (lambda tile, bar: tc.store(tile.remote(1).at(0), 1, barrier=bar), "goes to tile.remote"),
    (lambda tile, bar: tc.store(tile.remote(1).at(0), 1, barrier=4), "barrier= is bars.i..remote"),
    (lambda tile, bar: tc.reduce("add", tile.at(0), 1, barrier=bar.remote(1)), "goes to tile.remote"),
    (
        lambda tile, bar: tc.store(tile.remote(1).at(0), 1, barrier=bar.remote(1), cache=".wt"),
        "without cache modifiers; 1 s32 and '.wt' were given",
    ),
    (
        lambda tile, bar: tc.store(tile.remote(1).at(0).as_type(tc.f16), 1, barrier=bar.remote(1)),
        "words of 32 or 64 bits, without cache modifiers; 1 f16 were given",
    ),
    (
        lambda tile, bar: tc.reduce("add", tile.remote(1).at(0).as_type(tc.f32), 1, barrier=bar.remote(1)),
        r"\.f32 is not allowed; in its place: \.u32, \.s32, \.u64",
    ),
]  # fmt: skip


@pytest.mark.parametrize("write, words", REFUSED)
def test_refused_asynchronous_writes(write, words):
    @tc.kernel
    def kernel(write: tc.Const):
        write(tc.shared(4, tc.s32), tc.mbarriers(1)[0])

    with pytest.raises(tc.TensorCoreError, match=words):
        kernel.ptx(write=write, arch="sm_90a")


def test_the_assembler_takes_the_kernels():
    x, out = np.zeros((8, 128), np.int32), zeros(8, 128)
    for kernel, arguments, constants in (
        (kernels.drops, (out,), {}),
        (kernels.cancels, (out,), {}),
        (kernels.copies, (x, out), {"noinc": True}),
        (kernels.sends, (x, out), {"width": 4}),
        (kernels.collects, (x, out), {"operation": "max"}),
    ):
        assert kernel.resources(*arguments, arch="sm_90a", **constants).registers > 0


# -- st.bulk (9.7.9.13) --------------------------------------------------------------------------


def test_a_bulk_store_clears_bytes():
    shared = np.full(4096, 7, np.uint8)
    addresses = (128 * np.arange(32)).astype(np.uint32)
    sizes = (8 * (np.arange(32) % 5)).astype(np.uint64)
    got = tc.emulate("st.bulk.weak.shared::cta", addresses, sizes, 0, arch="sm_100a", shared=shared)
    wanted = shared.reshape(32, 128).copy()
    for lane, size in enumerate(sizes.tolist()):
        wanted[lane, :size] = 0
    assert np.array_equal(got.reshape(32, 128), wanted)


@pytest.mark.parametrize(
    "address, size, error, words",
    [
        (0, 12, EmulationError, "clears a multiple of 8 bytes, not 12"),
        (4, 8, Misaligned, "not a multiple of 8"),
        (4088, 16, OutOfBounds, "shared store"),
    ],
)
def test_mistakes_of_bulk_stores(address, size, error, words):
    with pytest.raises(error, match=words):
        shared = np.zeros(4096, np.uint8)
        tc.emulate("st.bulk.shared::cta", address, size, 0, arch="sm_100a", shared=shared)
