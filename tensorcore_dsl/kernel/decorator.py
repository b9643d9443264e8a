"""`@tc.kernel`, and the class `Kernel`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.checking.check import Check
from tensorcore_dsl.checking.explorer import Explorer, explorer_of_emulator
from tensorcore_dsl.errors import ArgumentError, OperandError, check_call, public
from tensorcore_dsl.export.write import write_kernel
from tensorcore_dsl.interpreter.debugging.trace import Traced
from tensorcore_dsl.interpreter.execution.watchdog import limit_of
from tensorcore_dsl.interpreter.scheduling.orders import Order, order_of
from tensorcore_dsl.kernel.compiled import CompiledKernel
from tensorcore_dsl.kernel.emulation import Emulator
from tensorcore_dsl.kernel.launch import Launch
from tensorcore_dsl.runtime.launch_config import (
    Dims,
    LaunchConfig,
    LaunchKey,
    configuration,
    configured,
    refuse_call,
)
from tensorcore_dsl.tracing import inside_kernel

if TYPE_CHECKING:
    from tensorcore_dsl._typing import InKernel


class Kernel(CompiledKernel):
    """A compiled-on-demand kernel: `kernel[grid, block](...)`, `.emulate`, `.ir`, `.ptx`, ...

    `@tc.kernel` makes it. A launch is `kernel[grid, block, stream, shared_bytes](...)`; grid and
    block are integers or tuples of up to three.

    Parameters
    ----------
    function : function
        The kernel as it is written.
    name : str, optional
        In PTX; None: that of the function.
    threads, max_registers, min_blocks : int, optional
        The block size, and limits for the assembler.
    checks : bool, optional
        Whether indices are checked, also on the GPU; None: in emulation. False also leaves out
        assertions.
    lineinfo : bool, optional
        Whether the machine code has the lines of the source; None: yes.

    Raises
    ------
    ArgumentError
        A function that is none, or options of another type.

    See Also
    --------
    kernel : The decorator, with an example.
    """

    def _prepare(self) -> None:
        super()._prepare()
        self._launches: dict[Any, Launch] = {}

    @public
    def __getitem__(self, key: LaunchKey) -> Launch:
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
            self,
            grid: Dims,
            block: Dims,
            *,
            stream: Any = None,
            shared_bytes: SupportsIndex = 0,
            cluster: Dims | None = None,
            cooperative: bool = False,
            pdl: bool = False,
        ) -> Launch: ...

    else:

        @public
        def configured(self, grid: Any, block: Any, **options: Any) -> Any:
            """Like `kernel[grid, block]`, with all options by name.

            Parameters
            ----------
            grid, block : int or tuple of int
                Blocks, and threads of a block, in up to three axes.
            **options : keywords
                stream: of torch, Numba, CuPy or cuda.core, or its handle; None: the one that the
                arrays name. shared_bytes: bytes of dynamic shared memory. cluster: CTAs of a
                cluster. cooperative: all blocks run at once. pdl: the launch may start before the
                kernel in front of it has ended (`griddep_wait`).

            Returns
            -------
            Launch
                To call with the arguments; `.prepare(...)` gives a function that launches fast.

            Raises
            ------
            ArgumentError
                An unknown option, or a value that no launch takes.
            """
            check_call(configured, ".configured", (grid, block), options, ArgumentError)
            key = configured(grid, block, **options)
            try:
                return self._launches[key]
            except (KeyError, TypeError):
                return self._new_launch(key, *key)

    @property
    def emulate(self) -> Emulator:
        """`kernel.emulate[grid, block](...)` runs on the CPU, independent of the target."""
        return Emulator(self)

    @public
    def emulator(
        self,
        arch: str | None = None,
        *,
        checks: bool | None = None,
        profile: bool = False,
        order: Order | str | None = None,
        trace: Traced = (),
        limit: int | None = None,
        timeline: bool | int = False,
    ) -> Emulator:
        """An emulator of an architecture; its launches return a report.

        Parameters
        ----------
        arch : str, optional
            "sm_80", "sm_90a", ...; None: the one that is current.
        checks : bool, optional
            Of indices, alignment, the state of shared memory and asynchronous operations. None: all
            of them, but indices only in kernels of users, not of tensorcore_dsl.kernels.
        profile : bool
            The report then counts accesses to memory by source line.
        order : int or str, optional
            A seed, an integer from 0 on, for a random order of warps (of lanes too, every fourth
            seed), which is slower but may reveal races that the default order hides; or a schedule
            as `explore` prints it. None: the default order.
        trace : str, sequence or dict
            Names of variables whose values the report's `trace` has, at each assignment; or a dict
            from names to the threads of a block (numbers, None for all) that are recorded.
        limit : int, optional
            The most iterations that a loop may take before it counts as endless; None: what the
            environment variable TENSORCORE_DSL_LIMIT says, else as long as anything changes.
        timeline : bool or int
            True, or a number of blocks; the report's `timeline` then estimates how the first blocks
            (whole clusters) spend their time on an sm_90a GPU.

        Returns
        -------
        Emulator
            `emulator[grid, block](...)` runs and returns a Report.

        Raises
        ------
        ArchError, ArgumentError
            An unknown architecture, options that are not allowed.
        """
        more = limit_of(limit), timeline
        return Emulator(self, arch, checks, profile, order_of(order), trace, *more)

    @public
    def check(
        self,
        grid: Dims,
        block: Dims,
        *,
        shared_bytes: SupportsIndex = 0,
        cluster: Dims | None = None,
        cooperative: bool = False,
        arch: str | None = None,
        order: Order | str | None = None,
        in_place: bool = False,
    ) -> Check:
        """`kernel.check(grid, block)(...)` runs in emulation with all checks.

        A finding of the emulator is not raised.

        Parameters
        ----------
        grid, block : int or tuple of int
            As for a launch.
        shared_bytes : int
            Dynamic shared memory.
        cluster : int or tuple of int, optional
            CTAs of a cluster.
        cooperative : bool
            All blocks run at once.
        arch, order : optional
            As `emulator` takes them.
        in_place : bool
            Run on the arrays themselves; else on copies, which the result's `arguments` has.

        Returns
        -------
        function
            Takes the arguments of a launch and gives a CheckResult.

        Raises
        ------
        ArgumentError
            A configuration that no launch takes.
        """
        config = LaunchConfig.of(grid, block, shared_bytes, cluster, cooperative)
        return self.checked(config, arch, order, in_place)

    def checked(
        self, config: LaunchConfig, arch: str | None, order: Order | str | None, in_place: bool
    ) -> Check:
        return Check(Emulator(self, arch, True, order=order_of(order)), config, in_place)

    @public
    def explore(self, n: int = 100, *, arch: str | None = None, checks: bool | None = None) -> Explorer:
        """`kernel.explore(n)[grid, block](...)` emulates n orders of threads.

        It runs on copies of the arrays, compares their bits with those of the first order, and
        stops at the first error or difference.

        Parameters
        ----------
        n : int
            How many orders, 1 or more.
        arch : str, optional
            As `emulator` takes it.
        checks : bool, optional
            As `emulator` takes it.

        Returns
        -------
        Explorer
            Its launches return an Exploration.

        Raises
        ------
        ArgumentError
            Another number of orders.
        """
        return explorer_of_emulator(Emulator(self, arch, checks), n)

    @public
    def export(  # noqa: PLR0913
        self,
        folder: str | Path,
        types: Sequence[Any] | Mapping[str, Any],
        /,
        *,
        arch: str | Arch | None = None,
        name: str | None = None,
        form: str = "cubin",
        grid: Any = None,
        block: Dims | None = None,
        shared_bytes: SupportsIndex = 0,
        cluster: Dims | None = None,
        cooperative: bool = False,
        pdl: bool = False,
        shapes: Mapping[str, Sequence[int]] | None = None,
        about: str | None = None,
        **constants: Any,
    ) -> Path:
        """Write machine code, a C header, C source with a typed launcher, and a description in JSON.

        The C needs the CUDA driver alone. `load_exported` launches the kernel from Python. No GPU is
        needed to export.

        Parameters
        ----------
        folder : str or Path
            Made if it is not there.
        types : sequence or mapping
            Arguments of a launch, or their types (`ArrayType`, `ScalarType`, a dtype); in order, or by
            name.
        arch : str, optional
            None: the architecture on which kernels run now.
        name : str, optional
            Of the files and of the functions in C. None: that of the kernel.
        form : {"cubin", "ptx"}
            Machine code for one architecture, or text that the driver compiles.
        grid : int, str or tuple, optional
            Blocks, as integers or as texts over the arguments, such as "cdiv(x.shape[0], 128)": integers,
            integer arguments, `array.shape[axis]`, + - * // %, and min, max and cdiv of two values. None:
            each launch gives the grid.
        block : int or tuple of int, optional
            Threads of a block. None: the number that the kernel is compiled for.
        shared_bytes, cluster, cooperative, pdl : optional
            As `configured` takes them.
        shapes : mapping, optional
            The only shape that an argument may have, by its name; a launch refuses others.
        about : str, optional
            What the kernel computes, for the header. None: the docstring of the kernel.
        **constants : value
            Values of Const parameters.

        Returns
        -------
        Path
            Of the description, NAME.json; NAME.cubin (or NAME.ptx), NAME.h and NAME.c lie beside it.

        Raises
        ------
        CompileError, ArgumentError
            A mistake in the kernel, at its line; arguments that do not fit; a folder that cannot be
            written.
        AssemblyError
            There is no assembler; `form="ptx"` needs none.
        """
        by_name = dict(types) if isinstance(types, Mapping) else {}
        in_order = () if isinstance(types, Mapping) else types
        chosen = self.specialise(in_order, by_name | constants, arch)
        options = {"shared_bytes": shared_bytes, "cluster": cluster, "cooperative": cooperative, "pdl": pdl}
        about = inspect.getdoc(self.function) or "" if about is None else about
        return write_kernel(chosen, folder, name, form, grid, block, shapes or {}, about, **options)

    @public
    def __call__(self, /, *args: InKernel, **named: InKernel) -> None:
        refuse_call(self.__name__, self.__name__)


@overload
def kernel(function: Callable[..., None], /) -> Kernel: ...


@overload
def kernel(
    *,
    name: str | None = None,
    threads: int | None = None,
    max_registers: int | None = None,
    min_blocks: int | None = None,
    checks: bool | None = None,
    lineinfo: bool | None = None,
) -> Callable[[Callable[..., None]], Kernel]: ...


@public
def kernel(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorator that makes a kernel of a function: `@kernel`, or `@kernel(threads=128)`.

    Parameters
    ----------
    function : function, optional
        Its parameters are annotated: `tc.Array`, element types for run-time numbers, `tc.Const` for
        what is known when compiling.
    **options : keywords
        threads: the block size (`.reqntid`), so that the assembler can use more registers.
        max_registers, min_blocks: limits for the assembler. name: of the kernel in PTX. checks:
        whether indices are checked, also on the GPU; None: in emulation, or everywhere if the
        environment has TENSORCORE_DSL_CHECKS=1; False also leaves out assertions. lineinfo: False
        leaves the lines of the source out of the machine code; by default they are in it, unless
        the environment variable TENSORCORE_DSL_LINEINFO is 0.

    Returns
    -------
    Kernel
        Launched as `kernel[grid, block](...)`; a decorator, if only options are given.

    Raises
    ------
    ArgumentError
        No function, an option that does not exist, a number that is none.
    CompileError
        At the first launch: what the kernel language does not have, at its line.

    Examples
    --------
    >>> @tc.kernel(threads=32)
    ... def double(x: tc.Array, factor: tc.f32, offset: tc.Const = 0):
    ...     x[tc.threadIdx.x] = factor * x[tc.threadIdx.x] + offset
    >>> x = np.arange(32, dtype=np.float32)
    >>> double[1, 32](x, 2, offset=1)
    >>> x[:3]
    array([1., 3., 5.], dtype=float32)
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
