"""Tuning cache: the configurations that `kernels.tune` measured as fastest, by problem and GPU.

They are stored as JSON in the cache directory (see TENSORCORE_DSL_CACHE), for later processes as
well. The heuristics look here before they follow the cost model.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, fields
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tensorcore_dsl.host import cache_directory, replace_file
from tensorcore_dsl.kernels.host.families import FAMILIES, family_of
from tensorcore_dsl.kernels.host.operands import GemmProblem

FILE = "gemm-tuning.json"

Entry = dict[str, Any]


def key(problem: GemmProblem, device: str) -> str:
    """Element types, size and layouts of a problem, and the name of the GPU.

    Operands that TMA cannot read have another key, since other kernels run them.
    """
    layout = f"{'row' if problem.a_k_major else 'col'}.{'col' if problem.b_k_major else 'row'}"
    aligned = all(x.type.align == 16 for x in (problem.a, problem.b, problem.d))
    return (
        f"{problem.multiplied_as}->{problem.d.type.dtype} "
        f"{problem.M}x{problem.N}x{problem.K} {layout}"
        f"{'' if aligned else ' unaligned'} on {device}"
    )


def device_name() -> str:
    """Name of the current GPU, such as "NVIDIA H200"."""
    name = import_module("numba.cuda").get_current_device().name
    return name.decode() if isinstance(name, bytes) else str(name)


def recall(name: str) -> Any:
    """The configuration stored under a key; None if it is missing, or of another version."""
    try:
        entry = entries()[name]
        kind, values = FAMILIES[entry["family"]], entry["config"]
    except (KeyError, TypeError):
        return None
    known = {field.name for field in fields(kind)}
    return kind(**values) if isinstance(values, dict) and set(values) == known else None


def remember(name: str, config: Any, seconds: float) -> None:
    """Store a configuration for this process and, where there is a cache, for later ones."""
    entry = {"family": family_of(config), "config": asdict(config), "seconds": seconds}
    entries()[name] = entry
    path = location()
    if path is not None:
        with suppress(OSError):  # a disk that cannot be written is no error
            path.parent.mkdir(parents=True, exist_ok=True)
            stored = {**_read(path), name: entry}
            replace_file(path, json.dumps(stored, indent=1, sort_keys=True).encode())


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
    """All entries by key; the file is read once."""
    return _entries(location())


@lru_cache
def _entries(path: Path | None) -> dict[str, Entry]:
    return {} if path is None else _read(path)


def _read(path: Path) -> dict[str, Entry]:
    """The entries of a file; none where it is missing or damaged."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}
