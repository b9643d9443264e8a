"""Every matrix instruction on the CPU: `tc.emulate` on random registers, the slowest ones first."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks.emulated_kernels import values
from benchmarks.harness import Report, attempt, geometric_mean, time_on_host
from benchmarks.tables import Table, duration, one_line, progress, rate
from tensorcore_dsl import arch as archs
from tensorcore_dsl import isa
from tensorcore_dsl.errors import ArchError
from tensorcore_dsl.isa.descriptor import pack_descriptor
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.numerics import architectures

ARCHS = ("sm_90a", "sm_120a", "sm_80", "sm_75", "sm_70")
WORK = 5_000_000  # multiply-adds of a batch
SLOWEST = 40
WIDTHS = (8, 64, 256)  # N of the forms of wgmma that are measured
CORE = 8 * 16  # bytes of a core matrix: 8 rows of 16 bytes
METADATA_NAMES = ("e", "meta")
METADATA = (0x4, 0xE)  # pairs of columns that all kinds of sparsity allow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--archs",
        type=archs_of,
        metavar="sm_XX,...",
        default=(),
        help="measure on these; default: the first that has the form",
    )
    add("--only", metavar="TEXT", default="", help="forms whose text has this")
    add("--repeats", type=int, metavar="N", help="samples (default: 7, 3 with --quick)")


def archs_of(text: str) -> tuple[str, ...]:
    try:
        return tuple(archs.arch(name.strip()).name for name in text.split(","))
    except ArchError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(options: argparse.Namespace) -> Report:
    repeats = options.repeats or (3 if options.quick else 7)
    report = Report(
        "forms",
        {"only": options.only, "repeats": repeats},
        {
            "clock": "time.perf_counter around tc.emulate, after one call that compiles; the least",
            "operands": "normal values, integers and bits uniform over their type",
        },
    )
    chosen = [form for form in forms(options.archs) if options.only in form[0].mnemonic]
    for instruction, arch in progress(chosen[:: 10 if options.quick else 1], "forms"):
        report.results.append(
            {"instruction": instruction.mnemonic, "arch": arch, "group": group(instruction)}
            | attempt(measure, instruction, arch, repeats)
        )
    return report


def forms(names: tuple[str, ...]) -> list[tuple[Instruction, str]]:
    """List products with a known rounding and an architecture; for wgmma, of some widths only."""
    chosen = []
    for instruction in isa.instructions():
        if not {"a", "b", "c", "d"} <= instruction.params.keys():
            continue
        if instruction.params.get("family") == "wgmma" and instruction.shape[1] not in WIDTHS:
            continue
        for name in names or ARCHS:
            try:
                instruction.requires.check(archs.arch(name), instruction.mnemonic)
                architectures.model(isa.fragments.prepared(instruction)[0], name)
            except (ArchError, ValueError):
                continue
            chosen.append((instruction, name))
            if not names:
                break
    return chosen


def group(instruction: Instruction) -> str:
    """Key of the forms in one line of the summary."""
    p = instruction.params
    family = p.get("family", "mma") + (f".{p['group']}" if p.get("group") else "")
    return f"{family} {p['a']}" if p["a"] == p["b"] else f"{family} {p['a']}, {p['b']}"


def measure(instruction: Instruction, arch: str, repeats: int) -> dict[str, Any]:
    m, n, k = instruction.shape
    batch = max(WORK // (m * n * k), 16)
    rng = np.random.default_rng(0)
    operands = [operand(instruction, o, batch, rng) for o in instruction.operands]
    emulate = partial(tc.emulate, instruction, *operands, arch=arch, shared=shared(instruction, rng))
    best = time_on_host(emulate, repeats).best
    return {"batch": batch, "seconds": best / batch, "flops": 2 * m * n * k * batch / best}


def operand(instruction: Instruction, o: Operand, batch: int, rng: np.random.Generator) -> Any:
    """Its value for each instruction of a batch."""
    if o.values:
        return o.values[0]
    if o.is_descriptor:
        return descriptor(instruction, o.name)
    if o.name == "scale_d":
        return True
    if o.name in METADATA_NAMES:
        nibbles = rng.choice(METADATA, (batch, instruction.threads, 8))
        return (nibbles << 4 * np.arange(8)).sum(-1).astype(np.uint32)
    if not o.is_fragment:  # scales of blocks
        low, high = (0x30, 0x40) if instruction.params.get("scale_type") == "ue4m3" else (125, 130)
        scales = rng.integers(low, high, (batch, instruction.threads, 4), np.uint8)
        return scales.view(np.uint32)[..., 0]
    word = np.uint64 if o.register_bits == 64 else np.uint32
    shape = (batch, instruction.threads, o.registers)
    if o.dtype.bits < 8:
        return rng.integers(0, 1 << 32, shape, np.uint32)
    packed = o.register_bits // o.dtype.bits
    elements = values(rng, o.dtype, (*shape[:2], o.registers * packed))
    return np.ascontiguousarray(elements).view(word)


def lines(instruction: Instruction) -> tuple[int, int]:
    """Bytes along K of A and of B in shared memory."""
    p, k = instruction.params, instruction.shape[2]
    bits = {name: tc.dtypes.named(p[name]).bits for name in "ab"}
    return k * bits["a"] // (16 if p.get("sparse") else 8), k * bits["b"] // 8


def descriptor(instruction: Instruction, name: str) -> np.uint64:
    """K-major without swizzle: the core matrices along K, then those of the next eight rows."""
    of_a, of_b = lines(instruction)
    start, size = (0, of_a) if name == "desc_a" else (64 * of_a, of_b)
    return np.uint64(pack_descriptor(start, leading=CORE, stride=CORE * (size // 16)))


def shared(instruction: Instruction, rng: np.random.Generator) -> np.ndarray | None:
    if not any(o.is_descriptor for o in instruction.operands):
        return None
    of_a, of_b = lines(instruction)
    arrays = []
    for name, size in (("a", 64 * of_a), ("b", instruction.shape[1] * of_b)):
        dtype = tc.dtypes.named(instruction.params[name])
        if dtype.bits < 8:
            arrays.append(rng.integers(0, 256, size, np.uint8))
        else:
            arrays.append(values(rng, dtype, (size * 8 // dtype.bits,)).view(np.uint8))
    return np.concatenate(arrays)


def tables(document: dict[str, Any]) -> Iterator[Table]:
    results = document["results"]
    names = list(dict.fromkeys(result["group"] for result in results))
    rows = []
    for name in names:
        of_group = [r for r in results if r["group"] == name]
        flops = [r["flops"] for r in of_group if "flops" in r]
        rows.append(
            {
                "forms": name,
                "number": str(len(of_group)),
                "GFLOP/s, geometric mean": rate(geometric_mean(flops) if flops else None, 1e9),
                "least": rate(min(flops, default=None), 1e9),
            }
        )
    yield Table("Emulated forms", rows)
    slowest = sorted(results, key=lambda result: result.get("flops", 0.0))[:SLOWEST]
    yield Table(
        "The slowest",
        [
            {
                "instruction": result["instruction"],
                "architecture": result["arch"],
                "time of one": duration(result.get("seconds")),
                "GFLOP/s": rate(result.get("flops"), 1e9),
                "notes": one_line(result.get("failure", "")),
            }
            for result in slowest
        ],
    )
