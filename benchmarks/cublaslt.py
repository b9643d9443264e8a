"""cuBLASLt by ctypes: a product with the fastest of the algorithms that its heuristic offers.

The library's matrices are column-major. A row-major D = A B is therefore asked for as
D' = B' A', all three read as the column-major matrices that lie in the same memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from ctypes import (
    POINTER,
    byref,
    c_double,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
)
from ctypes import c_void_p as pointer
from dataclasses import dataclass
from importlib import import_module
from typing import Any

WORKSPACE = 256 * 2**20  # bytes
OFFERS = 32  # algorithms asked of the heuristic

# Values of cublasLt.h, cublas_api.h and library_types.h.
R_32F, R_64F, R_16F, R_8I, R_32I, R_16BF, R_E4M3, R_E5M2 = 0, 1, 2, 3, 10, 14, 28, 29
COMPUTE_32F, COMPUTE_64F, COMPUTE_32I, COMPUTE_32F_FAST_TF32 = 68, 70, 72, 77
OP_N, OP_T = 0, 1
DESC_TRANSA, DESC_TRANSB, DESC_EPILOGUE, DESC_BIAS, DESC_FAST_ACCUM = 3, 4, 7, 8, 25
EPILOGUE_GELU_BIAS = 36
LAYOUT_BATCH, LAYOUT_STRIDE = 5, 6
PREFERENCE_WORKSPACE, PREFERENCE_REDUCTIONS = 1, 3
REDUCE_IN_PLACE, REDUCE_IN_COMPUTE_TYPE = 1, 2  # and not in D's type, as ours never does
STATUS = {
    0: "SUCCESS", 1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR", 13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED",
    16: "LICENSE_ERROR",
}  # fmt: skip


class CublasError(RuntimeError):
    """cuBLASLt refused."""


class Unavailable(CublasError):
    """There is no cuBLASLt to load."""


@dataclass(frozen=True)
class Types:
    """Codes of a product's types: elements of A and B, of D, of the sum, of alpha and beta."""

    operand: int
    result: int
    compute: int
    scale: int
    host_scale: Any
    fast: bool = False  # may sum in the tensor cores alone; a choice for fp8 only


TYPES = {
    "f16": Types(R_16F, R_16F, COMPUTE_32F, R_32F, c_float),
    "bf16": Types(R_16BF, R_16BF, COMPUTE_32F, R_32F, c_float),
    "tf32": Types(R_32F, R_32F, COMPUTE_32F_FAST_TF32, R_32F, c_float),
    "s8": Types(R_8I, R_32I, COMPUTE_32I, R_32I, c_int32),
    "f64": Types(R_64F, R_64F, COMPUTE_64F, R_64F, c_double),
    "e4m3": Types(R_E4M3, R_16BF, COMPUTE_32F, R_32F, c_float, fast=True),
}


@dataclass(frozen=True)
class Matrix:
    """A column-major matrix: element type, rows, columns, elements between columns."""

    type: int
    rows: int
    cols: int
    ld: int


@dataclass(frozen=True)
class Request:
    """A product in the library's terms: left, right and result, and whether to transpose."""

    left: Matrix
    right: Matrix
    result: Matrix
    transpose_left: int
    transpose_right: int


def request(dtype: str, M: int, N: int, K: int, layout: tuple[str, str]) -> Request:
    """D (M x N, row-major) = A B, A and B dense and stored in rows ("row") or columns ("col").

    The left operand is B' (N x K), the right one A' (K x M).
    """
    types = TYPES[dtype]
    a_order, b_order = layout
    left = Matrix(types.operand, N, K, N) if b_order == "row" else Matrix(types.operand, K, N, K)
    right = Matrix(types.operand, K, M, K) if a_order == "row" else Matrix(types.operand, M, K, M)
    return Request(
        left, right, Matrix(types.result, N, M, N),
        OP_N if b_order == "row" else OP_T, OP_N if a_order == "row" else OP_T,
    )  # fmt: skip


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


_PROTOTYPES: dict[str, tuple[Any, ...]] = {
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
    "cublasLtMatmulAlgoGetHeuristic": (
        *[pointer] * 7, c_int, POINTER(Offer), POINTER(c_int),
    ),
    "cublasLtMatmul": (*[pointer] * 12, POINTER(Algorithm), pointer, c_size_t, pointer),
}  # fmt: skip


def load() -> Any:
    return shared_library("cublasLt", "cuBLASLt")


def shared_library(name: str, title: str) -> Any:
    """The one that torch brought into the process, or any other."""
    for version in (13, 12):
        with suppress(OSError):
            return ctypes.CDLL(f"lib{name}.so.{version}")
    try:
        found = import_module("cuda.pathfinder").load_nvidia_dynamic_lib(name)
        return ctypes.CDLL(found.abs_path)
    except Exception as error:  # pathfinder has errors of its own, and may be missing
        raise Unavailable(f"there is no {title}: {error}") from error


