"""The first emulated run of kernels in new processes: with an empty cache, and with a filled one.

A scenario runs in a process of its own, twice: the first run compiles loops or loads them, and the
second one shows what the work itself takes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Report, attempt, elapsed
from benchmarks.tables import Table, duration, one_line, progress

CACHE, NOTICE, TARGET = "TENSORCORE_DSL_CACHE", "TENSORCORE_DSL_NOTICE", "TENSORCORE_DSL_TARGET"
STATES = ("cold", "warm")  # states of the cache
IMPORT = "from time import time as t; t0 = t(); import tensorcore_dsl; print(t() - t0)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scenarios", metavar="LIST", help=f"some of {','.join(SCENARIOS)} (default: all)")


def run(options: argparse.Namespace) -> Report:
    names = options.scenarios.split(",") if options.scenarios else list(SCENARIOS)
    if options.quick:
        names = names[:2]
    report = Report(
        "first-call",
        {"scenarios": names},
        {
            "clock": "time.perf_counter, and process_time of all threads",
            "cold": "an empty directory of caches",
            "warm": "a later process with the same directory",
        },
    )
    for name in progress(names, "first call"):
        report.results.append({"scenario": name} | attempt(measure, name))
    return report


def tables(document: dict[str, Any]) -> Iterator[Table]:
    rows = []
    for result in document["results"]:
        row = {"scenario": result["scenario"]}
        for state in STATES:
            times = result.get(state, {})
            row |= {
                f"{state}: import": duration(times.get("import")),
                f"{state}: first run": duration(times.get("first")),
                f"{state}: CPU": duration(times.get("cpu")),
                f"{state}: compiled": str(len(times.get("compiled", ()))),
            }
        row["second run"] = duration(result.get("warm", {}).get("second"))
        rows.append(row | {"notes": one_line(result.get("failure", ""))})
    yield Table("The first run of a kernel", rows)
    slowest = sorted(
        (
            (name, seconds, result["scenario"])
            for result in document["results"]
            for name, seconds in result.get("cold", {}).get("compiled", ())
        ),
        key=lambda times: -times[1],
    )
    yield Table(
        "The slowest compilations",
        [
            {"function": name, "seconds": duration(seconds), "scenario": scenario}
            for name, seconds, scenario in slowest[:20]
        ]
        or [{"function": "none", "seconds": "-", "scenario": "-"}],
    )


def measure(name: str) -> dict[str, Any]:
    """Measure a scenario in new processes, with an empty directory of caches and a filled one."""
    with tempfile.TemporaryDirectory() as directory:
        settings = {CACHE: directory, NOTICE: "off", TARGET: "cpu"}

        def last_line(*arguments: str) -> Any:
            done = subprocess.run(
                [sys.executable, *arguments],
                check=True,
                capture_output=True,
                text=True,
                cwd=Path(__file__).parents[2],
                env={**os.environ, **settings},
            )
            return json.loads(done.stdout.splitlines()[-1])

        return {
            state: {"import": last_line("-c", IMPORT)} | last_line("-m", "benchmarks.host.first_call", name)
            for state in STATES
        }


def vector_add() -> None:
    import tensorcore_dsl as tc

    @tc.kernel
    def add(a: tc.Array, b: tc.Array, c: tc.Array) -> None:
        i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
        if i < c.shape[0]:
            c[i] = a[i] + b[i]

    a = np.arange(1000, dtype=np.float32)
    add[8, 128](a, a, np.empty_like(a))


def own_gemm() -> None:
    """A user's kernel, which is run with all checks."""
    import tensorcore_dsl as tc

    @tc.kernel(threads=32)
    def matmul(a: tc.Array, b: tc.Array, d: tc.Array) -> None:
        mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
        tile_a = tc.shared((16, 16), a.dtype, swizzle=32)
        tile_b = tc.shared((16, 8), b.dtype)
        m, n = tc.blockIdx.x * 16, tc.blockIdx.y * 8
        acc = mma.d.zeros()
        for k in range(0, a.shape[1], 16):
            tc.copy_tile(tile_a, a, (m, k))
            tc.copy_tile(tile_b, b, (k, n))
            tc.cp_async_commit()
            tc.cp_async_wait(0)
            tc.barrier()
            acc = mma(tc.ldmatrix(tile_a, mma.a), tc.ldmatrix(tile_b, mma.b), acc)
            tc.barrier()
        tc.store_elements(d, acc, origin=(m, n))

    a, b = (np.ones(shape, tc.bf16.numpy) for shape in ((64, 96), (96, 32)))
    matmul[(4, 4), 32](a, b, np.empty((64, 32), np.float32))


