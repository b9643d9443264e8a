"""Products of warpgroups that follow each other, which the interpreter computes as one."""

from __future__ import annotations

import linecache
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Uninitialised
from tensorcore_dsl.numerics.products import Product, matmul

RNG = np.random.default_rng(23)
N, STEPS = 32, 4
KINDS: dict[str, tuple[Any, int]] = {  # of elements, and how many of them a product takes along K
    "f16": (np.float16, 16), "bf16": (ml_dtypes.bfloat16, 16), "tf32": (np.float32, 8),
    "e4m3": (ml_dtypes.float8_e4m3fn, 32), "e5m2": (ml_dtypes.float8_e5m2, 32),
    "s8": (np.int8, 32), "u8": (np.uint8, 32),
}  # fmt: skip
CASES = [
    ("f16", "f16"),
    ("f16", "f32"),
    ("bf16", "f32"),
    ("tf32", "f32"),
    ("e4m3", "f16"),
    ("e4m3", "f32"),
    ("e5m2", "f32"),
    ("s8", "s32"),
    ("u8", "s32"),
]


@pytest.fixture(autouse=True)
def like_the_library(monkeypatch):
    """Its kernels run without a search for races, which takes each product alone."""
    monkeypatch.setattr(type(chained.emulator("sm_90a")), "_checks_indices", lambda self: False)


