"""Describing arguments of every kind, and where they lie in a kernel's parameters."""

import ctypes
import re
import struct
import types

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import tensorcore_dsl as tc
from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.runtime import array_interop as protocols
from tensorcore_dsl.runtime.arguments import ArrayType, Packer, ScalarType, describe
from tests.arrays import Dlpack, new_capsule
from tests.fake_gpu import OnGpu


def aligned(shape, dtype, order="C", at=0):
    """An array whose first element lies `at` bytes beyond a multiple of 16."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 16 + at
    return raw[start : start + size].view(dtype).reshape(shape, order=order)


# Arrays

NUMPY_DTYPES = [
    (np.float16, "f16"), (np.float32, "f32"), (np.float64, "f64"), (np.bool_, "pred"),
    (np.int8, "s8"), (np.int16, "s16"), (np.int32, "s32"), (np.int64, "s64"),
    (np.uint8, "u8"), (np.uint16, "u16"), (np.uint32, "u32"), (np.uint64, "u64"),
    (ml_dtypes.bfloat16, "bf16"), (ml_dtypes.float8_e4m3fn, "e4m3"),
    (ml_dtypes.float8_e5m2, "e5m2"), (ml_dtypes.float8_e8m0fnu, "ue8m0"),
    (ml_dtypes.float6_e2m3fn, "e2m3"), (ml_dtypes.float6_e3m2fn, "e3m2"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "name"), NUMPY_DTYPES)
def test_numpy_arrays_are_described(dtype, name):
    array = aligned((4, 48), dtype)
    description = describe(array)
    assert description.type == ArrayType(dtypes.named(name), 2, (False, True), 16, True)
    assert description[1:4] == (array.ctypes.data, (4, 48), (48, 1))
    assert description.on_host


@pytest.mark.parametrize(
    ("view", "unit", "strides"),
    [
        (lambda a: a.T, (True, False), (1, 24)),
        (lambda a: a[::2], (False, True), (48, 1)),
        (lambda a: a[:, ::2], (False, False), (24, 2)),
        (lambda a: a[::-1], (False, True), (-24, 1)),
        (lambda a: a[0], (True,), (1,)),
        (lambda a: a[None], (False, False, True), (None, 24, 1)),
        (lambda a: np.broadcast_to(a[0], (5, 24)), (False, True), (0, 1)),
        (lambda a: a[:, :1], (False, True), (24, 1)),
        (lambda a: a[1:1], (False, True), (24, 1)),
        (lambda a: a[:, 0:0], (True, True), (1, 1)),
        (lambda a: a[0, 0, ...], (), ()),
    ],
)
def test_layouts_of_views_are_described(view, unit, strides):
    array = view(aligned((8, 24), np.float16))
    description = describe(array)
    assert description.type.unit == unit
    assert description.shape == array.shape
    assert all(want in (None, got) for want, got in zip(strides, description.strides, strict=True))
    assert description.type.writable == array.flags.writeable


@pytest.mark.parametrize(
    ("shape", "dtype", "at", "align"),
    [
        ((8, 64), np.float16, 0, 16),
        ((8, 64), np.float16, 8, 8),
        ((8, 64), np.float16, 2, 2),
        ((8, 68), np.float16, 0, 8),
        ((8, 66), np.float16, 0, 4),
        ((8, 65), np.float16, 0, 2),
        ((1, 65), np.float16, 0, 16),  # one row: its stride is never used
        ((65,), np.float16, 0, 16),
        ((8, 6), np.int8, 0, 2),
        ((8, 7), np.int8, 1, 1),
        ((3, 3), np.float64, 8, 8),
    ],
)
def test_alignment_is_found(shape, dtype, at, align):
    assert describe(aligned(shape, dtype, at=at)).type.align == align


@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    steps=st.lists(st.sampled_from([-2, -1, 1, 2, 3]), min_size=4, max_size=4),
    permutation=st.permutations(range(4)),
    dtype=st.sampled_from([np.int8, np.float16, np.float32, np.float64]),
)
@settings(max_examples=150, deadline=None)
def test_every_element_is_found(shape, steps, permutation, dtype):
    whole = np.zeros(int(np.prod([s * 3 for s in shape])), dtype)
    view = whole.reshape([s * 3 for s in shape])[tuple(slice(None, None, s) for s in steps[: len(shape)])]
    view = view.transpose([axis for axis in permutation if axis < len(shape)])
    description = describe(view)
    size = view.dtype.itemsize
    assert description.shape == view.shape
    for index in np.ndindex(view.shape):
        address = description.pointer + size * sum(
            i * s for i, s in zip(index, description.strides, strict=True)
        )
        assert address == view[index + (...,)].ctypes.data
        row = description.pointer + size * sum(
            i * s for i, s, u in zip(index, description.strides, description.type.unit, strict=True) if not u
        )
        assert row % description.type.align == 0
    assert all((s == 1) == u for s, u in zip(description.strides, description.type.unit, strict=True))


def test_a_read_only_array_of_numpy_is_not_writable():
    array = aligned((4, 8), np.float32)
    array.flags.writeable = False
    assert not describe(array).type.writable


@pytest.mark.parametrize("dtype", [np.float16, np.int32, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_cuda_array_interface(dtype):
    array = aligned((4, 32), dtype)
    description = describe(OnGpu(array))
    assert description.type == ArrayType(dtypes.from_numpy(dtype), 2, (False, True), 16, True)
    assert (description.device, description.pointer) == (protocols.CURRENT_DEVICE, array.ctypes.data)
    assert describe(OnGpu(array, strides=None)) == description
    assert describe(OnGpu(array.T)).strides == (1, 32)
    assert not describe(OnGpu(array, readonly=True)).type.writable
    assert describe(OnGpu(array, stream=7)).stream == 7


def test_cuda_array_interface_refused():
    with pytest.raises(ArgumentError, match="mask"):
        describe(OnGpu(aligned(4, np.int8), mask=object()))


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint8, np.float64, np.bool_])
def test_dlpack_is_described_as_its_array(dtype):
    array = np.zeros((5, 6, 32), dtype)[1:, :, ::2]
    assert describe(Dlpack(array)) == describe(array)


@pytest.mark.parametrize("device", [(2, 1), (13, 1)])
def test_dlpack_on_gpu(device):
    streams = []

    def export(stream=None, **_):
        streams.append(stream)
        return np.zeros((2, 8)).__dlpack__()

    assert not describe(Dlpack(types.SimpleNamespace(__dlpack__=export), device)).on_host
    assert streams == [1]  # the producer is told to order itself before our stream


def test_dlpack_zero_dimensions():
    assert describe(Dlpack(np.array(1.0))).shape == ()


def test_dlpack_byte_offset():
    """torch and NumPy fold the offset into the pointer; others need not."""
    numbers = np.arange(12, dtype=np.int32)
    shape = (ctypes.c_int64 * 1)(8)
    data = numbers.ctypes.data
    tensor = protocols.DLTensor(data, 1, 0, 1, 0, 32, 1, shape, None, 16)
    capsule = new_capsule(ctypes.addressof(tensor), b"dltensor", None)
    description = describe(Dlpack(types.SimpleNamespace(__dlpack__=lambda: capsule), (1, 0)))
    assert (description.pointer, description.shape, description.strides) == (data + 16, (8,), (1,))


def test_unknown_devices_and_types_of_dlpack_are_refused():
    with pytest.raises(ArgumentError, match="device type 10"):
        describe(Dlpack(np.zeros(2), (10, 0)))
    with pytest.raises(ArgumentError, match="type code 5 of 64 bits"):
        describe(Dlpack(np.zeros(2, np.complex64)))


def test_immutable_producers():
    exported = type("Array", (Dlpack,), {"__module__": "jaxlib.xla_extension"})
    assert not describe(exported(np.zeros(2))).type.writable


# What is refused


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros(3, ">f4"), "byte order"),
        (np.zeros(3, complex), "complex128 are not supported"),
        (np.zeros(3, object), "dtype object"),
        (np.ma.masked_array(np.zeros(3, np.float32), [0, 1, 0]), r"masked array.*x\.filled\("),
        (np.zeros(3, [("a", "f4")]), "no place"),
        (as_strided(np.zeros(9, np.float32), (2, 2), (6, 4)), r"strides \(6, 4\) bytes"),
        (aligned(41, np.uint8)[1:41].view(np.float32), "multiples of their own size"),
        (as_strided(np.zeros(1, np.int8), (2**31,), (0,)), "dimension 0 is not between"),
        (None, "NoneType, which no kernel takes; allowed are NumPy arrays"),
        ([1, 2], "is a list"),
        ("text", "is a str"),
        (1j, "is a complex"),
        (2**63, "np.uint64"),
        (1e39, "beyond the range of f32"),
        (np.complex64(1), "complex64"),
        (np.datetime64("2020"), "datetime64"),
    ],
    ids=str,
)
def test_unsupported_arguments_are_refused(value, text):
    with pytest.raises(ArgumentError, match=text) as caught:
        describe(value, "argument 'x'")
    assert str(caught.value).startswith("argument 'x'")


# Scalars


@pytest.mark.parametrize(
    ("value", "name", "stored"),
    [
        (3, "s32", 3),
        (-(2**31), "s32", -(2**31)),
        (2**31, "s64", 2**31),
        (-(2**63), "s64", -(2**63)),
        (1.5, "f32", 1.5),
        (float("inf"), "f32", float("inf")),
        (True, "pred", 1),
        (False, "pred", 0),
        (np.True_, "pred", 1),
        (np.int8(-3), "s8", -3),
        (np.uint64(2**64 - 1), "u64", 2**64 - 1),
        (np.float64(1e300), "f64", 1e300),
        (np.float32(0.5), "f32", 0.5),
        (np.float16(1), "f16", 0x3C00),
        (ml_dtypes.bfloat16(-2), "bf16", 0xC000),
        (ml_dtypes.float8_e4m3fn(1), "e4m3", 0x38),
    ],
)
def test_numbers_have_the_types_of_scalars(value, name, stored):
    description = describe(value)
    assert (description.type, description.value) == (ScalarType(dtypes.named(name)), stored)
    assert type(description.value) is type(stored)
    assert not description.on_host


@pytest.mark.parametrize(
    ("value", "dtype", "stored"),
    [
        (3, "f32", 3.0),
        (np.int8(3), "f64", 3.0),
        (2, "bf16", 0x4000),
        (1.0, "f16", 0x3C00),
        (7, "u8", 7),
        (True, "s32", 1),
        (4.0, "s64", 4),
        (2, "pred", 1),
        (np.float32(2), "u32", 2),
    ],
)
def test_declared_scalars_are_converted(value, dtype, stored):
    description = describe(value, "x", dtypes.named(dtype))
    assert (description.type, description.value) == (ScalarType(dtypes.named(dtype)), stored)


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (256, "u8", "from 0 to 255"),
        (-1, "u32", "from 0"),
        (128, "s8", "from -128 to 127"),
        (1.5, "s32", "holds integers"),
        (1e39, "f32", "beyond the range"),
        ("a", "f32", "is a str"),
        (float("nan"), "s32", "holds integers"),
        (1j, "f32", "complex"),
        (np.zeros(2), "f32", "ndarray"),
    ],
)
def test_values_that_do_not_fit_a_declared_scalar_are_refused(value, dtype, text):
    with pytest.raises(ArgumentError, match=text) as caught:
        describe(value, "argument 'x'", dtypes.named(dtype))
    assert str(caught.value).startswith("argument 'x'")


@pytest.mark.parametrize("name", ["f16", "float16", np.float16, np.dtype("float16")])
def test_names_of_element_types(name):
    named, plain = tc.ArrayType(name, 1, (True,), 16), tc.ArrayType(tc.f16, 1, (True,), 16)
    assert named == plain and hash(named) == hash(plain)
    assert tc.ScalarType(name) == tc.ScalarType(tc.f16)

    @tc.kernel
    def fill(x, value):
        x[0] = value

    texts = [
        fill.ptx(array, tc.ScalarType(dtype), arch="sm_80")
        for array, dtype in ((named, name), (plain, tc.f16))
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "fields, text",
    [
        (
            ("f17", 1, (True,), 4),
            "ArrayType: an element type is needed, such as tc.f32, np.float32 or 'f32', not 'f17'",
        ),
        ((None, 1, (True,), 4), "ArrayType: an element type is needed"),
        ((tc.f32, 1.0, (True,), 4), "ndim is the number of dimensions, 0 or more, not 1.0"),
        ((tc.f32, -1, (), 4), "ndim is the number of dimensions, 0 or more, not -1"),
        ((tc.f32, 2, (True,), 4), "its stride is one element, such as (False, True) for ndim 2, not (True,)"),
        ((tc.f32, 1, 1, 4), "such as (True,) for ndim 1, not 1"),
        ((tc.f32, 0, (True,), 4), "such as () for ndim 0, not (True,)"),
        ((tc.f32, 1, (1,), 4), "such as (True,) for ndim 1, not (1,)"),
        ((tc.f32, 1, (True,), 3), "align is 1, 2, 4, 8, 16 (bytes), not 3"),
        ((tc.f32, 1, (True,), "16"), "align is 1, 2, 4, 8, 16 (bytes), not '16'"),
    ],
)
def test_wrong_fields_of_array_types_are_refused(fields, text):
    with pytest.raises(ArgumentError, match=re.escape(text)):
        tc.ArrayType(*fields)


def test_scalar_types_refused():
    with pytest.raises(ArgumentError, match="ScalarType: an element type is needed"):
        tc.ScalarType(3)


# Elements smaller than a byte


@tc.kernel
def halves(x: tc.Array, out: tc.Array):
    i = tc.threadIdx.x
    byte = x[0, i].to(tc.u32)
    out[2 * i], out[2 * i + 1] = byte & 15, byte >> 4


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn])
@pytest.mark.parametrize("place", [lambda array: array, OnGpu])
def test_four_bits_say_how_they_are_passed(dtype, place):
    x, out = np.arange(8).astype(dtype).reshape(1, 8), np.zeros(8, np.uint32)
    with pytest.raises(ArgumentError, match=f"argument 'x': {np.dtype(dtype)} elements") as caught:
        halves.emulate[1, 4](place(x), out)
    first, second = re.findall("`(.*?)`", caught.value.message)
    packed = eval(second, {"b": eval(first.removeprefix("b = "), {"x": x, "np": np})})
    halves.emulate[1, 4](packed, out)
    assert packed.shape == (1, 4) and out.astype(np.uint8).tolist() == (x.view(np.uint8) & 15)[0].tolist()
    with pytest.raises(ArgumentError, match="argument 'x'.*pass a number as int or float"):
        halves.emulate[1, 4](x[0, 0], out)


def test_declared_numbers_of_rare_types():
    def stored(out: tc.Array, n: tc.tf32):
        out[0] = n.bits(tc.b32).bits(tc.f32)

    tc.kernel(stored).emulate[1, 1](out := np.zeros(1, np.float32), 1.5)
    assert out[0] == 1.5
    stored.__annotations__["n"] = tc.b128
    with pytest.raises(ArgumentError, match="'n' cannot be annotated with b128; allowed are"):
        tc.kernel(stored)


def test_what_is_refused_is_not_offered():
    with pytest.raises(ArgumentError) as caught:
        describe(np.zeros(4, np.complex64))
    offered = caught.value.message.partition("use one of ")[2].split(", ")
    assert len(offered) >= 17 and not {"int4", "uint4", "float4_e2m1fn"} & set(offered)
    for name in offered:
        describe(np.zeros(4, name))


@pytest.mark.parametrize("dtype", [tc.s4, tc.u4, tc.e2m1, tc.b1], ids=str)
def test_memory_has_no_elements_smaller_than_a_byte(dtype):
    @tc.kernel
    def tiled(out: tc.Array):
        out[0] = tc.shared((8,), dtype)[0]

    text = f"memory has no {dtype} elements.*use tc.u8 or tc.u32, with {8 // dtype.bits} elements a byte"
    with pytest.raises(ArgumentError, match=text):
        tiled.emulate[1, 1](np.zeros(1))
    with pytest.raises(ArgumentError, match=text):
        halves.ptx(tc.ArrayType(dtype, 2, (False, True), 16), np.zeros(8, np.uint32), arch="sm_80")


@pytest.mark.parametrize("dtype", [ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn])
def test_six_bits_have_a_byte_each(dtype):
    @tc.kernel
    def moved(x: tc.Array, same: tc.Array, wide: tc.Array, narrow: tc.Array, four: tc.Array):
        tile, i = tc.shared((8,), x.dtype), tc.threadIdx.x
        tile[i] = x[i]
        tc.barrier()
        same[i] = tile[i]
        wide[i] = tile[7 - i].to(tc.f32)
        narrow[i] = wide[i]
        if i == 0:
            four.at(0).store(x.at(0).load(4))

    x = np.array([0.5, 1, 1.5, -2, 3, -4, 6, 7]).astype(dtype)
    same, wide, narrow = np.zeros(8, dtype), np.zeros(8, np.float32), np.zeros(8, dtype)
    moved.emulator("sm_100a")[1, 8](x, same, wide, narrow, four := np.zeros(4, dtype))
    assert (same == x).all() and (narrow == x[::-1]).all() and (four == x[:4]).all()
    assert (wide == x[::-1].astype(np.float32)).all()


# Parameters


def parameters_of(*values):
    description = [describe(value) for value in values]
    packer = Packer([d.type for d in description])
    buffer = bytearray(packer.size)
    packer.pack_into(buffer, description)
    return packer, buffer


def test_parameters_are_packed_at_their_alignment():
    a = aligned((3, 16), np.float16)
    b = aligned((3, 16), np.float32).T
    packer, buffer = parameters_of(True, a, np.float16(1), b[:, ::2], 2.5, np.int8(-1), 2**40)
    layout = [
        (0, "", "u32", 0),
        (1, "", "u64", 8), (1, "_shape0", "s32", 16), (1, "_shape1", "s32", 20),
        (1, "_stride0", "s64", 24),
        (2, "", "b16", 32),
        (3, "", "u64", 40), (3, "_shape0", "s32", 48), (3, "_shape1", "s32", 52),
        (3, "_stride1", "s64", 56),
        (4, "", "f32", 64), (5, "", "s8", 68), (6, "", "s64", 72),
    ]  # fmt: skip
    assert [tuple(p) for p in packer.parameters] == layout
    assert struct.unpack("=I4xQiiqH6xQiiqfb3xq", buffer) == (
        1,
        a.ctypes.data,
        3,
        16,
        16,
        0x3C00,
        b.ctypes.data,
        16,
        2,
        32,
        2.5,
        -1,
        2**40,
    )


def test_packing_checks_types():
    packer = Packer([describe(3).type])
    with pytest.raises(ArgumentError, match=r"compiled for \(s32\); got \(f32\)"):
        packer.pack_into(bytearray(8), [describe(1.0)])
    with pytest.raises(ArgumentError, match="got"):
        packer.pack_into(bytearray(8), [])


def test_a_kernel_without_parameters_has_none_to_pack():
    assert Packer([]).size == 0


def test_parameters_beyond_4096_bytes_are_refused():
    kind = describe(aligned((2, 2, 2, 2), np.int8)).type
    with pytest.raises(ArgumentError, match="4096"):
        Packer([kind] * 100)


# Streams


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0, 0),
        (77, 77),
        (types.SimpleNamespace(cuda_stream=5), 5),
        (types.SimpleNamespace(ptr=6), 6),
        (type("S", (), {"__cuda_stream__": lambda self: (0, 7)})(), 7),
        (type("S", (), {"__cuda_stream__": (0, 8)})(), 8),
    ],
)
def test_streams_of_libraries_become_handles(stream, handle):
    assert protocols.stream_handle(stream) == handle


@pytest.mark.parametrize("stream", ["default", 1.0, True, object()])
def test_objects_that_are_no_streams_are_refused(stream):
    with pytest.raises(ArgumentError, match="a stream cannot be a"):
        protocols.stream_handle(stream)
