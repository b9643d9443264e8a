"""Kernel arguments: the types that a kernel is specialised for, and its parameters in memory.

An array argument becomes these parameters, in order, each at its natural alignment: the data
pointer (u64), `shape[d]` for each dimension (s32), then `stride[d]` in elements (s64) for each
dimension whose stride is not statically 1. A scalar becomes one parameter of its own size; a
predicate is a u32 that is 0 or 1. None becomes no parameter: a kernel is compiled for it.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (registers bfloat16 and the rest with NumPy)
import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import ArgumentError, OperandError, listing
from tensorcore_dsl.runtime.array_interop import Raw, read_array

MAX_ALIGNMENT = 16  # bytes of the widest load
ALIGNMENTS = (1, 2, 4, 8, MAX_ALIGNMENT)
MAX_EXTENT = 2**31 - 1
MAX_PARAMETER_BYTES = 4096
F32_MAX = float(np.finfo(np.float32).max)

ALLOWED = (
    "NumPy arrays, Numba device arrays, torch tensors, anything with __cuda_array_interface__ or "
    "__dlpack__, and bool, int, float or NumPy scalars"
)


@dataclass(frozen=True)
class ArrayType:
    """An array argument, as far as it is known when a kernel is compiled.

    It stands for an argument where a kernel is only compiled: `kernel.ptx(tc.ArrayType(...))`.

    Parameters
    ----------
    dtype : dtype
        Type of the elements. Names, such as "f16" or "float16", and NumPy dtypes are allowed.
    ndim : int
        Number of dimensions.
    unit : tuple of bool
        For each dimension, whether its stride is exactly one element.
    align : int
        The greatest power of two up to 16 that divides the address of the first element and all
        other strides, in bytes.
    writable : bool
        False: stores to it are an error in emulation, and NumPy arrays are not copied back.

    Raises
    ------
    ArgumentError
        A parameter has another type or value.

    See Also
    --------
    ScalarType : The type of a number, with an example.
    """

    dtype: DType
    ndim: int
    unit: tuple[bool, ...]
    align: int
    writable: bool = True

    def __post_init__(self) -> None:
        _name_type(self, "ArrayType")
        if type(self.ndim) is not int or self.ndim < 0:
            raise ArgumentError(f"ArrayType: ndim is the number of dimensions, 0 or more, not {self.ndim!r}")
        unit = self.unit
        flags = isinstance(unit, tuple) and all(isinstance(one, bool) for one in unit)
        if not flags or len(unit) != self.ndim:
            raise ArgumentError(
                "ArrayType: unit tells for each dimension whether its stride is one element, such "
                f"as {(*[False] * (self.ndim - 1), True)[: self.ndim]} for ndim {self.ndim}, not "
                f"{unit!r}"
            )
        if type(self.align) is not int or self.align not in ALIGNMENTS:
            raise ArgumentError(f"ArrayType: align is {listing(ALIGNMENTS)} (bytes), not {self.align!r}")

    def __str__(self) -> str:
        strides = ", ".join("1" if one else "?" for one in self.unit)
        access = "" if self.writable else " read-only"
        return f"{self.dtype}[strides {strides or 'none'}; {self.align} B aligned]{access}"


@dataclass(frozen=True)
class ScalarType:
    """A scalar argument: only its type is known when the kernel is compiled.

    Parameters
    ----------
    dtype : dtype
        Type of the number.

    Examples
    --------
    >>> @tc.kernel
    ... def fill(x: tc.Array, value: tc.f32):
    ...     x[tc.threadIdx.x] = value
    >>> ptx = fill.ptx(tc.ArrayType(tc.f32, 1, (True,), 16), tc.ScalarType(tc.f32), arch="sm_80")
    >>> ptx.splitlines()[1]
    '.target sm_80'
    """

    dtype: DType

    def __post_init__(self) -> None:
        _name_type(self, "ScalarType")

    def __str__(self) -> str:
        return str(self.dtype)


def _name_type(described: ArrayType | ScalarType, what: str) -> None:
    """Replace a dtype's name by the dtype; ArgumentError for an unknown name."""
    if type(described.dtype) is not DType:
        try:
            dtype = dtypes.as_dtype(described.dtype)
        except OperandError as error:
            raise ArgumentError(f"{what}: {error.message}") from None
        object.__setattr__(described, "dtype", dtype)


