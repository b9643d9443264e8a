"""Instructions, launches and numbers that the tests of fragments share."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tests import running

warp = functools.partial(running.launch, block=32)
warpgroup = functools.partial(running.launch, block=128, arch="sm_90a")

F16 = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
BF16 = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
TF32 = tc.mma.m16n8k8(tc.tf32, tc.tf32, tc.f32)
S8 = tc.mma.m16n8k32(tc.s8, tc.s8, tc.s32)
F64 = tc.mma.m8n8k4(tc.f64, tc.f64, tc.f64)
PRODUCTS = [F16, BF16, TF32, S8, F64]
WGMMA = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32, source="registers")
TILES = [*((m, name) for m in PRODUCTS for name in "abd"), (WGMMA, "a"), (WGMMA, "d")]


def launch(place: Any, kernel: Any, *args: Any, **constants: Any) -> None:
    """In a warp, or in a warpgroup of sm_90a if the layout is one of wgmma."""
    run = warp if place.layout.threads == 32 else warpgroup
    run(kernel, *args, **constants)


def numbers(shape: Any, dtype: Any, seed: int = 0) -> np.ndarray:
    """Small whole numbers, exact in all types."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


def short(value: Any) -> str:
    """The name of a case: an operand by its layout."""
    layout = getattr(value, "layout", None)
    return str(getattr(value, "ptx", value) if layout is None else layout.name)


def memory_type(operand: Any) -> np.dtype:
    return np.dtype(operand.dtype.numpy)
