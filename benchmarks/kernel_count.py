"""How many distinct kernels random problems need, and how many of these `kernels.warm` compiles.

Plans tell it: nothing is compiled, and no GPU is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import tensorcore_dsl as tc
from benchmarks import gemm_cases, landscape
from benchmarks.gemm_cases import DTYPES, Case
from benchmarks.gemm_gpu import gemm_options
from benchmarks.harness import Report
from benchmarks.regret import arrays
from benchmarks.tables import Table, progress
from tensorcore_dsl.kernels.host import warming

COUNT, ARCH = 1000, "sm_90a"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dtypes", type=gemm_cases.dtypes_of, default=tuple(DTYPES), metavar="T,...",
        help="element types (default: all)")  # fmt: skip
    add("--count", type=int, default=COUNT, metavar="N", help=f"problems (default: {COUNT})")
    add("--seed", type=int, default=0, metavar="N", help="of the problems (default: 0)")


def run(options: argparse.Namespace) -> Report:
    names = ("dtypes", "count", "seed")
    report = Report(
        "kernels", {name: getattr(options, name) for name in names},
        {"problems": f"of the {landscape.NAME}", "kernels": f"distinct ones, for {ARCH}"},
        summary={"target": "cpu"},
    )  # fmt: skip
    groups: dict[str, list[Case]] = {}
    for case in landscape.problems(options.seed, options.count, options.dtypes):
        groups.setdefault(case.group.removeprefix(f"{landscape.NAME} "), []).append(case)
    every: set[Any] = set()
    for name, cases in progress(list(groups.items()), "kernels"):
        needed = {
            bound.key
            for case in cases
            for bound in warming.kernels_of([product(case)], ARCH)
        }
        every |= needed
        report.results.append({
            "type": name, "problems": len(cases), "kernels": len(needed),
            "warm": len(needed & warmed(cases)),
        })  # fmt: skip
    report.summary["kernels"] = len(every)
    return report


def product(case: Case) -> tuple[Any, Any, dict[str, Any]]:
    a, b, _ = arrays(case)
    return a, b, gemm_options(case)


def warmed(cases: list[Case]) -> set[Any]:
    """What `warm` compiles for the type and the layouts of these cases."""
    first = cases[0]
    dtype = tc.tf32 if first.dtype == "tf32" else first.element
    layouts = dict.fromkeys(case.layout for case in cases)
    accumulate = gemm_options(first)["accumulate"]
    products = warming._products((dtype,), warming.SIZES, layouts, accumulate)
    return {bound.key for bound in warming.kernels_of(products, ARCH)}


def tables(document: dict[str, Any]) -> Iterator[Table]:
    total = {
        "type": "all", "problems": str(document["options"]["count"]),
        "kernels": str(document["summary"]["kernels"]), "of them warm": "",
    }  # fmt: skip
    rows = [
        {"type": r["type"], "problems": str(r["problems"]), "kernels": str(r["kernels"]),
         "of them warm": str(r["warm"])}
        for r in document["results"]
    ]  # fmt: skip
    yield Table("Distinct kernels", [*rows, total])
