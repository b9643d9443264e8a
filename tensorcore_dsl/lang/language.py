"""The functions of the kernel language, apart from Python's own operators.

Each is an ordinary Python function that emits rows of the table. Inside a kernel they are
called as `tc.barrier()`, `tc.ldmatrix(...)` and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import LayoutError, OperandError, listing
from tensorcore_dsl.ir.nodes import Type
from tensorcore_dsl.isa.spec import Operand
from tensorcore_dsl.lang.local import local as local
from tensorcore_dsl.lang.memory import Tile, check_swizzle, row_major
from tensorcore_dsl.lang.pointer import Pointer, element_size
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.operands import describe, is_number, number_type, type_of
from tensorcore_dsl.values.values import Group, Scalar, builder

EVERYBODY = 0xFFFFFFFF  # the mask of all lanes of a warp


def emit(mnemonic: str, *operands: Any, **options: Any) -> Any:
    """Emit the instruction spelled `mnemonic`, any row of the table."""
    return builder().named(mnemonic, *operands, **options)


# -- where am I -------------------------------------------------------------------------------


class _Special3:
    """`tc.threadIdx.x`: a special register with three components, as s32."""

    def __init__(self, register: str) -> None:
        self._register = register

    def __getattr__(self, axis: str) -> Scalar:
        if axis not in ("x", "y", "z"):
            raise AttributeError(f"{self._register} has components x, y and z, not {axis!r}")
        return special(f"{self._register}.{axis}")


threadIdx = _Special3("tid")
blockIdx = _Special3("ctaid")
blockDim = _Special3("ntid")
gridDim = _Special3("nctaid")


def special(register: str) -> Scalar:
    """A special register, for example "laneid", "clock" (as s32) or "clock64" (as u64)."""
    return builder().special(register)


def lane_id() -> Scalar:
    """0 to 31: this thread within its warp."""
    return special("laneid")


def thread_in_warpgroup() -> Any:
    """0 to 127: this thread within its warpgroup."""
    return threadIdx.x % 128


def warp_id() -> Any:
    """threadIdx.x // 32, the same for a whole warp."""
    return threadIdx.x // 32


def arch_number() -> int:
    """The target's compute capability as an integer, known at compile time: 80, 90, 120."""
    return builder().arch.number


def launch_bounds(threads: int, min_blocks: int | None = None) -> None:
    """Fix the block size at compile time (`.reqntid`), so that the assembler may use all the
    registers such a block leaves each thread; min_blocks: how many shall fit on an SM."""
    kernel = builder().kernel
    kernel.threads, kernel.min_blocks = int(threads), min_blocks


def trap() -> None:
    """Stop the kernel with an error."""
    emit("trap")


# -- memory -----------------------------------------------------------------------------------


def _shape(given: int | Sequence[int], what: str) -> tuple[int, ...]:
    shape = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        raise OperandError(
            f"the shape of {what} is positive integers known at compile time, not "
            f"{', '.join(map(describe, shape)) or 'empty'}"
        )
    return shape  # type: ignore[return-value]


