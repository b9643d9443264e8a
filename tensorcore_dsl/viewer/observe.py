"""Run a script and observe launches of its kernels: their code, counts, timeline and findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tensorcore_dsl.checking.copies import copied
from tensorcore_dsl.checking.findings import CheckResult
from tensorcore_dsl.checking.script import run, source_of
from tensorcore_dsl.checking.session import Session, Stopped, launching_in
from tensorcore_dsl.errors import ArgumentError, EmulationError, TensorCoreError, listing
from tensorcore_dsl.export.from_text import arguments_of, kernel_in_file
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.kernel.emulation import PreparedLaunch
from tensorcore_dsl.kernel.specialisation import Specialisation
from tensorcore_dsl.runtime.host_arrays import on_host
from tensorcore_dsl.runtime.launch_config import LaunchConfig


@dataclass
class Observed:
    """One launch, or a kernel that is only compiled.

    Attributes
    ----------
    chosen : Specialisation
        The specialisation for a GPU.
    config : LaunchConfig or None
        None without a launch.
    arguments
        Run-time arguments or their types.
    report : Report or None
        None if the emulator stopped with an error.
    """

    name: str
    chosen: Specialisation
    config: LaunchConfig | None
    arguments: Sequence[Any]
    result: CheckResult
    report: Report | None


class ObservingSession(Session):
    """Observes the launch `number` of the kernel `wanted`, or of each kernel if it is None."""

    checks = None

    def __init__(self, wanted: str | None, number: int) -> None:
        super().__init__()
        self.wanted, self.number = wanted, number
        self.launches: Counter[str] = Counter()
        self.foreign: set[str] = set()  # kernels of other compilers
        self.observed: list[Observed] = []

    def run(self, kernel: str, launch: Callable[[], Report]) -> Report:
        return Report() if self.sees(kernel, launch) else super().run(kernel, launch)

    def sees(self, kernel: str, launch: Callable[[], Report]) -> bool:
        if not isinstance(launch, PreparedLaunch):
            self.foreign.add(kernel)
            return False
        self.launches[kernel] += 1
        if self.launches[kernel] != self.number or self.wanted not in (None, kernel):
            return False
        self.observed.append(_observe(kernel, launch))
        if self.wanted is not None:
            raise Stopped
        return True


def _observe(name: str, launch: PreparedLaunch) -> Observed:
    """Profile a launch on copies of its arrays, then run it with all checks."""
    emulator, config, arguments = launch.emulator, launch.config, launch.arguments
    kernel, types, constants = emulator.kernel, launch.chosen.types, launch.chosen.constants
    build = kernel.specialised(types, constants, launch.chosen.arch)
    report = None
    plain = replace(emulator, checks=False, profile=True, timeline=True)
    with suppress(EmulationError), on_host(arguments) as arrays:
        report = plain.launch(config, copied(arrays), build)
    checked = replace(emulator, checks=True)

    def run_with_checks() -> Report:
        with suppress(TensorCoreError):  # without an assembler it is emulated all the same
            _ = build.cubin  # warns of what costs speed
        return checked.launch(config, arguments, checked.compiled(arguments, constants), launch.queued)

    result = CheckResult()
    result.collect(name, run_with_checks)
    return Observed(name, build, config, arguments, result, report)


def compiled(target: str, types: Sequence[str], arch: str | None = None) -> list[Observed]:
    """Compile the kernel FILE:KERNEL for argument types in the syntax of `tensorcore-dsl compile`."""
    kernel, names = kernel_in_file(target)
    chosen = kernel.specialise((), arguments_of(kernel, types, names), arch)
    return [Observed(kernel.__name__, chosen, None, chosen.types, CheckResult(), None)]


def observe(
    script: str, wanted: str | None, arguments: Sequence[str] = (), number: int = 1, arch: str | None = None
) -> list[Observed]:
    """Run a script, emulated, until the launch `number` of its kernel `wanted`.

    wanted: None runs it to its end and observes each kernel. Raises ArgumentError if there is no such
    launch.
    """
    source = source_of(script)
    with launching_in(ObservingSession(wanted, number), arch) as session:
        failure = run(source, script, arguments)
    if not session.observed:
        raise _nothing_to_show(script, session, failure)
    return session.observed


def _nothing_to_show(script: str, session: ObservingSession, failure: str) -> TensorCoreError:
    """Make the error for a script without the wanted launch. It is ArgumentError unless the script failed."""
    wanted, count = session.wanted, session.launches[session.wanted or ""]
    kernels = [f"{name} ({n} launches)" if n > 1 else name for name, n in sorted(session.launches.items())]
    launched = f"; it launches {listing(kernels)}" if kernels else ""
    if failure:
        return TensorCoreError(f"{script} fails before a launch that `view` can show: {failure}{launched}")
    if wanted in session.foreign or (session.foreign and not kernels):
        return ArgumentError(
            f"`view` shows kernels of @tc.kernel; of another compiler: {listing(sorted(session.foreign))}. "
            f"`tensorcore-dsl check {script}` runs them with all checks, and tc.ptx loads their PTX"
        )
    if session.number > 1 and (count or wanted is None):
        most = count or max(session.launches.values(), default=0)
        return ArgumentError(
            f"{script} has no launch {session.number} of {wanted or 'any kernel'}{launched}: --launch takes "
            f"{f'1 to {most}' if most > 1 else '1'}"
        )
    return ArgumentError(
        f"{script} makes no launch of {f'the kernel {wanted!r}' if wanted else 'any kernel'}{launched}. "
        "`view` runs the file as a script: launch the kernel in it, give a script that does, or "
        "types of its arguments: `view --types FILE:KERNEL TYPE ...` compiles it without a run"
    )
