"""Pages of the site for whole programs: the steps of the Hopper tutorials and the examples."""

from __future__ import annotations

import ast
import difflib
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from tensorcore_dsl.viewer.observe import observe
from tensorcore_dsl.viewer.page import page

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / "kernels" / "tutorial"
# The title of a list of steps -> the steps.
LADDERS = {
    "Steps of the [Hopper tutorial](../hopper_tutorial.md)": sorted(TUTORIAL.glob("hopper_gemm_*.py")),
    "Steps of the [attention tutorial](../attention_tutorial.md)": sorted(
        TUTORIAL.glob("hopper_attention_*.py")
    ),
}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
UNSEEN = {"numba_matmul"}  # whose kernel is Numba's
# Of programs that make no launch without them.
ARGUMENTS = {"tensor_parallel": ["--emulate", "2", "--rows", "128", "--features", "128", "--hidden", "128"]}
INTRODUCTION = """\
# Programs

Whole programs of one file each, to read, copy and change. A page has the program in colours, where names of
the package lead to the reference. *See inside* opens its kernels with PTX, SASS, counts and timeline.
"""


@dataclass(frozen=True)
class Program:
    """A file, and the step before it if it is one of a tutorial."""

    path: Path
    before: Path | None = None

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def seen(self) -> bool:
        """Tell whether the site has its kernels as pages of `tensorcore-dsl view`."""
        return self.name not in UNSEEN

    @property
    def story(self) -> tuple[str, str]:
        """The first sentence of the docstring, and the rest."""
        text = ast.get_docstring(ast.parse(self.path.read_text())) or self.name
        first, _, rest = text.partition("\n\n")
        return " ".join(first.split()).rstrip("."), rest

    def markdown(self) -> str:
        title, rest = self.story
        where = self.path.relative_to(ROOT).as_posix()
        links = [f'<a href="../view/{self.name}.html">See inside</a>'] if self.seen else []
        links.append(f"[{where}](../../{where})")
        if self.before is not None:
            links.append(f"[what changes](#changes-from-{self.before.stem.replace('_', '-')}-py)")
        words = self.name.replace("_", " ")  # which the search finds; a name is one word to it
        parts = [f"# {title}", f"`{self.path.name}` ({words}): {' · '.join(links)}", rest]
        parts.append(f"```{{literalinclude}} ../../{where}\n:language: python\n:linenos:\n```")
        if self.before is not None:
            parts += [f"## Changes from {self.before.name}", f"```diff\n{self._difference()}```"]
        return "\n\n".join(parts) + "\n"

    def _difference(self) -> str:
        """The lines that differ from the step before it, without the docstrings."""
        texts = [_code(path).splitlines(keepends=True) for path in (self.before, self.path) if path]
        return "".join(list(difflib.unified_diff(*texts, n=2))[2:])


def _code(path: Path) -> str:
    """A program without its docstring."""
    return re.sub(r'\A""".*?"""\n+', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def sections() -> dict[str, list[Program]]:
    """The programs by the title of their list: the steps of the tutorials, then the examples."""
    ladders = {
        title: [Program(path, before) for path, before in zip(steps, [None, *steps])]
        for title, steps in LADDERS.items()
    }
    return {**ladders, "[Examples](../examples.md)": [Program(path) for path in EXAMPLES]}


def programs() -> list[Program]:
    """All programs, in the order of the lists."""
    return [one for section in sections().values() for one in section]


def pages() -> Iterator[tuple[str, str]]:
    """(file name, text) of each page, the list of them first."""
    every, text = programs(), f"{INTRODUCTION}\n"
    for title, section in sections().items():
        rows = "\n".join(f"| [{one.path.name}]({one.name}.md) | {one.story[0]} |" for one in section)
        text += f"## {title}\n\n| file | computes |\n|---|---|\n{rows}\n\n"
    names = "\n".join(one.name for one in every)
    yield "index.md", f"{text}```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{names}\n```\n"
    for one in every:
        yield f"{one.name}.md", one.markdown()


def write_views(folder: Path) -> None:
    """The kernels of the programs as pages of `tensorcore-dsl view`, where they are older than the code."""
    folder.mkdir(parents=True, exist_ok=True)
    printed = io.StringIO()  # what the programs print
    package = max(path.stat().st_mtime for path in (ROOT / "tensorcore_dsl").rglob("*.*"))
    for one in programs():
        target = folder / f"{one.name}.html"
        newest = max(package, one.path.stat().st_mtime)
        if one.seen and not (target.exists() and target.stat().st_mtime > newest):
            with redirect_stdout(printed):
                seen = observe(str(one.path), None, ARGUMENTS.get(one.name, []))
            target.write_text(page(seen), encoding="utf-8")
