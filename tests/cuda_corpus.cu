// Kernels in CUDA C++ for tests/foreign_corpus.py, with cooperative groups, wmma and libcu++; NVRTC compiles them.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/std/array>
#include <cuda/std/complex>
#include <cuda/std/span>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <mma.h>

namespace cg = cooperative_groups;
#define KERNEL extern "C" __global__ void

// -- functions, pointers to several spaces, tables of jumps ------------------------------------------

__device__ __noinline__ float series(float x, int n) {
  float sum = 0, term = 1;
  for (int i = 1; i <= n; i++) sum += term, term *= x / i;
  return sum;
}

KERNEL called(const float* x, float* y) { y[threadIdx.x] = series(x[threadIdx.x], threadIdx.x & 7); }

struct Pair {
  double first;
  int second;
};

__device__ __noinline__ Pair swapped(Pair p) { return {double(p.second), int(p.first)}; }

KERNEL structs(const int* x, double* y) {
  Pair p = swapped({double(x[threadIdx.x]), int(threadIdx.x)});
  y[threadIdx.x] = p.first * 1000 + p.second;
}

__device__ __noinline__ void fill(int* p, int n, int start) {
  for (int i = 0; i < n; i++) p[i] = start + i;
}

KERNEL by_address(int* y) {
  __shared__ int s[64];
  int own[8];
  fill(own, 8, threadIdx.x);
  fill(s + 2 * threadIdx.x, 2, 100 * threadIdx.x);
  fill(y + 4 * threadIdx.x, 2, own[threadIdx.x & 7]);
  __syncthreads();
  y[4 * threadIdx.x + 2] = s[63 - threadIdx.x];
  y[4 * threadIdx.x + 3] = own[3];
}

KERNEL either_space(const int* x, int* y) {
  __shared__ int s[32];
  s[threadIdx.x] = -x[threadIdx.x];
  __syncthreads();
  const int* p = x[threadIdx.x] & 1 ? s : x;
  int* count = x[threadIdx.x] & 2 ? s : y + 32;
  y[threadIdx.x] = p[31 - threadIdx.x];
  __syncthreads();
  atomicAdd(count, 1);
  __syncthreads();
  if (threadIdx.x == 0) y[33] = s[0];
}

KERNEL cases(const int* x, int* y) {
  int v = x[threadIdx.x], r;
  switch (v % 9) {
    case 0: r = v * 3; break;
    case 1: r = __popc(v); break;
    case 2: r = v ^ 0x55; break;
    case 3: r = __clz(v); break;
    case 4: r = v / 7; break;
    case 5: r = v - 1000; break;
    case 6: r = __brev(v); break;
    case 7: r = -v; break;
    default: r = v << 3;
  }
  y[threadIdx.x] = r;
}

__device__ int counter = 5;
__device__ float table[8] = {0.5f, -1, 2, 3, 4, 5, 6, 7.25f};
__constant__ short steps[4] = {-1, 2, -3, 4};

KERNEL variables(float* y) {
  if (threadIdx.x < 8) table[threadIdx.x] *= 2;
  __syncwarp();
  atomicAdd(&counter, steps[threadIdx.x & 3]);
  y[threadIdx.x] = table[threadIdx.x & 7] + steps[threadIdx.x & 3];
}

KERNEL printing(const int* x) {
  if (threadIdx.x < 3) printf("%d: %5.2f %s|%x|%llu\n", x[threadIdx.x], x[threadIdx.x] / 4.0, "text", 255, 1ull << 40);
}

// -- warps and cooperative groups ----------------------------------------------------------------------

KERNEL warp_sum(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = i < n ? x[i] : 0;
  for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
  if ((threadIdx.x & 31) == 0) atomicAdd(y, v);
}

KERNEL tiles(const int* x, int* y) {
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  int v = x[threadIdx.x];
  for (int d = tile.size() / 2; d; d /= 2) v += tile.shfl_down(v, d);
  if (tile.thread_rank() == 0) y[tile.meta_group_rank()] = v;
}

KERNEL reduced(const int* x, int* y) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  int v = x[threadIdx.x];
  int sum = cg::reduce(warp, v, cg::plus<int>()), most = cg::reduce(warp, v, cg::greater<int>());
  int before = cg::exclusive_scan(warp, v);
  y[threadIdx.x] = sum * 10000 + most * 100 + before;
}

KERNEL active_lanes(const int* x, int* counts) {
  if (x[threadIdx.x] % 3 == 0) {
    auto group = cg::coalesced_threads();
    if (group.thread_rank() == 0) atomicAdd(counts, group.size());
    counts[1 + threadIdx.x] = group.shfl(x[threadIdx.x], 0);
  }
}

