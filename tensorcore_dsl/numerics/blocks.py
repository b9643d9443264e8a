# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Compiled loops of the products in blocks of D: over warps, operands and operations."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.lowering import primitive, vectorised

from .block_code import Blocks
from .block_sums import ChainBlocks, ExactBlocks, FusedBlocks, decoder, multiplier

# Indices into the description of a call: counts, distances in bytes, addresses.
(
    TILES, VECTORS_A, VECTORS_B, BLOCKS, STEP_A, STEP_B, STEP_C, STEP_D, SIZE_A, SIZE_B,
    PLACES_A, PLACES_B, PLACES_C, PLACES_D, KINDS_A, KINDS_B, KINDS_C, KINDS_D,
    FORM_A, FORM_B, FORM_C, SETTINGS, QUARTERS, SIZE_D, AHEAD, AHEAD_A, AHEAD_B,
    DESCRIPTION,
) = range(28)  # fmt: skip

VECTOR = 64  # bytes of the places of one vector
KIND = 4  # bytes of its kind


@primitive
def _prefetch(builder: Any, base: Any, places: Any, count: Any) -> None:
    """Fetch the words of `count` vectors of C into the cache, before they are needed."""
    Blocks(builder).prefetch(base.value, places.value, count.value)


def _loops(kind: type[Blocks]) -> Any:
    decode_a, decode_b, multiply = decoder(kind, True), decoder(kind, False), multiplier(kind)

    @vectorised
    def products(
        first: Any, second: Any, uses: Any, active: Any, call: Any, decoded: Any, left: Any
    ) -> None:  # fmt: skip
        """All products of one call.

        first, second: addresses of the words of each A and B. uses: for each operation the indices
        of its A and B, and the addresses of the words of its C and D. active: one bool per warp.
        decoded: addresses of memory for the decoded values of A, their exponents, those of B, and
        for one D.
        left: (uses, warps) bool; becomes true where the result has to be computed otherwise.
        """
        for w in range(active.size):
            if not active[w]:
                continue
            for t in range(call[TILES]):
                vectors, blocks = t * call[VECTORS_A], t * call[BLOCKS]
                for i in range(first.size):
                    decode_a(
                        first[i] + w * call[STEP_A], call[PLACES_A] + VECTOR * vectors,
                        call[KINDS_A] + KIND * vectors, call[VECTORS_A], call[QUARTERS],
                        call[FORM_A], decoded[0] + i * call[SIZE_A], decoded[1] + i * call[SIZE_A],
                    )  # fmt: skip
                vectors = t * call[VECTORS_B]
                for i in range(second.size):
                    decode_b(
                        second[i] + w * call[STEP_B], call[PLACES_B] + VECTOR * vectors,
                        call[KINDS_B] + KIND * vectors, call[VECTORS_B], call[QUARTERS],
                        call[FORM_B], decoded[2] + i * call[SIZE_B], decoded[3] + i * call[SIZE_B],
                    )  # fmt: skip
                if t == 0:
                    for i in range(first.size):
                        _prefetch(first[i] + (w + 1) * call[STEP_A], call[PLACES_A], call[AHEAD_A])
                    for i in range(second.size):
                        _prefetch(second[i] + (w + 1) * call[STEP_B], call[PLACES_B], call[AHEAD_B])
                for use in range(uses.shape[0]):
                    then, warp = use + 1, w
                    if then == uses.shape[0]:
                        then, warp = 0, w + 1
                    _prefetch(uses[then, 2] + warp * call[STEP_C], call[PLACES_C], call[AHEAD])
                    a, b = uses[use, 0] * call[SIZE_A], uses[use, 1] * call[SIZE_B]
                    if multiply(
                        decoded[0] + a, decoded[1] + a, decoded[2] + b, decoded[3] + b,
                        uses[use, 2] + w * call[STEP_C], call[PLACES_C] + VECTOR * blocks,
                        call[KINDS_C] + KIND * blocks,
                        uses[use, 3] + w * call[STEP_D], call[PLACES_D] + VECTOR * blocks,
                        call[KINDS_D] + KIND * blocks, decoded[4],
                        call[SETTINGS], call[FORM_C],
                    ):  # fmt: skip
                        left[use, w] = True

    return products


FUSED, EXACT, CHAIN = range(3)
LOOPS = tuple(_loops(kind) for kind in (FusedBlocks, ExactBlocks, ChainBlocks))
