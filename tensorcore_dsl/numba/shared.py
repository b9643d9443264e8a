"""Functions for Numba kernels: shared-memory addresses, cp.async, descriptors and fences of wgmma."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tensorcore_dsl import isa
from tensorcore_dsl.errors import listing
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.descriptor import DESCRIPTOR_SWIZZLES, FIELDS, pack_descriptor
from tensorcore_dsl.isa.effects import VOLATILE, WARP
from tensorcore_dsl.numba import assembly, registers
from tensorcore_dsl.numba.compat import TypingError, literal_intrinsic, types
from tensorcore_dsl.numba.intrinsics import intrinsic

_PLACE = "an array in shared memory, a pair (array, index), or an address"


def _checked_place(what: str, kind: Any) -> None:
    if not isinstance(kind, types.Integer) and not registers.is_place(kind):
        raise TypingError(f"{what}: place is {kind}; allowed is {_PLACE}")


@literal_intrinsic
def shared_address(typingctx: Any, place: Any) -> Any:
    """Return the 32-bit address of a shared array, or of an element: `shared_address((tile, (i, j)))`.

    Parameters
    ----------
    place : array, tuple or int
        An array in shared memory, a pair (array, index), or an address.

    Returns
    -------
    uint32
        The address in bytes.

    Raises
    ------
    TypingError
        Something else.
    """
    _checked_place("shared_address", place)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return registers.address(context, builder, place, arguments[0], 32)

    return types.uint32(place), generate


@literal_intrinsic
def cp_async(typingctx: Any, dst: Any, i: Any, src: Any, j: Any, bytes: Any, valid: Any = None) -> Any:
    """Copy `bytes` from `src[j]` in global memory to `dst[i]` in shared memory.

    The copy takes effect at a wait.

    Parameters
    ----------
    dst, src : array
        In shared and in global memory; both addresses are aligned to `bytes`.
    i, j : int or tuple of int
        Their indices.
    bytes : int
        4, 8 or 16, a constant.
    valid : int, optional
        Only that many bytes are read, and the rest are zero.

    Raises
    ------
    TypingError
        Another number of bytes, or no constant; an index of another rank.

    Notes
    -----
    `cp.async`, section 9.7.9.25.3.1 of the PTX manual.
    """
    size = bytes.literal_value if isinstance(bytes, types.IntegerLiteral) else None
    if size not in (4, 8, 16):
        raise TypingError(f"cp_async: bytes is {bytes}; it must be a constant, one of 4, 8, 16")
    for array, index in ((dst, i), (src, j)):
        if not isinstance(array, types.Array) or not registers.is_index(array, index):
            raise TypingError(f"cp_async: {index} is not an index of {array}")
    if valid is not None and not isinstance(valid, (types.Integer, types.NoneType)):
        raise TypingError(f"cp_async: valid is {valid}; allowed is an integer")
    fills = isinstance(valid, types.Integer)
    instr = isa.instruction(names.cp_async("cg" if size == 16 else "ca", zero_fill=fills))
    code = assembly.assembly(instr, {"size": size})

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        assembly.check_arch(instr)
        inputs = [
            registers.element_address(context, builder, signature.args[:2], arguments[:2], 32),
            registers.element_address(context, builder, signature.args[2:4], arguments[2:4], 64),
        ]
        if fills:
            inputs.append(context.cast(builder, arguments[5], valid, types.uint32))
        code.emit(builder, inputs)
        return context.get_dummy_value()

    return types.void(dst, i, src, j, bytes, types.none if valid is None else valid), generate


cp_async_commit = intrinsic(names.CP_ASYNC_COMMIT)
cp_async_wait = intrinsic(names.CP_ASYNC_WAIT)  # (n): wait until at most n groups are pending


@literal_intrinsic
def wgmma_descriptor(typingctx: Any, place: Any, leading: Any, stride: Any, swizzle: Any = 0) -> Any:
    """Make the 64-bit descriptor of a matrix in shared memory, for wgmma.

    Parameters
    ----------
    place : array, tuple or int
        An array in shared memory, a pair (array, index), or an address.
    leading, stride : int
        Offsets in bytes, multiples of 16, constants.
    swizzle : int
        0, 32, 64 or 128 bytes, a constant.

    Returns
    -------
    uint64
        The descriptor.

    Raises
    ------
    TypingError
        Values that are no constants, or not allowed.

    Notes
    -----
    Section 9.7.15.5.1.2.2 of the PTX manual.
    """
    _checked_place("wgmma_descriptor", place)
    offsets = _offset("leading", leading), _offset("stride", stride)
    width = swizzle.literal_value if isinstance(swizzle, types.IntegerLiteral) else swizzle
    if width not in DESCRIPTOR_SWIZZLES:
        raise TypingError(
            f"wgmma_descriptor: swizzle is {swizzle}; it must be a constant, one of "
            f"{listing(DESCRIPTOR_SWIZZLES)}"
        )
    bits = pack_descriptor(0, *offsets, width)
    swizzle_type = swizzle if isinstance(swizzle, types.Type) else types.intp

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = registers.address(context, builder, place, arguments[0], 32)
        word = ir.IntType(64)
        units = builder.lshr(builder.zext(start, word), ir.Constant(word, 4))
        units = builder.and_(units, ir.Constant(word, FIELDS["start"].mask))
        return builder.or_(units, ir.Constant(word, bits))

    return types.uint64(place, leading, stride, swizzle_type), generate


def _offset(name: str, kind: Any) -> int:
    """Check and return a constant offset in bytes."""
    value = kind.literal_value if isinstance(kind, types.IntegerLiteral) else -1
    most = FIELDS[name].mask * FIELDS[name].unit
    if value % FIELDS[name].unit or not 0 <= value <= most:
        raise TypingError(
            f"wgmma_descriptor: {name} is {kind}; it must be a constant, a multiple of 16 up to {most}"
        )
    return int(value)


fence_proxy_async = intrinsic(names.FENCE_PROXY_ASYNC)
wgmma_commit = intrinsic(names.WGMMA_COMMIT)


@literal_intrinsic
def wgmma_fence(typingctx: Any, accumulator: Any) -> Any:
    """Order earlier register accesses before the following wgmma.

    Parameters
    ----------
    accumulator : tuple
        The registers of D.

    Returns
    -------
    tuple
        The same registers.

    Raises
    ------
    TypingError
        Something else than the tuple of registers that wgmma returns.

    Notes
    -----
    `wgmma.fence`, section 9.7.15.7.1 of the PTX manual.
    """
    _check_accumulator("wgmma_fence", accumulator)
    return accumulator(accumulator), _passing(names.WGMMA_FENCE, {}, 0)


@literal_intrinsic
def wgmma_wait(typingctx: Any, pending: Any, accumulator: Any) -> Any:
    """Wait until at most `pending` groups are in flight.

    Parameters
    ----------
    pending : int
        0 to 7, a constant.
    accumulator : tuple
        The registers of D.

    Returns
    -------
    tuple
        The accumulators, now readable.

    Raises
    ------
    TypingError
        Another number, or something else than the tuple of registers that wgmma returns.

    Notes
    -----
    `wgmma.wait_group`, section 9.7.15.7.3 of the PTX manual.
    """
    if not isinstance(pending, types.IntegerLiteral) or not 0 <= pending.literal_value <= 7:
        raise TypingError(f"wgmma_wait: pending is {pending}; it must be a constant, 0 to 7")
    _check_accumulator("wgmma_wait", accumulator)
    generate = _passing(names.WGMMA_WAIT, {"n": pending.literal_value}, 1)
    return accumulator(pending, accumulator), generate


def _check_accumulator(what: str, kind: Any) -> None:
    allowed = (types.float32, types.uint32, types.int32)
    if not isinstance(kind, types.UniTuple) or kind.dtype not in allowed:
        raise TypingError(
            f"{what}: accumulator is {kind}; allowed is the tuple of registers that wgmma returns"
        )


def _passing(ptx: str, immediates: dict[str, int], position: int) -> Any:
    """Return the code of an instruction without register operands. The accumulator passes through it."""
    instr = isa.instruction(ptx)
    text = assembly.assembly(instr, immediates).text.rstrip(";")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        assembly.check_arch(instr)
        kind, value = signature.return_type, arguments[position]
        words = [builder.extract_value(value, i) for i in range(len(kind))]
        constraint = "f" if kind.dtype == types.float32 else "r"
        code = assembly.through(text, [w.type for w in words], [constraint] * len(words), WARP | VOLATILE)
        return context.make_tuple(builder, kind, code.emit(builder, words))

    return generate
