"""D = alpha A B + beta C in bf16 with `wgmma`, for sm_90a.

Persistent and warp-specialised: one warpgroup brings tiles by TMA, the others multiply. A ring of
`stages` slots lies between them; `full[slot]` tells that a tile has come, `empty[slot]` that
everybody has read it.
"""

from dataclasses import dataclass

import tensorcore_dsl as tc


@dataclass(frozen=True)
class Config:
    """BM x BN x BK: the block's tile; each consumer warpgroup multiplies 64 of its BM rows."""

    BM: int = 128
    BN: int = 256
    BK: int = 64
    stages: int = 4
    group: int = 8

    @property
    def consumers(self) -> int:
        return self.BM // 64

    @property
    def threads(self) -> int:
        return 128 * (1 + self.consumers)


@tc.kernel
def bf16_gemm(a: tc.Array, b: tc.Array, d: tc.Array, config: tc.Const = Config()):
    """A is M x K, B is K x N, both with K contiguous; the grid is one block an SM."""
    tc.launch_bounds(config.threads, 1)
    BM, BN, BK, stages = config.BM, config.BN, config.BK, config.stages
    mma = getattr(tc.wgmma, f"m64n{BN}k16")(tc.bf16, tc.bf16, tc.f32)
    load_a = tc.tensor_map(a, (BM, BK), swizzle=128)
    load_b = tc.tensor_map(b, (BK, BN), swizzle=128)
    tile_a = tc.shared((stages, config.consumers, 64, BK), tc.bf16, swizzle=128)
    tile_b = tc.shared((stages, BN, BK), tc.bf16, swizzle=128)
    full, empty = tc.mbarriers(stages), tc.mbarriers(stages)
    if tc.threadIdx.x == 0:
        for slot in tc.static_range(stages):
            full[slot].init(1)
            empty[slot].init(config.consumers)
        tc.fence_mbarrier_init()
    tc.barrier()

    M, K = a.shape
    N = b.shape[1]
    rows, cols = (M + (BM - 1)) // BM, (N + (BN - 1)) // BN
    depth = (K + (BK - 1)) // BK
    role = tc.warpgroup_id()
    if role == 0:
        if tc.threadIdx.x == 0:
            slot, phase = tc.u32(0), tc.u32(1)
            for tile in tc.range(tc.blockIdx.x, rows * cols, tc.gridDim.x):
                m, n = place(tile, rows, cols, config.group)
                for k in range(depth):
                    empty[slot].wait(phase)
                    full[slot].expect(load_a.bytes + load_b.bytes)
                    tc.tma_load(tile_a[slot], load_a, (m * BM, k * BK), full[slot])
                    tc.tma_load(tile_b[slot], load_b, (k * BK, n * BN), full[slot])
                    slot, phase = following(slot, phase, stages)
    else:
        part = role - 1
        slot, phase = tc.u32(0), tc.u32(0)
        acc = mma.d.zeros()
        for tile in tc.range(tc.blockIdx.x, rows * cols, tc.gridDim.x):
            m, n = place(tile, rows, cols, config.group)
            for k in range(depth):
                full[slot].wait(phase)
                tc.wgmma_fence()
                acc = tc.multiply(
                    mma, acc, tile_a[slot, part], tile_b[slot], accumulate=k != 0
                )
                tc.wgmma_commit()
                tc.wgmma_wait(0)
                empty[slot].arrive(pred=tc.threadIdx.x % 128 == 0)
                slot, phase = following(slot, phase, stages)
            store(acc, d, m * BM + part * 64, n * BN)


def place(tile, rows, cols, group: int):
    """Row and column of a tile; `group` rows go column by column, to share B in the cache."""
    span = cols * group
    first = tile // span * group
    height = min(rows - first, group)
    inside = tile % span
    return first + inside % height, inside // height


def following(slot, phase, stages: int):
    """The next slot of the ring; the phase turns when the ring is through."""
    last = slot == stages - 1
    return tc.select(last, tc.u32(0), slot + 1), tc.select(last, phase ^ 1, phase)


def store(acc, d, m, n):
    """Write 64 rows of results, two neighbours at once."""
    M, N = d.shape
    for slot in tc.static_range(0, len(acc), 2):
        row, col = acc.coordinates(slot)
        row, col = m + row, n + col
        pair = [acc[slot].to(d.dtype), acc[slot + 1].to(d.dtype)]
        d.at(row, col).store(pair, pred=(row < M) & (col < N))
