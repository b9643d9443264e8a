"""`wgmma.mma_async`, dense and sparse, with its fence, commit and wait (9.7.15).

D is read and written: operand `c` must be in the result's registers. A comes through a descriptor
or from registers; PTX has one mnemonic for both, so the table appends `.registers` to the second.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
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
from tensorcore_dsl.isa.effects import VOLATILE, WARP, Effect
from tensorcore_dsl.isa.mma import FP8, INT8, SATURATE
from tensorcore_dsl.isa.spec import Instruction, MmaOrdering, Operand, row
from tensorcore_dsl.layout import Formula, Layout

THREADS = 128
ASYNC = WARP | VOLATILE | Effect.ASYNC | Effect.ASYNC_PROXY | Effect.INPLACE | Effect.LOAD | Effect.TRACKED
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


@dataclass(frozen=True)
class Lines:
    """Lines along K of an operand in shared memory, or its elements if it is transposed.

    Attributes
    ----------
    chunks : Chunks
        Chunks of memory that each warpgroup reads.
    shape : tuple of int
        Shape of the words: (rows of A or columns of B, words); transposed (rows, k) of A or
        (k, columns) of B.
    size : int
        Bytes of an element, or of a word.
    across : bool
        Words that are neighbours in memory are neighbours along the first axis of `shape`.
    """

    instr: Instruction
    chunks: Chunks
    shape: tuple[int, int]
    size: int
    across: bool

    @classmethod
    def of(
        cls,
        ctx: Context,
        instr: Instruction,
        name: str,
        bits: Any,
        rows: int,
        k: int,
        whole: np.ndarray,
        transposed: bool,
    ) -> Lines:
        """Lines of operand `name` with descriptors `bits`, for the `whole` warpgroups."""
        element = dtypes.named(instr.params[name])
        words = np.asarray(bits, np.uint64)
        if not words.ndim:
            words = np.broadcast_to(words, (ctx.threads,))
        words = words.reshape(-1, THREADS)
        outer, inner = (k, rows) if transposed else (rows, k)
        size = inner * element.bits // 8

        def find() -> Chunks:
            descriptor, rows_of_groups = Descriptor.of(instr, f"desc_{name}", words, whole)
            addresses = descriptor.chunks(outer, size, transposed) & 0x3FFFF
            chunks = Chunks(addresses, rows_of_groups, descriptor.swizzle)
            width = size * transposed
            ctx.tiles.check(instr, f"desc_{name}", descriptor, chunks, whole, outer, width)
            return chunks

        chunks = ctx.tiles.chunks(words, whole, (instr, name, transposed), find)
        across = transposed and name == "a"
        shape = (inner, outer) if across else (outer, inner if transposed else size // 4)
        return cls(instr, chunks, shape, element.itemsize if transposed else 4, across)

    def load(self, ctx: Context, some: np.ndarray, out: np.ndarray) -> None:
        """Read the lines for some warpgroups."""
        ctx.shared.read_chunks(self.instr, self.chunks, some, out, self.size, self.across)


def whole_groups(ctx: Context, instr: Instruction) -> np.ndarray:
    """(warpgroups,) bool of the active warpgroups; Divergence if one is active in part."""
    if ctx.threads % THREADS:
        raise Divergence(f"{instr.mnemonic}: {ctx.threads} threads are not whole warpgroups")
    ctx.whole_warps()
    groups, broken = ctx.units(THREADS)
    if broken is not None:
        raise Divergence(f"{instr.mnemonic}: only some warps of a warpgroup are here")
    return groups


class Multiplication:
    """d = scale_a * a * scale_b * b + (c if scale_d else +0), for the active warpgroups.

    Attributes
    ----------
    whole : array
        (warpgroups,) bool: the active warpgroups.
    c : array
        Register image of C.
    lines : dict
        By name, the operands in shared memory and the words that they are read to.
    """

    def __init__(self, ctx: Context, instr: Instruction, c: Any, *operands: Any) -> None:
        by_name = dict(zip((o.name for o in instr.operands[1:]), operands, strict=True))
        self.ctx, self.instr, self.by_name = ctx, instr, by_name
        self.whole = whole_groups(ctx, instr)
        self.product, _ = fragments.prepared(instr)
        sizes = {"a": 64, "b": self.product.n}
        depths = {"a": self.product.stored, "b": self.product.k}
        self.lines: dict[str, tuple[Lines, np.ndarray]] = {}
        for name, rows in sizes.items():
            bits = by_name.get(f"desc_{name}")
            if bits is not None:
                transposed = by_name.get(f"trans_{name}", 0) == 1
                lines = Lines.of(ctx, instr, name, bits, rows, depths[name], self.whole, transposed)
                self.lines[name] = lines, self.room(name, lines)
        self.c = self.image(c)
        keep = np.asarray(by_name["scale_d"], bool)
        if not keep.all():
            keep = np.broadcast_to(keep, (ctx.threads,))
            if not keep.reshape(-1, THREADS)[self.whole].all():
                self.drop(keep)

    def room(self, name: str, lines: Lines) -> np.ndarray:
        """Memory for the lines of an operand."""
        return np.empty((len(self.whole), *lines.shape), np.uint32)

    def image(self, c: Any) -> np.ndarray:
        """Register image of C."""
        return fragments.image(self.ctx, self.instr, "c", c)

    def drop(self, keep: np.ndarray) -> None:
        """Take zeros for C in the threads that do not `keep` it."""
        self.c = np.where(keep, self.c, np.uint32(0))

    def operand(self, name: str) -> np.ndarray:
        """Register image of A, or the loaded lines, with the sign applied."""
        loaded = self.lines.get(name)
        by_name, kind = self.by_name, self.instr.params[name]
        words = loaded[1] if loaded else fragments.image(self.ctx, self.instr, name, by_name[name])
        return _negated(words, kind, by_name.get(f"scale_{name}", 1))

    @property
    def maps(self) -> Any:
        packed = [name for name in self.lines if self.by_name.get(f"trans_{name}", 0) != 1]
        return _with_lines(self.instr, frozenset(packed))

    def note(self) -> None:
        """Report the reads of shared memory to the checks."""
        for lines, _ in self.lines.values():
            self.ctx.shared.note_chunks(self.instr, lines.chunks, self.whole)

    def load(self, some: np.ndarray, names: Iterable[str] | None = None) -> None:
        """Read the named operands in shared memory for some warpgroups."""
        for name in self.lines if names is None else names:
            lines, words = self.lines[name]
            lines.load(self.ctx, some, words)

    def run(self, out: np.ndarray | None = None) -> np.ndarray:
        """Load all operands and compute d, in `out` if it is given."""
        from tensorcore_dsl.numerics import products

        ctx, by_name = self.ctx, self.by_name
        cost = CHUNK_COST * sum(x.chunks.addresses.shape[1] for x, _ in self.lines.values())
        ctx.team.share_mask(self.whole, cost, lambda some, _: self.load(some))
        self.note()
        more: dict[str, Any] = {}
        if self.product.sparse:
            selection = sparse.selection(ctx, self.instr, by_name["meta"], by_name["selector"])
            more["selection"] = selection.reshape(-1, 64, self.product.stored)
        a, b = self.operand("a"), self.operand("b")
        return products.fragments(
            self.product, ctx.arch, self.maps, a, b, self.c, active=self.whole, out=out, **more
        )


CHUNK_COST = 3  # nanoseconds of a read of 16 bytes, estimated


def multiply(
    ctx: Context, instr: Instruction, c: Any, *operands: Any, out: np.ndarray | None = None
) -> np.ndarray:
    """Run a `Multiplication` with these arguments."""
    return Multiplication(ctx, instr, c, *operands).run(out)


@cache
def _with_lines(instr: Instruction, packed: frozenset[str]) -> Any:
    """Maps of a product whose named operands are lines."""
    return replace(fragments.prepared(instr)[1], packed=packed)


_SIGNS = {8: 0x80808080, 16: 0x80008000, 32: 0x80000000}  # sign bits of all elements of a register


def _negated(words: np.ndarray, kind: str, sign: int) -> np.ndarray:
    """Change the sign of elements, packed or one in a word; upper bits of a word are not read."""
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
            family="wgmma",
            group="sp" if self.sparse else "",
            shape=f"m64n{n}k{k}",
            a=a,
            b=b,
            c=d,
            d=d,
            ptx=ptx,
        ) | ({"source": source} if source else {})
        params |= {"satfinite": "satfinite"} if saturate else {}
        params |= {"sparse": "sparse"} if self.sparse else {}
        params |= {"operation": "and"} if self.tail else {}
        operands = self._operands(source, n, k, a, d)
        names = ["d", *(o.name for o in operands[1:])]
        return Instruction(
            mnemonic=f"{ptx}.{source}" if source else ptx,
            results=(fragments.operand("d", d_layout(n, d)),),
            operands=operands,
            requires=Requires("90a"),
            version=max(self.ptx, (8, 4)) if a != b and a[0] in "us" else self.ptx,
            section=SPARSE if self.sparse else MMA,
            execute=multiply,
            effects=ASYNC,
            template=f"!{ptx} " + ", ".join(f"{{{name}}}" for name in names),
            tied="c",
            params=params,
            ordering=ORDERING,
        )

    def _operands(self, source: str, n: int, k: int, a: str, d: str) -> tuple[Operand, ...]:
        stored = k // 2 if self.sparse else k
        first = fragments.operand("a", a_layout(stored, a)) if source else Operand("desc_a", dtypes.b64)
        meta: tuple[Operand, ...] = ()
        if self.sparse:
            word, selector = sparse.metadata(f"m16n8k{k}", a, warps=4)
            meta = (replace(word, name="meta"), _immediate("selector", selector.values or ()))
        signs = (_immediate("scale_a", (1, -1)), _immediate("scale_b", (1, -1)))
        turns = (_immediate("trans_a", (0, 1)), _immediate("trans_b", (0, 1)))
        return (
            fragments.operand("c", d_layout(n, d)),
            first,
            Operand("desc_b", dtypes.b64),
            *meta,
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
ORDER = WARP | VOLATILE | Effect.WGMMA | Effect.TRACKED
ROWS = (
    *FAMILIES,
    row("wgmma.fence.sync.aligned",        "",        "9.7.15.7.1", fence,  effects=ORDER, requires="90a", ptx="8.0"),
    row("wgmma.commit_group.sync.aligned", "",        "9.7.15.7.2", commit, effects=ORDER, requires="90a", ptx="8.0"),
    row("wgmma.wait_group.sync.aligned",   "n:#u32",  "9.7.15.7.3", wait,   effects=ORDER, requires="90a", ptx="8.0"),
)
# fmt: on
