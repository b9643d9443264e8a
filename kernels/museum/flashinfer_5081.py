"""A constructor reads before the wait.

An all-reduce that is fused with a normalisation keeps its operands in a small object. The object's
constructor loads the first row of the residual; it stands before the wait for the launch in front. Each
thread keeps that row in registers and never loads it again, so that a stale residual goes into both results.
The pull request moves the construction after the wait. It was open in September 2026.

In source code the wait stands near the top of the kernel, and the loads are hidden in a class. The emulator
inlines everything and reports the load at its own line, with the call that leads there. The cure is to
construct later.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "flashinfer-ai/flashinfer#5081"
KIND = "dependent launch"


@tc.kernel
def embed(residual: tc.Array):
    tc.griddep_launch_dependents()
    residual[tc.blockIdx.x, tc.threadIdx.x] = 3.0  # race: first


def fused_operation(residual):
    """What the object holds: the residual of this thread's first row."""
    return residual[tc.blockIdx.x, tc.threadIdx.x]  # race: second


@tc.kernel
def all_reduce_and_norm(x: tc.Array, residual: tc.Array, out: tc.Array, fixed: tc.Const):
    if fixed:
        tc.griddep_wait()
        held = fused_operation(residual)
    else:
        held = fused_operation(residual)
        tc.griddep_wait()
    out[tc.blockIdx.x, tc.threadIdx.x] = x[tc.blockIdx.x, tc.threadIdx.x] + held


def launches(fixed):
    x, residual, out = (
        np.ones((2, 32), np.float32),
        np.zeros((2, 32), np.float32),
        np.zeros((2, 32), np.float32),
    )
    embed[2, 32](residual)
    all_reduce_and_norm.configured(2, 32, pdl=True)(x, residual, out, fixed=fixed)
