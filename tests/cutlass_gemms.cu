// GEMMs of CUTLASS 3 for tests/test_ptx_cutlass.py. Each has a kernel that makes the other's parameters.
#include <cuda/std/type_traits>
namespace std {
template <class...> using void_t = void;
template <class T> inline constexpr bool is_const_v = cuda::std::is_const_v<T>;
template <class T> inline constexpr bool is_pointer_v = cuda::std::is_pointer_v<T>;
}  // namespace std
#include <cutlass/cutlass.h>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/transform/kernel/sm90_sparse_gemm_compressor.hpp>
using namespace cute;
using namespace cutlass;
using Problem = Shape<int, int, int, int>;
using Row = layout::RowMajor;

template <class Op, class A, class B, class D, class Acc, class Tile, class Cluster, class Schedule, class Epilogue>
struct Gemm {
  static constexpr bool sparse = is_same_v<Op, arch::OpClassSparseTensorOp>;
  using Stores = typename epilogue::collective::CollectiveBuilder<
      arch::Sm90, Op, Tile, Cluster, epilogue::collective::EpilogueTileAuto, Acc, Acc, D, Row, 16 / sizeof(D), D, Row,
      16 / sizeof(D), Epilogue>::CollectiveOp;
  using Loop = typename gemm::collective::CollectiveBuilder<
      arch::Sm90, Op, A, Row, 16 / sizeof(A), B, layout::ColumnMajor, 16 / sizeof(B), Acc, Tile, Cluster,
      gemm::collective::StageCountAutoCarveout<int(sizeof(typename Stores::SharedStorage))>, Schedule>::CollectiveOp;
  using Kernel = gemm::kernel::GemmUniversal<Problem, Loop, Stores>;
  using Params = typename Kernel::Params;
};

// What a launch needs: sizes, offsets of tensor maps in the parameters, the parameters.
struct Launch {
  int size, shared, threads, grid[3], maps[5];
  alignas(64) char params[2048];
};

template <class G>
__device__ void prepare(Launch* out, void* a, void* b, void* d, void* e, int m, int n, int k) {
  Problem shape{m, n, k, 1};
  typename G::Kernel::Arguments args{gemm::GemmUniversalMode::kGemm, shape};
  auto& loop = args.mainloop;
  loop.ptr_A = reinterpret_cast<decltype(loop.ptr_A)>(a);
  loop.ptr_B = reinterpret_cast<decltype(loop.ptr_B)>(b);
  loop.dB = {k, _1{}, 0};
  if constexpr (G::sparse) {
    loop.ptr_E = reinterpret_cast<decltype(loop.ptr_E)>(e);
    loop.layout_a = G::Loop::SparseConfig::fill_layoutA(shape);
    loop.layout_e = G::Loop::SparseConfig::fill_layoutE(shape);
  } else {
    loop.dA = {k, _1{}, 0};
  }
  args.epilogue = {{1, 0}, nullptr, {n, _1{}, 0}, reinterpret_cast<decltype(args.epilogue.ptr_D)>(d), {n, _1{}, 0}};
  args.hw_info.sm_count = 2;
  args.hw_info.max_active_clusters = 1;
  typename G::Params p = G::Kernel::to_underlying_arguments(args, nullptr);
  static_assert(sizeof p <= sizeof out->params);
  memcpy(out->params, &p, sizeof p);
  dim3 grid = G::Kernel::get_grid_shape(p);
  auto at = [&](auto& copy) { return int((char*)copy.get_tma_descriptor() - (char*)&p); };
  *reinterpret_cast<int4*>(out) = {int(sizeof p), int(G::Kernel::SharedStorageSize), int(G::Kernel::MaxThreadsPerBlock),
                                   int(grid.x)};
  out->grid[1] = grid.y;
  out->grid[2] = grid.z;
  out->maps[0] = at(p.mainloop.tma_load_a);
  out->maps[1] = at(p.mainloop.tma_load_b);
  out->maps[2] = at(p.epilogue.tma_store_d);
  if constexpr (G::sparse) out->maps[3] = at(p.mainloop.tma_load_e);
}

#define GEMM(NAME, ...)                                                                                           \
  using NAME##_gemm = Gemm<__VA_ARGS__>;                                                                          \
  extern "C" __global__ void NAME##_params(Launch* out, void* a, void* b, void* d, void* e, int m, int n, int k) { \
    prepare<NAME##_gemm>(out, a, b, d, e, m, n, k);                                                               \
  }                                                                                                               \
  extern "C" __global__ void __launch_bounds__(NAME##_gemm::Kernel::MaxThreadsPerBlock, 1)                        \
      NAME(__grid_constant__ const NAME##_gemm::Params params) {                                                  \
    extern __shared__ char shared[];                                                                              \
    NAME##_gemm::Kernel()(params, shared);                                                                        \
  }

using Dense = arch::OpClassTensorOp;
using Sparse = arch::OpClassSparseTensorOp;
using Cooperative = gemm::KernelTmaWarpSpecializedCooperative;
using Pingpong = gemm::KernelTmaWarpSpecializedPingpong;
using CooperativeStores = epilogue::TmaWarpSpecializedCooperative;
using PingpongStores = epilogue::TmaWarpSpecialized;
using Alone = Shape<_1, _1, _1>;

#ifdef DENSE
GEMM(fp8, Dense, float_e4m3_t, float_e4m3_t, half_t, float, Shape<_128, _128, _128>, Shape<_1, _2, _1>,
     gemm::KernelTmaWarpSpecializedCooperativeFP8FastAccum, CooperativeStores)
GEMM(s8, Dense, int8_t, int8_t, int32_t, int32_t, Shape<_128, _64, _128>, Alone, Cooperative, CooperativeStores)
GEMM(tf32, Dense, tfloat32_t, tfloat32_t, float, float, Shape<_64, _128, _32>, Alone, Pingpong, PingpongStores)
#else
GEMM(sparse, Sparse, half_t, half_t, half_t, float, Shape<_128, _128, _128>, Alone, Cooperative, CooperativeStores)

extern "C" __global__ void compress(void* a, void* values, void* metadata, int m, int k) {
  extern __shared__ char shared[];
  using Kernel = transform::kernel::SM90StructuredSparseCompressor<Problem, half_t, Row, sparse_gemm::Loop::SparseConfig>;
  typename Kernel::Params params{{m, 1, k, 1}, {a, {k, _1{}, 0}, values, metadata}};
  Kernel()(params, shared);
}
#endif
