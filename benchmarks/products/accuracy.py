"""Check a GEMM's result against float64, with a bound on the errors that rounding explains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorcore_dsl as tc
from benchmarks.products.gemm_cases import Case
from benchmarks.products.operands import Operands
from tensorcore_dsl.kernels import demo
from tensorcore_dsl.kernels.demo import STORED

# Accumulators of fp8 are truncated to 13 bits below their leading one after every 32 terms. A bound
# for the worst case would allow anything; these are a few times the errors of random operands.
READ = {"tf32": 2.0**-10, "e4m3": 2.0**-11}  # tf32 drops the low 13 bits of an f32
SUM = demo.SUM | {"e4m3": 2.0**-23}
BLOCK = 2048  # rows that are checked at once
CHECKED = 2 * 4096**3  # operations: of larger problems, a sample of rows is checked
ROWS = 256  # in the sample
MEMBERS = 8  # GEMMs of a batch that are checked
SLOPE = 1.13  # largest slope of GELU and of x sigmoid(x)


def allowed_error(case: Case, magnitudes: Any, exact: Any) -> Any:
    """Largest error of each element that rounding explains. magnitudes: |A| |B| in float64.

    Two sums of the same terms in different orders differ by up to twice the error of one.
    """
    name = case.element.name
    relative = 2 * READ.get(case.dtype, 0.0) + 2 * case.K * SUM[name]
    subnormal = 2.0**-24 * (case.out == tc.f16)
    return relative * magnitudes + STORED[case.out.name] * abs(exact) + subnormal


def relative_error(worst: float, largest: float) -> float | None:
    """The largest error over the largest result; None for infinity, which JSON lacks."""
    return worst / (largest or 1.0) if worst < float("inf") else None


def check(torch: Any, buffers: Operands, result: Any) -> tuple[float | None, bool]:
    """Relative error of `result`, D of the first buffers, and whether all errors are allowed.

    Large problems are checked on a sample of rows.
    """
    worst, largest, correct = 0.0, 0.0, True
    for part, a, b, d in parts(buffers, result):
        wide = b.to(torch.float64)
        for rows in row_blocks(torch, part):
            # torch cannot index fp8 on every device, but it can index bytes.
            narrow = a.element_size() == 1
            a_rows = a.view(torch.uint8)[rows].view(a.dtype) if narrow else a[rows]
            a_rows = a_rows.to(torch.float64)
            exact, allowed = expected(torch, buffers, a_rows @ wide, a_rows.abs() @ wide.abs())
            error = (d[rows].to(torch.float64) - exact).abs()
            correct &= bool((error <= allowed).all())  # False for NaN
            worst = max(worst, float(error.nan_to_num(nan=float(torch.inf)).max()))
            largest = max(largest, float(exact.abs().max()))
    return relative_error(worst, largest), correct


def parts(buffers: Operands, d: Any) -> Iterator[tuple[Case, Any, Any, Any]]:
    """Yield the plain GEMMs (case, A, B, D) of a grouped GEMM, or some of a batch."""
    case, a, b = buffers.case, buffers.a[0], buffers.b[0]
    if case.rows:
        for group, (begin, end) in enumerate(buffers.bounds):
            yield case.part(end - begin), a[begin:end], b[group], d[begin:end]
    elif case.batch > 1:
        for i in range(0, case.batch, max(1, case.batch // MEMBERS)):
            yield case.part(case.M), a[i], b[i], d[i]
    else:
        yield case, a, b, d[: case.M, : case.N]  # a baseline may pad D


def expected(torch: Any, buffers: Operands, exact: Any, magnitudes: Any) -> tuple[Any, Any]:
    """Compute D and its allowed error from A B and |A| |B|.

    An unfused baseline rounds A B before the epilogue; the allowed error includes that.
    """
    case = buffers.case
    allowed = allowed_error(case, magnitudes, exact)
    unit = STORED[case.out.name]
    if case.kind == "gelu":
        exact = exact + buffers.bias.to(torch.float64)
        allowed = allowed + 2 * unit * exact.abs()
        result = torch.nn.functional.gelu(exact, approximate="tanh")
        return result, SLOPE * allowed + 2 * unit * result.abs()
    if case.kind == "swiglu":
        gate, up = exact.chunk(2, dim=-1)
        gate_error, up_error = allowed.chunk(2, dim=-1)
        silu = torch.nn.functional.silu(gate)
        error = SLOPE * gate_error * (up.abs() + up_error) + silu.abs() * up_error
        return silu * up, error + 4 * unit * (silu * up).abs()
    return exact, allowed


def row_blocks(torch: Any, case: Case) -> Iterator[Any]:
    """Indices of the checked rows: all in blocks, or one random row in every M / ROWS."""
    if case.operations <= CHECKED or case.M <= ROWS:
        yield from (slice(start, start + BLOCK) for start in range(0, case.M, BLOCK))
        return
    edges = torch.linspace(0, case.M, ROWS + 1, dtype=torch.float64).floor()
    generator = torch.Generator("cpu").manual_seed(case.M)
    offsets = torch.rand(ROWS, dtype=torch.float64, generator=generator)
    yield (edges[:-1] + offsets * edges.diff()).long()
