"""Makes what is generated: outputs in pages and notebooks, the reference of instructions, the stub.

A page is one program: its ```python blocks run in order, in emulation, in one namespace. A ```text
block that follows one directly is what it prints. ```py blocks are shown and not run: they need a
GPU. `make docs` writes; the tests compare.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import linecache
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.isa import stubs
from tensorcore_dsl.isa.reference import page as reference
from tensorcore_dsl.kernels import museum

ROOT = Path(__file__).parent.parent
INSTRUCTIONS = "docs/instructions.md"
MUSEUM, EXHIBITS = "docs/museum.md", "## The exhibits\n"  # a page, and where its written part ends
STUB = "tensorcore_dsl/_typing.pyi"
PAGES = (
    "README.md",
    *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")) if p.name != "instructions.md"),
)
NEEDED = {"docs/pytorch.md": "torch", "docs/jax.md": "jax"}  # optional modules that a page's program imports
COLOR = re.compile(r"\x1b\[[0-9;]*m")
NOTEBOOKS = tuple(f"examples/{p.name}" for p in sorted((ROOT / "examples").glob("*.ipynb")))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, first line in the page, and place in its text."""

    language: str
    text: str
    line: int
    start: int
    end: int


def blocks(page: str) -> list[Block]:
    return [
        Block(m[1], m[2], page.count("\n", 0, m.start(2)), m.start(2), m.end(2)) for m in FENCE.finditer(page)
    ]


def missing(name: str) -> str:
    """The module that a page needs and this environment lacks; "" if its program runs."""
    needed = "nbclient" if name in NOTEBOOKS else NEEDED.get(name, "")
    return needed if needed and importlib.util.find_spec(needed) is None else ""


def run(name: str) -> str:
    """The page `name` with the outputs that its program has now."""
    text = (ROOT / name).read_text()
    lines = program(text).splitlines(keepends=True)
    linecache.cache[name] = (0, None, lines, name)  # what errors quote and kernels are read from
    with _emulation_inside(ROOT):
        outputs = list(_outputs(name, text))
    for block, printed in reversed(outputs):
        text = text[: block.start] + printed + text[block.end :]
    return text


def executed(name: str) -> str:
    """The notebook `name` with the outputs that its cells have now, run in its folder."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / name, as_version=4)
    metadata = dict(notebook.metadata)  # without the version of Python
    place = {"metadata": {"path": str((ROOT / name).parent)}}
    with _emulation_inside(ROOT), mock.patch.dict(os.environ, TENSORCORE_DSL_NOTICE="off"):
        options = {"timeout": 300, "record_timing": False, "coalesce_streams": True}
        NotebookClient(notebook, resources=place, **options).execute()
    notebook.metadata = nbformat.from_dict(metadata)
    return str(nbformat.writes(notebook)) + "\n"


def program(page: str) -> str:
    """The page's Python, each line where it stands in the page, all else blank."""
    lines = [""] * page.count("\n")
    for block in blocks(page):
        if block.language == "python":
            code = block.text.splitlines()
            lines[block.line : block.line + len(code)] = code
    return "\n".join(lines) + "\n"


def _outputs(name: str, text: str) -> Iterator[tuple[Block, str]]:
    """Each text block that shows an output, with what it should say."""
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": name}
    found = blocks(text)
    for place, block in enumerate(found):
        if block.language != "python":
            continue
        printed = _execute(name, block, namespace)
        shown = found[place + 1] if place + 1 < len(found) else None
        if shown and shown.language == "text" and not text[block.end + 4 : shown.start - 8].strip():
            yield shown, printed
        elif printed:
            raise ValueError(f"{name}:{block.line + 1} prints, but the page does not show it:\n{printed}")


def _execute(name: str, block: Block, namespace: dict[str, Any]) -> str:
    """Run a block at its lines of the page; what it prints."""
    code = compile("\n" * block.line + block.text, name, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, namespace)
    printed = COLOR.sub("", out.getvalue())  # Numba's errors have some where colorama is installed
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


@contextlib.contextmanager
def _emulation_inside(folder: Path) -> Iterator[None]:
    """Programs run in this folder and in emulation, the processes that they start too."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, TENSORCORE_DSL_TARGET="cpu"):
            yield
    finally:
        os.chdir(before)


def museum_page() -> str:
    """The page of the museum: its written part as it is, and the exhibits behind it."""
    exhibits = museum.exhibits()
    rows = [f"| {each.kind} | [{each.title}](#{_anchor(each.title)}) | {each.source} |" for each in exhibits]
    table = ["| kind | exhibit | thread |", "|---|---|---|", *rows, ""]
    parts = [(ROOT / MUSEUM).read_text().partition(EXHIBITS)[0] + EXHIBITS, *table]
    for kind in museum.KINDS:
        parts += [f"## {kind[0].upper()}{kind[1:]}\n"]
        parts += [_exhibit(each) for each in exhibits if each.kind == kind]
    return "\n".join(parts)


def _anchor(title: str) -> str:
    """The anchor of a heading, as viewers of repositories make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _exhibit(exhibit: museum.Exhibit) -> str:
    """An exhibit as a section: the story, the kernels behind the constants, the report, the cure."""
    path = Path(exhibit.module.__file__ or "")
    code = re.split(r"^KIND = .*\n", path.read_text(encoding="utf-8"), flags=re.M)[1].strip()
    if "pdl=True" not in code:  # the launches matter where they overlap
        code = code.partition("\n\n\ndef launches(")[0]
    with executing(regions=False):  # as `tensorcore-dsl museum` runs it
        broken, fixed = exhibit.reports()
    if fixed or not broken:
        raise ValueError(f"{exhibit.name}: the broken form must be reported, and the fixed one not: {fixed}")
    thread = "https://github.com/{}/issues/{}".format(*exhibit.source.split("#"))
    names = f"[{exhibit.source}]({thread}), [{path.name}](../kernels/museum/{path.name})"
    *story, cure = exhibit.story[1:]
    report = broken.replace(f"{path.parent}/", "kernels/museum/")
    fences = [f"```py\n{code}\n```", f"```text\n{report}\n```"]
    return "\n\n".join([f"### {exhibit.title}", names, *story, *fences, cure]) + "\n"


def current() -> Iterator[tuple[str, str]]:
    """Every page with the text it should have."""
    yield INSTRUCTIONS, reference()
    yield MUSEUM, museum_page()
    yield STUB, stubs.page()
    for name in (*PAGES, *NOTEBOOKS):
        if lacks := missing(name):
            print(f"left as it is, for want of {lacks}: {name}")
        else:
            yield name, executed(name) if name in NOTEBOOKS else run(name)


def main() -> int:
    """Write until nothing changes: outputs name lines, which longer outputs move."""
    for _ in range(4):
        changed = [name for name, text in current() if _write(ROOT / name, text)]
        if not changed:
            return 0
        print("wrote", *changed)
    print("the outputs do not settle")
    return 1


def _write(path: Path, text: str) -> bool:
    """Tell whether the file has changed."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    return True


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    sys.exit(main())
