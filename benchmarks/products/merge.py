"""Merge result files of parts of a suite to one report, as if one run had measured them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.harness import Report
from benchmarks.products import gemm_summary, suites
from benchmarks.products.gemm_cases import Case
from benchmarks.programs import examples
from benchmarks.tables import Table

SAME = ("gpu", "versions")  # facts about the machine that all parts share

Document = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "parts",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="result files of `gemm --suite`, or of `examples`; a case of several files is taken "
        "from the last",
    )


def run(options: argparse.Namespace) -> Report:
    return merged([json.loads(path.read_text(encoding="utf-8")) for path in options.parts])


def merged(documents: Sequence[Document]) -> Report:
    """Merge parts of one suite on one machine to a report with the date of the last part."""
    parts = sorted(documents, key=lambda document: str(document["date"]))
    last = parts[-1]
    for part in parts:
        check_same(part, last)
    is_gemm = last["benchmark"] != "examples"
    case_of: Any = Case.of if is_gemm else lambda r: (r["example"], r["problem"])
    results: dict[Any, Document] = {}
    for result in (result for part in parts for result in part["results"]):
        if "left_out" not in result or case_of(result) not in results:
            results[case_of(result)] = result
    summary = {key: x for key, x in last["summary"].items() if key in ("target", "suite", "tuned")}
    suite: Any = suites.SUITES.get(summary["suite"], []) if is_gemm else examples.EXAMPLES
    order = {case: n for n, case in enumerate(suite)}
    place = lambda case: order.get(case if is_gemm else case[0], len(order))
    asked: Document = {"only": list(examples.EXAMPLES)}
    if is_gemm:
        of_parts = [part["options"].get("dtypes", []) for part in parts]
        dtypes = list(dict.fromkeys(chain.from_iterable(of_parts))) if all(of_parts) else []
        asked = {"groups": [], "dtypes": dtypes, "count": len(results)}
    report = Report(
        last["benchmark"], {**last["options"], **asked}, last["method"], last["machine"],
        [results[case] for case in sorted(results, key=place)],
        summary, datetime.fromisoformat(last["date"]),
    )  # fmt: skip
    report.summary["parts"] = [
        {
            "date": part["date"],
            **{key: part["options"].get(key) for key in asked},
            "commit": part["machine"].get("commit"),
            "state": [part["machine"].get(key) for key in ("gpu_before", "gpu_after")],
        }
        for part in parts
    ]
    if is_gemm:
        report.summary["ceilings"] = highest([p["summary"].get("ceilings", {}) for p in parts])
        gemm_summary.conclude(report)
    return report


def tables(document: Document) -> Iterator[Table]:
    """Tables of the benchmark that was merged."""
    return (examples if document["benchmark"] == "examples" else gemm_summary).tables(document)


def check_same(part: Document, last: Document) -> None:
    """Raise ValueError unless both are results of one benchmark on one machine."""
    if part["benchmark"] != last["benchmark"]:
        raise ValueError(f"cannot merge results of {part['benchmark']} and of {last['benchmark']}")
    for key in SAME:
        here, there = part["machine"].get(key), last["machine"].get(key)
        if here != there:
            raise ValueError(f"cannot merge results of different machines; {key}: {here}, {there}")


def highest(ceilings: Sequence[Document]) -> Document:
    """The highest value of each ceiling."""
    best: Document = {"flops": {}, "failures": {}}
    for ceiling in ceilings:
        for dtype, flops in ceiling.get("flops", {}).items():
            best["flops"][dtype] = max(flops, best["flops"].get(dtype, 0.0))
        best["failures"] |= ceiling.get("failures", {})
        if "bytes" in ceiling:
            best["bytes"] = max(ceiling["bytes"], best.get("bytes", 0.0))
    return best
