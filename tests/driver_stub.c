/* A CUDA driver without a GPU, whose memory is the host's. It records what launches pass, and runs no kernel.
 *
 * Two GPUs; GPU n has the primary context 100 + n. cuGetProcAddress finds what is defined here alone.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int stub_sizes[64];         /* bytes of each parameter, for the stub to copy */
int stub_count;             /* parameters */
int stub_bytes;             /* copied by the last launch */
int stub_launches;
unsigned char stub_parameters[1 << 14];
unsigned char stub_config[sizeof(CUlaunchConfig)];
unsigned char stub_attributes[8 * sizeof(CUlaunchAttribute)];
char stub_function[256];
int stub_attribute_values[64]; /* of cuFuncSetAttribute, by number */

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = (CUmodule)image;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    strncpy(stub_function, name, sizeof stub_function - 1);
    *function = (CUfunction)module;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    return module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    stub_attribute_values[attribute] = value;
    return function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* The map holds the arguments, so that a test compares these: see `image_of` in test_export.py. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                                const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill)
{
    struct {
        uint64_t data, extents[5], strides[4];
        uint32_t type, rank, box[5], swizzle, promotion, more;
    } given;
    memset(&given, 0, sizeof given);
    given.data = (uint64_t)(uintptr_t)data;
    given.type = type, given.rank = rank, given.swizzle = swizzle, given.promotion = promotion;
    given.more = interleave + fill;
    for (cuuint32_t axis = 0; axis < rank; axis++) {
        given.extents[axis] = extents[axis];
        given.box[axis] = box[axis];
        given.more += steps[axis] - 1;
        if (axis + 1 < rank)
            given.strides[axis] = strides[axis];
    }
    if ((uintptr_t)map % 64)
        return CUDA_ERROR_MISALIGNED_ADDRESS;
    memset(map, 0, sizeof *map);
    memcpy(map, &given, sizeof given < sizeof *map ? sizeof given : sizeof *map);
    return CUDA_SUCCESS;
}

/* The box holds channels, pixels, and for each axis of pixels its corners and its step. */
CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                                 const cuuint64_t *extents, const cuuint64_t *strides, const int *lower,
                                 const int *upper, cuuint32_t channels, cuuint32_t pixels,
                                 const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                 CUtensorMapFloatOOBfill fill)
{
    cuuint32_t box[5] = {channels, pixels, 0, 0, 0};
    const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
    for (cuuint32_t axis = 0; axis + 2 < rank; axis++)
        box[axis + 2] = ((uint32_t)lower[axis] & 255) | ((uint32_t)upper[axis] & 255) << 8 | steps[axis + 1] << 16;
    return cuTensorMapEncodeTiled(map, type, rank, data, extents, strides, box, ones, interleave, swizzle,
                                  promotion, fill);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    if (!function || !parameters == !extra)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(stub_config, config, sizeof *config);
    memset(stub_attributes, 0, sizeof stub_attributes);
    memcpy(stub_attributes, config->attrs, config->numAttrs * sizeof(CUlaunchAttribute));
    stub_bytes = 0;
    if (extra) { /* all in one piece */
        stub_bytes = (int)*(size_t *)extra[3];
        memcpy(stub_parameters, extra[1], (size_t)stub_bytes);
    }
    for (int i = 0; parameters && i < stub_count; i++) {
        memcpy(stub_parameters + stub_bytes, parameters[i], (size_t)stub_sizes[i]);
        stub_bytes += stub_sizes[i];
    }
    stub_launches++;
    return CUDA_SUCCESS;
}

/* Devices, contexts, libraries, memory and events, for CudaDriver. */

static __thread CUcontext stack[16];
static __thread int depth;

CUresult cuInit(unsigned flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    static const char *const suffixes[] = {"_v2", ""};
    char full[128];
    (void)version, (void)flags;
    for (int i = 0; i < 2; i++) {
        strcat(strcpy(full, name), suffixes[i]);
        if ((*function = dlsym(RTLD_DEFAULT, full)))
            break;
    }
    if (!*function) {
        void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        for (int i = 0; i < 2 && !*function; i++)
            *function = dlsym(self, strcat(strcpy(full, name), suffixes[i]));
    }
    if (status)
        *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = 2;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    strncpy(name, device ? "Stub B" : "Stub A", (size_t)size);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232448; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 4096; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)(uintptr_t)(100 + device);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    depth += !depth;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = (CUdevice)((uintptr_t)stack[depth - 1] - 100);
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
                           unsigned jit_count, CUlibraryOption *options, void **values, unsigned count)
{
    (void)jit, (void)jit_values, (void)options, (void)values;
    *library = (CUlibrary)code;
    if (jit_count || count || memcmp(code, "\177ELF", 4))
        return CUDA_ERROR_INVALID_IMAGE;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    strncpy(stub_function, name, sizeof stub_function - 1);
    *kernel = (CUkernel)library;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    *function = (CUfunction)kernel;
    return depth ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    (void)function;
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 40; break;
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 512; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

int stub_allocations; /* not freed yet */

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    *address = (CUdeviceptr)(uintptr_t)aligned_alloc(256, (size + 255) / 256 * 256);
    stub_allocations++;
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    free((void *)(uintptr_t)address);
    stub_allocations--;
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t size, CUstream stream)
{
    (void)stream;
    memcpy((void *)(uintptr_t)target, source, size);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t size, CUstream stream)
{
    (void)stream;
    memcpy(target, (void *)(uintptr_t)source, size);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream)
{
    (void)stream;
    memcpy((void *)(uintptr_t)target, (void *)(uintptr_t)source, size);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t size, CUstream stream)
{
    (void)stream;
    memset((void *)(uintptr_t)target, value, size);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    return (uintptr_t)stream == 13 ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    *status = (uintptr_t)stream == 7 ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return (uintptr_t)stream == 8 ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    return stream && event && !flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct CUevent_st {
    CUstream stream;
};
int stub_events; /* not destroyed yet */

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof **event);
    stub_events++;
    return depth ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    event->stream = stream;
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event)
{
    return event->stream ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    *milliseconds = (float)((uintptr_t)end->stream - (uintptr_t)start->stream);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    free(event);
    stub_events--;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_INVALID_IMAGE ? "device kernel image is invalid" : "some error";
    return CUDA_SUCCESS;
}
