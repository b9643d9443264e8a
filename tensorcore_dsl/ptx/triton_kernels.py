"""Run Triton's `@triton.jit` kernels in emulation: Triton compiles them to PTX without a GPU.

Triton launches through a driver and compiles through a backend. This module replaces both, so that
Triton itself binds arguments, specialises kernels and evaluates heuristics.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from typing import Any, NoReturn
from unittest import mock

import numpy as np

from tensorcore_dsl.arch import arch as arch_of
from tensorcore_dsl.errors import ArgumentError, public
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.interpreter.memory.global_memory import Arguments, GlobalPointer
from tensorcore_dsl.interpreter.scheduling.orders import Order
from tensorcore_dsl.ir.verify import SWIZZLES
from tensorcore_dsl.ptx.foreign_kernel import ForeignKernel
from tensorcore_dsl.ptx.module import PtxKernel, load
from tensorcore_dsl.ptx.tensor_maps import TensorMap, tensor_map
from tensorcore_dsl.runtime.host_arrays import on_host

REGISTERS = 65536  # of a multiprocessor


@public
def from_triton(
    kernel: Any, constants: Mapping[str, Any] | None = None, *, arch: str = "sm_80", **options: Any
) -> TritonKernel:
    """Make a kernel for the CPU from Triton's `@triton.jit`.

    Parameters
    ----------
    kernel : JITFunction
        The kernel. It may have `@triton.heuristics` and `@triton.autotune`; autotuning takes the first
        configuration.
    constants : mapping, optional
        The values of the `tl.constexpr` parameters.
    arch : str
        The architecture to compile for and to emulate.
    **options
        Options of Triton's compiler, such as `num_warps=8` and `num_stages=3`.

    Returns
    -------
    TritonKernel
        `kernel[grid](*arguments)` takes arrays, numbers and tensor maps (`tc.ptx.tensor_map`) for the
        other parameters, in their order.

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
        raise ArgumentError(f"{kernel!r} is not a kernel of Triton; @triton.jit makes one")
    values = dict(constants or {})
    unknown = values.keys() - set(kernel.arg_names)
    if unknown:
        raise ArgumentError(
            f"{_name(kernel)} has no parameter {', '.join(sorted(unknown))}; there are "
            + ", ".join(kernel.arg_names)
        )
    return TritonKernel(kernel, arch, values, options)


def _name(kernel: Any) -> str:
    """Return the name of a kernel without its autotuning and heuristics wrappers."""
    while not hasattr(kernel, "__name__"):
        kernel = kernel.fn
    return str(kernel.__name__)


@dataclass(frozen=True)
class TritonKernel(ForeignKernel):
    """A kernel of Triton; `kernel[grid](*arguments)` runs it on the CPU, with all checks.

    Attributes
    ----------
    function : JITFunction
        Triton's kernel.
    arch : str
        The architecture to compile for and to emulate.
    constants : dict
        The values of the `tl.constexpr` parameters.
    options : dict
        Options of Triton's compiler.
    checks : bool
        Whether races and all other errors are checked; otherwise only bounds are.
    order : Schedule or int, optional
        The order of threads. None: the default order.
    """

    function: Any
    arch: str
    constants: dict[str, Any]
    options: dict[str, Any]
    checks: bool = True
    order: Order | None = None

    @property
    def _title(self) -> str:
        return _name(self.function)

    @property
    def _names(self) -> list[str]:
        return [name for name in self.function.arg_names if name not in self.constants]

    def _configuration(self, name: str, key: Any) -> Any:
        return (key,) if isinstance(key, int) else key  # Triton's function of the constants, too

    @public
    def __call__(self, *arguments: Any) -> NoReturn:
        raise ArgumentError(f"kernel {_name(self.function)} is launched with a grid: kernel[(blocks,)](...)")

    def _run(self, grid: Any, *arguments: Any) -> Report:
        with _installed(_Driver(self.arch, self.checks, self.order)) as reports:
            self._call(grid, False, arguments)
        return reports[-1]

    def _call(self, grid: Any, warmup: bool, arguments: Sequence[Any]) -> Any:
        """Let Triton bind the arguments and compile, and launch unless `warmup`."""
        readable = map(_readable, arguments)
        try:
            return self.function.run(*readable, grid=grid, warmup=warmup, **self.constants, **self.options)
        except KeyError as error:
            raise ArgumentError(
                f"{_name(self.function)}: {error} is not a type or option of Triton"
            ) from error
        except TypeError as error:  # Triton's dynamic_func binds the arguments.
            text = str(error).removeprefix("dynamic_func() ")
            raise ArgumentError(f"{_name(self.function)}: {text}") from error

    @public
    def compiled(self, *arguments: Any) -> tuple[PtxKernel, int, int]:
        """Return the kernel in PTX for the types of the arguments, its threads and its shared memory.

        Parameters
        ----------
        *arguments : array or number
            The arguments of a launch.

        Returns
        -------
        kernel : PtxKernel
            The kernel. After the launch's arguments, it takes pointers to the driver's memory.
        threads : int
            Threads of a CTA.
        shared : int
            Bytes of dynamic shared memory.
        """
        with triton_on_cpu(self.arch):
            kernel = self._call((1,), True, arguments)
        facts = kernel.metadata
        return _loaded(kernel.asm["ptx"], self.arch), 32 * facts.num_warps, facts.shared


