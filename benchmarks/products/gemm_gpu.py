"""GEMMs on the GPU: our kernel and the baselines, timed interleaved on the same operands."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import tensorcore_dsl as tc
from benchmarks.gpu import Launch, Monitor, TimedLaunch, cache_bytes, sets_beyond_cache, time_interleaved
from benchmarks.harness import failure
from benchmarks.products.accuracy import check
from benchmarks.products.baselines import Baseline
from benchmarks.products.gemm_cases import Case
from benchmarks.products.operands import Operands, draw, operands
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.problem.gemm_problem import FAST


class GpuBench:
    """Measures one case after the other; calling it with a case returns the result."""

    def __init__(
        self, torch: Any, baselines: list[Baseline], monitor: Monitor, repeats: int, seed: int, hot: bool
    ) -> None:
        self.torch, self.baselines, self._monitor = torch, baselines, monitor
        self._repeats, self._seed, self._hot = repeats, seed, hot
        self.cache = cache_bytes(torch)

    def __call__(self, case: Case) -> dict[str, Any]:
        """Our timing or failure, that of each baseline, and the reference."""
        a, b = draw(self.torch, case, self._seed)
        sets = 1 if self._hot else sets_beyond_cache(case.bytes, self.cache)
        buffers = operands(self.torch, case, a, b, sets)
        baselines = [baseline for baseline in self.baselines if baseline.supports(case)]
        result: dict[str, Any] = {"sets": sets, "baselines": {b.name: {} for b in baselines}}
        with ExitStack() as stack:
            launches = {"ours": self._attempt(result, partial(self._ours, buffers, result))}
            for baseline in baselines:
                about = result["baselines"][baseline.name]
                prepare = partial(self._baseline, baseline, buffers, about, stack)
                launches[baseline.name] = self._attempt(about, prepare)
            self._time({name: x for name, x in launches.items() if x is not None}, result)
        return result | reference([b for b in baselines if b.is_fair(case)], result)

    def alive(self) -> bool:
        """Wait for the GPU; False when an error has destroyed the CUDA context."""
        try:
            self.torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def _attempt(self, about: dict[str, Any], prepare: Callable[[], TimedLaunch]) -> TimedLaunch | None:
        """Return `prepare()`; after an error None, and `about` describes the failure."""
        try:
            return prepare()
        except Exception as error:  # a failure is a result, and the others are still measured
            about |= failure(error)
            self.alive()
            return None

    def _ours(self, buffers: Operands, result: dict[str, Any]) -> TimedLaunch:
        launch = TimedLaunch(self.torch, ours(buffers), buffers.sets)
        result["first_call_s"] = launch.first_call
        if buffers.case.kind in ("plain", "batched"):
            result |= planned(buffers.a[0], buffers.b[0], buffers.d[0], **gemm_options(buffers.case))
        result["error"], result["correct"] = check(self.torch, buffers, buffers.d[0])
        return launch

    def _baseline(
        self, baseline: Baseline, buffers: Operands, about: dict[str, Any], stack: ExitStack
    ) -> TimedLaunch:
        separate = replace(buffers, d=[self.torch.zeros_like(d) for d in buffers.d])
        prepared = baseline.prepare(buffers.case, separate)
        stack.callback(prepared.close)
        launch = TimedLaunch(self.torch, prepared.launch, buffers.sets)
        prepared.launch(0)  # a captured launch may return a tensor that no replay has written
        about["name"], about["note"] = prepared.name, prepared.note
        about["error"], about["correct"] = check(self.torch, buffers, prepared.buffers.d[0])
        return launch

    def _time(self, launches: dict[str, TimedLaunch], result: dict[str, Any]) -> None:
        begin = time.perf_counter()
        timings = time_interleaved(list(launches.values()), self._repeats) if launches else []
        result["state"] = self._monitor.between(begin, time.perf_counter())
        for (name, launch), timing in zip(launches.items(), timings, strict=True):
            target = result if name == "ours" else result["baselines"]
            how = "CUDA graph" if launch.captured else f"batches ({launch.loop.error})"
            target.setdefault(name, {}).update(timing.json(), launched_as=how)


def reference(fair: list[Baseline], result: dict[str, Any]) -> dict[str, Any]:
    """Return the fastest fair baseline with a correct result; if none is correct, the fastest."""
    measured = {baseline.name: result["baselines"][baseline.name] for baseline in fair}
    timed = {name: each for name, each in measured.items() if "median" in each}
    if not timed:
        failures = [f"{name}: {each['failure']}" for name, each in measured.items()]
        return {"reference_failure": "; ".join(failures) or "no library has this operation"}
    name, best = min(timed.items(), key=lambda item: (not item[1]["correct"], item[1]["median"]))
    timing = {key: best[key] for key in ("median", "best", "spread", "samples", "launched_as")}
    about = {f"reference_{key}": best[key] for key in ("name", "error", "correct")}
    return {"reference": timing, "reference_baseline": name, **about, "note": best["note"]}


def planned(
    a: Any, b: Any, d: Any, family: str | None = None, accumulate: Any = None, precision: str | None = None
) -> dict[str, Any]:
    """Kernel and configuration that gemm chooses, or why they are unknown."""
    try:
        options = {"accumulate": accumulate, "precision": precision}
        plan = kernels.plan(a, b, None, d, family=family, **options)
    except Exception as error:  # the timing is still worth having
        return {"undescribed": f"{type(error).__name__}: {error}"}
    config = plan.config
    return {
        "through_copies": bool(plan.copies),
        "kernel": plan.kernel.__name__,
        "chosen_family": "sm90" if isinstance(config, HopperConfig) else "sm80",
        "tile": tile(config),
        "config": {k: v for k, v in vars(config).items() if isinstance(v, (int, float, str))},
        "grid": plan.grid if isinstance(plan.grid, int) else list(plan.grid),
    }


def tile(config: Any) -> str:
    """Show BM x BN (x BK), stages and options of a configuration, as in "128x256 s4 c2 k4 pp".

    c: cluster_m (x cluster_n), k: split_k, u: units of stream-K, pp: ping-pong schedule, t: swap
    AB. w: warps of a tile without tensor cores, whose s is the unroll.
    """
    usual = {"cluster_m": 1, "cluster_n": 1, "split_k": 1, "streamk_units": 0}
    usual |= {"pingpong": False, "swap_ab": False}
    fields = usual | vars(config)
    cluster = f"c{fields['cluster_m']}" + f"x{fields['cluster_n']}" * (fields["cluster_n"] > 1)
    words = [
        "x".join(str(fields[name]) for name in ("BM", "BN", "BK") if name in fields),
        f"s{config.stages}" if "stages" in fields else f"w{config.warps} s{config.unroll}",
        cluster if cluster != "c1" else "",
        f"k{fields['split_k']}" if fields["split_k"] > 1 else "",
        f"u{fields['streamk_units']}" if fields["streamk_units"] else "",
        "pp" if fields["pingpong"] else "",
        "t" if fields["swap_ab"] else "",
    ]
    return " ".join(part for part in words if part)


def ours(buffers: Operands) -> Launch:
    """Launches of our kernel that write to `buffers.d`."""
    return KINDS[buffers.case.kind](buffers)


def gemm_options(case: Case) -> dict[str, Any]:
    """Options of kernels.gemm that a case needs."""
    fast = case.dtype == "e4m3" and not case.precise
    return {"family": case.family or None, "accumulate": FAST if fast else None, "precision": case.precision}


def plain(buffers: Operands) -> Launch:
    options = gemm_options(buffers.case)
    return lambda i: kernels.gemm(buffers.a[i], buffers.b[i], out=buffers.d[i], **options)


def grouped(buffers: Operands) -> Launch:
    return lambda i: kernels.grouped_gemm(buffers.a[i], buffers.b[i], buffers.offsets, out=buffers.d[i])


def gelu(buffers: Operands) -> Launch:
    bias = buffers.bias.expand(buffers.case.M, buffers.case.N)
    return lambda i: kernels.gemm(buffers.a[i], buffers.b[i], bias, out=buffers.d[i], epilogue=tanh_gelu)


def tanh_gelu(value, row, col):  # type: ignore[no-untyped-def]  # in the kernel language
    """GELU by the tanh formula, as in cuBLASLt."""
    inner = value * (0.7978845608028654 + 0.035677408136300125 * value * value)
    return 0.5 * value * (1.0 + tc.tanh(inner))


def swiglu(buffers: Operands) -> Launch:
    N = buffers.case.N
    return lambda i: kernels.swiglu(buffers.a[i], buffers.b[i][:, :N], buffers.b[i][:, N:], out=buffers.d[i])


def sparse(buffers: Operands) -> Launch:
    compressed = [kernels.compress(a) for a in buffers.a]
    return lambda i: kernels.gemm(compressed[i], buffers.b[i], out=buffers.d[i])


KINDS: dict[str, Callable[[Operands], Launch]] = {
    "plain": plain,
    "batched": plain,
    "grouped": grouped,
    "gelu": gelu,
    "swiglu": swiglu,
    "sparse": sparse,
}
