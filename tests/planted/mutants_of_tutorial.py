"""Planted bugs in whole kernels: the tutorial's GEMMs, smaller, with one place changed in each.

A mutant is compiled from the text of a step. Its twin is the step with the same small tiles.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from tensorcore_dsl.kernels import tutorial
from tests.planted.harness import ANY, Arguments, Case, Report, error, race
from tests.running import execute_text

BF16 = np.dtype(ml_dtypes.bfloat16)
Edits = tuple[tuple[str, str], ...]

# Smaller tiles and rings; an edit replaces a text that occurs once.
SMALL: dict[int, Edits] = {
    1: (("BM, BN, BK = 128, 128, 32", "BM, BN, BK = 64, 64, 32"), ("WM, WN = 64, 64", "WM, WN = 32, 32")),
    2: (("BM, BN, BK = 128, 128, 64", "BM, BN, BK = 64, 64, 64"), ("WM, WN = 64, 64", "WM, WN = 32, 32")),
    3: (("BM, BN, BK = 128, 128, 64", "BM, BN, BK = 128, 64, 64"), ("tc.wgmma.m64n128k16", "tc.wgmma.m64n64k16")),
    4: (
        ("BM, BN, BK = 128, 128, 64", "BM, BN, BK = 128, 64, 64"),
        ("tc.wgmma.m64n128k16", "tc.wgmma.m64n64k16"),
        ("\nSTAGES = 3", "\nSTAGES = 2"),
    ),
    5: (
        ("BM, BN, BK = 128, 256, 64", "BM, BN, BK = 128, 64, 64"),
        ("tc.wgmma.m64n256k16", "tc.wgmma.m64n64k16"),
        ("\nSTAGES = 4", "\nSTAGES = 2"),
    ),
    6: (
        ("BM, BN, BK = 128, 256, 64", "BM, BN, BK = 128, 128, 64"),
        ("tc.wgmma.m64n256k16", "tc.wgmma.m64n128k16"),
        ("\nSTAGES = 4", "\nSTAGES = 2"),
    ),
    7: (
        ("BM, BN, BK = 128, 256, 64", "BM, BN, BK = 128, 128, 64"),
        ("tc.wgmma.m64n256k16", "tc.wgmma.m64n128k16"),
        ("\nSTAGES = 4", "\nSTAGES = 2"),
    ),
    8: (("BN: tc.Const = 128, STAGES: tc.Const = 6", "BN: tc.Const = 128, STAGES: tc.Const = 3"),),
}  # fmt: skip


def compiled(number: int, name: str, edits: Edits) -> Any:
    """The kernel of a step whose text has been edited; `name` stands for its file."""
    source = Path(str(tutorial.load_step(number).__file__)).read_text()
    for old, new in (*SMALL[number], *edits):
        assert source.count(old) == 1, f"step {number} has {source.count(old)} times {old!r}"
        source = source.replace(old, new)
    module = ModuleType(f"{tutorial.NAMES[number - 1]}_{len(linecache.cache)}")
    module.__file__ = f"<{tutorial.NAMES[number - 1]}, {name}>"
    execute_text(source, module.__file__, vars(module))
    return module.matmul


@cache
def twin(number: int) -> Any:
    return compiled(number, "small", ())


def product(m: int, n: int, depth: int) -> Callable[[np.random.Generator], Arguments]:
    """D = A B^T of whole numbers, so that sums are exact in any order."""

    def make(draw: np.random.Generator) -> Arguments:
        a, b = (draw.integers(-2, 3, (rows, depth)).astype(BF16) for rows in (m, n))
        expected = (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16)
        return {"a": a, "b": b, "d": np.zeros((m, n), BF16)}, {"d": expected}

    return make


# Grid, threads, and the product, of each step.
LAUNCHES: dict[int, tuple[Any, int, Callable[[np.random.Generator], Arguments]]] = {
    1: (1, 128, product(64, 64, 96)),
    2: (1, 128, product(64, 64, 320)),
    3: (1, 256, product(128, 64, 320)),
    4: (1, 256, product(128, 64, 320)),
    5: (1, 384, product(128, 64, 320)),
    6: (1, 384, product(256, 128, 192)),
    7: (2, 384, product(256, 256, 192)),
    8: (2, 384, product(512, 256, 256)),
}


def mutant(number: int, name: str, report: Report, *edits: tuple[str, str]) -> Case:
    """A step with a bug that the edits plant."""
    grid, block, make = LAUNCHES[number]
    kernel = compiled(number, name, edits)
    return Case(f"step {number}: {name}", kernel, grid, block, make, ANY, report, twin=twin(number))


planted = [
    mutant(
        1, "no barrier before the fragments are read", race("load_tile(tile_a", "mma_tile"),
        ("        # Read after write: a warp reads rows that other warps have stored.\n        tc.barrier()\n", ""),
    ),
    mutant(
        1, "no barrier before the tiles are overwritten", race("load_tile(tile_a", "mma_tile"),
        ("        # Write after read: nobody overwrites the tiles while a slower warp still reads them.\n        tc.barrier()\n", ""),
    ),
    mutant(
        2, "waits for one group less", error("mma_tile"),
        ("tc.cp_async_wait(STAGES - 2)", "tc.cp_async_wait(STAGES - 1)"),
    ),
    mutant(
        2, "the barrier before the wait", race("load_stage(k_tile) #2", "mma_tile", error="mma_tile"),
        ("tc.cp_async_wait(STAGES - 2)\n", "tc.barrier()\n        tc.cp_async_wait(STAGES - 2)\n"),
        ("        # have finished k_tile - 1, whose stage the next copies overwrite: one barrier does both.\n        tc.barrier()\n", ""),
    ),
    mutant(
        2, "copies before the barrier", race("load_stage(k_tile + STAGES - 1)", "mma_tile"),
        ("tc.cp_async_wait(STAGES - 2)\n", "tc.cp_async_wait(STAGES - 2)\n        load_stage(k_tile + STAGES - 1)\n"),
        ("tc.barrier()\n        load_stage(k_tile + STAGES - 1)\n", "tc.barrier()\n"),
    ),
    mutant(
        3, "no proxy fence", error("tc.wgmma_async"),
        ("        tc.fence_proxy_async()\n", ""),
    ),
    mutant(
        3, "proxy fence before the wait for the copies", error("tc.wgmma_async"),
        ("tc.cp_async_wait(STAGES - 2)\n", "tc.fence_proxy_async()\n        tc.cp_async_wait(STAGES - 2)\n"),
        ("        # writes visible to the other proxy. It stands after the wait and before the barrier.\n        tc.fence_proxy_async()\n", ""),
    ),
    mutant(
        3, "wgmma still in flight at the barrier", error("load_tile(tile_a[stage, i]"),
        ("tc.wgmma_wait(0)\n", "tc.wgmma_wait(1)\n"),
    ),
    mutant(
        4, "no barrier before a stage is filled again", race("tc.tma_load(tile_a", "tc.wgmma_async", error="tc.wgmma_async"),
        ("        # The stage may be filled again when both warpgroups have read it.\n        tc.barrier()\n", ""),
    ),
    mutant(
        4, "parity of the turn for that of the revolution", error("full[stage].wait"),
        ("full[stage].wait(k_tile // STAGES & 1)", "full[stage].wait(k_tile & 1)"),
    ),
    mutant(
        5, "this stage released for the one before", race("tc.tma_load(tile_a", "tc.wgmma_async", error="tc.tma_load(tile_a"),
        ("empty[previous].arrive(pred=(tc.threadIdx.x % 128 == 0) & (k > 0))", "empty[stage].arrive(pred=tc.threadIdx.x % 128 == 0)"),
    ),
    mutant(
        5, "one consumer frees a stage", error("empty[previous]"),
        ("empty[stage].init(CONSUMERS)", "empty[stage].init(1)"),
    ),
    mutant(
        5, "accumulators stored before the last wait", error("store_tile"),
        ("tc.wgmma_wait(0)\n        store_tile(acc, d, m + 64 * consumer, n)", "store_tile(acc, d, m + 64 * consumer, n)\n        tc.wgmma_wait(0)"),
    ),
    mutant(
        6, "waits for one store less", error("store_tile"),
        ("tc.tma_store_wait(1, read=True)", "tc.tma_store_wait(2, read=True)"),
    ),
    mutant(
        6, "no barrier behind the wait for a store", race("store_tile"),
        ("tc.tma_store_wait(1, read=True)\n        tc.barrier(consumer + 1, 128)  # named barrier of this warpgroup; 0 belongs to the CTA\n", "tc.tma_store_wait(1, read=True)\n"),
    ),
    mutant(
        6, "no barrier before the store", race("store_tile", error="store_tile"),
        ("tc.fence_proxy_async()  # stmatrix writes by the generic proxy, TMA reads by the other\n        tc.barrier(consumer + 1, 128)\n", "tc.fence_proxy_async()\n"),
    ),
    mutant(
        6, "the last stage of a tile is kept", error("empty[stage].wait"),
        ("            empty[previous].arrive(pred=thread == 0)\n", ""),
    ),
    mutant(
        7, "a stage released in its own CTA alone", race("tc.tma_load(part"),
        ("empty[stage].init(CONSUMERS * CLUSTER)", "empty[stage].init(CONSUMERS)"),
        ("release(empty[previous], (thread < CLUSTER) & (k > 0))", "empty[previous].arrive(pred=(thread == 0) & (k > 0))"),
        ("release(empty[previous], thread < CLUSTER)", "empty[previous].arrive(pred=thread == 0)"),
    ),
    mutant(
        7, "the CTA meets for the cluster", error("tc.tma_load(part"),
        ("# No CTA may multicast or arrive before its peer has initialised the barriers.\n    tc.cluster_sync()", "tc.barrier()"),
    ),
    mutant(
        8, "no wait at the order barrier", race("tc.tma_load(tile_a", "tc.wgmma_async", error=("tc.wgmma_async", "order[1 - consumer].arrive")),
        ("            order[consumer].wait(turn)\n", ""),
    ),
    mutant(
        8, "released before the last wait", race("tc.tma_load(tile_a", "tc.wgmma_async", error="tc.tma_load(tile_a"),
        ("tc.wgmma_wait(0)\n            release(empty[previous], thread < CLUSTER)\n", "release(empty[previous], thread < CLUSTER)\n            tc.wgmma_wait(0)\n"),
    ),
]  # fmt: skip
