"""Configurations that `kernels.tune` found fastest, remembered by problem and GPU.

They are kept as JSON in the cache directory (see TENSORCORE_DSL_CACHE), so later processes know
them too; `plan` asks here before it follows its own rules.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tensorcore_dsl.codegen.disk_cache import cache_directory
from tensorcore_dsl.kernels.ampere.pipeline import AmpereConfig
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.runtime.arguments import ArrayType

FILE = "gemm-choices.json"
FAMILIES: dict[str, Any] = {"sm80": AmpereConfig, "sm90": HopperConfig}

Entry = dict[str, Any]


def family_of(config: Any) -> str:
    """The family of kernels that a configuration belongs to."""
    return next(name for name, kind in FAMILIES.items() if isinstance(config, kind))


def key(types: Mapping[str, ArrayType], M: int, N: int, K: int, device: str) -> str:
    """A problem's name: element types, size, which operands have K contiguous, and the GPU's.

    Operands that TMA cannot read run other kernels, so they go by another name.
    """
    a, b, d = types["a"], types["b"], types["d"]
    layout = f"{'row' if a.unit[1] else 'col'}.{'col' if b.unit[0] else 'row'}"
    lines = "" if all(kind.align == 16 for kind in types.values()) else " unaligned"
    return f"{a.dtype}->{d.dtype} {M}x{N}x{K} {layout}{lines} on {device}"


def device_name() -> str:
    """Of the current GPU, as "NVIDIA H200"."""
    name = import_module("numba.cuda").get_current_device().name
    return name.decode() if isinstance(name, bytes) else str(name)


def recall(name: str) -> Any:
    """The configuration remembered under a key; None where there is none."""
    entry = entries().get(name)
    return None if entry is None else _config(entry)


def remember(name: str, config: Any, seconds: float) -> None:
    """Keep a configuration for this process and, where there is a cache, for later ones."""
    made = {"family": family_of(config), "config": asdict(config), "seconds": seconds}
    entries()[name] = made
    path = location()
    if path is not None:
        with suppress(OSError):  # a disk that refuses is no error
            _write(path, {**_read(path), name: made})


def forget() -> None:
    """Forget everything, on disk as well."""
    path = location()
    if path is not None:
        path.unlink(missing_ok=True)
    _entries.cache_clear()


def location() -> Path | None:
    """The file; None when TENSORCORE_DSL_CACHE is "off"."""
    directory = cache_directory()
    return None if directory is None else directory / FILE


def entries() -> dict[str, Entry]:
    """All that is known; the file is read once."""
    return _entries(location())


@lru_cache
def _entries(path: Path | None) -> dict[str, Entry]:
    return {} if path is None else _read(path)


def _read(path: Path) -> dict[str, Entry]:
    """What a file holds; nothing where it is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, found: Mapping[str, Entry]) -> None:
    """In one step, so that no reader meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=FILE)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1, sort_keys=True)
    os.replace(partial, path)


def _config(entry: Entry) -> Any:
    """None for an entry of another version, whose fields are not today's."""
    try:
        kind, values = FAMILIES[entry["family"]], entry["config"]
    except (KeyError, TypeError):
        return None
    known = {field.name for field in fields(kind)}
    return kind(**values) if isinstance(values, dict) and set(values) == known else None
