"""Call Python functions from compiled XLA programs.

On a GPU, XLA calls a handler of its foreign function interface, which finds the function by the attribute
`key`. The buffers are `DeviceArray`s, and the function queues its work on XLA's stream. The structures are
defined in `xla/ffi/api/c_api.h`. On the CPU, the function is a callback with NumPy arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p, cast
from typing import Any, ClassVar

import jax
import ml_dtypes
import numpy as np

from tensorcore_dsl.runtime.arguments import contiguous
from tensorcore_dsl.runtime.driver import cuda_driver

TARGET = "tensorcore_dsl"
_METADATA, _EXECUTE, _INTERNAL = 1, 3, 13  # extension type, execution stage, error code
_DTYPES = {  # XLA_FFI_DataType
    1: np.bool_, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.uint8, 7: np.uint16, 8: np.uint32,
    9: np.uint64, 10: np.float16, 11: np.float32, 12: np.float64, 16: ml_dtypes.bfloat16,
    19: ml_dtypes.float8_e5m2, 20: ml_dtypes.float8_e4m3fn, 33: ml_dtypes.float8_e8m0fnu,
}  # fmt: skip

Function = Callable[[Sequence[Any], Sequence[Any], int], None]  # inputs, outputs, stream

_functions: dict[str, Function] = {}  # by key


class _Struct(ctypes.Structure):
    """Base of XLA's structures: size in bytes, and a list of extensions."""

    _fields_: ClassVar[Any] = (("struct_size", c_size_t), ("extensions", c_void_p))


class _Version(_Struct):
    _fields_ = (("major", c_int), ("minor", c_int))


class _Extension(ctypes.Structure):
    _fields_ = (("struct_size", c_size_t), ("type", c_int), ("next", c_void_p))


class _Metadata(ctypes.Structure):
    _fields_ = (("struct_size", c_size_t), ("version", _Version), ("traits", c_uint32))


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", POINTER(_Metadata)))


class _Buffer(_Struct):
    _fields_ = (("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64)))


class _Values(_Struct):
    _fields_ = (("size", c_int64), ("types", c_void_p), ("values", POINTER(c_void_p)))


class _Span(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("size", c_size_t))

    def text(self) -> str:
        return ctypes.string_at(self.data, self.size).decode()


class _Attributes(_Struct):
    _fields_ = (
        ("size", c_int64), ("types", c_void_p), ("names", POINTER(POINTER(_Span))),
        ("values", POINTER(c_void_p)),
    )  # fmt: skip


class _Api(_Struct):
    _fields_ = (
        ("version", _Version), ("internal", c_void_p), ("create_error", c_void_p),
        ("message_of_error", c_void_p), ("destroy_error", c_void_p), ("register_handler", c_void_p),
        ("get_stream", c_void_p),
    )  # fmt: skip


class _Frame(_Struct):
    _fields_ = (
        ("api", POINTER(_Api)), ("context", c_void_p), ("stage", c_int), ("inputs", _Values),
        ("outputs", _Values), ("attributes", _Attributes),
    )  # fmt: skip


class _StreamArgs(_Struct):
    _fields_ = (("context", c_void_p), ("stream", c_void_p))


class _ErrorArgs(_Struct):
    _fields_ = (("message", c_char_p), ("code", c_int))


_CALL = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class DeviceArray:
    """An array in GPU memory.

    Attributes
    ----------
    strides
        In bytes, None for row-major.
    owner
        Object that owns the memory.
    """

    def __init__(
        self, pointer: int, shape: tuple[int, ...], dtype: Any, strides: Any = None, owner: Any = None
    ) -> None:
        self.pointer, self.shape, self.dtype, self.owner = pointer, shape, np.dtype(dtype), owner
        steps = contiguous(shape)
        self.strides = tuple(step * self.dtype.itemsize for step in steps) if strides is None else strides
        self.ndim, self.device = len(shape), None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "version": 3,
            "stream": None,  # the caller queues on the stream of the buffers
        }

    def swapaxes(self, first: int, second: int) -> DeviceArray:
        shape, strides = list(self.shape), list(self.strides)
        for axes in (shape, strides):
            axes[first], axes[second] = axes[second], axes[first]
        return DeviceArray(self.pointer, tuple(shape), self.dtype, tuple(strides), self.owner)

    def __array_namespace__(self) -> type[_Namespace]:
        return _Namespace


class _Namespace:
    """Array namespace of DeviceArray; kernels allocate their workspaces with `empty`."""

    bool = np.bool_
    float16, float32, float64, bfloat16 = np.float16, np.float32, np.float64, ml_dtypes.bfloat16
    int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
    uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
    float8_e4m3fn, float8_e5m2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2

    @staticmethod
    def empty(shape: tuple[int, ...], *, dtype: Any, device: Any) -> DeviceArray:
        size = max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1)
        pointer, owner = cuda_driver().memory(0).allocate(size)
        return DeviceArray(pointer, tuple(shape), dtype, owner=owner)


