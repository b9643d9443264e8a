"""Matrix products, as users write them; type checkers find nothing wrong here."""

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import kernels

BM, BN, BK, STAGES = 128, 128, 64, 3


@tc.kernel(threads=128)
def ampere(a: tc.Array, b: tc.Array, d: tc.Array, alpha: float = 1.0, stages: tc.Const[int] = 3) -> None:
    """D = alpha A B: 64 x 64 of D in a block, cp.async into stages, ldmatrix and mma."""
    mma = tc.mma.m16n8k16(a.dtype, b.dtype, tc.f32)
    rows, columns, depth = mma.shape
    stage_a = tc.shared((stages, 64, 64), a.dtype, swizzle=128)
    stage_b = tc.shared((stages, 64, 64), b.dtype, swizzle=128)
    m, n, k_tiles = tc.blockIdx.y * 64, tc.blockIdx.x * 64, a.shape[1] // 64
    warp = tc.warp_id()
    row, column = tc.threadIdx.x // 8, tc.threadIdx.x % 8 * 8

    def load(tile: int) -> None:
        if tile < k_tiles:
            for i in tc.static_range(0, 64, 16):
                place = (tile % stages, row + i, column)
                tc.cp_async(stage_a.at(*place), a.at(m + row + i, 64 * tile + column), 16)
                tc.cp_async(stage_b.at(*place), b.at(64 * tile + row + i, n + column), 16)
        tc.cp_async_commit()

    for tile in tc.static_range(stages - 1):
        load(tile)
    acc = [mma.d.zeros() for _ in range(64 // columns)]
    for tile in range(k_tiles):
        tc.cp_async_wait(stages - 2)
        tc.barrier()
        load(tile + stages - 1)
        tile_a, tile_b = stage_a[tile % stages], stage_b[tile % stages]
        for k in tc.static_range(0, 64, depth):
            fa = tc.ldmatrix(tile_a[16 * warp : 16 * warp + rows, k : k + depth], mma.a)
            for j, fb in enumerate(tc.ldmatrix(tile_b[k : k + depth, :], mma.b)):
                acc[j] = mma(fa, fb, acc[j])
    for j, fragment in enumerate(acc):
        scaled = fragment * alpha
        for slot in tc.static_range(0, len(scaled), 2):
            i, k = scaled.coordinates(slot)
            pair = [scaled[slot].to(d.dtype), scaled[slot + 1].to(d.dtype)]
            d.at(m + 16 * warp + i, n + 8 * j + k).store(pair)


@tc.kernel
def hopper(a: tc.Array, b: tc.Array, d: tc.Array, consumers: tc.Const[int] = 2) -> None:
    """D = A B^T: a producer loads by TMA, two consumers multiply by wgmma."""
    wgmma = tc.wgmma.m64n128k16(tc.bf16, tc.bf16, tc.f32)
    tiles_a = tc.shared((STAGES, consumers, 64, BK), tc.bf16, swizzle=128)
    tiles_b = tc.shared((STAGES, BN, BK), tc.bf16, swizzle=128)
    map_a = tc.tensor_map(a, (BM, BK), swizzle=128)
    map_b = tc.tensor_map(b, (BN, BK), swizzle=128)
    full, empty = tc.mbarriers(STAGES), tc.mbarriers(STAGES)
    m, n, k_tiles = tc.blockIdx.y * BM, tc.blockIdx.x * BN, a.shape[1] // BK
    if tc.threadIdx.x == 0:
        map_a.prefetch()
        map_b.prefetch()
        for stage in tc.static_range(STAGES):
            full[stage].init(1)
            empty[stage].init(consumers)
        tc.fence_mbarrier_init()
    tc.barrier()

    def produce() -> None:
        if tc.threadIdx.x % 128 == 0:
            stage, phase = 0, 1
            for k_tile in range(k_tiles):
                empty[stage].wait(phase)
                full[stage].arrive_expect_tx(map_a.bytes + map_b.bytes)
                tc.tma_load(tiles_a[stage], map_a, (m, k_tile * BK), full[stage])
                tc.tma_load(tiles_b[stage], map_b, (n, k_tile * BK), full[stage])
                stage, phase = advance(stage, phase)

    def consume(index: int) -> None:
        acc = wgmma.d.zeros()
        stage, phase = 0, 0
        for _ in range(k_tiles):
            full[stage].wait(phase)
            tc.wgmma_fence()
            acc = tc.wgmma_async(wgmma, acc, tiles_a[stage, index], tiles_b[stage])
            tc.wgmma_commit()
            tc.wgmma_wait(0)
            empty[stage].arrive(pred=tc.threadIdx.x % 128 == 0)
            stage, phase = advance(stage, phase)
        first = m + 64 * index
        tc.store_elements(d[first : first + 64, n : n + BN], acc)

    tc.warp_specialize((1, produce), (consumers, consume), registers=(40, 232))


def advance(stage: int, phase: int) -> tuple[int, int]:
    last = stage == STAGES - 1
    return tc.select(last, 0, stage + 1), tc.select(last, phase ^ 1, phase)


@tc.kernel
def completion(x: tc.Array) -> None:
    """Names that an editor completes."""
    for mma in (
        tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32),
        tc.mma.m16n8k16("bf16", "bf16", "f32"),
        tc.mma(tc.f16, tc.f16, tc.f32, shape="m16n8k8"),
    ):
        fragments = mma.a.zeros(), mma.b.zeros(), mma.c.zeros()
        acc = mma(*fragments, pred=x.shape[0] > 3)
        tc.store_elements(tc.shared((16, 8), tc.f32), acc)
    tc.mma.sp.m16n8k32(tc.f16, tc.f16, tc.f32, ordered=True).e.registers
    tc.mma.block_scale.m16n8k64(tc.e2m1, tc.e2m1, tc.f32, kind="mxf4").scale_a.dtype
    tc.wgmma.m64n256k16(tc.f16, tc.f16, tc.f32).desc_b.is_descriptor
    tc.wgmma.sp.m64n8k32(tc.f16, tc.f16, tc.f32).d.zeros()
    tc.wmma.m16n16k16(tc.f16, tc.f16, tc.f32, layout="row.col").d.layout.rows
    tc.instruction("fma.rn.f32").operand("a").dtype
    tc.instruction("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32").a.layout.rows
    x[0] = tc.f16.bits + tc.f16.itemsize + tc.threadIdx.z.dtype.bits
    x[1] = tc.s32(0).bits(tc.u32)


def main() -> None:
    """Run them against NumPy."""
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((128, 128)).astype(tc.bf16.numpy) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    d = np.zeros((128, 128), np.float32)
    ampere[(2, 2), 128](a, b, d, 2.0)
    assert np.allclose(d, 2 * exact, atol=1e-3)
    hopper[(1, 1), 384](a, np.ascontiguousarray(b.T), d)
    assert np.allclose(d, exact, atol=1e-3)
    assert np.allclose(kernels.gemm(a, b, out_dtype=tc.f32), exact, atol=1e-3)


if __name__ == "__main__":
    main()
