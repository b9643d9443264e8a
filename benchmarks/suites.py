"""Fixed lists of products, in groups whose geometric means say more than one over all would."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from benchmarks.gemm_cases import COMMON, LAYOUTS, Case, Size

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
LAYOUT_SIZE: Size = (4096, 4096, 4096)
EXPERTS, LEAST_ROWS, MOST_ROWS = 32, 16, 2048


def squares(*sides: int) -> tuple[Size, ...]:
    return tuple((n, n, n) for n in sides)


def expert_rows(count: int = EXPERTS, most: int = MOST_ROWS, seed: int = 0) -> tuple[int, ...]:
    """Rows of each expert: the least, the most, and between them uniform ones of a fixed seed."""
    draw = random.Random(seed)
    least = min(LEAST_ROWS, most)
    inner = [draw.randint(least, most) for _ in range(count - 2)]
    return (least, *inner, most)


def group(
    name: str, dtype: str, sizes: Sequence[Size], layouts: Sequence[str] = (COMMON,),
    family: str = "", **traits: Any,
) -> list[Case]:  # fmt: skip
    return [
        Case(dtype, *size, layout, family, f"{name} {dtype}", **traits)
        for size in sizes
        for layout in layouts
    ]


def experts(N: int, K: int, most: int = MOST_ROWS) -> Case:
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
        *group("square", "f64", LARGE[:4]),
        *group("skinny", "bf16", [(m, *nk) for nk in SKINNY_WEIGHTS for m in SKINNY_ROWS]),
        *group("odd", "bf16", ODD),
        *group("batched", "bf16", squares(512), kind="batched", batch=64),
        experts(4096, 2048),
        *group("bias + GELU", "bf16", FUSED, kind="gelu"),
        *group("SwiGLU", "bf16", FUSED, kind="swiglu"),
        *(
            case
            for dtype in ("bf16", "f16", "e4m3", "s8")
            for case in group("sparse", dtype, squares(4096, 8192), kind="sparse")
        ),
        *group("layout", "bf16", [LAYOUT_SIZE], [x for x in LAYOUTS if x != COMMON]),
        *group("mma.sync", "bf16", [LAYOUT_SIZE], family="sm80"),
    ]
}
# What the geometric mean of the reference's time over ours should reach.
AIMS = {
    "square bf16": 1.0, "square f16": 1.0, "model bf16": 1.02, "square e4m3": 1.0,
    "model e4m3": 1.0, "square precise e4m3": 1.0, "model precise e4m3": 1.0, "square s8": 1.0,
    "square tf32": 1.05, "square f64": 0.97, "skinny bf16": 1.1, "odd bf16": 3.0,
    "batched bf16": 1.1, "grouped bf16": 1.1, "bias + GELU bf16": 1.2, "SwiGLU bf16": 1.2,
}  # fmt: skip


def cases(
    suite: str, groups: Sequence[str] = (), dtypes: Sequence[str] = (), sizes: Sequence[Size] = ()
) -> list[Case]:
    """The suite's cases, of groups that contain one of the given texts and of these types.

    With `sizes`, each group has these instead of its own; a group's M is the most rows that an
    expert may have.
    """
    found = [
        case
        for case in SUITES[suite]
        if (not groups or any(part.lower() in case.group.lower() for part in groups))
        and (not dtypes or case.dtype in dtypes)
    ]
    if not found:
        names = ", ".join(dict.fromkeys(case.group for case in SUITES[suite]))
        raise ValueError(f"the suite has no such cases; its groups are {names}")
    if not sizes:
        return found
    return list(dict.fromkeys(resized(case, size) for case in found for size in sizes))


def resized(case: Case, size: Size) -> Case:
    M, N, K = size
    rows = expert_rows(len(case.rows), M) if case.rows else ()
    return replace(case, M=sum(rows) or M, N=N, K=K, rows=rows)


def in_turn(found: Sequence[Case]) -> list[Case]:
    """One case of each group or type after the other: a run cut short has something of each."""
    kinds: dict[str, list[Case]] = {}
    for case in found:
        kinds.setdefault(case.group or case.dtype, []).append(case)
    columns = zip_longest(*kinds.values())
    return [case for column in columns for case in column if case is not None]
