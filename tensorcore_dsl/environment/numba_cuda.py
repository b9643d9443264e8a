"""The border to numba-cuda: its modules, for versions of NumPy and Numba that it does not know."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from typing import Any

import numpy as np


def numba_cuda(module: str = "numba.cuda") -> Any:
    """A module of numba-cuda. ImportError where it is missing, or does not fit the Numba there is.

    Releases of numba-cuda before 0.30.3 fail as they are imported beside Numba 0.66 and later.
    """
    if module in sys.modules:
        return sys.modules[module]
    try:
        with _names_that_numpy_removed():
            return import_module(module)
    except (AttributeError, TypeError) as error:
        versions = [f"{name} {metadata.version(name)}" for name in ("numba-cuda", "numba", "numpy")]
        raise ImportError(f"{', '.join(versions)} do not fit each other: {error}") from error


@contextmanager
def _names_that_numpy_removed() -> Iterator[None]:
    """`numba/cuda/np/arrayobj.py` of 0.30.4 still names `np.row_stack`, which NumPy 2.5 lacks.

    It teaches numba-cuda's compiler that function; a stand-in is there as long as the import lasts.
    """
    numpy: Any = np
    if hasattr(numpy, "row_stack"):
        yield
        return
    numpy.row_stack = lambda tup: numpy.vstack(tup)
    try:
        yield
    finally:
        del numpy.row_stack
