"""Write the page of observed launches as one HTML file, which needs no network."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.resources import files
from math import prod
from typing import Any

from tensorcore_dsl.checking.findings import Finding, Place
from tensorcore_dsl.errors import Loc, TensorCoreError
from tensorcore_dsl.interpreter.core.residency import limits, warps_of
from tensorcore_dsl.interpreter.timeline.drawing import COLORS
from tensorcore_dsl.interpreter.timeline.summary import STATES, awaited
from tensorcore_dsl.interpreter.timeline.timeline import Timeline
from tensorcore_dsl.interpreter.timeline.trace import merged, occupancy
from tensorcore_dsl.viewer.listings import assembly, key, sources
from tensorcore_dsl.viewer.observe import Observed


def page(observed: Sequence[Observed]) -> str:
    """Return the HTML page of the launches. It refers to no other file."""
    assets = {name: files(__package__).joinpath(f"page.{name}").read_text("utf-8") for name in ("css", "js")}
    views = json.dumps([view(one) for one in observed], separators=(",", ":")).replace("<", "\\u003c")
    html = files(__package__).joinpath("page.html").read_text("utf-8")
    for mark, text in (("/* css */", assets["css"]), ("/* js */", assets["js"]), ("/* data */", views)):
        html = html.replace(mark, text, 1)
    return html


def view(seen: Observed) -> dict[str, Any]:
    """Return the page's data of one launch."""
    timeline = seen.report.timeline if seen.report is not None else None
    result = seen.result
    return {
        "name": seen.name,
        "arch": seen.chosen.arch.name,
        "launch": _launch(seen),
        "arguments": list(_arguments(seen)),
        "numbers": list(_numbers(seen)),
        "sources": sources(seen.chosen),
        "assembly": assembly(seen.chosen),
        "counts": _counts(seen, timeline),
        "findings": [_finding(one) for one in (*result.findings, *result.warnings)],
        "run": seen.config is not None,
        "complete": seen.report is not None,
        "states": {state: {"text": text, "color": COLORS[state]} for state, text in STATES.items()},
        "timeline": None if timeline is None else _timeline(timeline),
    }


def _launch(seen: Observed) -> str:
    if seen.config is None:
        return "compiled, not launched"
    sizes = [" × ".join(str(n) for n in dim if n > 1) or "1" for dim in (seen.config.grid, seen.config.block)]
    cluster = seen.config.cluster or seen.chosen.ir.cluster
    clusters = f", clusters of {prod(cluster)}" if cluster is not None and prod(cluster) > 1 else ""
    ctas = "CTA" if sizes[0] == "1" else "CTAs"
    return f"{sizes[0]} {ctas} of {sizes[1]} threads{clusters}"


def _arguments(seen: Observed) -> Iterator[str]:
    for name, argument in zip(seen.chosen.kernel.runtime_names, seen.arguments):
        shape = getattr(argument, "shape", None)
        text = f"{argument}" if seen.config is None or shape is None else f"{argument.dtype}{list(shape)}"
        yield f"{name}: {text}"
    for name, value in seen.chosen.constants.items():
        yield f"{name} = {value!r}"


