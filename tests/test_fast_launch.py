"""Fast launch path: what machine code reads, what the fallback gets, threads, tensor maps."""

import ctypes
import gc
import random
import struct
import sys
import types
import weakref

import ml_dtypes
import numpy as np
import pytest

from tensorcore_dsl import dtypes
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.errors import ArgumentError, LaunchError
from tensorcore_dsl.ir.nodes import TensorMap
from tensorcore_dsl.runtime.arguments import ArrayType, describe
from tensorcore_dsl.runtime.fast_launch import (
    argument_kinds,
    function_code,
    key_function,
    machine_code,
    memory_layout,
    native_function,
    plans,
)
from tensorcore_dsl.runtime.launch import Launcher
from tensorcore_dsl.runtime.launch_config import LaunchConfig
from tests.fake_gpu import CUBIN, DeviceNDArray, FakeGpu, OnGpu, is_native, packed

pytestmark = pytest.mark.skipif(not native_function.available(), reason="there is no fast path")


# A library with an exchange API, over memory of the host. Arrays say that they lie on a GPU.


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Tensor:
    """Imitates torch's tensor: a class of this name, whose exchange API reads it."""

    def __init__(self, array, device=0):
        self.array, self.device_index = array, device
        self.dtype, self.shape = f"torch.{array.dtype}", array.shape
        self.device = type("Device", (), {"type": "cuda", "index": device})
        self.layout, self.is_sparse = "torch.strided", False
        self.ndim, self.numbers = array.ndim, ctypes.c_int64 * max(array.ndim, 1)

    def stride(self):
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def data_ptr(self):
        return self.array.ctypes.data

    def get_device(self):
        return self.device_index

    def is_neg(self):
        return False

    is_conj = is_neg


Tensor.__module__, Tensor.__qualname__ = "torch", "Tensor"
streams = {0: 11, 1: 22}
reads = []  # arrays that the API was asked for


def _tensor(tensor, out):
    if tensor.device_index < 0:
        return -1
    reads.append(tensor)
    tensor.kept = tensor.numbers(*tensor.shape), tensor.numbers(*tensor.stride())
    kind = {"f": 2, "i": 0, "V": 4}[tensor.array.dtype.kind]
    shape, strides = (ctypes.cast(n, ctypes.POINTER(ctypes.c_int64)) for n in tensor.kept)
    out[0] = DLTensor(
        tensor.data_ptr() - 64,
        2,
        tensor.device_index,
        tensor.ndim,
        kind,
        8 * tensor.array.itemsize,
        1,
        shape,
        strides,
        64,
    )
    return 0


def _stream(kind, device, out):
    assert kind == machine_code._CUDA
    out[0] = streams[device]
    return 0


