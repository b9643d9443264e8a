"""Products on the GPU: `kernels.gemm` beside cuBLASLt, or torch where that cannot be loaded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import kernels
from benchmarks import cublaslt
from benchmarks.gemm_cases import Case, relative_error
from benchmarks.gpu import (
    Contestant,
    Launch,
    Loop,
    Monitor,
    cache_bytes,
    compete,
    seconds_once,
    sets_beyond_cache,
)
from kernels import ring
from kernels.plan import realigned

TORCH_NAMES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "s8": "int8", "s32": "int32",
    "f64": "float64", "e4m3": "float8_e4m3fn",
}  # fmt: skip
BLOCK = 2048  # rows of the product that are checked at once
CHECKED = 2 * 4096**3  # operations: of larger products, rows are sampled
ROWS = 256
LONG = 1e-3  # seconds: the driver's part is nothing beside it
PADDING = 16  # elements that s8 products of cuBLASLt may need sizes to be multiples of


@dataclass(frozen=True)
class Operands:
    """A, B and D on the GPU, once for each set of buffers."""

    case: Case
    a: list[Any]
    b: list[Any]
    d: list[Any]

    @property
    def sets(self) -> int:
        return len(self.a)


def draw(torch: Any, case: Case, seed: int, device: str = "cuda") -> tuple[Any, Any]:
    """Normally distributed A and B, or uniform ones over all of s8, in the case's layout."""
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, cols: int, order: str) -> Any:
        shape = (rows, cols) if order == "row" else (cols, rows)
        found = fill(torch, case, shape, generator)
        return found if order == "row" else found.t()

    a_order, b_order = case.orders
    return matrix(case.M, case.K, a_order), matrix(case.K, case.N, b_order)


def fill(torch: Any, case: Case, shape: tuple[int, int], generator: Any) -> Any:
    dtype = torch_type(torch, case.element)
    options = {"generator": generator, "device": generator.device}
    if case.dtype == "s8":
        return torch.randint(-128, 128, shape, dtype=dtype, **options)
    wide = torch.float64 if case.dtype == "f64" else torch.float32
    return torch.randn(shape, dtype=wide, **options).to(dtype)


def torch_type(torch: Any, dtype: Any) -> Any:
    return getattr(torch, TORCH_NAMES[dtype.name])


def operands(torch: Any, case: Case, a: Any, b: Any, sets: int) -> Operands:
    """`sets` copies of A and B, which keep their layouts, and as many results."""
    copies = [(a, b)] + [(_copy(torch, a), _copy(torch, b)) for _ in range(sets - 1)]
    out = torch_type(torch, case.out)
    d = [torch.zeros((case.M, case.N), dtype=out, device=a.device) for _ in range(sets)]
    return Operands(case, [x for x, _ in copies], [y for _, y in copies], d)


def _copy(torch: Any, x: Any) -> Any:
    return x.clone(memory_format=torch.preserve_format)


# Ours


def ours(data: Operands) -> Launch:
    def launch(i: int) -> None:
        kernels.gemm(data.a[i], data.b[i], out=data.d[i], family=data.case.family or None)

    return launch


# The reference


@dataclass
class Reference:
    """What ours is compared with. data: its operands, where they differ from ours; note: how."""

    name: str
    launch: Launch
    data: Operands
    note: str = ""
    close: Callable[[], None] = lambda: None


