"""JSON files of measurements by name, for this process and later ones."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tensorcore_dsl.environment.cache_contents import MEASURED_IN
from tensorcore_dsl.environment.cache_directory import cache_directory, make_private
from tensorcore_dsl.environment.disk_cache import replace_file

Entry = dict[str, Any]


class JsonStore:
    """Entries in one file of the cache directory (see TENSORCORE_DSL_CACHE).

    The file is read once. A new entry is added to what other processes have written since. Where
    the cache is off, or the disk refuses, entries last as long as the process.

    Parameters
    ----------
    filename : str
        Without a directory.
    """

    def __init__(self, filename: str) -> None:
        self.filename = filename
        MEASURED_IN.add(filename)

    def location(self) -> Path | None:
        """The file; None when TENSORCORE_DSL_CACHE is "off"."""
        directory = cache_directory()
        return None if directory is None else directory / self.filename

    def entries(self) -> dict[str, Entry]:
        """All entries by name."""
        return _entries(self.filename, self.location())

    def remember(self, name: str, entry: Entry) -> None:
        """Add an entry, or replace the one of this name."""
        self.entries()[name] = entry
        self._write(lambda stored: {**stored, name: entry})

    def forget(self, *names: str) -> None:
        """Remove these entries, on disk as well; without names, all of them and the file."""
        for name in names or list(self.entries()):
            self.entries().pop(name, None)
        path = self.location()
        if not names and path is not None:
            with suppress(OSError):
                path.unlink()
        elif names:
            self._write(lambda stored: {n: e for n, e in stored.items() if n not in names})

    def _write(self, change: Any) -> None:
        path = self.location()
        if path is None:
            return
        with suppress(OSError):  # a disk that cannot be written is no error
            make_private(path.parent)
            text = json.dumps(change(_read(path)), indent=1, sort_keys=True)
            replace_file(path, text.encode())


def read_again() -> None:
    """Read the files again when they are next needed."""
    _entries.cache_clear()


@cache
def _entries(filename: str, path: Path | None) -> dict[str, Entry]:
    return {} if path is None else _read(path)


def _read(path: Path) -> dict[str, Entry]:
    """The entries of a file that are dictionaries; none where it is missing or damaged."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    items = stored.items() if isinstance(stored, dict) else ()
    return {name: entry for name, entry in items if isinstance(entry, dict)}
