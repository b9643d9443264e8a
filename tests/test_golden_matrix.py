"""The CPU gives the bits of matrix instructions that were captured from a GPU (tests/capture.py).

Of each form, which was captured on 4,096 warps in 16 chunks, one chunk is replayed here, not the
same of all; `python -m tests.capture --replay-all` replays all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorcore_dsl import isa
from tests import capture_descriptors, matrix_probes, matrix_records
from tests.matrix_records import CHUNKS, Record, digest, replayed

ARCH = "sm_90a"
FOLDER = Path(__file__).parent / "golden" / ARCH / "matrix"
KNOWN = matrix_records.read(FOLDER)
TOGETHER = 6  # forms of one test


def groups() -> list[Any]:
    found = []
    for family in sorted({matrix_records.family(n) for n in KNOWN}):
        names = [n for n in KNOWN if matrix_records.family(n) == family]
        for at in range(0, len(names), TOGETHER):
            found.append(pytest.param(names[at : at + TOGETHER], id=f"{family}-{at}"))
    return found


def emulated(mnemonic: str, chunk: int) -> np.ndarray:
    probe = matrix_probes.probe_of(isa.instruction(mnemonic))
    assert probe is not None
    return probe.on_cpu(chunk, ARCH)


@pytest.mark.quick(lambda names: matrix_records.family(names[0]))
@pytest.mark.parametrize("names", groups())
def test_bits(names):
    wrong = []
    for name in names:
        chunk = replayed(name)
        if digest(emulated(name, chunk)) != KNOWN[name].chunks[chunk]:
            wrong.append((name, chunk))
    assert not wrong


def test_every_form_was_captured():
    """All but loads of PTX 9.4, whose published measurement `isa/matrix.py` names."""
    probed = {p.instr.mnemonic for p in matrix_probes.probes_of(ARCH)}
    published = {name for name in probed if name.endswith(".s8.s4")}
    assert len(published) == 6 and probed - published == set(KNOWN)
    assert {len(r.chunks) for r in KNOWN.values()} == {CHUNKS}


def test_all_chunks_are_replayed_of_some_forms():
    for family in ("mma", "wgmma", "wgmma_sp", "wmma_load"):
        names = [n for n in KNOWN if matrix_records.family(n) == family]
        assert {replayed(n) for n in names} == set(range(CHUNKS))


@pytest.mark.parametrize(
    "mnemonic",
    [
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "wgmma.mma_async.sync.aligned.m64n16k16.f16.f16.f16",
        "wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32",
    ],
)
def test_full_words_of_the_sample(mnemonic):
    """The first chunk, also in clear; and a flipped bit is seen."""
    words = emulated(mnemonic, 0)
    assert Record.of([words]) == Record(KNOWN[mnemonic].chunks[:1], KNOWN[mnemonic].words)
    words = np.array(words)
    words.reshape(-1)[-1] ^= 1
    assert digest(words) != KNOWN[mnemonic].chunks[0]


@pytest.mark.parametrize("kind", capture_descriptors.FORMS)
def test_descriptors_name_the_bytes_that_the_gpu_read(kind):
    """All swizzles, base offsets, starts and majors; without a swizzle a base offset means
    nothing."""
    with np.load(FOLDER / "descriptors.npz") as recorded:
        got = recorded[kind]
    assert np.array_equal(got, capture_descriptors.run(kind == "sparse", emulate=True))