def shared(
    shape: int | Sequence[int],
    dtype: DType,
    *,
    swizzle: int = 0,
    strides: Sequence[int] | None = None,
    align: int | None = None,
) -> Tile:
    """A tile of shared memory with a compile-time shape, row-major unless strides are given.

    swizzle: 32, 64 or 128 bytes; flips 16-byte chunks within rows so that columns of chunks
    fall into different banks. Tiles above 48 KiB in all become dynamic shared memory by
    themselves. align: bytes, a multiple of the swizzle's period of 8 rows.
    """
    shape = _shape(shape, "a shared tile")
    steps = tuple(strides) if strides is not None else row_major(shape)
    if len(steps) != len(shape):
        raise LayoutError(f"{len(steps)} strides were given for {len(shape)} dimensions")
    check_swizzle(shape, steps, dtype, swizzle)
    least = max(16, 8 * swizzle)
    align = align or least
    if align & (align - 1) or (swizzle and align % least):
        raise LayoutError(
            f"a tile cannot be aligned to {align} bytes: powers of two are allowed, and a "
            f"{swizzle}-byte swizzle needs a multiple of {least}"
        )
    elements = sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) + 1
    kernel = builder().kernel
    start = -(-kernel.shared_bytes // align) * align
    kernel.shared_bytes = start + elements * element_size(dtype)
    kernel.shared_align = max(kernel.shared_align, align)
    origin = emit("shared.base") + start
    return Tile(origin, 0, dtype, shape, steps, swizzle)


def dynamic_shared(
    shape: int | Sequence[int], dtype: DType, *, offset: int = 0, swizzle: int = 0
) -> Tile:
    """A tile in the dynamic shared memory that the launch sizes: `kernel[grid, block, stream,
    bytes](...)`. It starts `offset` bytes into it, which is a multiple of 16."""
    shape = _shape(shape, "a shared tile")
    steps = row_major(shape)
    check_swizzle(shape, steps, dtype, swizzle)
    least = max(element_size(dtype), 8 * swizzle)
    if offset < 0 or offset % least:
        raise LayoutError(f"offset {offset} of {dtype} elements is no multiple of {least} bytes")
    builder().kernel.dynamic = True
    origin = emit("shared.dynamic") + offset
    return Tile(origin, 0, dtype, shape, steps, swizzle)


def load(pointer: Pointer, count: int = 1, **options: Any) -> Any:
    """`pointer.load(...)`."""
    return pointer.load(count, **options)


def store(pointer: Pointer, value: Any, **options: Any) -> None:
    """`pointer.store(...)`."""
    pointer.store(value, **options)


def cp_async(
    target: Pointer,
    source: Pointer,
    size: int,
    *,
    valid: Any = None,
    pred: Any = None,
    cache: str | None = None,
) -> None:
    """Copy `size` bytes (4, 8 or 16) from global to shared memory asynchronously.

    valid: bytes really read (run time), the rest becomes zero. cache: "ca" or "cg" (16 bytes
    only); by default cg where it exists.
    """
    if target.space != "shared" or source.space != "global":
        raise OperandError(
            f"cp.async copies from global to shared memory, not from {source.space} to "
            f"{target.space}"
        )
    cache = cache or ("cg" if size == 16 else "ca")
    name = f"cp.async.{cache}.shared.global"
    if valid is None:
        emit(name, target.address, source.address, size, pred=pred)
    else:
        count = builder().convert(valid, dtypes.u32)
        emit(f"{name}.zfill", target.address, source.address, size, count, pred=pred)


def cp_async_commit() -> None:
    """Close a group of this thread's asynchronous copies."""
    emit("cp.async.commit_group")


def cp_async_wait(pending: int = 0) -> None:
    """Wait until at most `pending` of this thread's newest groups are in flight."""
    emit("cp.async.wait_group", pending)


def barrier(id: Any = 0, threads: Any = None) -> None:
    """bar.sync: all threads of the block, or `threads` of them at barrier `id`."""
    if threads is None:
        emit("bar.sync", id)
    else:
        emit("bar.sync.count", id, threads)


def barrier_arrive(id: Any, threads: Any) -> None:
    """bar.arrive: count at barrier `id` without waiting."""
    emit("bar.arrive", id, threads)


def syncwarp(mask: Any = EVERYBODY) -> None:
    """Wait for the lanes of `mask` in this warp."""
    emit("bar.warp.sync", mask)


# -- warp-wide --------------------------------------------------------------------------------


def _shuffle(mode: str, value: Any, lane: Any, clamp: int, mask: Any) -> Any:
    build = builder()
    value = build.scalar(value)
    dtype = value.dtype
    if dtype.kind == "p":
        return _shuffle(mode, value.to(dtypes.s32), lane, clamp, mask) != 0
    if dtype.register_bits == 64:
        halves = emit("mov.b64.unpack", value)
        moved = [_shuffle(mode, h, lane, clamp, mask) for h in halves]
        return Scalar(emit("mov.b64.pack", *moved).value, dtype)
    if dtype.register_bits == 16:
        wide = emit("mov.b32.pack", value, build.literal(0, dtypes.b16))
        moved = _shuffle(mode, wide, lane, clamp, mask)
        return Scalar(emit("mov.b32.unpack", moved)[0].value, dtype)
    result = emit(f"shfl.sync.{mode}.b32", value, lane, clamp, mask)
    return Scalar(result.value, dtype)


def shfl(value: Any, lane: Any, mask: Any = EVERYBODY) -> Any:
    """`value` of lane `lane`."""
    return _shuffle("idx", value, lane, 31, mask)


def shfl_up(value: Any, delta: Any, mask: Any = EVERYBODY) -> Any:
    """`value` of the lane `delta` below; lanes without one keep theirs."""
    return _shuffle("up", value, delta, 0, mask)


def shfl_down(value: Any, delta: Any, mask: Any = EVERYBODY) -> Any:
    """`value` of the lane `delta` above; lanes without one keep theirs."""
    return _shuffle("down", value, delta, 31, mask)


def shfl_xor(value: Any, lanes: Any, mask: Any = EVERYBODY) -> Any:
    """`value` of lane `lane ^ lanes`."""
    return _shuffle("bfly", value, lanes, 31, mask)


VOTES = ("all", "any", "uni", "ballot")
REDUCTIONS = ("add", "min", "max", "and", "or", "xor")
ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas")


def _check_among(what: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise OperandError(f"{what} may be {listing(allowed)}; {given!r} was given")


def vote(mode: str, condition: Any, mask: Any = EVERYBODY) -> Any:
    """all, any, uni (a predicate) or ballot (u32) of a condition over the warp."""
    _check_among("a vote", mode, VOTES)
    value = builder().scalar(arithmetic.truth(builder(), condition))
    result = emit(f"vote.sync.{mode}.{'b32' if mode == 'ballot' else 'pred'}", value, mask)
    return result.bits(dtypes.u32) if mode == "ballot" else result


def match_any(value: Any, mask: Any = EVERYBODY) -> Scalar:
    """The lanes that hold the same value, a bit each (u32)."""
    value = builder().scalar(value)
    found: Scalar = emit(f"match.any.sync.b{value.dtype.bits}", value, mask)
    return found.bits(dtypes.u32)


def redux(operation: str, value: Any, mask: Any = EVERYBODY) -> Scalar:
    """add, min, max, and, or, xor of a 32-bit integer over the warp."""
    _check_among("a reduction", operation, REDUCTIONS)
    value = builder().scalar(value)
    kind = "b32" if operation in ("and", "or", "xor") else value.dtype
    return Scalar(emit(f"redux.sync.{operation}.{kind}", value, mask).value, value.dtype)


# -- atomics ----------------------------------------------------------------------------------


def _atomic_type(operation: str, dtype: DType) -> str:
    """How PTX spells the operation on elements of this type."""
    if operation in ("and", "or", "xor", "exch", "cas"):
        return f"{operation}.b{dtype.bits}"
    if operation == "add" and dtype == dtypes.s64:
        return "add.u64"
    if dtype.is_float and (dtype.bits == 16 or dtype.lanes == 2):
        return f"{operation}.noftz.{dtype}"
    return f"{operation}.{dtype}"


def _check_pointer(what: str, pointer: Any) -> None:
    if not isinstance(pointer, Pointer):
        raise OperandError(f"{what} takes a pointer, array.at(...), not {describe(pointer)}")


def atomic(operation: str, pointer: Pointer, *values: Any) -> Scalar:
    """add, min, max, and, or, xor, exch, inc, dec or cas on one element; returns the old value."""
    _check_among("an atomic operation", operation, ATOMICS)
    _check_pointer("tc.atomic", pointer)
    dtype = pointer.dtype
    given = [builder().convert(v, dtype) for v in values]
    name = f"atom.{pointer.space}.{_atomic_type(operation, dtype)}"
    return Scalar(emit(name, pointer.address, *given).value, dtype)


def reduce(operation: str, pointer: Pointer, value: Any) -> None:
    """Like `atomic`, without the old value: add, min, max, and, or, xor, inc or dec."""
    _check_among("a reduction", operation, (*ATOMICS[:6], "inc", "dec"))
    _check_pointer("tc.reduce", pointer)
    name = f"red.{pointer.space}.{_atomic_type(operation, pointer.dtype)}"
    emit(name, pointer.address, builder().convert(value, pointer.dtype))


# -- mathematics ------------------------------------------------------------------------------


def fma(a: Any, b: Any, c: Any, rounding: str = "rn") -> Any:
    """a * b + c rounded once; integers: the low half of the product, plus c."""
    return arithmetic.fma(builder(), a, b, c, rounding)


def minimum(a: Any, b: Any) -> Any:
    """The lesser of two; a NaN gives the other."""
    return arithmetic.extreme(builder(), "min", a, b)


def maximum(a: Any, b: Any) -> Any:
    """The greater of two; a NaN gives the other."""
    return arithmetic.extreme(builder(), "max", a, b)


def select(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where `condition` holds, else `no`; both are computed."""
    return arithmetic.select(builder(), condition, yes, no)


def _float(value: Any, what: str) -> Scalar:
    """A scalar float; integers as f32."""
    if not isinstance(value, Scalar) and not is_number(value):
        raise OperandError(f"{what} takes numbers, not {describe(value)}")
    if not isinstance(value, Scalar):
        return builder().literal(value, dtypes.f32)
    return value if value.dtype.is_float else builder().convert(value, dtypes.f32)  # type: ignore[no-any-return]


def _approximate(name: str, doc: str) -> Any:
    def function(value: Any) -> Any:
        if isinstance(value, Group):
            return value.map(function)
        value = _float(value, doc)
        if value.dtype.bits == 64:
            raise OperandError(f"{doc} has no f64 form; convert to f32 first")
        result = emit(f"{name}.approx.f32", builder().convert(value, dtypes.f32))
        return builder().convert(result, value.dtype)

    function.__name__ = name
    function.__doc__ = f"{doc}: {name}.approx of an f32 (narrower floats by way of f32)."
    return function


exp2, log2 = _approximate("ex2", "exp2"), _approximate("lg2", "log2")
rcp, rsqrt = _approximate("rcp", "rcp"), _approximate("rsqrt", "rsqrt")
tanh, sin, cos = (_approximate(n, n) for n in ("tanh", "sin", "cos"))


def sqrt(value: Any) -> Any:
    """Square root, rounded to nearest."""
    if isinstance(value, Group):
        return value.map(sqrt)
    value = _float(value, "sqrt")
    wide = value if value.dtype.bits >= 32 else builder().convert(value, dtypes.f32)
    return builder().convert(emit(f"sqrt.rn.{wide.dtype}", wide), value.dtype)


def exp(value: Any) -> Any:
    """e**x as ex2.approx(x * log2(e)), narrow floats by way of f32."""
    if isinstance(value, Group):
        return value.map(exp)
    value = _float(value, "exp")
    wide = value if value.dtype.bits >= 32 else builder().convert(value, dtypes.f32)
    return builder().convert(exp2(wide * math.log2(math.e)), value.dtype)


def log(value: Any) -> Any:
    """The natural logarithm as lg2.approx(x) * ln(2), narrow floats by way of f32."""
    if isinstance(value, Group):
        return value.map(log)
    value = _float(value, "log")
    wide = value if value.dtype.bits >= 32 else builder().convert(value, dtypes.f32)
    return builder().convert(log2(wide) * math.log(2), value.dtype)


# -- fragments --------------------------------------------------------------------------------


def fragment(operand: Operand, registers: Sequence[Any]) -> Group:
    """A fragment of `operand` from its registers."""
    if not isinstance(operand, Operand) or operand.layout is None:
        raise OperandError(f"{describe(operand)} is no fragment operand, such as mma.a")
    return builder().pack(list(registers), type_of(operand), operand)


def vector(elements: Sequence[Any]) -> Group:
    """A plain vector of scalars of one type; Python's numbers take that of the others."""
    known = list(dict.fromkeys(e.dtype for e in elements if isinstance(e, Scalar)))
    types = known or list(dict.fromkeys(number_type(e) for e in elements))
    if len(types) != 1:
        raise OperandError(f"a vector has elements of one type, not {listing(types) or 'none'}")
    return builder().pack(
        [builder().scalar(e, types[0]) for e in elements], Type(types[0], len(elements))
    )
