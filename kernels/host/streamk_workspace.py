"""Workspace of stream-K: accumulators and flags in global memory, cached for each stream.

A CTA that starts inside a tile hands its accumulators over to the CTA that started the tile
(kernels/hopper/streamk_gemm.py). Launches that may overlap must not share a workspace.
"""

from __future__ import annotations

from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.host.workspace import cached_workspace

Workspace = tuple[Any, Any]


def streamk_workspace(
    config: HopperConfig | AmpereConfig, dtype: Any, like: Any, stream: Any = None
) -> Workspace:
    """Accumulators and flags (all 0) for a launch on `stream`; None is the current stream.

    The accumulators have a row of 64 x BN for each consumer of the grid, or of BM x BN for each
    unit of f64; the flags one s32.
    """
    rows, elements = config.streamk_units * config.cluster_size, config.BM * config.BN
    if isinstance(config, HopperConfig):
        rows, elements = rows * config.consumers, 64 * config.BN
    shape = (rows, elements)

    def allocate() -> Workspace:
        flags = empty_like(like, shape[:1], tc.s32)
        flags[:] = 0
        return empty_like(like, shape, dtype), flags

    workspace: Workspace = cached_workspace(like, stream, ("stream-K", shape, dtype), allocate)
    return workspace
