"""Results of GEMMs: FLOP rates, ratios, geometric means by group, and the tables of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.harness import Report, geometric_mean
from benchmarks.products import landscape
from benchmarks.products.gemm_cases import Case
from benchmarks.products.suites import GOALS
from benchmarks.tables import Table, number, one_line, rate

UNITS = {"cuda": ("TFLOP/s", 1e12), "cpu": ("GFLOP/s", 1e9)}
WITH_COLUMNS = ("torch", "Triton")  # baselines that have a column next to the reference
BEHIND = 0.97  # a ratio below it counts as behind the reference
WORST = 10  # rows of the table of the worst
USUAL = "cuBLASLt", "CUDA graph"  # the reference and the kind of launch that need no note

Result = dict[str, Any]


def derive(result: Result) -> Result:
    """Add FLOP/s to each timing, and the ratio of the reference's time to ours."""
    timings = [result.get("ours"), result.get("reference"), *result.get("baselines", {}).values()]
    for timing in timings:
        if timing and "median" in timing:
            timing["flops"] = result["operations"] / timing["median"]
    if "ours" in result and "reference" in result:
        pairs = zip(result["reference"]["samples"], result["ours"]["samples"], strict=True)
        result["ratio"] = float(np.median([theirs / mine for theirs, mine in pairs]))
    return result


def conclude(report: Report) -> None:
    """Add fractions of the ceilings and geometric means by type and group."""
    if "ceilings" in report.summary:
        add_shares(report.results, report.summary["ceilings"])
    report.summary["dtypes"] = summarise(report.results, "dtype")
    if any(r.get("group") for r in report.results):
        report.summary["groups"] = summarise(report.results, "group")


def add_shares(results: Sequence[Result], ceilings: dict[str, Any]) -> None:
    """Add to each result the least time that the ceilings allow over our time.

    The arithmetic or the memory ceiling applies, whichever takes longer. The arithmetic ceiling is
    the best rate among the results where it was not measured or a GEMM exceeded it. Sparse GEMMs
    may run at twice the rate.
    """

    speedups = [2 if result.get("kind") == "sparse" else 1 for result in results]
    peaks = dict(ceilings.get("flops", {}))
    for result, speedup in zip(results, speedups, strict=True):
        rates = [result[who]["flops"] / speedup for who in ("ours", "reference") if who in result]
        peaks[result["dtype"]] = max([peaks.get(result["dtype"], 0.0), *rates])
    for result, speedup in zip(results, speedups, strict=True):
        if "ours" in result:
            compute = result["operations"] / (speedup * peaks[result["dtype"]])
            memory = Case.of(result).bytes / ceilings.get("bytes", float("inf"))
            result["share"] = max(compute, memory) / result["ours"]["median"]


def summarise(results: Sequence[Result], by: str) -> dict[str, Result]:
    """By element type or group: number of cases and failures, geometric means."""
    names = dict.fromkeys(r[by] for r in results)
    return {name: _summary(name, [r for r in results if r[by] == name]) for name in names}


def _summary(name: str, results: Sequence[Result]) -> Result:
    ratios = [r["ratio"] for r in results if "ratio" in r]
    return {
        "cases": len(results),
        "failed": sum("failure" in r for r in results),
        "left out": sum("left_out" in r for r in results),
        "wrong": sum(r.get("correct") is False for r in results),
        "flops": geometric_mean(r["ours"]["flops"] for r in results if "ours" in r),
        "reference_flops": geometric_mean(r["reference"]["flops"] for r in results if "reference" in r),
        "ratio": geometric_mean(ratios),
        "goal": GOALS.get(name),
        "share": geometric_mean(r["share"] for r in results if "share" in r),
        "baselines": {
            baseline: geometric_mean(
                r["baselines"][baseline]["median"] / r["ours"]["median"]
                for r in results
                if "ours" in r and "median" in r.get("baselines", {}).get(baseline, {})
            )
            for baseline in WITH_COLUMNS
        },
        "worst": min(ratios, default=None),
        "lowest_tenth": float(np.quantile(ratios, 0.1)) if ratios else None,
        "behind": sum(ratio < BEHIND for ratio in ratios),
        "faster": sum(ratio > 1 for ratio in ratios),
        "compared": len(ratios),
    }


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """Geometric means, ceilings, then the cases of each group (of each type without groups)."""
    summary = document["summary"]
    unit, scale = UNITS[summary["target"]]
    by = "groups" if "groups" in summary else "dtypes"
    means = [mean_row(name, mean, unit, scale) for name, mean in summary[by].items()]
    if summary.get("suite") == landscape.NAME:
        for row, (group, mean) in zip(means, summary[by].items(), strict=True):
            ratios = [r["ratio"] for r in document["results"] if r[by.rstrip("s")] == group and "ratio" in r]
            row |= spread(mean, ratios)
    yield Table("Geometric means", means)
    if "ceilings" in summary:
        yield Table("Ceilings", list(ceiling_rows(summary["ceilings"], unit, scale)))
    if summary.get("suite") == landscape.NAME:
        worst = sorted((r for r in document["results"] if "ratio" in r), key=lambda r: r["ratio"])
        rows = [{"type": r["dtype"], **case_row(r, unit, scale)} for r in worst[:WORST]]
        yield Table("The worst", rows)
        return  # the file holds all
    for name in summary[by]:
        results = [r for r in document["results"] if r[by.rstrip("s")] == name]
        yield Table(name, [case_row(result, unit, scale) for result in results])


