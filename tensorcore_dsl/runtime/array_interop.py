"""Read arrays and streams of other libraries, without importing the libraries.

Protocols: NumPy, torch tensors, __cuda_array_interface__, DLPack, __cuda_stream__.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from math import prod
from operator import index
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tensorcore_dsl.errors import ArgumentError, TensorCoreError, listing

MAX_BYTES, MAX_AXES = 1 << 62, 64  # of a plausible array; larger numbers are errors of its library
CURRENT_DEVICE = -1  # an array on a GPU whose library does not name the device


class Raw(NamedTuple):
    """An array as its protocol describes it. Strides are in bytes, None for row-major.

    `device` is a GPU's ordinal or CURRENT_DEVICE; None is host memory. `stream` is the stream on
    which the producer may still write, if it names one.
    """

    dtype: Any
    pointer: int
    shape: Sequence[int]
    strides: Sequence[int] | None
    readonly: bool = False
    device: int | None = None
    stream: int | None = None


def read_array(obj: Any) -> Raw | None:
    """Return address, shape and strides of an array; None for other objects."""
    if isinstance(obj, np.ndarray):
        return _numpy(obj)
    if is_torch(type(obj)):
        return _torch(obj)
    try:
        if getattr(obj, "__cuda_array_interface__", None) is not None:
            return _checked(_cuda_array_interface(obj))
        if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
            return _checked(_dlpack(obj))
    except TensorCoreError:
        raise
    except Exception as error:  # whatever the object's own code raises
        raise ArgumentError(f"{_broken(obj)}: {type(error).__name__}: {error}") from error
    return None


def _broken(obj: Any) -> str:
    return f"a {type(obj).__name__} whose array protocol is broken"


def _checked(raw: Raw) -> Raw:
    """Convert the description to plain integers; ValueError for impossible values."""
    shape = tuple(map(index, raw.shape))
    strides = None if raw.strides is None else tuple(map(index, raw.strides))
    steps = strides or (np.dtype(raw.dtype).itemsize,)
    if min(shape, default=0) < 0 or (strides is not None and len(strides) != len(shape)):
        raise ValueError(f"shape {shape}, strides {strides} in bytes")
    reach = max(map(abs, steps), default=1) * prod(max(n, 1) for n in shape)
    least = int(0 not in shape)  # no array with elements lies at address 0
    if not least <= index(raw.pointer) <= MAX_BYTES - reach or reach > MAX_BYTES:
        raise ValueError(f"address {raw.pointer:#x}, shape {shape}, strides {strides} in bytes")
    return raw._replace(pointer=index(raw.pointer), shape=shape, strides=strides)


def _numpy(array: np.ndarray[Any, Any]) -> Raw:
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError(
            "a masked array, and kernels know no masks; pass x.filled(...), or x.data to use the "
            "masked elements too"
        )
    if array.dtype.hasobject or array.dtype.names:
        raise ArgumentError(f"NumPy arrays of dtype {array.dtype} have no place in a kernel")
    pointer = array.__array_interface__["data"][0]
    return Raw(array.dtype, pointer, array.shape, array.strides, not array.flags.writeable)


TORCH_DTYPES = (  # NumPy and ml_dtypes have the same names
    "bool",
    "float64",
    "float32",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
)


def is_torch(cls: type) -> bool:
    """True if `cls` is torch's tensor class or a subclass."""
    return any(c.__module__ in ("torch", "torch._tensor") and c.__name__ == "Tensor" for c in cls.__mro__)


def grad_mode(cls: type) -> Callable[[], bool] | None:
    """Return the function that tells whether the library of class `cls` records gradients now.

    None if arrays of the class never require gradients.
    """
    if not hasattr(cls, "requires_grad"):
        return None
    return getattr(sys.modules.get("torch"), "is_grad_enabled", None)


def forward_mode() -> Any:
    """Return torch's module of forward mode, or None. Its `_current_level` is -1 outside a level."""
    return sys.modules.get("torch.autograd.forward_ad")


def has_tangent(tensor: Any) -> bool:
    """Return whether torch differentiates by a tensor in forward mode now."""
    forward = forward_mode()
    if forward is None or forward._current_level < 0 or not forward._is_fwd_grad_enabled():
        return False
    core = forward.torch._C
    # An operator's own code runs below autograd, which has seen the tangent before.
    if core._dispatch_tls_is_dispatch_key_excluded(core.DispatchKey.AutogradFunctionality):
        return False
    return forward.unpack_dual(tensor).tangent is not None


