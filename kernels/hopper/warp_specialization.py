"""What the warpgroups of the sm_90a GEMM kernels do: one brings tiles, the others multiply them.

Helpers in the kernel language, inlined into each kernel: the producer, the consumers, and last
the whole kernel, `multiply`, which gives them their parts. Start there.

Both sides go around the ring with a slot and the parity of the phase they wait for, which turns
with each round. Consumers start with 0: the first filling. The producer starts with 1, the phase
before the first, which a new barrier holds to be over: all slots are empty.
"""

from __future__ import annotations

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import LINE, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import finisher, open_way_out, store
from tensorcore_dsl.kernels.hopper.pipeline import blocks, fill, following, open_ring, release, skip
from tensorcore_dsl.kernels.hopper.tile_scheduler import Tiles


def bring(ring, place, slot, k, full):
    """Order a slot's parts of A and B, from depth k on; `full` counts their bytes."""
    config = ring.config
    full.arrive_expect_tx(((config.valid_m or config.BM) + config.BN) * LINE * config.k_slabs)
    for i in tc.static_range(config.k_slabs):
        line, at = slot * config.k_slabs + i, k + i * (ring.depth // config.k_slabs)
        fill(ring.a, 0, line, place.of_a, place.m, at, full)
        fill(ring.b, 1, line, place.of_b, place.n, at, full)


def produce(ring, tiles, bring=bring):
    """Bring the tiles of all of this block's products, one after the other; one thread."""
    slot, phase = tc.u32(0), tc.u32(1)
    for number in tiles.numbers():
        slot, phase = bring_steps(ring, tiles.place(number), slot, phase, bring)


def bring_steps(ring, place, slot, phase, bring=bring):
    """Bring all steps of K of a tile; the next slot and its phase."""
    for step in tc.range(ring.first, ring.last):
        ring.empty[slot].wait(phase)
        bring(ring, place, slot, step * ring.depth, ring.full[slot])
        slot, phase = following(slot, phase, ring.config.stages)
    return slot, phase


def multiply_slot(ring, mma, sums, upper, slot, accumulate):
    """Start sums + A B for one slot, each of 64 rows, block `upper` and those below it."""
    a, b, lines = ring.a, ring.b, ring.config.k_slabs
    rows = blocks(a.tile, 64 if a.k_major else 1)
    tc.wgmma_fence()
    for i in tc.static_range(len(sums)):
        for j in tc.static_range(lines):
            line = slot * lines + j
            sums[i] = tc.wgmma_async(
                mma, sums[i], rows[line, upper + i], b.tile[line],
                accumulate=accumulate if j == 0 else True,
                a_major="k" if a.k_major else "mn", b_major="k" if b.k_major else "mn",
            )  # fmt: skip


def consume(ring, mma, consumer, tiles, finish_tile, multiply_slot=multiply_slot):
    """Multiply this warpgroup's rows of its tiles; hand each 64 of them to `finish_tile`.

    Of consumers that take tiles in turn, one starts when the other's loop over K has ended: a
    barrier tells only whether its last phase is over, not how many are, so nobody may wait for
    slots that are a turn of the ring ahead. Each passes over the slots of the other's tiles;
    `ring.turn` has the first one start at once, the second after it.
    """
    config, steps = ring.config, ring.last - ring.first
    sums = [mma.d.zeros() for _ in range(config.rows_per_consumer // 64)]
    slot, phase, first, turn = tc.u32(0), tc.u32(0), consumer, tc.u32(0)
    if config.pingpong:
        slot, phase = skip(slot, phase, consumer * steps, config.stages)
        first, turn = 0, tc.u32(1 - consumer)
    for number in tiles.numbers(consumer if config.pingpong else None):
        place = tiles.place(number)
        if config.pingpong:
            ring.turn[consumer].wait(turn)
        slot, phase, last = sum_slots(ring, mma, sums, first, slot, phase, multiply_slot)
        if config.pingpong:
            ring.turn[1 - consumer].arrive(pred=tc.threadIdx.x % 128 == 0)
        tc.wgmma_wait(0)
        if config.mma_in_flight > 0:
            release(ring.empty[last], config)
        for i in tc.static_range(len(sums)):
            finish_tile(sums[i], place, (first + i) * 64)
        if config.pingpong:
            slot, phase = skip(slot, phase, steps, config.stages)
            turn = turn ^ 1


def sum_slots(ring, mma, sums, first, slot, phase, multiply_slot):
    """Add up all steps of K, 64 rows in each sum from block `first` on, `ahead` left in flight.

    The next slot and its phase, and the last slot that was read.
    """
    config, before = ring.config, slot
    for step in tc.range(ring.first, ring.last):
        ring.full[slot].wait(phase)
        multiply_slot(ring, mma, sums, first, slot, step != ring.first)
        tc.wgmma_commit()
        tc.wgmma_wait(config.mma_in_flight)
        if config.mma_in_flight == 0:
            release(ring.empty[slot], config)
        else:
            if step > ring.first:
                release(ring.empty[before], config)
        before = slot
        slot, phase = following(slot, phase, config.stages)
    return slot, phase, before


def share_work(
    ring, mma, tiles, way_out, finish, produce=produce, consume=consume, store=store, registers=(),
    help=None,
):  # fmt: skip
    """One warpgroup produces; the others consume, and send out what they have summed.

    registers: what a thread of the producer keeps, and what one of a consumer has then, where the
    configuration does not tell. help(ring, tiles) is what the producer's second warp does.
    """
    config = ring.config
    tc.griddep_wait()  # what comes before may overlap with the kernel ahead in the stream
    tc.griddep_launch_dependents()

    def bring_tiles():
        if tc.threadIdx.x == 0:
            produce(ring, tiles)
        if help is not None and tc.warp_id() == 1:
            help(ring, tiles)
        if config.split_k > 1:
            tc.cluster_sync()

    def multiply_tiles(consumer):
        def finish_tile(acc, place, row):
            store(acc, consumer, way_out, place, row, finish, config)

        consume(ring, mma, consumer, tiles, finish_tile)
        tc.tma_wait(0, reading=True)

    registers = registers or config.registers
    tc.warp_specialize((1, bring_tiles), (config.consumers, multiply_tiles), registers=registers or None)
    tc.cluster_sync()


def multiply(mma, a, b, c, d, alpha, beta, config: HopperConfig, traits: HopperTraits):
    """The whole kernel, but for the instruction that it multiplies with."""
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.cluster_size)
    way_out = open_way_out(d, mma.d.dtype, config, traits.store_by_threads, traits.row_reductions)
    ring = open_ring(a, b, config, traits)
    finish = finisher(c, alpha, beta, traits)
    registers = config.registers_for(traits)
    share_work(ring, mma, Tiles(d.shape, config), way_out, finish, registers=registers)
