"""Emit any instruction of the table by its PTX text."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.values.builder import builder


def emit(mnemonic: str, *operands: Any, **options: Any) -> Any:
    """Emit the instruction with this PTX text; its results.

    Parameters
    ----------
    mnemonic : str
        As in the table, for example "add.rn.f32"; `tensorcore-dsl list` searches.
    *operands : scalar, fragment, pointer or number
        In the order of PTX, without the destination.
    **options : predicate or value
        `pred=` guards the instruction; `otherwise=` is the result where the guard fails.

    Returns
    -------
    scalar, fragment or tuple
        What the instruction gives: nothing, one value, or several.

    Raises
    ------
    UnknownInstruction
        No such text in the table; the error names what is near.
    OperandError
        Operands of another number, type or layout.
    ArchError
        An instruction that the target lacks.

    See Also
    --------
    instruction : The same instruction as an object, outside kernels too.

    Examples
    --------
    >>> @tc.kernel
    ... def ones(x: tc.Array):
    ...     x[tc.threadIdx.x] = tc.emit("popc.b32", x[tc.threadIdx.x])
    >>> x = np.arange(32, dtype=np.uint32)
    >>> ones[1, 32](x)
    >>> x[:8]
    array([0, 1, 1, 2, 1, 2, 2, 3], dtype=uint32)
    """
    return builder().named(mnemonic, *operands, **options)
