"""`gemm(a, b, ...)`: chooses kernel and tile for a problem, on the GPU or the CPU alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from kernels.pipeline import Config, Problem
from kernels.sm80_bf16_gemm import bf16_gemm
from kernels.sm80_f16_gemm import f16_gemm
from kernels.sm80_f64_gemm import f64_gemm
from kernels.sm80_s8_gemm import s8_gemm
from kernels.sm80_tf32_gemm import tf32_gemm
from tensorcore_dsl.arguments import describe

KERNELS = {
    tc.f16: f16_gemm,
    tc.bf16: bf16_gemm,
    tc.f32: tf32_gemm,
    tc.s8: s8_gemm,
    tc.f64: f64_gemm,
}
# Element type of A and B -> element types that D may have, the default first.
OUTPUTS = {
    tc.f16: (tc.f16, tc.f32),
    tc.bf16: (tc.bf16, tc.f32),
    tc.f32: (tc.f32,),
    tc.s8: (tc.s32,),
    tc.f64: (tc.f64,),
}


@dataclass(frozen=True)
class Plan:
    """What gemm would launch."""

    kernel: Any
    config: Config
    problem: Problem
    grid: int
    constants: tuple[tuple[str, Any], ...] = ()


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
    config: Config | None = None,
    stream: Any = None,
) -> Any:
    """alpha A B + beta C for two-dimensional arrays of NumPy, Numba, torch or CuPy.

    A is M x K, B is K x N, both of one type: f16, bf16, f32 (multiplied as tf32), s8 (summed
    and returned as s32) or f64. beta is 1 when C is given without it. `out` receives the
    result; otherwise a new array of `out_dtype` is made where A lives. accumulate=tc.f16 sums
    f16 products in f16. `config` overrides the choice of tile.
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
    chosen = plan(a, b, c, out, alpha=alpha, beta=beta, config=config, accumulate=accumulate)
    launch = chosen.kernel[(chosen.grid, chosen.config.threads, stream)[: 3 if stream is not None else 2]]
    launch(
        a, b, out if c is None else c, out, *_scalars(dtype, alpha, beta),
        config=chosen.config, problem=chosen.problem, **dict(chosen.constants),
    )  # fmt: skip
    return out


def plan(
    a: Any, b: Any, c: Any, d: Any, *, alpha: float = 1, beta: float = 0,
    config: Config | None = None, accumulate: Any = None,
) -> Plan:  # fmt: skip
    """The kernel, tile and variant for these operands."""
    dtype = describe(a, "a").type.dtype
    M, K, N = a.shape[0], a.shape[1], b.shape[1]
    config = config or choose_tile(dtype, M, N, K)
    problem = study(a, b, c, d, config, alpha, beta)
    grid = -(-M // config.BM) * -(-N // config.BN)
    if accumulate not in (None, tc.f32) and dtype != tc.f16:
        raise tc.ArgumentError(f"only f16 products can be summed in {accumulate}, not {dtype}")
    constants = (("accumulate", accumulate),) if accumulate is not None and dtype == tc.f16 else ()
    return Plan(KERNELS[dtype], config, problem, grid, constants)


# Tiles hold 128 bytes of K: one swizzled line of shared memory.
_TILES = {
    tc.f16: Config(BK=64),
    tc.bf16: Config(BK=64),
    tc.f32: Config(BK=32),
    tc.s8: Config(BK=128),
    tc.f64: Config(BM=64, BN=64, BK=16, WM=32, WN=32),
}
_FEW_BLOCKS = 132  # of the large tile: fewer leave most of a chip idle


def choose_tile(dtype: Any, M: int, N: int, K: int) -> Config:
    """Large tiles where they fill the chip, small ones where the matrix is small."""
    config = _TILES[dtype]
    blocks = -(-M // config.BM) * -(-N // config.BN)
    if blocks < _FEW_BLOCKS:
        config = replace(config, BM=64, BN=64, WM=32, WN=32)
    return config


def study(a: Any, b: Any, c: Any, d: Any, config: Config, alpha: float, beta: float) -> Problem:
    """What the kernel may assume of the operands."""
    types = {name: describe(x, name).type for name, x in (("a", a), ("b", b), ("d", d))}
    M, K, N = a.shape[0], a.shape[1], b.shape[1]
    full = M % config.BM == 0 and N % config.BN == 0 and K % config.BK == 0
    vec_d = types["d"].align if types["d"].unit[1] else 1
    has_c = c is not None and beta != 0
    if has_c:
        kind = describe(c, "c").type
        vec_d = min(vec_d, kind.align if kind.unit[1] else 1)
    a_k_major, b_k_major = types["a"].unit[1], types["b"].unit[0]
    return Problem(
        a_k_major=a_k_major, b_k_major=b_k_major,
        vec_a=_vector(types["a"], a_k_major or K > 1),
        vec_b=_vector(types["b"], b_k_major or K > 1),
        vec_d=vec_d, full=full, prefetch=_prefetches(types["a"].dtype, K, config, a_k_major and b_k_major),
        scaled=alpha != 1, has_c=has_c,
    )  # fmt: skip


def _prefetches(dtype: Any, K: int, config: Config, k_major: bool) -> bool:
    """Enough tiles for the slot read ahead; bytes gathered one by one leave it no registers."""
    return -(-K // config.BK) >= config.stages and (k_major or dtype != tc.s8)


def _vector(kind: Any, lines: bool) -> int:
    """Bytes of one copy; without a line stride, nothing says where further lines would lie."""
    return int(kind.align if lines and not all(kind.unit) else kind.dtype.itemsize)


# -- operands ---------------------------------------------------------------------------------


def check_operands(a: Any, b: Any, c: Any, out: Any) -> Any:
    """The element type of A and B; refuses what does not multiply."""
    kinds = {name: describe(x, name) for name, x in (("a", a), ("b", b), ("c", c)) if x is not None}
    for name, kind in kinds.items():
        if len(kind.shape) != 2:
            raise tc.ArgumentError(f"{name} has shape {kind.shape}; a matrix is needed")
    dtype = kinds["a"].type.dtype
    if dtype not in KERNELS:
        allowed = ", ".join(map(str, KERNELS))
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
        raise tc.ArgumentError(f"out holds {found.type.dtype}; a product of {dtype} gives {allowed}")
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

        names = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "s32": "int32", "f64": "float64"}
        return torch.empty(shape, dtype=getattr(torch, names[dtype.name]), device=a.device)
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


