"""Tables and progress on a terminal: with rich where it is installed, else as plain text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

Item = TypeVar("Item")
WIDTH = 200  # of a table that goes to a file


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print to stdout; cells are aligned right, but for the first column and the last."""
    lines = [list(row) for row in rows]
    (_rich_table if find_spec("rich") else _plain_table)(title, list(columns), lines)


def _rich_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else WIDTH, highlight=False)
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        middle = 0 < number < len(columns) - 1
        drawn.add_column(
            name, justify="right" if middle else "left", no_wrap=middle, overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    if terminal:
        console.print(drawn)
        return
    with console.capture() as text:
        console.print(drawn)
    print("\n".join(line.rstrip() for line in text.get().splitlines()) + "\n")


def _plain_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    print(title)
    for row in [columns, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0], cells[-1] = row[0].ljust(widths[0]), row[-1]
        print("  ".join(cells).rstrip())
    print()


def progress(items: Sequence[Item], title: str) -> Iterator[Item]:
    """Yield the items; a bar on stderr counts them where that is a terminal."""
    if not sys.stderr.isatty() or not find_spec("rich"):
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=len(items))
        for item in items:
            bar.update(task, description=f"{title} {item}")
            yield item
            bar.advance(task)


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def number(value: Any, form: str = ".1f") -> str:
    return "-" if value is None else format(value, form)
