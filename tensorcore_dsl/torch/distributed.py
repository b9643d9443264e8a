"""Products on the GPUs of a process group, overlapped with their communication, with gradients.

`torch.distributed._symmetric_memory` maps the memory of the ranks into each other. A group keeps that
memory for later calls of the same shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist

import tensorcore_dsl as tc
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.kernels import all_gather_gemm as _all_gather_gemm
from tensorcore_dsl.kernels import gemm_all_reduce as _gemm_all_reduce
from tensorcore_dsl.kernels import gemm_reduce_scatter as _gemm_reduce_scatter
from tensorcore_dsl.torch import sharding  # noqa: F401  (registers how gemm divides DTensors)

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
    world, rank : int
        Number of ranks, and the rank of this process.
    kept : dict
        Memory that calls keep for later calls of equal shapes.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.world, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.kept: dict[Any, Any] = {}

    def shared(self, shape: tuple[int, ...], dtype: DType) -> tuple[tc.PeerArray, torch.Tensor]:
        """Allocate zeros in symmetric memory. All ranks have theirs when it returns."""
        import torch.distributed._symmetric_memory as symmetric

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


def _torch_dtype(dtype: DType) -> torch.dtype:
    names = {"bf16": "bfloat16", "f16": "float16", "s32": "int32"}
    return cast(torch.dtype, getattr(torch, names[dtype.name]))


def group_of(group: Any = None) -> ProcessGroup:
    """The symmetric memory of a process group, kept for its life.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        None: all ranks. Every rank has a GPU of its own on one host, which is current.

    Returns
    -------
    ProcessGroup
        What the functions of `kernels` take as a group.
    """
    group = dist.group.WORLD if group is None else group
    name = group.group_name
    if name not in _groups:
        _groups[name] = ProcessGroup(group)
    return _groups[name]


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous()


def _k_major(weight: torch.Tensor) -> torch.Tensor:
    """Return the K x N operand `weight.T` with K contiguous; copy it if necessary."""
    return weight if weight.stride(0) == 1 else weight.t().contiguous().t()


def _gathered(rows: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    full = rows.new_empty(rows.shape[0] * group.world, *rows.shape[1:])
    dist.all_gather_into_tensor(full, _rows(rows), group.group)
    return full


def _with_gradients(
    product: Callable[..., Any],
    input_gradient: Callable[..., Any],
    rows_of: Callable[[int, int], int],
    weight_gradient: Callable[..., torch.Tensor],
) -> Callable[..., torch.Tensor]:
    """Make a function of x, weight and group with gradients.

    input_gradient: the product that is the gradient of x. rows_of(rows of x, ranks): rows of the
    result. weight_gradient(gradient of the result, x, group).
    """

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, group: ProcessGroup) -> Any:
            ctx.save_for_backward(x, weight)
            ctx.group = group
            out = x.new_empty(rows_of(x.shape[0], group.world), weight.shape[0])
            return product(_rows(x), _k_major(weight.t()), group, out=out)

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            (x, weight), group, grad = ctx.saved_tensors, ctx.group, _rows(grads[0])
            grad_x = grad_weight = None
            if ctx.needs_input_grad[0]:
                grad_x = input_gradient(grad, _k_major(weight), group, out=torch.empty_like(x))
            if ctx.needs_input_grad[1]:
                grad_weight = weight_gradient(grad, x, group)
            return grad_x, grad_weight, None

    # torch.compile breaks its graph here, because a launch depends on memory that the group keeps.
    return cast(Callable[..., torch.Tensor], torch.compiler.disable(Product.apply))


_gather = _with_gradients(
    _all_gather_gemm,
    _gemm_reduce_scatter,
    lambda rows, ranks: rows * ranks,
    lambda grad, x, group: grad.t() @ _gathered(x, group),
)
_scatter = _with_gradients(
    _gemm_reduce_scatter,
    _all_gather_gemm,
    lambda rows, ranks: rows // ranks,
    lambda grad, x, group: _gathered(grad, group).t() @ x,
)


def all_gather_gemm(x: torch.Tensor, weight: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Compute (rows of x of all ranks) weight.T; its gradient is a `gemm_reduce_scatter`.

    Parameters
    ----------
    x : Tensor
        M / world x K, bf16 or f16: this rank's rows, a multiple of 64.
    weight : Tensor
        N x K, of the type of x: this rank's rows of a weight that is split along N.
    group : torch.distributed.ProcessGroup, optional
        None: all ranks.

    Returns
    -------
    Tensor
        M x N.

    Raises
    ------
    ArgumentError
        Shapes and types that do not fit.
    """
    return _gather(x, weight, group_of(group))


def gemm_reduce_scatter(x: torch.Tensor, weight: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Compute this rank's rows of the sum of x weight.T; its gradient is an `all_gather_gemm`.

    Parameters
    ----------
    x : Tensor
        M x K, bf16 or f16: this rank's part of K.
    weight : Tensor
        N x K, of the type of x: this rank's columns of a weight that is split along K.
    group : torch.distributed.ProcessGroup, optional
        None: all ranks.

    Returns
    -------
    Tensor
        M / world x N.

    Raises
    ------
    ArgumentError
        Shapes and types that do not fit.
    """
    return _scatter(x, weight, group_of(group))


def gemm_all_reduce(x: torch.Tensor, weight: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Compute the sum of x weight.T over the ranks, on each of them, without gradients.

    Parameters
    ----------
    x, weight, group
        As for `gemm_reduce_scatter`.

    Returns
    -------
    Tensor
        M x N, in memory of the group: the next call of this shape overwrites it.

    Raises
    ------
    ArgumentError
        Shapes and types that do not fit.
    """
    result = _gemm_all_reduce(_rows(x.detach()), _k_major(weight.detach().t()), group_of(group))
    return cast(torch.Tensor, result)


class _ParallelLinear(torch.nn.Module):
    """A linear layer with a part of its weight on each rank; its class names the product and the split."""

    product: Callable[..., torch.Tensor]
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
        self.group = group_of(group)
        if self.splits_outputs:
            out_features = _share(out_features, self.group, "out_features")
        else:
            in_features = _share(in_features, self.group, "in_features")
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        zeros = torch.zeros(out_features, device=device, dtype=dtype) if bias else None
        self.bias = None if zeros is None else torch.nn.Parameter(zeros)
        torch.nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = type(self).product(x, self.weight, self.group)
        if self.bias is None:
            return y
        bias = self.bias if self.splits_outputs else cast(Any, _OfAllRanks).apply(self.bias, self.group.group)
        return y + bias


class _OfAllRanks(torch.autograd.Function):
    """A parameter that each rank uses for its own rows: its gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        total = grads[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class ColumnParallelLinear(_ParallelLinear):
    """A linear layer whose output features are split over the ranks, with sequence parallelism.

    The input has this rank's rows of the sequence, and the output all rows with this rank's features.

    Parameters
    ----------
    in_features, out_features : int
        Of the whole layer; out_features is a multiple of the number of ranks.
    group : torch.distributed.ProcessGroup, optional
        None: all ranks.
    bias, device, dtype : optional
        As for torch.nn.Linear.
    """

    product = staticmethod(_gather)
    splits_outputs = True


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

    product = staticmethod(_scatter)
    splits_outputs = False


def _share(features: int, group: ProcessGroup, name: str) -> int:
    """Return the number of features of each rank; ArgumentError if they do not divide evenly."""
    if features % group.world:
        raise tc.ArgumentError(f"{name} is {features}; the {group.world} ranks need equal parts of it")
    return features // group.world
