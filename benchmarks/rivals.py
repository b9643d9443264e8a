"""What ours is compared with on the GPU: cuBLASLt, cuBLAS, torch, Triton and cuSPARSELt.

A rival says which cases it takes and prepares launches for them. Those that are `fair` for a case
do all that is asked with the means of a library; the fastest of them is the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from benchmarks import cublas_grouped, cublaslt
from benchmarks.gemm_cases import Case
from benchmarks.gpu import Launch, Loop, seconds_once
from benchmarks.operands import Operands, operands, torch_type

LONG = 1e-3  # seconds: the driver's part is nothing beside it
PADDING = 16  # elements that s8 products of cuBLASLt may need sizes to be multiples of
CHOSEN = 8  # algorithms of cuBLASLt that are tried for each group of a grouped product


@dataclass
class Prepared:
    """A rival ready for a case. data: its operands, where they differ from ours; note: how."""

    name: str
    launch: Launch
    data: Operands
    note: str = ""
    close: Callable[[], None] = lambda: None


class Rival(Protocol):
    name: str  # of its column

    def fair(self, case: Case) -> bool:
        """Whether it may be the reference."""

    def takes(self, case: Case) -> bool: ...

    def prepare(self, case: Case, data: Operands) -> Prepared:
        """Launches that write to D of `data`; an error where the library cannot."""


def rivals(torch: Any) -> list[Rival]:
    """Those that can be loaded here."""
    found: list[Rival] = []
    try:
        lt = LtRival(torch)
        found += [lt, Unfused(lt, torch), GroupLoop(lt)]
    except (cublaslt.CublasError, OSError, AttributeError):
        pass
    with suppress(cublaslt.CublasError, OSError, AttributeError):
        found.append(GroupedRival(torch))
    found += [TorchRival(torch, bool(found)), CuSparseLt(torch)]
    if find_spec("triton"):
        found.append(TritonRival(torch))
    return found


def fastest(torch: Any, launches: Sequence[Launch], sets: int, refusals: Any) -> int:
    """The launch that takes the least time, of two each; those that are refused drop out."""
    times: list[tuple[float, int]] = []
    for number, launch in enumerate(launches):
        with suppress(refusals):
            times.append((_seconds(torch, launch, sets), number))
    if not times:
        raise cublaslt.CublasError(f"none of the {len(launches)} algorithms offered runs")
    return min(times)[1]


def _seconds(torch: Any, launch: Launch, sets: int) -> float:
    """Of one launch: alone when it is long, else among others."""
    seconds_once(torch, launch)
    once = seconds_once(torch, launch)
    if once > LONG:
        return once
    loop = Loop(torch, launch, sets, max(sets, 4))
    return min(loop.seconds() for _ in range(2))


# cuBLASLt


class LtRival:
    """cuBLASLt with the fastest of its heuristic's algorithms."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._library = cublaslt.CublasLt()
        self._workspace = torch.empty(cublaslt.WORKSPACE, dtype=torch.uint8, device="cuda")
        self.name = "cuBLASLt"
        self.version = f"cuBLASLt {self._library.version}"

    def takes(self, case: Case) -> bool:
        return case.kind in ("plain", "batched", "gelu", "sparse")

    def fair(self, case: Case) -> bool:
        return True

    def prepare(self, case: Case, data: Operands) -> Prepared:
        """CublasError where the library has nothing to offer."""
        refused: Exception | None = None
        for variant, note in variants(case):
            try:
                product = self.product(variant, fast=not case.precise, bias=data.bias)
            except cublaslt.CublasError as error:
                refused = error
                continue
            found = data if variant == case else adapted(self._torch, variant, data)
            place, launch = self.best(product, found)
            name = f"{self.version}, algorithm {place + 1} of {len(product.offers)}"
            return Prepared(name, launch, found, note, product.close)
        raise refused or cublaslt.CublasError("no variant of the product")

    def product(
        self, case: Case, fast: bool = True, bias: Any = None, offers: int = cublaslt.OFFERS
    ) -> cublaslt.Product:
        return cublaslt.Product(
            self._library, case.dtype, case.M, case.N, case.K, case.orders,
            self._workspace.data_ptr(), self._workspace.numel(), offers, batch=case.batch,
            fast=fast, bias=0 if bias is None else bias.data_ptr(),
        )  # fmt: skip

    def best(self, product: cublaslt.Product, data: Operands) -> tuple[int, Launch]:
        """Number and launch of the algorithm that takes the least time."""
        launches = [self._launch(product, offer, data) for offer in product.offers]
        place = fastest(self._torch, launches, data.sets, cublaslt.CublasError)
        return place, launches[place]

    def _launch(self, product: cublaslt.Product, offer: cublaslt.Offer, data: Operands) -> Launch:
        calls = [
            product.caller(offer, a.data_ptr(), b.data_ptr(), d.data_ptr())
            for a, b, d in zip(data.a, data.b, data.d, strict=True)
        ]
        stream = self._torch.cuda.current_stream

        def launch(i: int, keep: Operands = data) -> None:  # the calls know addresses only
            calls[i](stream().cuda_stream)

        return launch


