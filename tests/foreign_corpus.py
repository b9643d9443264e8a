"""Launches of the kernels in cuda_corpus.cu, with what NumPy gives."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import ptx

SOURCE = Path(__file__).parent / "cuda_corpus.cu"


@dataclass(frozen=True)
class Case:
    """A launch. wanted: the arrays that it changes, by the position of the argument; tolerance: relative."""

    arguments: Sequence[Any]
    wanted: dict[int, Any]
    grid: Any = 1
    block: Any = 32
    tolerance: float = 0.0


@cache
def module(arch: str) -> ptx.Module:
    """The kernels, by NVRTC."""
    return tc.ptx.from_cuda(SOURCE, arch, include=headers())


def headers() -> list[Path]:
    """Those of all packages; `mma.h` needs nvidia-cuda-crt."""
    return [Path(folder) / "include" for folder in import_module("nvidia.cu13").__path__]


def run(name: str, arch: str, checks: bool = True) -> None:
    """Launch a kernel and compare what it changes."""
    case = CASES[name]()
    arguments = [x.copy() if isinstance(x, np.ndarray) else x for x in case.arguments]
    module(arch)[name].emulator(checks=checks)[case.grid, case.block](*arguments)
    compared(case, arguments)


SYNCHRONISATION = re.compile(
    r"^\s*(bar\.sync|bar\.warp\.sync|barrier\.sync|cp\.async\.wait_group|wgmma\.wait_group|fence\.proxy|membar)[^;]*;",
    re.MULTILINE,
)


def without(text: str, name: str, nth: int) -> str:
    """PTX without the n-th synchronisation of a kernel."""
    start = text.index(f".entry {name}(")
    match = list(SYNCHRONISATION.finditer(text, start))[nth]
    return text[: match.start()] + "\n" + text[match.end() :]


def compared(case: Any, arguments: Sequence[Any]) -> None:
    """Compare the arrays of a launch with what is wanted of it, and others with what they were."""
    for place, x in enumerate(case.arguments):
        if not isinstance(x, np.ndarray):
            continue
        actual, wanted = np.asarray(arguments[place]), np.asarray(case.wanted.get(place, x))
        if case.tolerance and place in case.wanted:
            close = {"rtol": case.tolerance, "atol": case.tolerance}
            np.testing.assert_allclose(actual.astype(float), wanted.astype(float), **close)
        else:
            np.testing.assert_array_equal(actual, wanted)


def numbers(n: int, dtype: Any = np.int32, low: int = 0, high: int = 100) -> np.ndarray:
    return np.random.default_rng(n).integers(low, high, n).astype(dtype)


def reals(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def zeros(n: Any, dtype: Any = np.int32) -> np.ndarray:
    return np.zeros(n, dtype)


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


@case
def called() -> Case:
    x, t = reals(64), np.arange(64)
    y = [sum(float(v) ** i / math.factorial(i) for i in range(n & 7)) for v, n in zip(x, t, strict=True)]
    return Case([x, zeros(64, np.float32)], {1: np.array(y)}, block=64, tolerance=1e-6)


@case
def structs() -> Case:
    x = numbers(32)
    return Case([x, zeros(32, np.float64)], {1: np.arange(32) * 1000.0 + x})


@case
def by_address() -> Case:
    t = np.arange(32)
    own, other = t + (t & 7), 63 - t
    y = np.stack([own, own + 1, 100 * (other // 2) + other % 2, t + 3], 1)
    return Case([zeros(128)], {0: y.ravel()})


@case
def either_space() -> Case:
    x, i = numbers(32), np.arange(32)
    y = np.where(x & 1, -x[31 - i], x[31 - i])
    shared = int((x & 2 > 0).sum())
    return Case([x, zeros(34)], {1: [*y, 32 - shared, -x[0] + shared]})


@case
def cases() -> Case:
    x = numbers(256, high=10000)

    def one(v: int) -> int:
        bits = f"{v:032b}"
        choices = [
            v * 3,
            v.bit_count(),
            v ^ 0x55,
            32 - v.bit_length(),
            v // 7,
            v - 1000,
            int(bits[::-1], 2),
            -v,
        ]
        return (choices + [v << 3])[v % 9]

    y = np.array([one(int(v)) for v in x]).astype(np.uint32).astype(np.int32)
    return Case([x, zeros(256)], {1: y}, block=256)


@case
def variables() -> Case:
    table, steps, t = np.array([0.5, -1, 2, 3, 4, 5, 6, 7.25]) * 2, np.array([-1, 2, -3, 4]), np.arange(32)
    module("sm_90a").memory("table").view(np.float32)[:] = table / 2
    return Case([zeros(32, np.float32)], {0: table[t & 7] + steps[t & 3]})


@case
def printing() -> Case:
    return Case([numbers(32)], {})


@case
def warp_sum() -> Case:
    x = numbers(1000, np.float32)
    return Case([x, zeros(1, np.float32), 1000], {1: x.sum()}, 4, 256)


@case
def tiles() -> Case:
    x = numbers(128)
    return Case([x, zeros(16)], {1: x.reshape(16, 8).sum(1)}, block=128)


@case
def reduced() -> Case:
    x = numbers(64).reshape(2, 32)
    before = np.cumsum(x, 1) - x
    y = x.sum(1, keepdims=True) * 10000 + x.max(1, keepdims=True) * 100 + before
    return Case([x.ravel(), zeros(64)], {1: y.ravel()}, block=64)


@case
def active_lanes() -> Case:
    x = numbers(32)
    some = x % 3 == 0
    y = np.where(some, x[np.argmax(some)], 0)
    return Case([x, zeros(33)], {1: [some.sum(), *y]})


@case
def matches() -> Case:
    x = numbers(32, high=6)
    same = [sum(1 << j for j in range(32) if x[j] == v) for v in x]
    y = (np.array(same, np.uint64) + np.uint64((x == 3).any() + x.sum())).astype(np.uint32)
    return Case([x, zeros(32, np.uint32)], {1: y})


@case
def copied_by_group() -> Case:
    x = reals(512)
    return Case([x, zeros(512, np.float32)], {1: x.reshape(2, 256)[:, ::-1].ravel()}, 2, 256)


@case
def last_block() -> Case:
    x = numbers(1024, np.float32)
    blocks = x.reshape(8, 128).sum(1)
    arguments = [x, zeros(8, np.float32), zeros(1, np.uint32), zeros(1, np.float32)]
    return Case(arguments, {1: blocks, 3: x.sum()}, 8, 128)


@case
def all_atomics() -> Case:
    t, start = np.arange(64), np.zeros(12, np.int32)
    start[4] = -1
    xor = int(np.bitwise_xor.reduce(t))
    a = [t.sum(), -t.sum(), -63, 63, 0, -1, xor, 128, 64, 128, 17, 0]
    arguments = [start, zeros(2, np.uint64), zeros(1, np.float32), zeros(1, np.float64)]
    return Case(arguments, {0: a, 1: [64 << 33, 63 * 7], 2: 32.0, 3: 16.0}, block=64)


@case
def standard_atomics() -> Case:
    return Case([zeros(1), zeros(128, np.uint32)], {0: 128, 1: np.full(128, 63 * 3 + 1)}, 2, 64)


@case
def locked() -> Case:
    return Case([zeros(1), np.ones(1, np.int32)], {1: 2**9 - 1}, 8)


@case
def barrier_phases() -> Case:
    x = numbers(128)
    v = x.copy()
    for _ in range(3):
        v = (v + np.roll(v, -1)) * 2
    return Case([x, zeros(128)], {1: v}, block=128)


@case
def copied_by_barrier() -> Case:
    x = reals(256)
    return Case([x, zeros(256, np.float32)], {1: x[::-1]}, block=64)


@case
def pipelined() -> Case:
    x = numbers(640, np.float32)
    return Case([x, zeros(128, np.float32), 5], {1: x.reshape(5, 128)[:, ::-1].sum(0)}, block=128)


@case
def thread_pipeline() -> Case:
    x = numbers(320)
    return Case([x, zeros(64), 5], {1: x.reshape(5, 64).sum(0)}, block=64)


@case
def complexes() -> Case:
    x = reals(32, 2)
    z = x[:, 0] + 1j * x[:, 1].astype(float)
    z = z * z + (1 - 1j) / z
    return Case([x, zeros((32, 2), np.float32)], {1: np.stack([z.real, z.imag], 1)}, tolerance=1e-5)


@case
def block_sum() -> Case:
    x = numbers(512)
    return Case([x, zeros(4)], {1: x.reshape(4, 128).sum(1)}, 4, 128)


@case
def block_prefix() -> Case:
    x = numbers(512)
    return Case([x, zeros(512)], {1: np.cumsum(x)}, block=128)


@case
def block_sort() -> Case:
    x = numbers(256, np.uint32, high=1 << 32)
    return Case([x, zeros(256, np.uint32)], {1: np.sort(x)}, block=64)


@case
def wmma_product() -> Case:
    a, b = reals(32, 48, dtype=np.float16), reals(48, 64, dtype=np.float16)
    wanted = 0.5 * a.astype(float) @ b.astype(float)
    return Case([a, b, zeros((32, 64), np.float32), 64, 48], {2: wanted}, (4, 2), tolerance=1e-5)


@case
def wmma_shared() -> Case:
    a, b = numbers(256, np.int8, -100).reshape(16, 16), numbers(256, np.int8, -99).reshape(16, 16)
    return Case([a, b, zeros((16, 16))], {2: a.astype(int) @ b.T.astype(int) + 3})


@case
def tiled_product() -> Case:
    a, b = reals(64, 64), reals(64, 64)[::-1].copy()
    return Case([a, b, zeros((64, 64), np.float32), 64], {2: a.astype(float) @ b}, (4, 4), (16, 16), 1e-4)


@case
def mma_product() -> Case:
    a, b = reals(32, 96, dtype=np.float16), reals(24, 96, dtype=np.float16)
    wanted = a.astype(float) @ b.T.astype(float)
    return Case([a, b, zeros((32, 24), np.float32), 24, 96], {2: wanted}, (3, 2), tolerance=1e-4)


@case
def integers() -> Case:
    x = numbers(32, low=-(1 << 31), high=1 << 31)

    def word(v: int) -> int:
        return ((v + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)

    def halves(v: int) -> list[int]:
        return [((v >> s & 0xFFFF) ^ 0x8000) - 0x8000 for s in (0, 16)]

    def octets(v: int) -> list[int]:
        return [((v >> s & 0xFF) ^ 0x80) - 0x80 for s in (0, 8, 16, 24)]

    def one(v: int, w: int) -> int:
        wide = v * w
        u = v & 0xFFFFFFFF
        clip = [max(-32768, min(32767, p + q)) & 0xFFFF for p, q in zip(halves(v), halves(w), strict=True)]
        dot = 3 + sum(p * q for p, q in zip(octets(v), octets(w), strict=True))
        rest = abs(wide) % 7 * (1 if wide > 0 else -1)
        parts = [v, rest, wide >> 32, (u & 0xFFFF) | (w & 0xFFFF) << 16]
        parts += [((w & 0xFFFFFFFF) << 5 | u >> 27) & 0xFFFFFFFF, word(abs(v)), min(v, w), u // 10]
        parts += [abs(v - w) + 1 & 0xFFFFFFFF, clip[0] | clip[1] << 16, word(dot), v >> 3]
        return sum(parts)

    y = [one(int(v), int(w) | 1) for v, w in zip(x, np.roll(x, -1), strict=True)]
    return Case([x, zeros(32, np.int64)], {1: y})


@case
def half_functions() -> Case:
    x = reals(32, dtype=np.float16)
    v = x.astype(float)
    return Case(
        [x, zeros(32, np.float16)], {1: (np.sqrt(abs(v)) + np.maximum(v, 0.25)) * np.exp(v)}, tolerance=4e-3
    )


@case
def narrow_floats() -> Case:
    x = reals(32)
    kinds = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
    a, b, c = (x.astype(kind).astype(np.float32) for kind in kinds)
    return Case([x, zeros((32, 3), np.float32)], {1: np.stack([a, b, (c * c).astype(kinds[2])], 1)})


@case
def double_functions() -> Case:
    x = np.abs(reals(32, dtype=np.float64))
    y = [
        math.sin(v)
        + math.exp(-v) * v ** (1 / 3)
        + v**1.3
        + math.atan2(v, 2)
        + math.fmod(v, 0.7)
        + math.erf(v)
        + math.lgamma(v + 1)
        for v in x.tolist()
    ]
    return Case([x, zeros(32, np.float64)], {1: np.array(y)}, tolerance=1e-14)


@case
def float_functions() -> Case:
    x = np.abs(reals(32)) + np.float32(0.1)
    y = [
        math.erf(v) + v ** (1 / 3) + math.fmod(v, float(np.float32(0.3))) + v**-0.5 + math.log1p(v) + math.sinh(v)
        + math.floor(v * 3 + 0.5) + 8 * v + math.sin(v) + v / 3 + math.atan(v) + 0.5 * math.erfc(-v / 2**0.5) + math.gamma(v + 1)
        for v in x.tolist()
    ]  # fmt: skip
    return Case([x, zeros(32, np.float32)], {1: np.array(y)}, tolerance=2e-6)


@case
def random_numbers() -> Case:
    c = [np.arange(128, dtype=np.uint64), *(np.zeros(128, np.uint64) for _ in range(3))]
    k0, k1, low = 1234, 0, np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        high0, high1 = p0 >> np.uint64(32), p1 >> np.uint64(32)
        c = [high1 ^ c[1] ^ np.uint64(k0), p1 & low, high0 ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    y = (c[0] ^ c[1] ^ c[2] ^ c[3]).astype(np.uint32)
    return Case([zeros(128, np.uint32), 1234], {0: y}, 2, 64)
