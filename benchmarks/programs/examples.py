"""The programs of examples/ on a GPU, compared with the best implementation in PyTorch."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

from benchmarks.gpu import Launch, Monitor, TimedLaunch, cache_bytes, sets_beyond_cache, time_interleaved
from benchmarks.harness import Report, add_seconds, attempt, failure
from benchmarks.products.gemm import torch_with_gpu
from benchmarks.tables import Table, duration, number, one_line

ROUNDS, QUICK_ROUNDS = 11, 3
WARM_UP = 0.1  # seconds, of each case
METHOD = {
    "clock": "CUDA events around CUDA graphs of launches, without host time; what cannot be "
             "captured is launched ahead of the GPU",
    "order": "one sample of each a round, in alternating order",
    "buffers": "rotating sets that together exceed the L2 cache",
    "ratio": "median time of the fastest other over ours",
    "error": "largest difference from the first other, relative to its largest magnitude",
}  # fmt: skip


@dataclass
class Case:
    """One problem: launches of the example and of others, each `launch(i)` of buffers i.

    Attributes
    ----------
    work : float
        Operations or bytes of the problem, and their unit.
    outputs
        What buffers 0 hold after launch 0 of the example; others return theirs.
    """

    problem: str
    work: float
    unit: str
    sets: int
    ours: Launch
    outputs: Any
    others: dict[str, Callable[[int], Any]]
    tolerance: float = 2.0**-6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--only",
        type=lambda text: text.split(","),
        default=list(EXAMPLES),
        metavar="NAME,...",
        help=f"of {', '.join(EXAMPLES)} (default: all)",
    )
    add(
        "--rounds",
        type=int,
        metavar="R",
        help=f"samples of each (default: {ROUNDS}, {QUICK_ROUNDS} with --quick)",
    )
    add_seconds(parser, 300.0, "case")


def run(options: argparse.Namespace) -> Report:
    torch = torch_with_gpu()
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    settings = {"only": list(options.only), "rounds": rounds}
    report = Report("examples", settings, dict(METHOD), summary={"target": "cuda"})
    begin = time.perf_counter()
    with Monitor() as monitor:
        for name in options.only:
            report.results.append({"example": name, "problem": "small"} | attempt(small, name))
            make, problems = EXAMPLES[name]
            for problem in problems[: 1 if options.quick else None]:
                if (started := time.perf_counter()) - begin > options.seconds:
                    break
                result = {"example": name, "problem": ", ".join(map(str, problem))}
                result |= attempt(measure, torch, make, problem, rounds)
                result["state"] = monitor.between(started, time.perf_counter())
                report.results.append(result)
                report.save(options.out)
    return report


def small(name: str) -> dict[str, Any]:
    """The example's own program: every element within the bound that it derives."""
    try:
        import_module(f"examples.{name}").main([])
    except SystemExit as error:
        return {"failure": str(error)}
    return {"correct": True}


def measure(torch: Any, make: Callable[..., Case], problem: tuple[Any, ...], rounds: int) -> dict[str, Any]:
    """Times of ours and of all others that run, and how far the results are apart."""
    case = make(torch, *problem)
    ours = TimedLaunch(torch, case.ours, case.sets)
    case.ours(0)
    launches, result = {"ours": ours}, {"problem": case.problem, "others": {}}
    for name, launch in case.others.items():
        try:
            measured = launch(0)
            torch.cuda.synchronize()
            if "error" not in result and measured is not None:
                result["error"] = difference(case.outputs, measured)
            launches[name] = TimedLaunch(torch, launch, case.sets)
        except Exception as error:  # libraries have exceptions of their own
            result["others"][name] = failure(error)
    timings = dict(zip(launches, time_interleaved(list(launches.values()), rounds, WARM_UP)))
    for name, timing in timings.items():
        measured = {"timing": timing.json(), "captured": launches[name].captured}
        result.update(measured) if name == "ours" else result["others"].update({name: measured})
    rivals = {name: t.median for name, t in timings.items() if name != "ours"}
    result["rate"], result["unit"] = case.work / timings["ours"].median, case.unit
    if rivals:
        result["fastest"] = min(rivals, key=lambda name: rivals[name])
        result["ratio"] = rivals[result["fastest"]] / timings["ours"].median
        apart = result["error"]
        result["correct"] = apart is not None and apart <= case.tolerance
    return result


