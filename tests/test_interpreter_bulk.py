"""Bulk and tensor copies and clusters in the interpreter, against NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Misaligned, OutOfBounds
from tensorcore_dsl.interpreter.core.geometry import Geometry
from tensorcore_dsl.interpreter.core.policy import executing
from tests import hopper_kernels as hopper
from tests.running import run
from tests.whole_numbers import BF16

RNG = np.random.default_rng(11)
FRESH = 0xEE  # what shared memory holds before a copy


OOB_NAN = {2: 0x7FF7, 4: 0x7FF77FF7, 8: 0x7FF77FF77FF77FF7}  # as an H200 fills


def box_of(array: np.ndarray, corner: Sequence[int], box: Sequence[int], nan: bool = False) -> np.ndarray:
    """The box at `corner`, zeros or OOB-NaN outside the array."""
    size = array.itemsize
    elements = np.full(tuple(box), OOB_NAN[size] if nan else 0, f"u{size}").view(array.dtype)
    for index in np.ndindex(*box):
        place = tuple(c + i for c, i in zip(corner, index, strict=True))
        if all(0 <= p < n for p, n in zip(place, array.shape, strict=True)):
            elements[index] = array[place]
    return elements


def laid_out(values: np.ndarray, swizzle: int) -> np.ndarray:
    """Words of shared memory that hold a box: rows a swizzle's span apart, chunks swapped."""
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.shape[-1] * values.itemsize)
    pitch = swizzle or rows.shape[1]
    image = np.full(hopper.space(len(rows) * pitch) * 4, FRESH, np.uint8)
    for row, data in enumerate(rows):
        for byte in range(0, len(data), 16):
            at = row * pitch + byte
            flip = {0: 0, 32: at >> 7 & 1, 64: at >> 7 & 3, 128: at >> 7 & 7}[swizzle]
            at ^= flip << 4
            image[at : at + 16] = data[byte : byte + 16]
    return image.view(np.uint32)


def image_of(
    array: np.ndarray, corner: Sequence[int], box: Sequence[int], swizzle: int, nan: bool = False
) -> Any:
    """What `load_box` should write."""
    return laid_out(box_of(array, corner, box, nan), swizzle)


CASES = [
    ((100,), np.float32, (64,), (48,), 0),
    ((40, 48), BF16, (16, 32), (8, 16), 64),
    ((40, 48), BF16, (16, 64), (30, -24), 128),
    ((40, 48), np.uint16, (16, 16), (30, 8), 128),
    ((9, 32), np.uint8, (8, 32), (-3, 16), 32),
    ((5, 6, 16), np.int32, (2, 3, 8), (4, -1, 4), 32),
    ((5, 6, 16), np.int32, (2, 3, 8), (4, 5, 4), 64),
    ((3, 4, 5, 8), np.float64, (2, 3, 2, 4), (1, 2, 4, 6), 0),
    ((2, 3, 4, 3, 64), np.float16, (2, 2, 2, 2, 64), (1, -1, 3, 2, 8), 128),
]


@pytest.mark.parametrize("shape, dtype, box, corner, swizzle", CASES)
def test_loads_of_every_rank(shape, dtype, box, corner, swizzle):
    array = RNG.integers(1, 100, shape).astype(dtype)
    expected = image_of(array, corner, box, swizzle)
    image = np.zeros(len(expected), np.uint32)
    run(hopper.load_box, 1, 128, array, image, np.array(corner, np.int32), box=box, swizzle=swizzle)
    assert np.array_equal(image, expected)


@pytest.mark.parametrize(
    "shape, dtype, box, corner, swizzle", [case for case in CASES if np.dtype(case[1]).kind not in "ui"]
)
def test_elements_outside_are_nan_on_request(shape, dtype, box, corner, swizzle):
    array = RNG.integers(1, 100, shape).astype(dtype)
    options = {"box": box, "swizzle": swizzle, "nan_fill": True}
    expected = image_of(array, corner, box, swizzle, nan=True)
    image = np.zeros(len(expected), np.uint32)
    corners = np.array(corner, np.int32)
    run(hopper.load_box, 1, 128, array, image, corners, **options)
    assert np.array_equal(image, expected)


