"""What a launch is asked for, and how it lies in memory for `cuLaunchKernelEx`."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from tensorcore_dsl.arguments import Description, Packer
from tensorcore_dsl.errors import LaunchError

Dim = tuple[int, int, int]


# What is asked for.


@dataclass(frozen=True)
class Config:
    """Grid and block (in blocks and threads), bytes of dynamic shared memory, and the rest.

    cluster: blocks per cluster. cooperative: all blocks are resident, so that they may wait for
    each other. pdl: programmatic dependent launch, the kernel may start before the one ahead of
    it in the stream has ended (`griddepcontrol.wait` waits for it).
    """

    grid: Dim
    block: Dim
    shared_bytes: int = 0
    cluster: Dim | None = None
    cooperative: bool = False
    pdl: bool = False

    @classmethod
    def of(
        cls,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        shared_bytes: int = 0,
        cluster: int | Sequence[int] | None = None,
        cooperative: bool = False,
        pdl: bool = False,
    ) -> Config:
        """A checked configuration; ints and short tuples are filled up with ones."""
        config = cls(
            _dims("grid", grid, (2**31 - 1, 65535, 65535)),
            _dims("block", block, (1024, 1024, 64)),
            int(shared_bytes),
            None if cluster is None else _dims("cluster", cluster, (16, 16, 16)),
            bool(cooperative),
            bool(pdl),
        )
        config._check()
        return config

    @property
    def threads(self) -> int:
        x, y, z = self.block
        return x * y * z

    def _check(self) -> None:
        if self.threads > 1024:
            raise LaunchError(f"block {self.block} has {self.threads} threads; 1024 are allowed")
        if self.shared_bytes < 0:
            raise LaunchError(f"{self.shared_bytes} bytes of dynamic shared memory: less than none")
        if self.cluster is None:
            return
        if any(g % c for g, c in zip(self.grid, self.cluster, strict=True)):
            raise LaunchError(f"grid {self.grid} is no multiple of cluster {self.cluster}")
        x, y, z = self.cluster
        if x * y * z > 16:
            raise LaunchError(
                f"cluster {self.cluster} has {x * y * z} blocks; 16 are allowed at most, 8 portably"
            )


def _dims(what: str, given: int | Sequence[int], most: Dim) -> Dim:
    dims = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    try:
        if not 1 <= len(dims) <= 3 or any(isinstance(d, bool) for d in dims):
            raise TypeError
        x, y, z = (d.__index__() for d in (*dims, 1, 1)[:3])
    except (TypeError, AttributeError):
        raise LaunchError(f"{what} is {given!r}; it must be one to three integers") from None
    if not all(1 <= d <= m for d, m in zip((x, y, z), most, strict=True)):
        raise LaunchError(f"{what} is {(x, y, z)}; each must be from 1 to {most}")
    return (x, y, z)


# Memory that holds one launch: CUlaunchConfig, its attributes, `extra`, the parameters.

_CONFIG = struct.Struct("=7I4xQQI4x")  # grid, block, shared bytes, stream, attributes, their number
_STREAM_AT = 32
_ATTRIBUTE = struct.Struct("=I4x3I52x")
_COOPERATIVE, _CLUSTER, _PDL = 2, 4, 6  # CUlaunchAttributeID
_ATTRIBUTES_AT = 64
_EXTRA_AT = _ATTRIBUTES_AT + 3 * _ATTRIBUTE.size  # 280
_EXTRA = struct.Struct("=5QQ")  # pointer: 1, address; size: 2, address; end: 0; then the size
_PARAMETERS_AT = -(-(_EXTRA_AT + _EXTRA.size) // 64) * 64


class Slot:
    """A launch in memory. `places` are where each argument's pointer or number goes."""

    __slots__ = ("buffer", "config", "extra", "places", "stream")

    def __init__(self, config: Config, packer: Packer, arguments: Sequence[Description]) -> None:
        buffer = bytearray(_PARAMETERS_AT + max(packer.size, 8))
        base = ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
        attributes = _attributes(config)
        _CONFIG.pack_into(
            buffer, 0, *config.grid, *config.block, config.shared_bytes,
            0, base + _ATTRIBUTES_AT if attributes else 0, len(attributes),
        )  # fmt: skip
        for index, (identity, values) in enumerate(attributes):
            _ATTRIBUTE.pack_into(
                buffer, _ATTRIBUTES_AT + index * _ATTRIBUTE.size, identity, *values
            )
        size_at = base + _EXTRA_AT + 40
        _EXTRA.pack_into(buffer, _EXTRA_AT, 1, base + _PARAMETERS_AT, 2, size_at, 0, packer.size)
        packer.pack_into(buffer, arguments, _PARAMETERS_AT)
        self.buffer = buffer
        self.config = base
        self.extra = base + _EXTRA_AT
        view = memoryview(buffer)
        self.stream = view[_STREAM_AT : _STREAM_AT + 8].cast("Q")
        self.places = [
            _place(view, _PARAMETERS_AT + offset, code) for offset, code in packer.values
        ]


def _attributes(config: Config) -> list[tuple[int, Dim]]:
    found: list[tuple[int, Dim]] = []
    if config.cooperative:
        found.append((_COOPERATIVE, (1, 0, 0)))
    if config.cluster:
        found.append((_CLUSTER, config.cluster))
    if config.pdl:
        found.append((_PDL, (1, 0, 0)))
    return found


def _place(view: memoryview, at: int, code: str) -> memoryview:
    part = view[at : at + struct.calcsize("=" + code)]
    return cast(memoryview, part.cast(code))  # type: ignore[call-overload]
