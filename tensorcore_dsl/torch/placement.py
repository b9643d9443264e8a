"""Where an operator runs: CUDA tensors on their GPU, CPU tensors in emulation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

import tensorcore_dsl as tc


@contextmanager
def placed(tensor: torch.Tensor) -> Iterator[None]:
    """Kernels inside run where `tensor` lies, on the current stream of its device.

    The device becomes the current one: workspaces, and the architecture that kernels are compiled
    for, are those of the current device. torch restores the caller's.
    """
    device = tensor.device
    if device.type == "cpu":
        with tc.target("cpu"):
            yield
    elif device.type == "cuda":
        with tc.target("cuda"), torch.cuda.device(device):
            yield
    else:
        raise tc.ArgumentError(
            f"a tensor on {device}; kernels run on cuda devices, and on the cpu in emulation"
        )
