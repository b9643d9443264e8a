// GEMMs of CUTLASS 2 for tests/test_ptx_cutlass.py: D = A B' with B K-major.
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/kernel/default_gemm.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>
using namespace cutlass;

template <class Element, class Result, int K, int Align, class Shape, class Operator>
__device__ void run(Element* a, Element* b, Result* c, int m, int n, int k) {
  using Kernel = typename gemm::kernel::DefaultGemm<
      Element, layout::RowMajor, Align, Element, layout::ColumnMajor, Align, Result, layout::RowMajor, Result,
      arch::OpClassTensorOp, arch::Sm80, gemm::GemmShape<128, 128, K>, gemm::GemmShape<64, 64, K>, Shape,
      epilogue::thread::LinearCombination<Result, 4, Result, Result>,
      gemm::threadblock::GemmIdentityThreadblockSwizzle<>, 3, false, Operator>::GemmKernel;
  extern __shared__ char shared[];
  typename Kernel::Params params({m, n, k}, {(m + 127) / 128, (n + 127) / 128, 1}, {a, k}, {b, k}, {c, n}, {c, n},
                                 {Result(1), Result(0)});
  Kernel()(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared));
}

extern "C" __global__ void gemm_f16(half_t* a, half_t* b, float* c, int m, int n, int k) {
  run<half_t, float, 32, 8, gemm::GemmShape<16, 8, 16>, arch::OpMultiplyAdd>(a, b, c, m, n, k);
}

extern "C" __global__ void gemm_s8(int8_t* a, int8_t* b, int* c, int m, int n, int k) {
  run<int8_t, int, 64, 16, gemm::GemmShape<16, 8, 32>, arch::OpMultiplyAddSaturate>(a, b, c, m, n, k);
}
