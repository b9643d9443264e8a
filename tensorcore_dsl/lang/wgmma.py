"""wgmma: descriptors of shared memory, asynchronous products, and the waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import LayoutError, OperandError
from tensorcore_dsl.ir.verify import SWIZZLES
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.descriptor import FIELDS, pack_descriptor
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.lang.async_copy import check_pending
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.pointer import own_address
from tensorcore_dsl.lang.tiles import Tile, same_elements
from tensorcore_dsl.lang.warp import check_choice
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe, is_number
from tensorcore_dsl.values.values import Element, RegisterGroup, Scalar

MAX_PENDING = 7  # groups after wgmma_wait (9.7.15.7.3)


def wgmma_async(
    instr: Instruction,
    acc: RegisterGroup,
    a: Any,
    b: Tile,
    *,
    accumulate: Any = True,
    a_major: str = "k",
    b_major: str = "k",
    negate_a: bool = False,
    negate_b: bool = False,
    metadata: Sequence[Any] = (),
) -> RegisterGroup:
    """Issue acc + a @ b for all steps along K, as asynchronous products of a warpgroup.

    Call `wgmma_fence` before, `wgmma_commit` and `wgmma_wait` after: the result is complete only
    then. Registers of A and of the metadata are read asynchronously: do not write them before
    `wgmma_wait`.

    Parameters
    ----------
    instr : Instruction
        `tc.wgmma.m64n128k16(...)`; `tc.wgmma.sp` takes the stored half of A.
    acc : fragment
        Accumulators, `instr.d`.
    a : Tile or list of fragments
        A view of shared memory (see `wgmma_descriptor`), or fragments of `instr.a`, one for each
        step of K.
    b : Tile
        A view of shared memory.
    accumulate : bool or predicate
        Where false, the first step leaves `acc` out.
    a_major, b_major : {"k", "mn"}
        Along which axis the views are contiguous.
    negate_a, negate_b : bool
        Multiply by -1, for f16, bf16 and tf32.
    metadata : sequence of scalars
        Of a sparse product: 32-bit words in the order of K; each serves as many steps as the
        instruction has selectors.

    Returns
    -------
    fragment
        The accumulators, complete after `wgmma_wait`.

    Raises
    ------
    OperandError
        An instruction of another kind, views of another shape or type, steps that do not agree,
        words of metadata missing, an option that the instruction does not have.
    LayoutError
        A view that no descriptor describes.
    ArchError
        Another target than sm_90a.

    Notes
    -----
    `wgmma.mma_async`, section 9.7.15.5.2 of the PTX manual (sparse: 9.7.15.6.3).

    Examples
    --------
    >>> mma = tc.wgmma.m64n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel(threads=128)
    ... def product(a: tc.Array, b: tc.Array, d: tc.Array):
    ...     left = tc.shared((64, 64), a.dtype, swizzle=128)
    ...     right = tc.shared((8, 64), b.dtype, swizzle=128)
    ...     tc.copy_tile(left, a, (0, 0))
    ...     tc.copy_tile(right, b, (0, 0))
    ...     tc.cp_async_commit()
    ...     tc.cp_async_wait(0)
    ...     tc.fence_proxy_async()
    ...     tc.barrier()
    ...     acc = mma.d.zeros()
    ...     tc.wgmma_fence()
    ...     acc = tc.wgmma_async(mma, acc, left, right)
    ...     tc.wgmma_commit()
    ...     tc.wgmma_wait(0)
    ...     tc.store_elements(d, acc)
    >>> a, b = np.ones((64, 64), np.float16), np.ones((8, 64), np.float16)
    >>> d = np.zeros((64, 8), np.float32)
    >>> product[1, 128](a, b, d)
    >>> float(d[0, 0])
    64.0
    """
    _check_form(instr, a)
    check_choice("a_major", a_major, ("k", "mn"))
    check_choice("b_major", b_major, ("k", "mn"))
    assert instr.shape is not None
    rows, columns, depth = instr.shape
    stored = depth // 2 if "sparse" in instr.params else depth
    _check_matrix(instr, "b", b, b_major, columns)
    if isinstance(a, Tile):
        _check_matrix(instr, "a", a, a_major, rows)
    steps = _steps(instr, "b", b, b_major, depth)
    metadata_options = _metadata(instr, steps, metadata)
    of_a = _steps(instr, "a", a, a_major, stored) if isinstance(a, Tile) else len(a)
    if of_a != steps:
        raise OperandError(f"{instr}: a has {of_a} steps of K, b has {steps}")
    for tile, major in ((a, a_major), (b, b_major)):
        if isinstance(tile, Tile) and tile.ndim in (2, 3):
            _check_rows(tile, major)
    for step in range(steps):
        operands_by_name = {
            "c": acc, "desc_b": wgmma_descriptor(_k_part(b, b_major, step * depth, depth), b_major),
            "scale_d": accumulate if step == 0 else True, "scale_a": -1 if negate_a else 1,
            "scale_b": -1 if negate_b else 1, "trans_a": int(a_major == "mn"),
            "trans_b": int(b_major == "mn"), **metadata_options[step],
        }  # fmt: skip
        if isinstance(a, Tile):
            operands_by_name["desc_a"] = wgmma_descriptor(_k_part(a, a_major, step * stored, stored), a_major)
        else:
            operands_by_name["a"] = a[step]
        acc = instr(*_operands(instr, operands_by_name))
    return acc


def wgmma_fence() -> None:
    """Order earlier accesses to the accumulators and to A's registers before the next wgmma.

    Raises
    ------
    ArchError
        Another target than sm_90a.

    See Also
    --------
    wgmma_async : With an example.

    Notes
    -----
    `wgmma.fence`, section 9.7.15.7.1 of the PTX manual.
    """
    emit(names.WGMMA_FENCE)


def wgmma_commit() -> None:
    """Close the group of this warpgroup's wgmma since the last commit.

    Raises
    ------
    ArchError
        Another target than sm_90a.

    See Also
    --------
    wgmma_async : With an example.

    Notes
    -----
    `wgmma.commit_group`, section 9.7.15.7.2 of the PTX manual.
    """
    emit(names.WGMMA_COMMIT)


def wgmma_wait(pending: int = 0) -> None:
    """Wait until at most `pending` groups of wgmma are in flight.

    Parameters
    ----------
    pending : int
        Groups, 0 to 7, known at compile time.

    Raises
    ------
    OperandError
        Another number.
    ArchError
        Another target than sm_90a.

    See Also
    --------
    wgmma_async : With an example.

    Notes
    -----
    `wgmma.wait_group`, section 9.7.15.7.3 of the PTX manual.
    """
    check_pending(pending, MAX_PENDING)
    emit(names.WGMMA_WAIT, pending)


def wgmma_descriptor(tile: Tile, major: str = "k") -> Element:
    """The matrix descriptor of a view of shared memory.

    A run-time index may select whole swizzle periods (`tile[stage]`); the rest of the view's offset
    is known at compile time.

    Parameters
    ----------
    tile : Tile
        With major "k": (rows, K) or (atoms, rows, K), K contiguous, rows of memory as wide as the
        swizzle. With major "mn" (16-bit types): (atoms, K, width), each atom K rows of memory of
        `width` elements.
    major : {"k", "mn"}
        The axis along which the view is contiguous.

    Returns
    -------
    scalar
        b64, for an instruction of `tc.wgmma` that is called by itself.

    Raises
    ------
    LayoutError
        Another shape, rows that are not as wide as their swizzle, an offset known at run time only.
    OperandError
        A tile of another CTA.

    See Also
    --------
    wgmma_async : Makes the descriptors itself, with an example.

    Notes
    -----
    Section 9.7.15.5.1 of the PTX manual.
    """
    build = builder()
    own_address(tile, names.WGMMA)
    tile.check_bounds()
    size = tile.dtype.itemsize
    if major not in ("k", "mn") or tile.strides[-1] != 1 or tile.ndim not in (2, 3):
        raise LayoutError(
            f'a descriptor needs major "k" or "mn" and a view whose last axis runs along memory, '
            f"not major {major!r} and strides {tile.strides}"
        )
    _check_rows(tile, major)
    if major == "mn" and (size != 2 or tile.ndim != 3):
        raise LayoutError("MN-major operands have 16-bit elements and views (atoms, K, width)")
    leading = tile.strides[0] * size if major == "mn" else 16
    origin, offset = build.split_constant(tile.origin)
    # In a cluster, the bits above hold the CTA's rank, where the descriptor has other fields.
    start = build.apply("and", build.apply("rshift", origin, 4), FIELDS["start"].mask)
    if isinstance(tile.offset, Scalar):
        raise LayoutError(
            "an operand of wgmma starts at a place that is known at compile time, or at whole "
            f"periods of the swizzle, {tile.period} bytes: make the tile "
            f"{_staged((*tile.shape[:-1], tile.strides[-2]))} and pass tile[stage]; steps of K "
            "are made for whole tiles, or by tc.static_range"
        )
    offset_bytes = offset + int(tile.offset)
    # An index like warpgroup - 1 makes `offset_bytes` negative, modulo 2^32: it is added, not packed.
    offset_bytes = (offset_bytes + (1 << 31)) % (1 << 32) - (1 << 31)
    bits = pack_descriptor(0, leading, 8 * tile.swizzle, tile.swizzle)
    low = build.apply("add", start, (bits + (offset_bytes >> 4)) & 0xFFFFFFFF).bits(dtypes.b32)
    result: Scalar = emit(names.pack(64), low, build.literal(bits >> 32, dtypes.u32))
    return MatrixDescriptor(result, tile, major)


class MatrixDescriptor(Scalar):
    """The descriptor of a view, which the instructions that take it must not read beyond."""

    def __init__(self, bits: Scalar, tile: Tile, major: str) -> None:
        super().__init__(bits.value, bits.dtype)
        self.tile, self.major = tile, major

    def check_reader(self, instr: Instruction, name: str, turned: Any) -> None:
        """OperandError unless the view has what `instr` reads as operand `name`, "a" or "b".

        turned: its operand trans_a or trans_b, 1 for MN-major views; 0 if it has none.
        """
        tile, major = self.tile, "mn" if is_number(turned) and turned else "k"
        assert instr.shape is not None
        rows, columns, depth = instr.shape
        wanted = rows if name == "a" else columns
        if name == "a" and "sparse" in instr.params:
            depth //= 2
        *atoms, outer, inner = tile.shape
        along, k = (outer, inner) if self.major == "k" else (inner, outer)
        along *= atoms[0] if atoms else 1
        what = "rows" if name == "a" else "columns"
        dtype = dtypes.named(instr.params[name])
        if major != self.major:
            raise OperandError(
                f"{instr} reads {name} with major {major!r} (trans_{name} is "
                f"{int(major == 'mn')}); the descriptor has major {self.major!r}"
            )
        if along < wanted or k < depth or tile.dtype.bits != dtype.bits:
            raise OperandError(
                f"{instr} reads {wanted} {what} and {depth} of K of {dtype} at the descriptor of "
                f"{name}; it describes a view of {along} {what} and {k} of K of {tile.dtype}"
            )


def _check_rows(tile: Tile, major: str) -> None:
    """LayoutError, with the shape to write, unless rows of memory are as wide as their swizzle."""
    *_, rows, _ = tile.shape
    size, swizzle = tile.dtype.itemsize, tile.swizzle
    width = tile.strides[-2] * size
    if width == swizzle:
        return
    fitting = swizzle or (width if width in SWIZZLES else SWIZZLES[-1])
    count: Sequence[int] = (width // fitting,) if width >= 2 * fitting else ()
    shape = *count, rows, fitting // size
    advised = f"make it {shape} with swizzle={fitting}"
    if count and major == "k":
        advised += f" and pass tile[index], or {_staged(shape)} and pass tile[stage, index]"
    raise LayoutError(
        f"wgmma reads rows as wide as their swizzle; rows have {width} bytes, the swizzle "
        f"{swizzle}: {advised}"
    )


def _staged(shape: Sequence[int]) -> str:
    return f"(STAGES, {', '.join(map(str, shape))})"


def _check_form(instr: Instruction, a: Any) -> None:
    """OperandError unless `instr` is a wgmma that takes A from where `a` is."""
    if instr.opcode != names.WGMMA or instr.shape is None:
        raise OperandError(f"wgmma_async issues instructions of tc.wgmma, not {instr}")
    if not isinstance(a, (Tile, list, tuple)):
        raise OperandError(f"{instr}: a must be a shared tile or a list of fragments, not {describe(a)}")
    variants = [v for v in map(instr.in_registers, instr.operands) if v]
    if variants and not isinstance(a, Tile):
        raise OperandError(
            f"{instr} reads a from shared memory; tc.instruction({variants[0]!r}) takes fragments"
        )
    if not variants and isinstance(a, Tile):
        raise OperandError(
            f"{instr} takes a list of fragments, one for each step of K, as a, not {describe(a)}"
        )


def _check_matrix(instr: Instruction, name: str, tile: Any, major: str, wanted: int) -> None:
    """OperandError unless a view has the element type of an operand, and its rows (columns, of
    B)."""
    if not isinstance(tile, Tile):
        raise OperandError(f"{instr}: {name} must be a shared tile, not {describe(tile)}")
    dtype = dtypes.named(instr.params[name])
    if not same_elements(tile.dtype, dtype):
        raise OperandError(f"{instr}: {name} has {dtype} elements; {tile.described} was given")
    if tile.ndim not in (2, 3):
        return  # the descriptor says what is wrong
    *atoms, outer, inner = tile.shape
    if major == "mn" and atoms:
        wanted = -(-wanted // inner) * inner  # a part of the last atom may be left out
    if major == "k":
        extents = outer * (atoms[0] if atoms else 1)
        dense = not atoms or atoms[0] == 1 or tile.strides[0] == outer * tile.strides[1]
    else:
        extents = inner * (atoms[0] if atoms else 1)
        dense = not atoms or atoms[0] == 1 or inner * tile.dtype.itemsize == tile.swizzle
    what, axis = ("rows", "M") if name == "a" else ("columns", "N")
    lies = f'({axis}, K) = ({wanted}, K), K contiguous; {name}_major="mn" takes (atoms, K, width)'
    if major == "mn":
        lies = f"(atoms, K, width), of which atoms x width is {axis} = {wanted}"
    if extents != wanted:
        raise OperandError(
            f"{instr}: {name} has {wanted} {what}; a view with {extents}, of shape "
            f"{tuple(tile.shape)} and major {major!r}, was given: {name} lies as {lies}"
        )
    if tile.strides[-1] != 1:
        raise LayoutError(
            f"{instr}: the last axis of {name} runs along memory; a view of shape "
            f"{tuple(tile.shape)} with strides {tuple(tile.strides)} was given: {name} lies as "
            f"{lies}"
        )
    if not dense:
        raise OperandError(
            f"{instr}: the {atoms[0]} atoms of {name} do not follow each other in memory (shape "
            f"{tuple(tile.shape)}, strides {tuple(tile.strides)}, major {major!r})"
        )


def _steps(instr: Instruction, name: str, tile: Tile, major: str, depth: int) -> int:
    """The number of steps of `depth` that a view has along K."""
    size: int = tile.shape[-1 if major == "k" else -2]
    if size < depth or size % depth:
        raise OperandError(
            f"{instr} takes {depth} of K at a step, and views of whole steps; {name} has {size} "
            f"of K (shape {tuple(tile.shape)})"
        )
    return size // depth


def _metadata(instr: Instruction, steps: int, words: Sequence[Any]) -> list[dict[str, Any]]:
    """Metadata and selector of each step; empty for dense instructions."""
    choices = next((len(o.values or ()) for o in instr.operands if o.name == "selector"), 0)
    wanted = -(-steps // choices) if choices else 0
    if len(words) != wanted:
        raise OperandError(
            f"{instr} takes {wanted} words of metadata for {steps} steps of K; {len(words)} "
            f"{'was' if len(words) == 1 else 'were'} given"
        )
    if not choices:
        return [{}] * steps
    bits = [word.bits(dtypes.b32) if isinstance(word, Scalar) else word for word in words]
    return [{"meta": bits[i // choices], "selector": i % choices} for i in range(steps)]


def _operands(instr: Instruction, by_name: dict[str, Any]) -> list[Any]:
    """The operands in order; OperandError for a sign or transposition that `instr` lacks."""
    names = [o.name for o in instr.operands]
    for name, neutral in (("trans_a", 0), ("trans_b", 0), ("scale_a", 1), ("scale_b", 1)):
        if name not in names and by_name[name] != neutral:
            raise OperandError(f"{instr} has no {name}: operands are K-major and not negated")
    return [by_name[name] for name in names]


def _k_part(tile: Tile, major: str, k: int, depth: int) -> Tile:
    part: Tile = tile[..., k : k + depth] if major == "k" else tile[:, k : k + depth, :]
    return part
