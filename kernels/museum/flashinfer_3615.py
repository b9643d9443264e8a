"""A counter is reset while a CTA still polls it.

FlashInfer's top-k for long rows has a barrier of its own for a group of CTAs. Each adds to a counter in
global memory and polls until all have come. After the last barrier the leading CTA sets the counter back to
0 for the next launch. A peer that has not looked yet polls a counter that starts again from 0, for ever. GPUs
spun at 96 % without a token, on one of them within 3400 calls. The fix lets the last CTA that leaves reset
the counter.

All accesses are strong, so this is no race. It is a hang in some orders. The exhibit names one of them, in
which CTA 1 comes first and looks again only when CTA 0 has ended. `kernel.explore(n)` finds this order by
itself, in its third attempt. The report shows what is polled, and that nobody is left to change it.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "flashinfer-ai/flashinfer#3615"
KIND = "global flag"
ORDER = "down"  # warps run one after the other, the last one first


@tc.kernel(threads=32)
def group(counter: tc.Array, left: tc.Array, fixed: tc.Const):
    if tc.threadIdx.x == 0:
        tc.emit("red.release.gpu.global.add.u32", counter.at(0), 1)
        while tc.emit("ld.acquire.gpu.global.b32", counter.at(0)).bits(tc.u32) < tc.gridDim.x:  # error
            pass
        if fixed:  # the last one to leave
            if tc.atomic("add", left.at(0), 1) == tc.gridDim.x - 1:
                tc.emit("st.release.gpu.global.b32", counter.at(0), 0)
        elif tc.blockIdx.x == 0:
            tc.emit("st.release.gpu.global.b32", counter.at(0), 0)


def launches(fixed):
    kernel = group.emulator("sm_90a", order=ORDER)
    kernel[2, 32](np.zeros(1, np.uint32), np.zeros(1, np.uint32), fixed=fixed)