class _Tensor(np.ndarray):
    """An array with the methods that Triton calls on tensors."""

    def data_ptr(self) -> int:
        return int(self.__array_interface__["data"][0])

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self.itemsize for stride in self.strides)


def _readable(x: Any) -> Any:
    """Convert an argument to one that Triton accepts."""
    if isinstance(x, TensorMap):
        descriptors: Any = import_module("triton.tools.tensor_descriptor")
        return descriptors.TensorDescriptor.from_tensor(_readable(x.array), list(x.box))
    return x.view(_Tensor) if isinstance(x, np.ndarray) else x


@public
@contextmanager
def triton_on_cpu(arch: str = "sm_80", *, checks: bool = True) -> Iterator[list[Report]]:
    """Run Triton's launches inside the `with` block on the CPU.

    Triton evaluates heuristics; autotuning takes the first configuration. `tensorcore-dsl check
    script.py` runs a script in this context.

    Parameters
    ----------
    arch : str
        The architecture to compile for and to emulate.
    checks : bool
        Whether to check for races and all other errors. False checks only bounds.

    Yields
    ------
    list of Report
        A report for each launch so far.

    Raises
    ------
    UnsupportedSyntax
        At a launch: what `load` does not read.

    Examples
    --------
    >>> with tc.ptx.triton_on_cpu("sm_90a") as reports:                            # doctest: +SKIP
    ...     add[(4,)](x, y, out, 500, BLOCK=128)
    """
    with _installed(_Driver(arch, checks)) as reports:
        yield reports


@contextmanager
def _installed(emulated: _Driver) -> Iterator[list[Report]]:
    """Let Triton launch through a driver inside the `with` block."""
    backends: Any = import_module("triton.backends").backends  # type: ignore[attr-defined]
    driver: Any = import_module("triton.runtime.driver").driver  # type: ignore[attr-defined]
    tuner: Any = import_module("triton.runtime.autotuner").Autotuner  # type: ignore[attr-defined]
    pruned = tuner.prune_configs
    before = driver._active
    backend = replace(backends["nvidia"], compiler=_backend(backends["nvidia"].compiler))
    with (
        mock.patch.dict(backends, nvidia=backend),
        mock.patch.object(tuner, "prune_configs", lambda self, configs: pruned(self, configs)[:1]),
        emulated.addresses(),
    ):
        driver.set_active(emulated)
        try:
            yield emulated.reports
        finally:
            driver._active = before


@functools.cache
def _backend(compiler: Any) -> Any:
    """Return a subclass of Triton's compiler that stops at PTX."""

    class Backend(compiler):  # type: ignore[misc]
        def __init__(self, target: Any) -> None:
            super().__init__(target)
            self.binary_ext = "ptx"

        def add_stages(self, stages: dict[str, Any], *options: Any) -> None:
            super().add_stages(stages, *options)
            del stages["cubin"]

        def hash(self) -> str:
            return f"{super().hash()}-ptx"

    return Backend


@functools.lru_cache(64)
def _loaded(text: str | bytes, arch: str) -> PtxKernel:
    """Load the one kernel of a compiler output. It is text if it comes from Triton's cache, else bytes."""
    module = load(text.decode() if isinstance(text, bytes) else text)
    (name,) = module
    return module[name].emulator(arch)


