"""The site for programs that read it: llms.txt lists its pages, llms-full.txt has their texts."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import public_names

HERE = Path(__file__).parent
SUMMARY = (
    "A Python DSL for NVIDIA's tensor cores. One decorated function becomes typed IR, PTX text and machine "
    "code. The same IR runs on the CPU, without a GPU, with the same bits and with checks for races, bounds "
    "and hangs."
)
HINTS = """\
Notes for programs that write kernels:

- `import tensorcore_dsl as tc`; decorate a function with `@tc.kernel`; launch `kernel[grid, block](...)`.
- No GPU is needed: `kernel.emulate[grid, block](...)` runs on the CPU with the bits of the hardware.
- Check a kernel with `kernel.check(grid, block)(...)`, a script with `tensorcore-dsl check --json script.py`.
- `tensorcore-dsl list` and `tensorcore-dsl show MNEMONIC` describe instructions.
"""


def navigation() -> list[tuple[str, str]]:
    """(title, page) of each page, in the order of docs/index.rst."""
    return re.findall(r"^   ([^\n<`]+) <([\w/]+)>$", (HERE / "index.rst").read_text(), re.M)


def llms() -> str:
    """The list of pages, in the form of llmstxt.org; links lead to the texts of the pages."""
    lines = [f"# tensorcore_dsl\n\n> {SUMMARY}\n\n{HINTS}\n## Pages\n"]
    for title, name in navigation():
        if not name.startswith("notebooks/"):
            ending = "rst" if name.startswith("reference/") else "md"
            lines.append(f"- [{title}](_sources/{name}.{ending}.txt)")
    lines.append("\n## All in one file\n\n- [All pages and the reference](llms-full.txt)\n")
    return "\n".join(lines)


def full() -> str:
    """All pages of Markdown, and every public name with its signature and docstring."""
    parts = [f"# tensorcore_dsl\n\n{SUMMARY}\n\n{HINTS}"]
    for _, name in navigation():
        path = HERE / f"{name}.md"
        if path.exists() and name not in ("instructions", "measurements"):
            parts.append(path.read_text())
    parts.append("# Reference\n")
    for group in public_names.groups():
        module = public_names.module_of(group.module)
        parts.append(f"## {group.title} ({group.module})\n")
        parts += [_entry(name, getattr(module, name)) for name in group.own]
    return "\n\n".join(parts) + "\n"


def _entry(name: str, value: Any) -> str:
    try:
        called = str(inspect.signature(value)) if callable(value) else ""
    except (TypeError, ValueError):
        called = ""
    text = public_names.DATA.get(name) or (inspect.getdoc(value) if callable(value) else "") or repr(value)
    return f"### {name}{called}\n\n{text}"


def write(folder: Path) -> None:
    (folder / "llms.txt").write_text(llms(), encoding="utf-8")
    (folder / "llms-full.txt").write_text(full(), encoding="utf-8")
