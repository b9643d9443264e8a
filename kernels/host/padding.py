"""Copies of operands in layouts that the kernels take, where the given ones do not suit them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, current_target, describe
from tensorcore_dsl.kernels.copy_rows import copy_rows
from tensorcore_dsl.kernels.host import families
from tensorcore_dsl.kernels.host.arrays import empty_like, on_stream, restrided, transposed
from tensorcore_dsl.kernels.host.operands import GemmProblem

VECTOR_ELEMENTS = 16  # rows that start at multiples of these are aligned for TMA in every type
MIN_PRODUCTS = 1 << 30  # M N K from which padded copies for TMA cost less than they gain


def launch_with_copies(
    launch: Callable[..., None], given: GemmProblem, contiguous: GemmProblem, pad: bool, stream: Any
) -> Callable[..., None]:
    """`launch` for operands that it cannot take as they are: it gets copies of them.

    given: the operands of the call; contiguous: the same with `contiguous_vectors` of A and B;
    pad: `padded_operands` of these are needed. The copies are made on the stream of the launch.
    """

    def launch_copies(a: Any, b: Any, c: Any, d: Any, *others: Any) -> None:
        with on_stream(a, stream):
            a, b = contiguous_vectors(a, given.a, -1), contiguous_vectors(b, given.b, -2)
            a, b, target = padded_operands(a, b, d, contiguous) if pad else (a, b, d)
            launch(a, b, target if given.c is None else c, target, *others)
            if target is not d:
                copy_matrix(target, d)

    return launch_copies


def contiguous_vectors(x: Any, description: Description, axis: int) -> Any:
    """`x` with contiguous rows or columns, none reversed: itself, a view, or else a copy.

    axis: which one (-1 or -2) to call contiguous where both could be.
    """
    if 0 in description.shape:
        return x
    unit = description.type.unit[-2:]
    if not any(unit) or families.has_negative_stride(description):
        if hasattr(x, "contiguous"):
            return x.contiguous()
        if hasattr(x, "copy"):
            return x.copy(order="C")
        raise tc.ArgumentError(
            "neither rows nor columns of an operand are contiguous; copy it first"
        )
    return _with_vector_stride(x, description, axis) if all(unit) else x


def _with_vector_stride(x: Any, description: Description, axis: int) -> Any:
    """A single row or column whose axes both have stride 1, with a larger stride for its axis of
    one element: no access uses it, but kernels take an axis of stride 1 for the contiguous one."""
    single = -3 - axis
    if description.shape[single] != 1:
        axis, single = single, axis
    if description.shape[single] != 1:
        return x
    strides = list(description.strides)
    strides[single] = -(-description.shape[axis] // VECTOR_ELEMENTS) * VECTOR_ELEMENTS
    return restrided(x, tuple(strides))


def is_worth_padding(problem: GemmProblem) -> bool:
    """Whether padded copies let the wgmma kernels run a problem that they cannot run as it is.

    That takes a pass over memory, and large products on a Hopper GPU gain by it.
    """
    return (
        problem.batch is None
        and problem.M * problem.N * problem.K >= MIN_PRODUCTS
        and families.has_wgmma()
        and problem.multiplied_as in families.SM90
        and bool(families.obstacles(problem)["sm90"])
    )


def padded_operands(a: Any, b: Any, d: Any, problem: GemmProblem) -> tuple[Any, Any, Any]:
    """A, B and D, or padded copies of those that TMA cannot read, or write.

    Operands of 16 bits keep their layout; wgmma takes others with K contiguous only. A copy of D
    is uninitialised.
    """
    k_major = problem.dtype.bits != 16
    return (
        _padded(a, problem.a, -1 if k_major or problem.a_k_major else -2),
        _padded(b, problem.b, -2 if k_major or problem.b_k_major else -1),
        d if problem.d.type.unit[1] else _empty_padded(d.shape, d),
    )


def _padded(x: Any, description: Description, axis: int) -> Any:
    """`x`, or a copy whose vectors along `axis` start at multiples of 16 bytes."""
    unit = description.type.unit
    if unit[axis] and description.type.align == 16 and not all(unit):
        return x
    source = x if axis == -1 else transposed(x)
    copy = _empty_padded(source.shape, x)
    copy_matrix(source, copy)
    return copy if axis == -1 else transposed(copy)


def copy_matrix(source: Any, target: Any) -> None:
    """target[...] = source, on a GPU by a kernel of this library if rows are contiguous in both.

    The arrays' libraries are slow on rows that are not aligned.
    """
    described = describe(source), describe(target)
    on_gpu = current_target() == "cuda" and not any(x.on_host for x in described)
    if on_gpu and all(x.type.unit[1] for x in described):
        copy_rows(source, target)
    else:
        target[...] = source


def _empty_padded(shape: Any, like: Any) -> Any:
    """An uninitialised matrix whose rows start at 128-byte lines of the L2 cache."""
    dtype = describe(like).type.dtype
    per_line = 128 // dtype.itemsize
    width = -(-shape[1] // per_line) * per_line
    return empty_like(like, (shape[0], width), dtype)[:, : shape[1]]
