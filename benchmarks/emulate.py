"""Single instructions on the CPU: `tc.emulate` on batches of random registers.

Products are computed in binary32 and int32 where these are exact, otherwise in binary64; each rate
stands beside that of binary64 alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks.emulated_kernels import values
from benchmarks.harness import Report, attempt, time_on_host
from benchmarks.tables import Table, duration, one_line, progress, rate
from tensorcore_dsl import arch as archs
from tensorcore_dsl.errors import ArchError
from tensorcore_dsl.isa.descriptor import pack_descriptor
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.numerics.plans import binary64_loops

# PTX text -> instructions in a batch.
BATCHES = {
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": 10_000,
    "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16": 10_000,
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": 10_000,
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32": 10_000,
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32": 10_000,
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32": 10_000,
    "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64": 10_000,
    "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16": 100,
}
ARCHS = ("sm_80", "sm_90a")
CORE = 8 * 16  # bytes of a core matrix: 8 rows of 16 bytes


@dataclass(frozen=True)
class Case:
    instruction: Instruction
    batch: int
    arch: str

    @property
    def operations(self) -> int:
        m, n, k = self.instruction.shape
        return 2 * m * n * k


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--archs", type=archs_of, default=ARCHS, metavar="sm_XX,...",
        help=f"architectures to emulate (default: {','.join(ARCHS)})")  # fmt: skip
    add("--batch", type=int, metavar="N",
        help="instructions in a batch (default: 10000, 100 for wgmma)")  # fmt: skip
    add("--repeats", type=int, metavar="N", help="samples (default: 7, 3 with --quick)")


def archs_of(text: str) -> tuple[str, ...]:
    try:
        return tuple(archs.arch(name.strip()).name for name in text.split(","))
    except ArchError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(options: argparse.Namespace) -> Report:
    repeats = options.repeats or (3 if options.quick else 7)
    report = Report("emulate", {"archs": list(options.archs), "repeats": repeats}, {
        "clock": "time.perf_counter around tc.emulate, after one call that compiles",
        "operands": "standard normal values, integers uniform over their type",
    })  # fmt: skip
    for case in progress(cases(options.archs, options.batch), "emulate"):
        result = {
            "instruction": case.instruction.mnemonic, "arch": case.arch, "batch": case.batch,
            "operations": case.operations,
        }  # fmt: skip
        report.results.append(result | attempt(measure, case, repeats))
    return report


def measure(case: Case, repeats: int) -> dict[str, Any]:
    arguments, shared = operands(case)
    emulate = partial(tc.emulate, case.instruction, *arguments, arch=case.arch, shared=shared)
    timing = time_on_host(emulate, repeats)
    with binary64_loops():
        in_binary64 = time_on_host(emulate, repeats)
    return {
        "batch_time": timing.json(),
        "binary64_time": in_binary64.json(),
        "instruction_seconds": timing.median / case.batch,
        "rate": case.batch / timing.median,
        "flops": case.operations * case.batch / timing.median,
        "speedup": in_binary64.median / timing.median,
    }


def tables(document: dict[str, Any]) -> Iterator[Table]:
    yield Table("Emulated instructions", [
        {
            "instruction": result["instruction"],
            "architecture": result["arch"],
            "batch": f"{result['batch']:,}",
            "time of one": duration(result.get("instruction_seconds")),
            "per second": f"{result['rate']:,.0f}" if "rate" in result else "",
            "to binary64": f"{result['speedup']:.1f}x" if "speedup" in result else "",
            "GFLOP/s": rate(result.get("flops"), 1e9),
            "notes": one_line(result.get("failure", "")),
        }
        for result in document["results"]
    ])  # fmt: skip


def cases(names: tuple[str, ...], batch: int | None) -> list[Case]:
    """Every instruction on every architecture that has it."""
    supported = []
    for text, usual in BATCHES.items():
        instruction = tc.instruction(text)
        for name in names:
            with suppress(ArchError):
                instruction.requires.check(archs.arch(name), instruction.mnemonic)
                supported.append(Case(instruction, batch or usual, name))
    return supported


def operands(case: Case, seed: int = 0) -> tuple[list[Any], np.ndarray | None]:
    """Register values, and shared memory where the instruction reads it."""
    rng = np.random.default_rng(seed)
    by_name = {"scale_d": True, "scale_a": 1, "scale_b": 1, "trans_a": 0, "trans_b": 0}
    m, n, k = case.instruction.shape
    shared = None
    if any(o.name.startswith("desc") for o in case.instruction.operands):
        # Contiguous core matrices of A, then of B.
        shared = values(rng, tc.bf16, ((m + n) * k,)).view(np.uint8)
        a_bytes = m * k * tc.bf16.itemsize
        by_name |= {"desc_a": _descriptor(0), "desc_b": _descriptor(a_bytes)}
    return [
        by_name[o.name] if o.name in by_name else registers(case, o, rng)
        for o in case.instruction.operands
    ], shared


def registers(case: Case, operand: Operand, rng: np.random.Generator) -> np.ndarray:
    """(batch, threads, registers) of uint32, or uint64 for 64-bit types."""
    dtype = operand.dtype
    word = np.uint64 if operand.register_bits == 64 else np.uint32
    packed = operand.register_bits // dtype.bits
    shape = (case.batch, case.instruction.threads, operand.registers * packed)
    return np.ascontiguousarray(values(rng, dtype, shape)).view(word)


def _descriptor(start: int) -> np.uint64:
    """K-major without swizzle: two core matrices along K, then those of the next eight rows."""
    return np.uint64(pack_descriptor(start, leading=CORE, stride=2 * CORE))
