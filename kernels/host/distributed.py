"""Products on several GPUs: `all_gather_gemm`, `gemm_reduce_scatter`, `gemm_all_reduce`.

A *group* is where the ranks are: the virtual GPUs of `tc.devices`, or a process group of torch
(`tensorcore_dsl.torch.distributed`). It allocates memory that all ranks map, and keeps it for later
calls of the same shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import current_devices, current_target, target_arch
from tensorcore_dsl.kernels.hopper import distributed_gemm
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.host.arguments import described
from tensorcore_dsl.kernels.host.launch import PreparedCall, cached_call
from tensorcore_dsl.kernels.host.operands import check_half_precision, check_rank
from tensorcore_dsl.kernels.problem.families import has_wgmma
from tensorcore_dsl.kernels.problem.problem_shape import SMS, grid_size
from tensorcore_dsl.kernels.sizes import cdiv

# Tiles, and the relative time of an element of one: narrow tiles load more for each product, and two
# CTAs of a cluster share what they load. Fitted to 40 shapes on two H200s, all three products.
TILES: dict[HopperConfig, float] = {
    HopperConfig(BM=128, BN=256, stages=4, cluster_m=2): 1.0,
    HopperConfig(BM=128, BN=256, stages=4): 1.01,
    HopperConfig(BM=128, BN=224, stages=4): 1.03,
    HopperConfig(BM=128, BN=192, stages=4, cluster_m=2): 1.03,
    HopperConfig(BM=128, BN=192, stages=4): 1.09,
    HopperConfig(BM=128, BN=160, stages=5, cluster_m=2): 1.08,
    HopperConfig(BM=128, BN=160, stages=5): 1.16,
    HopperConfig(BM=64, BN=128, stages=8): 2.0,
}


class Group(Protocol):
    """Ranks with memory that all of them map.

    Attributes
    ----------
    world : int
        Number of ranks.
    kept : dict
        Memory and launches that calls keep for later calls of equal shapes.
    """

    world: int
    kept: dict[Any, Any]

    def shared(self, shape: tuple[int, ...], dtype: tc.DType) -> tuple[tc.PeerArray, Any]:
        """Allocate zeros in memory that all ranks map.

        Return the PeerArray of all ranks, and this rank's array as the argument of a kernel.
        """
        raise NotImplementedError

    def local(self, shape: tuple[int, ...], dtype: tc.DType) -> Any:
        """Allocate zeros that no other rank maps, as the argument of a kernel."""

    def of_rank(self, argument: Any) -> Any:
        """Return one rank's array of an argument."""


class VirtualGroup:
    """The virtual GPUs of `with tc.devices(world)`: an argument is a list of NumPy arrays."""

    def __init__(self, world: int) -> None:
        self.world: int = world
        self.kept: dict[Any, Any] = {}

    def shared(self, shape: tuple[int, ...], dtype: tc.DType) -> tuple[tc.PeerArray, Any]:
        arrays = self.local(shape, dtype)
        return tc.PeerArray(arrays), arrays

    def local(self, shape: tuple[int, ...], dtype: tc.DType) -> Any:
        return [np.zeros(shape, dtype.numpy) for _ in range(self.world)]

    def of_rank(self, argument: Any) -> Any:
        if not isinstance(argument, (list, tuple)) or len(argument) != self.world:
            raise tc.ArgumentError(
                f"each operand on {self.world} virtual GPUs is a list of {self.world} arrays, one a rank"
            )
        devices = current_devices()
        if devices is None or devices.count != self.world:
            raise tc.ArgumentError(
                f"a VirtualGroup({self.world}) multiplies inside of `with tc.devices({self.world}):`"
            )
        return argument[0]


