"""Write the C header and source of an exported kernel: a typed launcher that only needs the CUDA driver."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.export.interface import Argument, Interface, array_arguments, element_bytes
from tensorcore_dsl.ir.nodes import TensorMap
from tensorcore_dsl.runtime.arguments import ArrayType, ScalarType, parameter_type
from tensorcore_dsl.runtime.tensor_maps import DATA_TYPES, L2_PROMOTION, TENSOR_MAP_SWIZZLES

# Parameter type of PTX -> type in C. f16, bf16 and 8-bit floats are passed as their bits.
_C_TYPES = {
    **{f"{kind}{bits}": f"uint{bits}_t" for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    "f32": "float",
    "f64": "double",
}
# Reserved words: keywords of C and C++, and names that the launcher uses.
_RESERVED = """alignas alignof and asm auto bool break case catch char class const constexpr continue default
    delete do double else enum explicit extern false float for friend goto if inline int long mutable
    namespace new not operator or private protected public register restrict return short signed sizeof
    static struct switch template this throw true try typedef typename union unsigned using virtual void
    volatile while xor kernel stream grid_x grid_y grid_z grid config attributes parameters maps result
    image fits encode floor_div floor_mod least greatest cdiv axis"""
_WORDS_A_LINE = 6

_HELPERS = {
    "floor_div": """static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
""",
    "floor_mod": """static int64_t floor_mod(int64_t a, int64_t b)
{
    return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
}
""",
    "cdiv": """static int64_t cdiv(int64_t a, int64_t b)
{
    return a / b + (a % b != 0 && (a < 0) == (b < 0));
}
""",
    "least": "static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }\n",
    "greatest": "static int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }\n",
    "fits": """/* Whether an array has the alignment and the strides that the kernel is compiled for. */
static int fits(CUdeviceptr data, const int32_t *shape, const int64_t *strides, const char *unit,
                int ndim, int element_bytes, int align)
{
    uint64_t together = data;
    for (int axis = 0; axis < ndim; axis++) {
        if (shape[axis] < 0 || (unit[axis] && shape[axis] > 1 && strides[axis] != 1))
            return 0;
        if (!unit[axis] && shape[axis] > 1)
            together |= (uint64_t)(strides[axis] * element_bytes);
    }
    return together % (uint64_t)align == 0;
}
""",
    "encode": """/* A tensor map of an array. An axis of one element takes any valid stride. */
