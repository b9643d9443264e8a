# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Compiled loops of the products in blocks of D: over warps, operands and operations."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.lowering import compiled, primitive

from .block_code import Blocks
from .block_groups import GroupedBlocks
from .block_sums import BitBlocks, ChainBlocks, FusedBlocks, IntegerBlocks, decoder, multiplier

# Indices into the description of a call: counts, distances in bytes, addresses. AHEAD: blocks of
# words to prefetch for the next product. SCALES: index of the scales in a line of `extra`.
(
    TILES,
    BANDS,
    PAIRS,
    QUARTERS,
    STEP_A,
    STEP_B,
    STEP_C,
    STEP_D,
    SIZE_A,
    SIZE_B,
    SIZE_D,
    BLOCKS_A,
    BLOCKS_B,
    BLOCKS_D,
    PLACES_A,
    PLACES_B,
    PLACES_C,
    PLACES_D,
    UPS_A,
    UPS_B,
    UPS_C,
    UPS_D,
    KINDS_A,
    KINDS_B,
    KINDS_C,
    KINDS_D,
    FORM_A,
    FORM_B,
    FORM_C,
    SETTINGS,
    AHEAD_A,
    AHEAD_B,
    AHEAD_C,
    SCALES,
    DESCRIPTION,
) = range(35)

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
        decoded: addresses of memory for the decoded values of A, their exponents, the exponents of B, and one
        D.
        left: (uses, warps) bool; set for results that blocks cannot compute.
        extra: result of `plans.extra_operands`; its scales belong to one operation.
        """
        status = 0
        for w in range(low, high):
            if not active[w]:
                continue
            for t in range(call[TILES]):
                vectors = VECTOR * t * call[BLOCKS_A]
                for i in range(first.size):
                    decode_a(
                        first[i] + w * call[STEP_A],
                        call[PLACES_A] + vectors,
                        call[UPS_A] + vectors,
                        call[KINDS_A] + t * call[BLOCKS_A],
                        call[FORM_A],
                        call[BANDS],
                        call[QUARTERS],
                        decoded[0] + i * call[SIZE_A],
                        decoded[1] + i * call[SIZE_A],
                    )
                vectors = VECTOR * t * call[BLOCKS_B]
                for i in range(second.size):
                    decode_b(
                        second[i] + w * call[STEP_B],
                        call[PLACES_B] + vectors,
                        call[UPS_B] + vectors,
                        call[KINDS_B] + 2 * t * call[BLOCKS_B],
                        call[FORM_B],
                        call[PAIRS],
                        call[QUARTERS],
                        decoded[2] + i * call[SIZE_B],
                        decoded[3] + i * call[SIZE_B],
                    )
                vectors = VECTOR * t * call[BLOCKS_D]
                kinds = t * call[BLOCKS_D]
                if t == 0:
                    for i in range(first.size):
                        _prefetch(first[i] + (w + 1) * call[STEP_A], call[PLACES_A], call[AHEAD_A])
                    for i in range(second.size):
                        _prefetch(second[i] + (w + 1) * call[STEP_B], call[PLACES_B], call[AHEAD_B])
                for use in range(uses.shape[0]):
                    then, warp = use + 1, w
                    if then == uses.shape[0]:
                        then, warp = 0, w + 1
                    _prefetch(uses[then, 2] + warp * call[STEP_C], call[PLACES_C], call[AHEAD_C])
                    a, b = uses[use, 0] * call[SIZE_A], uses[use, 1] * call[SIZE_B]
                    if multiply(
                        decoded[0] + a,
                        decoded[1] + a,
                        decoded[2] + b,
                        decoded[3] + b,
                        uses[use, 2] + w * call[STEP_C],
                        call[PLACES_C] + vectors,
                        call[UPS_C] + vectors,
                        call[KINDS_C] + kinds,
                        uses[use, 3] + w * call[STEP_D],
                        call[PLACES_D] + vectors,
                        call[UPS_D] + vectors,
                        call[KINDS_D] + kinds,
                        decoded[4],
                        call[SETTINGS],
                        call[FORM_C],
                        extra.ctypes.data + 4 * (w * extra.shape[1] + call[SCALES]),
                    ):
                        left[use, w] = True
                        status = LEFT
        return status

    return products


FUSED, INTEGER, BITS, CHAIN, GROUPED = range(5)
KINDS = (FusedBlocks, IntegerBlocks, BitBlocks, ChainBlocks, GroupedBlocks)
LOOPS = [[_loops(kind, two_columns) for two_columns in (False, True)] for kind in KINDS]
