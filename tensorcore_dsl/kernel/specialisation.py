"""A kernel for given types, Const values and architecture: its IR, PTX, cubin, and emulation."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.codegen import assemble, ir_cache, kernel_cache
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.codegen.diagnostics import Diagnostic, diagnostics_of
from tensorcore_dsl.codegen.line_table import source_lines, wanted
from tensorcore_dsl.codegen.ptx import entry_name, extern_shared, print_kernel
from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.frontend.compile import compile_kernel
from tensorcore_dsl.interpreter import EmulatedLaunch, GlobalPointer, Program, Report, compile_program
from tensorcore_dsl.interpreter.core.geometry import PerRank
from tensorcore_dsl.interpreter.debugging.debugger import Debugger
from tensorcore_dsl.interpreter.debugging.debugger import enabled as debugger_enabled
from tensorcore_dsl.interpreter.debugging.trace import Recorder, Traced
from tensorcore_dsl.interpreter.execution.machine import Observer
from tensorcore_dsl.interpreter.launch import varying
from tensorcore_dsl.interpreter.memory.global_memory import TensorMapArgument
from tensorcore_dsl.interpreter.sanitizer.stream_order import Queued
from tensorcore_dsl.interpreter.scheduling.orders import Order
from tensorcore_dsl.interpreter.sync.grids import Overlap
from tensorcore_dsl.interpreter.timeline.recorder import recorder_of
from tensorcore_dsl.interpreter.timeline.timeline import Timeline
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.kernel.definition import Definition
from tensorcore_dsl.runtime.arguments import ArrayType, ScalarType, describe
from tensorcore_dsl.runtime.devices import current_devices
from tensorcore_dsl.runtime.host_arrays import on_host
from tensorcore_dsl.runtime.launch_config import LaunchConfig
from tensorcore_dsl.runtime.tensor_maps import tiled

log = logging.getLogger(__name__)
MAX_KEPT = 128  # specialisations that keep IR, PTX and program: 2 to 6 MiB each
_DERIVED = ("ir", "ptx", "ptx_with_lines", "program", "debug_ir", "debug_program")


class Specialisation(EagerDict):
    """A kernel for given argument types, Const values and architecture.

    checks: whether indices and assertions are checked. None: assertions only.
    """

    def __init__(
        self,
        kernel: Definition,
        types: tuple[Any, ...],
        constants: dict[str, Any],
        arch: Arch,
        checks: bool | None = None,
    ) -> None:
        self.kernel, self.types, self.constants, self.arch = kernel, types, constants, arch
        self.checks = checks
        self.programs: dict[Any, Program] = {}  # of launches on several devices

    def used(self) -> None:
        """Mark this specialisation as the most recently used.

        The least recently used ones beyond MAX_KEPT drop their IR, PTX and programs, which are made again
        on demand.
        """
        with _changing:
            _kept.pop(self, None)
            _kept[self] = None
            if len(_kept) > MAX_KEPT:
                oldest = next(iter(_kept))
                del _kept[oldest]
                oldest.programs.clear()
                for name in _DERIVED:
                    vars(oldest).pop(name, None)

    @cached_property
    def ir(self) -> nodes.Kernel:
        """The IR, from the disk cache if possible."""
        key = self.kernel, self.types, self.constants, self.arch, self.checks
        return ir_cache.kept(*key, compile_kernel)

    @cached_property
    def ptx(self) -> str:
        return print_kernel(self.ir, self.arch)

    @cached_property
    def ptx_with_lines(self) -> str:
        return print_kernel(self.ir, self.arch, lineinfo=True)

    @cached_property
    def cubin(self) -> Cubin:
        """The machine code, from the disk cache if possible. Warns of spills and other losses of speed.

        A build with checks is slow anyway, so it gives no warnings.
        """
        cubin, diagnostics = self._cached_or_assembled()
        for diagnostic in () if self.checks else diagnostics:
            diagnostic.warn(self.kernel.__name__)
        return cubin

    def _cached_or_assembled(self) -> tuple[Cubin, tuple[Diagnostic, ...]]:
        kernel, assembler, lineinfo = self.kernel, assemble.versions(), wanted(self.kernel.lineinfo)
        entry = kernel_cache.entry_name(
            kernel, self.types, self.constants, self.arch, assembler, lineinfo, self.checks
        )
        cached = kernel_cache.load(entry)
        if cached is not None:
            log.debug("%s for %s: machine code is in the cache", kernel.__name__, self.arch)
            return cached
        began = time.perf_counter()
        cubin = replace(
            assemble.assemble(
                self.ptx_with_lines if lineinfo else self.ptx,
                self.arch,
                entry_name(self.ir.name),
                lineinfo=lineinfo,
            ),
            block_shared=extern_shared(self.ir),
            threads=self.ir.threads,
            cluster=self.ir.cluster,
            tensor_maps=self.tensor_maps,
            checks=bool(self.checks),
        )
        code = kernel.function.__code__
        defined = (code.co_filename, code.co_firstlineno)
        lines = lambda: source_lines(self.ptx_with_lines, self.ir, counted=lineinfo)
        diagnostics = diagnostics_of(cubin, defined, lines)
        kernel_cache.store(entry, cubin, diagnostics)
        milliseconds = 1e3 * (time.perf_counter() - began)
        registers = cubin.resources.registers
        log.info(
            "%s for %s: assembled in %.0f ms, %s registers",
            kernel.__name__,
            self.arch,
            milliseconds,
            registers,
        )
        return cubin, diagnostics

    @property
    def tensor_maps(self) -> tuple[nodes.TensorMap, ...]:
        return tuple(p.tensor_map for p in self.ir.params if p.tensor_map is not None)

    @cached_property
    def program(self) -> Program:
        return compile_program(self.ir)

    @cached_property
    def debug_ir(self) -> nodes.Kernel:
        """The IR of a debug build, which computes the same."""
        key = self.kernel, self.types, self.constants, self.arch
        return compile_kernel(*key, self.checks, debug=True)

    @cached_property
    def debug_program(self) -> Program:
        return compile_program(self.debug_ir)

    def emulate(
        self,
        config: LaunchConfig,
        args: Sequence[Any],
        checks: bool,
        races: bool,
        profile: bool,
        order: Order | None,
        traced: Traced,
        limit: int | None = None,
        timeline: bool | int = False,
        queued: Queued | None = None,
        overlap: Overlap | None = None,
    ) -> Report:
        """Run on the CPU; arrays are written in place."""
        recorder = Recorder(traced)
        observers: list[Observer] = [recorder] if recorder.wanted else []
        if self.ir.stops and debugger_enabled():
            observers.append(Debugger())
        ir, program = (self.debug_ir, self.debug_program) if observers else (self.ir, self.program)
        group = current_devices()
        config = config.of_kernel(threads=self.ir.threads, cluster=self.ir.cluster)
        if recorder.wanted:
            recorder.check(ir, config.block)
        timed = recorder_of(timeline)
        values: list[Any] = []
        names = self.kernel.runtime_names
        with on_host(args) as arrays:
            for array, kind, name in zip(arrays, self.types, names, strict=True):
                values += _parameter_values(array, kind, name)
            for m in self.tensor_maps:
                values.append(_map_argument(arrays[m.argument], m, names[m.argument]))
            if group is not None:
                program = self._program_of_devices(ir, varying(values))
            report = EmulatedLaunch(
                ir,
                config.grid,
                config.block,
                values,
                arch=self.arch.name,
                dynamic_shared=config.shared_bytes,
                checks=checks,
                program=program,
                cluster=config.cluster,
                profile=profile,
                order=order,
                observers=observers,
                races=races,
                limit=limit,
                cooperative=config.cooperative,
                recorder=timed,
                queued=queued,
                overlap=overlap,
                devices=1 if group is None else group.count,
            ).run()
        if recorder.wanted:
            report.trace = recorder.trace
        if timed is not None and not config.is_empty:
            report.timeline = Timeline.of(timed, self.ir.name, config.block, self._registers)
        return report

    def _program_of_devices(self, ir: nodes.Kernel, differ: frozenset[int]) -> Program:
        """Return the program for devices whose values of the parameters `differ` are not equal."""
        key = ir is self.ir, differ
        if key not in self.programs:
            self.programs[key] = compile_program(ir, differ)
        return self.programs[key]

    def _registers(self) -> int | None:
        """Registers of a thread; None for a build with checks, and without an assembler."""
        if self.checks:
            return None
        try:
            return self.cubin.resources.registers
        except TensorCoreError:
            return None


_kept: WeakKeyDictionary[Specialisation, None] = WeakKeyDictionary()  # least recently used first
_changing = Lock()


def _parameter_values(argument: Any, kind: Any, name: str) -> list[Any]:
    """Return the values of the IR parameters of one argument, in the order of `Packer`."""
    if isinstance(argument, PerRank):
        each = [_parameter_values(one, kind, f"{name}[{rank}]") for rank, one in enumerate(argument)]
        return [PerRank(values) for values in zip(*each, strict=True)]
    if kind is None:
        return []
    if isinstance(kind, ScalarType):
        return [describe(argument, name, kind.dtype).value]
    described = describe(argument, name)
    strides = [s for s, unit in zip(described.strides, kind.unit, strict=True) if not unit]
    return [GlobalPointer(argument, name, kind.writable), *described.shape, *strides]


def _map_argument(argument: Any, tensor_map: nodes.TensorMap, name: str) -> Any:
    if isinstance(argument, PerRank):
        maps = [_map_argument(one, tensor_map, f"{name}[{rank}]") for rank, one in enumerate(argument)]
        return PerRank(maps)
    described = describe(argument, name)
    tiled(described, tensor_map, f"argument {name!r}")
    writable = isinstance(described.type, ArrayType) and described.type.writable
    m = tensor_map
    return TensorMapArgument(argument, name, m.axes, m.box, m.swizzle, writable, m.im2col, m.nan_fill)
