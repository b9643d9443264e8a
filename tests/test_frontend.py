"""Indices of threads, exchange in a warp, atomics, fragments, printing and long chains of branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import bf16, f16
from tensorcore_dsl.errors import CompileError
from tests.running import execute_text, launch

pytestmark = pytest.mark.usefixtures("fresh_ir")


N = 64


# -- threads ----------------------------------------------------------------------------------


@tc.kernel
def indices(out):
    x, y, z = tc.threadIdx.x, tc.threadIdx.y, tc.threadIdx.z
    bx, by, bz = tc.blockIdx.x, tc.blockIdx.y, tc.blockIdx.z
    place = ((bz * tc.gridDim.y + by) * tc.gridDim.x + bx) * 32
    inside = (z * tc.blockDim.y + y) * tc.blockDim.x + x
    out[place + inside] = (
        tc.lane_id() + 100 * tc.warp_id() + 1000 * (bx + 10 * by + 100 * bz) + 0 * tc.gridDim.z
    )
    if inside == 0:
        out[place] = -tc.blockDim.z


def test_indices_in_three_dimensions():
    out = np.zeros(3 * 2 * 2 * 32, np.int32)
    launch(indices, out, grid=(3, 2, 2), block=(4, 4, 2))
    block = 0
    for bz in range(2):
        for by in range(2):
            for bx in range(3):
                expected = np.arange(32) + 1000 * (bx + 10 * by + 100 * bz)
                expected[0] = -2
                actual = out[block * 32 : block * 32 + 32]
                x_only = np.arange(32) % 4 // 32 * 100
                assert np.array_equal(actual, expected + x_only)
                block += 1


@tc.kernel
def warp_exchange(x, out, wide, half):
    i, lane = tc.threadIdx.x, tc.lane_id()
    v = x[i]
    total = v
    for step in (16, 8, 4, 2, 1):
        total += tc.shfl_xor(total, step)
    results = [
        total, tc.shfl(v, 3), tc.shfl_up(v, 1), tc.shfl_down(v, 2), tc.shfl(v, lane ^ 5), tc.vote("ballot", v > 20),
        tc.vote("all", v >= 0), tc.vote("any", v == 7), tc.vote("uni", v < 100), tc.match_any(v % 4), tc.redux("add", v),
        tc.redux("max", v), tc.redux("or", v), tc.shfl(v > 10, 0),
    ]  # fmt: skip
    for k, r in enumerate(results):
        out[k, i] = r
    wide[i] = tc.shfl_down(tc.f64(v) / 3, 1)
    half[i] = tc.shfl_xor(tc.f16(v), 1)
    tc.syncwarp()


def test_lanes_exchange_values():
    x = np.arange(32, dtype=np.int32)[::-1].copy()
    out, wide, half = np.zeros((14, 32), np.int64), np.zeros(32), np.zeros(32, np.float16)
    launch(warp_exchange, x, out, wide, half, block=32)
    lanes = np.arange(32)
    ballot = sum(1 << i for i in range(32) if x[i] > 20)
    match = [sum(1 << j for j in range(32) if x[j] % 4 == x[i] % 4) for i in range(32)]
    up, down = x[np.maximum(lanes - 1, 0)], np.where(lanes < 30, x[np.minimum(lanes + 2, 31)], x)
    expected = [x.sum(), x[3], up, down, x[lanes ^ 5], ballot, 1, 1, 1, match, x.sum(), 31, 31, 1]
    for k, e in enumerate(expected):
        assert np.array_equal(out[k], np.broadcast_to(np.array(e, np.int64), 32)), k
    assert np.array_equal(wide, np.where(lanes < 31, x[np.minimum(lanes + 1, 31)], x) / 3)
    assert np.array_equal(half, x[lanes ^ 1])


@tc.kernel
def atomics(x, totals, old, wide, floats):
    i = tc.threadIdx.x
    count = tc.shared(2, tc.u32)
    if i < 2:
        count[i] = 0
    tc.barrier()
    tc.atomic("add", count.at(0), 1)
    tc.reduce("max", count.at(1), tc.u32(x[i]))
    old[i] = tc.atomic("add", totals.at(0), x[i])
    tc.atomic("min", totals.at(1), x[i])
    tc.atomic("max", totals.at(2), x[i])
    tc.atomic("or", totals.at(3), 1 << (i % 8))
    tc.atomic("exch", totals.at(4), 42)
    tc.atomic("cas", totals.at(5), 7, 8)
    tc.reduce("add", wide.at(0), tc.s64(x[i]))
    tc.reduce("add", floats.at(0), 0.5)
    tc.barrier()
    if i == 0:
        totals[6], totals[7] = count[0], count[1]


def test_atomics_combine_the_values_of_all_threads():
    x = np.arange(N, dtype=np.int32)
    totals = np.array([0, 99, -1, 0, 0, 7, 0, 0], np.int32)
    old, wide, floats = np.zeros(N, np.int32), np.zeros(1, np.int64), np.zeros(1, np.float32)
    launch(atomics, x, totals, old, wide, floats)
    assert totals.tolist() == [x.sum(), 0, N - 1, 255, 42, 8, N, N - 1]
    assert np.array_equal(np.sort(old), np.concatenate([[0], np.cumsum(x)[:-1]]).astype(np.int32))
    assert wide[0] == x.sum() and floats[0] == N / 2


@tc.kernel
def clocks(out):
    first = tc.special("clock")
    second = tc.special("clock")
    long = tc.special("clock64")
    out[0], out[1], out[2] = (second - first, tc.s32(long), tc.special("warpid") + tc.special("nctaid.x"))


def test_clocks_are_read_each_time():
    out = np.zeros(3, np.int32)
    launch(clocks, out, block=1)
    assert out[0] > 0 and out[1] > 0
    assert clocks.ptx(out, arch="sm_80").count("%clock;") == 2


# -- fragments --------------------------------------------------------------------------------


@tc.kernel
def fragments(a, b, d, sums):
    lane = tc.lane_id()
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile_a, tile_b = tc.shared((16, 16), tc.f16), tc.shared((16, 8), tc.f16)
    for k in tc.static_range(8):
        tile_a[lane // 16 + 2 * k, lane % 16] = a[lane // 16 + 2 * k, lane % 16]
    for k in tc.static_range(4):
        tile_b[lane // 8 + 4 * k, lane % 8] = b[lane // 8 + 4 * k, lane % 8]
    tc.syncwarp()
    fa = tc.ldmatrix(tile_a, mma.a)
    fb = tc.load_elements(b, mma.b)
    acc = {"now": [mma.d.zeros()], "twice": (mma.d.zeros(), 1)}
    for k in range(2):
        acc["now"][0] = mma(fa, fb, acc["now"][0])
        if k == 1:
            acc["twice"] = (acc["now"][0] * 2.0, 2)
    result = acc["now"][0] if sums.shape[0] > 0 else acc["twice"][0]
    tc.store_elements(d, result + 1)
    for slot in tc.static_range(len(fa)):
        row, col = fa.coordinates(slot)
        tc.atomic("add", sums.at(row), tc.f32(fa[slot]))
    packed = fa * 2 - fa + abs(-fa) - abs(fa)
    tc.atomic("add", sums.at(16), tc.f32(packed[0] - fa[0]))
    tc.atomic("add", sums.at(17), sum(e for e in acc["twice"][0]))


@pytest.mark.parametrize("transposed", [False, True])
def test_fragments_in_containers(transposed):
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-4, 5, (16, 16)).astype(np.float16), rng.integers(-4, 5, (16, 8)).astype(np.float16))
    b = np.asfortranarray(b) if transposed else b
    d, sums = np.zeros((16, 8), np.float32), np.zeros(18, np.float32)
    launch(fragments, a, b, d, sums, block=32)
    product = a.astype(np.float32) @ b.astype(np.float32)
    assert np.array_equal(d, 2 * product + 1)
    assert np.array_equal(sums[:16], a.astype(np.float32).sum(1))
    assert sums[16] == 0 and sums[17] == 4 * product.sum()


@tc.kernel
def matrix_moves(x, out, dtype: tc.Const = tc.f16, turned: tc.Const = False, swizzle: tc.Const = 0):
    lane = tc.lane_id()
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((64, 64), tc.f16, swizzle=swizzle)
    for k in tc.static_range(64):
        tile[k, 2 * lane] = x[k, 2 * lane]
        tile[k, 2 * lane + 1] = x[k, 2 * lane + 1]
    tc.syncwarp()
    view = tile.T if turned else tile
    for i, line in enumerate(tc.ldmatrix(view[16:48, 16:], mma.a)):
        for j, fragment in enumerate(line):
            tc.store_elements(out[16 * i : 16 * i + 16, 16 * j : 16 * j + 16], fragment)
    found = tc.ldmatrix(view[:16, 8:48], mma.b)
    for j, fragment in enumerate(found):
        tc.store_elements(out[32:, 8 * j : 8 * j + 8], fragment)


@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize("turned", [False, True])
def test_ldmatrix_of_many_fragments(turned, swizzle):
    x = np.random.default_rng(9).integers(0, 100, (64, 64)).astype(np.float16)
    out = np.zeros((48, 48), np.float16)
    launch(matrix_moves, x, out, block=32, turned=turned, swizzle=swizzle)
    view = x.T if turned else x
    assert np.array_equal(out[:32], view[16:48, 16:])
    assert np.array_equal(out[32:, :40], view[:16, 8:48])


@tc.kernel
def packed_arithmetic(x, out, dtype: tc.Const = tc.f16):
    mma = tc.mma.m16n8k16(dtype, dtype, tc.f32)
    a = tc.load_elements(x, mma.a)
    scalar = x[0, 1]
    results = [
        a + a,
        a - 1,
        2 * a,
        -a,
        abs(a),
        a * scalar - a,
        tc.fma(a, a, scalar),
        tc.minimum(a, 0.5),
        tc.maximum(scalar, a),
        a / 2,
        a * tc.f32(3),
        a + np.float64(1),
    ]
    for k, result in enumerate(results):
        out[k, tc.lane_id()] = tc.f64(result[k % 8])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_fragments_of_halves_are_computed_in_pairs(dtype, arch):
    x = np.random.default_rng(11).standard_normal((16, 16)).astype(dtype.numpy)
    out = np.zeros((12, 32))
    launch(packed_arithmetic, x, out, block=32, dtype=dtype, arch=arch)
    layout = tc.mma.m16n8k16(dtype, dtype, tc.f32).a.layout
    a = x[layout.coords[..., 0], layout.coords[..., 1]]
    s, one = x[0, 1], dtype.numpy.type(1)
    wide = a.astype(np.float32)
    expected = [
        a + a,
        a - one,
        a + a,
        -a,
        abs(a),
        a * s - a,
        (wide * wide + np.float32(s)).astype(dtype.numpy),
        np.minimum(a, dtype.numpy.type(0.5)),
        np.maximum(s, a),
        a / dtype.numpy.type(2),
        wide * 3,
        a.astype(np.float64) + 1,
    ]
    for k, e in enumerate(expected):
        assert np.array_equal(out[k], e[:, k % 8].astype(np.float64)), k
    text = packed_arithmetic.ptx(x, out, arch=arch, dtype=dtype)
    assert text.count(f".{dtype}x2") >= 9


# -- printing ---------------------------------------------------------------------------------


@tc.kernel
def prints(x, y: tc.f32):
    i = tc.threadIdx.x
    if i < 2:
        print("thread", i, "has", x[i], "and 100%", y)
        print(
            f"{i:03d}: {x[i]:x} {y:.3f} {tc.f16(y)} {i > 0} {tc.s64(i):5d} {[i, 1]} {{}}", end="|\n", sep=""
        )
        print(i, tc.u64(1) << 40, (i, y), tc.vector([i, 2]), "a" * 2, sep=", ")
        print()


def test_print_writes_values_of_threads(capsys):
    x = np.array([10, 255], np.int32)
    launch(prints, x, 2.5, block=32)
    lines = capsys.readouterr().out.splitlines()
    blocks = [lines[k : k + 2] for k in range(0, len(lines), 2)]
    assert blocks == [
        ["thread 0 has 10 and 100% 2.5", "thread 1 has 255 and 100% 2.5"],
        ["000: a 2.500 2.5 0     0 [0, 1] {}|", "001: ff 2.500 2.5 1     1 [1, 1] {}|"],
        ["0, 1099511627776, (0, 2.5), [0 2], aa", "1, 1099511627776, (1, 2.5), [1 2], aa"],
        ["", ""],
    ]


@dataclass
class Pair:
    a: Any
    b: Any


@tc.kernel
def formats(y: tc.f32, n: tc.Const):
    i, width = tc.s32(tc.threadIdx.x) - 7, 9
    print(f"{i=} {i = } {i!r} {y!s:.1f} {n=:>4} {n!r:<3}|{None}")
    print(
        f"{y:8.3f}|{y:<8.3f}|{y:>8.3f}|{y:-8.3f}|{y:+8.3f}|{y: .1f}|{y:08.2f}|{y:{width}.{n}f}|{i:>{width}}|"
    )
    print(f"<{f'{i:4}'}>" + " " + f"{n}" + f"{f'{n}'}%{i}", "", sep="%", end=None)
    print((i,), {"a": i, "b": [y]}, str(i) + repr(y), sep=None, flush=True)
    print([(i, "%"), [[]]], Pair(1, i), [f"{n}", n], f"{[y, Pair(y, 'x')]:.2f}")


def test_formats_of_f_strings_are_those_of_python(capsys):
    launch(formats, 2.5, 3, block=1)
    y, i, n, width = 2.5, -7, 3, 9
    assert capsys.readouterr().out.splitlines() == [
        f"{i=} {i = } {i!r} {y:.1f} {n=:>4} {n!r:<3}|{None}",
        f"{y:8.3f}|{y:<8.3f}|{y:>8.3f}|{y:-8.3f}|{y:+8.3f}|{y: .1f}|{y:08.2f}|{y:{width}.{n}f}|{i:>{width}}|",
        f"<{i:4}> {n}{n}%{i}%",
        f"{(i,)} {{'a': -7, 'b': [2.5]}} -72.5",
        "[(-7, '%'), [[]]] Pair(a=1, b=-7) ['3', 3] [2.50, Pair(a=2.50, b='x')]",
    ]


# -- chains of branches ------------------------------------------------------------------------


def chain(links: int) -> Any:
    text = "".join(f"    elif i == {k}:\n        r = tc.u32({k})\n" for k in range(1, links))
    source = (
        "@tc.kernel\ndef kernel(x):\n    i = tc.threadIdx.x\n    r = tc.u32(0)\n"
        f"    if i == 0:\n        r = tc.u32(0)\n{text}    x[i] = r\n"
    )
    return execute_text(source, f"<chain of {links}>", {"tc": tc})["kernel"]


def test_long_chains_of_branches_run():
    out = np.zeros(32, np.uint32)
    chain(150).emulate[1, 32](out)
    assert (out == np.arange(32)).all()


@pytest.mark.parametrize("links", [400, 600])
def test_longer_chains_are_refused(links):
    with pytest.raises(CompileError, match=r"nest 201 deep; 200 are allowed") as error:
        chain(links).emulate[1, 32](np.zeros(32, np.uint32))
    assert error.value.loc is not None
