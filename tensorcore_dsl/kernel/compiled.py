"""A kernel that is compiled on demand, for each combination of types, Const values and target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.arch import arch as arch_named
from tensorcore_dsl.codegen.cubin import Resources
from tensorcore_dsl.environment.switches import is_on
from tensorcore_dsl.errors import public
from tensorcore_dsl.frontend.readings import Readings
from tensorcore_dsl.ir.text import format_kernel
from tensorcore_dsl.kernel.constants import constants_key
from tensorcore_dsl.kernel.definition import Definition
from tensorcore_dsl.kernel.specialisation import Specialisation
from tensorcore_dsl.runtime.targets import target_arch

CHECKS_VARIABLE = "TENSORCORE_DSL_CHECKS"  # on: every build checks indices


class CompiledKernel(Definition):
    """A kernel that shows its IR, PTX, machine code and resources, for arguments or their types."""

    def _prepare(self) -> None:
        super()._prepare()
        self._specialisations: dict[Any, Specialisation] = {}
        self._readings: Readings | None = None  # None: nothing is compiled yet

    def specialise(
        self, args: Sequence[Any], constants: dict[str, Any], arch: str | Arch | None = None
    ) -> Specialisation:
        """Return the specialisation for arguments (or their types) and Const values."""
        kernel, args, named = self.with_peers(tuple(args), constants)
        runtime, constants_by_name = kernel.split(args, named)
        return kernel.specialised(kernel.types_of(runtime), constants_by_name, arch)

    def renew(self) -> None:
        """Drop all specialisations if a global or enclosing value that the kernel reads has changed."""
        if self._readings is not None and self._readings.changed():
            self._specialisations, self._readings = {}, None

    def specialised(
        self, types: tuple[Any, ...], constants: dict[str, Any], arch: Any, checks: bool | None = None
    ) -> Specialisation:
        """Return the specialisation for types of run-time arguments and Const values.

        checks: whether indices and assertions are checked. None: the default of builds for the GPU.
        """
        chosen = arch_named(arch) if arch is not None else target_arch()
        checks = self.checks_indices(None) if checks is None else checks
        key = (types, constants_key(constants), chosen.name, checks)
        self.renew()
        known = self._specialisations.get(key)
        if known is None:
            self._readings = self._readings or Readings(self.function)
            self._readings.enter_constant(tuple(constants.values()))
            known = Specialisation(self, types, constants, chosen, checks)
            self._specialisations[key] = known
        known.used()
        return known

    def checks_indices(self, otherwise: bool | None) -> bool | None:
        """Whether a build checks indices: by the environment, the decorator, or `otherwise`.

        None: only assertions. False: neither.
        """
        if is_on(CHECKS_VARIABLE):
            return True
        return otherwise if self.checks is None else self.checks

    @public
    def ir(self, /, *args: Any, arch: str | Arch | None = None, **constants: Any) -> str:
        """The IR as text, which can be parsed again.

        Parameters
        ----------
        *args : array, number or type
            Arguments of a launch, or their types (`ArrayType`, `ScalarType`, a dtype).
        arch : str, optional
            None: the architecture on which kernels run now.
        **constants : value
            Values of Const parameters.

        Returns
        -------
        str
            One operation a line.

        Raises
        ------
        CompileError, ArgumentError
            A mistake in the kernel, at its line; arguments that do not fit.
        """
        return format_kernel(self.specialise(args, constants, arch).ir)

    @public
    def ptx(
        self, /, *args: Any, arch: str | Arch | None = None, lineinfo: bool = False, **constants: Any
    ) -> str:
        """The PTX text.

        Parameters
        ----------
        *args : array, number or type
            Arguments of a launch, or their types (`ArrayType`, `ScalarType`, a dtype).
        arch : str, optional
            None: the architecture on which kernels run now.
        lineinfo : bool
            Show the source lines that the machine code gets.
        **constants : value
            Values of Const parameters.

        Returns
        -------
        str
            A module with one entry.

        Raises
        ------
        CompileError, ArgumentError
            A mistake in the kernel, at its line; arguments that do not fit.
        """
        chosen = self.specialise(args, constants, arch)
        return chosen.ptx_with_lines if lineinfo else chosen.ptx

    @public
    def cubin(self, /, *args: Any, arch: str | Arch | None = None, **constants: Any) -> bytes:
        """The machine code; needs nvJitLink, but no GPU.

        Parameters
        ----------
        *args : array, number or type
            Arguments of a launch, or their types (`ArrayType`, `ScalarType`, a dtype).
        arch : str, optional
            None: the architecture on which kernels run now.
        **constants : value
            Values of Const parameters.

        Returns
        -------
        bytes
            An ELF file, as `nvdisasm` takes it.

        Raises
        ------
        AssemblyError
            There is no assembler, or it refuses the PTX.
        """
        return self.specialise(args, constants, arch).cubin.code

    @public
    def resources(self, /, *args: Any, arch: str | Arch | None = None, **constants: Any) -> Resources:
        """Registers, spills, shared memory and warnings, from the assembler.

        Parameters
        ----------
        *args : array, number or type
            Arguments of a launch, or their types (`ArrayType`, `ScalarType`, a dtype).
        arch : str, optional
            None: the architecture on which kernels run now.
        **constants : value
            Values of Const parameters.

        Returns
        -------
        Resources
            registers, spill_stores, spill_loads (bytes of all such instructions) and local_bytes of
            a thread; shared_bytes and constant_bytes of a block; max_threads that the registers
            allow; warnings; `.spills`, whether there are any.

        Raises
        ------
        AssemblyError
            There is no assembler, or it refuses the PTX.
        """
        chosen = self.specialise(args, constants, arch)
        return replace(chosen.cubin.resources, shared_bytes=chosen.ir.shared_bytes)
