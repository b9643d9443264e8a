"""cp.async: asynchronous copies of 4 to 16 bytes from global to shared memory."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.bounds import check_index
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.indexing import integer_operand
from tensorcore_dsl.lang.pointer import Pointer, element_size
from tensorcore_dsl.lang.tiles import same_elements
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe, is_number


def cp_async(
    target: Pointer,
    source: Pointer,
    size: int,
    *,
    valid: Any = None,
    pred: Any = None,
    cache: str | None = None,
) -> None:
    """Copy `size` bytes from global to shared memory asynchronously.

    Parameters
    ----------
    target : Pointer
        In shared memory, `tile.at(...)`; aligned to `size` bytes.
    source : Pointer
        In global memory, `array.at(...)`, of the same element type; aligned to `size` bytes.
    size : int
        4, 8 or 16 bytes of whole elements, known at compile time.
    valid : integer, optional
        How many bytes are read, 0 to `size`, a run-time value too; the rest of the target becomes
        zero.
    pred : predicate, optional
        Copy only where it holds.
    cache : {"ca", "cg"}, optional
        "cg" passes the L1 cache by and copies 16 bytes only; it is the default there.

    Raises
    ------
    OperandError
        No pointers, other state spaces, other element types, another size.
    Misaligned, OutOfBounds
        In emulation: addresses that are not aligned, or outside the arrays.
    ArchError
        A target before sm_80.

    See Also
    --------
    copy_tile : A whole tile, by all threads of a block.

    Notes
    -----
    `cp.async`, section 9.7.9.25.3.1 of the PTX manual. The copy is complete after
    `cp_async_commit` and `cp_async_wait` of the thread that issued it; other threads see it after
    a barrier after that.

    Examples
    --------
    >>> @tc.kernel
    ... def double(x: tc.Array):
    ...     tile, i = tc.shared(128, x.dtype), 4 * tc.threadIdx.x
    ...     tc.cp_async(tile.at(i), x.at(i), 16)
    ...     tc.cp_async_commit()
    ...     tc.cp_async_wait(0)
    ...     for k in tc.static_range(4):
    ...         x[i + k] = 2 * tile[i + k]
    >>> x = np.arange(128, dtype=np.float32)
    >>> double[1, 32](x)
    >>> x[:4]
    array([0., 2., 4., 6.], dtype=float32)
    """
    for pointer in (target, source):
        if not isinstance(pointer, Pointer):
            raise OperandError(
                f"{names.CP_ASYNC} takes pointers, tile.at(...) and array.at(...), not {describe(pointer)}"
            )
    if target.space != "shared" or source.space != "global":
        raise OperandError(
            f"{names.CP_ASYNC} copies from global to shared memory, not from {source.space} to {target.space}"
        )
    if not same_elements(target.dtype, source.dtype):
        raise OperandError(
            f"{names.CP_ASYNC} copies bytes: {source.described} and {target.described} do not "
            "have the same elements; pointer.as_type(dtype) reads them as others"
        )
    if not isinstance(size, int) or size % element_size(source.dtype):
        raise OperandError(
            f"{names.CP_ASYNC} copies 4, 8 or 16 bytes of whole {source.dtype} elements, not {describe(size)}"
        )
    if is_number(valid) and not 0 <= valid <= size:
        raise OperandError(f"valid= is 0 to {size} of the {size} bytes, not {valid}")
    cache = cache or ("cg" if size == 16 else "ca")
    name = names.cp_async(cache, zero_fill=valid is not None)
    start = target.accessed(size, pred)
    if valid is None:
        emit(name, start, source.accessed(size, pred), size, pred=pred)
    else:
        count = builder().convert(integer_operand(valid, dtypes.u32, "valid="), dtypes.u32)
        _check_valid(count, size, pred)
        source.check_bounds(count, pred)
        emit(name, start, source.address, size, count, pred=pred)


def _check_valid(count: Any, size: int, pred: Any) -> None:
    """Check that a copy of `size` bytes reads no more than these."""
    message = "valid= is %lld for a copy of %lld bytes"
    check_index(count.bits(dtypes.s32), size, message, count=0, pred=pred)


def cp_async_commit() -> None:
    """Close a group of this thread's asynchronous copies: those since the last commit.

    Raises
    ------
    ArchError
        A target before sm_80.

    See Also
    --------
    cp_async : The copies, with an example.

    Notes
    -----
    `cp.async.commit_group`, section 9.7.9.25.3.2 of the PTX manual.
    """
    emit(names.CP_ASYNC_COMMIT)


def cp_async_wait(pending: int = 0) -> None:
    """Wait until at most `pending` of this thread's newest groups are in flight.

    Parameters
    ----------
    pending : int
        Groups, 0 or more, known at compile time. 0 waits for all; a pipeline of n stages that has
        issued n - 1 groups ahead waits with n - 2.

    Raises
    ------
    OperandError
        A negative number.
    ArchError
        A target before sm_80.

    See Also
    --------
    cp_async : The copies, with an example.

    Notes
    -----
    `cp.async.wait_group`, section 9.7.9.25.3.3 of the PTX manual. It waits for the copies of this
    thread only: a barrier must follow before others read the data.
    """
    check_pending(pending)
    emit(names.CP_ASYNC_WAIT, pending)


def check_pending(pending: Any, most: int | None = None) -> None:
    """OperandError unless `pending` can be the number of groups in flight after a wait."""
    if isinstance(pending, int) and (pending < 0 or (most is not None and pending > most)):
        allowed = "0 or more" if most is None else f"0 to {most}"
        raise OperandError(f"{allowed} groups may be in flight after a wait, not {pending}")
