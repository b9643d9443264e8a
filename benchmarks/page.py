"""Rewrite the tables of docs/performance.md and docs/measurements.md from the newest recorded results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import forms
from benchmarks.harness import RECORDED
from benchmarks.host import compile_time, launch
from benchmarks.products import gemm_summary
from benchmarks.programs import examples
from benchmarks.tables import Table

DOCS = Path(__file__).parent.parent / "docs"
SUMMARY, DETAILS = DOCS / "performance.md", DOCS / "measurements.md"
SUMMARY_TITLES = ("Geometric means", "")  # titles of the tables on SUMMARY; DETAILS has all others
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
EMPTY = "No results are recorded: `python -m benchmarks gemm --suite hopper --record` adds some.\n"
# First word of a benchmark's name -> module whose `tables(document)` shows its results.
MODULES = {
    "gemm": gemm_summary,
    "examples": examples,
    "launch": launch,
    "compile": compile_time,
    "forms": forms,
}

Document = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="write all tables to this page (default: docs/performance.md and docs/measurements.md)",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=RECORDED,
        metavar="DIR",
        help="folder of result files (default: benchmarks/results)",
    )


def run(options: argparse.Namespace) -> None:
    """Rewrite the part of each page between the markers."""
    for path in [options.page] if options.page else [SUMMARY, DETAILS]:
        before = path.read_text(encoding="utf-8")
        after = updated(before, options.results, TABLES_OF.get(path, any_table))
        path.write_text(after, encoding="utf-8")
        print(f"{path} {'is unchanged' if before == after else 'is rewritten'}")


def any_table(table: Table) -> bool:
    return True


def is_summary(table: Table) -> bool:
    return table.title in SUMMARY_TITLES


def is_detail(table: Table) -> bool:
    return not is_summary(table)


TABLES_OF = {SUMMARY: is_summary, DETAILS: is_detail}


def updated(text: str, directory: Path = RECORDED, shown: Callable[[Table], bool] = any_table) -> str:
    """Replace the text between the markers by the tables of the newest results that `shown` selects."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the page needs one {BEGIN} and one {END}")
    before, _, tail = text.partition(BEGIN)
    sections = [line for document in newest(directory) for line in section(document, shown)]
    return f"{before}{BEGIN}\n\n{chr(10).join(sections) or EMPTY}\n{END}{tail.partition(END)[2]}"


def newest(directory: Path) -> Sequence[Document]:
    """Select the last result of each benchmark on each machine."""
    documents = [
        json.loads(path.read_text(encoding="utf-8")) | {"file": path.name}
        for path in directory.glob("*.json")
    ]
    known = [d for d in documents if _module(d) in MODULES]
    last = {(d["benchmark"], machine(d)): d for d in sorted(known, key=lambda d: str(d["date"]))}
    return sorted(last.values(), key=lambda d: (list(MODULES).index(_module(d)), d["benchmark"]))


def _module(document: Document) -> str:
    return str(document["benchmark"]).partition("-")[0]


def machine(document: Document) -> str:
    gpu = document["machine"].get("gpu")
    if gpu and document["summary"].get("target") != "cpu":
        return str(gpu["name"])
    return str(document["machine"]["processor"])


def section(document: Document, shown: Callable[[Table], bool]) -> Iterator[str]:
    """The lines of a benchmark's heading, facts and `shown` tables; none if no table is shown."""
    tables = [table for table in MODULES[_module(document)].tables(document) if shown(table)]
    if not tables:
        return
    yield f"### {document['benchmark']} on {machine(document)}\n"
    if shown is not is_summary:  # dates, versions and files are for those who look at each problem
        yield facts_of(document) + "\n"
    for table in tables:
        yield from table.markdown()


def facts_of(document: Document) -> str:
    """Join date, driver, versions and file in one line."""
    about, gpu = document["machine"], document["machine"].get("gpu") or {}
    parts = document["summary"].get("parts") or [about]
    commits = list(dict.fromkeys(part["commit"] for part in parts if part.get("commit")))
    facts = [
        document["date"][:10],
        gpu and f"driver {gpu['driver']}",
        gpu.get("power_limit_w") and f"{gpu['power_limit_w']:.0f} W",
        document["method"].get("reference"),
        commits and f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}",
        f"[{document['file']}](../benchmarks/results/{document['file']})",
    ]
    return ", ".join(fact for fact in facts if fact) + "."