ArgumentType = ArrayType | ScalarType | None  # None is its own type


class Description(NamedTuple):
    """One argument of a launch.

    Attributes
    ----------
    type : ArrayType, ScalarType or None
        What a kernel is compiled for.
    value : int or number
        The address of an array's first element, or a scalar's number.
    shape, strides : tuple of int
        Strides in elements.
    device : int or None
        The ordinal of the GPU that holds the array, CURRENT_DEVICE if its library does not name it,
        None for host memory and scalars.
    stream : int or None
        The stream that the array's producer names, if any.
    """

    type: Any  # ArrayType, the ScalarType of a number, or None
    value: Any
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    device: int | None = None
    stream: int | None = None

    @property
    def pointer(self) -> int:
        return int(self.value)

    @property
    def on_host(self) -> bool:
        return self.device is None and isinstance(self.type, ArrayType)


NO_ARGUMENT = Description(None, None)  # of a parameter that is None


def arguments_key(args: Sequence[Any], arguments: Sequence[Description]) -> Hashable:
    """Return a key that is equal for launches which differ only in numbers and equally aligned pointers."""
    return tuple(
        (
            type(arg),
            a.type,
            a.shape,
            a.strides,
            a.device,
            a.stream,
            a.pointer % MAX_ALIGNMENT if isinstance(a.type, ArrayType) else 0,
        )
        for arg, a in zip(args, arguments, strict=True)
    )


def describe(obj: Any, name: str = "argument", declared: DType | None = None) -> Description:
    """Describe an argument: type, address, shape and strides.

    Parameters
    ----------
    obj : array or number
        An argument of a launch.
    name : str
        The argument's name in errors.
    declared : dtype, optional
        The type of a parameter that takes only scalars of this type.

    Returns
    -------
    Description
        The type that a kernel is compiled for, and the values of a launch.

    Raises
    ------
    ArgumentError
        `obj` is neither an array nor a number.
    """
    if declared is not None:
        return Description(ScalarType(declared), converted(obj, declared, name))
    scalar = _scalar(obj, name)
    if scalar is not None:
        return scalar
    try:
        raw = read_array(obj)
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error.message}") from None
    if raw is None:
        raise ArgumentError(
            f"{name} is a {class_name(obj)}, which no kernel takes; allowed are {ALLOWED}"
            f"{_instead(obj) if 'argument' in name else ''}"
        )
    return _array(raw, name)


def _instead(obj: Any) -> str:
    """Advise what to pass instead of an object that is not an argument."""
    if isinstance(obj, (list, tuple)) and obj and all(isinstance(i, (int, float)) for i in obj):
        return "; pass np.array(...), or annotate the parameter with tc.Const"
    return "; a parameter annotated with tc.Const takes any value, known at compile time"


def _scalar(obj: Any, name: str) -> Description | None:
    if isinstance(obj, (bool, np.bool_)):
        return Description(ScalarType(dtypes.pred), int(obj))
    if isinstance(obj, np.generic):
        return Description(ScalarType(_element_type(obj.dtype, name)), number_bits(obj))
    if isinstance(obj, int):
        return Description(ScalarType(integer_type(obj, name)), obj)
    if isinstance(obj, float):
        return Description(ScalarType(dtypes.f32), checked_f32(obj, name))
    return None


def converted(value: Any, dtype: DType, name: str = "argument") -> Any:
    """Convert a number to the value to store into a parameter of type `dtype`. Raises ArgumentError."""
    if not isinstance(value, (bool, int, float, np.generic)) or np.iscomplexobj(value):
        raise ArgumentError(f"{name} is a {class_name(value)}; the parameter takes a {dtype} number")
    if dtype.kind == "p":
        return int(bool(value))
    if dtype.is_float:
        return _rounded(float(value), dtype, name)
    number: Any = value
    low, high = integer_range(dtype)
    if number % 1 != 0 or not low <= int(number) <= high:  # NaN and infinities are not whole
        raise ArgumentError(f"{name} is {value}; {dtype} holds integers from {low} to {high}")
    return int(number)


