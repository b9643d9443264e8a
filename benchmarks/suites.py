"""Fixed lists of products, in groups whose geometric means say more than one over all would."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

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
LAYOUT_SIZE: Size = (4096, 4096, 4096)


def squares(*sides: int) -> tuple[Size, ...]:
    return tuple((n, n, n) for n in sides)


def group(
    name: str, dtype: str, sizes: Sequence[Size], layouts: Sequence[str] = (COMMON,),
    family: str = "",
) -> list[Case]:  # fmt: skip
    return [
        Case(dtype, *size, layout, family, f"{name} {dtype}")
        for size in sizes
        for layout in layouts
    ]


LARGE = squares(2048, 4096, 6144, 8192, 12288, 16384)
SUITES: dict[str, list[Case]] = {
    "hopper": [
        *group("square", "bf16", LARGE),
        *group("square", "f16", LARGE),
        *group("square", "e4m3", LARGE[:4]),
        *group("square", "s8", LARGE[:4]),
        *group("square", "tf32", squares(2048, 4096, 8192)),
        *group("square", "f64", squares(2048, 4096)),
        *group("model", "bf16", MODELS),
        *group("model", "e4m3", MODELS),
        *group("skinny", "bf16", [(m, *nk) for nk in SKINNY_WEIGHTS for m in SKINNY_ROWS]),
        *group("odd", "bf16", ODD),
        *group("layout", "bf16", [LAYOUT_SIZE], [x for x in LAYOUTS if x != COMMON]),
        *group("mma.sync", "bf16", [LAYOUT_SIZE], family="sm80"),
    ]
}


def cases(suite: str, groups: Sequence[str] = (), dtypes: Sequence[str] = ()) -> list[Case]:
    """The suite's cases, of groups that contain one of the given texts and of these types."""
    found = [
        case
        for case in SUITES[suite]
        if (not groups or any(part in case.group for part in groups))
        and (not dtypes or case.dtype in dtypes)
    ]
    if not found:
        names = ", ".join(dict.fromkeys(case.group for case in SUITES[suite]))
        raise ValueError(f"the suite has no such cases; its groups are {names}")
    return found


def in_turn(found: Sequence[Case]) -> list[Case]:
    """One case of each group or type after the other: a run cut short has something of each."""
    kinds: dict[str, list[Case]] = {}
    for case in found:
        kinds.setdefault(case.group or case.dtype, []).append(case)
    columns = zip_longest(*kinds.values())
    return [case for column in columns for case in column if case is not None]
