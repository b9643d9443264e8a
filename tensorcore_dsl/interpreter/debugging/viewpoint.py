"""Viewpoint of the debugger: a warp or one of its lanes, at a mark."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorcore_dsl.errors import Loc
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.geometry import ranges
from tensorcore_dsl.interpreter.display.contents import Contents, Registers, Unreadable, shown
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.ir import views
from tensorcore_dsl.ir.nodes import Mark

SPECIAL = ("threadIdx", "blockIdx", "blockDim", "gridDim")


def kept_registers(machine: Machine) -> Registers:
    """Registers in which a debug build keeps the values of variables."""
    file, kept = machine.registers, machine.ctx.program.kept

    def registers(value: Any) -> tuple[Any, np.ndarray | None]:
        vreg = kept[value]
        return file.values[vreg], file.partly_written.get(vreg)

    return registers


class Special3:
    """`threadIdx` and the like, for the lanes that are looked at."""

    def __init__(self, x: Any, y: Any, z: Any) -> None:
        self.x, self.y, self.z = x, y, z

    def __repr__(self) -> str:
        return ", ".join(f"{name} = {shown(value)}" for name, value in vars(self).items())


@dataclass(frozen=True)
class Viewpoint:
    """A thread, whether its whole warp is looked at, and how many calls further out.

    marks: by thread, the step of the mark that it has passed last; -1 for none.
    """

    machine: Machine
    thread: int
    marks: np.ndarray
    whole_warp: bool = True
    level: int = 0

    @property
    def mark(self) -> Mark | None:
        """The mark where the thread stands."""
        at = int(self.marks[self.thread])
        return None if at < 0 else self.machine.ctx.program.marks[at]

    @property
    def loc(self) -> Loc | None:
        """The line, of the call if it is further out."""
        chain = self.chain
        return chain[self.level] if self.level < len(chain) else None

    @property
    def chain(self) -> list[Loc]:
        mark = self.mark
        return mark.loc.chain() if mark is not None and mark.loc is not None else []

    @property
    def scope(self) -> views.Scope | None:
        mark = self.mark
        if mark is None or not mark.scopes:
            return None
        return mark.scopes[min(self.level, len(mark.scopes) - 1)]

    @property
    def warp(self) -> slice:
        first = self.thread // WARP * WARP
        return slice(first, first + WARP)

    @property
    def here(self) -> np.ndarray:
        """(T,) bool: the threads that stand at the same mark."""
        same: np.ndarray = self.marks == self.marks[self.thread]
        return same & self.machine.ctx.alive

    @property
    def contents(self) -> Contents:
        warp = np.arange(self.warp.start, self.warp.stop)
        threads = warp if self.whole_warp else np.array([self.thread])
        registers, single = kept_registers(self.machine), not self.whole_warp
        return Contents(self.machine.ctx, registers, threads, self.here, single)

    def described(self) -> str:
        """`CTA 0, warp 1, lanes 0-15`."""
        ctx = self.machine.ctx
        cta = f"CTA {ctx.cta_name(self.thread // ctx.group)}"
        warp = f"warp {self.thread % ctx.group // WARP}"
        if not self.whole_warp:
            return f"{cta}, {warp}, lane {self.thread % WARP}"
        lanes = np.flatnonzero(self.here[self.warp])
        return f"{cta}, {warp}, {'lane' if len(lanes) == 1 else 'lanes'} {ranges(lanes)}"

    def moved(self, **changes: Any) -> Viewpoint:
        return replace(self, **changes)

    def namespace(self) -> Namespace:
        return Namespace(self)


class Namespace(Mapping[str, Any]):
    """The names of an expression: variables, special registers, then what surrounds the kernel."""

    def __init__(self, viewpoint: Viewpoint) -> None:
        self.viewpoint = viewpoint
        self.contents = viewpoint.contents
        scope = viewpoint.scope
        self.variables: Mapping[str, Any] = scope.variables if scope is not None else {}
        self.outside = scope.outside if scope is not None else ()

    def __getitem__(self, name: str) -> Any:
        if name in self.variables:
            try:
                return self.contents.read(self.variables[name])
            except Unreadable as error:
                raise NameError(f"{name} cannot be shown: {error}") from None
        if name in SPECIAL:
            return self._special(name)
        if name == "np":
            return np
        for names in (*self.outside, vars(builtins)):
            if name in names:
                return names[name]
        raise KeyError(name)

    def _special(self, name: str) -> Special3:
        geometry = self.viewpoint.machine.ctx.geometry
        if name in ("blockDim", "gridDim"):
            return Special3(*(geometry.block if name == "blockDim" else geometry.grid))
        threads = self.contents.threads
        index = geometry.thread if name == "threadIdx" else geometry.cta
        columns = np.array([index(int(t)) for t in threads]).T
        good = np.ones(len(threads), np.bool_)
        return Special3(*(self.contents.lanes(column, good) for column in columns))

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)
