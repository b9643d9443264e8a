"""Choose the kernels of attention and of its gradients, and their tiles, as measured on an H200."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import target_arch
from tensorcore_dsl.kernels.attention_scores import AttentionTraits
from tensorcore_dsl.kernels.hopper.attention import SLAB, AttentionConfig, slabs
from tensorcore_dsl.kernels.hopper.attention_blocks import BackwardConfig
from tensorcore_dsl.kernels.hopper.attention_key_gradients import P_STAGES
from tensorcore_dsl.kernels.hopper.attention_query_gradients import BM as QUERY_ROWS
from tensorcore_dsl.kernels.hopper.config import SMEM_BYTES, SMEM_RESERVED
from tensorcore_dsl.kernels.problem.attention_problem import AttentionProblem
from tensorcore_dsl.kernels.problem.families import check_family, gives_registers, has_wgmma
from tensorcore_dsl.kernels.problem.problem_shape import SMS
from tensorcore_dsl.kernels.sizes import cdiv

L2_BYTES = 32 << 20  # bytes of K and V that stay in the L2 cache of an H200, which has 50 MiB
MAX_KEYS, STAGES = 128, 2  # keys of a tile; tiles of K, and of V, in shared memory
MAX_PACKED_ROWS = 128  # Pack heads if their queries together are at most this many rows.
SHORT_QUERIES = 1024  # With at most SHORT_QUERIES, a causal mask hides much of a tile of 192 queries.
PAGE_UNIT = 64  # keys; a tile of paged keys has a multiple of it
# Consumers -> registers of a thread for accumulators and P; with more, ptxas 13.0 spills.
FRAGMENT_REGISTERS = {2: 192, 3: 128}
MASK_REGISTERS = 12  # registers that a bound on the left, or tanh, takes
# Times of the longest tiles of two kernels on an H200, and of the sums of a group of heads of one sequence.
# The unit is the time of the longest tile of the one-pass kernel. Times of a query tile and of sums are for
# equal numbers of queries and keys, and of their heads.
KEY_TILE_TIME, QUERY_TILE_TIME, SUM_TIME = 0.39, 0.48, 0.019
MIN_SPLIT_ROWS = 1024  # rows of the queries of a group of heads; fewer do not pay for another launch


def _choose_tile(traits: AttentionTraits, queries: int) -> AttentionConfig:
    """Choose the fastest configuration on an H200, measured for D of 64, 128 and 256."""
    row_q, row_v = (2 * SLAB * cdiv(n, SLAB) for n in (traits.depth, traits.width))  # bytes
    narrow = max(row_q, row_v) <= 2 * SLAB
    # A causal mask hides more of a higher tile. Pages and tanh take registers.
    short = traits.right and queries <= SHORT_QUERIES
    several = short or traits.softcap or traits.page or traits.pack > 1
    consumers = 3 if narrow and not several else 2
    query_bytes = 64 * consumers * max(row_q, row_v)
    # A thread holds width / 2 sums of the output, keys / 2 scores, keys / 4 registers of P.
    fragments = FRAGMENT_REGISTERS[consumers]
    if traits.left or traits.softcap:
        fragments -= MASK_REGISTERS + (traits.pack > 1)  # rows of several heads take one more
    keys_in_registers = (fragments - traits.width // 2) * 4 // 3
    keys_in_memory = (SMEM_BYTES - SMEM_RESERVED - query_bytes) // (STAGES * (row_q + row_v))
    unit = PAGE_UNIT if traits.page else 16
    keys = min(MAX_KEYS, keys_in_registers, keys_in_memory) // unit * unit
    spare = SMEM_BYTES - SMEM_RESERVED - query_bytes - STAGES * keys * (row_q + row_v)
    q_stages = 2 if spare >= query_bytes else 1
    return AttentionConfig(keys, consumers, STAGES, q_stages, waits_late=not narrow)


def section_of(traits: AttentionTraits, keys: int, lines: int) -> int:
    """Heads, of `lines`, that advance together in the list of tiles.

    Tiles of a causal mask differ in length: many heads advance together, and the longest tiles start
    first. Other tiles of one head follow each other, and find its K and V in the L2 cache.
    """
    bytes_per_head = 2 * keys * (traits.depth + traits.width)
    sections = cdiv(lines, max(L2_BYTES // bytes_per_head, 1))
    return cdiv(lines, sections) if traits.right else 1


def choose_forward(
    traits: AttentionTraits, queries: int, shared_by: int, sequences: int
) -> tuple[AttentionTraits, AttentionConfig]:
    """Choose how many heads a tile packs, and the configuration, of the wgmma kernel."""
    traits = replace(traits, pack=_pack(shared_by, queries / sequences))
    return traits, _choose_tile(traits, queries)


def _pack(shared_by: int, queries: float) -> int:
    """How many heads that share keys fill a tile: all, if a tile holds their queries (in the mean)."""
    pack = 1 << (shared_by - 1).bit_length()
    return pack if pack * queries <= MAX_PACKED_ROWS and pack <= 64 else 1


def choose_family(family: Any) -> str:
    """Family of kernels to run: the caller's, or that of the target."""
    if family is None:
        family = "sm90" if has_wgmma() and gives_registers() else "sm80"
    check_family(family)
    if family == "sm90" and not has_wgmma():
        raise tc.ArgumentError(f"family 'sm90' runs on sm_90a, not on {target_arch()}")
    if target_arch().number < 80:
        raise tc.ArgumentError(f"attention runs on sm_80 and later, not on {target_arch()}")
    return family