_tensor_c = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))(_tensor)
_stream_c = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(
    _stream
)
NAME = ctypes.create_string_buffer(b"dlpack_exchange_api")  # the capsule does not copy it
API = (ctypes.c_uint64 * 7)(
    1, 0, 1, 1, 1, *(function_code.address_of(function) for function in (_tensor_c, _stream_c))
)
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.argtypes, _capsule.restype = ([ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object)
Tensor.__dlpack_c_exchange_api__ = _capsule(ctypes.addressof(API), NAME, None)


@pytest.fixture(autouse=True)
def library(monkeypatch):
    core = type("core", (), {"_cuda_getCurrentRawStream": staticmethod(streams.__getitem__)})
    monkeypatch.setitem(__import__("sys").modules, "torch", type("torch", (), {"_C": core}))
    monkeypatch.setitem(streams, 0, 11)
    reads.clear()


VIEWS = [  # of 8 x 8 elements, each with a property of its own
    lambda whole: whole[:4],
    lambda whole: whole.T,
    lambda whole: whole[:, ::2],
    lambda whole: whole[:, 1:],
    lambda whole: whole.view(np.int32),
    lambda whole: whole.reshape(2, 4, 8),
    lambda whole: whole[0],
]


def launcher(gpu, cubin=CUBIN, **options):
    return Launcher(lambda types: cubin, LaunchConfig.of((4, 2), 128), gpu, **options)


def warm(run, *values):
    """Launch until machine code does it."""
    run(*values)
    run(*values)
    assert is_native(run.fast)


# What machine code reads.


def test_tensors_and_numbers():
    gpu = FakeGpu()
    run = launcher(gpu, declared=(None, None, None, None, dtypes.f64, dtypes.u8, None, None))
    for round_ in range(4):
        a, b = Tensor(np.zeros((3, 8), np.float16)), Tensor(np.zeros((8, 5)).T)
        values = (a, round_ - 2, 2.5 + round_, b, 0.1 * round_, 255 - round_, True, float("inf"))
        if round_ < 2:
            run(*values)
        else:
            assert is_native(run.fast)
            run.fast(*values)
        expected = packed(
            a,
            round_ - 2,
            2.5 + round_,
            b,
            np.float64(0.1 * round_),
            np.uint8(255 - round_),
            True,
            float("inf"),
        )
        assert gpu.records[-1].parameters == expected
        assert gpu.records[-1].stream == 11
    assert (gpu.records[-1].grid, gpu.records[-1].block) == ((4, 2, 1), (128, 1, 1))


def test_no_arguments():
    gpu = FakeGpu()
    prepared = launcher(gpu).prepared()
    assert is_native(prepared) and not gpu.records
    prepared()
    assert [r.parameters for r in gpu.records] == [b""]


def test_the_current_stream_is_asked_for_each_time():
    gpu = FakeGpu()
    run, fixed = launcher(gpu), launcher(gpu, stream=5)
    tensor = Tensor(np.zeros(4, np.float32))
    warm(run, tensor)
    streams[0] = 33  # as under `with torch.cuda.stream(...)`
    run(tensor)
    warm(fixed, tensor)
    assert [r.stream for r in gpu.records] == [11, 11, 33, 5, 5]


@pytest.mark.parametrize(
    "other", [*VIEWS, lambda whole: whole.astype(np.float64), lambda whole: whole[0, 0:0]]
)
def test_each_property_of_an_array_counts(other):
    gpu = FakeGpu()
    seen = []
    run = Launcher(lambda types: seen.append(types[0]) or CUBIN, LaunchConfig.of(1, 32), gpu)
    whole = np.zeros((8, 8), np.float32)
    arrays = [Tensor(whole), Tensor(other(whole))]
    for _ in range(3):
        for array in arrays:
            run(array)
            assert gpu.records[-1].parameters == packed(array)
    assert len(seen) == 2


def test_a_tensor_on_another_gpu():
    gpu = FakeGpu(context=0)
    run = launcher(gpu)
    for device in (0, 0, 1, 1, 0, 1):
        run(Tensor(np.zeros(4, np.float16), device))
    assert [r.function for r in gpu.records] == [1000, 1000, 1001, 1001, 1000, 1001]
    assert [r.stream for r in gpu.records] == [11, 11, 22, 22, 11, 22]


def test_plans_alternate_in_machine_code(monkeypatch):
    gpu = FakeGpu()
    run = launcher(gpu)
    tensors = [Tensor(np.zeros((n, 4), np.float32)) for n in range(1, 7)]
    for _ in range(3):
        for tensor in tensors:
            warm(run, tensor)
    monkeypatch.setattr(run, "_describe", None)  # the long way would fail
    for tensor in tensors:
        run.fast(tensor)
    assert [r.parameters for r in gpu.records[-6:]] == [packed(t) for t in tensors]


def test_chains_are_bounded(monkeypatch):
    monkeypatch.setattr(plans, "MAX_PLANS", 3)
    gpu = FakeGpu()
    run = launcher(gpu)
    tensors = [Tensor(np.zeros(n + 1, np.float32)) for n in range(9)]
    for tensor in tensors * 2:
        warm(run, tensor)
    (chain,) = run._fast_path._chains.values()
    assert len(chain._plans) == 3
    assert [r.parameters for r in gpu.records] == [packed(t) for t in tensors for _ in range(2)] * 2


def test_numpy_scalars():
    gpu = FakeGpu()
    run = launcher(gpu)
    kinds = (
        np.float16,
        np.float32,
        np.float64,
        np.int8,
        np.uint16,
        np.int64,
        np.bool_,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
    )
    warm(run, *(kind(1) for kind in kinds))
    for number in (0, 1, 3.5, 0.25):
        values = [kind(number) for kind in kinds]
        run.fast(*values)
        assert is_native(run.fast)
        assert gpu.records[-1].parameters == packed(*values)


def test_booleans_and_whole_numbers_for_floats():
    gpu = FakeGpu()
    run = launcher(gpu, declared=(None, dtypes.f32, dtypes.f64))
    warm(run, True, 1, 2)
    for values in ((False, 3, 4), (True, -(2**60), 2**60)):
        run.fast(*values)
        expected = packed(values[0], float(values[1]), np.float64(values[2]))
        assert gpu.records[-1].parameters == expected
    with pytest.raises(ArgumentError, match="beyond the range of f32"):
        run.fast(True, 10**39, 1)


class CupyArray:
    """Imitates CuPy's array: a pointer and a device in `data`, and new tuples on each access."""

    def __init__(self, array, device=0):
        self.array, self.dtype = array, array.dtype
        self.data = type("MemoryPointer", (), {"ptr": array.ctypes.data, "device_id": device})
        self.device = type("Device", (), {"id": device})
        self.__cuda_array_interface__ = OnGpu(array).__cuda_array_interface__

    @property
    def shape(self):
        return tuple(list(self.array.shape))

    @property
    def strides(self):
        return tuple(list(self.array.strides))


CupyArray.__module__, CupyArray.__qualname__ = "cupy", "ndarray"


def test_cupy_arrays_and_their_stream(monkeypatch):
    current = type("Stream", (), {"ptr": 7})
    cuda = type("cuda", (), {"get_current_stream": staticmethod(lambda: current)})
    monkeypatch.setitem(sys.modules, "cupy", type("cupy", (), {"cuda": cuda}))
    gpu = FakeGpu()
    run = launcher(gpu)
    whole = np.zeros((8, 300), np.float32)
    for view in (whole, whole[:, 1:], whole[::2], whole.T, whole[0]):
        warm(run, CupyArray(view), 1)
        current.ptr += 1
        run.fast(CupyArray(view), 2)
        assert gpu.records[-1].parameters == packed(CupyArray(view), 2)
        assert gpu.records[-1].stream == current.ptr
    gpu.context = 1
    run(CupyArray(whole, 1), 1)
    assert gpu.records[-1].function == 1001


# What the fallback gets.


def test_integers_at_the_borders_of_their_types():
    gpu = FakeGpu()
    run = launcher(gpu)
    warm(run, 1)
    for value in (2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 2**63 - 1, 7):
        run.fast(value)
        assert gpu.records[-1].parameters == packed(value)


def test_subclasses_and_other_classes():
    gpu = FakeGpu()
    run = launcher(gpu)
    warm(run, 1)

    class Mine(int):
        pass

    for value in (True, 1.5, Mine(3), np.int8(4), OnGpu(np.zeros(3, np.float32)), 5):
        run(value)
        assert gpu.records[-1].parameters == packed(value)


def test_a_tensor_that_is_not_exchanged():
    """The API refuses; the protocol that Python reads still works."""
    gpu = FakeGpu(context=-1)
    run = launcher(gpu)
    good, bad = Tensor(np.zeros(4, np.float16)), Tensor(np.zeros(4, np.float16), -1)
    streams[-1] = 44
    gpu.context = 0
    warm(run, good)
    run(bad)
    assert gpu.records[-1].parameters == packed(bad)
    run(good)
    assert gpu.records[-1].parameters == packed(good)
    del streams[-1]


class Box:
    """Imitates the owner of Numba's device memory."""

    def __init__(self, pointer):
        self.device_ctypes_pointer = ctypes.c_void_p(pointer)


def numba_array(array):
    device_array = DeviceNDArray(array)
    device_array.gpu_data = Box(array.ctypes.data)
    return device_array


@pytest.mark.parametrize(
    "other", [*VIEWS, lambda whole: whole.copy(), lambda whole: whole.astype(ml_dtypes.bfloat16)]
)
def test_numba_arrays(other):
    gpu = FakeGpu()
    seen = []
    run = Launcher(lambda types: seen.append(types) or CUBIN, LaunchConfig.of(1, 32), gpu)
    whole = np.zeros((8, 8), np.float32)
    arrays = [numba_array(whole), numba_array(other(whole))]
    for _ in range(3):
        for array in arrays:
            warm(run, array, 1)
            run.fast(array, 2)
            assert gpu.records[-1].parameters == packed(array, 2)
    assert len(seen) in (1, 2)
    kept = (arrays[0].dtype, arrays[0].shape, arrays[0].strides, arrays[0].gpu_data)
    counts = [sys.getrefcount(value) for value in kept]
    for _ in range(1000):
        run.fast(arrays[0], 2)
    more = [sys.getrefcount(v) - n for v, n in zip(kept, counts, strict=True)]
    assert all(abs(number) < 500 for number in more)  # others use the dtype too


def test_numba_arrays_that_lack_something():
    gpu = FakeGpu()
    run = launcher(gpu)
    good, bare = numba_array(np.zeros(8, np.float32)), DeviceNDArray(np.ones(8, np.float32))
    empty = numba_array(np.zeros(0, np.float32))
    empty.device_ctypes_pointer = empty.gpu_data.device_ctypes_pointer = ctypes.c_void_p(0)
    empty.__cuda_array_interface__["data"] = (0, False)
    warm(run, good)
    for _ in range(2):
        for array in (bare, empty, good):
            run(array)
            assert gpu.records[-1].parameters[:8] == struct.pack("Q", array.device_ctypes_pointer.value or 0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_wrong_number_of_arguments(count):
    prepared = launcher(FakeGpu()).prepared(1, 2)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        raise_for(prepared, count)
    assert not isinstance(caught.value, SystemError)


def raise_for(prepared, count):
    prepared(*range(count))
    raise LookupError("a kernel of any number of arguments took them")


def test_without_machine_code(monkeypatch):
    monkeypatch.setattr(native_function, "available", lambda: False)
    gpu = FakeGpu()
    run = launcher(gpu)
    tensor = Tensor(np.zeros(4, np.float16))
    for _ in range(3):
        run(tensor, 1)
        run.prepared(tensor, 1)(tensor, 2)
    assert not is_native(run.fast)
    assert [r.parameters for r in gpu.records] == [packed(tensor, n) for n in (1, 2)] * 3


# Errors of the driver.


def test_driver_errors_are_raised_once():
    gpu = FakeGpu()
    run = launcher(gpu)
    warm(run, 1)
    gpu.codes = [700]
    with pytest.raises(LaunchError, match="CUDA_ERROR_700"):
        run.fast(1)
    run.fast(2)  # its memory is free again
    assert is_native(run.fast)
    assert [r.parameters for r in gpu.records] == [packed(n) for n in (1, 1, 2)]


def test_new_thread_and_other_gpu():
    gpu = FakeGpu(context=0)
    prepared = launcher(gpu).prepared(1)
    for context in (0, None, 0, 1, 1, 0):
        gpu.context = context
        prepared(2)
    assert [r.function for r in gpu.records] == [1000, 1000, 1000, 1001, 1001, 1000]


# Prepared handles.


def test_prepared_numba_arrays_are_compared_by_identity():
    gpu = FakeGpu()
    run = launcher(gpu)
    a, b = (DeviceNDArray(np.zeros((4, 8), np.float32)) for _ in range(2))
    prepared = run.prepared(a, b, 3)
    assert is_native(prepared)
    prepared(a, b, 3)
    prepared(b, a, 4)
    prepared(a, b, 5)
    assert [r.parameters for r in gpu.records] == [packed(a, b, 3), packed(b, a, 4), packed(a, b, 5)]


def test_a_prepared_launch_keeps_its_arrays_alive_and_releases_them():
    gpu = FakeGpu()
    array = DeviceNDArray(np.zeros((4, 8), np.float32))
    alive = weakref.ref(array)
    prepared = launcher(gpu).prepared(array)
    del array
    gc.collect()
    assert alive() is not None
    prepared(alive())
    del prepared
    gc.collect()
    assert alive() is None


def test_a_launcher_keeps_no_arrays():
    run = launcher(FakeGpu())
    tensor = Tensor(np.zeros(4, np.float16))
    alive = weakref.ref(tensor)
    warm(run, tensor)
    del tensor
    reads.clear()
    gc.collect()
    assert alive() is None


# Tensor maps.

MAPS = (TensorMap(0, (1, 0), (8, 8), 0), TensorMap(1, (1, 0), (8, 8), 0), TensorMap(0, (1, 0), (16, 8), 0))
MAPPED = Cubin("fake", "sm_90a", "", b"", "", tensor_maps=MAPS)


def aligned():
    raw = np.zeros(16 * 32 * 2 + 16, np.uint8)
    start = -raw.ctypes.data % 16
    return Tensor(raw[start : start + 1024].view(np.float16).reshape(16, 32))


def images(parameters):
    """The pointers in the maps behind the other parameters."""
    at = parameters[-3 * memory_layout.WORD * 16 :]
    return [struct.unpack_from("Q", at, 128 * i)[0] for i in range(3)]


def test_maps_follow_their_pointers(monkeypatch):
    gpu = FakeGpu(sizes=(8, 4, 4, 8, 8, 4, 4, 8, 128, 128, 128))
    run = launcher(gpu, MAPPED)
    first, second, third = (aligned() for _ in range(3))
    for a, b in ((first, second), (second, first), (first, third), (third, first)):
        warm(run, a, b)
    encoded = len(gpu.encoded)
    monkeypatch.setattr(run, "_describe", None)  # the long way would fail
    for a, b in ((first, second), (third, first), (third, first), (second, third), (first, first)):
        run.fast(a, b)
        pa, pb = a.data_ptr(), b.data_ptr()
        assert struct.unpack_from("Q", gpu.records[-1].parameters)[0] == pa
        assert images(gpu.records[-1].parameters) == [pa, pb, pa]
    assert len(gpu.encoded) == encoded


def test_pointers_whose_maps_are_known_are_bounded(monkeypatch):
    monkeypatch.setattr(plans, "MAX_POINTERS", 2)
    gpu = FakeGpu(sizes=(8, 4, 4, 8, 8, 4, 4, 8, 128, 128, 128))
    run = launcher(gpu, MAPPED)
    tensors = [aligned() for _ in range(5)]
    for _ in range(3):
        for a, b in zip(tensors, [*tensors[1:], tensors[0]], strict=True):
            warm(run, a, b)
            pa, pb = a.data_ptr(), b.data_ptr()
            assert images(gpu.records[-1].parameters) == [pa, pb, pa]


# Gradients.


class Parameter(Tensor):
    """A tensor that may require a gradient."""

    requires_grad = False

    def __init__(self, array, requires_grad):
        super().__init__(array)
        self.requires_grad = requires_grad


class Dual(Parameter):
    """A tensor that may have a tangent."""

    def __init__(self, array, tangent):
        super().__init__(array, False)
        self.tangent = tangent


for kind in (Parameter, Dual):
    kind.__module__, kind.__qualname__ = "torch.nn.parameter", "Parameter"


def test_gradients_that_would_be_lost_are_noticed_by_machine_code(monkeypatch):
    recording = [False]
    library = sys.modules["torch"]
    monkeypatch.setattr(library, "is_grad_enabled", lambda: recording[0], raising=False)
    gpu, array = FakeGpu(), np.zeros((4, 4), np.float32)
    run = launcher(gpu, names=("x",))
    free, required = Parameter(array, False), Parameter(array, True)
    warm(run, required)
    key = key_function((Parameter,))
    assert is_native(key)
    assert key(required) == key(free)
    with monkeypatch.context() as only_native:
        only_native.setattr(Parameter, "is_neg", None)  # which Python calls
        for tensor in (required, free):
            run.fast(tensor)
    recording[0] = True
    run.fast(free)
    count = len(gpu.records)
    for launch in (run.fast, run):
        with pytest.raises(ArgumentError, match="'x': a torch tensor that requires grad.*no_grad"):
            launch(required)
    with pytest.raises(ArgumentError, match="requires grad"):
        key(required)
    assert len(gpu.records) == count
    assert key(free)


def test_tangents_that_would_be_lost_are_noticed_by_machine_code(monkeypatch):
    library = sys.modules["torch"]
    core = types.SimpleNamespace(
        DispatchKey=types.SimpleNamespace(AutogradFunctionality=0),
        _dispatch_tls_is_dispatch_key_excluded=bool,
    )
    forward = types.SimpleNamespace(
        _current_level=-1,
        _is_fwd_grad_enabled=lambda: True,
        unpack_dual=lambda x: x,
        torch=types.SimpleNamespace(_C=core),
    )
    monkeypatch.setattr(library, "is_grad_enabled", lambda: False, raising=False)
    monkeypatch.setitem(sys.modules, "torch.autograd.forward_ad", forward)
    gpu = FakeGpu()
    run = launcher(gpu, names=("x",))
    plain, dual = (Dual(np.zeros((4, 4), np.float32), tangent) for tangent in (None, 1))
    warm(run, plain)
    key = key_function((Dual,))
    with monkeypatch.context() as only_native:
        only_native.setattr(Parameter, "is_neg", None)  # which Python calls
        assert key(dual) == key(plain)
        run.fast(dual)
    forward._current_level = 0
    count = len(gpu.records)
    for launch in (run.fast, run, key):
        launch(plain)
        with pytest.raises(ArgumentError, match=r"a torch tensor that has a tangent.*x\.detach\(\)"):
            launch(dual)
    assert len(gpu.records) == count + 2
    forward._is_fwd_grad_enabled = lambda: False
    run.fast(dual)


def test_attributes_of_c_classes_are_read_without_a_look_up():
    getter = memory_layout.getter_of(type(is_native), "__code__")
    get = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)(getter.get)
    assert get(is_native, getter.closure) is is_native.__code__
    assert memory_layout.getter_of(Parameter, "requires_grad") is None


# torch itself.


def test_tensors_of_torch_that_require_gradients(monkeypatch):
    monkeypatch.undo()
    torch = pytest.importorskip("torch")
    key = key_function((torch.Tensor, torch.nn.Parameter))
    plain, weight = torch.zeros(4, 4), torch.nn.Parameter(torch.zeros(4, 4))
    with torch.no_grad():
        known = key(plain, weight)
    with pytest.raises(ArgumentError, match=r"x\.detach\(\)"):
        key(plain, weight)
    with torch.inference_mode():
        assert key(plain, weight) == known
    weight.requires_grad_(False)
    assert key(plain, weight) == known
    with torch.autograd.forward_ad.dual_level():
        key(plain, weight)
        with pytest.raises(ArgumentError, match="has a tangent"):
            key(torch.autograd.forward_ad.make_dual(plain, plain), weight)
    with pytest.raises(ArgumentError, match="without memory"):
        torch.vmap(lambda x: key_function((torch.Tensor,))(x) and x)(plain)


def test_keys_of_torch_tensors(monkeypatch):
    monkeypatch.undo()
    torch = pytest.importorskip("torch")
    if argument_kinds.array_kind(torch.Tensor) is None:
        pytest.skip("this torch has no exchange API")
    key = key_function((torch.Tensor,))
    tensor = torch.zeros(6, 8, dtype=torch.bfloat16)[1:, ::2]
    facts = struct.unpack("8Q", key(tensor))
    assert facts[2:] == (tensor.data_ptr() % 16, 2, 5, 4, 8, 2)
    dtypes_seen = {
        key(torch.zeros(2, dtype=dtype))[8:16]
        for dtype in (
            torch.bfloat16,
            torch.float16,
            torch.int16,
            torch.uint8,
            torch.int8,
            torch.bool,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.float32,
            torch.int32,
        )
    }
    assert len(dtypes_seen) == 10
    with pytest.raises(ArgumentError):
        key(torch.zeros(3).to_sparse())


def test_types_are_as_python_reads_them():
    seen = []
    run = Launcher(lambda types: seen.append(types) or CUBIN, LaunchConfig.of(1, 32), FakeGpu())
    warm(run, Tensor(np.zeros((4, 8), ml_dtypes.bfloat16)), 1)
    assert seen == [(ArrayType(dtypes.bf16, 2, (False, True), 16, True), seen[0][1])]


def test_views_of_torch_tensors(monkeypatch):
    """Machine code writes for any view what Python would have written."""
    monkeypatch.undo()
    torch = pytest.importorskip("torch")
    if argument_kinds.array_kind(torch.Tensor) is None:
        pytest.skip("this torch has no exchange API")

    class AsIfOnGpu(Launcher):
        def _describe(self, args):
            descriptions = super()._describe(args)
            return [d._replace(device=-1) if d.on_host else d for d in descriptions]

    gpu = FakeGpu()
    run = AsIfOnGpu(lambda types: CUBIN, LaunchConfig.of(1, 32), gpu, stream=0)
    draw = random.Random(5)
    kinds = (torch.float16, torch.bfloat16, torch.int8, torch.float32, torch.float64, torch.bool)
    for turn in range(400):
        tensors = [view_of(torch, draw, draw.choice(kinds)) for _ in range(2)]
        for _ in range(1 if turn % 3 else 3):
            run(*tensors, turn)
            assert gpu.records[-1].parameters == packed(*tensors, turn)


def view_of(torch, draw, dtype):
    """Some view of a tensor of one to three dimensions, also empty or of extent one."""
    shape = [draw.choice((0, 1, 1, 2, 3, 8)) for _ in range(draw.randint(1, 3))]
    view = torch.zeros([extent + 2 for extent in shape]).to(dtype)
    for axis, extent in enumerate(shape):
        start = draw.randint(0, 2)
        view = view.narrow(axis, start, extent)
    view = view.permute(*draw.sample(range(view.ndim), view.ndim))
    return view[:: draw.choice((1, 2))]


# Keys.


@pytest.mark.parametrize(
    "other",
    [
        *VIEWS,
        lambda whole: whole[0, 0],
        lambda whole: whole.reshape((1,) * 7 + (8, 8)),  # more axes than machine code reads
    ],
)
def test_keys(other):
    whole = np.zeros((8, 8), np.float32)
    key = key_function((Tensor, Tensor))
    assert is_native(key)
    one, same, changed = Tensor(whole), Tensor(whole.copy()), Tensor(np.asarray(other(whole)))
    assert key(one, same) == key(same, one) != key(one, changed)
    assert key(one, changed) != key(changed, one) == key(changed, same)
    assert len({key(one, one), key(one, changed), key(changed, one), key(changed, changed)}) == 4
    assert key(Tensor(whole, 1), one) != key(one, one)


@pytest.mark.parametrize("library", [Tensor, "attributes", "cupy", DeviceNDArray])
def test_keys_tell_where_results_lie(library):
    """Beside what they are near to; what lies apart makes no difference."""
    if library == "attributes":
        library = type("Parameter", (Parameter,), {"__module__": "torch.nn.parameter"})
        library.__qualname__, library.__dlpack_c_exchange_api__ = "Parameter", None
        library.element_size = lambda tensor: tensor.array.itemsize
        dtype = "torch.float32"  # one object, as torch's

        def make(array):
            tensor = library(array, False)
            tensor.dtype = dtype
            return tensor
    else:
        library = make = CupyArray if library == "cupy" else library
    key, plain = key_function((library, library, library), 1), key_function((library, library, library))
    memory = np.zeros((1 << 12, 8), np.float32)
    rows = lambda first, last: make(memory[first:last])
    known = lambda *places: key(*(rows(first, first + 8) for first in places))
    far = known(0, 100, 200)
    assert known(100, 0, 300) == known(0, 100, 104) == known(0, 200, 100) == far
    near = [known(0, 0, 200), known(0, 7, 200), known(7, 0, 200), known(0, 200, 0), known(0, 4, 4)]
    assert len({far, *near}) == 6
    assert known(50, 57, 300) == known(0, 7, 200)
    assert plain(rows(0, 8), rows(0, 8), rows(0, 8)) == plain(rows(0, 8), rows(9, 17), rows(0, 8))
    backwards = key(make(memory[8:0:-1]), rows(0, 2), rows(100, 108))
    assert backwards == key(make(memory[58:50:-1]), rows(50, 52), rows(100, 108))
    assert backwards != key(make(memory[58:50:-1]), rows(0, 2), rows(100, 108))


def test_distances_in_python_are_those_of_machine_code():
    memory = np.zeros((64, 8), np.float32)
    arguments = [describe(memory[first : first + 8]) for first in (0, 7, 8, 20)]
    assert plans.distances(arguments, 2) == (7 * 32, None, None, 32, None)
    assert plans.distances(arguments, 0) == ()


def test_keys_of_arrays_that_machine_code_cannot_read():
    key = key_function((Tensor,))
    refused = Tensor(np.zeros(4, np.float16), -1)
    assert key(refused) == key(refused) != key(Tensor(np.zeros(4, np.float16)))
    with pytest.raises(ArgumentError):
        key(None)
    arrays = DeviceNDArray(np.zeros(4)), DeviceNDArray(np.zeros(5))
    key = key_function((DeviceNDArray,))
    assert key(arrays[0]) != key(arrays[1])


def test_names_and_classes_live_as_long_as_the_code_that_refers_to_them():
    name = "".join(("only", "_", "here"))
    address = machine_code.address_of_name(name)
    del name
    assert ctypes.cast(address, ctypes.py_object).value == "only_here"

    class Array:
        pass

    kind = argument_kinds.AttributeArray(Array, ("pointer",), "strides", (), False, ())
    key, known = native_function.key_function((kind,), lambda x: "fallback"), weakref.ref(Array)
    del Array, kind
    native_function._compiled.cache_clear()
    gc.collect()
    assert known() is not None and key(0) == "fallback"
    del key
    gc.collect()
    assert known() is None
