"""Exported kernels: C that passes what a launch from Python passes, descriptions, grid rules, refusals."""

import ctypes
import importlib.util
import json
import struct
import subprocess

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.errors import AssemblyError
from tensorcore_dsl.export import load
from tensorcore_dsl.export.grid_rule import GridRule
from tensorcore_dsl.runtime import tensor_maps
from tests.c_compiler import GCC, INCLUDE, STUB, needs_compiler
from tests.fake_gpu import FakeGpu, OnGpu
from tests.pixel_kernels import load_column


@tc.kernel
def scale(x: tc.Array, y: tc.Array, factor: tc.f32, flag: tc.pred, half: tc.f16, n: tc.Const = 1):
    """y = factor n xᵀ + half"""
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    if (i < x.shape[0]) & flag:
        for j in range(x.shape[1]):
            y[j, i] = x[i, j] * factor * n + half.to(tc.f32)


@tc.kernel(threads=64)
def shift(x: tc.Array, y: tc.Array | None = None, *, int: tc.s64):  # `int` is a word of C
    x[tc.threadIdx.x] += int
    if y is not None:
        y[tc.threadIdx.x] = x[tc.threadIdx.x]


ROWS, COLUMNS = tc.ArrayType(tc.f32, 2, (False, True), 16), tc.ArrayType(tc.f32, 2, (True, False), 4)
VECTOR = tc.ArrayType(tc.s64, 1, (True,), 8)
SHIFT = {"x": VECTOR, "y": None, "int": tc.s64}
SCALE = ROWS, COLUMNS, tc.f32, tc.pred, tc.f16
BF16 = ml_dtypes.bfloat16


def export_scale(folder, **options):
    options = {"arch": "sm_90a", "block": 128, "grid": "cdiv(x.shape[0], 128)", "form": "ptx", **options}
    return scale.export(folder, SCALE, **options)


# The C against the launch from Python


class Recorder(FakeGpu):
    """Writes the arguments of the encoder into tensor maps, as driver_stub.c does."""

    def encode_tiled(self, pointer, tile, device):
        def padded(values, count):
            return (*values, *(0,) * (count - len(values)))

        pixels = [
            (lower & 255) | (upper & 255) << 8 | step << 16
            for lower, upper, step in zip(*(tile.im2col or ((),) * 3), strict=True)
        ]
        return struct.pack(
            "=10Q10I8x", pointer, *padded(tile.extents, 5), *padded(tile.strides, 4),
            tensor_maps.DATA_TYPES[tile.dtype.name], len(tile.extents), *padded((*tile.box, *pixels), 5),
            tensor_maps.TENSOR_MAP_SWIZZLES[tile.swizzle], tensor_maps.L2_PROMOTION, tile.nan_fill,
        )  # fmt: skip


def compiled(path, folder):
    """The C of an export with the stub of the driver, as a library; all warnings are errors."""
    target = folder / f"{path.stem}.so"
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wconversion"]
    c = [str(path.with_suffix(".c")), str(STUB)]
    command = [GCC, *strict, "-shared", "-fPIC", "-isystem", str(INCLUDE), *c, "-o", str(target)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(target))


class Handle(ctypes.Structure):
    _fields_ = (("module", ctypes.c_void_p), ("function", ctypes.c_void_p))


