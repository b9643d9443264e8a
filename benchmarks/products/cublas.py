"""cuBLASLt with any algorithm of its heuristic, and cuBLAS' grouped GEMM, through ctypes.

The libraries' matrices are column-major. A row-major D = A B is therefore D' = B' A' of the
column-major matrices in the same memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import POINTER, byref, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64
from ctypes import c_void_p as pointer
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

WORKSPACE = 256 * 2**20  # bytes
OFFERS = 32  # algorithms asked of the heuristic

# Values of cublasLt.h, cublas_api.h and library_types.h.
R_32F, R_64F, R_16F, R_8I, R_32I, R_16BF, R_E4M3 = 0, 1, 2, 3, 10, 14, 28
COMPUTE_32F, COMPUTE_64F, COMPUTE_32I, COMPUTE_32F_FAST_TF32 = 68, 70, 72, 77
OP_N, OP_T = 0, 1
DESC_TRANSA, DESC_TRANSB, DESC_EPILOGUE, DESC_BIAS, DESC_FAST_ACCUM = 3, 4, 7, 8, 25
EPILOGUE_GELU_BIAS = 36
LAYOUT_BATCH, LAYOUT_STRIDE = 5, 6
PREFERENCE_WORKSPACE, PREFERENCE_REDUCTIONS = 1, 3
REDUCE_IN_PLACE, REDUCE_IN_COMPUTE_TYPE = 1, 2  # not in D's type, as in our kernels
STATUS = {
    0: "SUCCESS", 1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR", 13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED",
    16: "LICENSE_ERROR",
}  # fmt: skip


class CublasError(RuntimeError):
    """A call of cuBLAS or cuBLASLt failed."""


class Unavailable(CublasError):
    """The library cannot be loaded."""


@dataclass(frozen=True)
class Types:
    """The library's codes of types: of A and B, D, the accumulator, alpha and beta."""

    operand: int
    result: int
    compute: int
    scale: int
    host_scale: Any
    fast: bool = False  # fast accumulation is an option, of fp8 only


TYPES = {
    "f16": Types(R_16F, R_16F, COMPUTE_32F, R_32F, c_float),
    "bf16": Types(R_16BF, R_16BF, COMPUTE_32F, R_32F, c_float),
    "tf32": Types(R_32F, R_32F, COMPUTE_32F_FAST_TF32, R_32F, c_float),
    "f32": Types(R_32F, R_32F, COMPUTE_32F, R_32F, c_float),
    "s8": Types(R_8I, R_32I, COMPUTE_32I, R_32I, c_int32),
    "f64": Types(R_64F, R_64F, COMPUTE_64F, R_64F, c_double),
    "e4m3": Types(R_E4M3, R_16BF, COMPUTE_32F, R_32F, c_float, fast=True),
}


class Algorithm(ctypes.Structure):
    _fields_ = [("data", c_uint64 * 8)]


