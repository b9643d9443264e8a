"""Tables and code as HTML for notebooks; colours suit light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_CELL = (
    "padding:.15em .7em; text-align:left; vertical-align:top; border-bottom:1px solid #8884; "
    "white-space:pre-wrap; font-family:monospace"
)
_BAD = "; color:#d1434b; font-weight:bold"


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]], bad: int | None = None) -> str:
    """A titled table, which a notebook shows.

    Parameters
    ----------
    title : str
        Text above the table.
    head : sequence of str
        Names of the columns.
    rows : iterable of sequences
        Values of the cells; numbers get separators.
    bad : int, optional
        The column whose values other than 0 and "" are red.

    Returns
    -------
    str
        HTML, with all texts escaped.

    Examples
    --------
    >>> from tensorcore_dsl.host import html_table
    >>> "1,024" in html_table("traffic", ["space", "bytes"], [("global", 1024)])
    True
    """
    names = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in head)
    lines = "".join(
        "<tr>"
        + "".join(_cell(value, column == bad and bool(value)) for column, value in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<div><b>{escape(title)}</b><table>{f'<tr>{names}</tr>' if head else ''}{lines}</table></div>"


def _cell(value: Any, is_bad: bool) -> str:
    text = f"{value:,}" if type(value) is int else str(value)
    return f'<td style="{_CELL}{_BAD if is_bad else ""}">{escape(text)}</td>'


def html_python(source: str) -> str:
    """Python in colours."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    html: str = highlight(source, PythonLexer(), HtmlFormatter(noclasses=True, nobackground=True))
    return html