def _refuse_recorded(tensor: Any) -> None:
    """Refuse a tensor whose derivative would be lost, as torch's own exports do.

    torch does not see what a kernel reads and writes: its results would have no `grad_fn` and no
    tangent, and a leaf would change under the graph that it is part of.
    """
    what = remedy = ""
    if has_tangent(tensor):
        what, lost = "has a tangent, in torch's forward mode", "tangent"
    elif getattr(tensor, "requires_grad", False):
        recording = grad_mode(type(tensor))
        if recording is not None and recording():
            what, lost = "requires grad, while torch records gradients", "gradient"
            remedy = "`with torch.no_grad():` or "
    if what:
        raise ArgumentError(
            f"a torch tensor that {what}: a kernel has no derivative, so the {lost} would be lost. "
            f"Pass x.detach(), or call inside {remedy}the forward of a torch.autograd.Function; "
            f"the products of tensorcore_dsl.torch have derivatives"
        )


def _torch(tensor: Any) -> Raw:
    _refuse_recorded(tensor)
    where = tensor.device
    if where.type not in ("cpu", "cuda"):
        raise ArgumentError(f"a torch tensor on {where} has no memory that a kernel reaches; use cpu or cuda")
    if tensor.is_sparse or str(tensor.layout) != "torch.strided":
        raise ArgumentError(f"a torch tensor of layout {tensor.layout} has no strides; use tensor.to_dense()")
    if tensor.is_neg() or tensor.is_conj():
        raise ArgumentError(
            "a lazily negated or conjugated torch tensor; call resolve_neg() and resolve_conj()"
        )
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in TORCH_DTYPES:
        real, words = "torch.view_as_real(x)", "its bytes, x.view(torch.uint8)"
        raise ArgumentError(
            f"torch tensors of {tensor.dtype} are not supported; use one of "
            f"{listing(TORCH_DTYPES)}, or pass {real if tensor.dtype.is_complex else words}"
        )
    dtype = np.dtype(name)
    strides = [stride * dtype.itemsize for stride in tensor.stride()]
    device = (where.index or 0) if where.type == "cuda" else None
    try:
        pointer = tensor.data_ptr()
    except RuntimeError as error:  # fake, functional and other tensors without memory
        raise ArgumentError(f"a torch tensor without memory of its own: {error}") from None
    return Raw(dtype, pointer, tuple(tensor.shape), strides, False, device)


def _cuda_array_interface(obj: Any) -> Raw:
    interface = obj.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ArgumentError("a masked array, and kernels know no masks; pass its filled elements")
    pointer, readonly = interface["data"]
    device = getattr(getattr(obj, "device", None), "id", CURRENT_DEVICE)  # CuPy says
    return Raw(
        _interface_dtype(obj, interface["typestr"]),
        pointer or 0,
        tuple(interface["shape"]),
        interface.get("strides"),
        bool(readonly),
        device if isinstance(device, int) else CURRENT_DEVICE,
        interface.get("stream"),
    )


