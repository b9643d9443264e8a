"""Kernels of Triton's `@triton.jit`, run in emulation: Triton compiles them to PTX without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from tensorcore_dsl.arch import arch as arch_of
from tensorcore_dsl.errors import ArgumentError, public
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.ptx.module import PtxKernel, load
from tensorcore_dsl.runtime.arguments import ArrayType, describe
from tensorcore_dsl.runtime.host_arrays import on_host

# Triton's names of element types.
TYPES = {
    **{"f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64", "e4m3": "fp8e4nv", "e5m2": "fp8e5"},
    **{f"s{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}


@public
def from_triton(
    kernel: Any, constants: Mapping[str, Any] | None = None, *, arch: str = "sm_80", **options: Any
) -> TritonKernel:
    """A kernel of Triton's `@triton.jit`, for the CPU.

    Parameters
    ----------
    kernel : JITFunction
        Of Triton.
    constants : mapping, optional
        The values of its parameters that are `tl.constexpr`.
    arch : str
        The architecture that it is compiled for, and whose bits it gives.
    **options
        Of Triton's compiler, such as `num_warps=8` and `num_stages=3`.

    Returns
    -------
    TritonKernel
        `kernel[grid](*arguments)` takes arrays and numbers for the other parameters, in their order.

    Raises
    ------
    UnsupportedSyntax
        At the launch: what `load` does not read.

    Examples
    --------
    >>> kernel = tc.ptx.from_triton(add, {"BLOCK": 128})                           # doctest: +SKIP
    >>> report = kernel[4](x, y, out, 500)                                         # doctest: +SKIP
    """
    if not hasattr(kernel, "arg_names"):
        raise ArgumentError(f"{kernel!r} is no kernel of Triton; @triton.jit makes one")
    given = dict(constants or {})
    unknown = given.keys() - set(kernel.arg_names)
    if unknown:
        raise ArgumentError(
            f"{kernel.__name__} has no parameter {', '.join(sorted(unknown))}; there are "
            + ", ".join(kernel.arg_names)
        )
    return TritonKernel(kernel, arch, given, options)


@dataclass(frozen=True)
class TritonKernel:
    """A kernel of Triton; `kernel[grid](*arguments)` runs it on the CPU, with all checks.

    Attributes
    ----------
    function : JITFunction
        Of Triton.
    arch : str
        The architecture that it is compiled for.
    constants : dict
        The values of its `tl.constexpr` parameters.
    options : dict
        Of Triton's compiler.
    checks : bool
        All of them, those of races included; else those of bounds alone.
    """

    function: Any
    arch: str
    constants: dict[str, Any]
    options: dict[str, Any]
    checks: bool = True
    _compiled: dict[Any, tuple[PtxKernel, int, int]] = field(default_factory=dict, repr=False, compare=False)

    @public
    def emulator(self, *, checks: bool = True) -> TritonKernel:
        """The kernel with fewer checks.

        Parameters
        ----------
        checks : bool
            All checks, those of races included; else those of bounds alone.

        Returns
        -------
        TritonKernel
            To be launched.
        """
        return replace(self, checks=checks)

    @public
    def __getitem__(self, grid: int | tuple[int, ...]) -> Callable[..., Report]:
        return partial(self._run, grid)

    def _run(self, grid: int | tuple[int, ...], *arguments: Any) -> Report:
        with on_host(arguments) as given:
            kernel, threads, shared = self.compiled(*given)
            extra = [0] * (len(kernel.declared) - len(given))
            return kernel.emulator(checks=self.checks)[grid, threads, None, shared](*given, *extra)

    @public
    def compiled(self, *arguments: Any) -> tuple[PtxKernel, int, int]:
        """The kernel in PTX for the types of some arguments, its threads and its shared memory.

        Parameters
        ----------
        *arguments : array or number
            As for a launch.

        Returns
        -------
        kernel : PtxKernel
            Its parameters are those of a launch, and pointers to memory of the driver.
        threads : int
            Of a block.
        shared : int
            Bytes of dynamic shared memory.
        """
        names = [name for name in self.function.arg_names if name not in self.constants]
        if len(arguments) != len(names):
            raise ArgumentError(
                f"{self.function.__name__} takes {len(names)} arguments ({', '.join(names)}), "
                f"{len(arguments)} were given"
            )
        types = tuple(_type(x, name) for x, name in zip(arguments, names, strict=True))
        if types not in self._compiled:
            from triton import compile as compiled  # type: ignore[import-not-found]
            from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found]
            from triton.compiler import ASTSource  # type: ignore[import-not-found]

            signature = dict(zip(names, types, strict=True)) | dict.fromkeys(self.constants, "constexpr")
            ordered = {name: signature[name] for name in self.function.arg_names}
            source = ASTSource(fn=self.function, signature=ordered, constexprs=self.constants)
            target = GPUTarget("cuda", arch_of(self.arch).number, 32)
            found = compiled(source, target=target, options=self.options)
            module = load(found.asm["ptx"])
            (name,) = module
            facts = found.metadata
            if facts.global_scratch_size:
                raise ArgumentError(f"{name} needs memory of the driver, which emulation does not have")
            kernel = module[name].emulator(self.arch)
            self._compiled[types] = kernel, 32 * facts.num_warps, facts.shared
        return self._compiled[types]


def _type(x: Any, name: str) -> str:
    """The type of an argument in Triton's words."""
    if isinstance(x, (bool, np.bool_)):
        return "i1"
    if isinstance(x, int):
        return "i32" if -(1 << 31) <= x < 1 << 31 else "i64"
    if isinstance(x, float):
        return "fp32"
    kind = describe(x, name).type
    found = TYPES.get(kind.dtype.name)
    if found is None:
        raise ArgumentError(f"argument {name} has elements of {kind.dtype}, which Triton does not have")
    return f"*{found}" if isinstance(kind, ArrayType) else found
