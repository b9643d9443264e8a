"""The products that `python -m benchmarks gemm` measures, and how right their results must be."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels import demo
from tensorcore_dsl.kernels.demo import STORED
from tensorcore_dsl.kernels.host.operands import OUTPUTS

PORTABLE = {"f16": tc.f16, "bf16": tc.bf16, "tf32": tc.f32, "s8": tc.s8, "f64": tc.f64}
DTYPES = {**PORTABLE, "e4m3": tc.e4m3}  # fp8 is multiplied by wgmma alone
LAYOUTS = ("row.col", "row.row", "col.row", "col.col")
# cuBLAS' names, which take column-major for "not transposed".
BLAS = {"TN": "row.col", "TT": "row.row", "NT": "col.row", "NN": "col.col"}
COMMON = "row.col"  # how linear layers lie, and the one that every type's tensor cores read
EVERY_LAYOUT = (4096, 4096, 4096)
# Sums of fp8 are truncated to 13 bits below their leading one at every 32 terms. The worst case
# would allow anything; these are some times what random operands show.
READ = demo.READ | {"e4m3": 2.0**-11}
SUM = demo.SUM | {"e4m3": 2.0**-23}

Size = tuple[int, int, int]

# M, N, K
SQUARES: tuple[Size, ...] = tuple((n, n, n) for n in (512, 1024, 2048, 4096, 8192))
ODD: tuple[Size, ...] = ((1000, 2000, 504), (1001, 1003, 1005), (4095, 4097, 4099))
MODELS: tuple[Size, ...] = (
    (16, 4096, 4096),  # a few tokens through an attention projection
    (512, 6144, 4096),  # queries, keys and values of a short prompt
    (4096, 14336, 4096),  # up and down projections of a long one
    (4096, 4096, 14336),
    (8192, 8192, 1024),  # short sums
)
GPU_SIZES = SQUARES + ODD + MODELS
GPU_QUICK: tuple[Size, ...] = ((1024, 1024, 1024), (4096, 4096, 4096), (1000, 2000, 504))
CPU_SIZES: tuple[Size, ...] = (
    (128, 128, 128), (256, 256, 256), (512, 512, 512), (100, 200, 72), (16, 512, 512),
)  # fmt: skip
CPU_QUICK: tuple[Size, ...] = ((128, 128, 128), (100, 200, 72))


@dataclass(frozen=True)
class Case:
    """One product: element type (a key of DTYPES), size, and how A and B lie in memory.

    kind: a key of `kinds.KINDS`. batch: products of this size that run at once. rows: of the
    groups of a grouped product, M in all. precise: fp8 sums are promoted to f32 on the way.
    """

    dtype: str
    M: int
    N: int
    K: int
    layout: str = COMMON
    family: str = ""  # of kernels; gemm's choice when empty
    group: str = ""  # cases that a suite sums up together
    kind: str = "plain"
    batch: int = 1
    rows: tuple[int, ...] = ()
    precise: bool = False

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Case:
        """From a result, which may come from an older file."""
        known = {each.name: found[each.name] for each in fields(cls) if each.name in found}
        return cls(**known | {"rows": tuple(known.get("rows", ()))})

    @property
    def element(self) -> tc.DType:
        return DTYPES[self.dtype]

    @property
    def out(self) -> tc.DType:
        """D's element type: what gemm makes when it is not asked."""
        found: tc.DType = OUTPUTS[self.element][0]
        return found

    @property
    def orders(self) -> tuple[str, str]:
        a, b = self.layout.split(".")
        return a, b

    @property
    def weights(self) -> int:
        """Matrices that each row of A, or of its group, is multiplied with."""
        return 2 if self.kind == "swiglu" else 1

    @property
    def operations(self) -> int:
        """Of the dense product; zeros of a sparse A count."""
        return 2 * self.M * self.N * self.K * self.batch * self.weights

    @property
    def bytes(self) -> int:
        """Of A, B and D together; a sparse A counts half."""
        a, b, d = self.M * self.K, self.K * self.N * self.weights, self.M * self.N
        b *= len(self.rows) or 1
        a = a // 2 if self.kind == "sparse" else a
        return self.batch * ((a + b) * self.element.itemsize + d * self.out.itemsize)

    @property
    def square(self) -> bool:
        return self.M == self.N == self.K

    def __str__(self) -> str:
        return " ".join([self.dtype, self.size, self.layout, *self.remarks])

    @property
    def size(self) -> str:
        size = f"{self.M}x{self.N}x{self.K}"
        return f"{self.batch}x({size})" if self.batch > 1 else size

    @property
    def remarks(self) -> list[str]:
        """What sets it apart from a plain product of its type and size."""
        said = [self.family, "" if self.kind in ("plain", "batched", "grouped") else self.kind]
        said += [f"{self.batch} at once" if self.batch > 1 else ""]
        said += [f"{len(self.rows)} groups" if self.rows else ""]
        said += ["precise" if self.precise else ""]
        return [part for part in said if part]

    def allowed_error(self, magnitudes: Any, exact: Any) -> Any:
        """Per element, what rounding explains; magnitudes is |A| |B|, in float64 as `exact`.

        Sums of the same terms in another order differ twice as much as one sum does from the
        exact one.
        """
        name = self.element.name
        relative = 2 * READ.get(name, 0.0) + 2 * self.K * SUM[name]
        tiny = 2.0**-24 * (self.out == tc.f16)  # below f16's least normal number
        return relative * magnitudes + STORED[self.out.name] * abs(exact) + tiny


def relative_error(worst: float, largest: float) -> float | None:
    """The largest error over the largest result; None when it is infinite, which JSON lacks."""
    return worst / (largest or 1.0) if worst < float("inf") else None


def cases(dtypes: Iterable[str], sizes: Iterable[Size], layouts: Sequence[str]) -> Iterator[Case]:
    """Sizes outside, so that a run which is cut short has something of every type.

    Without `layouts`, each size is measured in the common layout, EVERY_LAYOUT in all of them.
    """
    kinds = list(dtypes)
    for size in sizes:
        for layout in layouts or (LAYOUTS if size == EVERY_LAYOUT else (COMMON,)):
            for dtype in kinds:
                yield Case(dtype, *size, layout)


# What the command line gives


def sizes_of(text: str) -> tuple[Size, ...]:
    """ "4096,1000x2000x504" -> ((4096, 4096, 4096), (1000, 2000, 504))"""
    return tuple(_size(part) for part in _parts(text))


def _size(text: str) -> Size:
    try:
        numbers = [int(n) for n in text.lower().split("x")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 3) or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write MxNxK, or N for NxNxN")
    m, n, k = numbers * 3 if len(numbers) == 1 else numbers
    return m, n, k


def dtypes_of(text: str) -> tuple[str, ...]:
    return tuple(_one_of(part.lower(), DTYPES, "element type") for part in _parts(text))


def layouts_of(text: str) -> tuple[str, ...]:
    names = (BLAS.get(part.upper(), part.lower()) for part in _parts(text))
    return tuple(_one_of(name, LAYOUTS, f"layout (also {', '.join(BLAS)})") for name in names)


def _one_of(name: str, allowed: Iterable[str], what: str) -> str:
    if name not in allowed:
        raise argparse.ArgumentTypeError(f"{name!r} is no {what}; allowed are {', '.join(allowed)}")
    return name


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
