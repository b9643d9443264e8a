"""Border to numba-cuda: its modules, also for versions of NumPy and Numba that it does not know."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from tensorcore_dsl.environment.distributions import versions_of

_NEEDS_ROW_STACK = "numba.cuda.np.arrayobj"


def numba_cuda(module: str = "numba.cuda") -> Any:
    """A module of numba-cuda. ImportError where it is missing, or does not fit the Numba there is.

    Releases of numba-cuda before 0.30.3 fail as they are imported beside Numba 0.66 and later.
    """
    try:
        if _NEEDS_ROW_STACK not in sys.modules and not hasattr(np, "row_stack"):
            with _row_stack():
                import_module(_NEEDS_ROW_STACK)
        return import_module(module)
    except (AttributeError, TypeError) as error:
        versions = ", ".join(versions_of(("numba-cuda", "numba", "numpy")))
        raise ImportError(f"{versions} do not fit each other: {error}") from error


@contextmanager
def _row_stack() -> Iterator[None]:
    """A stand-in for `np.row_stack`, which NumPy 2.5 lacks.

    The first compilation of numba-cuda 0.30.4 imports a module that names it, to teach the compiler
    that function. It is there as long as that import lasts.
    """
    numpy: Any = np
    numpy.row_stack = lambda tup: numpy.vstack(tup)
    try:
        yield
    finally:
        del numpy.row_stack
