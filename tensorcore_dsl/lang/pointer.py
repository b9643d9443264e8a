"""Pointers: addresses of elements, and loads and stores through them."""

from __future__ import annotations

from math import prod
from typing import Any, SupportsIndex

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType, DTypeLike, as_dtype
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.constants import const_bits
from tensorcore_dsl.ir.nodes import Type
from tensorcore_dsl.isa import names
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe, is_number, literal
from tensorcore_dsl.values.values import Mask, RegisterGroup, Scalar

from tensorcore_dsl.lang.bounds import (  # isort: skip
    Bound,
    Bounded,
    ProductBound,
    RankBound,
    frozen,
    step_bounds,
)

MAX_CLUSTER_CTAS = 16
CLUSTER_SPACE = "shared::cluster"  # addresses in the shared memory of any CTA of the cluster
_SWIZZLED_BITS = {0: 0, 32: 0x10, 64: 0x30, 128: 0x70}  # XORed with the bits 3 above


def swizzled(address: Any, swizzle: int) -> Any:
    """Address of a byte in memory that a swizzle permutes. The function is its own inverse.

    address: the byte's address, or its offset from a multiple of the swizzle's period.
    """
    return address ^ address >> 3 & _SWIZZLED_BITS[swizzle] if swizzle else address


def _comparison(relation: str) -> Any:
    def method(self: Pointer, other: Any) -> Any:
        if not isinstance(other, Pointer):
            return NotImplemented
        self._check_alike(other)
        return builder().apply(relation, self.linear, other.linear)

    return method


