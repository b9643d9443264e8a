"""GEMM problems whose results must be the same bits on GPU and CPU."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import AmpereConfig, HopperConfig

DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "f32": np.dtype(np.float32),
    "s8": np.dtype(np.int8),
    "f64": np.dtype(np.float64),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
MMA_DTYPES = ("f16", "bf16", "tf32", "s8", "f64")
SIZES = (
    (128, 128, 192),
    (100, 77, 50),
    (33, 65, 129),
    (1, 1, 1),
    (1, 37, 5),
    (64, 200, 96),
    (7, 9, 1),
    (130, 24, 256),
)


# Where the choice may change, how K is divided was recorded.
RECORDED_CONFIGS = {
    "f64": AmpereConfig(BM=32, BN=32, BK=32, WM=16, WN=16, stages=3, split_k=2),
    "tf32": AmpereConfig(BM=32, BN=32, BK=32, WM=16, WN=16, stages=4),
    "f32": AmpereConfig(BM=32, BN=32, BK=32, WM=16, WN=16, stages=4),
}
GROUPS, BATCH = (0, 1, 70, 0, 129, 64), 3  # rows of groups; matrices of a batch


@dataclass(frozen=True)
class Case:
    """One problem. layouts: "n" row-major or "t" column-major, for A and B.

    kind: "" of `gemm`, "sparse" where A is pruned first, "scaled" by blocks, "requantised",
    "epilogue" with a function, "batched" (A and B, or one of them: "batched A", "batched B"),
    "grouped" (rows in `GROUPS`), "swiglu", "row_reductions" (these are the result).
    config: of the wgmma kernels, where it is not left to them.
    """

    dtype: str
    M: int
    N: int
    K: int
    layouts: str
    alpha: float = 1
    beta: float = 0
    accumulate: str = ""
    family: str = "sm80"
    cluster_m: int = 1
    kind: str = ""
    config: HopperConfig | AmpereConfig | None = None

    @property
    def name(self) -> str:
        if self.config is not None:
            parts = ["config", self.kind, self.dtype, f"{self.M}x{self.N}x{self.K}", self.layouts]
            default = vars(type(self.config)())
            changed = [f"{k} {v}" for k, v in vars(self.config).items() if v != default[k]]
            changed += [f"sum {self.accumulate}"] * (self.accumulate in ("f16", "f32"))
            return " ".join([*filter(None, parts), f"beta {self.beta}", *changed])
        if self.family == "sm90":
            extra = f" cluster {self.cluster_m}" if self.cluster_m > 1 else ""
            extra += " sum f32" if self.accumulate == "f32" else ""
            kind = f"{self.kind} {self.dtype}" if self.kind else self.dtype
            return f"wgmma {kind} {self.M}x{self.N}x{self.K} {self.layouts} beta {self.beta}{extra}"
        extra = f" alpha {self.alpha} beta {self.beta}" if self.beta else ""
        extra += f" sum {self.accumulate}" if self.accumulate else ""
        return f"{self.dtype} {self.M}x{self.N}x{self.K} {self.layouts}{extra}"


def _cases() -> list[Case]:
    cases = []
    layouts = ("nn", "nt", "tn", "tt")
    for dtype, (place, size) in itertools.product(MMA_DTYPES, enumerate(SIZES)):
        for layout in layouts if place < 3 else layouts[place % 4 : place % 4 + 1]:
            config = RECORDED_CONFIGS.get(dtype) if size == SIZES[-1] else None
            cases.append(Case(dtype, *size, layout, config=config))
        if place < 2:
            cases.append(Case(dtype, *size, "nt", alpha=3, beta=-2))
    for size in SIZES[:3]:
        cases.append(Case("f16", *size, "nt", accumulate="f16"))
    return cases + _wgmma_cases()


def _wgmma_cases() -> list[Case]:
    """Problems whose lines start at multiples of 16 bytes, as TMA wants them."""
    cases = []
    for M, N, K in ((128, 256, 128), (200, 72, 144), (16, 512, 256)):
        for dtype in ("bf16", "f16", "tf32", "s8", "e4m3"):
            accumulate = "fast" if dtype == "e4m3" else ""
            cases.append(Case(dtype, M, N, K, "nt", accumulate=accumulate, family="sm90"))
        for layouts in ("nn", "tn", "tt"):
            cases.append(Case("bf16", M, N, K, layouts, family="sm90"))
        cases.append(Case("bf16", M, N, K, "nt", alpha=3, beta=-2, family="sm90"))
        cases.append(Case("bf16", 2 * M, N, K, "nt", family="sm90", cluster_m=2))
    return cases + _more_wgmma_cases()


def _more_wgmma_cases() -> list[Case]:
    """fp8 promoted to f32, sparse, block-scaled, and s8 rounded back."""
    cases = []

    def add(dtype: str, *size: int, layouts: str = "nt", **more: Any) -> None:
        cases.append(Case(dtype, *size, layouts, family="sm90", **more))

    for size in ((128, 256, 384), (200, 80, 144)):
        for dtype in ("e4m3", "e5m2"):
            add(dtype, *size, accumulate="f32")
            add(dtype, *size, kind="scaled")
        for dtype in ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8"):
            add(dtype, *size, kind="sparse")
        add("s8", *size, kind="requantised")
    add("e4m3", 200, 80, 144, accumulate="f32", alpha=3, beta=-2)
    add("f16", 200, 80, 144, layouts="nn", kind="sparse", alpha=3, beta=-2)
    add("bf16", 300, 80, 144, kind="sparse", cluster_m=2)
    return cases


def _config_cases() -> list[Case]:
    """What `HopperConfig` offers: tiles in turn, clusters, split and few rows, small on purpose."""
    cases = []

    def add(
        dtype: str,
        *size: int,
        layouts: str = "nt",
        kind: str = "",
        beta: float = 0,
        accumulate: str = "",
        **of: Any,
    ) -> None:
        config = HopperConfig(**{"BN": 64, "stages": 3, **of})
        accumulate = accumulate or ("fast" if dtype == "e4m3" else "")
        cases.append(Case(dtype, *size, layouts, 1, beta, accumulate, "sm90", kind=kind, config=config))

    for dtype in ("bf16", "f16", "tf32", "s8", "e4m3"):
        add(dtype, 300, 264, 208, BN=128, pingpong=True)
    add("bf16", 1040, 656, 136, BM=64, BN=32, pingpong=True, cluster_n=2)  # more tiles than blocks
    add("bf16", 1040, 656, 136, BM=64, BN=32, cluster_m=2, cluster_n=2, stages=4)
    add("bf16", 296, 264, 208, BN=128, pingpong=True, cluster_n=2, layouts="tn", beta=-2)
    add("bf16", 300, 264, 72, BN=256, stages=2, BM=64, pingpong=True, cluster_m=2)
    add("f16", 300, 264, 8, pingpong=True, cluster_n=2, stages=2, layouts="nn")
    add("bf16", 200, 72, 328, cluster_n=2, mma_in_flight=0)
    add("bf16", 200, 72, 328, cluster_n=2, layouts="tt", BN=128)
    add("bf16", 200, 136, 328, cluster_n=4)
    for dtype in ("bf16", "tf32", "s8"):
        add(dtype, 200, 136, 528, split_k=2)
    add("bf16", 72, 136, 1096, BM=64, split_k=4, stages=4, beta=3)
    add("bf16", 72, 136, 40, BM=64, split_k=2)  # one block of two has nothing to sum
    add("bf16", 200, 72, 328, k_slabs=2)
    add("bf16", 200, 72, 328, BM=64, k_slabs=3, layouts="nn", stages=2)
    for dtype in ("bf16", "tf32", "s8"):
        add(dtype, 100, 77, 144)  # lines of D that TMA cannot write
    add("f16", 100, 201, 144, pingpong=True, beta=-2)
    add("bf16", 100, 72, 144, kind="batched", pingpong=True)
    add("bf16", 100, 77, 144, kind="batched", beta=-2)
    add("bf16", 100, 72, 144, kind="batched A", cluster_n=2)
    add("f16", 104, 72, 144, kind="batched B", layouts="tn", split_k=2)
    for kind in ("grouped", "swiglu"):
        add("bf16", sum(GROUPS), 136, 144, kind=kind, BN=128, pingpong=True, cluster_n=2)
        add("f16", sum(GROUPS), 136, 208, kind=kind, BM=64)
    add("bf16", sum(GROUPS), 136, 144, kind="grouped", layouts="nn")
    add("bf16", 100, 136, 144, kind="epilogue", pingpong=True)
    for more in ({}, {"pingpong": True, "cluster_n": 2}, {"split_k": 2}):
        add("f16", 200, 136, 208, accumulate="f16", **more)
    for dtype in ("bf16", "tf32", "s8", "e4m3"):
        add(dtype, 300, 392, 208, BN=192, pingpong=True, cluster_m=2)
    add("bf16", 300, 392, 208, BN=176, pingpong=True, cluster_n=2, beta=-2)
    for kind, pair in (("grouped", "cluster_n"), ("swiglu", "cluster_m")):
        add("bf16", sum(GROUPS), 200, 144, kind=kind, BN=192, pingpong=True, **{pair: 2})
    add("bf16", 300, 328, 208, BM=64, BN=160, cluster_m=4)
    add("bf16", 300, 328, 208, BN=96, cluster_m=2, cluster_n=2)
    add("bf16", 128, 264, 328, BM=64, BN=128, cluster_m=2)
    for BN in (192, 208):
        add("e4m3", 200, 216, 400, accumulate="f32", BN=BN, cluster_n=2)
    add("bf16", 264, 136, 144, kind="batched", pingpong=True, cluster_m=2, group_m=1)
    for more in ({"pingpong": True}, {"split_k": 2}):
        add("bf16", 200, 136, 528, kind="row_reductions", **more)
    return cases


def _f32_cases() -> list[Case]:
    """f32 with the accuracy of f32, in both families; the operands have all of their bits."""
    cases = [
        Case("f32", *size, layouts, config=RECORDED_CONFIGS["f32"] if size == SIZES[0] else None)
        for size in (SIZES[0], (100, 77, 50), (1, 37, 5))
        for layouts in ("nn", "nt", "tn", "tt")
    ]
    parts = HopperConfig(BM=64, BN=32, stages=8, k_slabs=2, split_k=2)
    cases += [
        Case("f32", *size, layouts, family="sm90", config=parts)
        for size in ((128, 256, 128), (200, 77, 150))
        for layouts in ("nn", "nt", "tn", "tt")
    ]
    cases.append(Case("f32", 100, 77, 50, "nt", alpha=3, beta=-2))
    cases.append(Case("f32", 200, 77, 150, "nt", alpha=3, beta=-2, family="sm90", config=parts))
    small = AmpereConfig(BM=64, BN=32, WM=32, WN=16, split_k=3)
    cases.append(Case("f32", 100, 77, 500, "nn", beta=-2, config=small))
    deep = HopperConfig(BN=64, stages=2, k_slabs=2)
    for kind, more in (
        ("", {"split_k": 4}),
        ("", {"BN": 192, "cluster_m": 2}),
        ("", {"BN": 256, "cluster_n": 2}),
        ("batched", {}),
        ("batched A", {}),
        ("row_reductions", {}),
        ("epilogue", {}),
    ):
        config = replace(deep, **more)
        cases.append(Case("f32", 200, 300, 400, "nn", family="sm90", kind=kind, config=config))
    return cases


CASES = _cases() + _config_cases() + _f32_cases()

GOLDEN = Path(__file__).parent / "golden" / "sm_90a" / "gemm_kernels.json"
RECORDS: dict[str, Any] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


OUTPUTS = {"s8": np.dtype(np.int32), "e4m3": DTYPES["bf16"], "e5m2": DTYPES["bf16"]}


def operands(case: Case) -> tuple[Any, Any, Any]:
    """A, B and C; wide exponents in half of the problems, so that sums cancel and truncate."""
    rng = np.random.default_rng(seed_of(case))

    def matrix(*shape: int, order: str, dtype: Any) -> Any:
        if dtype.kind == "i":
            numbers = rng.integers(-128, 128, shape).astype(dtype)
        else:
            numbers = rng.standard_normal(shape)
            if (case.M + case.N) % 2:
                numbers = numbers * 2.0 ** rng.integers(-6, 7, shape)
            numbers = numbers.astype(dtype)
        return lines_along(numbers, -2 if order == "t" else -1)

    dtype, (of_a, of_b, of_c) = DTYPES[case.dtype], batches(case)
    a = matrix(*of_a, case.M, case.K, order=case.layouts[0], dtype=dtype)
    b = matrix(*of_b, case.K, case.N, order=case.layouts[1], dtype=dtype)
    out = OUTPUTS.get(case.dtype, dtype)
    c = matrix(*of_c, case.M, case.N, order="n", dtype=out) if case.beta else None
    return a, b, c


def batches(case: Case) -> tuple[tuple[int, ...], ...]:
    """The leading axes of A, B and C."""
    if case.kind == "grouped":
        return (), (len(GROUPS),), ()
    if case.kind == "swiglu":
        return (), (2,), ()
    if not case.kind.startswith("batched"):
        return (), (), ()
    of_a, of_b = ((BATCH,) if case.kind in ("batched", f"batched {x}") else () for x in "AB")
    return of_a, of_b, (BATCH,)


def lines_along(x: Any, axis: int) -> Any:
    """A copy with contiguous lines along the last axis or the one before it."""
    return np.ascontiguousarray(x.swapaxes(axis, -1)).swapaxes(axis, -1)


def scales(case: Case, *shape: int) -> np.ndarray:
    """Around 2 to the minus 10th."""
    return np.random.default_rng(seed_of(case) + 1).uniform(2e-4, 2e-3, shape).astype(np.float32)


def seed_of(case: Case) -> int:
    """The recorded seed, so that a case may be renamed; of a new case a hash of its name."""
    if case.name in RECORDS:
        return int(RECORDS[case.name]["seed"])
    return int.from_bytes(hashlib.sha256(case.name.encode()).digest()[:4], "little")


def run_case(case: Case, target: str, arch: str | None = None) -> np.ndarray:
    a, b, c = operands(case)
    accumulate = {"f16": tc.f16, "f32": tc.f32, "fast": "fast"}.get(case.accumulate)
    depths, blocks = -(-case.K // 128), -(-case.N // 128)
    with tc.target(target, arch):
        if case.kind == "scaled":
            left, right = scales(case, case.M, depths), scales(case, depths, blocks)
            return kernels.scaled_gemm(a, b, left, right)
        if case.kind == "requantised":
            return kernels.requantised_gemm(a, b, scales(case, case.N), zero=3)
        if case.kind == "grouped":
            ends = np.cumsum((0, *GROUPS), dtype=np.int32)
            return kernels.grouped_gemm(a, b, ends, config=case.config)
        if case.kind == "swiglu":
            return kernels.swiglu(a, *b, config=case.config)
        if case.kind == "sparse":
            a = kernels.compress(a, prune=True)
        precision = "tf32" if case.dtype == "tf32" else None
        cluster = HopperConfig(cluster_m=case.cluster_m) if case.cluster_m > 1 else None
        if case.kind == "row_reductions":
            return kernels.gemm(a, b, config=case.config, row_reductions=ROW_REDUCTIONS, precision=precision)[
                1
            ]
        return kernels.gemm(
            a,
            b,
            c,
            alpha=case.alpha,
            beta=case.beta,
            accumulate=accumulate,
            family=case.family,
            config=case.config or cluster,
            epilogue=with_epilogue if case.kind == "epilogue" else None,
            precision=precision,
        )


def square(value):
    return value * value


ROW_REDUCTIONS = (kernels.RowReduction("sum", transform=square), kernels.RowReduction("max"))


def with_epilogue(value, row, col):
    """A function of each result, in the kernel language, with approximations of the hardware."""
    return value * tc.rcp(tc.exp(-value) + 1) + tc.tanh(value) * tc.select(row > col, 2.0, -1.0)


def digest(result: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(result).view(np.uint8).tobytes()).hexdigest()