class LtReference:
    """cuBLASLt with the fastest of its heuristic's algorithms."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._library = cublaslt.CublasLt()
        self._workspace = torch.empty(cublaslt.WORKSPACE, dtype=torch.uint8, device="cuda")
        self.name = f"cuBLASLt {self._library.version}"

    def prepare(self, case: Case, data: Operands) -> Reference:
        """The reference for a case; CublasError where the library has nothing to offer."""
        refused: Exception | None = None
        for variant, note in variants(case):
            try:
                product = self._product(variant)
            except cublaslt.CublasError as error:
                refused = error
                continue
            found = data if variant == case else adapted(self._torch, variant, data)
            place, launch = self._fastest(product, found)
            name = f"{self.name}, algorithm {place + 1} of {len(product.offers)}"
            return Reference(name, launch, found, note, product.close)
        raise refused or cublaslt.CublasError("no variant of the product")

    def _product(self, case: Case) -> cublaslt.Product:
        return cublaslt.Product(
            self._library, case.dtype, case.M, case.N, case.K, case.orders,
            self._workspace.data_ptr(), self._workspace.numel(),
        )  # fmt: skip

    def _fastest(self, product: cublaslt.Product, data: Operands) -> tuple[int, Launch]:
        """Number and launch of the algorithm that takes the least time; each is timed twice."""
        times: list[tuple[float, int, Launch]] = []
        for number, offer in enumerate(product.offers):
            launch = self._launch(product, offer, data)
            with suppress(cublaslt.CublasError):
                times.append((self._seconds(launch, data.sets), number, launch))
        if not times:
            raise cublaslt.CublasError("none of cuBLASLt's algorithms runs")
        _, number, launch = min(times, key=lambda found: found[0])
        return number, launch

    def _seconds(self, launch: Launch, sets: int) -> float:
        """Of one launch: alone when it is long, else among others."""
        seconds_once(self._torch, launch)
        once = seconds_once(self._torch, launch)
        if once > LONG:
            return once
        loop = Loop(self._torch, launch, sets, max(sets, 4))
        return min(loop.seconds() for _ in range(2))

    def _launch(self, product: cublaslt.Product, offer: cublaslt.Offer, data: Operands) -> Launch:
        calls = [
            product.caller(offer, a.data_ptr(), b.data_ptr(), d.data_ptr())
            for a, b, d in zip(data.a, data.b, data.d, strict=True)
        ]
        stream = self._torch.cuda.current_stream

        def launch(i: int, keep: Operands = data) -> None:  # the calls know addresses only
            calls[i](stream().cuda_stream)

        return launch


class TorchReference:
    """torch.mm, and torch._int_mm for s8, with torch's own choice of algorithm."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        torch.backends.cuda.matmul.allow_tf32 = True
        with suppress(Exception):  # not in every version
            torch.backends.cuda.preferred_blas_library("cublaslt")
        self.name = f"torch {torch.__version__}"

    def prepare(self, case: Case, data: Operands) -> Reference:
        function = self._torch._int_mm if case.dtype == "s8" else self._torch.mm
        mine = replace(data, d=[self._torch.zeros_like(d) for d in data.d])

        def launch(i: int) -> None:
            function(mine.a[i], mine.b[i], out=mine.d[i])

        launch(0)
        return Reference(f"{self.name} {function.__name__}", launch, mine)


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


def choose_reference(torch: Any) -> LtReference | TorchReference:
    try:
        return LtReference(torch)
    except (cublaslt.CublasError, OSError, AttributeError):
        return TorchReference(torch)


# Right or wrong


def check(torch: Any, case: Case, a: Any, b: Any, d: Any) -> tuple[float | None, bool]:
    """Largest error over the largest result, against float64, and whether all are allowed.

    An infinite error is None. Of large products, a sample of rows stands for all.
    """
    wide = b.to(torch.float64)
    size = wide.abs()
    worst, largest, good = 0.0, 0.0, True
    for block in blocks(torch, case):
        rows = taken(torch, a, block).to(torch.float64)
        exact = rows @ wide
        error = (d[block].to(torch.float64) - exact).abs()
        allowed = case.allowed_error(rows.abs() @ size, exact)
        good &= bool((error <= allowed).all())  # false for NaN
        worst = max(worst, float(error.nan_to_num(nan=float(torch.inf)).max()))
        largest = max(largest, float(exact.abs().max()))
    return relative_error(worst, largest), good


def blocks(torch: Any, case: Case) -> Iterator[Any]:
    """Indices of the rows that are checked: all, or a random one in every M / ROWS."""
    if case.operations <= CHECKED or case.M <= ROWS:
        yield from (slice(start, start + BLOCK) for start in range(0, case.M, BLOCK))
        return
    edges = torch.linspace(0, case.M, ROWS + 1, dtype=torch.float64).floor()
    generator = torch.Generator("cpu").manual_seed(case.M)
    places = torch.rand(ROWS, dtype=torch.float64, generator=generator)
    yield (edges[:-1] + places * edges.diff()).long()


