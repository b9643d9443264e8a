"""The configurations whose times on a GPU the figures of the emulator's timeline were fitted to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.products.gemm_cases import Size
from benchmarks.products.gemm_gpu import tile
from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.families import family_of

DTYPE = "bf16"
SIZES: tuple[Size, ...] = ((4096, 4096, 4096), (2048, 2048, 2048), (8192, 4096, 1024))

# Tiles (BM, BN) and the fields in which a configuration differs from HopperConfig(); stages=0
# takes as many as fit.
_HOPPER: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (128, 256, {"stages": 4}),
    (128, 256, {"stages": 3}),
    (128, 256, {"stages": 2}),
    (128, 256, {"stages": 2, "mma_in_flight": 0}),
    (128, 256, {"stages": 4, "mma_in_flight": 0}),
    (128, 256, {"stages": 4, "cluster_m": 2}),
    (128, 256, {"stages": 4, "cluster_n": 2}),
    (128, 192, {"stages": 0}),
    (128, 192, {"stages": 0, "cluster_m": 2}),
    (128, 128, {"stages": 0}),
    (128, 128, {"stages": 2}),
    (128, 128, {"stages": 3}),
    (128, 128, {"stages": 0, "cluster_m": 2}),
    (128, 128, {"stages": 0, "pingpong": True}),
    (128, 128, {"stages": 0, "pingpong": True, "cluster_n": 2}),
    (128, 128, {"stages": 3, "k_slabs": 2}),
    (128, 64, {"stages": 0}),
    (128, 64, {"stages": 2}),
    (64, 256, {"stages": 0}),
    (64, 256, {"stages": 0, "cluster_m": 2}),
    (64, 128, {"stages": 0}),
    (64, 128, {"stages": 2}),
    (64, 64, {"stages": 0}),
    (64, 64, {"stages": 2}),
    (192, 128, {"stages": 0}),
    (256, 128, {"stages": 0}),
)
# BM, BN, BK, WM, WN, stages
_AMPERE = (
    (128, 128, 32, 64, 64, 3),
    (128, 128, 32, 64, 64, 4),
    (128, 128, 32, 64, 64, 2),
    (128, 128, 64, 64, 64, 3),
    (128, 128, 64, 64, 32, 3),
    (128, 128, 32, 32, 64, 3),
    (128, 256, 32, 64, 64, 3),
    (256, 128, 32, 64, 64, 3),
    (128, 64, 32, 64, 32, 3),
    (128, 64, 32, 64, 32, 4),
    (128, 64, 64, 32, 32, 3),
    (64, 128, 32, 32, 64, 3),
    (64, 64, 32, 32, 32, 2),
    (64, 64, 32, 32, 32, 3),
    (64, 64, 32, 32, 32, 5),
    (64, 64, 64, 32, 32, 3),
    (64, 32, 32, 32, 16, 3),
    (32, 32, 32, 16, 16, 3),
)


@dataclass(frozen=True)
class Candidate:
    """A configuration of the library's bf16 GEMM for one problem."""

    config: Any  # HopperConfig or AmpereConfig
    size: Size

    @property
    def family(self) -> str:
        return family_of(self.config)

    @property
    def name(self) -> str:
        """The tile, and what else tells the configurations apart."""
        config = self.config
        if isinstance(config, AmpereConfig):
            return f"{tile(config)} w{config.WM}x{config.WN}"
        more = f" slabs{config.k_slabs}" * (config.k_slabs > 1) + " wait0" * (config.mma_in_flight == 0)
        return tile(config) + more


def configs() -> Iterator[Any]:
    """All configurations, the wgmma kernels' first."""
    for BM, BN, fields in _HOPPER:
        config = HopperConfig(BM, BN, **fields)
        yield config if config.stages else config.with_stages()
    for BM, BN, BK, WM, WN, stages in _AMPERE:
        yield AmpereConfig(BM, BN, BK, WM, WN, stages)


def candidates(sizes: tuple[Size, ...] = SIZES) -> list[Candidate]:
    """Every configuration for every size."""
    return [Candidate(config, size) for size in sizes for config in configs()]
