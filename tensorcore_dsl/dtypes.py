"""Element types: one row per type, with its storage, PTX name and NumPy dtype."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Optional, Protocol, TypeAlias

import ml_dtypes
import numpy as np

from tensorcore_dsl.errors import ArgumentError, OperandError, listing, nearest, public
from tensorcore_dsl.tracing import emitter


@dataclass(frozen=True)
class DType:
    """An element type of the PTX manual (section 5.2).

    Called with a value, it converts a value of a kernel, or makes a typed constant: `tc.f16(x)`.

    Attributes
    ----------
    name : str
        As in PTX: "bf16".
    kind : str
        f(loat), s(igned), u(nsigned), b(its) or p(redicate).
    bits : int
        The width of one element.
    numpy : numpy.dtype or None
        What arrays of NumPy hold; ml_dtypes has the small floats.
    lanes : int
        2 for packed pairs such as f16x2.

    Examples
    --------
    >>> tc.bf16.bits, tc.bf16.numpy, tc.s4.is_integer
    (16, dtype(bfloat16), True)
    """

    name: str
    kind: str
    bits: int
    numpy: Any = None
    lanes: int = 1

    @public
    def __call__(self, value: Any) -> Any:
        """Convert a value of a kernel to this type, or make a typed constant."""
        return emitter().convert(value, self)

    def __or__(self, other: None) -> Any:
        """The annotation of a kernel's parameter that takes None too: `tc.f32 | None`."""
        return Optional[self]  # noqa: UP045 (`|` is this method)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return named, (self.name,)  # each type exists once, also in other processes

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory, a whole one for six bits; smaller types have none."""
        if self.storage_bits % 8:
            raise ArgumentError(
                f"memory has no {self.name} elements, which are smaller than a byte: use tc.u8 or "
                f"tc.u32, with {8 // self.bits} elements a byte, the first in the lowest bits"
            )
        return self.storage_bits // 8

    @property
    def register_bits(self) -> int:
        """Width of the register that holds one value: 1, 16, 32, 64 or 128."""
        if self.kind == "p":
            return 1
        return max(16, self.bits)

    @property
    def fragment_register_bits(self) -> int:
        """Width of a register of a fragment: 32 or 64."""
        return 64 if self.bits == 64 else 32

    @property
    def per_register(self) -> int:
        """Elements in one 32-bit register of a fragment (1 for 64-bit types)."""
        return max(1, 32 // self.storage_bits)

    @property
    def storage_bits(self) -> int:
        """Bits of an element in a register: 32 for tf32, 8 for fp6."""
        return {"tf32": 32, "e3m2": 8, "e2m3": 8}.get(self.name, self.bits)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "su"

    @property
    def is_signed(self) -> bool:
        return self.kind in "sf"


class ForeignDType(Protocol):
    """An element type of another library, such as np.dtype("float16") or torch.float16."""

    @property
    def itemsize(self) -> int: ...


# What serves where an element type is asked for (see `as_dtype`).
DTypeLike: TypeAlias = DType | str | type | ForeignDType

pred = DType("pred", "p", 1, np.dtype(np.bool_))
f64 = DType("f64", "f", 64, np.dtype(np.float64))
f32 = DType("f32", "f", 32, np.dtype(np.float32))
tf32 = DType("tf32", "f", 32, np.dtype(np.float32))
f16 = DType("f16", "f", 16, np.dtype(np.float16))
bf16 = DType("bf16", "f", 16, np.dtype(ml_dtypes.bfloat16))
e4m3 = DType("e4m3", "f", 8, np.dtype(ml_dtypes.float8_e4m3fn))
e5m2 = DType("e5m2", "f", 8, np.dtype(ml_dtypes.float8_e5m2))
e3m2 = DType("e3m2", "f", 6, np.dtype(ml_dtypes.float6_e3m2fn))
e2m3 = DType("e2m3", "f", 6, np.dtype(ml_dtypes.float6_e2m3fn))
e2m1 = DType("e2m1", "f", 4, np.dtype(ml_dtypes.float4_e2m1fn))
ue8m0 = DType("ue8m0", "f", 8, np.dtype(ml_dtypes.float8_e8m0fnu))
ue4m3 = DType("ue4m3", "f", 8, np.dtype(ml_dtypes.float8_e4m3fn))
s64 = DType("s64", "s", 64, np.dtype(np.int64))
s32 = DType("s32", "s", 32, np.dtype(np.int32))
s16 = DType("s16", "s", 16, np.dtype(np.int16))
s8 = DType("s8", "s", 8, np.dtype(np.int8))
s4 = DType("s4", "s", 4, np.dtype(ml_dtypes.int4))
u64 = DType("u64", "u", 64, np.dtype(np.uint64))
u32 = DType("u32", "u", 32, np.dtype(np.uint32))
u16 = DType("u16", "u", 16, np.dtype(np.uint16))
u8 = DType("u8", "u", 8, np.dtype(np.uint8))
u4 = DType("u4", "u", 4, np.dtype(ml_dtypes.uint4))
b1 = DType("b1", "b", 1)
b8 = DType("b8", "b", 8, np.dtype(np.uint8))
b16 = DType("b16", "b", 16, np.dtype(np.uint16))
b32 = DType("b32", "b", 32, np.dtype(np.uint32))
b64 = DType("b64", "b", 64, np.dtype(np.uint64))
b128 = DType("b128", "b", 128)
f16x2 = DType("f16x2", "f", 32, np.dtype(np.uint32), lanes=2)
bf16x2 = DType("bf16x2", "f", 32, np.dtype(np.uint32), lanes=2)

ALL = {t.name: t for t in list(globals().values()) if isinstance(t, DType)}
# Of several types with one NumPy type, the first is meant.
_FROM_NUMPY = {t.numpy: t for t in reversed(ALL.values()) if t.numpy is not None}


_OF_PYTHON = {int: s32, float: f32, bool: pred}
_NUMPY_NAME = re.compile(r"(torch\.)?(bool|half|double|u?int\d+|b?float\d+\w*)")


def as_dtype(dtype_like: Any) -> DType:
    """The element type that a user names.

    Parameters
    ----------
    dtype_like : object
        Such as tc.f16, "f16", "float16", np.float16 or torch.float16.

    Returns
    -------
    DType
        The element type.

    Raises
    ------
    OperandError
        No element type has this name.
    """
    if isinstance(dtype_like, DType):
        return dtype_like
    if isinstance(dtype_like, type) and dtype_like in _OF_PYTHON:
        return _OF_PYTHON[dtype_like]
    of_torch = type(dtype_like).__module__ == "torch"
    text = str(dtype_like) if of_torch else dtype_like
    if isinstance(text, str):
        name = text.removeprefix("torch.")
        if name in ALL:
            return ALL[name]
        dtype_like = name if _NUMPY_NAME.fullmatch(text) else None
    of_numpy = isinstance(dtype_like, type) and issubclass(dtype_like, np.generic)
    if of_numpy or isinstance(dtype_like, (str, np.dtype)):
        with suppress(TypeError):
            return from_numpy(dtype_like)
    close = nearest(text, ALL) if isinstance(text, str) else ""
    hint = f"; did you mean tc.{close}?" if close else ""
    raise OperandError(f"an element type is needed, such as tc.f32, np.float32 or 'f32', not {text!r}{hint}")


def named(name: str) -> DType:
    """The type called `name`."""
    try:
        return ALL[name]
    except KeyError:
        known = listing(ALL)
        raise ArgumentError(f"no element type is called {name!r}; there are {known}") from None


def from_numpy(dtype: Any) -> DType:
    """The element type that a NumPy (or ml_dtypes) dtype stores.

    Parameters
    ----------
    dtype : dtype of NumPy
        Or what np.dtype takes.

    Returns
    -------
    DType
        tc.f32 for float32.

    Raises
    ------
    ArgumentError
        A dtype that no kernel takes; the error lists those that it does.

    Examples
    --------
    >>> from tensorcore_dsl.host import from_numpy
    >>> from_numpy(np.float16)
    f16
    """
    known = _FROM_NUMPY.get(np.dtype(dtype))
    if known is None:
        names = listing(sorted(str(t) for t, element in _FROM_NUMPY.items() if element.bits != 4))
        raise ArgumentError(f"arrays of dtype {np.dtype(dtype)} are not supported; use one of {names}")
    return known