class Pointer(Bounded):
    """The address of an element: `pointer + n` is n elements further, `pointer[n]` its value.

    Attributes
    ----------
    dtype : dtype
        Of the elements.
    space : str
        "global", "shared", or "shared::cluster" for another CTA's memory.
    swizzle : int
        Of the tile that it points into. Steps count elements before the swizzle.

    See Also
    --------
    load : Loads through one, with an example.

    Notes
    -----
    bounds: what the indices of the element must stay in. They are known until the pointer moves,
    or control flow joins it with another one; then it must stay in its area.
    """

    parts = ("address", "area")

    def __init__(
        self, address: Any, dtype: DType, space: str, bounds: tuple[Bound, ...] = (), swizzle: int = 0
    ) -> None:
        self.address, self.dtype, self.space, self.bounds = address, dtype, space, bounds
        self.swizzle = swizzle

    @property
    def linear(self) -> Any:
        """The address that the element would have without the swizzle."""
        return swizzled(self.address, self.swizzle)

    def with_parts(self, **changed: Any) -> Pointer:
        """The pointer with other attributes; at another address it only has its area."""
        if changed.get("address", self.address) is not self.address:
            changed = {"bounds": (), "moved_away": True, **changed}
        return super().with_parts(**changed)

    def __add__(self, elements: Any) -> Pointer:
        _check_steps(elements)
        if is_number(elements) and elements == 0:
            return self
        size = element_size(self.dtype)
        # A step of whole periods of the swizzle leaves the permutation as it is.
        swizzle = self.swizzle
        if swizzle and builder().divisor(elements) * size % (8 * swizzle) == 0:
            swizzle = 0
        start = swizzled(self.address, swizzle)
        end = swizzled(byte_offset(start, elements, size), swizzle)
        steps = [bound for bound in self.bounds if isinstance(bound, ProductBound)]
        return self.with_parts(address=end, bounds=(*steps, *step_bounds(elements)))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        """Elements between two pointers, or the pointer `other` elements before."""
        if not isinstance(other, Pointer):
            _check_steps(other)
            return self + (-other)
        self._check_alike(other)
        signed = dtypes.s64 if self.space == "global" else dtypes.s32
        return (self.linear - other.linear).bits(signed) // element_size(self.dtype)

    __eq__, __ne__ = _comparison("eq"), _comparison("ne")
    __lt__, __le__ = _comparison("lt"), _comparison("le")
    __gt__, __ge__ = _comparison("gt"), _comparison("ge")
    __hash__ = None  # type: ignore[assignment]

    def _check_alike(self, other: Pointer) -> None:
        if self.described != other.described:
            raise OperandError(f"{self.described} and {other.described} do not combine")

    def __getitem__(self, index: Any) -> Any:
        return (self + index).load()

    def __setitem__(self, index: Any, value: Any) -> None:
        (self + index).store(one_element(value))

    def as_type(self, dtype: DTypeLike) -> Pointer:
        """Read the address as another type.

        Parameters
        ----------
        dtype : dtype
            Of the elements from there on.

        Returns
        -------
        Pointer
            At the same address.

        Raises
        ------
        ArgumentError
            No element type.
        """
        return self.with_parts(dtype=as_dtype(dtype))

    def remote(self, rank: SupportsIndex) -> Pointer:
        """Point to this element in the shared memory of CTA `rank` of the cluster.

        Parameters
        ----------
        rank : integer
            Of the CTA in the cluster.

        Returns
        -------
        Pointer
            In the other CTA's shared memory.

        Raises
        ------
        OperandError
            A pointer to global memory, or no such rank.
        """
        if self.space != "shared":
            raise OperandError(f"{self.described} has no peers: tiles of the CTA's own memory do")
        return self.with_parts(
            address=peer_address(self.address, rank),
            space=CLUSTER_SPACE,
            bounds=(*self.bounds, *rank_bounds(rank)),
            area=peer_area(self.area, rank),
            moved_away=self.moved_away,
        )

    def load(self, count: int = 1, *, pred: Any = None, otherwise: Any = 0, cache: str = "") -> Any:
        """One element, or a vector of `count` from consecutive addresses.

        Parameters
        ----------
        count : int
            1, 2, 4, 8 or 16 elements of at most 16 bytes, known at compile time.
        pred : predicate, optional
            Load only where it holds; elsewhere the result is `otherwise`.
        otherwise : number
            See `pred`.
        cache : str
            Cache modifiers such as ".nc", ".cg", ".L1::evict_last".

        Returns
        -------
        Scalar or RegisterGroup
            One element, or a vector.

        Raises
        ------
        OperandError
            Another count, or one that is not known at compile time.
        """
        if not isinstance(count, int):
            raise OperandError(
                f"the number of elements to load is known at compile time, not {describe(count)}"
            )
        return _load(self, count, pred, otherwise, cache)

    def store(self, value: Any, *, pred: Any = None, cache: str = "", barrier: Any = None) -> None:
        """Store an element, or the elements of a vector, list or tuple to successive addresses.

        Parameters
        ----------
        value : number, scalar, vector or list
            Converted to the type of the pointer.
        pred : predicate, optional
            Store only where it holds.
        cache : str
            Cache modifiers.
        barrier : Mbarrier, optional
            See `tensorcore_dsl.store`.

        Raises
        ------
        OperandError
            Another number of elements, a fragment, a constant that the type does not hold.
        """
        _store(self, value, pred, cache, barrier)

    @property
    def described(self) -> str:
        swizzle = f", {self.swizzle}-byte swizzle" if self.swizzle else ""
        return f"a {self.space} pointer to {self.dtype}{swizzle}"

    def __repr__(self) -> str:
        return f"<{self.described}>"


def load(pointer: Pointer, count: int = 1, *, pred: Any = None, otherwise: Any = 0, cache: str = "") -> Any:
    """Load through a pointer: `pointer.load(...)`.

    Parameters
    ----------
    pointer : Pointer
        `array.at(...)` or `tile.at(...)`; aligned to the bytes that are loaded.
    count : int
        Elements from consecutive addresses: 1, 2, 4, 8 or 16, at most 16 bytes.
    pred : predicate, optional
        Load only where it holds; elsewhere the result is `otherwise`.
    otherwise : number
        See `pred`; 0 for vectors of 8- and 16-bit elements.
    cache : str
        Cache modifiers: ".nc", ".cg", ".L1::evict_last", ...

    Returns
    -------
    scalar or vector
        One element, or a vector of `count`.

    Raises
    ------
    OperandError
        No pointer, another count, a count that is not known at compile time.
    OutOfBounds, Misaligned, Uninitialised
        In emulation: an address outside the array, not aligned, or with nothing in it.

    Notes
    -----
    `ld`, section 9.7.9.8 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def quadruples(x: tc.Array, out: tc.Array):
    ...     four = tc.load(x.at(4 * tc.threadIdx.x), 4)
    ...     out[tc.threadIdx.x] = four[0] + four[1] + four[2] + four[3]
    >>> x, out = np.arange(128, dtype=np.float32), np.zeros(32, np.float32)
    >>> quadruples[1, 32](x, out)
    >>> out[:3]
    array([ 6., 22., 38.], dtype=float32)
    """
    _check_pointer(pointer, "tc.load(x.at(i, j), pred=...)")
    return pointer.load(count, pred=pred, otherwise=otherwise, cache=cache)