static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, int element_bytes, CUdeviceptr data,
                       const int32_t *shape, const int64_t *strides, int rank, const int *axes,
                       const cuuint32_t *box, CUtensorMapSwizzle swizzle, const int (*corners)[3],
                       const cuuint32_t *steps, int nan_fill)
{
    const cuuint64_t longest = (1ULL << 40) - 16;
    cuuint64_t extents[5], bytes[5], reach;
    extents[0] = (cuuint64_t)shape[axes[0]];
    reach = extents[0] * (cuuint64_t)element_bytes;
    for (int i = 1; i < rank; i++) {
        extents[i] = (cuuint64_t)shape[axes[i]];
        bytes[i - 1] = (reach + 15) / 16 * 16 < longest ? (reach + 15) / 16 * 16 : longest;
        if (extents[i] > 1)
            bytes[i - 1] = (cuuint64_t)(strides[axes[i]] * element_bytes);
        reach = bytes[i - 1] * extents[i];
    }
    if (corners)
        return cuTensorMapEncodeIm2col(map, type, (cuuint32_t)rank, (void *)(uintptr_t)data, extents, bytes,
                                       corners[0], corners[1], box[0], box[1], steps,
                                       CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                       (CUtensorMapL2promotion)L2_PROMOTION,
                                       (CUtensorMapFloatOOBfill)nan_fill);
    return cuTensorMapEncodeTiled(map, type, (cuuint32_t)rank, (void *)(uintptr_t)data, extents, bytes, box,
                                  steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                  (CUtensorMapL2promotion)L2_PROMOTION, (CUtensorMapFloatOOBfill)nan_fill);
}
""".replace("L2_PROMOTION", str(L2_PROMOTION)),
}


@dataclass(frozen=True)
class CSource(EagerDict):
    """The C files of an export: `header()` and `source()`."""

    interface: Interface

    @cached_property
    def names(self) -> dict[str, str]:
        """Names of the arguments in C: unique ASCII names that are not reserved."""
        used = set(_RESERVED.split())
        names = {}
        for argument in self.interface.arguments:
            name = re.sub(r"\W", "_", argument.name, flags=re.ASCII)
            while name in used:
                name += "_"
            used.add(name)
            names[argument.name] = name
        return names

    def header(self) -> str:
        interface, name = self.interface, self.interface.name
        guard = f"{name.upper()}_H"
        dims = sorted({kind.ndim for _, kind in array_arguments(interface.arguments)})
        comment = "\n".join(f" * {line}".rstrip() for line in self._documentation())
        return "\n".join(
            [
                f"/*\n{comment}\n */",
                f"#ifndef {guard}",
                f"#define {guard}\n",
                "#include <cuda.h>",
                "#include <stdint.h>\n",
                '#ifdef __cplusplus\nextern "C" {\n#endif\n',
                *map(_array_struct, dims),
                f"typedef struct {{\n    CUmodule module;\n    CUfunction function;\n}} {name}_kernel;\n",
                "/* Load the kernel into the current context. */",
                f"CUresult {name}_load({name}_kernel *kernel);\n",
                "/* Queue a launch on a stream. CUDA_ERROR_INVALID_VALUE: an array does not fit. */",
                f"{self._signature()};\n",
                "/* Unload the kernel from its context, which must be current. */",
                f"CUresult {name}_unload({name}_kernel *kernel);\n",
                "#ifdef __cplusplus\n}\n#endif",
                "#endif\n",
            ]
        )

    def source(self) -> str:
        interface, name = self.interface, self.interface.name
        body = [self._load(), self._launch(), self._unload()]
        helpers = [text for helper, text in _HELPERS.items() if re.search(rf"\b{helper}\(", body[1])]
        return "\n".join(
            [
                f"/* {name}: written by {interface.made_by}. {name}.h describes it. */",
                f'#include "{name}.h"\n\n#include <string.h>\n',
                f"/* {interface.code}, {len(interface.cubin.code)} bytes. */",
                f"static const uint64_t image[] = {{\n{_words(interface.cubin.code)}\n}};\n",
                *helpers,
                *body,
            ]
        )

    def _documentation(self) -> Iterator[str]:
        interface, config = self.interface, self.interface.config
        name, sizes = interface.name, " x ".join(map(str, config.block))
        yield f"{name}: the kernel {interface.cubin.name} for {interface.cubin.arch}, by {interface.made_by}."
        yield "It needs the CUDA driver (12.0 or later), and no runtime library and no Python."
        yield from ("", *_comment(interface.about).splitlines()) if interface.about else ()
        yield ""
        yield f"    {name}_kernel kernel;"
        yield f"    {name}_load(&kernel);"
        yield f"    {name}_launch(&kernel, stream, ...);"
        yield f"    {name}_unload(&kernel);"
        yield ""
        yield f"A block has {sizes} threads and {config.shared_bytes} bytes of dynamic shared memory."
        if config.cluster:
            yield f"A cluster has {' x '.join(map(str, config.cluster))} blocks."
        if interface.grid is None:
            yield "The caller gives the grid, in blocks."
        else:
            yield f"The grid is ({', '.join(interface.grid.texts)})."
        yield ""
        yield "Arguments, in order. Strides count elements. Arrays lie in the memory of the GPU."
        for argument in interface.arguments:
            if argument.type is not None:
                yield f"    {self.names[argument.name]}: {_described(argument)}"
        for constant, value in interface.constants:
            yield _comment(f"    {constant} = {value[:200]} is compiled in")

    def _signature(self) -> str:
        name = self.interface.name
        parameters = [f"const {name}_kernel *kernel", "CUstream stream"]
        if self.interface.grid is None:
            parameters += ["unsigned grid_x", "unsigned grid_y", "unsigned grid_z"]
        for argument in self.interface.arguments:
            kind = argument.type
            if isinstance(kind, ArrayType):
                parameters.append(f"tensorcore_array{kind.ndim} {self.names[argument.name]}")
            elif isinstance(kind, ScalarType):
                parameters.append(f"{_C_TYPES[parameter_type(kind.dtype)]} {self.names[argument.name]}")
        return f"CUresult {name}_launch({', '.join(parameters)})"

    def _load(self) -> str:
        name, config, entry = self.interface.name, self.interface.config, self.interface.cubin.name
        steps = [
            "CUresult result = cuModuleLoadData(&kernel->module, image);",
            "if (result == CUDA_SUCCESS)",
            f'    result = cuModuleGetFunction(&kernel->function, kernel->module, "{entry}");',
        ]
        x, y, z = config.cluster or (1, 1, 1)
        for attribute, value in (
            ("MAX_DYNAMIC_SHARED_SIZE_BYTES", config.shared_bytes),
            ("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", int(x * y * z > 8)),
        ):
            if value:
                set_to = f"kernel->function, CU_FUNC_ATTRIBUTE_{attribute}, {value}"
                steps += ["if (result == CUDA_SUCCESS)", f"    result = cuFuncSetAttribute({set_to});"]
        return _function(f"CUresult {name}_load({name}_kernel *kernel)", [*steps, "return result;"])

    def _unload(self) -> str:
        name = self.interface.name
        return _function(
            f"CUresult {name}_unload({name}_kernel *kernel)", ["return cuModuleUnload(kernel->module);"]
        )

    def _launch(self) -> str:
        interface, config = self.interface, self.interface.config
        arrays = array_arguments(interface.arguments)
        shared, block = config.shared_bytes, config.block
        grid: tuple[str, ...] = ("grid_x", "grid_y", "grid_z")
        if interface.grid is not None:
            grid = interface.grid.c_expressions(interface.types, self.names)
        steps = [
            f"const int64_t grid[3] = {{{', '.join(grid)}}};",
            "CUlaunchConfig config;",
            *(
                f"static const char {self.names[a.name]}_unit[] = {{{_flags(k)}}};"
                for a, k in arrays
                if k.ndim
            ),
        ]
        attributes = _attributes(self.interface)
        if attributes:
            steps.append(f"CUlaunchAttribute attributes[{len(attributes)}];")
        maps = interface.cubin.tensor_maps
        if maps:
            steps.append(f"CUtensorMap maps[{len(maps)}];")
            steps.append("CUresult result;")
        steps.append(f"void *parameters[] = {{{', '.join(self._parameters()) or '0'}}};")
        for argument, kind in arrays:
            steps += self._check(argument, kind)
        for argument in interface.arguments:
            if isinstance(argument.type, ScalarType) and argument.type.dtype.name == "pred":
                steps.append(f"{self.names[argument.name]} = {self.names[argument.name]} != 0;")
        steps += [
            "for (int axis = 0; axis < 3; axis++)",
            "    if (grid[axis] < 0 || grid[axis] > 0x7fffffff)",
            "        return CUDA_ERROR_INVALID_VALUE;",
            "if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0)",
            "    return CUDA_SUCCESS;",
        ]
        for number, tensor_map in enumerate(maps):
            steps += self._encode(number, tensor_map)
        steps.append("memset(&config, 0, sizeof config);")
        for axis, letter in enumerate("XYZ"):
            steps.append(f"config.gridDim{letter} = (unsigned)grid[{axis}];")
            steps.append(f"config.blockDim{letter} = {block[axis]};")
        steps += [
            f"config.sharedMemBytes = {shared};",
            "config.hStream = stream;",
            *_attribute_steps(attributes),
        ]
        steps.append("return cuLaunchKernelEx(&config, kernel->function, parameters, NULL);")
        return _function(self._signature(), steps)

    def _parameters(self) -> Iterator[str]:
        for argument in self.interface.arguments:
            kind, name = argument.type, self.names[argument.name]
            if isinstance(kind, ScalarType):
                yield f"&{name}"
            elif isinstance(kind, ArrayType):
                yield f"&{name}.data"
                yield from (f"&{name}.shape[{axis}]" for axis in range(kind.ndim))
                yield from (f"&{name}.strides[{axis}]" for axis in range(kind.ndim) if not kind.unit[axis])
        yield from (f"&maps[{number}]" for number in range(len(self.interface.cubin.tensor_maps)))

    def _check(self, argument: Argument, kind: ArrayType) -> Iterator[str]:
        name = self.names[argument.name]
        if kind.ndim:
            size = element_bytes(kind)
            arrays = f"{name}.data, {name}.shape, {name}.strides, {name}_unit"
            refused = f"!fits({arrays}, {kind.ndim}, {size}, {kind.align})"
        else:
            refused = f"{name}.data % {kind.align} != 0"
        for axis, extent in enumerate(argument.shape or ()):
            refused += f" || {name}.shape[{axis}] != {extent}"
        yield f"if ({refused})"
        yield "    return CUDA_ERROR_INVALID_VALUE;"

    def _encode(self, number: int, tensor_map: TensorMap) -> Iterator[str]:
        argument = self.interface.arguments[tensor_map.argument]
        kind, name = argument.type, self.names[argument.name]
        assert isinstance(kind, ArrayType)
        axes, box = (", ".join(map(str, values)) for values in (tensor_map.axes, tensor_map.box))
        yield "{"
        yield f"    static const int axes[] = {{{axes}}};"
        yield f"    static const cuuint32_t box[] = {{{box}}};"
        steps, corners = (1,) * len(tensor_map.axes), "NULL"
        if (im2col := tensor_map.im2col) is not None:
            steps, corners = (1, *im2col.steps, 1), "corners"
            listed = ", ".join(f"{{{', '.join(map(str, corner))}}}" for corner in im2col[:2])
            yield f"    static const int corners[2][3] = {{{listed}}};"
        yield f"    static const cuuint32_t steps[] = {{{', '.join(map(str, steps))}}};"
        yield (
            f"    result = encode(&maps[{number}], (CUtensorMapDataType){DATA_TYPES[kind.dtype.name]}, "
            f"{element_bytes(kind)}, {name}.data, {name}.shape, {name}.strides, {len(tensor_map.axes)}, "
            f"axes, box, (CUtensorMapSwizzle){TENSOR_MAP_SWIZZLES[tensor_map.swizzle]}, {corners}, steps, "
            f"{int(tensor_map.nan_fill)});"
        )
        yield "    if (result != CUDA_SUCCESS)"
        yield "        return result;"
        yield "}"


def _comment(text: str) -> str:
    """Escape text so that it does not end a C comment."""
    return text.replace("*/", "* /")


def _attributes(interface: Interface) -> list[list[str]]:
    """Return the assignments of each launch attribute, without their prefix `attributes[i].`"""
    config = interface.config
    result = []
    if config.cooperative:
        result.append(["id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE", "value.cooperative = 1"])
    if config.cluster and not config.cluster_in_code:
        sizes = zip("xyz", config.cluster, strict=True)
        sized = [f"value.clusterDim.{axis} = {size}" for axis, size in sizes]
        result.append(["id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", *sized])
    if config.pdl:
        result.append(
            [
                "id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
                "value.programmaticStreamSerializationAllowed = 1",
            ]
        )
    return result


def _attribute_steps(attributes: list[list[str]]) -> Iterator[str]:
    """Yield the statements that put the attributes into the launch configuration."""
    if attributes:
        yield "memset(attributes, 0, sizeof attributes);"
    for number, assignments in enumerate(attributes):
        yield from (f"attributes[{number}].{assignment};" for assignment in assignments)
    if attributes:
        yield "config.attrs = attributes;"
        yield f"config.numAttrs = {len(attributes)};"


def _array_struct(ndim: int) -> str:
    guard = f"TENSORCORE_ARRAY{ndim}"
    more = [f"    int32_t shape[{ndim}];", f"    int64_t strides[{ndim}];"] if ndim else []
    fields = "\n".join(["typedef struct {", "    CUdeviceptr data;", *more, f"}} tensorcore_array{ndim};"])
    return f"#ifndef {guard}\n#define {guard}\n{fields}\n#endif\n"


def _described(argument: Argument) -> str:
    kind = argument.type
    if isinstance(kind, ScalarType):
        as_bits = kind.dtype.is_float and kind.dtype.name not in ("f32", "f64")
        return f"a number, {kind.dtype}{', passed as its bits' * as_bits}"
    assert isinstance(kind, ArrayType)
    units = [f"strides[{axis}] is 1" for axis, one in enumerate(kind.unit) if one]
    shape = [] if argument.shape is None else [f"shape {' x '.join(map(str, argument.shape))}"]
    aligned = f"address and other strides are multiples of {kind.align} bytes"
    access = [] if kind.writable else ["only read"]
    return ", ".join([f"{kind.ndim}-D array of {kind.dtype}", *shape, *units, aligned, *access])


def _flags(kind: ArrayType) -> str:
    return ", ".join(str(int(one)) for one in kind.unit)


def _function(signature: str, steps: list[str]) -> str:
    return "\n".join([signature, "{", *(f"    {step}" for step in steps), "}\n"])


def _words(code: bytes) -> str:
    """Write bytes as 64-bit words, followed by at least one zero byte, which terminates PTX text."""
    padded = code + bytes(8 - len(code) % 8)
    words = [f"{word:#x}" for (word,) in struct.iter_unpack("<Q", padded)]
    lines = [words[at : at + _WORDS_A_LINE] for at in range(0, len(words), _WORDS_A_LINE)]
    return ",\n".join(f"    {', '.join(line)}" for line in lines)
