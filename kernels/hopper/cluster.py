"""Places of CTAs in a cluster, and the CTAs that share a tile by multicast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig


@dataclass
class Multicast:
    """The CTAs of a cluster that need the same tile.

    Attributes
    ----------
    ctas : int
        Number of these CTAs.
    index : s32
        Number of this CTA among them.
    mask : u32 or None
        Their ranks as bits, the operand of `.multicast::cluster`. None for one CTA.
    """

    ctas: int
    index: Any
    mask: Any


def multicast_of(side: int, config: HopperConfig):
    """The CTAs of the cluster that need the same tile of the left (0) or right (1) operand."""
    ctas = (config.cluster_n, config.cluster_m)[side]
    if ctas == 1:
        return Multicast(1, 0, None)
    row, col, first = place_in_cluster(config)
    if side == 1:
        return Multicast(ctas, row, tc.u32((1 << ctas) - 1) << first + col * config.cluster_m)
    row_of_cluster = tc.u32(sum(1 << config.cluster_m * i for i in range(ctas)))
    return Multicast(ctas, col, row_of_cluster << first + row)


def place_in_cluster(config: HopperConfig):
    """Row and column of this CTA among those that sum its part of K, and the first one's rank.

    Ranks go down the columns of the cluster, and the parts of split-K follow each other:
    rank = row + column * cluster_m + part * multicast_ctas.
    """
    rank, first = tc.cluster_rank(), 0
    if config.split_k > 1:
        first = rank // config.multicast_ctas * config.multicast_ctas
        rank = rank % config.multicast_ctas
    return rank % config.cluster_m, rank // config.cluster_m, first


def multicast_peer(index, config: HopperConfig):
    """Rank of the index-th CTA that shares a tile with this one: its column, then its row."""
    row, col, first = place_in_cluster(config)
    if config.cluster_n == 1:
        return index + first
    row_peer = index - config.cluster_m
    row_peer = row_peer + (row_peer >= col).to(tc.s32)  # the column includes this CTA already
    in_column = index < config.cluster_m
    rank_in_row = row + row_peer * config.cluster_m
    return tc.select(in_column, index + col * config.cluster_m, rank_in_row) + first
