"""Data exchange within a warp: shuffles, votes, matches, reductions, elect."""

from __future__ import annotations

from typing import Any, SupportsIndex

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError, listing
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.lanes import ALL_LANES
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe, is_number
from tensorcore_dsl.values.values import Element, Scalar

VOTES = ("all", "any", "uni", "ballot")
REDUCTIONS = ("add", "min", "max", "and", "or", "xor")


def shfl(value: Any, lane: SupportsIndex, mask: SupportsIndex = ALL_LANES) -> Any:
    """`value` of lane `lane`.

    Parameters
    ----------
    value : scalar
        A run-time value of any width; 64 bits take two shuffles.
    lane : integer
        Of the warp, 0 to 31; only its lowest five bits count.
    mask : integer
        The lanes that take part, a bit for each; all of them must execute this.

    Returns
    -------
    scalar
        Of the type of `value`.

    Raises
    ------
    OperandError
        A value that fills no register, such as a fragment.
    Divergence
        In emulation: lanes of the mask that do not execute it.

    Notes
    -----
    `shfl.sync.idx`, section 9.7.9.6 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def broadcast(x: tc.Array):
    ...     x[tc.lane_id()] = tc.shfl(x[tc.lane_id()], 5)
    >>> x = np.arange(32, dtype=np.float32)
    >>> broadcast[1, 32](x)
    >>> x[:4]
    array([5., 5., 5., 5.], dtype=float32)
    """
    return _shuffle("idx", value, lane, 31, mask)


def shfl_up(value: Any, delta: SupportsIndex, mask: SupportsIndex = ALL_LANES) -> Any:
    """`value` of the lane `delta` below; lanes below `delta` keep their own.

    Parameters
    ----------
    value : scalar
        A run-time value of any width; 64 bits take two shuffles.
    delta : integer
        Lanes, 0 to 31.
    mask : integer
        The lanes that take part, a bit for each; all of them must execute this.

    Returns
    -------
    scalar
        Of the type of `value`.

    Raises
    ------
    OperandError
        A delta beyond 0 to 31, or a value that fills no register.
    Divergence
        In emulation: lanes of the mask that do not execute it.

    See Also
    --------
    shfl_down : The other direction, with an example.

    Notes
    -----
    `shfl.sync.up`, section 9.7.9.6 of the PTX manual.
    """
    return _shuffle("up", value, delta, 0, mask)


def shfl_down(value: Any, delta: SupportsIndex, mask: SupportsIndex = ALL_LANES) -> Any:
    """`value` of the lane `delta` above; lanes without such a lane keep their own.

    Parameters
    ----------
    value : scalar
        A run-time value of any width; 64 bits take two shuffles.
    delta : integer
        Lanes, 0 to 31.
    mask : integer
        The lanes that take part, a bit for each; all of them must execute this.

    Returns
    -------
    scalar
        Of the type of `value`.

    Raises
    ------
    OperandError
        A delta beyond 0 to 31, or a value that fills no register.
    Divergence
        In emulation: lanes of the mask that do not execute it.

    Notes
    -----
    `shfl.sync.down`, section 9.7.9.6 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def differences(x: tc.Array):
    ...     own = x[tc.lane_id()]
    ...     x[tc.lane_id()] = tc.shfl_down(own, 1) - own
    >>> x = np.arange(32, dtype=np.float32) ** 2
    >>> differences[1, 32](x)
    >>> x[:3], x[31]
    (array([1., 3., 5.], dtype=float32), np.float32(0.0))
    """
    return _shuffle("down", value, delta, 31, mask)


def shfl_xor(value: Any, lanes: SupportsIndex, mask: SupportsIndex = ALL_LANES) -> Any:
    """`value` of lane `lane ^ lanes`.

    Parameters
    ----------
    value : scalar
        A run-time value of any width; 64 bits take two shuffles.
    lanes : integer
        What the number of the lane is combined with by exclusive or, 0 to 31.
    mask : integer
        The lanes that take part, a bit for each; all of them must execute this.

    Returns
    -------
    scalar
        Of the type of `value`.

    Raises
    ------
    OperandError
        `lanes` beyond 0 to 31, or a value that fills no register.
    Divergence
        In emulation: lanes of the mask that do not execute it.

    Notes
    -----
    `shfl.sync.bfly`, section 9.7.9.6 of the PTX manual.

    Examples
    --------
    A sum over the warp, which every lane receives:

    >>> @tc.kernel
    ... def warp_sum(x: tc.Array):
    ...     total = x[tc.lane_id()]
    ...     for lanes in (16, 8, 4, 2, 1):
    ...         total += tc.shfl_xor(total, lanes)
    ...     x[tc.lane_id()] = total
    >>> x = np.arange(32, dtype=np.float32)
    >>> warp_sum[1, 32](x)
    >>> x[:2]
    array([496., 496.], dtype=float32)
    """
    return _shuffle("bfly", value, lanes, 31, mask)


def check_choice(what: str, choice: str, allowed: tuple[str, ...]) -> None:
    """OperandError unless `choice` is among the allowed names."""
    if choice not in allowed:
        raise OperandError(f"{what} may be {listing(allowed)}; {choice!r} was given")


