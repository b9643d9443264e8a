"""Choose where operators run: CUDA tensors on their GPU, CPU tensors in emulation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

import tensorcore_dsl as tc
from tensorcore_dsl.runtime.targets import gpu_chosen


def run_where_it_lies(
    function: Callable[..., Any], tensor: torch.Tensor, *others: Any, **options: Any
) -> Any:
    """Call function(tensor, *others, **options) so that its kernels run on the device of `tensor`.

    They run on the current stream of its device, which becomes the current device: workspaces, and
    the architecture that kernels are compiled for, are those of the current one.
    """
    on_gpu = tensor.is_cuda
    if not (on_gpu or tensor.is_cpu):
        raise tc.ArgumentError(
            f"a tensor on {tensor.device}; kernels run on cuda devices, and on the cpu in emulation"
        )
    is_target = gpu_chosen() if on_gpu else tc.current_target() == "cpu"
    is_current = not on_gpu or tensor.get_device() == torch.cuda.current_device()
    if is_target and is_current:
        return function(tensor, *others, **options)
    device = tensor.device
    target = nullcontext() if is_target else tc.target(device.type)
    with target, nullcontext() if is_current else torch.cuda.device(device):
        return function(tensor, *others, **options)
