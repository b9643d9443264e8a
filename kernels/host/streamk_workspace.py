"""Workspace of stream-K: accumulators and flags in global memory, cached for each stream.

A CTA that starts inside a tile hands its accumulators over to the CTA that started the tile
(kernels/hopper/streamk_scheduler.py). Launches that may overlap must not share a workspace.
"""

from __future__ import annotations

from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.host.workspace import cached_workspace

Workspace = tuple[Any, Any]


def streamk_workspace(config: AmpereConfig, dtype: tc.DType, like: Any, stream: Any = None) -> Workspace:
    """Accumulators and flags (all 0) for a launch on `stream`; None is the current stream.

    Each unit has a row of BM x BN accumulators, and a flag of one s32.
    """
    shape = config.streamk_units, config.BM * config.BN

    def allocate() -> Workspace:
        flags = empty_like(like, shape[:1], tc.s32)
        flags[:] = 0
        return empty_like(like, shape, dtype), flags

    workspace: Workspace = cached_workspace(like, stream, ("stream-K", shape, dtype), allocate)
    return workspace
