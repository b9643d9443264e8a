"""PyTorch operators for attention and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tensorcore_dsl as tc
import tensorcore_dsl.kernels as kernels
from tensorcore_dsl.torch.operators import _keep_all, _rank, _register, _same


def _options(
    q_starts: Any, k_starts: Any, *, left: int | None = None, right: int | None = None, **options: Any
) -> dict[str, Any]:
    """Convert the options of the operators to options of `kernels.attention`."""
    starts = None if q_starts is None else (q_starts, k_starts)
    return dict(cu_seqlens=starts, window=(left, right), **options)


def _attention(q: Any, k: Any, v: Any, q_starts: Any = None, k_starts: Any = None, **options: Any) -> Any:
    out = _output(q, v)
    return kernels.attention(q, k, v, out=out, return_lse=True, **_options(q_starts, k_starts, **options))


def _output(q: Any, v: Any) -> Any:
    """Make the output of attention, whose axes have the order of q's in memory."""
    batch, heads, queries, _ = q.shape
    if q.stride(1) < q.stride(2):
        return q.new_empty((batch, queries, heads, v.shape[3])).transpose(1, 2)
    return q.new_empty((batch, heads, queries, v.shape[3]))


def _attention_fake(q: Any, k: Any, v: Any, *starts: Any, **options: Any) -> Any:
    _rank((4,), q, k, v)
    _same("D", q.shape[3], k.shape[3])
    _same("the keys", k.shape[:3], v.shape[:3])
    return _output(q, v), q.new_empty(q.shape[:3], dtype=torch.float32)


def _attention_context(ctx: Any, tensors: Any, results: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors[:3], *results, *tensors[3:])


def _attention_gradients(
    ctx: Any, grad: Any, grad_lse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *starts: Any
) -> Any:
    grad = torch.zeros_like(out) if grad is None else grad
    tensors = grad, q, k, v, out, lse, grad_lse, *starts
    return *attention_backward(*tensors, **ctx.options), None, None


def _backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    grad_lse: Any = None,
    q_starts: Any = None,
    k_starts: Any = None,
    **options: Any,
) -> Any:
    if grad.stride() != out.stride() or grad.data_ptr() % 16:  # an expanded sum, for instance
        grad = torch.empty_like(out).copy_(grad)
    options = _options(q_starts, k_starts, **options)
    return kernels.attention_backward(grad, q, k, v, out, lse, grad_lse=grad_lse, **options)


def _backward_fake(grad: Any, q: Any, k: Any, v: Any, *others: Any, **options: Any) -> Any:
    return tuple(map(torch.empty_like, (q, k, v)))


def _refuse(what: str) -> Callable[..., Any]:
    """Make a derivative that raises ArgumentError."""

    def refuse(*arguments: Any) -> Any:
        raise tc.ArgumentError(
            f"attention has no {what}; torch.nn.functional.scaled_dot_product_attention has one inside "
            f"of torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
        )

    return refuse


def _flops(products_of_q: int, products_of_v: int, q: Any, k: Any, v: Any) -> int:
    """Count the operations of products of queries and keys: `products_of_q` over q's D, others over v's."""
    batch, heads, queries, depth = q
    return 2 * batch * heads * queries * k[2] * (products_of_q * depth + products_of_v * v[3])  # type: ignore[no-any-return]


OPTIONS = (
    "Tensor? q_starts=None, Tensor? k_starts=None, *, bool causal=False, SymInt? left=None, "
    "SymInt? right=None, float? scale=None, float? softcap=None)"
)
_refuse_forward_mode = _refuse("derivative of forward mode")
attention = _register(
    "attention",
    f"(Tensor q, Tensor k, Tensor v, {OPTIONS} -> (Tensor, Tensor)",
    _attention,
    _attention_fake,
    _attention_context,
    _attention_gradients,
    _refuse_forward_mode,
    flops=lambda q, k, v, *others, **named: _flops(1, 1, q, k, v),
)
attention_backward = _register(
    "attention_backward",
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? grad_lse=None, "
    f"{OPTIONS} -> (Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    _keep_all,
    _refuse("second derivative"),
    _refuse_forward_mode,
    autocast=False,
    flops=lambda grad, q, k, v, *others, **named: _flops(3, 2, q, k, v),
)
