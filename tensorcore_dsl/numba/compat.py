"""Imports from numba-cuda, typed `Any` because Numba publishes no types for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorcore_dsl.codegen.assemble import INSTALL_HINT
from tensorcore_dsl.environment.numba_cuda import numba_cuda

try:
    types: Any = numba_cuda("numba.cuda.types")
    cgutils: Any = numba_cuda("numba.cuda.cgutils")
    targetconfig: Any = numba_cuda("numba.cuda.core.targetconfig")
    TypingError: Any = numba_cuda("numba.cuda.core.errors").TypingError
    _intrinsic: Any = numba_cuda("numba.cuda.extending")._intrinsic
except ImportError as error:
    raise ImportError(f"numba-cuda cannot be imported ({error}); {INSTALL_HINT}") from error


def literal_intrinsic(define: Callable[..., Any]) -> Any:
    """Numba's `intrinsic`, with constant arguments typed as literals."""
    return _intrinsic(target="cuda", prefer_literal=True)(define)
