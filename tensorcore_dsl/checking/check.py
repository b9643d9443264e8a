"""`kernel.check(grid, block)(...)`: one launch with all checks, on copies of the arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorcore_dsl.checking.copies import copied
from tensorcore_dsl.checking.findings import CheckResult
from tensorcore_dsl.checking.session import current_session
from tensorcore_dsl.errors import public
from tensorcore_dsl.kernel.emulation import Emulator, PreparedLaunch
from tensorcore_dsl.runtime.devices import by_rank
from tensorcore_dsl.runtime.host_arrays import on_host
from tensorcore_dsl.runtime.launch_config import LaunchConfig


@dataclass
class Check:
    """A launch that is checked when it is called.

    in_place: the launch writes the caller's arrays, not copies.
    """

    emulator: Emulator
    config: LaunchConfig
    in_place: bool = False

    @public
    def __call__(self, /, *args: Any, **named: Any) -> CheckResult:
        kernel, args, named = self.emulator.kernel.with_peers(args, named)
        if kernel is not self.emulator.kernel:
            return replace(self, emulator=replace(self.emulator, kernel=kernel))(**named)
        runtime, constants = kernel.split(args, named)
        result = CheckResult()
        if self.in_place:
            self._run(result, runtime, constants)
        else:
            with on_host(runtime) as arrays:
                self._run(result, copied(arrays), constants)
        return result

    def _run(self, result: CheckResult, runtime: Sequence[Any], constants: dict[str, Any]) -> None:
        kernel, emulator, session = self.emulator.kernel, self.emulator, current_session()
        if session is not None and emulator.order is None:
            emulator = replace(emulator, order=session.order)
        chosen = emulator.compiled(runtime, constants)
        launch = lambda: emulator.launch(self.config, runtime, chosen)
        if session is not None:
            session.sees(kernel.__name__, PreparedLaunch(emulator, self.config, copied(runtime), chosen))
        result.report = result.collect(kernel.__name__, launch)
        named = by_rank(kernel.runtime_names, runtime)
        result.arguments = {name: value for name, value in named if hasattr(value, "shape")}
        if session is not None:
            session.note(result)
