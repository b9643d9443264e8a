"""`tune(a, b, ...)`: measure configurations of the GEMM kernels, and store the fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from reprlib import repr as brief
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import (
    CURRENT_DEVICE,
    Bench,
    DeviceClock,
    Trial,
    Tuning,
    current_stream,
    current_target,
    describe,
    fastest_first,
    in_a_row,
)
from tensorcore_dsl.kernels.choosing import tuning_cache
from tensorcore_dsl.kernels.choosing.batch_invariance import is_allowed
from tensorcore_dsl.kernels.choosing.choice import (
    choose_family,
    kinds_of,
    may_prefer_sm80,
    ranked_configs,
    shape_of,
)
from tensorcore_dsl.kernels.choosing.ranking import ranking
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.gemm import describe_gemm, gemm, with_line_strides_of
from tensorcore_dsl.kernels.host.operands import GemmOptions
from tensorcore_dsl.kernels.host.packed_weights import PackedWeights
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix
from tensorcore_dsl.kernels.problem.families import FAMILIES, family_of, is_assembled, obstacles
from tensorcore_dsl.kernels.problem.gemm_problem import ANY, GemmProblem
from tensorcore_dsl.kernels.problem.padding import convert_operands, gemm_copies, with_copies
from tensorcore_dsl.kernels.problem.problem_shape import ProblemShape
from tensorcore_dsl.kernels.user_functions import Epilogue

F32_CANDIDATES = 24  # configurations of both families together
AMPERE_CANDIDATES = 12  # configurations of mma.sync kernels, and without tensor cores
HOPPER_CANDIDATES = 16  # configurations of wgmma kernels
GROUP_M = (4, 8, 16)  # rasterisations that are tried for the fastest tiles

Launch = Callable[[], Any]
Timer = Callable[[Launch], float]


def tune(  # noqa: PLR0913
    a: Any,
    b: Any,
    c: Any = None,
    *,
    out: Any = None,
    alpha: float = 1,
    beta: float | None = None,
    epilogue: Epilogue | None = None,
    epilogue_args: Mapping[str, Any] | None = None,
    precision: str | None = None,
    bits: str = ANY,
    candidates: Iterable[Any] | None = None,
    remember: bool = True,
    timer: Timer | None = None,
    device: str | None = None,
) -> Tuning:
    """Find the fastest configuration for a product, for later calls of `plan` and `gemm`.

    Parameters
    ----------
    a, b, c, alpha, beta, epilogue, epilogue_args, precision, bits : optional
        As for `gemm`, which uses a configuration tuned with the same precision and bits.
    out : array, optional
        Overwritten. None: a new array.
    candidates : iterable, optional
        HopperConfig, AmpereConfig and VectorConfig. None: tiles that suit the operands are tried, then
        rasterisations of the fastest tiles.
    remember : bool
        Keep the result on disk, for later processes.
    timer : function, optional
        `timer(launch)` returns the seconds of one launch. None: CUDA events measure it.
    device : str, optional
        The name of the GPU, if it is not the current one.

    Returns
    -------
    Tuning
        All trials, the fastest first.

    Raises
    ------
    ArgumentError
        The target is the CPU and there is no timer; nothing to tune; no configuration runs.

    Examples
    --------
    >>> a, b = np.ones((64, 64), np.float16), np.ones((64, 64), np.float16)
    >>> candidates = [kernels.AmpereConfig(BM=64, BN=64), kernels.AmpereConfig(BM=64, BN=32, WN=32)]
    >>> clock = lambda launch: launch() is None or 1.0
    >>> options = dict(timer=clock, device="mine", remember=False)
    >>> tuning = kernels.tune(a, b, candidates=candidates, **options)
    >>> tuning.best in candidates
    True
    """
    if timer is None and current_target() != "cuda":
        raise tc.ArgumentError("tuning measures on a GPU, and the target is the CPU")
    for name, x, kind in (("a", a, SparseMatrix), ("b", b, PackedWeights)):
        if isinstance(x, kind):
            raise tc.ArgumentError(
                f"{name} is {x!r}; `tune` takes dense operands. kernels.plan chooses the configuration of "
                "this product, and kernels.gemm takes config="
            )
    configurations = None if candidates is None else _configurations(candidates)
    if not isinstance(device, (str, type(None))):
        raise tc.ArgumentError(f"device is {brief(device)}; it must be the name of a GPU")
    options = GemmOptions(1, 0, None, None, None, (), precision, bits, None, None, None)
    problem, d, _ = describe_gemm(a, b, c, out, options)
    if 0 in (*problem.d.shape, problem.K):
        size = "x".join(map(str, problem.d.shape))
        raise tc.ArgumentError(f"a product of {size} with K = {problem.K} has nothing to tune")
    problem = convert_operands(with_line_strides_of(problem, a, b))
    key = tuning_cache.key(problem, device or tuning_cache.device_name())
    launch = partial(
        gemm,
        a,
        b,
        c,
        out=d,
        alpha=alpha,
        beta=beta,
        epilogue=epilogue,
        epilogue_args=epilogue_args,
        precision=precision,
        bits=bits,
    )
    clock = timer or event_timer(a)
    bench = Bench(lambda config: clock(partial(launch, config=config, family=family_of(config))))
    trials = _search(bench, configurations, problem)
    if not trials or trials[0].failure:
        failures = dict.fromkeys(trial.failure for trial in trials)
        reason = "; ".join(failures) or "there are no candidates"
        raise tc.ArgumentError(f"no configuration runs: {reason}")
    if remember:
        tuning_cache.remember(key, trials[0].config, trials[0].seconds)
    return Tuning(key, tuple(trials))


def _configurations(candidates: Any) -> list[Any]:
    """List the caller's candidates; refuse an object that is no sequence of configurations."""
    kinds = tuple(FAMILIES.values())
    configs = (
        list(candidates) if isinstance(candidates, Iterable) and not hasattr(candidates, "shape") else [None]
    )
    if not all(isinstance(config, kinds) for config in configs):
        raise tc.ArgumentError(
            f"candidates is {brief(candidates)}; they must be kernels.HopperConfig, AmpereConfig "
            f"and VectorConfig"
        )
    return configs


