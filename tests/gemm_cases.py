"""GEMM problems whose results must be the same bits on GPU and CPU."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import kernels
import tensorcore_dsl as tc
from kernels import ring

DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "s8": np.dtype(np.int8),
    "f64": np.dtype(np.float64),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
MMA_DTYPES = ("f16", "bf16", "tf32", "s8", "f64")
SIZES = ((128, 128, 192), (100, 77, 50), (33, 65, 129), (1, 1, 1), (1, 37, 5), (64, 200, 96), (7, 9, 1), (130, 24, 256))


@dataclass(frozen=True)
class Case:
    """One problem. layouts: "n" row-major or "t" column-major, for A and B.

    kind: "" of `gemm`, "sparse" where A is pruned first, "scaled" by blocks, "requantised".
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
    cluster: int = 1
    kind: str = ""

    @property
    def name(self) -> str:
        if self.family == "sm90":
            extra = f" cluster {self.cluster}" if self.cluster > 1 else ""
            extra += " sum f32" if self.accumulate == "f32" else ""
            kind = f"{self.kind} {self.dtype}" if self.kind else self.dtype
            return f"wgmma {kind} {self.M}x{self.N}x{self.K} {self.layouts} beta {self.beta}{extra}"
        extra = f" alpha {self.alpha} beta {self.beta}" if self.beta else ""
        extra += f" sum {self.accumulate}" if self.accumulate else ""
        return f"{self.dtype} {self.M}x{self.N}x{self.K} {self.layouts}{extra}"


def _cases() -> list[Case]:
    found = []
    layouts = ("nn", "nt", "tn", "tt")
    for dtype, (place, size) in itertools.product(MMA_DTYPES, enumerate(SIZES)):
        for layout in (layouts if place < 3 else layouts[place % 4 : place % 4 + 1]):
            found.append(Case(dtype, *size, layout))
        if place < 2:
            found.append(Case(dtype, *size, "nt", alpha=3, beta=-2))
    for size in SIZES[:3]:
        found.append(Case("f16", *size, "nt", accumulate="f16"))
    return found + _wgmma_cases()


def _wgmma_cases() -> list[Case]:
    """Problems whose lines start at multiples of 16 bytes, as TMA wants them."""
    found = []
    for M, N, K in ((128, 256, 128), (200, 72, 144), (16, 512, 256)):
        for dtype in ("bf16", "f16", "tf32", "s8", "e4m3"):
            accumulate = "fast" if dtype == "e4m3" else ""
            found.append(Case(dtype, M, N, K, "nt", accumulate=accumulate, family="sm90"))
        for layouts in ("nn", "tn", "tt"):
            found.append(Case("bf16", M, N, K, layouts, family="sm90"))
        found.append(Case("bf16", M, N, K, "nt", alpha=3, beta=-2, family="sm90"))
        found.append(Case("bf16", 2 * M, N, K, "nt", family="sm90", cluster=2))
    return found + _more_wgmma_cases()


def _more_wgmma_cases() -> list[Case]:
    """fp8 promoted to f32, sparse, block-scaled, and s8 rounded back."""
    found = []

    def add(dtype: str, *size: int, layouts: str = "nt", **more: Any) -> None:
        found.append(Case(dtype, *size, layouts, family="sm90", **more))

    for size in ((128, 256, 384), (200, 80, 144)):
        for dtype in ("e4m3", "e5m2"):
            add(dtype, *size, accumulate="f32")
            add(dtype, *size, kind="scaled")
        for dtype in ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8"):
            add(dtype, *size, kind="sparse")
        add("s8", *size, kind="requantised")
    add("e4m3", 200, 80, 144, accumulate="f32", alpha=3, beta=-2)
    add("f16", 200, 80, 144, layouts="nn", kind="sparse", alpha=3, beta=-2)
    add("bf16", 300, 80, 144, kind="sparse", cluster=2)
    return found


CASES = _cases()


OUTPUTS = {"s8": np.dtype(np.int32), "e4m3": DTYPES["bf16"], "e5m2": DTYPES["bf16"]}


def operands(case: Case) -> tuple[Any, Any, Any]:
    """A, B and C; wide exponents in half of the problems, so that sums cancel and truncate."""
    rng = np.random.default_rng(hash_of(case))

    def matrix(rows: int, cols: int, order: str, dtype: Any) -> Any:
        if dtype.kind == "i":
            found = rng.integers(-128, 128, (rows, cols)).astype(dtype)
        else:
            found = rng.standard_normal((rows, cols))
            if (case.M + case.N) % 2:
                found = found * 2.0 ** rng.integers(-6, 7, (rows, cols))
            found = found.astype(dtype)
        return np.asfortranarray(found) if order == "t" else np.ascontiguousarray(found)

    dtype = DTYPES[case.dtype]
    a = matrix(case.M, case.K, case.layouts[0], dtype)
    b = matrix(case.K, case.N, case.layouts[1], dtype)
    out = OUTPUTS.get(case.dtype, dtype)
    return a, b, matrix(case.M, case.N, "n", out) if case.beta else None


def scales(case: Case, *shape: int) -> np.ndarray:
    """Around 2 to the minus 10th."""
    return np.random.default_rng(hash_of(case) + 1).uniform(2e-4, 2e-3, shape).astype(np.float32)


def hash_of(case: Case) -> int:
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
        if case.kind == "sparse":
            a = kernels.compress(a, prune=True)
        return kernels.gemm(
            a, b, c, alpha=case.alpha, beta=case.beta, accumulate=accumulate, family=case.family,
            config=ring.Config(cluster=case.cluster) if case.cluster > 1 else None,
        )  # fmt: skip


def digest(result: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(result).view(np.uint8).tobytes()).hexdigest()
