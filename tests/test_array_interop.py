"""Arrays by DLPack, with and without versions and flags; array API namespaces; JAX."""

from __future__ import annotations

import ctypes
import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.runtime.arguments import describe
from tensorcore_dsl.runtime.array_interop import DLManagedTensorVersioned, DLTensor, read_array, stream_handle
from tests.arrays import Dlpack, new_capsule

READ_ONLY, COPIED = 1, 2
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Versioned:
    """Eight s32 that DLPack exports with a version and flags. asked: the options of each export."""

    def __init__(self, flags: int = 0, major: int = 1) -> None:
        self.numbers, self.shape = np.arange(8, dtype=np.int32), (ctypes.c_int64 * 1)(8)
        tensor = DLTensor(self.numbers.ctypes.data, 1, 0, 1, 0, 32, 1, self.shape, None, 0)
        self.managed = DLManagedTensorVersioned(major, 3, None, None, flags, tensor)
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        return new_capsule(ctypes.addressof(self.managed), b"dltensor_versioned", None)


class OfOldLibrary(Dlpack):
    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


@tc.kernel
def double(x: tc.Array, y: tc.Array):
    y[tc.threadIdx.x] = 2 * x[tc.threadIdx.x]


def test_a_versioned_capsule_is_read_and_written():
    x, y = Versioned(), Versioned()
    double[1, 8](x, y)
    assert np.array_equal(y.numbers, 2 * x.numbers)
    assert x.asked[0] == {"max_version": (1, 1), "copy": False}


def test_read_only_flags_are_respected():
    x, y = Versioned(READ_ONLY), Versioned(READ_ONLY)
    assert not describe(x).type.writable and describe(Versioned()).type.writable
    with pytest.raises(tc.ArgumentError, match="'y' is a read-only array, and double writes it here"):
        double[1, 8](x, y)
    assert np.array_equal(y.numbers, np.arange(8))
    doubled = np.zeros(8, np.int32)
    double[1, 8](x, doubled)
    assert np.array_equal(doubled, 2 * x.numbers)


@pytest.mark.parametrize(
    "producer, text",
    [(Versioned(COPIED), "exports a copy"), (Versioned(major=2), r"returns DLPack 2\.3; asked for was 1\.1")],
)
def test_capsules_that_are_refused(producer, text):
    with pytest.raises(tc.ArgumentError, match=text):
        describe(producer)


def test_numpy_exports_read_only_arrays_with_their_flag():
    array = np.arange(8, dtype=np.float32)
    assert describe(Dlpack(array)).type.writable
    array.flags.writeable = False
    assert not describe(Dlpack(array)).type.writable
    with pytest.raises(tc.ArgumentError, match="method refuses: .*readonly"):
        describe(OfOldLibrary(array))


def test_libraries_from_before_versions():
    array, doubled = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    double[1, 8](OfOldLibrary(array), OfOldLibrary(doubled))
    assert np.array_equal(doubled, 2 * array)


def test_capsules_are_given_back():
    """Each export is released as soon as it is read: its library counts them."""
    freed = []
    deleter = DELETER(freed.append)
    destroyed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(freed.append)

    class Counting(Versioned):
        def __dlpack__(self, **options: Any) -> Any:
            self.managed.deleter = ctypes.cast(deleter, ctypes.c_void_p).value
            address = ctypes.addressof(self.managed)
            return new_capsule(address, b"dltensor_versioned", ctypes.cast(destroyed, ctypes.c_void_p))

    producer = Counting()
    for _ in range(3):
        describe(producer)
    gc.collect()
    assert len(freed) == 3


# -- array API namespaces ------------------------------------------------------------------------


def test_results_are_arrays_of_the_operands_namespace():
    """array-api-strict offers what the standard demands, and nothing else."""
    xp = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    draw = np.random.default_rng(0)
    a, b = (draw.integers(-2, 3, shape).astype(np.float32) for shape in ((24, 40), (40, 16)))
    c = draw.integers(-2, 3, 16).astype(np.float32)
    actual = kernels.gemm(xp.asarray(a), xp.asarray(b), xp.asarray(c))
    assert actual.__array_namespace__().__name__ == xp.__name__ and actual.dtype == xp.float32
    assert np.array_equal(np.asarray(actual), a @ b + c)
    odd = kernels.gemm(xp.asarray(a).mT, xp.asarray(a))  # padded and copied
    assert np.array_equal(np.asarray(odd), a.T @ a)


