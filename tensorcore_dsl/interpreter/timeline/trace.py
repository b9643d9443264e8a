"""Trace of a timeline in Chrome's format, which ui.perfetto.dev opens.

A CTA is a process. Its tracks are its warps, the tensor cores, the copies in flight, and a
counter of stages. Times are microseconds at the clock of the cost table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorcore_dsl.interpreter.timeline.recording import Phase
from tensorcore_dsl.interpreter.timeline.replay import Replay, TensorCoreSpan
from tensorcore_dsl.interpreter.timeline.summary import STATES, awaited

NOTE = "an estimate for sm_90a from an emulated run, not a measurement"
TENSOR = 1000  # number of the first track of tensor cores; warps have lower ones


def save(replay: Replay, kernel: str, path: Path) -> None:
    document = {
        "displayTimeUnit": "ns",
        "otherData": {"kernel": kernel, "note": NOTE},
        "traceEvents": list(events(replay, kernel)),
    }
    path.write_text(json.dumps(document), encoding="utf-8")


def events(replay: Replay, kernel: str) -> Iterator[dict[str, Any]]:
    """All events of the trace."""
    recording = replay.recording
    for cta in range(len(replay.warps) // recording.warps):
        name = recording.cta_names[cta % recording.ctas]
        copy = cta // recording.ctas
        beside = f", resident copy {copy}" if copy else ""
        yield _named("process_name", cta, 0, f"{kernel} CTA {name}{beside} (estimate)")
    yield from _warps(replay)
    yield from _tensor(replay)
    yield from _transfers(replay)
    for cta, times in occupancy(replay).items():
        for at, (loading, full) in times:
            counts = {"loading": loading, "full": full}
            yield {"ph": "C", "name": "stages", "pid": cta, "ts": _us(replay, at), "args": counts}


def _warps(replay: Replay) -> Iterator[dict[str, Any]]:
    steps, per = replay.recording.steps, replay.recording.warps
    for warp in replay.warps:
        yield _named("thread_name", warp.cta, warp.number % per, f"warp {warp.number % per}")
        for start, end, state, at, phase in warp.segments:
            track = {"pid": warp.cta, "tid": warp.number % per}
            about = {"line": str(steps[at].loc), "state": STATES[state]}
            name = awaited(replay, phase) or STATES[state]
            yield _span(replay, name, state, start, end) | track | {"args": about}


def _tensor(replay: Replay) -> Iterator[dict[str, Any]]:
    steps, named = replay.recording.steps, set()
    for product in merged(replay.multiplications):
        track = TENSOR + (0 if product.scheduler is None else 1 + product.scheduler)
        instr = steps[product.at].instr
        ids = {"pid": product.cta, "tid": track}
        if (product.cta, track) not in named:
            named.add((product.cta, track))
            which = "" if product.scheduler is None else f" of scheduler {product.scheduler}"
            yield _named("thread_name", product.cta, track, f"tensor cores{which}")
        about = {"line": str(steps[product.at].loc), "instruction": str(instr)}
        yield _span(replay, "multiply", "tensor", product.start, product.end) | ids | {"args": about}


def _transfers(replay: Replay) -> Iterator[dict[str, Any]]:
    """Copies overlap, so that each has a begin and an end of its own."""
    steps = replay.recording.steps
    for number, transfer in enumerate(replay.transfers):
        name = f"{transfer.kind} {transfer.bytes:,} bytes"
        about = {"line": str(steps[transfer.at].loc), "bytes": transfer.bytes}
        common = {"cat": "copies in flight", "id": number, "pid": transfer.cta, "name": name}
        common |= {"tid": transfer.warp % replay.recording.warps}
        yield common | {"ph": "b", "ts": _us(replay, transfer.start), "args": about}
        yield common | {"ph": "e", "ts": _us(replay, transfer.end)}


def merged(products: list[TensorCoreSpan]) -> list[TensorCoreSpan]:
    """Products that follow each other at once become one."""
    last: dict[tuple[int, int | None], TensorCoreSpan] = {}
    out: list[TensorCoreSpan] = []
    for each in sorted(products):
        key = each.cta, each.scheduler
        before = last.get(key)
        if before is not None and before.at == each.at and each.start - before.end < 1:
            last[key] = before._replace(end=each.end)
            continue
        if before is not None:
            out.append(before)
        last[key] = each
    return sorted([*out, *last.values()])


def occupancy(replay: Replay) -> dict[int, list[tuple[float, tuple[int, int]]]]:
    """For each CTA (time, (stages that load, stages that are full)).

    A stage is what the bytes of one mbarrier fill: it loads from the issue of its first copy on, is
    full when its last copy has arrived, and until the first copy of its next turn is issued.
    """
    turns: dict[Phase, tuple[float, float]] = {}
    for transfer in replay.transfers:
        if transfer.phase is not None:
            start, end = turns.get(transfer.phase, (transfer.start, transfer.end))
            turns[transfer.phase] = min(start, transfer.start), max(end, transfer.end)
    changes: dict[int, list[tuple[float, int, int]]] = {}
    for (kind, cta, slot, turn), (start, end) in turns.items():
        after = turns.get((kind, cta, slot, turn + 1))
        here = changes.setdefault(cta, [])
        here += [(start, 1, 0), (end, -1, 1)]
        if after is not None:
            here.append((max(after[0], end), 0, -1))
    found_counts: dict[int, list[tuple[float, tuple[int, int]]]] = {}
    for cta, here in changes.items():
        loading = full = 0
        counts = found_counts.setdefault(cta, [])
        for at, more_loading, more_full in sorted(here):
            loading, full = loading + more_loading, full + more_full
            counts.append((at, (loading, full)))
    return found_counts


def _us(replay: Replay, cycles: float) -> float:
    return cycles / replay.costs["clock"] * 1e6


def _span(replay: Replay, name: str, kind: str, start: float, end: float) -> dict[str, Any]:
    begin = _us(replay, start)
    return {"ph": "X", "name": name, "cat": kind, "ts": begin, "dur": _us(replay, end) - begin}


def _named(kind: str, cta: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": cta, "tid": track, "args": {"name": name}}