def flash_attention() -> None:
    """The kernel of docs/fragments.md."""
    import tensorcore_dsl as tc

    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)

    @tc.kernel(threads=128)
    def attention(q: tc.Array, k: tc.Array, v: tc.Array, o: tc.Array, scale: tc.f32) -> None:
        tile_q, tile_k, tile_v = (tc.shared((64, 64), tc.f16, swizzle=128) for _ in range(3))
        head, first, keys = tc.blockIdx.y, tc.blockIdx.x * 64, k.shape[1]
        row = tc.warp_id() * 16
        tc.copy_tile(tile_q, q, (head, first, 0), bounded=True)
        out = [mma.d.zeros() for _ in range(8)]
        best, total = tc.row_values(mma.d, -math.inf), tc.row_values(mma.d)
        for start in range(0, min(keys, first + 64), 64):
            tc.copy_tile(tile_k, k, (head, start, 0), bounded=True)
            tc.copy_tile(tile_v, v, (head, start, 0), bounded=True)
            tc.cp_async_commit()
            tc.cp_async_wait(0)
            tc.barrier()

            def masked(x: Any, i: Any, j: Any) -> Any:
                return tc.select((j < keys) & (j <= i), x * scale, -math.inf)

            fq, fk = tc.ldmatrix(tile_q[row : row + 16, :], mma.a), tc.ldmatrix(tile_k.T, mma.b)
            scores = tc.tiled_mma(mma, [mma.d.zeros() for _ in range(8)], fq, fk)
            scores = [
                s.map_coordinates(lambda x, i, j, start=start + 8 * n: masked(x, first + row + i, start + j))
                for n, s in enumerate(scores)
            ]
            grown = tc.maximum(best, tc.row_max(scores))
            p, shrink = [tc.exp2(s - grown) for s in scores], tc.exp2(best - grown)
            best, total = grown, total * shrink + tc.row_sum(p)
            out = tc.tiled_mma(
                mma, [x * shrink for x in out], tc.as_operand(p, mma.a), tc.ldmatrix(tile_v, mma.b)
            )
            tc.barrier()
        for n, x in enumerate(out):
            tc.store_elements(o[head, :, :], x / total, origin=(first + row, 8 * n), bounded=True)

    q = np.ones((2, 100, 64), np.float16)
    attention[(2, 2), 128](q, q, q, np.zeros_like(q), 0.125)


def gemm(dtype: str, out: str) -> Callable[[], None]:
    def product() -> None:
        import tensorcore_dsl as tc
        from tensorcore_dsl import kernels

        x = np.ones((256, 256)).astype(getattr(tc, dtype).numpy)
        kernels.gemm(x, x, out_dtype=getattr(tc, out))

    return product


def demo() -> None:
    from tensorcore_dsl.kernels import demo

    demo.run_all()


SCENARIOS: dict[str, Callable[[], None]] = {
    "vector-add": vector_add,
    "own-gemm": own_gemm,
    "attention": flash_attention,
    "bf16": gemm("bf16", "f32"),
    "s8": gemm("s8", "s32"),
    "f64": gemm("f64", "f64"),
    "demo": demo,
}


def _in_this_process(name: str) -> dict[str, Any]:
    """Measure the first and the second run, and list the functions that the first one compiles."""
    from tensorcore_dsl.lowering.forms import COMPILED

    cpu = time.process_time()
    first = elapsed(SCENARIOS[name])
    times = {"first": first, "cpu": time.process_time() - cpu, "compiled": list(COMPILED)}
    return times | {"second": elapsed(SCENARIOS[name])}


if __name__ == "__main__":
    print(json.dumps(_in_this_process(sys.argv[1])))
