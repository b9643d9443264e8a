"""Operands of the GEMMs on a GPU: torch tensors in rotating sets of buffers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from benchmarks.products.gemm_cases import Case

TORCH_NAMES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "s8": "int8",
    "s32": "int32",
    "f64": "float64",
    "e4m3": "float8_e4m3fn",
}


@dataclass(frozen=True)
class Operands:
    """A, B and D on the GPU, one of each for every set of buffers.

    Batched A, B and D have three axes, the batch first; B of a grouped GEMM has the group first. SwiGLU's B
    holds N columns of gate weights, then N columns of up weights.

    Attributes
    ----------
    bias
        N elements.
    offsets
        First row of each group in A, then the end of the last, s32.
    """

    case: Case
    a: list[Any]
    b: list[Any]
    d: list[Any]
    bias: Any = None
    offsets: Any = None

    @property
    def sets(self) -> int:
        return len(self.a)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """First row and end of each group."""
        ends = list(accumulate(self.case.rows))
        return list(zip([0, *ends[:-1]], ends, strict=True))


def draw(torch: Any, case: Case, seed: int, device: str = "cuda") -> tuple[Any, Any]:
    """A and B in the case's layout: standard normal, or uniform over all of s8."""
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, cols: int, order: str, *outer: int) -> Any:
        shape = (*outer, rows, cols) if order == "row" else (*outer, cols, rows)
        array = fill(torch, case, shape, generator)
        return array if order == "row" else array.mT

    a_order, b_order = case.orders
    batch = (case.batch,) if case.batch > 1 else ()
    a = matrix(case.M, case.K, a_order, *batch)
    matrices = (len(case.rows),) if case.rows else batch
    b = matrix(case.K, case.N * case.weights, b_order, *matrices)
    return (pruned(torch, a) if case.kind == "sparse" else a), b


def fill(torch: Any, case: Case, shape: tuple[int, ...], generator: Any) -> Any:
    dtype = torch_type(torch, case.element)
    options = {"generator": generator, "device": generator.device}
    if case.dtype == "s8":
        return torch.randint(-128, 128, shape, dtype=dtype, **options)
    wide = torch.float64 if case.dtype == "f64" else torch.float32
    return torch.randn(shape, dtype=wide, **options).to(dtype)


def pruned(torch: Any, a: Any) -> Any:
    """A with the two smallest of every four elements along K set to zero."""
    fours = a.to(torch.float32).unflatten(-1, (-1, 4))
    smallest = fours.abs().topk(2, dim=-1, largest=False).indices
    return fours.scatter(-1, smallest, 0.0).flatten(-2).to(a.dtype)


def torch_type(torch: Any, dtype: Any) -> Any:
    return getattr(torch, TORCH_NAMES[dtype.name])


def operands(torch: Any, case: Case, a: Any, b: Any, sets: int) -> Operands:
    """Make `sets` copies of A and B in their layouts, and a D for each."""
    shape = (*a.shape[:-1], case.N)
    options = {"dtype": torch_type(torch, case.out), "device": a.device}
    d = [torch.zeros(shape, **options) for _ in range(sets)]
    bias = torch.linspace(-1, 1, case.N, **options) if case.kind == "gelu" else None
    ends = [0, *accumulate(case.rows)]
    offsets = torch.tensor(ends, dtype=torch.int32, device=a.device) if case.rows else None
    copies = ([x, *(x.clone() for _ in range(sets - 1))] for x in (a, b))  # strides are kept
    return Operands(case, *copies, d, bias, offsets)
