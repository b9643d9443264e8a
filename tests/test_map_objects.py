"""Tensor maps that kernels make in memory (9.7.9.28), against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorcore_dsl.errors import EmulationError, OutOfBounds, Race
from tensorcore_dsl.interpreter.core.policy import executing
from tests import map_kernels as kernels

RNG = np.random.default_rng(3)


def run(x: Any, y: Any, corners: Any, box: Any, order: Any = None, **constants: Any) -> None:
    maps = kernels.room_for_maps(len(corners))
    emulator = kernels.boxes_by_maps.emulator("sm_90a", order=order)
    element = kernels.ELEMENT[x.dtype.name]
    places = np.array(corners, np.int32)
    emulator[len(corners), 32](y, maps, places, x, box=box, element=element, **constants)


@pytest.mark.parametrize("order", [None, 1])
@pytest.mark.parametrize("through", ["shared", "global"])
@pytest.mark.parametrize("shape, dtype, box, corners, swizzle", kernels.CASES)
def test_boxes_move_by_maps_that_kernels_make(shape, dtype, box, corners, swizzle, through, order):
    x = RNG.integers(1, 99, shape).astype(dtype)
    y, wanted = np.zeros((2, *shape), dtype)
    for corner in corners:
        part = tuple(slice(c, c + n) for c, n in zip(corner, box, strict=True))
        wanted[part] = x[part]
    run(x, y, corners, box, order, swizzle=swizzle, through=through)
    assert np.array_equal(y, wanted)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_elements_outside_are_nan_on_request(dtype):
    x, y = np.ones((16, 32), dtype), np.zeros((20, 32), dtype)
    run(x, y, [(8, 0)], (16, 32), fill=1)
    assert not y[:8].any() and (y[8:16] == 1).all() and np.isnan(y[16:]).all()


def test_nan_fill_is_of_floats():
    x = np.ones((16, 32), np.uint16)
    with pytest.raises(EmulationError, match="NaN fill of floats alone"):
        run(x, x.copy(), [(8, 0)], (16, 32), fill=1)


MISTAKES = [
    ("no acquire", "shared", EmulationError, "whose bytes its CTA has not acquired: fence.proxy"),
    ("no acquire", "global", EmulationError, "whose bytes its CTA has not acquired: fence.proxy"),
    ("changed", "shared", EmulationError, "whose bytes its CTA has not acquired: fence.proxy"),
    ("no release", "global", EmulationError, "which thread 0 of CTA 0 has changed and not released"),
    ("rank", "shared", EmulationError, "it has 3 axes, 2 coordinates were given"),
    ("larger", "shared", OutOfBounds, "global tensor load of 2176 bytes .* argument 'x'"),
    ("interleaved", "global", EmulationError, "the emulator has element types 0 to 12, .* no interl"),
]


@pytest.mark.parametrize("mistake, through, error, words", MISTAKES)
def test_mistakes_with_maps_are_reported(mistake, through, error, words):
    x, y = np.zeros((2, 16, 32), np.float32)
    with pytest.raises(error, match=words):
        run(x, y, [(0, 0)], (8, 32), through=through, mistake=mistake)


@pytest.mark.parametrize(
    "box, stride, words",
    [
        ((1, 0), 0, "makes box_dim 0; box_dim is 1 to 256"),
        ((1, 288), 0, "makes box_dim 288; box_dim is 1 to 256"),
        ((1, 32), 136, "makes global_stride 136; .* a multiple of 16 bytes"),
        ((1, 32), 1 << 36, "makes global_stride 68719476736; .* below 64 GiB"),
    ],
)
def test_numbers_that_a_map_cannot_hold(box, stride, words):
    x = np.zeros((8, 32), np.float32)
    with pytest.raises(EmulationError, match=words):
        kernels.map_with.emulator("sm_90a")[1, 32](kernels.room_for_maps(1), x, box, stride)


@pytest.mark.parametrize("mistake, copy", [("loading", "load"), ("storing", "store")])
def test_a_map_that_changes_in_flight_is_a_race_with_the_copy(mistake, copy):
    """A load reads its map until its bytes have come, a store until `wait_group.read` (9.7.9.25.3.2)."""
    x, y = np.zeros((2, 16, 32), np.float32)
    with pytest.raises(Race, match="the cp.async.bulk.tensor of warp 0 of CTA 0 read it") as raised:
        run(x, y, [(0, 0)], (8, 32), mistake=mistake)
    lines = Path(kernels.__file__).read_text().splitlines()
    here, there = raised.value.loc, raised.value.first
    assert here is not None and there is not None
    assert lines[here.line - 1].endswith(f"# too early for the {copy}")
    assert lines[there.line - 1].endswith(f"# {copy}")


def test_the_assembler_takes_the_kernel():
    x = np.zeros((16, 32), np.float32)
    maps, corners = np.zeros((1, 2, 16), np.uint64), np.zeros((1, 2), np.int32)
    for through in ("shared", "global"):
        constants = {"box": (8, 32), "element": 7, "through": through}
        resources = kernels.boxes_by_maps.resources(x, maps, corners, x, arch="sm_90a", **constants)
        assert resources.registers > 0


@pytest.mark.parametrize("checks", [True, False])
def test_a_later_launch_reads_maps(checks):
    """Without checks it has worker processes, which see the arrays at other addresses."""
    x, y, maps = RNG.random((8, 32), np.float32), np.zeros((8, 32), np.float32), kernels.room_for_maps(8)
    kernels.maps_of_rows.emulator("sm_90a", checks=checks)[8, 32](maps, x)
    with executing(cores=2, processes=True):
        kernels.rows_by_maps.emulator("sm_90a", checks=checks)[8, 32](y, maps, x)
    assert np.array_equal(y, x)