def _numbers(seen: Observed) -> Iterator[tuple[str, str, str]]:
    """(name, value, explanation) of each number at the top of the page."""
    ir, arch, config = seen.chosen.ir, seen.chosen.arch, seen.config
    threads = ir.threads if config is None else prod(config.block)
    shared, registers = ir.shared_bytes + (config.shared_bytes if config is not None else 0), None
    try:
        resources = seen.chosen.cubin.resources
    except TensorCoreError as error:
        yield "registers", "?", str(error)
    else:
        registers = resources.registers
        yield "registers", _number(registers), f"of a thread; CTAs of up to {resources.max_threads} fit"
        spills = f"{_number(resources.spill_stores)} / {_number(resources.spill_loads)}"
        spilled = "bytes of spill stores / spill loads of a thread"
        yield "spills", "none" if resources.spills is False else spills, spilled
    yield "shared memory", f"{shared / 1024:,.1f} KiB", f"of a CTA; {arch} allows {arch.shared_kib} KiB"
    if threads is None:
        return
    held = limits(arch, threads, shared, registers)
    least = min(held, key=lambda name: held[name])
    warps, most = held[least] * -(-threads // 32), warps_of(arch)
    ctas = f"{held[least]} CTA{'' if held[least] == 1 else 's'}"
    by_limit = ", ".join(f"{name} allow {number}" for name, number in held.items())
    why = f"{ctas} of {threads} threads on an SM, {warps} of {most} warps; CTAs that {by_limit}"
    yield "occupancy", f"{warps / most:.0%}", f"{why}; limited by {least}"


def _number(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _counts(seen: Observed, timeline: Timeline | None) -> dict[str, Any]:
    """Count by line: warp instructions, traffic of each space, warp cycles by state.

    inside: cycles in functions that the line calls.
    """
    counts: dict[str, Any] = defaultdict(dict)
    if seen.report is not None:
        for line, number in seen.report.executed.items():
            counts[_named(line)]["instructions"] = number
        for (line, space, verb), traffic in seen.report.lines.items():
            excess = [traffic.bytes, traffic.units, traffic.ideal]
            counts[_named(line)].setdefault("traffic", []).append([space, verb, *excess])
    if timeline is not None:
        steps, recording = timeline.replay.recording.steps, timeline.recording
        for warp in timeline.replay.warps[: recording.ctas * recording.warps]:
            for (state, at, _), cycles in warp.spent.items():
                line, *calls = map(_key, _chain(steps[at].loc))
                spent = counts[line].setdefault("cycles", defaultdict(float))
                spent[state] += round(cycles, 1)
                for call in {*calls} - {line}:
                    counts[call]["inside"] = counts[call].get("inside", 0) + round(cycles, 1)
    return counts


def _named(line: str) -> str:
    """Return the page's key of a line in a report."""
    filename, _, number = line.rpartition(":")
    return key((filename, int(number))) if number.isdecimal() else ""


def _chain(loc: Loc | None) -> Sequence[Loc | None]:
    """Return a source line and the lines of its calls."""
    return [None] if loc is None else loc.chain()


def _key(loc: Loc | None) -> str:
    return key(None if loc is None else (loc.filename, loc.line))


def _finding(finding: Finding) -> dict[str, Any]:
    """Return a finding with the keys of its line, its calls, and the conflicting access."""
    about = {"kind": finding.kind, "severity": finding.severity, "message": finding.message}
    calls = [_where(call) for call in finding.calls]
    return about | {"key": _where(finding.place), "other": _where(finding.other), "calls": calls}


def _where(place: Place | None) -> str:
    return key((place.file, place.line)) if place is not None and place.file and place.line else ""


def _timeline(timeline: Timeline) -> dict[str, Any]:
    """Return the timeline of the first recorded CTA: warps, tensor cores, copies, stages; in cycles."""
    replay, steps = timeline.replay, timeline.recording.steps
    warps = [warp for warp in replay.warps if warp.cta == 0 and warp.steps]

    def line(at: int) -> str:
        return _key(steps[at].loc)

    tracks = [
        {
            "name": f"warp {warp.number}",
            "spans": [
                (round(s.start), round(s.end), s.state, line(s.at), awaited(replay, s.phase))
                for s in warp.segments
            ],
        }
        for warp in warps
    ]
    products = [m for m in merged(replay.multiplications) if m.cta == 0]
    copies = sorted(t for t in replay.transfers if t.cta == 0)
    return {
        "text": str(timeline),
        "cycles": round(replay.end),
        "warps": len(warps) * timeline.recording.ctas,
        "tracks": tracks,
        "products": [(round(m.start), round(m.end), line(m.at)) for m in products],
        "copies": [(round(t.start), round(t.end), line(t.at), t.bytes, t.kind) for t in copies],
        "stages": [(round(at), *counts) for at, counts in occupancy(replay).get(0, [])],
        "colors": {"multiply": COLORS["multiply"], "copy": COLORS["copy"]},
    }
