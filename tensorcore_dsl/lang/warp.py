"""Data exchange within a warp: shuffles, votes, matches, reductions, elect."""

from __future__ import annotations

from typing import Any, SupportsIndex

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError, listing
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.values import Element, Scalar

ALL_LANES = 0xFFFFFFFF  # the mask of a whole warp
VOTES = ("all", "any", "uni", "ballot")
REDUCTIONS = ("add", "min", "max", "and", "or", "xor")


def shfl(value: Any, lane: SupportsIndex, mask: SupportsIndex = ALL_LANES) -> Any:
    """`value` of lane `lane`."""
    return _shuffle("idx", value, lane, 31, mask)


def shfl_up(value: Any, delta: SupportsIndex, mask: SupportsIndex = ALL_LANES) -> Any:
    """`value` of the lane `delta` below; lanes below `delta` keep their own."""
    return _shuffle("up", value, delta, 0, mask)


def shfl_down(value: Any, delta: SupportsIndex, mask: SupportsIndex = ALL_LANES) -> Any:
    """`value` of the lane `delta` above; lanes without such a lane keep their own."""
    return _shuffle("down", value, delta, 31, mask)


def shfl_xor(value: Any, lanes: SupportsIndex, mask: SupportsIndex = ALL_LANES) -> Any:
    """`value` of lane `lane ^ lanes`."""
    return _shuffle("bfly", value, lanes, 31, mask)


def check_choice(what: str, given: str, allowed: tuple[str, ...]) -> None:
    """OperandError unless `given` is among the allowed names."""
    if given not in allowed:
        raise OperandError(f"{what} may be {listing(allowed)}; {given!r} was given")


def _shuffle(mode: str, value: Any, lane: Any, clamp: int, mask: Any) -> Any:
    """shfl.sync of a value of any width."""
    build = builder()
    value = build.scalar(value)
    dtype = value.dtype
    if dtype.kind == "p":
        return _shuffle(mode, value.to(dtypes.s32), lane, clamp, mask) != 0
    if dtype.register_bits == 64:
        halves = emit(names.unpack(64), value)
        moved = [_shuffle(mode, h, lane, clamp, mask) for h in halves]
        return Scalar(emit(names.pack(64), *moved).value, dtype)
    if dtype.register_bits == 16:
        wide = emit(names.pack(32), value, build.literal(0, dtypes.b16))
        moved = _shuffle(mode, wide, lane, clamp, mask)
        return Scalar(emit(names.unpack(32), moved)[0].value, dtype)
    result = emit(names.shuffle(mode), value, lane, clamp, mask)
    return Scalar(result.value, dtype)


def vote(mode: str, condition: Any, mask: SupportsIndex = ALL_LANES) -> Any:
    """all, any, uni (a predicate) or ballot (u32) of a condition over the warp."""
    check_choice("a vote", mode, VOTES)
    value = builder().scalar(arithmetic.truth(builder(), condition))
    result = emit(names.vote(mode), value, mask)
    return result.bits(dtypes.u32) if mode == "ballot" else result


def match_any(value: Any, mask: SupportsIndex = ALL_LANES) -> Element:
    """A mask (u32) of the lanes of the warp that hold the same value."""
    value = builder().scalar(value)
    lanes: Scalar = emit(names.match_any(value.dtype.bits), value, mask)
    return lanes.bits(dtypes.u32)


def redux(operation: str, value: Any, mask: SupportsIndex = ALL_LANES) -> Element:
    """add, min, max, and, or, xor of a 32-bit integer over the warp."""
    check_choice("a reduction", operation, REDUCTIONS)
    value = builder().scalar(value)
    result = emit(names.warp_reduction(operation, value.dtype), value, mask)
    return Scalar(result.value, value.dtype)


def elect() -> Element:
    """True in one lane of a converged warp."""
    return emit(names.ELECT, ALL_LANES)[1]  # type: ignore[no-any-return]
