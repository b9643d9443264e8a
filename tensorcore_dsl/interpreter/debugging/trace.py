"""Traces of variables: their values over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Union

import numpy as np

from tensorcore_dsl.errors import ArgumentError, listing
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.geometry import Dim3, ranges
from tensorcore_dsl.interpreter.debugging.viewpoint import kept_registers
from tensorcore_dsl.interpreter.display.contents import Contents, shown
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.ir import views
from tensorcore_dsl.ir.nodes import Kernel, Mark, walk

# Names of variables, each with the threads of a CTA that are recorded; None: all.
Traced = Union[Sequence[str], Mapping[str, "int | Sequence[int] | None"]]
_NUMBERS = {bool: np.bool_, int: np.int64, float: np.float32}  # known at compile time


@dataclass(frozen=True, eq=False)
class TraceRecord:
    """A variable after an assignment, in one warp.

    Attributes
    ----------
    step : int
        Its position in the order of execution.
    cta : Dim3
        The index of the CTA.
    threads : array
        Numbers in the CTA of the threads that assigned it.
    value
        Of a scalar, an array with an element for each of `threads`; of a fragment, its matrix, and of a
        tile, its elements, masked where unwritten.
    """

    step: int
    name: str
    line: int
    filename: str
    function: str
    cta: Dim3
    cta_name: str
    warp: int
    threads: np.ndarray
    value: Any

    def __str__(self) -> str:
        where = f"CTA {self.cta_name} warp {self.warp} lanes {ranges(self.threads % WARP)}"
        return f"{self.filename}:{self.line} {where}: {self.name} = {shown(self.value, 64)}"


@dataclass(eq=False)
class Trace:
    """The records of a launch, in the order of execution."""

    records: list[TraceRecord] = field(default_factory=list)

    def of(self, name: str, *, cta: Dim3 | int | None = None, warp: int | None = None) -> list[TraceRecord]:
        """The records of one variable, of one CTA or warp."""
        cta = (cta, 0, 0) if isinstance(cta, int) else cta
        return [r for r in self.records if r.name == name and cta in (None, r.cta) and warp in (None, r.warp)]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[TraceRecord]:
        return iter(self.records)

    def __getitem__(self, index: int) -> TraceRecord:
        return self.records[index]

    def __add__(self, other: Trace) -> Trace:
        return Trace(self.records + other.records)

    def __str__(self) -> str:
        """A table with a row for each record."""
        if not self.records:
            return "no variable of the trace was assigned"
        head = ("line", "CTA", "warp", "lanes", "variable")
        rows = [
            (str(r.line), r.cta_name, str(r.warp), ranges(r.threads % WARP), r.name) for r in self.records
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [_row(head, widths, "value")]
        lines += [_row(row, widths, shown(r.value, 64)) for row, r in zip(rows, self.records)]
        return "\n".join(lines)


def _row(cells: Sequence[str], widths: Sequence[int], value: str) -> str:
    """A line of the table; the further lines of the value are indented."""
    left = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + "  "
    return left + value.replace("\n", "\n" + " " * len(left))


class Recorder:
    """Records variables at their assignments."""

    def __init__(self, traced: Traced) -> None:
        self.trace = Trace()
        self.wanted = _wanted(traced)

    def visit(self, machine: Machine, mark: Mark, at: int) -> None:
        if mark.kind != "assigned" or self.wanted.keys().isdisjoint(mark.names):
            return
        ctx = machine.ctx
        for name in sorted(mark.names & self.wanted.keys()):
            threads = np.flatnonzero(ctx.mask)
            chosen = self.wanted[name]
            if chosen is not None:
                threads = threads[np.isin(threads % ctx.group, chosen)]
            for part in np.split(threads, 1 + np.flatnonzero(np.diff(threads // WARP))):
                if len(part):
                    self._record(machine, mark, name, part)

    def check(self, kernel: Kernel, block: Dim3) -> None:
        """ArgumentError for a name that the kernel never assigns, or a thread that no CTA has."""
        for name, numbers in self.wanted.items():
            if numbers is None:
                continue
            outside = numbers[(numbers < 0) | (numbers >= prod(block))]
            if len(outside):
                raise ArgumentError(
                    f"trace={{{name!r}: ...}}: a CTA has threads 0 to {prod(block) - 1}, not {outside[0]}"
                )
        marks = [n for n in walk(kernel.body) if isinstance(n, Mark) and n.kind == "assigned"]
        names = frozenset().union(*(mark.names for mark in marks))
        for name in self.wanted:
            if name not in names:
                raise ArgumentError(
                    f"trace: {kernel.name} has no variable {name!r}; it has {listing(sorted(names))}"
                )

    def _record(self, machine: Machine, mark: Mark, name: str, threads: np.ndarray) -> None:
        ctx, loc = machine.ctx, mark.loc
        scope = mark.scopes[0]
        view = scope.variables.get(name, views.Missing("it is not a variable of this function"))
        contents = Contents(ctx, kept_registers(machine), threads, ctx.mask)
        value = contents.attempt(view)
        if isinstance(view, views.Register) and not isinstance(value, str):
            value = np.ma.getdata(value)
        elif type(value) in _NUMBERS:
            value = np.full(len(threads), value, _NUMBERS[type(value)])
        first = int(threads[0])
        self.trace.records.append(
            TraceRecord(
                len(self.trace.records),
                name,
                loc.line if loc else 0,
                loc.filename if loc else "",
                scope.function,
                ctx.geometry.cta(first),
                ctx.cta_name(first // ctx.group),
                first % ctx.group // WARP,
                threads % ctx.group,
                value,
            )
        )


def _wanted(traced: Traced) -> dict[str, np.ndarray | None]:
    """The threads to record by the name of a variable."""
    if isinstance(traced, str):
        traced = (traced,)
    if not isinstance(traced, Mapping):
        try:
            traced = dict.fromkeys(traced)
        except TypeError:
            raise ArgumentError(f"trace takes names of variables of the kernel, not {traced!r}") from None
    wanted: dict[str, np.ndarray | None] = {}
    for name, threads in traced.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ArgumentError(f"trace takes names of variables of the kernel, not {name!r}")
        numbers = None if threads is None else np.atleast_1d(np.asarray(threads))
        if numbers is not None and (numbers.dtype.kind not in "iu" or numbers.ndim != 1):
            raise ArgumentError(
                f"trace={{{name!r}: ...}} takes the numbers of threads in a CTA (an integer, a "
                f"range, a list) or None for all, not {threads!r}"
            )
        wanted[name] = numbers
    return wanted


__all__ = ["Recorder", "Trace", "TraceRecord", "Traced"]
