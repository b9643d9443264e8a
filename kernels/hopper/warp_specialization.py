"""The body of a warp-specialised Hopper GEMM: one producer warpgroup, and the consumers.

`warp_specialized_gemm` is the whole kernel but for the instruction that it multiplies with. Kernels
with more than two operands, or sums of their own, put it together from the same parts.
"""

from __future__ import annotations

from dataclasses import replace

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import (
    make_epilogue_op,
    make_epilogue_storage,
    make_partials,
    store_rows,
)
from tensorcore_dsl.kernels.hopper.mainloop import consume, produce
from tensorcore_dsl.kernels.hopper.pipeline import make_pipeline
from tensorcore_dsl.kernels.hopper.tile_scheduler import covered_shape, make_tile_scheduler
from tensorcore_dsl.kernels.hopper.transposition import TRANSPOSERS, transpose_stages


def warp_specialized_gemm(
    mma, a, b, c, d, alpha, beta, config: HopperConfig, traits: HopperTraits
):
    """D = epilogue(alpha A B + beta C), multiplied by the wgmma instruction `mma`."""
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.cluster_size)
    in_fragments = traits.in_fragments(config, a.dtype.itemsize)
    buffers = traits.staging_buffers(config, a.dtype.itemsize)
    storage = make_epilogue_storage(d, config, traits, in_fragments, buffers)
    pipeline = make_pipeline(a, b, config, traits)
    epilogue_op = make_epilogue_op(c, alpha, beta, traits)
    registers = config.registers_for(traits, a.dtype.itemsize, d.dtype.itemsize)
    scheduler = make_tile_scheduler(covered_shape(d, config), config)
    run_warpgroups(
        pipeline, mma, scheduler, storage, epilogue_op, registers=registers,
        extra_producer=None if pipeline.ready is None else transpose_stages,
        extra_warps=TRANSPOSERS,
    )  # fmt: skip


def run_warpgroups(
    pipeline, mma, scheduler, storage, epilogue_op, produce=produce, consume=consume,
    store=store_rows, registers=(), extra_producer=None, extra_warps: int = 1,
):  # fmt: skip
    """Divide the warpgroups of the CTA: warpgroup 0 produces, the others consume and store D.

    storage: of the epilogue, see epilogue.EpilogueStorage. epilogue_op: function of elements, see
    epilogue.make_epilogue_op. produce, consume: mainloops; `produce` calls griddep_wait itself.
    store: writes 64 rows of accumulators.
    registers: per thread of producer and consumer; () takes those of the configuration.
    extra_producer(pipeline, scheduler): what the next `extra_warps` warps of the producer run.
    """
    config = pipeline.config
    if config.split_k > 1:
        storage = replace(storage, partials=make_partials(pipeline, mma.d.dtype))
    # Programmatic dependent launch: all set-up above, and what `produce` does before it waits, may
    # overlap the end of the previous kernel of the stream. What that one wrote may be read, and
    # what it read may be written, only behind griddep_wait.
    tc.griddep_launch_dependents()

    def producer():
        if tc.threadIdx.x == 0:
            produce(pipeline, scheduler)  # it waits before its first load
        if extra_producer is not None and 1 <= tc.warp_id() <= extra_warps:
            tc.griddep_wait()
            extra_producer(pipeline, scheduler)
        if config.split_k > 1:
            # Matches the consumers' one in epilogue.write_partials: split-K has one tile per CTA.
            tc.cluster_sync()

    def consumers(consumer):
        tc.griddep_wait()

        def store_tile(acc, tile, row):
            store(acc, consumer, storage, tile, row, epilogue_op, config)

        consume(pipeline, mma, consumer, scheduler, store_tile)
        tc.tma_store_wait(0, read=True)  # shared memory must outlive the TMA stores that read it

    registers = registers or config.registers or None
    tc.warp_specialize((1, producer), (config.consumers, consumers), registers=registers)
    # No CTA may exit while a peer still multicasts into its tiles or arrives on its barriers.
    tc.cluster_sync()
