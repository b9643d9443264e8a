"""Plan a matrix product: where its elements lie in matrices and in registers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .architectures import GROUPED_KINDS, Model, Product
from .block_plans import BlockPlan, Layouts, block_plan
from .formats import FORMATS

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class FragmentMaps:
    """Coordinates of each thread's elements: (threads, slots, 2) of (row, column).

    Slots count from the low end of the first register. `threads` is 32 for a warp and 128 for a
    warpgroup; coordinates of b are (k, n). If a or b is None, that operand of `fragments` is a
    batch of matrices, as in `matmul`, or, if `packed` names it, of their lines: (rows of A or
    columns of B, words), with the elements of a line packed along K. The four products of m8n8k4 on
    f16 belong to the four quad pairs of a warp, and all their coordinates are below 8.
    """

    a: Array | None
    b: Array | None
    c: Array
    d: Array
    packed: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class OperandPositions:
    """Places of the elements of one operand.

    bit_offsets (tiles, elements) are 32 * word + shift, relative to the warp; step is the distance of
    two warps in words; shape is that of one warp's matrix, or of the whole register image.
    """

    bit_offsets: Array
    step: int
    shape: tuple[int, ...]
    positions: Array | None = None


@dataclass(frozen=True, eq=False)
class ProductPlan:
    """A product with the bit offsets of its elements; `blocks` is None if blocks cannot compute it."""

    product: Product
    model: Model
    a: OperandPositions
    b: OperandPositions
    c: OperandPositions
    d: OperandPositions
    blocks: BlockPlan | None
    spread: tuple[Array, ...]

    @property
    def abc(self) -> tuple[OperandPositions, OperandPositions, OperandPositions]:
        return self.a, self.b, self.c


NO_EXTRA: Array = np.zeros((0, 0), np.int32)  # no extra operands


@lru_cache(maxsize=1024)
def prepare(
    product: Product, model: Model, maps: FragmentMaps | None, total: int, by_thread: bool = False
) -> ProductPlan:
    """Plan a product; `total` is the thread count of the register images, 0 for matrices.

    by_thread: the registers of a thread are neighbours in memory, instead of the threads of a register.
    """
    operands = _operands(product, model, maps, total, by_thread)
    spread = _spread(product, model, operands["a"], maps) if product.sparse else ()
    in_blocks = _in_blocks(product, model, operands, maps) if _blocks else None
    return ProductPlan(product, model, **operands, blocks=in_blocks, spread=spread)


_blocks = True


@contextmanager
def without_blocks() -> Iterator[None]:
    """Compute all products by `fallback`, for comparisons."""
    global _blocks
    _blocks = False
    prepare.cache_clear()
    try:
        yield
    finally:
        _blocks = True
        prepare.cache_clear()


def _operands(
    product: Product, model: Model, maps: FragmentMaps | None, total: int, by_thread: bool
) -> dict[str, OperandPositions]:
    """A, B, C and D as in `prepare`, with k in the order of the hardware."""
    shapes = {
        "a": (product.m, product.stored),
        "b": (product.k, product.n),
        "c": (product.m, product.n),
        "d": (product.m, product.n),
    }
    operands = {}
    for name, shape in shapes.items():
        kind = getattr(product, name)
        coordinates = getattr(maps, name) if maps is not None else None
        if maps is not None and name in maps.packed:
            operands[name] = _lines(shape, _storage(product, kind), name == "b")
        elif coordinates is None:
            operands[name] = _matrix(shape, kind)
        else:
            storage = _storage(product, kind)
            operands[name] = _registers(product, name, shape, coordinates, storage, total, by_thread)
    order = _order(product, model)
    operands["a"] = _reordered(operands["a"], shapes["a"], (slice(None), order))
    if not product.sparse:
        operands["b"] = _reordered(operands["b"], shapes["b"], (order, slice(None)))
    return operands


def _in_blocks(
    product: Product, model: Model, operands: dict[str, OperandPositions], maps: FragmentMaps | None
) -> BlockPlan | None:
    m, n, tiles = product.m, product.n, len(operands["a"].bit_offsets)
    if operands["d"].bit_offsets.shape != operands["c"].bit_offsets.shape:
        return None  # a D that several threads hold has more elements
    c, d = operands["c"].bit_offsets, operands["d"].bit_offsets
    by_element = np.empty_like(c)
    np.put_along_axis(by_element, _positions(operands["d"]), d, 1)
    bit_offsets = {
        "a": operands["a"].bit_offsets.reshape(tiles, m, -1),
        "b": operands["b"].bit_offsets.reshape(tiles, -1, n),
        "c": c.reshape(tiles, m, n),
        "d": by_element.reshape(tiles, m, n),
    }
    steps = {name: operand.step for name, operand in operands.items()}
    packed = _packed(product, maps, "a"), _packed(product, maps, "b")
    order = _order(product, model)
    if product.sparse:  # A is the result of `sparse_lines.spread`
        storage = _storage_of_lines(product, maps)
        lines = _lines((m, product.k), storage, False)
        order = (2 * order[:, None] + np.arange(2)).ravel()
        bit_offsets["a"] = lines.bit_offsets.reshape(1, m, -1)[:, :, order]
        bit_offsets["b"] = bit_offsets["b"][:, order]
        steps["a"], packed = lines.step, (max(32 // storage[0], 1), packed[1])
        model = replace(model, length=2 * model.length)
    return block_plan(product, model, Layouts(bit_offsets, steps, packed), order)


def _storage_of_lines(product: Product, maps: FragmentMaps | None) -> tuple[int, int]:
    """`_storage` of the elements that `sparse_lines.spread` writes, packed like B."""
    bits, low = _storage(product, product.a)
    return (bits if _packed(product, maps, "b") > 1 else 32), low


def _spread(
    product: Product, model: Model, a: OperandPositions, maps: FragmentMaps | None
) -> tuple[Array, ...]:
    """Arguments of `sparse_lines.spread` for a product: bit offsets, steps, settings, and the shape of the
    lines of one A."""
    order, (bits, low) = _order(product, model), _storage_of_lines(product, maps)
    steps = np.empty(product.stored + product.k, np.int64)
    steps[: product.stored] = np.arange(product.stored) // model.length
    by_column = (2 * order[:, None] + np.arange(2)).ravel()
    steps[product.stored + by_column] = np.arange(product.k) // (2 * model.length)
    settings = np.array([a.step, product.stored, FORMATS[product.a].bits, low, bits])
    shape = np.array([product.m, product.k * bits // 32])
    return a.bit_offsets.ravel().astype(np.int64), steps, settings, shape


def _packed(product: Product, maps: FragmentMaps | None, name: str) -> int:
    """Elements in a word of A or B."""
    if maps is None or (getattr(maps, name) is None and name not in maps.packed):
        return 1
    return max(32 // _storage(product, getattr(product, name))[0], 1)


def extra_operands(
    product: Product, model: Model, batch: int, selection: Any, scale_a: Any, scale_b: Any
) -> Array:
    """Selection and scales (batch, n) in the order that the compiled loops expect."""
    if not product.sparse and not product.scale_kind and selection is scale_a is scale_b is None:
        return NO_EXTRA
    wanted = {
        "selection": (selection, product.sparse, (product.m, product.stored)),
        "scale_a": (scale_a, product.scale_kind, (product.m, product.scale_vec)),
        "scale_b": (scale_b, product.scale_kind, (product.scale_vec, product.n)),
    }
    matrices = []
    for name, (operand, needed, shape) in wanted.items():
        if operand is None and not needed:
            continue
        actual = None if operand is None else np.shape(operand)
        if actual != (batch, *shape) or not needed:
            allowed = (batch, *shape) if needed else None
            raise ValueError(f"{product}: {name} has shape {actual}, not {allowed}")
        operand = np.asarray(operand)
        if name == "selection":
            if operand.min(initial=0) < 0 or operand.max(initial=0) >= product.k:
                raise ValueError(f"{product}: selection has a k outside 0..{product.k - 1}")
            order = _order(product, model)
            if (order[1:] < order[:-1]).any():
                operand = operand[:, :, order]
        if name == "scale_a":
            operand = operand.swapaxes(1, 2)
        matrices.append(operand.reshape(batch, -1))
    joined = matrices[0] if len(matrices) == 1 else np.concatenate(matrices, axis=1)
    return np.ascontiguousarray(joined, dtype=np.int32)


def _order(product: Product, model: Model) -> Array:
    """Stored k, in the order in which the hardware sums them."""
    k = np.arange(product.stored)
    if model.order == "interleaved":
        return np.concatenate([k[k % 4 < 2], k[k % 4 >= 2]])
    return k


def _storage(product: Product, kind: str) -> tuple[int, int]:
    """Bits that an element occupies in a register, and its lowest significant bit."""
    if kind == "tf32":
        return 32, 13
    if kind == "e2m1":
        return (4, 0) if product.scale_kind in GROUPED_KINDS else (8, 2)
    return (8, 0) if kind in ("e3m2", "e2m3") else (FORMATS[kind].bits, 0)


def _matrix(shape: tuple[int, int], kind: str) -> OperandPositions:
    """An operand with one word per element."""
    size = shape[0] * shape[1]
    words = np.arange(size, dtype=np.int64)[None]
    return OperandPositions(32 * words + (13 if kind == "tf32" else 0), size, shape, words)


def _lines(shape: tuple[int, int], storage: tuple[int, int], across: bool) -> OperandPositions:
    """An operand whose lines along K are packed; `across`: K is its first axis."""
    (bits, low), lines = storage, shape[1] if across else shape[0]
    k = np.arange(shape[0] if across else shape[1], dtype=np.int64)
    words = len(k) * bits // 32
    bit_offsets = 32 * words * np.arange(lines)[:, None] + k * bits + low
    bit_offsets = (bit_offsets.T if across else bit_offsets).reshape(1, -1)
    return OperandPositions(bit_offsets, lines * words, (lines, words))


def _registers(
    product: Product,
    name: str,
    shape: tuple[int, int],
    coordinates: Array,
    storage: tuple[int, int],
    total: int,
    by_thread: bool,
) -> OperandPositions:
    """An operand in a register image of `total` threads."""
    threads, slots, _ = coordinates.shape
    if total % threads:
        raise ValueError(f"{product}: {total} threads are not a multiple of the {threads} of {name}")
    bits, low = storage
    packed = max(32 // bits, 1)
    slot = np.arange(slots)
    registers = -(-slots // packed)
    thread = np.arange(threads)[:, None]
    words = thread * registers + slot // packed if by_thread else slot // packed * total + thread
    offsets_of_lanes = 32 * words + slot % packed * bits + low
    tiles = _tiles_of_lanes(product, threads)
    position = coordinates[..., 0] * shape[1] + coordinates[..., 1]
    if coordinates.min() < 0 or (coordinates.reshape(-1, 2).max(axis=0) >= shape).any():
        raise ValueError(f"{product}: the map of {name} leaves its matrix {shape}")
    bit_offsets = np.full((len(tiles), shape[0] * shape[1]), -1, np.int64)
    for tile, lanes in enumerate(tiles):  # the first copy of an element is read
        bit_offsets[tile, position[lanes].ravel()[::-1]] = offsets_of_lanes[lanes].ravel()[::-1]
    if name != "d":
        if (bit_offsets < 0).any():
            missing = divmod(int(np.argwhere(bit_offsets < 0)[0, 1]), shape[1])
            raise ValueError(f"{product}: no thread holds element {missing} of {name}")
    else:
        bit_offsets = np.stack([np.sort(offsets_of_lanes[lanes], axis=None) for lanes in tiles])
    # Sorted by bit offset, so that successive writes are close to each other.
    order = [np.argsort(offsets_of_lanes[lanes], axis=None) for lanes in tiles]
    positions = np.stack([position[tiles[i]].ravel()[o] for i, o in enumerate(order)])
    step = threads * registers if by_thread else threads
    return OperandPositions(bit_offsets, step, (registers, total), positions)


def _tiles_of_lanes(product: Product, threads: int) -> list[Array]:
    """The lanes of each independent product: all lanes, or the quad pairs of m8n8k4 on f16."""
    lanes = np.arange(threads)
    if (product.a, product.m, product.n, product.k) == ("f16", 8, 8, 4):
        return [lanes[lanes % 16 // 4 == pair] for pair in range(4)]
    return [lanes]


def _reordered(operand: OperandPositions, shape: tuple[int, int], order: Any) -> OperandPositions:
    bit_offsets = operand.bit_offsets.reshape(-1, *shape)[(slice(None), *order)]
    return OperandPositions(bit_offsets.reshape(len(bit_offsets), -1), operand.step, operand.shape)


def _positions(d: OperandPositions) -> Array:
    assert d.positions is not None
    return d.positions
