"""Problems for the emulator: a kernel of each kind, its launch, and the result by NumPy.

The module imports only public names of the package, so that other versions can run it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import kernels

# Name -> element type of A and B, and the architecture, which chooses the kernel.
GEMMS = {
    "f16 mma.sync": (tc.f16, "sm_80"), "bf16 mma.sync": (tc.bf16, "sm_80"),
    "tf32 mma.sync": (tc.tf32, "sm_80"), "s8 mma.sync": (tc.s8, "sm_80"),
    "f64 mma.sync": (tc.f64, "sm_80"), "f16 wgmma": (tc.f16, "sm_90a"),
    "bf16 wgmma": (tc.bf16, "sm_90a"), "e4m3 wgmma": (tc.e4m3, "sm_90a"),
}  # fmt: skip
THREADS = 128
SIZE = 2**20  # elements of the arrays of kernels that read them once
ROWS, COLUMNS = 512, 1024  # the arrays of softmax and fused_norm
CHAINS, ITERATIONS = 16, 200  # f32 arithmetic: values of a thread, rounds of its loop
TILE, TAPS, IMAGE = 16, 5, 256  # convolution: sides of a block, of the filter, of the output
PIXELS, LIMIT = 256, 100  # Mandelbrot set: side of the image, most iterations


@dataclass(frozen=True)
class Problem:
    """A launch, its result by NumPy, and the amount of work.

    Attributes
    ----------
    kernel
        None for functions of the library.
    launch : function
        Takes a kernel, or an emulator of it, and returns the result.
    bound
        Largest error of an element.
    amount : float
        Work, in `unit`.
    """

    kernel: Any
    launch: Callable[[Any], Any]
    exact: Any
    bound: Any
    amount: float
    unit: str = "elements"

    def runner(self, checks: bool | None) -> Callable[[], Any]:
        """A function that launches the kernel in emulation; `checks` finds races as well."""
        return partial(self.launch, self.kernel and self.kernel.emulator("sm_90a", checks=checks))

    def compare(self, result: Any) -> None:
        """Raise ValueError if an element of a result is further from NumPy's than the bound."""
        error = abs(result.astype(np.float64) - self.exact)
        if not (error <= self.bound).all():
            raise ValueError(f"WRONG RESULT: the largest error is {error.max():.2e}")


@tc.kernel
def arithmetic(x: tc.Array, out: tc.Array):
    """Three operations of f32 for each chain and iteration."""
    i = tc.blockIdx.x * THREADS + tc.threadIdx.x
    start = x[i]
    chain = [start + float(j) for j in range(CHAINS)]
    for _ in tc.range(ITERATIONS):
        chain = [tc.fma(chain[j], 0.5, chain[j - 1] * 0.25 + start) for j in range(CHAINS)]
    out[i] = sum(chain)


def arithmetic_in_numpy(x: Any) -> Any:
    chain = x + np.arange(CHAINS, dtype=np.float32)[:, None]
    for _ in range(ITERATIONS):
        chain = chain * 0.5 + (np.roll(chain, 1, axis=0) * 0.25 + x)
    return chain.sum(0)


@tc.kernel
def vector_add(x: tc.Array, y: tc.Array, out: tc.Array):
    i = tc.blockIdx.x * THREADS + tc.threadIdx.x
    if i < out.shape[0]:
        out[i] = x[i] + y[i]


@tc.kernel
def saxpy(x: tc.Array, y: tc.Array, out: tc.Array):
    i = tc.blockIdx.x * THREADS + tc.threadIdx.x
    if i < out.shape[0]:
        out[i] = 2.0 * x[i] + y[i]


