"""Features of a configuration for a problem: the questions that the trees may ask.

The first feature is the roofline time: the rates of an H200 applied to the waves of tiles. The
trees correct it (trees.py). Most other features are its terms: waves, bytes, cycles. Features come
of additions, multiplications, divisions, square roots and comparisons alone, so that they are equal
on every machine.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensorcore_dsl.kernels.choosing.menu import F64, FRAGMENTS, SPLIT_F32, VECTORS, Menu
from tensorcore_dsl.kernels.hopper.config import SMEM_BYTES
from tensorcore_dsl.kernels.problem.problem_shape import SMS, ProblemShape
from tensorcore_dsl.kernels.sizes import cdiv

# What one SM of an H200 does in a cycle, by the data sheet; CACHE_BYTES and DRAM_BYTES_PER_US are measured.
TENSOR_RATE = 4096  # multiply-adds of 8-bit elements by wgmma; mma.sync does half as many
TENSOR_F64_RATE = 128  # multiply-adds of f64 by mma.sync
VECTOR_RATE, VECTOR_F64_RATE = 128, 64  # multiply-adds without tensor cores
CACHE_BYTES, SHARED_BYTES, STORED_BYTES = 80, 128, 64  # L2 reads, shared reads, global stores
CYCLES_PER_US = 1.6e3  # cycles under load
DRAM_BYTES_PER_US = 4.4e6  # bytes between the whole GPU and its memory
# Cycles from the request of a stage, or of a load of vectors, to its arrival.
LATENCY_CYCLES, VECTOR_LATENCY_CYCLES = 1200, 600
PINGPONG_LATENCY_SHARE = 0.3  # share of the latency between tiles that ping-pong does not hide
SPLIT_INSTRUCTIONS, SPLIT_MMA_INSTRUCTIONS = 13, 8  # instructions that split an f32 element
FULL_SM_THREADS = 256  # threads that keep the tensor cores of an SM busy with mma.sync
SM_REGISTERS, SM_THREADS = 1 << 16, 2048  # registers and threads of an SM
LAUNCH_US, NEXT_LAUNCH_US = 2.0, 0.9  # microseconds of the first kernel, and of each further one
# Microseconds of stream-K to exchange sums, and for each unit that shares a tile.
STREAMK_EXCHANGE_US, STREAMK_PEER_US = 5.0, 1.5


class _Waves(NamedTuple):
    """Tiles of a launch, the steps along K of each, and the waves of CTAs.

    depth: bytes of K of a step. together: CTAs that share an SM. busy: share of the SMs in a wave.
    units: CTAs of a wave, or of stream-K.
    """

    depth: Any
    all_steps: Any
    steps: Any
    tiles_below: Any
    tiles_beside: Any
    tiles: Any
    work: Any
    resident: Any
    units: Any
    waves: Any
    busy: Any
    together: Any


def _waves(menu: Menu, shape: ProblemShape) -> _Waves:
    """Count the tiles and the waves of CTAs of each configuration."""
    hopper, vectors, where = menu.kind <= FRAGMENTS, menu.kind == VECTORS, np.where
    slabs = where(menu.kind == SPLIT_F32, 1, menu.k_slabs)
    depth = where(hopper, slabs * 128, menu.BK * shape.itemsize)
    all_steps = cdiv(shape.K, depth // shape.itemsize)
    tiles_below = cdiv(shape.M, menu.BM * menu.cluster_m)
    tiles_beside = cdiv(shape.N, menu.BN * menu.cluster_n)
    tiles = tiles_below * tiles_beside * shape.batch
    work = tiles * where(hopper, 1, menu.split_k)
    accumulators = where(vectors, np.minimum(menu.BM, menu.BN), menu.WM * menu.WN // 32)
    registers = np.minimum(accumulators * where(shape.itemsize == 8, 2, 1) + 64, 255)
    staged = where(vectors, 1024, menu.stages * (menu.BM + menu.BN) * depth + 1024)
    fitting = np.minimum(SM_REGISTERS // (menu.threads * registers), SMEM_BYTES // staged)
    resident = np.maximum(np.minimum(fitting, SM_THREADS // menu.threads), 1)
    resident = where(hopper | (menu.kind == F64), menu.resident, resident)  # CTAs of an SM
    at_a_time = where(hopper, menu.clusters, SMS * resident)
    streamk = menu.streamk_units > 0
    units = where(streamk, menu.streamk_units, at_a_time)
    waves = cdiv(work, units)
    busy = where(streamk, menu.streamk_units, cdiv(work, waves)) * menu.cluster_size / SMS
    together = cdiv(np.minimum(work, at_a_time) * menu.cluster_size, SMS)
    return _Waves(
        depth,
        all_steps,
        cdiv(all_steps, menu.split_k),
        tiles_below,
        tiles_beside,
        tiles,
        work,
        resident,
        units,
        waves,
        busy,
        together,
    )


class _Step(NamedTuple):
    """One step along K of a CTA. Cycles: of all, and of what overlaps. Bytes: received and sent.

    sent: by the L2 cache, for each CTA. stages: that fit, with boxes of MN-major operands.
    """

    cycles: Any
    tensor: Any
    cache: Any
    shared: Any
    latency: Any
    received: Any
    sent: Any
    stages: Any


def _step(menu: Menu, shape: ProblemShape, launch: _Waves) -> _Step:
    """Count the cycles of one step along K: the norm of the overlapping costs of an SM."""
    hopper, vectors, where = menu.kind <= FRAGMENTS, menu.kind == VECTORS, np.where
    two_parts, f64 = where(menu.kind == SPLIT_F32, 2, 1), np.asarray(shape.itemsize) == 8
    depth, itemsize = launch.depth, shape.itemsize
    rate = where(hopper, TENSOR_RATE, TENSOR_RATE // 2) / itemsize / shape.products
    rate = where(hopper | ~f64, rate, TENSOR_F64_RATE)
    rate = where(vectors, where(f64, VECTOR_F64_RATE, VECTOR_RATE), rate)
    tensor = menu.BM * menu.BN * (depth // itemsize) / rate
    # f32 operands are split into tf32 parts in registers, by each warp that reads them.
    split = where(hopper, menu.BM + menu.BN, menu.threads / 32 * (menu.WM + menu.WN))
    split = (
        split * (depth // itemsize) * where(hopper, SPLIT_INSTRUCTIONS, SPLIT_MMA_INSTRUCTIONS) / VECTOR_RATE
    )
    tensor = tensor + where((shape.products == 3) & (menu.kind != SPLIT_F32) & ~vectors, split, 0)
    idle = where(hopper | vectors, 1, np.maximum(FULL_SM_THREADS / (menu.threads * launch.together), 1))
    boxed = hopper & (np.asarray(shape.b_k_major) == 0) & (np.asarray(itemsize) == 2)
    columns = where(boxed, menu.boxed, menu.BN)
    stages = where(boxed, np.minimum(menu.stages, menu.boxed_stages), menu.stages)
    sent = menu.BM / menu.cluster_n + columns / menu.cluster_m
    sent = sent * depth * (1 + shape.misaligned) * two_parts
    cache = sent * launch.busy / CACHE_BYTES
    read = where(hopper, menu.BM / 64 * (64 + menu.BN), menu.threads / 32 * (menu.WM + menu.WN))
    read = read * depth * where(menu.kind == SPLIT_F32, 3, 1)
    shared = where(vectors, 0, read / SHARED_BYTES)
    latency = where(vectors, VECTOR_LATENCY_CYCLES, LATENCY_CYCLES) / stages
    # Overlapping costs are not quite hidden: a norm instead of the maximum.
    terms = tensor * idle * launch.together, shared * launch.together, cache, latency
    cycles = np.sqrt(np.sqrt(sum((x * x) * (x * x) for x in terms)))
    received = (menu.BM + columns) * depth * two_parts
    return _Step(cycles, tensor, cache, shared, latency, received, sent, stages)


def features(menu: Menu, problem: ProblemShape, memory: Any = 1.0) -> dict[str, Any]:
    """Compute the features of each configuration; "time" is the roofline time in microseconds.

    memory: bandwidth of the measured GPU's memory over that of an H200.
    """
    shape, where = problem.seen_by(menu.swap_ab), np.where
    M, N, K, batch, itemsize = shape.M, shape.N, shape.K, shape.batch, shape.itemsize
    launch = _waves(menu, shape)
    step = _step(menu, shape, launch)
    streamk, in_parts = menu.streamk_units > 0, menu.kind == SPLIT_F32
    epilogue = menu.BM * menu.BN * shape.out_bytes / STORED_BYTES / where(menu.pingpong, 2, 1)
    turns = where(streamk, launch.work / launch.units, launch.waves)
    ending = epilogue + LATENCY_CYCLES * where(menu.pingpong, PINGPONG_LATENCY_SHARE, 1)
    compute = turns * (launch.steps * step.cycles + ending) / CYCLES_PER_US
    operands, results = batch * K * (M + N) * itemsize, batch * M * N * shape.out_bytes
    dram = (operands + results) / (DRAM_BYTES_PER_US * memory)
    parts = where(menu.kind <= FRAGMENTS, 1, menu.split_k)  # a second kernel adds up their sums
    sums = (parts > 1) * (NEXT_LAUNCH_US + (parts + 1) * batch * M * N * 4 / DRAM_BYTES_PER_US)
    sums = sums + where(in_parts, LAUNCH_US + 3 * operands / (DRAM_BYTES_PER_US * memory), 0)
    copies = shape.copies * NEXT_LAUNCH_US + shape.copied_bytes / (DRAM_BYTES_PER_US * memory)
    sums = sums + streamk * (STREAMK_EXCHANGE_US + STREAMK_PEER_US * launch.units / launch.tiles)
    time = LAUNCH_US + np.sqrt(compute * compute + dram * dram) + sums + copies
    a_lines, b_lines = menu.BM * (shape.a_align < 16), menu.BN * (shape.b_align < 16)
    high, wide = menu.BM * menu.cluster_m, menu.BN * menu.cluster_n
    return {
        "time": time,
        "kind": menu.kind,
        "BM": menu.BM,
        "BN": menu.BN,
        "depth": launch.depth,
        "stages": step.stages,
        "threads": menu.threads,
        "WM": menu.WM,
        "WN": menu.WN,
        "cluster_m": menu.cluster_m,
        "cluster_n": menu.cluster_n,
        "split_k": menu.split_k,
        "streamk": streamk,
        "pingpong": menu.pingpong,
        "swap_ab": menu.swap_ab,
        "k_slabs": menu.k_slabs,
        "multicast": menu.cluster_m * menu.cluster_n,
        "itemsize": itemsize,
        "out_bytes": shape.out_bytes,
        "a_k_major": shape.a_k_major,
        "b_k_major": shape.b_k_major,
        "misaligned": shape.misaligned,
        "store_by_threads": shape.store_by_threads,
        "promoted": shape.promoted,
        "products": shape.products,
        "a_align": shape.a_align,
        "b_align": shape.b_align,
        "copies": shape.copies,
        "tiles": launch.tiles,
        "work": launch.work,
        "waves": launch.waves,
        "busy": launch.busy,
        "last": launch.work / launch.units - (launch.waves - 1),
        "full": launch.work / (launch.waves * launch.units),
        "steps": launch.steps,
        "all_steps": launch.all_steps,
        "resident": launch.resident,
        "together": launch.together,
        "divided": launch.steps * menu.split_k / launch.all_steps,
        "step": step.cycles,
        "tensor": step.tensor / step.cycles,
        "cache": step.cache / step.cycles,
        "shared": step.shared / step.cycles,
        "latency": step.latency / step.cycles,
        "received": step.received,
        "in_flight": step.stages * step.received,
        "tensor_sent": step.tensor / step.sent,
        "sent": step.sent,
        "compute": compute / time,
        "dram": dram / time,
        "sums": sums / time,
        "copied": copies / time,
        "epilogue": turns * epilogue / CYCLES_PER_US / time,
        "operands": operands,
        "cached": step.cache * turns * launch.steps / CYCLES_PER_US / time,
        "stored": results / time,
        "used": M * N * batch / (launch.tiles * high * wide),
        "used_rows": M / (launch.tiles_below * high),
        "used_k": K * itemsize / (launch.all_steps * launch.depth),
        "intensity": M * N / (M + N),
        "ratio": M / N,
        "tiles_below": launch.tiles_below,
        "tiles_beside": launch.tiles_beside,
        "k_bytes": K * itemsize,
        "out_aligned": N * shape.out_bytes % 16,
        "unaligned": (a_lines + b_lines) / (menu.BM + menu.BN),
        "rest": cdiv(launch.work * menu.cluster_size, SMS) - (launch.waves - 1) * launch.resident,
    }


def rows_of(columns: dict[str, Any], count: int) -> Any:
    """Stack the features to a matrix, one row for each configuration."""
    return np.array([np.broadcast_to(column, count) for column in columns.values()], np.float32).T
