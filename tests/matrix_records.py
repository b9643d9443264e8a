"""Recorded results of matrix instructions: what is kept of them, and where.

A record has a hash of each chunk of a probe's results, and the sample words of the first.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"
CHUNKS = 16  # of a probe's results
DIGITS = 8  # of a chunk's hash
SAMPLE = 8


def digest(words: np.ndarray) -> str:
    """A short hash of one chunk."""
    data = np.ascontiguousarray(words, dtype="<u4")
    return hashlib.blake2b(data.tobytes(), digest_size=DIGITS // 2).hexdigest()


def sample(words: np.ndarray) -> list[str]:
    """Words of a chunk, spread over it."""
    flat = words.reshape(-1)
    return [f"{int(x):08x}" for x in flat[:: max(len(flat) // SAMPLE, 1)][:SAMPLE]]


@dataclass(frozen=True)
class Record:
    """The hash of each chunk, and the sample of the first."""

    chunks: tuple[str, ...]
    words: tuple[str, ...]

    @classmethod
    def of(cls, results: Iterable[np.ndarray]) -> Record:
        results = list(results)
        return cls(tuple(digest(r) for r in results), tuple(sample(results[0])))

    @classmethod
    def parse(cls, text: str) -> Record:
        hashes, *words = text.split()
        parts = [hashes[i : i + DIGITS] for i in range(0, len(hashes), DIGITS)]
        return cls(tuple(parts), tuple(words))

    def __str__(self) -> str:
        return " ".join(["".join(self.chunks), *self.words])


def replayed(mnemonic: str) -> int:
    """The chunk that tests replay; the others are replayed by `tests.capture --replay-all`."""
    return zlib.crc32(mnemonic.encode()) % CHUNKS


def family(mnemonic: str) -> str:
    """The file that a form is recorded in."""
    opcode, *rest = mnemonic.split(".")
    if opcode == "wmma":
        return f"wmma_{rest[0]}"
    sparse = rest[0].startswith("sp") or rest[:2] == ["mma_async", "sp"]
    return f"{opcode}_sp" if sparse else opcode


def write(folder: Path, records: Mapping[str, Record]) -> None:
    """One file for each family, one line for each form."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted({family(m) for m in records}):
        lines = [
            f"{json.dumps(m)}: {json.dumps(str(records[m]))}" for m in sorted(records) if family(m) == name
        ]
        (folder / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read(folder: Path) -> dict[str, Record]:
    """All records of an architecture's folder, by mnemonic."""
    return dict(_read(folder))


def _read(folder: Path) -> Iterator[tuple[str, Record]]:
    for path in sorted(folder.glob("*.json")):
        for mnemonic, text in json.loads(path.read_text()).items():
            yield mnemonic, Record.parse(text)
