"""The functions of the kernel language, apart from Python's own operators.

Each is an ordinary Python function that emits rows of the table. Inside a kernel they are
called as `tc.barrier()`, `tc.ldmatrix(...)` and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.frontend import arithmetic
from tensorcore_dsl.frontend.memory import Pointer, Tile, check_swizzle, row_major
from tensorcore_dsl.frontend.values import Group, Scalar
from tensorcore_dsl.ir.nodes import Type
from tensorcore_dsl.isa.spec import Operand, emitter


def _builder() -> Any:
    return emitter()


def emit(mnemonic: str, *operands: Any, **options: Any) -> Any:
    """Emit the instruction spelled `mnemonic`, any row of the table."""
    return _builder().named(mnemonic, *operands, **options)


# -- where am I -------------------------------------------------------------------------------


class _Special3:
    """`tc.threadIdx.x`: a special register with three components, as s32."""

    def __init__(self, register: str) -> None:
        self._register = register

    def __getattr__(self, axis: str) -> Scalar:
        if axis not in ("x", "y", "z"):
            raise OperandError(f"{self._register} has components x, y and z, not {axis!r}")
        return special(f"{self._register}.{axis}")


threadIdx = _Special3("tid")
blockIdx = _Special3("ctaid")
blockDim = _Special3("ntid")
gridDim = _Special3("nctaid")


def special(register: str) -> Scalar:
    """A 32-bit special register, for example "laneid" or "clock", as s32."""
    value = emit(f"mov.u32.%{register}")
    return Scalar(value.value, dtypes.s32)


def lane_id() -> Scalar:
    """0 to 31: this thread within its warp."""
    return special("laneid")


def thread_in_warpgroup() -> Scalar:
    return arithmetic.apply(_builder(), "mod", threadIdx.x, 128)  # type: ignore[no-any-return]


def warp_id() -> Scalar:
    """threadIdx.x // 32, the same for a whole warp."""
    return arithmetic.apply(_builder(), "floordiv", threadIdx.x, 32)  # type: ignore[no-any-return]


def arch_number() -> int:
    """The target's compute capability as an integer, known at compile time: 80, 90, 120."""
    return int(_builder().arch.number)


def launch_bounds(threads: int, min_blocks: int | None = None) -> None:
    """Fix the block size at compile time (`.reqntid`), so that the assembler may use all the
    registers such a block leaves each thread; min_blocks: how many shall fit on an SM."""
    builder = _builder()
    builder.kernel.threads, builder.kernel.min_blocks = int(threads), min_blocks


def trap() -> None:
    """Stop the kernel with an error."""
    emit("trap")