def c_array(x):
    """A tensorcore_array of an array."""
    shape, strides = x.array.shape, [s // x.array.itemsize for s in x.array.strides]
    fields = [("data", ctypes.c_uint64)]
    if shape:
        fields += [("shape", ctypes.c_int32 * len(shape)), ("strides", ctypes.c_int64 * len(shape))]
    kind = type("array", (ctypes.Structure,), {"_fields_": fields})
    more = ((ctypes.c_int32 * len(shape))(*shape), (ctypes.c_int64 * len(shape))(*strides)) if shape else ()
    return kind(x.array.ctypes.data, *more)


def launched_from_c(path, folder, arguments, grid=(), stream=0):
    """Parameters, configuration and attributes that the driver gets; and the library."""
    library = compiled(path, folder)
    described = json.loads(path.read_text())
    sizes = [p["size"] for p in described["parameters"]]
    (ctypes.c_int * 64).in_dll(library, "stub_sizes")[: len(sizes)] = sizes
    ctypes.c_int.in_dll(library, "stub_count").value = len(sizes)
    handle, name = Handle(), path.stem
    assert library[f"{name}_load"](ctypes.byref(handle)) == 0
    result = library[f"{name}_launch"](
        ctypes.byref(handle), ctypes.c_void_p(stream), *map(ctypes.c_uint, grid), *arguments
    )
    assert library[f"{name}_unload"](ctypes.byref(handle)) == 0
    return result, library


def recorded(library):
    size = ctypes.c_int.in_dll(library, "stub_bytes").value
    config = bytes((ctypes.c_ubyte * 56).in_dll(library, "stub_config"))
    count = struct.unpack_from("I", config, 48)[0]
    attributes = bytes((ctypes.c_ubyte * (72 * max(count, 1))).in_dll(library, "stub_attributes"))
    parameters = bytes((ctypes.c_ubyte * size).in_dll(library, "stub_parameters"))
    return parameters, config[:40], attributes[: 72 * count]


def launched_from_python(path, arguments, monkeypatch, **options):
    """Launch by `load_exported`, with the driver replaced."""
    gpu = Recorder(sizes=tuple(p["size"] for p in json.loads(path.read_text())["parameters"]))
    monkeypatch.setattr(load.driver, "cuda_driver", lambda: gpu)
    monkeypatch.setattr(load, "current_target", lambda: "cuda")
    tc.load_exported(path)(*arguments, **options)
    (record,) = gpu.records
    return record


def aligned(shape, dtype, fill=0):
    raw = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 16, np.uint8)
    at = -raw.ctypes.data % 16
    array = raw[at : at + raw.size - 16].view(dtype).reshape(shape)
    array[...] = fill
    return array


@needs_compiler
def test_c_passes_what_python_passes(tmp_path, monkeypatch):
    x, y = OnGpu(aligned((300, 8), np.float32)), OnGpu(aligned((300, 8), np.float32).T)
    half = np.float16(0.5)
    path = export_scale(tmp_path)
    bits = ctypes.c_uint16(int(half.view(np.uint16)))
    arguments = [c_array(x), c_array(y), ctypes.c_float(2.5), ctypes.c_uint32(7), bits]
    result, library = launched_from_c(path, tmp_path, arguments, stream=64)
    assert result == 0
    parameters, config, attributes = recorded(library)
    record = launched_from_python(path, [x, y, 2.5, True, half], monkeypatch, stream=64)
    assert struct.unpack_from("3I3II4xQ", config) == (3, 1, 1, 128, 1, 1, 0, 64)
    assert config == record.config[:40] and attributes == record.attributes == b""
    sizes = [p["size"] for p in json.loads(path.read_text())["parameters"]]
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    assert [parameters[o : o + n] for o, n in zip(offsets, sizes, strict=True)] == pieces(record, path)


def export_column(folder, nan_fill):
    return load_column.export(
        folder,
        (
            tc.ArrayType(tc.f16, 4, (False, False, False, True), 16),
            tc.ArrayType(tc.f16, 2, (False, True), 16),
        ),
        arch="sm_90a",
        form="ptx",
        grid=(1, 1, 1),
        index=(0, 0, 0, 0),
        offsets=(1, 2),
        described=((16, 16), (-1, 0), (1, -2), (1, 2), 32),
        nan_fill=nan_fill,
    )


@pytest.mark.parametrize("nan_fill", [False, True])
def test_a_description_has_the_fill_of_maps(tmp_path, nan_fill):
    (column,) = tc.load_exported(export_column(tmp_path, nan_fill)).interface.cubin.tensor_maps
    assert column.nan_fill is nan_fill