class _Driver:
    """Triton's driver interface. Each architecture is a device, because Triton caches kernels by device."""

    def __init__(self, arch: str, checks: bool, order: Order | None = None) -> None:
        self.arch, self.checks, self.order = arch_of(arch), checks, order
        self.reports: list[Report] = []
        self.utils = self
        self.launcher_cls = functools.partial(_Launcher, self)
        self.memory = dict[int, GlobalPointer]()

    @contextmanager
    def addresses(self) -> Iterator[None]:
        """Let `data_ptr` of torch's tensors return addresses of the emulator: scripts pass arrays of them.

        Each tensor whose address was taken so lives to the end. Triton itself gets the address on the host.
        """
        if "torch" not in sys.modules:
            yield
            return
        tensor_type: Any = import_module("torch").Tensor
        original = tensor_type.data_ptr

        def data_ptr(tensor: Any) -> int:
            real: int = original(tensor)
            if sys._getframe(1).f_globals.get("__name__", "").startswith("triton."):
                return real
            storage = tensor.untyped_storage()
            start: int = storage.data_ptr()
            if start not in self.memory:
                whole = tensor.new_empty(0).set_(storage, 0, (storage.nbytes() // tensor.itemsize,))
                with on_host([whole]) as (content,):
                    self.memory[start] = GlobalPointer(content, f"tensor {len(self.memory)}")
            arrays = Arguments([*self.memory.values()])
            return arrays.address([*self.memory].index(start)) + real - start

        with mock.patch.object(tensor_type, "data_ptr", data_ptr):
            yield

    def get_current_target(self) -> Any:
        return import_module("triton.backends.compiler").GPUTarget("cuda", self.arch.number, 32)

    def get_current_device(self) -> str:
        return f"emulated {self.arch.name}"

    def set_current_device(self, device: Any) -> None:
        pass

    def get_current_stream(self, device: Any) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        return import_module("torch").device("cpu")

    def get_device_properties(self, device: Any) -> dict[str, int]:
        return {
            "max_shared_mem": self.arch.shared_kib * 1024,
            "multiprocessor_count": 132,
            "max_num_regs": REGISTERS,
            "warpSize": 32,
        }

    def load_binary(self, name: str, text: Any, *rest: Any) -> tuple[Any, Any, int, int, int]:
        """Return module, kernel, registers, spills, and the largest number of threads of a CTA.

        No assembler has allocated registers; a thread has as many as fit, so that scripts may divide by them.
        """
        kernel = _loaded(text, self.arch.name)
        threads = prod(kernel.function.directives.get(".reqntid", (1024,)))
        return None, kernel, min(255, REGISTERS // threads), 0, 1024

    def unload_module(self, module: Any) -> None:
        pass


class _Launcher:
    """Launches of one kernel of Triton."""

    def __init__(self, driver: _Driver, source: Any, metadata: Any) -> None:
        self.driver, self.metadata = driver, metadata
        self.signature = tuple(source.signature.values())

    def __call__(self, x: int, y: int, z: int, stream: Any, kernel: PtxKernel, *rest: Any) -> None:
        facts, driver = self.metadata, self.driver
        maps = iter(getattr(facts, "tensordesc_meta", None) or ())
        arguments = [a for pair in zip(self.signature, rest[4:], strict=True) for a in _flat(*pair, maps)]
        scratch = facts.global_scratch_size * x * y * z * facts.num_ctas
        arguments += [np.zeros(scratch, np.uint8)] if scratch else []
        arguments += [0] * (len(kernel.function.params) - len(arguments))
        launch = kernel.emulator(checks=driver.checks, order=driver.order).configured(
            (x * facts.num_ctas, y, z),
            32 * facts.num_warps,
            shared_bytes=facts.shared,
            cluster=facts.num_ctas if facts.num_ctas > 1 else None,
        )
        driver.reports.append(launch(*arguments, memory=[*driver.memory.values()]))


def _flat(kind: Any, value: Any, maps: Iterator[Any]) -> Iterator[Any]:
    """Yield the PTX parameters of one argument. `maps` describes the tensor maps in order."""
    if isinstance(kind, tuple):
        for inner in zip(kind, value, strict=True):
            yield from _flat(*inner, maps)
    elif kind.startswith("tensordesc"):
        described = next(maps, None)
        shape, strides = map(tuple, (value.shape, value.strides))
        if described is None:
            yield from (value.base, *shape, *strides, value.padding == "nan", value.round_f32_to_tf32)
        elif value.padding == "nan":
            raise ArgumentError("a descriptor of Triton with padding='nan'; padding='zero' is supported")
        else:
            base = value.base
            if tuple(base.shape) != shape:  # a descriptor may see its array in another shape
                steps = (
                    [step * base.itemsize for step in strides] if isinstance(base, np.ndarray) else strides
                )
                strided = (
                    np.lib.stride_tricks.as_strided if isinstance(base, np.ndarray) else type(base).as_strided
                )
                base = strided(base, shape, steps)
            yield tensor_map(base, described["block_size"], SWIZZLES[described["swizzle"]])
        yield from (*shape, *strides)
    elif kind != "constexpr":
        yield value