def all_gather_gemm(
    x: Any, w: Any, group: Group, *, out: Any = None, epilogue: Any = None, config: HopperConfig | None = None
) -> Any:
    """Compute (rows of x of all ranks) w on each rank, while the rows arrive; for sm_90a.

    Parameters
    ----------
    x : array
        M / world x K, bf16 or f16: this rank's rows. On virtual GPUs, a list of arrays, as all operands.
    w : array
        K x N, contiguous along either axis: this rank's columns of a weight. Pass one of N x K as `w.T`.
    group : Group
        `VirtualGroup(world)` inside `with tc.devices(world)`, or that of
        `tensorcore_dsl.torch.distributed.group_of`.
    out : array, optional
        M x N. None: a new array.
    epilogue : function, optional
        As for `gemm`: epilogue(value, row, col) of each element.
    config : HopperConfig, optional
        The tile; cluster_n and split_k are 1.

    Returns
    -------
    array
        M x N. All ranks call it in the same order.

    Raises
    ------
    ArgumentError
        Shapes, types or layouts that do not fit. M / world is a multiple of 64.

    Examples
    --------
    >>> x = [np.full((64, 64), rank + 1, np.float16) for rank in range(2)]
    >>> w = [np.ones((16, 64), np.float16) for rank in range(2)]
    >>> with tc.devices(2):
    ...     y = kernels.all_gather_gemm(x, [one.T for one in w], kernels.VirtualGroup(2))
    >>> y[0].shape, float(y[0][0, 0]), float(y[1][64, 0])
    ((128, 16), 64.0, 128.0)
    """
    call = _call(_prepare_gather, x, w, out, group, epilogue, config)
    return _launched(call, x, w, out, group)


def gemm_reduce_scatter(
    x: Any, w: Any, group: Group, *, out: Any = None, epilogue: Any = None, config: HopperConfig | None = None
) -> Any:
    """Compute this rank's rows of the sum of x w over the ranks; tiles travel as they are finished.

    Parameters
    ----------
    x : array
        M x K, bf16 or f16: this rank's part of K.
    w : array
        K x N, contiguous along either axis: this rank's rows of a weight.
    group, epilogue, config : optional
        As for `all_gather_gemm`. The epilogue gets the sums.
    out : array, optional
        M / world x N. None: a new array.

    Returns
    -------
    array
        M / world x N. Products of other ranks are rounded to the type of x once, and added in f32 in the
        order of the ring from this rank on. No timing changes the bits.

    Raises
    ------
    ArgumentError
        As for `all_gather_gemm`.

    Examples
    --------
    >>> x = [np.full((128, 64), rank + 1, np.float16) for rank in range(2)]
    >>> w = [np.ones((16, 64), np.float16) for rank in range(2)]
    >>> with tc.devices(2):
    ...     y = kernels.gemm_reduce_scatter(x, [one.T for one in w], kernels.VirtualGroup(2))
    >>> y[0].shape, float(y[0][0, 0])
    ((64, 16), 192.0)
    """
    call = _call(_prepare_reduce_scatter, x, w, out, group, epilogue, config)
    return _launched(call, x, w, out, group)


def gemm_all_reduce(
    x: Any, w: Any, group: Group, *, epilogue: Any = None, config: HopperConfig | None = None
) -> Any:
    """Compute the sum of x w over the ranks, on each of them.

    Parameters
    ----------
    x, w, group, epilogue, config
        As for `gemm_reduce_scatter`, whose bits the result has.

    Returns
    -------
    array
        M x N, in memory of the group: the next call of this shape overwrites it.

    Raises
    ------
    ArgumentError
        As for `all_gather_gemm`.

    Examples
    --------
    >>> x = [np.full((128, 64), rank + 1, np.float16) for rank in range(2)]
    >>> w = [np.ones((16, 64), np.float16) for rank in range(2)]
    >>> with tc.devices(2):
    ...     y = kernels.gemm_all_reduce(x, [one.T for one in w], kernels.VirtualGroup(2))
    >>> y[1].shape, float(y[1][0, 0])
    ((128, 16), 192.0)
    """
    call = _call(_prepare_all_reduce, x, w, None, group, epilogue, config)
    return _launched(call, x, w, group.kept[("result", *call.shape, call.dtype)][1], group)


def _call(
    prepare: Callable[..., PreparedCall],
    x: Any,
    w: Any,
    out: Any,
    group: Group,
    epilogue: Any,
    config: HopperConfig | None,
) -> PreparedCall:
    """Return prepare(...), cached in the group for operands of equal types and shapes."""
    results = () if out is None else (out,)
    known = _kept(group, "calls", dict)
    bound = lambda: prepare(x, w, out, group, epilogue, config)
    return cached_call(results, (x, w), (prepare, epilogue, config), bound, known)