def choose_backward(problem: AttentionProblem, sequences: int) -> tuple[BackwardConfig, int]:
    """Choose one or two kernels, their configuration, and how many groups of heads share keys."""
    traits, (one_pass, splits) = problem.traits, choose_kernels(problem, sequences)
    if one_pass:
        return BackwardConfig(2 if max(traits.depth, traits.width) <= SLAB else 1), splits
    key_slabs, value_slabs = slabs(traits.depth), slabs(traits.width)
    size = 2 * 64 * SLAB  # bytes of a slab of 64 rows; two of them hold P of a block
    free = (SMEM_BYTES - 2 * SMEM_RESERVED) // size - key_slabs - value_slabs - 2 * P_STAGES
    stages = min(free // (key_slabs + value_slabs), 3)
    return BackwardConfig(1, 64, stages, stages), splits


def choose_kernels(problem: AttentionProblem, sequences: int) -> tuple[bool, int]:
    """Choose whether one kernel computes all gradients, and how many groups of heads share keys.

    Two kernels take 1.25 times as long if there are many tiles. Their tiles take at most half as long, so
    they leave fewer SMs idle if there are few. So do the tiles of a group of heads, but the sums of the
    groups have to be added up.
    """
    traits, (_, heads, queries, _) = problem.traits, problem.shape
    most, (_, kv_heads, keys, _) = max(traits.depth, traits.width), problem.arrays["k"].shape
    seen = keys * kv_heads / max(queries * heads, 1)

    def rounds(rows: int, size: int, heads: int) -> float:
        """Time of all tiles of `size` rows, in times of the longest one."""
        tiles = cdiv(rows, size) * heads * (1 if traits.packed else sequences)
        # A causal mask hides half of the mean tile. The longest tiles start first.
        return max(tiles / 2 / SMS + 0.1, 1.0) if traits.right and not traits.left else cdiv(tiles, SMS)

    def time(one_pass: bool, splits: int) -> float:
        """Time of all gradients, in times of the longest tile of one kernel without splits."""
        sums_time = SUM_TIME * splits * kv_heads * sequences * seen if splits > 1 else 0
        if one_pass:
            return rounds(keys, 128, kv_heads * splits) / splits + sums_time
        key_time = KEY_TILE_TIME * rounds(keys, 64, kv_heads * splits) / splits
        return key_time + QUERY_TILE_TIME * seen * rounds(queries, QUERY_ROWS, heads) + sums_time

    # Above D 96, one kernel spills registers with tanh.
    counts = [True, False] if most <= (96 if traits.softcap else 128) else [False]
    shared_by = heads // max(kv_heads, 1)
    rows = shared_by * queries // (sequences if traits.packed else 1)
    splits = [1] + [each for each in (2, 4, 8) if shared_by % each == 0 and rows >= MIN_SPLIT_ROWS * each]
    return min(((one, each) for one in counts for each in splits), key=lambda choice: time(*choice))
