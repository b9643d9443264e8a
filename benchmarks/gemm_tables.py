"""What is printed of products: a row a case, geometric means by group or type, and the drawing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.ceiling import with_shares
from benchmarks.console import duration, number, table
from benchmarks.gemm_cases import Case
from benchmarks.harness import Report, geometric_mean
from benchmarks.suites import AIMS

UNITS = {"cuda": ("TFLOP/s", 1e12), "cpu": ("GFLOP/s", 1e9)}
BESIDE = ("torch", "Triton")  # rivals with columns of their own, beside the reference


def finish(report: Report, options: argparse.Namespace) -> None:
    """Summary, tables, files."""
    conclude(report)
    grouped = "groups" in report.summary
    path = report.save(options.out)
    unit, scale = UNITS[report.summary["target"]]
    on_gpu = report.summary["target"] == "cuda"
    first = ["group"] if grouped else []
    rows = [[*(r[name] for name in first), *_row(r, scale, on_gpu)] for r in report.results]
    table(_title(report), [*first, *_columns(unit, on_gpu)], rows)
    by = "groups" if grouped else "dtypes"
    table(f"Geometric means ({unit})", *_means(report.summary[by], scale, on_gpu))
    print(f"Written to {path}")
    if options.plot:
        from benchmarks.gemm_plot import draw

        print(draw(report, report.path(options.out, "png"), unit, scale))


def conclude(report: Report) -> None:
    """Add shares of the ceilings and geometric means."""
    if "ceilings" in report.summary:
        with_shares(report.results, report.summary["ceilings"])
    report.summary["dtypes"] = summarise(report.results, "dtype")
    if any(r.get("group") for r in report.results):
        report.summary["groups"] = summarise(report.results, "group")


def summarise(results: Sequence[dict[str, Any]], by: str) -> dict[str, dict[str, Any]]:
    """By element type or group: cases, how many failed or are wrong, geometric means."""
    found = {}
    for name in dict.fromkeys(r[by] for r in results):
        mine = [r for r in results if r[by] == name]
        ratios = [r["ratio"] for r in mine if "ratio" in r]
        found[name] = {
            "cases": len(mine),
            "failed": sum("failure" in r for r in mine),
            "left out": sum("left_out" in r for r in mine),
            "wrong": sum(r.get("correct") is False for r in mine),
            "flops": geometric_mean(r["ours"]["flops"] for r in mine if "ours" in r),
            "reference_flops": geometric_mean(
                r["reference"]["flops"] for r in mine if "reference" in r
            ),
            "ratio": geometric_mean(ratios),
            "aim": AIMS.get(name),
            "share": geometric_mean(r["share"] for r in mine if "share" in r),
            "rivals": {beside: against(mine, beside) for beside in BESIDE},
            "worst": min(ratios, default=None),
            "faster": sum(ratio > 1 for ratio in ratios),
            "compared": len(ratios),
        }
    return found


def against(results: Sequence[dict[str, Any]], rival: str) -> float | None:
    """Geometric mean of this rival's time over ours."""
    pairs = [
        (r["rivals"].get(rival, {}), r["ours"]) for r in results if "rivals" in r and "ours" in r
    ]
    return geometric_mean(
        theirs["median"] / mine["median"] for theirs, mine in pairs if "median" in theirs
    )


def _title(report: Report) -> str:
    if report.summary["target"] == "cuda":
        gpu = report.machine.get("gpu") or {}
        return f"gemm on {gpu.get('name', 'the GPU')}, against {report.method['reference']}"
    return f"gemm in emulation of {report.summary['arch']}, {report.machine['cores']} cores"


def _columns(unit: str, on_gpu: bool) -> list[str]:
    shared = ["A, B", "M", "N", "K", "layout", "kernels", "tile", "time", "+-", unit]
    beside = ["reference", "ratio", *BESIDE, "share", "MHz", "W"] if on_gpu else []
    return [*shared, *beside, "error", "remarks"]


def _row(found: dict[str, Any], scale: float, on_gpu: bool) -> list[str]:
    mine, theirs, state = (found.get(name, {}) for name in ("ours", "reference", "state"))
    cells = [
        found["dtype"], *(str(found[name]) for name in "MNK"), found["layout"],
        found.get("chosen_family", "-"),
        found.get("tile", "-"),
        duration(mine["median"]) if mine else "-",
        f"{mine['spread']:.1%}" if mine else "-", _rate(mine, scale),
    ]  # fmt: skip
    if on_gpu:
        cells += [
            _rate(theirs, scale), number(found.get("ratio"), ".3f"),
            *(_rate(found.get("rivals", {}).get(name, {}), scale) for name in BESIDE),
            number(found.get("share"), ".0%"),
            number(state.get("clock_sm_mhz"), ".0f"), number(state.get("power_w"), ".0f"),
        ]  # fmt: skip
    error = found.get("error")
    return [*cells, "0" if error == 0 else number(error, ".1e"), remarks(found)]


def _rate(timing: dict[str, Any], scale: float) -> str:
    return rate(timing["flops"] / scale) if "flops" in timing else "-"


def rate(value: float | None) -> str:
    """Three digits, and no exponent."""
    return number(value, ".0f" if value and value >= 100 else ".3g")


def remarks(found: dict[str, Any]) -> str:
    """What the reader must know of a row, the worst first."""
    said = []
    if "failure" in found:
        said.append(found["failure"])
    if "left_out" in found:
        said.append(f"left out: {found['left_out']}")
    if found.get("correct") is False:
        said.append("WRONG RESULT")
    if found.get("reference_correct") is False:
        said.append("the reference's result is wrong")
    if "reference_failure" in found:
        said.append(f"no reference: {found['reference_failure']}")
    if found.get("through_copies"):
        said.append("through padded copies")
    said += [
        f"{name}: {each['failure']}" if "failure" in each else f"{name}'s result is wrong"
        for name, each in found.get("rivals", {}).items()
        if "failure" in each or each.get("correct") is False
    ]
    if found.get("reference_rival", "cuBLASLt") != "cuBLASLt":
        said.append(f"reference is {found['reference_rival']}")
    said += Case.of(found).remarks
    if found.get("note"):
        said.append(found["note"])
    for name in ("ours", "reference"):
        if found.get(name, {}).get("launched_as", "CUDA graph") != "CUDA graph":
            said.append(f"{name} in {found[name]['launched_as']}")
    return "; ".join(said).replace("\n", " ")[:300]


def _means(
    summary: dict[str, dict[str, Any]], scale: float, on_gpu: bool
) -> tuple[list[str], list[list[str]]]:
    compared = ["reference", "ratio", "aim", "worst", "faster", "share"] if on_gpu else []
    compared += [f"{name}'s time / ours" for name in BESIDE] if on_gpu else []
    columns = ["", "cases", "ours", *compared, "remarks"]
    rows = []
    for name, found in summary.items():
        cells = [name, str(found["cases"]), _mean(found["flops"], scale)]
        if on_gpu:
            cells += [
                _mean(found["reference_flops"], scale), number(found["ratio"], ".3f"),
                number(found["aim"], ".2f"), number(found["worst"], ".3f"),
                f"{found['faster']} of {found['compared']}", number(found["share"], ".0%"),
                *(number(found["rivals"].get(name), ".2f") for name in BESIDE),
            ]  # fmt: skip
        said = [f"{found[what]} {what}" for what in ("failed", "wrong", "left out") if found[what]]
        rows.append([*cells, ", ".join(said)])
    return columns, rows


def _mean(flops: float | None, scale: float) -> str:
    return rate(flops / scale if flops else None)