def test_nan_fill_is_of_floats():
    array, image = np.ones((40, 48), np.int16), np.zeros(512, np.uint32)
    with pytest.raises(
        tc.OperandError, match="nan_fill is of f16, bf16, f32 and f64; argument 'source' has s16"
    ):
        run(hopper.load_box, 1, 128, array, image, np.zeros(2, np.int32), box=(16, 16), nan_fill=True)


@pytest.mark.parametrize("shape, dtype, box, corner, swizzle", [case for case in CASES if min(case[3]) >= 0])
def test_stores_of_every_rank(shape, dtype, box, corner, swizzle):
    values = RNG.integers(1, 100, box).astype(dtype)
    image = laid_out(values, swizzle)
    target, expected = np.zeros(shape, dtype), np.zeros(shape, dtype)
    for index in np.ndindex(*box):
        place = tuple(c + i for c, i in zip(corner, index, strict=True))
        if all(0 <= p < n for p, n in zip(place, shape, strict=True)):
            expected[place] = values[index]
    run(hopper.store_box, 1, 128, image, target, np.array(corner, np.int32), box=box, swizzle=swizzle)
    assert expected.any() and np.array_equal(target, expected)


def test_stores_write_whole_units_of_16_bytes():
    """Also what lies behind a row that ends within one, as on an H200."""
    values = RNG.integers(1, 100, (6, 32)).astype(np.uint16)
    whole = np.zeros((6, 32), np.uint16)
    corner = np.zeros(2, np.int32)
    run(hopper.store_box, 1, 128, laid_out(values, 64), whole[:, :21], corner, box=(6, 32), swizzle=64)
    expected = np.zeros_like(whole)
    expected[:, :24] = values[:, :24]
    expected[5, 21:] = 0  # the emulator stays within the array
    assert np.array_equal(whole, expected)


def test_a_transposed_array():
    """The innermost axis is the contiguous one, wherever it stands."""
    array = np.asfortranarray(RNG.integers(0, 100, (24, 40)).astype(np.int32))
    image = np.zeros(256, np.uint32)
    run(hopper.load_box, 1, 128, array, image, np.array([4, 8], np.int32), box=(8, 16))
    assert np.array_equal(image[:128].view(np.int32).reshape(16, 8), array[4:12, 8:24].T)


@settings(max_examples=30, deadline=None)
@given(st.integers(-15, 47), st.integers(-3, 9).map(lambda n: 4 * n))
def test_corners_of_boxes_that_touch_the_array(row, col):
    array = np.arange(48 * 40, dtype=np.uint32).reshape(48, 40) + 1
    expected = image_of(array, (row, col), (16, 16), 64)
    image = np.zeros(len(expected), np.uint32)
    run(hopper.load_box, 1, 128, array, image, np.array([row, col], np.int32), box=(16, 16), swizzle=64)
    assert np.array_equal(image, expected)


def test_a_row_starts_at_a_multiple_of_16_bytes():
    array, image = np.zeros((8, 32), np.float32), np.zeros(256, np.uint32)
    with pytest.raises(Misaligned, match="innermost coordinate 6, byte 24 of a row; multiples of 16"):
        run(hopper.load_box, 1, 128, array, image, np.array([0, 6], np.int32), box=(8, 16))


def test_a_store_does_not_start_before_the_array():
    image, array = np.zeros(256, np.uint32), np.zeros((8, 32), np.float32)
    with pytest.raises(OutOfBounds, match=r"starts at coordinates \(0, -1\): stores may hang over"):
        run(hopper.store_box, 1, 128, image, array, np.array([-1, 0], np.int32), box=(8, 16))


REDUCTIONS = [
    ("add", np.uint32), ("add", np.int32), ("add", np.uint64), ("add", np.float32),
    ("add", np.float64), ("add", np.float16), ("add", BF16), ("min", np.int32), ("max", np.uint32),
    ("min", np.int64), ("max", np.float16), ("min", BF16), ("inc", np.uint32), ("dec", np.uint32),
    ("and", np.uint32), ("or", np.uint64), ("xor", np.int32),
]  # fmt: skip


