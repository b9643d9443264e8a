"""`@tc.autotune`: measure configurations of a kernel once for each problem, and choose the fastest.

The first launch for new types or key values measures the configurations, and the result is
remembered in this process and on disk. Where the target is the CPU, nothing is measured and the
first configuration runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import Any, TypeVar

import numpy as np

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.checking.findings import CheckResult
from tensorcore_dsl.codegen.cubin import Resources
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import ArgumentError, TensorCoreError, check_call, listing, public
from tensorcore_dsl.interpreter.debugging.trace import Traced
from tensorcore_dsl.interpreter.scheduling.orders import Order
from tensorcore_dsl.kernel import Kernel, constants_key
from tensorcore_dsl.kernel import Launch as KernelLaunch
from tensorcore_dsl.runtime.arguments import NO_ARGUMENT, ArrayType, ScalarType, describe
from tensorcore_dsl.runtime.launch import Launcher
from tensorcore_dsl.runtime.launch_config import Dims, LaunchConfig, check_stream, launch_text
from tensorcore_dsl.runtime.named import Named
from tensorcore_dsl.runtime.targets import current_target, target_arch
from tensorcore_dsl.runtime.trials import ROUNDS, Bench, Trial, Tuning
from tensorcore_dsl.tuning import measure, memory
from tensorcore_dsl.tuning.config import Bytes, Config, Grid, TunedKey
from tensorcore_dsl.tuning.emulation import TunedEmulator, emulated
from tensorcore_dsl.tuning.measure import Call, Prune, Settings, Timer

Seen = TypeVar("Seen")


class Autotuned(Named):
    """A kernel that is tuned: launched, prepared, emulated and looked into like any kernel.

    Attributes
    ----------
    kernel : Kernel
        The kernel without configurations, which takes all Const values from its caller.
    configs : list of Config
        The configurations.
    cache : dict
        What was measured in this process or remembered: a Tuning by key.
    best_config : Config or None
        The configuration of the last launch; None before the first.

    See Also
    --------
    autotune : Makes it, with an example.
    """

    def __init__(self, kernel: Kernel, configs: Iterable[Config], settings: Settings) -> None:
        self._stand_for(kernel.function)
        self.__name__ = kernel.__name__
        self.__kernel_function__ = kernel.function
        self.kernel, self.settings = kernel, settings
        self.configs = tuple(dict.fromkeys(map(_config, configs)))
        self.cache: dict[Any, Tuning] = {}
        self.best_config: Config | None = None
        self._names = frozenset(name for config in self.configs for name in config.constants)
        self._variants: dict[Any, Kernel] = {}
        self.launchers: dict[Any, Launcher] = {}
        self._lock = RLock()
        _check(self)

    # Attributes that the compiler's cache reads of kernels that other kernels call.
    threads = property(lambda self: self.kernel.threads)
    max_registers = property(lambda self: self.kernel.max_registers)
    min_blocks = property(lambda self: self.kernel.min_blocks)

    # -- launches ------------------------------------------------------------------------------

    @public
    def __getitem__(self, key: TunedKey) -> TunedLaunch:
        """`kernel[grid, block]`, `[grid, block, stream]`, `[grid, block, stream, shared_bytes]`.

        Grid, block and shared_bytes may be functions of the arguments: `f[lambda meta:
        -(-meta["M"] // meta["BM"]), 128]`. `meta` is a dict of all arguments by name, with the
        configuration's values. None is allowed where every configuration gives the value.
        """
        if not isinstance(key, tuple) or not 2 <= len(key) <= 4:
            raise ArgumentError(
                f"{self.__name__}[grid, block, stream=None, shared_bytes=0] takes 2 to 4 values, "
                f"{key!r} was given"
            )
        grid, block, stream, shared_bytes = (*key, None, None)[:4]
        return self.configured(grid, block, stream=stream, shared_bytes=shared_bytes)

    def configured(
        self,
        grid: Grid | None = None,
        block: Grid | None = None,
        *,
        stream: Any = None,
        shared_bytes: Bytes | None = None,
        cluster: Dims | None = None,
        cooperative: bool | None = None,
        pdl: bool | None = None,
    ) -> TunedLaunch:
        """Like `kernel[grid, block]`, with shared_bytes, cluster, cooperative, pdl by name."""
        options = {
            "grid": grid,
            "block": block,
            "shared_bytes": shared_bytes,
            "cluster": cluster,
            "cooperative": cooperative,
            "pdl": pdl,
        }
        launch = TunedLaunch(self, {n: v for n, v in options.items() if v is not None}, stream)
        launch.check()
        return launch

    @public
    def __call__(self, /, *args: Any, **named: Any) -> None:
        """Launch with the grid and the block that the configurations give."""
        self.configured()(*args, **named)

    @property
    def emulate(self) -> TunedEmulator:
        """`kernel.emulate[grid, block](...)` runs on the CPU, independent of the target."""
        return self.emulator()

    def emulator(
        self,
        arch: str | None = None,
        *,
        checks: bool | None = None,
        profile: bool = False,
        order: Order | str | None = None,
        trace: Traced = (),
    ) -> TunedEmulator:
        """An emulator of an architecture, with the options of `Kernel.emulator`."""
        options: dict[str, Any] = dict(checks=checks, profile=profile, order=order, trace=trace)
        return TunedEmulator(self, lambda kernel: kernel.emulator(arch, **options).run)

    def check(
        self,
        grid: Grid | None = None,
        block: Grid | None = None,
        *,
        arch: str | None = None,
        order: Order | str | None = None,
        in_place: bool = False,
        **options: Any,
    ) -> Callable[..., CheckResult]:
        """Like `Kernel.check`; the options are those of `configured`."""
        launch = self.configured(grid, block, **options)

        def check(kernel: Kernel) -> Callable[..., CheckResult]:
            return lambda config, /, **arguments: kernel.checked(config, arch, order, in_place)(**arguments)

        return partial(emulated, launch, check)

    def explore(self, n: int = 100, *, arch: str | None = None, checks: bool | None = None) -> TunedEmulator:
        """Many orders of threads, as `Kernel.explore` tries them."""
        return TunedEmulator(self, lambda kernel: kernel.explore(n, arch=arch, checks=checks).run)

    # -- looking inside: the configuration for these arguments, else the first -------------------

    def ir(self, /, *args: Any, arch: str | Arch | None = None, **named: Any) -> str:
        """The IR as text, with the configuration for these arguments, else the first."""
        return self._look(Kernel.ir, args, named, arch)

    def ptx(self, /, *args: Any, arch: str | Arch | None = None, **named: Any) -> str:
        """The PTX text, with the configuration for these arguments, else the first."""
        return self._look(Kernel.ptx, args, named, arch)

    def cubin(self, /, *args: Any, arch: str | Arch | None = None, **named: Any) -> bytes:
        """The machine code, with the configuration for these arguments, else the first."""
        return self._look(Kernel.cubin, args, named, arch)

    def resources(self, /, *args: Any, arch: str | Arch | None = None, **named: Any) -> Resources:
        """Resources by the assembler, with the configuration for these arguments, else the first one."""
        return self._look(Kernel.resources, args, named, arch)

    def _look(
        self, method: Callable[..., Seen], args: Sequence[Any], named: dict[str, Any], arch: str | Arch | None
    ) -> Seen:
        """Call a method of the kernel with run-time arguments and Const values to look into."""
        call = self._call(args, named)
        config = self.chosen(call)
        constants = {**call.constants, **config.constants}
        return method(self.variant(config), *call.runtime, arch=arch, **constants)

    def __repr__(self) -> str:
        count = len(self.configs)
        kernel = repr(self.kernel).removeprefix("<kernel ").removesuffix(">")
        return f"<autotuned {kernel}, {count} configuration{'s' * (count != 1)}>"

    # -- configurations ------------------------------------------------------------------------

    def variant(self, config: Config) -> Kernel:
        """The kernel with the options of a configuration for the assembler."""
        options = config.assembler_options
        if not options:
            return self.kernel
        key = tuple(sorted(options.items()))
        return self._variants.setdefault(key, self.kernel.variant(**options))

    def forget(self) -> None:
        """Forget what was measured, on disk as well: the next launch measures again."""
        memory.forget(self._place)
        self.cache.clear()
        self.launchers.clear()

    @property
    def _place(self) -> str:
        return f"{self.__module__}.{self.__qualname__}"

    def _call(self, args: Sequence[Any], named: dict[str, Any]) -> Call:
        """Arguments of a launch, without the ones that the configurations choose."""
        for name in named:
            if name in self._names:
                raise ArgumentError(
                    f"{self.__name__}: {name!r} is chosen by the configurations; "
                    f"{self.__name__}.kernel takes a value of your own"
                )
        runtime, constants = self.kernel.split(args, named, self._names)
        return Call(dict(zip(self.kernel.runtime_names, runtime, strict=True)), constants)

    def pruned(self, call: Call) -> list[Config]:
        """The configurations that `prune` leaves for these arguments."""
        configs = list(self.configs)
        if self.settings.prune is None:
            return configs
        left = list(self.settings.prune(configs, call.arguments))
        foreign = [config for config in left if config not in self.configs]
        if foreign or not left:
            problem = f"returned {foreign[0]!r}, which is not among" if foreign else "left none of"
            raise ArgumentError(
                f"{self.__name__}: prune {problem} the configurations; it returns a list of those to measure"
            )
        return left

    def chosen(self, call: Call, options: Mapping[str, Any] | None = None) -> Config:
        """The configuration measured as fastest, where there is one, else the first.

        Without options of a launch, the one that was measured last for these arguments counts.
        """
        if any(isinstance(value, (ArrayType, ScalarType, DType)) for value in call.runtime):
            return self.configs[0]  # types in the place of arguments
        key = self.key_of(call, options or {})
        if options is not None:
            known = [self.cache[key]] if key in self.cache else []
        else:
            known = [tuning for known_key, tuning in self.cache.items() if known_key[:-1] == key[:-1]]
        return known[-1].best if known else self.pruned(call)[0]

    def key_of(self, call: Call, options: Mapping[str, Any]) -> Any:
        """Key of a tuning: the specialisation, key values, and the launch's options.

        The grid is none of these, nor are functions: a launch may write `lambda` each time.
        """
        fixed = {n: v for n, v in sorted(options.items()) if n != "grid" and not callable(v)}
        parameters = self.kernel.runtime_parameters
        described = [
            NO_ARGUMENT
            if value is None
            else describe(value, f"{self.__name__}: argument {p.name!r}", p.dtype)
            for value, p in zip(call.runtime, parameters, strict=True)
        ]
        types = self.kernel.types_of([argument.type for argument in described])
        values = [_key_value(call.arguments[name]) for name in self.settings.key]
        on_gpu = current_target() == "cuda"
        where = tuple([argument.device for argument in described]) if on_gpu else None
        return (
            types,
            constants_key(call.constants),
            tuple(values),
            target_arch().name,
            where,
            constants_key(fixed),
        )

    def measures(self) -> bool:
        """Whether launches measure: on a GPU, or with a timer of the user."""
        return self.settings.timer is not None or current_target() == "cuda"

    def tuning(self, launch: TunedLaunch, call: Call, key: Any = None) -> Tuning:
        """Measure a launch, or look up an earlier measurement; `key` is that of the arguments."""
        key = key or self.key_of(call, launch.options)
        known = self.cache.get(key)
        if known is not None:
            return known
        with self._lock:
            if key not in self.cache:
                first = self.pruned(call)[0]
                if launch.of(first, call)[0].config.is_empty:  # it says nothing about others
                    return Tuning(self._title(call), (Trial(first, 0.0),))
                self.cache[key] = self._remembered_or_measured(launch, call, key)
            return self.cache[key]

    def _remembered_or_measured(self, launch: TunedLaunch, call: Call, key: Any) -> Tuning:
        configs = self.pruned(call)
        title = self._title(call)
        entry = None
        if self.settings.remember:  # which of several equal GPUs it is does not matter
            entry = memory.entry_name(self.kernel, configs, (*key[:4], *key[5:]))
        remembered = memory.recall(entry, configs, title) if entry is not None else None
        if remembered is not None:
            return remembered
        measure.check(self.__name__, call, self.settings, launch.stream)

        def seconds(config: Config, share: float = 1) -> float:
            bound_launch, constants = launch.of(config, call)
            return measure.seconds(bound_launch, constants, call, self.settings, share)

        bench = Bench(seconds, partial(seconds, share=1 / ROUNDS))
        trials = bench.trials(configs, f"tuning {self.__name__}")
        if trials[0].failure:
            raise self._nothing_runs(trials, bench)
        tuning = Tuning(title, tuple(bench.finals(trials)))
        bench.warn(tuning.best)
        if entry is not None:
            memory.remember(entry, tuning, self._place, configs)
        return tuning

    def _title(self, call: Call) -> str:
        values = [f"{name}={_shown(call.arguments[name])}" for name in self.settings.key]
        return f"{self.__name__}({', '.join(values)}) on {memory.device()}"

    def _nothing_runs(self, trials: Sequence[Trial], bench: Bench) -> ArgumentError:
        first = bench.errors[trials[0].config]
        reasons = [f"  {trial.config}: {trial.failure}" for trial in trials]
        loc = first.loc if isinstance(first, TensorCoreError) else None
        error = ArgumentError(f"{self.__name__}: no configuration runs:\n" + "\n".join(reasons), loc)
        error.__cause__ = first
        return error


class TunedLaunch:
    """An autotuned kernel with its grid and block; calling it launches, and tunes before."""

    def __init__(self, tuned: Autotuned, options: dict[str, Any], stream: Any) -> None:
        self.tuned, self.options, self.stream = tuned, options, stream

    def __repr__(self) -> str:
        return launch_text(self.tuned, self.options, self.stream)

    def check(self) -> None:
        """ArgumentError unless grid and block are known with every configuration."""
        check_stream(self.stream)
        for name in ("grid", "block"):
            configs = () if name in self.options else self.tuned.configs
            if lacking := [config for config in configs if name not in config.options]:
                raise ArgumentError(
                    f"{self.tuned.__name__} is launched with a grid and a block, "
                    f"{self.tuned.__name__}[grid, block](...): {lacking[0]} gives no {name} either"
                )
        if all(not callable(value) for value in self.options.values()):
            known = {"grid": 1, "block": 1, **self.options}
            LaunchConfig.of(**known)

    @public
    def __call__(self, /, *args: Any, **named: Any) -> None:
        call = self.tuned._call(args, named)
        if current_target() == "cpu":
            bound_launch, constants = self.of(self._config(call), call)
            bound_launch(**call.runtime_named, **constants)
        else:
            self._launcher(call)(*call.runtime)

    def _launcher(self, call: Call) -> Callable[..., None]:
        """Make or look up the launcher for this key and these options."""
        tuned = self.tuned
        key = tuned.key_of(call, self.options)
        config: Config = tuned.tuning(self, call, key).best
        tuned.best_config = config
        options = self.resolved(config, call)
        key_of_launch = key, id(self.stream), tuple(options.items())
        try:
            return tuned.launchers[key_of_launch]
        except (KeyError, TypeError):  # a list is a grid too
            bound_launch, constants = self.of(config, call, options)
        launcher = bound_launch.launcher(constants)
        if self.stream is None:
            with suppress(TypeError):
                tuned.launchers[key_of_launch] = launcher
        return launcher

    @public
    def prepare(self, /, *args: Any, **named: Any) -> Callable[..., None]:
        """Tune, compile and load for these arguments now; returns a function that launches fast.

        It keeps to the configuration and the grid of these arguments.
        """
        call = self.tuned._call(args, named)
        bound_launch, constants = self.of(self._config(call), call)
        return bound_launch.prepare(**call.runtime_named, **constants)

    def tune(self, /, *args: Any, **named: Any) -> Tuning:
        """Measure for these arguments, if that was not done before; the trials, best first."""
        tuned = self.tuned
        if not tuned.measures():
            raise ArgumentError("tuning measures on a GPU, and the target is the CPU")
        tuning = tuned.tuning(self, tuned._call(args, named))
        tuned.best_config = tuning.best
        return tuning

    def _config(self, call: Call) -> Config:
        tuned = self.tuned
        measured = tuned.measures()
        config: Config = tuned.tuning(self, call).best if measured else tuned.pruned(call)[0]
        tuned.best_config = config
        return config

    def of(
        self, config: Config, call: Call, options: dict[str, Any] | None = None
    ) -> tuple[KernelLaunch, dict[str, Any]]:
        """The launch with a configuration, and all Const values."""
        constants = {**call.constants, **config.constants}
        options = options or self.resolved(config, call)
        launch = self.tuned.variant(config).configured(stream=self.stream, **options)
        return launch, constants

    def resolved(self, config: Config, call: Call) -> dict[str, Any]:
        """Options of the launch; functions among them are called with the arguments."""
        meta = {**call.arguments, **config.constants}
        merged = {**self.options, **config.launch_options}
        return {name: value(dict(meta)) if callable(value) else value for name, value in merged.items()}


def autotune(
    configs: Sequence[Config],
    key: Sequence[str] = (),
    *,
    prune: Prune | None = None,
    restore_value: Sequence[str] = (),
    reset_to_zero: Sequence[str] = (),
    warmup: float = 25,
    rep: float = 100,
    timer: Timer | None = None,
    remember: bool = True,
) -> Callable[[Kernel], Autotuned]:
    """Decorator above `@tc.kernel`: measures configurations, and launches the fastest.

    Parameters
    ----------
    configs : sequence of Config
        What is tried. Const parameters that they give are no arguments of a launch.
    key : sequence of str
        Arguments that the choice depends on, scalars by value and arrays by shape and type: for new
        values, the configurations are measured again. They always are for new types of arguments
        and for new values of other Const parameters.
    prune : function, optional
        `prune(configs, arguments)` returns the configurations that are worth measuring; arguments
        is a dict.
    restore_value, reset_to_zero : sequence of str
        Arrays that get back their contents, or zeros, before each launch that is measured and after
        the last, for kernels that read what they write.
    warmup, rep : float
        Milliseconds of launches before, and while a configuration is measured.
    timer : function, optional
        `timer(launch)` returns the seconds of `launch()`, in place of CUDA events; with a timer,
        configurations are measured on the CPU too.
    remember : bool
        Whether results are kept on disk, for later processes.

    Returns
    -------
    function
        Takes a Kernel and gives an Autotuned.

    Raises
    ------
    ArgumentError
        No kernel, configurations that give different Const parameters, names that are no
        parameters; at a launch, if no configuration runs.

    Examples
    --------
    On the CPU nothing is measured, and the first configuration runs:

    >>> @tc.autotune([tc.Config(PER_THREAD=n) for n in (4, 1)], key=["x"], remember=False)
    ... @tc.kernel
    ... def increment(x: tc.Array, PER_THREAD: tc.Const):
    ...     for k in tc.static_range(PER_THREAD):
    ...         x[tc.threadIdx.x * PER_THREAD + k] += 1
    >>> x = np.zeros(64, np.float32)
    >>> increment[1, lambda meta: 64 // meta["PER_THREAD"]](x)
    >>> float(x.sum()), increment.best_config
    (64.0, Config(PER_THREAD=4))
    """
    if isinstance(key, str) or isinstance(restore_value, str) or isinstance(reset_to_zero, str):
        raise ArgumentError("key, restore_value and reset_to_zero are lists of names")
    if callable(configs) or not isinstance(configs, Iterable):
        what = f"kernel {configs.__name__}" if isinstance(configs, Named) else repr(configs)
        raise ArgumentError(f"autotune takes configs, not {what}: @tc.autotune([...])")
    configs = list(configs)
    for name, argument, takes in (("prune", prune, (configs, {})), ("timer", timer, (None,))):
        if argument is not None and not callable(argument):
            raise ArgumentError(f"{name} is {argument!r}; a function is needed")
        if argument is not None:
            called = f"{name} is called with {len(takes)} arguments: {name}"
            check_call(argument, called, takes, {}, ArgumentError)
    settings = Settings(
        tuple(key), prune, tuple(restore_value), tuple(reset_to_zero), warmup, rep, timer, remember
    )

    @public
    def decorate(kernel: Kernel) -> Autotuned:
        if not isinstance(kernel, Kernel):
            raise ArgumentError(f"@tc.autotune decorates kernels, not {kernel!r}; it stands above @tc.kernel")
        return Autotuned(kernel, configs, settings)

    return decorate


def _config(value: Any) -> Config:
    if not isinstance(value, Config):
        raise ArgumentError(f"a configuration is a tc.Config, not {value!r}")
    return value


def _check(tuned: Autotuned) -> None:
    """ArgumentError if configurations and names do not fit the kernel."""
    kernel, what = tuned.kernel, tuned.__name__
    if not tuned.configs:
        raise ArgumentError(f"{what}: autotune needs at least one configuration")
    const = {p.name: p for p in kernel.parameters if p.const}
    for name in sorted(tuned._names):
        if name not in const:
            raise ArgumentError(
                f"{what}: configurations give Const parameters, and {name!r} is none; the kernel's "
                f"are {listing(const) or 'none'}"
            )
    for config in tuned.configs:
        missing = sorted(tuned._names - set(config.constants))
        if missing:
            raise ArgumentError(f"{what}: {config} lacks {listing(missing)}, which other configurations give")
    free = [p.name for p in kernel.parameters if p.name not in tuned._names]
    for title, names, allowed in (
        ("key", tuned.settings.key, free),
        ("restore_value", tuned.settings.restore_value, kernel.runtime_names),
        ("reset_to_zero", tuned.settings.reset_to_zero, kernel.runtime_names),
    ):
        for name in names:
            if name not in allowed:
                raise ArgumentError(f"{what}: {title} names {name!r}, which is not among {listing(allowed)}")


def _key_value(value: Any) -> Any:
    """Key of an argument."""
    if isinstance(value, (bool, int, float, str, np.generic)) or value is None:
        return constants_key({"value": value})
    shape = getattr(value, "shape", None)
    return tuple(shape) if shape is not None else constants_key({"value": value})


def _shown(value: Any) -> str:
    """An argument in the title of a tuning: an array by its shape."""
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None or shape == () else "x".join(map(str, shape))
