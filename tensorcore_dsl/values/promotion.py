"""Type promotion: the common type of the operands of an operator.

The rules are C's, and Python's numbers are weakly typed: integers narrower than 32 bits become
s32, the wider type wins, unsigned wins over signed of the same width, a float wins over an
integer, f16 with bf16 gives f32, tf32 counts as f32.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.values.operands import number_type
from tensorcore_dsl.values.values import Scalar


def promote(left: Any, right: Any) -> DType:
    """The common type of two operands, at least one of them a run-time value."""
    if not isinstance(left, Scalar):
        return weak(left, right.dtype)
    if not isinstance(right, Scalar):
        return weak(right, left.dtype)
    return promote_types(left.dtype, right.dtype)


def promote_types(a: DType, b: DType) -> DType:
    """The common type of values of two types."""
    if a == b and (a.is_float or a.is_integer) and a.bits >= 32 and a.name != "tf32":
        return a
    for t in (a, b):
        if t.kind == "b" or (t.is_float and t.bits < 16):
            raise OperandError(
                f"{t} has no arithmetic; convert it first, for example with .to(tc.f32), or "
                "give plain bits a type with .bits(tc.u32)"
            )
    if a.is_float or b.is_float:
        return _promote_floats(a, b)
    a, b = (t if t.bits >= 32 else dtypes.s32 for t in (a, b))
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    return a if a.kind == "u" else b


def _promote_floats(a: DType, b: DType) -> DType:
    a, b = (dtypes.f32 if t.name == "tf32" else t for t in (a, b))
    if a.lanes != b.lanes:
        raise OperandError(f"{a} and {b} do not combine: unpack the pair first")
    if a == b or not b.is_float:
        return a
    if not a.is_float:
        return b
    if a.bits == b.bits:
        if a.lanes == 2:
            raise OperandError(f"{a} and {b} do not combine: convert one of them")
        return dtypes.f32
    return a if a.bits > b.bits else b


def weak(number: Any, dtype: DType) -> DType:
    """The common type of a number and a value of `dtype`: that type, but floats stay floats."""
    if isinstance(number, np.generic):
        return promote_types(dtypes.from_numpy(number.dtype), dtype)
    if dtype.kind == "p":
        if isinstance(number, bool):
            return dtype
        return dtypes.f32 if isinstance(number, float) else dtypes.s32
    if isinstance(number, float) and not dtype.is_float:
        return dtypes.f64 if dtype.bits == 64 else dtypes.f32
    return promote_types(dtype, dtype) if dtype.lanes == 1 else dtype


def common_type(left: Any, right: Any) -> DType:
    """The type of a variable that may hold either: each a scalar, a number, or a type itself."""
    a, b = (v if isinstance(v, DType) else getattr(v, "dtype", None) for v in (left, right))
    if isinstance(a, DType) and isinstance(b, DType):
        return a if a == b else promote_types(a, b)
    if isinstance(a, DType):
        return _holding(a, right)
    if isinstance(b, DType):
        return _holding(b, left)
    if float in (type(left), type(right)):
        return dtypes.f32
    types = {number_type(left), number_type(right)}
    return types.pop() if len(types) == 1 else reduce(promote_types, types)


def _holding(dtype: DType, number: Any) -> DType:
    """The common type of a number and `dtype`; plain bits and narrow floats are not promoted."""
    narrow = dtype.is_float and dtype.storage_bits < 16
    return dtype if dtype.kind == "b" or narrow else weak(number, dtype)
