"""Products on the GPUs of a process group, overlapped with their communication, with gradients.

`torch.distributed._symmetric_memory` maps the memory of the ranks into each other. A group keeps that
memory for later calls of the same shapes. Operators take the name of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.kernels.hopper.distributed_gemm import BLOCK
from tensorcore_dsl.torch import (
    operators,
    sharding,  # noqa: F401  (registers how gemm divides DTensors)
)

__all__ = [
    "ColumnParallelLinear",
    "ProcessGroup",
    "RowParallelLinear",
    "all_gather_gemm",
    "gemm_all_reduce",
    "gemm_reduce_scatter",
    "group_of",
]

_groups: dict[str, ProcessGroup] = {}


class ProcessGroup:
    """The ranks of a process group of torch, one GPU each, with symmetric memory.

    Attributes
    ----------
    name : str
        What torch calls the group.
    world, rank : int
        Number of ranks, and the rank of this process.
    kept : dict
        Memory that calls keep for later calls of equal shapes.
    """

    def __init__(self, group: Any) -> None:
        self.group, self.name = group, _name(group)
        self.world, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.kept: dict[Any, Any] = {}
        self._emulated = _Emulated(self.world)

    def shared(self, shape: tuple[int, ...], dtype: DType) -> tuple[tc.PeerArray, torch.Tensor]:
        """Allocate zeros in symmetric memory. All ranks have theirs when it returns."""
        import torch.distributed._symmetric_memory as symmetric

        if torch.cuda.is_current_stream_capturing():
            raise tc.ArgumentError(
                "the first call of a shape allocates memory that all ranks map, which a CUDA graph cannot "
                "capture; call once before the capture"
            )
        kind = _torch_dtype(dtype)
        mine = symmetric.empty(shape, dtype=kind, device=f"cuda:{torch.cuda.current_device()}")
        handle = symmetric.rendezvous(mine, self.group)
        mine.zero_()
        torch.cuda.synchronize()
        dist.barrier(self.group)
        arrays = [mine if r == self.rank else handle.get_buffer(r, shape, kind) for r in range(self.world)]
        self.kept.setdefault("handles", []).append(handle)
        return tc.PeerArray(arrays, self.rank), mine

    def local(self, shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
        """Allocate zeros in memory that no other rank maps."""
        return torch.zeros(shape, dtype=_torch_dtype(dtype), device="cuda")

    def of_rank(self, argument: Any) -> Any:
        return argument

    def _multiply(self, product: Callable[..., Any], x: Any, weight: Any, **out: Any) -> Any:
        """Compute product(x, weight.T, self, **out). Each rank emulates all of them on CPU tensors."""
        if x.is_cuda:
            aligned = 1 in weight.stride() and max(weight.stride()) * weight.element_size() % 16 == 0
            weight = weight if aligned else weight.contiguous()
            return product(x.contiguous(), weight.t(), self, **out)
        xs, weights = (_across_ranks(one, group=self.name).chunk(self.world) for one in (x, weight))
        with tc.devices(self.world):
            return product(xs, [one.t() for one in weights], self._emulated)[self.rank]


class _Emulated(kernels.VirtualGroup):
    """Virtual GPUs whose results are tensors."""

    def local(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return [torch.zeros(shape, dtype=_torch_dtype(dtype)) for _ in range(self.world)]


def _torch_dtype(dtype: DType) -> torch.dtype:
    names = {"bf16": "bfloat16", "f16": "float16", "s32": "int32"}
    return cast(torch.dtype, getattr(torch, names[dtype.name]))


def group_of(group: Any = None) -> ProcessGroup:
    """The symmetric memory of a process group, kept for its life.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup or str, optional
        Group, or its name. None: all ranks. Every rank has a GPU of its own on one host, which is current.

    Returns
    -------
    ProcessGroup
        What the functions of `kernels` take as a group.
    """
    name = _name(group)
    try:
        group = _resolve_process_group(name)
    except RuntimeError as error:
        raise tc.ArgumentError(f"no process group of torch.distributed has the name {name!r}") from error
    if name not in _groups or _groups[name].group is not group:  # torch gives names of destroyed groups again
        _groups[name] = ProcessGroup(group)
    return _groups[name]


def _name(group: Any) -> str:
    if isinstance(group, str):
        return group
    group = dist.group.WORLD if group is None else group
    if group is None:
        raise tc.ArgumentError("there is no process group; call torch.distributed.init_process_group first")
    name: str = group.group_name
    return name


# -- operators --------------------------------------------------------------------------------


def _collect(x: torch.Tensor, *, group: str, sums: bool = False) -> torch.Tensor:
    """Gather the rows of all ranks, or sum the tensors of all ranks.

    One operator starts the communication and waits for it. A product in between could take the SMs
    for which a peer's communication waits, and then wait for that peer itself.
    """
    ranks = group_of(group)
    if sums:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ranks.group)
        return total
    rows = x.new_empty(x.shape[0] * ranks.world, *x.shape[1:])
    gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # before torch 2.13
    gather(rows, x.contiguous(), ranks.group)
    return rows


def _collect_fake(x: Any, *, group: str, sums: bool = False) -> Any:
    return x.new_empty(x.shape[0] * (1 if sums else group_of(group).world), *x.shape[1:])


def _collect_backward(ctx: Any, grad: Any, x: Any) -> Any:
    ranks, total = group_of(ctx.options["group"]), _across_ranks(grad, group=ctx.options["group"], sums=True)
    return (total if ctx.options.get("sums") else total.chunk(ranks.world)[ranks.rank],)


_across_ranks: Callable[..., Any] = operators._register(
    "across_ranks",
    "(Tensor x, *, str group, bool sums=False) -> Tensor",
    _collect,
    _collect_fake,
    operators._keep_all,
    _collect_backward,
    lambda tensors, argument_index, tangent, options: _across_ranks(tangent, **options),
    autocast=False,
    flops=lambda *shapes, **named: 0,
)


def _padded(x: Any, parts: int, multiple: int) -> Any:
    """Pad each of `parts` equal parts of the rows with zeros to a multiple of rows."""
    operators._rank((2,), x)
    missing = -(x.shape[0] // parts) % multiple
    if not missing or x.shape[0] % parts:  # parts that differ: the product reports them
        return x
    return torch.nn.functional.pad(x.unflatten(0, (parts, -1)), (0, 0, 0, missing)).flatten(0, 1)


def _gather(x: Any, weight: Any, *, group: str) -> Any:
    ranks, padded = group_of(group), _padded(x, 1, BLOCK)
    out = x.new_empty(padded.shape[0] * ranks.world, weight.shape[0])
    y = ranks._multiply(kernels.all_gather_gemm, padded, weight, out=out)
    return y if padded is x else torch.cat([part[: x.shape[0]] for part in y.chunk(ranks.world)])


def _scatter(x: Any, weight: Any, bias: Any = None, *, group: str) -> Any:
    ranks = group_of(group)
    rows, padded = x.shape[0] // ranks.world, _padded(x, ranks.world, BLOCK)
    out = x.new_empty(padded.shape[0] // ranks.world, weight.shape[0])
    y = ranks._multiply(kernels.gemm_reduce_scatter, padded, weight, out=out)
    y = y if padded is x else y[:rows].clone()  # a view could not be written in place
    return y if bias is None else y.add_(bias)


def _reduce_in_group(x: Any, weight: Any, *, group: str) -> Any:
    """Compute the sum in memory of the group, which the next call of the shape overwrites."""
    ranks = group_of(group)
    padded = _padded(x, 1, BLOCK * ranks.world)
    y = ranks._multiply(kernels.gemm_all_reduce, padded, weight)
    return y if padded is x else y[: x.shape[0]]


def _reduce(x: Any, weight: Any, *, group: str) -> Any:
    return _reduce_in_group(x, weight, group=group).clone()


def _fake(rows_of: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """Make the fake kernel of a product; rows_of(rows of x, ranks): rows of the result."""

    def fake(x: Any, weight: Any, bias: Any = None, *, group: str) -> Any:
        operators._rank((2,), x, weight)
        operators._same("K", x.shape[1], weight.shape[1])
        return x.new_empty(rows_of(x.shape[0], group_of(group).world), weight.shape[0])

    return fake


def _keep_product(ctx: Any, tensors: Any, result: Any) -> None:
    ctx.save_for_backward(*tensors[:2])


def _gather_backward(ctx: Any, grad: Any, x: Any, weight: Any) -> Any:
    grad, grad_x, grad_weight = grad.contiguous(), None, None
    if ctx.needs_input_grad[0]:
        grad_x = _gemm_reduce_scatter(grad, weight.t(), **ctx.options)
    if ctx.needs_input_grad[1]:
        grad_weight = grad.t() @ _across_ranks(x, **ctx.options)
    return grad_x, grad_weight


def _scatter_backward(ctx: Any, grad: Any, x: Any, weight: Any) -> Any:
    """All ranks have the same bias: its gradient is the sum over the rows of all ranks."""
    grad, grad_x, grad_weight, grad_bias = grad.contiguous(), None, None, None
    if ctx.needs_input_grad[0]:
        grad_x = _all_gather_gemm(grad, weight.t(), **ctx.options)
    if any(ctx.needs_input_grad[1:3]):
        rows = _across_ranks(grad, **ctx.options)
        grad_weight = rows.t() @ x if ctx.needs_input_grad[1] else None
        grad_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
    return grad_x, grad_weight, grad_bias


def _reduce_backward(ctx: Any, grad: Any, x: Any, weight: Any) -> Any:
    total = _across_ranks(grad, **ctx.options, sums=True)
    grad_x = total @ weight if ctx.needs_input_grad[0] else None
    return grad_x, total.t() @ x if ctx.needs_input_grad[1] else None


def _jvp(product: Callable[..., Any], tensors: Any, argument_index: int, tangent: Any, options: Any) -> Any:
    if argument_index == 2:
        return tangent
    return operators._product_tangent(product, tensors[:2], argument_index, tangent, options)


def _reduced_flops(x: Any, weight: Any, *others: Any, **named: Any) -> int:
    return operators._flops(x, weight, out_shape=(x[0], weight[0]))


PRODUCT = "(Tensor x, Tensor weight, *, str group) -> Tensor"
_all_gather_gemm: Callable[..., Any] = operators._register(
    "all_gather_gemm",
    PRODUCT,
    _gather,
    _fake(lambda rows, ranks: rows * ranks),
    _keep_product,
    _gather_backward,
    lambda *change: _jvp(_all_gather_gemm, *change),
)
_gemm_reduce_scatter: Callable[..., Any] = operators._register(
    "gemm_reduce_scatter",
    "(Tensor x, Tensor weight, Tensor? bias=None, *, str group) -> Tensor",
    _scatter,
    _fake(lambda rows, ranks: rows // ranks),
    _keep_product,
    _scatter_backward,
    lambda *change: _jvp(_gemm_reduce_scatter, *change),
    flops=_reduced_flops,
)
_gemm_all_reduce: Callable[..., Any] = operators._register(
    "gemm_all_reduce",
    PRODUCT,
    _reduce,
    _fake(lambda rows, ranks: rows),
    _keep_product,
    _reduce_backward,
    lambda *change: _jvp(_gemm_all_reduce, *change),
    flops=_reduced_flops,
)


# -- functions and layers ---------------------------------------------------------------------


def all_gather_gemm(x: torch.Tensor, weight: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Compute (rows of x of all ranks) weight.T; its gradient is a `gemm_reduce_scatter`.

    Parameters
    ----------
    x : Tensor
        M / world x K, bf16 or f16: this rank's rows. Rows that are not a multiple of 64 cost copies.
    weight : Tensor
        N x K, of the type of x: this rank's rows of a weight that is split along N.
    group : torch.distributed.ProcessGroup or str, optional
        Group, or its name. None: all ranks.

    Returns
    -------
    Tensor
        M x N.

    Raises
    ------
    ArgumentError
        Shapes and types that do not fit.
    """
    return cast(torch.Tensor, _all_gather_gemm(x, weight, group=_name(group)))


