"""`tensorcore-dsl demo`: tiled GEMMs of real matrices, on the GPU or emulated, against NumPy."""

from __future__ import annotations

import argparse
import math
import sys
import timeit
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.host import cores, current_target, device_arch, emulated_arch

# Unit roundoffs of accumulators and of D. Accumulators of f16, bf16 and tf32, of which f32 products
# consist, are truncated 23 bits or more below the largest term.
SUM = {"f16": 2.0**-22, "bf16": 2.0**-22, "f32": 2.0**-22, "s8": 0.0, "f64": 2.0**-53}
STORED = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-23, "s32": 0.0, "f64": 2.0**-53}
REPEATS = 20  # products that are timed on the GPU
SHORT = 0.1  # seconds of a run that is repeated
ORDERS: dict[str, Any] = {"row": "C", "col": "F"}
SIZES = {"cuda": ((4096, 4096, 4096), (1000, 2000, 504)), "cpu": ((256, 256, 256), (100, 200, 72))}
COLUMNS = ("A, B", "D", "M", "N", "K", "A", "B", "target", "time", "GFLOP/s", "max error", "verdict")


@dataclass(frozen=True)
class Case:
    """One product: element types, size, and how A and B lie in memory."""

    dtype: tc.DType
    out: tc.DType
    size: tuple[int, int, int]
    orders: tuple[str, str]

    def matrices(self, seed: int = 0) -> tuple[Any, Any]:
        """A and B, normally distributed, or uniform over all of s8."""
        m, n, k = self.size
        draw = np.random.default_rng(seed)
        integers = lambda shape: draw.integers(-128, 128, shape)
        fill = draw.standard_normal if self.dtype.is_float else integers
        return tuple(
            np.array(fill(shape), self.dtype.numpy, order=ORDERS[order])
            for shape, order in zip(((m, k), (k, n)), self.orders, strict=True)
        )  # type: ignore[return-value]

    def bound(self, a: Any, b: Any, exact: Any) -> Any:
        """The largest error of each element that rounding explains; see the constants above."""
        relative = self.size[2] * SUM[self.dtype.name]
        return (
            relative * (np.abs(a) @ np.abs(b))
            + STORED[self.out.name] * np.abs(exact)
            + 2.0**-24 * (self.out == tc.f16)
        )


def cases(target: str) -> Iterator[Case]:
    """Every element type on a square problem; one odd size; every pair of orders."""
    square, odd = SIZES[target]
    types = {tc.f16: tc.f16, tc.bf16: tc.f32, tc.f32: tc.f32, tc.s8: tc.s32, tc.f64: tc.f64}
    for dtype, out in types.items():
        yield Case(dtype, out, square, ("row", "row"))
    yield Case(tc.f16, tc.f32, odd, ("row", "row"))
    for orders in (("row", "col"), ("col", "row"), ("col", "col")):
        yield Case(tc.f16, tc.f16, square, orders)


@dataclass(frozen=True)
class Result:
    """A measured case. error: the largest absolute error; good: no error exceeds its bound."""

    case: Case
    target: str
    seconds: float
    error: float
    good: bool

    def cells(self) -> tuple[str, ...]:
        case, milliseconds = self.case, self.seconds * 1e3
        rate = 2 * math.prod(case.size) / self.seconds / 1e9
        time = f"{milliseconds:.1f} ms" if milliseconds >= 1 else f"{milliseconds * 1e3:.1f} us"
        return (
            str(case.dtype),
            str(case.out),
            *map(str, case.size),
            *case.orders,
            self.target,
            time,
            f"{rate:,.1f}",
            f"{self.error:.1e}" if self.error else "0",
            "ok" if self.good else "WRONG",
        )


def run(case: Case, target: str) -> Result:
    """Multiply, time, compare with NumPy in float64."""
    a, b = case.matrices()
    seconds, d = (on_gpu if target == "cuda" else on_cpu)(case, a, b)
    wide = a.astype(np.float64), b.astype(np.float64)
    exact = wide[0] @ wide[1]
    error = np.abs(d.astype(np.float64) - exact)
    good = bool(np.all(error <= case.bound(*wide, exact)))
    where = f"{device_arch()} (GPU)" if target == "cuda" else f"{emulated_arch()} (emulated)"
    return Result(case, where, seconds, float(error.max()), good)


def on_cpu(case: Case, a: Any, b: Any) -> tuple[float, Any]:
    """Seconds of a run, the best of three if it is short, after one that compiles; the product."""
    product = lambda: kernels.gemm(a, b, out_dtype=case.out)
    d = product()
    seconds = timeit.timeit(product, number=1)
    if seconds < SHORT:
        seconds = min(seconds, *timeit.repeat(product, number=1, repeat=2))
    return seconds, d


def on_gpu(case: Case, a: Any, b: Any) -> tuple[float, Any]:
    """Seconds of one product among REPEATS on arrays that lie on the GPU, and the product."""
    from numba import cuda

    device_a, device_b = on_device(a), on_device(b)
    out = cuda.device_array((case.size[0], case.size[1]), case.out.numpy)
    product = lambda: kernels.gemm(device_a, device_b, out=out)
    for _ in range(3):
        product()
    start, end = cuda.event(), cuda.event()
    start.record()
    for _ in range(REPEATS):
        product()
    end.record()
    end.synchronize()
    return cuda.event_elapsed_time(start, end) / 1e3 / REPEATS, out.copy_to_host()


def on_device(array: Any) -> Any:
    """A copy on the GPU. Numba copies only NumPy's own types, so bf16 travels as bits."""
    from numba import cuda

    bits = np.dtype(f"u{array.itemsize}")
    return cuda.to_device(array.view(bits)).view(array.dtype)


def same_bits(case: Case) -> bool:
    """Whether the CPU computes the bits of the GPU; for small cases."""
    a, b = case.matrices(seed=1)
    on_device = kernels.gemm(a, b, out_dtype=case.out)
    with tc.target("cpu", arch=device_arch().name):
        emulated = kernels.gemm(a, b, out_dtype=case.out)
    return bool(on_device.tobytes() == emulated.tobytes())


def table(results: Iterator[Result]) -> bool:
    """Print each result when it is there; returns whether all of them are good."""
    widths = (4, 5, 6, 6, 6, 5, 5, 19, 10, 10, 11, 9)
    print("".join(f"{c:>{w}}" for c, w in zip(COLUMNS, widths, strict=True)))
    good = True
    for result in results:
        cells = zip(result.cells(), widths, strict=True)
        print("".join(f"{c:>{w}}" for c, w in cells), flush=True)
        good &= result.good
    return good


def run_all(options: argparse.Namespace | None = None) -> int:
    """All cases, and on a GPU their bits; 0 when every product is right, else 1."""
    target = current_target()
    if target == "cuda":
        print("Kernels run on the GPU; its bits are compared with the emulator's.\n")
    else:
        print(f"Kernels run on {cores()} CPU cores, with the bits of {emulated_arch()}.")
        print("TENSORCORE_DSL_ARCH chooses another architecture.\n")
    good = table(run(case, target) for case in cases(target))
    for case in cases("cpu") if target == "cuda" else ():
        same = same_bits(case)
        size, orders = "x".join(map(str, case.size)), ".".join(case.orders)
        verdict = "the same bits" if same else "DIFFERENT BITS"
        print(f"{case.dtype} {size} {orders}: {verdict} on GPU and CPU")
        good &= same
    print("\nErrors are measured against NumPy in float64; ok: rounding explains each of them.")
    return 0 if good else 1


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it has no options
    sys.exit(run_all())
