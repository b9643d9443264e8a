"""Source lines in PTX: `.file` and `.loc` directives (PTX manual 11.5.3, 11.5.4), and back.

Profilers, cuda-gdb and compute-sanitizer read them from the machine code. An instruction of an
inlined function also names the function and the location of the call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace

from tensorcore_dsl.environment.switches import is_off
from tensorcore_dsl.errors import Loc
from tensorcore_dsl.ir.nodes import Kernel, walk

VARIABLE = "TENSORCORE_DSL_LINEINFO"  # off: no source lines in machine code
INLINED_VERSION = (7, 2)  # of PTX, from which `.loc` has function_name and inlined_at
_LABEL = "$function"
_DIRECTIVE = re.compile(r"\s*\.(?:loc|file|section|b8)\b|\s*\$function\d+:$")
_FILE = re.compile(r"\s*\.file (\d+) \"(.*)\"")
_LOC = re.compile(r"\s*\.loc (\d+) (\d+) \d+(?:,.*)?$")

SourceLine = tuple[str, int]  # a file, and a line of it


def wanted(option: bool | None) -> bool:
    """Whether a kernel's machine code gets source lines; `option`: the kernel's `lineinfo`, or None."""
    if option is not None:
        return option
    return not is_off(VARIABLE)


def printable(filename: str) -> str:
    """Path of a file for tools; names of cells and of <stdin> stay.

    PTX has no escapes in paths, so characters outside of printable ASCII become `_`.
    """
    path = filename if filename.startswith("<") else os.path.abspath(filename)
    return re.sub(r"[^ !#-~]", "_", path.replace("\\", "/"))


class LineTable:
    """Directives of one module, collected while it is printed."""

    def __init__(self) -> None:
        self.loc: Loc | None = None
        self.files: dict[str, int] = {}
        self.functions: dict[str, int] = {}
        self.declared: dict[str, Loc] = {}

    @property
    def has_calls(self) -> bool:
        """Whether a directive names an inlined function."""
        return bool(self.functions)

    def directives(self, loc: Loc | None) -> Iterator[str]:
        """Directives in front of an instruction from this location; none if the last one had them."""
        loc = loc and replace(loc, end_column=0)
        if loc is None or loc == self.loc:
            return
        self.loc = loc
        *inner, outermost = loc.chain()
        chain = [outermost, *reversed(inner)]
        for depth, caller in enumerate(chain):
            # `inlined_at` names a location that was declared before, with the calls around it.
            where = self._text(caller)
            if caller is not loc and self.declared.get(where) == caller:
                continue
            self.declared[where] = caller
            text = f"    .loc {where}"
            if depth:
                function = self.functions.setdefault(caller.function, len(self.functions))
                text += f", function_name {_LABEL}{function}, "
                text += f"inlined_at {self._text(chain[depth - 1])}"
            yield text

    def _text(self, loc: Loc) -> str:
        """File, line and column, the column counted from 1."""
        filename = printable(loc.filename)
        file = self.files.setdefault(filename, len(self.files) + 1)
        return f"{file} {loc.line} {loc.column + 1}"

    def file_lines(self) -> Iterator[str]:
        """The declarations of the files."""
        for name, number in self.files.items():
            yield f'.file {number} "{name}"'

    def section_lines(self) -> Iterator[str]:
        """The names of inlined functions."""
        if not self.functions:
            return
        yield ".section .debug_str {"
        for name, number in self.functions.items():
            yield f"{_LABEL}{number}:"
            yield f".b8 {', '.join(map(str, (*name.encode(), 0)))}"
        yield "}"


def original_names(kernel: Kernel) -> dict[str, str]:
    """The name of each file of the kernel's source, by the name that tools see."""
    locs = (node.loc for node in walk(kernel.body) if node.loc is not None)
    names = {loc.filename for leaf in locs for loc in leaf.chain()}
    return {printable(name): name for name in names}


def source_lines(text: str, kernel: Kernel, counted: bool = True) -> dict[int, SourceLine]:
    """The source of each line of the kernel's PTX with directives.

    counted: lines are numbered with the directives; else as in the text without them.
    """
    originals = original_names(kernel)
    files: dict[str, str] = {}
    sources: dict[int, SourceLine] = {}
    number, source, in_section = 0, None, False
    for line in text.splitlines():
        directive = in_section or _DIRECTIVE.match(line) is not None
        in_section = line.startswith(".section") or (in_section and line != "}")
        number += counted or not directive
        if match := _FILE.match(line):
            files[match[1]] = originals[match[2]]
        elif match := _LOC.match(line):
            source = files[match[1]], int(match[2])
        elif source is not None and not directive:
            sources[number] = source
    return sources
