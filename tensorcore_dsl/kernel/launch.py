"""`kernel[grid, block]`: a kernel with its configuration, which launches on the GPU or the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pickle import PicklingError
from typing import Any

from tensorcore_dsl.errors import ArgumentError, TensorCoreError, hide_library, public
from tensorcore_dsl.kernel import dump
from tensorcore_dsl.kernel.compiled import CompiledKernel
from tensorcore_dsl.kernel.constants import constants_key
from tensorcore_dsl.kernel.emulation import Emulator
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.arguments import Description
from tensorcore_dsl.runtime.launch import Launcher
from tensorcore_dsl.runtime.launch_config import LaunchConfig, launch_text
from tensorcore_dsl.runtime.targets import current_target, device_arch, gpu_chosen


class Launch:
    """A kernel with its configuration; calling it launches.

    `kernel[grid, block]` and `kernel.configured(...)` make it. On the GPU it returns as soon as the
    launch is queued.

    Examples
    --------
    >>> @tc.kernel
    ... def double(x: tc.Array):
    ...     x[tc.threadIdx.x] *= 2
    >>> x = np.ones(32, np.float32)
    >>> launch = double[1, 32]
    >>> launch(x)
    >>> fast = launch.prepare(x)
    >>> fast(x)
    >>> float(x[0])
    4.0
    """

    def __init__(self, kernel: CompiledKernel, config: LaunchConfig, stream: Any) -> None:
        self.kernel, self.config, self.stream = kernel, config, stream
        self._launchers: dict[Any, Any] = {}
        first = kernel.parameters[: len(kernel.runtime_names)]
        self._count = -1 if any(p.const or p.peers for p in first) else len(first)  # of a launch by position
        self._default: Launcher | None = None  # with the default Const values, on the GPU
        self._compiled = kernel._specialisations  # which the launchers are made of

    def __repr__(self) -> str:
        return launch_text(self.kernel, vars(self.config), self.stream)

    def __reduce__(self) -> Any:
        if self.stream is not None:
            raise PicklingError(
                f"a launch of {self.kernel.__name__} on a stream cannot be pickled: streams belong "
                "to one process"
            )
        return _relaunch, (self.kernel, self.config)

    def __call__(self, /, *args: Any, **named_args: Any) -> None:
        positional = not named_args and len(args) == self._count
        try:  # like `public`, at no cost
            self._renew()
            if positional and self._default is not None and gpu_chosen():
                self._default.fast(*args)
            else:
                self._launch(positional, args, named_args)
        except TensorCoreError as error:
            hide_library(error)
            raise

    def _renew(self) -> None:
        """Drop the launchers if the code has changed."""
        kernel = self.kernel
        kernel.renew()
        if self._compiled is not kernel._specialisations:
            self._compiled, self._default = kernel._specialisations, None
            self._launchers.clear()

    def _launch(self, positional: bool, args: tuple[Any, ...], named_args: dict[str, Any]) -> None:
        """Launch without the fast path: on the CPU, or the first time with the default Const values."""
        if current_target() == "cpu":
            emulator = Emulator(self.kernel, stream=self.stream)
            emulator.run(self.config, *args, **named_args)
            return
        kernel, args, named_args = self.kernel.with_peers(args, named_args)
        if kernel is not self.kernel:
            self._with_peers(kernel)(**named_args)
            return
        runtime, constants = self.kernel.split(args, named_args)
        launcher = self.launcher(constants)
        if positional:
            self._default = launcher
        launcher(*runtime)

    def _with_peers(self, kernel: Any) -> Launch:
        """Return this launch for a kernel whose PeerArrays are expanded to arrays."""
        if kernel not in self._launchers:
            self._launchers[kernel] = Launch(kernel, self.config, self.stream)
        launch: Launch = self._launchers[kernel]
        return launch

    def launcher(self, constants: dict[str, Any]) -> Launcher:
        """Return the GPU launcher for these Const values."""
        key = constants_key(constants)
        launcher = self._launchers.get(key)
        if launcher is None:
            kernel = self.kernel
            launcher = self._launchers[key] = Launcher(
                lambda types: kernel.specialised(kernel.types_of(types), constants, device_arch()).cubin,
                self.config,
                driver.cuda_driver(),
                self.stream,
                kernel.runtime_names,
                [p.dtype for p in kernel.runtime_parameters],
                lambda arguments, config: self._planned(constants, arguments, config),
            )
        return launcher

    def _planned(
        self, constants: dict[str, Any], arguments: Sequence[Description], config: LaunchConfig
    ) -> None:
        """Dump a launch with new types or shapes, if TENSORCORE_DSL_DUMP is set."""
        if dump.wanted():
            types = tuple(argument.type for argument in arguments)
            build = self.kernel.specialised(types, constants, device_arch())
            dump.dump_launch(build, config, arguments, "cuda")

    @public
    def prepare(self, /, *args: Any, **named_args: Any) -> Callable[..., None]:
        """Compile and load for these arguments now.

        Parameters
        ----------
        *args : array or number
            As for the launch.
        **named_args : array, number or value
            Arguments by name, Const parameters among them.

        Returns
        -------
        function
            It takes run-time arguments, these or others, and launches with the least overhead; it
            keeps these alive.

        Raises
        ------
        ArgumentError
            Arguments that do not fit.
        CompileError, AssemblyError
            A mistake in the kernel, at its line; no assembler.
        """
        self._renew()
        kernel, args, named_args = self.kernel.with_peers(args, named_args)
        if kernel is not self.kernel:
            return self._with_peers(kernel).prepare(**named_args)
        runtime, constants = self.kernel.split(args, named_args)
        if current_target() == "cpu":
            return self._prepared_on_cpu(runtime, constants)
        return self.launcher(constants).prepared(*runtime)

    def _prepared_on_cpu(self, runtime: Sequence[Any], constants: dict[str, Any]) -> Callable[..., None]:
        kernel, names = self.kernel, self.kernel.runtime_names
        Emulator(kernel).compiled(runtime, constants)

        @public
        def launch(*arguments: Any) -> None:
            if len(arguments) != len(names):
                raise ArgumentError(
                    f"{kernel.__name__} was prepared for {len(names)} arguments "
                    f"({', '.join(names)}), {len(arguments)} were given"
                )
            self(**dict(zip(names, arguments, strict=True)), **constants)

        return launch


def _relaunch(kernel: Any, config: LaunchConfig) -> Any:
    """Restore a pickled launch."""
    options = {name: value for name, value in vars(config).items() if name != "cluster_in_code"}
    return kernel.configured(**options)
