"""Public bugs of asynchronous kernels, each as a small kernel in two forms, broken and fixed.

docs/museum.md tells their stories, and `tensorcore-dsl museum` runs them. A module is one exhibit: its
docstring is the story, SOURCE names the public thread, KIND the class of bugs, and `launches(fixed)` makes
the launches. Comments mark the lines that the report must name: `# error`, or `# race: first` and `second`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import ModuleType

import tensorcore_dsl as tc

KINDS = (
    "dependent launch", "proxy fence", "asynchronous store", "tensor map", "wgmma", "mbarrier",
    "named barrier", "cluster", "shared memory", "global flag", "cp.async", "layout", "bounds and alignment",
)  # fmt: skip
ORDERS = 5  # orders of launches that may overlap


@dataclass(frozen=True)
class Exhibit:
    """One public bug. name: of its module, which has all the rest."""

    name: str

    @property
    def module(self) -> ModuleType:
        return import_module(f"{__name__}.{self.name}")

    @property
    def title(self) -> str:
        return self.story[0].rstrip(".")

    @property
    def story(self) -> list[str]:
        """The paragraphs of the docstring: title, what happened, the report and the cure."""
        return (inspect.getdoc(self.module) or "").split("\n\n")

    @property
    def source(self) -> str:
        """The public thread, as owner/repository#number."""
        return str(self.module.SOURCE)

    @property
    def kind(self) -> str:
        return str(self.module.KIND)

    def broken(self) -> None:
        """Emulate the launches of the broken form with all checks; raises what they find."""
        self._run(False)

    def fixed(self) -> None:
        """Emulate the launches of the fixed form with all checks; raises what they find."""
        self._run(True)

    def _run(self, fixed: bool) -> None:
        found = tc.explore(self.module.launches, ORDERS, arch="sm_90a", checks=True)(fixed)
        if found.error is not None:
            raise found.error
        if not found:
            raise tc.EmulationError(str(found))

    def reports(self) -> list[str]:
        """What the emulator reports of the broken and of the fixed form; "" for nothing."""
        return [_report(form) for form in (self.broken, self.fixed)]


def _report(form: Callable[[], None]) -> str:
    try:
        form()
    except tc.EmulationError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def tell(exhibit: Exhibit) -> bool:
    """Print the reports of both forms; return whether only the broken one is reported."""
    broken, fixed = exhibit.reports()
    print(f"{exhibit.name}: {exhibit.title} ({exhibit.kind}, {exhibit.source})")
    print(f"broken: {broken or 'NOTHING IS REPORTED'}")
    print(f"fixed: {fixed or 'clean'}")
    return bool(broken) and not fixed


def print_list() -> None:
    """Print name, source and title of each exhibit, by kind."""
    for kind, some in groupby(exhibits(), lambda each: each.kind):
        print(kind)
        for each in some:
            print(f"  {each.name:<24} {each.title} ({each.source})")


def exhibits() -> list[Exhibit]:
    """All exhibits, by their kinds in the order of KINDS, and by their sources."""
    names = (path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    return sorted(
        map(Exhibit, names), key=lambda exhibit: (KINDS.index(exhibit.kind), exhibit.source.casefold())
    )


def exhibit(name: str) -> Exhibit:
    """The exhibit of this name; tc.ArgumentError if there is none."""
    found = [each for each in exhibits() if each.name == name]
    if not found:
        raise tc.ArgumentError(
            f"the museum has no exhibit {name!r}; `tensorcore-dsl museum` lists their names"
        )
    return found[0]
