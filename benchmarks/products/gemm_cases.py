"""The GEMM problems that `python -m benchmarks gemm` measures, and their command-line options."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import tensorcore_dsl as tc
from benchmarks.harness import comma_list
from tensorcore_dsl.kernels.bench import Size, size_of
from tensorcore_dsl.kernels.host.operands import OUTPUTS

PORTABLE = {"f16": tc.f16, "bf16": tc.bf16, "tf32": tc.f32, "f32": tc.f32, "s8": tc.s8, "f64": tc.f64}
DTYPES = {**PORTABLE, "e4m3": tc.e4m3}  # only wgmma multiplies fp8
LAYOUTS = ("row.col", "row.row", "col.row", "col.col")
# cuBLAS' names, where N (not transposed) is column-major.
BLAS = {"TN": "row.col", "TT": "row.row", "NT": "col.row", "NN": "col.col"}
COMMON = "row.col"  # layout of linear layers, supported by tensor cores for every type
EVERY_LAYOUT = (4096, 4096, 4096)


def squares(*sides: int) -> tuple[Size, ...]:
    return tuple((n, n, n) for n in sides)


SQUARES = squares(512, 1024, 2048, 4096, 8192)
ODD: tuple[Size, ...] = ((1000, 2000, 504), (1001, 1003, 1005), (4095, 4097, 4099))
MODELS: tuple[Size, ...] = (
    (16, 4096, 4096),  # a few tokens through an attention projection
    (512, 6144, 4096),  # queries, keys and values of a short prompt
    (4096, 14336, 4096),  # up and down projections of a long one
    (4096, 4096, 14336),
    (8192, 8192, 1024),  # small K
)
GPU_SIZES = SQUARES + ODD + MODELS
# Target, whether the run is quick -> sizes.
DEFAULT_SIZES: dict[tuple[str, bool], tuple[Size, ...]] = {
    ("cuda", False): GPU_SIZES,
    ("cuda", True): ((1024, 1024, 1024), (4096, 4096, 4096), (1000, 2000, 504)),
    ("cpu", False): (*squares(128, 256, 512), (100, 200, 72), (16, 512, 512)),
    ("cpu", True): ((128, 128, 128), (100, 200, 72)),
}


@dataclass(frozen=True)
class Case:
    """One problem: element type (a key of DTYPES), size, and layouts of A and B.

    Attributes
    ----------
    kind : str
        A key of `gemm_gpu.KINDS`.
    batch : int
        Number of GEMMs in one launch.
    rows : tuple
        Rows of each group of a grouped GEMM, whose sum is M.
    precise : bool
        Fp8 accumulators are promoted to f32.
    """

    dtype: str
    M: int
    N: int
    K: int
    layout: str = COMMON
    family: str = ""  # family of kernels, "sm80" or "sm90"; empty: gemm chooses
    group: str = ""  # group of a suite, with a geometric mean of its own
    kind: str = "plain"
    batch: int = 1
    rows: tuple[int, ...] = ()
    precise: bool = False

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Case:
        """The case of a result, which may come from an older file."""
        known = {each.name: result[each.name] for each in fields(cls) if each.name in result}
        return cls(**known | {"rows": tuple(known.get("rows", ()))})

    def part(self, M: int) -> Case:
        """A plain GEMM of M rows, as it occurs in a batched or grouped one."""
        return Case(self.dtype, M, self.N, self.K, self.layout)

    @property
    def element(self) -> tc.DType:
        return DTYPES[self.dtype]

    @property
    def precision(self) -> str | None:
        """Precision of an f32 product."""
        return self.dtype if self.element == tc.f32 else None

    @property
    def out(self) -> tc.DType:
        """D's element type: gemm's default."""
        dtype: tc.DType = OUTPUTS[self.element][0]
        return dtype

    @property
    def orders(self) -> tuple[str, str]:
        a, b = self.layout.split(".")
        return a, b

    @property
    def weights(self) -> int:
        """Number of weight matrices that each row of A is multiplied by."""
        return 2 if self.kind == "swiglu" else 1

    @property
    def operations(self) -> int:
        """FLOPs of the dense problem; zeros of a sparse A count."""
        return 2 * self.M * self.N * self.K * self.batch * self.weights

    @property
    def bytes(self) -> int:
        """Bytes of A, B and D; a sparse A counts half."""
        a, b, d = self.M * self.K, self.K * self.N * self.weights, self.M * self.N
        b *= len(self.rows) or 1
        a = a // 2 if self.kind == "sparse" else a
        return self.batch * ((a + b) * self.element.itemsize + d * self.out.itemsize)

    @property
    def size(self) -> str:
        size = f"{self.M} x {self.N} x {self.K}"
        if self.rows:
            return f"{size}, {len(self.rows)} groups"
        return f"{self.batch} times {size}" if self.batch > 1 else size

    def __str__(self) -> str:
        return f"{self.dtype} {self.size} {self.layout}"


def cases(dtypes: Collection[str], sizes: Iterable[Size], layouts: Sequence[str]) -> Iterator[Case]:
    """Cases ordered by size, so that a run that is cut short has results of every type.

    Without `layouts`, each size is measured in the common layout, and EVERY_LAYOUT in all.
    """
    for size in sizes:
        for layout in layouts or (LAYOUTS if size == EVERY_LAYOUT else (COMMON,)):
            yield from (Case(dtype, *size, layout) for dtype in dtypes)


def add_problem_arguments(parser: argparse.ArgumentParser, **defaults: tuple[tuple[Any, ...], str]) -> None:
    """Add --dtypes, --sizes and --layouts. defaults: for each, the value and its text in the help."""
    for name, parse, metavar, about in (
        ("dtypes", dtypes_of, "T,...", f"element types of A and B, of {', '.join(DTYPES)}"),
        ("sizes", sizes_of, "MxNxK,...", "sizes; N is NxNxN"),
        (
            "layouts",
            layouts_of,
            "L,...",
            f"layouts of A and B: {', '.join(LAYOUTS)}, or cuBLAS' {', '.join(BLAS)}",
        ),
    ):
        default, described = defaults[name]
        parser.add_argument(
            f"--{name}", type=parse, default=default, metavar=metavar, help=f"{about} (default: {described})"
        )


def _one_of(name: str, allowed: Iterable[str], what: str) -> str:
    if name not in allowed:
        raise argparse.ArgumentTypeError(f"{name!r} is not a {what} of {', '.join(allowed)}")
    return name


sizes_of = comma_list(size_of)  # "4096,1000x2000x504" -> ((4096, 4096, 4096), (1000, 2000, 504))
dtypes_of = comma_list(lambda text: _one_of(text.lower(), DTYPES, "element type"))
layouts_of = comma_list(
    lambda text: _one_of(BLAS.get(text.upper(), text.lower()), LAYOUTS, f"layout (also {', '.join(BLAS)})")
)
