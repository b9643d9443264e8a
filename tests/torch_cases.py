"""Tensors of small whole numbers for tests of PyTorch's operators, and comparisons with f64."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'tensorcore-dsl[torch]'"
)
BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


def whole(*shape: int, dtype: Any = BF16, device: str = "cpu", grad: bool = True) -> Any:
    """Small whole numbers; grad: they require a gradient."""
    return torch.randint(-2, 3, shape, device=device).to(dtype).requires_grad_(grad)


def weights(N: int, K: int, **more: Any) -> Any:
    """K x N with K contiguous."""
    return whole(N, K, **more).t()


def in_f64(*tensors: Any) -> list[Any]:
    return [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]


def compare(actual: Any, exact: Any, tolerance: float = 0.0) -> None:
    """Equal but for the rounding to found's type, or within `tolerance` of the greatest element."""
    if tolerance == 0:
        assert torch.equal(actual.detach(), exact.detach().to(actual.dtype))
    else:
        error = (actual.detach().double() - exact.detach()).abs().max()
        assert error <= tolerance * exact.detach().abs().max()


OFFSETS = torch.tensor([0, 5, 5, 70, 72], dtype=torch.int32)


def by_groups(a: Any, b: Any, offsets: Any) -> Any:
    ends = offsets.tolist()
    return torch.cat([a[i:j] @ x for i, j, x in zip(ends, ends[1:], b)])
