"""`@tc.kernel`: specialises a Python function, launches it, and shows its IR, PTX and cubin.

A kernel is compiled once for each combination of argument types, Const values and
architecture (a *specialisation*); its IR, PTX, cubin and emulator program are made on demand.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from pickle import PicklingError
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.arch import arch as arch_named
from tensorcore_dsl.codegen import assemble, kernel_cache
from tensorcore_dsl.codegen.cubin import Cubin, Resources
from tensorcore_dsl.codegen.diagnostics import Diagnostic, diagnostics_of
from tensorcore_dsl.codegen.line_table import source_lines, wanted
from tensorcore_dsl.codegen.ptx import entry_name, extern_shared, print_kernel
from tensorcore_dsl.dtypes import ALL, DType, as_dtype
from tensorcore_dsl.frontend.compile import compile_kernel
from tensorcore_dsl.frontend.readings import Readings
from tensorcore_dsl.interpreter import GlobalPointer, Program, Report, compile_program, run
from tensorcore_dsl.interpreter.debugging.debugger import Debugger
from tensorcore_dsl.interpreter.debugging.debugger import enabled as debugger_enabled
from tensorcore_dsl.interpreter.debugging.trace import Recorder, Traced
from tensorcore_dsl.interpreter.execution.machine import Observer
from tensorcore_dsl.interpreter.memory.global_memory import TensorMapArgument
from tensorcore_dsl.interpreter.sanitizer.schedule_fuzzing import seed_of
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.ir.text import format_kernel
from tensorcore_dsl.lang.arrays import Array as Array
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.arguments import ArrayType, ScalarType, describe
from tensorcore_dsl.runtime.host_arrays import on_host
from tensorcore_dsl.runtime.launch import Launcher
from tensorcore_dsl.runtime.launch_config import LaunchConfig, configuration
from tensorcore_dsl.runtime.named import Named
from tensorcore_dsl.runtime.targets import current_target as current_target
from tensorcore_dsl.runtime.targets import device_arch, emulated_arch, gpu_chosen, target_arch
from tensorcore_dsl.runtime.targets import target as target
from tensorcore_dsl.runtime.tensor_maps import tiled
from tensorcore_dsl.tracing import inside_kernel

from tensorcore_dsl.errors import (  # isort: skip
    ArgumentError, Loc, OperandError, TensorCoreError, check_call, hide_library, listing, nearest,
    public,
)  # fmt: skip


class Const:
    """Annotation of a parameter whose value is known at compile time: `Const`, or `Const[int]`."""

    def __class_getitem__(cls, kind: Any) -> type[Const]:
        """The kind of value is for readers and type checkers."""
        return cls


@dataclass(frozen=True)
class Parameter:
    """A parameter of the function: Const, or given at run time (of type `dtype` if annotated)."""

    name: str
    const: bool
    array: bool
    dtype: DType | None
    default: Any

    def __str__(self) -> str:
        kind = "Const" if self.const else "Array" if self.array else str(self.dtype or "")
        text = f"{self.name}: {kind}" if kind else self.name
        return text if self.default is inspect.Parameter.empty else f"{text} = {self.default!r}"


CHECKS_VARIABLE = "TENSORCORE_DSL_CHECKS"  # of the environment; 1: every build checks indices


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    parameters = []
    for p in inspect.signature(function).parameters.values():
        if p.kind == p.VAR_KEYWORD:
            raise ArgumentError(
                f"kernel {function.__name__}: {p} is not possible; name every parameter"
            )
        if p.kind == p.VAR_POSITIONAL:  # see Kernel.with_arguments
            continue
        note = p.annotation
        if isinstance(note, str):
            note = _evaluated(function, p.name, note)
        dtype = None
        if note not in (p.empty, None, Array, Const, Any):
            dtype = _declared(function, p.name, note)
        parameters.append(Parameter(p.name, note is Const, note is Array, dtype, p.default))
    return parameters


def _evaluated(function: Callable[..., Any], name: str, note: str) -> Any:
    """The value of a postponed annotation, in the scope of the function."""
    if note in ALL:
        return ALL[note]
    closure = inspect.getclosurevars(function).nonlocals
    try:
        return eval(note, function.__globals__, dict(closure))
    except Exception as error:
        raise ArgumentError(
            f"kernel {function.__name__}: the annotation {note!r} of {name!r} cannot be evaluated: "
            f"{type(error).__name__}: {error}"
        ) from None


def _declared(function: Callable[..., Any], name: str, note: Any) -> DType:
    """The element type that an annotation names."""
    try:
        return as_dtype(note)
    except OperandError:
        code = function.__code__
        loc = Loc(code.co_filename, code.co_firstlineno, function=function.__name__)
        text = note.__name__ if isinstance(note, type) else repr(note)
        meant = {"list": "tc.Array", "ndarray": "tc.Array", "Tensor": "tc.Array", "str": "tc.Const"}
        hint = f"; did you mean {meant[text]}?" if text in meant else ""
        raise ArgumentError(
            f"kernel {function.__name__}: {name!r} cannot be annotated with {text}; allowed are "
            f"tc.Array, tc.Const (a value known at compile time), element types such as tc.f32 or "
            f"np.float32, int, float, bool, or nothing{hint}", loc,
        ) from None  # fmt: skip


class Specialisation:
    """A kernel for given argument types, Const values and architecture; `checks`: of indices."""

    def __init__(
        self, kernel: Kernel, types: tuple[Any, ...], constants: dict[str, Any], arch: Arch,
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

    def emulate(
        self, config: LaunchConfig, args: Sequence[Any], checks: bool, profile: bool,
        order: int | None, traced: Traced = (),
    ) -> Report:  # fmt: skip
        """Run on the CPU; arrays are written in place."""
        recorder = Recorder(traced)
        observers: list[Observer] = [recorder] if recorder.wanted else []
        if self.ir.stops and debugger_enabled():
            observers.append(Debugger())
        ir, program = (
            (self.debug_ir, self.debug_program) if observers else (self.ir, self.program)
        )
        config = config.of_kernel(threads=self.ir.threads, cluster=self.ir.cluster)
        values: list[Any] = []
        names = self.kernel.runtime_names
        with on_host(args) as arrays:
            for given, kind, name in zip(arrays, self.types, names, strict=True):
                values += _parameter_values(given, kind, name)
            for m in self.tensor_maps:
                values.append(_map_argument(arrays[m.argument], m, names[m.argument]))
            report = run(
                ir, config.grid, config.block, values, arch=self.arch.name,
                dynamic_shared=config.shared_bytes, checks=checks, program=program,
                cluster=config.cluster, profile=profile, order=order, observers=observers,
            )  # fmt: skip
        if recorder.wanted:
            recorder.check(ir)
            report.trace = recorder.trace
        return report


def _parameter_values(given: Any, kind: Any, name: str) -> list[Any]:
    """The values of the IR parameters of one argument, in the order of `Packer`."""
    if isinstance(kind, ScalarType):
        return [describe(given, name, kind.dtype).value]
    described = describe(given, name)
    strides = [s for s, unit in zip(described.strides, kind.unit, strict=True) if not unit]
    return [GlobalPointer(given, name, kind.writable), *described.shape, *strides]


def _map_argument(given: Any, tensor_map: nodes.TensorMap, name: str) -> TensorMapArgument:
    described = describe(given, name)
    tiled(described, tensor_map, f"argument {name!r}")
    writable = isinstance(described.type, ArrayType) and described.type.writable
    m = tensor_map
    return TensorMapArgument(given, name, m.axes, m.box, m.swizzle, writable)


class Kernel(Named):
    """A compiled-on-demand kernel: `kernel[grid, block](...)`, `.emulate`, `.ir`, `.ptx`, ..."""

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, threads: int | None = None,
        max_registers: int | None = None, min_blocks: int | None = None,
        checks: bool | None = None, lineinfo: bool | None = None,
    ) -> None:  # fmt: skip
        self.checks = checks
        self.function = self.__kernel_function__ = function
        self._stand_for(function)
        self.__name__ = name or function.__name__
        self.threads, self.max_registers, self.min_blocks = threads, max_registers, min_blocks
        self.lineinfo = lineinfo
        self.parameters = _parameters(function)
        self.variadic = inspect.getfullargspec(function).varargs  # name of `*arguments`
        self.collected: tuple[str, ...] | None = None if self.variadic else ()
        self._with_arguments: dict[tuple[str, ...], Kernel] = {}
        self._base = self  # of a kernel that with_arguments returned: the one with *arguments
        self._prepare()

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._base is self:
            return super().__reduce_ex__(protocol)
        return Kernel.with_arguments, (self._base, *(self.collected or ()))

    def _prepare(self) -> None:
        self.runtime_parameters = [p for p in self.parameters if not p.const]
        self.runtime_names = [p.name for p in self.runtime_parameters]
        self._specialisations: dict[Any, Specialisation] = {}
        self._readings: Readings | None = None  # None: nothing is compiled yet
        self._launches: dict[Any, Launch] = {}

    def with_arguments(self, *names: str) -> Kernel:
        """A kernel with a parameter `*arguments` as the kernel whose parameters have these names.

        They come first; inside, `arguments` is a tuple of them.
        """
        known = self._with_arguments.get(names)
        if known is not None:
            return known
        taken = [p.name for p in self.parameters]
        if self.variadic is None or len({*names, *taken}) < len(names) + len(taken):
            raise ArgumentError(
                f"{self.__name__} cannot have the parameters {listing(names)}: a kernel with a "
                f"parameter *arguments takes names that differ from each other and {listing(taken)}"
            )
        found = object.__new__(Kernel)
        found.__dict__.update(self.__dict__)
        found.parameters = [
            *(Parameter(name, False, False, None, inspect.Parameter.empty) for name in names),
            *self.parameters,
        ]
        found.collected, found._base = names, self
        found._prepare()
        self._with_arguments[names] = found
        return found

    @public
    def __getitem__(self, key: Any) -> Launch:
        """`kernel[grid, block]`, `[grid, block, stream]`, `[grid, block, stream, shared_bytes]`."""
        if inside_kernel():
            raise OperandError(
                f"a kernel cannot launch another one; {self.__name__}(...), without a grid, runs "
                "its code in this kernel"
            )
        try:
            return self._launches[key]
        except (KeyError, TypeError):
            return self._new_launch(key, *configuration(self.__name__, key))

    def _new_launch(self, key: Any, config: LaunchConfig, stream: Any) -> Launch:
        """A new launch, cached under `key` with everything that it prepares."""
        launch = Launch(self, config, stream)
        with suppress(TypeError):  # a stream may not be hashable
            self._launches[key] = launch
        return launch

    if TYPE_CHECKING:

        def configured(
            self, grid: int | Sequence[int], block: int | Sequence[int], *, stream: Any = None,
            shared_bytes: int = 0, cluster: int | Sequence[int] | None = None,
            cooperative: bool = False, pdl: bool = False,
        ) -> Launch: ...  # fmt: skip

    else:

        @public
        def configured(self, grid: Any, block: Any, *, stream: Any = None, **options: Any) -> Any:
            """Like `kernel[grid, block]`, with shared_bytes, cluster, cooperative, pdl by name."""
            check_call(LaunchConfig.of, ".configured", (grid, block), options, ArgumentError)
            key = (LaunchConfig.of(grid, block, **options), stream)
            try:
                return self._launches[key]
            except (KeyError, TypeError):
                return self._new_launch(key, *key)

    @property
    def emulate(self) -> Emulator:
        """`kernel.emulate[grid, block](...)` runs on the CPU, independent of the target."""
        return Emulator(self, None)

    @public
    def emulator(
        self, arch: str | None = None, *, checks: bool | None = None, profile: bool = False,
        order: int | None = None, trace: Traced = (),
    ) -> Emulator:  # fmt: skip
        """An emulator of an architecture; its launches return a report.

        checks: of indices, alignment, the state of shared memory and asynchronous operations.
        None: all of them, but indices only in kernels of users, not of tensorcore_dsl.kernels.
        order: a seed, an integer from 0 on, for a random order of warps, which is slower but may
        reveal races that the default order hides. None: the default order.

        trace: names of variables whose values the report's `trace` has, at each assignment; or a
        dict from names to the threads of a block (numbers, None for all) that are recorded.
        """
        return Emulator(self, arch, checks, profile, seed_of(order), trace)

    @public
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ArgumentError(
            f"kernel {self.__name__} is launched with a grid and a block: "
            f"{self.__name__}[grid, block](...)"
        )

    def specialise(
        self, args: Sequence[Any], constants: dict[str, Any], arch: Any = None
    ) -> Specialisation:
        """The specialisation for arguments (or their types) and Const values."""
        runtime, given = self.split(args, constants)
        return self.specialised(self.types_of(runtime), given, arch)

    def specialised(
        self, types: tuple[Any, ...], constants: dict[str, Any], arch: Any,
        checks: bool | None = None,
    ) -> Specialisation:  # fmt: skip
        """The specialisation for types of run-time arguments and Const values.

        checks: whether it checks indices; None: as a build for the GPU does.
        """
        chosen = arch_named(arch) if arch is not None else target_arch()
        checks = self.checks_indices(False) if checks is None else checks
        self.renew()
        key = (types, constants_key(constants), chosen.name, checks)
        known = self._specialisations.get(key)
        if known is None:
            self._readings = self._readings or Readings(self.function)
            self._readings.enter(tuple(constants.values()))
            known = Specialisation(self, types, constants, chosen, checks)
            self._specialisations[key] = known
        return known

    def renew(self) -> None:
        """Forget all specialisations if what the kernel reads of the code around it has changed."""
        if self._readings is not None and self._readings.changed():
            self._specialisations, self._readings = {}, None

    def checks_indices(self, otherwise: bool) -> bool:
        """Whether a build checks indices: by the environment, the decorator, or `otherwise`."""
        if os.environ.get(CHECKS_VARIABLE, "0") not in ("", "0"):
            return True
        return otherwise if self.checks is None else self.checks

    @public
    def ir(self, *args: Any, arch: Any = None, **constants: Any) -> str:
        """The IR as text."""
        return format_kernel(self.specialise(args, constants, arch).ir)

    @public
    def ptx(
        self, *args: Any, arch: Any = None, lineinfo: bool = False, **constants: Any
    ) -> str:
        """The PTX text; `lineinfo` shows the source lines that the machine code gets."""
        chosen = self.specialise(args, constants, arch)
        return chosen.ptx_with_lines if lineinfo else chosen.ptx

    @public
    def cubin(self, *args: Any, arch: Any = None, **constants: Any) -> bytes:
        """The machine code; needs numba-cuda, but no GPU."""
        return self.specialise(args, constants, arch).cubin.code

    @public
    def resources(self, *args: Any, arch: Any = None, **constants: Any) -> Resources:
        """Registers, spills, shared memory and warnings, from the assembler."""
        chosen = self.specialise(args, constants, arch)
        return replace(chosen.cubin.resources, shared_bytes=chosen.ir.shared_bytes)

    def variant(self, **options: Any) -> Kernel:
        """The same kernel with other options, such as max_registers."""
        made = Kernel.__new__(type(self))
        vars(made).update(vars(self), _specialisations={}, _readings=None, _launches={}, **options)
        return made

    def split(
        self, args: Sequence[Any], named_args: dict[str, Any], without: Collection[str] = ()
    ) -> tuple[list[Any], dict[str, Any]]:
        """The run-time arguments in order, and the Const values by name.

        If there are as many positional arguments as run-time parameters, they are those;
        otherwise they are the first parameters, as in Python. The caller knows the Const
        parameters `without`.
        """
        if self.collected is None:
            raise ArgumentError(
                f"{self.__name__} has a parameter *{self.variadic}: name its arguments by "
                f"{self.__name__}.with_arguments(...)"
            )
        parameters = [p for p in self.parameters if p.name not in without]
        names = [p.name for p in parameters]
        runtime = self.runtime_names
        named = any(name in named_args for name in runtime)
        positional = runtime if len(args) == len(runtime) and not named else names
        if len(args) > len(positional):
            raise ArgumentError(
                f"{self.__name__} takes {len(names)} arguments ({listing(names)}), {len(args)} "
                "were given"
            )
        given = dict(zip(positional, args, strict=False))
        for name, value in named_args.items():
            if name not in names or name in given:
                problem = "given twice" if name in given else "unknown"
                raise ArgumentError(
                    f"{self.__name__}: argument {name!r} is {problem}; the parameters are "
                    f"{listing(names)}{_hint(name, names) if problem == 'unknown' else ''}"
                )
            given[name] = value
        for p in parameters:
            if p.name not in given:
                if p.default is inspect.Parameter.empty:
                    raise ArgumentError(
                        f"{self.__name__}: argument {p.name!r} is missing; the parameters are "
                        f"{listing(names)}"
                    )
                given[p.name] = p.default
        constants = {p.name: given[p.name] for p in parameters if p.const}
        return [given[name] for name in runtime], constants

    def types_of(self, runtime: Sequence[Any]) -> tuple[Any, ...]:
        """The types that the kernel is compiled for, from run-time arguments or their types."""
        return tuple(map(self._type_of, runtime, self.runtime_parameters))

    def _type_of(self, value: Any, parameter: Parameter) -> Any:
        label = f"{self.__name__}: argument {parameter.name!r}"
        if isinstance(value, DType):
            value = ScalarType(value)
        if not isinstance(value, (ArrayType, ScalarType)):
            value = describe(value, label, parameter.dtype).type
        if parameter.array and isinstance(value, ScalarType):
            raise ArgumentError(f"{label} is a {value} number; the parameter takes an array")
        if parameter.dtype is not None and value != ScalarType(parameter.dtype):
            raise ArgumentError(
                f"{label} is compiled for {value}; the parameter is declared as {parameter.dtype}"
            )
        return value

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}({', '.join(map(str, self.parameters))})>"


def _hint(name: str, names: Sequence[str]) -> str:
    close = nearest(name, names)
    return f"; did you mean {close!r}?" if close else ""


def constants_key(constants: dict[str, Any]) -> Any:
    """A key that distinguishes Const values, also those that are equal in Python: 1, 1.0, True."""
    return tuple([(name, _key(value)) for name, value in constants.items()])


def _key(value: Any) -> Any:
    if isinstance(value, (bool, int, str, DType)) or value is None:
        return type(value), value
    if isinstance(value, float):
        return float, repr(value)
    if isinstance(value, (list, tuple, deque)):
        return type(value), tuple(map(_key, value))
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(map(_key, value))
    if isinstance(value, np.generic):
        return value.dtype, value.tobytes()
    if isinstance(value, dict):
        return type(value), tuple([(_key(k), _key(v)) for k, v in value.items()])
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple([_key(getattr(value, f.name)) for f in fields(value)])
    return type(value), _Same(value)


class _Same:
    """Equal for the same object, or for equal ones of types whose instances cannot change."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or type(self.value) is not type(other.value):
            return False
        same = self.value is other.value
        kind = type(self.value)
        plain = kind.__module__.partition(".")[0] in sys.stdlib_module_names
        return same or (plain and kind.__hash__ is not None and self.value == other.value)


