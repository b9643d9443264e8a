"""The product with packed weights of 4 or 8 bits as an operator of PyTorch."""

from __future__ import annotations

from typing import Any

import torch

import tensorcore_dsl as tc
import tensorcore_dsl.kernels as kernels
from tensorcore_dsl.kernels.host.packed_weights import matrix_shape
from tensorcore_dsl.torch import operators


def _weights(words: Any, scales: Any, zeros: Any, dtype: str) -> kernels.PackedWeights:
    """The packed weights that these tensors belong to."""
    kind: tc.DType = getattr(tc, dtype)
    return kernels.PackedWeights(words, scales, zeros, matrix_shape(words.shape, kind), kind)


def _compute(
    a: Any,
    words: Any,
    scales: Any,
    zeros: Any = None,
    c: Any = None,
    *,
    dtype: str,
    beta: float = 1,
    **options: Any,
) -> Any:
    b = _weights(words, scales, zeros, dtype)
    return kernels.gemm(a, b, c, beta=0 if c is None else beta, **options)


def _fake(
    a: Any,
    words: Any,
    scales: Any,
    zeros: Any = None,
    c: Any = None,
    *,
    dtype: str,
    out_dtype: Any = None,
    **options: Any,
) -> Any:
    operators._rank((2,), a)
    shape = _weights(words, scales, zeros, dtype).shape
    operators._same("K", a.shape[1], shape[0])
    return a.new_empty((a.shape[0], shape[1]), dtype=operators._result_dtype(a, out_dtype))


def _context(ctx: Any, tensors: Any, result: Any) -> None:
    a, *weights, c = tensors
    if any(x is not None and x.requires_grad for x in weights):
        raise tc.ArgumentError("packed weights, their scales and zero points have no gradients")
    ctx.save_for_backward(a.new_empty(0), *weights)
    ctx.c = None if c is None else (c.shape, c.dtype)


def _backward(ctx: Any, grad: Any, like: Any, words: Any, scales: Any, zeros: Any) -> Any:
    """The gradient of A is a product with the weights, which the identity unpacks in A's type."""
    grad_a = grad_c = None
    dtype, alpha = ctx.options["dtype"], ctx.options.get("alpha", 1)
    if ctx.needs_input_grad[0]:
        K = _weights(words, scales, zeros, dtype).shape[0]
        identity = torch.eye(K, dtype=like.dtype, device=like.device)
        whole = packed_gemm(identity, words, scales, zeros, dtype=dtype)
        grad_a = operators.gemm(grad.to(like.dtype), whole.t(), alpha=alpha)
    if ctx.c is not None and ctx.needs_input_grad[4]:
        grad_c = operators._summed(grad, *ctx.c) * ctx.options.get("beta", 1)
    return grad_a, None, None, None, grad_c


def _jvp(tensors: Any, argument_index: int, tangent: Any, options: Any) -> Any:
    raise tc.ArgumentError("products with packed weights have no derivative of forward mode")


packed_gemm = operators._register(
    "packed_gemm",
    "(Tensor a, Tensor words, Tensor scales, Tensor? zeros=None, Tensor? c=None, *, str dtype, "
    "float alpha=1, float beta=1, ScalarType? out_dtype=None) -> Tensor",
    _compute,
    _fake,
    _context,
    _backward,
    _jvp,
    autocast=False,
)
