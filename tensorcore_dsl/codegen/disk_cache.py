"""Cache on disk: bytes and a text under a name, with a checksum."""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tensorcore_dsl.codegen.switches import is_off

VARIABLE = "TENSORCORE_DSL_CACHE"  # a directory, or "off"
_MAGIC = b"tensorcore_dsl cubin 1\n"


def entry_name(*parts: object) -> str:
    """The name of the entry for `parts`, such as text, architecture, versions and flags."""
    digest = hashlib.sha256(_MAGIC)
    for part in parts:
        data = str(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def cache_directory() -> Path | None:
    """The cache's directory: `TENSORCORE_DSL_CACHE`, or the platform's default; None if "off"."""
    if is_off(VARIABLE):
        return None
    if chosen := os.environ.get(VARIABLE):
        return Path(os.path.expanduser(chosen))
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "tensorcore_dsl"


def load(name: str) -> tuple[bytes, str] | None:
    """Code and text of an entry; None if it is missing or damaged."""
    path = _path(name)
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + 32
    payload = data[start:]
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : start] != _digest(payload):
        return None
    (size,) = struct.unpack_from("<I", payload)
    return payload[4 + size :], payload[4 : 4 + size].decode()


def store(name: str, code: bytes, text: str) -> None:
    """Store an entry in one step; errors of the disk are ignored."""
    path = _path(name)
    if path is None:
        return
    head = text.encode()
    payload = struct.pack("<I", len(head)) + head + code
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _MAGIC + _digest(payload) + payload)


def replace_file(path: Path, data: bytes) -> None:
    """Other processes see the old file or the complete new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _path(name: str) -> Path | None:
    directory = cache_directory()
    return directory / name[:2] / f"{name}.cubin" if directory else None


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