class Launch:
    """A kernel with its configuration; calling it launches."""

    def __init__(self, kernel: Kernel, config: LaunchConfig, stream: Any) -> None:
        self.kernel, self.config, self.stream = kernel, config, stream
        self._launchers: dict[Any, Launcher] = {}
        self._count = len(kernel.runtime_names)
        self._default: Launcher | None = None  # with the default Const values, on the GPU
        self._compiled = kernel._specialisations  # which the launchers are made of

    def __reduce__(self) -> Any:
        if self.stream is not None:
            raise PicklingError(
                f"a launch of {self.kernel.__name__} on a stream cannot be pickled: streams belong "
                "to one process"
            )
        return _relaunch, (self.kernel, self.config)

    def __call__(self, *args: Any, **named_args: Any) -> None:
        positional = not named_args and len(args) == self._count
        try:  # like `public`, at no cost
            self._renew()
            if positional and self._default is not None and gpu_chosen():
                self._default.fast(*args)
            else:
                self._launch(positional, args, named_args)
        except TensorCoreError as error:
            hide_library(error)
            raise

    def _renew(self) -> None:
        """Forget the launchers of code that has changed."""
        kernel = self.kernel
        kernel.renew()
        if self._compiled is not kernel._specialisations:
            self._compiled, self._default = kernel._specialisations, None
            self._launchers.clear()

    def _launch(self, positional: bool, args: tuple[Any, ...], named_args: dict[str, Any]) -> None:
        """Any launch: on the CPU, or the first one with the default Const values."""
        if current_target() == "cpu":
            self.kernel.emulate.run(self.config, *args, **named_args)
            return
        runtime, constants = self.kernel.split(args, named_args)
        launcher = self.launcher(constants)
        if positional:
            self._default = launcher
        launcher(*runtime)

    def launcher(self, constants: dict[str, Any]) -> Launcher:
        """The launcher on the GPU for these Const values."""
        key = constants_key(constants)
        launcher = self._launchers.get(key)
        if launcher is None:
            kernel = self.kernel
            launcher = self._launchers[key] = Launcher(
                lambda types: kernel.specialised(types, constants, device_arch()).cubin,
                self.config, driver.cuda_driver(), self.stream, kernel.runtime_names,
                [p.dtype for p in kernel.runtime_parameters],
            )  # fmt: skip
        return launcher

    @public
    def prepare(self, *args: Any, **named_args: Any) -> Callable[..., None]:
        """Compile and load for these arguments now; returns a function that launches fast.

        The function takes run-time arguments, these or others; it keeps these alive.
        """
        self._renew()
        runtime, constants = self.kernel.split(args, named_args)
        if current_target() == "cpu":
            return self._prepared_on_cpu(runtime, constants)
        return self.launcher(constants).prepared(*runtime)

    def _prepared_on_cpu(
        self, runtime: Sequence[Any], constants: dict[str, Any]
    ) -> Callable[..., None]:
        kernel, names = self.kernel, self.kernel.runtime_names
        kernel.emulate.compiled(runtime, constants)

        @public
        def launch(*given: Any) -> None:
            if len(given) != len(names):
                raise ArgumentError(
                    f"{kernel.__name__} was prepared for {len(names)} arguments "
                    f"({', '.join(names)}), {len(given)} were given"
                )
            self(**dict(zip(names, given, strict=True)), **constants)

        return launch


