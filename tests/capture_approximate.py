"""Compare the approximate f32 instructions with a GPU: `python -m tests.capture_approximate`.

Runs each form over all 2**32 inputs (divisions: 2**32 pairs) on the GPU and on the CPU, and writes
to golden/sm_90a
- approximate.json: form -> inputs compared, mismatches, largest distance in ulp (-1: a NaN on one
  side alone), and some differing inputs with the GPU's and the CPU's results;
- approximate_samples.json: the SHA-256 of the GPU's results for samples and for whole binades,
  which tests/test_function_unit.py replays on any machine.

    --only TEXT     forms whose name contains TEXT
    --seconds S     stop a form after S seconds; chunks are visited in an order that spreads
    --no-compare    samples alone

Needs a GPU and numba-cuda.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.numerics.scalar import arith

GOLDEN = Path(__file__).parent / "golden" / "sm_90a"
BLOCK = 256
CHUNK = 1 << 22
TOTAL = 1 << 32
EXAMPLES = 8
MIX_A, MIX_B = 0x9E3779B1, 0x85EBCA77


@tc.kernel
def sweep(out: tc.Array, base: tc.u32, form: tc.Const) -> None:
    """out[i] = form(base + i), all as bits."""
    i = tc.blockIdx.x * BLOCK + tc.threadIdx.x
    out[i] = tc.emit(form, (tc.u32(i) + base).bits(tc.f32)).bits(tc.u32)


@tc.kernel
def gather(out: tc.Array, given: tc.Array, form: tc.Const) -> None:
    """out[i] = form(given[i]), all as bits."""
    i = tc.blockIdx.x * BLOCK + tc.threadIdx.x
    out[i] = tc.emit(form, given[i].bits(tc.f32)).bits(tc.u32)


@tc.kernel
def pairs(out: tc.Array, base: tc.u32, form: tc.Const) -> None:
    """out[i] = form(a, b) of the pair `pair(base + i)`."""
    x = tc.u32(tc.blockIdx.x * BLOCK + tc.threadIdx.x) + base
    a = x * tc.u32(MIX_A)
    b = (a ^ (a >> 15)) * tc.u32(MIX_B)
    out[tc.blockIdx.x * BLOCK + tc.threadIdx.x] = tc.emit(
        form, a.bits(tc.f32), (b ^ (b >> 13)).bits(tc.f32)
    ).bits(tc.u32)


def pair(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two well mixed operands from a number."""
    a = x * np.uint32(MIX_A)
    b = (a ^ (a >> np.uint32(15))) * np.uint32(MIX_B)
    return a, b ^ (b >> np.uint32(13))


def forms(only: str = "") -> list[str]:
    named = [f"{op}.approx{q}.f32" for op in OPS for q in ("", ".ftz")]
    named += [f"div.{kind}{q}.f32" for kind in ("approx", "full") for q in ("", ".ftz")]
    return [f for f in named if only in f and f != "tanh.approx.ftz.f32"]


OPS = ("rcp", "rsqrt", "sqrt", "ex2", "lg2", "sin", "cos", "tanh")


# --- comparison ----------------------------------------------------------------------------------


def on_cpu(form: str, x: np.ndarray) -> np.ndarray:
    op, kind, *rest = form.split(".")
    operands = pair(x) if op == "div" else (x,)
    return arith(op, "f32", *operands, rounding=kind, ftz="ftz" in rest)


def ordered(bits: np.ndarray) -> np.ndarray:
    """Integers in the order of the numbers; neighbours differ by one, and the zeros are one."""
    b = bits.astype(np.int64)
    return np.where(b >> 31, -(b & 0x7FFFFFFF), b)


def distance(got: np.ndarray, want: np.ndarray) -> int:
    """Largest distance of two arrays of bits in ulp; -1 where one is NaN and the other is not."""
    if not len(got):
        return 0
    nans = [(v & np.uint32(0x7FFFFFFF)) > 0x7F800000 for v in (got, want)]
    if (nans[0] != nans[1]).any():
        return -1
    return int(np.abs(ordered(got) - ordered(want)).max())


Finding = tuple[int, int, int, list[list[str]]]


def compare(form: str, base: int, got: np.ndarray) -> Finding:
    x = np.arange(base, base + len(got), dtype=np.uint32)
    want = on_cpu(form, x)
    mismatches = np.flatnonzero(got != want)
    far = distance(got[mismatches], want[mismatches])
    shown = [[f"{int(v):08x}" for v in (x[i], got[i], want[i])] for i in mismatches[:2]]
    return len(got), len(mismatches), far, shown


def spread(count: int) -> Iterator[int]:
    """All numbers below a power of two, with the bits of a counter reversed."""
    width = count.bit_length() - 1
    for i in range(count):
        yield int(f"{i:0{width}b}"[::-1], 2) if width else 0


