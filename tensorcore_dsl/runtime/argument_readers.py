"""Reading arguments fast: straight-line Python, written for the classes of a launch's arguments.

For each class there is a pair of expressions: the value of an argument (a pointer or a number),
and what else distinguishes it. Arguments that differ in nothing else have equal types, shapes
and strides, so what was prepared for one launch fits the other but for the values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.runtime.arguments import F32_MAX, converted, describe, number_bits


class Reading(NamedTuple):
    """Expressions in `{a}`, the argument, and `{v}`, its value."""

    value: str
    key: tuple[str, ...] = ()


_NUMBER = Reading("number_bits({a})")
_DESCRIBED = Reading("({a}_is := describe({a})).value", ("{a}_is._replace(value=0)",))
_TORCH = Reading(
    "{a}.data_ptr()", ("{a}.dtype", "{a}.shape", "{a}.stride()", "{a}.get_device()", "{v} & 15")
)
_F32 = Reading("{a}", (f"-{F32_MAX!r} <= {{a}} <= {F32_MAX!r} or {{a}} - {{a}} != 0",))
_CONVERTED = Reading("converted({a}, {a}_dtype)")
_NUMBA_ARRAY = "numba.cuda.cudadrv.devicearray.DeviceNDArray"
_BY_NAME = {
    "builtins.bool": Reading("{a}"),
    "builtins.int": Reading("{a}", ("-2147483648 <= {a} < 2147483648",)),
    "builtins.float": _F32,
    "torch.Tensor": _TORCH,
    "torch.nn.parameter.Parameter": _TORCH,
    _NUMBA_ARRAY: Reading(
        "{a}.device_ctypes_pointer.value or 0",
        ("{a}.dtype", "{a}.shape", "{a}.strides", "{v} & 15"),
    ),
    "cupy.ndarray": Reading(
        "{a}.data.ptr", ("{a}.dtype", "{a}.shape", "{a}.strides", "{a}.device.id", "{v} & 15")
    ),
}


def is_torch_tensor(cls: type) -> bool:
    """Whether `cls` is torch's own tensor class, or its parameters'."""
    return _BY_NAME.get(_name(cls)) is _TORCH


def is_numba_array(cls: type) -> bool:
    """Whether `cls` is Numba's class of device arrays: they never change but in their elements."""
    return _name(cls) == _NUMBA_ARRAY


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def reading(cls: type, declared: DType | None = None) -> Reading:
    """How arguments of this class are read; a class without expressions is described each time.

    `declared` is the type of a parameter that takes scalars of this type alone.
    """
    if declared is not None:
        return _reading_as(cls, declared)
    known = _BY_NAME.get(_name(cls))
    return known or (_NUMBER if issubclass(cls, np.generic) else _DESCRIBED)


def _reading_as(cls: type, declared: DType) -> Reading:
    """Numbers that Python writes as the declared type, or refuses, need no conversion."""
    if cls is int and declared.is_integer:
        return Reading("{a}")
    if cls in (int, float) and declared.name in ("f32", "f64"):
        return _F32 if declared.name == "f32" else Reading("{a}")
    return _CONVERTED


_READ = """\
def read({arguments}):
    {values}
    return ({key}), [{all_values}]
"""

# Slots hold, in this order, what the unpacking names.
_LAUNCH = """\
def launch({arguments}):
    {values}
    free = plans[{key}]
    slot = free.pop()
    {places}stream, current_stream, config, function, parameters, extra, retry = slot
    {writes}
    stream[0] = current_stream()
    code = call(config, function, parameters, extra)
    if code:
        retry(code, config, parameters, extra)
    else:
        free.append(slot)
"""


@lru_cache(maxsize=1024)
def reader(
    classes: tuple[type, ...], declared: tuple[DType | None, ...]
) -> Callable[..., tuple[tuple[Any, ...], list[Any]]]:
    """A function from arguments of these classes to their key and their values."""
    namespace = _compiled(_READ, classes, declared, {})
    return namespace["read"]  # type: ignore[no-any-return]


def launcher(
    classes: tuple[type, ...],
    declared: tuple[DType | None, ...],
    plans: dict[tuple[Any, ...], list[Any]],
    call: Callable[..., int],
) -> Callable[..., None]:
    """A function that launches with arguments of these classes.

    It takes a free slot of the plan under the arguments' key, writes pointers, numbers and the
    stream, calls the driver, and puts the slot back. Before the call, it raises KeyError where
    there is no plan, IndexError where no slot is free, or what reading the arguments raises.
    """
    namespace = _compiled(_LAUNCH, classes, declared, {"plans": plans, "call": call})
    return namespace["launch"]  # type: ignore[no-any-return]


def _compiled(
    template: str,
    classes: tuple[type, ...],
    declared: tuple[DType | None, ...],
    names: dict[str, Any],
) -> dict[str, Any]:
    numbers = range(len(classes))
    values, key = [], []
    for number, (cls, dtype) in enumerate(zip(classes, declared, strict=True)):
        found = reading(cls, dtype)
        values.append(f"v{number} = {found.value.format(a=f'a{number}')}")
        key.append(f"a{number}.__class__")
        key += [f"({part.format(a=f'a{number}', v=f'v{number}')})" for part in found.key]
    source = template.format(
        arguments=", ".join(f"a{n}" for n in numbers),
        values="\n    ".join(values) or "pass",
        key="".join(f"{part}, " for part in key) or "()",
        all_values=", ".join(f"v{n}" for n in numbers),
        places="".join(f"p{n}, " for n in numbers),
        writes="\n    ".join(f"p{n}[0] = v{n}" for n in numbers) or "pass",
    )
    functions = {"describe": describe, "number_bits": number_bits, "converted": converted}
    dtypes = {f"a{number}_dtype": dtype for number, dtype in enumerate(declared)}
    namespace = {**functions, **dtypes, **names}
    exec(compile(source, "<launch path>", "exec"), namespace)
    return namespace
