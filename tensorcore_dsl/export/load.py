"""`load_exported(path)`: launches an exported kernel from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorcore_dsl.codegen.assemble import assemble
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.errors import ArgumentError, LaunchError, listing, public
from tensorcore_dsl.export.interface import Argument, Interface
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.arguments import ArrayType, Description, ScalarType, describe
from tensorcore_dsl.runtime.launch import Launcher
from tensorcore_dsl.runtime.launch_config import Dims, LaunchConfig
from tensorcore_dsl.runtime.targets import current_target


@public
def load_exported(path: str | Path) -> ExportedKernel:
    """Load a kernel that `kernel.export` has written, to launch it without its Python source.

    Parameters
    ----------
    path : str or Path
        The path of the JSON file. The file with the code is in the same folder.

    Returns
    -------
    ExportedKernel
        The kernel. A call with the arguments launches it.

    Raises
    ------
    ArgumentError
        The file describes no kernel, or one of another version of the format.

    Examples
    --------
    On a machine with a GPU::

        scale = tc.load_exported("exported/scale.json")
        scale(x, 2.0)
    """
    return ExportedKernel(Interface.read(Path(path)))


class ExportedKernel:
    """A kernel that was exported. A call launches it on the GPU.

    `load_exported` makes it.

    Attributes
    ----------
    interface : Interface
        Names and types of the arguments, and the configuration.
    """

    def __init__(self, interface: Interface) -> None:
        self.interface = interface
        self._launchers: dict[Any, Launcher] = {}
        self._assembled: Cubin | None = None

    def __repr__(self) -> str:
        arguments = ", ".join(f"{a.name}: {a.type}" for a in self.interface.arguments)
        return f"<exported kernel {self.interface.name}({arguments}) for {self.interface.cubin.arch}>"

    @public
    def __call__(self, /, *args: Any, grid: Dims | None = None, stream: Any = None) -> None:
        """Launch with these arguments.

        Parameters
        ----------
        *args : array or number
            The arguments in the order of the interface; None where the kernel was compiled for None.
        grid : int or tuple of int, optional
            CTAs. None: the rule that the kernel was exported with.
        stream : stream, optional
            A stream, as for `kernel[grid, block, stream]`.

        Raises
        ------
        ArgumentError
            Arguments that the kernel was not compiled for; no grid.
        LaunchError
            There is no GPU, or it is of another architecture.
        """
        if current_target() == "cpu":
            raise LaunchError(
                f"{self.interface.name} is machine code for {self.interface.cubin.arch}, which needs a GPU; "
                "the kernel in Python also runs on the CPU"
            )
        names = [argument.name for argument in self.interface.arguments]
        if len(args) != len(names):
            raise ArgumentError(
                f"{self.interface.name} takes {len(names)} arguments ({listing(names)}); "
                f"{len(args)} were given"
            )
        if grid is None:
            grid = self._grid(args)
        self.launcher(grid, stream)(*args)

    def _grid(self, args: Sequence[Any]) -> tuple[int, ...]:
        if self.interface.grid is None:
            raise ArgumentError(f"{self.interface.name} was exported without a grid: give grid=")
        values = {}
        for argument, value in zip(self.interface.arguments, args, strict=True):
            is_array = isinstance(argument.type, ArrayType)
            name = argument.name
            values[name] = describe(value, f"argument {name!r}") if is_array else value
        return self.interface.grid.blocks(values)

    def launcher(self, grid: Dims, stream: Any = None) -> Launcher:
        """Return the launcher for a grid and a stream."""
        config = self.interface.config
        exact = LaunchConfig.of(
            grid, config.block, config.shared_bytes, config.cluster, config.cooperative, config.pdl
        )
        exact = replace(exact, cluster_in_code=config.cluster_in_code)
        key = (exact.grid, id(stream))
        launcher = self._launchers.get(key)
        if launcher is None:
            arguments = self.interface.arguments
            launcher = self._launchers[key] = _Launcher(
                lambda types: self._cubin(),
                exact,
                driver.cuda_driver(),
                stream,
                [argument.name for argument in arguments],
                [a.type.dtype if isinstance(a.type, ScalarType) else None for a in arguments],
            )
            launcher.exported = arguments
        return launcher

    def _cubin(self) -> Cubin:
        """The machine code. PTX is compiled for the architecture that it was written for."""
        cubin = self.interface.cubin
        if not self.interface.code.endswith(".ptx"):
            return cubin
        if self._assembled is None:
            machine_code = assemble(cubin.code.decode(), cubin.arch, cubin.name)
            self._assembled = replace(
                cubin, code=machine_code.code, ptx=machine_code.ptx, log=machine_code.log
            )
        return self._assembled


class _Launcher(Launcher):
    """A launcher that accepts arguments which fit the types of `exported`, such as a better alignment."""

    exported: Sequence[Argument] = ()

    def _describe(self, args: Sequence[Any]) -> list[Description]:
        described = super()._describe(args)
        return [_as_exported(d, argument) for d, argument in zip(described, self.exported, strict=True)]


def _as_exported(passed: Description, argument: Argument) -> Description:
    """Replace a description's type by the compiled type; ArgumentError if it does not fit."""
    kind, wanted = passed.type, argument.type
    fits = kind == wanted
    if isinstance(kind, ArrayType) and isinstance(wanted, ArrayType):
        fits = (
            (kind.dtype, kind.ndim) == (wanted.dtype, wanted.ndim)
            and kind.align >= wanted.align
            and all(one or not needed for one, needed in zip(kind.unit, wanted.unit, strict=True))
            and (kind.writable or not wanted.writable)
            and argument.shape in (None, passed.shape)
        )
    if not fits:
        shape = "" if argument.shape is None else f" of shape {argument.shape}"
        passed_shape = f" of shape {passed.shape}" if isinstance(kind, ArrayType) and shape else ""
        raise ArgumentError(
            f"argument {argument.name!r} is {kind}{passed_shape}; the exported kernel takes {wanted}{shape}"
        )
    return passed._replace(type=wanted)
