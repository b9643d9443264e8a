"""`tune(a, b, ...)`: measures configurations of the GEMM kernels on the GPU, keeps the fastest."""

from __future__ import annotations

import math
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.pipeline import AmpereConfig
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host import tuning_cache as choices
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.host.cost_model import divided_ranking, ranking
from tensorcore_dsl.kernels.host.gemm import gemm
from tensorcore_dsl.kernels.host.operands import check_operands, check_output
from tensorcore_dsl.kernels.host.padding import realigned
from tensorcore_dsl.kernels.host.plan import OUTPUTS, SM80, assembled, choose_tile, why_not_sm90
from tensorcore_dsl.kernels.host.problem_shape import Shape
from tensorcore_dsl.runtime.arguments import describe
from tensorcore_dsl.runtime.targets import current_target

FINALISTS = 4  # configurations that are measured again, in turn
ROUNDS = 7  # samples of each finalist
SAMPLE = 2e-3  # seconds that one sample lasts about
TRIED, DIVIDED = 16, 4  # configurations of the wgmma kernels, and of those that divide tiles
GROUPS = (4, 8, 16)
TILES = ((128, 128, 64, 64), (128, 64, 64, 32), (64, 128, 32, 64), (64, 64, 32, 32))  # BM BN WM WN
DEPTHS = (3, 4)  # stages of mma.sync kernels

Launch = Callable[[], Any]
Timer = Callable[[Launch], float]


@dataclass(frozen=True)
class Trial:
    """A configuration and the seconds of a launch; `failure` says why it could not run."""

    config: Any
    seconds: float = math.inf
    failure: str = ""


@dataclass(frozen=True)
class Tuning:
    """What was tried, the fastest first, and the key that `plan` finds the best under."""

    key: str
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Any:
        return self.trials[0].config

    @property
    def seconds(self) -> float:
        return self.trials[0].seconds


def tune(
    a: Any, b: Any, c: Any = None, *, out: Any = None, alpha: float = 1, beta: float | None = None,
    epilogue: Callable[..., Any] | None = None, candidates: Iterable[Any] | None = None,
    remember: bool = True, timer: Timer | None = None, device: str | None = None,
) -> Tuning:  # fmt: skip
    """Find the fastest configuration for a product; `plan`, so `gemm`, chooses it from now on.

    Operands are those of `gemm`; `out` is overwritten. `candidates` are kernels.HopperConfig and
    kernels.AmpereConfig; without them those that suit are tried: first tiles, then the order of the
    fastest tiles. timer(launch) gives the seconds of one launch; CUDA events do when it is not
    given. `device` names the GPU, if not the current one.
    """
    if timer is None and current_target() != "cuda":
        raise tc.ArgumentError("tuning measures on a GPU, and the target is the CPU")
    dtype = check_operands(a, b, c)
    (M, K), N = a.shape, b.shape[1]
    if 0 in (M, N, K):
        raise tc.ArgumentError(f"a product of {M}x{K} and {K}x{N} has nothing to tune")
    if out is None:
        out = empty_like(a, (M, N), OUTPUTS[dtype][0])
    check_output(out, dtype, (M, N))
    a, b, out = realigned(a, b, out) or (a, b, out)
    types = {name: describe(x, name).type for name, x in (("a", a), ("b", b), ("d", out))}
    name = choices.key(types, M, N, K, device or choices.device_name())
    launch = partial(gemm, a, b, c, out=out, alpha=alpha, beta=beta, epilogue=epilogue)
    bench = Bench(launch, timer or event_timer(a))
    given = None if candidates is None else list(candidates)
    trials = _search(bench, given, types, (M, N, K))
    if not trials or trials[0].failure:
        said = "; ".join(dict.fromkeys(t.failure for t in trials)) or "there are no candidates"
        raise tc.ArgumentError(f"no configuration runs: {said}")
    if remember:
        choices.remember(name, trials[0].config, trials[0].seconds)
    return Tuning(name, tuple(trials))


# Searching