class Offer(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = [
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


LT_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (POINTER(pointer),),
    "cublasLtDestroy": (pointer,),
    "cublasLtMatmulDescCreate": (POINTER(pointer), c_int, c_int),
    "cublasLtMatmulDescDestroy": (pointer,),
    "cublasLtMatmulDescSetAttribute": (pointer, c_int, pointer, c_size_t),
    "cublasLtMatrixLayoutCreate": (POINTER(pointer), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutSetAttribute": (pointer, c_int, pointer, c_size_t),
    "cublasLtMatrixLayoutDestroy": (pointer,),
    "cublasLtMatmulPreferenceCreate": (POINTER(pointer),),
    "cublasLtMatmulPreferenceDestroy": (pointer,),
    "cublasLtMatmulPreferenceSetAttribute": (pointer, c_int, pointer, c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (*[pointer] * 7, c_int, POINTER(Offer), POINTER(c_int)),
    "cublasLtMatmul": (*[pointer] * 12, POINTER(Algorithm), pointer, c_size_t, pointer),
}  # fmt: skip
# The grouped GEMM exists since CUDA 12.5.
GROUPED_PROTOTYPES: dict[str, tuple[Any, ...]] = {
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


def load(name: str) -> Any:
    """The shared library cublas or cublasLt that torch has loaded, or any other."""
    for version in (13, 12):
        with suppress(OSError):
            return ctypes.CDLL(f"lib{name}.so.{version}")
    try:
        loaded = import_module("cuda.pathfinder").load_nvidia_dynamic_lib(name)
        return ctypes.CDLL(loaded.abs_path)
    except Exception as error:  # pathfinder may be missing, or raise errors of its own
        raise Unavailable(f"cannot load {name.replace('cublas', 'cuBLAS')}: {error}") from error


def version_text(number: int) -> str:
    """For example 13.1.0, which the libraries encode as 130100."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class Library:
    """A cuBLAS library with a handle in the current CUDA context."""

    def __init__(self, library: Any, prototypes: dict[str, tuple[Any, ...]], create: str) -> None:
        self._library = library
        for name, types in prototypes.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, c_int
        self.handle = self.create(create)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; CublasError with the status on failure."""
        status = int(getattr(self._library, name)(*arguments))
        if status:
            raise CublasError(f"{name}: {STATUS.get(status, 'unknown status')} ({status})")

    def create(self, name: str, *arguments: Any) -> pointer:
        made = pointer()
        self.call(name, byref(made), *arguments)
        return made


class CublasLt(Library):
    def __init__(self, library: Any = None) -> None:
        super().__init__(library or load("cublasLt"), LT_PROTOTYPES, "cublasLtCreate")
        self._library.cublasLtGetVersion.restype = c_size_t

    @property
    def version(self) -> str:
        return version_text(int(self._library.cublasLtGetVersion()))

    def set(self, name: str, made: pointer, attribute: int, value: Any) -> None:
        self.call(f"cublasLt{name}SetAttribute", made, attribute, byref(value), ctypes.sizeof(value))


class Matmul:
    """D (M x N, row-major) = A B. `offers` are the algorithms, best estimate first.

    layout: "row" or "col" of A and of B. batch: number of GEMMs, contiguous in memory.
    fast: fast accumulation of fp8. bias: address of N elements of D's type; then
    D = GELU(A B + bias) by the tanh formula.
    """

    def __init__(
        self,
        library: CublasLt,
        dtype: str,
        M: int,
        N: int,
        K: int,
        layout: tuple[str, str],
        workspace: int = 0,
        workspace_bytes: int = 0,
        offers: int = OFFERS,
        *,
        batch: int = 1,
        fast: bool = True,
        bias: int = 0,
    ) -> None:
        self._library = library
        self._workspace, self._workspace_bytes = workspace, workspace_bytes
        self._made: list[tuple[str, pointer]] = []
        types, (a_order, b_order) = TYPES[dtype], layout
        self._alpha, self._beta = types.host_scale(1), types.host_scale(0)
        self._description = self._create("MatmulDesc", types.compute, types.scale)
        attributes: dict[int, Any] = {
            DESC_TRANSA: c_int32(OP_N if b_order == "row" else OP_T),  # the left operand is B'
            DESC_TRANSB: c_int32(OP_N if a_order == "row" else OP_T),
            **({DESC_FAST_ACCUM: ctypes.c_int8(fast)} if types.fast else {}),
        }
        if bias:
            attributes[DESC_EPILOGUE] = ctypes.c_uint32(EPILOGUE_GELU_BIAS)
            attributes[DESC_BIAS] = pointer(bias)
        for attribute, value in attributes.items():
            library.set("MatmulDesc", self._description, attribute, value)
        left = (N, K) if b_order == "row" else (K, N)
        right = (K, M) if a_order == "row" else (M, K)
        self._left = self._matrix(types.operand, *left, batch)
        self._right = self._matrix(types.operand, *right, batch)
        self._result = self._matrix(types.result, N, M, batch)
        self.offers = self._ask(offers)

    def _create(self, kind: str, *arguments: Any) -> pointer:
        made = self._library.create(f"cublasLt{kind}Create", *arguments)
        self._made.append((f"cublasLt{kind}Destroy", made))
        return made

    def _matrix(self, dtype: int, rows: int, cols: int, batch: int) -> pointer:
        """Layout of a column-major matrix, or of a batch of them."""
        layout = self._create("MatrixLayout", dtype, rows, cols, rows)
        if batch > 1:
            self._library.set("MatrixLayout", layout, LAYOUT_BATCH, c_int32(batch))
            self._library.set("MatrixLayout", layout, LAYOUT_STRIDE, c_int64(rows * cols))
        return layout

    def _ask(self, most: int) -> list[Offer]:
        """The heuristic's algorithms that fit the workspace."""
        preference = self._create("MatmulPreference")
        limit = c_uint64(self._workspace_bytes)
        reductions = ctypes.c_uint32(REDUCE_IN_PLACE | REDUCE_IN_COMPUTE_TYPE)
        self._library.set("MatmulPreference", preference, PREFERENCE_WORKSPACE, limit)
        self._library.set("MatmulPreference", preference, PREFERENCE_REDUCTIONS, reductions)
        offers, count = (Offer * most)(), c_int()
        self._library.call(
            "cublasLtMatmulAlgoGetHeuristic",
            self._library.handle,
            self._description,
            self._left,
            self._right,
            self._result,
            self._result,
            preference,
            most,
            offers,
            byref(count),
        )
        usable = [offer for offer in offers[: count.value] if offer.state == 0]
        if not usable:
            raise CublasError("cuBLASLt has no algorithm for this GEMM")
        return usable

    def caller(self, offer: Offer, a: int, b: int, d: int) -> Callable[[int], None]:
        """A function of a stream that launches the GEMM on these device addresses."""
        return partial(
            self._library.call,
            "cublasLtMatmul",
            self._library.handle,
            self._description,
            byref(self._alpha),
            b,
            self._left,
            a,
            self._right,
            byref(self._beta),
            d,
            self._result,
            d,
            self._result,
            byref(offer.algorithm),
            self._workspace,
            self._workspace_bytes,
        )

    def close(self) -> None:
        """Free the library's objects."""
        while self._made:
            name, made = self._made.pop()
            self._library.call(name, made)


class Cublas(Library):
    def __init__(self) -> None:
        super().__init__(load("cublas"), GROUPED_PROTOTYPES, "cublasCreate_v2")

    @property
    def version(self) -> str:
        number = c_int()
        self.call("cublasGetVersion_v2", self.handle, byref(number))
        return version_text(number.value)


class GroupedMatmul:
    """D (rows x N) = A (rows x K) B for each group, B with K contiguous.

    Calls take device arrays of the groups' addresses, and a stream.
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
            "cublasGemmGroupedBatchedEx",
            self._library.handle,
            *self._transposes,
            *self._sizes,
            self._one,
            b,
            types.operand,
            self._ld,
            a,
            types.operand,
            self._ld,
            self._zero,
            d,
            types.result,
            self._ld_of_d,
            self._groups,
            self._gemms,
            types.compute,
        )
