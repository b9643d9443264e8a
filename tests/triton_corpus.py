"""Launches of the kernels in triton_kernels.py, with what NumPy gives."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import tensorcore_dsl as tc
from tests import triton_kernels as kernels
from tests.foreign_corpus import compared, numbers, reals, zeros

BF16, E5M2, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn


@dataclass(frozen=True)
class Case:
    """A launch. wanted: the arrays that it changes, by the position of the argument; tolerance: relative;
    boxes: of tensor descriptors."""

    kernel: Any
    grid: Any
    arguments: Sequence[Any]
    wanted: dict[int, Any]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    boxes: Mapping[int, Any] = field(default_factory=dict)


def run(name: str, arch: str, checks: bool = True) -> None:
    """Launch a kernel and compare what it changes."""
    case = CASES[name]()
    arguments = [x.copy() if isinstance(x, np.ndarray) else x for x in case.arguments]
    kernel = tc.ptx.from_triton(case.kernel, case.sizes, arch=arch, **case.options)
    with warnings.catch_warnings():  # several lanes write the same value to one place
        warnings.simplefilter("ignore", tc.RaceWarning)
        boxes = {i: tc.ptx.tensor_map(arguments[i], box) for i, box in case.boxes.items()}
        kernel.emulator(checks=checks)[case.grid](*(boxes.get(i, x) for i, x in enumerate(arguments)))
    compared(case, arguments)


def softmax_of(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def attention_of(q: Any, k: Any, v: Any, scale: float, causal: bool) -> np.ndarray:
    q, k, v = (x.astype(float) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * scale * math.log(2)
    if causal:
        scores[..., np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
    return np.asarray(softmax_of(scores) @ v)


def product(kernel: Any, a: Any, b: Any, out: Any, grid: Any, sizes: Any, **options: Any) -> Case:
    """A product whose kernel takes M, N and K; b lies transposed for some."""
    wanted = a.astype(float) @ b.astype(float)
    M, K = a.shape
    return Case(
        kernel,
        grid,
        [a, b, out, M, b.shape[1], K],
        {2: wanted},
        sizes,
        5e-2 if a.itemsize == 4 else 5e-3,
        options,
    )


def rows(n: int, kind: Any = np.float32) -> np.ndarray:
    return reals(5, n, dtype=kind)


def _softmax() -> Case:
    x = rows(300)
    return Case(
        kernels.softmax, 5, [zeros((5, 300), np.float32), x, 300], {0: softmax_of(x)}, {"BLOCK": 512}, 1e-6
    )


def _layernorm() -> Case:
    x, w, b = rows(300, np.float16), reals(300), reals(300)[::-1].copy()
    v = x.astype(float)
    y = (v - v.mean(1, keepdims=True)) / np.sqrt(v.var(1, keepdims=True) + 1e-5) * w + b
    arguments = [zeros((5, 300), np.float16), x, w, b, 300, 1e-5]
    return Case(kernels.layernorm, 5, arguments, {0: y}, {"BLOCK": 512}, 2e-3)


def _dropout() -> Case:
    """The random numbers are those of Philox 4x32-10."""
    n, p, seed = 512, 0.4, 1234
    c, key = [np.arange(n, dtype=np.uint64), *(np.zeros(n, np.uint64) for _ in range(3))], [seed, 0]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            p1 >> np.uint64(32) ^ c[1] ^ np.uint64(key[0]),
            p1 & low,
            p0 >> np.uint64(32) ^ c[3] ^ np.uint64(key[1]),
            p0 & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    bits = c[0].astype(np.uint32).view(np.int32)
    uniform = np.where(bits < 0, -bits.astype(np.int64) - 1, bits) * 4.6566127342e-10
    x = reals(n)
    return Case(
        kernels.dropout,
        2,
        [zeros(n, np.float32), x, p, seed],
        {0: np.where(uniform > p, x / 0.6, 0)},
        {"BLOCK": 256},
        1e-6,
    )


def _transpose() -> Case:
    x = numbers(70 * 90).reshape(70, 90)
    return Case(kernels.transpose, (2, 2), [zeros((90, 70)), x, 70, 90], {0: x.T}, {"BLOCK": 64})


def _extremes() -> Case:
    x = rows(200)
    wanted = {0: x.argmin(1), 1: x.argmax(1)}
    return Case(kernels.extremes, 5, [zeros(5), zeros(5), x, 200], wanted, {"BLOCK": 256})


def _split_k() -> Case:
    a, b = (
        numbers(n, np.float16, -8, 8).reshape(shape)
        for n, shape in ((64 * 128, (64, 128)), (128 * 64, (128, 64)))
    )
    wanted = a.astype(float) @ b.astype(float)
    return Case(
        kernels.split_k,
        (2, 1, 4),
        [a, b, zeros((64, 64), np.float32), 64, 128],
        {2: wanted},
        {"BM": 32, "BN": 64, "BK": 32},
    )


def _int8() -> Case:
    a, b = (
        numbers(64 * 128, np.int8, -128, 128).reshape(64, 128),
        numbers(128 * 96, np.int8, -128, 128).reshape(96, 128),
    )
    arguments = [a, b, zeros((64, 96)), 96, 128]
    return Case(
        kernels.int8_matmul,
        3,
        arguments,
        {2: a.astype(int) @ b.T.astype(int)},
        {"BM": 64, "BN": 32, "BK": 64},
    )


def _attention(causal: bool) -> Case:
    kind = BF16 if causal else np.float16
    q, k, v = (reals(2, 256, 64, dtype=kind) * kind(0.5 + i) for i in range(3))
    sizes = {"BM": 128, "BN": 64, "D": 64}
    if causal:
        wanted = attention_of(q, k, v, 0.18, True)
        return Case(
            kernels.causal_attention,
            (2, 2),
            [q, k, v, zeros(q.shape, BF16), 256, 0.18],
            {3: wanted},
            sizes,
            3e-2,
        )
    q, k, v = q[0], k[0], v[0]
    wanted = attention_of(q, k, v, 0.18, False)
    return Case(
        kernels.attention, 2, [q, k, v, zeros(q.shape, np.float32), 256, 0.18], {3: wanted}, sizes, 2e-3
    )


def _cross_entropy() -> Case:
    x, labels = rows(300), numbers(5)
    wanted = np.log(np.exp(x.astype(float)).sum(1)) - x[np.arange(5), labels]
    return Case(
        kernels.cross_entropy, 5, [zeros(5, np.float32), x, labels, 300], {0: wanted}, {"BLOCK": 512}, 1e-5
    )


def _gelu() -> Case:
    x = reals(512)
    y = [0.5 * v * (1 + math.erf(v * 0.5**0.5)) for v in x.tolist()]
    return Case(kernels.gelu, 2, [zeros(512, np.float32), x], {0: np.array(y)}, {"BLOCK": 256}, 1e-6)


def _swiglu() -> Case:
    x, y = reals(512, dtype=BF16), reals(511, dtype=BF16)
    y = np.append(y, BF16(1))
    wanted = x.astype(float) / (1 + np.exp(-x.astype(float))) * y.astype(float)
    return Case(kernels.swiglu, 2, [zeros(512, BF16), x, y], {0: wanted}, {"BLOCK": 256}, 1e-2)


def _quantise() -> Case:
    x = rows(200)
    scale = abs(x).max(1) / np.float32(127)
    wanted = np.trunc(x / scale[:, None] + np.where(x >= 0, 0.5, -0.5)).astype(np.int8)
    arguments = [zeros(x.shape, np.int8), zeros(5, np.float32), x, 200]
    return Case(kernels.quantise, 5, arguments, {0: wanted, 1: scale}, {"BLOCK": 256}, 1e-6)


def _simple(kernel: Any, x: Any, wanted: Any, *more: Any, tolerance: float = 0.0, **sizes: Any) -> Case:
    out = zeros(np.shape(wanted), np.asarray(wanted).dtype)
    return Case(kernel, 1, [out, x, *more], {0: wanted}, sizes or {"N": len(x)}, tolerance)


def _popcounts() -> Case:
    x = numbers(256, low=0, high=1 << 31)
    return _simple(
        kernels.popcounts, x, np.array([int(v).bit_count() + v // 4 for v in x.tolist()], np.int32)
    )


def _fp8(kind: Any) -> Case:
    a, b = reals(64, 128).astype(kind), reals(64, 127).astype(kind)
    b = np.concatenate([b, a[:, :1]], 1)
    wanted = a.astype(float) @ b.T.astype(float)
    arguments = [a, b, zeros((64, 64), np.float32), 64, 128]
    return Case(kernels.fp8_product, (1, 1), arguments, {2: wanted}, {"BM": 64, "BN": 64, "BK": 64}, 2e-2)


def _described() -> Case:
    a, b = reals(256, 192, dtype=np.float16), reals(192, 128, dtype=np.float16)
    c = zeros((256, 128), np.float16)
    sizes, boxes = {"BM": 128, "BN": 128, "BK": 64}, {0: (128, 64), 1: (64, 128), 2: (128, 128)}
    wanted, options = {2: a.astype(float) @ b.astype(float)}, {"num_warps": 8}
    return Case(kernels.described_matmul, (2, 1), [a, b, c, 192], wanted, sizes, 1e-2, options, boxes)


def _matmul(kind: Any) -> Case:
    a, b = reals(192, 96, dtype=kind), reals(96, 160, dtype=kind)
    out, sizes = zeros((192, 160), np.float32), {"BM": 64, "BN": 64, "BK": 32}
    return product(kernels.matmul, a, b, out, (3, 3), sizes, num_stages=3)


def _grouped() -> Case:
    a, b = reals(200, 96, dtype=np.float16), reals(96, 160, dtype=np.float16)
    sizes = {"BM": 64, "BN": 64, "BK": 32, "G": 2}
    made = product(kernels.grouped_matmul, a, b, zeros((200, 160), np.float16), 12, sizes)
    made.wanted[2] = np.where(made.wanted[2] >= 0, made.wanted[2], 0.01 * made.wanted[2])
    return made


def _histogram() -> Case:
    x = numbers(1000)
    return Case(
        kernels.histogram, 4, [x, zeros(16), 1000], {1: np.bincount(x % 16, minlength=16)}, {"BLOCK": 256}
    )


CASES: dict[str, Callable[[], Case]] = {
    "softmax": _softmax,
    "layernorm": _layernorm,
    "dropout": _dropout,
    "transpose": _transpose,
    "prefix sums": lambda: _simple(kernels.prefix_sums, numbers(512), np.cumsum(numbers(512), dtype=np.int32)),
    "sort": lambda: _simple(kernels.sorted_rows, numbers(256), np.sort(numbers(256))),
    "extremes": _extremes,
    "bins": lambda: _simple(kernels.bins, numbers(512, high=16), np.bincount(numbers(512, high=16), minlength=16).astype(np.int32), N=512, BINS=16),
    "column sums": lambda: _simple(kernels.column_sums, reals(64, 32, dtype=np.float16), reals(64, 32, dtype=np.float16).astype(np.float32).sum(0), M=64, N=32, tolerance=1e-5),
    "matmul f16": lambda: _matmul(np.float16),
    "matmul bf16": lambda: _matmul(BF16),
    "matmul tf32": lambda: _matmul(np.float32),
    "grouped matmul": _grouped,
    "split k": _split_k,
    "int8 matmul": _int8,
    "fp8 e5m2": lambda: _fp8(E5M2),
    "fp8 e4m3": lambda: _fp8(E4M3),
    "descriptors": _described,
    "attention": lambda: _attention(False),
    "causal attention": lambda: _attention(True),
    "cross entropy": _cross_entropy,
    "gelu": _gelu,
    "swiglu": _swiglu,
    "quantise": _quantise,
    "roots": lambda: _simple(kernels.square_roots, np.abs(reals(128)) + np.float32(0.1), np.sqrt(np.abs(reals(128)) + np.float32(0.1)), tolerance=1e-3),
    "cubes": lambda: Case(kernels.cubes, 16, [zeros(16), numbers(16)], {0: numbers(16) ** 3}, {"N": 16}),
    "popcounts": _popcounts,
    "tickets": lambda: Case(kernels.tickets, 8, [zeros(1), zeros(1)], {1: 40}, {"N": 5}),
    "gather": lambda: _simple(kernels.gathered, numbers(64), numbers(64)[numbers(64, high=64)], numbers(64, high=64)),
    "histogram": _histogram,
}  # fmt: skip
