"""Kernels of Numba's `@cuda.jit`, run in emulation: Numba compiles them to PTX without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from tensorcore_dsl.arch import arch as arch_of
from tensorcore_dsl.environment.numba_cuda import numba_cuda
from tensorcore_dsl.errors import ArgumentError, public
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.ptx.module import PtxKernel, load
from tensorcore_dsl.runtime.host_arrays import on_host
from tensorcore_dsl.runtime.launch_config import LaunchConfig, LaunchKey, configuration


@public
def from_numba(kernel: Any, arch: str = "sm_90a") -> NumbaKernel:
    """A kernel of Numba's `@cuda.jit`, or a function that could be one, for the CPU.

    Parameters
    ----------
    kernel : CUDADispatcher or function
        `@cuda.jit` may have `fastmath=True`; its signatures are not used.
    arch : str
        The architecture that it is compiled for, and whose bits it gives.

    Returns
    -------
    NumbaKernel
        `kernel[grid, block](*arguments)` takes NumPy's arrays, numbers and tuples, as Numba does.

    Raises
    ------
    ArgumentError
        What is no function.

    Examples
    --------
    >>> def double(x):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         x[i] *= 2
    >>> from numba import cuda                                                     # doctest: +SKIP
    >>> x = np.arange(100.0)                                                       # doctest: +SKIP
    >>> report = tc.ptx.from_numba(cuda.jit(double))[4, 32](x)                     # doctest: +SKIP
    """
    options = getattr(kernel, "targetoptions", {})
    function = getattr(kernel, "py_func", kernel)
    if not hasattr(function, "__code__"):
        raise ArgumentError(f"{kernel!r} is no kernel of Numba, nor a function that could be one")
    return NumbaKernel(function, arch, bool(options.get("fastmath")))


@dataclass(frozen=True)
class NumbaKernel:
    """A kernel of Numba; `kernel[grid, block](*arguments)` runs it on the CPU, with all checks.

    Attributes
    ----------
    function : function
        The kernel's own.
    arch : str
        The architecture that it is compiled for.
    fastmath : bool
        As for `@cuda.jit`.
    checks : bool
        All of them, those of races included; else those of bounds alone.
    """

    function: Callable[..., Any]
    arch: str
    fastmath: bool = False
    checks: bool = True
    _compiled: dict[Any, PtxKernel] = field(default_factory=dict, repr=False, compare=False)

    @public
    def emulator(self, *, checks: bool = True) -> NumbaKernel:
        """The kernel with fewer checks.

        Parameters
        ----------
        checks : bool
            All checks, those of races included; else those of bounds alone.

        Returns
        -------
        NumbaKernel
            To be launched.
        """
        return replace(self, checks=checks)

    @public
    def __getitem__(self, key: LaunchKey) -> Callable[..., Report]:
        config, _ = configuration(self.function.__name__, key)
        return partial(self._run, config)

    def _run(self, config: LaunchConfig, *arguments: Any) -> Report:
        with on_host([part for x in arguments for part in _flat(x)]) as flat:
            parts = iter(flat)
            given = [_rebuilt(x, parts) for x in arguments]
            kernel = self.compiled(*given).emulator(checks=self.checks)
            values = [value for x in flat for value in _values(x)]
            return kernel[config.grid, config.block, None, config.shared_bytes](*values)

    @public
    def compiled(self, *arguments: Any) -> PtxKernel:
        """The kernel in PTX, for the types of some arguments.

        Parameters
        ----------
        *arguments : array or number
            As for a launch.

        Returns
        -------
        PtxKernel
            Its parameters are those of Numba: of an array two that are unused, its elements, the bytes
            of one, its address, its extents and its strides in bytes.
        """
        from numba import typeof, void

        cuda = numba_cuda()

        types = tuple(map(typeof, arguments))
        if types not in self._compiled:
            capability = divmod(arch_of(self.arch).number, 10)
            device = SimpleNamespace(compute_capability=capability)
            dispatcher = import_module("numba.cuda.dispatcher")  # which compiles device functions for a GPU
            with mock.patch.object(dispatcher, "get_current_device", lambda: device):
                text, _ = cuda.compile(  # type: ignore[attr-defined]
                    self.function,
                    void(*types),
                    cc=capability,
                    device=False,
                    abi="numba",
                    fastmath=self.fastmath,
                    lineinfo=True,
                )
            module = load(text)
            (name,) = module
            self._compiled[types] = module[name].emulator(self.arch)
        return self._compiled[types]


def _flat(x: Any) -> Iterator[Any]:
    """The items of tuples, also of those in tuples."""
    if isinstance(x, tuple):
        for item in x:
            yield from _flat(item)
    else:
        yield x


def _rebuilt(x: Any, parts: Iterator[Any]) -> Any:
    """A value with the next of its parts in their places."""
    return tuple(_rebuilt(item, parts) for item in x) if isinstance(x, tuple) else next(parts)


def _values(x: Any) -> Iterator[Any]:
    """The parameters that one argument has in PTX."""
    if isinstance(x, np.ndarray):
        yield from (0, 0, x.size, x.itemsize, x, *x.shape, *x.strides)
    elif isinstance(x, (bool, int, float, np.bool_, np.integer, np.floating)):
        yield x
    else:
        raise ArgumentError(
            f"a {type(x).__name__} as an argument of a kernel of Numba: arrays, numbers, tuples are allowed"
        )
