"""Sizes of a launch, and where a chunk of CTAs stands in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Geometry:
    """The part of a launch that one chunk covers: `ctas` CTAs from number `first` on.

    CTAs are numbered x fastest; with clusters, cluster by cluster and by rank inside a cluster.
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

    @property
    def threads_per_cta(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

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
        """CTAs of a cluster."""
        x, y, z = self.cluster_shape
        return x * y * z

    @property
    def cluster_grid(self) -> Dim3:
        """Clusters of the launch."""
        (x, y, z), (cx, cy, cz) = self.grid, self.cluster_shape
        return x // cx, y // cy, z // cz

    def first_thread(self, cta: int) -> int:
        """The first thread of the cluster of a CTA of the chunk."""
        return cta // self.cluster_ctas * self.cluster_ctas * self.group

    def cta(self, thread: int) -> Dim3:
        """Block index of a thread of the chunk."""
        index = self.first + thread // self.group
        cluster, rank = divmod(index, self.cluster_ctas)
        (x, y, z), (cx, cy, cz) = _coordinates(cluster, self.cluster_grid), self.cluster_shape
        rx, ry, rz = _coordinates(rank, self.cluster_shape)
        return x * cx + rx, y * cy + ry, z * cz + rz

    def thread(self, thread: int) -> Dim3:
        """Thread index within its block."""
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
