// Kernels in CUDA C++ for tests/test_ptx_nvrtc.py; NVRTC compiles them.
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cooperative_groups.h>

extern "C" __global__ void saxpy(const float* x, float* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void transpose(const float* a, float* b, int n) {
  __shared__ float t[32][33];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < n && y + j < n) t[threadIdx.y + j][threadIdx.x] = a[(y + j) * n + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < n && y + j < n) b[(y + j) * n + x] = t[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void no_barrier(const float* x, float* y) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = s[63 - threadIdx.x];  // RACE
}

extern "C" __global__ void histogram(const unsigned char* x, unsigned* h, int n) {
  __shared__ unsigned s[256];
  s[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&s[x[i]], 1u);
  __syncthreads();
  atomicAdd(&h[threadIdx.x], s[threadIdx.x]);
}

extern "C" __global__ void halves(const half2* x, half2* y, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n) y[i] = __hfma2(x[i], x[i], __hmul2(x[i], __float2half2_rn(0.5f)));
}

extern "C" __global__ void softmax(const float* x, float* y, int n) {
  extern __shared__ float s[];
  int t = threadIdx.x;
  float m = -1e30f, z = 0;
  for (int i = t; i < n; i += blockDim.x) m = fmaxf(m, x[blockIdx.x * n + i]);
  s[t] = m;
  __syncthreads();
  for (int k = blockDim.x / 2; k; k >>= 1) {
    if (t < k) s[t] = fmaxf(s[t], s[t + k]);
    __syncthreads();
  }
  m = s[0];
  __syncthreads();
  for (int i = t; i < n; i += blockDim.x) z += __expf(x[blockIdx.x * n + i] - m);
  s[t] = z;
  __syncthreads();
  for (int k = blockDim.x / 2; k; k >>= 1) {
    if (t < k) s[t] += s[t + k];
    __syncthreads();
  }
  for (int i = t; i < n; i += blockDim.x) y[blockIdx.x * n + i] = __expf(x[blockIdx.x * n + i] - m) / s[0];
}

extern "C" __global__ void collatz(const unsigned* x, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, c = 0;
  if (i >= n) return;
  unsigned long long v = x[i];
  while (v != 1) {
    v = v & 1 ? 3 * v + 1 : v / 2;
    if (++c > 500) break;
  }
  out[i] = c;
}

extern "C" __global__ void scan(const int* x, int* y) {
  __shared__ int w[32];
  int t = threadIdx.x, lane = t & 31, v = x[t];
  for (int d = 1; d < 32; d <<= 1) {
    int o = __shfl_up_sync(~0u, v, d);
    if (lane >= d) v += o;
  }
  if (lane == 31) w[t >> 5] = v;
  __syncthreads();
  if (t < 32) {
    int u = w[t];
    for (int d = 1; d < 32; d <<= 1) {
      int o = __shfl_up_sync(~0u, u, d);
      if (lane >= d) u += o;
    }
    w[t] = u;
  }
  __syncthreads();
  y[t] = v + (t >= 32 ? w[(t >> 5) - 1] : 0);
}

extern "C" __global__ void vectors(const float4* x, float4* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float4 v = x[i];
    v.x *= 2;
    v.y += v.x;
    v.z = v.w - v.y;
    y[i] = v;
  }
}

extern "C" __global__ void doubles(const double* x, double* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = sqrt(x[i]) / (1.0 + x[i] * x[i]);
}

extern "C" __global__ void functions(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = sinf(x[i]) + expf(x[i]) * logf(fabsf(x[i]) + 1.f) + tanhf(x[i]) + powf(fabsf(x[i]), 1.5f);
}

extern "C" __global__ void bits(const int* x, unsigned* y) {
  unsigned b = __ballot_sync(~0u, x[threadIdx.x] > 0);
  y[threadIdx.x] = __popc(b) + __ffs(b) + __clz(b) + __brev(b);
}

extern "C" __global__ void brains(const __nv_bfloat16* x, __nv_bfloat16* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __float2bfloat16(__bfloat162float(x[i]) * 1.5f);
}

struct Fields {
  float a;
  int n;
  const float* x;
};

extern "C" __global__ void by_value(Fields f, float* y) {
  if (threadIdx.x < f.n) y[threadIdx.x] = f.a * f.x[threadIdx.x];
}

__constant__ float table[4] = {1, 2, 3, 4};

extern "C" __global__ void constants(float* y) { y[threadIdx.x] = table[threadIdx.x & 3]; }

extern "C" __global__ void locals(const int* x, int* y) {
  int a[16], k = threadIdx.x, s = 0;
  for (int i = 0; i < 16; i++) a[i] = x[i];
  for (int i = 0; i < 16; i++) {
    k = a[k & 15];
    s += k;
  }
  y[threadIdx.x] = s;
}

__device__ float twice(float x) { return 2 * x; }
__device__ float thrice(float x) { return 3 * x; }
__device__ float (*multiples[2])(float) = {twice, thrice};

extern "C" __global__ void pointers(float* y) { y[threadIdx.x] = multiples[threadIdx.x & 1](y[threadIdx.x]); }

struct Shape {
  float x;
  __device__ virtual float area() const = 0;
};
struct Square : Shape {
  __device__ float area() const override { return x * x; }
};
struct Triangle : Shape {
  __device__ float area() const override { return 0.5f * x * x; }
};

extern "C" __global__ void virtuals(float* y) {
  Shape* shape = threadIdx.x & 1 ? (Shape*)new Square : (Shape*)new Triangle;
  shape->x = y[threadIdx.x];
  y[threadIdx.x] = shape->area();
  delete shape;
}

extern "C" __global__ void full_heap(int* failed, unsigned long long bytes) {
  int* memory = (int*)malloc(bytes);
  if (memory) *memory = threadIdx.x;
  failed[threadIdx.x] = memory ? *memory != threadIdx.x : -1;
  free(memory);
}

extern "C" __global__ void pointer_of_the_host(float (*f)(float), float* y) { *y = f(*y); }

extern "C" __global__ void whole_grid(int* x, int* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  for (int k = 0; k < 2; k++) {
    x[i] = i + k;
    cooperative_groups::this_grid().sync();
    y[i] += x[n - 1 - i];
    cooperative_groups::this_grid().sync();
  }
}
