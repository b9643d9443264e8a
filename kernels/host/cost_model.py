"""Cost model: expected time of a wgmma configuration, in clock cycles of an SM.

The model counts waves of tiles and the K-steps of a tile. A K-step takes about as long as the
slowest of the tensor cores, shared memory, the L2 cache, TMA and the barriers; the whole takes at
least as long as DRAM needs for all operands. What goes on at a time is combined by a norm, since it
is not quite hidden. The constants are fitted to measurements on an H200 (docs/performance.md);
`ranking` lists the expected seconds of every candidate. Square roots are the only functions: they
are rounded alike everywhere, so that the ranking is the same on all machines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np

from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, HopperConfig
from tensorcore_dsl.kernels.hopper.sparse_packing import ROWS, Format
from tensorcore_dsl.kernels.host import corrections
from tensorcore_dsl.kernels.host.candidates import Menu, as_loaded, candidates, sparse_stage_bytes
from tensorcore_dsl.kernels.host.problem_shape import (
    SMS,
    ProblemShape,
    active_clusters,
    cluster_tiles,
)

CLOCK = 1.6e9  # SM cycles per second under load
TENSOR = 32  # elements of D per cycle and SM that advance by one 128-byte slab of K
LATER = 0.03  # part of the time that the last one of the menu has to gain beside the first
CORRECTED = 32  # configurations that are corrected, at most
NEAR = 1.3  # times the least expected time: of those that are
KEPT = 3e7  # bytes that the L2 cache keeps until they are read again
SLICES = 2, 3, 4, 6, 8, 12, 16, 24, 32  # of K, whose sums lie in memory
SLICE_SLABS = 4  # of K in each, at least
MOST_SLICED = 16  # configurations with slices: corrected at most, and ranked at least
# Of the kernel that adds up slices: microseconds, and bytes that it reads and writes in one. Fitted
# to 150 timings of 45 problems, within 7 % (root mean square).
SLICES_LAUNCH, SLICES_RATE = 1.0, 1.2e7
TRANSPOSED_ROWS = 96  # rows or columns that warps transpose in a round
TRANSPOSED_ACCESSES = 4  # as which each of them counts in shared memory


@dataclass(frozen=True)
class Costs:
    """What the steps of a kernel cost: cycles of an SM, or bytes in a cycle.

    A step is one 128-byte slab of K for one tile. shared: bytes that an SM moves to and from shared
    memory: wgmma reads and TMA writes together. cache: bytes that the L2 cache sends for each SM,
    of which a multicast counts once. ingest: bytes that an SM receives. misaligned: factor of
    pieces of 128 bytes that lie in two cache lines. outside: cycles of a row or column outside of
    the matrix, which TMA fills with zeros. readers: for each cluster that reads the same rows or
    columns. step, cluster_step: least duration of a step, whose barriers reach other CTAs in a
    cluster. cooperative: factor of tensor cores, as consumers of a tile wait for each other. alone:
    of a step of ping-pong beside its products, as one consumer multiplies at a time. parted: part
    by which steps take longer with K in many parts. boxed: factor of tensor cores, where wgmma
    leaves out a part of the last box.
    promoted, promoted_part, promoted_column: of a step of one consumer beside its products;
    promoted_beside: part of these that the products of other consumers do not hide.
    fragments: of a stage, in which a consumer reads fragments of A and waits for its products.
    transposed, transposed_round: of warps that transpose a stage, and of each round of it;
    transposed_shared: as `shared`, beside these.

    column, box, box_by_threads: of the epilogue of 64 rows, for each column, and for each store of
    128 bytes of them or less, by TMA or without. drain: from the last product of a tile to the
    first one of the next. dram: bytes of the GPU. second: part of A and B that is read once more
    where several clusters read it at a time; again: the same, of what the L2 cache has lost until
    then; apart: of what CTAs that share tiles of stream-K read beside each other.

    launch: of a kernel. fill, first_readers: until the first stage has arrived, for each KiB of it,
    and for each cluster that reads the same. handover: until a unit of stream-K sees what another
    one has stored; exchange: bytes of that. split, split_peer, split_element: of the sum of
    split-K, for each, for each CTA, and for each accumulator of a thread.
    """

    shared: float = 204
    cache: float = 93.8
    ingest: float = 99.6
    misaligned: float = 2.8
    outside: float = 1.02
    readers: float = 0.725
    step: float = 192
    cluster_step: float = 198
    cooperative: float = 1.13
    alone: float = 30.6
    parted: float = 0.0533
    boxed: float = 1.13
    promoted: float = 0.935
    promoted_part: float = 139
    promoted_column: float = 0.178
    promoted_beside: float = 0.456
    fragments: float = 349
    transposed: float = 270
    transposed_round: float = 221
    transposed_shared: float = 165
    column: float = 0.216
    box: float = 103
    box_by_threads: float = 263
    drain: float = 472
    dram: float = 3180
    second: float = 0.654
    again: float = 2.47
    apart: float = 0.369
    launch: float = 2320
    fill: float = 45.7
    first_readers: float = 4.3
    handover: float = 1620
    exchange: float = 19.2
    split: float = 16.1
    split_peer: float = 330
    split_element: float = 14.2


COSTS = Costs()


def cycles(menu: Menu, shape: ProblemShape, costs: Costs = COSTS, most: int = CORRECTED) -> Any:
    """Cycles of a whole launch of each configuration.

    Those of up to `most` configurations that may be the fastest are corrected by what was measured
    (corrections.py); others count as much longer as the one of these that is corrected most.
    """
    seen = shape.seen_by(menu.swapped)
    expected = terms(menu, seen, costs)
    found = expected["cycles"]
    if shape.batch > 1:
        return found  # none was measured
    near = np.argsort(found, kind="stable")[:most]
    near = near[found[near] <= NEAR * found[near[0]]]
    factors = corrections.factors(corrections.features(menu, seen, expected)[near])
    corrected = found * factors.max()
    corrected[near] = found[near] * factors
    return corrected


def terms(menu: Menu, shape: ProblemShape, costs: Costs = COSTS) -> dict[str, Any]:
    """The expected cycles of configurations whose tiles cover the product, and what they are of.

    These are the features of the corrections (corrections.py), in FEATURES: sizes of tiles, what a
    launch has of them, and parts of the expected time. Slices of K count as a batch, whose results
    another kernel adds up.
    """
    sum_of_slices = _sum_of_slices(menu, shape)
    shape = _slices_of(menu, shape)
    tiles = _ceil(shape.M, menu.BM * menu.cluster_m) * _ceil(shape.N, menu.BN * menu.cluster_n)
    tiles = tiles * shape.batch
    streamk = menu.streamk_units > 0
    waves = _ceil(tiles, menu.clusters)
    running = np.where(streamk, menu.streamk_units, _ceil(tiles, waves))
    busy = running * menu.cluster_size  # CTAs
    steps = _ceil(shape.k_slabs, menu.split_k * menu.k_slabs) * menu.k_slabs
    step = _step_cycles(menu, shape, costs, busy)
    epilogue = _epilogue_cycles(menu, shape, costs)
    # Whole tiles; of ping-pong, every epilogue but the last hides behind the other's mainloop, if
    # TMA stores.
    mainloop = steps * step
    left = np.where(shape.store_by_threads, epilogue, np.maximum(epilogue - mainloop, 0))
    behind = np.where(menu.pingpong, left, epilogue + costs.drain)
    compute = waves * (mainloop + behind) + np.where(menu.pingpong, epilogue, 0)
    # Stream-K: an equal share of the steps of all tiles, and the fix-up of those that are shared.
    units = np.maximum(menu.streamk_units, 1)
    remainder = tiles % units
    shared = np.where(remainder > 0, np.minimum(tiles, remainder + units), 0)
    own = (tiles - shared) // units + _ceil(shared, units)
    peers = np.where(shared > 0, 1 + _ceil(units, np.maximum(shared, 1)), 0)
    fix_up = peers * (menu.BM * menu.BN * 4 / costs.exchange + costs.handover)
    divided = _ceil(tiles * steps, units) * step + own * (epilogue + costs.drain) + fix_up
    compute = np.where(streamk, divided, compute)
    of_a, of_b = (shape.batch * n * shape.K * shape.itemsize for n in (shape.M, shape.N))
    operands, below = of_a + of_b, _height(menu, shape)
    beside = np.minimum(_ceil(shape.N, menu.BN * menu.cluster_n), _ceil(running, below))
    results = shape.batch * shape.out_bytes * shape.M * shape.N
    moved = operands + results
    moved = moved + costs.second * (of_a * (1 - 1 / beside) + of_b * (1 - 1 / below))
    # Groups of rows of tiles read B one after another; CTAs that share tiles read apart of others.
    moved = moved + costs.again * (_groups(menu, shape) - 1) * np.maximum(of_b - KEPT, 0)
    edges = (menu.BM * menu.cluster_m + menu.BN * menu.cluster_n) * shape.K * shape.itemsize
    apart = np.maximum(shared * edges - operands, 0) * np.maximum(1 - KEPT / operands, 0)
    dram = (moved + np.where(streamk, costs.apart * apart, 0)) / costs.dram
    launch = _launch_cycles(menu, shape, costs, busy, waves) + sum_of_slices
    cycles = np.sqrt(compute**2 + dram**2) + launch
    loaded = _loaded_columns(menu, shape)
    tensor = menu.BM * menu.BN / TENSOR
    received = (menu.rows + loaded) * SWIZZLE_BYTES
    sent = (menu.rows / menu.cluster_n + loaded / menu.cluster_m) * SWIZZLE_BYTES
    sent = sent * _lines(shape, costs)
    computed = tiles * menu.BM * menu.BN * menu.cluster_m * menu.cluster_n
    return {
        "cycles": cycles, "tiles": tiles, "busy": busy, "steps": steps, "waves": waves,
        "step": step, "epilogue": epilogue, "received": received, "operands": operands,
        "in_flight": menu.stages * menu.k_slabs * received,
        "full": tiles / (waves * menu.clusters), "last": tiles / menu.clusters - (waves - 1),
        "used": shape.M * shape.N * shape.batch / computed,
        "divided": steps * menu.split_k / shape.k_slabs,
        "mainloop": mainloop * waves / cycles, "epilogues": epilogue * waves / cycles,
        "launch": launch / cycles, "dram": (operands + results) / costs.dram / cycles,
        "tensor": tensor / step, "sent": sent * (busy / SMS) / step,
        "tensor_sent": tensor / sent, "tensor_received": tensor / received,
        "asked": _asked(menu, shape), "intensity": shape.M * shape.N / (shape.M + shape.N),
        "readers": _readers(menu, shape, busy), "height": below,
    }  # fmt: skip


def _slices_of(menu: Menu, shape: ProblemShape) -> ProblemShape:
    """The products of slices of K, as arrays, where there are any."""
    sliced = menu.slices > 1
    if not sliced.any():
        return shape
    of_slab = SWIZZLE_BYTES // shape.itemsize
    fields: dict[str, Any] = {
        "K": np.where(sliced, _ceil(shape.k_slabs, menu.slices) * of_slab, shape.K),
        "batch": shape.batch * menu.slices,
        "out_bytes": np.where(sliced, 4, shape.out_bytes),
        "store_by_threads": np.where(sliced, shape.N * 4 % 16 != 0, shape.store_by_threads),
    }
    return replace(shape, **fields)


def _sum_of_slices(menu: Menu, shape: ProblemShape) -> Any:
    """Cycles of the kernel that adds up slices of K."""
    moved = (menu.slices + 1) * (shape.batch * shape.M * shape.N * 4)
    return np.where(menu.slices > 1, (SLICES_LAUNCH + moved / SLICES_RATE) * CLOCK / 1e6, 0)


def _step_cycles(menu: Menu, shape: ProblemShape, costs: Costs, busy: Any) -> Any:
    """Cycles of one 128-byte slab of K for one tile: the norm of what goes on at a time."""
    together = (menu.consumers > 1) & ~menu.pingpong
    loaded = _loaded_columns(menu, shape)
    tensor = menu.BM * menu.BN / TENSOR * np.where(together, costs.cooperative, 1)
    tensor = tensor * np.where(loaded > menu.BN, costs.boxed, 1) + costs.alone * menu.pingpong
    sent = (menu.rows / menu.cluster_n + loaded / menu.cluster_m) * SWIZZLE_BYTES
    lines = _lines(shape, costs)
    sent = sent * lines
    cache = sent * (busy / SMS) / costs.cache
    received = (menu.rows + loaded) * SWIZZLE_BYTES / costs.ingest
    received = received + costs.outside * _outside(menu, shape)
    # wgmma reads B again for every 64 rows of A, and A for every part of the columns.
    parts = np.where(shape.promoted, menu.parts, 1)
    read = menu.BM / 64 * (64 * parts + menu.BN)
    transposition, again = _transposition(menu, shape, costs)
    rate = np.where(again > 0, costs.transposed_shared, costs.shared)
    shared = (read + menu.rows + loaded + again) * SWIZZLE_BYTES / rate
    readers = costs.readers * lines * _readers(menu, shape, busy)
    multicast = menu.cluster_m * menu.cluster_n > 1
    barriers = np.where(multicast, costs.cluster_step, costs.step) / menu.k_slabs
    promotion = costs.promoted + costs.promoted_part * parts + costs.promoted_column * menu.BN / 2
    products = 64 * menu.BN / TENSOR
    both = np.where(menu.in_turns, np.maximum(products, promotion), products + promotion)
    consumer = np.where(shape.promoted, both, products)
    consumer = consumer + np.where(shape.in_fragments, costs.fragments / menu.k_slabs, 0)
    beside = np.where(shape.promoted & ~menu.in_turns, costs.promoted_beside * promotion, 0)
    alone = np.maximum(tensor + beside, consumer)
    each = [alone, cache, received, shared, readers, barriers, transposition]
    step = np.sqrt(np.sqrt(sum((x * x) * (x * x) for x in each)))
    return step * (1 + costs.parted * (1 - 1 / menu.split_k))


def _loaded_columns(menu: Menu, shape: ProblemShape) -> Any:
    """Columns that TMA loads for a tile: whole boxes of those of 16-bit elements side by side."""
    return np.where(_is_boxed(shape), menu.boxed, menu.BN)


def _is_boxed(shape: ProblemShape) -> Any:
    """Whether TMA loads columns of B in boxes of those side by side."""
    return np.logical_not(shape.b_k_major) & (np.asarray(shape.itemsize) == 2)


def _asked(menu: Menu, shape: ProblemShape) -> Any:
    """Bytes of a slab that one CTA of a cluster loads at most, for all of them."""
    columns = np.where(_is_boxed(shape), menu.asked_boxed, menu.asked_columns)
    return (menu.asked_rows + columns) * SWIZZLE_BYTES


def _transposition(menu: Menu, shape: ProblemShape, costs: Costs) -> tuple[Any, Any]:
    """Cycles in which warps transpose one slab of tiles of B that are not K-major, and the rows of
    128 bytes of shared memory that they read and write meanwhile."""
    rounds = shape.transposed * _ceil(menu.BN, TRANSPOSED_ROWS)
    cycles = costs.transposed / menu.k_slabs + rounds * costs.transposed_round
    again = TRANSPOSED_ACCESSES * shape.transposed * menu.BN
    return np.where(rounds > 0, cycles, 0), again


def _outside(menu: Menu, shape: ProblemShape) -> Any:
    """Rows and columns outside of A and B that a CTA loads, on average over its tiles.

    In a single wave it is the CTA with most of them that decides.
    """
    high, wide = menu.rows * menu.cluster_m, menu.BN * menu.cluster_n
    rows, cols = _ceil(shape.M, high), _ceil(shape.N, wide)
    below = np.minimum(rows * high - shape.M, menu.rows // menu.cluster_n)
    beside = np.minimum(cols * wide - shape.N, menu.BN // menu.cluster_m)
    single = rows * cols * shape.batch <= menu.clusters
    return below / np.where(single, 1, rows) + beside / np.where(single, 1, cols)


def _groups(menu: Menu, shape: ProblemShape) -> Any:
    """Groups of rows of tiles, which advance through the columns; see TileScheduler."""
    return np.maximum(_ceil(shape.M, menu.BM * menu.cluster_m) // menu.group_m, 1)


def _lines(shape: ProblemShape, costs: Costs) -> Any:
    """As how many lines of the L2 cache a piece of 128 bytes counts."""
    return 1 + (costs.misaligned - 1) * shape.misaligned


def _height(menu: Menu, shape: ProblemShape) -> Any:
    """Rows of tiles of a group."""
    return _ceil(_ceil(shape.M, menu.BM * menu.cluster_m), _groups(menu, shape))


def _readers(menu: Menu, shape: ProblemShape, busy: Any) -> Any:
    """Clusters that read the same rows of A, or columns of B, at a time."""
    rows = _height(menu, shape)
    running = _ceil(busy // menu.cluster_size, rows)
    return np.maximum(np.minimum(_ceil(shape.N, menu.BN * menu.cluster_n), running), rows)


def _epilogue_cycles(menu: Menu, shape: ProblemShape, costs: Costs) -> Any:
    """Cycles in which a consumer stores its rows of a tile."""
    own, of_line = menu.stored_columns, SWIZZLE_BYTES // shape.out_bytes
    eighths = own % of_line // 8  # of what is left of 128 bytes: a box for each power of two
    left = sum(eighths >> i & 1 for i in range(4))
    boxes = np.where(menu.swapped, _ceil(own, 64), own // of_line + left)
    box = np.where(shape.store_by_threads, costs.box_by_threads, costs.box)
    of_64_rows = own * costs.column + boxes * box
    return np.where(menu.pingpong, menu.BM // 64, 1) * of_64_rows


def _launch_cycles(menu: Menu, shape: ProblemShape, costs: Costs, busy: Any, waves: Any) -> Any:
    """Cycles before the first product, after the last one, and of the sum of split-K."""
    fill = costs.fill * (menu.rows + _loaded_columns(menu, shape)) * menu.k_slabs / 8
    readers = _lines(shape, costs) * _readers(menu, shape, busy)
    fill = fill + costs.first_readers * readers
    split = costs.split + costs.split_peer * menu.split_k + costs.split_element * menu.BN / 2
    return costs.launch + fill + np.where(menu.split_k > 1, split * waves + fill * (waves - 1), 0)


def _ceil(a: Any, b: Any) -> Any:
    return -(-a // b)


Ranking = tuple[tuple[float, HopperConfig], ...]


@lru_cache(maxsize=1024)
def ranking(shape: ProblemShape) -> Ranking:
    """(expected seconds, configuration) of every candidate, the fastest first.

    Later ones of the menu have to gain up to LATER, so that problems share kernels.
    """
    menu = candidates(shape)
    seconds = cycles(menu, shape) / CLOCK
    order = np.argsort(seconds * (1 + LATER * menu.place), kind="stable")
    ranked = ((float(seconds[i]), as_loaded(menu.configs[i], shape)) for i in order)
    if shape.batch == 1:
        return tuple(ranked)
    return tuple((time, _by_rows(config, shape)) for time, config in ranked)


def _by_rows(config: HopperConfig, shape: ProblemShape) -> HopperConfig:
    """Tiles of small matrices beside each other, stored at one time, share pages of memory."""
    small = cluster_tiles(config, shape.M, shape.N) * config.cluster_size <= SMS
    return replace(config, group_m=1) if small else config


def streamk_ranking(shape: ProblemShape) -> Ranking:
    """The same of stream-K configurations."""
    return tuple(entry for entry in ranking(shape) if entry[1].streamk_units)


@lru_cache(maxsize=1024)
def sliced_ranking(shape: ProblemShape) -> Ranking:
    """The same of configurations with as many slices of K as have SMs at a time.

    Of each way to divide K there is one at least, so that operands with gaps find the one that
    those without take.
    """
    if shape.batch > 1 or shape.promoted or shape.in_fragments or shape.transposed:
        return ()
    every = candidates(shape)
    whole = (every.split_k == 1) & (every.streamk_units == 0) & (every.valid_m == 0)
    menu = every.select(whole & ~every.pingpong & ~every.swapped)
    tiles = _ceil(shape.M, menu.BM * menu.cluster_m) * _ceil(shape.N, menu.BN * menu.cluster_n)
    most = np.minimum(menu.clusters // tiles, shape.k_slabs // (SLICE_SLABS * menu.k_slabs))
    fitting = np.searchsorted(SLICES, most, side="right")
    menu, slices = menu.select(fitting > 0), np.array(SLICES)[fitting[fitting > 0] - 1]
    if not len(slices):
        return ()
    menu = replace(menu, columns=menu.columns | {"slices": slices})
    seconds = cycles(menu, shape, most=MOST_SLICED) / CLOCK
    order = np.argsort(seconds, kind="stable")
    ways = slices * menu.k_slabs.max() + menu.k_slabs
    firsts = np.unique(ways[order], return_index=True)[1]
    order = order[np.union1d(firsts, np.arange(min(MOST_SLICED, len(order))))]
    configs = [replace(menu.configs[i], slices=int(slices[i])) for i in order]
    return tuple((float(seconds[i]), as_loaded(c, shape)) for i, c in zip(order, configs))


@lru_cache(maxsize=1024)
def ranking_with_slices(shape: ProblemShape) -> Ranking:
    """The ranking, with configurations that have slices of K between the others."""
    found, latest = [(entry[0], entry) for entry in sliced_ranking(shape)], 0.0
    for entry in ranking(shape):  # which keep their order
        latest = max(latest, entry[0])
        found.append((latest, entry))
    return tuple(entry for _, entry in sorted(found, key=lambda pair: pair[0]))


# 2:4 sparse A: tensor cores are twice as fast, the L2 cache is not

SPARSE_SHARED_BYTES = 128  # shared-memory bytes that wgmma.sp reads per cycle and SM
SPARSE_L2_BYTES = 50  # L2 bytes per cycle and SM
SPARSE_STEP, SPARSE_CLUSTER_STEP = 200, 280  # least cycles of a K-step of a CTA, of a cluster
SPARSE_COLUMN, SPARSE_BOX, SPARSE_DRAIN = 7, 100, 500  # epilogue: see Costs


def sparse_cycles(config: HopperConfig, M: int, N: int, K: int, format: Format) -> float:
    """Cycles of all waves of a sparse product."""
    tensor = config.BM * config.BN / (2 * TENSOR)
    read = config.BM // ROWS * (ROWS * SWIZZLE_BYTES // 2 + config.BN * SWIZZLE_BYTES)
    shared = read / SPARSE_SHARED_BYTES
    cache = sparse_stage_bytes(config, format, config.cluster_m, config.cluster_n) / SPARSE_L2_BYTES
    barriers = SPARSE_STEP if config.multicast_peers == 1 else SPARSE_CLUSTER_STEP
    mainloop = -(-K // format.depth) * max(tensor, shared, cache, barriers)
    waves = -(-cluster_tiles(config, M, N) // active_clusters(config))
    boxes = config.BN // gcd(config.BN, 64)
    epilogue = config.BN * SPARSE_COLUMN + boxes * SPARSE_BOX + SPARSE_DRAIN
    return waves * (mainloop + epilogue)
