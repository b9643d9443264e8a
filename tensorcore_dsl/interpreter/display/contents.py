"""Read views of a user's values from registers and memory, as NumPy arrays.

What some threads have not written, or do not execute, is masked (`--` in print).
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.interpreter.core import shadow
from tensorcore_dsl.interpreter.core.geometry import ranges
from tensorcore_dsl.interpreter.memory import accesses
from tensorcore_dsl.interpreter.sync import barrier_phases as mbarriers
from tensorcore_dsl.ir import views
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, OWN
from tensorcore_dsl.layout import Layout

# The bits of a register or None, and (T,) bool of the threads that have written them.
Registers = Callable[[Any], "tuple[Any, np.ndarray | None]"]

_WIDTH = 100  # columns of a printed array


class Lanes(np.ma.MaskedArray):  # type: ignore[type-arg, misc]
    """A scalar's value in each lane; lanes that have none are masked."""

    @property
    def agreed(self) -> Any:
        """The value of a scalar on which all lanes agree; None where they differ."""
        known = self.compressed()
        same = (known == known[:1]) | ((known != known) & (known[:1] != known[:1]))
        return known[0] if self.ndim == 1 and known.size and same.all() else None

    def __index__(self) -> int:
        return operator.index(self.agreed)


class Indexed:
    """A container that takes a scalar as an index if all lanes agree on it."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __getitem__(self, index: Any) -> Any:
        return self.items[tuple(map(_one, index)) if type(index) is tuple else _one(index)]


def _one(index: Any) -> Any:
    number = index.agreed if isinstance(index, Lanes) and index.dtype.kind in "iu" else None
    return index if number is None else number


def shown(value: Any, most: int | None = None) -> str:
    """A value as text; arrays in it are abbreviated beyond `most` elements, as NumPy does.

    One number stands for all lanes that agree.
    """
    if type(value) in (list, tuple):
        left, right = "[]" if isinstance(value, list) else ("(", ",)" if len(value) == 1 else ")")
        return _joined(left, [shown(v, most) for v in value], right)
    if type(value) is dict:
        return _joined("{", [f"{k!r}: {shown(v, most)}" for k, v in value.items()], "}")
    if isinstance(value, Record):
        kind, items = value.record
        return _joined(f"{kind}(", [f"{k}={shown(v, most)}" for k, v in items.items()], ")")
    if not isinstance(value, np.ndarray):
        return str(value) if isinstance(value, np.generic) else repr(value)
    most = most or (64 if value.ndim == 1 else 1024)
    mask, values = np.ma.getmaskarray(value), np.ma.getdata(value)
    if isinstance(value, Lanes) and value.agreed is not None:
        return f"{value.agreed}  ({_lanes_text(np.flatnonzero(~mask), value.size)})"
    options: Any = {"linewidth": _WIDTH, "edgeitems": 3, "precision": 6, "threshold": most}
    with np.printoptions(**options, suppress=_plain_decimals(values[~mask])):
        return array_text(value)


def _joined(left: str, texts: list[str], right: str) -> str:
    """Items side by side, or below each other if one of them is a matrix."""
    if not any("\n" in text for text in texts):
        return left + ", ".join(texts) + right
    indent = "\n" + " " * len(left)
    return left + f",{indent}".join(text.replace("\n", indent) for text in texts) + right


def array_text(value: np.ndarray) -> str:
    """NumPy's text of an array, which gives masked elements as `--` and others as usual."""
    mask, values, options = np.ma.getmaskarray(value), np.ma.getdata(value), np.get_printoptions()
    if not mask.any():
        return str(values)
    edge, threshold = int(options["edgeitems"]), int(options["threshold"])
    if values.size > threshold:
        threshold = 0
        for axis, extent in enumerate(values.shape):
            if extent > 2 * edge + 1:
                kept = [*range(edge + 1), *range(extent - edge, extent)]
                values, mask = values.take(kept, axis), mask.take(kept, axis)
    texts, known = np.empty(values.shape, object), values[~mask]
    width = 2
    if known.size:
        row = np.array2string(known, 1 << 30, separator="\0", threshold=known.size)
        texts[~mask] = row[1:-1].split("\0")
        width = max(map(len, texts[~mask]))
    texts[mask] = "--".rjust(width)
    with np.printoptions(threshold=threshold, formatter={"object": str}):
        return str(texts)


