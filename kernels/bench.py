"""`tensorcore-dsl bench`: time `kernels.gemm` for named problems."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from itertools import product

import tensorcore_dsl as tc
from tensorcore_dsl.host import current_target
from tensorcore_dsl.kernels import demo

OUT = {"f16": tc.f16, "bf16": tc.bf16, "f32": tc.f32, "s8": tc.s32, "f64": tc.f64}
ORDERS = ("row.row", "row.col", "col.row", "col.col")
SIZES = {"cuda": ((4096, 4096, 4096), (8192, 8192, 8192)), "cpu": ((256, 256, 256),)}

Size = tuple[int, int, int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtypes",
        type=_dtypes,
        default=["bf16"],
        metavar="D,...",
        help=f"element types of A and B, of {', '.join(OUT)} (default: bf16)",
    )
    parser.add_argument(
        "--sizes",
        type=_sizes,
        metavar="MxNxK,...",
        help="sizes of the products; N stands for NxNxN (default: "
        + "; ".join(f"{_text(SIZES[t])} on {n}" for t, n in (("cuda", "a GPU"), ("cpu", "the CPU")))
        + ")",
    )
    parser.add_argument(
        "--orders",
        type=_orders,
        default=["row.row"],
        metavar="A.B,...",
        help=f"how A and B lie in memory, of {', '.join(ORDERS)} (default: row.row)",
    )


def run(options: argparse.Namespace) -> int:
    """Print a row for each problem; 0 when every product is right, else 1."""
    target = current_target()
    chosen = product(options.dtypes, options.sizes or SIZES[target], options.orders)
    cases = (demo.Case(getattr(tc, d), OUT[d], size, _pair(order)) for d, size, order in chosen)
    return 0 if demo.table(demo.run(case, target) for case in cases) else 1


def _dtypes(text: str) -> list[str]:
    return [_one_of(name, OUT) for name in text.split(",")]


def _orders(text: str) -> list[str]:
    return [_one_of(name, ORDERS) for name in text.split(",")]


def _one_of(name: str, allowed: Collection[str]) -> str:
    if name not in allowed:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(allowed)}")
    return name


def _sizes(text: str) -> list[Size]:
    return [size_of(part) for part in text.split(",")]


def size_of(text: str) -> Size:
    """M, N and K of `MxNxK`, or of `N`."""
    numbers = [int(n) for n in text.lower().split("x") if n.isdecimal()]
    if len(numbers) != text.lower().count("x") + 1 or len(numbers) not in (1, 3) or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write MxNxK, or N for NxNxN")
    m, n, k = numbers * 3 if len(numbers) == 1 else numbers
    return m, n, k


def _pair(order: str) -> tuple[str, str]:
    a, b = order.split(".")
    return a, b


def _text(sizes: Sequence[Size]) -> str:
    return ", ".join("x".join(map(str, size)) for size in sizes)