@needs_compiler
@pytest.mark.parametrize("nan_fill", [False, True])
def test_c_makes_the_map_of_im2col_mode_that_python_makes(tmp_path, monkeypatch, nan_fill):
    x, out = (OnGpu(aligned(shape, np.float16)) for shape in ((2, 6, 7, 16), (16, 16)))
    path = export_column(tmp_path, nan_fill)
    result, library = launched_from_c(path, tmp_path, [c_array(x), c_array(out)])
    assert result == 0
    record = launched_from_python(path, [x, out], monkeypatch)
    parameters = recorded(library)[0]
    assert parameters[-128:] == record.parameters[-128:]
    box = struct.unpack_from("5I", parameters[-128:], 88)
    assert box == (16, 16, 0xFE00 | 2 << 16, 0x01FF | 1 << 16, 0)
    assert struct.unpack_from("I", parameters[-128:], 116) == (nan_fill,)


def pieces(record, path):
    """The parameters of a launch in one piece, at natural alignment, one by one."""
    data, at = [], 0
    for parameter in json.loads(path.read_text())["parameters"]:
        size = parameter["size"]
        at = -(-at // size) * size
        data.append(record.parameters[at : at + size])
        at += size
    return data


@needs_compiler
@pytest.mark.parametrize(
    "dtype, m, options", [(np.float16, 256, {}), (np.int8, 64, {}), (np.float16, 16, {"beta": 2.0})]
)
def test_c_of_a_hopper_gemm_passes_what_python_passes(tmp_path, monkeypatch, dtype, m, options):
    """Parameters and tensor maps, byte for byte, the cluster and the programmatic launch."""
    a, b, d = aligned((m, 512), dtype), aligned((768, 512), dtype).T, aligned((m, 768), dtype)
    if dtype == np.int8:
        d = aligned((m, 768), np.int32)
    c = d if options else None
    path = kernels.export_gemm(tmp_path, a, b, c, arch="sm_90a", out=d, form="ptx", **options)
    numbers = (1, options.get("beta", 0))
    number = ctypes.c_int32 if dtype == np.int8 else ctypes.c_float
    arguments = [c_array(OnGpu(x)) for x in (a, b, d, d)] + [number(int(n)) for n in numbers]
    result, library = launched_from_c(path, tmp_path, arguments)
    assert result == 0
    parameters, config, attributes = recorded(library)
    record = launched_from_python(path, [*map(OnGpu, (a, b, d, d)), *numbers], monkeypatch)
    assert config == record.config[:40] and attributes == record.attributes
    assert parameters == record.parameters and len(parameters) > 128 * 3
    needed = struct.unpack_from("I", config, 24)[0]
    assert (ctypes.c_int * 64).in_dll(library, "stub_attribute_values")[8] == needed > 48 * 1024


@needs_compiler
@pytest.mark.parametrize("what", ["alignment", "stride", "shape"])
def test_c_refuses_arrays_that_do_not_fit(tmp_path, what):
    a = aligned((128, 64), np.float16)
    path = kernels.export_gemm(tmp_path, a, a.T, arch="sm_80", form="ptx")
    d = aligned((128, 128), np.float16)
    arrays = [c_array(OnGpu(x)) for x in (a, a.T, d, d)]
    if what == "alignment":
        arrays[0].data += 2
    elif what == "stride":
        arrays[0].strides[1] = 2
    else:
        arrays[3].shape[0] = 64
    result, library = launched_from_c(path, tmp_path, [*arrays, ctypes.c_float(1), ctypes.c_float(0)])
    assert result == 1  # CUDA_ERROR_INVALID_VALUE
    assert ctypes.c_int.in_dll(library, "stub_launches").value == 0


@needs_compiler
def test_c_of_an_argument_that_is_a_word_of_c_and_a_given_grid(tmp_path):
    path = shift.export(tmp_path, SHIFT, arch="sm_80", form="ptx")
    x = OnGpu(aligned((64,), np.int64))
    result, library = launched_from_c(path, tmp_path, [c_array(x), ctypes.c_int64(-5)], grid=(2, 1, 1))
    parameters, config, _ = recorded(library)
    assert result == 0 and struct.unpack_from("6I", config) == (2, 1, 1, 64, 1, 1)
    assert parameters == struct.pack("=Qiq", x.array.ctypes.data, 64, -5)
    assert launched_from_c(path, tmp_path, [c_array(x), ctypes.c_int64(-5)], grid=(0, 1, 1))[0] == 0


# Description and machine code


def test_the_machine_code_has_the_described_parameters(tmp_path):
    """Their offsets, those of tensor maps too, come from the cubin; their sizes from the types."""
    a, b = np.empty((256, 512), BF16), np.empty((768, 512), BF16).T
    try:
        path = kernels.export_gemm(tmp_path, a, b, arch="sm_90a")
    except AssemblyError as error:
        pytest.skip(str(error))
    described = json.loads(path.read_text())
    chosen = tc.load_exported(path).interface
    offsets = chosen.cubin.parameter_offsets()
    assert [(p["offset"], p["size"]) for p in described["parameters"]] == list(offsets.values())
    assert described["launch"]["cluster"] and described["launch"]["pdl"]
    assert described["launch"]["dynamic_shared_bytes"] > 48 * 1024
    assert path.with_suffix(".cubin").read_bytes() == chosen.cubin.code
    assert "BM=" in described["constants"]["config"]


def test_products_with_packed_weights_and_a_sparse_matrix(tmp_path):
    """Their operands have the arrays of which they are made, under the names of the kernel."""
    packed = kernels.pack(np.ones((512, 256), np.int8), np.ones((4, 256), np.float16), dtype=tc.s4)
    sparse = kernels.compress(np.ones((128, 256), np.float16), prune=True)
    for a, b, operands in (
        (np.ones((300, 512), np.float16), packed, ["x", "words", "scales", "zeros"]),
        (sparse, np.ones((256, 64), np.float16), ["a", "metadata", "b"]),
    ):
        path = kernels.export_gemm(tmp_path, a, b, arch="sm_90a", form="ptx")
        names = [argument["name"] for argument in json.loads(path.read_text())["arguments"]]
        assert names == [*operands, "c", "d", "alpha", "beta"]


def test_a_description_says_everything(tmp_path):
    described = json.loads(export_scale(tmp_path, name="scale_2", n=2).read_text())
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"scale_2.{e}" for e in ("c", "h", "json", "ptx")]
    assert described["constants"] == {"n": "2"} and described["arch"] == "sm_90a"
    assert described["launch"]["grid"] == ["cdiv(x.shape[0], 128)", "1", "1"]
    assert [(p["name"], p["type"]) for p in described["parameters"]] == [
        ("x", "u64"), ("x_shape0", "s32"), ("x_shape1", "s32"), ("x_stride0", "s64"), ("y", "u64"),
        ("y_shape0", "s32"), ("y_shape1", "s32"), ("y_stride1", "s64"), ("factor", "f32"), ("flag", "u32"),
        ("half", "b16"),
    ]  # fmt: skip
    header = (tmp_path / "scale_2.h").read_text()
    assert (
        " * y = factor n xᵀ + half\n" in header
        and "factor: a number, f32\n" in header
        and "half: a number, f16, passed as its bits" in header
    )


