"""What a launch is asked for, and how it lies in memory for `cuLaunchKernelEx`."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tensorcore_dsl.errors import ArgumentError, LaunchError
from tensorcore_dsl.runtime.arguments import Description, Packer
from tensorcore_dsl.runtime.tensor_maps import MAP_BYTES, Maps, PointerPlace

Dim = tuple[int, int, int]


# What is asked for.


@dataclass(frozen=True)
class LaunchConfig:
    """Grid and block (in blocks and threads), bytes of dynamic shared memory, and the rest.

    cluster: blocks per cluster. cooperative: all blocks are resident, so that they may wait for
    each other. pdl: programmatic dependent launch, the kernel may start before the one ahead of
    it in the stream has ended (`griddepcontrol.wait` waits for it). cluster_in_code: the kernel
    itself says how large its clusters are (`.reqnctapercluster`), so the driver is not told.
    """

    grid: Dim
    block: Dim
    shared_bytes: int = 0
    cluster: Dim | None = None
    cooperative: bool = False
    pdl: bool = False
    cluster_in_code: bool = False

    @classmethod
    def of(
        cls,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        shared_bytes: int = 0,
        cluster: int | Sequence[int] | None = None,
        cooperative: bool = False,
        pdl: bool = False,
    ) -> LaunchConfig:
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

    def of_kernel(
        self, block_shared: int = 0, threads: int | None = None, cluster: Dim | None = None
    ) -> LaunchConfig:
        """With what a kernel brings: bytes of shared memory, blocks and clusters of fixed size."""
        if threads not in (None, self.block[0]) or (threads and self.block[1:] != (1, 1)):
            raise LaunchError(
                f"block {self.block} was asked for; the kernel is compiled for {(threads, 1, 1)}"
            )
        config = replace(self, shared_bytes=self.shared_bytes + block_shared)
        if cluster is None:
            return config
        if self.cluster not in (None, cluster):
            raise LaunchError(
                f"cluster {self.cluster} was asked for; the kernel is compiled for {cluster}"
            )
        config = replace(config, cluster=cluster, cluster_in_code=True)
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
            fixed = ", which the kernel is compiled for" if self.cluster_in_code else ""
            raise LaunchError(f"grid {self.grid} is no multiple of cluster {self.cluster}{fixed}")
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


# Memory that holds one launch: CUlaunchConfig, its attributes, `extra`, the parameters, and for
# kernels with tensor maps the address of each parameter.

_CONFIG = struct.Struct("=7I4xQQI4x")  # grid, block, shared bytes, stream, attributes, their number
_STREAM_AT = 32
_ATTRIBUTE = struct.Struct("=I4x3I52x")
_COOPERATIVE, _CLUSTER, _PDL = 2, 4, 6  # CUlaunchAttributeID
_ATTRIBUTES_AT = 64
_EXTRA_AT = _ATTRIBUTES_AT + 3 * _ATTRIBUTE.size  # 280
_EXTRA = struct.Struct("=5QQ")  # pointer: 1, address; size: 2, address; end: 0; then the size
_PARAMETERS_AT = -(-(_EXTRA_AT + _EXTRA.size) // 64) * 64


class Slot:
    """A launch in memory. `places` are where each argument's pointer or number goes.

    value_at, stream_at: the addresses of these places and of the stream. maps_at: for arguments
    that tensor maps are made of, where the addresses of these maps are.

    The driver takes all parameters in one piece (`extra`), or from an address each
    (`parameters`); the other is None. With tensor maps it gets addresses: ptxas aligns maps in
    the constant bank, so where they lie in one piece differs from architecture to architecture.
    """

    __slots__ = (
        "buffer", "config", "extra", "maps_at", "parameters", "places", "stream", "stream_at",
        "value_at",
    )  # fmt: skip

    def __init__(
        self,
        config: LaunchConfig,
        packer: Packer,
        arguments: Sequence[Description],
        maps: Maps | None = None,
    ) -> None:
        size = maps.size if maps else packer.size
        addresses = struct.Struct(f"={len(packer.parameters) + len(maps.offsets)}Q" if maps else "")
        table_at = _PARAMETERS_AT + -(-max(size, 8) // 8) * 8
        buffer = bytearray(table_at + addresses.size)
        base = ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
        self.buffer, self.config = buffer, base
        self._write_config(config)
        packer.pack_into(buffer, arguments, _PARAMETERS_AT)
        self.value_at = [base + _PARAMETERS_AT + offset for offset, _ in packer.values]
        self.maps_at: dict[int, list[int]] = {}
        self.extra: int | None = None
        self.parameters: int | None = None
        if maps:
            offsets = (*(parameter.offset for parameter in packer.parameters), *maps.offsets)
            places = [base + _PARAMETERS_AT + offset for offset in offsets]
            addresses.pack_into(buffer, table_at, *places)
            self.parameters = base + table_at
            self.maps_at = {
                argument: [base + table_at + 8 * offsets.index(at) for at in images.offsets]
                for argument, images in maps.by_argument.items()
            }
        else:
            given = (1, base + _PARAMETERS_AT, 2, base + _EXTRA_AT + 40, 0, size)
            _EXTRA.pack_into(buffer, _EXTRA_AT, *given)
            self.extra = base + _EXTRA_AT
        view = memoryview(buffer)
        self.stream_at = base + _STREAM_AT
        self.stream = view[_STREAM_AT : _STREAM_AT + 8].cast("Q")
        self.places = _places(view[_PARAMETERS_AT:], packer, maps)

    def _write_config(self, config: LaunchConfig) -> None:
        attributes = _attributes(config)
        _CONFIG.pack_into(
            self.buffer, 0, *config.grid, *config.block, config.shared_bytes,
            0, self.config + _ATTRIBUTES_AT if attributes else 0, len(attributes),
        )  # fmt: skip
        for index, (identity, values) in enumerate(attributes):
            _ATTRIBUTE.pack_into(
                self.buffer, _ATTRIBUTES_AT + index * _ATTRIBUTE.size, identity, *values
            )


def _places(parameters: memoryview, packer: Packer, maps: Maps | None) -> list[Any]:
    """Where each argument's pointer or number goes, and with a pointer the maps made of it."""
    places: list[Any] = [_place(parameters, *value) for value in packer.values]
    for argument, images in maps.by_argument.items() if maps else ():
        copies = [parameters[at : at + MAP_BYTES] for at in images.offsets]
        places[argument] = PointerPlace(places[argument], copies, images)
    return places


def _attributes(config: LaunchConfig) -> list[tuple[int, Dim]]:
    found: list[tuple[int, Dim]] = []
    if config.cooperative:
        found.append((_COOPERATIVE, (1, 0, 0)))
    if config.cluster and not config.cluster_in_code:
        found.append((_CLUSTER, config.cluster))
    if config.pdl:
        found.append((_PDL, (1, 0, 0)))
    return found


def _place(view: memoryview, at: int, code: str) -> memoryview:
    part = view[at : at + struct.calcsize("=" + code)]
    return cast(memoryview, part.cast(code))  # type: ignore[call-overload]


def configuration(name: str, key: Any) -> tuple[LaunchConfig, Any]:
    """The configuration and the stream of `kernel[key]`."""
    if not isinstance(key, tuple) or not 2 <= len(key) <= 4:
        raise ArgumentError(
            f"{name}[grid, block, stream=None, shared_bytes=0] takes 2 to 4 values, {key!r} was "
            "given"
        )
    grid, block, *more = key
    shared_bytes = more[1] if len(more) == 2 else 0
    return LaunchConfig.of(grid, block, shared_bytes or 0), more[0] if more else None
