"""Special registers: threadIdx, blockIdx, lane_id, warp_id, warpgroup_id, cluster_rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from tensorcore_dsl.errors import OperandError, public
from tensorcore_dsl.lang.warp import shfl
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import NUMBERS
from tensorcore_dsl.values.values import Element, Scalar


class _Special3:
    """`tc.threadIdx.x`: a special register with three components, as s32."""

    def __init__(self, register: str, name: str) -> None:
        self._register, self._name = register, name

    x: Element
    y: Element
    z: Element

    @property
    def described(self) -> str:
        return f"tc.{self._name} (did you mean tc.{self._name}.x?)"

    def _refuse(self, *_: Any) -> NoReturn:
        name = f"tc.{self._name}"
        raise OperandError(f"{name} has components x, y and z; did you mean {name}.x?")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Scalar, *NUMBERS)):
            self._refuse()
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"tc.{self._name}"

    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = _refuse
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _refuse
    __divmod__ = __rdivmod__ = __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __neg__ = __invert__ = __abs__ = _refuse
    __index__ = __int__ = __float__ = __getitem__ = __iter__ = __len__ = _refuse

    def __dir__(self) -> list[str]:
        return ["x", "y", "z"]

    if not TYPE_CHECKING:  # checkers know the three components

        @public
        def __getattr__(self, axis: str) -> Element:
            if axis not in ("x", "y", "z"):
                raise AttributeError(f"tc.{self._name} has components x, y and z, not {axis!r}")
            return special(f"{self._register}.{axis}")


threadIdx = _Special3("tid", "threadIdx")
blockIdx = _Special3("ctaid", "blockIdx")
blockDim = _Special3("ntid", "blockDim")
gridDim = _Special3("nctaid", "gridDim")


def special(register: str) -> Element:
    """A special register by its name in PTX.

    Parameters
    ----------
    register : str
        Without the percent sign: "laneid", "smid", "clock" (as s32), "clock64" (as u64).

    Returns
    -------
    scalar
        32-bit registers as s32, 64-bit ones as u64.

    Raises
    ------
    UnknownInstruction
        No such register in the table.
    OperandError
        It is called outside a kernel.

    Notes
    -----
    Chapter 10 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def lanes(out: tc.Array):
    ...     out[tc.threadIdx.x] = tc.special("laneid")
    >>> out = np.zeros(64, np.int32)
    >>> lanes[1, 64](out)
    >>> int(out[40])
    8
    """
    return builder().special(register)


def lane_id() -> Element:
    """Return the thread's number within its warp.

    Returns
    -------
    scalar
        s32, 0 to 31.

    Raises
    ------
    OperandError
        It is called outside a kernel.

    See Also
    --------
    warp_id : The warp within the CTA, with an example.

    Notes
    -----
    `%laneid`, chapter 10 of the PTX manual.
    """
    return special("laneid")


def warp_id() -> Any:
    """threadIdx.x // 32, the same for a whole warp.

    Returns
    -------
    scalar
        s32. Blocks with more than one axis: it counts along x only.

    Raises
    ------
    OperandError
        It is called outside a kernel.

    Examples
    --------
    >>> @tc.kernel
    ... def numbers(out: tc.Array):
    ...     out[tc.threadIdx.x] = 100 * tc.warp_id() + tc.lane_id()
    >>> out = np.zeros(64, np.int32)
    >>> numbers[1, 64](out)
    >>> int(out[40])
    108
    """
    return threadIdx.x // 32


def warpgroup_id() -> Element:
    """threadIdx.x // 128, broadcast from lane 0 so that the assembler knows it is warp-uniform.

    Returns
    -------
    scalar
        s32: four warps are a warpgroup, which executes `wgmma` together.

    Raises
    ------
    OperandError
        It is called outside a kernel.

    Examples
    --------
    >>> @tc.kernel
    ... def groups(out: tc.Array):
    ...     out[tc.threadIdx.x] = tc.warpgroup_id()
    >>> out = np.zeros(256, np.int32)
    >>> groups[1, 256](out)
    >>> int(out[127]), int(out[128])
    (0, 1)
    """
    return shfl(threadIdx.x // 128, 0)  # type: ignore[no-any-return]


def cluster_rank() -> Element:
    """Return the CTA's rank in its cluster.

    Returns
    -------
    scalar
        s32, from 0 to the number of CTAs of the cluster less one; 0 without clusters.

    Raises
    ------
    ArchError
        A target before sm_90.

    See Also
    --------
    cluster_size : With an example.

    Notes
    -----
    `%cluster_ctarank`, chapter 10 of the PTX manual.
    """
    return special("cluster_ctarank")