def _interface_dtype(obj: Any, typestr: str) -> Any:
    """The object's own dtype if it has one: the typestr of bfloat16 is only `V2`."""
    dtype = getattr(obj, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.str == typestr:
        return dtype
    try:
        return np.dtype(typestr)
    except TypeError:
        raise ArgumentError(f"{typestr!r} in __cuda_array_interface__ names no dtype") from None


# DLPack (https://dmlc.github.io/dlpack): a capsule around a structure, in one of two forms.

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_DL_VERSION = (1, 1)  # newest supported version of capsules
_READ_ONLY, _IS_COPY = 1, 2  # bits of the flags
_DL_DTYPES: dict[tuple[int, int], Any] = {
    **{(0, bits): getattr(np, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{(1, bits): getattr(np, f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{(2, bits): getattr(np, f"float{bits}") for bits in (16, 32, 64)},
    (4, 16): ml_dtypes.bfloat16,
    (6, 8): np.bool_,
    (10, 8): ml_dtypes.float8_e4m3fn,
    (12, 8): ml_dtypes.float8_e5m2,
    (14, 8): ml_dtypes.float8_e8m0fnu,
}


class DLTensor(ctypes.Structure):
    """DLTensor of DLPack; strides in elements."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class DLManagedTensorVersioned(ctypes.Structure):
    """DLManagedTensorVersioned of DLPack 1.0 and later."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
capsule_pointer.restype = ctypes.c_void_p
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _dlpack(obj: Any) -> Raw:
    """Read a capsule and release it: `obj` keeps the memory alive during the launch."""
    kind = int(obj.__dlpack_device__()[0])
    if kind not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise ArgumentError(
            f"an array on DLPack device type {kind}; kernels reach CPU (1) and CUDA (2, 3, 13)"
        )
    on_gpu = kind in (_CUDA, _CUDA_MANAGED)
    capsule = _capsule(obj, {"stream": 1} if on_gpu else {})  # 1: the legacy default stream
    tensor, flags = _contents(capsule)
    dtype = _DL_DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise ArgumentError(
            f"DLPack type code {tensor.code} of {tensor.bits} bits and {tensor.lanes} lanes is not "
            f"supported; pass its bytes, such as x.view(torch.uint8)"
        )
    rank = tensor.ndim
    if not 0 <= rank <= MAX_AXES or (rank and not tensor.shape):
        raise ValueError(f"{rank} axes{'' if tensor.shape else ' without a shape'}")
    size = np.dtype(dtype).itemsize
    strides = [s * size for s in tensor.strides[:rank]] if tensor.strides else None
    library = type(obj).__module__.partition(".")[0]
    return Raw(
        np.dtype(dtype),
        (tensor.data or 0) + tensor.byte_offset,
        tuple(tensor.shape[:rank]) if rank else (),
        strides,
        # JAX exports its arrays, which are immutable, without a flag that says so.
        bool(flags & _READ_ONLY) or library in ("jax", "jaxlib"),
        tensor.device_id if on_gpu else None,
    )


def _capsule(obj: Any, stream: dict[str, Any]) -> Any:
    """Return the capsule of an array, versioned if its library supports versions.

    Copies are refused: a kernel would write into the copy, which ends with the capsule.
    """
    try:
        try:
            return obj.__dlpack__(**stream, max_version=_DL_VERSION, copy=False)
        except TypeError:  # a library from before versions
            return obj.__dlpack__(**stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"its __dlpack__ method refuses: {error}") from None


def _contents(capsule: Any) -> tuple[DLTensor, int]:
    """Return the tensor and the flags of a capsule; 0 for an unversioned capsule."""
    if not _capsule_is(capsule, b"dltensor_versioned"):
        return DLTensor.from_address(capsule_pointer(capsule, b"dltensor")), 0
    address = capsule_pointer(capsule, b"dltensor_versioned")
    managed = DLManagedTensorVersioned.from_address(address)
    if managed.major != _DL_VERSION[0]:
        raise ArgumentError(
            f"its __dlpack__ method returns DLPack {managed.major}.{managed.minor}; asked for was "
            f"{_DL_VERSION[0]}.{_DL_VERSION[1]} at most"
        )
    if managed.flags & _IS_COPY:
        raise ArgumentError("its __dlpack__ method exports a copy, which a kernel would write")
    return managed.tensor, managed.flags


def stream_handle(stream: Any) -> int:
    """Return the CUstream handle of a stream of any library.

    Parameters
    ----------
    stream : stream or int
        0, an int, or a stream of Numba, torch, CuPy or cuda.core.

    Returns
    -------
    int
        The handle.

    Raises
    ------
    ArgumentError
        Something else, or a stream whose protocol is broken.
    """
    try:
        return _stream_handle(stream)
    except TensorCoreError:
        raise
    except Exception as error:  # whatever the object's own code raises
        text = f"a {type(stream).__name__} whose stream protocol is broken"
        raise ArgumentError(f"{text}: {type(error).__name__}: {error}") from error


def _stream_handle(stream: Any) -> int:
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream < 0:
            raise ArgumentError(f"a stream cannot be {stream}: handles are 0 or more")
        return stream
    for attribute in ("cuda_stream", "ptr"):  # torch, CuPy
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _, handle = protocol() if callable(protocol) else protocol
        return index(handle)
    raise ArgumentError(
        f"a stream cannot be a {type(stream).__name__}; allowed are None, 0, a handle, and streams "
        f"of Numba, torch, CuPy and cuda.core"
    )


def torch_stream(device: int) -> Callable[[], int]:
    """A function that returns torch's current stream of a device.

    Parameters
    ----------
    device : int
        The ordinal.

    Returns
    -------
    function
        Gives the handle as an int; torch must have been imported.
    """
    torch = sys.modules["torch"]
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is None:
        return lambda: int(torch.cuda.current_stream(device).cuda_stream)
    return lambda: int(raw(device))


def cupy_stream() -> Callable[[], int]:
    """A function that returns CuPy's current stream.

    Returns
    -------
    function
        Gives the handle as an int; CuPy must have been imported.
    """
    current = sys.modules["cupy"].cuda.get_current_stream
    return lambda: int(current().ptr)


def stream_of(args: Sequence[Any], device: int) -> Callable[[], int] | None:
    """Return a function that gives the current stream of the arrays' library.

    None: no library of `args` has a current stream, so launches use the default stream.
    """
    for arg in args:
        if is_torch(type(arg)):
            index = arg.device.index or 0
            return torch_stream(index if device == CURRENT_DEVICE else device)
        if type(arg).__module__.partition(".")[0] == "cupy":
            return cupy_stream()
    return None