def store(pointer: Pointer, value: Any, *, pred: Any = None, cache: str = "", barrier: Any = None) -> None:
    """Store through a pointer: `pointer.store(...)`.

    Parameters
    ----------
    pointer : Pointer
        `array.at(...)` or `tile.at(...)`; aligned to the bytes that are stored.
    value : number, scalar, vector or list
        One element, or several to consecutive addresses: 1, 2, 4, 8 or 16, at most 16 bytes.
        Converted to the type of the pointer.
    pred : predicate, optional
        Store only where it holds.
    cache : str
        Cache modifiers: ".wt", ".cs", ...
    barrier : Mbarrier, optional
        Store asynchronously to a CTA of the cluster: to `tile.remote(rank).at(...)`, 1, 2 or 4
        words of 32 or 64 bits. `barrier.remote(rank)` counts the bytes. That CTA reads them when it
        has waited for the phase.

    Raises
    ------
    OperandError
        No pointer, another number of elements, a fragment, a constant that the type does not hold;
        with `barrier=`, a pointer or barrier that is not remote, other words, cache modifiers.
    OutOfBounds, Misaligned
        In emulation: an address outside the array, or not aligned.
    ArchError
        With `barrier=`: a target before sm_90.

    Notes
    -----
    `st`, section 9.7.9.11 of the PTX manual; with `barrier=`, `st.async`, section 9.7.9.12.

    Examples
    --------
    >>> @tc.kernel
    ... def pairs(x: tc.Array):
    ...     tc.store(x.at(2 * tc.threadIdx.x), [1, -1])
    >>> x = np.zeros(64, np.float32)
    >>> pairs[1, 32](x)
    >>> x[:4]
    array([ 1., -1.,  1., -1.], dtype=float32)

    Each CTA of a pair gives its rank to the other one, which waits for 4 bytes:

    >>> @tc.kernel(threads=32)
    ... def exchange(out: tc.Array):
    ...     tc.cluster_size(2)
    ...     cell, bar, peer = tc.shared(1, tc.s32), tc.mbarriers(1)[0], 1 - tc.cluster_rank()
    ...     if tc.threadIdx.x == 0:
    ...         bar.init(1)
    ...         tc.fence_mbarrier_init()
    ...         bar.arrive_expect_tx(4)
    ...     tc.cluster_sync()
    ...     if tc.threadIdx.x == 0:
    ...         tc.store(cell.remote(peer).at(0), 10 + peer, barrier=bar.remote(peer))
    ...         bar.wait(0)
    ...         out[tc.blockIdx.x] = cell[0]
    ...     tc.cluster_sync()
    >>> out = np.zeros(2, np.int32)
    >>> exchange[2, 32](out)
    >>> out
    array([10, 11], dtype=int32)
    """
    _check_pointer(pointer, "tc.store(x.at(i, j), value, pred=...)")
    pointer.store(value, pred=pred, cache=cache, barrier=barrier)


def _check_pointer(pointer: Any, example: str) -> None:
    if not isinstance(pointer, Pointer):
        raise OperandError(f"a pointer is needed, {example}, not {describe(pointer)}")


def one_element(value: Any) -> Any:
    """The value of an item assignment, which stores one element; OperandError for several."""
    _refuse_fragment(value)
    if isinstance(value, (RegisterGroup, list, tuple)):
        raise OperandError(
            f"an item is one element, not {describe(value)}; x.at(i).store(values) stores a vector "
            "from x[i] on"
        )
    return value


def check_holds(number: Any, dtype: DType) -> None:
    """OperandError for a constant that a signed integer of this type reads back as negative."""
    if dtype.kind == "s" and is_number(number) and number >= 1 << dtype.bits - 1:
        raise OperandError(
            f"{number} does not fit in {dtype}, whose largest is {(1 << dtype.bits - 1) - 1}: it "
            f"would be read back as another number; {int(number) - (1 << dtype.bits)} has its bits"
        )


