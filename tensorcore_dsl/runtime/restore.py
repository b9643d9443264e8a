"""Restore the arrays between timed launches: keep their contents, or zero them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.arguments import Description, array_element_bits
from tensorcore_dsl.runtime.host_arrays import on_host
from tensorcore_dsl.runtime.host_staging import Memory
from tensorcore_dsl.runtime.launch import Repeatable

Reset = Callable[[], None]


@contextmanager
def on_cpu(args: Sequence[Any], kept: Collection[int], zeroed: Collection[int]) -> Iterator[Reset]:
    """Yield a function that resets host arrays, given by their indices in `args`. It also runs at the end."""
    with on_host([args[index] for index in (*kept, *zeroed)]) as arrays:
        images = [array.copy() if i < len(kept) else 0 for i, array in enumerate(arrays)]

        def reset() -> None:
            for array, image in zip(arrays, images, strict=True):
                array[...] = image

        try:
            yield reset
        finally:
            reset()


@contextmanager
def on_gpu(launch: Repeatable, kept: Collection[int], zeroed: Collection[int]) -> Iterator[Reset]:
    """Yield a function that resets arrays of a launch on its stream. It also runs at the end."""
    gpu = driver.cuda_driver()
    with gpu.on_device(launch.device):
        memory = gpu.memory(launch.stream)
        resets = [_kept(launch.arguments[index], memory) for index in kept]
        resets += [_zeroed(launch.arguments[index], memory) for index in zeroed]

    def reset() -> None:
        with gpu.on_device(launch.device):
            for reset_array in resets:
                reset_array()

    with ExitStack() as stack:
        stack.callback(reset)
        yield reset


def _kept(argument: Description, memory: Memory) -> Reset:
    low, size = span(argument)
    if not size:
        return lambda: None
    image, owner = memory.allocate(size)
    memory.copy(image, low, size)
    return lambda owner=owner: memory.copy(low, image, size)  # type: ignore[misc]


def _zeroed(argument: Description, memory: Memory) -> Reset:
    low, size = span(argument)
    bits = array_element_bits(argument.type.dtype)
    if size == -(-math.prod(argument.shape) * bits // 8):
        return (lambda: memory.fill(low, 0, size)) if size else (lambda: None)
    content = np.empty(size, np.uint8)  # other elements lie between the elements of the array
    memory.download(low, content)
    memory.synchronize()
    itemsize = bits // 8
    strides = [stride * itemsize for stride in argument.strides]
    start = argument.pointer - low
    np.ndarray(argument.shape, f"V{itemsize}", content, start, strides)[...] = np.void(bytes(itemsize))
    image, owner = memory.allocate(size)
    memory.upload(image, content)
    memory.synchronize()
    return lambda owner=owner: memory.copy(low, image, size)  # type: ignore[misc]


def span(argument: Description) -> tuple[int, int]:
    """Address and number of the bytes from an array's lowest to its highest element."""
    if 0 in argument.shape:
        return argument.pointer, 0
    bits = array_element_bits(argument.type.dtype)
    reaches = [(n - 1) * s for n, s in zip(argument.shape, argument.strides, strict=True)]
    low = sum(reach for reach in reaches if reach < 0)
    high = sum(reach for reach in reaches if reach > 0)
    return argument.pointer + low * bits // 8, -(-(high - low + 1) * bits // 8)
