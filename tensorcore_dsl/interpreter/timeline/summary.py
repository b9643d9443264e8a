"""Text of a timeline: how the warps of each role spend their time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tensorcore_dsl.interpreter.core.geometry import ranges
from tensorcore_dsl.interpreter.timeline.recording import NAMED, Arrive, BulkLoad, Phase
from tensorcore_dsl.interpreter.timeline.replay import Replay, Track

SHOWN = 4  # waits of a role
MIN_SHARE = 0.01  # share of the time; shorter waits get no line
STATES = {
    "issue": "issue",
    "registers": "wait for operands",
    "unit": "wait for a busy unit",
    "tensor": "wait for the tensor core",
    "groups": "wait for asynchronous groups",
    "wait": "wait at barriers",
}


def roles(replay: Replay) -> Iterator[str]:
    """Lines of text for each role of the first CTA: warps that execute the same steps."""
    warps = replay.warps[: replay.recording.warps]
    by_steps: dict[frozenset[int], list[Track]] = defaultdict(list)
    for warp in warps:
        if warp.steps:
            by_steps[frozenset(at for at, _ in warp.steps)].append(warp)
    for same in by_steps.values():
        yield from _role(replay, same)


def _role(replay: Replay, warps: list[Track]) -> Iterator[str]:
    end = max(replay.end, 1.0) * len(warps)
    states: dict[str, float] = defaultdict(float)
    cycles_of: dict[tuple[str, str, str], float] = defaultdict(float)
    for warp in warps:
        for (state, at, phase), cycles in warp.spent.items():
            states[state] += cycles
            if state != "issue":
                cycles_of[state, line_of(replay, at), awaited(replay, phase)] += cycles
    shares = ", ".join(
        f"{text} {states[state] / end:.0%}"
        for state, text in STATES.items()
        if states[state] / end >= MIN_SHARE
    )
    numbers = np.array([warp.number % replay.recording.warps for warp in warps])
    name = "warp" if len(warps) == 1 else "warps"
    yield f"{name} {ranges(numbers)}: {shares}"
    for (state, where, what), cycles in sorted(cycles_of.items(), key=lambda item: -item[1])[:SHOWN]:
        if cycles / end >= MIN_SHARE:
            yield f"  {cycles / end:>4.0%} {what or STATES[state]}, at {where}"


def line_of(replay: Replay, at: int) -> str:
    """The source line of a step: `gemm.py:31`."""
    loc = replay.recording.steps[at].loc
    return "an unknown line" if loc is None else Path(str(loc)).name


def awaited(replay: Replay, phase: Phase | None) -> str:
    """Describe the wait for a phase: the barrier, and who arrives at it."""
    if phase is None:
        return ""
    recording, (kind, cta, number, _) = replay.recording, phase
    init_step = recording.barriers.get((kind, cta, number))
    name = f"barrier {number}" if kind == NAMED else kind
    if init_step is not None:
        name += f" of {line_of(replay, init_step)}"
    return f"wait at {name} for {arriving(replay).get((kind, cta, number), 'nobody')}"


def arriving(replay: Replay) -> dict[tuple[str, int, int], str]:
    """Who arrives at each barrier: the warps, and the copies that it counts."""
    if replay.arriving is None:
        warps: dict[tuple[str, int, int], set[int]] = defaultdict(set)
        copying: set[tuple[str, int, int]] = set()
        for warp in replay.warps[: replay.recording.ctas * replay.recording.warps]:
            for _, details in warp.steps:
                for detail in details:
                    if isinstance(detail, Arrive):
                        warps[detail.phase[:3]].add(warp.number)
                    elif isinstance(detail, BulkLoad):
                        copying.add(detail.phase[:3])
        replay.arriving = {
            key: "copies" if key in copying else _warps_text(replay, numbers, key[1])
            for key, numbers in warps.items()
        }
    return replay.arriving


def _warps_text(replay: Replay, numbers: set[int], cta: int) -> str:
    """Warps by number, with the CTAs of others."""
    per = replay.recording.warps
    of_cta = np.array(sorted(n % per for n in numbers if n // per == cta), np.int64)
    others = sorted({n // per for n in numbers} - {cta})
    texts = [f"{'warp' if len(of_cta) == 1 else 'warps'} {ranges(of_cta)}"] if len(of_cta) else []
    texts += [f"warps of CTA {replay.recording.cta_names[b]}" for b in others[:2]]
    return " and ".join(texts)
