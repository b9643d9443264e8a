"""Launches that copy operands before their product, and its result behind it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tensorcore_dsl.host import Description, current_target, describe
from tensorcore_dsl.kernels.copy_matrix import (
    ACROSS,
    ALONG,
    ELEMENTS,
    WARPS,
    copy_kernel,
    copy_two_kernel,
    ctas,
)
from tensorcore_dsl.kernels.host.arrays import empty_like, on_stream, transposed
from tensorcore_dsl.kernels.host.launch import bind, is_recording, launch_nothing
from tensorcore_dsl.kernels.host.padding import ROWS, Copy, padded_shape, with_line_stride
from tensorcore_dsl.kernels.host.workspace import scratch

Launch = Callable[..., None]
Pairs = list[tuple[Any, Any]]  # sources and targets


def bind_with_copies(
    bind_product: Callable[[tuple[Any, ...]], Launch],
    arguments: tuple[Any, ...],
    copies: tuple[Copy, ...],
    stream: Any,
) -> Launch:
    """A launch that copies some of its arguments, and then launches the product of the copies.

    bind_product: binds the product for arguments like those given. A result that is to be copied
    back gets an uninitialised array of its own. All of it belongs to `stream`.
    """
    given = [copy.converted(describe(arguments[copy.place])) for copy in copies]
    shapes = [padded_shape(x, copy.axis) for x, copy in zip(given, copies, strict=True)]
    dtypes = [x.type.dtype for x in given]
    size = sum(math.prod(s) * t.itemsize for s, t in zip(shapes, dtypes, strict=True))
    kind = "copies", tuple((copy.place, copy.axis) for copy in copies), *shapes, *dtypes

    def allocate(like: Any) -> list[Any]:
        return [empty_like(like, shape, t) for shape, t in zip(shapes, dtypes, strict=True)]

    def views(memory: list[Any]) -> list[Any]:
        """What the product takes in place of each argument that has a copy."""
        found = zip(memory, given, copies, strict=True)
        return [_view(whole, x.shape, copy.axis) for whole, x, copy in found]

    def replaced(arguments: tuple[Any, ...], views: list[Any]) -> list[Any]:
        others = {copy.place: view for copy, view in zip(copies, views, strict=True)}
        return [others.get(place, x) for place, x in enumerate(arguments)]

    def before(arguments: tuple[Any, ...], memory: list[Any]) -> Pairs:
        # Of a single column, the rows would else count as aligned, since both strides are 1.
        return [
            (_rows_of(with_line_stride(arguments[copy.place], x, copy.axis), copy.axis), whole)
            for copy, whole, x in zip(copies, memory, given, strict=True)
            if not copy.is_result
        ]

    def behind(arguments: tuple[Any, ...], views: list[Any]) -> Pairs:
        found = []
        for copy, view, x in zip(copies, views, given, strict=True):
            if copy.is_result:
                by_columns = not x.type.unit[-1] and x.type.unit[-2]
                pair = view, arguments[copy.place]
                found.append((transposed(pair[0]), transposed(pair[1])) if by_columns else pair)
        return found

    memory = allocate(arguments[0])
    found = views(memory)
    by_kernel = _are_on_gpu(given) and not any(copy.dtype for copy in copies)
    copy_in = _bind_pairs(before(arguments, memory), by_kernel, stream)
    product = bind_product(tuple(replaced(arguments, found)))
    copy_out = _bind_pairs(behind(arguments, found), by_kernel, stream)

    def launch(*arguments: Any) -> None:
        like = arguments[0]
        memory = scratch(like, stream, kind, size, partial(allocate, like))
        found = views(memory)
        with on_stream(like, stream):
            copy_in(before(arguments, memory))
            product(*replaced(arguments, found))
            copy_out(behind(arguments, found))

    return launch


def _view(whole: Any, shape: tuple[int, ...], axis: int) -> Any:
    """The matrices of this shape in the memory of a copy."""
    return _rows_of(whole[..., : shape[axis]], axis)


def _rows_of(x: Any, axis: int) -> Any:
    """A view of matrices whose rows are what `axis` calls contiguous."""
    return x if axis == ROWS else transposed(x)


def _are_on_gpu(given: list[Description]) -> bool:
    """Whether a kernel copies. Otherwise the arrays' library does, in the memory of the host."""
    return current_target() == "cuda" and not any(x.on_host for x in given)


def _bind_pairs(pairs: Pairs, by_kernel: bool, stream: Any) -> Callable[[Pairs], None]:
    """A function that copies matrices like these, by kernels two in a launch."""
    if not by_kernel:
        return launch_nothing if is_recording() else _assign
    firsts = range(0, len(pairs), 2)
    launches = [_bind_two(pairs[i : i + 2], stream) for i in firsts]

    def copy(pairs: Pairs) -> None:
        for i, launch in zip(firsts, launches, strict=True):
            sources, targets = zip(*pairs[i : i + 2], strict=True)
            launch(*sources, *targets)

    return copy


def _assign(pairs: Pairs) -> None:
    for source, target in pairs:
        target[..., : source.shape[-1]] = source


def _bind_two(pairs: Pairs, stream: Any) -> Launch:
    """The launch that copies one matrix, or two."""
    described = [(describe(source), describe(target)) for source, target in pairs]
    modes = [_mode(*pair) for pair in described]
    grids = [
        ctas(source.shape, source.type.dtype.itemsize, mode)
        for (source, _), mode in zip(described, modes, strict=True)
    ]
    sources, targets = zip(*pairs, strict=True)
    if len(pairs) == 1:
        options = {"mode": modes[0]}
        return bind(copy_kernel, grids[0], 32 * WARPS, options, (*sources, *targets), stream=stream, pdl=True)
    options = {"mode_a": modes[0], "mode_b": modes[1]}
    arguments = *sources, *targets, grids[0]
    launch = bind(copy_two_kernel, sum(grids), 32 * WARPS, options, arguments, stream=stream, pdl=True)
    return lambda *arrays: launch(*arrays, grids[0])


def _mode(source: Description, target: Description) -> str:
    """How the copy kernel goes through a matrix."""
    if not target.type.unit[-1] or not any(source.type.unit[-2:]):
        return ELEMENTS
    return ALONG if source.type.unit[-1] else ACROSS
