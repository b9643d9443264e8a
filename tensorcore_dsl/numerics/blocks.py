# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Compiled loops of the products in blocks of D: over warps, operands and operations."""

from __future__ import annotations

from ctypes import Structure, c_int64
from typing import Any

from tensorcore_dsl.lowering import compiled, primitive

from .block_code import Blocks
from .block_groups import GroupedBlocks
from .block_sums import BitBlocks, ChainBlocks, FusedBlocks, IntegerBlocks, decoder, multiplier


class Operand(Structure):
    """An operand of a call; the layout of its blocks is an array by tile and block."""

    _fields_ = [
        ("step", c_int64),  # bytes from a warp to the next one
        ("size", c_int64),  # bytes of its decoded values
        ("blocks", c_int64),  # blocks of a tile
        ("bit_offsets", c_int64),  # address of the bit offsets of its elements
        ("ups", c_int64),  # address of the shifts that put elements at the highest bits of words
        ("kinds", c_int64),  # address of the layouts of its sets of blocks
        ("form", c_int64),  # address of the settings of its decoding
        ("ahead", c_int64),  # blocks of words to prefetch for the next product
    ]


class Call(Structure):
    """Sizes and memory of a call."""

    _fields_ = [
        ("tiles", c_int64),
        ("bands", c_int64),  # sets of blocks of A along M
        ("pairs", c_int64),  # sets of blocks of B along N
        ("quarters", c_int64),  # quarters of K: four elements each
        ("a", Operand),
        ("b", Operand),
        ("c", Operand),
        ("d", Operand),
        ("settings", c_int64),  # address of the settings of the product
        ("scales", c_int64),  # index of the scales in a line of `extra`
    ]


VECTOR = 64  # bytes of the bit offsets of one block
LEFT = -1  # blocks cannot compute some result


@primitive
def _prefetch(builder: Any, base: Any, bit_offsets: Any, count: Any) -> None:
    """Prefetch the words of `count` blocks into the cache."""
    Blocks(builder).prefetch(base.value, bit_offsets.value, count.value)


def _loops(kind: type[Blocks], two_columns: bool) -> Any:
    decode_a, decode_b = decoder(kind, True), decoder(kind, False)
    multiply = multiplier(kind, two_columns)

    @compiled
    def products(
        first: Any,
        second: Any,
        uses: Any,
        active: Any,
        call: Any,
        decoded: Any,
        left: Any,
        extra: Any,
        low: int,
        high: int,
    ) -> int:
        """Compute all products of one call in warps `low` to `high`; LEFT if blocks cannot compute one.

        first, second: addresses of the words of each A and B. uses: for each operation the indices
        of its A and B, and the addresses of the words of its C and D. active: one bool per warp.
        decoded: addresses of memory for the decoded values of A, their exponents, the exponents of
        B, and one D.
        left: (uses, warps) bool; set for results that blocks cannot compute.
        extra: result of `plans.extra_operands`; its scales belong to one operation.
        """
        status = 0
        for w in range(low, high):
            if not active[w]:
                continue
            for t in range(call.tiles):
                vectors = VECTOR * t * call.a.blocks
                for i in range(first.size):
                    decode_a(
                        first[i] + w * call.a.step,
                        call.a.bit_offsets + vectors,
                        call.a.ups + vectors,
                        call.a.kinds + t * call.a.blocks,
                        call.a.form,
                        call.bands,
                        call.quarters,
                        decoded[0] + i * call.a.size,
                        decoded[1] + i * call.a.size,
                    )
                vectors = VECTOR * t * call.b.blocks
                for i in range(second.size):
                    decode_b(
                        second[i] + w * call.b.step,
                        call.b.bit_offsets + vectors,
                        call.b.ups + vectors,
                        call.b.kinds + 2 * t * call.b.blocks,
                        call.b.form,
                        call.pairs,
                        call.quarters,
                        decoded[2] + i * call.b.size,
                        decoded[3] + i * call.b.size,
                    )
                vectors = VECTOR * t * call.d.blocks
                kinds = t * call.d.blocks
                if t == 0:
                    for i in range(first.size):
                        _prefetch(first[i] + (w + 1) * call.a.step, call.a.bit_offsets, call.a.ahead)
                    for i in range(second.size):
                        _prefetch(second[i] + (w + 1) * call.b.step, call.b.bit_offsets, call.b.ahead)
                for use in range(uses.shape[0]):
                    then, warp = use + 1, w
                    if then == uses.shape[0]:
                        then, warp = 0, w + 1
                    _prefetch(uses[then, 2] + warp * call.c.step, call.c.bit_offsets, call.c.ahead)
                    a, b = uses[use, 0] * call.a.size, uses[use, 1] * call.b.size
                    if multiply(
                        decoded[0] + a,
                        decoded[1] + a,
                        decoded[2] + b,
                        decoded[3] + b,
                        uses[use, 2] + w * call.c.step,
                        call.c.bit_offsets + vectors,
                        call.c.ups + vectors,
                        call.c.kinds + kinds,
                        uses[use, 3] + w * call.d.step,
                        call.d.bit_offsets + vectors,
                        call.d.ups + vectors,
                        call.d.kinds + kinds,
                        decoded[4],
                        call.settings,
                        call.c.form,
                        extra.ctypes.data + 4 * (w * extra.shape[1] + call.scales),
                    ):
                        left[use, w] = True
                        status = LEFT
        return status

    return products


FUSED, INTEGER, BITS, CHAIN, GROUPED = range(5)
KINDS = (FusedBlocks, IntegerBlocks, BitBlocks, ChainBlocks, GroupedBlocks)
LOOPS = [[_loops(kind, two_columns) for two_columns in (False, True)] for kind in KINDS]
