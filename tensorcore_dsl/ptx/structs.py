"""Structs as arguments of PTX kernels: their fields as values, and their bytes in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.interpreter.memory.global_memory import Arguments, GlobalPointer
from tensorcore_dsl.ir.nodes import Param
from tensorcore_dsl.isa.tensormap import OBJECT
from tensorcore_dsl.ptx.reader import part_name
from tensorcore_dsl.ptx.simplify import in_memory
from tensorcore_dsl.ptx.syntax import Variable
from tensorcore_dsl.ptx.tensor_maps import TensorMap


@dataclass(frozen=True)
class StructInMemory:
    """A struct whose address the kernel takes.

    Attributes
    ----------
    name : str
        The parameter's name.
    size : int
        Bytes of the struct. Bytes outside of all fields are zero.
    fields : dict
        Numbers, arrays, tensor maps and bytes, by their offsets. Other fields may lie over bytes.
    """

    name: str
    size: int
    fields: dict[int, Any]

    def on_host(self, view: Callable[[Any], Any]) -> StructInMemory:
        """Return the struct with NumPy views of its arrays."""
        return replace(self, fields={offset: view(x) for offset, x in self.fields.items()})

    def content(self, pointers: list[GlobalPointer]) -> np.ndarray:
        """Return the bytes. The arrays among the fields are appended to `pointers`, the launch's arrays."""
        taken_by = np.full(self.size, -1)
        data = np.zeros(self.size, np.uint8)
        for offset, x in _in_order(self.fields):
            has_array = isinstance(x, (np.ndarray, TensorMap))
            if isinstance(x, (np.ndarray, TensorMap)):
                array = x.array if isinstance(x, TensorMap) else x
                pointers.append(GlobalPointer(array, part_name(self.name, offset)))
                address = Arguments(pointers).address(len(pointers) - 1)
                x = x.object(address).tobytes() if isinstance(x, TensorMap) else np.uint64(address)
            span, field = _placed(self.name, self.size, offset, x)
            if (under := taken_by[span].max(initial=-1)) >= 0:
                raise ArgumentError(f"parameter {self.name}: the fields at {under} and {offset} overlap")
            data[span] = field
            if has_array:  # numbers may be shorter than here
                taken_by[span] = offset
        data.flags.writeable = False
        return data


def shown(name: str) -> str:
    """Return a parameter's name for messages, without that of a kernel that C++ or CuTe DSL has named."""
    return re.sub(r"^(_Z|kernel_cutlass_)\w+_(?=param_\d)", "", name).removesuffix(" in memory")


def _in_order(fields: dict[int, Any]) -> list[tuple[int, Any]]:
    """Sort fields by their offsets, bytes first, over which other fields may lie."""
    return sorted(fields.items(), key=lambda field: (not isinstance(field[1], bytes), field[0]))


def _placed(name: str, size: int, offset: int, x: Any) -> tuple[slice, np.ndarray]:
    """Return the range and the bytes of a field in the struct of a parameter."""
    if type(x) is float:
        x = np.float32(x)
    elif isinstance(x, int) and -(1 << 63) <= x < 1 << 64:
        x = x.to_bytes(4 if -(1 << 31) <= x < 1 << 32 else 8, "little", signed=x < 0)
    elif not isinstance(x, (bytes, np.generic)):
        raise ArgumentError(
            f"parameter {name}: the field at {offset} is {x!r}; it may be a number of at most 64 bits, an "
            "array, a tensor map or bytes"
        )
    field = np.frombuffer(x if isinstance(x, bytes) else x.tobytes(), np.uint8)
    end = offset + len(field)
    if not 0 <= offset <= end <= size:
        raise ArgumentError(f"parameter {name} has {size} bytes; the field at {offset} ends at byte {end}")
    return slice(offset, end), field


def parts_of(param: Variable, x: Any, params: Sequence[Param]) -> dict[str, Any]:
    """Return the values of a parameter that is an array of bytes, by their names in `params` of the IR."""
    if isinstance(x, TensorMap):
        return {in_memory(param.name): x}
    if isinstance(x, dict) and isinstance(content := x.get("bytes"), bytes):
        free = next(offset for offset in count() if offset not in x)  # fields cover all bytes before it
        x = {offset: field for offset, field in x.items() if offset != "bytes"} | {free: content[free:]}
    # CuTe's tensors with static layouts are structs of an address.
    is_address = param.size == 8 and hasattr(x, "__dlpack__")
    fields = {0: x} if is_address or isinstance(x, bytes) else x
    if not isinstance(fields, dict) or not all(isinstance(offset, int) for offset in fields):
        raise ArgumentError(
            f"parameter {param.name} has {param.size} bytes, as a struct has: pass its bytes, or a "
            'dict with the value of each field by its offset, {0: 1.5, 8: array}, and all other "bytes"'
        )
    parts = {in_memory(param.name): StructInMemory(shown(param.name), param.size, fields)}
    parts |= {part_name(param.name, at): x for at, x in fields.items() if not isinstance(x, bytes)}
    data, is_known = np.zeros(param.size, np.uint8), np.zeros(param.size, np.bool_)
    for start, x in _in_order(fields):
        if isinstance(x, (bytes, int, float, np.generic)):
            span, field = _placed(param.name, param.size, start, x)
            data[span], is_known[span] = field, True
        else:  # an address, which the launch gives
            is_known[start : start + (OBJECT.itemsize if isinstance(x, TensorMap) else 8)] = False
    for part in params:
        name, _, text = part.name.partition("+")
        kind, at = part.value.type.dtype.numpy, int(text or 0)
        span = slice(at, at + kind.itemsize)
        numbers = [x for x in fields if at <= x < span.stop and not isinstance(fields[x], bytes)]
        if name != param.name:
            continue
        x = fields[at] if numbers == [at] else None
        if isinstance(x, float) and kind.itemsize in (4, 8):  # np.float64, too
            x = np.dtype(f"f{kind.itemsize}").type(x)
        is_number = isinstance(x, np.generic) and x.dtype.kind not in "iub" and x.itemsize == kind.itemsize
        if is_number and kind.kind in "iu":
            parts[part.name] = x.view(kind)  # NVCC loads some floats as .u32
        elif numbers != [at] and is_known[span].all():
            parts[part.name] = data[span].view(kind)[0]
    return parts
