"""Rank configurations by expected time: the roofline time, corrected by the trees."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import log

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.choosing import menu
from tensorcore_dsl.kernels.choosing.features import features, rows_of
from tensorcore_dsl.kernels.choosing.menu import as_loaded, candidates
from tensorcore_dsl.kernels.choosing.trees import stored_trees
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.problem.problem_shape import SMS, ProblemShape, cluster_tiles
from tensorcore_dsl.kernels.problem.summation import Config

# The trees correct this many configurations, those with the least roofline times. All others rank
# after them. With 400 the mean loss of the held-out problems is 0.02 % lower.
CORRECTED = 96
# Share of the time by which the last configuration of the menu must beat the first. The menu starts
# with the most frequent winners. Rare ones are overrated more often, and need more kernels.
RARE = 0.03
INVARIANT_ROWS = tuple(2**i for i in range(14))  # M over which batch-invariant choices average

Ranking = tuple[tuple[float, Config], ...]


@lru_cache(maxsize=1024)
def ranking(shape: ProblemShape, kinds: tuple[int, ...] = (menu.WGMMA,)) -> Ranking:
    """Rank the candidates of these kinds: (expected microseconds, configuration), fastest first.

    The order counts rare configurations as slower than their expected time, see RARE.
    """
    configs = candidates(shape, kinds)
    if not configs.configs:
        return ()
    terms = features(configs, shape)
    times = np.array(terms["time"])
    near = np.argsort(times, kind="stable")[:CORRECTED]
    factors = stored_trees()(rows_of(terms, len(times))[near])
    corrected = times * factors.max()
    corrected[near] = times[near] * factors
    order = np.argsort(corrected * (1 + RARE * configs.menu_rank), kind="stable")
    return tuple((float(corrected[i]), _as_launched(configs.configs[i], shape)) for i in order)


def _as_launched(config: Config, shape: ProblemShape) -> Config:
    """Adapt the stages to the shape, and let small matrices of a batch lie side by side.

    Tiles that are stored at one time then share pages of memory.
    """
    if not isinstance(config, HopperConfig):
        return config
    if shape.products == 1:
        config = as_loaded(config, shape)
    small = cluster_tiles(config, shape.M, shape.N) * config.cluster_size <= SMS
    return replace(config, group_m=1) if shape.batch > 1 and small else config


@lru_cache(maxsize=1024)
def invariant_split(N: int, K: int) -> int:
    """CTAs that share K in batch-invariant f32 products of any M: the least geometric mean."""
    logarithms: dict[int, float] = {}
    for M in INVARIANT_ROWS:
        shape = ProblemShape(M, N, K, tc.f32.itemsize, out_bytes=tc.f32.itemsize, products=3)
        fastest: dict[int, float] = {}
        for time, config in ranking(shape, (menu.SPLIT_F32,)):
            fastest.setdefault(config.split_k, time)
        for split_k, time in fastest.items():
            logarithms[split_k] = logarithms.get(split_k, 0) + log(time)
    return min(logarithms, key=lambda split_k: logarithms[split_k])