KERNEL matches(const int* x, unsigned* y) {
  int v = x[threadIdx.x];
  y[threadIdx.x] = __match_any_sync(~0u, v) + (__any_sync(~0u, v == 3) ? 1 : 0) + __reduce_add_sync(~0u, v);
}

KERNEL copied_by_group(const float* x, float* y) {
  __shared__ float s[256];
  auto block = cg::this_thread_block();
  cg::memcpy_async(block, s, x + 256 * blockIdx.x, sizeof s);
  cg::wait(block);
  y[256 * blockIdx.x + threadIdx.x] = s[255 - threadIdx.x];
}

// -- atomics ---------------------------------------------------------------------------------------------

KERNEL last_block(const float* x, float* partial, unsigned* tickets, float* y) {
  __shared__ float s[128];
  __shared__ bool last;
  s[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
  __syncthreads();
  for (int k = 64; k; k >>= 1) {
    if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = s[0];
    __threadfence();
    last = atomicInc(tickets, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < gridDim.x; i++) sum += __ldcg(partial + i);
    *y = sum;
  }
}

KERNEL all_atomics(int* a, unsigned long long* b, float* f, double* d) {
  int t = threadIdx.x;
  atomicAdd(a, t), atomicSub(a + 1, t), atomicMin(a + 2, -t), atomicMax(a + 3, t), atomicAnd(a + 4, ~(1 << (t & 31)));
  atomicOr(a + 5, 1 << (t & 31)), atomicXor(a + 6, t), atomicAdd(b, 1ull << 33), atomicMax(b + 1, t * 7ull);
  atomicAdd(f, 0.5f), atomicAdd(d, 0.25);
  int old = *(volatile int*)(a + 7), seen;
  do seen = old, old = atomicCAS(a + 7, seen, seen + 2);
  while (old != seen);
  atomicAdd_block(a + 8, 1), atomicAdd_system(a + 9, 2), atomicExch(a + 10, 17);
}

KERNEL standard_atomics(int* x, unsigned* order) {
  cuda::atomic_ref<int, cuda::thread_scope_device> counter(x[0]);
  int mine = counter.fetch_add(1, cuda::memory_order_acq_rel);
  __shared__ cuda::atomic<unsigned, cuda::thread_scope_block> most;
  if (threadIdx.x == 0) most = 0u;
  __syncthreads();
  most.fetch_max(threadIdx.x * 3u, cuda::memory_order_relaxed);
  __syncthreads();
  order[blockIdx.x * blockDim.x + threadIdx.x] = most.load() + (mine >= 0);
}

KERNEL locked(int* lock, int* value) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1)) __nanosleep(20);
    __threadfence();
    *(volatile int*)value = *(volatile int*)value * 2 + 1;
    __threadfence();
    atomicExch(lock, 0);
  }
}

// -- libcu++ -----------------------------------------------------------------------------------------------

using Barrier = cuda::barrier<cuda::thread_scope_block>;

KERNEL barrier_phases(const int* x, int* y) {
  __shared__ Barrier bar;
  __shared__ int s[128];
  if (threadIdx.x == 0) init(&bar, blockDim.x);
  __syncthreads();
  int v = x[threadIdx.x];
  for (int round = 0; round < 3; round++) {
    s[threadIdx.x] = v;
    bar.arrive_and_wait();
    v += s[(threadIdx.x + 1) & 127];
    auto token = bar.arrive();
    v *= 2;
    bar.wait(cuda::std::move(token));
  }
  y[threadIdx.x] = v;
}

KERNEL copied_by_barrier(const float* x, float* y) {
  __shared__ Barrier bar;
  __shared__ alignas(16) float s[256];
  if (threadIdx.x == 0) init(&bar, blockDim.x);
  __syncthreads();
  cuda::memcpy_async(s + 4 * threadIdx.x, x + 4 * threadIdx.x, cuda::aligned_size_t<16>(16), bar);
  bar.arrive_and_wait();
  for (int i = threadIdx.x; i < 256; i += 64) y[i] = s[255 - i];
}

KERNEL pipelined(const float* x, float* y, int batches) {
  constexpr int stages = 2;
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, stages> state;
  __shared__ alignas(16) float s[stages][128];
  auto block = cg::this_thread_block();
  auto pipe = cuda::make_pipeline(block, &state);
  float sum = 0;
  for (int batch = 0, next = 0; batch < batches; batch++) {
    for (; next < batches && next < batch + stages; next++) {
      pipe.producer_acquire();
      cuda::memcpy_async(block, s[next % stages], x + 128 * next, sizeof s[0], pipe);
      pipe.producer_commit();
    }
    pipe.consumer_wait();
    sum += s[batch % stages][127 - threadIdx.x];
    pipe.consumer_release();
  }
  y[threadIdx.x] = sum;
}

