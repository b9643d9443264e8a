"""Memory of one launch, in the layout that `cuLaunchKernelEx` reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tensorcore_dsl.runtime.arguments import Description, Packer
from tensorcore_dsl.runtime.launch_config import Dim, LaunchConfig

_COOPERATIVE, _CLUSTER, _PDL = 2, 4, 6  # CUlaunchAttributeID
_EXTRA_POINTER, _EXTRA_SIZE, _EXTRA_END = 1, 2, 0  # CU_LAUNCH_PARAM_*


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint32 * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32), ("stream", ctypes.c_uint64),
        ("attributes", ctypes.c_uint64), ("attribute_count", ctypes.c_uint32),
    )  # fmt: skip


class LaunchBuffer:
    """The memory of one launch: its configuration and its parameters.

    config, parameters, extra: arguments of cuLaunchKernelEx. value_at, stream_at: addresses of
    each argument's pointer or number, and of the stream. map_at: for each tensor map, the address
    of the word that holds its address.

    The driver takes all parameters in one piece (`extra`), or an address of each (`parameters`);
    the other one is None. With tensor maps it gets addresses: ptxas aligns maps in the constant
    bank, so their offsets in one piece differ among architectures.
    """

    def __init__(
        self,
        config: LaunchConfig,
        packer: Packer,
        arguments: Sequence[Description],
        maps: Sequence[ctypes.Array[ctypes.c_char]] = (),
    ) -> None:
        attributes = [_Attribute(i, 0, values) for i, values in _attributes(config)]
        self._attributes = (_Attribute * len(attributes))(*attributes)
        self._config = _Config(
            config.grid,
            config.block,
            config.shared_bytes,
            0,
            ctypes.addressof(self._attributes) if attributes else 0,
            len(attributes),
        )
        self.config = ctypes.addressof(self._config)
        self.stream_at = self.config + _Config.stream.offset
        self._values = ctypes.create_string_buffer(max(packer.size, 1))
        packer.pack_into(self._values, arguments)
        base = ctypes.addressof(self._values)
        self.value_at = {i: base + offset for i, offset in packer.value_offsets.items()}
        self.parameters: int | None = None
        self.extra: int | None = None
        self.map_at: list[int] = []
        self._maps = maps
        if maps:
            addresses = [base + parameter.offset for parameter in packer.parameters]
            first = len(addresses)
            addresses += map(ctypes.addressof, maps)
            self._table = (ctypes.c_uint64 * len(addresses))(*addresses)
            self.parameters = ctypes.addressof(self._table)
            self.map_at = [self.parameters + 8 * (first + n) for n in range(len(maps))]
        else:
            self._size = ctypes.c_size_t(packer.size)
            self._table = (ctypes.c_uint64 * 5)(
                _EXTRA_POINTER, base, _EXTRA_SIZE, ctypes.addressof(self._size), _EXTRA_END
            )
            self.extra = ctypes.addressof(self._table)

    @property
    def stream(self) -> int:
        return int(self._config.stream)

    @stream.setter
    def stream(self, handle: int) -> None:
        self._config.stream = handle


def _attributes(config: LaunchConfig) -> list[tuple[int, Dim]]:
    """Numbers and values of the attributes of a launch."""
    result: list[tuple[int, Dim]] = []
    if config.cooperative:
        result.append((_COOPERATIVE, (1, 0, 0)))
    if config.cluster and not config.cluster_in_code:
        result.append((_CLUSTER, config.cluster))
    if config.pdl:
        result.append((_PDL, (1, 0, 0)))
    return result
