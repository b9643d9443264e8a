"""Bit-exact tensor core products of matrices, and of the register images of warps."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_char
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorcore_dsl.lowering.forms import Part

from . import fallback, sparse_lines
from .architectures import Model, Product
from .architectures import model as model_of
from .block_plans import BlockPlan
from .formats import FORMATS
from .plans import NO_EXTRA, FragmentMaps, ProductPlan, extra_operands, prepare

__all__ = [
    "FragmentMaps",
    "Model",
    "Product",
    "Uses",
    "are_blocks",
    "fragments",
    "in_place",
    "matmul",
    "model_of",
]

Array = npt.NDArray[Any]
LINE = 64  # bytes of a cache line
COST = 0.16  # Nanoseconds of a multiply-add in blocks; a rough figure for sharing work among threads.


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
    """Multiply (batch, M, K) by (batch, K, N) and add (batch, M, N), all given as element bits.

    Sparse: a is (batch, M, K/2), and selection, of the same shape, is the k of each stored element.
    Block scaled: scale_a is (batch, M, blocks), scale_b (batch, blocks, N), in bytes. `model`
    overrides the architecture's constants.
    """
    model = model or model_of(product, arch)
    prepared = prepare(product, model, None, 0)
    batch = len(a)
    for name, operand in (("a", a), ("b", b), ("c", c)):
        shape = (batch, *getattr(prepared, name).shape)
        if operand.shape != shape:
            raise ValueError(f"{product}: {name} has shape {operand.shape}, not {shape}")
    extra = extra_operands(product, model, batch, selection, scale_a, scale_b)
    d = np.empty((batch, product.m, product.n), _word(product))
    Uses(product, prepared, [(a, b, c, d)], batch).run(None, extra)
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
    out: Array | None = None,
) -> Array:
    """Multiply the register images (registers, T) of every warp or warpgroup.

    Images are uint32 (uint64 for f64); T is a multiple of the map's threads. Elements are packed
    low to high; 6-bit elements are in the low bits of bytes, e2m1 (except mxf4) in bits 2 to 5.
    If the registers of each thread are neighbours in memory in all images, they are in the result,
    and no image is copied. `active`, one bool per warp, excludes the other warps, whose results are
    unspecified. The other arguments are the arguments of `matmul`, with the warps as the batch. `out`
    receives the result: an image that is contiguous, and then may be c, or whose transpose is.
    """
    model = model or model_of(product, arch)
    warps, total = c.shape[1] // len(maps.c), c.shape[1]
    transposed = out is not None and not out.flags.c_contiguous
    by_thread = (out is None or transposed) and _by_thread(maps, (a, b, c))
    plan = prepare(product, model, maps, 0 if by_thread else total, by_thread)
    _check(product, plan, maps, a, b, c)
    if active is None:
        active = np.ones(warps, np.bool_)
    elif active.shape != (warps,) or active.dtype != np.bool_:
        raise ValueError(
            f"{product}: active is {active.dtype} of {active.shape}; it must be bool of {(warps,)}"
        )
    extra = extra_operands(product, model, warps, selection, scale_a, scale_b)
    registers = plan.d.shape[0]
    if out is None or (transposed and not by_thread):
        d = np.empty((total, registers) if by_thread else (registers, total), _word(product))
    else:
        d = out.T if by_thread else out
    if by_thread:
        a, b, c = _flipped(maps, (a, b, c))
    Uses(product, plan, [(a, b, c, d)], warps).run(np.ascontiguousarray(active), extra)
    result = d.T if by_thread else d
    if out is None:
        return result
    if transposed and not by_thread:
        out[:] = result
    return out


def in_place(
    product: Product, arch: str, maps: FragmentMaps, uses: Sequence[tuple[Array, Array, Array, Array]]
) -> Uses:
    """Prepare repeated products of (a, b, c, d) as in `fragments`: contiguous images at fixed
    addresses. An image that several operations share is decoded once."""
    total = uses[0][2].shape[1]
    plan = prepare(product, model_of(product, arch), maps, total)
    for a, b, c, _ in uses:
        _check(product, plan, maps, a, b, c)
    return Uses(product, plan, uses, total // len(maps.c))


def are_blocks(product: Product, arch: str, maps: FragmentMaps, total: int) -> bool:
    """Whether products of images (registers, total) are computed in blocks."""
    return prepare(product, model_of(product, arch), maps, total).blocks is not None


def _check(product: Product, plan: ProductPlan, maps: FragmentMaps, *operands: Array) -> None:
    """Raise ValueError for operands a, b, c of a wrong shape."""
    threads, total = len(maps.c), operands[2].shape[1]
    for name, prepared, operand in zip("abc", plan.abc, operands, strict=True):
        in_registers = getattr(maps, name) is not None
        matrices = total // threads, *prepared.shape
        shape = (prepared.shape[0], total) if in_registers else matrices
        if operand.shape != shape or total % threads:
            raise ValueError(
                f"{product}: {name} has shape {operand.shape}, not {shape}; "
                f"each product takes {threads} threads"
            )


def _by_thread(maps: FragmentMaps, operands: tuple[Array, Array, Array]) -> bool:
    """Whether the registers of each thread are neighbours in memory."""
    pairs = zip(operands, (maps.a, maps.b, maps.c), strict=True)
    return all(x.T.flags.c_contiguous for x, lies in pairs if lies is not None)


def _flipped(maps: FragmentMaps, operands: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """View register images as (T, registers)."""
    a, b, c = operands
    return (a if maps.a is None else a.T), (b if maps.b is None else b.T), c.T


def _word(product: Product) -> type[np.uint32] | type[np.uint64]:
    return np.uint64 if product.a == "f64" else np.uint32


def _words(operand: Array, word: Any) -> Array:
    """Convert bits to contiguous words."""
    if operand.dtype != word:
        operand = operand.view(f"u{operand.itemsize}").astype(word)
    return operand if operand.flags.c_contiguous else operand.copy()


class Uses:
    """Operations of one product on arrays at fixed addresses.

    No operation reads the result of another one.

    Attributes
    ----------
    uses : sequence of tuples of arrays
        (a, b, c, d) of each operation, all with the same number of warps (or matrices). d may be c.
    """

    def __init__(
        self,
        product: Product,
        plan: ProductPlan,
        uses: Sequence[tuple[Array, Array, Array, Array]],
        warps: int,
    ) -> None:
        self.product, self.plan, self.uses = product, plan, uses
        self.warps = warps
        word = _word(product)
        self._kept = ends, first, second = _Images(word), _Images(word), _Images(word)
        table = [(first.number(a), second.number(b), *map(ends.address, cd)) for a, b, *cd in uses]
        self.table = np.array(table, np.int64)
        self.first, self.second = first.table, second.table
        if plan.blocks is not None:
            self.in_blocks = self.first, self.second, self.table
            if product.sparse or product.scale_kind:
                assert len(uses) == 1, "metadata and scales belong to one operation"
            if product.sparse:
                self.lines = np.empty((warps, *plan.spread[-1]), np.uint32)
                self.in_blocks = np.array([_address(self.lines)]), *self.in_blocks[1:]
            if plan.blocks.swapped:
                self.in_blocks = self.second, self.first, self.table[:, [1, 0, 2, 3]].copy()
        self._rooms: dict[int, tuple[Array, Array]] = {}

    def decoded(self, number: int) -> Array:
        """Return the addresses of thread `number`'s memory for decoded operands and one D."""
        room = self._rooms.get(number)
        if room is None:
            assert self.plan.blocks is not None
            room = _room(self.plan.blocks, *map(len, self.in_blocks[:2]))
            self._rooms[number] = room
        return room[1]

    def bound(self, active: Array, left: Array, number: int) -> Part:
        """Bind the loop of `blocks.LOOPS` that computes the operations in some of the active warps.

        The operations have no extra operands. The loop marks in `left`, (uses, warps) bool, the results
        that `finish` must compute. number: see `run`.
        """
        plan = self.plan.blocks
        assert plan is not None
        return plan.loop.part(  # type: ignore[no-any-return]
            *self.in_blocks, active, plan.call, self.decoded(number), left, NO_EXTRA, 0, 0
        )

    def finish(self, left: Array) -> None:
        """Compute the results that the loop of `bound` has marked in `left`."""
        self._finish(left, NO_EXTRA)

    def run(self, active: Array | None, extra: Array = NO_EXTRA, number: int = 0) -> None:
        """Compute the operations for the `active` warps (bool, all if None).

        extra: result of `plans.extra_operands`. number: that of this thread among those that share
        these operations.
        """
        if active is None:
            active = np.ones(self.warps, np.bool_)
        if self.plan.blocks is None:
            left = np.broadcast_to(active, (len(self.uses), active.size))
        else:
            left = _in_blocks(self, active, extra, number)
        if np.count_nonzero(left):
            self._finish(left, extra)

    def _finish(self, left: Array, extra: Array) -> None:
        """Compute the results marked in `left`, (uses, warps) bool, without blocks."""
        word = _word(self.product)
        uses = [(*(_words(x, word).reshape(-1) for x in abc), d.reshape(-1)) for *abc, d in self.uses]
        fallback.compute(self.plan, uses, left, extra)


