"""Matrix descriptors: 64 bits that locate an operand of wgmma in shared memory (9.7.15.5.1.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import EmulationError, OutOfBounds
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.lowering import vectorised


class Field(NamedTuple):
    """A bit field of the descriptor."""

    low: int  # lowest bit
    mask: int  # bits of the value, shifted down to bit 0
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
CHUNK = 16  # bytes
CORE = 128  # bytes of a core matrix, which lie side by side without a swizzle
MAX_HELD = 1 << 25  # bytes of cached addresses of descriptors
DESCRIPTOR_SWIZZLES = (0, 128, 64, 32)  # width in bytes; the index is the code in the descriptor


def pack_descriptor(
    start: int = 0, leading: int = 0, stride: int = 0, swizzle: int = 0, base: int = 0
) -> int:
    """Pack the attributes of `Descriptor` into the 64 bits of a descriptor."""
    code = DESCRIPTOR_SWIZZLES.index(swizzle)
    values = dict(start=start, leading=leading, stride=stride, base=base, swizzle=code)
    return sum(v // FIELDS[name].unit << FIELDS[name].low for name, v in values.items())


def unpack_descriptor(words: np.ndarray) -> dict[str, np.ndarray]:
    """Unpack uint64 descriptors into fields by name, as int64 arrays; see `Descriptor`."""
    fields = {
        name: (words >> np.uint64(f.low) & np.uint64(f.mask)).astype(np.int64) * f.unit
        for name, f in FIELDS.items()
    }
    fields["swizzle"] = np.array(DESCRIPTOR_SWIZZLES)[fields["swizzle"]]
    return fields


@dataclass(frozen=True)
class Descriptor:
    """Fields of the different descriptors of a batch, one array element for each.

    Addresses, offsets and swizzles (0, 32, 64 or 128) are in bytes, the base offset in 128-byte
    units.
    """

    start: np.ndarray
    leading: np.ndarray
    stride: np.ndarray
    base: np.ndarray
    swizzle: np.ndarray

    @classmethod
    def of(
        cls, instr: Instruction, name: str, bits: np.ndarray, whole: np.ndarray
    ) -> tuple[Descriptor, np.ndarray]:
        """Decode registers (warpgroups, 128).

        Also return (warpgroups,) the row of each warpgroup's descriptor; 0 for warpgroups not in `whole`.

        EmulationError if the threads of an active warpgroup hold different descriptors.
        """
        words, rows = bits[:, 0], np.zeros(len(bits), np.int64)
        if ((bits != words[:, None]).any(axis=1) & whole).any():
            raise EmulationError(f"{instr.mnemonic}: {name} differs within a warpgroup")
        different, rows[whole] = np.unique(words[whole], return_inverse=True)
        return cls(**unpack_descriptor(different)), rows

    def chunks(self, outer: int, inner: int, transposed: bool) -> np.ndarray:
        """(descriptors, chunks) addresses of 16-byte chunks, in the order (row of memory, chunk).

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
        """Addresses of the chunks of `some` descriptors, whose swizzle has this width."""
        leading, stride = (_shared(x[some, None]) for x in (self.leading, self.stride))
        if transposed and width:
            offsets = byte // width * leading + line // 8 * stride + line % 8 * width + byte % width
        elif transposed:
            offsets = byte // 16 * stride + line // 8 * leading + line % 8 * 16
        elif width:
            offsets = line // 8 * stride + byte // width * leading + line % 8 * width + byte % width
        else:
            offsets = line // 8 * stride + line % 8 * 16 + byte // 16 * leading
        return swizzled(self.start[some, None] + offsets, width, self.base[some, None])


def _shared(column: np.ndarray) -> np.ndarray:
    """Reduce equal rows to one row for all."""
    return column[:1] if (column == column[:1]).all() else column


@dataclass(frozen=True)
class Chunks(EagerDict):
    """Reads of shared memory by warpgroups.

    Attributes
    ----------
    addresses : array
        (descriptors, chunks): addresses of 16-byte chunks.
    rows : array
        (warpgroups,): the row of `addresses` that each warpgroup reads.
    swizzles : array or None
        (descriptors,): swizzle widths in bytes, if known.
    """

    addresses: np.ndarray
    rows: np.ndarray
    swizzles: np.ndarray | None = None

    @cached_property
    def numbers(self) -> np.ndarray:
        """Numbers of the chunks."""
        return self.addresses // CHUNK

    @cached_property
    def spans(self) -> np.ndarray:
        """`spans_of` the chunks."""
        return spans_of(self.numbers)