# Grid rules

TYPES = {"x": ROWS, "n": tc.ScalarType(tc.s32), "z": tc.ScalarType(tc.f32)}


class Shaped:
    shape = (300, 7)


@pytest.mark.parametrize(
    "grid, expected",
    [
        (5, (5, 1, 1)),
        ((2, "n"), (2, 9, 1)),
        ("cdiv(x.shape[0], 128)", (3, 1, 1)),
        ("-(-x.shape[0] // 128) * x.shape[1]", (21, 1, 1)),
        ("min(n, 132) + max(n % 4, 2)", (11, 1, 1)),
        (("-7 // 2 + 10", "-7 % 3 + 1", "cdiv(-7, 2) + 5"), (6, 3, 2)),
    ],
)
@needs_compiler
def test_rules_have_the_same_value_in_c(tmp_path, grid, expected):
    rule = GridRule.of(grid, TYPES)
    assert rule.blocks({"x": Shaped, "n": 9}) == expected

    @tc.kernel(threads=32)
    def nothing(x: tc.Array, n: tc.s32):
        pass

    path = nothing.export(tmp_path, (ROWS, tc.s32), arch="sm_80", form="ptx", grid=grid)
    x = OnGpu(aligned((300, 7), np.float32)[:, :])
    array = c_array(x)
    array.strides[0] = 8  # a multiple of 16 bytes
    result, library = launched_from_c(path, tmp_path, [array, ctypes.c_int32(9)])
    assert result == 0 and struct.unpack_from("3I", recorded(library)[1]) == expected


