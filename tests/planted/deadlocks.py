"""Waits for what never comes, and loops that never end."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Deadlock, EmulationError
from tests.planted.harness import Planted, error, mapped

ENDLESS = (EmulationError,)  # whatever class says so
planted = Planted(*ENDLESS)


_reverse = mapped(64, lambda x: x[::-1])


# -- barriers -----------------------------------------------------------------------------------


@planted(
    1,
    64,
    _reverse,
    dict.fromkeys(("count", "goes past", "other name", "does not arrive"), error("tc.barrier(1")),
)
def barrier_for_too_many(x, out, mistake: tc.Const):
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    if t >= 32 and mistake == "other name":
        tc.barrier_arrive(2, 64)
    elif t >= 32 and mistake == "does not arrive":
        if x[0] < 0:
            tc.barrier_arrive(1, 64)
    elif t < 32 or mistake != "goes past":
        tc.barrier(1, 96 if mistake == "count" else 64)
    if t < 32 or not mistake:
        out[t] = tile[63 - t]
    tc.barrier()


@planted(
    1,
    128,
    mapped((3, 64), lambda x: x[:, ::-1].sum(axis=0).astype(np.int32)),
    error("tc.barrier(1, 128)"),
    Deadlock,
)
def arrival_of_a_smaller_count(x, out, mistake: tc.Const):
    """Two warps fill a slot and two empty it. The arrival completes a barrier of its own count, so
    that it is the reader's wait that is never met; the writer waits because of that."""
    t, turns = tc.threadIdx.x, x.shape[0]
    slot = tc.shared(64, tc.s32)
    if t < 64:
        for k in tc.range(turns):
            if k > 0:
                tc.barrier(2, 128)
            slot[t] = x[k, t]
            tc.barrier_arrive(1, 64 if mistake else 128)
    else:
        total = tc.s32(0)
        for k in tc.range(turns):
            tc.barrier(1, 128)
            total += slot[127 - t]
            if k < turns - 1:
                tc.barrier_arrive(2, 128)
        out[t - 64] = total