@dataclass
class Bench:
    """Times configurations of one product."""

    launch: Callable[..., Any]
    timer: Timer

    def of(self, config: Any) -> Launch:
        return partial(self.launch, config=config, family=choices.family_of(config))

    def trial(self, config: Any) -> Trial:
        """Assembles, runs and times a configuration once; what fails is left behind."""
        try:
            with warnings.catch_warnings():  # what spills is slow, and so not chosen
                warnings.simplefilter("ignore", tc.PerformanceWarning)
                return Trial(config, self.timer(self.of(config)))
        except (tc.TensorCoreError, ValueError, RuntimeError) as error:
            return Trial(config, failure=f"{type(error).__name__}: {error}".splitlines()[0])

    def trials(self, configs: Sequence[Any], title: str) -> list[Trial]:
        return [self.trial(config) for config in progress(configs, title)]

    def compete(self, trials: Sequence[Trial]) -> list[Trial]:
        """The medians of samples taken in turn: clocks move while candidates pass by."""
        found: dict[Any, list[float]] = {trial.config: [] for trial in trials}
        for _ in progress(range(ROUNDS), "finalists"):
            for config, samples in found.items():
                samples.append(self.timer(self.of(config)))
        return [Trial(config, statistics.median(samples)) for config, samples in found.items()]


def _search(bench: Bench, given: Any, types: Any, size: tuple[int, int, int]) -> list[Trial]:
    """All trials, the fastest first: tiles, orders of the best two, then the finalists again."""
    first = given if given is not None else tiles(types, *size)
    trials = _sorted(bench.trials(list(dict.fromkeys(first)), "tiles"))
    if given is None:
        tried = {trial.config for trial in trials}
        more = [
            replace(trial.config, group_m=group)
            for trial in trials[:2] if not trial.failure
            for group in GROUPS
        ]  # fmt: skip
        trials = _sorted([*trials, *bench.trials([c for c in more if c not in tried], "orders")])
    usable = [trial for trial in trials if not trial.failure][:FINALISTS]
    if len(usable) < 2:
        return trials
    return [*_sorted(bench.compete(usable)), *trials[len(usable) :]]


def _sorted(trials: Iterable[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: trial.seconds)


def tiles(types: Any, M: int, N: int, K: int) -> list[Any]:
    """Configurations that suit the operands: of wgmma where it can take them, else of mma.sync."""
    if not why_not_sm90(types):
        layouts = types["a"].unit[1], types["b"].unit[0]
        return rings(Shape(M, N, K, types["a"].dtype.itemsize, 1, *layouts))
    dtype = types["a"].dtype
    return [] if dtype not in SM80 else list(pipelines(dtype, M, N, K))


def rings(shape: Shape) -> list[HopperConfig]:
    """What the cost model ranks highest, of tiles that workers divide too."""
    whole = dict.fromkeys(config for _, config in ranking(shape) if assembled(config))
    return [*whole][:TRIED] + [config for _, config in divided_ranking(shape)][:DIVIDED]


def pipelines(dtype: Any, M: int, N: int, K: int) -> Iterator[AmpereConfig]:
    """Tiles of the mma.sync kernels, gemm's own choice first."""
    base = choose_tile(dtype, M, N, K)
    yield base
    for (BM, BN, WM, WN), stages in product(TILES, DEPTHS):
        yield replace(base, BM=BM, BN=BN, WM=WM, WN=WN, stages=stages)


# Measuring


def event_timer(a: Any) -> Timer:
    """Times launches with the events of the library that the operand is from, on its stream."""
    if type(a).__module__.partition(".")[0] == "torch":
        cuda = import_module("torch").cuda
        return partial(_seconds, lambda: cuda.Event(enable_timing=True), _torch_elapsed)
    cuda = import_module("numba.cuda")
    return partial(_seconds, lambda: cuda.event(timing=True), cuda.event_elapsed_time)


def _torch_elapsed(start: Any, end: Any) -> float:
    return float(start.elapsed_time(end))


def _seconds(
    event: Callable[[], Any], elapsed: Callable[[Any, Any], float], launch: Launch
) -> float:
    """Of one launch among as many as take SAMPLE seconds, after two that compile and warm up."""

    def batch(count: int) -> float:
        start, end = event(), event()
        start.record()
        for _ in range(count):
            launch()
        end.record()
        end.synchronize()
        return elapsed(start, end) / 1e3 / count

    launch()
    once = max(batch(1), 1e-7)
    return batch(min(200, max(2, math.ceil(SAMPLE / once))))


def progress(items: Sequence[Any], title: str) -> Iterable[Any]:
    """The items; where stderr is a terminal, a bar counts them, and goes when all are done."""
    if not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, title, console=Console(stderr=True), transient=True)
