"""Keys that distinguish Const values."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import numpy as np

from tensorcore_dsl.dtypes import DType


def constants_key(constants: dict[str, Any]) -> Any:
    """A key that distinguishes Const values, also those that are equal in Python: 1, 1.0, True."""
    return tuple([(name, _key(value)) for name, value in constants.items()])


def _key(value: Any) -> Any:
    if isinstance(value, (bool, int, str, DType)) or value is None:
        return type(value), value
    if isinstance(value, float):
        return float, repr(value)
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_key, value))
    if isinstance(value, dict):
        return type(value), tuple([(_key(k), _key(v)) for k, v in value.items()])
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if is_dataclass(value) and hasattr(value, "__dict__"):
        return type(value), _key(value.__dict__)
    try:
        hash(value)
    except TypeError:
        return type(value), repr(value)
    return type(value), value
