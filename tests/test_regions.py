"""Compiled regions give what single steps give: results, counts and errors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.interpreter.core.policy import executing

BLOCKS, COUNT = 3, 256


@tc.kernel
def earlier_line(x, y, out):
    """Thread 70 fails at an earlier line than thread 3 does."""
    t = tc.threadIdx.x
    first = x[tc.select(t == 70, 1000, t)]
    out[t] = first
    second = y[tc.select(t == 3, -2, t)]
    out[t + 128] = first + second


@tc.kernel
def later_block(x, y, out):
    """Only the last block fails, between two stores."""
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    out[i % 256] = x[i % 256] + 1.0
    out[(i + 7) % 256] = y[i - i // 130 * 400]
    out[i % 256] = 5.0


@tc.kernel
def in_a_loop(x, y, out):
    """Threads fail in different turns."""
    t = tc.threadIdx.x
    total = tc.f32(0)
    for i in tc.range(t, 100 + 8 * t, 32):
        total = total + x[i]
        out[t] = total


@tc.kernel
def backwards(x, y, out):
    t = tc.threadIdx.x
    total = tc.f32(0)
    for i in tc.range(200, t - 9, -3):
        total = total + x[i] * y[i]
    out[t] = total


@tc.kernel
def misaligned(x, y, out):
    t = tc.threadIdx.x
    out[t] = 2.0
    values = x.at(4 * (t % 32) + t // 40).load(4)
    out[t] = values[0] + values[3]


@tc.kernel
def unwritten(x, y, out):
    t = tc.threadIdx.x
    tile = tc.shared(256, tc.f32)
    if t != 37:
        tile[t] = x[t]
    tc.barrier()
    out[t] = tile[t]


@tc.kernel
def no_barrier(x, y, out):
    t = tc.threadIdx.x
    tile = tc.shared(256, tc.f32)
    tile[t] = x[t]
    out[t] = tile[(t + 33) % tc.blockDim.x]


@tc.kernel
def no_barrier_before_the_store(x, y, out):
    t = tc.threadIdx.x
    tile = tc.shared(256, tc.f32)
    tile[t] = x[t]
    tc.barrier()
    v = tile[(t + 32) % tc.blockDim.x]
    tile[t] = v
    out[t] = v


@tc.kernel
def together(x, y, out):
    """All threads store to one place: different values."""
    t = tc.threadIdx.x
    out[t // 64] = x[t]


@tc.kernel
def together_alike(x, y, out):
    """All threads store equal values to one place, which is only worth a warning."""
    t = tc.threadIdx.x
    out[t // 64] = x[0]


@tc.kernel
def after_a_shuffle(x, y, out):
    """A shuffle hands values on, and orders no accesses to memory."""
    t = tc.threadIdx.x
    tile = tc.shared(256, tc.f32)
    tile[t] = x[t]
    total = x[t]
    for step in (16, 8, 4, 2, 1):
        total = total + tc.shfl_xor(total, step)
    out[t] = tile[t - t % 32 + 31 - t % 32] + total
    out[t] = tile[(t + 32) % 96] + total


@tc.kernel
def some_lanes(x, y, out):
    """A shuffle that only a part of a warp reaches."""
    t = tc.threadIdx.x
    v = x[t]
    if t % 32 < 20:
        v = v + tc.shfl_xor(v, 1)
    out[t] = v


@tc.kernel
def unwritten_in_a_cluster(x, y, out):
    """On GPUs the addresses of a cluster's shared memory hold the rank of the CTA."""
    tc.cluster_size(2)
    t = tc.threadIdx.x
    tile, pairs = tc.shared(256, tc.f32), tc.shared((128, 2), tc.f32)
    pairs.at(t, 0).store([x[t], y[t]])
    tile[t + tc.select((tc.cluster_rank() == 1) & (t == 41), 128, 0)] = x[t]
    values = pairs.at(t, 0).load(2)
    out[t] = tile[t] + values[0]


@tc.kernel
def address_of_another_block(x, y, out):
    """A load of the own block's memory at an address of the other one."""
    tc.cluster_size(2)
    t = tc.threadIdx.x
    tile = tc.shared(256, tc.f32)
    tile[t] = x[t]
    tc.barrier()
    there = tile.remote(1).at(t).address
    value = tc.emit("ld.shared.b32", there)
    out[t] = value.bits(tc.f32) + y[t]


@tc.kernel
def wrong_guard(x, y, out):
    t = tc.threadIdx.x
    out.at(t).store([y[t]], pred=t < 64)
    out.at(t + 220).store([x[t]], pred=t > 20)


MISTAKES = [
    earlier_line, later_block, in_a_loop, backwards, misaligned, unwritten, no_barrier,
    no_barrier_before_the_store, together, together_alike, after_a_shuffle, some_lanes,
    unwritten_in_a_cluster, address_of_another_block, wrong_guard,
]  # fmt: skip


