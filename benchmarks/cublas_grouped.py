"""cuBLAS' grouped GEMM through ctypes: each group of rows of A has its own B."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, byref, c_float, c_int
from ctypes import c_void_p as pointer
from typing import Any

from benchmarks.cublaslt import OP_N, OP_T, TYPES, Library, shared_library, version_text

_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cublasCreate_v2": (POINTER(pointer),),
    "cublasGetVersion_v2": (pointer, POINTER(c_int)),
    "cublasSetStream_v2": (pointer, pointer),
    "cublasGemmGroupedBatchedEx": (
        pointer, *[pointer] * 5,  # handle; transposes, M, N, K of each group
        pointer, pointer, c_int, pointer,  # alpha, addresses of A, type, leading dimensions
        pointer, c_int, pointer,  # B
        pointer, pointer, c_int, pointer,  # beta, C
        c_int, pointer, c_int,  # groups, GEMMs in each, compute type
    ),
}  # fmt: skip


def load() -> Any:
    """CUDA 12.5 or later has the function."""
    return shared_library("cublas", "cuBLAS")


class Cublas(Library):
    def __init__(self) -> None:
        super().__init__(load(), _PROTOTYPES, "cublasCreate_v2")

    @property
    def version(self) -> str:
        number = c_int()
        self.call("cublasGetVersion_v2", self.handle, byref(number))
        return version_text(number.value)


class GroupedMatmul:
    """D (rows x N) = A (rows x K) B for each group, B with K contiguous.

    As in cublaslt.py, D' = B' A' of column-major matrices. Calls take device arrays of the groups'
    addresses, and a stream.
    """

    def __init__(self, library: Cublas, dtype: str, rows: Sequence[int], N: int, K: int) -> None:
        groups, types = len(rows), TYPES[dtype]
        self._library, self._groups, self._types = library, groups, types
        ints = c_int * groups
        self._transposes = ints(*[OP_T] * groups), ints(*[OP_N] * groups)
        self._sizes = ints(*[N] * groups), ints(*rows), ints(*[K] * groups)
        self._ld, self._ld_of_d = ints(*[K] * groups), ints(*[N] * groups)
        self._one, self._zero = (c_float * groups)(*[1] * groups), (c_float * groups)()
        self._gemms = ints(*[1] * groups)

    def __call__(self, a: int, b: int, d: int, stream: int) -> None:
        call, types = self._library.call, self._types
        call("cublasSetStream_v2", self._library.handle, stream)
        call(
            "cublasGemmGroupedBatchedEx", self._library.handle, *self._transposes, *self._sizes,
            self._one, b, types.operand, self._ld, a, types.operand, self._ld,
            self._zero, d, types.result, self._ld_of_d,
            self._groups, self._gemms, types.compute,
        )  # fmt: skip
