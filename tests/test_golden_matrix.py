"""The CPU gives the bits of matrix instructions that were captured from a GPU (tests/capture.py).

Of each form, which was captured on 4,096 warps in 16 chunks, one chunk is replayed here, not the
same of all; `python -m tests.capture --replay-all` replays all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.isa.effects import Effect
from tests import capture_descriptors, matrix_probes, matrix_records
from tests.matrix_records import CHUNKS, Record, digest, replayed

ARCH = "sm_90a"
FOLDER = Path(__file__).parent / "golden" / ARCH / "matrix"
KNOWN = matrix_records.read(FOLDER)
TOGETHER = 6  # forms of one test


def groups() -> list[Any]:
    parameters = []
    for family in sorted({matrix_records.family(n) for n in KNOWN}):
        names = [n for n in KNOWN if matrix_records.family(n) == family]
        for at in range(0, len(names), TOGETHER):
            parameters.append(pytest.param(names[at : at + TOGETHER], id=f"{family}-{at}"))
    return parameters


def emulated(mnemonic: str, chunk: int) -> np.ndarray:
    probe = matrix_probes.probe_of(isa.instruction(mnemonic))
    assert probe is not None
    return probe.on_cpu(chunk, ARCH)


@pytest.mark.quick(lambda names: matrix_records.family(names[0]))
@pytest.mark.parametrize("names", groups())
def test_matrix_instructions_give_the_recorded_bits(names):
    mismatches = []
    for name in names:
        chunk = replayed(name)
        if digest(emulated(name, chunk)) != KNOWN[name].chunks[chunk]:
            mismatches.append((name, chunk))
    assert not mismatches


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
    """The first chunk, also in clear."""
    words = emulated(mnemonic, 0)
    assert Record.of([words]) == Record(KNOWN[mnemonic].chunks[:1], KNOWN[mnemonic].words)


@pytest.mark.parametrize("kind", capture_descriptors.FORMS)
def test_descriptors_name_the_bytes_that_the_gpu_read(kind):
    """All swizzles, base offsets, starts and majors; without a swizzle a base offset means
    nothing."""
    with np.load(FOLDER / "descriptors.npz") as recorded:
        got = recorded[kind]
    assert np.array_equal(got, capture_descriptors.run(kind == "sparse", emulate=True))


# -- the probes -------------------------------------------------------------------------------

# The register probes take what a chunk needs from its number, wgmma's from number // 4.
PROBED_CHUNKS = {
    "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32": (0, 3),
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64": (0, 2),
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32": (0, 1),
    "movmatrix.sync.aligned.m8n8.trans.b16": (0, 1),
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16": (0, 1),
    "wmma.load.a.sync.aligned.row.m16n16k16.global.f16": (1, 2),
    "wmma.store.d.sync.aligned.col.m8n32k16.shared.f32": (1, 2),
    "wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16": (0, 9),
    "wgmma.mma_async.sp.sync.aligned.m64n8k64.s32.u8.s8.registers": (0, 6),
}


@pytest.mark.thorough
@pytest.mark.parametrize("mnemonic", PROBED_CHUNKS)
def test_kernel_and_emulated_instruction_agree(mnemonic):
    """The kernel runs chunks together, `on_cpu` each alone."""
    first, last = PROBED_CHUNKS[mnemonic]
    probe = matrix_probes.probe_of(isa.instruction(mnemonic))
    assert probe is not None
    arrays = probe.arrays(0, last + 1)
    probe.kernel.emulator(ARCH)[probe.launch_shape(last + 1)](*arrays, **probe.constants())
    results = probe.results(arrays, last + 1)
    for chunk in (first, last):
        want = probe.on_cpu(chunk, ARCH)
        assert np.array_equal(results[chunk].reshape(-1), want.reshape(-1))


@pytest.mark.thorough
def test_every_matrix_form_has_a_probe():
    """All forms of sm_90a but fences and waits."""
    probed = {p.instr.mnemonic for p in matrix_probes.probes_of(ARCH)}
    opcodes = ("mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "movmatrix")
    for instr in isa.instructions():
        if instr.opcode in opcodes and instr.requires.met_by(tc.ARCHS[ARCH]):
            assert (instr.mnemonic in probed) == (Effect.WGMMA not in instr.effects), instr
