"""Brings docs/performance.md up to date with the newest result files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.console import duration, number
from benchmarks.gemm_tables import BESIDE, UNITS, rate
from benchmarks.harness import RESULTS, geometric_mean

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
EMPTY = "No results are kept yet: `python -m benchmarks gemm --suite hopper` makes some.\n"

Results = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to rewrite")


def run(options: argparse.Namespace) -> None:
    """Rewrite the part of the page between the markers."""
    before = options.page.read_text(encoding="utf-8")
    after = updated(before, options.out)
    options.page.write_text(after, encoding="utf-8")
    print(f"{options.page} {'is current' if before == after else 'is rewritten'}")


def updated(text: str, directory: Path = RESULTS) -> str:
    """The page with today's tables; all that stands outside the markers is kept."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the page needs one {BEGIN} and one {END}")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{tables(newest(directory))}\n{END}{after}"


def newest(directory: Path) -> list[Results]:
    """The last file of each benchmark on each machine."""
    found: dict[tuple[str, str], Results] = {}
    for path in sorted(directory.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        kind = (document["benchmark"], machine(document))
        if document["benchmark"] in RENDERERS and (
            kind not in found or document["date"] > found[kind]["date"]
        ):
            found[kind] = document | {"file": path.name}
    order = list(RENDERERS)
    return [found[kind] for kind in sorted(found, key=lambda k: (order.index(k[0]), k[1]))]


def machine(document: Results) -> str:
    gpu = document["machine"].get("gpu")
    if gpu and document["summary"].get("target") != "cpu":
        return str(gpu["name"])
    return str(document["machine"]["processor"])


def tables(documents: Sequence[Results]) -> str:
    return "\n".join("\n".join(section(document)) for document in documents) or EMPTY


def section(document: Results) -> Iterator[str]:
    yield f"### {document['benchmark']} on {machine(document)}\n"
    yield facts(document) + "\n"
    for title, columns, rows in RENDERERS[document["benchmark"]](document):
        if title:
            yield f"**{title}**\n"
        yield from markdown(columns, rows)
        yield ""


def facts(document: Results) -> str:
    """Date, driver, versions and file in one line."""
    about, gpu = document["machine"], document["machine"].get("gpu") or {}
    said = [
        document["date"][:10],
        gpu and f"driver {gpu['driver']}",
        gpu.get("power_limit_w") and f"{gpu['power_limit_w']:.0f} W",
        document["method"].get("reference"),
        about.get("commit") and f"commit {about['commit']}",
        f"[{document['file']}](../benchmarks/results/{document['file']})",
    ]
    return ", ".join(part for part in said if part) + "."


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        cells = (cell.replace("|", "\\|") or " " for cell in row)
        line = f"| {' | '.join(cells)} |".replace("|   |", "| |")
        yield line.replace("](", "]\\(")  # no link


# Benchmarks

Table = tuple[str, list[str], list[list[str]]]


def products(document: Results) -> Iterator[Table]:
    """Geometric means, then the cases of each group (of each type where there are none)."""
    unit, scale = UNITS[document["summary"]["target"]]
    by = "groups" if "groups" in document["summary"] else "dtypes"
    means = document["summary"][by]
    yield (
        "Geometric means",
        *told([mean_row(name, found, unit, scale) for name, found in means.items()]),
    )
    if "ceilings" in document["summary"]:
        yield "Ceilings", *told(list(ceilings(document["summary"]["ceilings"], unit, scale)))
    for name in means:
        mine = [r for r in document["results"] if r[by.rstrip("s")] == name]
        yield name, *told([case_row(found, unit, scale) for found in mine])


def told(rows: Sequence[dict[str, str]]) -> tuple[list[str], list[list[str]]]:
    """Columns that say something in some row, and the rows' cells."""
    columns = [name for name in rows[0] if not name or any(row[name] != "-" for row in rows)]
    return columns, [[row[name] for name in columns] for row in rows]


def mean_row(name: str, found: Results, unit: str, scale: float) -> dict[str, str]:
    def mean(key: str) -> str:
        return rate(found[key] and found[key] / scale)

    return {
        "group": name,
        "cases": str(found["cases"]),
        f"ours, {unit}": mean("flops"),
        "reference": mean("reference_flops"),
        "ratio": number(found["ratio"], ".3f"),
        "aim": number(found.get("aim"), ".2f"),
        "lowest": number(found.get("worst"), ".3f"),
        "ours faster": f"{found['faster']} of {found['compared']}",
        "of the ceiling": number(found.get("share"), ".0%"),
        **{
            f"{rival}'s time / ours": number(found.get("rivals", {}).get(rival), ".2f")
            for rival in BESIDE
        },
        "": problems(found),
    }


def problems(found: Results) -> str:
    names = ("failed", "wrong", "left out")
    return ", ".join(f"{found[name]} {name}" for name in names if found.get(name))


def ceilings(found: Results, unit: str, scale: float) -> Iterator[dict[str, str]]:
    for dtype, flops in found["flops"].items():
        name = f"{dtype}, `wgmma` on operands at hand"
        yield {"ceiling": name, "rate": f"{rate(flops / scale)} {unit}"}
    if "bytes" in found:
        yield {"ceiling": "memory", "rate": f"{found['bytes'] / 1e12:.2f} TB/s"}


def case_row(found: Results, unit: str, scale: float) -> dict[str, str]:
    rates = {
        name: rate(timing["flops"] / scale if "flops" in timing else None)
        for name, timing in [
            ("ours", found.get("ours", {})),
            ("reference", found.get("reference", {})),
            *((name, found.get("rivals", {}).get(name, {})) for name in BESIDE),
        ]
    }
    size = f"{found['M']} x {found['N']} x {found['K']}"
    return {
        "M x N x K": f"{found['batch']} times {size}" if found.get("batch", 1) > 1 else size,
        "layout": found["layout"],
        "kernels": found.get("chosen_family", "-"),
        "tile": found.get("tile", "-"),
        f"ours, {unit}": rates["ours"],
        "reference": rates["reference"],
        "ratio": number(found.get("ratio"), ".3f"),
        **{name: rates[name] for name in BESIDE},
        "of the ceiling": number(found.get("share"), ".0%"),
        "": said_of(found),
    }


def said_of(found: Results) -> str:
    """What keeps a row from being taken at face value."""
    beside = found.get("reference_rival", "cuBLASLt")
    said = [
        failed(found["failure"]) if "failure" in found else "",
        "left out" if "left_out" in found else "",
        "wrong result" if found.get("correct") is False else "",
        found.get("note", ""),
        f"reference: {beside}" if beside != "cuBLASLt" else "",
    ]
    return "; ".join(part for part in said if part)


def failed(text: str) -> str:
    """An entry point that is missing is told as that."""
    return text.partition(": ")[2] if text.startswith("NotThere") else "failed"


def launches(document: Results) -> Iterator[Table]:
    rows = [
        [r["case"], *(f"{r['launch'][name] * 1e6:.2f}" for name in ("median", "best"))]
        for r in document["results"]
    ]
    yield "", ["microseconds a launch", "median", "best"], rows


def compiling(document: Results) -> Iterator[Table]:
    stages = document["method"]["stages"]
    rows = [
        [r["dtype"], r["family"], *(duration(r[s]["median"]) if s in r else "-" for s in stages)]
        for r in document["results"]
    ]
    yield "", ["A, B", "family", *stages.values()], rows


def emulated(document: Results) -> Iterator[Table]:
    """Geometric means over the instructions of a family."""
    rates: dict[tuple[str, str], list[float]] = {}
    for found in document["results"]:
        if "flops" in found:
            family = found["instruction"].partition(".")[0]
            rates.setdefault((family, found["arch"]), []).append(found["flops"])
    rows = [
        [*kind, str(len(found)), rate((geometric_mean(found) or 0) / 1e9)]
        for kind, found in rates.items()
    ]
    yield "", ["instructions", "architecture", "forms", "GFLOP/s"], rows


RENDERERS = {
    "gemm-hopper": products,
    "gemm": products,
    "launch": launches,
    "compile": compiling,
    "emulate": emulated,
    "gemm-emulated": products,
}
