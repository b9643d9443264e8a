"""`wgmma.mma_async`, dense and sparse, with its fence, commit and wait (9.7.15).

D is read and written: operand `c` must be in the result's registers. A comes through a descriptor
or from registers; PTX has one mnemonic for both, so the table appends `.registers` to the second.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import Requires
from tensorcore_dsl.errors import Divergence
from tensorcore_dsl.isa import fragments, sparse
from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.descriptor import Chunks, Descriptor
from tensorcore_dsl.isa.mma import FP8, INT8, SATURATE
from tensorcore_dsl.isa.spec import VOLATILE, WARP, Instruction, MmaOrdering, Operand, row
from tensorcore_dsl.layout import Formula, Layout

THREADS = 128
ASYNC = WARP | VOLATILE | {"async", "async_proxy", "inplace", "load", "tracked"}
ORDERING = MmaOrdering("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group", ("a", "meta"))
MMA, SPARSE = "9.7.15.5.2", "9.7.15.6.3"


# -- fragments ---------------------------------------------------------------------------------


def _c(thread: Any, slot: Any) -> tuple[Any, Any]:
    """D: every warp holds 16 rows; four slots cover 8 columns of rows r and r + 8."""
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (slot // 2 % 2)
    return row, 8 * (slot // 4) + 2 * (thread % 4) + slot % 2


def _a(e: int) -> Formula:
    """A in registers: every warp holds 16 rows, laid out as in `mma`."""
    inner = fragments.a_formula(16, e)

    def element(thread: Any, slot: Any) -> tuple[Any, Any]:
        row, col = inner(thread % 32, slot)
        return 16 * (thread // 32) + row, col

    return element


@cache
def d_layout(n: int, dtype: str) -> Layout:
    """D of m64n`n`; all n share one formula, so only the widest layout is checked."""
    if n != 256:
        d_layout(256, dtype)
    make = fragments.checked if n == 256 else fragments.unchecked
    return make(f"wgmma.D.64x{n}.{dtype}", 64, n, dtype, _c, threads=THREADS, any_type=True)


@cache
def a_layout(k: int, dtype: str) -> Layout:
    formula = _a(dtypes.named(dtype).per_register)
    return fragments.checked(f"wgmma.A.64x{k}.{dtype}", 64, k, dtype, formula, threads=THREADS)


# -- semantics ---------------------------------------------------------------------------------


def matrix(
    ctx: Context, instr: Instruction, name: str, bits: Any, rows: int, k: int, whole: np.ndarray,
    transposed: bool, out: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """(warpgroups, rows of A or columns of B, words), the lines of an operand that lie in memory
    along K. Transposed: elements, (warpgroups, rows, k) of A or (warpgroups, k, columns) of B.

    out: receives them.
    """
    element = dtypes.named(instr.params[name])
    words = np.broadcast_to(np.asarray(bits, np.uint64), (ctx.threads,)).reshape(-1, THREADS)
    outer, inner = (k, rows) if transposed else (rows, k)
    size = inner * element.bits // 8

    def find() -> Chunks:
        descriptor, own = Descriptor.of(instr, f"desc_{name}", words, whole)
        chunks = Chunks(descriptor.chunks(outer, size, transposed) & 0x3FFFF, own)
        ctx.tiles.check(instr, f"desc_{name}", descriptor, chunks, whole, outer, size * transposed)
        return chunks

    chunks = ctx.tiles.chunks(words, whole, (instr, name, transposed), find)
    across = transposed and name == "a"  # are neighbours in memory apart in the matrix?
    shape = (inner, outer) if across else (outer, inner if transposed else size // 4)
    found = np.empty((len(words), *shape), np.uint32) if out is None else out
    ctx.shared.read_chunks(
        instr, chunks, whole, found, element.itemsize if transposed else 4, across
    )
    return found


def whole_groups(ctx: Context, instr: Instruction) -> np.ndarray:
    """(warpgroups,) bool of the active warpgroups; Divergence if one is active in part."""
    if ctx.threads % THREADS:
        raise Divergence(f"{instr.mnemonic}: {ctx.threads} threads are not whole warpgroups")
    warps = ctx.whole_warps()
    if warps is None:
        return np.ones(ctx.threads // THREADS, bool)
    groups = warps.reshape(-1, 4)
    if (groups.any(1) != groups.all(1)).any():
        raise Divergence(f"{instr.mnemonic}: only some warps of a warpgroup are here")
    return np.asarray(groups.all(1))


class Buffers:
    """Memory for the operands of a product and what is prepared for them; it serves again and
    again, for one instruction of a program."""

    def __init__(self) -> None:
        self.a: np.ndarray | None = None
        self.b: np.ndarray | None = None
        self.prepared: Any = None
        self.arrays: tuple[np.ndarray, ...] = ()  # that it is prepared for


def multiply(
    ctx: Context, instr: Instruction, c: Any, *operands: Any, out: np.ndarray | None = None,
    buffers: Buffers | None = None,
) -> np.ndarray:  # fmt: skip
    """d = scale_a * a * scale_b * b + (c if scale_d else +0).

    out: receives d, contiguous or (as by `tc.emulate`) with the registers of a thread as neighbours.
    """
    from tensorcore_dsl.numerics import products

    given = dict(zip((o.name for o in instr.operands[1:]), operands, strict=True))
    whole = whole_groups(ctx, instr)
    product, maps = fragments.prepared(instr)
    buffers = buffers or Buffers()
    a, packed = _operand_a(ctx, instr, given, whole, product.stored, buffers)
    transposed = given.get("trans_b", 0) == 1
    b = buffers.b = matrix(
        ctx, instr, "b", given["desc_b"], product.n, product.k, whole, transposed, buffers.b
    )
    b = _negated(b, instr.params["b"], given.get("scale_b", 1))
    maps = _with_lines(instr, packed if transposed else packed | {"b"})
    c = fragments.image(ctx, instr, "c", c)
    keep = np.broadcast_to(np.asarray(given["scale_d"], bool), (ctx.threads,))
    if not keep.reshape(-1, THREADS)[whole].all():
        c = np.where(keep, c, np.uint32(0))
    more: dict[str, Any] = {}
    if product.sparse:
        places = sparse.selection(ctx, instr, given["meta"], given["selector"])
        more["selection"] = places.reshape(-1, 64, product.stored)
    if product.sparse or out is None or not out.flags.c_contiguous:
        return products.fragments(product, ctx.arch, maps, a, b, c, active=whole, out=out, **more)
    arrays = a, b, c, out
    if list(map(id, arrays)) != list(map(id, buffers.arrays)):
        buffers.arrays, buffers.prepared = arrays, products.in_place(
            product, ctx.arch, maps, [arrays]
        )
    buffers.prepared.run(whole, share=ctx.team.share_mask)
    return out


def _operand_a(
    ctx: Context, instr: Instruction, given: dict[str, Any], whole: np.ndarray, k: int,
    buffers: Buffers,
) -> tuple[np.ndarray, frozenset[str]]:  # fmt: skip
    """The register image of A, or what `matrix` finds at its descriptors; {"a"} if these are lines."""
    kind, sign = instr.params["a"], given.get("scale_a", 1)
    if "a" in given:
        return _negated(fragments.image(ctx, instr, "a", given["a"]), kind, sign), frozenset()
    transposed = given.get("trans_a", 0) == 1
    a = buffers.a = matrix(ctx, instr, "a", given["desc_a"], 64, k, whole, transposed, buffers.a)
    return _negated(a, kind, sign), frozenset() if transposed else frozenset("a")


@cache
def _with_lines(instr: Instruction, packed: frozenset[str]) -> Any:
    """The maps of a product whose operands of these names are lines."""
    return replace(fragments.prepared(instr)[1], packed=packed)


_SIGNS = {8: 0x80808080, 16: 0x80008000, 32: 0x80000000}  # sign bits of all elements of a register


def _negated(words: np.ndarray, kind: str, sign: int) -> np.ndarray:
    """Elements of opposite sign, packed or one in a word, whose upper bits nobody reads."""
    return words if sign == 1 else words ^ np.uint32(_SIGNS[dtypes.named(kind).bits])


def fence(ctx: Context, instr: Instruction) -> None:
    ctx.async_mma.fence()


def commit(ctx: Context, instr: Instruction) -> None:
    ctx.async_mma.commit()


def wait(ctx: Context, instr: Instruction, pending: int) -> None:
    ctx.async_mma.wait(pending)


# -- the table ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class WarpgroupFamily:
    """Instructions that differ in N and in the types of D, A and B.

    `options`: "trans" (16-bit types, transposed in memory on request), "scale" (floats, negated on
    request) or "" (integers). `k` is the depth of the dense shape; `sparse` doubles it.
    """

    k: int
    widths: tuple[int, ...]
    d: str
    ab: str
    options: str
    ptx: tuple[int, int]
    sparse: bool = False
    tail: str = ""
    satfinite: bool = False

    opcode = "wgmma"

    def instructions(self) -> Iterator[Instruction]:
        values = SATURATE if self.satfinite else ("",)
        every = itertools.product(
            ("", "registers"), self.widths, self.d.split(), fragments.pairs(self.ab), values
        )
        for source, n, d, (a, b), saturate in every:
            yield self._instruction(source, n, d, a, b, saturate)

    def _instruction(self, source: str, n: int, d: str, a: str, b: str, saturate: str) -> Instruction:
        k = self.k * 2 if self.sparse else self.k
        head = "wgmma.mma_async" + (".sp" if self.sparse else "")
        ptx = f"{head}.sync.aligned.m64n{n}k{k}{saturate}.{d}.{a}.{b}{self.tail}"
        params: dict[str, Any] = dict(
            family="wgmma", group="sp" if self.sparse else "", shape=f"m64n{n}k{k}",
            a=a, b=b, c=d, d=d, ptx=ptx,
        ) | ({"source": source} if source else {})  # fmt: skip
        params |= {"satfinite": "satfinite"} if saturate else {}
        params |= {"sparse": "sparse"} if self.sparse else {}
        params |= {"operation": "and"} if self.tail else {}
        operands = self._operands(source, n, k, a, d)
        names = ["d", *(o.name for o in operands[1:])]
        return Instruction(
            mnemonic=f"{ptx}.{source}" if source else ptx,
            results=(fragments.operand("d", d_layout(n, d)),), operands=operands,
            requires=Requires("90a"),
            version=max(self.ptx, (8, 4)) if a != b and a[0] in "us" else self.ptx,
            section=SPARSE if self.sparse else MMA, execute=multiply, effects=ASYNC,
            template=f"!{ptx} " + ", ".join(f"{{{name}}}" for name in names), tied="c",
            params=params, ordering=ORDERING,
        )  # fmt: skip

    def _operands(self, source: str, n: int, k: int, a: str, d: str) -> tuple[Operand, ...]:
        stored = k // 2 if self.sparse else k
        first = (
            fragments.operand("a", a_layout(stored, a)) if source else Operand("desc_a", dtypes.b64)
        )
        places = sparse.selectors(f"m16n8k{k}", a) if self.sparse else ()
        meta = (Operand("meta", dtypes.b32), _immediate("selector", places))
        signs = (_immediate("scale_a", (1, -1)), _immediate("scale_b", (1, -1)))
        turns = (_immediate("trans_a", (0, 1)), _immediate("trans_b", (0, 1)))
        return (
            fragments.operand("c", d_layout(n, d)),
            first,
            Operand("desc_b", dtypes.b64),
            *(meta if self.sparse else ()),
            Operand("scale_d", dtypes.pred),
            *(signs if self.options else ()),
            *((turns[1:] if source else turns) if self.options == "trans" else ()),
        )


def _immediate(name: str, values: tuple[int, ...]) -> Operand:
    return Operand(name, dtypes.s32, 1, "imm", None, values)


FLOAT = tuple(range(8, 257, 8))
# 8-bit integers: the syntax in 9.7.15.5.2 ends at 224, the table of shapes in 9.7.15.2 at 256.
WHOLE = (8, 16, 24, *range(32, 257, 16))

# fmt: off
FAMILIES = (
    #               k    N           d          a/b            options  ptx
    WarpgroupFamily(16,  FLOAT,      "f16 f32", "f16/f16",     "trans", (8, 0)),
    WarpgroupFamily(16,  FLOAT,      "f32",     "bf16/bf16",   "trans", (8, 0)),
    WarpgroupFamily(8,   FLOAT,      "f32",     "tf32/tf32",   "scale", (8, 0)),
    WarpgroupFamily(32,  FLOAT,      "f16 f32", FP8,           "scale", (8, 0)),
    WarpgroupFamily(32,  WHOLE,      "s32",     INT8,          "",      (8, 0), satfinite=True),
    WarpgroupFamily(256, WHOLE,      "s32",     "b1/b1",       "",      (8, 0), tail=".and.popc"),
    WarpgroupFamily(16,  FLOAT,      "f16 f32", "f16/f16",     "trans", (8, 2), sparse=True),
    WarpgroupFamily(16,  FLOAT,      "f32",     "bf16/bf16",   "trans", (8, 2), sparse=True),
    WarpgroupFamily(8,   FLOAT,      "f32",     "tf32/tf32",   "scale", (8, 2), sparse=True),
    WarpgroupFamily(32,  FLOAT,      "f16 f32", FP8,           "scale", (8, 2), sparse=True),
    WarpgroupFamily(32,  WHOLE,      "s32",     INT8,          "",      (8, 2), sparse=True, satfinite=True),
)
ORDER = WARP | VOLATILE | {"wgmma", "tracked"}
ROWS = (
    *FAMILIES,
    row("wgmma.fence.sync.aligned",        "",        "9.7.15.7.1", fence,  effects=ORDER, requires="90a", ptx="8.0"),
    row("wgmma.commit_group.sync.aligned", "",        "9.7.15.7.2", commit, effects=ORDER, requires="90a", ptx="8.0"),
    row("wgmma.wait_group.sync.aligned",   "n:#u32",  "9.7.15.7.3", wait,   effects=ORDER, requires="90a", ptx="8.0"),
)
# fmt: on
