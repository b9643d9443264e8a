"""Cache keys and display texts of Const values."""

from __future__ import annotations

import re
import sys
from collections import deque
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from tensorcore_dsl.dtypes import DType


def constants_key(constants: dict[str, Any]) -> Any:
    """Return a cache key of Const values. It distinguishes values of different types: 1, 1.0, True."""
    return tuple([(name, _key(value)) for name, value in constants.items()])


def shown(value: Any) -> str:
    """Show a Const value on one line, without addresses of objects."""
    return re.sub(r"\s+", " ", re.sub(r" at 0x[0-9a-f]+", "", repr(value)))


def _key(value: Any) -> Any:
    if isinstance(value, (bool, int, str, DType)) or value is None:
        return type(value), value
    if isinstance(value, float):
        return float, repr(value)
    if isinstance(value, (list, tuple, deque)):
        return type(value), tuple(map(_key, value))
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(map(_key, value))
    if isinstance(value, np.generic):
        return value.dtype, value.tobytes()
    if isinstance(value, dict):
        return type(value), tuple([(_key(k), _key(v)) for k, v in value.items()])
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple([_key(getattr(value, f.name)) for f in fields(value)])
    return type(value), _Same(value)


class _Same:
    """Wrapper that is equal for one object, and for equal instances of immutable types."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or type(self.value) is not type(other.value):
            return False
        kind = type(self.value)
        plain = kind.__module__.partition(".")[0] in sys.stdlib_module_names
        same = self.value is other.value
        return same or bool(plain and kind.__hash__ is not None and self.value == other.value)