def combined(op: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    if op == "inc":
        return np.where(old >= new, 0, old + 1)
    if op == "dec":
        return np.where((old == 0) | (old > new), new, old - 1)
    names = {"add": np.add, "min": np.minimum, "max": np.maximum}
    return (names.get(op) or getattr(np, f"bitwise_{op}"))(old, new)


@pytest.mark.parametrize("op, dtype", REDUCTIONS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_boxes_are_reduced_into_memory(op, dtype):
    """A box that hangs over an edge; sums of floats are rounded once."""
    kind = np.dtype(dtype)
    low = -50 if kind.kind in "fiV" else 0
    values = (RNG.integers(low, 50, (8, 16)) * (1.37 if kind.kind in "fV" else 1)).astype(kind)
    old = (RNG.integers(low, 50, (6, 32)) * (0.73 if kind.kind in "fV" else 1)).astype(kind)
    target = old.copy()
    image = np.full(256 * kind.itemsize // 8, 7, np.uint32)
    image[: values.nbytes // 4] = values.view(np.uint32).ravel()
    corner = np.array([2, 24], np.int32)
    run(hopper.store_box, 1, 128, image, target, corner, box=(8, 16), reduce=op)
    expected = old.copy()
    expected[2:, 24:] = combined(op, old[2:, 24:], values[:4, :8]).astype(kind)
    assert np.array_equal(target.view(np.uint8), expected.view(np.uint8))
    assert not np.array_equal(target.view(np.uint8), old.view(np.uint8))


GOLDEN = np.load(Path(__file__).parent / "golden" / "bulk_reductions.npz")


def specials(kind: np.dtype[Any]) -> np.ndarray:
    """Sixteen numbers on which reductions may differ."""
    if kind.kind in "iu":
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        half = high // 2
        few = [0, 1, 2, 3, high, high - 1, low, low + 1, 7, 8, 100, 1000, half, half + 1, 5, 6]
        return np.array(few, kind)
    limits = ml_dtypes.finfo(kind)
    tiny, normal = float(limits.smallest_subnormal), float(limits.smallest_normal)
    most, step = float(limits.max), float(limits.eps)
    numbers = np.array(
        [
            0.0,
            -0.0,
            1,
            -1,
            np.inf,
            -np.inf,
            np.nan,
            tiny,
            -tiny,
            normal,
            -normal,
            most,
            -most,
            normal - tiny,
            1.5,
            step,
        ]
    ).astype(kind)
    numbers.view(f"u{kind.itemsize}")[6] |= 5  # a NaN with a payload
    return numbers


@pytest.mark.parametrize("name", GOLDEN.files)
def test_reductions_are_those_of_an_h200(name):
    """Every pair of special numbers, combined on the chip."""
    how, op, *rest = name.split(".")
    names = {"u": "uint", "s": "int", "f": "float", "b": "bfloat"}
    kind = rest[-1] if how == "tensor" else names[rest[-1][0]] + rest[-1].lstrip("usbf")
    dtype = BF16 if kind == "bfloat16" else np.dtype(kind)
    numbers = specials(dtype)
    new, old = np.repeat(numbers, 16), np.tile(numbers, 16)
    if how == "bulk":
        target = np.tile(old, 2)
        run(hopper.bulk_copy, 1, 32, np.tile(new, 2), target, reduce=name.removeprefix("bulk."))
    else:
        image, target = laid_out(new.reshape(16, 16), 0), old.reshape(16, 16).copy()
        run(hopper.store_box, 1, 128, image, target, np.zeros(2, np.int32), box=(16, 16), reduce=op)
    expected = GOLDEN[name].ravel()
    assert np.array_equal(target.view(np.uint8).ravel()[: expected.size], expected)


def test_a_reduction_that_does_not_exist():
    image, target = np.zeros(256, np.uint32), np.zeros((8, 16), np.float32)
    with pytest.raises(EmulationError, match=r"\.min of argument 'target', whose elements are f32"):
        run(hopper.store_box, 1, 128, image, target, np.zeros(2, np.int32), box=(8, 16), reduce="min")


@pytest.mark.parametrize("dtype", [np.uint32, np.float32, BF16])
def test_bulk_copies(dtype):
    source = RNG.integers(0, 100, 3 * 512).astype(dtype)
    target = np.zeros_like(source)
    report = run(hopper.bulk_copy, 3, 32, source, target)
    assert np.array_equal(source, target)
    size = source.nbytes
    assert report.bytes["global", "load"] == report.bytes["global", "store"] == size


@pytest.mark.parametrize(
    "op, dtype",
    [("add.u32", np.uint32), ("max.s32", np.int32), ("add.f32", np.float32), ("add.noftz.bf16", BF16)],
)
def test_bulk_reductions(op, dtype):
    source, old = (RNG.integers(0, 100, 512).astype(dtype) for _ in range(2))
    target = old.copy()
    run(hopper.bulk_copy, 1, 32, source, target, reduce=op)
    expected = combined(op.split(".")[0], old, source)
    assert np.array_equal(target.view(np.uint8), expected.astype(dtype).view(np.uint8))


def test_sums_of_f32_keep_subnormals():
    source, target = np.full(512, 1e-40, np.float32), np.full(512, 2e-40, np.float32)
    run(hopper.bulk_copy, 1, 32, source, target, reduce="add.f32")
    assert np.array_equal(target, np.full(512, np.float32(1e-40) + np.float32(2e-40)))


@tc.kernel
def rounds(source: tc.Array, out: tc.Array, count: tc.Const = 1, look: tc.Const = ""):
    """Load two whole pages `count` times, and let a reader look at them while the last load is in flight."""
    tc.launch_bounds(32)
    map = tc.tensor_map(source, (16, 64), swizzle=128)
    part = tc.tensor_map(source, (4, 64), swizzle=128)
    tile = tc.shared((16, 64), tc.f16, swizzle=128)
    small = tc.shared((4, 64), tc.f16, swizzle=128)
    bars = tc.mbarriers(2)
    t = tc.threadIdx.x
    if t == 0:
        bars[0].init(1)
        bars[1].init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    for turn in tc.static_range(count):
        if turn > 0:
            for row in tc.static_range(0, 16, 5):
                tile[row, t] = tile[row, t] + 1.0  # some words are stored between two loads
            tc.fence_proxy_async()
            tc.barrier()
        if t == 0:
            bars[0].arrive_expect_tx(map.bytes)
            tc.tma_load(tile, map, (16 * turn, 0), bars[0])
        if turn == count - 1:
            if look == "load":
                out[0, t] = tile[9, t]
            elif look == "load of a thread":
                if t == 7:
                    out[0, t] = tile[9, t]
            elif look == "store":
                tile[9, t] = 0.0
            elif look == "ldmatrix":
                a = tc.ldmatrix(tile[:16, 16:32], tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32).a)
                out[0, t] = a[0]
            elif look == "copy":
                tc.cp_async(tile.at(9, 2 * t), source.at(0, 2 * t), 4)
            elif look == "bulk load":
                if t == 0:
                    bars[1].arrive_expect_tx(map.bytes)
                    tc.tma_load(tile, map, (0, 0), bars[1])
            elif look == "bulk load of a part":
                if t == 0:
                    bars[1].arrive_expect_tx(part.bytes)
                    tc.tma_load(tile[8:12], part, (0, 0), bars[1])
            elif look == "bulk store":
                if t == 0:
                    tc.tma_store(map, (0, 0), tile)
            elif look == "another tile":
                if t == 0:
                    bars[1].arrive_expect_tx(part.bytes)
                    tc.tma_load(small, part, (0, 0), bars[1])
                bars[1].wait(0)
                out[16, t] = small[0, t]
        bars[0].wait(turn % 2)
        for row in tc.static_range(16):
            out[row, t] = tile[row, t]
            out[row, t + 32] = tile[row, t + 32]
        tc.barrier()


@pytest.fixture(params=[False, True], ids=["races", "no races"])
def library(request, monkeypatch):
    """Kernels run as those of users, and as those of the library, without a search for races."""
    if request.param:
        monkeypatch.setattr(type(rounds.emulator("sm_90a")), "_checks_indices", lambda self: False)


@pytest.mark.usefixtures("library")
class TestPages:
    """Shared memory that a load in flight fills is its own, the first time and later."""

    @pytest.mark.parametrize("count", [1, 2, 3])
    @pytest.mark.parametrize("look", ["", "another tile"])
    def test_loads(self, look, count):
        source = RNG.integers(1, 100, (48, 64)).astype(np.float16)
        out = np.zeros((17, 64), np.float16)
        run(rounds, 1, 32, source, out, count=count, look=look)
        assert np.array_equal(out[:16], source[16 * count - 16 : 16 * count])
        assert np.array_equal(out[16, :32], source[0, :32] * bool(look))

    LOOKS = [
        "load",
        "load of a thread",
        "store",
        "ldmatrix",
        "copy",
        "bulk load",
        "bulk load of a part",
        "bulk store",
    ]

    @pytest.mark.parametrize("look", LOOKS)
    def test_use_before_a_wait_is_an_error(self, look):
        texts = set()
        for count in (1, 2, 3):
            source, out = np.ones((48, 64), np.float16), np.zeros((17, 64), np.float16)
            with pytest.raises(EmulationError, match="is in flight: nobody has waited") as error:
                run(rounds, 1, 32, source, out, count=count, look=look)
            texts.add(str(error.value).replace(f"phase {count - 1} (parity {(count - 1) % 2})", ""))
        assert len(texts) == 1, texts


@tc.kernel
def read_too_early(source: tc.Array, out: tc.Array, spread: tc.Const):
    """Read words of a tile before its load is awaited, `spread` words apart in runs of four lanes."""
    tc.launch_bounds(32)
    shape = 16, 128 // source.dtype.itemsize
    map = tc.tensor_map(source, shape)
    tile = tc.shared(shape, source.dtype, align=1024)
    bar = tc.mbarriers(1)
    t = tc.threadIdx.x
    if t == 0:
        bar[0].init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if t == 0:
        bar[0].arrive_expect_tx(map.bytes)
        tc.tma_load(tile, map, (0, 0), bar[0])
    out[t] = tile[t // 4, t % 4 * spread]
    bar[0].wait(0)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("regions", [True, False], ids=["regions", "steps"])
@pytest.mark.parametrize("spread", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_words_of_a_load_in_flight_cannot_be_read(dtype, spread, regions):
    source = np.ones((16, 128 // dtype().itemsize), dtype)
    policy = executing(regions=regions, compile_cost=0, regions_on_disk=False)
    with policy, pytest.raises(EmulationError, match="is in flight: nobody has waited"):
        run(read_too_early, 1, 32, source, np.zeros(32, dtype), spread=spread)


class TestClusters:
    @pytest.mark.parametrize("mask", [0b1111, 0b0101, 0b0010])
    def test_multicast(self, mask):
        source = RNG.integers(1, 100, (3, 64)).astype(np.uint32)
        images = np.zeros((12, 64), np.uint32)
        run(hopper.share, 12, 64, source, images, mask=mask)
        reached = np.array([mask >> block % 4 & 1 for block in range(12)], bool)
        assert np.array_equal(images[reached], np.repeat(source, 4, axis=0)[reached])
        assert not images[~reached].any()

    @pytest.mark.parametrize("peers", [2, 4])
    def test_remote_arrivals(self, peers):
        out = np.zeros((2 * peers, 3), np.int32)
        run(hopper.count_down, 2 * peers, 32, out, peers=peers)
        assert np.array_equal(out, np.arange(2 * peers)[:, None] % peers + [0, 10, 20])

    def test_special_registers(self):
        grid, cluster = (4, 6, 2), (2, 3, 1)
        out = np.full((48, 17), -1, np.int32)
        with tc.target("cpu", "sm_90a"):
            hopper.ranks.configured(grid, 32, cluster=cluster)(out)
        for z, y, x in np.ndindex(2, 6, 4):
            actual = out[(z * 6 + y) * 4 + x].tolist()
            assert actual[:3] == [x, y, z]
            assert actual[3:6] == [x // 2, y // 3, z]
            assert actual[6:9] == [2, 2, 2]
            assert actual[9:12] == [x % 2, y % 3, 0]
            assert actual[12:15] == [2, 3, 1]
            assert actual[15:] == [y % 3 * 2 + x % 2, 6]

    def test_messages_name_blocks_of_clusters(self):
        geometry = Geometry((4, 6, 2), (20, 1, 1), 6, 12, 0, 0, 32, (2, 3, 1))
        ctas = [geometry.cta(32 * cta) for cta in range(12)]
        second = [(2 + x, y, 0) for y in range(3) for x in range(2)]
        assert ctas == second + [(x, 3 + y, 0) for y in range(3) for x in range(2)]

    @pytest.mark.parametrize(
        "offset, error, text",
        [
            (4, Misaligned, r"mbarrier at shared 0x104 \(thread 0 of CTA 2\): no multiple of 8"),
            (8, EmulationError, r"the mbarrier at shared 0x108 is not initialised \(thread 0 of CTA 2\)"),
        ],
    )
    @pytest.mark.usefixtures("library")
    def test_a_load_that_no_barrier_counts(self, offset, error, text):
        """In one CTA of four, so that there are more CTAs than copies."""
        source = np.zeros((1, 64), np.uint32)
        with pytest.raises(error, match=text):
            run(beside_its_barrier, 4, 32, source, offset=offset)

    @pytest.mark.usefixtures("library")
    def test_a_phase_that_expects_its_bytes_last_releases_at_once(self):
        """The store is still read when the phase ends, and waited for after that."""
        source, out = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
        with pytest.raises(EmulationError, match="these bytes are still read by a bulk store"):
            run(released_too_early, 1, 64, source.reshape(1, 32), out.reshape(1, 32))


@tc.kernel
def released_too_early(source: tc.Array, out: tc.Array):
    """Warp 0 loads tile[1] and lets its phase expect the bytes after that."""
    tc.launch_bounds(64)
    tile, full = tc.shared((2, 32), tc.s32, align=128), tc.mbarriers(1)[0]
    warp, lane = tc.warp_id(), tc.lane_id()
    if tc.threadIdx.x == 0:
        full.init(1)
        tc.fence_mbarrier_init()
    if warp == 0:
        tile[0, lane] = lane
    tc.fence_proxy_async()
    tc.barrier()
    if tc.threadIdx.x == 0:
        tc.emit(hopper.BULK_STORE, out.at(0, 0).address, tile.at(0, 0).address, 128)
        tc.tma_store_commit()
        tc.emit(hopper.BULK_LOAD, tile.at(1, 0).address, source.at(0, 0).address, 128, full.address)
        full.arrive_expect_tx(128)
        tc.tma_store_wait(0)
    if warp == 1:
        full.wait(0)
        tile[0, lane] = 100 + lane


@tc.kernel
def beside_its_barrier(source: tc.Array, offset: tc.Const = 0):
    tc.launch_bounds(32)
    tc.cluster_size(4)
    map = tc.tensor_map(source, (1, 64))
    tile = tc.shared((1, 64), tc.u32, align=128)
    bar = tc.mbarriers(2)[0]
    if (tc.cluster_rank() == 2) & (tc.threadIdx.x == 0):
        bar.init(1)
        tc.fence_mbarrier_init()
        tc.emit(hopper.LOAD.format(2), tile.address, map.address, 0, 0, bar.address + offset)


# -- loads to the own CTA, prefetches -------------------------------------------------------------


@pytest.mark.parametrize("hint", ["", ".L2::cache_hint"])
def test_loads_to_the_own_cta(hint):
    x, out = RNG.integers(-99, 99, 64).astype(np.int32), np.zeros((2, 32), np.int32)
    run(hopper.own_load, 2, 32, x, out, hint=hint)
    assert (out == x[:32] + x[32:]).all()
    assert hopper.own_load.resources(x, out, arch="sm_90a", hint=hint).registers > 0


@pytest.mark.parametrize("mistake", ["bytes", "box"])
def test_loads_to_the_own_cta_do_not_leave_it(mistake):
    with pytest.raises(EmulationError, match="to shared::cta was given the shared memory of another"):
        run(hopper.own_load, 2, 32, np.zeros(64, np.int32), np.zeros((2, 32), np.int32), mistake=mistake)