KERNEL thread_pipeline(const int* x, int* y, int n) {
  __shared__ int s[2][64];
  auto pipe = cuda::make_pipeline();
  int sum = 0;
  pipe.producer_acquire();
  cuda::memcpy_async(&s[0][threadIdx.x], x + threadIdx.x, sizeof(int), pipe);
  pipe.producer_commit();
  for (int i = 0; i < n; i++) {
    if (i + 1 < n) {
      pipe.producer_acquire();
      cuda::memcpy_async(&s[(i + 1) & 1][threadIdx.x], x + 64 * (i + 1) + threadIdx.x, sizeof(int), pipe);
      pipe.producer_commit();
      cuda::pipeline_consumer_wait_prior<1>(pipe);
    } else {
      cuda::pipeline_consumer_wait_prior<0>(pipe);
    }
    sum += s[i & 1][threadIdx.x];
    pipe.consumer_release();
  }
  y[threadIdx.x] = sum;
}

KERNEL complexes(const float2* x, float2* y) {
  cuda::std::complex<float> z(x[threadIdx.x].x, x[threadIdx.x].y);
  z = z * z + cuda::std::complex<float>(1, -1) / z;
  y[threadIdx.x] = {z.real(), z.imag()};
}

// -- CUB -----------------------------------------------------------------------------------------------------

KERNEL block_sum(const int* x, int* y) {
  using Reduce = cub::BlockReduce<int, 128>;
  __shared__ Reduce::TempStorage temp;
  int sum = Reduce(temp).Sum(x[blockIdx.x * 128 + threadIdx.x]);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

KERNEL block_prefix(const int* x, int* y) {
  using Scan = cub::BlockScan<int, 128>;
  __shared__ Scan::TempStorage temp;
  int v[4];
  for (int i = 0; i < 4; i++) v[i] = x[4 * threadIdx.x + i];
  Scan(temp).InclusiveSum(v, v);
  for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = v[i];
}

KERNEL block_sort(const unsigned* x, unsigned* y) {
  using Sort = cub::BlockRadixSort<unsigned, 64, 4>;
  __shared__ Sort::TempStorage temp;
  unsigned v[4];
  for (int i = 0; i < 4; i++) v[i] = x[4 * threadIdx.x + i];
  Sort(temp).Sort(v);
  for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = v[i];
}

// -- matrices --------------------------------------------------------------------------------------------------

KERNEL wmma_product(const half* a, const half* b, float* c, int n, int k) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, half, row_major> fa;
  fragment<matrix_b, 16, 16, 16, half, row_major> fb;
  fragment<accumulator, 16, 16, 16, float> fc;
  fill_fragment(fc, 0.f);
  for (int i = 0; i < k; i += 16) {
    load_matrix_sync(fa, a + blockIdx.y * 16 * k + i, k);
    load_matrix_sync(fb, b + i * n + blockIdx.x * 16, n);
    mma_sync(fc, fa, fb, fc);
  }
  for (int i = 0; i < fc.num_elements; i++) fc.x[i] *= 0.5f;
  store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, fc, n, mem_row_major);
}

KERNEL wmma_shared(const signed char* a, const signed char* b, int* c) {
  using namespace nvcuda::wmma;
  __shared__ alignas(32) signed char sa[256], sb[256];
  for (int i = threadIdx.x; i < 256; i += 32) sa[i] = a[i], sb[i] = b[i];
  __syncwarp();
  fragment<matrix_a, 16, 16, 16, signed char, row_major> fa;
  fragment<matrix_b, 16, 16, 16, signed char, col_major> fb;
  fragment<accumulator, 16, 16, 16, int> fc;
  fill_fragment(fc, 3);
  load_matrix_sync(fa, sa, 16);
  load_matrix_sync(fb, sb, 16);
  mma_sync(fc, fa, fb, fc);
  store_matrix_sync(c, fc, 16, mem_row_major);
}

KERNEL tiled_product(const float* a, const float* b, float* c, int n) {
  __shared__ float sa[16][16], sb[16][17];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    sa[y][x] = a[row * n + k + x], sb[y][x] = b[(k + y) * n + col];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; i++) sum += sa[y][i] * sb[i][x];
    __syncthreads();
  }
  c[row * n + col] = sum;
}

__device__ void copy_async(void* to, const void* from) {
  unsigned address = __cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
}

