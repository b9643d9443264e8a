"""Tile sizes of the kernels without tensor cores."""

from __future__ import annotations

from tensorcore_dsl.kernels.ampere.config import WARP, AmpereConfig

# Lines of a tile, elements of a line that a thread loads at once, and warps: for lines with K
# contiguous, and for lines side by side.
TILES_ALONG_K = (2, 4, 8), (2, 4, 8), (8,)
TILES_BESIDE = (8, 16, 32, 64), (8, 16), (8, 16)


def runs_along_k(rows: int, cols: int, k_major: tuple[bool, bool]) -> bool:
    """Whether K is contiguous in the operand of the lines; k_major: whether it is in A, in B."""
    return k_major[rows < cols]


def vector_config(BM: int, BN: int, k_major: tuple[bool, bool], warps: int = 8) -> AmpereConfig:
    """The configuration of tiles of vectors; k_major: whether K is contiguous in A, in B."""
    along_k = runs_along_k(BM, BN, k_major)
    at_once = WARP if along_k else WARP // min(max(BM, BN), WARP)  # elements of K, by a warp
    return AmpereConfig(BM, BN, warps * at_once, BM, BN, stages=4)
