"""What a kernel fixes or knows about its launch: bounds, architecture, dependent grids."""

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

    The assembler may then use all registers that such a block leaves to each thread. min_blocks:
    how many blocks must fit on an SM.
    """
    kernel = builder().kernel
    if not isinstance(threads, RuntimeValue) and not (
        isinstance(threads, int) and 1 <= threads <= MAX_THREADS
    ):
        raise OperandError(f"a block has 1 to {MAX_THREADS} threads, not {describe(threads)}")
    kernel.threads, kernel.min_blocks = int(threads), min_blocks


def arch_number() -> int:
    """The target's compute capability as an integer, known at compile time: 80, 90, 120."""
    return builder().arch.number


def griddep_wait() -> None:
    """griddepcontrol.wait: wait until the preceding kernels of the stream have ended."""
    emit(names.GRIDDEP_WAIT)


def griddep_launch_dependents() -> None:
    """griddepcontrol.launch_dependents: let the next kernel of the stream start."""
    emit(names.GRIDDEP_LAUNCH_DEPENDENTS)


def trap() -> None:
    """Stop the kernel with an error."""
    emit(names.TRAP)
