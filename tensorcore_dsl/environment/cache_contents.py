"""Contents of the directory of all caches: files, limit of their size, removal."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tensorcore_dsl.environment.switches import is_off
from tensorcore_dsl.errors import ArgumentError

VARIABLE = "TENSORCORE_DSL_CACHE_LIMIT"  # bytes, such as 500M or 2G, or "off"
DEFAULT_LIMIT = 1 << 30
KEPT_SHARE = 0.9  # of the limit: a cleanup keeps this share
ABANDONED_SECONDS = 3600.0  # age at which a half-written file counts as abandoned
KERNELS, LOOPS, MEASUREMENTS = "kernels", "loops", "measurements"
KINDS = (KERNELS, LOOPS, MEASUREMENTS)
MEASURED_IN: set[str] = set()  # names of the files of all stores of measurements
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", re.IGNORECASE)
ENTRY = ".cubin"  # suffixes of complete entries
_SHARD = re.compile(r"[0-9a-f]{2}")
_ENTRY = re.compile(r"[0-9a-f]{64}(\.cubin|.*\.tmp)")


@dataclass(frozen=True)
class File:
    """A file of the cache.

    Attributes
    ----------
    size : int
        Bytes.
    used : float
        When it was last read or written, in seconds.
    """

    path: str
    kind: str
    size: int
    used: float

    @property
    def abandoned(self) -> bool:
        """Whether a process ended while it wrote the file."""
        return self.path.endswith(".tmp") and time.time() - self.used > ABANDONED_SECONDS


def limit() -> int | None:
    """The most bytes of compiled kernels and loops; None for any number."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT_LIMIT
    if is_off(VARIABLE):
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ArgumentError(f"{VARIABLE}={text!r}: bytes are needed, such as 500M or 2G, or off")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def files(root: Path) -> Iterator[File]:
    """All files that this package has made in the directory of all caches, and no others."""
    yield from _entries(root, KERNELS)
    yield from _entries(root / "loops", LOOPS)
    for name in sorted(MEASURED_IN):
        with suppress(OSError):
            facts = (root / name).stat()
            yield File(str(root / name), MEASUREMENTS, facts.st_size, facts.st_mtime)


def keep_within_limit(root: Path, most: int) -> None:
    """Remove the entries that were used longest ago, if all together exceed `most` bytes."""
    cached_files = list(files(root))
    remove(file for file in cached_files if file.abandoned)
    entries = [file for file in cached_files if file.path.endswith(ENTRY)]
    left = sum(file.size for file in entries)
    if left <= most:
        return
    for file in sorted(entries, key=lambda file: file.used):
        if left <= KEPT_SHARE * most:
            break
        remove([file])
        left -= file.size


def remove(unwanted: Iterable[File]) -> None:
    """Remove files; ignore files that are gone, or that the disk refuses to remove."""
    for file in unwanted:
        with suppress(OSError):
            os.unlink(file.path)


def _entries(folder: Path, kind: str) -> Iterator[File]:
    for shard in _scanned(folder):
        if _SHARD.fullmatch(shard.name):
            for entry in _scanned(shard.path):
                if _ENTRY.fullmatch(entry.name):
                    with suppress(OSError):
                        facts = entry.stat()
                        yield File(entry.path, kind, facts.st_size, facts.st_mtime)


def _scanned(folder: str | Path) -> list[os.DirEntry[str]]:
    """Entries of a folder; none if there is no folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []
