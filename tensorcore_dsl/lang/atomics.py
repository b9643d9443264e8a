"""Atomic operations on elements of global and shared memory."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import ArchError, OperandError, UnknownInstruction
from tensorcore_dsl.ir.nodes import Assign, Block, While
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.pointer import Pointer, check_async, element_size
from tensorcore_dsl.lang.warp import check_choice
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.values import Element, Scalar

ORDERS, SCOPES = ("relaxed", "acquire", "release", "acq_rel"), ("cta", "cluster", "gpu", "sys")
ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas")


def atomic(
    operation: str, pointer: Pointer, *values: Any, order: str = "relaxed", scope: str = "gpu"
) -> Element:
    """An atomic operation on one element of global or shared memory.

    Parameters
    ----------
    operation : {"add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas"}
        "exch" stores the value. "inc" and "dec" (u32) count up and wrap to 0 after the value, or
        down and wrap to the value. "cas" stores its second value if the element equals the first.
    pointer : Pointer
        `array.at(...)` or `tile.at(...)`.
    *values : number or scalar
        One value, for "cas" two; converted to the type of the element.
    order : {"relaxed", "acquire", "release", "acq_rel"}
        A release hands on what the thread has done so far; an acquire that reads the value, or a
        value that atomic operations have made of it, learns it.
    scope : {"cta", "cluster", "gpu", "sys"}
        The threads that the operation is atomic and ordered for: of the CTA, of the cluster (from
        sm_90 on), of the GPU, or also of other GPUs and the host.

    Returns
    -------
    scalar
        The element before the operation.

    Raises
    ------
    OperandError
        Another operation, order or scope, no pointer, a fraction for integers, bitwise operations on
        floats.
    UnknownInstruction
        A type of elements that the operation does not have.
    ArchError
        A target that lacks the operation for this type.

    See Also
    --------
    reduce : Without the old value, which is faster.

    Notes
    -----
    `atom`, section 9.7.13.5 of the PTX manual; orders and scopes are those of chapter 8.

    The table has no `min` and `max` of single floats, and `add` of bf16 from sm_90 on alone. These
    are loops of `cas`, which repeat while other threads change the element; bf16 needs sm_80.
    As with `tc.minimum` and `tc.maximum`, a NaN gives way to a number, and -0.0 is less than 0.0.

    Examples
    --------
    >>> @tc.kernel
    ... def tickets(counter: tc.Array, out: tc.Array):
    ...     out[tc.threadIdx.x] = tc.atomic("add", counter.at(0), 1)
    >>> counter, out = np.zeros(1, np.int32), np.zeros(32, np.int32)
    >>> tickets[1, 32](counter, out)
    >>> int(counter[0]), sorted(out.tolist()) == list(range(32))
    (32, True)
    """
    check_choice("an atomic operation", operation, ATOMICS)
    _check_pointer("tc.atomic", pointer)
    check_choice("the order of an atomic operation", order, ORDERS)
    check_choice("the scope of an atomic operation", scope, SCOPES)
    dtype = pointer.dtype
    name = names.atomic(pointer.space, operation, dtype, order, scope)
    compared = _by_comparison(name, operation, dtype)
    operands = [_operand(operation, v, dtype) for v in values]
    if compared:
        return _exchanged(operation, pointer, order, scope, *operands)
    return Scalar(emit(name, pointer.accessed(element_size(dtype)), *operands).value, dtype)


def reduce(
    operation: str,
    pointer: Pointer,
    value: Any,
    *,
    barrier: Any = None,
    order: str | None = None,
    scope: str | None = None,
) -> None:
    """An atomic operation on one element, without its old value.

    Parameters
    ----------
    operation : {"add", "min", "max", "and", "or", "xor", "inc", "dec"}
        See `atomic`.
    pointer : Pointer
        `array.at(...)` or `tile.at(...)`.
    value : number or scalar
        Converted to the type of the element.
    barrier : Mbarrier, optional
        Reduce asynchronously in another CTA of the cluster: in `tile.remote(rank).at(...)`, an
        integer of 32 bits, or "add" of u64. `barrier.remote(rank)` counts the bytes. That CTA reads
        the sum when it has waited for the phase.
    order : {"relaxed", "release"}, optional
        See `atomic`; None is "relaxed".
    scope : {"cta", "cluster", "gpu", "sys"}, optional
        See `atomic`; None is "gpu".

    Raises
    ------
    OperandError
        Another operation, order or scope, no pointer, a fraction for integers, bitwise operations on
        floats; with `barrier=`, a pointer or barrier that is not remote, an order or a scope.
    UnknownInstruction
        A type of elements that the operation does not have.

    See Also
    --------
    store : With `barrier=`, and an example of it.

    Notes
    -----
    `red`, section 9.7.13.6 of the PTX manual. What `atomic` does by a loop is a loop here, too. With
    `barrier=`, `red.async`, section 9.7.13.7, which is relaxed, at the scope of the cluster.

    Examples
    --------
    >>> @tc.kernel
    ... def histogram(x: tc.Array, bins: tc.Array):
    ...     tc.reduce("add", bins.at(x[tc.threadIdx.x]), 1)
    >>> x, bins = np.arange(32, dtype=np.int32) % 3, np.zeros(3, np.int32)
    >>> histogram[1, 32](x, bins)
    >>> bins
    array([11, 11, 10], dtype=int32)
    """
    check_choice("a reduction", operation, (*ATOMICS[:6], "inc", "dec"))
    _check_pointer("tc.reduce", pointer)
    dtype = pointer.dtype
    if barrier is not None:
        check_async(pointer, barrier, "a reduction")
        if order is not None or scope is not None:
            raise OperandError("a reduction with barrier= takes no order= and no scope=")
        operand = _operand(operation, value, dtype)
        name = names.reduction_async(operation, dtype)
        emit(name, pointer.accessed(element_size(dtype)), operand, barrier.accessed())
        return
    order, scope = order or ORDERS[0], scope or "gpu"
    check_choice("the order of a reduction", order, ("relaxed", "release"))
    check_choice("the scope of a reduction", scope, SCOPES)
    name = names.reduction(pointer.space, operation, dtype, order, scope)
    compared = _by_comparison(name, operation, dtype)  # before the target has to convert the value
    operand = _operand(operation, value, dtype)
    if compared:
        _exchanged(operation, pointer, order, scope, operand)
    else:
        emit(name, pointer.accessed(element_size(dtype)), operand)


def _by_comparison(name: str, operation: str, dtype: DType) -> bool:
    """True if the target lacks the instruction `name`, so that compare-and-swap stands in for it.

    ArchError for a target that cannot convert the elements to f32, in which the loop computes.
    """
    if operation not in ("add", "min", "max") or not dtype.is_float or dtype.bits < 16:
        return False
    if _has(name):
        return False
    if dtype.bits == 16 and not _has(names.convert(dtypes.f32, dtype)):
        raise ArchError(
            f"{builder().arch} has no atomic {operation} of {dtype}, and no conversion of {dtype} "
            "for a loop in its place: use elements of f16 or f32, or a target from sm_80 on"
        )
    return True


def _has(name: str) -> bool:
    """True if the target has the instruction."""
    try:
        builder().instruction(name)
    except (ArchError, UnknownInstruction):
        return False
    return True


def _exchanged(operation: str, pointer: Pointer, order: str, scope: str, value: Any) -> Element:
    """The operation by a loop that swaps the element while other threads change it; the old one.

    The first guess is zero, so the first swap reads the element.
    """
    build, dtype = builder(), pointer.dtype
    bits = dtypes.named(f"b{dtype.bits}")
    element, swap = (
        pointer.accessed(element_size(dtype)),
        names.atomic(pointer.space, "cas", dtype, order, scope),
    )
    wide = dtypes.f32 if dtype.bits == 16 else dtype  # All targets have the operations of this type.
    value, guess = build.convert(value, wide), build.literal(0, bits)
    loop = While(Block(), build.scalar(True).value, Block())
    build.append(loop)
    with build.inside(loop.test):
        old = build.convert(Scalar(guess.value, dtype), wide)
        add = operation == "add"
        new = old + value if add else arithmetic.extreme(build, operation, old, value)
        current = emit(swap, element, guess, Scalar(build.convert(new, dtype).value, bits))
        loop.condition = build.named(names.compare("ne", bits), current, guess).value
    with build.inside(loop.body):
        build.append(Assign(guess.value, (current.value,)))
    return Scalar(guess.value, dtype)


def _operand(operation: str, value: Any, dtype: DType) -> Any:
    """The value as the type of the element; OperandError where its fraction would be lost."""
    if operation in ("and", "or", "xor") and dtype.is_float:
        raise OperandError(f"{operation} works on integers and bits, not on {dtype}")
    kind = value.dtype if isinstance(value, Scalar) else None
    fraction = kind.is_float if kind else isinstance(value, float) and not value.is_integer()
    if dtype.is_integer and fraction:
        raise OperandError(
            f"{operation} of {dtype} elements takes integers, not {describe(value)}; convert it "
            f"first, with tc.{dtype}(...)"
        )
    return builder().convert(value, dtype)


def _check_pointer(what: str, pointer: Any) -> None:
    if not isinstance(pointer, Pointer):
        raise OperandError(f"{what} takes a pointer, array.at(...), not {describe(pointer)}")