def _refuse_fragment(value: Any) -> None:
    """OperandError for a fragment, whose elements are no neighbours in memory."""
    group = value.group if isinstance(value, Mask) else value
    if not isinstance(group, RegisterGroup) or group.layout is None:
        return
    if isinstance(value, Mask):
        raise OperandError(f"{value.described} cannot be stored: tc.select(condition, 1, 0) can")
    whole = "elements"
    if 1 in (group.layout.rows, group.layout.cols):
        whole = "rows" if group.layout.cols == 1 else "columns"
    raise OperandError(
        f"{value.described} cannot be stored through a pointer: its elements have places of their "
        f"own. tc.store_{whole}(array, values, origin=...) stores them all, values[slot] is one"
    )


# -- addresses ---------------------------------------------------------------------------------


def peer_address(address: Any, rank: Any) -> Any:
    """The address of the same offset in the shared memory of CTA `rank` of the cluster (mapa)."""
    build = builder()
    if isinstance(rank, Scalar) and rank.dtype.is_integer:
        rank = build.convert(rank, dtypes.u32)
    elif not is_number(rank) or isinstance(rank, (bool, float)):
        raise OperandError(f"the rank of a CTA is an integer, not {describe(rank)}")
    elif not 0 <= rank < (peers := prod(build.kernel.cluster or (MAX_CLUSTER_CTAS,))):
        raise OperandError(f"CTA {rank} of the cluster does not exist: ranks are 0 to {peers - 1}")
    base, offset = build.split_constant(address)
    base = address if base is None else base
    return build.apply("add", build.named(names.MAP_SHARED, base, rank), offset)


def peer_area(area: tuple[Any, ...], rank: Any) -> tuple[Any, ...]:
    """Map the area to the shared memory of CTA `rank` of the cluster."""
    return (peer_address(area[0], rank), area[1]) if area else ()


def rank_bounds(rank: Any) -> tuple[Bound, ...]:
    """The bound of a run-time rank in checked builds."""
    build = builder()
    if not build.checks or not isinstance(rank, Scalar):
        return ()
    cluster = build.kernel.cluster
    ctas = prod(cluster) if cluster else build.special("cluster_nctarank")
    return (RankBound(frozen(rank), ctas, "the cluster"),)


def own_address(pointer: Any, what: str) -> Any:
    """The address of a tile or pointer; OperandError if it is another CTA's."""
    if pointer.space == CLUSTER_SPACE:
        raise OperandError(
            f"{what} works on the CTA's own shared memory, not on {pointer.described}: load from "
            "there, and store to there"
        )
    return pointer.address


def element_size(dtype: DType) -> int:
    """Bytes of an element in memory."""
    return 1 if dtype.kind == "p" else dtype.itemsize


def _check_steps(elements: Any) -> None:
    integer = elements.dtype.is_integer if isinstance(elements, Scalar) else is_number(elements)
    if not integer or isinstance(elements, float):
        raise OperandError(f"a pointer moves by integers, not by {describe(elements)}")


def byte_offset(address: Any, elements: Any, size: int) -> Any:
    """address + elements * size, in the type of the address."""
    build = builder()
    wide = address.dtype
    if not isinstance(elements, Scalar):
        return build.apply("add", address, int(elements) * size)
    base, offset = build.split_constant(elements)
    if base is None or (elements.dtype.kind == "u" and elements.dtype.bits < wide.bits):
        base, offset = elements, 0  # an unsigned sum wraps before it is widened
    scaled = _scaled(base, size, wide)
    return build.apply("add", build.apply("add", address, scaled), offset * size)


def _scaled(index: Scalar, size: int, wide: DType) -> Any:
    """index * size, in the type of the address."""
    build = builder()
    if wide.bits == 64 and index.dtype.bits == 32 and index.dtype.is_integer:
        product = build.named(names.multiply_wide(index.dtype), index, size)
        return Scalar(product.value, wide)
    if index.dtype.bits != wide.bits:
        index = build.convert(index, wide)
    return build.apply("mul", Scalar(index.value, wide), size)


# -- loads and stores --------------------------------------------------------------------------


def _check_width(dtype: DType, count: int) -> None:
    """OperandError unless one instruction can move `count` elements."""
    if dtype.storage_bits < 8 or count not in (1, 2, 4) or dtype.bits * count > 128:
        raise OperandError(
            "a load or store moves 1, 2, 4, 8 or 16 elements of 8 bits or more, and at most 16 "
            f"bytes; {count} {dtype} were asked for"
        )


