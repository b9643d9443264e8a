"""`kernel.emulate` and `kernel.emulator`: the IR runs on the CPU, with the bits of the hardware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensorcore_dsl.errors import PACKAGE, public
from tensorcore_dsl.interpreter import GlobalPointer, Report, run
from tensorcore_dsl.interpreter.debugging.debugger import Debugger
from tensorcore_dsl.interpreter.debugging.debugger import enabled as debugger_enabled
from tensorcore_dsl.interpreter.debugging.trace import Recorder, Traced
from tensorcore_dsl.interpreter.execution.machine import Observer
from tensorcore_dsl.interpreter.memory.global_memory import TensorMapArgument
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.kernel.compiled import CompiledKernel
from tensorcore_dsl.kernel.specialisation import Specialisation
from tensorcore_dsl.runtime.arguments import ArrayType, ScalarType, describe
from tensorcore_dsl.runtime.host_arrays import on_host
from tensorcore_dsl.runtime.launch_config import LaunchConfig, configuration
from tensorcore_dsl.runtime.targets import emulated_arch
from tensorcore_dsl.runtime.tensor_maps import tiled


@dataclass(frozen=True)
class Emulator:
    """`kernel.emulate[grid, block](...)`: runs the IR on the CPU, with the bits of the hardware."""

    kernel: CompiledKernel
    arch: str | None = None
    checks: bool | None = None
    profile: bool = False
    order: int | None = None
    trace: Traced = ()

    @public
    def __getitem__(self, key: Any) -> Callable[..., Report]:
        config, _ = configuration(f"{self.kernel.__name__}.emulate", key)
        return partial(self.run, config)

    @public
    def run(self, config: LaunchConfig, /, *args: Any, **named_args: Any) -> Report:
        """Run all blocks; arrays are written in place."""
        runtime, constants = self.kernel.split(args, named_args)
        chosen = self.compiled(runtime, constants)
        checks = self.checks is not False
        return _run(chosen, config, runtime, checks, self.profile, self.order, self.trace)

    def compiled(self, runtime: Sequence[Any], constants: dict[str, Any]) -> Specialisation:
        """The specialisation that it runs, with its program."""
        types, arch = self.kernel.types_of(runtime), self.arch or emulated_arch()
        chosen = self.kernel.specialised(types, constants, arch, self._checks_indices())
        _ = chosen.program
        return chosen

    def _checks_indices(self) -> bool:
        if self.checks is not None:
            return self.checks
        return self.kernel.checks_indices(not is_library_kernel(self.kernel.function))


def is_library_kernel(function: Callable[..., Any]) -> bool:
    """Is it one of `tensorcore_dsl.kernels`, which are tested with checks and emulate without?"""
    return f"{function.__module__}.".startswith(f"{PACKAGE}.kernels.")


def _run(
    built: Specialisation, config: LaunchConfig, args: Sequence[Any], checks: bool,
    profile: bool, order: int | None, traced: Traced,
) -> Report:  # fmt: skip
    """Run a kernel on the CPU; arrays are written in place."""
    recorder = Recorder(traced)
    observers: list[Observer] = [recorder] if recorder.wanted else []
    if built.ir.stops and debugger_enabled():
        observers.append(Debugger())
    ir, program = (built.debug_ir, built.debug_program) if observers else (built.ir, built.program)
    config = config.of_kernel(threads=built.ir.threads, cluster=built.ir.cluster)
    values: list[Any] = []
    names = built.kernel.runtime_names
    with on_host(args) as arrays:
        for given, kind, name in zip(arrays, built.types, names, strict=True):
            values += _parameter_values(given, kind, name)
        for m in built.tensor_maps:
            values.append(_map_argument(arrays[m.argument], m, names[m.argument]))
        report = run(
            ir, config.grid, config.block, values, arch=built.arch.name,
            dynamic_shared=config.shared_bytes, checks=checks, program=program,
            cluster=config.cluster, profile=profile, order=order, observers=observers,
        )  # fmt: skip
    if recorder.wanted:
        recorder.check(ir)
        report.trace = recorder.trace
    return report


def _parameter_values(given: Any, kind: Any, name: str) -> list[Any]:
    """The values of the IR parameters of one argument, in the order of `Packer`."""
    if isinstance(kind, ScalarType):
        return [describe(given, name, kind.dtype).value]
    described = describe(given, name)
    strides = [s for s, unit in zip(described.strides, kind.unit, strict=True) if not unit]
    return [GlobalPointer(given, name, kind.writable), *described.shape, *strides]


def _map_argument(given: Any, tensor_map: nodes.TensorMap, name: str) -> TensorMapArgument:
    described = describe(given, name)
    tiled(described, tensor_map, f"argument {name!r}")
    writable = isinstance(described.type, ArrayType) and described.type.writable
    m = tensor_map
    return TensorMapArgument(given, name, m.axes, m.box, m.swizzle, writable)