def _shuffle(mode: str, value: Any, lane: Any, clamp: int, mask: Any) -> Any:
    """shfl.sync of a value of any width."""
    if mode != "idx" and is_number(lane) and not 0 <= lane < 32:
        raise OperandError(f"a shuffle moves values by 0 to 31 lanes, not by {lane}")
    build = builder()
    if isinstance(lane, Scalar) and (lane.dtype.is_float or is_number(value)):
        what = "lane" if mode == "idx" else "distance"
        suffix = "" if mode == "idx" else "_xor" if mode == "bfly" else f"_{mode}"
        raise OperandError(
            f"a shuffle moves a run-time value by an integer {what}; {describe(value)} and "
            f"{describe(lane)} were given: tc.shfl{suffix}(value, {what}, mask) takes the mask last"
        )
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
    """A condition over the lanes of the warp: all, any, uni or ballot.

    Parameters
    ----------
    mode : {"all", "any", "uni", "ballot"}
        "uni" asks whether all lanes agree, "ballot" for a bit from each.
    condition : bool, predicate or scalar
        Numbers are true unless zero.
    mask : integer
        The lanes that take part, a bit for each; all of them must execute this.

    Returns
    -------
    scalar
        A predicate, the same in all lanes; "ballot" gives u32, bit i from lane i.

    Raises
    ------
    OperandError
        Another mode.
    Divergence
        In emulation: lanes of the mask that do not execute it.

    Notes
    -----
    `vote.sync`, section 9.7.13.9 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def odd_lanes(out: tc.Array):
    ...     out[tc.lane_id()] = tc.vote("ballot", tc.lane_id() % 2 == 1)
    >>> out = np.zeros(32, np.uint32)
    >>> odd_lanes[1, 32](out)
    >>> hex(out[0])
    '0xaaaaaaaa'
    """
    check_choice("a vote", mode, VOTES)
    value = builder().scalar(arithmetic.truth(builder(), condition))
    result = emit(names.vote(mode), value, mask)
    return result.bits(dtypes.u32) if mode == "ballot" else result


def match_any(value: Any, mask: SupportsIndex = ALL_LANES) -> Element:
    """A mask of the lanes of the warp that hold the same value.

    Parameters
    ----------
    value : scalar
        32 or 64 bits; compared by bits.
    mask : integer
        The lanes that take part, a bit for each; all of them must execute this.

    Returns
    -------
    scalar
        u32, bit i for lane i; the own lane's bit is always set.

    Raises
    ------
    OperandError
        A value that fills no register, such as a fragment.
    UnknownInstruction
        A value of another width than 32 or 64 bits.
    ArchError
        A target before sm_70.
    Divergence
        In emulation: lanes of the mask that do not execute it.

    Notes
    -----
    `match.any.sync`, section 9.7.13.10 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def same(out: tc.Array):
    ...     out[tc.lane_id()] = tc.match_any(tc.lane_id() // 4)
    >>> out = np.zeros(32, np.uint32)
    >>> same[1, 32](out)
    >>> hex(out[0]), hex(out[5])
    ('0xf', '0xf0')
    """
    value = builder().scalar(value)
    lanes: Scalar = emit(names.match_any(value.dtype.bits), value, mask)
    return lanes.bits(dtypes.u32)


def redux(operation: str, value: Any, mask: SupportsIndex = ALL_LANES) -> Element:
    """The sum, extreme or bitwise combination of a 32-bit integer over the warp.

    Parameters
    ----------
    operation : {"add", "min", "max", "and", "or", "xor"}
        A sum wraps at 32 bits.
    value : scalar
        s32 or u32; "and", "or" and "xor" take 32 bits of any type.
    mask : integer
        The lanes that take part, a bit for each; all of them must execute this.

    Returns
    -------
    scalar
        Of the type of `value`, the same in all lanes of the mask.

    Raises
    ------
    OperandError
        Another operation.
    UnknownInstruction
        A type that the operation does not have, such as f32: use `shfl_xor`.
    ArchError
        A target before sm_80.
    Divergence
        In emulation: lanes of the mask that do not execute it.

    Notes
    -----
    `redux.sync`, section 9.7.13.12 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def largest(x: tc.Array):
    ...     x[tc.lane_id()] = tc.redux("max", x[tc.lane_id()])
    >>> x = np.arange(32, dtype=np.int32)
    >>> largest[1, 32](x)
    >>> x[:2]
    array([31, 31], dtype=int32)
    """
    check_choice("a reduction", operation, REDUCTIONS)
    value = builder().scalar(value)
    result = emit(names.warp_reduction(operation, value.dtype), value, mask)
    return Scalar(result.value, value.dtype)


def elect() -> Element:
    """True in one lane of a converged warp.

    Returns
    -------
    predicate
        True in one lane that the hardware chooses, false in the others.

    Raises
    ------
    ArchError
        A target before sm_90.

    Notes
    -----
    `elect.sync`, section 9.7.13.14 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def count(out: tc.Array):
    ...     if tc.elect():
    ...         tc.reduce("add", out.at(0), 1)
    >>> out = np.zeros(1, np.int32)
    >>> count[1, 64](out)
    >>> int(out[0])
    2
    """
    return emit(names.ELECT, ALL_LANES)[1]  # type: ignore[no-any-return]