@tc.kernel
def sums(x, y, out):
    """Loops, shuffles, votes, shared memory, conversions and atomics."""
    t = tc.threadIdx.x
    i = tc.blockIdx.x * tc.blockDim.x + t
    tile = tc.shared(8, tc.f32)
    counts = tc.shared(4, tc.s32)
    if t < 4:
        counts[t] = 0
    tc.barrier()
    total = tc.f32(0)
    for j in tc.range(i % 64, 256, 64):
        total = total + (x[j] * y[j]).to(tc.f16).to(tc.f32)
    for step in (16, 8, 4, 2, 1):
        total = total + tc.shfl_xor(total, step)
    if t % 32 == 0:
        tile[t // 32] = total
    tc.atomic("add", counts.at(t % 4), t)
    tc.barrier()
    # Threads of other blocks store the same: that of this block alone counts for what follows.
    out[i % 256] = tile[0] + tc.exp(x[t]).to(tc.bf16).to(tc.f32) + counts[t % 4].to(tc.f32)


@tc.kernel
def part_of_a_warp(x, y, out):
    """Lanes leave a loop one after the other, and meet behind it."""
    t = tc.threadIdx.x
    total = tc.f32(0)
    i = t % 7
    while i < 20:
        if x[i] > 0.0:
            total = total + x[i + t % 5]
        i = i + 1 + t % 3
    out[t] = total + y[t]


@tc.kernel
def in_a_cluster(x, y, out):
    """Loads and stores of one word and of several, at addresses side by side and others."""
    tc.cluster_size(2)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    tile, pairs = tc.shared(256, tc.f32), tc.shared((128, 2), tc.f32)
    pairs.at(t ^ 5, 0).store([x[t], y[t]])
    tile[t] = x[t] * tc.f32(rank)
    tc.barrier()
    values = pairs.at(t ^ 3, 0).load(2)
    out[t + 128 * rank] = tile[t ^ 1] + values[0] * values[1]


@tc.kernel
def guards(x, y, out):
    """Guarded loads and stores; those whose guard is false would be outside."""
    t = tc.threadIdx.x
    here, total = t % 3 != 0, tc.f32(0)
    for i in range(3):
        at = tc.select(here, t + i, 1 << 20)
        total += x.at(at).load(1, pred=here) + y[t]
        out.at(at).store([total], pred=here & (i == t % 3))


CORRECT = [sums, part_of_a_warp, in_a_cluster, guards]
# The code of a region executes it for one warp after the other.
LATER = [
    later_block,
    in_a_loop,
    backwards,
    misaligned,
    no_barrier,
    no_barrier_before_the_store,
    after_a_shuffle,
]
CLUSTERS = [unwritten_in_a_cluster, address_of_another_block, in_a_cluster]


def outcome(
    kernel: Any, threads: int, monkeypatch: pytest.MonkeyPatch, single: bool, checks: bool | None
) -> tuple[Any, ...]:
    """All that a launch leaves: arrays, the error, warnings, counts."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, COUNT), np.float32)
    out, error, report = np.zeros(COUNT, np.float32), None, None
    policy = executing(
        compile_cost=0, regions_on_disk=False, regions=not single
    )  # there is code before the first step
    with policy, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        blocks = 2 if kernel in CLUSTERS else BLOCKS if threads < 128 else 1
        launch = kernel.emulator("sm_90a", checks=checks)[blocks, threads]
        try:
            report = launch(x, y, out)
        except tc.EmulationError as found:
            error = type(found), str(found), str(found.loc)
    counts = None if report is None or warned else (report.instructions, report.bytes)
    if error and kernel in LATER:  # which thread is found first may differ, and the step
        return ("an error",)
    said = [] if error else sorted(str(w.message) for w in warned)
    racy = error or kernel in LATER
    return None if racy else out.tobytes(), error, said, counts


@pytest.mark.parametrize("threads", [96, 128, 48])
@pytest.mark.parametrize("kernel", MISTAKES + CORRECT, ids=lambda kernel: kernel.__name__)
def test_regions_give_what_single_steps_give(kernel, threads, monkeypatch):
    for checks in (True, None, False):  # with all checks, without those of races, with none
        runs = outcome(kernel, threads, monkeypatch, False, checks)
        assert runs == outcome(kernel, threads, monkeypatch, True, checks)


@pytest.mark.parametrize("kernel", MISTAKES, ids=lambda kernel: kernel.__name__)
def test_the_mistakes_are_found(kernel, monkeypatch):
    actual = outcome(kernel, 128, monkeypatch, False, True)
    assert actual == ("an error",) or actual[1] or (kernel is together_alike and actual[2])


@pytest.mark.parametrize("kernel", CORRECT, ids=lambda kernel: kernel.__name__)
def test_the_others_are_right(kernel, monkeypatch):
    _, error, warned, counts = outcome(kernel, 128, monkeypatch, False, True)
    assert error is None and not warned and counts is not None