KERNEL mma_product(const half* a, const half* b, float* c, int n, int k) {  // B is n x k
  __shared__ alignas(16) half sa[2][16 * 32], sb[2][8 * 32];
  int t = threadIdx.x, m0 = blockIdx.y * 16, n0 = blockIdx.x * 8;
  auto load = [&](int stage, int first) {
    for (int i = t; i < 64; i += 32) copy_async(sa[stage] + 8 * i, a + (m0 + i / 4) * k + first + i % 4 * 8);
    copy_async(sb[stage] + 8 * t, b + (n0 + t / 4) * k + first + t % 4 * 8);
    asm volatile("cp.async.commit_group;");
  };
  float d[4] = {};
  load(0, 0);
  for (int first = 0, stage = 0; first < k; first += 32, stage ^= 1) {
    if (first + 32 < k) {
      load(stage ^ 1, first + 32);
      asm volatile("cp.async.wait_group 1;");
    } else {
      asm volatile("cp.async.wait_group 0;");
    }
    __syncwarp();
    for (int kk = 0; kk < 32; kk += 16) {
      unsigned fa[4], fb[2];
      unsigned pa = __cvta_generic_to_shared(sa[stage] + t % 16 * 32 + kk + t / 16 * 8);
      unsigned pb = __cvta_generic_to_shared(sb[stage] + t % 8 * 32 + kk + t / 8 % 2 * 8);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3]) : "r"(pa));
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(fb[0]), "=r"(fb[1]) : "r"(pb));
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                   : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    }
    __syncwarp();
  }
  int row = m0 + t / 4, col = n0 + t % 4 * 2;
  c[row * n + col] = d[0], c[row * n + col + 1] = d[1];
  c[(row + 8) * n + col] = d[2], c[(row + 8) * n + col + 1] = d[3];
}

// -- arithmetic --------------------------------------------------------------------------------------------------

KERNEL integers(const int* x, long long* y) {
  int v = x[threadIdx.x], w = x[(threadIdx.x + 1) & 31] | 1;
  long long wide = (long long)v * w;
  y[threadIdx.x] = wide / w + wide % 7 + __mulhi(v, w) + __byte_perm(v, w, 0x5410) + __funnelshift_l(v, w, 5) +
                   abs(v) + min(v, w) + (unsigned)v / 10u + __sad(v, w, 1u) + __vaddss2(v, w) + __dp4a(v, w, 3) + (v >> 3);
}

KERNEL half_functions(const half* x, half* y) {
  half v = x[threadIdx.x];
  y[threadIdx.x] = __hadd(hsqrt(__habs(v)), __hmax(v, __float2half(0.25f))) * hexp(v);
}

KERNEL narrow_floats(const float* x, float* y) {
  __nv_fp8_e4m3 a(x[threadIdx.x]);
  __nv_fp8_e5m2 b(x[threadIdx.x]);
  __nv_bfloat162 c = __floats2bfloat162_rn(x[threadIdx.x], 1.f);
  y[3 * threadIdx.x] = float(a), y[3 * threadIdx.x + 1] = float(b), y[3 * threadIdx.x + 2] = __low2float(__hmul2(c, c));
}

KERNEL double_functions(const double* x, double* y) {
  double v = x[threadIdx.x];
  y[threadIdx.x] = sin(v) + exp(-v) * cbrt(v) + pow(v, 1.3) + atan2(v, 2.0) + fmod(v, 0.7) + erf(v) + lgamma(v + 1);
}

KERNEL float_functions(const float* x, float* y) {
  float v = x[threadIdx.x];
  y[threadIdx.x] = erff(v) + cbrtf(v) + fmodf(v, 0.3f) + rsqrtf(v) + log1pf(v) + sinhf(v) + roundf(v * 3) + ldexpf(v, 3) +
                   __sinf(v) + __fdividef(v, 3.f) + atanf(v) + normcdff(v) + tgammaf(v + 1);
}

KERNEL random_numbers(unsigned* y, unsigned seed) {  // Philox 4x32-10
  uint4 c = make_uint4(blockIdx.x * blockDim.x + threadIdx.x, 0, 0, 0);
  unsigned k0 = seed, k1 = 0;
#pragma unroll 1
  for (int i = 0; i < 10; i++) {
    unsigned h0 = __umulhi(0xD2511F53u, c.x), l0 = 0xD2511F53u * c.x, h1 = __umulhi(0xCD9E8D57u, c.z), l1 = 0xCD9E8D57u * c.z;
    c = make_uint4(h1 ^ c.y ^ k0, l1, h0 ^ c.w ^ k1, l0);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = c.x ^ c.y ^ c.z ^ c.w;
}
