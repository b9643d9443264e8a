"""Tensor maps of arguments: what is refused, what the driver is asked, where its bytes go."""

import contextlib
import ctypes
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import tensorcore_dsl as tc
from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import ArgumentError, LaunchError
from tensorcore_dsl.interpreter.memory.global_memory import TensorMapArgument
from tensorcore_dsl.ir.nodes import Im2col, TensorMap
from tensorcore_dsl.kernel.specialisation import _map_argument
from tensorcore_dsl.runtime import driver as cuda_driver
from tensorcore_dsl.runtime import launch, tensor_maps
from tensorcore_dsl.runtime.arguments import Packer, describe
from tensorcore_dsl.runtime.launch import Launcher
from tensorcore_dsl.runtime.launch_config import LaunchConfig
from tensorcore_dsl.runtime.tensor_maps import Tiled, tiled
from tests.fake_gpu import CUBIN, FakeGpu, OnGpu


def aligned(shape, dtype, at=0):
    """An array whose first element lies `at` bytes beyond a multiple of 16."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 16 + at
    return raw[start : start + size].view(dtype).reshape(shape)


ROWS = TensorMap(0, (1, 0), (64, 32), 128)  # of a row-major matrix


def map_of(array, description=ROWS, name="argument 'a'"):
    return tiled(describe(array), description, name)


# What the driver is asked for


@pytest.mark.parametrize(
    ("array", "description", "expected"),
    [
        (aligned((96, 200), np.float16), ROWS, Tiled(dtypes.f16, (200, 96), (400,), (64, 32), 128)),
        (
            aligned((200, 96), np.float16).T,
            TensorMap(0, (0, 1), (8, 256)),
            Tiled(dtypes.f16, (96, 200), (192,), (8, 256), 0),
        ),
        (aligned((96, 256), np.float16)[::2, 8:], ROWS, Tiled(dtypes.f16, (248, 48), (1024,), (64, 32), 128)),
        (
            aligned((3, 5, 7, 2, 32), np.float32),
            TensorMap(0, (4, 3, 2, 1, 0), (8, 1, 1, 1, 1), 32),
            Tiled(dtypes.f32, (32, 2, 7, 5, 3), (128, 256, 1792, 8960), (8, 1, 1, 1, 1), 32),
        ),
        (aligned((40,), np.int8), TensorMap(0, (0,), (16,)), Tiled(dtypes.s8, (40,), (), (16,), 0)),
        (
            aligned((1, 65), np.float16),
            TensorMap(0, (1, 0), (8, 1)),  # one row of any length
            Tiled(dtypes.f16, (65, 1), (144,), (8, 1), 0),
        ),
        (
            as_strided(aligned(64, np.float16), (4, 64), (0, 2)),
            ROWS,  # the same row four times
            Tiled(dtypes.f16, (64, 4), (0,), (64, 32), 128),
        ),
    ],
)
def test_tiled(array, description, expected):
    assert map_of(array, description) == expected


@pytest.mark.parametrize(
    ("array", "description", "text"),
    [
        (aligned((8, 64), np.float16, 8), ROWS, r"starts at address 0x[0-9a-f]*8; .*multiples of 16"),
        (
            aligned((8, 68), np.float16),
            ROWS,
            r"axis 0 of shape \(8, 68\) has a stride of 136 bytes; .*"
            r"multiples of 16 from 0 to 2\*\*40",
        ),
        (aligned((8, 64), np.float16)[::-1], ROWS, "axis 0 .* has a stride of -128 bytes"),
        (aligned((8, 128), np.float16)[:, ::2], ROWS, "axis 1 has a stride of 2 elements; .*side by side"),
        (aligned((64, 64), np.float16).T, ROWS, "axis 1 has a stride of 64 elements"),
        (np.zeros((0, 64), np.float16), ROWS, r"shape \(0, 64\) has no elements"),
        (
            aligned((8, 64), np.float16),
            TensorMap(0, (1, 0), (4, 8)),
            "4 f16 elements, 8 bytes.*multiples of 16",
        ),
        (
            aligned((8, 64), np.float16),
            TensorMap(0, (1, 0), (64, 8), 64),
            "64 f16 elements, 128 bytes.*swizzle of 64 bytes; rows of at most so many",
        ),
        (
            aligned((8, 64), np.float16),
            TensorMap(0, (1, 0), (64, 257)),
            r"box of \(257, 64\) elements; 1 to 256",
        ),
        (
            aligned((8, 64), np.float16),
            TensorMap(0, (1, 0), (64, 8), 16),
            "swizzle of 16 bytes; allowed are 0, 32, 64, 128",
        ),
        (aligned((8, 64), np.float16), TensorMap(0, (2, 0), (64, 8)), r"axes \(2, 0\); the array has 2"),
        (aligned((8, 64), np.float16), TensorMap(0, (1, 1), (64, 8)), r"axes \(1, 1\); distinct axes"),
        (aligned((8, 64), np.float16), TensorMap(0, (1, 0), (64,)), "box of 1 extents along 2 axes"),
        (3, ROWS, "made of an array, not of a s32 scalar"),
    ],
)
def test_wrong_tensor_maps_are_refused(array, description, text):
    with pytest.raises(ArgumentError, match=f"argument 'a': .*{text}"):
        map_of(array, description)


def test_every_type_of_array_is_known_or_refused():
    for dtype in dtypes.ALL.values():
        if dtype.numpy is None or dtype.lanes > 1 or dtype.bits == 4:
            continue
        array = aligned((2, 64), dtype.numpy)
        actual = map_of(array, TensorMap(0, (1, 0), (16, 1)))
        assert actual.dtype.name in tensor_maps.DATA_TYPES


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    order=st.permutations(range(5)),
    steps=st.lists(st.integers(1, 3), min_size=5, max_size=5),
    dtype=st.sampled_from([np.int8, np.float16, np.float32, np.float64]),
)
@settings(max_examples=150, deadline=None)
def test_elements_are_where_the_map_says(shape, order, steps, dtype):
    """Views of any order of axes: coordinates times strides lead to the element."""
    order = [axis for axis in order if axis < len(shape)]  # outermost in memory first
    lengths = [shape[axis] * steps[axis] for axis in order]
    lengths[-1] = 16 * shape[order[-1]]  # rows of whole 16 bytes
    whole = aligned(lengths, dtype)
    inner = len(shape) - 1
    cut = tuple(slice(None, None, 1 if i == inner else steps[a]) for i, a in enumerate(order))
    view = whole[cut].transpose(np.argsort(order))
    axes = tuple(reversed(order))
    actual = map_of(view, TensorMap(0, axes, (16,) + (1,) * inner))
    assert actual.extents == tuple(view.shape[axis] for axis in axes)
    strides = (view.itemsize, *actual.strides)
    for index in np.ndindex(*(min(n, 3) for n in view.shape)):
        there = sum(index[axis] * stride for axis, stride in zip(axes, strides, strict=True))
        element = np.asarray(view[tuple(slice(i, i + 1) for i in index)])
        assert there == element.__array_interface__["data"][0] - view.ctypes.data


# NVIDIA's numbers


def test_numbers_of_the_driver():
    driver = pytest.importorskip("cuda.bindings.driver")
    names = {
        "UINT8": "u8 s8 b8 pred e4m3 e5m2 e3m2 e2m3 ue8m0 ue4m3", "UINT16": "u16 s16 b16",
        "UINT32": "u32 b32", "INT32": "s32", "UINT64": "u64 b64", "INT64": "s64",
        "FLOAT16": "f16", "BFLOAT16": "bf16", "FLOAT32": "f32 tf32", "FLOAT64": "f64",
    }  # fmt: skip
    kinds = driver.CUtensorMapDataType
    expected = {
        mine: int(getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{theirs}"))
        for theirs, several in names.items()
        for mine in several.split()
    }
    assert expected == tensor_maps.DATA_TYPES
    swizzles = driver.CUtensorMapSwizzle
    for bytes_, code in tensor_maps.TENSOR_MAP_SWIZZLES.items():
        name = f"{bytes_}B" if bytes_ else "NONE"
        assert int(getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{name}")) == code
    promotion = driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B
    assert int(promotion) == tensor_maps.L2_PROMOTION
    assert int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE) == cuda_driver._NO_INTERLEAVE
    fill = driver.CUtensorMapFloatOOBfill
    assert fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE == 0
    assert fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA == 1
    assert int(driver.CUresult.CUDA_ERROR_INVALID_CONTEXT) == cuda_driver._NO_CONTEXT
    assert ctypes.sizeof(ctypes.c_uint64) * len(driver.CUtensorMap().opaque) == tensor_maps.MAP_BYTES


class Encoder:
    """cuTensorMapEncodeTiled that records; `codes` are its next results."""

    def __init__(self, *codes):
        self.calls, self.codes = [], list(codes)
        number, pointer = ctypes.c_uint32, ctypes.c_void_p
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, pointer, number, number, *[pointer] * 5, *[number] * 4)
        self.function = prototype(self._call)

    def _call(self, out, kind, rank, pointer, extents, strides, box, steps, *codes):
        def read(address, width, count):
            data = ctypes.string_at(address, width * count)
            return struct.unpack(f"{count}{'IQ'[width == 8]}", data)

        code = self.codes.pop(0) if self.codes else 0
        self.calls.append(
            (
                out % 64,
                kind,
                rank,
                pointer,
                read(extents, 8, rank),
                read(strides, 8, rank - 1),
                read(box, 4, rank),
                read(steps, 4, rank),
                codes,
            )
        )
        ctypes.memmove(out, bytes(range(128)), 128)
        return code


class PixelEncoder:
    """cuTensorMapEncodeIm2col that records."""

    def __init__(self):
        number, pointer = ctypes.c_uint32, ctypes.c_void_p
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_int, pointer, number, number, *[pointer] * 5, number, number, pointer, *[number] * 4
        )
        self.function = prototype(self._call)

    def _call(self, out, kind, rank, at, extents, strides, lower, upper, channels, pixels, steps, *codes):
        corners = [struct.unpack(f"{rank - 2}i", ctypes.string_at(c, 4 * (rank - 2))) for c in (lower, upper)]
        stepped = struct.unpack(f"{rank}I", ctypes.string_at(steps, 4 * rank))
        self.call = kind, rank, at, *corners, channels, pixels, stepped, codes
        ctypes.memmove(out, bytes(range(128)), 128)
        return 0


def test_the_driver_is_asked_for_a_map_of_im2col_mode():
    encoder = PixelEncoder()
    target = target_with(encoder, [])
    target.__dict__["_encode_im2col"] = target.__dict__.pop("_encode")
    wanted = TensorMap(0, (3, 2, 1, 0), (16, 512), 32, im2col=Im2col((-1, 0), (1, -2), (2, 3)))
    tile = map_of(aligned((2, 5, 7, 16), np.float16), wanted)
    assert target.encode_tiled(0x40, tile, 0) == bytes(range(128))
    assert encoder.call == (6, 4, 0x40, (-1, 0), (1, -2), 16, 512, (1, 2, 3, 1), (0, 1, 2, 0))


def target_with(encoder, attached):
    """A CudaDriver without a driver but for this function.

    attached: receives the devices whose context is current for a call.
    """

    @contextlib.contextmanager
    def on_device(device):
        attached.append(device)
        yield

    target = object.__new__(cuda_driver.CudaDriver)
    target.__dict__["_encode"] = encoder.function
    target.on_device = on_device
    target.error_text = lambda code: f"CUDA_ERROR_{code}"
    return target


@pytest.mark.parametrize("nan_fill", [False, True])
def test_the_driver_is_asked(nan_fill):
    encoder, attached = Encoder(), []
    tile = map_of(aligned((96, 200), np.float16), replace(ROWS, nan_fill=nan_fill))
    image = target_with(encoder, attached).encode_tiled(0x123450, tile, 0)
    assert image == bytes(range(128))
    assert encoder.calls == [(0, 6, 2, 0x123450, (200, 96), (400,), (64, 32), (1, 1), (0, 3, 2, nan_fill))]
    assert not attached


def test_a_thread_without_a_context_gets_one():
    encoder, attached = Encoder(201), []
    tile = map_of(aligned((96, 200), np.float16))
    assert target_with(encoder, attached).encode_tiled(0x10, tile, 3) == bytes(range(128))
    assert attached == [3] and len(encoder.calls) == 2


def test_what_the_driver_refuses():
    tile = map_of(aligned((96, 200), np.float16))
    with pytest.raises(LaunchError, match=r"at 0x10 with Tiled\(dtype=f16, .*CUDA_ERROR_1"):
        target_with(Encoder(1), []).encode_tiled(0x10, tile, 0)


def test_an_old_driver():
    target = object.__new__(cuda_driver.CudaDriver)
    target._library = ctypes.CDLL(None)
    with pytest.raises(LaunchError, match=r"CUDA 12\.0 is needed"):
        _ = target._encode


# Launches

MAPS = (TensorMap(0, (1, 0), (64, 8), 128), TensorMap(2, (1, 0), (16, 4)), TensorMap(0, (1, 0), (8, 4), 32))


def mapped_launcher(gpu, maps=MAPS, **options):
    cubin = replace(CUBIN, tensor_maps=maps)
    return Launcher(lambda types: cubin, LaunchConfig.of(4, 128), gpu, names="abc", **options)


def arrays(rows=16):
    return OnGpu(aligned((rows, 64), np.float16)), 5, OnGpu(aligned((32, 32), np.float32))


SIZES = (8, 4, 4, 8, 4, 8, 4, 4, 8, 128, 128, 128)  # of the parameters of `arrays`, and its maps


def expected(a, n, b):
    """The parameters of a launch, one behind the other."""
    plain = struct.pack(
        "=QiiqiQiiq", a.array.ctypes.data, *a.array.shape, 64, n, b.array.ctypes.data, *b.array.shape, 32
    )
    by_argument = {0: a, 2: b}
    encode = FakeGpu().encode_tiled
    arrays = [by_argument[m.argument] for m in MAPS]
    images = [
        encode(x.array.ctypes.data, tiled(describe(x), m, ""), 0) for x, m in zip(arrays, MAPS, strict=True)
    ]
    return plain + b"".join(images)


def test_maps_arrive():
    gpu = FakeGpu(sizes=SIZES)
    run = mapped_launcher(gpu)
    first, second = arrays(), arrays()
    for given_ in (first, first, second, first, (first[0], 6, second[2])):
        run(*given_)
        assert gpu.records[-1].parameters == expected(*given_)


def test_maps_are_encoded_once_for_a_pointer():
    gpu = FakeGpu(sizes=SIZES)
    run = mapped_launcher(gpu)
    first, second = arrays(), arrays()
    for _ in range(3):
        for given_ in (first, second, (first[0], 5, second[2])):
            run(*given_)
    assert len(gpu.encoded) == len(set(gpu.encoded)) == 2 * len(MAPS)
    run(*arrays(8))  # another shape, another map
    assert len(gpu.encoded) == 3 * len(MAPS)
    assert {device for *_, device in gpu.encoded} == {0}


def test_kept_maps_are_bounded(monkeypatch):
    monkeypatch.setattr(launch, "MAX_MAPS", 4)
    gpu = FakeGpu(sizes=(8, 4, 4, 8, 128))
    run = mapped_launcher(gpu, MAPS[:1])
    several = [arrays()[0] for _ in range(10)]
    for array in (*several, several[9]):
        run(array)
    assert [pointer for pointer, *_ in gpu.encoded] == [a.array.ctypes.data for a in several]
    run(several[0])
    assert len(gpu.encoded) == 11


def test_a_map_that_fails_leaves_the_launcher_usable():
    gpu = FakeGpu(sizes=SIZES)
    run = mapped_launcher(gpu)
    first, second = arrays(), arrays()
    run(*first)
    run(*first)
    encode = gpu.encode_tiled

    def refuse(*_):
        raise LaunchError("no")

    gpu.encode_tiled = refuse
    with pytest.raises(LaunchError, match="no"):
        run(*second)
    gpu.encode_tiled = encode
    run(*second)
    run(*first)
    assert [r.parameters for r in gpu.records[-2:]] == [expected(*second), expected(*first)]


@pytest.mark.parametrize("warm", [False, True])
def test_bad_arrays_are_named_before_the_launch(warm):
    gpu = FakeGpu(sizes=SIZES)
    run = mapped_launcher(gpu)
    good = arrays()
    if warm:
        run(*good)
        run(*good)
    launches = len(gpu.records)
    with pytest.raises(ArgumentError, match="argument 'c': it starts at address"):
        run(*good[:2], OnGpu(aligned((32, 32), np.float32, 4)))
    with pytest.raises(ArgumentError, match="argument 'a': axis 0 of shape .* stride of 132 bytes"):
        run(OnGpu(aligned((16, 66), np.float16)), *good[1:])
    assert len(gpu.records) == launches


def test_numpy_arrays_are_mapped_where_they_are_copied_to():
    seen = []
    gpu = FakeGpu(sizes=(8, 4, 4, 8, 128), kernel=seen.append)
    host = aligned((16, 64), np.float16)
    mapped_launcher(gpu, MAPS[:1])(host)
    pointer = struct.unpack_from("Q", seen[0])[0]
    assert pointer != host.ctypes.data and pointer % 16 == 0
    assert struct.unpack_from("Q", seen[0], 28 - 4)[0] == pointer


def test_kernels_without_maps_keep_one_piece_of_parameters():
    gpu = FakeGpu()  # knows no sizes
    run = mapped_launcher(gpu, ())
    given_ = arrays()
    run(*given_)
    packer = Packer([describe(x).type for x in given_])
    buffer = bytearray(packer.size)
    packer.pack_into(buffer, [describe(x) for x in given_])
    assert gpu.records[0].parameters == buffer


# Clusters and blocks of a fixed size


def fixed_launcher(gpu, grid, config=None, **fixed):
    cubin = replace(CUBIN, **fixed)
    return Launcher(lambda types: cubin, LaunchConfig.of(grid, 128, **(config or {})), gpu)


@pytest.mark.parametrize("config", [{}, dict(cluster=2)])
def test_a_kernel_knows_its_clusters(config):
    gpu = FakeGpu()
    fixed_launcher(gpu, 8, config, cluster=(2, 1, 1))(1)
    assert gpu.records[0].attributes == b""


@pytest.mark.parametrize(
    ("grid", "config", "fixed", "text"),
    [
        (
            (9, 2),
            {},
            dict(cluster=(2, 1, 1)),
            r"grid \(9, 2, 1\) is not a multiple of cluster \(2, 1, 1\), which the kernel is compiled for",
        ),
        (
            8,
            dict(cluster=4),
            dict(cluster=(2, 1, 1)),
            r"cluster \(4, 1, 1\) was asked for; the kernel is compiled for \(2, 1, 1\)",
        ),
        (8, {}, dict(threads=256), r"block \(128, 1, 1\) was asked for; .* compiled for \(256, 1, 1\)"),
    ],
)
def test_what_a_kernel_is_not_compiled_for(grid, config, fixed, text):
    gpu = FakeGpu()
    with pytest.raises(LaunchError, match=text):
        fixed_launcher(gpu, grid, config, **fixed)(1)
    assert not gpu.records


# From Python to the driver, as far as it goes without a GPU


@tc.kernel(threads=32)
def copy(a: tc.Array, b: tc.Array, n: int, BOX: tc.Const = (32, 64)):
    source = tc.tensor_map(a, BOX, swizzle=128)
    target = tc.tensor_map(b, BOX, swizzle=128)
    tile = tc.shared(BOX, a.dtype, swizzle=128)
    barrier = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        barrier.init(1)
        tc.fence_mbarrier_init()
        barrier.arrive_expect_tx(source.bytes)
        tc.tma_load(tile, source, (n, 0), barrier)
    tc.barrier()
    barrier.wait(0)
    if tc.threadIdx.x == 0:
        tc.tma_store(target, (n, 0), tile)
        tc.tma_store_commit()
        tc.tma_store_wait(0)


def matrices():
    return [aligned((128, 128), np.float16) for _ in range(2)]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
def test_parameters_of_a_cubin(arch):
    """Sizes and order of the parameters are those that a launch gives addresses of."""
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    given_ = (*matrices(), 3)
    made = copy.specialise(given_, {}, arch).cubin
    maps = (TensorMap(0, (1, 0), (64, 32), 128), TensorMap(1, (1, 0), (64, 32), 128))
    assert made.tensor_maps == maps
    packer = Packer([describe(x).type for x in given_])
    plain = [(p.offset, {"u64": 8, "s64": 8}.get(p.ptx, 4)) for p in packer.parameters]
    offsets = list(made.parameter_offsets().values())
    assert offsets[:-2] == plain
    assert [size for _, size in offsets[-2:]] == [128, 128]


@tc.kernel
def clustered(a: tc.Array, scale: tc.f32):
    tc.cluster_size(2)
    source = tc.tensor_map(a, (8, 64))
    tile = tc.shared((128, 64, 2), tc.f32)
    source.prefetch()
    if scale > 0:
        tile[0, 0, 0] = scale


def test_a_kernel_from_python(monkeypatch):
    """Maps, clusters, shared memory beyond 48 KiB and annotated numbers reach the driver."""
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    gpu = FakeGpu(sizes=(8, 4, 4, 8, 4, 128))
    monkeypatch.setattr(cuda_driver, "cuda_driver", lambda: gpu)
    array = arrays()[0]
    tile = map_of(array, TensorMap(0, (1, 0), (64, 8)))
    with tc.target("cuda"):
        for scale in (2, np.float64(2.5), 0.1):
            clustered[4, 32](array, scale)
            image = FakeGpu().encode_tiled(array.array.ctypes.data, tile, 0)
            plain = struct.pack("=Qiiqf", array.array.ctypes.data, 16, 64, 64, scale)
            assert gpu.records[-1].parameters == plain + image
        with pytest.raises(LaunchError, match=r"grid \(3, 1, 1\) is not a multiple of cluster \(2, 1, 1\)"):
            clustered[3, 32](array, 1)
    assert gpu.records[0].shared_bytes == 128 * 64 * 2 * 4
    assert gpu.records[0].attributes == b""
    assert len(set(gpu.encoded)) == 1


def test_emulated_maps():
    array = aligned((16, 64), np.float16)
    actual = _map_argument(array, MAPS[0], "a")
    assert actual == TensorMapArgument(array, "a", (1, 0), (64, 8), 128, True)
    array.flags.writeable = False
    assert not _map_argument(array, MAPS[0], "a").writable


def test_emulation_checks_as_the_gpu_does():
    a, b = matrices()
    with pytest.raises(ArgumentError, match="argument 'b': it starts at address") as error:
        copy.emulate[1, 32](a, aligned((128, 128), np.float16, 8), 0)
    assert "tensor_map(" in error.value.loc.excerpt()
    with pytest.raises(LaunchError, match=r"block \(64, 1, 1\) was asked for"):
        copy.emulate[1, 64](a, b, 0)
