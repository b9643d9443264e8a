"""An arrival that laps its barrier.

In vLLM's MLA kernel, compute warps arrive at a named barrier and go on; load warps arrive there and wait. A
tile without work takes a short cut that only arrives. With two such tiles in a row, the compute warps arrive
a second time before the load warps have come for the first. The barrier counts both arrivals in one phase,
and the load warps later wait for ever. Servers hung under load. The fix turns the arrival of the short cut
into a wait.

A named barrier counts threads and does not know who they are. The emulator therefore demands that an arrival
is ordered after the phase before. It reports one that is not, also where its own run goes well. The cure is
to wait in the short cut, too.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "vllm-project/vllm#26026"
KIND = "named barrier"
EPILOGUE = 1


@tc.kernel
def attention(work: tc.Array, out: tc.Array, fixed: tc.Const):
    tc.launch_bounds(96)
    results, lane, warp = tc.shared(64, tc.s32), tc.lane_id(), tc.warp_id()
    for tile in range(work.shape[0]):
        if warp == 2:  # loads, and writes out what was computed
            tc.barrier(EPILOGUE, 96)
            if work[tile] > 0:
                out[tile, lane] = results[lane] + results[32 + lane]
                tc.barrier(EPILOGUE, 96)
        elif work[tile] > 0:
            results[32 * warp + lane] = work[tile] * lane
            tc.barrier(EPILOGUE, 96)
            tc.barrier(EPILOGUE, 96)
        elif fixed:
            tc.barrier(EPILOGUE, 96)
        else:
            tc.barrier_arrive(EPILOGUE, 96)  # error


def launches(fixed):
    work = np.array([0, 0, 0, 3], np.int32)
    attention[1, 96](work, np.zeros((4, 32), np.int32), fixed=fixed)
