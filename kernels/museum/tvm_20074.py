"""A remote barrier, a local instruction.

TVM's TIRx has a view of an mbarrier of another CTA. The view kept an address that points there, and `arrive`
went on to emit the instruction for the own CTA. Its operand is an address in the own window of shared memory,
and the mapped address lies elsewhere. compute-sanitizer's synccheck reported a local arrival at a remote
barrier. The change routes arrivals of such views through the form for clusters.

Both forms take a 32-bit address, so nothing in the types is wrong. The emulator checks which window an
address belongs to and refuses the arrival. In this language `barrier.remote(rank).arrive()` chooses the form;
the broken kernel spells the instruction out.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "apache/tvm#20074"
KIND = "cluster"


@tc.kernel(threads=32)
def handshake(out: tc.Array, fixed: tc.Const):
    tc.cluster_size(2)
    ready, lane, rank = tc.mbarriers(1)[0], tc.lane_id(), tc.cluster_rank()
    if lane == 0:
        ready.init(32)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    there = ready.remote(1 - rank)
    if fixed:
        there.arrive()
    else:
        tc.emit("mbarrier.arrive.shared::cta.b64", there.address)  # error
    ready.wait(0)
    out[rank, lane] = 1
    tc.cluster_sync()


def launches(fixed):
    handshake[2, 32](np.zeros((2, 32), np.int32), fixed=fixed)
