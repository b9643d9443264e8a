"""`kernel.emulate` and `kernel.emulator`: the IR runs on the CPU, with the bits of the hardware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensorcore_dsl.errors import public
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.interpreter.debugging.trace import Traced
from tensorcore_dsl.kernel.compiled import CompiledKernel
from tensorcore_dsl.kernel.specialisation import Specialisation
from tensorcore_dsl.origins import is_library_kernel
from tensorcore_dsl.runtime.launch_config import LaunchConfig, LaunchKey, configuration
from tensorcore_dsl.runtime.targets import emulated_arch


@dataclass(frozen=True)
class Emulator:
    """`kernel.emulate[grid, block](...)`: runs the IR on the CPU, with the bits of the hardware."""

    kernel: CompiledKernel
    arch: str | None = None
    checks: bool | None = None
    profile: bool = False
    order: int | None = None
    trace: Traced = ()
    timeline: bool | int = False

    @public
    def __getitem__(self, key: LaunchKey) -> Callable[..., Report]:
        config, _ = configuration(f"{self.kernel.__name__}.emulate", key)
        return partial(self.run, config)

    @public
    def run(self, config: LaunchConfig, /, *args: Any, **named_args: Any) -> Report:
        """Run all blocks; arrays are written in place."""
        runtime, constants = self.kernel.split(args, named_args)
        chosen = self.compiled(runtime, constants)
        checks = self.checks is not False
        how = self._checks_indices(), self.profile, self.order, self.trace, self.timeline
        return chosen.emulate(config, runtime, checks, *how)

    def compiled(self, runtime: Sequence[Any], constants: dict[str, Any]) -> Specialisation:
        """The specialisation that it runs, with its program."""
        types, arch = self.kernel.types_of(runtime), self.arch or emulated_arch()
        chosen = self.kernel.specialised(types, constants, arch, self._checks_indices())
        _ = chosen.program
        return chosen

    def _checks_indices(self) -> bool:
        if self.checks is not None:
            return self.checks
        # those of the library are tested with checks, and emulate without
        return self.kernel.checks_indices(not is_library_kernel(self.kernel.function.__module__))