def mean_row(name: str, mean: Result, unit: str, scale: float) -> dict[str, str]:
    problems = [f"{mean[what]} {what}" for what in ("failed", "wrong", "left out") if mean[what]]
    compared = mean["compared"]
    return {
        "group": name,
        "cases": str(mean["cases"]),
        f"ours, {unit}": rate(mean["flops"], scale),
        "reference": rate(mean["reference_flops"], scale),
        "ratio": number(mean["ratio"], ".3f"),
        "goal": number(mean["goal"], ".2f"),
        "lowest": number(mean["worst"], ".3f"),
        "ours faster": f"{mean['faster']} of {compared}" if compared else "-",
        "of the ceiling": number(mean["share"], ".0%"),
        **{f"{b}'s time / ours": number(mean["baselines"][b], ".2f") for b in WITH_COLUMNS},
        "notes": ", ".join(problems),
    }


def spread(mean: Result, ratios: Sequence[float]) -> dict[str, str]:
    """Median and lowest tenth of the ratios of random problems, and the share of them that is behind."""
    share = mean["behind"] / mean["compared"] if mean["compared"] else None
    return {
        "median": number(float(np.median(ratios)) if ratios else None, ".3f"),
        "lowest tenth below": number(mean["lowest_tenth"], ".3f"),
        f"below {BEHIND}": number(share, ".0%"),
    }


def ceiling_rows(ceilings: Result, unit: str, scale: float) -> Iterator[dict[str, str]]:
    for dtype, flops in ceilings["flops"].items():
        name = f"{dtype}, `wgmma` on operands in shared memory"
        yield {"ceiling": name, "rate": f"{rate(flops, scale)} {unit}", "notes": ""}
    if "bytes" in ceilings:
        speed = f"{ceilings['bytes'] / 1e12:.2f} TB/s"
        yield {"ceiling": "memory", "rate": speed, "notes": ""}
    for name, failure in ceilings["failures"].items():
        yield {"ceiling": name, "rate": "-", "notes": one_line(failure)}


def case_row(result: Result, unit: str, scale: float) -> dict[str, str]:
    timings = {"reference": result.get("reference", {}), **result.get("baselines", {})}
    case = Case.of(result)
    return {
        "M x N x K": case.size,
        "layout": case.layout,
        "family": result.get("chosen_family", "-"),
        "tile": result.get("tile", "-"),
        f"ours, {unit}": rate(result.get("ours", {}).get("flops"), scale),
        "reference": rate(timings["reference"].get("flops"), scale),
        "ratio": number(result.get("ratio"), ".3f"),
        **{name: rate(timings.get(name, {}).get("flops"), scale) for name in WITH_COLUMNS},
        "of the ceiling": number(result.get("share"), ".0%"),
        "notes": notes(result),
    }


def notes(result: Result) -> str:
    """Remarks that a reader of a result needs, the worst first."""
    reference = result.get("reference_baseline")
    remarks = [
        result.get("failure", ""),
        f"left out: {result['left_out']}" if "left_out" in result else "",
        "WRONG RESULT" if result.get("correct") is False else "",
        f"no reference: {result['reference_failure']}" if "reference_failure" in result else "",
        f"reference: {reference}" if reference not in (None, USUAL[0]) else "",
        result.get("note", ""),
        "through padded copies" if result.get("through_copies") else "",
    ]
    for name, timing in result.get("baselines", {}).items():
        if "failure" in timing and name != USUAL[0]:
            remarks.append(f"{name}: {timing['failure']}")
        if timing.get("correct") is False:
            remarks.append(f"{name}: wrong result")
    for name in ("ours", "reference"):
        launched_as = result.get(name, {}).get("launched_as", USUAL[1])
        if launched_as != USUAL[1]:
            remarks.append(f"{name} in {launched_as}")
    return one_line("; ".join(part for part in remarks if part), 300)
