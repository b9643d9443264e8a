"""A store still reads the stage that the next load overwrites.

A fused all-gather and GEMM of mKernel keeps the output of a task in the shared memory of an input stage.
Before the next task loads into that stage, the store of the output must have read it. The wait stood at a
fixed iteration of the pipeline, the right one only where K is a multiple of the pipeline's depth. Large
problems came out wrong; small ones passed by coincidence. The fix moves the wait to the start of each task.

A bulk store reads its source until somebody waits for its group. The emulator reports the TMA load that
writes such bytes. In this small form the task has three slices and the pipeline two stages.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "uccl-project/mKernel#18"
KIND = "asynchronous store"


@tc.kernel
def tasks(x: tc.Array, out: tc.Array, slices: tc.Const, fixed: tc.Const):
    load, store = tc.tensor_map(x, (1, 32)), tc.tensor_map(out, (1, 32))
    stages, full = tc.shared((2, 1, 32), tc.s32, align=128), tc.mbarriers(2)
    lane = tc.lane_id()
    if lane == 0:
        full[0].init(1)
        full[1].init(1)
        tc.fence_mbarrier_init()
    tc.syncwarp()
    for task in tc.static_range(2):
        total = tc.s32(0)
        if fixed:
            tc.tma_store_wait(0, read=True)
        for k in tc.static_range(slices):
            step = slices * task + k
            stage = step % 2
            if lane == 0:
                if k == 1:
                    tc.tma_store_wait(0, read=True)  # one slice too late where the output lies in stage 1
                full[stage].arrive_expect_tx(load.bytes)
                tc.tma_load(stages[stage], load, (step, 0), full[stage])  # error
            full[stage].wait(step // 2 & 1)
            total += stages[stage, 0, lane]
            tc.fence_proxy_async()
            tc.syncwarp()
        stages[1, 0, lane] = total
        tc.fence_proxy_async()
        tc.syncwarp()
        if lane == 0:
            tc.tma_store(store, (task, 0), stages[1])
            tc.tma_store_commit()
    tc.tma_store_wait(0)


def launches(fixed):
    x = np.arange(192, dtype=np.int32).reshape(6, 32)
    tasks[1, 32](x, np.zeros((2, 32), np.int32), slices=3, fixed=fixed)
