"""Where an operator runs: CUDA tensors on their GPU, CPU tensors in emulation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

import tensorcore_dsl as tc


def run_where_it_lies(
    function: Callable[..., Any], tensor: torch.Tensor, *others: Any, **options: Any
) -> Any:
    """function(tensor, *others, **options), whose kernels run where `tensor` lies.

    They run on the current stream of its device, which becomes the current device: workspaces, and
    the architecture that kernels are compiled for, are those of the current one.
    """
    device = tensor.device
    if device.type not in ("cpu", "cuda"):
        raise tc.ArgumentError(
            f"a tensor on {device}; kernels run on cuda devices, and on the cpu in emulation"
        )
    with ExitStack() as contexts:
        if tc.current_target() != device.type:
            contexts.enter_context(tc.target(device.type))
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            contexts.enter_context(torch.cuda.device(device))
        return function(tensor, *others, **options)
