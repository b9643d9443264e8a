// A warp-specialised GEMM with CUTLASS's pipeline of TMA and CuTe's wgmma, for tests/test_ptx_cutlass.py.
#include <cutlass/cutlass.h>
#include <cute/tensor.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cutlass/pipeline/sm90_pipeline.hpp>
using namespace cute;

constexpr int STAGES = 3;
using Tiles = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>{}, Shape<_128, _64, Int<STAGES>>{}));
using Pipe = cutlass::PipelineTmaAsync<STAGES>;

struct Storage {
  alignas(1024) half_t a[cosize_v<Tiles>];
  alignas(1024) half_t b[cosize_v<Tiles>];
  typename Pipe::SharedStorage pipe;
};

struct alignas(64) Map {
  char opaque[128];
};

extern "C" __global__ void __launch_bounds__(256)
    gemm_ws(const __grid_constant__ Map ma, const __grid_constant__ Map mb, float* c, int n, int k) {
  extern __shared__ char raw[];
  Storage& s = *reinterpret_cast<Storage*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  int group = cutlass::canonical_warp_group_idx(), warp = cutlass::canonical_warp_idx_sync(), tiles = k / 64;
  typename Pipe::Params params;
  params.transaction_bytes = 2 * 128 * 64 * sizeof(half_t);
  params.role = group == 0 ? Pipe::ThreadCategory::Producer : Pipe::ThreadCategory::Consumer;
  params.is_leader = threadIdx.x == 0;
  params.num_consumers = 128;
  Pipe pipe(s.pipe, params, Shape<_1, _1, _1>{});
  __syncthreads();
  if (group == 0) {
    if (warp == 0 && elect_one_sync()) {
      auto state = cutlass::make_producer_start_state<Pipe>();
      for (int t = 0; t < tiles; t++, ++state) {
        pipe.producer_acquire(state);
        auto* bar = pipe.producer_get_barrier(state);
        SM90_TMA_LOAD_2D::copy(&ma, bar, 0ull, &s.a[state.index() * 128 * 64], t * 64, blockIdx.x * 128);
        SM90_TMA_LOAD_2D::copy(&mb, bar, 0ull, &s.b[state.index() * 128 * 64], t * 64, blockIdx.y * 128);
      }
      pipe.producer_tail(state);
    }
    return;
  }
  TiledMMA mma = make_tiled_mma(SM90_64x128x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::K>{});
  auto thread = mma.get_thread_slice(threadIdx.x - 128);
  auto fa = thread.partition_fragment_A(make_tensor(make_smem_ptr(s.a), Tiles{}));
  auto fb = thread.partition_fragment_B(make_tensor(make_smem_ptr(s.b), Tiles{}));
  auto tile = make_tensor(make_gmem_ptr(c + blockIdx.x * 128 * n + blockIdx.y * 128), make_shape(_128{}, _128{}),
                          make_stride(n, _1{}));
  auto out = thread.partition_C(tile);
  auto acc = thread.make_fragment_C(out);
  clear(acc);
  cutlass::PipelineState<STAGES> state;
  for (int t = 0; t < tiles; t++, ++state) {
    pipe.consumer_wait(state);
    warpgroup_arrive();
    gemm(mma, fa(_, _, _, state.index()), fb(_, _, _, state.index()), acc);
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    pipe.consumer_release(state);
  }
  for (int i = 0; i < size(acc); i++) out(i) = acc(i);
}
