"""Arguments of PTX kernels: numbers, arrays, structs with fields, and tensor maps."""

from __future__ import annotations

from mmap import mmap

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import ptx
from tests.ptx_cases import STRUCT_IN_MEMORY, floats, module


def test_parts_of_parameters():
    """A half of an integer of 64 bits, and a byte that is extended."""
    k = module(
        """
    ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [n+4]; ld.param.u16 %h1, [n]; ld.param.s8 %r2, [n+1];
    cvt.u32.u16 %r3, %h1;
    st.global.v2.u32 [%rd1], {%r1, %r2}; st.global.u32 [%rd1+8], %r3;
""",
        ".param .u64 x, .param .u64 n",
    )["k"]
    x = np.zeros(3, np.uint32)
    k[1, 1](x, 0x123456789ABC8DEF)
    assert x.tolist() == [0x12345678, 0xFFFFFF8D, 0x8DEF]


def test_tensor_maps_of_integers_have_no_nan_to_fill_with():
    with pytest.raises(tc.ArgumentError, match="nan_fill is of f16, bf16, f32 and f64; the array holds s32"):
        ptx.tensor_map(np.zeros((4, 4), np.int32), (4, 4), nan_fill=True)


@pytest.mark.parametrize(
    "shape, box, message",
    [
        ((8, 32), (1, 288), r"a box of \(1, 288\); it has 1 to 256 elements"),
        ((8, 32), (0, 32), r"a box of \(0, 32\); it has 1 to 256 elements"),
        ((8, 34), (1, 32), r"strides of \(34, 1\) elements; a tensor map takes multiples of 16 bytes"),
    ],
)
def test_boxes_and_strides_that_a_tensor_map_cannot_hold(shape, box, message):
    with pytest.raises(tc.ArgumentError, match=message):
        ptx.tensor_map(np.zeros(shape, np.float32), box)
    assert ptx.tensor_map(np.zeros((1, 34), np.float32), (1, 34)).box == (1, 34)


def test_arguments_are_checked():
    k = module("ret;", ".param .u64 x, .param .u32 n")["k"]
    with pytest.raises(tc.ArgumentError, match="k takes 2 arguments, 1 were given"):
        k[1, 1](1)
    with pytest.raises(tc.ArgumentError, match="parameter n has 32 bits, and the address of an array 64"):
        k[1, 1](1, np.zeros(3))
    with pytest.raises(tc.ArgumentError, match="no variable is called 'v'"):
        ptx.load(".version 8.0\n.target sm_90\n.entry a() { ret; }\n").memory("v")


@pytest.mark.parametrize("offset", [False, True])
def test_a_struct_with_tensor_maps(offset):
    """All lanes of a warp store one box, as CUTLASS does, or each its own box over those of others."""
    text = STRUCT_IN_MEMORY.replace("%r7", "%r1" if offset else "0")
    x, y, n = floats(4, 8), np.zeros((4, 8), np.float32), np.zeros(1, np.int32)
    maps = {64: tc.ptx.tensor_map(x, (4, 8)), 192: tc.ptx.tensor_map(y, (4, 8))}
    content = {1: np.array([0, 0, 7, 0, 2], "f4").tobytes()[1:]}
    run = tc.ptx.load(text)["k"][1, 32]
    if offset:
        with pytest.raises(tc.Race, match="cp.async.bulk.tensor"):
            run({**maps, **content, 0: n})
        return
    for fields in ({8: 7, 16: 2.0}, {8: np.int32(7), 16: np.float32(2)}, content):
        n[:] = y[:] = 0
        with pytest.warns(tc.RaceWarning, match="both write the same value"):
            run({**fields, **maps, 0: n})
        assert np.array_equal(y, 2 * x) and (n.view("f4") == 7 if fields is content else n == 7)
    with pytest.raises(tc.EmulationError, match=r"uses byte 64 of argument .* where no tensor map is: pass"):
        run({**content, 0: n, 192: maps[192]})
    with pytest.raises(tc.ArgumentError, match="s has 320 bytes; the field at 256 ends at byte 384"):
        run({**content, 0: n, 256: maps[64]})
    with pytest.raises(tc.ArgumentError, match="s: the fields at 64 and 128 overlap"):
        run({**content, **maps, 0: n, 128: maps[64]})
    for value in (None, 1 << 64):
        with pytest.raises(
            tc.ArgumentError, match=f"s: the field at 8 is {value}; it may be a number of at most"
        ):
            run({**content, **maps, 0: n, 8: value})


