"""What a product takes and gives: checks of operands and results, and their types."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.host.plan import OUTPUTS
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix
from tensorcore_dsl.runtime.arguments import describe


def check_operands(a: Any, b: Any, c: Any) -> Any:
    """The element type of A and B; refuses what does not multiply."""
    if isinstance(b, SparseMatrix):
        raise tc.ArgumentError("b is a SparseMatrix; only a may be one")
    kinds = {name: describe(x, name) for name, x in (("a", a), ("b", b), ("c", c)) if x is not None}
    for name, kind in kinds.items():
        if len(kind.shape) not in (2, 3):
            raise tc.ArgumentError(f"{name} has shape {kind.shape}; a matrix is needed, or a batch")
    dtype = kinds["a"].type.dtype
    if dtype not in OUTPUTS:
        allowed = ", ".join(map(str, OUTPUTS))
        raise tc.ArgumentError(f"a has elements of type {dtype}; gemm multiplies {allowed}")
    if kinds["b"].type.dtype != dtype:
        raise tc.ArgumentError(f"a holds {dtype} but b holds {kinds['b'].type.dtype}; convert one")
    if a.shape[-1] != b.shape[-2]:
        raise tc.ArgumentError(
            f"a is {_size(a)} and b is {_size(b)}: a's columns must be as many as b's rows"
        )
    wanted = shape_of_product(a, b)
    if c is not None and kinds["c"].shape != wanted:
        raise tc.ArgumentError(f"c has shape {kinds['c'].shape}; the product has {wanted}")
    return dtype


def _size(x: Any) -> str:
    return "x".join(map(str, x.shape))


def shape_of_product(a: Any, b: Any) -> tuple[int, ...]:
    """Of one product or of a batch."""
    batches = {x.shape[0] for x in (a, b) if len(x.shape) == 3}
    if len(batches) > 1:
        raise tc.ArgumentError(f"a is {_size(a)} and b is {_size(b)}: the batches differ")
    return (*batches, a.shape[-2], b.shape[-1])


def check_output(out: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    found = describe(out, "out")
    if found.shape != shape:
        raise tc.ArgumentError(f"out has shape {found.shape}; the product has {shape}")
    if found.type.dtype not in OUTPUTS[dtype]:
        allowed = " or ".join(map(str, OUTPUTS[dtype]))
        raise tc.ArgumentError(
            f"out holds {found.type.dtype}; a product of {dtype} gives {allowed}"
        )
    if not found.type.writable:
        raise tc.ArgumentError("out is read-only")


def output_type(dtype: Any, wanted: Any) -> Any:
    """The type that the caller wants of a product, or its default."""
    if wanted is None:
        return OUTPUTS[dtype][0]
    if not isinstance(wanted, tc.DType):
        from tensorcore_dsl.dtypes import from_numpy

        with suppress(TypeError):  # of what names no type, such as "f32": it is not allowed either
            wanted = from_numpy(wanted)
    if wanted not in OUTPUTS[dtype]:
        allowed = " or ".join(map(str, OUTPUTS[dtype]))
        raise tc.ArgumentError(f"a product of {dtype} gives {allowed}, not {wanted!r}")
    return wanted


def scalars(dtype: Any, alpha: float, beta: float) -> tuple[Any, Any]:
    if dtype != tc.s8:
        return float(alpha), float(beta)
    if int(alpha) != alpha or int(beta) != beta:
        raise tc.ArgumentError(f"integer products take integer alpha and beta, not {alpha}, {beta}")
    return int(alpha), int(beta)