def test_arrays_of_types_that_the_namespace_has_not_are_numpys():
    xp = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    a = np.ones((16, 64), np.int8)
    actual = kernels.gemm(xp.asarray(a), xp.asarray(a).mT)
    assert np.array_equal(np.asarray(actual), np.full((16, 16), 64))


# -- JAX -----------------------------------------------------------------------------------------


@pytest.fixture
def jnp(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    return pytest.importorskip("jax.numpy", reason="JAX is not installed: pip install jax")


def test_kernels_read_arrays_of_jax(jnp):
    x, doubled = jnp.arange(8.0), np.zeros(8, np.float32)
    double[1, 8](x, doubled)
    assert np.array_equal(doubled, 2 * np.asarray(x))
    assert jnp.array_equal(jnp.from_dlpack(doubled), 2 * x)


def test_kernels_do_not_write_arrays_of_jax(jnp):
    x, y = jnp.arange(8.0), jnp.zeros(8)
    with pytest.raises(tc.ArgumentError, match="'y' is a read-only array"):
        double[1, 8](x, y)
    assert not y.any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products_of_arrays_of_jax(jnp, dtype):
    """The results are NumPy's, as arrays of JAX cannot be written; JAX takes them without a copy."""
    draw = np.random.default_rng(0)
    a, b, c = (jnp.asarray(draw.integers(-2, 3, shape), dtype) for shape in ((24, 40), (40, 16), (16,)))
    actual = kernels.gemm(a, b, c)
    assert isinstance(actual, np.ndarray) and str(actual.dtype) == dtype
    assert jnp.array_equal(jnp.asarray(actual), a @ b + c)


# -- protocols that answer what they must not ---------------------------------------------------


class Broken(SimpleNamespace):
    """An array by protocols of which each answers what it is told to."""


def answering(answer: Any) -> Any:
    """A method that returns this, or raises it."""

    def method(*_: Any, **__: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return method


def capsule(**changed: Any) -> Any:
    memory, extents = np.zeros(8, np.float32), (ctypes.c_int64 * 1)(8)
    tensor = DLTensor(memory.ctypes.data, 1, 0, 1, 2, 32, 1, extents, None, 0)
    for name, value in changed.items():
        setattr(tensor, name, value)
    KEPT.extend((memory, extents, tensor))
    return new_capsule(ctypes.addressof(tensor), b"dltensor", None)


KEPT: list[Any] = []


def exported(capsule: Any, device: Any = (1, 0)) -> Any:
    return Broken(__dlpack__=answering(capsule), __dlpack_device__=answering(device))


def test_capsules_made_by_hand():
    raw = read_array(exported(capsule()))
    assert raw is not None and raw.shape == (8,)


@pytest.mark.parametrize("changed", [{"ndim": -1}, {"ndim": 10**6}, {"shape": None}, {"byte_offset": 2**63}])
def test_wrong_fields_of_capsules(changed):
    with pytest.raises(tc.ArgumentError, match="a Broken whose array protocol is broken"):
        read_array(exported(capsule(**changed)))


@pytest.mark.parametrize("device", [None, (), "cpu", (None, 0), KeyError("x")])
def test_wrong_devices(device):
    with pytest.raises(tc.ArgumentError, match="a Broken whose array protocol is broken"):
        read_array(exported(capsule(), device))


@pytest.mark.parametrize("capsule", [None, 3, "x"])
def test_what_is_no_capsule(capsule):
    with pytest.raises(tc.ArgumentError, match="array protocol is broken"):
        read_array(exported(capsule))


def test_interfaces_and_streams():
    for interface in (
        3,
        {},
        {"shape": (1,), "typestr": "<f4", "data": 3},
        {"shape": (-1,), "typestr": "<f4", "data": (8, False)},
    ):
        with pytest.raises(tc.ArgumentError, match="array protocol is broken"):
            read_array(Broken(__cuda_array_interface__=interface))
    with pytest.raises(tc.ArgumentError, match="stream protocol is broken"):
        stream_handle(Broken(__cuda_stream__=answering((0,))))