class CublasLt:
    """A handle of the library, in the current CUDA context."""

    def __init__(self, library: Any = None) -> None:
        self._library = load() if library is None else library
        for name, types in _PROTOTYPES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = types, c_int
        self._library.cublasLtGetVersion.restype = c_size_t
        self.handle = self.create("cublasLtCreate")

    @property
    def version(self) -> str:
        """As 13.1.0; the library counts 130100."""
        number = int(self._library.cublasLtGetVersion())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; CublasError tells its status."""
        status = int(getattr(self._library, name)(*arguments))
        if status:
            raise CublasError(f"{name}: {STATUS.get(status, 'unknown status')} ({status})")

    def function(self, name: str) -> Callable[..., int]:
        found: Callable[..., int] = getattr(self._library, name)
        return found

    def create(self, name: str, *arguments: Any) -> pointer:
        made = pointer()
        self.call(name, byref(made), *arguments)
        return made

    def set(self, name: str, made: pointer, attribute: int, value: Any) -> None:
        self.call(name, made, attribute, byref(value), ctypes.sizeof(value))


class Product:
    """D = A B of one type, size and layout. `offers` are the algorithms, the likeliest first.

    batch: dense products one after the other in memory. fast: of fp8, sums stay in the tensor
    cores. bias: address of N elements of D's type; D = GELU(A B + bias), by the tanh formula.
    """

    def __init__(
        self, library: CublasLt, dtype: str, M: int, N: int, K: int, layout: tuple[str, str],
        workspace: int = 0, workspace_bytes: int = 0, offers: int = OFFERS, *, batch: int = 1,
        fast: bool = True, bias: int = 0,
    ) -> None:  # fmt: skip
        self._library = library
        self._workspace, self._workspace_bytes = workspace, workspace_bytes
        self._made: list[tuple[str, pointer]] = []
        types, asked = TYPES[dtype], request(dtype, M, N, K, layout)
        self._alpha, self._beta = types.host_scale(1), types.host_scale(0)
        self._description = self._create("MatmulDesc", types.compute, types.scale)
        attributes: dict[int, Any] = {
            DESC_TRANSA: c_int32(asked.transpose_left),
            DESC_TRANSB: c_int32(asked.transpose_right),
            **({DESC_FAST_ACCUM: c_int8(fast)} if types.fast else {}),
        }
        if bias:
            attributes[DESC_EPILOGUE] = c_uint32(EPILOGUE_GELU_BIAS)
            attributes[DESC_BIAS] = pointer(bias)
        for attribute, value in attributes.items():
            library.set("cublasLtMatmulDescSetAttribute", self._description, attribute, value)
        self._left, self._right, self._result = (
            self._matrix(m, batch) for m in (asked.left, asked.right, asked.result)
        )
        self.offers = self._ask(offers)

    def _create(self, kind: str, *arguments: Any) -> pointer:
        made = self._library.create(f"cublasLt{kind}Create", *arguments)
        self._made.append((f"cublasLt{kind}Destroy", made))
        return made

    def _matrix(self, m: Matrix, batch: int) -> pointer:
        made = self._create("MatrixLayout", m.type, m.rows, m.cols, m.ld)
        if batch > 1:
            name = "cublasLtMatrixLayoutSetAttribute"
            self._library.set(name, made, LAYOUT_BATCH, c_int32(batch))
            self._library.set(name, made, LAYOUT_STRIDE, c_int64(m.ld * m.cols))
        return made

    def _ask(self, most: int) -> list[Offer]:
        """The heuristic's algorithms that work within the workspace."""
        preference = self._create("MatmulPreference")
        for attribute, value in (
            (PREFERENCE_WORKSPACE, c_uint64(self._workspace_bytes)),
            (PREFERENCE_REDUCTIONS, c_uint32(REDUCE_IN_PLACE | REDUCE_IN_COMPUTE_TYPE)),
        ):
            name = "cublasLtMatmulPreferenceSetAttribute"
            self._library.set(name, preference, attribute, value)
        found, count = (Offer * most)(), c_int()
        self._library.call(
            "cublasLtMatmulAlgoGetHeuristic", self._library.handle, self._description, self._left,
            self._right, self._result, self._result, preference, most, found, byref(count),
        )  # fmt: skip
        usable = [offer for offer in found[: count.value] if offer.state == 0]
        if not usable:
            raise CublasError("cuBLASLt has no algorithm for this product")
        return usable

    def caller(self, offer: Offer, a: int, b: int, d: int) -> Callable[[int], None]:
        """Launches on a stream, with these device addresses."""
        call = self._library.function("cublasLtMatmul")
        before = (
            self._library.handle, self._description, byref(self._alpha), b, self._left, a,
            self._right, byref(self._beta), d, self._result, d, self._result,
            byref(offer.algorithm), self._workspace, self._workspace_bytes,
        )  # fmt: skip

        def launch(stream: int) -> None:
            status = call(*before, stream)
            if status:
                raise CublasError(f"cublasLtMatmul: {STATUS.get(status, 'unknown')} ({status})")

        return launch

    def close(self) -> None:
        """Free what the library made."""
        while self._made:
            name, made = self._made.pop()
            self._library.call(name, made)