@pytest.mark.parametrize(
    "grid",
    [
        "x.shape[2]",
        "z",
        "x",
        "m",
        "x.shape",
        "n / 2",
        "n ** 2",
        "__import__('os')",
        "1 +",
        "2.5",
        "abs(n, 1)",
    ],
)
def test_rules_that_are_refused(grid):
    with pytest.raises(tc.ArgumentError, match="allowed are integers, names of integer arguments"):
        GridRule.of(grid, TYPES)


def test_a_grid_that_is_a_function_is_refused():
    with pytest.raises(tc.ArgumentError, match="texts such as 'cdiv"):
        GridRule.of(lambda x: 1, TYPES)


# Refusals


@pytest.mark.parametrize(
    "options, message",
    [
        ({"block": None}, "is not compiled for a number of threads: give block="),
        ({"name": "a b"}, "it names functions in C"),
        ({"form": "sass"}, "allowed are 'cubin' and 'ptx'"),
        ({"shapes": {"z": (1,)}}, r"shapes names \['z'\]; the arguments are x, y"),
        ({"shapes": {"x": (1,)}}, "shapes has"),
    ],
)
def test_exports_that_are_refused(tmp_path, options, message):
    with pytest.raises(tc.ArgumentError, match=message):
        export_scale(tmp_path, **options)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(tc.ArgumentError, match="cannot write to"):
        export_scale(tmp_path / "file")


@pytest.mark.parametrize("text", ["", "{}", '{"format": 99, "code": "scale.ptx"}'])
def test_files_that_describe_no_kernel(tmp_path, text):
    path = export_scale(tmp_path)
    path.write_text(text)
    with pytest.raises(tc.ArgumentError, match="describes no exported kernel|has format 99"):
        tc.load_exported(path)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_header_of_a_product_says_what_is_read(tmp_path, arch):
    a, c = np.empty((64, 64), np.float16), np.empty((64, 64), np.float16)
    path = kernels.export_gemm(tmp_path, a, a.T, arch=arch, form="ptx")
    header = path.with_suffix(".h").read_text()
    assert " * D = alpha A B + beta C, for the shapes below.\n" in header
    assert "alpha is 1, and the argument is not read." in header and "not read; pass D as C." in header
    path = kernels.export_gemm(tmp_path, a, a.T, c, arch=arch, form="ptx", alpha=2)
    header = path.with_suffix(".h").read_text()
    assert "not read" not in header


def test_an_epilogue_with_arguments(tmp_path):
    """Its arguments stand behind those of the product."""
    a, bias = np.empty((64, 64), np.float16), np.empty(64, np.float32)
    biased = lambda value, row, col, bias: value + bias[col]
    options = {"bias": bias}
    path = kernels.export_gemm(
        tmp_path, a, a.T, arch="sm_80", form="ptx", epilogue=biased, epilogue_args=options, name="biased"
    )
    arguments = json.loads(path.read_text())["arguments"]
    assert [a["name"] for a in arguments] == ["a", "b", "c", "d", "alpha", "beta", "bias"]
    assert "tensorcore_array1 bias);" in path.with_suffix(".h").read_text()


