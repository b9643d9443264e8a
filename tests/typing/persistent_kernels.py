"""Persistent GEMM with TMA, clusters, warp specialisation; reductions over a cluster."""

from typing import NamedTuple

import numpy as np

import tensorcore_dsl as tc


class Tile(NamedTuple):
    m: int = 128
    n: int = 128
    k: int = 64


@tc.kernel(threads=384)
def persistent(
    a: tc.Array, b: tc.Array, d: tc.Array, tile: tc.Const[Tile] = Tile(), stages: tc.Const[int] = 3
) -> None:
    wgmma = tc.wgmma.m64n128k16(tc.f16, tc.f16, tc.f32)
    smem_a = tc.shared((stages, 2, tile.m // 2, tile.k), tc.f16, swizzle=128)
    smem_b = tc.shared((stages, tile.n, tile.k), tc.f16, swizzle=128)
    out = tc.shared((2, 64, tile.n), tc.f16)
    desc_a, desc_b = tc.tensor_map(a, (tile.m, tile.k), 128), tc.tensor_map(b, (tile.n, tile.k), 128)
    desc_d = tc.tensor_map(d, (64, tile.n))
    full, empty = tc.mbarriers(stages), tc.mbarriers(stages)
    tiles_m, tiles_n = d.shape[0] // tile.m, d.shape[1] // tile.n
    k_tiles = a.shape[1] // tile.k
    if tc.threadIdx.x == 0:
        for s in range(stages):
            full[s].init(1)
            empty[s].init(2)
        tc.fence_mbarrier_init()
    tc.barrier()

    def producer() -> None:
        if tc.warp_id() == 0 and tc.elect():
            count = 0
            for t in tc.range(tc.blockIdx.x, tiles_m * tiles_n, tc.gridDim.x):
                m, n = t // tiles_n * tile.m, t % tiles_n * tile.n
                for k in range(k_tiles):
                    s, phase = count % stages, count // stages % 2
                    empty[s].wait(phase ^ 1)
                    full[s].arrive_expect_tx(desc_a.bytes + desc_b.bytes)
                    tc.tma_load(smem_a[s], desc_a, (m, k * tile.k), full[s])
                    tc.tma_load(smem_b[s], desc_b, (n, k * tile.k), full[s])
                    count += 1

    def consumer(index: int) -> None:
        thread = tc.threadIdx.x % 128
        half = out[index]
        count = 0
        for t in tc.range(tc.blockIdx.x, tiles_m * tiles_n, tc.gridDim.x):
            acc = wgmma.d.zeros()
            for _ in range(k_tiles):
                s, phase = count % stages, count // stages % 2
                full[s].wait(phase)
                tc.wgmma_fence()
                acc = tc.wgmma_async(wgmma, acc, smem_a[s, index], smem_b[s])
                tc.wgmma_commit()
                tc.wgmma_wait(0)
                empty[s].arrive(pred=thread == 0)
                count += 1
            if thread == 0:
                tc.tma_store_wait(0, read=True)
            tc.barrier(1 + index, 128)
            tc.store_elements(half, acc.to(tc.f16))
            tc.fence_proxy_async()
            tc.barrier(1 + index, 128)
            if thread == 0:
                m, n = t // tiles_n * tile.m + 64 * index, t % tiles_n * tile.n
                tc.tma_store(desc_d, (m, n), half)
                tc.tma_store_commit()
        if thread == 0:
            tc.tma_store_wait(0)

    tc.warp_specialize((1, producer), (2, consumer), registers=(40, 232))


@tc.kernel(threads=128)
def cluster_sum(x: tc.Array, total: tc.Array) -> None:
    """The sum of x by a cluster of two blocks; rank 0 reads its peer's shared memory."""
    tc.cluster_size(2)
    parts = tc.shared(4, tc.f32)
    rank = tc.cluster_rank()
    i = rank * 128 + tc.threadIdx.x
    value = x[i].to(tc.f32) if x.dtype != tc.f32 else x[i]
    for step in (16, 8, 4, 2, 1):
        value += tc.shfl_down(value, step)
    if tc.lane_id() == 0:
        parts[tc.warp_id()] = value
    tc.cluster_sync()
    if rank == 0 and tc.threadIdx.x == 0:
        result = tc.f32(0)
        for peer in range(2):
            for warp in range(4):
                result += parts.at(warp).remote(peer).load()
        total[0] = result
    tc.cluster_sync()


def main() -> None:
    """Run them against NumPy."""
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((256, 64)).astype(np.float16) for _ in range(2))
    d = np.zeros((256, 256), np.float16)
    persistent[2, 384](a, b, d)
    assert np.allclose(d, a.astype(float) @ b.T.astype(float), atol=0.1)
    persistent.emulate[2, 384](a, b, d, stages=2, tile=Tile(k=64))
    x, total = np.ones(256, np.float32), np.zeros(1, np.float32)
    cluster_sum[2, 128](x, total)
    assert total[0] == 256
    cluster_sum.configured(2, 128, cluster=2)(x, total)
    cluster_sum.configured((2, 1), [128], cluster=(2, 1, 1), stream=None)(x, total=total)


if __name__ == "__main__":
    main()
