"""A wait that compiles to nothing.

CUTLASS has functions for the wait and the trigger of dependent launches. They are empty unless a macro for
the architecture is defined. FlashInfer's build of its fp4, fp8 and mxfp8 GEMMs launched them with the
dependent-launch attribute and did not define the macro. The source had the wait, the binary did not. Under
load, blocks of 128 came out as NaN or garbage.

Reading the source does not help here; what runs has to be checked. In this language the switch is a
compile-time constant, the emulator runs the compiled IR, and the race is in it. The cure is to turn the wait
on wherever the launch is made with `pdl=True`.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "flashinfer-ai/flashinfer#2708"
KIND = "dependent launch"


def wait_on_dependent_grids(enabled):
    if enabled:
        tc.griddep_wait()


@tc.kernel
def produce(x: tc.Array):
    tc.griddep_launch_dependents()
    x[tc.threadIdx.x] = 2.0  # race: first


@tc.kernel
def gemm(x: tc.Array, out: tc.Array, gdc_enabled: tc.Const = False):
    wait_on_dependent_grids(gdc_enabled)
    out[tc.threadIdx.x] = 3.0 * x[tc.threadIdx.x]  # race: second


def launches(fixed):
    x, out = np.zeros(64, np.float32), np.zeros(64, np.float32)
    produce[1, 64](x)
    gemm.configured(1, 64, pdl=True)(x, out, gdc_enabled=fixed)
