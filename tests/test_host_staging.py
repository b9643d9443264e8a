"""NumPy arguments on a GPU whose memory is ours: copies there and back, aliasing, packing."""

import struct

import numpy as np
import pytest

from tensorcore_dsl.runtime.host_staging import Span, merged
from tensorcore_dsl.runtime.launch import Launcher
from tensorcore_dsl.runtime.launch_config import LaunchConfig
from tests.fake_gpu import CUBIN, FakeGpu


def run(kernel, *args, stream=0):
    """Launch `kernel(address, ...)`, which gets the arrays' addresses on the device."""
    sizes = []

    def specialise(types):
        sizes.extend(types)
        return CUBIN

    def on_gpu(data):
        addresses, at = [], 0
        for kind in sizes:
            at = -(-at // 8) * 8
            addresses.append(struct.unpack_from("Q", data, at)[0])
            at += 8 + 4 * kind.ndim
            if not all(kind.unit):
                at = -(-at // 8) * 8 + 8 * kind.unit.count(False)
        kernel(*addresses)

    gpu = FakeGpu(on_gpu)
    Launcher(specialise, LaunchConfig.of(1, 32), gpu, stream=stream)(*args)
    return gpu


def on_device(array, address):
    """The array at `address`, with the strides of `array`."""
    interface = {
        "data": (address, False),
        "shape": array.shape,
        "strides": array.strides,
        "typestr": array.dtype.str,
        "version": 3,
    }
    return np.asarray(type("Device", (), {"__array_interface__": interface})())


VIEWS = {
    "rows": lambda a: a,
    "columns": lambda a: a.T,
    "padded": lambda a: a[:, :5],
    "steps": lambda a: a[1::2, ::3],
    "backwards": lambda a: a[::-1, ::-1],
    "fortran": np.asfortranarray,
    "one": lambda a: a[2, 3, ...],
    "row": lambda a: a[2],
    "empty": lambda a: a[:, :0],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_there_and_back(view):
    whole = np.arange(48, dtype=np.float32).reshape(6, 8)
    expected, kept = whole.copy(), []
    array = view(whole)
    if array.size:
        view(expected)[...] *= 2

    def kernel(address):
        if array.size:
            there = on_device(array, address)
            assert address != array.ctypes.data
            assert address % 256 == array.ctypes.data % 256
            kept.append(there.copy())
            there[...] *= 2

    before = array.copy()
    run(kernel, array)
    if array.base is None and array is not whole:  # asfortranarray copied
        assert (array == before * 2).all()
    else:
        assert (whole == expected).all()
    if array.size:
        assert (kept[0] == before).all()


def test_alignment_is_kept():
    raw = np.zeros(4096, np.uint8)
    for at in (0, 1, 2, 4, 8, 24, 100):
        addresses = []
        run(addresses.append, raw[at : at + 64])
        assert (addresses[0] - raw.ctypes.data - at) % 256 == 0


def test_overlapping_views_stay_aliased():
    whole = np.arange(10, dtype=np.int32)
    left, right = whole[:7], whole[3:]

    def kernel(a, b):
        assert b - a == 12
        on_device(left, a)[3] = 100
        assert on_device(right, b)[0] == 100
        on_device(right, b)[1] = 200

    gpu = run(kernel, left, right)
    assert whole[3:5].tolist() == [100, 200]
    assert len(gpu.allocations) == 1


def test_same_array_twice():
    array = np.arange(4, dtype=np.int64)

    def kernel(a, b):
        on_device(array, b)[0] = on_device(array, a)[1]

    run(kernel, array, array)
    assert array.tolist() == [1, 1, 2, 3]


def test_separate_arrays_have_their_own_memory():
    a, b = np.zeros(8, np.int16), np.ones(8, np.int16)
    gpu = run(lambda x, y: on_device(a, x).__setitem__(0, on_device(b, y)[0]), a, b)
    assert a[0] == 1
    assert len(gpu.allocations) == 2


def test_readonly_arrays_are_not_written():
    whole = np.arange(8, dtype=np.int32)
    frozen, open_part = whole.view(), whole[4:]
    frozen.flags.writeable = False

    def kernel(a, b):
        on_device(whole, a)[...] = -1  # more than it may

    run(kernel, frozen, open_part)
    assert whole.tolist() == [0, 1, 2, 3, -1, -1, -1, -1]


def test_bytes_between_elements_come_back():
    whole = np.arange(16, dtype=np.int8)
    run(lambda a: on_device(whole[::4], a).__setitem__(slice(None), 0), whole[::4])
    assert whole.tolist() == [0 if i % 4 == 0 else i for i in range(16)]


def test_waits_on_its_stream():
    gpu = run(lambda a: None, np.zeros(4), stream=9)
    assert gpu.synchronized == [9]
    assert gpu.records[0].stream == 9


def test_mixed_arguments():
    array = np.zeros(4, np.float32)
    records = []
    gpu = FakeGpu(lambda data: records.append(data))
    launch = Launcher(lambda types: CUBIN, LaunchConfig.of(1, 32), gpu)
    for value in (5, 6):
        launch(array, value)
    assert [struct.unpack("Qii", r)[1:] for r in records] == [(4, 5), (4, 6)]


def test_merged():
    spans = [Span(0, 4, (0,)), Span(10, 14, (1,)), Span(2, 6, (2,)), Span(6, 8, (3,)), Span(11, 12, (4,))]
    assert merged(spans) == [Span(0, 6, (0, 2)), Span(6, 8, (3,)), Span(10, 14, (1, 4))]
