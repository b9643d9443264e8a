"""The bytes of shared memory and their states, without any access rules."""

from __future__ import annotations

import numpy as np

from tensorcore_dsl.interpreter.core.shadow import WRITTEN
from tensorcore_dsl.isa.context import CLUSTER_SHIFT

OFFSET = (1 << CLUSTER_SHIFT) - 1  # mask of a shared address: the offset within its CTA


class SharedStorage:
    """Shared memory of a chunk: `data` and `shadow`, the state of each byte, are (CTAs, bytes).

    checks: are alignment and states checked? written: bytes count as written from the start.
    """

    def __init__(self, data: np.ndarray, checks: bool, written: bool = False) -> None:
        self.data = np.ascontiguousarray(data)
        self.shadow = np.full(data.shape, WRITTEN * written, np.uint8)
        self.checks = checks

    @property
    def size(self) -> int:
        """Bytes of one CTA."""
        return int(self.data.shape[1])

    @property
    def extent(self) -> str:
        """The bytes that a CTA has, for messages."""
        return f"bytes 0 to {self.size - 1:#x}" if self.size else "no shared memory"