def gemm_reduce_scatter(x: torch.Tensor, weight: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Compute this rank's rows of the sum of x weight.T; its gradient is an `all_gather_gemm`.

    Parameters
    ----------
    x : Tensor
        M x K, bf16 or f16: this rank's part of K.
    weight : Tensor
        N x K, of the type of x: this rank's columns of a weight that is split along K.
    group : torch.distributed.ProcessGroup or str, optional
        Group, or its name. None: all ranks.

    Returns
    -------
    Tensor
        M / world x N.

    Raises
    ------
    ArgumentError
        Shapes and types that do not fit.
    """
    return cast(torch.Tensor, _gemm_reduce_scatter(x, weight, group=_name(group)))


def gemm_all_reduce(x: torch.Tensor, weight: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Compute the sum of x weight.T over the ranks, on each of them.

    The gradient of the result is summed over the ranks, as torch does for an all-reduce.

    Parameters
    ----------
    x, weight, group
        As for `gemm_reduce_scatter`.

    Returns
    -------
    Tensor
        M x N. In eager calls under `torch.no_grad`, memory of the group: the next call of this shape
        overwrites it.

    Raises
    ------
    ArgumentError
        Shapes and types that do not fit.
    """
    is_eager = not torch.compiler.is_compiling() and operators._goes_straight((x, weight))
    if is_eager and x.is_cuda and not torch.is_grad_enabled():
        result = _reduce_in_group(x, weight, group=_name(group))
    else:
        result = _gemm_all_reduce(x, weight, group=_name(group))
    return cast(torch.Tensor, result)


class _ParallelLinear(torch.nn.Module):
    """A linear layer with a part of its weight on each rank."""

    splits_outputs: bool

    def __init__(
        self,
        in_features: int,
        out_features: int,
        group: Any = None,
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.group = _name(group)
        if self.splits_outputs:
            out_features = _share(out_features, self.group, "out_features")
        else:
            in_features = _share(in_features, self.group, "in_features")
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        zeros = torch.zeros(out_features, device=device, dtype=dtype) if bias else None
        self.bias = None if zeros is None else torch.nn.Parameter(zeros)
        torch.nn.init.kaiming_uniform_(self.weight, a=5**0.5)


class ColumnParallelLinear(_ParallelLinear):
    """A linear layer whose output features are split over the ranks, with sequence parallelism.

    The input has this rank's rows of the sequence, and the output all rows with this rank's features.

    Parameters
    ----------
    in_features, out_features : int
        Of the whole layer; out_features is a multiple of the number of ranks.
    group : torch.distributed.ProcessGroup or str, optional
        Group, or its name. None: all ranks.
    bias, device, dtype : optional
        As for torch.nn.Linear.
    """

    splits_outputs = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = all_gather_gemm(x, self.weight, self.group)
        return y if self.bias is None else y + self.bias


class RowParallelLinear(_ParallelLinear):
    """A linear layer whose input features are split over the ranks, with sequence parallelism.

    The input has all rows with this rank's features, and the output this rank's rows of the sequence.

    Parameters
    ----------
    in_features, out_features : int
        Of the whole layer; in_features is a multiple of the number of ranks.
    group, bias, device, dtype : optional
        As for ColumnParallelLinear. All ranks have the same bias, and its gradient: the sum over the ranks.
    """

    splits_outputs = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, _gemm_reduce_scatter(x, self.weight, self.bias, group=self.group))


def _share(features: int, group: str, name: str) -> int:
    """Return the number of features of each rank; ArgumentError if they do not divide evenly."""
    world = group_of(group).world
    if features % world:
        raise tc.ArgumentError(f"{name} is {features}; the {world} ranks need equal parts of it")
    return features // world
