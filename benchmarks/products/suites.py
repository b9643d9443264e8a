"""Fixed lists of GEMM problems in groups; each group gets a geometric mean."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from benchmarks.products.gemm_cases import COMMON, LAYOUTS, Case, Size, squares

MODELS: tuple[Size, ...] = (
    (4096, 4096, 14336),
    (8192, 28672, 8192),
    (4096, 6144, 4096),
    (16384, 1024, 8192),
    (8192, 8192, 512),
)
SKINNY_ROWS = (1, 8, 16, 32, 64, 128)
SKINNY_WEIGHTS = ((4096, 4096), (8192, 8192), (28672, 8192))  # N, K
ODD: tuple[Size, ...] = ((4095, 4097, 4099), (1000, 1000, 1000), (8193, 2501, 5008))
FUSED: tuple[Size, ...] = ((8192, 8192, 1024), (4096, 14336, 4096))
EXPERTS, MIN_ROWS, MAX_ROWS = 32, 16, 2048


def expert_rows(count: int = EXPERTS, most: int = MAX_ROWS) -> tuple[int, ...]:
    """Rows of each expert: the fewest, uniform random numbers of a fixed seed, the most."""
    draw = random.Random(0)
    least = min(MIN_ROWS, most)
    inner = [draw.randint(least, most) for _ in range(count - 2)]
    return (least, *inner, most)


def group(
    name: str,
    dtype: str,
    sizes: Sequence[Size],
    layouts: Sequence[str] = (COMMON,),
    family: str = "",
    **fields: Any,
) -> list[Case]:
    return [
        Case(dtype, *size, layout, family, f"{name} {dtype}", **fields)
        for size in sizes
        for layout in layouts
    ]


def experts(N: int, K: int, most: int = MAX_ROWS) -> Case:
    rows = expert_rows(most=most)
    return Case("bf16", sum(rows), N, K, group="grouped bf16", kind="grouped", rows=rows)


LARGE = squares(2048, 4096, 6144, 8192, 12288, 16384)
SUITES: dict[str, list[Case]] = {
    "hopper": [
        *group("square", "bf16", LARGE),
        *group("square", "f16", LARGE),
        *group("model", "bf16", MODELS),
        *group("square", "e4m3", LARGE),
        *group("model", "e4m3", MODELS),
        *group("square precise", "e4m3", LARGE, precise=True),
        *group("model precise", "e4m3", MODELS, precise=True),
        *group("square", "s8", LARGE),
        *group("square", "tf32", LARGE[:4]),
        *group("square", "f32", LARGE[:4]),
        *group("square", "f64", LARGE[:4]),
        *group("skinny", "bf16", [(m, *nk) for nk in SKINNY_WEIGHTS for m in SKINNY_ROWS]),
        *group("odd", "bf16", ODD),
        *group("batched", "bf16", squares(512), kind="batched", batch=64),
        experts(4096, 2048),
        *group("bias + GELU", "bf16", FUSED, kind="gelu"),
        *group("SwiGLU", "bf16", FUSED, kind="swiglu"),
        *group("sparse", "bf16", squares(4096, 8192), kind="sparse"),
        *group("sparse", "f16", squares(4096, 8192), kind="sparse"),
        *group("sparse", "e4m3", squares(4096, 8192), kind="sparse"),
        *group("sparse", "s8", squares(4096, 8192), kind="sparse"),
        *group("layout", "bf16", squares(4096), [x for x in LAYOUTS if x != COMMON]),
        *group("mma.sync", "bf16", squares(4096), family="sm80"),
    ]
}
# Goals for the geometric mean of the reference's time over ours.
GOALS = {
    "square bf16": 1.0, "square f16": 1.0, "model bf16": 1.02, "square e4m3": 1.0,
    "model e4m3": 1.0, "square precise e4m3": 1.0, "model precise e4m3": 1.0, "square s8": 1.0,
    "square tf32": 1.05, "square f32": 1.0, "square f64": 0.97, "skinny bf16": 1.1, "odd bf16": 3.0,
    "batched bf16": 1.1, "grouped bf16": 1.1, "bias + GELU bf16": 1.2, "SwiGLU bf16": 1.2,
}  # fmt: skip


def cases(
    suite: str, groups: Sequence[str] = (), dtypes: Sequence[str] = (), sizes: Sequence[Size] = ()
) -> list[Case]:
    """Select the suite's cases of these types, in groups whose names contain one of the texts.

    `sizes` replace the sizes of each group; M of a grouped GEMM is then the most rows of an expert.
    """
    chosen = [
        case
        for case in SUITES[suite]
        if (not groups or any(part.lower() in case.group.lower() for part in groups))
        and (not dtypes or case.dtype in dtypes)
    ]
    if not chosen:
        names = ", ".join(dict.fromkeys(case.group for case in SUITES[suite]))
        raise ValueError(f"the suite has no such cases; its groups are {names}")
    if not sizes:
        return chosen
    return list(dict.fromkeys(resized(case, size) for case in chosen for size in sizes))


def resized(case: Case, size: Size) -> Case:
    M, N, K = size
    rows = expert_rows(len(case.rows), M) if case.rows else ()
    return replace(case, M=sum(rows) or M, N=N, K=K, rows=rows)


def round_robin(chosen: Sequence[Case]) -> list[Case]:
    """One case of each group or type a round: a run that is cut short has results of each."""
    groups: dict[str, list[Case]] = {}
    for case in chosen:
        groups.setdefault(case.group or case.dtype, []).append(case)
    columns = zip_longest(*groups.values())
    return [case for column in columns for case in column if case is not None]
