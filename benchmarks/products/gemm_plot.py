"""The plot of a GEMM report: FLOP rates of square sizes, and ratios of all cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.harness import Report
from benchmarks.products import landscape
from benchmarks.products.gemm_cases import DTYPES
from benchmarks.products.gemm_summary import UNITS


def draw(report: Report, path: Path) -> str:
    """Write a PNG; returns a line that says where it is, or why there is none."""
    try:
        figure = figure_of(report)
    except ImportError:
        return "No plot: matplotlib is not installed (pip install 'tensorcore-dsl[bench]')"
    figure.savefig(path, dpi=130)
    return f"Drawn to {path}"


def figure_of(report: Report) -> Any:
    """The Figure; ImportError without matplotlib."""
    from matplotlib.figure import Figure

    compared = any("ratio" in r for r in report.results)
    groups = report.summary.get("groups", report.summary["dtypes"])
    widths = [6.5, max(6.5, 0.6 * len(groups))] if compared else [6.5]
    first = landscape.draw_map if report.summary.get("suite") == landscape.NAME else _rates
    figure = Figure((sum(widths), 5), layout="constrained")
    axes = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    first(axes[0], report)
    if compared:
        _ratios(axes[1], report)
    gpu = report.machine.get("gpu") if report.summary["target"] == "cuda" else None
    if gpu:
        where = f"{gpu['name']}, driver {gpu['driver']}"
    else:
        where = f"emulated on {report.machine['processor']}, {report.machine['cores']} cores"
    figure.suptitle(f"{where}, {report.date:%Y-%m-%d}", fontsize=10)
    return figure


def _rates(axis: Any, report: Report) -> None:
    """FLOP/s over the size of square problems, in the layout with most squares."""
    unit, scale = UNITS[report.summary["target"]]
    squares = [
        r
        for r in report.results
        if r["M"] == r["N"] == r["K"] and "ours" in r and r.get("group", "") in ("", f"square {r['dtype']}")
    ]
    layouts = [r["layout"] for r in squares]
    layout = max(layouts, key=layouts.count, default="")
    for number, dtype in enumerate(DTYPES):
        of_dtype = [r for r in squares if (r["dtype"], r["layout"]) == (dtype, layout)]
        for name, style in (("ours", "o-"), ("reference", "x--")):
            points = sorted((r["M"], r[name]["flops"] / scale) for r in of_dtype if name in r)
            if points:
                label = f"{dtype}, {name}"
                axis.plot(*zip(*points, strict=True), style, color=f"C{number}", label=label)
    if squares:
        sizes = sorted({r["M"] for r in squares})
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, map(str, sizes))
        axis.legend(fontsize=7, ncols=2)
    axis.set(xlabel=f"M = N = K, {layout}", ylabel=unit, ylim=(0, None))
    axis.grid(alpha=0.3)


def _ratios(axis: Any, report: Report) -> None:
    """The reference's time over ours: a dot a case, a bar at the geometric mean of each group."""
    by = "group" if "groups" in report.summary else "dtype"
    groups = report.summary[f"{by}s"]
    for place, (name, summary) in enumerate(groups.items()):
        results = [r for r in report.results if r[by] == name and "ratio" in r]
        spots = [place + 0.5 * ((i + 0.5) / len(results) - 0.5) for i in range(len(results))]
        colours = [f"C{list(DTYPES).index(r['dtype'])}" for r in results]
        axis.scatter(spots, [r["ratio"] for r in results], color=colours, alpha=0.6)
        if mean := summary["ratio"]:
            axis.hlines(mean, place - 0.35, place + 0.35, color="black")
            axis.annotate(f"{mean:.2f}", (place + 0.36, mean), va="center", fontsize=8)
    axis.axhline(1, color="grey", linestyle=":")
    names = [name.removeprefix(f"{report.summary.get('suite')} ") for name in groups]
    axis.set_xticks(range(len(groups)), names, rotation=45, ha="right")
    axis.set(ylabel="the reference's time over ours\n(above 1: ours is faster)")
    axis.set(xlim=(-0.5, len(groups)), ylim=(0, None))
    axis.grid(alpha=0.3, axis="y")