def _relaunch(kernel: Kernel, config: LaunchConfig) -> Launch:
    """The launch that was pickled."""
    options = {name: value for name, value in vars(config).items() if name != "cluster_in_code"}
    return kernel.configured(**options)


@dataclass(frozen=True)
class Emulator:
    """`kernel.emulate[grid, block](...)`: runs the IR on the CPU, with the bits of the hardware."""

    kernel: Kernel
    arch: str | None
    checks: bool | None = None
    profile: bool = False
    order: int | None = None
    trace: Traced = ()

    @public
    def __getitem__(self, key: Any) -> Callable[..., Report]:
        config, _ = configuration(f"{self.kernel.__name__}.emulate", key)
        return partial(self.run, config)

    @public
    def run(self, config: LaunchConfig, /, *args: Any, **named_args: Any) -> Report:
        """Run all blocks; arrays are written in place."""
        runtime, constants = self.kernel.split(args, named_args)
        chosen = self.compiled(runtime, constants)
        checks = self.checks is not False
        return chosen.emulate(config, runtime, checks, self.profile, self.order, self.trace)

    def compiled(self, runtime: Sequence[Any], constants: dict[str, Any]) -> Specialisation:
        """The specialisation that it runs, with its program."""
        types, arch = self.kernel.types_of(runtime), self.arch or emulated_arch()
        chosen = self.kernel.specialised(types, constants, arch, self._checks_indices())
        _ = chosen.program
        return chosen

    def _checks_indices(self) -> bool:
        if self.checks is not None:
            return self.checks
        return self.kernel.checks_indices(not is_library_kernel(self.kernel.function))


