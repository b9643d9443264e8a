"""Run Numba's `@cuda.jit` kernels in emulation, one launch at a time."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.environment.numba_cuda import numba_cuda
from tensorcore_dsl.errors import ArgumentError, public
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.interpreter.scheduling.orders import Order
from tensorcore_dsl.ptx.foreign_kernel import ForeignKernel
from tensorcore_dsl.ptx.numba_driver import Driver
from tensorcore_dsl.runtime.launch_config import LaunchConfig


@public
def from_numba(kernel: Any, arch: str = "sm_90a") -> NumbaKernel:
    """Make a kernel for the CPU from Numba's `@cuda.jit`, or from a function without the decorator.

    Parameters
    ----------
    kernel : CUDADispatcher or function
        The kernel. A function gets `@cuda.jit` without options.
    arch : str
        The architecture to compile for and to emulate.

    Returns
    -------
    NumbaKernel
        `kernel[grid, block, stream=None, shared_bytes=0](*arguments)` takes the arguments that Numba
        takes, and strided arrays: the kernel gets contiguous copies, which are copied back. The stream
        has no effect.

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
    if not hasattr(getattr(kernel, "py_func", kernel), "__code__"):
        raise ArgumentError(f"{kernel!r} is not a kernel of Numba, nor a function that could be one")
    return NumbaKernel(kernel if hasattr(kernel, "py_func") else numba_cuda().jit(kernel), arch)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class NumbaKernel(ForeignKernel, EagerDict):
    """A kernel of Numba; `kernel[grid, block](*arguments)` runs it on the CPU, with all checks.

    Attributes
    ----------
    dispatcher : CUDADispatcher
        The kernel.
    arch : str
        The architecture to compile for and to emulate.
    checks : bool
        Whether races and all other errors are checked; otherwise only bounds are.
    order : Schedule or int, optional
        The order of threads. None: the default order.
    """

    dispatcher: Any
    arch: str
    checks: bool = True
    order: Order | None = None

    @property
    def _title(self) -> str:
        return str(self.dispatcher.py_func.__name__)

    @property
    def _names(self) -> list[str]:
        return list(inspect.signature(self.dispatcher.py_func).parameters)

    def _at(self, order: Order | None) -> NumbaKernel:
        kernel = replace(self, order=order)
        vars(kernel)["_driver"] = self._driver  # it keeps what is compiled
        return kernel

    @cached_property
    def _driver(self) -> Driver:
        return Driver(self.arch, self.checks)

    def _run(self, config: LaunchConfig, *arguments: Any) -> Report:
        self._driver.order = self.order
        slow = numba_cuda("numba.cuda.core.errors").NumbaPerformanceWarning
        copies: list[tuple[np.ndarray, np.ndarray]] = []
        with self._driver.installed(), warnings.catch_warnings():
            warnings.simplefilter("ignore", slow)  # Copies and small grids are slow on a GPU only.
            self.dispatcher[config.grid, config.block, 0, config.shared_bytes](
                *_contiguous(arguments, copies)
            )
            numba_cuda("numba.cuda").current_context().memory_manager.deallocations.clear()
        for array, copy in copies:
            array[...] = copy
        return self._driver.reports.pop()


def _contiguous(x: Any, copies: list[tuple[np.ndarray, np.ndarray]]) -> Any:
    """Replace strided arrays in nested tuples by copies; add the writable ones to `copies`."""
    if isinstance(x, tuple):
        items = [_contiguous(item, copies) for item in x]
        return x._make(items) if hasattr(x, "_make") else tuple(items)
    if not isinstance(x, np.ndarray) or x.flags.forc:
        return x
    copy = np.array(x, order="C", subok=True)
    copy.flags.writeable = x.flags.writeable
    copies += [(x, copy)] * x.flags.writeable
    return copy
