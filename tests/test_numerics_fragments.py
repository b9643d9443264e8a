"""Products of register images, binary64 products, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

from tensorcore_dsl.numerics.architectures import model
from tensorcore_dsl.numerics.formats import FORMATS
from tensorcore_dsl.numerics.products import FragmentMaps, fragments, matmul
from tests import numerics_cases as table
from tests.numerics_cases import accumulators, mma, mma_maps, packed, scaled, storage

CASES = [
    (mma((16, 8, 16), "f16", "f32"), "sm_90a"),
    (mma((16, 8, 16), "bf16", "f32"), "sm_80"),
    (mma((16, 8, 8), "f16", "f16"), "sm_75"),
    (mma((16, 8, 8), "tf32", "f32"), "sm_90a"),
    (mma((16, 8, 32), "e4m3", "f16", "e5m2"), "sm_90a"),
    (mma((16, 8, 32), "e2m1", "f32", "e3m2"), "sm_120a"),
    (scaled(64, "e2m1", "e2m1", "mxf4nvf4", 4, "ue4m3"), "sm_120a"),
    (mma((16, 8, 32), "s8", "s32", "u8"), "sm_80"),
    (mma((16, 8, 64), "u4", "s32", "s4", satfinite=True), "sm_80"),
    (mma((16, 8, 256), "b1", "s32", operation="xor"), "sm_80"),
    (mma((16, 8, 32), "f16", "f32", sparse=True), "sm_80"),
    (mma((16, 8, 8), "f64", "f64"), "sm_90a"),
]


@pytest.mark.parametrize(("p", "arch"), CASES, ids=lambda v: str(v).replace(" ", "-"))
def test_registers_hold_what_the_matrices_say(p, arch):
    rng = np.random.default_rng(7)
    warps = 5
    a, b, c, more = table.operands(p, "raw", rng, warps)
    (bits_a, low_a), (bits_b, low_b) = storage(p, p.a), storage(p, p.b)
    maps = mma_maps(p, max(1, 32 // bits_a), max(1, 32 // bits_b))
    word = np.uint64 if p.a == "f64" else np.uint32
    images = (
        packed(maps.a, a, bits_a, low_a, word),
        packed(maps.b, b, bits_b, low_b, word),
        packed(maps.c, c, FORMATS[p.c].bits, 0, word),
    )
    want = packed(maps.d, matmul(p, arch, a, b, c, **more), FORMATS[p.d].bits, 0, word)
    assert (fragments(p, arch, maps, *images, **more) == want).all()
    active = np.array([True, False, True, True, False])
    got = fragments(p, arch, maps, *images, active=active, **more)
    lanes = np.repeat(active, 32)
    assert (got[:, lanes] == want[:, lanes]).all()


@pytest.mark.parametrize("arch", ["sm_70", "sm_90a"])
@pytest.mark.parametrize(("c_type", "d_type"), [("f16", "f16"), ("f16", "f32"), ("f32", "f32")])
def test_quad_pairs_multiply_by_themselves(arch, c_type, d_type):
    p = mma((8, 8, 4), "f16", d_type, c=c_type)
    rng = np.random.default_rng(8)
    a, b, c, _ = table.operands(p, "near", rng, 8)  # two warps of four products
    lane = np.arange(32)
    row = lane % 4 + lane // 16 * 4
    line = np.tile(row[:, None], (1, 8))
    a_map = np.stack([line[:, :4], np.tile(np.arange(4), (32, 1))], axis=-1)
    d_map = np.stack([line, np.tile(np.arange(8), (32, 1))], axis=-1)
    maps = FragmentMaps(a_map, a_map[..., ::-1], d_map, d_map)
    pair = lane % 16 // 4

    def image(lies, matrices, bits):
        whole = [packed(lies, matrices[q::4], bits) for q in range(4)]
        result = whole[0].copy()
        for q in range(4):
            lanes = np.tile(pair == q, 2)
            result[:, lanes] = whole[q][:, lanes]
        return result

    images = image(maps.a, a, 16), image(maps.b, b, 16), image(maps.c, c, FORMATS[c_type].bits)
    got = fragments(p, arch, maps, *images)
    assert (got == image(maps.d, matmul(p, arch, a, b, c), FORMATS[d_type].bits)).all()


@pytest.mark.parametrize("d_type", ["f16", "f32"])
def test_a_warpgroup_takes_operands_from_matrices(d_type):
    p = mma((64, 24, 16), "bf16" if d_type == "f32" else "f16", d_type, family="wgmma")
    a, b, c, _ = table.operands(p, "near", np.random.default_rng(9), 2)
    lies = accumulators(p, 128)
    bits = FORMATS[d_type].bits
    got = fragments(p, "sm_90a", FragmentMaps(None, None, lies, lies), a, b, packed(lies, c, bits))
    assert (got == packed(lies, matmul(p, "sm_90a", a, b, c), bits)).all()


def directed(x, mode):
    """A fraction in the range of normal numbers to binary64."""
    result = float(x)
    if mode == "rz" and abs(x) < abs(Fraction(result)):
        return math.nextafter(result, 0.0)
    if mode == "rm" and x < Fraction(result):
        return math.nextafter(result, -math.inf)
    if mode == "rp" and x > Fraction(result):
        return math.nextafter(result, math.inf)
    return result


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("shape", [(8, 8, 4), (16, 8, 16)])
def test_binary64_is_a_chain_in_ascending_k(mode, shape):
    p = mma(shape, "f64", "f64", rounding=mode)
    rng = np.random.default_rng(10)
    a, b, c = (
        rng.standard_normal((1, *s)) * 2.0 ** rng.integers(-30, 30, (1, *s))
        for s in ((p.m, p.k), (p.k, p.n), (p.m, p.n))
    )
    got = matmul(p, "sm_90a", a, b, c).view(np.float64)
    for i, j in np.ndindex(p.m, p.n):
        total = float(c[0, i, j])
        for k in range(p.k):
            product = Fraction(float(a[0, i, k])) * Fraction(float(b[0, k, j]))
            total = directed(product + Fraction(total), mode)
        assert got[0, i, j] == total


def test_binary64_keeps_the_first_nan_of_b_c_a():
    p = mma((8, 8, 4), "f64", "f64")
    names = {"a": 0x7FF0000000000AAA, "b": 0xFFF0000000000BBB, "c": 0x7FF8000000000CCC}

    def result(given, **more):
        shapes = {"a": (1, 8, 4), "b": (1, 4, 8), "c": (1, 8, 8)}
        operands = {name: np.zeros(shape, np.uint64) for name, shape in shapes.items()}
        for name in given:
            operands[name][0, 0, 0] = names[name]
        for name, value in more.items():
            operands[name][0, 0, 0] = value
        return int(matmul(p, "sm_90a", *operands.values())[0, 0, 0])

    assert result("abc") == result("ab") == names["b"] | 1 << 51
    assert result("ac") == names["c"]
    assert result("a") == names["a"] | 1 << 51
    assert result("", a=0x7FF << 52) == 0xFFF8 << 48


@pytest.mark.parametrize(
    ("p", "arch", "message"),
    [
        (mma((16, 8, 16), "f16", "f32"), "sm_60", "no numerics for architecture 'sm_60'"),
        (mma((16, 8, 16), "bf16", "f32"), "sm_75", "has no rule on sm_75; inputs known there: f16"),
        (mma((16, 8, 32), "e2m1", "f32"), "sm_100a", "has no rule on sm_100a"),
        (scaled(32, "e4m3", "e4m3", "mxf8f6f4", 1, "ue8m0"), "sm_89", "has no rule on sm_89"),
        (scaled(32, "e4m3", "e4m3", "mxf8f6f4", 1, "ue8m0"), "sm_100a", "has no rule on sm_100a"),
        (mma((16, 8, 32), "e4m3", "f32", "e2m1"), "sm_90a", "has no rule on sm_90a"),
        (mma((64, 8, 16), "f16", "f32", family="wgmma"), "sm_120a", "wgmma is for sm_90a"),
        (mma((16, 8, 4), "f64", "f64"), "sm_75", "has no rule on sm_75"),
        (mma((16, 8, 16), "f8", "f32"), "sm_80", "element type 'f8' of A is none of f16, bf16"),
        (mma((16, 8, 16), "f16", "f32", "bf16"), "sm_80", "A of f16 meets B of bf16; allowed: f16"),
        (mma((16, 8, 16), "bf16", "f16"), "sm_80", "C and D of f16 and f16; allowed: f32"),
        (mma((16, 8, 16), "s8", "f32"), "sm_80", "allowed: s32"),
        (mma((16, 8, 16), "f16", "f32", satfinite=True), "sm_80", "satfinite is for integers"),
        (mma((16, 8, 16), "f16", "f32", rounding="rz"), "sm_80", "f64 has rn, rz, rm, rp, others rn"),
        (mma((16, 8, 8), "f64", "f64", rounding="ru"), "sm_80", "rounding 'ru'"),
        (scaled(32, "e4m3", "e4m3", "mx", 1, "ue8m0"), "sm_120a", "is none of mxf8f6f4, mxf4"),
        (scaled(64, "e4m3", "e2m1", "mxf4", 2, "ue8m0"), "sm_120a", "mxf4 takes elements of e2m1"),
        (scaled(64, "e2m1", "e2m1", "mxf4", 4, "ue8m0"), "sm_120a", "takes scales 2X of ue8m0"),
    ],
)
def test_products_that_no_tensor_core_computes(p, arch, message):
    with pytest.raises(ValueError) as error:
        model(p, arch)
    assert message in str(error.value)


def test_operands_of_other_shapes():
    p = mma((16, 8, 16), "f16", "f32")
    maps = mma_maps(p, 2, 2)
    a, b, c = (np.zeros((n, 64), np.uint32) for n in (4, 2, 4))
    with pytest.raises(ValueError, match=r"b has shape \(3, 64\), not \(2, 64\)"):
        fragments(p, "sm_80", maps, a, np.zeros((3, 64), np.uint32), c)
    with pytest.raises(ValueError, match=r"a has shape \(1, 16, 8\), not \(1, 16, 16\)"):
        matmul(p, "sm_80", np.zeros((1, 16, 8)), np.zeros((1, 16, 8)), np.zeros((1, 16, 8)))
    with pytest.raises(ValueError, match=r"selection has shape \(1, 16, 8\), not None"):
        z = [np.zeros((1, *s), np.uint32) for s in ((16, 16), (16, 8), (16, 8))]
        matmul(p, "sm_80", *z, selection=np.zeros((1, 16, 8)))
    sparse = dataclasses.replace(p, sparse=True)
    with pytest.raises(ValueError, match="selection has a k outside 0..15"):
        z = [np.zeros((1, *s), np.uint32) for s in ((16, 8), (16, 8), (16, 8))]
        matmul(sparse, "sm_80", *z, selection=np.full((1, 16, 8), 16))
    with pytest.raises(ValueError, match=r"active is bool of \(3,\); it must be bool of \(2,\)"):
        fragments(p, "sm_80", maps, a, b, c, active=np.ones(3, np.bool_))
    short = dataclasses.replace(maps, b=maps.b[:, :2])
    with pytest.raises(ValueError, match=r"no thread holds element \(8, 0\) of b"):
        fragments(p, "sm_80", short, a, b[:1], c)