class Gpu:
    """Runs the kernels; results arrive in pinned memory, `depth` chunks at a time."""

    def __init__(self, depth: int) -> None:
        from numba import cuda

        self.device = cuda.device_array(CHUNK, np.uint32)
        self.pinned = [cuda.pinned_array(CHUNK, np.uint32) for _ in range(depth)]
        self.copied = cuda.to_device

    def sweep(self, form: str, base: int, out: np.ndarray) -> np.ndarray:
        kernel = pairs if form.startswith("div") else sweep
        with tc.target("cuda"):
            kernel[CHUNK // BLOCK, BLOCK](self.device, np.uint32(base), form=form)
        self.device.copy_to_host(out)
        return out

    def at(self, form: str, x: np.ndarray) -> np.ndarray:
        """Results for any inputs; for divisions, of the pairs from number `x[0]` on."""
        if form.startswith("div"):
            return np.array(self.sweep(form, int(x[0]), self.pinned[0])[: len(x)])
        parts = [self.gathered(form, x[i : i + CHUNK]) for i in range(0, len(x), CHUNK)]
        return np.concatenate(parts)

    def gathered(self, form: str, x: np.ndarray) -> np.ndarray:
        padded = np.zeros(-(-len(x) // BLOCK) * BLOCK, np.uint32)
        padded[: len(x)] = x
        with tc.target("cuda"):
            gather[len(padded) // BLOCK, BLOCK](self.device, self.copied(padded), form=form)
        return np.asarray(self.device.copy_to_host())[: len(x)]


def survey(form: str, gpu: Gpu, pool: ThreadPoolExecutor, seconds: float) -> list[Any]:
    """One record: inputs, mismatches, largest distance, examples."""
    start, surveys = time.time(), []
    waiting: list[tuple[Future[Finding], np.ndarray]] = []
    free = list(gpu.pinned)
    for chunk in spread(TOTAL // CHUNK):
        if time.time() - start > seconds:
            break
        if not free:
            future, buffer = waiting.pop(0)
            surveys.append(future.result())
            free.append(buffer)
        out = gpu.sweep(form, chunk * CHUNK, free.pop())
        waiting.append((pool.submit(compare, form, chunk * CHUNK, out), out))
    surveys += [future.result() for future, _ in waiting]
    counts, wrong, far, shown = zip(*surveys, strict=True)
    worst = -1 if -1 in far else max(far)
    examples = sorted(e for some in shown for e in some)
    return [sum(counts), sum(wrong), worst, examples[:: max(1, len(examples) // EXAMPLES)][:EXAMPLES]]


# --- samples -----------------------------------------------------------------------------------

BINADES = {  # exponents (of two) and signs of the binades that are sampled whole
    "rcp": ([0], "+"),
    "rsqrt": ([0, 1], "+"),
    "sqrt": ([0, 1], "+"),
    "ex2": ([-4, -3, -2, -1, 0, 1], "+-"),
    "lg2": ([-3, -2, -1, 0, 1, 2], "+"),
    "sin": ([-3, -2, -1, 0, 1, 2], "+"),
    "cos": ([-3, -2, -1, 0, 1, 2], "+"),
    "tanh": ([-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3], "+"),
}


def sample_inputs(form: str) -> np.ndarray:
    """For every sign and exponent 96 significands, and more for the exponents at both ends."""
    r = np.random.RandomState(zlib.crc32(form.encode()))
    fields = np.arange(512).astype(np.uint32)
    few = [fields] * 96
    ends = [e | s for e in (0, 1, 2, 252, 253, 254, 255) for s in (0, 256)]
    fields = np.concatenate([*few, np.repeat(np.array(ends, np.uint32), 2048)])
    x = fields << np.uint32(23) | r.randint(0, 1 << 23, len(fields)).astype(np.uint32)
    return np.concatenate([x, np.arange(512).astype(np.uint32) << np.uint32(23)])


def cases() -> dict[str, tuple[str, int | None]]:
    """Samples of every form, and whole binades: the form and, of a binade, the first input."""
    cases_by_name: dict[str, tuple[str, int | None]] = {form: (form, None) for form in forms()}
    for op, (exponents, signs) in BINADES.items():
        form = f"{op}.approx.f32" if op == "tanh" else f"{op}.approx.ftz.f32"
        for exponent, sign in itertools.product(exponents, signs):
            base = (exponent + 127) << 23 | (1 << 31 if sign == "-" else 0)
            cases_by_name[f"{op}_{base:08x}"] = form, base
    return cases_by_name


def inputs(form: str, base: int | None) -> np.ndarray:
    """The inputs of a case; of a division the numbers of pairs."""
    if base is not None:
        return np.arange(base, base + (1 << 23), dtype=np.uint32)
    return np.arange(1 << 17, dtype=np.uint32) if form.startswith("div") else sample_inputs(form)


def checksum(results: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(results, "<u4").tobytes()).hexdigest()


# --- the command ---------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=GOLDEN)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--no-compare", action="store_true")
    options = parser.parse_args()
    workers = os.cpu_count() or 4
    gpu = Gpu(2 * workers)
    if not options.only:
        samples = {name: checksum(gpu.at(form, inputs(form, base))) for name, (form, base) in cases().items()}
        write(options.out / "approximate_samples.json", samples)
    if not options.no_compare:
        compare_all(gpu, workers, options)


def compare_all(gpu: Gpu, workers: int, options: argparse.Namespace) -> None:
    path = options.out / "approximate.json"
    records = json.loads(path.read_text()) if options.only and path.exists() else {}
    with ThreadPoolExecutor(workers) as pool:
        for form in forms(options.only):
            start = time.time()
            on_cpu(form, np.arange(1 << 12, dtype=np.uint32))  # compiles and loads tables
            records[form] = survey(form, gpu, pool, options.seconds)
            print(form, *records[form], f"{time.time() - start:.1f} s", flush=True)
            write(path, records)


def write(path: Path, records: dict[str, Any]) -> None:
    lines = (f"{json.dumps(form)}: {json.dumps(record)}" for form, record in records.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
