"""Products on the GPU: ours beside the rivals that take them, in turn on the same operands."""

from __future__ import annotations

import time
import traceback
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gemm_cases import Case
from benchmarks.gpu import Contestant, Monitor, cache_bytes, compete, sets_beyond_cache
from benchmarks.kinds import check, ours, wishes
from benchmarks.operands import Operands, draw, operands
from benchmarks.rivals import Rival
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.operands import GemmProblem
from tensorcore_dsl.kernels.host.padding import is_worth_padding, padded_operands


class GpuBench:
    """Measures cases on the GPU, one after the other."""

    def __init__(
        self, torch: Any, rivals: list[Rival], monitor: Monitor, repeats: int, seed: int, hot: bool
    ) -> None:
        self.torch, self.rivals, self._monitor = torch, rivals, monitor
        self._repeats, self._seed, self._hot = repeats, seed, hot
        self.cache = cache_bytes(torch)

    def __call__(self, case: Case) -> dict[str, Any]:
        """What was found: of ours or its failure, of each rival or its failure, the reference."""
        a, b = draw(self.torch, case, self._seed)
        sets = 1 if self._hot else sets_beyond_cache(case.bytes, self.cache)
        data = operands(self.torch, case, a, b, sets)
        found: dict[str, Any] = {"sets": sets, "rivals": {}}
        with ExitStack() as stack:
            mine = self._ours(data, found)
            others = {
                rival.name: contestant
                for rival in self.rivals
                if rival.takes(case)
                and (contestant := self._rival(rival, data, found, stack)) is not None
            }
            self._compete(mine, others, found)
        found |= reference([r for r in self.rivals if r.takes(case) and r.fair(case)], found)
        return found

    def alive(self) -> bool:
        """Waits for the GPU; False when an error has taken the CUDA context with it."""
        try:
            self.torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def _ours(self, data: Operands, found: dict[str, Any]) -> Contestant | None:
        """Ours, its result checked; None where it fails, which the rivals survive."""
        try:
            mine = Contestant(self.torch, ours(data), data.sets)
        except Exception as error:  # whatever is wrong with a kernel is a result
            found |= failure(error)
            self.alive()
            return None
        found |= {"first_call_s": mine.first_call, **described(data)}
        found["error"], found["correct"] = check(self.torch, data, data.d[0])
        return mine

    def _rival(
        self, rival: Rival, data: Operands, found: dict[str, Any], stack: ExitStack
    ) -> Contestant | None:
        """A rival, its result checked; None where it fails."""
        separate = replace(data, d=[self.torch.zeros_like(d) for d in data.d])
        about = found["rivals"][rival.name] = {}
        try:
            ready = rival.prepare(data.case, separate)
            stack.callback(ready.close)
            contestant = Contestant(self.torch, ready.launch, data.sets)
        except Exception as error:  # of the library or of torch
            about |= failure(error)
            self.alive()
            return None
        about["name"], about["note"] = ready.name, ready.note
        about["error"], about["correct"] = check(self.torch, data, ready.data.d[0])
        return contestant

    def _compete(
        self, mine: Contestant | None, others: dict[str, Contestant], found: dict[str, Any]
    ) -> None:
        contestants = [*([mine] if mine else []), *others.values()]
        if not contestants:
            return
        begin = time.perf_counter()
        timings = compete(contestants, self._repeats)
        found["state"] = self._monitor.between(begin, time.perf_counter())
        told = [
            {**timing.json(), "launched_as": launched_as(contestant)}
            for contestant, timing in zip(contestants, timings, strict=True)
        ]
        if mine:
            found["ours"] = told.pop(0)
        for name, timing in zip(others, told, strict=True):
            found["rivals"][name] |= timing


def failure(error: Exception) -> dict[str, Any]:
    """What is kept of an error: its text, and the last lines that led to it."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return {"failure": f"{type(error).__name__}: {error}", "raised_at": places}


FRAMES = 4


def launched_as(contestant: Contestant) -> str:
    return "CUDA graph" if contestant.captured else f"batches ({contestant.loop.error})"


def reference(fair: list[Rival], found: dict[str, Any]) -> dict[str, Any]:
    """The fastest of the fair rivals whose result is right; of wrong ones where all are."""
    about = {rival.name: found["rivals"][rival.name] for rival in fair}
    ran = {name: each for name, each in about.items() if "median" in each}
    if not ran:
        said = [f"{name}: {each['failure']}" for name, each in about.items()]
        return {"reference_failure": "; ".join(said) or "no library has this product"}
    name, best = min(ran.items(), key=lambda item: (not item[1]["correct"], item[1]["median"]))
    timing = {key: best[key] for key in ("median", "best", "spread", "samples", "launched_as")}
    return {
        "reference": timing,
        "reference_rival": name,
        "reference_name": best["name"],
        "reference_error": best["error"],
        "reference_correct": best["correct"],
        "note": best["note"],
    }


def described(data: Operands) -> dict[str, Any]:
    """Kernel and tile that gemm chooses; why they are unknown, if they are."""
    case = data.case
    if case.kind not in ("plain", "batched"):
        return {}
    return planned(data.a[0], data.b[0], data.d[0], **wishes(case))


def planned(
    a: Any, b: Any, d: Any, family: str | None = None, accumulate: Any = None
) -> dict[str, Any]:
    """Kernel and tile that gemm chooses; why they are unknown, if they are."""
    try:
        problem = GemmProblem.of(a, b, None, d)
        pad = not family and is_worth_padding(a, problem)
        if pad:
            a, b, d = padded_operands(a, b, d, problem)
        plan = kernels.plan(a, b, None, d, family=family, accumulate=accumulate)
        config = plan.config
        return {
            "through_copies": pad,
            "kernel": plan.kernel.__name__,
            "chosen_family": "sm90" if isinstance(config, HopperConfig) else "sm80",
            "tile": tile(config),
            "config": {name: value for name, value in vars(config).items() if _plain(value)},
            "grid": plan.grid if isinstance(plan.grid, int) else list(plan.grid),
        }
    except Exception as error:  # a figure without its tile is better than none
        return {"undescribed": f"{type(error).__name__}: {error}"}


def tile(config: Any) -> str:
    """BM x BN of a kernel's configuration, BK where it has one, and the slots of its pipeline.

    c2: clusters that share B, or 2x2: B and A; k4: K split in four; pp: consumers in turn.
    """
    found = vars(config)
    said = ["x".join(str(found[name]) for name in ("BM", "BN", "BK") if name in found)]
    said.append(f"s{config.stages}")
    cluster, across = found.get("cluster_m", 1), found.get("cluster_n", 1)
    if across > 1:
        said.append(f"c{cluster}x{across}")
    elif cluster > 1:
        said.append(f"c{cluster}")
    if found.get("split_k", 1) > 1:
        said.append(f"k{config.split_k}")
    return " ".join([*said, *(["pp"] if found.get("pingpong") else [])])


def _plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))