def _in_blocks(uses: Uses, active: Array, extra: Array, number: int) -> Array:
    """Compute in blocks; returns (uses, warps) bool of the results that blocks cannot compute."""
    plan, product = uses.plan.blocks, uses.product
    assert plan is not None
    left = np.zeros((len(uses.uses), active.size), np.bool_)
    if product.sparse:
        bit_offsets, steps, settings, _ = uses.plan.spread
        sparse_lines.spread(
            int(uses.first[0]), bit_offsets, extra, active, steps, settings, uses.lines, left[0]
        )
        active = active & ~left[0]
    plan.loop(*uses.in_blocks, active, plan.call, uses.decoded(number), left, extra, 0, active.size)
    return left


def _room(plan: BlockPlan, first: int, second: int) -> tuple[Array, Array]:
    """Allocate memory for the decoded operands and one D; also returns the addresses."""
    size_a, size_b, size_d = plan.sizes
    sizes = np.array([first * size_a] * 2 + [second * size_b] * 2 + [size_d])
    memory = np.empty(int(sizes.sum()) + LINE, np.uint8)
    return memory, -(-_address(memory) // LINE) * LINE + np.cumsum(sizes) - sizes


def _address(array: Array) -> int:
    """Address of the elements of a contiguous array."""
    buffer: Any = array
    try:
        return addressof(c_char.from_buffer(buffer))
    except (TypeError, ValueError):  # slower, but also for read-only and for empty arrays
        return int(array.__array_interface__["data"][0])


class _Images:
    """Operands by address; keeps them alive."""

    def __init__(self, word: Any) -> None:
        self.word = word
        self.known: dict[int, tuple[int, Array, Array]] = {}  # (index, operand, words) by address
        self.addresses: list[int] = []

    def number(self, operand: Array) -> int:
        """Index of an array; arrays at the same address have the same index."""
        words = _words(operand, self.word)
        address = _address(words)
        entry = self.known.get(address)
        if entry is None:
            entry = self.known[address] = len(self.addresses), operand, words
            self.addresses.append(address)
        return entry[0]

    def address(self, operand: Array) -> int:
        return self.addresses[self.number(operand)]

    @property
    def table(self) -> Array:
        return np.array(self.addresses, np.int64)