# -- memory -----------------------------------------------------------------------------------


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
    themselves.
    """
    builder = _builder()
    shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    steps = tuple(strides) if strides is not None else row_major(shape)
    check_swizzle(shape, steps, dtype, swizzle)
    align = align or max(16, 8 * swizzle)
    size = (sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) + 1) * dtype.itemsize
    kernel = builder.kernel
    start = -(-kernel.shared_bytes // align) * align
    kernel.shared_bytes = start + size
    kernel.shared_align = max(kernel.shared_align, align)
    base = emit("shared.base")
    origin = arithmetic.apply(builder, "add", base, start)
    return Tile(origin, 0, dtype, shape, steps, swizzle)


def dynamic_shared(shape: int | Sequence[int], dtype: DType, *, offset: int = 0) -> Tile:
    """A tile in the dynamic shared memory that the launch sizes: `kernel[grid, block, stream,
    bytes](...)`. It starts `offset` bytes into it."""
    builder = _builder()
    shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    builder.kernel.dynamic = True
    origin = arithmetic.apply(builder, "add", emit("shared.dynamic"), offset)
    return Tile(origin, 0, dtype, shape, row_major(shape))


class Local:
    """A small array of registers, one variable each.

    Indexed at compile time it costs nothing; a run-time index selects among all elements.
    """

    def __init__(self, items: list[Any], dtype: DType) -> None:
        self.items, self.dtype = items, dtype

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, Scalar):
            return self.items[index]
        chosen = self.items[0]
        for i, item in enumerate(self.items[1:], 1):
            chosen = arithmetic.select(_builder(), index == i, item, chosen)
        return chosen

    def __setitem__(self, index: Any, value: Any) -> None:
        value = arithmetic.convert(_builder(), value, self.dtype)
        if not isinstance(index, Scalar):
            self.items[index] = value
            return
        for i, item in enumerate(self.items):
            self.items[i] = arithmetic.select(_builder(), index == i, value, item)


def local(count: int, dtype: DType, fill: Any = 0) -> Local:
    """`count` variables of `dtype` private to the thread."""
    return Local([arithmetic.convert(_builder(), fill, dtype) for _ in range(count)], dtype)


def load(pointer: Pointer, count: int = 1, **options: Any) -> Any:
    """`pointer.load(...)`."""
    return pointer.load(count, **options)


def store(pointer: Pointer, value: Any, **options: Any) -> None:
    """`pointer.store(...)`."""
    pointer.store(value, **options)


def cp_async(
    target: Pointer, source: Pointer, size: int, *, valid: Any = None, pred: Any = None, cache: str | None = None
) -> None:
    """Copy `size` bytes (4, 8 or 16) from global to shared memory asynchronously.

    valid: bytes really read (run time), the rest becomes zero. cache: "ca" or "cg" (16 bytes
    only); by default cg where it exists.
    """
    if target.space != "shared" or source.space != "global":
        raise OperandError(
            f"cp.async copies from global to shared memory, not from {source.space} to {target.space}"
        )
    cache = cache or ("cg" if size == 16 else "ca")
    name = f"cp.async.{cache}.shared.global"
    if valid is None:
        emit(name, target.address, source.address, size, pred=pred)
    else:
        count = arithmetic.convert(_builder(), valid, dtypes.u32)
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


def syncwarp(mask: int = 0xFFFFFFFF) -> None:
    """Wait for the lanes of `mask` in this warp."""
    emit("bar.warp.sync", mask)


# -- warp-wide --------------------------------------------------------------------------------


def _shuffle(mode: str, value: Any, lane: Any, clamp: int, mask: int) -> Any:
    builder = _builder()
    value = builder.scalar(value)
    if value.dtype.register_bits == 64:
        halves = emit("mov.b64.unpack", value)
        moved = [_shuffle(mode, h, lane, clamp, mask) for h in halves]
        return Scalar(emit("mov.b64.pack", *moved).value, value.dtype)
    if value.dtype.register_bits == 16:
        wide = emit("mov.b32.pack", value, builder.literal(0, dtypes.b16))
        moved = _shuffle(mode, wide, lane, clamp, mask)
        return Scalar(emit("mov.b32.unpack", moved)[0].value, value.dtype)
    result = emit(f"shfl.sync.{mode}.b32", value, lane, clamp, mask)
    return Scalar(result.value, value.dtype)


def shfl(value: Any, lane: Any, mask: int = 0xFFFFFFFF) -> Any:
    """`value` of lane `lane`."""
    return _shuffle("idx", value, lane, 31, mask)


def shfl_up(value: Any, delta: Any, mask: int = 0xFFFFFFFF) -> Any:
    """`value` of the lane `delta` below; lanes without one keep theirs."""
    return _shuffle("up", value, delta, 0, mask)


def shfl_down(value: Any, delta: Any, mask: int = 0xFFFFFFFF) -> Any:
    """`value` of the lane `delta` above; lanes without one keep theirs."""
    return _shuffle("down", value, delta, 31, mask)


def shfl_xor(value: Any, lanes: Any, mask: int = 0xFFFFFFFF) -> Any:
    """`value` of lane `lane ^ lanes`."""
    return _shuffle("bfly", value, lanes, 31, mask)


def vote(mode: str, condition: Any, mask: int = 0xFFFFFFFF) -> Any:
    """all, any, uni (a predicate) or ballot (u32) of a condition over the warp."""
    builder = _builder()
    value = Scalar(builder.predicate(condition)) if isinstance(condition, Scalar) else builder.scalar(bool(condition))
    result = emit(f"vote.sync.{mode}.{'b32' if mode == 'ballot' else 'pred'}", value, mask)
    return Scalar(result.value, dtypes.u32) if mode == "ballot" else result


def match_any(value: Any, mask: int = 0xFFFFFFFF) -> Scalar:
    """The lanes that hold the same value."""
    value = _builder().scalar(value)
    return Scalar(emit(f"match.sync.any.b{value.dtype.bits}", value, mask).value, dtypes.u32)


def redux(operation: str, value: Any, mask: int = 0xFFFFFFFF) -> Scalar:
    """add, min, max, and, or, xor of a 32-bit integer over the warp."""
    value = _builder().scalar(value)
    bits = operation in ("and", "or", "xor")
    result = emit(f"redux.sync.{operation}.{'b32' if bits else value.dtype}", value, mask)
    return Scalar(result.value, value.dtype)


# -- atomics ----------------------------------------------------------------------------------


def atomic(operation: str, pointer: Pointer, *values: Any) -> Scalar:
    """add, min, max, and, or, xor, exch, inc, dec or cas on one element; returns the old value."""
    builder = _builder()
    dtype = pointer.dtype
    bits = operation in ("and", "or", "xor", "exch", "cas")
    if operation == "add" and dtype == dtypes.s64:
        spelled = "u64"
    elif dtype.bits == 16 and dtype.is_float:
        spelled = f"noftz.{dtype}"
    else:
        spelled = f"b{dtype.bits}" if bits else dtype.name
    given = [arithmetic.convert(builder, v, dtype) for v in values]
    result = emit(f"atom.{pointer.space}.{operation}.{spelled}", pointer.address, *given)
    return Scalar(result.value, dtype)


def reduce(operation: str, pointer: Pointer, value: Any) -> None:
    """Like `atomic`, without the old value."""
    atomic(operation, pointer, value)


# -- mathematics ------------------------------------------------------------------------------


def fma(a: Any, b: Any, c: Any, rounding: str = "rn") -> Any:
    """a * b + c rounded once; integers: the low half of the product, plus c."""
    if any(isinstance(v, Group) for v in (a, b, c)):
        group = next(v for v in (a, b, c) if isinstance(v, Group))
        columns = [v.elements() if isinstance(v, Group) else [v] * group.slots for v in (a, b, c)]
        return group.rebuild([fma(*column, rounding=rounding) for column in zip(*columns, strict=True)])
    return arithmetic.fma(_builder(), a, b, c, rounding)


def minimum(a: Any, b: Any) -> Any:
    return arithmetic.extreme(_builder(), "min", a, b)


def maximum(a: Any, b: Any) -> Any:
    return arithmetic.extreme(_builder(), "max", a, b)


def select(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where `condition` holds, else `no`; both are computed."""
    return arithmetic.select(_builder(), condition, yes, no)


