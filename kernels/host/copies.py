"""Launches that copy operands, multiply the copies, and copy the result back."""

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
from tensorcore_dsl.kernels.host.arrays import empty_like, on_stream, transposed, with_line_stride
from tensorcore_dsl.kernels.host.launch import bind, launch_nothing
from tensorcore_dsl.kernels.host.workspace import scratch
from tensorcore_dsl.kernels.problem.padding import ROWS, Copy, padded_shape
from tensorcore_dsl.kernels.problem.recording import is_recording

Launch = Callable[..., None]
Pairs = list[tuple[Any, Any]]  # sources and targets


def bind_with_copies(
    bind_product: Callable[[tuple[Any, ...]], Launch],
    arguments: tuple[Any, ...],
    copies: tuple[Copy, ...],
    stream: Any,
) -> Launch:
    """Bind a launch that copies some arguments, and then launches the product of the copies.

    bind_product: binds the product for its arguments. A result that is copied back gets an
    uninitialised array. All copies and launches go to `stream`.
    """
    originals = [copy.converted(describe(arguments[copy.argument])) for copy in copies]
    shapes = [padded_shape(x, copy.axis) for x, copy in zip(originals, copies, strict=True)]
    dtypes = [x.type.dtype for x in originals]
    size = sum(math.prod(s) * t.itemsize for s, t in zip(shapes, dtypes, strict=True))
    kind = "copies", tuple((copy.argument, copy.axis) for copy in copies), *shapes, *dtypes

    def allocate(like: Any) -> list[Any]:
        return [empty_like(like, shape, t) for shape, t in zip(shapes, dtypes, strict=True)]

    def views(memory: list[Any]) -> list[Any]:
        """Views of the copies, which the product takes instead of the arguments."""
        copied = zip(memory, originals, copies, strict=True)
        return [_view(target, x.shape, copy.axis) for target, x, copy in copied]

    def replaced(arguments: tuple[Any, ...], views: list[Any]) -> list[Any]:
        by_argument = {copy.argument: view for copy, view in zip(copies, views, strict=True)}
        return [by_argument.get(argument, x) for argument, x in enumerate(arguments)]

    def before(arguments: tuple[Any, ...], memory: list[Any]) -> Pairs:
        # A single column has two strides of 1, so its rows would count as aligned otherwise.
        return [
            (_rows_of(with_line_stride(arguments[copy.argument], x, copy.axis), copy.axis), target)
            for copy, target, x in zip(copies, memory, originals, strict=True)
            if not copy.is_result
        ]

    def behind(arguments: tuple[Any, ...], views: list[Any]) -> Pairs:
        copied = []
        for copy, view, x in zip(copies, views, originals, strict=True):
            if copy.is_result:
                by_columns = not x.type.unit[-1] and x.type.unit[-2]
                pair = view, arguments[copy.argument]
                copied.append((transposed(pair[0]), transposed(pair[1])) if by_columns else pair)
        return copied

    memory = allocate(arguments[0])
    copied = views(memory)
    by_kernel = _are_on_gpu(originals) and not any(copy.dtype for copy in copies)
    copy_in = _bind_pairs(before(arguments, memory), by_kernel, stream)
    product = bind_product(tuple(replaced(arguments, copied)))
    copy_out = _bind_pairs(behind(arguments, copied), by_kernel, stream)

    def launch(*arguments: Any) -> None:
        like = arguments[0]
        memory = scratch(like, stream, kind, size, partial(allocate, like))
        copied = views(memory)
        with on_stream(like, stream):
            copy_in(before(arguments, memory))
            product(*replaced(arguments, copied))
            copy_out(behind(arguments, copied))

    return launch


def _view(memory: Any, shape: tuple[int, ...], axis: int) -> Any:
    """View the matrices of this shape in the memory of a copy."""
    return _rows_of(memory[..., : shape[axis]], axis)


def _rows_of(x: Any, axis: int) -> Any:
    """View matrices so that the contiguous axis, ROWS or COLUMNS, becomes the rows."""
    return x if axis == ROWS else transposed(x)


def _are_on_gpu(arrays: list[Description]) -> bool:
    """Whether a kernel copies. Otherwise the arrays' library copies in host memory."""
    return current_target() == "cuda" and not any(x.on_host for x in arrays)


def _bind_pairs(pairs: Pairs, by_kernel: bool, stream: Any) -> Callable[[Pairs], None]:
    """Bind a function that copies matrices like these, two in a launch."""
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
    """Bind the launch that copies one matrix, or two."""
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
    """Mode of the copy kernel for a matrix."""
    if not target.type.unit[-1] or not any(source.type.unit[-2:]):
        return ELEMENTS
    return ALONG if source.type.unit[-1] else ACROSS