def _search(bench: Bench, candidates: list[Any] | None, problem: GemmProblem) -> list[Trial]:
    """Measure tiles, rasterisations of the best two, then the finalists; the fastest trial first."""
    trials = bench.trials(default_candidates(problem) if candidates is None else candidates, "tiles")
    if candidates is None:
        tried = {trial.config for trial in trials}
        best = [trial.config for trial in trials[:2] if not trial.failure]
        rasterisations = [replace(config, group_m=group_m) for config in best for group_m in GROUP_M]
        rasterisations = [config for config in rasterisations if config not in tried]
        trials = fastest_first([*trials, *bench.trials(rasterisations, "rasterisations")])
    return bench.finals(trials)


def default_candidates(problem: GemmProblem) -> list[Any]:
    """List configurations of the wgmma kernels, or of mma.sync if those cannot run the problem.

    The list has both families if either may be faster. `problem.bits` allows each configuration.
    """
    choose_family(problem, None, None)  # refuses a problem that no family runs
    allowed = lambda config: is_allowed(problem, config)
    impossible = obstacles(problem)
    copied = with_copies(problem, gemm_copies(problem, "sm80"))
    if problem.multiplied_as == tc.f32:
        possible = (name for name in ("sm90", "sm80") if not impossible[name])
        ranked = ranked_configs(copied, kinds_of(copied, *possible))
        return [config for _, config in ranked if allowed(config)][:F32_CANDIDATES]
    copies, configs = gemm_copies(problem, "sm90"), list[Any]()
    if not impossible["sm90"]:
        configs = hopper_candidates(shape_of(problem, copies), allowed)
    if not impossible["sm80"] and (not configs or may_prefer_sm80(problem)):
        ranked = ranked_configs(copied, kinds_of(copied, "sm80"))
        configs += [c for _, c in ranked if allowed(c)][:AMPERE_CANDIDATES]
    return configs


def hopper_candidates(
    shape: ProblemShape, allowed: Callable[[HopperConfig], bool] = lambda config: True
) -> list[HopperConfig]:
    """List the configurations that `gemm` ranks highest."""
    every = (c for _, c in ranking(shape) if isinstance(c, HopperConfig))
    assembled = (c for c in dict.fromkeys(every) if is_assembled(c, shape) and allowed(c))
    return list(islice(assembled, HOPPER_CANDIDATES))


def event_timer(a: Any) -> Timer:
    """Make a timer that uses events on the stream of launches with this operand."""
    device = describe(a).device
    device = CURRENT_DEVICE if device is None else device
    return partial(in_a_row, clock=DeviceClock(current_stream((a,), device), device))