@tc.kernel
def softmax(x: tc.Array, out: tc.Array):
    """Softmax with one row for each warp: maximum, sum of exponentials, quotients."""
    row = tc.blockIdx.x * (THREADS // 32) + tc.warp_id()
    lane = tc.lane_id()
    mine = [x[row, lane + 32 * i] for i in range(COLUMNS // 32)]
    largest = mine[0]
    for value in mine[1:]:
        largest = max(largest, value)
    for step in (16, 8, 4, 2, 1):
        largest = max(largest, tc.shfl_xor(largest, step))
    powers = [tc.exp(value - largest) for value in mine]
    total = sum(powers)
    for step in (16, 8, 4, 2, 1):
        total = total + tc.shfl_xor(total, step)
    for i in range(COLUMNS // 32):
        out[row, lane + 32 * i] = powers[i] / total


def softmax_in_numpy(x: Any) -> Any:
    powers = np.exp(x.astype(np.float64))
    return powers / powers.sum(1, keepdims=True)


@tc.kernel
def scan(x: tc.Array, out: tc.Array):
    """Inclusive sums of each block's elements: within warps by shuffles, then of the warps."""
    sums = tc.shared(THREADS // 32, tc.s32)
    row, lane, warp = tc.blockIdx.x, tc.lane_id(), tc.warp_id()
    total = x[row, tc.threadIdx.x]
    for step in (1, 2, 4, 8, 16):
        below = tc.shfl_up(total, step)
        total = total + tc.select(lane >= step, below, 0)
    if lane == 31:
        sums[warp] = total
    tc.barrier()
    for earlier in range(THREADS // 32 - 1):
        total = total + tc.select(earlier < warp, sums[earlier], 0)
    out[row, tc.threadIdx.x] = total


@tc.kernel
def convolve(x: tc.Array, taps: tc.Array, out: tc.Array):
    """Convolution with one tile of the output for each CTA; its part of x is in shared memory."""
    side = TILE + TAPS - 1
    tile = tc.shared((side, side), tc.f32)
    row, col = tc.threadIdx.y, tc.threadIdx.x
    first_row, first_col = tc.blockIdx.y * TILE, tc.blockIdx.x * TILE
    for i in tc.range(row * TILE + col, side * side, TILE * TILE):
        tile[i // side, i % side] = x[first_row + i // side, first_col + i % side]
    tc.barrier()
    total = tc.f32(0)
    for r in range(TAPS):
        for s in range(TAPS):
            total = tc.fma(tile[row + r, col + s], taps[r, s], total)
    out[first_row + row, first_col + col] = total


def convolve_in_numpy(x: Any, taps: Any) -> Any:
    windows = np.lib.stride_tricks.sliding_window_view(x, taps.shape)
    return np.einsum("ijrs,rs->ij", windows, taps)


@tc.kernel
def mandelbrot(counts: tc.Array):
    """Iterations of z² + c, one c a thread, until |z| exceeds 2."""
    row, col = tc.blockIdx.y, tc.blockIdx.x * THREADS + tc.threadIdx.x
    re, im = col * (3 / PIXELS) - 2.0, row * (3 / PIXELS) - 1.5
    x, y, count = tc.f32(0), tc.f32(0), 0
    while (x * x + y * y <= 4.0) & (count < LIMIT):
        x, y = x * x - y * y + re, 2.0 * x * y + im
        count += 1
    counts[row, col] = count


def mandelbrot_in_numpy() -> Any:
    axis = np.arange(PIXELS, dtype=np.float32) * np.float32(3 / PIXELS)
    re, im = axis - np.float32(2), axis[:, None] - np.float32(1.5)
    x, y = np.zeros((2, PIXELS, PIXELS), np.float32)
    counts = np.zeros((PIXELS, PIXELS), np.int32)
    for _ in range(LIMIT):
        inside = x * x + y * y <= 4
        counts += inside
        x, y = np.where(inside, (x * x - y * y + re, 2 * x * y + im), (x, y))
    return counts


def values(rng: np.random.Generator, dtype: tc.DType, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal values; integers uniform over their type."""
    if dtype.is_float:
        numbers = rng.standard_normal(shape, dtype=np.float32)
        return numbers.astype(np.float32 if dtype == tc.tf32 else dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    return rng.integers(limits.min, limits.max, shape, dtype=dtype.numpy, endpoint=True)


def draw(*shape: int, dtype: tc.DType = tc.f32) -> np.ndarray:
    return values(np.random.default_rng(0), dtype, shape)


def problem(
    kernel: Any,
    grid: Any,
    inputs: Iterable[np.ndarray],
    in_numpy: Callable[..., Any],
    bound: float = 0.0,
    block: Any = THREADS,
    **amount: Any,
) -> Problem:
    """The problem of a kernel whose parameters are inputs and then the result."""
    inputs = list(inputs)
    exact = in_numpy(*inputs)
    out = np.empty(exact.shape, np.int32 if exact.dtype.kind == "i" else np.float32)

    def launch(emulator: Any) -> np.ndarray:
        emulator[grid, block](*inputs, out)
        return out

    return Problem(kernel, launch, exact, bound, **{"amount": out.size} | amount)


def gemm(dtype: tc.DType, arch: str, size: int) -> Problem:
    a, b = draw(2, size, size, dtype=dtype)
    out = tc.s32 if dtype == tc.s8 else None
    precision = "tf32" if dtype == tc.tf32 else None

    def launch(_: None) -> Any:
        with tc.target("cpu", arch):
            return kernels.gemm(a, b.T, out_dtype=out, precision=precision)

    x, y = a.astype(np.float64), b.T.astype(np.float64)
    bound = 0.01 * dtype.is_float * (abs(x) @ abs(y))
    return Problem(None, launch, x @ y, bound, 2.0 * size**3, "FLOP")


def numpy_product(size: int) -> Problem:
    a, b = draw(2, size, size)
    return Problem(None, lambda _: a @ b, a @ b, 1e-3, 2.0 * size**3, "FLOP")


def attention(name: str) -> Problem:
    """An example's attention: 4 heads, 512 queries and keys of 64 elements."""
    example = import_module(f"examples.{name}")
    q, k, v = draw(3, 1, 4, 512, 64).astype(np.float16)
    return Problem(
        example.attention_kernel,
        lambda kernel: example.attention(q, k, v, kernel=kernel),
        *import_module("examples.flash_attention").reference(q, k, v),
        4.0 * q.size * 512,
        "FLOP",
    )


def fused_norm() -> Problem:
    from examples import fused_norm as example

    inputs = *draw(2, ROWS, COLUMNS), draw(COLUMNS)
    launch = lambda kernel: example.fused_norm(*inputs, kernel=kernel)[0]
    exact, _, bound = example.reference(*inputs)
    return Problem(example.norm_kernel, launch, exact, bound, exact.size)


def histogram() -> Problem:
    from examples import histogram as example

    x = np.random.default_rng(0).binomial(255, 0.3, SIZE).astype(np.uint8)
    launch = lambda kernel: example.histogram(x, kernel)
    return Problem(example.histogram_kernel, launch, np.bincount(x, minlength=256), 0, SIZE)


# Name -> function that makes a problem of a kernel with the checks of users' kernels.
CHECKED: dict[str, Callable[[], Problem]] = {
    "f32 arithmetic": lambda: problem(
        arithmetic, 2048 // THREADS, draw(1, 2048), arithmetic_in_numpy, 1e-3,
        amount=3 * CHAINS * ITERATIONS * 2048, unit="lane operations",
    ),
    "vector add": lambda: problem(vector_add, SIZE // THREADS, draw(2, SIZE), np.add),
    "saxpy": lambda: problem(saxpy, SIZE // THREADS, draw(2, SIZE), lambda x, y: 2 * x + y),
    "softmax": lambda: problem(
        softmax, ROWS * 32 // THREADS, draw(1, ROWS, COLUMNS), softmax_in_numpy, 1e-6
    ),
    "fused_norm": fused_norm,
    "scan": lambda: problem(
        scan, SIZE // THREADS, draw(1, SIZE // THREADS, THREADS, dtype=tc.s16).astype(np.int32),
        lambda x: np.cumsum(x, 1, np.int32),
    ),
    "convolution": lambda: problem(
        convolve, (IMAGE // TILE, IMAGE // TILE),
        (draw(IMAGE + TAPS - 1, IMAGE + TAPS - 1), draw(TAPS, TAPS)), convolve_in_numpy, 1e-4,
        (TILE, TILE), amount=2.0 * (IMAGE * TAPS) ** 2, unit="FLOP",
    ),
    "histogram": histogram,
    "Mandelbrot set": lambda: problem(
        mandelbrot, (PIXELS // THREADS, PIXELS), (), mandelbrot_in_numpy,
        amount=int(mandelbrot_in_numpy().sum()), unit="iterations",
    ),
    "flash_attention": partial(attention, "flash_attention"),
    "hopper_attention": partial(attention, "hopper_attention"),
}  # fmt: skip


def products(size: int) -> dict[str, Callable[[], Problem]]:
    """Return functions that make products, by name; M, N and K are `size`."""
    gemms = {f"{name} GEMM": partial(gemm, *chosen, size) for name, chosen in GEMMS.items()}
    return {**gemms, "NumPy float32 @": partial(numpy_product, size)}
