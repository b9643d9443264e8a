"""Cache on disk: bytes and a text under a name, with a checksum.

The time of a file says when it was last used. One of sixteen stores, by its name, looks at the size
of all and removes what was used longest ago (`cache_contents.py`).
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

from tensorcore_dsl.environment.cache_contents import ENTRY, keep_within_limit, limit
from tensorcore_dsl.environment.cache_directory import cache_directory, is_trusted, make_private

_LOOKING = "0"  # first character of the names of one entry in sixteen
_MAGIC = b"tensorcore_dsl cubin 1\n"


def entry_name(*parts: object) -> str:
    """The name of the entry for `parts`, such as text, architecture, versions and flags."""
    digest = hashlib.sha256(_MAGIC)
    for part in parts:
        encoded = str(part).encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def load(name: str, directory: Path | None = None) -> tuple[bytes, str] | None:
    """Code and text of an entry; None if it is missing or damaged.

    directory: a trusted one; by default that of all caches. ArgumentError if
    TENSORCORE_DSL_CACHE_LIMIT is not a size: it is read at the first use of the cache.
    """
    limit()
    path = _path(name, directory)
    if path is None or not is_trusted(path.parent):
        return None
    try:
        content = path.read_bytes()
    except OSError:
        return None
    with suppress(OSError):  # a disk that cannot be written
        os.utime(path)
    start = len(_MAGIC) + 32
    payload = content[start:]
    if content[: len(_MAGIC)] != _MAGIC or content[len(_MAGIC) : start] != _digest(payload):
        return None
    try:
        (size,) = struct.unpack_from("<I", payload)
        return payload[4 + size :], payload[4 : 4 + size].decode()
    except (struct.error, UnicodeDecodeError):
        return None


def store(name: str, code: bytes, text: str, directory: Path | None = None) -> None:
    """Store an entry in one step; errors of the disk are ignored.

    ArgumentError if TENSORCORE_DSL_CACHE_LIMIT is not a size.
    """
    most = limit()
    path = _path(name, directory)
    if path is None:
        return
    head = text.encode()
    payload = struct.pack("<I", len(head)) + head + code
    with suppress(OSError):
        make_private(path.parent)
        if is_trusted(path.parent):
            replace_file(path, _MAGIC + _digest(payload) + payload)
            root = cache_directory()
            if root is not None and most is not None and name.startswith(_LOOKING):
                keep_within_limit(root, most)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that other processes see the old one or the complete new one.

    Parameters
    ----------
    path : Path
        The file; its directory exists.
    data : bytes
        The new contents.

    Raises
    ------
    OSError
        The disk refuses; the old file stays.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _path(name: str, directory: Path | None) -> Path | None:
    directory = directory or cache_directory()
    return directory / name[:2] / f"{name}{ENTRY}" if directory else None


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
