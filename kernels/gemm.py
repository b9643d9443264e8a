"""`gemm(a, b, ...)`: a product of matrices wherever they are, by the kernel that suits it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from kernels.plan import OUTPUTS, plan, realigned
from tensorcore_dsl.arguments import describe

TORCH_NAMES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "s32": "int32",
}


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1,
    beta: float | None = None,
    out: Any = None,
    out_dtype: Any = None,
    accumulate: Any = None,
    finish: Callable[..., Any] | None = None,
    family: str | None = None,
    config: Any = None,
    stream: Any = None,
) -> Any:
    """alpha A B + beta C for two-dimensional arrays of NumPy, Numba, torch or CuPy.

    A is M x K, B is K x N, both of one type: f16, bf16, f32 (multiplied as tf32), s8 (summed
    and returned as s32), f64, or (on sm_90a) e4m3 or e5m2. beta is 1 when C is given without it.
    `out` receives the result; otherwise a new array of `out_dtype` is made where A lives.
    accumulate=tc.f16 sums f16 products in f16. finish(value, row, col), a function in the kernel
    language, is applied to each element before it is rounded (wgmma kernels). family "sm80"
    (mma.sync) or "sm90" (wgmma), and `config`, the tile, override the choice; see `plan`.
    """
    a, b = _contiguous(a), _contiguous(b)
    dtype = check_operands(a, b, c, out)
    M, K, N = a.shape[0], a.shape[1], b.shape[1]
    if beta is None:
        beta = 0 if c is None else 1
    if c is None and beta != 0:
        raise tc.ArgumentError(f"beta is {beta}, but there is no C")
    if out is None:
        out = empty_like(a, (M, N), _output(dtype, out_dtype))
    check_output(out, dtype, (M, N))
    if M == 0 or N == 0:
        return out
    if K == 0:
        return _without_product(out, c, beta)
    target = out
    if family is None and config is None and accumulate is None:
        a, b, target = realigned(a, b, out) or (a, b, out)
    chosen = plan(
        a, b, c, target, alpha=alpha, beta=beta, accumulate=accumulate, finish=finish, family=family,
        config=config,
    )  # fmt: skip
    key = (chosen.grid, chosen.config.threads, stream)
    chosen.kernel[key](
        a, b, target if c is None else c, target, *_scalars(dtype, alpha, beta),
        **dict(chosen.options),
    )  # fmt: skip
    if target is not out:
        out.copy_(target)
    return out


# -- operands ---------------------------------------------------------------------------------


def check_operands(a: Any, b: Any, c: Any, out: Any) -> Any:
    """The element type of A and B; refuses what does not multiply."""
    kinds = {name: describe(x, name) for name, x in (("a", a), ("b", b), ("c", c)) if x is not None}
    for name, kind in kinds.items():
        if len(kind.shape) != 2:
            raise tc.ArgumentError(f"{name} has shape {kind.shape}; a matrix is needed")
    dtype = kinds["a"].type.dtype
    if dtype not in OUTPUTS:
        allowed = ", ".join(map(str, OUTPUTS))
        raise tc.ArgumentError(f"a has elements of type {dtype}; gemm multiplies {allowed}")
    if kinds["b"].type.dtype != dtype:
        raise tc.ArgumentError(f"a holds {dtype} but b holds {kinds['b'].type.dtype}; convert one")
    if a.shape[1] != b.shape[0]:
        raise tc.ArgumentError(
            f"a is {a.shape[0]}x{a.shape[1]} and b is {b.shape[0]}x{b.shape[1]}: "
            "a's columns must be as many as b's rows"
        )
    if c is not None:
        wanted = (a.shape[0], b.shape[1])
        if kinds["c"].shape != wanted:
            raise tc.ArgumentError(f"c has shape {kinds['c'].shape}; the product has {wanted}")
    return dtype


def check_output(out: Any, dtype: Any, shape: tuple[int, int]) -> None:
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


def _output(dtype: Any, wanted: Any) -> Any:
    if wanted is None:
        return OUTPUTS[dtype][0]
    if not isinstance(wanted, tc.DType):
        from tensorcore_dsl.dtypes import from_numpy

        wanted = from_numpy(wanted)
    if wanted not in OUTPUTS[dtype]:
        allowed = " or ".join(map(str, OUTPUTS[dtype]))
        raise tc.ArgumentError(f"a product of {dtype} gives {allowed}, not {wanted}")
    return wanted


def _contiguous(x: Any) -> Any:
    """`x`, or a copy when neither its rows nor its columns are contiguous."""
    if not hasattr(x, "shape") or len(x.shape) != 2 or 0 in x.shape:
        return x
    kind = describe(x).type
    if any(kind.unit):
        return x
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x)
    if hasattr(x, "contiguous"):
        return x.contiguous()
    if hasattr(x, "copy"):
        return x.copy(order="C")
    raise tc.ArgumentError("neither rows nor columns of an operand are contiguous; copy it first")


def empty_like(a: Any, shape: tuple[int, int], dtype: Any) -> Any:
    """A new array of the library and device that `a` belongs to."""
    library = type(a).__module__.partition(".")[0]
    if library == "torch":
        import torch

        return torch.empty(shape, dtype=getattr(torch, TORCH_NAMES[dtype.name]), device=a.device)
    if library == "cupy":
        import cupy

        return cupy.empty(shape, dtype.numpy)
    if hasattr(a, "copy_to_host"):
        from numba import cuda

        return cuda.device_array(shape, dtype.numpy)
    return np.empty(shape, dtype.numpy)


def _without_product(out: Any, c: Any, beta: float) -> Any:
    """K = 0: the product is zero."""
    if c is None or beta == 0:
        out[...] = 0
    else:
        out[...] = (c * beta).astype(out.dtype) if isinstance(c, np.ndarray) else c * beta
    return out


def _scalars(dtype: Any, alpha: float, beta: float) -> tuple[Any, Any]:
    if dtype != tc.s8:
        return float(alpha), float(beta)
    if int(alpha) != alpha or int(beta) != beta:
        raise tc.ArgumentError(f"integer products take integer alpha and beta, not {alpha}, {beta}")
    return int(alpha), int(beta)


