"""PyTorch modules that multiply by `tensorcore_dsl.kernels`."""

from __future__ import annotations

from typing import Any

import torch

import tensorcore_dsl as tc
from tensorcore_dsl.torch.functions import gemm


class Linear(torch.nn.Linear):
    """torch.nn.Linear by `gemm`: the same parameters, initialisation and state_dict.

    precision: of f32 products, "f32" (default) or "tf32"; see `gemm`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        precision: str | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.precision = precision

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (..., in_features); returns (..., out_features)."""
        if x.ndim == 0 or x.shape[-1] != self.in_features:
            raise tc.ArgumentError(
                f"x has shape {tuple(x.shape)}; the last axis of a Linear's input has in_features, "
                f"{self.in_features}"
            )
        rows = x if x.ndim == 2 else torch.atleast_2d(x).flatten(0, -2)
        product = gemm(rows, self.weight.t(), self.bias, precision=self.precision)
        return product if x.ndim == 2 else product.view(*x.shape[:-1], self.out_features)


class MLP(torch.nn.Module):
    """Two layers with an activation between them: down(activation(up(x))).

    features: of the input and the output; hidden: between the layers. activation: a function of
    torch, by default its tanh formula of GELU. bias, device, dtype, precision: see Linear.
    """

    def __init__(self, features: int, hidden: int, activation: Any = None, **options: Any) -> None:
        super().__init__()
        self.up = Linear(features, hidden, **options)
        self.down = Linear(hidden, features, **options)
        self.activation = activation or torch.nn.GELU(approximate="tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (..., features); returns the same shape."""
        return self.down(self.activation(self.up(x)))
