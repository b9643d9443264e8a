"""Special registers: threadIdx, blockIdx, lane_id, warp_id, warpgroup_id, cluster_rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorcore_dsl.errors import public
from tensorcore_dsl.lang.warp import shfl
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.values import Element


class _Special3:
    """`tc.threadIdx.x`: a special register with three components, as s32."""

    def __init__(self, register: str) -> None:
        self._register = register

    x: Element
    y: Element
    z: Element

    @property
    def described(self) -> str:
        return f"the register {self._register}, with components x, y and z,"

    def __dir__(self) -> list[str]:
        return ["x", "y", "z"]

    if not TYPE_CHECKING:  # checkers know the three components

        @public
        def __getattr__(self, axis: str) -> Element:
            if axis not in ("x", "y", "z"):
                raise AttributeError(f"{self._register} has components x, y and z, not {axis!r}")
            return special(f"{self._register}.{axis}")


threadIdx = _Special3("tid")
blockIdx = _Special3("ctaid")
blockDim = _Special3("ntid")
gridDim = _Special3("nctaid")


def special(register: str) -> Element:
    """A special register, for example "laneid", "clock" (as s32) or "clock64" (as u64)."""
    return builder().special(register)


def lane_id() -> Element:
    """0 to 31: this thread within its warp."""
    return special("laneid")


def warp_id() -> Any:
    """threadIdx.x // 32, the same for a whole warp."""
    return threadIdx.x // 32


def warpgroup_id() -> Element:
    """threadIdx.x // 128, broadcast from lane 0 so that the assembler knows it is warp-uniform."""
    return shfl(threadIdx.x // 128, 0)  # type: ignore[no-any-return]


def cluster_rank() -> Element:
    """This CTA's rank in its cluster."""
    return special("cluster_ctarank")
