"""The assembler has nothing to say of our own kernels, in any configuration that `plan` chooses.

A spilled register, serialised `wgmma` or ignored `setmaxnreg` is an error here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.host.planning import plan
from tests.assembler import assert_clean

pytest.importorskip("cuda.core", reason="needs nvJitLink")
pytestmark = [pytest.mark.filterwarnings("error::tensorcore_dsl.PerformanceWarning"), pytest.mark.thorough]

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
ANY, K_MAJOR = ("CC", "CF", "FC", "FF"), ("CF",)  # orders of A and B
# Type of A and B, of D, accumulation (or precision), orders.
SM90 = [
    (BF16, BF16, None, ANY), (BF16, np.float32, None, K_MAJOR), (np.float16, np.float16, None, K_MAJOR),
    (np.float32, np.float32, None, ANY), (np.float32, np.float32, "tf32", K_MAJOR),
    (np.int8, np.int32, None, K_MAJOR), (E4M3, BF16, None, K_MAJOR),
    (E4M3, BF16, "fast", K_MAJOR), (E5M2, np.float32, None, K_MAJOR),
]  # fmt: skip
SM80 = [
    (BF16, BF16, None, ANY), (np.float16, np.float16, None, K_MAJOR),
    (np.float16, np.float16, tc.f16, K_MAJOR), (np.float32, np.float32, None, K_MAJOR),
    (np.float32, np.float32, "tf32", K_MAJOR),
    (np.int8, np.int32, None, K_MAJOR), (np.float64, np.float64, None, K_MAJOR),
]  # fmt: skip
F64 = (np.float64, np.float64, None, ANY)  # mma.sync has a kernel of its own for f64 on Hopper
SIZES = ((16, 4096), (64, 28672), (128, 1024), (128, 8192), (512, 512), (1024, 2048), (8192, 8192))


def name_of(case: tuple[Any, ...]) -> str:
    dtype, out, accumulate, _ = case
    return f"{np.dtype(dtype).name}-{np.dtype(out).name}" + (f"-{accumulate}" if accumulate else "")


def sums(how: Any) -> dict[str, Any]:
    """The option that asks for these accumulators, or this precision."""
    return {"precision" if how == "tf32" else "accumulate": how}


def chosen(case: tuple[Any, ...], family: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Each plan for the sizes once, and arguments. The arrays take address space alone.

    alpha and C take more registers, so that only the first orders are tried without. Orders change
    the loads of a tile: after the first, they are tried with the tiles of few rows and of many.
    """
    dtype, out, accumulate, orders = case
    seen = set()
    scaled = [(order, 2, 1) for order in orders[1:]] + [(orders[0], 1, 0)]
    tried = [*product(SIZES, [(orders[0], 2, 1)]), *product((SIZES[0], SIZES[-1]), scaled)]
    for (M, N), ((of_a, of_b), alpha, beta) in tried:
        a, b = np.empty((M, 1024), dtype, of_a), np.empty((1024, N), dtype, of_b)
        c, d = np.empty((M, N), out), np.empty((M, N), out)
        options = sums(accumulate)
        found = plan(a, b, c if beta else None, d, alpha=alpha, beta=beta, family=family, **options)
        if (found.kernel, found.options) not in seen:
            seen.add((found.kernel, found.options))
            number = int if dtype == np.int8 else float
            if found.partial_sums is not None:
                c = d = np.empty((found.config.split_k, M, N), found.partial_dtype.numpy)
            if found.split_operands:  # the kernel takes parts of f32, with K contiguous
                a, b = np.empty((M, 2048), dtype), np.empty((2048, N), dtype, "F")
            scalars = number(alpha), number(beta)
            yield found, (a, b, c if beta else d, d, *scalars, *found.workspace(a))


@cache
def takes(family: str, case: tuple[Any, ...]) -> bool:
    """Tell whether the family has such a product."""
    try:
        next(chosen(case, family))
    except tc.ArgumentError:
        return False
    return True


@pytest.mark.parametrize(
    ("family", "arch", "case"),
    [("sm90", "sm_90a", case) for case in SM90]
    + [("sm80", "sm_80", case) for case in SM80]
    + [("sm80", "sm_90a", F64)],
    ids=[f"sm90-{name_of(c)}" for c in SM90]
    + [f"sm80-{name_of(c)}" for c in SM80]
    + [f"sm80-sm_90a-{name_of(F64)}"],
)
def test_chosen_kernels_assemble_without_warnings(family, arch, case):
    if not takes(family, case):
        pytest.skip("the family does not multiply so")
    with tc.target("cpu", arch):
        plans = list(chosen(case, family))
    for chosen_plan, arguments in plans:
        used = chosen_plan.kernel.resources(*arguments, arch=arch, **dict(chosen_plan.options))
        assert_clean(used)


@pytest.mark.quick
def test_a_remark_is_an_error_here():
    @tc.kernel(max_registers=24)
    def spilling(x: tc.Array) -> None:
        values = [x[64 * i] for i in tc.static_range(32)]
        for _ in range(x.shape[0]):
            values = [tc.fma(values[i - 5], values[i - 11], values[i]) for i in range(32)]
        for i in tc.static_range(32):
            x[64 * i] = values[i]

    with pytest.raises(tc.PerformanceWarning, match="spilling: registers are spilled"):
        spilling.resources(np.zeros(2048, np.float32), arch="sm_80")


@pytest.mark.parametrize("case", SM90, ids=name_of)
def test_c_that_is_read_one_by_one_takes_no_registers_from_sums(case):
    """N is odd: no two neighbours of C lie at a multiple of their size."""
    dtype, out, accumulate, _ = case
    number = int if dtype == np.int8 else float
    for M, N in ((8192, 8191), (1024, 1023)):
        a, b = np.empty((M, 1024), dtype), np.empty((1024, N), dtype, "F")
        c, d = np.empty((M, N), out), np.empty((M, N), out)
        found = plan(a, b, c, d, alpha=2, beta=1, family="sm90", **sums(accumulate))
        given = (a, b, c, d, number(2), number(1))
        resources = found.kernel.resources(*given, arch="sm_90a", **dict(found.options))
        assert_clean(resources)
