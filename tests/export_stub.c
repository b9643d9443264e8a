/* A CUDA driver without a GPU: it records what the launcher of an exported kernel passes. */
#include <cuda.h>
#include <stdint.h>
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

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    if (!function || extra)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(stub_config, config, sizeof *config);
    memset(stub_attributes, 0, sizeof stub_attributes);
    memcpy(stub_attributes, config->attrs, config->numAttrs * sizeof(CUlaunchAttribute));
    stub_bytes = 0;
    for (int i = 0; i < stub_count; i++) {
        memcpy(stub_parameters + stub_bytes, parameters[i], (size_t)stub_sizes[i]);
        stub_bytes += stub_sizes[i];
    }
    stub_launches++;
    return CUDA_SUCCESS;
}
