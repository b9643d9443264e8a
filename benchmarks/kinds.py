"""The kinds of products that are measured: how ours are called, and what is right of each.

Functions of `kernels` are looked up when a case is measured: what is not there yet is an error
of that case alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import tensorcore_dsl as tc
from benchmarks.gemm_cases import Case, relative_error
from benchmarks.gpu import Launch
from benchmarks.operands import Operands
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.demo import STORED
from tensorcore_dsl.kernels.host.operands import FAST

BLOCK = 2048  # rows of the product that are checked at once
CHECKED = 2 * 4096**3  # operations: of larger products, rows are sampled
ROWS = 256
MEMBERS = 8  # products of a batch that are checked
SLOPE = 1.13  # of GELU and of x sigmoid(x), at most


class NotThere(RuntimeError):
    """`kernels` has no such function yet."""


def entry(name: str) -> Any:
    found = getattr(kernels, name, None)
    if not callable(found):  # nothing, or a module of that name
        raise NotThere(f"not there: kernels.{name} does not exist yet")
    return found


# Ours


def ours(data: Operands) -> Launch:
    return KINDS[data.case.kind](data)


def plain(data: Operands) -> Launch:
    asked = wishes(data.case)

    def launch(i: int) -> None:
        kernels.gemm(data.a[i], data.b[i], out=data.d[i], **asked)

    return launch


def wishes(case: Case) -> dict[str, Any]:
    """What gemm is asked for beside the operands."""
    fast = case.dtype == "e4m3" and not case.precise
    return {"family": case.family or None, "accumulate": FAST if fast else None}


def grouped(data: Operands) -> Launch:
    call = storing(entry("grouped_gemm"), data)
    return lambda i: call(i, data.a[i], data.b[i], data.offsets)


def gelu(data: Operands) -> Launch:
    bias = data.bias.expand(data.case.M, data.case.N)

    def launch(i: int) -> None:
        kernels.gemm(data.a[i], data.b[i], bias, out=data.d[i], epilogue=tanh_gelu)

    return launch


def tanh_gelu(value, row, col):  # type: ignore[no-untyped-def]  # in the kernel language
    """GELU by the tanh formula, as cuBLASLt has it."""
    inner = value * (0.7978845608028654 + 0.035677408136300125 * value * value)
    return 0.5 * value * (1.0 + tc.tanh(inner))


def swiglu(data: Operands) -> Launch:
    call, N = storing(entry("swiglu"), data), data.case.N
    return lambda i: call(i, data.a[i], data.b[i][:, :N], data.b[i][:, N:])


def sparse(data: Operands) -> Launch:
    packed = [kernels.compress(a) for a in data.a]

    def launch(i: int) -> None:
        kernels.gemm(packed[i], data.b[i], out=data.d[i])

    return launch


def storing(function: Any, data: Operands) -> Callable[..., None]:
    """call(i, ...) writes to D of set i, or puts the returned array there."""
    if "out" in signature(function).parameters:
        return lambda i, *operands: function(*operands, out=data.d[i])

    def call(i: int, *operands: Any) -> None:
        data.d[i] = function(*operands)

    return call


KINDS: dict[str, Callable[[Operands], Launch]] = {
    "plain": plain, "batched": plain, "grouped": grouped, "gelu": gelu, "swiglu": swiglu,
    "sparse": sparse,
}  # fmt: skip


# Right or wrong


def check(torch: Any, data: Operands, result: Any) -> tuple[float | None, bool]:
    """What became of the first A and B: largest error over the largest value, against float64,
    and whether all errors are allowed.

    An infinite error is None. Of large products, a sample of rows stands for all.
    """
    worst, largest, good = 0.0, 0.0, True
    for part, a, b, d in parts(data, result):
        wide = b.to(torch.float64)
        size = wide.abs()
        for block in blocks(torch, part):
            rows = taken(torch, a, block).to(torch.float64)
            exact, allowed = judge(torch, data, rows @ wide, rows.abs() @ size)
            error = (d[block].to(torch.float64) - exact).abs()
            good &= bool((error <= allowed).all())  # false for NaN
            worst = max(worst, float(error.nan_to_num(nan=float(torch.inf)).max()))
            largest = max(largest, float(exact.abs().max()))
    return relative_error(worst, largest), good


def parts(data: Operands, d: Any) -> Iterator[tuple[Case, Any, Any, Any]]:
    """Products of two matrices that the first set consists of; some of a batch."""
    case, a, b = data.case, data.a[0], data.b[0]
    if case.rows:
        for group, (begin, end) in enumerate(data.bounds):
            yield sized(case, end - begin), a[begin:end], b[group], d[begin:end]
    elif case.batch > 1:
        for i in range(0, case.batch, max(1, case.batch // MEMBERS)):
            yield sized(case, case.M), a[i], b[i], d[i]
    else:
        yield case, a, b, d[: case.M, : case.N]  # a rival may have padded it


def sized(case: Case, M: int) -> Case:
    """A plain product of M rows, as large as a part of `case`."""
    return Case(case.dtype, M, case.N, case.K, case.layout)


def judge(torch: Any, data: Operands, exact: Any, magnitudes: Any) -> tuple[Any, Any]:
    """What the kind makes of exact products, and the error that rounding explains.

    A rival that is not fused rounds the product first, which the error of it allows for.
    """
    case = data.case
    allowed = case.allowed_error(magnitudes, exact)
    unit = STORED[case.out.name]
    if case.kind == "gelu":
        exact = exact + data.bias.to(torch.float64)
        allowed = allowed + 2 * unit * exact.abs()
        found = torch.nn.functional.gelu(exact, approximate="tanh")
        return found, SLOPE * allowed + 2 * unit * found.abs()
    if case.kind == "swiglu":
        gate, up = exact.chunk(2, dim=-1)
        gate_error, up_error = allowed.chunk(2, dim=-1)
        opened = torch.nn.functional.silu(gate)
        error = SLOPE * gate_error * (up.abs() + up_error) + opened.abs() * up_error
        return opened * up, error + 4 * unit * (opened * up).abs()
    return exact, allowed


def blocks(torch: Any, case: Case) -> Iterator[Any]:
    """Indices of the rows that are checked: all, or a random one in every M / ROWS."""
    if case.operations <= CHECKED or case.M <= ROWS:
        yield from (slice(start, start + BLOCK) for start in range(0, case.M, BLOCK))
        return
    edges = torch.linspace(0, case.M, ROWS + 1, dtype=torch.float64).floor()
    generator = torch.Generator("cpu").manual_seed(case.M)
    places = torch.rand(ROWS, dtype=torch.float64, generator=generator)
    yield (edges[:-1] + places * edges.diff()).long()


def taken(torch: Any, x: Any, rows: Any) -> Any:
    """Rows of a matrix; torch does not index fp8 everywhere, bytes it does."""
    return x.view(torch.uint8)[rows].view(x.dtype) if x.element_size() == 1 else x[rows]
