"""The baselines on the GPU: cuBLASLt, cuBLAS, torch, Triton and cuSPARSELt.

A baseline decides which cases it supports and prepares launches for them. It is fair for a case if
it does the whole operation with a library; the fastest fair baseline is the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from benchmarks.gpu import Launch, Loop, seconds_of
from benchmarks.products import cublas
from benchmarks.products.gemm_cases import Case
from benchmarks.products.operands import Operands, operands, torch_type

LONG = 1e-3  # seconds: launch overhead is negligible
PADDING = 16  # elements: sizes that s8 GEMMs of cuBLASLt may need are multiples of it
GROUP_OFFERS = 8  # algorithms of cuBLASLt that are tried for each group of a grouped GEMM


@dataclass
class Prepared:
    """A baseline prepared for a case, with its operands. note: how these differ from ours."""

    name: str
    launch: Launch
    buffers: Operands
    note: str = ""
    close: Callable[[], None] = lambda: None


class Baseline:
    """A library or kernel that our kernels are compared with."""

    name: str  # key of its results
    kinds: tuple[str, ...]  # kinds of GEMMs that it implements

    def supports(self, case: Case) -> bool:
        return case.kind in self.kinds

    def is_fair(self, case: Case) -> bool:
        """Whether it may be the reference."""
        return True

    def prepare(self, case: Case, buffers: Operands) -> Prepared:
        """Launches that write to D of `buffers`; raises an error where the library cannot."""
        raise NotImplementedError


def available(torch: Any) -> list[Baseline]:
    """The baselines whose libraries can be loaded."""
    baselines: list[Baseline] = []
    with suppress(cublas.CublasError, OSError, AttributeError):
        lt = CublasLt(torch)
        baselines += [lt, CublasLtUnfused(torch, lt), CublasLtLoop(lt)]
    with suppress(cublas.CublasError, OSError, AttributeError):
        baselines.append(CublasGrouped(torch))
    baselines += [Torch(torch, with_cublas=bool(baselines)), CuSparseLt(torch)]
    if find_spec("triton"):
        baselines.append(Triton(torch))
    return baselines


def fastest(torch: Any, launches: Sequence[Launch], sets: int, refusals: Any) -> int:
    """Index of the launch with the least time of two; launches that raise `refusals` drop out."""
    times: list[tuple[float, int]] = []
    for number, launch in enumerate(launches):
        with suppress(refusals):
            times.append((_seconds(torch, launch, sets), number))
    if not times:
        raise cublas.CublasError(f"none of the {len(launches)} algorithms offered runs")
    return min(times)[1]


def _seconds(torch: Any, launch: Launch, sets: int) -> float:
    """Seconds of one launch: a single one when it is long, else one of many."""
    seconds_of(torch, lambda: launch(0))
    once = seconds_of(torch, lambda: launch(0))
    if once > LONG:
        return once
    loop = Loop(torch, launch, sets, max(sets, 4))
    return min(loop.seconds() for _ in range(2))


class CublasLt(Baseline):
    """cuBLASLt with the fastest of its heuristic's algorithms."""

    name, kinds = "cuBLASLt", ("plain", "batched", "gelu", "sparse")

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._library = cublas.CublasLt()
        self._workspace = torch.empty(cublas.WORKSPACE, dtype=torch.uint8, device="cuda")
        self.version = f"cuBLASLt {self._library.version}"

    def prepare(self, case: Case, buffers: Operands) -> Prepared:
        """CublasError where the library has no algorithm."""
        refused: Exception | None = None
        for variant, note in variants(case):
            try:
                matmul = self.matmul(variant, fast=not case.precise, bias=buffers.bias)
            except cublas.CublasError as error:
                refused = error
                continue
            adapted = buffers if variant == case else padded_copies(self._torch, variant, buffers)
            place, launch = self.best(matmul, adapted)
            name = f"{self.version}, algorithm {place + 1} of {len(matmul.offers)}"
            return Prepared(name, launch, adapted, note, matmul.close)
        raise refused or cublas.CublasError("no variant of the case")

    def matmul(
        self, case: Case, fast: bool = True, bias: Any = None, offers: int = cublas.OFFERS
    ) -> cublas.Matmul:
        return cublas.Matmul(
            self._library,
            case.dtype,
            case.M,
            case.N,
            case.K,
            case.orders,
            self._workspace.data_ptr(),
            self._workspace.numel(),
            offers,
            batch=case.batch,
            fast=fast,
            bias=0 if bias is None else bias.data_ptr(),
        )

    def best(self, matmul: cublas.Matmul, buffers: Operands) -> tuple[int, Launch]:
        """Index and launch of the fastest algorithm."""
        stream = self._torch.cuda.current_stream

        def launch(calls: Sequence[Callable[[int], None]], keep: Operands, i: int) -> None:
            calls[i](stream().cuda_stream)

        launches = []
        for offer in matmul.offers:
            calls = [
                matmul.caller(offer, a.data_ptr(), b.data_ptr(), d.data_ptr())
                for a, b, d in zip(buffers.a, buffers.b, buffers.d, strict=True)
            ]
            launches.append(partial(launch, calls, buffers))  # keeps the buffers alive
        place = fastest(self._torch, launches, buffers.sets, cublas.CublasError)
        return place, launches[place]