def test_products_of_several_kernels_are_refused(tmp_path):
    a = np.empty((512, 512), np.float32)
    config = kernels.HopperConfig(BM=128, BN=128, k_slabs=2)
    with pytest.raises(tc.ArgumentError, match="split in a kernel of their own"):
        kernels.export_gemm(tmp_path, a, a.T, arch="sm_90a", config=config, form="ptx")
    with pytest.raises(tc.ArgumentError, match="K is 0"):
        kernels.export_gemm(tmp_path, a[:, :0], a[:0], arch="sm_90a", form="ptx")


# From Python


def test_the_loader_takes_what_fits_and_refuses_the_rest(tmp_path, monkeypatch):
    path = export_scale(tmp_path)
    x, y = aligned((300, 8), np.float32), aligned((300, 8), np.float32).T
    numbers = 2.5, True, np.float16(0.5)
    mismatches = [
        (x.astype(np.float64), "is f64"),
        (x[:, ::2], "strides"),
        (x.ravel()[1:2393].reshape(299, 8), "4 B aligned"),
    ]
    for array, message in mismatches:
        with pytest.raises(tc.ArgumentError, match=f"argument 'x'.*{message}.*the exported kernel takes f32"):
            launched_from_python(path, [OnGpu(array), OnGpu(y), *numbers], monkeypatch)
    with pytest.raises(tc.ArgumentError, match="takes 5 arguments"):
        launched_from_python(path, [OnGpu(x)], monkeypatch)
    launched_from_python(path, [OnGpu(x), OnGpu(y), *numbers], monkeypatch, grid=7)


def test_the_cpu_cannot_run_machine_code(tmp_path):
    with pytest.raises(tc.LaunchError, match="machine code for sm_90a, which needs a GPU"):
        tc.load_exported(export_scale(tmp_path))(1, 2, 3, 4, 5)


def test_a_kernel_without_a_grid_needs_one(tmp_path, monkeypatch):
    path = shift.export(tmp_path, SHIFT, arch="sm_80", form="ptx")
    with pytest.raises(tc.ArgumentError, match="exported without a grid: give grid="):
        launched_from_python(path, [OnGpu(aligned((64,), np.int64)), None, 3], monkeypatch)


# Repositories for Hugging Face's `kernels`


def test_a_repository_is_a_module_of_exported_kernels(tmp_path):
    paths = [export_scale(tmp_path / "a"), shift.export(tmp_path / "b", SHIFT, arch="sm_80", form="ptx")]
    folder = tc.export_repository(tmp_path / "repository", "my_kernels", paths, version=2)
    build = folder / "build" / "torch-cuda"
    metadata = json.loads((build / "metadata.json").read_text())
    assert (metadata["name"], metadata["id"], metadata["version"]) == ("my-kernels", "my_kernels_2", 2)
    assert metadata["backend"] == {"type": "cuda", "archs": ["8.0+PTX", "9.0a"]}
    assert "## scale\n\ny = factor n xᵀ + half\n" in (folder / "README.md").read_text("utf-8")
    spec = importlib.util.spec_from_file_location("my_kernels_2", build / "__init__.py")
    module = importlib.util.module_from_spec(spec)  # as `kernels` loads it
    spec.loader.exec_module(module)
    assert module.__all__ == ["scale", "shift"] and "for sm_90a" in repr(module.scale)


def test_repositories_that_are_refused(tmp_path):
    path = export_scale(tmp_path)
    for exported in ([], [path, path]):
        with pytest.raises(tc.ArgumentError, match="names that differ"):
            tc.export_repository(tmp_path / "repository", "mine", exported)
    with pytest.raises(tc.ArgumentError, match="it names functions in C|letters, digits"):
        tc.export_repository(tmp_path / "repository", "my kernels", [path])