@pytest.mark.parametrize(
    "fields, value",
    [
        ({0: bytes(range(8))}, 0x0706050403020100),
        ({0: bytes(8), 4: 7}, 7 << 32),
        ({0: bytes(8), 2: np.uint16(7)}, 7 << 16),
        ({0: 5, 4: 7}, 7 << 32 | 5),
        ({0: 5}, 5),
        ({0: 5, 1: b"9" * 15}, 5),
        ({0: np.uint64(5)}, 5),
        ({"bytes": bytes(range(16)), 0: np.uint8(9), 1: np.uint8(8)}, 0x0706050403020809),
    ],
    ids=str,
)
def test_a_load_of_several_fields_of_a_struct(fields, value):
    body = "ld.param.u64 %rd1, [s]; ld.param.u64 %rd2, [s+8]; st.global.u64 [%rd2], %rd1; ret;"
    x = np.zeros(1, np.uint64)
    module(body, ".param .align 8 .b8 s[16]")["k"][1, 1]({8: x, **fields})
    assert x[0] == value


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_kernel_that_copies_half_of_its_tensor_map(in_memory):
    """CuTe DSL's grouped GEMMs change the address in the copy so."""
    copied = "\n".join(
        f"ld.param.v2.b64 {{%rd2, %rd3}}, [%rd1+{at}]; st.global.v2.b64 [%rd4+{at}], {{%rd2, %rd3}};"
        for at in (0, 16, 32, 48)
    )
    k = module(
        f"""
    mov.b64 %rd1, m; ld.param.u64 %rd4, [g]; ld.param.u64 %rd5, [y]; mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0; mov.u32 %r2, bar; mov.u32 %r3, tile; mov.b32 %r4, 0;
    @%p1 bra READ;
    {copied}
    fence.proxy.tensormap::generic.release.gpu; fence.proxy.tensormap::generic.acquire.gpu [%rd4], 128;
    mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 %rd6, [%r2], 128;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd4, {{%r4, %r4}}], [%r2];
READ:
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
    @!%p2 bra WAIT;
    mad.lo.u32 %r3, %r1, 4, %r3; ld.shared.u32 %r5, [%r3]; mad.wide.u32 %rd5, %r1, 4, %rd5;
    st.global.u32 [%rd5], %r5;
    ret;""",
        ".param .align 64 .b8 m[128], .param .u64 g, .param .u64 y",
        ".shared .align 128 .b8 tile[128]; .shared .align 8 .b8 bar[8];",
    )["k"]
    x, y, copy = floats(8, 8), np.zeros((4, 8), np.float32), np.frombuffer(mmap(-1, 4096), np.uint64)
    tensor_map = tc.ptx.tensor_map(x, (4, 8))
    if in_memory:
        k[1, 32]({0: tensor_map}, copy, y)
        assert np.array_equal(y, x[:4]) and not copy[8:].any()
    else:
        with pytest.raises(tc.OutOfBounds, match=r"in the tensor map 'm'; pass \{0: map\}"):
            k[1, 32](tensor_map, copy, y)


@pytest.mark.parametrize("value", [-1, np.int32(-7), 3_000_000_000], ids=str)
def test_integers_of_parameters_without_a_sign(value):
    """NVCC declares an `int` as .u32, in structs, too."""
    body = "ld.param.u32 %r1, [n]; ld.param.u32 %r2, [s]; ld.param.u64 %rd1, [x]; "
    body += "st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r2; ret;"
    kernel = module(body, ".param .u64 x, .param .u32 n, .param .align 8 .b8 s[8]")["k"]
    x = np.zeros(2, np.uint32)
    kernel[1, 1](x, value, {0: value})
    assert x.tolist() == [int(value) % 2**32] * 2
    with pytest.raises(tc.ArgumentError, match="u32 holds integers from 0 to"):
        kernel[1, 1](x, -(1 << 31) - 1, {0: value})


@pytest.mark.parametrize(
    "bits, value",
    [(32, 1.5), (32, np.float32(-2)), (32, np.float64(2.5)), (64, 1e-300), (16, np.float16(3))],
    ids=str,
)
def test_floats_of_a_struct_that_are_loaded_as_integers(bits, value):
    """NVCC loads some parameters so."""
    body = f"ld.param.u{bits} %v, [s]; ld.param.u64 %rd1, [x]; st.global.u{bits} [%rd1], %v; ret;"
    kernel = module(body, ".param .u64 x, .param .align 8 .b8 s[8]", registers=f".reg .b{bits} %v;")["k"]
    x = np.zeros(1, f"f{bits // 8}")
    kernel[1, 1](x, {0: value})
    assert x[0] == value
    with pytest.raises(tc.ArgumentError, match=f"s is 1.5; u{bits} holds integers"):
        kernel[1, 1](x, {0: np.float16(1.5) if bits > 16 else np.float32(1.5)})
    with pytest.raises(tc.ArgumentError, match="s is 1.5; u8 holds integers"):
        body = "ld.param.u8 %h1, [s]; ret;"
        module(body, ".param .align 8 .b8 s[8]")["k"][1, 1]({0: 1.5})


def test_a_load_of_a_part_without_a_value():
    kernel = module("ld.param.u64 %rd1, [s]; ret;", ".param .align 8 .b8 s[16]")["k"]
    for fields in ({}, {4: 7}, {0: bytes(4), 8: 7}):
        with pytest.raises(tc.ArgumentError, match="reads s, for which no value was given"):
            kernel[1, 1](fields)


STRUCT_OF_AN_ADDRESS = """
.version 8.8
.target sm_90a
.entry k(.param .align 8 .b8 x[8])
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.b64 %rd1, [x];
    mov.u32 %r1, 7;
    st.global.b32 [%rd1], %r1;
    ret;
}
"""


def test_an_array_for_a_struct_of_an_address():
    """CuTe passes tensors with static layouts so."""
    kernel, x = ptx.load(STRUCT_OF_AN_ADDRESS).k, np.zeros(2, np.int32)
    kernel[1, 1](x)
    assert x.tolist() == [7, 0]
    with pytest.raises(tc.ArgumentError, match="has 8 bytes, as a struct has"):
        kernel[1, 1](1.5)
