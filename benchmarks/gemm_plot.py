"""The drawing of a sweep over products: rates of squares, and ratios of all cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.gemm_cases import DTYPES
from benchmarks.harness import Report


def draw(report: Report, path: Path, unit: str, scale: float) -> str:
    """Write a PNG; says where it is, or why there is none."""
    try:
        import matplotlib
    except ImportError:
        return "No drawing: matplotlib is not installed (pip install 'tensorcore-dsl[bench]')"
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    compared = any("ratio" in r for r in report.results)
    kinds = report.summary.get("groups", report.summary["dtypes"])
    widths = [6.5, max(6.5, 0.6 * len(kinds))] if compared else [6.5]
    figure, axes = plt.subplots(
        1, len(widths), figsize=(sum(widths), 5), squeeze=False, width_ratios=widths
    )
    _rates(axes[0][0], report.results, unit, scale)
    if compared:
        _ratios(axes[0][1], report)
    figure.suptitle(_title(report), fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return f"Drawn to {path}"


def _title(report: Report) -> str:
    gpu = report.machine.get("gpu") if report.summary["target"] == "cuda" else None
    if gpu:
        where = f"{gpu['name']}, driver {gpu['driver']}"
    else:
        where = f"{report.summary['arch']} emulated, {report.machine['processor']}"
    return f"{where}, {report.date:%Y-%m-%d}"


def _rates(axis: Any, results: list[dict[str, Any]], unit: str, scale: float) -> None:
    """FLOP/s over the size of square products, the layout with most squares."""
    squares = [
        r for r in results
        if r["M"] == r["N"] == r["K"] and "ours" in r
        and r.get("group", "") in ("", f"square {r['dtype']}")
    ]  # fmt: skip
    layouts = [r["layout"] for r in squares]
    layout = max(layouts, key=layouts.count) if layouts else ""
    for number, dtype in enumerate(DTYPES):
        mine = sorted((r for r in squares if (r["dtype"], r["layout"]) == (dtype, layout)),
                      key=lambda r: int(r["M"]))  # fmt: skip
        for name, style in (("ours", "o-"), ("reference", "x--")):
            points = [(r["M"], r[name]["flops"] / scale) for r in mine if name in r]
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
    """The reference's time over ours, a dot a case, a bar at each kind's geometric mean.

    Kinds are the groups of a suite, else element types.
    """
    grouped = "groups" in report.summary
    kinds, by = report.summary["groups" if grouped else "dtypes"], "group" if grouped else "dtype"
    for place, kind in enumerate(kinds):
        mine = [r for r in report.results if r[by] == kind and "ratio" in r]
        ratios = [r["ratio"] for r in mine]
        spots = [place + (i / max(len(ratios) - 1, 1) - 0.5) * 0.5 for i in range(len(ratios))]
        colours = [f"C{list(DTYPES).index(r['dtype'])}" for r in mine]
        axis.scatter(spots, ratios, color=colours, alpha=0.6)
        mean = kinds[kind]["ratio"]
        if mean:
            axis.hlines(mean, place - 0.35, place + 0.35, color="black")
            axis.annotate(f"{mean:.2f}", (place + 0.36, mean), va="center", fontsize=8)
    axis.axhline(1, color="grey", linestyle=":")
    slope = {"rotation": 45, "ha": "right"} if grouped else {}
    axis.set_xticks(range(len(kinds)), list(kinds), **slope)
    axis.set(ylabel="the reference's time over ours (above 1: ours is faster)")
    axis.set(xlim=(-0.5, len(kinds)), ylim=(0, None))
    axis.grid(alpha=0.3, axis="y")
