"""Capture what the GPU gives: `python -m tests.capture [--check] [--out DIR] [--only TEXT]`.

Writes one file of hashes an opcode, replayed on the CPU by tests/test_golden.py. `--check`
compares with the CPU at once and prints the first differing case of each form.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tests import probes
from tests.gemm_cases import CASES, digest, run_case

GOLDEN = Path(__file__).parent / "golden"
SAMPLE = 8  # result words kept in clear, of the first threads


def record(words: np.ndarray) -> str:
    """The SHA-256 of all result words, and a few of them."""
    sample = [f"{int(x):08x}" for x in words.reshape(-1)[:SAMPLE]]
    return " ".join([hashlib.sha256(np.ascontiguousarray(words).tobytes()).hexdigest(), *sample])


def on_gpu(data: Any, out: Any, forms: Any, threads: int) -> None:
    with tc.target("cuda"):
        probes.probe[threads // 128, 128](data, out, forms=forms)


def shared_on_gpu(data: Any, addresses: Any, values: Any, out: Any, dump: Any, form: Any, n: int) -> None:
    with tc.target("cuda"):
        probes.shared_probe[n, 32](data, addresses, values, out, dump, form=form)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=GOLDEN / "sm_90a")
    parser.add_argument("--only", default="")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    arch = "sm_90a"
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, str]] = {}
    different = 0
    forms = [f for f in probes.probed_forms(arch) if options.only in f.mnemonic]
    for batch in probes.batches(forms):
        for form, words in zip(batch, capture(batch), strict=True):
            found.setdefault(form.opcode, {})[form.mnemonic] = record(words)
            if options.check:
                different += not agrees(form, words, arch)
    for form in probes.shared_forms(arch):
        if options.only not in form.mnemonic:
            continue
        words = probes.shared_on_kernel(form, shared_on_gpu)
        found.setdefault(f"shared_{form.opcode}", {})[form.mnemonic] = record(words)
        if options.check and not np.array_equal(words, probes.shared_on_cpu(form, arch)):
            different += 1
            print(f"DIFFERENT {form}")
    for opcode, records in found.items():
        text = json.dumps(dict(sorted(records.items())), indent=0)
        (options.out / f"{opcode}.json").write_text(text + "\n")
    if options.only in ("", "gemm"):
        cases = {case.name: digest(run_case(case, "cuda")) for case in CASES}
        (options.out / "gemm_kernels.json").write_text(json.dumps(cases, indent=0) + "\n")
        if options.check:
            for case in CASES:
                if digest(run_case(case, "cpu", arch)) != cases[case.name]:
                    different += 1
                    print(f"DIFFERENT {case.name}")
    print(f"{len(forms)} forms captured, {different} differ")
    sys.exit(bool(different))


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


def agrees(form: Any, words: np.ndarray, arch: str) -> bool:
    images = probes.inputs(form, probes.threads_of(form))
    try:
        cpu = probes.on_cpu(form, images, arch)
    except Exception as error:
        print(f"FAILED ON THE CPU {form}: {error}")
        return False
    wrong = np.argwhere(cpu != words)
    if not len(wrong):
        return True
    word, thread = wrong[0]
    given = [
        [hex(int(x)) for x in i[thread]] if isinstance(i, np.ndarray) else i for i in images
    ]
    print(
        f"DIFFERENT {form}: {len(wrong)} of {words.size} words; thread {thread} word {word}: "
        f"GPU {words[word, thread]:08x}, CPU {cpu[word, thread]:08x}, operands {given}"
    )
    return False


if __name__ == "__main__":
    main()
