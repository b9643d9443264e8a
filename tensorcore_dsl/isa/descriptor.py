"""Matrix descriptors: 64 bits that locate an operand of wgmma in shared memory (9.7.15.5.1.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.isa.spec import Instruction


class Field(NamedTuple):
    """A bit field of the descriptor."""

    low: int  # lowest bit
    mask: int  # of the value, shifted down to bit 0
    unit: int  # bytes per step of an address or offset, 1 for other fields


# fmt: off
FIELDS = {
    "start":   Field(0,  0x3FFF, 16),
    "leading": Field(16, 0x3FFF, 16),
    "stride":  Field(32, 0x3FFF, 16),
    "base":    Field(49, 0x7,    1),
    "swizzle": Field(62, 0x3,    1),
}
# fmt: on
DESCRIPTOR_SWIZZLES = (0, 128, 64, 32)  # width in bytes; the index is the code in the descriptor


def pack_descriptor(
    start: int = 0, leading: int = 0, stride: int = 0, swizzle: int = 0, base: int = 0
) -> int:
    """The 64 bits of a descriptor, from the attributes of `Descriptor`."""
    code = DESCRIPTOR_SWIZZLES.index(swizzle)
    values = dict(start=start, leading=leading, stride=stride, base=base, swizzle=code)
    return sum(v // FIELDS[name].unit << FIELDS[name].low for name, v in values.items())


def unpack_descriptor(words: np.ndarray) -> dict[str, np.ndarray]:
    """The fields of uint64 descriptors by name, as int64 arrays; see `Descriptor`."""
    fields = {
        name: (words >> np.uint64(f.low) & np.uint64(f.mask)).astype(np.int64) * f.unit
        for name, f in FIELDS.items()
    }
    fields["swizzle"] = np.array(DESCRIPTOR_SWIZZLES)[fields["swizzle"]]
    return fields


@dataclass(frozen=True)
class Descriptor:
    """Fields of the descriptors of a batch, one array element per warpgroup.

    Addresses, offsets and swizzles (0, 32, 64 or 128) are in bytes, the base offset in 128-byte
    units.
    """

    start: np.ndarray
    leading: np.ndarray
    stride: np.ndarray
    base: np.ndarray
    swizzle: np.ndarray

    @classmethod
    def of(cls, instr: Instruction, name: str, bits: np.ndarray, whole: np.ndarray) -> Descriptor:
        """Decode registers (warpgroups, 128).

        EmulationError if the threads of an active warpgroup (`whole`) hold different descriptors.
        """
        words = bits[:, 0]
        if (bits != words[:, None])[whole].any():
            raise EmulationError(f"{instr.mnemonic}: {name} differs within a warpgroup")
        return cls(**unpack_descriptor(words))

    def chunks(self, outer: int, inner: int, transposed: bool) -> np.ndarray:
        """(warpgroups, chunks) addresses of 16-byte chunks, in the order (row of memory, chunk).

        K-major: `outer` rows of the operand, `inner` bytes of k. Transposed (MN-major): `outer`
        values of k, `inner` bytes along the rows.
        """
        line, byte = np.divmod(np.arange(outer * (inner // 16)), inner // 16)
        addresses = np.empty((len(self.start), len(line)), np.int64)
        for width in np.unique(self.swizzle):
            some = self.swizzle == width
            addresses[some] = self._chunks(some, int(width), line, 16 * byte, transposed)
        return addresses

    def _chunks(
        self, some: np.ndarray, width: int, line: np.ndarray, byte: np.ndarray, transposed: bool
    ) -> np.ndarray:
        """The addresses of the warpgroups whose swizzle has this width."""
        leading, stride = self.leading[some, None], self.stride[some, None]
        if transposed and width:
            places = byte // width * leading + line // 8 * stride + line % 8 * width + byte % width
        elif transposed:
            places = byte // 16 * stride + line // 8 * leading + line % 8 * 16
        elif width:
            places = line // 8 * stride + byte // width * leading + line % 8 * width + byte % width
        else:
            places = line // 8 * stride + line % 8 * 16 + byte // 16 * leading
        return swizzled(self.start[some, None] + places, width, self.base[some, None])


def swizzled(address: np.ndarray, width: int, base: np.ndarray) -> np.ndarray:
    """The address with bits 4 to 6 (as many as the width has) XORed with bits 7 and up.

    The pattern repeats every 8 * width bytes. With a base offset of 0 it starts at a multiple of
    that size; otherwise `base` 128-byte units behind a multiple of 1024 bytes.
    """
    mask = width - 16 if width else 0
    return np.asarray(address ^ (((address >> 7) - base << 4) & mask))
