"""The probes that are captured on a GPU do what they say: their kernels, inputs and records."""

from __future__ import annotations

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import dtypes, isa
from tensorcore_dsl.isa.effects import Effect
from tests import matrix_inputs, matrix_probes, matrix_records
from tests.capture_matrix import Answer, capture, spread
from tests.matrix_probes import CHUNKS, MemoryProbe, probe_of

pytestmark = pytest.mark.thorough

ARCH = "sm_90a"
# The register probes take what a chunk needs from its number, wgmma's from number // 4.
FORMS = {
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


@pytest.mark.parametrize("mnemonic", FORMS)
def test_kernel_and_emulated_instruction_agree(mnemonic):
    """The kernel runs chunks together, `on_cpu` each alone."""
    first, last = FORMS[mnemonic]
    probe = probe_of(isa.instruction(mnemonic))
    assert probe is not None
    arrays = probe.arrays(0, last + 1)
    probe.kernel.emulator(ARCH)[probe.launch_shape(last + 1)](*arrays, **probe.constants())
    results = probe.results(arrays, last + 1)
    for chunk in (first, last):
        want = probe.on_cpu(chunk, ARCH)
        assert np.array_equal(results[chunk].reshape(-1), want.reshape(-1))


def test_every_matrix_form_has_a_probe():
    """Of sm_90a: all but fences and waits."""
    probed = {p.instr.mnemonic for p in matrix_probes.probes_of(ARCH)}
    opcodes = ("mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "movmatrix")
    for instr in isa.instructions():
        if instr.opcode in opcodes and instr.requires.met_by(tc.ARCHS[ARCH]):
            assert (instr.mnemonic in probed) == (Effect.WGMMA not in instr.effects), instr


def test_wgmma_takes_every_swizzle_and_base_offset():
    probe = probe_of(isa.instruction("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16"))
    assert isinstance(probe, matrix_probes.WarpgroupProbe)
    _, places = probe.memory(0, CHUNKS)
    for which in range(2):
        assert set((places[:, which] >> np.uint64(62)).tolist()) == {0, 1, 2, 3}
        assert set((places[:, which] >> np.uint64(49) & np.uint64(7)).tolist()) == set(range(8))
    assert set(places[:, 2].tolist()) == {0, 1}
    names = [o.name for o in probe.instr.operands if o.kind == "imm"]
    for at, name in enumerate(names):
        assert len({v[at] for v in probe.variants}) == 2, name


def test_all_immediates_are_met_by_some_shape():
    instrs = [f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16" for n in range(8, 257, 8)]
    met = {v for f in instrs for v in matrix_probes.variants_of(isa.instruction(f))}
    assert len(met) == 16


def test_warps_have_strides_of_their_own():
    """wmma.load of column 0 of A: each warp steps as its own stride says."""
    instr = isa.instruction("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16")
    memory = np.arange(1024, dtype=np.uint16).view(np.uint8)
    strides = np.repeat(np.array([[16], [24], [32]], np.uint32), 32, axis=1)
    found = tc.emulate(instr, np.zeros((3, 32), np.uint32), strides, shared=memory)
    first = found.view(np.uint16)[:, ::4, 0]  # lanes 4g hold element (g, 0)
    assert np.array_equal(first, np.arange(8) * strides[:, :1])


def test_inputs_of_a_part_are_those_of_the_whole():
    kind = matrix_inputs.Kind.of(dtypes.f16, 16)
    whole = matrix_inputs.words(kind, 3, matrix_inputs.A, 0, 64, 4, 5)
    assert np.array_equal(matrix_inputs.words(kind, 3, matrix_inputs.A, 24, 8, 4, 5), whole[24:32])


@pytest.mark.parametrize("name", ["f16", "bf16", "tf32", "e4m3", "e5m2", "f64"])
def test_regimes_reach_what_they_are_named_after(name):
    dtype = dtypes.named(name)
    kind = matrix_inputs.Kind.of(dtype, dtype.storage_bits)
    exponent, mantissa, _ = matrix_inputs.FLOATS[name]
    count = len(matrix_inputs.REGIMES)
    words = matrix_inputs.words(kind, 1, matrix_inputs.A, 0, count * 8, 8, 64)
    bits = words.view(f"u{kind.storage // 8}").reshape(count, -1).astype(np.uint64)
    field = bits >> np.uint64(mantissa) & np.uint64(2**exponent - 1)
    top = field == 2**exponent - 1
    finite = [i for i, text in enumerate(matrix_inputs.REGIMES) if "finite" in text]
    special = [i for i, text in enumerate(matrix_inputs.REGIMES) if "NaN" in text]
    subnormal = [i for i, text in enumerate(matrix_inputs.REGIMES) if "subnormal" in text]
    assert top[special].any() and (field[subnormal] <= 2).all() and (field[subnormal] == 0).any()
    if name != "e4m3":  # whose top exponent is finite but for one mantissa
        assert not top[finite].any()
    assert len(np.unique(field[finite])) > 2**exponent * 0.3 or name == "f64"


def test_a_record_survives_its_file(tmp_path):
    rng = np.random.default_rng(0)
    results = [rng.integers(0, 2**32, (64, 4), np.uint32) for _ in range(CHUNKS)]
    records = {
        name: matrix_records.Record.of(results)
        for name in ("mma.sync.x", "mma.sp.sync.x", "wmma.load.a.sync.x", "wgmma.mma_async.sp.sync.x")
    }
    matrix_records.write(tmp_path, records)
    assert {p.stem for p in tmp_path.glob("*")} == {"mma", "mma_sp", "wmma_load", "wgmma_sp"}
    assert matrix_records.read(tmp_path) == records
    results[7][-1, -1] ^= 1
    other = matrix_records.Record.of(results)
    assert [a == b for a, b in zip(other.chunks, records["mma.sync.x"].chunks, strict=True)] == [
        i != 7 for i in range(CHUNKS)
    ]


def test_a_capture_tells_what_differs():
    def wrong(probe: MemoryProbe) -> list[np.ndarray]:
        results = [np.array(probe.on_cpu(chunk, ARCH)) for chunk in range(CHUNKS)]
        results[5].reshape(-1)[17] ^= 1
        return results

    answer = capture("movmatrix.sync.aligned.m8n8.trans.b16", wrong, check=True)
    assert list(answer.differing) == [5] and "word 17" in answer.differing[5]
    assert list(answer.kept) == [5]


def test_workers_that_fail_are_replaced():
    def task(name: str) -> Answer:
        if name == "b":
            raise ValueError("no")
        return Answer(name)

    found = {a.mnemonic: a.error for a in spread(list("abc"), task, 2, 60)}
    assert set(found) == set("abc") and "ValueError: no" in found["b"] and not found["a"]
