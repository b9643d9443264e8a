"""Compile functions of scalars to functions of arrays, at their first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorcore_dsl.lowering import inlined, vectorised

from .symbols import OUT, symbol_in


def compile_elementwise(kernel: Callable[..., Any], signature: str) -> Callable[..., Any]:
    """Compile a function of scalars, e.g. ``uint32(uint32,uint32)``, to a function of arrays.

    Its operands are numbers and arrays of these types, which are broadcast against each other.
    """
    result, *names = signature.replace("(", ",").rstrip(")").split(",")
    loop = _LOOPS[len(names)](inlined(kernel))
    dtypes, result_dtype = [np.dtype(name) for name in names], np.dtype(result)

    def call(*operands: Any) -> Any:
        symbol = symbol_in(*operands)
        if symbol is not None:
            symbols = [symbol.like(x, dtype) for x, dtype in zip(operands, dtypes, strict=True)]
            return symbol.call(loop, *symbols, OUT, dtype=result_dtype)
        shape = np.broadcast_shapes(*map(np.shape, operands))
        flat = [_flat(x, dtype, shape) for x, dtype in zip(operands, dtypes, strict=True)]
        out = np.empty(shape, result_dtype)
        loop(*flat, out.reshape(-1))
        return out[()]

    return call


def _flat(x: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """A vector of all elements."""
    if not (isinstance(x, np.ndarray) and x.dtype == dtype and x.shape == shape):
        x = np.broadcast_to(np.asarray(x).astype(dtype, casting="same_kind", copy=False), shape)
    return (x if x.flags.carray else np.require(x, requirements=["C", "A", "W"])).reshape(-1)


def _unary(function: Any) -> Callable[..., None]:
    @vectorised
    def loop(x: Any, out: Any) -> None:
        for i in range(out.size):
            out[i] = function(x[i])

    return loop


def _binary(function: Any) -> Callable[..., None]:
    @vectorised
    def loop(x: Any, y: Any, out: Any) -> None:
        for i in range(out.size):
            out[i] = function(x[i], y[i])

    return loop


def _ternary(function: Any) -> Callable[..., None]:
    @vectorised
    def loop(x: Any, y: Any, z: Any, out: Any) -> None:
        for i in range(out.size):
            out[i] = function(x[i], y[i], z[i])

    return loop


_LOOPS = {1: _unary, 2: _binary, 3: _ternary}
