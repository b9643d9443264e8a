"""Listings of a kernel (IR, PTX, SASS): each line with the Python line that it comes from."""

from __future__ import annotations

import ast
import json
import linecache
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from tensorcore_dsl.codegen.line_table import SourceLine, original_names, source_lines
from tensorcore_dsl.codegen.nvdisasm import disassemble
from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.ir.nodes import walk
from tensorcore_dsl.ir.text import format_kernel
from tensorcore_dsl.kernel.specialisation import Specialisation

_LOC = re.compile(r'loc (\d+) ("(?:[^"\\]|\\.)*"):(\d+):')
_REFERENCE = re.compile(r" #(\d+)$")


def key(line: SourceLine | None) -> str:
    """Return the page's key of a Python line; "" for None."""
    return "" if line is None else f"{absolute(line[0])}:{line[1]}"


def absolute(filename: str) -> str:
    """Make a path absolute. Cached IR has the path of the process that wrote it."""
    return filename if filename.startswith("<") else os.path.abspath(filename)


def listing_of(lines: Iterable[tuple[str, str]], **more: Any) -> dict[str, Any]:
    """Convert (key, line) pairs to the page's data."""
    texts, keys = zip(*lines)
    return {"lines": texts, "keys": keys, **more}


def assembly(chosen: Specialisation) -> dict[str, Any]:
    """Return the listings of IR, PTX and SASS by name. One that cannot be made has `missing`, not lines."""
    python = source_lines(chosen.ptx_with_lines, chosen.ir, counted=False)
    numbered = enumerate(chosen.ptx.splitlines(), 1)
    ptx = listing_of((text, key(python.get(number))) for number, text in numbered)
    return {"IR": listing_of(_ir_lines(chosen)), "PTX": ptx, "SASS": _sass(chosen)}


def _ir_lines(chosen: Specialisation) -> Iterator[tuple[str, str]]:
    lines = format_kernel(chosen.ir, locations=True).splitlines()
    table = {m[1]: (json.loads(m[2]), int(m[3])) for m in map(_LOC.match, lines) if m}
    for line in lines:
        if not _LOC.match(line):
            reference = _REFERENCE.search(line)
            yield _REFERENCE.sub("", line), key(table[reference[1]] if reference else None)


def _sass(chosen: Specialisation) -> dict[str, Any]:
    try:
        sass = disassemble(chosen.cubin, original_names(chosen.ir))
    except TensorCoreError as error:
        return listing_of([(f"// {line}", "") for line in str(error).splitlines()], missing=True)
    lines = ((line.text, key(line.source)) for line in sass)
    return listing_of(lines, live=[line.live for line in sass])


def sources(chosen: Specialisation) -> list[dict[str, Any]]:
    """Return the highlighted source of all functions that a kernel consists of, the kernel first."""
    code = chosen.kernel.function.__code__
    kernel_place = (absolute(code.co_filename), code.co_firstlineno)
    wanted: dict[str, set[int]] = {kernel_place[0]: {kernel_place[1]}}
    for node in walk(chosen.ir.body):
        for loc in node.loc.chain() if node.loc is not None else ():
            wanted.setdefault(absolute(loc.filename), set()).add(loc.line)
    sections = [part for name, lines in wanted.items() for part in _sections(name, sorted(lines))]
    return sorted(sections, key=lambda part: (part["path"], part["first"]) != kernel_place)


def _sections(filename: str, lines: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the functions that contain the lines of a file, and lines outside of all functions."""
    text = "".join(linecache.getlines(filename))
    html = highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).splitlines()
    functions = list(_functions(ast.parse(text).body))
    single = [range(line, line + 1) for line in lines]
    spans = {next((span for span in functions if one.start in span), one) for one in single}
    for span in sorted(spans, key=lambda span: span.start):
        shown = html[span.start - 1 : span.stop - 1]
        yield {"path": filename, "file": Path(filename).name, "first": span.start, "html": shown}


def _functions(body: list[Any]) -> Iterator[range]:
    """Yield the line ranges of a module's functions and of its classes' methods."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield range(first, (node.end_lineno or node.lineno) + 1)
        else:
            yield from _functions(getattr(node, "body", []))
