"""Choose the target of kernels that an XLA program calls: the GPU or CPU that holds its arrays."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

import tensorcore_dsl as tc


def target_of(array: Any) -> AbstractContextManager[None]:
    """Return the target context for kernels on `array`."""
    return tc.target("cpu" if isinstance(array, np.ndarray) else "cuda")
