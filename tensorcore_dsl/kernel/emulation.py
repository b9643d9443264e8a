"""`kernel.emulate` and `kernel.emulator`: the IR runs on the CPU, with the bits of the hardware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorcore_dsl.checking.session import current_session
from tensorcore_dsl.errors import ArgumentError, public
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.interpreter.debugging.trace import Traced
from tensorcore_dsl.interpreter.execution.watchdog import limit_of
from tensorcore_dsl.interpreter.sanitizer.stream_order import Queued
from tensorcore_dsl.interpreter.scheduling.orders import Order
from tensorcore_dsl.interpreter.sync.grids import Overlap
from tensorcore_dsl.kernel import dump
from tensorcore_dsl.kernel.compiled import CompiledKernel
from tensorcore_dsl.kernel.specialisation import Specialisation
from tensorcore_dsl.origins import is_library_kernel
from tensorcore_dsl.runtime.arguments import NO_ARGUMENT, ScalarType, describe
from tensorcore_dsl.runtime.devices import current_devices
from tensorcore_dsl.runtime.events import queue_of
from tensorcore_dsl.runtime.launch_config import LaunchConfig, LaunchKey, configuration, refuse_call
from tensorcore_dsl.runtime.targets import emulated_arch


@dataclass(frozen=True)
class Emulator:
    """`kernel.emulate[grid, block](...)`: runs the IR on the CPU, with the bits of the hardware.

    checks: True enables all checks, False only bounds. None enables all in users' kernels, and only the
    cheap ones in tensorcore_dsl.kernels, whose tests run with all checks.
    """

    kernel: CompiledKernel
    arch: str | None = None
    checks: bool | None = None
    profile: bool = False
    order: Order | None = None
    trace: Traced = ()
    limit: int | None = None
    timeline: bool | int = False
    stream: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.profile, bool):
            raise ArgumentError(f"profile is {self.profile!r}; True or False are allowed")
        if self.checks is not None and not isinstance(self.checks, bool):
            raise ArgumentError(f"checks is {self.checks!r}; True, False or None are allowed")

    @public
    def __getitem__(self, key: LaunchKey) -> Callable[..., Report]:
        config, stream = configuration(f"{self.kernel.__name__}.emulate", key)
        return partial(replace(self, stream=stream).run, config)

    if not TYPE_CHECKING:  # checkers say it themselves

        @public
        def __call__(self, /, *args: Any, **named_args: Any) -> None:
            refuse_call(self.kernel.__name__, f"{self.kernel.__name__}.emulate")

    @public
    def run(self, config: LaunchConfig, /, *args: Any, **named_args: Any) -> Report:
        """Run all blocks; arrays are written in place."""
        kernel, args, named_args = self.kernel.with_peers(args, named_args)
        if kernel is not self.kernel:
            return replace(self, kernel=kernel).run(config, **named_args)
        runtime, constants = kernel.split(args, named_args)
        session, group = current_session(), current_devices()
        queued = queue_of(self.stream, config.pdl) if group is None else group.queue
        if session is None:
            return self.launch(config, runtime, self.compiled(runtime, constants), queued)
        order = session.order if self.order is None else self.order
        checked = replace(self, checks=session.checks, order=order)
        chosen = checked.compiled(runtime, constants)
        launch = PreparedLaunch(checked, config, runtime, chosen, queued)
        return session.run(self.kernel.__name__, launch)

    def launch(
        self,
        config: LaunchConfig,
        runtime: Sequence[Any],
        chosen: Specialisation,
        queued: Queued | None = None,
        overlap: Overlap | None = None,
    ) -> Report:
        """Run all CTAs of a specialisation with these run-time arguments.

        queued: the launch's position in its stream. None: no other launch uses its arrays.
        overlap: other launches that run at the same time.
        """
        if dump.wanted():
            build = self.kernel.specialised(chosen.types, chosen.constants, chosen.arch)
            names = self.kernel.runtime_names
            described = [
                NO_ARGUMENT
                if kind is None
                else describe(argument, name, kind.dtype if isinstance(kind, ScalarType) else None)
                for argument, name, kind in zip(runtime, names, chosen.types, strict=True)
            ]
            dump.dump_launch(build, config, described, "cpu")
        checks = self.checks is not False
        how = self.profile, self.order, self.trace, limit_of(self.limit), self.timeline
        races = bool(self._checks_indices())
        return chosen.emulate(config, runtime, checks, races, *how, queued, overlap)

    def compiled(self, runtime: Sequence[Any], constants: dict[str, Any]) -> Specialisation:
        """Return the specialisation to run, with its program."""
        types, arch = self.kernel.types_of(runtime), self.arch or emulated_arch()
        chosen = self.kernel.specialised(types, constants, arch, self._checks_indices())
        _ = chosen.program
        return chosen

    def _checks_indices(self) -> bool | None:
        if self.checks is not None:
            return self.checks
        # Tests run the library's kernels with checks, so users emulate them without.
        ours = is_library_kernel(self.kernel.function.__module__)
        return self.kernel.checks_indices(None if ours else True)


@dataclass(frozen=True)
class PreparedLaunch:
    """A launch inside a session; calling it runs it. queued: its position in its stream."""

    emulator: Emulator
    config: LaunchConfig
    arguments: Sequence[Any]
    chosen: Specialisation
    queued: Queued | None = None

    def __call__(self) -> Report:
        return self.emulator.launch(self.config, self.arguments, self.chosen, self.queued)

    def again(self, arguments: Sequence[Any], order: Order | None, overlap: Overlap) -> Report:
        """Run it again with other arguments of equal types, together with other launches."""
        emulator = replace(self.emulator, order=order)
        return emulator.launch(self.config, arguments, self.chosen, overlap=overlap)