def spans_of(numbers: np.ndarray) -> np.ndarray:
    """Find contiguous spans in each row, (rows, spans, 2): first number, and last number plus one.

    Each number is in one span. Empty spans pad a row.
    """
    rows = []
    for different in map(np.unique, numbers):
        edges = np.flatnonzero(np.diff(different) > 1)
        firsts, lasts = different[np.append(0, edges + 1)], different[np.append(edges, -1)]
        rows.append(np.stack([firsts, lasts + 1], axis=1))
    out = np.zeros((len(rows), max(map(len, rows)), 2), np.int64)
    for row, spans in zip(out, rows, strict=True):
        row[: len(spans)] = spans
    return out


class SharedTile(NamedTuple):
    """A tile of shared memory that `tc.shared` made.

    It holds the byte range in the CTA, the distances in bytes between rows and between matrices of rows
    (0: only one matrix), the swizzle (0: none), the name, and the extent and stride in bytes of each axis.
    """

    start: int
    bytes: int
    pitch: int
    plane: int
    swizzle: int
    name: str
    shape: tuple[int, ...]
    steps: tuple[int, ...]

    def element(self, address: int) -> str:
        """Name the element that contains a byte of the CTA, for messages."""
        offset = int(swizzled(np.array(address), self.swizzle, np.array(0))) - self.start
        return f"element {list(element_index(offset, self.shape, self.steps))} of {self.name}"