def _plain_decimals(known: np.ndarray) -> bool:
    """True if the numbers read well without exponents."""
    if known.dtype.kind != "f":
        return True
    sizes = np.abs(known[np.isfinite(known) & (known != 0)])
    return not sizes.size or bool(sizes.max() < 1e6 and sizes.max() > 1e-3)


def _lanes_text(lanes: np.ndarray, size: int) -> str:
    if len(lanes) == size:
        return f"all {size} lanes"
    return f"{'lane' if len(lanes) == 1 else 'lanes'} {ranges(lanes)}"


class Unreadable(Exception):
    """A value that cannot be shown; the message says why."""


class Unknown(str):
    """The reason for which there is no value, in place of one."""

    def __repr__(self) -> str:
        return f"<{self}>"


@dataclass(frozen=True)
class BarrierState:
    """An mbarrier: its phase, what the phase still waits for, and the arrivals of each phase."""

    phase: int
    pending: int
    missing_bytes: int
    count: int

    def __repr__(self) -> str:
        if not self.count:
            return "not initialised"
        text = f"phase {self.phase} (parity {self.phase % 2}), {self.pending} of {self.count} "
        text += "arrivals pending"
        return text + (f", {self.missing_bytes} bytes missing" if self.missing_bytes else "")


@dataclass(frozen=True)
class Address:
    """A pointer: where it points, and the element there."""

    text: str
    value: Any

    def __repr__(self) -> str:
        return f"{self.text} -> {self.value}"


def decoded(bits: np.ndarray, dtype: DType) -> np.ndarray:
    """Elements of a type from their bits; narrow floats as f32, pairs along a last axis."""
    if dtype.kind == "p":
        return bits.astype(np.bool_)
    if dtype.lanes == 2:
        narrow = np.ascontiguousarray(bits, np.uint32)[..., None].view(np.uint16)
        return narrow.view(np.float16) if dtype.name == "f16x2" else _bf16(narrow)
    if dtype.numpy is None:
        return bits
    kind = np.dtype(dtype.numpy)
    words = np.ascontiguousarray(bits).astype(f"u{kind.itemsize}")
    if dtype.bits < 8:
        words &= np.array((1 << dtype.bits) - 1, words.dtype)
    values = words.view(kind)
    if kind.kind == "V" or kind.name not in np.sctypeDict:  # ml_dtypes
        return np.asarray(values.astype(np.float32 if dtype.is_float else np.int32))
    return np.asarray(values)


def _bf16(bits: np.ndarray) -> np.ndarray:
    return np.asarray((bits.astype(np.uint32) << 16).view(np.float32))


