"""Random GEMM problems of realistic sizes: the suite `landscape` and its picture."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import Report
from benchmarks.products.gemm_cases import BLAS, DTYPES, Case, Size

NAME = "landscape"  # name of the suite
COUNT = 300
MAX_OPERATIONS = 4e12  # most operations of a problem
MAX_BYTES = 2**31
TRANSPOSED = {"bf16", "f16", "tf32", "f32", "f64"}  # types that have layouts other than TN
# N and K of the linear layers of well-known models.
LAYERS = (
    (4096, 4096), (6144, 4096), (14336, 4096), (28672, 4096), (4096, 14336), (5120, 5120),
    (13824, 5120), (5120, 13824), (10240, 8192), (8192, 8192), (28672, 8192), (8192, 28672),
    (7168, 2048), (7168, 18432), (18432, 7168), (2112, 7168), (24576, 1536), (1536, 7168),
    (2560, 9728), (152064, 3584), (3072, 768), (768, 3072),
)  # fmt: skip
ROWS = 1, 8192  # least and most rows of their activations


def problems(seed: int, count: int = COUNT, dtypes: Sequence[str] = ()) -> list[Case]:
    """`count` problems, the same for a seed wherever they are drawn.

    Types follow each other. Of each type, e4m3 is measured in turn with fast and with promoted
    accumulators, and half of the problems of types that have other layouts are not TN.
    """
    names = list(dtypes) or list(DTYPES)
    draws = {name: random.Random(f"{seed} {name}") for name in names}
    turns = ((i // len(names), names[i % len(names)]) for i in range(count))
    return [_problem(draws[name], name, turn) for turn, name in turns]


def _problem(draw: random.Random, dtype: str, turn: int) -> Case:
    step = 1 if dtype in TRANSPOSED else 16  # cuBLASLt takes no other lines of 8-bit types
    layout = "TN"
    if dtype in TRANSPOSED and draw.random() < 0.5:
        layout = draw.choice(["NN", "NT", "TT"])
    precise = dtype == "e4m3" and turn % 2 == 1
    name = "e4m3 promoted" if precise else dtype
    while True:
        M, N, K = (-(-n // step) * step for n in draw.choice(KINDS)(draw))
        case = Case(dtype, M, N, K, BLAS[layout], group=f"{NAME} {name}", precise=precise)
        if case.operations <= MAX_OPERATIONS and case.bytes <= MAX_BYTES:
            return case


def _side(draw: random.Random, least: int, most: int) -> int:
    """Draw a log-uniform size that is a multiple of 1, 2, 4, ... or 256."""
    n = round(math.exp(draw.uniform(math.log(least), math.log(most))))
    multiple = 1 << draw.randrange(min(n.bit_length(), 9))
    return min(max(round(n / multiple) * multiple, least), most)


def _any(draw: random.Random) -> Size:
    return _side(draw, 32, 8192), _side(draw, 32, 8192), _side(draw, 32, 16384)


def _skinny(draw: random.Random) -> Size:
    return _side(draw, 1, 128), _side(draw, 1024, 32768), _side(draw, 1024, 16384)


def _few_tiles(draw: random.Random) -> Size:
    return _side(draw, 129, 768), _side(draw, 1024, 16384), _side(draw, 1024, 16384)


def _large(draw: random.Random) -> Size:
    return _side(draw, 2048, 12288), _side(draw, 2048, 12288), _side(draw, 1024, 12288)


def _layer(draw: random.Random) -> Size:
    N, K = draw.choice(LAYERS)
    return _side(draw, *ROWS), N, K


KINDS = (_any, _any, _skinny, _few_tiles, _large, _layer)


def draw_map(axis: Any, report: Report) -> None:
    """Draw a dot for each problem over M and N K, coloured by the ratio: red if the reference is faster."""
    from matplotlib.colors import TwoSlopeNorm

    measured = [r for r in report.results if "ratio" in r]
    norm = TwoSlopeNorm(1.0, 0.5, 1.5)
    dots = axis.scatter(
        [r["M"] for r in measured],
        [r["N"] * r["K"] for r in measured],
        s=18,
        c=[r["ratio"] for r in measured],
        cmap="RdYlGn",
        norm=norm,
        edgecolors="grey",
        linewidths=0.3,
    )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set(xlabel="M", ylabel="N K", title="the reference's time over ours")
    axis.figure.colorbar(dots, ax=axis, extend="both")
