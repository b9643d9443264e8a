"""Objects whose array protocols are broken: DLPack, `__cuda_array_interface__`, streams."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np

from tensorcore_dsl.runtime import array_interop
from tests.fuzz import corpus
from tests.fuzz.launches import THINGS

NAME = b"dltensor"
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
new_capsule.restype = ctypes.py_object
_kept: list[Any] = []  # what capsules point to


class Broken:
    """An object with these attributes; those that are exceptions are raised."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__["attributes"] = attributes

    def __getattr__(self, name: str) -> Any:
        attributes = self.__dict__["attributes"]
        if name not in attributes:
            raise AttributeError(name)
        if isinstance(attributes[name], BaseException):
            raise attributes[name]
        return attributes[name]


def answering(answer: Any) -> Any:
    """A method that returns this, or raises it."""

    def method(*_: Any, **__: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return method


ERRORS = (
    ValueError("no"),
    KeyError("no"),
    RuntimeError("no"),
    AssertionError(),
    AttributeError("x"),
    OSError(5, "x"),
)


def capsule(draw: random.Random) -> Any:
    """A capsule: right, or with a field that is not."""
    memory = np.zeros(256, np.float32)
    rank = draw.choice((1, 1, 1, 2, 0, -1, 65, 10**6))
    extents = (ctypes.c_int64 * 64)(256, *[1] * 63)
    steps = (ctypes.c_int64 * 64)(*[1] * 64)
    for field in (extents, steps):
        if draw.random() < 0.2:
            field[0] = draw.choice((-1, 0, 2**40, 2**62, -(2**63), 3))
    tensor = array_interop.DLTensor(
        memory.ctypes.data, draw.choice((1, 1, 1, 2, 13, 99)), draw.choice((0, 0, 7)), rank, draw.choice((2, 2, 2, 0, 17)),
        draw.choice((32, 32, 32, 16, 7)), draw.choice((1, 1, 1, 0, 4)),
        extents if draw.random() < 0.9 else None, steps if draw.random() < 0.6 else None,
        draw.choice((0, 0, 0, 4, 2**63)),
    )  # fmt: skip
    if draw.random() < 0.1:
        tensor.data = None
    _kept[:] = [memory, extents, steps, tensor]
    name = draw.choice((NAME, NAME, NAME, NAME, b"used_dltensor", b"other", b"dltensor_versioned"))
    _kept.append(name)
    return new_capsule(ctypes.addressof(tensor), name, None)


def dlpack(draw: random.Random) -> Any:
    device: Any = draw.choice(
        ((1, 0), (1, 0), (1, 0), (2, 0), (1,), (), None, "cpu", (1.5, 0), (None, 0), *ERRORS, *THINGS)
    )
    given = capsule(draw) if draw.random() < 0.8 else draw.choice((*THINGS, *ERRORS))
    methods = {"__dlpack__": answering(given), "__dlpack_device__": answering(device)}
    if draw.random() < 0.1:
        methods[draw.choice(list(methods))] = draw.choice((None, 3, *ERRORS))
    return Broken(**methods)


def interface(draw: random.Random) -> Any:
    fields: Any = {
        "shape": (256,),
        "typestr": "<f4",
        "data": (np.zeros(256, np.float32).ctypes.data, False),
        "version": 3,
    }
    for name in ("shape", "typestr", "data", "strides", "mask", "stream"):
        if draw.random() < 0.3:
            fields[name] = draw.choice((*THINGS, (-1,), (2**70,), ("a", 1), (None, False), (4, 4)))
    if draw.random() < 0.1:
        del fields[draw.choice(list(fields))]
    given = fields if draw.random() < 0.9 else draw.choice((*THINGS, *ERRORS))
    return Broken(__cuda_array_interface__=given)


def case(draw: random.Random) -> None:
    if draw.random() < 0.15:
        array_interop.stream_handle(
            Broken(
                **{
                    draw.choice(("cuda_stream", "ptr", "__cuda_stream__")): draw.choice(
                        (*THINGS, *ERRORS, answering(draw.choice((*THINGS, *ERRORS))))
                    )
                }
            )
        )
        return
    array = dlpack(draw) if draw.random() < 0.6 else interface(draw)
    raw = array_interop.read_array(array)
    honest = raw is not None and raw.device is None and raw.shape == (256,) and raw.strides in (None, (4,))
    if not honest or raw.pointer % 16 or raw.dtype != np.float32 or draw.random() < 0.7:
        return  # who lies about their memory cannot be found out
    kernel = corpus.load(corpus.PLAIN)
    kernel.emulate[1, 32](array, np.zeros(256, np.float32), 2)