def taken(torch: Any, x: Any, rows: Any) -> Any:
    """Rows of a matrix; torch does not index fp8 everywhere, bytes it does."""
    return x.view(torch.uint8)[rows].view(x.dtype) if x.element_size() == 1 else x[rows]


# One case


class GpuBench:
    """Measures cases on the GPU, one after the other."""

    def __init__(
        self, torch: Any, reference: Any, monitor: Monitor, repeats: int, seed: int, hot: bool
    ) -> None:
        self.torch, self.reference, self._monitor = torch, reference, monitor
        self._repeats, self._seed, self._hot = repeats, seed, hot
        self.cache = cache_bytes(torch)

    def __call__(self, case: Case) -> dict[str, Any]:
        """What was found; `reference_failure` says why there is nothing to compare with."""
        a, b = draw(self.torch, case, self._seed)
        sets = 1 if self._hot else sets_beyond_cache(case.bytes, self.cache)
        data = operands(self.torch, case, a, b, sets)
        mine = Contestant(self.torch, ours(data), sets)
        plan = described(a, b, data.d[0], case.family or None)
        found = {"sets": sets, "first_call_s": mine.first_call, **plan}
        found["error"], found["correct"] = check(self.torch, case, a, b, data.d[0])
        with ExitStack() as stack:
            rival = self._rival(case, data, found, stack)
            self._compete([mine, *rival], found)
        return found

    def alive(self) -> bool:
        """False when an error has taken the CUDA context with it."""
        try:
            self.torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def _rival(
        self, case: Case, data: Operands, found: dict[str, Any], stack: ExitStack
    ) -> list[Contestant]:
        """The reference, its result checked; none where it fails."""
        separate = replace(data, d=[self.torch.zeros_like(d) for d in data.d])
        try:
            rival = self.reference.prepare(case, separate)
            stack.callback(rival.close)
            contestant = Contestant(self.torch, rival.launch, data.sets)
        except Exception as error:  # of the library or of torch
            found["reference_failure"] = f"{type(error).__name__}: {error}"
            self.torch.cuda.synchronize()
            return []
        found["reference_name"], found["note"] = rival.name, rival.note
        result = rival.data.d[0][: case.M, : case.N]
        checked = check(self.torch, case, data.a[0], data.b[0], result)
        found["reference_error"], found["reference_correct"] = checked
        return [contestant]

    def _compete(self, contestants: list[Contestant], found: dict[str, Any]) -> None:
        begin = time.perf_counter()
        timings = compete(contestants, self._repeats)
        found["state"] = self._monitor.between(begin, time.perf_counter())
        for contestant, name, timing in zip(
            contestants, ("ours", "reference"), timings, strict=False
        ):
            how = "CUDA graph" if contestant.captured else f"batches ({contestant.loop.error})"
            found[name] = {**timing.json(), "launched_as": how}


def described(a: Any, b: Any, d: Any, family: str | None = None) -> dict[str, Any]:
    """Kernel and tile that gemm chooses; why they are unknown, if they are."""
    try:
        read = None if family else realigned(a, b, d)
        a, b, d = read or (a, b, d)
        plan = kernels.plan(a, b, None, d, family=family)
        config = plan.config
        return {
            "through_copies": read is not None,
            "kernel": plan.kernel.__name__,
            "chosen_family": "sm90" if isinstance(config, ring.Config) else "sm80",
            "tile": tile(config),
            "config": {name: value for name, value in vars(config).items() if _plain(value)},
            "grid": plan.grid if isinstance(plan.grid, int) else list(plan.grid),
        }
    except Exception as error:  # a figure without its tile is better than none
        return {"undescribed": f"{type(error).__name__}: {error}"}


def tile(config: Any) -> str:
    """BM x BN of a kernel's configuration, BK where it has one, and the slots of its pipeline."""
    sides = (str(vars(config)[name]) for name in ("BM", "BN", "BK") if name in vars(config))
    cluster = getattr(config, "cluster", 1)
    return "x".join(sides) + f" s{config.stages}" + (f" c{cluster}" if cluster > 1 else "")


def _plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))
