"""Products with more than one matrix of weights: groups of rows, and gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.grouped_gemm import MAX_GROUPS, grouped_gemm_kernel
from tensorcore_dsl.kernels.hopper.swiglu_gemm import swiglu_kernel
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.host.cost_model import ranking
from tensorcore_dsl.kernels.host.dispatch_cache import Ready, launch_of, no_work, ready
from tensorcore_dsl.kernels.host.epilogue_function import check_epilogue
from tensorcore_dsl.kernels.host.plan import Plan, assembled, why_not_sm90
from tensorcore_dsl.kernels.host.problem_shape import Shape, at_once, blocks_of_grid
from tensorcore_dsl.runtime.arguments import Description, describe

HALF_TYPES = (tc.bf16, tc.f16)
IN_TURN = HopperConfig(BN=128, pingpong=True, cluster_n=2).with_stages()
FEW_ROWS = HopperConfig(BM=64, BN=128).with_stages()


def grouped_gemm(
    a: Any, b: Any, offsets: Any, *, out: Any = None, epilogue: Callable[..., Any] | None = None,
    config: HopperConfig | None = None, stream: Any = None,
) -> Any:  # fmt: skip
    """Rows offsets[g] to offsets[g + 1] of A times B[g], on sm_90a.

    A is rows x K with K contiguous, B groups x K x N, both bf16 or f16; offsets are groups + 1
    ascending s32 where A lives, from 0 to rows. The result is rows x N. Groups may be empty.
    """
    found = ready(_prepare_grouped, (a, b, offsets), out, epilogue, config, stream)
    check_order(offsets, found.shape[0])
    return found.into(out, a, b, offsets)


def _prepare_grouped(
    a: Any, b: Any, offsets: Any, out: Any, epilogue: Any, config: Any, stream: Any
) -> Ready:
    """Check the operands, but for the values of the offsets, and choose the tile."""
    check_epilogue(epilogue)
    kinds = {name: describe(x, name) for name, x in (("a", a), ("b", b), ("offsets", offsets))}
    _check_half(kinds, "a", "b")
    (rows, K), (groups, depth, N) = _shape(kinds, "a", 2), _shape(kinds, "b", 3)
    if depth != K:
        raise tc.ArgumentError(f"a is {rows}x{K} and each matrix of b {depth}x{N}: K differs")
    found = kinds["offsets"]
    if found.type.dtype != tc.s32 or found.shape != (groups + 1,) or groups > MAX_GROUPS:
        raise tc.ArgumentError(
            f"offsets are {found.type.dtype} of shape {found.shape}; needed are {groups + 1} s32, "
            f"one more than b has matrices, of which there may be {MAX_GROUPS}"
        )
    out = _result(a, (rows, N), out)
    dtype = kinds["a"].type.dtype
    if 0 in (rows, N, groups):
        return Ready((rows, N), dtype, no_work)
    if K == 0:
        raise tc.ArgumentError("K is 0: there is nothing to multiply")
    _check_lines(a=a, b=b, d=out)
    config = config or (FEW_ROWS if rows <= 64 * groups else IN_TURN)
    _check_config("groups of rows", config, "cluster_m", "split_k", "valid_m", "streamk_units")
    traits = HopperTraits(b_k_major=kinds["b"].type.unit[1], epilogue=epilogue)
    grid = at_once(config) * config.cluster_size
    chosen = _plan(grouped_gemm_kernel, config, grid, traits)
    return Ready((rows, N), dtype, launch_of(chosen, stream, (a, b, offsets, out)))


def swiglu(
    x: Any, w_gate: Any, w_up: Any, *, out: Any = None, epilogue: Callable[..., Any] | None = None,
    config: HopperConfig | None = None, stream: Any = None,
) -> Any:  # fmt: skip
    """silu(x w_gate) * (x w_up) in one kernel, on sm_90a, where silu(y) = y / (1 + exp(-y)).

    x is M x K, the weights K x N, all bf16 or f16 with K contiguous: weights that are kept as
    N x K come as `w.T`.
    """
    found = ready(_prepare_gated, (x, w_gate, w_up), out, epilogue, config, stream)
    return found.into(out, x, w_gate, w_up)


def _prepare_gated(
    x: Any, w_gate: Any, w_up: Any, out: Any, epilogue: Any, config: Any, stream: Any
) -> Ready:
    """Check the operands and choose the tile."""
    check_epilogue(epilogue)
    given = (("x", x), ("w_gate", w_gate), ("w_up", w_up))
    kinds = {name: describe(value, name) for name, value in given}
    _check_half(kinds, *kinds)
    (M, K), (depth, N) = _shape(kinds, "x", 2), _shape(kinds, "w_gate", 2)
    if depth != K or _shape(kinds, "w_up", 2) != (depth, N):
        shapes = ", ".join(f"{name} {kind.shape}" for name, kind in kinds.items())
        raise tc.ArgumentError(f"the shapes do not fit x (M, K), weights (K, N): {shapes}")
    out = _result(x, (M, N), out)
    dtype = kinds["x"].type.dtype
    if 0 in (M, N):
        return Ready((M, N), dtype, no_work)
    if K == 0:
        raise tc.ArgumentError("K is 0: there is nothing to multiply")
    for weights in (w_gate, w_up):
        _check_lines(a=x, b=weights, d=out)
    wrong = [name for name, kind in kinds.items() if not kind.type.unit[name == "x"]]
    if wrong:
        raise tc.ArgumentError(f"K is not contiguous in {', '.join(wrong)}")
    config = config or choose_gated(M, N, K)
    _check_config("products with a gate", config, "k_slabs", "split_k", "valid_m", "streamk_units")
    grid = blocks_of_grid(config, M, 2 * N)
    chosen = _plan(swiglu_kernel, config, grid, HopperTraits(epilogue=epilogue))
    return Ready((M, N), dtype, launch_of(chosen, stream, (x, w_gate, w_up, out)))


def choose_gated(M: int, N: int, K: int) -> HopperConfig:
    """Tiles taken in turn; half of a tile's columns are of the gate."""
    shape = Shape(M, 2 * N, K, finished=True)
    in_turn = (config for _, config in ranking(shape) if config.pingpong)
    return next((x for x in in_turn if x.BN % 32 == 0 and assembled(x)), IN_TURN)


