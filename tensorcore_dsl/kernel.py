"""`@kernel`: specialise a Python function, choose where it runs, launch it, look inside.

A kernel is compiled once for each combination of argument types, Const values and
architecture (a *specialisation*); IR, PTX, cubin and emulator program are made when needed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tensorcore_dsl import arguments, numba_target
from tensorcore_dsl.arch import Arch
from tensorcore_dsl.arch import arch as arch_named
from tensorcore_dsl.arguments import ArrayType, Packer, ScalarType, describe
from tensorcore_dsl.cubin import Cubin, Resources
from tensorcore_dsl.dtypes import DType, f32, named, pred, s32, u32, u64
from tensorcore_dsl.errors import ArgumentError, listing
from tensorcore_dsl.frontend.compile import compile_kernel
from tensorcore_dsl.host import on_host
from tensorcore_dsl.interpreter import GlobalPointer, Program, Report, compile_program, run
from tensorcore_dsl.interpreter.memory import TensorMapArgument
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.ir.text import format_kernel
from tensorcore_dsl.launch import Launcher
from tensorcore_dsl.launch_config import Config
from tensorcore_dsl.ptx import entry_name, extern_shared, print_kernel
from tensorcore_dsl.tensor_maps import tiled

DEFAULT_ARCH = "sm_90a"
TARGETS = ("cpu", "cuda")


class Array:
    """Annotation of a parameter: an array in global memory."""


class Const:
    """Annotation of a parameter whose value is known when the kernel is compiled."""


# -- where a kernel runs ------------------------------------------------------------------------

_target: ContextVar[tuple[str | None, str | None]] = ContextVar("target", default=(None, None))


@contextmanager
def target(name: str, arch: str | None = None) -> Iterator[None]:
    """Run kernels on "cpu" or "cuda" inside; `arch` is what the CPU imitates."""
    if name not in TARGETS:
        raise ArgumentError(f"unknown target {name!r}; allowed are {listing(TARGETS)}")
    if arch is not None:
        arch_named(arch)
    token = _target.set((name, arch))
    try:
        yield
    finally:
        _target.reset(token)


def current_target() -> str:
    """ "cpu" or "cuda": `with target(...)`, then TENSORCORE_DSL_TARGET, then what there is."""
    chosen = _target.get()[0] or os.environ.get("TENSORCORE_DSL_TARGET")
    if chosen is None:
        return "cuda" if numba_target.cuda_available() else "cpu"
    if chosen not in TARGETS:
        raise ArgumentError(
            f"TENSORCORE_DSL_TARGET is {chosen!r}; allowed are {listing(TARGETS)}"
        )
    return chosen


def emulated_arch() -> str:
    """The architecture that the CPU imitates: `with target`, TENSORCORE_DSL_ARCH, sm_90a."""
    return _target.get()[1] or os.environ.get("TENSORCORE_DSL_ARCH") or DEFAULT_ARCH


def device_arch() -> Arch:
    """The architecture of the current GPU, with its architecture-specific features."""
    number = numba_target.device_number()
    for suffix in ("a", ""):
        try:
            return arch_named(f"sm_{number}{suffix}")
        except Exception:
            continue
    raise ArgumentError(f"the GPU's compute capability {number} is unknown to this version")


# -- parameters ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """One parameter of the function: const, or given at run time (`dtype` when annotated)."""

    name: str
    const: bool
    dtype: DType | None
    default: Any


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    found = []
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise ArgumentError(f"kernel {function.__name__}: *{p.name} is not possible; name every parameter")
        note = p.annotation
        if isinstance(note, str):
            note = _evaluated(function, note)
        dtype = note if isinstance(note, DType) else {int: s32, float: f32, bool: pred}.get(note)
        found.append(Parameter(p.name, note is Const, dtype, p.default))
    return found


def _evaluated(function: Callable[..., Any], note: str) -> Any:
    """A postponed annotation."""
    try:
        return eval(note, function.__globals__)
    except Exception:
        return None


# -- specialisations -----------------------------------------------------------------------------


class Specialisation:
    """A kernel for given argument types, Const values and architecture."""

    def __init__(
        self, kernel: Kernel, types: tuple[Any, ...], constants: dict[str, Any], arch: Arch
    ) -> None:
        self.kernel, self.types, self.constants, self.arch = kernel, types, constants, arch

    @cached_property
    def ir(self) -> nodes.Kernel:
        return compile_kernel(self.kernel, self.types, self.constants, self.arch)

    @cached_property
    def ptx(self) -> str:
        return print_kernel(self.ir, self.arch)

    @cached_property
    def cubin(self) -> Cubin:
        cubin = numba_target.assemble(self.ptx, self.arch, entry_name(self.ir.name))
        return replace(
            cubin,
            block_shared=extern_shared(self.ir),
            threads=self.ir.threads,
            cluster=self.ir.cluster,
            tensor_maps=self.tensor_maps,
        )

    @property
    def tensor_maps(self) -> tuple[nodes.TensorMap, ...]:
        return tuple(p.tensor_map for p in self.ir.params if p.tensor_map is not None)

    @cached_property
    def program(self) -> Program:
        return compile_program(self.ir)

    def emulate(self, config: Config, args: Sequence[Any], checks: bool, profile: bool) -> Report:
        """Run on the CPU; arrays are written in place."""
        config = config.of_kernel(threads=self.ir.threads, cluster=self.ir.cluster)
        values: list[Any] = []
        names = self.kernel.runtime_names
        with on_host(args) as arrays:
            for given, kind, name in zip(arrays, self.types, names, strict=True):
                values += _parameter_values(given, kind, name)
            for m in self.tensor_maps:
                values.append(_map_argument(arrays[m.argument], m, names[m.argument]))
            return run(
                self.ir, config.grid, config.block, values, arch=self.arch.name,
                dynamic_shared=config.shared_bytes, checks=checks, program=self.program,
                profile=profile,
            )  # fmt: skip


def _parameter_values(given: Any, kind: Any, name: str) -> list[Any]:
    """What the parameters of one argument hold, in `Packer`'s order."""
    if isinstance(kind, ScalarType):
        return [int(given) if kind.dtype.kind == "p" else given]
    described = describe(given, name)
    strides = [s for s, unit in zip(described.strides, kind.unit, strict=True) if not unit]
    return [GlobalPointer(given, name, kind.writable), *described.shape, *strides]


