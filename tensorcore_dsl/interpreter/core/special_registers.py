"""Special registers of a chunk of CTAs (PTX manual, chapter 10)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError, listing
from tensorcore_dsl.interpreter.core.geometry import Dim3, Geometry
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, OWN

_AXES = "xyz"
_KINDS: dict[str, Any] = {
    "clock64": np.uint64,
    "globaltimer": np.uint64,
    "gridid": np.uint64,
    "is_explicit_cluster": np.bool_,
}


class SpecialRegisters:
    """Values by name, computed on first use."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.values: dict[str, np.ndarray] = {}
        self.ticks = 0

    def __call__(self, name: str) -> np.ndarray:
        name = name.removeprefix("%")
        if name in self.values:
            return self.values[name]
        rule = self.rules.get(name)
        if rule is None:
            raise EmulationError(f"no special register {name!r}; there are {listing(self.rules)}")
        kind = _KINDS.get(name, np.uint32)
        value = np.broadcast_to(np.asarray(rule()), (self.geometry.threads,)).astype(kind)
        if not name.startswith(("clock", "globaltimer")):
            self.values[name] = value
        return value

    @cached_property
    def rules(self) -> dict[str, Callable[[], object]]:
        g = self.geometry
        index = np.arange(g.threads)
        lane = index % 32
        inside, cta = index % g.group, g.first + index // g.group
        cluster, rank = cta // g.cluster_ctas, cta % g.cluster_ctas
        own = np.where(g.ranked & (rank > 0), OWN << CLUSTER_SHIFT, 0).astype(np.uint32)
        rules: dict[str, Callable[[], object]] = {
            "laneid": lambda: lane,
            "warpid": lambda: inside // 32,
            "nwarpid": lambda: 64,
            "smid": lambda: 0,
            "nsmid": lambda: 1,
            "gridid": lambda: 0,
            "lanemask_eq": lambda: 1 << lane,
            "lanemask_le": lambda: (2 << lane) - 1,
            "lanemask_lt": lambda: (1 << lane) - 1,
            "lanemask_ge": lambda: 0xFFFFFFFF & -(1 << lane),
            "lanemask_gt": lambda: 0xFFFFFFFF & -(2 << lane),
            "clock": lambda: self._tick() & 0xFFFFFFFF,
            "clock64": self._tick,
            "clock_hi": lambda: 0,
            "globaltimer": time.time_ns,
            "globaltimer_lo": lambda: time.time_ns() & 0xFFFFFFFF,
            "globaltimer_hi": lambda: time.time_ns() >> 32,
            "dynamic_smem_size": lambda: g.dynamic_shared,
            "is_explicit_cluster": lambda: g.cluster is not None,
            "cluster_ctarank": lambda: rank,
            "cluster_nctarank": lambda: g.cluster_ctas,
            "aggr_smem_size": lambda: g.static_shared + g.dynamic_shared,
            "total_smem_size": lambda: g.static_shared + g.dynamic_shared,
            "shared.base": lambda: own,
            "shared.dynamic": lambda: own + np.uint32(g.static_shared),
        }
        for axis, name in enumerate(_AXES):
            outer = _axis(cluster, g.cluster_grid, axis)
            inner = _axis(rank, g.cluster_shape, axis)
            rules[f"tid.{name}"] = partial(_axis, inside, g.block, axis)
            rules[f"ctaid.{name}"] = partial(np.add, outer * g.cluster_shape[axis], inner)
            rules[f"clusterid.{name}"] = partial(np.asarray, outer)
            rules[f"cluster_ctaid.{name}"] = partial(np.asarray, inner)
            rules[f"ntid.{name}"] = partial(int, g.block[axis])
            rules[f"nctaid.{name}"] = partial(int, g.grid[axis])
            rules[f"nclusterid.{name}"] = partial(int, g.cluster_grid[axis])
            rules[f"cluster_nctaid.{name}"] = partial(int, g.cluster_shape[axis])
        return rules

    def _tick(self) -> int:
        """A counter that grows with every read."""
        self.ticks += 1
        return self.ticks


def _axis(index: np.ndarray, size: Dim3, axis: int) -> np.ndarray:
    below = 1
    for extent in size[:axis]:
        below *= extent
    return index // below % size[axis]
