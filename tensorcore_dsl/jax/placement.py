"""Where kernels run that a program of XLA calls: its arrays decide."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

import tensorcore_dsl as tc


def target_of(array: Any) -> AbstractContextManager[None]:
    """The target in which kernels run on this array."""
    return tc.target("cpu" if isinstance(array, np.ndarray) else "cuda")