def _launched(call: PreparedCall, x: Any, w: Any, out: Any, group: Group) -> Any:
    """Launch a call; returns the result."""
    out = group.local(call.shape, call.dtype) if out is None else out
    call.launch(x, w, out)
    return out


def _prepare_gather(
    x: Any, w: Any, out: Any, group: Group, epilogue: Any, config: HopperConfig | None
) -> PreparedCall:
    kernel, (rows, K), N, dtype, k_major = distributed_gemm.all_gather_gemm, *_operands(x, w, group)
    M, traits = rows * group.world, HopperTraits(epilogue=epilogue, b_k_major=k_major)
    config = config or _choose(rows, M, N, k_major)
    _check_config(config, rows, dtype)
    _check_result(out, group, (M, N), dtype)
    gathered = _kept(group, ("gathered", M, K, dtype), lambda: group.shared((M, K), dtype))
    counters = _counters(group, (kernel, M, K, N, dtype, config), M // config.BM)
    launch = _bound(kernel, config, traits, (M, N), (*gathered, *counters))
    return PreparedCall((M, N), dtype, launch)


def _prepare_reduce_scatter(
    x: Any, w: Any, out: Any, group: Group, epilogue: Any, config: HopperConfig | None
) -> PreparedCall:
    kernel = distributed_gemm.gemm_reduce_scatter
    config, traits, (rows, N), dtype, workspace = _reduced(x, w, group, epilogue, config, kernel)
    _check_result(out, group, (rows, N), dtype)
    launch = _bound(kernel, config, traits, (rows * group.world, N), workspace)
    return PreparedCall((rows, N), dtype, launch)


def _prepare_all_reduce(
    x: Any, w: Any, out: Any, group: Group, epilogue: Any, config: HopperConfig | None
) -> PreparedCall:
    kernel = distributed_gemm.gemm_all_reduce
    config, traits, (rows, N), dtype, workspace = _reduced(x, w, group, epilogue, config, kernel)
    M = rows * group.world
    result, _ = _kept(group, ("result", M, N, dtype), lambda: group.shared((M, N), dtype))
    launch = _bound(kernel, config, traits, (M, N), workspace)
    return PreparedCall((M, N), dtype, lambda x, w, _: launch(x, w, result))


def _reduced(
    x: Any, w: Any, group: Group, epilogue: Any, config: HopperConfig | None, kernel: tc.Kernel
) -> tuple[HopperConfig, HopperTraits, tuple[int, int], Any, tuple[Any, ...]]:
    """Configuration, traits, a rank's shape of D, type, and workspace of a product that is reduced."""
    (M, K), N, dtype, k_major = _operands(x, w, group)
    rows = M // group.world
    if M % group.world:
        raise tc.ArgumentError(f"x has {M} rows; the {group.world} ranks need equal parts of them")
    config = config or _choose(rows, M, N, k_major)
    _check_config(config, rows, dtype)
    columns = cdiv(N, config.BN)
    shape = group.world, rows, columns * config.BN
    inbox = _kept(group, ("inbox", shape, dtype), lambda: group.shared(shape, dtype))
    blocks = rows // distributed_gemm.BLOCK * columns
    counters = _counters(group, (kernel, M, K, N, dtype, config), blocks)
    traits = HopperTraits(epilogue=epilogue, b_k_major=k_major)
    return config, traits, (rows, N), dtype, (*inbox, *counters)


def _operands(x: Any, w: Any, group: Group) -> tuple[tuple[int, int], int, Any, bool]:
    """Shape of x, columns of w, their element type, and whether w is K-major."""
    if not has_wgmma():
        raise tc.ArgumentError(f"products on several GPUs run on sm_90a, not on {target_arch()}")
    operands = described(x=group.of_rank(x), w=group.of_rank(w))
    dtype = check_half_precision(**operands)
    (rows, K), (depth, N) = (check_rank(name, operand, 2) for name, operand in operands.items())
    if depth != K or 0 in (rows, K, N):
        raise tc.ArgumentError(f"the shapes do not fit x (M, K), w (K, N): x {(rows, K)}, w {(depth, N)}")
    k_major = operands["w"].strides[0] == 1
    for name, axis, needed in (("x", 1, "K must be its"), ("w", 0 if k_major else 1, "K or N must be its")):
        strides = operands[name].strides
        if strides[axis] != 1 or strides[1 - axis] * dtype.itemsize % 16:
            raise tc.ArgumentError(
                f"{name} has strides {strides}; {needed} contiguous axis, and the other stride a "
                "multiple of 16 bytes: pass a contiguous copy"
            )
    if N * dtype.itemsize % 16 or K * dtype.itemsize % 16:
        raise tc.ArgumentError(f"K and N are multiples of {16 // dtype.itemsize} elements, not {K} and {N}")
    return (rows, K), N, dtype, k_major


def _choose(rows: int, M: int, N: int, k_major: bool) -> HopperConfig:
    """Choose the tile whose waves take the least time. Only the last one fits every multiple of 64 rows.

    N-major tiles are loaded in blocks of 64 columns.
    """
    tiles = [c for c in TILES if k_major or c.BN % 64 == 0]
    fitting = [c for c in tiles if rows % (c.BM * c.cluster_m) == 0] or tiles[-1:]

    def time(config: HopperConfig) -> float:
        high = config.BM * config.cluster_m
        waves = cdiv((M // high) * cdiv(N, config.BN), SMS // config.cluster_m)
        return float(waves * config.BM * config.BN * TILES[config])

    return min(fitting, key=time)


def _check_config(config: HopperConfig, rows: int, dtype: tc.DType) -> None:
    high = config.BM * config.cluster_m
    if rows % high:
        other = "" if rows % distributed_gemm.BLOCK else "pass another config, or "
        raise tc.ArgumentError(
            f"each rank has {rows} rows; they are whole tiles of {high} rows with {config}: {other}pad the "
            f"rows to a multiple of {high}"
        )
    if config.cluster_n > 1 or config.split_k > 1 or config.k_slabs > 1 or config.swap_ab or config.pingpong:
        raise tc.ArgumentError(
            f"products on several GPUs take no cluster_n, split_k, k_slabs, swap_ab or pingpong: {config}"
        )


def _kept(group: Group, key: Any, make: Callable[[], Any]) -> Any:
    """Return the group's object under a key; `make` makes it at the first call."""
    if key not in group.kept:
        group.kept[key] = make()
    return group.kept[key]


def _counters(group: Group, key: Any, blocks: int) -> tuple[Any, Any]:
    """Return the counters that all ranks map, and the state, for one kernel, shape and configuration."""
    count = group.world + 1 + blocks
    return (
        _kept(group, ("pads", key), lambda: group.shared((count,), tc.s32))[0],
        # Not `local`: what torch allocates in a compiled graph belongs to that graph.
        _kept(group, ("state", key), lambda: group.shared((2,), tc.s32))[1],
    )


def _check_result(out: Any, group: Group, shape: tuple[int, int], dtype: tc.DType) -> None:
    if out is None:
        return
    result = described(out=group.of_rank(out))["out"]
    if result.shape != shape or result.type.dtype != dtype or result.strides[1] != 1:
        raise tc.ArgumentError(f"out has shape {result.shape}; the result is {dtype} of {shape}, row-major")


def _bound(
    kernel: tc.Kernel,
    config: HopperConfig,
    traits: HopperTraits,
    shape: tuple[int, int],
    workspace: tuple[Any, ...],
) -> Callable[..., None]:
    """Bind the launch on x, w and the result, which may be a PeerArray."""
    grid, options = grid_size(config, *shape), {"config": config, "traits": traits}
    if current_target() == "cpu":
        return lambda x, w, out: kernel[grid, config.threads](x, w, out, *workspace, **options)
    launchers: list[Any] = []

    def launch(*operands: Any) -> None:
        arguments = (*operands, *workspace)
        if not launchers:
            chosen, _, _ = kernel.with_peers(arguments, options)
            launchers.append(chosen[grid, config.threads].launcher(options))
        flat: list[Any] = []
        for argument in arguments:
            flat += [argument.rank, *argument.arrays] if isinstance(argument, tc.PeerArray) else [argument]
        launchers[0](*flat)

    return launch
