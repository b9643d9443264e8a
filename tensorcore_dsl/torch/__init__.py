"""Kernels as operators of PyTorch: in its graphs, with gradients, and as modules."""

try:
    import torch as _torch
except ImportError as error:
    raise ImportError(
        "tensorcore_dsl.torch needs PyTorch 2.11 or later: pip install 'tensorcore-dsl[torch]'"
    ) from error

from tensorcore_dsl.errors import publish as _publish
from tensorcore_dsl.torch.functions import (
    attention,
    gemm,
    grouped_gemm,
    k_grouped_gemm,
    quantize,
    scaled_dot_product_attention,
    scaled_gemm,
    swiglu,
)
from tensorcore_dsl.torch.kernel_operators import operator
from tensorcore_dsl.torch.modules import MLP, Linear

__all__ = [
    "MLP",
    "Linear",
    "attention",
    "gemm",
    "grouped_gemm",
    "k_grouped_gemm",
    "operator",
    "quantize",
    "scaled_dot_product_attention",
    "scaled_gemm",
    "swiglu",
]

_publish(globals())