class SharedTiles:
    """The tiles of a kernel. Descriptors must stay in them. Without checks, none are known."""

    def __init__(self, tiles: Iterable[SharedTile]) -> None:
        self.tiles = tuple(tiles)
        self._passed: set[tuple[Any, ...]] = set()
        self._kept: dict[tuple[Any, ...], Any] = {}
        self._held = 0

    def chunks(self, words: np.ndarray, whole: np.ndarray, key: Any, find: Callable[[], Chunks]) -> Chunks:
        """Return the chunks of one operand's descriptors (warpgroups, 128), cached by `key`.

        `find` computes them. The cache entry covers the `whole` warpgroups, each with one descriptor.
        """
        first = np.empty(len(words), np.uint64)
        if not alike(np.ascontiguousarray(words), whole, first):
            return find()
        key = (key, first.tobytes(), whole.tobytes())
        cached: Chunks | None = self._kept.get(key)
        if cached is None:
            cached = self._kept[key] = find()
            self._held += 2 * (cached.addresses.nbytes + cached.rows.nbytes)
            if self._held > MAX_HELD:
                self._kept.clear()
                self._held = 0
        return cached

    def element(self, address: int) -> str:
        """Name the element that contains a byte of the CTA; "" if no tile is known."""
        tile = self._at(address)
        return tile.element(address) if tile else ""

    def misaligned(self, address: int, align: int) -> str:
        """Name the element at a misaligned byte, and the alignment of its tile; "" if unknown."""
        tile = self._at(address)
        if tile is None:
            return ""
        advice = f" (tc.shared(..., align={align}))" if tile.start % align else ""
        return f": {tile.element(address)}{advice}"

    def _at(self, address: int) -> SharedTile | None:
        return next((t for t in self.tiles if t.start <= address < t.start + t.bytes), None)

    def check(
        self,
        instr: Instruction,
        name: str,
        descriptor: Descriptor,
        chunks: Chunks,
        whole: np.ndarray,
        lines: int,
        width: int,
    ) -> None:
        """Raise an error for the first active warpgroup whose descriptor does not fit its tile.

        chunks: the chunks that the descriptors address, in `lines` rows of memory of each atom.
        width: bytes of a row of a transposed matrix, whose swizzle atoms are `leading` bytes apart; 0 for
        other matrices, which have one atom.
        """
        for row in dict.fromkeys(chunks.rows[whole].tolist()) if self.tiles else ():
            fields = [int(field[row]) for field in astuple(descriptor)]
            key = (instr, name, *fields)
            if key not in self._passed:
                fitting = Descriptor(*fields)  # type: ignore[arg-type]
                atoms = width // max(int(descriptor.swizzle.max()), 1) if width else 1
                self._check(f"{instr.mnemonic}: {name}", fitting, chunks.addresses[row], lines, atoms)
                self._passed.add(key)

    def _check(self, what: str, descriptor: Descriptor, chunks: np.ndarray, lines: int, atoms: int) -> None:
        start = int(descriptor.start)
        tile = self._at(start)
        if tile is None:
            return
        end, first, last = tile.start + tile.bytes, int(chunks.min()), int(chunks.max()) + 16
        target = f"{tile.name} at bytes {tile.start:#x} to {end - 1:#x}"
        if tile.swizzle and descriptor.swizzle != tile.swizzle:
            raise EmulationError(f"{what} has a {descriptor.swizzle}-byte swizzle; it points into {target}")
        if tile.start % max(8 * tile.swizzle, 1) == 0 and descriptor.base % (tile.swizzle // 16 or 1):
            raise EmulationError(
                f"{what} has a base offset of {descriptor.base}; it points into {target}, whose "
                f"{tile.swizzle}-byte swizzle starts anew there: 0 is needed"
            )
        rows = tile.swizzle > 0 and tile.swizzle == tile.pitch and lines > 8
        if rows and descriptor.stride != 8 * tile.pitch:
            raise EmulationError(
                f"{what} has a stride of {descriptor.stride} bytes from 8 rows to the next 8; it "
                f"points into {target}, where these are {8 * tile.pitch}"
            )
        if tile.swizzle and tile.plane and atoms > 1 and descriptor.leading != tile.plane:
            raise EmulationError(
                f"{what} has a leading offset of {descriptor.leading} bytes from one atom to the "
                f"next; it points into {target}, where these are {tile.plane}"
            )
        plain, pitch = not tile.swizzle and not descriptor.swizzle, tile.pitch
        cores = chunks.reshape(lines // 8, 8, -1)[:, 0] - tile.start
        if plain and pitch % CORE and pitch != CHUNK and (cores % pitch + CORE > pitch).any():
            raise EmulationError(
                f"{what} has no swizzle and reads rows of {CHUNK} bytes side by side; it points into {target}, "
                f"whose rows are {pitch} bytes apart"
            )
        ordered = np.sort(chunks)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if pitch and len(twice) and descriptor.leading and descriptor.stride:
            raise EmulationError(
                f"{what} reads shared bytes {twice[0]:#x} to {twice[0] + CHUNK - 1:#x} twice, with a leading "
                f"offset of {descriptor.leading} and a stride of {descriptor.stride} bytes; it points into {target}"
            )
        if first < tile.start or last > end:
            raise OutOfBounds(f"{what} reads shared bytes {first:#x} to {last - 1:#x}, outside of {target}")


@vectorised
def alike(words: Any, whole: Any, first: Any) -> bool:
    """Return whether all words of each `whole` row are equal. `first` (rows,) receives them, else 0."""
    misplaced = np.uint64(0)
    for row in range(whole.size):
        first[row] = np.uint64(0)
        if whole[row]:
            word = words[row, 0]
            first[row] = word
            for i in range(words.shape[1]):
                misplaced |= words[row, i] ^ word
    same: bool = misplaced == 0
    return same


def element_index(offset: int, shape: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
    """Index of the element at byte `offset` of an array; steps: bytes of each axis."""
    index = [0] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda i: -abs(steps[i])):
        if steps[axis] and shape[axis] > 1:
            index[axis] = min(offset // abs(steps[axis]), shape[axis] - 1)
            offset -= index[axis] * abs(steps[axis])
            if steps[axis] < 0:
                index[axis] = shape[axis] - 1 - index[axis]
    return tuple(index)


def swizzled(address: np.ndarray, width: int, base: np.ndarray) -> np.ndarray:
    """Swizzle addresses: XOR bits 4 to 6 (fewer for narrower widths) with bits 7 and up.

    The pattern repeats every 8 * width bytes. With a base offset of 0 it starts at a multiple of
    that size; otherwise `base` 128-byte units after a multiple of 1024 bytes.
    """
    mask = width - 16 if width else 0
    return np.asarray(address ^ (((address >> 7) - base << 4) & mask))