def _approximate(name: str) -> Any:
    def function(value: Any) -> Any:
        if isinstance(value, Group):
            return value.map(function)
        builder = _builder()
        value = builder.scalar(value, dtypes.f32)
        wide = value if value.dtype.bits == 32 else arithmetic.convert(builder, value, dtypes.f32)
        result = emit(f"{name}.approx.f32", wide)
        return result if value.dtype == wide.dtype else arithmetic.convert(builder, result, value.dtype)

    function.__name__ = name
    function.__doc__ = f"{name}.approx of an f32 (narrower floats by way of f32)."
    return function


exp2, log2, rcp, rsqrt = (_approximate(n) for n in ("ex2", "lg2", "rcp", "rsqrt"))
tanh, sin, cos = (_approximate(n) for n in ("tanh", "sin", "cos"))


def sqrt(value: Any) -> Any:
    """Square root, rounded to nearest."""
    value = _builder().scalar(value, dtypes.f32)
    return emit(f"sqrt.rn.{value.dtype}", value)


def exp(value: Any) -> Any:
    """e**x as ex2.approx(x * log2(e))."""
    return exp2(value * 1.4426950408889634)


# -- fragments --------------------------------------------------------------------------------


def fragment(operand: Operand, registers: Sequence[Any]) -> Group:
    """A fragment of `operand` from its registers."""
    from tensorcore_dsl.frontend.builder import type_of

    return _builder().pack(list(registers), type_of(operand), operand)  # type: ignore[no-any-return]


def vector(elements: Sequence[Any]) -> Group:
    """A plain vector of scalars of one type."""
    builder = _builder()
    scalars = [builder.scalar(e) for e in elements]
    return builder.pack(scalars, Type(scalars[0].dtype, len(scalars)))  # type: ignore[no-any-return]


def printf(*values: Any) -> None:
    """Print from the device, one line a thread; strings and run-time values alternate freely."""
    from tensorcore_dsl.frontend.printing import emit_print

    emit_print(_builder(), values)
