"""Capture what the GPU gives: `python -m tests.capture [options]`.

    --part NAME     "threads": instructions of single threads, loads and stores; "matrix": matrix
                    instructions, 4,096 warps each, and descriptors; "gemm": whole kernels
    --out DIR       where the records go (tests/golden/sm_90a, replayed by tests/test_golden.py)
    --only TEXT     forms whose mnemonic (kernels whose name) has TEXT in it
    --check         compare with the emulator at once; print the first differing case of a form
    --emulate       (matrix) ask the emulator instead of a GPU; kernels are assembled all the same
    --replay-all    (matrix) compare every recorded chunk with the emulator; needs no GPU
    --workers N     (matrix) processes; as many as cores
    --seconds S     (matrix) stop then, and write what there is

Needs a GPU and numba-cuda.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tests import capture_descriptors, capture_matrix, probes
from tests.gemm_cases import CASES, digest, run_case, seed_of

GOLDEN = Path(__file__).parent / "golden"
ARCH = "sm_90a"
SAMPLE = 8  # result words kept in clear, of the first threads


def record(words: np.ndarray) -> str:
    """The SHA-256 of all result words, and a few of them."""
    sample = [f"{int(x):08x}" for x in words.reshape(-1)[:SAMPLE]]
    return " ".join([hashlib.sha256(np.ascontiguousarray(words).tobytes()).hexdigest(), *sample])


def on_gpu(data: Any, out: Any, instrs: Any) -> None:
    with tc.target("cuda"):
        probes.probe[probes.THREADS // 128, 128](data, out, instrs=instrs)


def shared_on_gpu(data: Any, addresses: Any, values: Any, out: Any, dump: Any, instr: Any, n: int) -> None:
    with tc.target("cuda"):
        probes.shared_probe[n, 32](data, addresses, values, out, dump, instr=instr)


PARTS = ("matrix", "threads", "gemm")  # in this order: the first forks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--out", type=Path, default=GOLDEN / ARCH)
    parser.add_argument("--only", default="")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--replay-all", action="store_true")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 4)
    parser.add_argument("--seconds", type=float, default=1e6)
    options = parser.parse_args()
    if options.replay_all:
        folder = options.out / "matrix"
        wrong = capture_matrix.replay_all(folder, options.only, options.workers, options.seconds)
        sys.exit(wrong > 0)
    options.out.mkdir(parents=True, exist_ok=True)
    parts = {"threads": threads, "matrix": matrices, "gemm": gemms}
    different = sum(parts[name](options) for name in options.part or PARTS)
    print(f"{different} differ")
    sys.exit(bool(different))


def threads(options: argparse.Namespace) -> int:
    """Instructions of single threads, and accesses to shared memory."""
    found: dict[str, dict[str, str]] = {}
    different = 0
    instrs = [f for f in probes.probed_forms(ARCH) if options.only in f.mnemonic]
    for batch in probes.batches(instrs):
        for instr, words in zip(batch, capture(batch), strict=True):
            found.setdefault(instr.opcode, {})[instr.mnemonic] = record(words)
            if options.check:
                different += not agrees(instr, words, ARCH)
    for instr in probes.shared_forms(ARCH):
        if options.only not in instr.mnemonic:
            continue
        words = probes.shared_on_kernel(instr, shared_on_gpu)
        found.setdefault(f"shared_{instr.opcode}", {})[instr.mnemonic] = record(words)
        if options.check and not np.array_equal(words, probes.shared_on_cpu(instr, ARCH)):
            different += 1
            print(f"DIFFERENT {instr}")
    for opcode, records in found.items():
        text = json.dumps(dict(sorted(records.items())), indent=0)
        (options.out / f"{opcode}.json").write_text(text + "\n")
    print(f"{len(instrs)} forms captured")
    return different


def matrices(options: argparse.Namespace) -> int:
    """Matrix instructions, and what the descriptors of wgmma name; in processes of their own first,
    since those are forked before this one uses the GPU."""
    folder = options.out / "matrix"
    different = capture_matrix.capture_all(
        folder, options.only, options.check, options.emulate, options.workers, options.seconds
    )
    if options.only in ("", "wgmma"):
        different += capture_descriptors.capture(folder / "descriptors.npz", options.emulate)
    return different


def gemms(options: argparse.Namespace) -> int:
    """Whole kernels. The records of cases that nobody asked for stay; those of no case go."""
    path = options.out / "gemm_kernels.json"
    chosen = [case for case in CASES if options.only in case.name]
    gemms_by_name = {
        case.name: {"seed": seed_of(case), "digest": digest(run_case(case, "cuda"))} for case in chosen
    }
    known = json.loads(path.read_text()) if path.exists() else {}
    known |= gemms_by_name
    records = {case.name: known[case.name] for case in CASES if case.name in known}
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in records.items())
    path.write_text(f"{{\n{lines}\n}}\n")
    different = 0
    for case in chosen if options.check else ():
        if digest(run_case(case, "cpu", ARCH)) != gemms_by_name[case.name]["digest"]:
            different += 1
            print(f"DIFFERENT {case.name}")
    print(f"{len(chosen)} kernels captured")
    return different


def capture(batch: list[Any]) -> list[np.ndarray]:
    """Results of a batch of forms; one by one when the batch cannot be launched."""
    try:
        return probes.on_kernel(batch, on_gpu)
    except tc.TensorCoreError as error:
        if len(batch) == 1:
            print(f"NOT CAPTURED {batch[0]}: {error}")
            return [np.zeros((1, SAMPLE), np.uint32)]
        middle = len(batch) // 2
        return [*capture(batch[:middle]), *capture(batch[middle:])]


def agrees(instr: Any, words: np.ndarray, arch: str) -> bool:
    images = probes.inputs(instr)
    try:
        cpu = probes.on_cpu(instr, images, arch)
    except Exception as error:
        print(f"FAILED ON THE CPU {instr}: {error}")
        return False
    mismatches = np.argwhere(cpu != words)
    if not len(mismatches):
        return True
    word, thread = mismatches[0]
    operands = [[hex(int(x)) for x in i[thread]] if isinstance(i, np.ndarray) else i for i in images]
    print(
        f"DIFFERENT {instr}: {len(mismatches)} of {words.size} words; thread {thread} word {word}: "
        f"GPU {words[word, thread]:08x}, CPU {cpu[word, thread]:08x}, operands {operands}"
    )
    return False


if __name__ == "__main__":
    main()
