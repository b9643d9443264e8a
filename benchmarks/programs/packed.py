"""`gemm` with packed weights of 4 and 8 bits compared with PyTorch's bf16 and int4, on a GPU."""

from __future__ import annotations

import argparse
import time
from functools import lru_cache
from typing import Any

import tensorcore_dsl as tc
from benchmarks.gpu import Monitor
from benchmarks.harness import Report, add_seconds, attempt, comma_list
from benchmarks.products.gemm import torch_with_gpu
from benchmarks.programs.examples import (
    METHOD,
    QUICK_ROUNDS,
    ROUNDS,
    Case,
    drawing,
    measure,
    rotating,
    tables,
)
from tensorcore_dsl import kernels

__all__ = ["add_arguments", "run", "tables"]

GROUP = 128  # along K, of a scale of s4; 8-bit weights have one scale for each column
KINDS = ("s4", "s8", "e4m3")
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WEIGHTS = ((8192, 8192), (4096, 4096), (28672, 8192))  # N, K


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=comma_list(int), default=list(ROWS), metavar="M,...")
    parser.add_argument("--rounds", type=int, metavar="R", help=f"samples of each (default: {ROUNDS})")
    add_seconds(parser, 300.0, "case")


def run(options: argparse.Namespace) -> Report:
    torch = torch_with_gpu()
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    settings = {"rows": options.rows, "kinds": KINDS, "rounds": rounds}
    report = Report("packed", settings, dict(METHOD), summary={"target": "cuda"})
    begin = time.perf_counter()
    with Monitor() as monitor:
        for kind in KINDS:
            for n, k in WEIGHTS[: 1 if options.quick else None]:
                for m in options.rows:
                    if (started := time.perf_counter()) - begin > options.seconds:
                        return report
                    result = {"example": kind, "problem": f"M {m}, N {n}, K {k}"}
                    result |= attempt(measure, torch, make_case, (kind, m, n, k), rounds)
                    result["state"] = monitor.between(started, time.perf_counter())
                    report.results.append(result)
                    report.save(options.out)
    return report


@lru_cache(maxsize=1)
def make_weights(torch: Any, kind: str, n: int, k: int) -> tuple[list[Any], Any]:
    """Rotating (packed, in torch's int4 order or None, bf16), and torch's scales and zero points."""
    dtype = getattr(tc, kind)
    group = GROUP if kind == "s4" else k
    if kind == "e4m3":
        q = torch.randn(n, k, **drawing(torch)).to(torch.float8_e4m3fn)
    else:
        low = -(2 ** (dtype.bits - 1))
        q = torch.randint(low, -low, (n, k), dtype=torch.int8, **drawing(torch))
    scales = torch.rand(k // group, n, **drawing(torch)).add(0.5).div(k**0.5).bfloat16()
    plain = (q.float() * scales.float().repeat_interleave(group, 0).T).bfloat16()
    tiled = None
    if kind == "s4":
        codes = (q + 8).to(torch.uint8)
        tiled = torch.ops.aten._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], 8)
    pack = lambda: kernels.pack(q.T, scales, dtype=dtype)
    copy = lambda: (pack(), None if tiled is None else tiled.clone(), plain.clone())
    return rotating(torch, n * k * dtype.bits // 8, copy), torch.stack((scales, torch.zeros_like(scales)), -1)


def make_case(torch: Any, kind: str, m: int, n: int, k: int) -> Case:
    """Weights and scales are read."""
    sets, zeros = make_weights(torch, kind, n, k)
    x = torch.randn(m, k, dtype=torch.bfloat16, **drawing(torch))
    d = x.new_empty(m, n)
    baselines = {"bf16": lambda i: torch.nn.functional.linear(x, sets[i][2])}
    if kind == "s4":
        int4 = torch.ops.aten._weight_int4pack_mm
        baselines["torch int4"] = lambda i: int4(x, sets[i][1], GROUP, zeros)
    return Case(
        f"M {m}, N {n}, K {k}, bf16",
        n * k * getattr(tc, kind).bits / 8 + zeros.numel(),
        "B/s",
        len(sets),
        lambda i: kernels.gemm(x, sets[i][0], out=d),
        d,
        baselines,
        tolerance=2.0**-5,
    )