def _map_argument(given: Any, tensor_map: nodes.TensorMap, name: str) -> TensorMapArgument:
    described = describe(given, name)
    tiled(described, tensor_map, f"argument {name!r}")
    writable = isinstance(described.type, ArrayType) and described.type.writable
    m = tensor_map
    return TensorMapArgument(given, name, m.axes, m.box, m.swizzle, writable)


# -- kernels -------------------------------------------------------------------------------------


class Kernel:
    """A compiled-on-demand kernel: `kernel[grid, block](...)`, `.emulate`, `.ir`, `.ptx`, ..."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        threads: int | None = None,
        max_registers: int | None = None,
        min_blocks: int | None = None,
    ) -> None:
        self.function = function
        self.__kernel_function__ = function
        self.__name__ = name or function.__name__
        self.__doc__ = function.__doc__
        self.threads, self.max_registers, self.min_blocks = threads, max_registers, min_blocks
        self.parameters = _parameters(function)
        self.runtime_names = [p.name for p in self.parameters if not p.const]
        self._specialisations: dict[Any, Specialisation] = {}
        self._launches: dict[Any, Launch] = {}

    # launching

    def __getitem__(self, key: Any) -> Launch:
        """`kernel[grid, block]`, `[grid, block, stream]`, `[grid, block, stream, shared_bytes]`."""
        try:
            return self._launches[key]
        except (KeyError, TypeError):
            return self._configure(key)

    def _configure(self, key: Any) -> Launch:
        if not isinstance(key, tuple) or not 2 <= len(key) <= 4:
            raise ArgumentError(
                f"{self.__name__}[grid, block, stream=None, shared_bytes=0] takes 2 to 4 values, "
                f"{key!r} was given"
            )
        grid, block, stream, shared = (*key, *(None, 0)[len(key) - 2 :])
        launch = Launch(self, Config.of(grid, block, shared or 0), stream)
        try:
            self._launches[key] = launch
        except TypeError:  # a stream that cannot be hashed
            pass
        return launch

    def configured(self, grid: Any, block: Any, *, stream: Any = None, **options: Any) -> Launch:
        """Like `kernel[grid, block]`, with shared_bytes, cluster, cooperative, pdl by name."""
        return Launch(self, Config.of(grid, block, **options), stream)

    @property
    def emulate(self) -> Emulator:
        """`kernel.emulate[grid, block](...)` runs on the CPU whatever the target is."""
        return Emulator(self, None)

    def emulator(self, arch: str | None = None, *, checks: bool = True, profile: bool = False) -> Emulator:
        """An emulator of a given architecture; it returns a report of what ran."""
        return Emulator(self, arch, checks, profile)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ArgumentError(
            f"kernel {self.__name__} is launched with a grid and a block: "
            f"{self.__name__}[grid, block](...)"
        )

    # looking inside

    def specialise(self, args: Sequence[Any], constants: dict[str, Any], arch: Any = None) -> Specialisation:
        """The specialisation for arguments (or their types) and Const values."""
        runtime, given = self.split(args, constants)
        types = tuple(
            self.type_of(value, p) for value, p in zip(runtime, self._runtime(), strict=True)
        )
        return self.specialised(types, given, arch)

    def specialised(self, types: tuple[Any, ...], constants: dict[str, Any], arch: Any) -> Specialisation:
        chosen = arch_named(arch) if arch is not None else self._arch()
        key = (types, _key_of(constants), chosen.name)
        found = self._specialisations.get(key)
        if found is None:
            found = self._specialisations[key] = Specialisation(self, types, constants, chosen)
        return found

    @staticmethod
    def _arch() -> Arch:
        return device_arch() if current_target() == "cuda" else arch_named(emulated_arch())

    def ir(self, *args: Any, arch: Any = None, **constants: Any) -> str:
        """The IR as text."""
        return format_kernel(self.specialise(args, constants, arch).ir)

    def ptx(self, *args: Any, arch: Any = None, **constants: Any) -> str:
        """The PTX text."""
        return self.specialise(args, constants, arch).ptx

    def cubin(self, *args: Any, arch: Any = None, **constants: Any) -> bytes:
        """The machine code; needs numba-cuda, but no GPU."""
        return self.specialise(args, constants, arch).cubin.code

    def resources(self, *args: Any, arch: Any = None, **constants: Any) -> Resources:
        """Registers, spills, shared memory and warnings, from the assembler."""
        return self.specialise(args, constants, arch).cubin.resources

    # arguments

    def _runtime(self) -> list[Parameter]:
        return [p for p in self.parameters if not p.const]

    def split(self, args: Sequence[Any], named_args: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Run-time arguments in order, and Const values by name."""
        names = [p.name for p in self.parameters]
        if len(args) == len(self.runtime_names) and not any(n in named_args for n in self.runtime_names):
            given = dict(zip(self.runtime_names, args, strict=True))
        else:
            if len(args) > len(names):
                raise ArgumentError(
                    f"{self.__name__} takes {len(names)} arguments ({listing(names)}), {len(args)} were given"
                )
            given = dict(zip(names, args, strict=False))
        for name, value in named_args.items():
            if name not in names or name in given:
                problem = "given twice" if name in given else "unknown"
                raise ArgumentError(
                    f"{self.__name__}: argument {name!r} is {problem}; the parameters are {listing(names)}"
                )
            given[name] = value
        for p in self.parameters:
            if p.name not in given:
                if p.default is inspect.Parameter.empty:
                    raise ArgumentError(f"{self.__name__}: argument {p.name!r} is missing")
                given[p.name] = p.default
        constants = {p.name: given[p.name] for p in self.parameters if p.const}
        return [given[n] for n in self.runtime_names], constants

    def type_of(self, value: Any, parameter: Parameter) -> Any:
        if isinstance(value, (ArrayType, ScalarType)):
            return value
        if isinstance(value, DType):
            return ScalarType(value)
        found = describe(value, f"argument {parameter.name!r}").type
        if isinstance(found, ScalarType) and parameter.dtype is not None:
            return ScalarType(parameter.dtype)
        return found

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}({', '.join(p.name for p in self.parameters)})>"


