"""Tables of results, printed on a terminal or written as Markdown, and their number formats."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table as RichTable
from rich.text import Text

Item = TypeVar("Item")
WIDTH = 200  # characters of a table that is printed to a file


@dataclass(frozen=True)
class Table:
    """rows: column -> cell; all rows have the same columns."""

    title: str
    rows: Sequence[dict[str, str]]

    @property
    def columns(self) -> list[str]:
        """The columns that have a value in some row."""
        return [name for name in self.rows[0] if {row[name] for row in self.rows} - {"", "-"}]

    @property
    def cells(self) -> list[list[str]]:
        return [[row[name] for name in self.columns] for row in self.rows]

    def print(self) -> None:
        """Print to stdout; numbers are aligned right, the first column and the notes left."""
        drawn = RichTable(title=self.title, title_justify="left", box=box.SIMPLE_HEAD)
        for place, name in enumerate(self.columns):
            left = place == 0 or name == "notes"
            drawn.add_column(name, justify="left" if left else "right", no_wrap=not left, overflow="fold")
        for row in self.cells:
            drawn.add_row(*map(Text, row))
        Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False).print(drawn)

    def markdown(self) -> Iterator[str]:
        if self.title:
            yield f"**{self.title}**\n"
        yield f"| {' | '.join(self.columns)} |"
        yield f"|{'---|' * len(self.columns)}"
        for row in self.cells:
            cells = [cell.replace("|", "\\|").replace("](", "]\\(") for cell in row]  # no links
            yield "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"
        yield ""


def progress(items: Sequence[Item], title: str) -> Iterable[Item]:
    """The items; a progress bar is shown where stderr is a terminal."""
    console, hidden = Console(stderr=True), not sys.stderr.isatty()
    return track(items, title, console=console, transient=True, disable=hidden)


def duration(seconds: float | None) -> str:
    """Three digits and a unit."""
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def number(value: Any, spec: str = ".1f") -> str:
    return "-" if value is None else format(value, spec)


def rate(value: float | None, scale: float = 1.0) -> str:
    """`value / scale` in three digits without an exponent."""
    scaled = value / scale if value else None
    return number(scaled, ".0f" if scaled and scaled >= 100 else ".3g")


def one_line(text: str, most: int = 120) -> str:
    return text.replace("\n", " ")[:most]
