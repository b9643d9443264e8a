/* Launch two exported kernels on a GPU, compare with results of the CPU, and time the product. */
#include "gemm.h"
#include "scale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { M = 4096, N = 4096, K = 4096, ROWS = 300, COLUMNS = 8, REPEATS = 20, SAMPLES = 2000 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        CUresult code = (call);                                                                    \
        if (code != CUDA_SUCCESS) {                                                                \
            printf("%s: CUresult %d\n", #call, (int)code);                                         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static uint16_t bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static int element(int row, int column) /* whole numbers, so that sums are exact */
{
    return (row * 7 + column * 3 + (row ^ column)) % 7 - 3;
}

static CUdeviceptr upload(const void *data, size_t size)
{
    CUdeviceptr address;
    TRY(cuMemAlloc(&address, size));
    TRY(cuMemcpyHtoD(address, data, size));
    return address;
}

static void multiply(CUstream stream)
{
    uint16_t *a = malloc(2 * M * K), *b = malloc(2 * N * K), *d = malloc(2 * M * N);
    CUevent start, end;
    float milliseconds;
    gemm_kernel kernel;
    for (int i = 0; i < M; i++)
        for (int k = 0; k < K; k++)
            a[i * K + k] = bf16((float)element(i, k));
    for (int j = 0; j < N; j++)
        for (int k = 0; k < K; k++)
            b[j * K + k] = bf16((float)element(k, j));
    memset(d, 0, 2 * M * N);
    tensorcore_array2 in_a = {upload(a, 2 * M * K), {M, K}, {K, 1}};
    tensorcore_array2 in_b = {upload(b, 2 * N * K), {K, N}, {1, K}};
    tensorcore_array2 out = {upload(d, 2 * M * N), {M, N}, {N, 1}}, wrong = out;
    TRY(gemm_load(&kernel));
    TRY(gemm_launch(&kernel, stream, in_a, in_b, out, out, 1, 0));
    TRY(cuMemcpyDtoH(d, out.data, 2 * M * N));
    for (int sample = 0; sample < SAMPLES; sample++) {
        int i = sample * 7919 % M, j = sample * 104729 % N, sum = 0;
        for (int k = 0; k < K; k++)
            sum += element(i, k) * element(k, j);
        if (d[i * N + j] != bf16((float)sum)) {
            printf("D[%d, %d] is %#x and not %#x\n", i, j, d[i * N + j], bf16((float)sum));
            exit(1);
        }
    }
    wrong.shape[0] = M / 2;
    if (gemm_launch(&kernel, stream, in_a, in_b, wrong, wrong, 1, 0) != CUDA_ERROR_INVALID_VALUE)
        printf("a wrong shape is launched\n"), exit(1);
    TRY(cuEventCreate(&start, CU_EVENT_DEFAULT));
    TRY(cuEventCreate(&end, CU_EVENT_DEFAULT));
    TRY(cuEventRecord(start, stream));
    for (int i = 0; i < REPEATS; i++)
        TRY(gemm_launch(&kernel, stream, in_a, in_b, out, out, 1, 0));
    TRY(cuEventRecord(end, stream));
    TRY(cuEventSynchronize(end));
    TRY(cuEventElapsedTime(&milliseconds, start, end));
    TRY(gemm_unload(&kernel));
    printf("gemm: %d samples are right, %.0f TFLOP/s\n", SAMPLES, 2e-9 * M * N * K * REPEATS / milliseconds);
}

static void scale(CUstream stream)
{
    static float x[ROWS][COLUMNS], y[COLUMNS][ROWS];
    scale_kernel kernel;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            x[i][j] = (float)(i * 10 + j);
    tensorcore_array2 in = {upload(x, sizeof x), {ROWS, COLUMNS}, {COLUMNS, 1}};
    tensorcore_array2 out = {upload(y, sizeof y), {COLUMNS, ROWS}, {ROWS, 1}};
    TRY(scale_load(&kernel));
    TRY(scale_launch(&kernel, stream, in, out, 2.5f));
    TRY(cuMemcpyDtoH(y, out.data, sizeof y));
    TRY(scale_unload(&kernel));
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            if (y[j][i] != 2.5f * x[i][j])
                printf("y[%d, %d] is %f\n", j, i, y[j][i]), exit(1);
    printf("scale: all right\n");
}

int main(void)
{
    CUdevice device;
    CUcontext context;
    CUstream stream;
    TRY(cuInit(0));
    TRY(cuDeviceGet(&device, 0));
    TRY(cuDevicePrimaryCtxRetain(&context, device));
    TRY(cuCtxSetCurrent(context));
    TRY(cuStreamCreate(&stream, CU_STREAM_DEFAULT)); /* ordered with copies of stream 0 */
    scale(stream);
    multiply(stream);
    return 0;
}
