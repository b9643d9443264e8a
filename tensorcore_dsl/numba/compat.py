"""Imports from numba-cuda, typed `Any` because Numba publishes no types for them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from tensorcore_dsl.codegen.assemble import INSTALL_HINT

try:
    types: Any = import_module("numba.cuda.types")
    cgutils: Any = import_module("numba.cuda.cgutils")
    targetconfig: Any = import_module("numba.cuda.core.targetconfig")
    TypingError: Any = import_module("numba.cuda.core.errors").TypingError
    _intrinsic: Any = import_module("numba.cuda.extending")._intrinsic
except ImportError as error:
    raise ImportError(f"numba-cuda cannot be imported ({error}); {INSTALL_HINT}") from error


def literal_intrinsic(define: Callable[..., Any]) -> Any:
    """Numba's `intrinsic`, with constant arguments typed as literals."""
    return _intrinsic(target="cuda", prefer_literal=True)(define)