def _key_of(constants: dict[str, Any]) -> Any:
    key = tuple(constants.items())
    try:
        hash(key)
    except TypeError:
        return tuple((name, repr(value)) for name, value in constants.items())
    return key


class Launch:
    """A kernel with its configuration; calling it launches."""

    def __init__(self, kernel: Kernel, config: Config, stream: Any) -> None:
        self.kernel, self.config, self.stream = kernel, config, stream
        self._launchers: dict[Any, Launcher] = {}
        self._count = len(kernel.runtime_names)
        self._plain: Launcher | None = None  # for the default Const values on the GPU

    def __call__(self, *args: Any, **named_args: Any) -> None:
        if self._plain is not None and not named_args and len(args) == self._count and _gpu_chosen():
            self._plain(*args)
            return
        if current_target() == "cpu":
            Emulator(self.kernel, None)._run(self.config, args, named_args)
            return
        runtime, constants = self.kernel.split(args, named_args)
        launcher = self.launcher(constants)
        if not named_args and len(args) == self._count:
            self._plain = launcher
        launcher(*runtime)

    def launcher(self, constants: dict[str, Any]) -> Launcher:
        """What launches on the GPU with these Const values."""
        key = _key_of(constants)
        found = self._launchers.get(key)
        if found is None:
            kernel = self.kernel

            def specialise(types: tuple[Any, ...]) -> Cubin:
                return kernel.specialised(types, constants, device_arch()).cubin

            found = self._launchers[key] = Launcher(
                specialise, self.config, numba_target.gpu(), self.stream, kernel.runtime_names,
                [p.dtype for p in kernel._runtime()],
            )  # fmt: skip
        return found

    def prepare(self, *args: Any, **named_args: Any) -> Callable[..., None]:
        """Compile and load for these arguments now; the result launches with the least overhead."""
        runtime, constants = self.kernel.split(args, named_args)
        launcher = self.launcher(constants)
        launcher.prepare(*runtime)
        return launcher