@tc.kernel
def chained(
    a,
    b,
    c,
    d,
    kind: tc.Const = "",
    into: tc.Const = "",
    k: tc.Const = 0,
    keep: tc.Const = True,
    major: tc.Const = "k",
    satfinite: tc.Const = False,
    gap: tc.Const = 0,
):
    """D = A B + C by as many products as K needs. gap: the row of A that nobody writes in part."""
    tc.launch_bounds(128)
    depth, element = 4 * k, getattr(tc, kind)
    shape = getattr(tc.wgmma, f"m64n32k{k}")
    mma = shape(element, element, getattr(tc, into), **({"satfinite": True} if satfinite else {}))
    tile_a = tc.shared((64, depth), element, swizzle=128)
    shape_b = (1, depth, 32) if major == "mn" else (32, depth)
    tile_b = tc.shared(shape_b, element, swizzle=64 if major == "mn" else 128)
    t = tc.threadIdx.x
    for i in tc.range(t, 64 * depth, 128):
        if gap == 0 or i // depth != gap or i % depth < depth // 2:
            tile_a[i // depth, i % depth] = a[i // depth, i % depth]
    for i in tc.range(t, 32 * depth, 128):
        if major == "mn":
            tile_b[0, i // 32, i % 32] = b[i // 32, i % 32]
        else:
            tile_b[i // depth, i % depth] = b[i // depth, i % depth]
    tc.fence_proxy_async()
    tc.barrier()
    acc = mma.d.zeros()
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        acc[i] = c[row, col]
    tc.wgmma_fence()
    acc = tc.wgmma_async(mma, acc, tile_a, tile_b, accumulate=keep, b_major=major)
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]


def numbers(shape: tuple[int, ...], kind: str, wild: bool) -> np.ndarray:
    """Random elements; wild ones have all exponents, infinities and NaN."""
    dtype = np.dtype(KINDS[kind][0])
    if wild or dtype.kind in "iu":
        bits = RNG.integers(0, 1 << 8 * dtype.itemsize, shape, np.uint64)
        elements = bits.astype(f"u{dtype.itemsize}").view(dtype)
    else:
        elements = RNG.standard_normal(shape).astype(dtype)
    if kind == "tf32":
        elements = (elements.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return elements


def bits_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def one_by_one(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: str, into: str, satfinite: bool = False
) -> np.ndarray:
    """The bits of A B + C by products of one instruction each."""
    k = KINDS[kind][1]
    product = Product("wgmma", 64, N, k, kind, kind, into, into, satfinite=satfinite)
    acc = bits_of(c)[None]
    for start in range(0, a.shape[1], k):
        some = slice(start, start + k)
        acc = matmul(product, "sm_90a", bits_of(a[:, some])[None], bits_of(b[some])[None], acc)
    return acc[0]


def run(a: np.ndarray, b: np.ndarray, c: np.ndarray, **constants: Any) -> np.ndarray:
    d = np.zeros_like(c)
    second = b if constants.get("major") == "mn" else np.ascontiguousarray(b.T)
    k = KINDS[constants["kind"]][1]
    chained.emulator("sm_90a")[1, 128](a, second, c, d, k=k, **constants)
    return d


def operands(kind: str, into: str, wild: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    depth = KINDS[kind][1] * STEPS
    result = {"f16": np.float16, "f32": np.float32, "s32": np.int32}[into]
    c = (100 * RNG.standard_normal((64, N))).astype(result)
    return numbers((64, depth), kind, wild), numbers((depth, N), kind, wild), c


@pytest.mark.parametrize("wild", [False, True], ids=["plain", "wild"])
@pytest.mark.parametrize("kind, into", CASES)
def test_chains_have_the_bits_of_single_steps(kind, into, wild):
    a, b, c = operands(kind, into, wild)
    wanted = one_by_one(a, b, c, kind, into)
    assert np.array_equal(bits_of(run(a, b, c, kind=kind, into=into)), wanted)


def test_some_lanes_are_wild():
    """A chain that is not exact in vectors is computed again as a whole, from the same C."""
    a, b, c = operands("bf16", "f32", False)
    a[5, 40], b[60, 7] = 3e38, 3e38
    wanted = one_by_one(a, b, c, "bf16", "f32")
    assert np.isinf(wanted.view(np.float32)).any()
    assert np.array_equal(bits_of(run(a, b, c, kind="bf16", into="f32")), wanted)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_chains_read_mn_major_b(kind):
    a, b, c = operands(kind, "f32", False)
    wanted = one_by_one(a, b, c, kind, "f32")
    assert np.array_equal(bits_of(run(a, b, c, kind=kind, into="f32", major="mn")), wanted)


def test_chains_without_c_start_at_zero():
    a, b, c = operands("bf16", "f32", False)
    wanted = one_by_one(a, b, np.zeros_like(c), "bf16", "f32")
    assert np.array_equal(bits_of(run(a, b, c, kind="bf16", into="f32", keep=False)), wanted)


def test_each_product_saturates():
    """Between two products, not only at the end."""
    a, b = np.full((64, 128), -128, np.int8), np.full((128, N), -128, np.int8)
    a[:, 64:] = 127
    c = np.full((64, N), (1 << 31) - 1000, np.int32)
    wanted = one_by_one(a, b, c, "s8", "s32", satfinite=True)
    actual = run(a, b, c, kind="s8", into="s32", satfinite=True)
    assert np.array_equal(bits_of(actual), wanted)
    wrapped = c + a.astype(np.int64) @ b
    assert (actual != np.clip(wrapped, -(1 << 31), (1 << 31) - 1)).all()


def test_the_product_that_reads_what_nobody_wrote():
    a, b, c = operands("bf16", "f32", False)
    with pytest.raises(Uninitialised, match="wgmma .*nothing has written byte 0x290") as error:
        run(a, b, c, kind="bf16", into="f32", gap=5)
    assert isinstance(error.value, EmulationError)


TURNS = 7


@tc.kernel
def in_turns(a, b, d, first: tc.s32):
    """Two warpgroups add up products of two stages; each forgets in a turn of its own."""
    tc.launch_bounds(256)
    mma = tc.wgmma.m64n32k32(tc.s8, tc.s8, tc.s32)
    tile_a = tc.shared((2, 2, 64, 128), tc.s8, swizzle=128)
    tile_b = tc.shared((2, 32, 128), tc.s8, swizzle=128)
    t = tc.threadIdx.x
    group = t // 128
    for i in tc.range(t, 2 * 128 * 128, 256):
        tile_a[i // 16384, i // 8192 % 2, i // 128 % 64, i % 128] = a[i // 128, i % 128]
    for i in tc.range(t, 2 * 32 * 128, 256):
        tile_b[i // 4096, i // 128 % 32, i % 128] = b[i // 128, i % 128]
    tc.fence_proxy_async()
    tc.barrier()
    acc = mma.d.zeros()
    for turn in tc.range(TURNS):
        tc.wgmma_fence()
        left, right = tile_a[turn % 2, group], tile_b[turn % 2]
        acc = tc.wgmma_async(mma, acc, left, right, accumulate=turn != first + group)
        tc.wgmma_commit()
        tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[64 * group + row, col] = acc[i]


@pytest.mark.parametrize("first", [-2, 0, 1, 4, 5])
def test_products_of_the_same_stages_in_turns(first):
    """What is kept for the descriptors of a stage says nothing about who keeps C."""
    a, b = numbers((2, 128, 128), "s8", True), numbers((2, 32, 128), "s8", True)
    d = np.zeros((128, 32), np.int32)
    in_turns.emulator("sm_90a")[1, 256](a.reshape(256, 128), b.reshape(64, 128), d, first)
    products = a.astype(np.int32) @ b.astype(np.int32).transpose(0, 2, 1)
    for group in range(2):
        begin = max(first + group, 0)
        wanted = sum(products[turn % 2] for turn in range(begin, TURNS))
        rows = slice(64 * group, 64 * group + 64)
        assert np.array_equal(d[rows], np.asarray(wanted)[rows])


@tc.kernel
def halves(a, b, d, first: tc.s32, gap: tc.Const = -1, early: tc.Const = ""):
    """One warpgroup computes two halves with the same B; each forgets in a turn of its own."""
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n32k32(tc.s8, tc.s8, tc.s32)
    tile_a = tc.shared((2, 2, 64, 128), tc.s8, swizzle=128)
    tile_b = tc.shared((2, 32, 128), tc.s8, swizzle=128)
    t = tc.threadIdx.x
    for i in tc.range(t, 2 * 128 * 128, 128):
        if i // 128 != gap:
            tile_a[i // 16384, i // 8192 % 2, i // 128 % 64, i % 128] = a[i // 128, i % 128]
    for i in tc.range(t, 2 * 32 * 128, 128):
        tile_b[i // 4096, i // 128 % 32, i % 128] = b[i // 128, i % 128]
    tc.fence_proxy_async()
    tc.barrier()
    upper, lower = mma.d.zeros(), mma.d.zeros()
    for turn in tc.range(TURNS):
        tc.wgmma_fence()
        keep_upper, keep_lower = turn != first, turn != first + 1
        upper = tc.wgmma_async(mma, upper, tile_a[turn % 2, 0], tile_b[turn % 2], accumulate=keep_upper)
        lower = tc.wgmma_async(mma, lower, tile_a[turn % 2, 1], tile_b[turn % 2], accumulate=keep_lower)
        tc.wgmma_commit()
        if early == "registers":
            lower[0] = tc.s32(1)
        if early == "memory":
            tile_a[0, 1, 5, t] = tc.s8(0)
        tc.wgmma_wait(0)
    for i in tc.static_range(len(upper)):
        row, col = upper.coordinates(i)
        d[row, col] = upper[i]
        d[64 + row, col] = lower[i]


def run_halves(first: int, **constants: Any) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel finds, and the products of each turn."""
    a, b = numbers((2, 128, 128), "s8", True), numbers((2, 32, 128), "s8", True)
    d = np.zeros((128, 32), np.int32)
    halves.emulator("sm_90a")[1, 128](a.reshape(256, 128), b.reshape(64, 128), d, first, **constants)
    return d, a.astype(np.int32) @ b.astype(np.int32).transpose(0, 2, 1)


@pytest.mark.parametrize("first", [-2, -1, 0, 1, 4, 6])
def test_products_with_the_same_b(first):
    d, products = run_halves(first)
    for half in range(2):
        begin = max(first + half, 0) if first + half < TURNS else 0
        wanted = sum(products[turn % 2] for turn in range(begin, TURNS))
        rows = slice(64 * half, 64 * half + 64)
        assert np.array_equal(d[rows], np.asarray(wanted)[rows])


@pytest.mark.parametrize("row, half", [(5, "upper"), (64 + 5, "lower"), (192 + 5, "lower")])
def test_the_half_that_reads_what_nobody_wrote(row, half):
    with pytest.raises(Uninitialised, match="nothing has written byte") as error:
        run_halves(-2, gap=row)
    assert statement_at(error.value.loc).startswith(f"{half} = tc.wgmma_async")


@pytest.mark.parametrize("early", ["registers", "memory"])
def test_the_half_that_is_in_flight(early):
    """In a second launch, too, which finds what the first one has kept."""
    words = {"registers": "uses registers that the wgmma", "memory": "still read by a wgmma"}
    for _ in range(2):
        with pytest.raises(EmulationError, match=words[early]) as error:
            run_halves(-2, early=early)
        text = str(error.value)
        number = int(re.search(r"test_chained_products\.py:(\d+)", text.split("wgmma", 1)[1])[1])  # type: ignore[index]
        assert linecache.getline(__file__, number).strip().startswith("lower = tc.wgmma_async")


@tc.kernel
def mistakes(out, gap: tc.Const = 64, touched: tc.Const = False, apart: tc.Const = 0):
    """Two products with results of their own. gap: the row of A that nobody writes; touched: no
    fence behind the second result; apart: the second A of half of the threads, in bytes."""
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n8k32(tc.s8, tc.s8, tc.s32)
    tile_a, tile_b = tc.shared((64, 128), tc.s8, swizzle=128), tc.shared((8, 128), tc.s8, swizzle=128)
    t = tc.threadIdx.x
    for row in tc.range(64):
        if row != gap:
            tile_a[row, t] = tc.s8(1)
    for row in tc.range(8):
        tile_b[row, t] = tc.s8(1)
    tc.fence_proxy_async()
    tc.barrier()
    upper, lower = mma.d.zeros(), mma.d.zeros()
    tc.wgmma_fence()
    if touched:
        lower = mma.d.zeros()
    left, right = tile_a.address >> 4, tile_b.address >> 4
    upper = mma(upper, descriptor(left), descriptor(right), True)
    lower = mma(lower, descriptor(left + t // 64 * (apart // 16)), descriptor(right), True)
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    out[t] = upper[0] + lower[0]


def descriptor(start: Any) -> Any:
    return tc.emit("mov.b64.pack", (start & 0x3FFF).bits(tc.b32), tc.u32(1024 // 16 | 1 << 30))


def test_no_mistake():
    out = np.zeros(128, np.int32)
    mistakes.emulator("sm_90a")[1, 128](out)
    assert (out == 64).all()


@pytest.mark.parametrize(
    "constants, kind, words, half",
    [
        (dict(touched=True), EmulationError, "did not fence since", "lower"),
        (dict(apart=1024), EmulationError, "desc_a differs within a warpgroup", "lower"),
        (dict(gap=5, touched=True), Uninitialised, "nothing has written", "upper"),
        (dict(gap=5, apart=1024), Uninitialised, "nothing has written", "upper"),
    ],
)
def test_the_first_of_two_mistakes(constants, kind, words, half):
    with pytest.raises(kind, match=words) as error:
        mistakes.emulator("sm_90a")[1, 128](np.zeros(128, np.int32), **constants)
    assert statement_at(error.value.loc).startswith(f"{half} = mma")  # type: ignore[attr-defined]


def statement_at(loc: Any) -> str:
    return linecache.getline(loc.filename, loc.line).strip()


def test_the_first_tile_by_the_number_of_a_role():
    """The number is that of the warpgroup minus 1, so the constant of the address is negative."""
    mma = tc.wgmma.m64n128k16(tc.bf16, tc.bf16, tc.f32)

    @tc.kernel(threads=384)
    def kernel(a, b, d):
        of_b = tc.shared((2, 2, 16, 64), tc.bf16, swizzle=128)
        of_a = tc.shared((2, 64, 64), tc.bf16, swizzle=128)
        for part in tc.static_range(2):
            for i in tc.range(tc.threadIdx.x, 64 * 16, 384):
                of_a[part, i // 16, i % 16] = a[i // 16, i % 16]
            for i in tc.range(tc.threadIdx.x, 16 * 128, 384):
                of_b[part, i % 128 // 64, i // 128, i % 64] = b[i // 128, i % 128]
        tc.fence_proxy_async()
        tc.barrier()

        def idle():
            pass

        def multiply(number):
            acc = mma.d.zeros()
            tc.wgmma_fence()
            acc = tc.wgmma_async(mma, acc, of_a[number, :, :16], of_b[number], b_major="mn")
            tc.wgmma_commit()
            tc.wgmma_wait(0)
            tc.store_elements(d, acc, origin=(64 * number, 0))

        tc.warp_specialize((1, idle), (2, multiply))

    a, b = (RNG.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((64, 16), (16, 128)))
    d = np.zeros((128, 128), np.float32)
    kernel.emulator("sm_90a")[1, 384](a, b, d)
    assert np.array_equal(d, np.tile(np.float32(a) @ np.float32(b), (2, 1)))