def _arrays(values: _Values) -> list[DeviceArray]:
    buffers = (cast(values.values[i], POINTER(_Buffer)).contents for i in range(values.size))
    return [DeviceArray(b.data or 0, tuple(b.dims[: b.rank]), _DTYPES[b.dtype]) for b in buffers]


def _attribute(attributes: _Attributes, name: str) -> str:
    for i in range(attributes.size):
        if attributes.names[i].contents.text() == name:
            return cast(attributes.values[i], POINTER(_Span)).contents.text()
    raise KeyError(name)


def _stream(frame: _Frame) -> int:
    """The handle of the stream on which XLA runs the program."""
    arguments = _StreamArgs(ctypes.sizeof(_StreamArgs), None, frame.context, None)
    if _CALL(frame.api.contents.get_stream)(ctypes.addressof(arguments)):
        raise RuntimeError("XLA has no stream for the call")
    return arguments.stream or 0


def _extensions(frame: _Frame) -> Iterator[tuple[int, int]]:
    """Yield type and address of each extension."""
    address = frame.extensions
    while address:
        extension = _Extension.from_address(address)
        yield extension.type, address
        address = extension.next


def _handle(address: int) -> int | None:
    """Call the function that a call frame names. Return an XLA error, None on success."""
    frame = _Frame.from_address(address)
    for kind, extension in _extensions(frame):
        if kind == _METADATA:  # the registration asks for the version
            metadata = _MetadataExtension.from_address(extension).metadata.contents
            version = frame.api.contents.version
            metadata.version.major, metadata.version.minor = version.major, version.minor
            return None
    if frame.stage != _EXECUTE:
        return None
    try:
        key = _attribute(frame.attributes, "key")
        _functions[key](_arrays(frame.inputs), _arrays(frame.outputs), _stream(frame))
    except Exception as error:  # No exception may pass through C code.
        text = f"{type(error).__name__}: {error}".encode()
        arguments = _ErrorArgs(ctypes.sizeof(_ErrorArgs), None, text, _INTERNAL)
        return int(_CALL(frame.api.contents.create_error)(ctypes.addressof(arguments)) or 0)
    return None


HANDLER = _CALL(_handle)  # must stay alive as long as XLA may call it
jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(HANDLER), platform="CUDA")


def call(key: str, function: Function, results: Any, *arrays: Any) -> Any:
    """Add a call of function(inputs, outputs, stream) to the program that is being traced.

    key: identifies the function in compiled programs, also in other processes. results: shape and type of
    the output, or a tuple with one for each output. `vmap` calls the function for each element.
    """
    _functions[key] = function

    # JAX waits for a program with a callback. A handler would run while Python goes on, and wait for
    # locks that Python holds as it waits for the program's result.
    def on_host(*inputs: Any) -> Any:
        structs = results if isinstance(results, tuple) else (results,)
        outputs = [np.empty(x.shape, x.dtype) for x in structs]
        function([np.asarray(x) for x in inputs], outputs, 0)
        return tuple(outputs) if isinstance(results, tuple) else outputs[0]

    def on_cpu(*inputs: Any) -> Any:
        return jax.pure_callback(on_host, results, *inputs, vmap_method="sequential")

    def on_cuda(*inputs: Any) -> Any:
        return jax.ffi.ffi_call(TARGET, results, vmap_method="sequential")(*inputs, key=key)

    return jax.lax.platform_dependent(*arrays, cpu=on_cpu, cuda=on_cuda)
