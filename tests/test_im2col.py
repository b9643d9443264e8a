"""Tensor copies in im2col mode, against an evaluator written from the PTX manual (5.5.4) in NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import ArgumentError, EmulationError, LayoutError, OperandError, OutOfBounds, Race
from tensorcore_dsl.ir.nodes import Im2col
from tensorcore_dsl.lang import tma
from tests.ir_reader import parse_kernel
from tests.pixel_kernels import CASES, convolve, load_column, store_column

ARCH = "sm_90a"


def pixels_of_column(shape, index, offsets, box, lower, upper, steps):
    """For each pixel of a column its index (n, ..., w) and whether it lies in the array.

    All filter bases of all images stand in one line, images outermost, and the column is a piece of it.
    """
    axes = [
        range(low, n + up, step) for n, low, up, step in zip(shape[1:-1], lower, upper, steps, strict=True)
    ]
    images = range(index[0], index[0] + 1 + box[0])
    line = list(itertools.product(images, *axes))
    start = line.index(tuple(index[:-1]))
    for image, *base in line[start : start + box[0]]:
        place = (image, *(at + offset for at, offset in zip(base, offsets, strict=True)))
        yield place, all(0 <= at < extent for at, extent in zip(place, shape, strict=False))


def channels_of(shape, index, box):
    """The channels in the array, and where they stand in a pixel."""
    inside = [c for c in range(index[-1], index[-1] + box[1]) if 0 <= c < shape[-1]]
    return inside, [c - index[-1] for c in inside]


def loaded(x, index, offsets, box, lower, upper, steps):
    out = np.zeros(box, x.dtype)
    channels, places = channels_of(x.shape, index, box)
    column = pixels_of_column(x.shape, index, offsets, box, lower, upper, steps)
    for pixel, (place, inside) in enumerate(column):
        if inside:
            out[pixel, places] = x[place][channels]
    return out


def stored(out, x, index, box, lower, upper, steps, combine):
    result = out.copy()
    channels, places = channels_of(out.shape, index, box)
    column = pixels_of_column(out.shape, index, [0] * (out.ndim - 2), box, lower, upper, steps)
    for pixel, (place, inside) in enumerate(column):
        if inside:
            result[place][channels] = combine(out[place][channels], x[pixel, places])
    return result


def values(shape, dtype, seed=0):
    return np.random.default_rng(seed).integers(1, 100, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("case", CASES)
def test_loads_gather_the_pixels_of_a_filter(case, dtype):
    shape, index, offsets, described = CASES[case]
    if dtype is np.float32 and (described[-1] or case == "1024 pixels"):
        dtype = np.uint8 if case == "1024 pixels" else np.int16
    box, *rest, _ = described
    if dtype is np.uint8:
        box, shape, described = (1024, 16), (*shape[:-1], 16), ((1024, 16), *described[1:])
    x, out = values(shape, dtype), np.full(box, 111, dtype)
    load_column.emulator(ARCH)[1, 32](x, out, index=index, offsets=offsets, described=described)
    np.testing.assert_array_equal(out, loaded(x, index, offsets, box, *rest))
    assert out.any()


def stores(case):
    """Whether a store by this map is legal."""
    return not Im2col(*CASES[case][3][1:4]).refuses_stores


@pytest.mark.parametrize("reduce", [None, "add", "max"])
@pytest.mark.parametrize("case", [*filter(stores, CASES)])
def test_stores_and_reductions(case, reduce):
    shape, index, _, described = CASES[case]
    box, *rest, _ = described
    dtype = np.float16
    x, out = values(box, dtype), values(shape, dtype, 1)
    combine = {None: lambda old, new: new, "add": np.add, "max": np.maximum}[reduce]
    expected = stored(out, x, index, box, *rest, combine)
    assert (expected != out).any()
    store_column.emulator(ARCH)[1, 32](x, out, index=index, described=described, reduce=reduce)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    "images, taps, geometry",
    [((3, 7, 6), (3, 3), (1, 1, 1)), ((2, 9, 11), (3, 2), (2, 2, 1)), ((2, 8, 8), (2, 3), (0, 1, 2))],
)
def test_an_implicit_gemm_is_a_convolution(images, taps, geometry):
    pad, stride, dilation = geometry
    rng = np.random.default_rng(5)
    x = rng.integers(-3, 4, (*images, 64)).astype(np.float16)
    weights = rng.integers(-2, 3, (*taps, 16, 64)).astype(np.float16)
    padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    height, width = [
        (padded.shape[axis + 1] - (taps[axis] - 1) * dilation - 1) // stride + 1 for axis in (0, 1)
    ]
    expected = np.zeros((images[0], height, width, 16))
    for n, p, q, r, s in np.ndindex(images[0], height, width, *taps):
        pixel = padded[n, p * stride + r * dilation, q * stride + s * dilation]
        expected[n, p, q] += weights[r, s].astype(np.float64) @ pixel
    out = np.zeros((images[0] * height * width, 16), np.float32)
    grid = -(-len(out) // 64)
    convolve.emulator(ARCH)[grid, 128](x, weights, out, shape=weights.shape, geometry=geometry)
    np.testing.assert_array_equal(out, expected.reshape(-1, 16))


# What is refused


def load(shape, index, offsets, described, dtype=np.float16):
    x, out = values(shape, dtype), np.zeros(described[0], dtype)
    load_column.emulator(ARCH)[1, 32](x, out, index=index, offsets=offsets, described=described)


@pytest.mark.parametrize("reduce", [None, "add"])
@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("case", [*itertools.filterfalse(stores, CASES)])
def test_stores_of_a_pixel_box_that_reaches_beyond_the_image(case, emulated, reduce, monkeypatch):
    """An H200 stops with an illegal instruction. `tma_store` refuses them; a program of PTX meets the emulator."""
    shape, index, _, described = CASES[case]
    arguments = values(described[0], np.float16), values(shape, np.float16)
    error = EmulationError if emulated else OperandError
    if emulated:
        monkeypatch.setattr(tma, "_check_stores", lambda target: None)
    with pytest.raises(error, match="stores in im2col mode need a pixel box inside of the image"):
        store_column.emulator(ARCH)[1, 32](*arguments, index=index, described=described, reduce=reduce)


SHAPE = (2, 4, 5, 16)
FULL = ((16, 16), (0, 0), (0, 0), (1, 1), 0)


@pytest.mark.parametrize("index", [(0, 0, 5, 0), (0, -1, 0, 0), (0, 4, 0, 0)])
def test_a_filter_base_outside_of_the_pixel_box(index):
    with pytest.raises(
        OutOfBounds, match=r"filter base at .*the pixel box reaches from \(0, 0\) to before \(5, 4\)"
    ):
        load(SHAPE, index, (0, 0), FULL)


def test_a_column_behind_the_last_image():
    with pytest.raises(
        OutOfBounds, match=r"moves nothing: 16 pixels of 16 channels from coordinates \(0, 0, 0, 2\)"
    ):
        load(SHAPE, (2, 0, 0, 0), (0, 0), FULL)


@pytest.mark.parametrize(
    "described, error, message",
    [
        (((1025, 16), *FULL[1:]), LayoutError, "1 to 1024 pixels and 1 to 256 channels"),
        (((16, 16), (-129, 0), *FULL[2:]), LayoutError, "-128 to 127 are allowed for an array of 4 axes"),
        (((16, 16), (0,), *FULL[2:]), LayoutError, "have a number for each of 2 axes"),
        (((16, 16), (0, 0), (0, 0), (9, 1), 0), LayoutError, r"element strides \(9, 1\); 1 to 8"),
        (((16, 64), (0, 0), (0, 0), (1, 1), 64), LayoutError, "64 f16 channels are wider than their 64-byte"),
        (((16, 16), (0, 0.5), *FULL[2:]), OperandError, "ints known at compile time"),
        (((16, 16), (0, 3), (-1, -2), (1, 1), 0), ArgumentError, "no pixels along axis 2 of 5"),
        (((16, 4), *FULL[1:]), ArgumentError, "multiples of 16"),
    ],
)
def test_maps_that_no_driver_makes(described, error, message):
    with pytest.raises(error, match=message):
        load(SHAPE, (0, 0, 0, 0), (0, 0), described)


def test_two_axes_have_no_pixels():
    with pytest.raises(LayoutError, match="im2col mode needs an array of 3 to 5 axes; 2 were given"):
        load((4, 16), (0, 0), (), ((16, 16), (), (), (), 0))


@pytest.mark.parametrize("offsets", [(0,), (0, 0, 0)])
def test_offsets_of_another_number(offsets):
    with pytest.raises(
        OperandError, match=f"{len(offsets)} offsets were given; 2 axes of pixels have one each"
    ):
        load(SHAPE, (0, 0, 0, 0), offsets, FULL)


@pytest.mark.parametrize("im2col", [False, True])
def test_map_and_instruction_are_of_one_mode(im2col):
    @tc.kernel(threads=32)
    def mixed(x: tc.Array, im2col: tc.Const):
        tile, bar = tc.shared((16, 16), x.dtype, align=128), tc.mbarriers(1)[0]
        column = tc.tensor_map(x, (16, 16), im2col=((0,), (0,))) if im2col else tc.tensor_map(x, (1, 16, 16))
        mode = "tile" if im2col else "im2col"
        text = f"cp.async.bulk.tensor.3d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes"
        shifts = [] if im2col else [tc.u16(0)]
        if tc.threadIdx.x == 0:
            bar.init(1)
            tc.emit(text, tile.address, column.address, *column.coordinates((0, 0, 0)), bar.address, *shifts)

    modes = ("tile", "im2col") if im2col else ("im2col", "tile")
    with pytest.raises(EmulationError, match=f"in {modes[0]} mode uses a tensor map of {modes[1]} mode"):
        mixed.emulator(ARCH)[1, 32](values((2, 16, 16), np.float16), im2col=im2col)


def test_element_strides_are_of_im2col_mode():
    @tc.kernel
    def tiled(x: tc.Array):
        tc.tensor_map(x, (1, 16, 16), element_strides=(1,))

    with pytest.raises(OperandError, match="element strides are of im2col mode"):
        tiled.ptx(values((2, 16, 16), np.float16), arch=ARCH)


def test_channels_lie_side_by_side():
    x = np.asfortranarray(values(SHAPE, np.float16))
    with pytest.raises(OperandError, match="needs the channels last, with stride 1"):
        load_column.ptx(
            x, values((16, 16), np.float16), index=(0,) * 4, offsets=(0, 0), described=FULL, arch=ARCH
        )


# Hazards


@tc.kernel(threads=64)
def beside(x: tc.Array, out: tc.Array, pixel: tc.Const, waits: tc.Const = True):
    """Warp 0 loads 8 of 16 pixels while warp 1 writes one pixel; without `waits`, and reads too early."""
    column, bar = tc.tensor_map(x, (8, 16), im2col=((0,), (0,))), tc.mbarriers(1)[0]
    tile, t = tc.shared((8, 16), x.dtype, align=128), tc.threadIdx.x
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(column.bytes)
        tc.tma_load(tile, column, (0, 0, 0), bar, offsets=(2,))
    if t == 32:
        x[0, pixel, 0] = 1.0
    if waits:
        bar.wait(0)
    if t < 16:
        out[t] = tile[0, t]


def test_a_race_with_a_pixel_of_the_column():
    x, out = values((1, 16, 16), np.float16), np.zeros(16, np.float16)
    beside.emulator(ARCH, checks=True)[1, 64](x, out, pixel=10)
    with pytest.raises(Race, match="x"):
        beside.emulator(ARCH, checks=True)[1, 64](x, out, pixel=9)


def test_a_column_in_flight_is_not_read():
    x, out = values((1, 16, 16), np.float16), np.zeros(16, np.float16)
    with pytest.raises(EmulationError, match="in flight|has not"):
        beside.emulator(ARCH)[1, 64](x, out, pixel=10, waits=False)


# The way to the GPU


def test_it_is_assembled():
    x, out = values(SHAPE, np.float16), np.zeros((16, 16), np.float16)
    options = {"index": (0, 0, 0, 0), "described": FULL, "arch": ARCH}
    assert load_column.resources(x, out, offsets=(1, 2), **options).registers > 0
    assert "im2col_no_offs" in store_column.ptx(out, x, **options)
    assert store_column.resources(out, x, reduce="add", **options).registers > 0


def test_the_text_of_ir_keeps_the_pixel_box():
    x, out = values(SHAPE, np.float16), np.zeros((16, 16), np.float16)
    described = ((16, 16), (-1, 0), (1, -2), (1, 2), 32)
    ir = load_column.ir(x, out, index=(0, 0, 0, 0), offsets=(1, 2), described=described, arch=ARCH)
    assert "box 16 16 swizzle 32 lower 0 -1 upper -2 1 steps 2 1" in ir
    again = parse_kernel(ir)
    assert again.params[-1].tensor_map.im2col == Im2col((0, -1), (-2, 1), (2, 1))
