"""Directory of all caches: its path, and whether its contents can be trusted.

Entries are machine code and pickled objects, so whoever may write there may run code as this
user. A directory is used only if it belongs to this user (or root), and nobody else may write in
it. Folders that this package makes are the user's own.
"""

from __future__ import annotations

import os
import stat
import sys
import warnings
from pathlib import Path

from tensorcore_dsl.environment.switches import is_off

VARIABLE = "TENSORCORE_DSL_CACHE"  # a directory, or "off"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_warned: set[Path] = set()


def cache_directory() -> Path | None:
    """The directory of all caches.

    Returns
    -------
    Path or None
        None if the cache is off or others may write in it.
    """
    directory = chosen_directory()
    return directory if directory is not None and is_trusted(directory) else None


def chosen_directory() -> Path | None:
    """`TENSORCORE_DSL_CACHE`, or the platform's default; None if "off" or there is no home."""
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
    base = os.path.expanduser(base)
    return None if base.startswith("~") else Path(base) / "tensorcore_dsl"


def is_trusted(directory: Path) -> bool:
    """Whether only this user and root may write in a directory; warn once if not.

    One that is not there holds nothing, and one that cannot be looked at cannot be read.
    """
    try:
        status = directory.stat()
    except OSError:
        return True
    reason = _reason_for_doubt(status)
    if reason and directory not in _warned:
        _warned.add(directory)
        warnings.warn(
            f"the cache {directory} is neither read nor written, as {reason}: other users could "
            f"place code there; make it your own (chmod go-w), or name another directory in "
            f"{VARIABLE}",
            RuntimeWarning,
            stacklevel=2,
        )
    return not reason


def _reason_for_doubt(status: os.stat_result) -> str:
    """Reason why a directory is not trusted, or ''. Windows has neither owner nor mode."""
    if not hasattr(os, "geteuid"):
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to the user with number {status.st_uid}"
    mode = stat.S_IMODE(status.st_mode)
    return f"others may write there (mode {mode:o})" if mode & OTHERS_WRITE else ""


def make_private(directory: Path) -> None:
    """Make a directory and those above it, as far as they are missing, for this user alone."""
    if not directory.is_dir():
        make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
