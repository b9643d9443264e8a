"""Which bytes the descriptors of wgmma name: all swizzles, both majors, base offsets."""

from __future__ import annotations

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.isa import descriptor
from tensorcore_dsl.isa.descriptor import Chunks, SharedTiles
from tests import capture_descriptors as probe
from tests.capture_descriptors import CASES, FORMS, SWIZZLES


def named(width: int, line: int, offset: int) -> int:
    """The chunk at `offset` behind the start of a pattern, which is `line` lines of 128 bytes
    from address 0: within 8 rows of `width` bytes, row r's chunks change places by the number of
    128-byte lines before r."""
    row = offset // width % 8
    flip = row * width // 128 if width else 0
    return (128 * line + offset) // 16 ^ flip


def wanted(kind: str, major: int, width: int, line: int, leading: int) -> np.ndarray:
    """(k, n): the chunk of each element of B, 2 bytes each; `leading` chunks are between parts of
    a K-major operand."""
    depth = {"dense": 16, "sparse": 32}[kind]
    elements = np.empty((depth, 64), int)
    for k, n in np.ndindex(depth, 64):
        if not width and major:
            elements[k, n] = 8 * line + k // 8 * 8 + n // 8 * depth + k % 8
        elif not width:
            elements[k, n] = 8 * line + k // 8 * leading + n // 8 * depth + n % 8
        elif major:
            atom, column = divmod(2 * n, width)
            place = atom * width * depth + k * width + column
            elements[k, n] = named(width, line, place // 16 * 16)
        else:
            part, byte = divmod(2 * k, width)
            elements[k, n] = named(width, line, n * width + byte // 16 * 16 + 16 * part * leading)
    return elements


@pytest.fixture(scope="module")
def read():
    return {kind: probe.run(kind == "sparse", True) for kind in FORMS}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("major", [0, 1], ids=["k", "mn"])
@pytest.mark.parametrize("width", SWIZZLES)
def test_descriptors_address_the_chunks_of_the_manual(read, kind, major, width):
    """With the base offset that the manual demands, a pattern may start at any line."""
    words = probe.descriptors(64 if kind == "sparse" else 32)[major * len(CASES) :]
    for line in range(8):
        base = line if width and line * 128 % (8 * width) else 0
        got = read[kind][major, SWIZZLES.index(width), base, line]
        leading = int(words[CASES.index((width, base, line))]) >> 16 & 0x3FFF
        assert np.array_equal(got, wanted(kind, major, width, line, leading)), (line, base)


def test_a_batch_may_mix_swizzles():
    rng = np.random.default_rng(1)
    instr = tc.isa.instruction(FORMS["dense"])
    words = probe.descriptors(32)[np.arange(0, 2 * len(CASES), 37)]
    memory = rng.integers(0, 60, (len(words), 24576 // 2)).astype(np.float16).view(np.uint8)
    a = rng.integers(0, 5, (len(words), 128, 8)).astype(np.float16).view(np.uint32)
    c = np.zeros((len(words), 128, 32), np.uint32)
    together = tc.emulate(instr, c, a, words, False, 1, 1, 0, shared=memory)
    for i, word in enumerate(words):
        alone = tc.emulate(instr, c[i], a[i], word, False, 1, 1, 0, shared=memory[i])
        assert np.array_equal(together[i], alone)


def test_a_warpgroup_has_one_descriptor():
    instr = tc.isa.instruction(FORMS["dense"])
    from tensorcore_dsl.isa.descriptor import Descriptor

    words = np.zeros((1, 128), np.uint64)
    words[0, 3] = 1
    with pytest.raises(EmulationError, match="desc_b differs within a warpgroup"):
        Descriptor.of(instr, "desc_b", words, np.ones(len(words), bool))


def test_addresses_are_kept_within_their_bytes(monkeypatch):
    """A descriptor is looked up once, until too many others are held."""
    monkeypatch.setattr(descriptor, "MAX_HELD", 3 * 2 * (16 * 8 + 8))
    tiles, whole, made = SharedTiles([]), np.ones(1, np.bool_), []

    def ask(word: int) -> Chunks:
        def find() -> Chunks:
            made.append(word)
            return Chunks(np.full((1, 16), word), np.zeros(1, np.int64))

        chunks = tiles.chunks(np.full((1, 128), word, np.uint64), whole, "b", find)
        assert (chunks.addresses == word).all()
        return chunks

    for word in (1, 2, 3, 1, 2, 3):
        ask(word)
    assert made == [1, 2, 3]
    ask(4)
    ask(1)
    assert made == [1, 2, 3, 4, 1]
