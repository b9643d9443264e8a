"""Sizes of a launch, the position of a chunk of CTAs in it, and its special registers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import EmulationError, listing
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, OWN

Dim3 = tuple[int, int, int]


class PerRank(tuple[Any, ...]):
    """The values that an argument has on each rank of a launch on several devices."""


_AXES = "xyz"
_KINDS: dict[str, Any] = {
    "clock64": np.uint64,
    "globaltimer": np.uint64,
    "gridid": np.uint64,
    "is_explicit_cluster": np.bool_,
}


@dataclass(frozen=True)
class Geometry:
    """The part of a launch that one chunk covers: `ctas` CTAs from number `first` on.

    CTAs are numbered x fastest; with clusters, cluster by cluster and by rank inside a cluster. On
    several devices each has a grid, and the clusters of the devices take turns.
    """

    grid: Dim3
    block: Dim3
    first: int
    ctas: int
    static_shared: int
    dynamic_shared: int  # bytes after the static ones
    unit: int = 32  # threads: a warp, or a warpgroup if the kernel has warpgroup instructions
    cluster: Dim3 | None = None  # None: each CTA is a cluster of its own
    ranked: bool = False  # shared addresses hold the rank of the CTA, as on GPUs
    devices: int = 1

    @property
    def threads_per_cta(self) -> int:
        return prod(self.block)

    @property
    def group(self) -> int:
        """Threads of a CTA, rounded up to whole units; the last ones may not exist."""
        return -(-self.threads_per_cta // self.unit) * self.unit

    @property
    def threads(self) -> int:
        return self.ctas * self.group

    @property
    def cluster_shape(self) -> Dim3:
        return self.cluster or (1, 1, 1)

    @property
    def cluster_ctas(self) -> int:
        return prod(self.cluster_shape)

    @property
    def cluster_grid(self) -> Dim3:
        """Clusters of the launch."""
        (x, y, z), (cx, cy, cz) = self.grid, self.cluster_shape
        return x // cx, y // cy, z // cz

    def first_thread(self, cta: int) -> int:
        """The first thread of the cluster of a CTA of the chunk."""
        return cta // self.cluster_ctas * self.cluster_ctas * self.group

    def cta(self, thread: int) -> Dim3:
        """CTA index of a thread of the chunk."""
        index = self.first + thread // self.group
        cluster, rank = divmod(index, self.cluster_ctas)
        cluster //= self.devices
        (x, y, z), (cx, cy, cz) = _coordinates(cluster, self.cluster_grid), self.cluster_shape
        rx, ry, rz = _coordinates(rank, self.cluster_shape)
        return x * cx + rx, y * cy + ry, z * cz + rz

    def device(self, cta: Any) -> Any:
        """The device of a CTA of the chunk, by number."""
        return (self.first + cta) // self.cluster_ctas % self.devices

    def thread(self, thread: int) -> Dim3:
        """Thread index within its CTA."""
        return _coordinates(thread % self.group, self.block)


def _coordinates(index: int, size: Dim3) -> Dim3:
    return (index % size[0], index // size[0] % size[1], index // (size[0] * size[1]))


def axes_text(index: tuple[int, int, int], size: tuple[int, int, int]) -> str:
    """An index as text, without the trailing axes that the launch does not use."""
    used = 1 + max([i for i in range(3) if size[i] > 1], default=0)
    return str(index[0]) if used == 1 else str(index[:used])


def ranges(numbers: np.ndarray) -> str:
    """Sorted numbers as text, for example `0-3, 7`."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs if len(r))


def stays(register: str) -> bool:
    """True if a special register never changes."""
    return not register.startswith(("clock", "globaltimer"))


def varies(register: str) -> bool:
    """True if a special register may differ between the threads of a CTA."""
    return register.startswith(("tid.", "lane", "warpid"))


class SpecialRegisters(EagerDict):
    """Special registers by name (PTX manual, chapter 10), computed on first use."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.values: dict[str, np.ndarray] = {}
        self.tables: dict[str, np.ndarray] = {}
        self.ticks = 0

    def __call__(self, name: str) -> np.ndarray:
        name = name.removeprefix("%")
        if name in self.values:
            return self.values[name]
        shape = self.geometry.ctas, self.geometry.group
        value = np.broadcast_to(self.table(name), shape).reshape(-1)
        if stays(name):
            self.values[name] = value
        return value

    def table(self, name: str) -> np.ndarray:
        """Its values, (1, threads of a CTA) where these differ, else (CTAs, 1), or one."""
        values = self.tables.get(name)
        if values is None:
            rule = self.rules.get(name)
            if rule is None:
                known = listing(self.rules)
                raise EmulationError(f"no special register {name!r}; there are {known}")
            values = np.asarray(rule()).astype(_KINDS.get(name, np.uint32))
            if stays(name):
                self.tables[name] = values
        return values

    @cached_property
    def rules(self) -> dict[str, Callable[[], object]]:
        g = self.geometry
        # (1, threads of a CTA) and (CTAs, 1)
        inside = np.arange(g.group)[None]
        lane, cta = inside % 32, np.arange(g.first, g.first + g.ctas)[:, None]
        cluster, rank = cta // g.cluster_ctas // g.devices, cta % g.cluster_ctas
        own_flag = np.where(g.ranked & (rank > 0), OWN << CLUSTER_SHIFT, 0).astype(np.uint32)
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
            names.STATIC_SHARED: lambda: own_flag,
            names.DYNAMIC_SHARED: lambda: own_flag + np.uint32(g.static_shared),
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
    return index // prod(size[:axis]) % size[axis]