def variants(case: Case) -> Iterator[tuple[Case, str]]:
    """The case, then what a user of cuBLASLt would turn it into where that refuses it."""
    yield case, ""
    if case.dtype != "s8":
        return
    if case.layout != "row.col":
        yield replace(case, layout="row.col"), "reference reads row.col"
    padded = {name: -(-getattr(case, name) // PADDING) * PADDING for name in "MNK"}
    size = "x".join(map(str, padded.values()))
    yield replace(case, layout="row.col", **padded), f"reference padded to {size}, row.col"


def adapted(torch: Any, case: Case, data: Operands) -> Operands:
    """Copies of the operands in another layout, with zeros up to another size."""

    def copy(x: Any, rows: int, cols: int, order: str) -> Any:
        shape = (rows, cols) if order == "row" else (cols, rows)
        made = torch.zeros(shape, dtype=x.dtype, device=x.device)
        made = made if order == "row" else made.t()
        made[: x.shape[0], : x.shape[1]] = x
        return made

    a_order, b_order = case.orders
    a = copy(data.a[0], case.M, case.K, a_order)
    b = copy(data.b[0], case.K, case.N, b_order)
    return operands(torch, case, a, b, data.sets)


class Unfused:
    """cuBLASLt's product, and what it cannot fuse in one pass over memory by Triton or torch.

    SwiGLU's two weights are one matrix to cuBLASLt, so that it multiplies once.
    """

    def __init__(self, lt: LtRival, torch: Any) -> None:
        self._lt, self._torch = lt, torch
        self.name = "cuBLASLt + pass"

    def takes(self, case: Case) -> bool:
        return case.kind in ("gelu", "swiglu")

    def fair(self, case: Case) -> bool:
        return True

    def prepare(self, case: Case, data: Operands) -> Prepared:
        wide = replace(case, N=case.N * case.weights, kind="plain")
        options = {"dtype": data.d[0].dtype, "device": data.d[0].device}
        between = [self._torch.zeros((wide.M, wide.N), **options) for _ in range(data.sets)]
        product = self._lt.product(wide)
        place, multiply = self._lt.best(product, replace(data, case=wide, d=between))
        passes = elementwise(self._torch, case)
        launches = [
            partial(_both, multiply, function, between, data) for _, function in passes
        ]  # fmt: skip
        chosen = fastest(self._torch, launches, data.sets, ())
        name = f"{self._lt.version}, algorithm {place + 1}, then {passes[chosen][0]}"
        return Prepared(name, launches[chosen], data, close=product.close)


def _both(multiply: Launch, function: Any, between: list[Any], data: Operands, i: int) -> None:
    multiply(i)
    function(between[i], data.bias, data.d[i])


def elementwise(torch: Any, case: Case) -> list[tuple[str, Any]]:
    """Name and function(product, bias, d) of the ways to finish a product of this kind."""
    functional = torch.nn.functional

    def gelu(x: Any, bias: Any, d: Any) -> None:
        d.copy_(functional.gelu(x + bias, approximate="tanh"))

    def swiglu(x: Any, bias: Any, d: Any) -> None:
        gate, up = x.chunk(2, dim=-1)
        torch.mul(functional.silu(gate), up, out=d)

    found = [("torch", {"gelu": gelu, "swiglu": swiglu}[case.kind])]
    if find_spec("triton"):
        kernels = import_module("benchmarks.triton_gemm")
        found.append(("Triton", getattr(kernels, f"{case.kind}_pass")))
    return found


# Grouped products


class GroupLoop:
    """A launch of cuBLASLt for each group, all in one CUDA graph."""

    def __init__(self, lt: LtRival) -> None:
        self._lt = lt
        self.name = "cuBLASLt loop"

    def takes(self, case: Case) -> bool:
        return case.kind == "grouped"

    def fair(self, case: Case) -> bool:
        return True

    def prepare(self, case: Case, data: Operands) -> Prepared:
        made = [self._of_group(case, data, g) for g in range(len(case.rows))]

        def launch(i: int) -> None:
            for _, each in made:
                each(i)

        def close() -> None:
            for product, _ in made:
                product.close()

        name = f"{self._lt.version}, {len(made)} launches in a graph"
        return Prepared(name, launch, data, close=close)

    def _of_group(self, case: Case, data: Operands, g: int) -> tuple[cublaslt.Product, Launch]:
        begin, end = data.bounds[g]
        alone = Case(case.dtype, end - begin, case.N, case.K, case.layout)
        rows = slice(begin, end)
        mine = Operands(
            alone, [a[rows] for a in data.a], [b[g] for b in data.b], [d[rows] for d in data.d]
        )
        product = self._lt.product(alone, offers=CHOSEN)
        return product, self._lt.best(product, mine)[1]


class GroupedRival:
    """cublasGemmGroupedBatchedEx."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._library = cublas_grouped.Cublas()
        self.name = "cuBLAS grouped"

    def takes(self, case: Case) -> bool:
        return case.kind == "grouped"

    def fair(self, case: Case) -> bool:
        return True

    def prepare(self, case: Case, data: Operands) -> Prepared:
        def addresses(x: Any, firsts: Sequence[int]) -> Any:
            """Device array of the groups' addresses."""
            line = x.element_size() * x.stride(0)
            found = [x.data_ptr() + first * line for first in firsts]
            return self._torch.tensor(found, dtype=self._torch.int64, device=x.device)

        begins, matrices = [begin for begin, _ in data.bounds], range(len(case.rows))
        pointers = [
            (addresses(a, begins), addresses(b, matrices), addresses(d, begins))
            for a, b, d in zip(data.a, data.b, data.d, strict=True)
        ]
        product = cublas_grouped.Product(self._library, case.dtype, case.rows, case.N, case.K)
        stream = self._torch.cuda.current_stream

        def launch(i: int, keep: Operands = data) -> None:
            product(*(x.data_ptr() for x in pointers[i]), stream().cuda_stream)

        return Prepared(f"{self.name} {self._library.version}", launch, data)


# torch


class TorchRival:
    """What torch offers for the kind, with its own choice of algorithm.

    Where there is no cuBLASLt to ask, torch is the reference.
    """

    def __init__(self, torch: Any, beside_cublaslt: bool) -> None:
        self._torch, self._beside = torch, beside_cublaslt
        torch.backends.cuda.matmul.allow_tf32 = True
        self.name, self.version = "torch", f"torch {torch.__version__}"

    def takes(self, case: Case) -> bool:
        return case.kind != "sparse"

    def fair(self, case: Case) -> bool:
        return case.kind == "grouped" or not self._beside

    def prepare(self, case: Case, data: Operands) -> Prepared:
        name, call = torch_call(self._torch, case, data)
        call(0)
        return Prepared(f"{self.version} {name}", call, data)


def torch_call(torch: Any, case: Case, data: Operands) -> tuple[str, Launch]:
    a, b, d = data.a, data.b, data.d
    if case.kind == "grouped":
        ends = data.offsets[1:].contiguous()

        def call(i: int) -> None:
            d[i] = torch._grouped_mm(a[i], b[i], offs=ends)

        return "_grouped_mm", call
    if case.kind == "gelu":
        return "_addmm_activation", lambda i: torch._addmm_activation(
            data.bias, a[i], b[i], use_gelu=True, out=d[i]
        )
    if case.kind == "swiglu":
        finish = dict(elementwise(torch, case))["torch"]
        return "mm, silu, mul", lambda i: finish(torch.mm(a[i], b[i]), None, d[i])
    if case.kind == "batched":
        return "bmm", lambda i: torch.bmm(a[i], b[i], out=d[i])
    if case.dtype == "s8":
        return "_int_mm", lambda i: torch._int_mm(a[i], b[i], out=d[i])
    if case.dtype == "e4m3":
        one = torch.ones((), dtype=torch.float32, device=a[0].device)
        return "_scaled_mm", lambda i: torch._scaled_mm(
            a[i], b[i], one, one, out_dtype=d[i].dtype, use_fast_accum=not case.precise, out=d[i]
        )
    return "mm", lambda i: torch.mm(a[i], b[i], out=d[i])


class CuSparseLt:
    """cuSPARSELt as torch calls it, with the algorithm that its search finds."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.name = "cuSPARSELt"

    def takes(self, case: Case) -> bool:
        return case.kind == "sparse"

    def fair(self, case: Case) -> bool:
        return True

    def prepare(self, case: Case, data: Operands) -> Prepared:
        torch = self._torch
        packed = [torch._cslt_compress(a) for a in data.a]
        how: dict[str, Any] = {}
        if case.out != case.element:  # refused for 16-bit types, even where it says nothing new
            how["out_dtype"] = torch_type(torch, case.out)
        how["alg_id"] = torch._cslt_sparse_mm_search(packed[0], data.b[0], **how)

        def launch(i: int) -> None:
            data.d[i] = torch._cslt_sparse_mm(packed[i], data.b[i], **how)

        version = torch.backends.cusparselt.version()
        return Prepared(f"{self.name} {version}, algorithm {how['alg_id']}", launch, data)


class TritonRival:
    """A Triton kernel as its tutorial has it, with the fastest of some configurations."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._kernels = import_module("benchmarks.triton_gemm")
        self.name, self.version = "Triton", f"Triton {self._kernels.VERSION}"

    def takes(self, case: Case) -> bool:
        return case.kind in ("plain", "batched") and case.dtype in ("bf16", "f16", "e4m3")

    def fair(self, case: Case) -> bool:
        return False

    def prepare(self, case: Case, data: Operands) -> Prepared:
        multiply = self._kernels.multiply
        configs = self._kernels.configurations(case.dtype, case.M, not case.precise)
        launches = [partial(_triton, multiply, data, config) for config in configs]
        chosen = fastest(self._torch, launches, data.sets, Exception)
        return Prepared(f"{self.version}, {configs[chosen]}", launches[chosen], data)


def _triton(multiply: Any, data: Operands, config: Any, i: int) -> None:
    multiply(data.a[i], data.b[i], data.d[i], config)