def _plan(kernel: Any, config: HopperConfig, grid: int, traits: HopperTraits) -> Plan:
    return Plan(kernel, config, grid, (("config", config), ("traits", traits)))


def check_order(offsets: Any, rows: int) -> None:
    """Of offsets in NumPy's arrays; others are on a GPU, and nothing waits for them."""
    if not isinstance(offsets, np.ndarray):
        return
    if offsets[0] != 0 or offsets[-1] != rows:
        raise tc.ArgumentError(
            f"offsets go from {offsets[0]} to {offsets[-1]}; needed is from 0 to {rows}, the rows "
            f"of a"
        )
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls):
        g = int(falls[0])
        raise tc.ArgumentError(
            f"offsets must ascend; offsets[{g}] is {offsets[g]} and offsets[{g + 1}] "
            f"{offsets[g + 1]}"
        )


def _check_half(kinds: dict[str, Description], *names: str) -> None:
    types = {name: kinds[name].type.dtype for name in names}
    if len(set(types.values())) > 1 or types[names[0]] not in HALF_TYPES:
        given = ", ".join(f"{name} {dtype}" for name, dtype in types.items())
        raise tc.ArgumentError(f"operands are all bf16 or all f16, not {given}")


def _shape(kinds: dict[str, Description], name: str, axes: int) -> tuple[int, ...]:
    shape = kinds[name].shape
    if len(shape) != axes:
        raise tc.ArgumentError(f"{name} has shape {shape}; {axes} axes are needed")
    return shape


def _result(a: Any, shape: tuple[int, int], out: Any) -> Any:
    dtype = describe(a).type.dtype
    if out is None:
        return empty_like(a, shape, dtype)
    found = describe(out, "out")
    if found.shape != shape or found.type.dtype != dtype or not found.type.writable:
        raise tc.ArgumentError(
            f"out is {found.type} of shape {found.shape}; needed is writable {dtype} of {shape}"
        )
    return out


def _check_lines(**arrays: Any) -> None:
    types = {name: describe(x, name).type for name, x in arrays.items()}
    obstacle = why_not_sm90(types)
    if not obstacle and (types["d"].align < 16 or not types["a"].unit[1]):
        obstacle = "lines of the first operand and of the result are rows of multiples of 16 bytes"
    if obstacle:
        raise tc.ArgumentError(f"the wgmma kernels cannot take this product: {obstacle}")


def _check_config(products: str, config: Any, *without: str) -> None:
    """Refuses what these kernels have no part for."""
    if not isinstance(config, HopperConfig):
        raise tc.ArgumentError(f"config is {config}; needed is a kernels.HopperConfig")
    plain = HopperConfig()
    found = [name for name in without if getattr(config, name) != getattr(plain, name)]
    if found:
        given = ", ".join(f"{name}={getattr(config, name)}" for name in found)
        raise tc.ArgumentError(f"the kernel for {products} takes no {given}: {config}")
