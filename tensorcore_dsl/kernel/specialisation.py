"""A specialisation: a kernel for given types, Const values and architecture, from IR to cubin."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.codegen import assemble, kernel_cache
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.codegen.diagnostics import Diagnostic, diagnostics_of
from tensorcore_dsl.codegen.line_table import source_lines, wanted
from tensorcore_dsl.codegen.ptx import entry_name, extern_shared, print_kernel
from tensorcore_dsl.frontend.compile import compile_kernel
from tensorcore_dsl.interpreter import Program, compile_program
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.kernel.definition import Definition


class Specialisation:
    """A kernel for given argument types, Const values and architecture; `checks`: of indices."""

    def __init__(
        self, kernel: Definition, types: tuple[Any, ...], constants: dict[str, Any], arch: Arch,
        checks: bool = False,
    ) -> None:  # fmt: skip
        self.kernel, self.types, self.constants, self.arch = kernel, types, constants, arch
        self.checks = checks

    @cached_property
    def ir(self) -> nodes.Kernel:
        return compile_kernel(self.kernel, self.types, self.constants, self.arch, self.checks)

    @cached_property
    def ptx(self) -> str:
        return print_kernel(self.ir, self.arch)

    @cached_property
    def ptx_with_lines(self) -> str:
        return print_kernel(self.ir, self.arch, lineinfo=True)

    @cached_property
    def cubin(self) -> Cubin:
        """The machine code, from the disk if it is there; warns of what costs speed in it.

        Checks cost speed anyway: of a build with checks it says nothing.
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
            return cached
        cubin = replace(
            assemble.assemble(
                self.ptx_with_lines if lineinfo else self.ptx, self.arch, entry_name(self.ir.name),
                lineinfo=lineinfo,
            ),
            block_shared=extern_shared(self.ir), threads=self.ir.threads,
            cluster=self.ir.cluster, tensor_maps=self.tensor_maps, checks=self.checks,
        )  # fmt: skip
        code = kernel.function.__code__
        defined = (code.co_filename, code.co_firstlineno)
        lines = lambda: source_lines(self.ptx_with_lines, self.ir, counted=lineinfo)
        diagnostics = diagnostics_of(cubin, defined, lines)
        kernel_cache.store(entry, cubin, diagnostics)
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
        given = self.kernel, self.types, self.constants, self.arch
        return compile_kernel(*given, self.checks, debug=True)

    @cached_property
    def debug_program(self) -> Program:
        return compile_program(self.debug_ir)