def _words(dtype: DType, count: int) -> int:
    """The number of 32-bit words that move a vector of narrow elements; 0: not by words."""
    bits = dtype.storage_bits
    total = bits * count
    return total // 32 if bits in (8, 16) and total in (32, 64, 128) and count > 1 else 0


def _load(pointer: Pointer, count: int, pred: Any, otherwise: Any, cache: str) -> Any:
    build = builder()
    dtype = pointer.dtype
    if dtype.kind == "p":
        return _load(pointer.as_type(dtypes.u8), count, pred, otherwise, cache) != 0
    words = _words(dtype, count)
    if words:
        if is_number(otherwise) and otherwise:
            raise OperandError("otherwise= of a vector of narrow elements can only be 0")
        loaded = _load(pointer.as_type(dtypes.b32), words, pred, 0, cache)
        registers = [loaded] if isinstance(loaded, Scalar) else loaded.registers
        elements = [e for r in registers for e in build.unpack(r, dtype)]
        return build.pack(elements, Type(dtype, count))
    if is_number(otherwise):
        otherwise = const_bits(literal(otherwise, dtype))
    _check_width(dtype, count)
    name = names.load(pointer.space, dtype.storage_bits, count, cache)
    address = pointer.accessed(count * element_size(dtype), pred)
    result = build.named(name, address, pred=pred, otherwise=otherwise)
    if count == 1:
        return Scalar(result.value, dtype)
    return build.pack(result.registers, Type(dtype, count))


def _store(pointer: Pointer, value: Any, pred: Any, cache: str, barrier: Any = None) -> None:
    build = builder()
    dtype = pointer.dtype
    _refuse_fragment(value)
    for number in value if isinstance(value, (list, tuple)) else (value,):
        check_holds(number, dtype)
    width, count = dtype, 1
    if dtype.kind == "p" and barrier is None:
        byte = build.convert(value, dtype).to(dtypes.u8)
        _store(pointer.as_type(dtypes.u8), byte, pred, cache)
        return
    if isinstance(value, (RegisterGroup, list, tuple)):
        registers, width = _stored_registers(value, dtype)
        count = len(registers)
        packed = registers[0] if count == 1 else build.pack(registers, Type(width, count))
    else:
        packed = build.convert(value, dtype)
    _check_width(width, count)
    address = pointer.accessed(count * element_size(width), pred)
    if barrier is None:
        name = names.store(pointer.space, width.storage_bits, count, cache)
        build.named(name, address, packed, pred=pred)
        return
    check_async(pointer, barrier, "a store")
    if width.storage_bits not in (32, 64) or cache:
        raise OperandError(
            "an asynchronous store writes 1, 2 or 4 words of 32 or 64 bits, without cache "
            f"modifiers; {count} {width}{f' and {cache!r}' if cache else ''} were given"
        )
    name = names.store_async(width.storage_bits, count)
    build.named(name, address, packed, barrier.accessed(pred=pred), pred=pred)


def check_async(pointer: Pointer, barrier: Any, what: str) -> None:
    """OperandError unless both lie in a CTA of the cluster, by a rank."""
    if pointer.space != CLUSTER_SPACE or not getattr(barrier, "in_cluster", False):
        raise OperandError(
            f"{what} with barrier= goes to tile.remote(rank).at(...), and barrier= is "
            f"bars[i].remote(rank); got {describe(pointer)} and {describe(barrier)}"
        )


def _stored_registers(value: Any, dtype: DType) -> tuple[list[Any], DType]:
    """The registers to store and their type; narrow elements are packed where they fill words."""
    build = builder()
    if isinstance(value, RegisterGroup):
        value = (value.to(dtype) if value.dtype != dtype else value).elements()
    elements = [build.convert(v, dtype) for v in value]
    if not _words(dtype, len(elements)):
        bits = dtypes.named(f"b{dtype.storage_bits}")
        return [Scalar(e.value, bits) for e in elements], bits
    step = 32 // dtype.storage_bits
    starts = range(0, len(elements), step)
    packed = [build.pack_register(elements[i : i + step], dtype) for i in starts]
    return [Scalar(p.value, dtypes.b32) for p in packed], dtypes.b32
