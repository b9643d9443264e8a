"""Launch properties that a kernel fixes or reads: bounds, architecture, dependent grids."""

from __future__ import annotations

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.verify import MAX_THREADS
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.values import RuntimeValue


def launch_bounds(threads: int, min_blocks: int | None = None) -> None:
    """Fix the block size at compile time (`.reqntid`).

    The assembler may then use all registers that such a block leaves to each thread.
    `@tc.kernel(threads=...)` says the same outside the kernel.

    Parameters
    ----------
    threads : int
        Threads of a block, 1 to 1024, known at compile time.
    min_blocks : int, optional
        How many blocks must fit on an SM; it limits the registers.

    Raises
    ------
    OperandError
        Another number of threads.

    Notes
    -----
    `.reqntid` and `.minnctapersm`, section 11.4 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def fill(x: tc.Array):
    ...     tc.launch_bounds(64)
    ...     x[tc.threadIdx.x] = 1
    >>> [line for line in fill.ptx(np.zeros(64, np.float32)).splitlines() if "ntid" in line]
    ['.reqntid 64']
    """
    kernel = builder().kernel
    if not isinstance(threads, RuntimeValue) and not (
        isinstance(threads, int) and 1 <= threads <= MAX_THREADS
    ):
        raise OperandError(f"a block has 1 to {MAX_THREADS} threads, not {describe(threads)}")
    kernel.threads, kernel.min_blocks = int(threads), min_blocks


def arch_number() -> int:
    """The target's compute capability as an integer, known at compile time.

    Returns
    -------
    int
        80 for sm_80, 90 for sm_90 and sm_90a, 120 for sm_120a: branches over it are decided when
        compiling.

    Raises
    ------
    OperandError
        It is called outside a kernel.

    Examples
    --------
    >>> @tc.kernel
    ... def which(out: tc.Array):
    ...     out[0] = tc.arch_number()
    >>> out = np.zeros(1, np.int32)
    >>> with tc.target("cpu", arch="sm_89"):
    ...     which[1, 1](out)
    >>> int(out[0])
    89
    """
    return builder().arch.number


def griddep_wait() -> None:
    """Wait until the kernel in front in the stream has ended, and its writes are visible.

    Only of use in a launch with `pdl=True` (programmatic dependent launch), which may start before
    the kernel in front of it has ended. It waits for earlier kernels as far as the kernel in front
    has waited for them. Each thread waits for itself; the others must meet it at a barrier after
    the wait. Emulation reports accesses that must stand after it, as `tc.Race`.

    Raises
    ------
    ArchError
        A target before sm_90.

    Notes
    -----
    `griddepcontrol.wait`, section 9.7.13.13 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def second(x: tc.Array):
    ...     i = tc.threadIdx.x        # what needs no result of the first kernel stands here
    ...     tc.griddep_wait()
    ...     x[i] += 1
    >>> x = np.zeros(32, np.float32)
    >>> second.configured(1, 32, pdl=True)(x)
    >>> float(x[0])
    1.0
    """
    emit(names.GRIDDEP_WAIT)


def griddep_launch_dependents() -> None:
    """Let the next kernel of the stream start, if it is launched with `pdl=True`.

    It starts when every CTA has called this or ended; what this kernel writes is visible to it only
    after `griddep_wait`.

    Raises
    ------
    ArchError
        A target before sm_90.

    See Also
    --------
    griddep_wait : What the next kernel calls, with an example.

    Notes
    -----
    `griddepcontrol.launch_dependents`, section 9.7.13.13 of the PTX manual.
    """
    emit(names.GRIDDEP_LAUNCH_DEPENDENTS)


def trap() -> None:
    """Stop the kernel with an error.

    Raises
    ------
    EmulationError
        In emulation, where a thread executes it; on the GPU the launch fails.

    Notes
    -----
    `trap`, section 9.7.19.4 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def positive(x: tc.Array):
    ...     if x[tc.threadIdx.x] <= 0:
    ...         tc.trap()
    >>> positive[1, 32](np.ones(32, np.float32))
    """
    emit(names.TRAP)
