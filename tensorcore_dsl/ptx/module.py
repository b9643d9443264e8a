"""PTX modules: load a file of PTX and run its kernels in emulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tensorcore_dsl.arch import ARCHS
from tensorcore_dsl.checking.session import current_session
from tensorcore_dsl.dtypes import DType, named
from tensorcore_dsl.errors import (
    ArchError,
    ArgumentError,
    EmulationError,
    LaunchError,
    TensorCoreError,
    listing,
    public,
)
from tensorcore_dsl.interpreter import EmulatedLaunch, Report, compile_program
from tensorcore_dsl.interpreter.core.program import Program
from tensorcore_dsl.interpreter.memory.global_memory import GlobalPointer
from tensorcore_dsl.interpreter.scheduling.orders import Order
from tensorcore_dsl.ir.nodes import Kernel, Op
from tensorcore_dsl.isa.advice import translated
from tensorcore_dsl.ptx import syntax, system_library
from tensorcore_dsl.ptx.foreign_kernel import ForeignKernel
from tensorcore_dsl.ptx.reader import LOCAL, kernel_of
from tensorcore_dsl.ptx.structs import StructInMemory, parts_of, shown
from tensorcore_dsl.ptx.tensor_maps import TensorMap
from tensorcore_dsl.runtime.arguments import describe
from tensorcore_dsl.runtime.host_arrays import on_host
from tensorcore_dsl.runtime.launch_config import Dim, Dims, LaunchConfig, configured


@public
def load(source: str | Path) -> Module:
    """Load PTX from any compiler, to run and check its kernels on the CPU.

    Parameters
    ----------
    source : str or Path
        The PTX text, or the path of its file.

    Returns
    -------
    Module
        The kernels by name, as attributes and items.

    Raises
    ------
    UnsupportedSyntax
        The PTX uses an unsupported feature, such as a call through a pointer or recursion. The error
        names the source line of the last `.loc`. Kernels are read at their first use.
    UnknownInstruction
        The table lacks an instruction.

    Examples
    --------
    >>> @tc.kernel
    ... def twice(x: tc.Array):
    ...     x[tc.threadIdx.x] *= 2
    >>> x = np.arange(32, dtype=np.uint32)
    >>> text = twice.ptx(x, arch="sm_80")
    >>> report = tc.ptx.load(text)["twice"][1, 32](x, 32)  # its address and its extent
    >>> x[:4]
    array([0, 2, 4, 6], dtype=uint32)
    """
    path = Path(source) if isinstance(source, Path) or "\n" not in source else None
    try:
        text = path.read_text(encoding="utf-8") if path else str(source)
    except UnicodeDecodeError:
        raise ArgumentError(f"{path} is not text: load takes PTX, not machine code") from None
    return Module(syntax.parse(text, str(path or "<ptx>")), text)


def linked(texts: Sequence[str]) -> Module:
    """Kernels of several texts of PTX, which may call functions of each other."""
    parts = [syntax.parse(text, "<ptx>") for text in texts]
    whole = syntax.Text(parts[0].version, parts[0].target, parts[0].target_loc)
    for part in parts:
        whole.kernels += part.kernels
        for name, function in part.functions.items():
            if not function.declared or name not in whole.functions:
                whole.functions[name] = function
    variables = [v for part in parts for v in part.variables]
    defined = {v.name for v in variables if not v.external}
    known = {v.name: v for v in variables if not (v.external and v.name in defined)}
    whole.variables += known.values()
    return Module(whole, "\n".join(texts))


class Module:
    """The kernels of one PTX file, by name.

    Attributes
    ----------
    version : str
        The PTX version of `.version`.
    target : str
        The architecture of `.target`.
    ptx : str
        The PTX text.
    """

    def __init__(self, text: syntax.Text, ptx: str) -> None:
        system_library.link(text)
        self.version, self.target, self.ptx = text.version, text.target, ptx
        self._text, self._kernels = text, dict[str, PtxKernel]()
        self._programs: dict[str, Program] = {}
        self._functions = {function.name: function for function in text.kernels}
        self._variables = {v.name: v for v in text.variables if v.space in ("global", "const")}
        self._memory: dict[str, np.ndarray] = {}

    @public
    def __getitem__(self, name: str) -> PtxKernel:
        if name not in self._functions:
            raise ArgumentError(f"no kernel is called {name!r}; there are {', '.join(self)}")
        if name not in self._kernels:
            function = self._functions[name]
            ir, local = kernel_of(function, self._text)
            self._kernels[name] = PtxKernel(name, ir, self.target, function, self, local)
        return self._kernels[name]

    def __getattr__(self, name: str) -> PtxKernel:
        if name not in vars(self).get("_functions", ()):
            raise AttributeError(f"no kernel is called {name!r}")
        return self[name]

    def __repr__(self) -> str:
        return f"<PTX for {self.target} with the kernels {', '.join(self) or 'none'}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def overview(self) -> Iterator[tuple[str, bool]]:
        """Yield a line for each kernel, and whether it could be read.

        The line states parameters, instructions and memory, or the error of a kernel that cannot be read.
        """
        for name, function in self._functions.items():
            try:
                kernel = self[name]
            except TensorCoreError as error:
                yield f"{name}: not read: {error}", False
                continue
            ops = Counter(node.instr.opcode for node in kernel.ir.body if isinstance(node, Op))
            common = ", ".join(f"{opcode} {count}" for opcode, count in ops.most_common(5))
            facts = [
                f"{len(function.params)} parameters",
                f"{ops.total()} instructions ({common})",
                f"{kernel.ir.shared_bytes} bytes of shared memory"
                + " and dynamic ones" * bool(kernel.ir.dynamic),
                *([f"{kernel.local_bytes} bytes of local memory"] if kernel.local_bytes else []),
            ]
            yield f"{name}: {', '.join(facts)}", True

    def memory(self, name: str) -> np.ndarray:
        """Return the bytes of a variable in global or constant memory, which all launches share.

        Parameters
        ----------
        name : str
            The variable's name.

        Returns
        -------
        ndarray
            The bytes as uint8. `.view()` gives other types.
        """
        if name not in self._variables:
            names = (known for known in self._variables if not known.startswith("system_"))
            raise ArgumentError(f"no variable is called {name!r}; there are {', '.join(names)}")
        if name not in self._memory:
            self._memory[name] = _initial(self._variables[name], self._text)
        return self._memory[name]


@dataclass(frozen=True)
class PtxKernel(ForeignKernel):
    """A kernel in PTX: `kernel[grid, block](*arguments)` runs it on the CPU, with all checks.

    Attributes
    ----------
    name : str
        The name in PTX.
    ir : Kernel
        The kernel as IR.
    arch : str
        The architecture that is emulated.
    function : Function
        The declaration in PTX: parameters and directives such as `.maxntid`.
    module : Module
        The module that contains the kernel.
    local_bytes : int
        Bytes of local memory for each thread.
    checks : bool
        Whether races and all other errors are checked; otherwise only bounds are.
    order : Schedule or int, optional
        The order of threads. None: the default order.
    """

    name: str
    ir: Kernel = field(repr=False)
    arch: str
    function: syntax.Function = field(repr=False)
    module: Module = field(repr=False)
    local_bytes: int = 0
    checks: bool = True
    order: Order | None = None

    @property
    def program(self) -> Program:
        """The flat program with its compiled loops. All emulators of the kernel share it."""
        programs = self.module._programs
        if self.ir.name not in programs:
            programs[self.ir.name] = compile_program(self.ir)
        return programs[self.ir.name]

    @public
    def emulator(
        self, arch: str | None = None, *, checks: bool = True, order: Order | str | None = None
    ) -> PtxKernel:
        """Return the kernel for another architecture, with fewer checks, or with another order of threads.

        Parameters
        ----------
        arch : str, optional
            Such as "sm_90a". The default is the target of the file.
        checks : bool
            Whether to check for races and all other errors. False checks only bounds.
        order : int or str, optional
            A seed, or a schedule as `explore` prints it.

        Returns
        -------
        PtxKernel
            The kernel to launch.
        """
        return replace(super().emulator(checks=checks, order=order), arch=arch or self.arch)

    @property
    def _title(self) -> str:
        return self.name

    @property
    def _names(self) -> list[str]:
        return [param.name for param in self.function.params]

    @public
    def configured(
        self,
        grid: Dims,
        block: Dims,
        *,
        shared_bytes: int = 0,
        cluster: Dims | None = None,
        cooperative: bool = False,
    ) -> Callable[..., Report]:
        """Return a launch with dynamic shared memory, with clusters, or of a cooperative grid.

        Parameters
        ----------
        grid, block : int or tuple of int
            CTAs of the grid, and threads of a CTA.
        shared_bytes : int
            Bytes of dynamic shared memory.
        cluster : int or tuple of int, optional
            CTAs of a cluster.
        cooperative : bool
            All CTAs are resident, so that they may wait for each other.

        Returns
        -------
        callable
            A function that takes the kernel's arguments and runs it.
        """
        config, _ = configured(
            grid, block, shared_bytes=shared_bytes, cluster=cluster, cooperative=cooperative
        )
        return partial(self._run, config)

    def _run(self, config: LaunchConfig, *arguments: Any, memory: Sequence[GlobalPointer] = ()) -> Report:
        """memory: what the kernel reaches by addresses that are numbers, from allocation 0 on."""
        config = _within_directives(config, self.function)
        declared = self.function.params
        if len(arguments) != len(declared):
            raise ArgumentError(f"{self.name} takes {len(declared)} arguments, {len(arguments)} were given")
        values_by_name: dict[str, Any] = {}
        for param, argument in zip(declared, arguments, strict=True):
            values_by_name |= (
                parts_of(param, argument, self.ir.params) if param.array else {param.name: argument}
            )
        if self.local_bytes:
            threads = prod(config.grid) * prod(config.block)
            values_by_name[LOCAL] = np.zeros(threads * self.local_bytes, np.uint8)
        values_by_name[system_library.GRID] = np.zeros(8, np.uint8) if config.cooperative else 0
        names = [param.name for param in self.ir.params]
        missing = [
            name for name in names if name not in values_by_name and name not in self.module._variables
        ]
        if missing:
            raise ArgumentError(f"{self.name} reads {', '.join(missing)}, for which no value was given")
        argument_values = [
            values_by_name[name] if name in values_by_name else self.module.memory(name) for name in names
        ]
        if self.arch == self.module.target and self.arch not in ARCHS:
            raise ArchError(
                f"no architecture {self.arch} can be emulated; kernel.emulator(arch) takes one of "
                f"{listing(ARCHS)} instead",
                self.module._text.target_loc,
            )
        with on_host(argument_values) as values:
            pointers = list(memory)
            values = [
                _value(
                    x.content(pointers) if isinstance(x, StructInMemory) else x,
                    param.value.type.dtype,
                    shown(param.name),
                )
                for x, param in zip(values, self.ir.params, strict=True)
            ]
            values[:0] = pointers
            session = current_session()
            checks = self.checks or session is not None
            prepared = partial(
                EmulatedLaunch,
                self.ir,
                config.grid,
                config.block,
                values,
                arch=self.arch,
                dynamic_shared=config.shared_bytes,
                checks=checks,
                program=self.program,
                cluster=config.cluster,
                cooperative=config.cooperative,
                races=checks,
                order=session.order if session and self.order is None else self.order,
            )
            launch = partial(_told, prepared, self.ir.foreign)
            with system_library.full_heap_told(self.name, self.module._memory):
                return session.run(self.name, launch) if session else launch()


def _told(launch: Callable[[], EmulatedLaunch], language: str) -> Report:
    """Launch a kernel; errors advise what its language has."""
    try:
        return launch().run()
    except EmulationError as error:
        error.args = (translated(error.message, language),)
        (error.message,) = error.args
        raise


def _within_directives(config: LaunchConfig, kernel: syntax.Function) -> LaunchConfig:
    """Return a launch's configuration with the kernel's own cluster; LaunchError if it breaks a directive.

    Sections 11.4 and 11.7 of the manual. `.maxnreg` and `.minnctapersm` bind the assembler alone.
    """
    words = kernel.directives
    block, cluster = (_dim(words.get(word)) for word in (".reqntid", ".reqnctapercluster"))
    if ".blocksareclusters" in words and cluster:
        x, y, z = (clusters * blocks for clusters, blocks in zip(config.grid, cluster, strict=True))
        config = replace(config, grid=(x, y, z))
    launched = config.cluster or cluster
    size = prod(launched or (1,))
    for word, breaks, launch in (
        (".reqntid", block not in (None, config.block), f"block {config.block}"),
        (
            ".maxntid",
            config.threads > prod(words.get(".maxntid", (1024,))),
            f"{config.threads} threads in a block",
        ),
        (".reqnctapercluster", launched != cluster, f"cluster {launched}"),
        (".explicitcluster", launched is None, "no cluster"),
        (
            ".maxclusterrank",
            size > prod(words.get(".maxclusterrank", (size,))),
            f"{size} blocks in a cluster",
        ),
    ):
        if word in words and breaks:
            directive = " ".join([word, ", ".join(map(str, words[word]))]).strip()
            raise LaunchError(f"{kernel.name} is launched with {launch}; the kernel declares {directive}")
    return config.of_kernel(cluster=cluster)


def _dim(extents: tuple[int, ...] | None) -> Dim | None:
    """Pad the extents of a directive with ones."""
    if not extents:
        return None
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _initial(variable: syntax.Variable, text: syntax.Text) -> np.ndarray:
    """Return the initial bytes of a variable."""
    width = max(named(variable.type).bits // 8, 1)
    numbers = []
    for item in variable.initial:
        if item[0] != "number" and item[1] not in text.functions:
            raise ArgumentError(
                f"variable {variable.name} is initialised with {syntax.text_of(item)}; numbers and functions "
                "are supported"
            )
        number = item[1] if item[0] == "number" else str(text.address_of(item[1]))
        numbers.append(syntax.number_of(number, 8 * width))
    data = b"".join((number % (1 << 8 * width)).to_bytes(width, "little") for number in numbers)
    return np.frombuffer(bytearray(data.ljust(variable.size, b"\0")), np.uint8)


def _value(x: Any, dtype: DType, name: str) -> Any:
    """Convert an argument to the emulator's form."""
    if isinstance(x, TensorMap):
        return x.argument(name)
    if isinstance(x, np.ndarray):
        if dtype.bits != 64:
            raise ArgumentError(f"parameter {name} has {dtype.bits} bits, and the address of an array 64")
        return GlobalPointer(x, name, x.flags.writeable)
    kind = named(f"u{dtype.bits}") if dtype.kind == "b" else dtype
    if kind.kind == "u" and isinstance(x, (int, np.integer)) and -1 << dtype.bits - 1 <= x < 0:
        x = int(x) + (1 << dtype.bits)  # NVCC declares signed integers as .u32 and .u64, too
    return describe(x, name, kind).value
