"""Run Numba's `@cuda.jit` kernels in emulation: Numba compiles them to PTX without a GPU."""

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
    """Make a kernel for the CPU from Numba's `@cuda.jit`, or from a function without the decorator.

    Parameters
    ----------
    kernel : CUDADispatcher or function
        `@cuda.jit` may have `fastmath=True`. Its signatures are ignored.
    arch : str
        The architecture to compile for and to emulate.

    Returns
    -------
    NumbaKernel
        `kernel[grid, block](*arguments)` takes NumPy arrays, numbers and tuples, like Numba.

    Raises
    ------
    ArgumentError
        `kernel` is not a function.

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
        The Python function.
    arch : str
        The architecture to compile for and to emulate.
    fastmath : bool
        The option of `@cuda.jit`.
    checks : bool
        Whether races and all other errors are checked; otherwise only bounds are.
    """

    function: Callable[..., Any]
    arch: str
    fastmath: bool = False
    checks: bool = True
    _compiled: dict[Any, PtxKernel] = field(default_factory=dict, repr=False, compare=False)

    @public
    def emulator(self, *, checks: bool = True) -> NumbaKernel:
        """Return the kernel with other checks.

        Parameters
        ----------
        checks : bool
            Whether to check for races and all other errors. False checks only bounds.

        Returns
        -------
        NumbaKernel
            The kernel to launch.
        """
        return replace(self, checks=checks)

    @public
    def __getitem__(self, key: LaunchKey) -> Callable[..., Report]:
        config, _ = configuration(self.function.__name__, key)
        return partial(self._run, config)

    def _run(self, config: LaunchConfig, *arguments: Any) -> Report:
        with on_host([leaf for x in arguments for leaf in _flat(x)]) as flat:
            leaves = iter(flat)
            on_cpu = [_rebuilt(x, leaves) for x in arguments]
            kernel = self.compiled(*on_cpu).emulator(checks=self.checks)
            values = [value for x in flat for value in _values(x)]
            return kernel[config.grid, config.block, None, config.shared_bytes](*values)

    @public
    def compiled(self, *arguments: Any) -> PtxKernel:
        """Return the kernel in PTX, compiled for the types of the arguments.

        Parameters
        ----------
        *arguments : array or number
            The arguments of a launch.

        Returns
        -------
        PtxKernel
            The kernel with Numba's parameters. An array has two unused ones, its size in elements, the
            item size in bytes, its address, its extents, and its strides in bytes.
        """
        from numba import typeof, void

        cuda = numba_cuda()

        types = tuple(map(typeof, arguments))
        if types not in self._compiled:
            capability = divmod(arch_of(self.arch).number, 10)
            device = SimpleNamespace(compute_capability=capability)
            dispatcher = import_module("numba.cuda.dispatcher")  # It asks for a device when it compiles.
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
    """Yield the leaves of nested tuples."""
    if isinstance(x, tuple):
        for item in x:
            yield from _flat(item)
    else:
        yield x


def _rebuilt(x: Any, leaves: Iterator[Any]) -> Any:
    """Replace the leaves of nested tuples by the next items of `leaves`."""
    return tuple(_rebuilt(item, leaves) for item in x) if isinstance(x, tuple) else next(leaves)


def _values(x: Any) -> Iterator[Any]:
    """Yield the PTX parameters of one argument."""
    if isinstance(x, np.ndarray):
        yield from (0, 0, x.size, x.itemsize, x, *x.shape, *x.strides)
    elif isinstance(x, (bool, int, float, np.bool_, np.integer, np.floating)):
        yield x
    else:
        raise ArgumentError(
            f"a {type(x).__name__} as an argument of a kernel of Numba: arrays, numbers, tuples are allowed"
        )