def is_library_kernel(function: Callable[..., Any]) -> bool:
    """Is it one of `tensorcore_dsl.kernels`, which are tested with checks and emulate without?"""
    return f"{function.__module__}.".startswith(f"{__package__}.kernels.")


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...


@overload
def kernel(
    *, name: str | None = None, threads: int | None = None, max_registers: int | None = None,
    min_blocks: int | None = None, checks: bool | None = None, lineinfo: bool | None = None,
) -> Callable[[Callable[..., Any]], Kernel]: ...  # fmt: skip


@public
def kernel(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorator: `@kernel` or `@kernel(threads=128, max_registers=..., min_blocks=..., name=...)`.

    threads fixes the block size (`.reqntid`), so that the assembler can use more registers. checks:
    whether indices are checked, also on the GPU; None: in emulation, or everywhere if the
    environment has TENSORCORE_DSL_CHECKS=1. lineinfo=False leaves the lines of the source out of
    the machine code; by default they are in it, unless the environment variable
    TENSORCORE_DSL_LINEINFO is 0.
    """
    if function is None:
        return partial(kernel, **options)
    if not inspect.isfunction(function):
        raise ArgumentError(f"@kernel decorates functions, not {function!r}")
    check_call(Kernel, "@tc.kernel", (function,), options, ArgumentError)
    for name in ("threads", "max_registers", "min_blocks"):
        if not isinstance(value := options.get(name), (int, type(None))):
            raise ArgumentError(f"@tc.kernel({name}=...) takes an integer, not {value!r}")
    return Kernel(function, **options)