def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the smallest and the greatest value of an integer or bit type."""
    if dtype.kind == "s":
        return -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    return 0, (1 << dtype.bits) - 1


def _rounded(value: float, dtype: DType, name: str) -> Any:
    if dtype.name == "f64":
        return value
    if dtype.name == "f32":
        return checked_f32(value, name)
    return number_bits(dtype.numpy.type(value))


def integer_type(value: int, name: str = "argument") -> DType:
    """Return s32, or s64 if `value` does not fit."""
    if -(2**31) <= value < 2**31:
        return dtypes.s32
    if -(2**63) <= value < 2**63:
        return dtypes.s64
    raise ArgumentError(f"{name} is {value}, which does not fit 64 signed bits; pass np.uint64(...)")


def checked_f32(value: float, name: str = "argument") -> float:
    """Return `value` if it is within the range of f32, the type that Python floats are passed as."""
    if -F32_MAX <= value <= F32_MAX or value - value != 0:  # infinities and NaN pass
        return value
    raise ArgumentError(f"{name} is {value}, beyond the range of f32; pass np.float64(...)")


def number_bits(scalar: np.generic) -> Any:
    """Return the value to store into a parameter: the number, or its bits if `struct` lacks its type."""
    if scalar.dtype.kind in "iu" or scalar.dtype in (np.float32, np.float64):
        return scalar.item()
    return int.from_bytes(scalar.tobytes(), "little")


def array_element_bits(dtype: DType) -> int:
    """Return the bits of an element in memory, a multiple of 8."""
    return -(-dtype.bits // 8) * 8


def _array(raw: Raw, name: str) -> Description:
    dtype = _element_type(raw.dtype, name)
    shape = tuple(raw.shape)
    _check_extents(shape, name)
    if raw.strides is None or 0 in shape:
        strides = contiguous(shape)
    else:
        strides = _element_strides(raw.strides, np.dtype(raw.dtype).itemsize, name)
    unit = tuple(stride == 1 for stride in strides)
    align = _alignment(raw.pointer, shape, strides, array_element_bits(dtype))
    if align * 8 < array_element_bits(dtype):
        raise ArgumentError(
            f"{name} starts at address {raw.pointer:#x} with strides {strides}: its {dtype} "
            f"elements do not lie at multiples of their own size; copy it first"
        )
    array_type = ArrayType(dtype, len(shape), unit, align, not raw.readonly)
    return Description(array_type, raw.pointer, shape, strides, raw.device, raw.stream)


def _element_type(dtype: Any, name: str) -> DType:
    try:
        element = dtypes.from_numpy(dtype)
    except (ArgumentError, TypeError) as error:
        hint = ""
        if isinstance(dtype, np.dtype) and not dtype.isnative:
            hint = "; convert it to this machine's byte order, x.astype(x.dtype.newbyteorder('='))"
        raise ArgumentError(f"{name}: {getattr(error, 'message', error)}{hint}") from None
    if element.bits == 4:
        raise ArgumentError(
            f"{name}: {dtype} elements have a byte each in NumPy, and kernels read two of one. "
            "Pass a uint8 array, with the first of two in the low half: `b = x.view(np.uint8) & 15`"
            " and `b[..., ::2] | b[..., 1::2] << 4`; pass a number as int or float"
        )
    return element


def _check_extents(shape: tuple[int, ...], name: str) -> None:
    for axis, extent in enumerate(shape):
        if not 0 <= extent <= MAX_EXTENT:
            raise ArgumentError(
                f"{name} has shape {shape}: dimension {axis} is not between 0 and {MAX_EXTENT}, "
                f"which kernels count with; pass a view of a part"
            )


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return row-major strides in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _element_strides(strides: Sequence[int], itemsize: int, name: str) -> tuple[int, ...]:
    if any(stride % itemsize for stride in strides):
        raise ArgumentError(
            f"{name} has strides {tuple(strides)} bytes, not all multiples of its element size, "
            f"{itemsize}; copy it first"
        )
    return tuple(stride // itemsize for stride in strides)


def _alignment(pointer: int, shape: Sequence[int], strides: Sequence[int], bits: int) -> int:
    together = pointer | MAX_ALIGNMENT
    for extent, stride in zip(shape, strides, strict=True):
        if stride != 1 and extent > 1:
            together |= stride * bits // 8
    return together & -together


def class_name(obj: Any) -> str:
    cls = type(obj)
    module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    return f"{module}{cls.__qualname__}"


class Parameter(NamedTuple):
    """One `.param` of the entry: argument index, name suffix, PTX type, offset in bytes."""

    argument: int
    suffix: str
    ptx: str
    offset: int


# Code of `struct` for a scalar parameter; types without one are stored as their bits.
_CODES = {
    "pred": "I",
    "f32": "f",
    "f64": "d",
    **{f"s{8 * size}": code for size, code in zip((1, 2, 4, 8), "bhiq")},
    **{f"{kind}{8 * size}": code for kind in "ub" for size, code in zip((1, 2, 4, 8), "BHIQ")},
}


def parameter_type(dtype: DType) -> str:
    """Return the PTX type of a scalar parameter."""
    name = {"pred": "u32", "tf32": "f32"}.get(dtype.name, dtype.name)
    return name if name in _CODES else f"b{array_element_bits(dtype)}"


def parameter_code(dtype: DType) -> str:
    """Return the code of `struct` for a scalar parameter."""
    return _CODES[parameter_type(dtype)]


class Packer(EagerDict):
    """The layout of arguments of these types in a kernel's parameter space.

    `parameters` lists them for the `.param` declarations, `size` is their extent in bytes.
    """

    def __init__(self, types: Sequence[ArgumentType]) -> None:
        self.types = tuple(types)
        self.parameters: list[Parameter] = []
        self.size = 0
        for index, kind in enumerate(self.types):
            if kind is None:
                continue
            if isinstance(kind, ScalarType):
                self._add(index, "", parameter_type(kind.dtype))
                continue
            self._add(index, "", "u64")
            for axis in range(kind.ndim):
                self._add(index, f"_shape{axis}", "s32")
            for axis in range(kind.ndim):
                if not kind.unit[axis]:
                    self._add(index, f"_stride{axis}", "s64")
        if self.size > MAX_PARAMETER_BYTES:
            raise ArgumentError(
                f"the arguments take {self.size} bytes of parameters; a kernel has {MAX_PARAMETER_BYTES}"
            )

    def _add(self, index: int, suffix: str, ptx: str) -> None:
        size = struct.calcsize(_CODES[ptx])
        offset = -(-self.size // size) * size
        self.parameters.append(Parameter(index, suffix, ptx, offset))
        self.size = offset + size

    @cached_property
    def value_offsets(self) -> dict[int, int]:
        """The offset of each argument's pointer or number, by the argument's index."""
        return {p.argument: p.offset for p in self.parameters if not p.suffix}

    @cached_property
    def _struct(self) -> struct.Struct:
        layout, end = "=", 0
        for parameter in self.parameters:
            code = _CODES[parameter.ptx]
            layout += f"{parameter.offset - end}x{code}"
            end = parameter.offset + struct.calcsize(code)
        return struct.Struct(layout)

    def pack_into(self, buffer: Any, arguments: Sequence[Description], offset: int = 0) -> None:
        """Store the parameters of `arguments` into a writable buffer."""
        self._check(arguments)
        fields: list[Any] = []
        for argument in arguments:
            if argument.type is None:
                continue
            fields.append(argument.value)
            if isinstance(argument.type, ArrayType):
                fields += argument.shape
                fields += [
                    stride
                    for stride, unit in zip(argument.strides, argument.type.unit, strict=True)
                    if not unit
                ]
        self._struct.pack_into(buffer, offset, *fields)

    def _check(self, arguments: Sequence[Description]) -> None:
        actual = tuple(argument.type for argument in arguments)
        if actual != self.types:
            raise ArgumentError(
                f"the kernel is compiled for ({listing(self.types)}); got ({listing(actual)})"
            )