def difference(mine: Any, reference: Any) -> float | None:
    """Largest difference, relative to the largest magnitude; None if not all are numbers."""
    mine, reference = mine.double().flatten(), reference.double().flatten()
    apart = float((mine - reference).abs().max() / reference.abs().max().clamp(min=1e-300))
    return apart if math.isfinite(apart) else None


# -- cases -----------------------------------------------------------------------------------------


def rotating(torch: Any, bytes_of_set: int, make: Callable[[], Any]) -> list[Any]:
    return [make() for _ in range(sets_beyond_cache(bytes_of_set, cache_bytes(torch)))]


def drawing(torch: Any) -> dict[str, Any]:
    """Options of a function that draws: a generator that no CUDA graph has captured."""
    return {"device": "cuda", "generator": torch.Generator("cuda").manual_seed(0)}


def attention(torch: Any, module: str, batch: int, heads: int, length: int, dim: int, causal: bool) -> Case:
    """4 D operations for each query and key; half of them if causal."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    example = import_module(f"examples.{module}")
    shape = batch, heads, length, dim
    new = partial(torch.randn, shape, dtype=torch.bfloat16, **drawing(torch))
    sets = rotating(torch, 8 * math.prod(shape), lambda: [new() for _ in range(4)])
    grid = -(-length // example.ROWS), heads, batch
    launch = example.attention_kernel[grid, example.THREADS]
    scale = math.log2(math.e) / math.sqrt(dim)

    def other(i: int, backend: Any) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(*sets[i][:3], is_causal=causal)

    return Case(
        f"{batch} x {heads} heads, {length} keys, D {dim}{', causal' * causal}",
        4.0 * math.prod(shape) * length * (0.5 if causal else 1),
        "FLOP/s",
        len(sets),
        lambda i: launch(*sets[i], scale, dim=dim, causal=causal),
        sets[0][3],
        {
            "cuDNN": partial(other, backend=SDPBackend.CUDNN_ATTENTION),
            "FlashAttention 2": partial(other, backend=SDPBackend.FLASH_ATTENTION),
        },
    )


def norm(torch: Any, rows: int, columns: int) -> Case:
    """x and residual are read, s and y written."""
    from examples import fused_norm as example

    new = partial(torch.randn, dtype=torch.bfloat16, **drawing(torch))
    shapes = [(rows, columns), (rows, columns), (columns,), (rows, columns), (rows, columns)]
    sets = rotating(torch, 8 * rows * columns, lambda: [new(shape) for shape in shapes])
    launch, width = example.norm_kernel[rows, example.THREADS], example.vector_width(sets[0][0])

    def eager(x: Any, residual: Any, weight: Any) -> Any:
        s = x + residual
        return torch.nn.functional.rms_norm(s, (columns,), weight, 1e-6), s

    torch._dynamo.reset()
    fused = torch.compile(eager, dynamic=False, fullgraph=True)
    return Case(
        f"{rows} x {columns}, bf16",
        8.0 * rows * columns,
        "B/s",
        len(sets),
        lambda i: launch(*sets[i], 1e-6, width=width),
        sets[0][4],
        {"torch": lambda i: eager(*sets[i][:3])[0], "torch.compile": lambda i: fused(*sets[i][:3])[0]},
    )


DRAWS: dict[str, Callable[[Any, int], Any]] = {
    "uniform": lambda torch, size:
        torch.randint(256, (size,), dtype=torch.uint8, **drawing(torch)),
    "binomial": lambda torch, size:
        (torch.randn(size, **drawing(torch)) * 7.3 + 76.5).to(torch.uint8),
    "all equal": lambda torch, size: torch.full((size,), 9, device="cuda", dtype=torch.uint8),
}  # fmt: skip


def histogram(torch: Any, power: int, name: str) -> Case:
    """Counters are set to zero by each launch."""
    from examples import histogram as example

    sets = rotating(torch, 2**power, lambda: DRAWS[name](torch, 2**power))
    counts = torch.zeros(256, device="cuda", dtype=torch.int32)
    launch = example.histogram_kernel[example.BLOCKS, example.THREADS]

    def ours(i: int) -> None:
        counts.zero_()
        launch(sets[i], counts.view(torch.uint32))

    return Case(
        f"2^{power} bytes, {name}",
        2.0**power,
        "B/s",
        len(sets),
        ours,
        counts,
        # torch.histc adds to global memory alone: 1.2 s for 2^28 bytes on an H200.
        {"torch.bincount": lambda i: torch.bincount(sets[i], minlength=256)},
        tolerance=0.0,
    )


def reduction(torch: Any, power: int) -> Case:
    from examples import reduction as example

    size = 2**power
    sets = rotating(torch, 4 * size, lambda: torch.rand(size, **drawing(torch)))
    sums, total = (torch.empty(n, device="cuda") for n in (example.blocks_for(size), 1))
    launches = [example.sum_kernel[blocks, example.THREADS] for blocks in (len(sums), 1)]

    def ours(i: int) -> None:
        launches[0](sets[i], sums)
        launches[1](sums, total)

    return Case(
        f"2^{power} f32",
        4.0 * size,
        "B/s",
        len(sets),
        ours,
        total,
        {"torch.sum": lambda i: sets[i].sum()},
        tolerance=1e-5,
    )


@lru_cache(maxsize=1)
def int4_weights(torch: Any, n: int, k: int) -> tuple[Any, ...]:
    """Rotating (packed, in torch's order, bf16), and scales for both kernels."""
    from examples.w4a16 import GROUP, pack

    q = torch.randint(16, (n, k), dtype=torch.uint8, **drawing(torch))
    scales = torch.rand(k // GROUP, n, **drawing(torch)).add(0.5).div(k**0.5).bfloat16()
    plain = ((q.float() - 8) * scales.float().repeat_interleave(GROUP, 0).T).bfloat16()
    tiled = torch.ops.aten._convert_weight_to_int4pack(q[:, ::2] << 4 | q[:, 1::2], 8)
    zeros = torch.stack((scales, torch.zeros_like(scales)), -1)
    weights = torch.from_numpy(pack(q.cpu().numpy())).cuda(), tiled, plain
    return rotating(torch, n * k // 2, lambda: [w.clone() for w in weights]), scales, zeros


def w4a16(torch: Any, m: int, n: int, k: int) -> Case:
    """Weights and scales are read; a group has 128 along K for torch's kernel, too."""
    from examples import w4a16 as example

    sets, scales, zeros = int4_weights(torch, n, k)
    x = torch.randn(m, k, dtype=torch.bfloat16, **drawing(torch))
    d, tiles = x.new_empty(m, n), example.tiles_of(m, n)
    grid = n // tiles["rows"], -(-m // tiles["tokens"])
    launch = example.w4a16_kernel[grid, 32 * example.WARPS]
    int4 = torch.ops.aten._weight_int4pack_mm
    return Case(
        f"M {m}, N {n}, K {k}, bf16",
        n * k / 2 + 2 * scales.numel(),
        "B/s",
        len(sets),
        lambda i: launch(x, sets[i][0], scales, d, **tiles),
        d,
        {
            "bf16 weights": lambda i: torch.nn.functional.linear(x, sets[i][2]),
            "torch int4": lambda i: int4(x, sets[i][1], example.GROUP, zeros),
        },
        tolerance=2.0**-5,
    )


def convolution(torch: Any, images: int, size: int, channels: int, filters: int, taps: int) -> Case:
    """2 R S C operations for each element of y; x keeps its size."""
    from examples import convolution as example

    new = partial(torch.randn, dtype=torch.bfloat16, **drawing(torch))
    x_shape, w_shape = (images, size, size, channels), (filters, taps, taps, channels)
    y_shape = (*x_shape[:3], filters)
    moved = 2 * sum(map(math.prod, (x_shape, w_shape, y_shape)))
    sets = rotating(torch, moved, lambda: [new(shape) for shape in (x_shape, w_shape, y_shape)])
    torch.backends.cudnn.benchmark = True

    def cudnn(i: int) -> Any:
        x, w = (array.permute(0, 3, 1, 2) for array in sets[i][:2])  # channels last in memory
        return torch.nn.functional.conv2d(x, w, padding=taps // 2).permute(0, 2, 3, 1)

    return Case(
        f"{images} x {size}² x {channels} to {filters}, {taps} x {taps}",
        2.0 * math.prod(y_shape) * math.prod(w_shape[1:]),
        "FLOP/s",
        len(sets),
        lambda i: example.launch(*sets[i], taps // 2, 1, example.convolution_kernel),
        sets[0][2],
        {"cuDNN": cudnn},
    )


def numba_matmul(torch: Any, size: int) -> Case:
    from numba import cuda

    from examples import numba_matmul as example

    new = partial(torch.randn, size, size, dtype=torch.float16, **drawing(torch))
    sets = rotating(torch, 6 * size * size, lambda: [new() for _ in range(3)])
    arrays = [[cuda.as_cuda_array(x) for x in each] for each in sets]
    grid = size // example.TILE, size // example.TILE

    def ours(i: int) -> None:
        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        example.matmul[grid, example.THREADS, stream](*arrays[i])

    return Case(
        f"{size}³, f16",
        2.0 * size**3,
        "FLOP/s",
        len(sets),
        ours,
        sets[0][2],
        {"torch.matmul": lambda i: sets[i][0] @ sets[i][1].T},
    )


# Example -> a function that makes a case, and its arguments for each problem.
EXAMPLES: dict[str, tuple[Callable[..., Case], list[tuple[Any, ...]]]] = {
    **{name: (attention, [
        (name, *shape, causal)
        for shape in ((4, 16, 4096, 128), (4, 16, 4096, 64), (1, 16, 16384, 128))
        for causal in (False, True)
    ]) for name in ("flash_attention", "hopper_attention")},
    "fused_norm": (norm, [(8192, 4096), (4096, 16384), (64, 8192)]),
    "histogram": (histogram, [(28, name) for name in DRAWS]),
    "reduction": (reduction, [(28,), (22,)]),
    "w4a16": (w4a16, [
        (m, *weights)
        for weights in ((8192, 8192), (4096, 4096), (28672, 8192))
        for m in (1, 4, 8, 16, 32, 64)
    ]),
    "convolution": (convolution, [
        (64, 56, 64, 64, 3), (64, 28, 128, 128, 3), (64, 14, 256, 256, 3), (64, 7, 512, 512, 3),
        (64, 56, 256, 64, 1), (16, 64, 512, 512, 3), (8, 128, 256, 256, 3),
    ]),
    "numba_matmul": (numba_matmul, [(4096,), (8192,)]),
}  # fmt: skip


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """One table for each example."""
    for name in dict.fromkeys(r["example"] for r in document["results"]):
        rows = []
        for result in document["results"]:
            if result["example"] != name or result["problem"] == "small":
                continue
            timing, rate = result.get("timing", {}), result.get("rate")
            row = {
                "problem": result["problem"], "ours": duration(timing.get("median")),
                result.get("unit", "rate").replace("FLOP", "TFLOP").replace("B/s", "TB/s"):
                    number(rate and rate / 1e12, ".3g"),
            }  # fmt: skip
            notes = [] if result.get("correct", True) else ["WRONG RESULT"]
            if "failure" in result:
                notes.append(one_line(result["failure"]))
            for library, result_of_other in result.get("others", {}).items():
                row[library] = duration(result_of_other.get("timing", {}).get("median"))
                if "failure" in result_of_other:
                    notes.append(f"{library}: {one_line(result_of_other['failure'])}")
            rows.append(row | {"ratio": number(result.get("ratio"), ".2f"), "notes": "; ".join(notes)})
        if rows:
            names = list(dict.fromkeys(column for row in rows for column in row))
            yield Table(name, [{column: row.get(column, "-") for column in names} for row in rows])
