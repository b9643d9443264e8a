"""Products of a tensor core, bit for bit: of whole matrices, or of the register images of warps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import double, loops
from .architectures import Model, Product
from .architectures import model as model_of
from .formats import FORMATS
from .plans import FragmentMaps, Plan, extra_operands, prepare
from .softfloat import ROUNDINGS

__all__ = ["FragmentMaps", "Model", "Product", "fragments", "matmul", "model_of"]

Array = npt.NDArray[Any]


def matmul(
    product: Product,
    arch: str,
    a: Array,
    b: Array,
    c: Array,
    *,
    selection: Array | None = None,
    scale_a: Array | None = None,
    scale_b: Array | None = None,
    model: Model | None = None,
) -> Array:
    """Multiply (batch, M, K) by (batch, K, N) and add (batch, M, N), all as the bits of elements.

    Sparse: a is (batch, M, K/2) and selection, of the same shape, holds the k of each stored
    element. Block scaled: scale_a is (batch, M, blocks), scale_b (batch, blocks, N), in bytes.
    `model` replaces the architecture's constants.
    """
    model = model or model_of(product, arch)
    prepared = prepare(product, model, None, 0)
    batch = len(a)
    for name, operand in (("a", a), ("b", b), ("c", c)):
        shape = (batch, *getattr(prepared, name).shape)
        if operand.shape != shape:
            raise ValueError(f"{product}: {name} has shape {operand.shape}, not {shape}")
    extra = extra_operands(product, model, batch, selection, scale_a, scale_b)
    d = np.zeros((batch, product.m, product.n), _word(product))
    _run(product, prepared, (a, b, c), extra, np.ones(batch, np.bool_), d)
    return d.astype(f"u{FORMATS[product.d].bits // 8}", copy=False)


def fragments(
    product: Product,
    arch: str,
    maps: FragmentMaps,
    a: Array,
    b: Array,
    c: Array,
    *,
    active: Array | None = None,
    selection: Array | None = None,
    scale_a: Array | None = None,
    scale_b: Array | None = None,
    model: Model | None = None,
) -> Array:
    """The product of every warp (or warpgroup), from and to register images (registers, T).

    Images are uint32, of f64 uint64; T is a multiple of the map's threads. Elements are packed low
    to high; those of 6 bits lie in the low bits of bytes, e2m1 without mxf4 in bits 2 to 5.
    `active`, one bool for each warp, leaves out the others, whose part of the result is
    unspecified. The other arguments are those of `matmul`, with the warps as the batch.
    """
    model = model or model_of(product, arch)
    threads, total = len(maps.c), c.shape[1]
    warps = total // threads
    prepared = prepare(product, model, maps, total)
    for name, operand in (("a", a), ("b", b), ("c", c)):
        shape = getattr(prepared, name).shape
        wanted = shape if getattr(maps, name) is not None else (warps, *shape)
        if operand.shape != wanted or total % threads:
            raise ValueError(
                f"{product}: {name} has shape {operand.shape}, not {wanted}; "
                f"each product takes {threads} threads"
            )
    if active is None:
        active = np.ones(warps, np.bool_)
    elif active.shape != (warps,) or active.dtype != np.bool_:
        raise ValueError(
            f"{product}: active is {active.dtype} of {active.shape}; it must be bool of {(warps,)}"
        )
    extra = extra_operands(product, model, warps, selection, scale_a, scale_b)
    d = np.zeros(prepared.d.shape, _word(product))
    _run(product, prepared, (a, b, c), extra, np.ascontiguousarray(active), d)
    return d


def _word(product: Product) -> type[np.uint32] | type[np.uint64]:
    return np.uint64 if product.a == "f64" else np.uint32


def _words(operand: Array, word: Any) -> Array:
    """The bits as a row of words; read-only arrays would be one more type to compile for."""
    if operand.dtype != word:
        operand = operand.view(f"u{operand.itemsize}").astype(word)
    if not (operand.flags.c_contiguous and operand.flags.writeable):
        operand = operand.copy()
    return operand.reshape(-1)


def _run(
    product: Product, plan: Plan, abc: tuple[Array, ...], extra: Array, active: Array, d: Array
) -> None:
    word = _word(product)
    operands = [_words(operand, word) for operand in abc]
    if word is np.uint64:
        shape = product.m, product.n, product.k
        steps = plan.a.step, plan.b.step, plan.c.step, plan.d.step
        mode = ROUNDINGS[product.rounding]
        double.products(*operands, active, plan.places, shape, steps, mode, d.reshape(-1))
        return
    loops.products(*operands, extra, active, plan.places, plan.tables, plan.settings, d.reshape(-1))
