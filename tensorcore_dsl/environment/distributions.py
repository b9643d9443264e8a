"""Versions of the installed distributions that a module's code can depend on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # name at the start of a requirement
_EXTRA = re.compile(r";.*\bextra\b")


@cache
def versions_behind(package: str) -> tuple[str, ...] | None:
    """Names and versions of the distributions that a top-level module comes from, and of all that
    these require, extras aside. None for a module that no installed distribution names."""
    owners = [package] if _is_named_like(package) else _owners().get(package)
    return tuple(sorted(_with_requirements(owners))) if owners else None


def versions_of(names: Iterable[str]) -> tuple[str, ...]:
    """Names and versions of the distributions that are installed."""
    return tuple(f"{name} {version}" for name in names if (version := _version(name)))


def _is_named_like(package: str) -> bool:
    """Whether the distribution of this name, if there is one, has the module of this name."""
    metadata = _metadata()
    try:
        modules = metadata.distribution(package).read_text("top_level.txt")
    except metadata.PackageNotFoundError:
        return False
    return modules is None or package in modules.split()


@cache
def _owners() -> dict[str, list[str]]:
    """The distributions of each top-level module."""
    return dict(_metadata().packages_distributions())


def _with_requirements(names: Iterable[str]) -> Iterator[str]:
    waiting, seen = list(names), set[str]()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        if version := _version(name):
            yield f"{name} {version}"
            needed = (r for r in _metadata().requires(name) or () if not _EXTRA.search(r))
            waiting += [match[0] for r in needed if (match := _NAME.match(r))]


@cache
def _version(name: str) -> str | None:
    metadata = _metadata()
    try:
        return str(metadata.version(name))
    except metadata.PackageNotFoundError:
        return None


def _metadata() -> Any:
    """The module that reads them, whose import takes longer than most of this package's."""
    return import_module("importlib.metadata")
