"""Schedules in words: the warps that stop, and the warps that overtake them."""

from __future__ import annotations

from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.scheduling.orders import Journal

MAX_NAMED_WARPS = 3  # overtaking warps that a text names


def base_text(order: int | str) -> str:
    """The order without its switches, in words."""
    if isinstance(order, int):
        return "a drawn order; none with few switches that shows it was found"
    base = order.partition(" ")[0]
    turn = {"up": "the first one first", "down": "the last one first"}.get(
        base, "in an order drawn from " + base.removeprefix("drawn")
    )
    return f"warps run one after the other, {turn}, each until it must wait" + (
        ", but" if " " in order else ""
    )


def switch_texts(journal: Journal) -> list[str]:
    """For each switch that was reached: who stops where, and who runs until he goes on.

    `warp 0 of CTA 0 waits before k.py:29 while warp 2 of CTA 0 runs from k.py:29 to k.py:31`.
    """
    texts = []
    for start, event in enumerate(journal.events):
        if event.kind == "stop":
            chunk = journal.chunks[event.chunk]
            who = chunk.unit_name(event.thread // WARP * WARP, WARP)
            who = f"lanes {event.lanes} of {who} wait" if event.lanes else f"{who} waits"
            texts.append(f"{who} before {chunk.loc(event.step)}{_meanwhile(journal, start)}")
    return texts


def _meanwhile(journal: Journal, start: int) -> str:
    """Who runs between a stop and the event by which these threads go on."""
    stop, runs = journal.events[start], dict[int, list[int]]()
    chunk = journal.chunks[stop.chunk]
    for event in journal.events[start + 1 :]:
        if event.chunk != stop.chunk:
            continue
        if event.kind == "go" and event.number == stop.number:
            break
        if event.kind == "point":
            runs.setdefault(event.thread // WARP, []).append(event.step)
    parts = []
    for warp, steps in list(runs.items())[:MAX_NAMED_WARPS]:
        rest = "the rest of " if warp == stop.thread // WARP else ""
        first, last = chunk.loc(steps[0]), chunk.loc(steps[-1])
        places = f"runs {first}" if first == last else f"runs from {first} to {last}"
        parts.append(f"{rest}{chunk.unit_name(warp * WARP, WARP)} {places}")
    if not parts:
        return ""
    more = len(runs) - MAX_NAMED_WARPS
    others = f" and {more} other warp{'s run' if more > 1 else ' runs'}" if more > 0 else ""
    return " while " + ", ".join(parts) + others
