"""Picture of a timeline: warps, tensor cores, copies in flight and stages over time."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from tensorcore_dsl.interpreter.timeline.replay import Replay
from tensorcore_dsl.interpreter.timeline.summary import STATES
from tensorcore_dsl.interpreter.timeline.trace import merged, occupancy
from tensorcore_dsl.viz.plot import matplotlib_parts, saved

COLORS = {
    "issue": "#2f7ed8",
    "registers": "#f2c14e",
    "unit": "#e8833a",
    "tensor": "#8e5ea2",
    "groups": "#9aa7b2",
    "wait": "#d9dee2",
    "multiply": "#4c9f70",
    "copy": "#b0603c",
}
WIDTH, ROW = 12.0, 0.22  # inches of the picture, of a row
LANES = 8  # rows for copies in flight
SVG_WIDTH, SVG_LABEL = 900, 75  # widths of the picture in notebooks and of its names, in pixels
SVG_WAIT = "#8a95a055"  # visible on light and dark pages


def svg(replay: Replay) -> str:
    """The first CTA as SVG for notebooks: warps, tensor cores and copies over time."""
    scale, colors = SVG_WIDTH / max(replay.end, 1.0), COLORS | {"wait": SVG_WAIT}
    rows = [
        (f"warp {warp.number}", [(s.start, s.end, colors[s.state], STATES[s.state]) for s in warp.segments])
        for warp in replay.warps
        if warp.cta == 0 and warp.steps
    ]
    products = [m for m in merged(replay.multiplications) if m.cta == 0]
    rows.append(("tensor cores", [(m.start, m.end, COLORS["multiply"], "multiply") for m in products]))
    lanes: list[list[tuple[float, float, str, str]]] = [[] for _ in range(LANES)]
    for copy in sorted(t for t in replay.transfers if t.cta == 0):
        lane = next((one for one in lanes if not one or one[-1][1] <= copy.start), lanes[-1])
        lane.append((copy.start, copy.end, COLORS["copy"], f"{copy.kind} of {copy.bytes:,} bytes in flight"))
    rows += [("" if at else "copies", lane) for at, lane in enumerate(lanes) if lane]
    bars = ""
    for row, (name, spans) in enumerate(rows):
        drawn: dict[tuple[str, str], str] = defaultdict(str)
        for start, end, color, text in spans:
            width = max((end - start) * scale, 0.1)
            drawn[color, text] += f"M{SVG_LABEL + start * scale:.1f} 0h{width:.1f}v13h-{width:.1f}z"
        paths = (f'<path fill="{c}" d="{d}"><title>{text}</title></path>' for (c, text), d in drawn.items())
        label = f'<text y="11" fill="currentColor">{name}</text>'
        bars += f'<g transform="translate(0 {15 * row})">{label}{"".join(paths)}</g>'
    legend = " ".join(
        f'<span style="color:{colors[state]}">&#9632;</span> {text}' for state, text in STATES.items()
    )
    size = f'viewBox="0 0 {SVG_LABEL + SVG_WIDTH} {15 * len(rows)}" style="width:100%; font:11px sans-serif"'
    return f'<svg {size}>{bars}</svg><div style="font-size:85%">{legend}</div>'


def draw(replay: Replay, cta: int, title: str, path: str | Path | None) -> Any:
    """The Figure of one CTA."""
    figure_type, _ = matplotlib_parts()
    warps = [w for w in replay.warps if w.cta == cta and w.steps]
    rows = len(warps) + 1 + LANES
    figure = figure_type(figsize=(WIDTH, ROW * rows + 2.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(rows, 5))
    labels = []
    for row, warp in enumerate(warps):
        labels.append(f"warp {warp.number % replay.recording.warps}")
        for state in STATES:
            spans = [(s.start, s.end - s.start) for s in warp.segments if s.state == state]
            if spans:
                above.broken_barh(spans, (row - 0.4, 0.8), color=COLORS[state], linewidth=0)
    labels.append("tensor cores")
    spans = [(m.start, m.end - m.start) for m in merged(replay.multiplications) if m.cta == cta]
    above.broken_barh(spans, (len(warps) - 0.4, 0.8), color=COLORS["multiply"], linewidth=0)
    _copies(replay, cta, above, len(warps) + 1)
    labels += ["copies"] + [""] * (LANES - 1)
    above.set_yticks(range(rows), labels, fontsize=7)
    above.set_ylim(rows - 0.5, -0.5)
    above.set_title(title, fontsize=10)
    patches = [_patch(COLORS[state], text) for state, text in STATES.items()]
    patches += [_patch(COLORS["multiply"], "multiply"), _patch(COLORS["copy"], "copy in flight")]
    figure.legend(handles=patches, fontsize=7, ncols=4, loc="outside lower center")
    counts = occupancy(replay).get(cta, [])
    for name, item, color in (("full", 1, COLORS["multiply"]), ("loading", 0, COLORS["copy"])):
        below.step(
            [0.0, *(at for at, _ in counts)],
            [0, *(n[item] for _, n in counts)],
            where="post",
            label=f"stages {name}",
            color=color,
        )
    below.legend(fontsize=7)
    below.set_xlabel("estimated cycles", fontsize=8)
    below.set_xlim(0, max(replay.end, 1.0))
    return saved(figure, path)


def _copies(replay: Replay, cta: int, axis: Any, first: int) -> None:
    """Bars of the copies in flight; each takes the first lane that is free."""
    free = [0.0] * LANES
    for transfer in sorted(t for t in replay.transfers if t.cta == cta):
        lane = next((i for i in range(LANES) if free[i] <= transfer.start), free.index(min(free)))
        free[lane] = transfer.end
        axis.broken_barh(
            [(transfer.start, transfer.end - transfer.start)],
            (first + lane - 0.35, 0.7),
            color=COLORS["copy"],
            alpha=0.6,
            linewidth=0,
        )


def _patch(color: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=color, label=label)
