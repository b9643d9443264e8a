"""Split-K in a cluster: CTAs sum parts of K, and add them up through distributed shared memory."""

from __future__ import annotations

from functools import partial

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import WARPGROUP
from tensorcore_dsl.kernels.hopper.epilogue import same_row, store_elements


def make_store_shares(pipeline, acc_dtype):
    """The function that stores a share of a tile, in place of `epilogue.store_rows`.

    It keeps the partial sums of a CTA in stages of the pipeline that have room, else in memory of
    their own. They are (consumer, quads of elements, thread, 4), so that the quads of neighbouring
    threads are adjacent.
    """
    config = pipeline.config
    shape = config.consumers, config.BN // 8, WARPGROUP, 4
    operand = config.partials_over(config.stages)
    if operand is None:
        return partial(store_shares, partials=tc.shared(shape, acc_dtype))
    stages = (pipeline.a, pipeline.b)[operand].smem
    strides = shape[1] * WARPGROUP * 4, WARPGROUP * 4, 4, 1
    partials = stages.with_parts(dtype=acc_dtype, shape=shape, strides=strides, swizzle=0)
    return partial(store_shares, partials=partials)


def store_shares(acc, consumer, epilogue, tile, row, epilogue_op, config, partials):
    """Sum the partial tiles of a cluster, and store this CTA's share of the columns of 64 rows."""
    batch, m = tile.batch_d, tile.m + row
    write_partials(acc.elements(), consumer, epilogue, partials, config)
    part, width = tc.cluster_rank() // config.multicast_ctas, config.stored_columns
    if part < config.BN // width:
        elements = sum_partials(part, consumer, partials, config)
        n = tile.n + part * width
        store_elements(acc.coordinates, elements, consumer, epilogue, batch, m, n, epilogue_op)


def write_partials(elements, consumer, epilogue, partials, config):
    """Every CTA of a split-K cluster writes its sums to its own shared memory, and all meet.

    The partials may overwrite stages of the pipeline. This is the CTA's only tile, so no load
    follows. All loads into the stages have arrived, since the consumers have waited for each.
    After the barrier, the wgmma of all consumers are complete, and so are the reads of fragments
    by all warps.
    """
    thread = tc.threadIdx.x % WARPGROUP
    several = config.consumers > 1 or epilogue.row_of is not same_row
    if several and config.partials_over(config.stages) is not None:
        tc.barrier(config.consumers + 1, config.consumers * WARPGROUP)
    for i in tc.static_range(len(elements) // 4):
        partials.at(consumer, i, thread, 0).store(elements[4 * i : 4 * i + 4])
    tc.cluster_sync()


def sum_partials(part, consumer, partials, config):
    """The sums of one share of a tile's elements, which all CTAs with this tile have written.

    It reads them through distributed shared memory. The order of the sum is the order of ranks, so
    the bits are the same in every run.
    """
    ctas, thread = config.multicast_ctas, tc.threadIdx.x % WARPGROUP
    share = config.stored_columns // 8  # quads of a thread
    first, same_tile = part * share, tc.cluster_rank() % ctas
    summed = []
    for i in tc.static_range(share):
        acc = partials.remote(same_tile).at(consumer, first + i, thread, 0).load(4).elements()
        for peer in tc.static_range(1, config.split_k):
            peer_partials = partials.remote(same_tile + peer * ctas)
            addend = peer_partials.at(consumer, first + i, thread, 0).load(4).elements()
            acc = [x + y for x, y in zip(acc, addend, strict=True)]
        summed += acc
    return summed
