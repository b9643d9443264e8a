"""Single instructions on the CPU: `tc.emulate` on batches of random registers."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks.console import duration, progress, table
from benchmarks.harness import Report, time_on_host
from tensorcore_dsl import arch as archs
from tensorcore_dsl.errors import ArchError
from tensorcore_dsl.interpreter.program import unit
from tensorcore_dsl.isa.descriptor import pack_descriptor
from tensorcore_dsl.isa.spec import Instruction, Operand

# PTX text -> instructions in a batch: as many as a user would hand over at once.
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
    form: Instruction
    batch: int
    arch: str

    @property
    def operations(self) -> int:
        m, n, k = self.form.shape
        return 2 * m * n * k

    def __str__(self) -> str:
        return f"{self.form.mnemonic} {self.arch}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archs",
        type=archs_of,
        default=ARCHS,
        metavar="sm_XX,...",
        help=f"architectures to emulate (default: {','.join(ARCHS)})",
    )
    parser.add_argument(
        "--batch",
        type=int,
        default=None,
        metavar="N",
        help="instructions in a batch (default: 10000, 100 for wgmma)",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=None,
        metavar="N",
        help="samples (default: 7, 3 with --quick)",
    )


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
    for case in progress(list(cases(options.archs, options.batch)), "emulate"):
        found: dict[str, Any] = {
            "instruction": case.form.mnemonic, "arch": case.arch, "batch": case.batch,
            "operations": case.operations,
        }  # fmt: skip
        try:
            arguments, shared = operands(case)
            timing = time_on_host(
                lambda: tc.emulate(case.form, *arguments, arch=case.arch, shared=shared),  # noqa: B023
                repeats, least=0.0,
            )  # fmt: skip
            found["batch_time"] = timing.json()
            found["instruction_seconds"] = timing.median / case.batch
            found["flops"] = case.operations * case.batch / timing.median
        except Exception as error:
            found["failure"] = f"{type(error).__name__}: {error}"
        report.results.append(found)
    columns = ["instruction", "arch", "batch", "one", "GFLOP/s", "+-", "remarks"]
    table("Emulated instructions", columns, [_row(found) for found in report.results])
    print(f"Written to {report.save(options.out)}")
    return report


def cases(names: tuple[str, ...], batch: int | None) -> list[Case]:
    """Every instruction on every architecture that has it."""
    found = []
    for text, usual in BATCHES.items():
        form = tc.instruction(text)
        for name in names:
            try:
                form.requires.check(archs.arch(name), form.mnemonic)
            except ArchError:
                continue
            found.append(Case(form, batch or usual, name))
    return found


def operands(case: Case, seed: int = 0) -> tuple[list[Any], np.ndarray | None]:
    """Register images, and shared memory where the instruction reads it."""
    draw = np.random.default_rng(seed)
    by_name = {"scale_d": True, "scale_a": 1, "scale_b": 1, "trans_a": 0, "trans_b": 0}
    m, n, k = case.form.shape
    shared: np.ndarray | None = None
    if any(o.name.startswith("desc") for o in case.form.operands):
        a_bytes, shared = _shared(draw, m, n, k)
        by_name |= {"desc_a": _descriptor(0), "desc_b": _descriptor(a_bytes)}
    return [
        by_name[o.name] if o.name in by_name else registers(case, o, draw)
        for o in case.form.operands
    ], shared


def registers(case: Case, operand: Operand, draw: np.random.Generator) -> np.ndarray:
    """(batch, threads, registers) of uint32, or uint64 for 64-bit types."""
    dtype = operand.dtype
    word = np.uint64 if operand.register_bits == 64 else np.uint32
    packed = operand.register_bits // dtype.bits
    shape = (case.batch, unit(case.form), operand.registers * packed)
    return np.ascontiguousarray(values(draw, dtype, shape)).view(word)


def values(draw: np.random.Generator, dtype: tc.DType, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.is_float:
        numbers = draw.standard_normal(shape, dtype=np.float32)
        return numbers.astype(np.float32 if dtype == tc.tf32 else dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    return draw.integers(limits.min, limits.max, shape, dtype=dtype.numpy, endpoint=True)


def _shared(draw: np.random.Generator, m: int, n: int, k: int) -> tuple[int, np.ndarray]:
    """Bytes of A, and A followed by B in bf16: core matrices one after the other."""
    image = values(draw, tc.bf16, ((m + n) * k,)).view(np.uint8)
    return m * k * tc.bf16.itemsize, image


def _descriptor(start: int) -> np.uint64:
    """Two core matrices along K side by side, then those of the next eight rows; no swizzle."""
    return np.uint64(pack_descriptor(start, leading=CORE, stride=2 * CORE))


def _row(found: dict[str, Any]) -> list[str]:
    start = [found["instruction"], found["arch"], f"{found['batch']:,}"]
    if "failure" in found:
        return [*start, "-", "-", "-", found["failure"][:120]]
    rate, one = found["flops"] / 1e9, duration(found["instruction_seconds"])
    return [*start, one, f"{rate:.2f}", f"{found['batch_time']['spread']:.1%}", ""]