def variants(case: Case) -> Iterator[tuple[Case, str]]:
    """The case, then layouts and sizes to which a user of cuBLASLt would convert s8 operands."""
    yield case, ""
    if case.dtype != "s8":
        return
    if case.layout != "row.col":
        yield replace(case, layout="row.col"), "reference reads row.col"
    padded = {name: -(-getattr(case, name) // PADDING) * PADDING for name in "MNK"}
    size = "x".join(map(str, padded.values()))
    yield replace(case, layout="row.col", **padded), f"reference padded to {size}, row.col"


def padded_copies(torch: Any, case: Case, buffers: Operands) -> Operands:
    """Copies of the operands in the layout of `case`, padded with zeros to its size."""

    def copy(x: Any, rows: int, cols: int, order: str) -> Any:
        padded = x.new_zeros((rows, cols)) if order == "row" else x.new_zeros((cols, rows)).mT
        padded[: x.shape[0], : x.shape[1]] = x
        return padded

    a_order, b_order = case.orders
    a = copy(buffers.a[0], case.M, case.K, a_order)
    b = copy(buffers.b[0], case.K, case.N, b_order)
    return operands(torch, case, a, b, buffers.sets)


class CublasLtUnfused(Baseline):
    """cuBLASLt's GEMM, then the epilogue as an elementwise kernel of Triton or torch.

    SwiGLU's two weights are one matrix, so that there is one GEMM.
    """

    name, kinds = "cuBLASLt + pass", ("gelu", "swiglu")

    def __init__(self, torch: Any, lt: CublasLt) -> None:
        self._torch, self._lt = torch, lt

    def prepare(self, case: Case, buffers: Operands) -> Prepared:
        wide = replace(case, N=case.N * case.weights, kind="plain")
        options = {"dtype": buffers.d[0].dtype, "device": buffers.d[0].device}
        between = [self._torch.zeros((wide.M, wide.N), **options) for _ in range(buffers.sets)]
        matmul = self._lt.matmul(wide)
        place, gemm = self._lt.best(matmul, replace(buffers, case=wide, d=between))
        passes = elementwise(self._torch, case)

        def launch(function: Any, i: int) -> None:
            gemm(i)
            function(between[i], buffers.bias, buffers.d[i])

        launches = [partial(launch, function) for _, function in passes]
        chosen = fastest(self._torch, launches, buffers.sets, ())
        name = f"{self._lt.version}, algorithm {place + 1}, then {passes[chosen][0]}"
        return Prepared(name, launches[chosen], buffers, close=matmul.close)


def elementwise(torch: Any, case: Case) -> list[tuple[str, Any]]:
    """Names and implementations function(x, bias, d) of the epilogue of this kind of GEMM."""
    functional = torch.nn.functional

    def gelu(x: Any, bias: Any, d: Any) -> None:
        d.copy_(functional.gelu(x + bias, approximate="tanh"))

    def swiglu(x: Any, bias: Any, d: Any) -> None:
        gate, up = x.chunk(2, dim=-1)
        torch.mul(functional.silu(gate), up, out=d)

    passes = [("torch", {"gelu": gelu, "swiglu": swiglu}[case.kind])]
    if find_spec("triton"):
        kernels = import_module("benchmarks.products.triton_kernels")
        passes.append(("Triton", getattr(kernels, f"{case.kind}_pass")))
    return passes


class CublasLtLoop(Baseline):
    """A launch of cuBLASLt for each group, all in one CUDA graph."""

    name, kinds = "cuBLASLt loop", ("grouped",)

    def __init__(self, lt: CublasLt) -> None:
        self._lt = lt

    def prepare(self, case: Case, buffers: Operands) -> Prepared:
        gemms: list[Launch] = []
        stack = ExitStack()
        for g, (begin, end) in enumerate(buffers.bounds):
            part, rows = case.part(end - begin), slice(begin, end)
            operands_of_part = Operands(
                part, [a[rows] for a in buffers.a], [b[g] for b in buffers.b], [d[rows] for d in buffers.d]
            )
            matmul = self._lt.matmul(part, offers=GROUP_OFFERS)
            stack.callback(matmul.close)
            gemms.append(self._lt.best(matmul, operands_of_part)[1])

        def launch(i: int) -> None:
            for gemm in gemms:
                gemm(i)

        name = f"{self._lt.version}, {len(gemms)} launches in a graph"
        return Prepared(name, launch, buffers, close=stack.close)


class CublasGrouped(Baseline):
    """cublasGemmGroupedBatchedEx."""

    name, kinds = "cuBLAS grouped", ("grouped",)

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._library = cublas.Cublas()

    def prepare(self, case: Case, buffers: Operands) -> Prepared:
        def addresses(x: Any, firsts: Sequence[int]) -> Any:
            """Device array of the addresses of x[first]."""
            step = x.element_size() * x.stride(0)
            values = [x.data_ptr() + first * step for first in firsts]
            return self._torch.tensor(values, dtype=self._torch.int64, device=x.device)

        begins, matrices = [begin for begin, _ in buffers.bounds], range(len(case.rows))
        pointers = [
            (addresses(a, begins), addresses(b, matrices), addresses(d, begins))
            for a, b, d in zip(buffers.a, buffers.b, buffers.d, strict=True)
        ]
        matmul = cublas.GroupedMatmul(self._library, case.dtype, case.rows, case.N, case.K)
        stream = self._torch.cuda.current_stream

        def launch(i: int, keep: Operands = buffers) -> None:
            matmul(*(x.data_ptr() for x in pointers[i]), stream().cuda_stream)

        return Prepared(f"{self.name} {self._library.version}", launch, buffers)


class Torch(Baseline):
    """torch's function for each kind, with its own choice of algorithm.

    Fair where cuBLASLt cannot be called directly.
    """

    name, kinds = "torch", ("plain", "batched", "grouped", "gelu", "swiglu")

    def __init__(self, torch: Any, with_cublas: bool) -> None:
        self._torch, self._with_cublas = torch, with_cublas
        self.version = f"torch {torch.__version__}"

    def is_fair(self, case: Case) -> bool:
        return case.kind == "grouped" or not self._with_cublas

    def prepare(self, case: Case, buffers: Operands) -> Prepared:
        name, function = torch_call(self._torch, case, buffers)

        def call(i: int) -> None:
            self._torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
            function(i)

        call(0)
        return Prepared(f"{self.version} {name}", call, buffers)


def torch_call(torch: Any, case: Case, buffers: Operands) -> tuple[str, Launch]:
    a, b, d = buffers.a, buffers.b, buffers.d
    if case.kind == "grouped":
        ends = buffers.offsets[1:].contiguous()

        def call(i: int) -> None:
            d[i] = torch._grouped_mm(a[i], b[i], offs=ends)

        return "_grouped_mm", call
    if case.kind == "gelu":
        return "_addmm_activation", lambda i: torch._addmm_activation(
            buffers.bias, a[i], b[i], use_gelu=True, out=d[i]
        )
    if case.kind == "swiglu":
        epilogue = dict(elementwise(torch, case))["torch"]
        return "mm, silu, mul", lambda i: epilogue(torch.mm(a[i], b[i]), None, d[i])
    if case.kind == "batched":
        return "bmm", lambda i: torch.bmm(a[i], b[i], out=d[i])
    if case.dtype == "s8":
        return "_int_mm", lambda i: torch._int_mm(a[i], b[i], out=d[i])
    if case.dtype == "e4m3":
        ones = torch.ones((), dtype=torch.float32, device=a[0].device)
        return "_scaled_mm", lambda i: torch._scaled_mm(
            a[i], b[i], ones, ones, out_dtype=d[i].dtype, use_fast_accum=not case.precise, out=d[i]
        )
    return "mm", lambda i: torch.mm(a[i], b[i], out=d[i])


class CuSparseLt(Baseline):
    """cuSPARSELt called by torch, with the algorithm that its search selects."""

    name, kinds = "cuSPARSELt", ("sparse",)

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def prepare(self, case: Case, buffers: Operands) -> Prepared:
        torch = self._torch
        compressed = [torch._cslt_compress(a) for a in buffers.a]
        how: dict[str, Any] = {}
        if case.out != case.element:  # out_dtype is an error for 16-bit types, even the same one
            how["out_dtype"] = torch_type(torch, case.out)
        how["alg_id"] = torch._cslt_sparse_mm_search(compressed[0], buffers.b[0], **how)

        def launch(i: int) -> None:
            buffers.d[i] = torch._cslt_sparse_mm(compressed[i], buffers.b[i], **how)

        version = torch.backends.cusparselt.version()
        return Prepared(f"{self.name} {version}, algorithm {how['alg_id']}", launch, buffers)


class Triton(Baseline):
    """The GEMM of Triton's tutorial, with the fastest of some configurations."""

    name, kinds = "Triton", ("plain", "batched")

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._kernels = import_module("benchmarks.products.triton_kernels")
        self.version = f"Triton {self._kernels.VERSION}"

    def supports(self, case: Case) -> bool:
        return super().supports(case) and case.dtype in ("bf16", "f16", "e4m3")

    def is_fair(self, case: Case) -> bool:
        return False

    def prepare(self, case: Case, buffers: Operands) -> Prepared:
        configs = self._kernels.configurations(case.dtype, case.M, not case.precise)

        def launch(config: Any, i: int) -> None:
            self._kernels.gemm(buffers.a[i], buffers.b[i], buffers.d[i], config)

        launches = [partial(launch, config) for config in configs]
        chosen = fastest(self._torch, launches, buffers.sets, Exception)
        return Prepared(f"{self.version}, {configs[chosen]}", launches[chosen], buffers)