def _gpu_chosen() -> bool:
    chosen = _target.get()[0]
    return chosen == "cuda" or (chosen is None and _environment_target() != "cpu")


def _environment_target() -> str | None:
    return os.environ.get("TENSORCORE_DSL_TARGET")


@dataclass(frozen=True)
class Emulator:
    """`kernel.emulate[grid, block](...)`: the same IR on the CPU, with the chip's bits."""

    kernel: Kernel
    arch: str | None
    checks: bool = True
    profile: bool = False

    def __getitem__(self, key: Any) -> Callable[..., Report]:
        if not isinstance(key, tuple) or not 2 <= len(key) <= 4:
            raise ArgumentError("an emulated launch is kernel.emulate[grid, block](...)")
        grid, block, _, shared = (*key, *(None, 0)[len(key) - 2 :])
        config = Config.of(grid, block, shared or 0)
        return lambda *args, **named_args: self._run(config, args, named_args)

    def _run(self, config: Config, args: Sequence[Any], named_args: dict[str, Any]) -> Report:
        runtime, constants = self.kernel.split(args, named_args)
        types = tuple(
            self.kernel.type_of(v, p) for v, p in zip(runtime, self.kernel._runtime(), strict=True)
        )
        arch = self.arch or emulated_arch()
        chosen = self.kernel.specialised(types, constants, arch)
        return chosen.emulate(config, runtime, self.checks, self.profile)


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: `@kernel` or `@kernel(threads=128, max_registers=..., min_blocks=..., name=...)`.

    threads fixes the block size (`.reqntid`), which lets the assembler use more registers.
    """
    if function is None:
        return lambda f: Kernel(f, **options)
    return Kernel(function, **options)


__all__ = ["Array", "Const", "Kernel", "Packer", "arguments", "kernel", "named", "target", "u32", "u64"]
