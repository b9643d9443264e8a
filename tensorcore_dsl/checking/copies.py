"""Copies of the arrays of a launch, with equal strides, alignment and overlap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from tensorcore_dsl.runtime.devices import flat, regrouped

ALIGNMENT_BYTES = 256  # bytes; the copy of an address is the same modulo this


class _Memory:
    """Bytes that own themselves, so that the copy has the alignment in its owner that it had."""

    def __init__(self, size: int, remainder: int) -> None:
        self.raw = np.empty(size + ALIGNMENT_BYTES, np.uint8)
        start = self.raw.__array_interface__["data"][0]
        address = start + (remainder - start) % ALIGNMENT_BYTES
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }


def copied(arguments: Sequence[Any]) -> list[Any]:
    """The arguments, NumPy arrays copied; arrays that overlap do so afterwards."""
    every = flat(arguments)
    arrays = [a for a in every if isinstance(a, np.ndarray) and a.size]
    copies = {id(array): copy for group in _groups(arrays) for array, copy in _copy_group(group)}
    return regrouped(
        arguments, [copies.get(id(a), a.copy() if isinstance(a, np.ndarray) else a) for a in every]
    )


def arrays_in(name: str, x: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of an argument, which may be a tuple, a struct or a tensor map, with their names."""
    if isinstance(x, np.ndarray):
        yield name, x
    else:
        for key, item in _items(x):
            yield from arrays_in(f"{name}[{key}]" if isinstance(x, Mapping | list | tuple) else name, item)


def holds_tensors(x: Any) -> bool:
    """Whether an argument of several items has a tensor of torch among them."""
    return any(hasattr(item, "data_ptr") or holds_tensors(item) for _, item in _items(x))


def with_arrays(x: Any, arrays: dict[int, np.ndarray]) -> Any:
    """Replace the arrays of an argument. arrays: the new ones, by the `id` of the old ones."""
    if isinstance(x, np.ndarray):
        return arrays[id(x)]
    items = {key: with_arrays(item, arrays) for key, item in _items(x)}
    if isinstance(x, tuple | list):
        return x._make(items.values()) if hasattr(x, "_make") else type(x)(items.values())
    if isinstance(x, Mapping):
        return items
    return replace(x, **items) if items else x


def _items(x: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(x, Mapping):
        yield from x.items()
    elif isinstance(x, tuple | list):
        yield from enumerate(x)
    elif is_dataclass(x) and not isinstance(x, type):
        yield from ((field.name, getattr(x, field.name)) for field in fields(x) if field.init)


def _span(array: np.ndarray) -> tuple[int, int]:
    """The addresses of the first byte and past the last one, to the start of a line before."""
    low, high = np.lib.array_utils.byte_bounds(array)
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return low - (low - np.lib.array_utils.byte_bounds(owner)[0]) % ALIGNMENT_BYTES, high


def _groups(arrays: list[np.ndarray]) -> list[list[np.ndarray]]:
    """The arrays, those together whose memory overlaps."""
    groups: list[list[np.ndarray]] = []
    end = 0
    for array in sorted(arrays, key=_span):
        low, high = _span(array)
        if groups and low < end:
            groups[-1].append(array)
        else:
            groups.append([array])
        end = max(end, high)
    return groups


def _copy_group(group: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    spans = [_span(array) for array in group]
    low, high = min(s[0] for s in spans), max(s[1] for s in spans)
    memory = np.asarray(_Memory(high - low, low % ALIGNMENT_BYTES))
    pairs = []
    for array in group:
        offset = array.__array_interface__["data"][0] - low
        copy = np.ndarray(array.shape, array.dtype, memory, offset, array.strides)
        copy[...] = array
        copy.flags.writeable = array.flags.writeable
        pairs.append((array, copy))
    return pairs