class Contents:
    """Reads views for some threads.

    Attributes
    ----------
    ctx
        An `ExecutionContext`.
    threads
        Those whose values are wanted, in order.
    here
        (T,) bool: the threads that have values.
    single
        Only one thread is looked at, so scalars are numbers.
    """

    def __init__(
        self, ctx: Any, registers: Registers, threads: np.ndarray, here: np.ndarray, single: bool = False
    ) -> None:
        self.ctx, self.registers, self.threads, self.here = ctx, registers, threads, here
        self.single = single

    def read(self, view: Any) -> Any:
        """The value of a view; Unreadable if there is none."""
        method = getattr(self, f"_read_{type(view).__name__.lower()}", None)
        return view if method is None else method(view)

    # -- registers -----------------------------------------------------------------------------

    def _bits(self, key: Any) -> tuple[np.ndarray, np.ndarray]:
        """(..., T) bits of a register or group, and (T,) bool of the threads that have them."""
        bits, written = self.registers(key)
        if bits is None:
            raise Unreadable("it has no value yet")
        bits = np.asarray(bits)
        if bits.ndim == 0:
            bits = np.full(self.ctx.threads, bits)
        return bits, self.here if written is None else self.here & written

    def _read_register(self, view: views.Register) -> Any:
        bits, valid = self._bits(view.value)
        values, good = decoded(bits[self.threads], view.dtype), valid[self.threads]
        return self.lanes(values, good)

    def lanes(self, values: np.ndarray, good: np.ndarray) -> Any:
        """(threads, ...) values as a masked array, or the only thread's value."""
        if self.single:
            if not good[0]:
                raise Unreadable("this thread has no value of it here")
            return values[0]
        mask = np.broadcast_to(~good.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
        return Lanes(values, mask=mask)

    def _read_group(self, view: views.Group) -> Any:
        bits, valid = self._bits(view.value)
        if view.layout is None:
            return self.lanes(decoded(bits.T[self.threads], view.dtype), valid[self.threads])
        count = view.layout.per_register
        width = np.uint64(32 // count if count > 1 else 0)
        fields = [bits >> (width * np.uint64(i)).astype(bits.dtype) for i in range(count)]
        slots = np.stack(fields, axis=1).reshape(-1, self.ctx.threads)
        if count > 1:
            slots = slots & np.uint32((1 << int(width)) - 1)
        if view.layout.container == 8 and view.dtype.bits == 4:
            slots = slots >> np.uint32(2)  # e2m1 is in bits 2 to 5 of its byte
        return self._matrix_of(decoded(slots, view.dtype), valid, view.layout)

    def _read_matrix(self, view: views.Matrix) -> Any:
        columns = [self._bits(slot.value) for slot in view.slots]
        values = np.stack([decoded(b, s.dtype) for (b, _), s in zip(columns, view.slots)])
        valid = np.logical_and.reduce([v for _, v in columns])
        return self._matrix_of(values, valid, view.layout)

    def _matrix_of(self, slots: np.ndarray, valid: np.ndarray, layout: Layout) -> Any:
        """The matrix of the threads' warp or warpgroup from (slots, T) elements."""
        first = int(self.threads[0]) // layout.threads * layout.threads
        part = slice(first, first + layout.threads)
        rows, cols = layout.coords[..., 0], layout.coords[..., 1]
        matrix = np.zeros((layout.rows, layout.cols), slots.dtype)
        mask = np.ones(matrix.shape, np.bool_)
        good = np.flatnonzero(valid[part])
        matrix[rows[good], cols[good]] = slots[:, part].T[good]
        mask[rows[good], cols[good]] = False
        return _plain(matrix, mask)

    # -- memory --------------------------------------------------------------------------------

    def _extent(self, extent: views.Extent) -> int:
        """A size or an address, of the first thread that has one."""
        if isinstance(extent, int):
            return extent
        bits, valid = self._bits(extent.value)
        threads = self.threads[valid[self.threads]]
        if not len(threads):
            raise Unreadable("no thread has a value of it here")
        return int(decoded(bits[threads[:1]], extent.dtype)[0])

    def _shared(self, address: int) -> tuple[int, int]:
        """The CTA of the chunk and the offset of a shared address."""
        own_cta, rank = int(self.threads[0]) // self.ctx.group, address >> CLUSTER_SHIFT
        cta = own_cta if rank in (0, OWN) else self.ctx.clusters.cta(own_cta, rank)
        return cta, address & shadow.OFFSET

    def _read_tileview(self, view: views.TileView) -> Any:
        cta, origin = self._shared(self._extent(view.origin))
        size = 1 if view.dtype.kind == "p" else view.dtype.itemsize
        index = np.indices(view.shape)
        at = self._extent(view.offset) + size * sum(
            i * step for i, step in zip(index, view.strides, strict=True)
        )
        at = origin + (at ^ (at >> 3 & 16 * (view.swizzle // 16 - 1)) if view.swizzle else at)
        storage = self.ctx.shared.storage
        offsets = at[..., None] + np.arange(size)
        inside = (offsets >= 0) & (offsets < storage.size)
        offsets = np.where(inside, offsets, 0)
        if not storage.size:
            raise Unreadable("the CTA has no shared memory")
        raw = np.ascontiguousarray(storage.data[cta][offsets])
        good = inside & (storage.shadow[cta][offsets] != shadow.NEVER)
        values = decoded(raw.view(f"u{size}")[..., 0], view.dtype)
        return _plain(values, ~good.all(axis=-1))

    def _read_arrayview(self, view: views.ArrayView) -> np.ndarray:
        shape = tuple(map(self._extent, view.shape))
        strides = tuple(map(self._extent, view.strides))
        return self._global(self._extent(view.address), view.dtype, shape, strides)

    def _global(
        self, address: int, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray:
        """A copy of elements in global memory."""
        size = 1 if dtype.kind == "p" else dtype.itemsize
        if min(shape, default=1) == 0:
            return np.empty(shape)
        table, index = self.ctx.globals.table, (address >> accesses.SPACE_BITS) - 1
        if not 0 <= index < len(self.ctx.globals.arguments.pointers):
            raise Unreadable("its address belongs to no argument of the launch")
        row = table[index]
        steps = [(n - 1) * s * size for n, s in zip(shape, strides, strict=True)]
        offset = address - int(row[accesses.VIRTUAL])
        low = offset + sum(s for s in steps if s < 0)
        high = offset + sum(s for s in steps if s > 0) + size
        if low < 0 or high > row[accesses.SIZE]:
            where = self.ctx.globals.arguments.describe(address)
            raise Unreadable(f"it leaves its memory: {where}")
        memory = (ctypes.c_char * (high - low)).from_address(int(row[accesses.REAL]) + low)
        steps = [s * size for s in strides]
        raw: Any = np.ndarray(shape, f"u{size}", memory, offset - low, steps)  # type: ignore[arg-type]
        return decoded(raw.copy(), dtype)

    def _read_pointerview(self, view: views.PointerView) -> Any:
        address = self._extent(view.address)
        try:
            if view.space == "global":
                text = self.ctx.globals.arguments.describe(address)
                return Address(text, self._global(address, view.dtype, (), ()).item())
            tile = views.TileView(address, 0, view.dtype, (1,), (1,), 0)
            return Address(f"shared {address & shadow.OFFSET:#x}", self._read_tileview(tile)[0])
        except Unreadable as error:
            return Address(f"{view.space} {address:#x}", f"({error})")

    def _read_barrierview(self, view: views.BarrierView) -> Any:
        cta, at = self._shared(self._extent(view.address))
        first, size = at // mbarriers.BYTES, self.ctx.mbarriers.index.shape[1]
        slots = range(first, first + (view.count or 1))
        if slots.stop > size:
            raise Unreadable("its address is outside of shared memory")
        states = [barrier_state(self.ctx, cta, slot) for slot in slots]
        return states[0] if view.count is None else states

    # -- containers ----------------------------------------------------------------------------

    def _read_localview(self, view: views.LocalView) -> Any:
        at = view.offset + sum(i * step for i, step in zip(np.indices(view.shape), view.strides, strict=True))
        items = [self.read(view.items[int(i)]) for i in np.ravel(at)]
        if self.single:
            return np.array(items).reshape(view.shape)
        lanes = [np.ma.asarray(np.broadcast_to(i, len(self.threads))) for i in items]
        stacked = np.ma.stack(lanes, axis=1)
        return stacked.reshape(len(self.threads), *view.shape).view(Lanes)

    def _read_container(self, view: views.Container) -> Any:
        items = {key: self.attempt(item) for key, item in view.items.items()}
        if view.kind in ("list", "tuple"):
            return list(items.values()) if view.kind == "list" else tuple(items.values())
        return items if view.kind == "dict" else Record(view.kind, items)

    def attempt(self, view: Any) -> Any:
        """The value of a view, or why there is none."""
        try:
            return self.read(view)
        except Unreadable as error:
            return Unknown(error)

    def _read_plain(self, view: views.Plain) -> Any:
        return view.value

    def _read_missing(self, view: views.Missing) -> Any:
        raise Unreadable(view.reason)


class Record:
    """The attributes of an object of the kernel's."""

    def __init__(self, kind: str, items: dict[str, Any]) -> None:
        self.__dict__.update(items)
        self.record = kind, items


def _plain(values: np.ndarray, mask: np.ndarray) -> Any:
    """A masked array, or a plain one where nothing is masked."""
    return np.ma.MaskedArray(values, mask=mask) if mask.any() else values


def barrier_state(ctx: Any, cta: int, slot: int) -> BarrierState:
    """The state of an mbarrier; its count is 0 where there is none."""
    state = ctx.mbarriers.at(cta, slot)
    columns = mbarriers.PHASE, mbarriers.PENDING, mbarriers.MISSING, mbarriers.COUNT
    phase, pending, missing, count = (int(state[column]) for column in columns)
    return BarrierState(phase, pending, missing, count)
