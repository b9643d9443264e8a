"""Forms that almost exist are refused, by messages that list what does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.__main__ import main
from tensorcore_dsl.errors import ArchError, UnknownInstruction
from tensorcore_dsl.isa.spec import Instruction

bf16, e2m1, e4m3, f16, f32, f64 = tc.bf16, tc.e2m1, tc.e4m3, tc.f16, tc.f32, tc.f64

# a mnemonic, and what its message must offer
TEXTS = """
mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 : in its place: .m8n8k4, .m16n8k8, .m16n8k16
mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 : .bf16 is not allowed; in its place: .f16
mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16 : after mma.sync.aligned.m16n8k16.row.col may come .f16.f16.f16.f16, .f32.f16.f16.f32, .f32.bf16.bf16.f32
mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 : .row is not allowed; in its place: .col
mma.sync.aligned.m16n8k64.row.col.f32.e4m3.e4m3.f32 : in its place: .m16n8k32, .m16n8k16
mma.sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32 : .satfinite is one too many
mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64.rnn : in its place: .rn, .rz, .rm, .rp
mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e3m2.f32 : after .col one of .kind::f8f6f4 is missing
mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e3m3.f32 : in its place: .e4m3, .e5m2, .e3m2, .e2m3, .e2m1
mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.or.popc : in its place: .xor, .and
mma.sync.aligned.m16n8k32.row.col.s32.s8.s4.s32 : .s4 is not allowed; in its place: .u8, .s8
mma.sp.sync.aligned.m16n8k64.row.col.f32.f16.f16.f32 : in its place: .m16n8k16, .m16n8k32
mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f16 : .f16 is not allowed; in its place: .f32
mma.sp::ordered_metadata.sync.aligned.m16n8k24.row.col.f32.f16.f16.f32 : in its place: .m16n8k16, .m16n8k32
mma.sp.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 : .sp is one too many
mma.sync.aligned.m16n8k32.row.col.kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0 : in its place: .m16n8k64
mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue8m0 : in its place: .scale_vec::2X
mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue5m3 : in its place: .ue4m3, .ue8m0
mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.f16.e4m3.e4m3.f16.ue8m0 : may come .scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0
wmma.mma.sync.aligned.row.col.m16n16k32.f32.f32 : in its place: .m16n16k16, .m8n32k16, .m32n8k16
wmma.mma.sync.aligned.row.col.m16n16k16.f32.bf16.bf16.f16 : .f16 is not allowed; in its place: .f32
wmma.mma.sync.aligned.row.col.m16n16k8.f32.f16.f16.f32 : may come .f32.tf32.tf32.f32
wmma.load.a.sync.aligned.row.m16n16k16.shared.f32 : in its place: .f16, .s8, .u8, .bf16
wmma.load.a.sync.aligned.col.m8n8k32.shared.s4 : .col is not allowed; in its place: .row
wmma.store.d.sync.aligned.row.m16n16k16.global.bf16 : in its place: .f16, .f32, .s32
ldmatrix.sync.aligned.m8n8.x3.shared.b16 : in its place: .x1, .x2, .x4
ldmatrix.sync.aligned.m16n16.x1.shared.b8 : after .x1 one of .trans is missing
ldmatrix.sync.aligned.m8n8.x4.shared.b32 : in its place: .b16
ldmatrix.sync.aligned.m8n16.x4.trans.shared.b8x16.b6x16_p32 : .trans is one too many
stmatrix.sync.aligned.m16n8.x1.shared.b8 : after .x1 one of .trans is missing
movmatrix.sync.aligned.m8n8.b16 : after .m8n8 one of .trans is missing
wgmma.mma_async.sync.aligned.m64n264k16.f32.f16.f16 : in its place: .m64n8k16, .m64n16k16
wgmma.mma_async.sync.aligned.m64n40k32.s32.s8.s8 : .m64n24k32, .m64n32k32, .m64n48k32
wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.bf16 : .bf16 is not allowed; in its place: .f16
wgmma.mma_async.sync.aligned.m64n64k16.f16.bf16.bf16 : in its place: .f32
wgmma.mma_async.sync.aligned.m128n64k16.f32.f16.f16 : in its place: .m64n8k16
wgmma.mma_async.sync.aligned.m64n64k16.satfinite.f32.f16.f16 : .satfinite is one too many
wgmma.mma_async.sync.aligned.m64n64k256.s32.b1.b1.xor.popc : in its place: .and
wgmma.mma.sync.aligned.m64n64k16.f32.f16.f16 : in its place: .mma_async
wgmma.mma_async.sp.sync.aligned.m64n64k16.f32.f16.f16 : in its place: .m64n8k32
wgmma.mma_async.sp.sync.aligned.m64n64k512.s32.b1.b1.and.popc : wgmma.mma_async.sync.aligned.m64n64k256.s32.b1.b1.and.popc
""".strip().splitlines()
PAIRS = [tuple(line.split(" : ")) for line in TEXTS]


@pytest.mark.parametrize(("mnemonic", "offer"), PAIRS, ids=[p[0] for p in PAIRS])
def test_an_unknown_instruction_is_offered_its_neighbours(mnemonic, offer):
    with pytest.raises(UnknownInstruction) as error:
        isa.instruction(mnemonic)
    assert offer in str(error.value)


NAMES: list[tuple[Callable[[], Any], str]] = [
    (lambda: tc.mma.m16n8k32(f16, f16, f32), "exists as m16n8k8, m16n8k16"),
    (lambda: tc.mma.m16n8k16(f16, bf16, f32), "(f16, f16, f32), (bf16, bf16, f32)"),
    (lambda: tc.mma.m16n8k16(bf16, bf16, f16), "(bf16, bf16, f32)"),
    (lambda: tc.mma.m32n8k16(f16, f16, f32), "it has m8n8k4, m16n8k8, m16n8k16"),
    (lambda: tc.mma.m16n8k16(f32, f32, f32), "(f16, f16, f32), (bf16, bf16, f32)"),
    (lambda: tc.mma.m16n8k16(f16, f16), "(f16, f16, f16), (f16, f16, f32)"),
    (lambda: tc.mma.sp.m16n8k64(f16, f16, f32), "exists as m16n8k16, m16n8k32"),
    (lambda: tc.wgmma.m64n12k16(f16, f16, f32), "it has m64n8k16, m64n16k16"),
    (lambda: tc.wgmma.m64n64k32(f16, f16, f32), "exists as m64n64k16"),
    (lambda: tc.wgmma.sp.m64n64k16(f16, f16, f32), "exists as m64n64k32"),
    (lambda: tc.wmma.m16n16k32(f16, f16, f32), "it has m16n16k16, m8n32k16"),
    (lambda: tc.wmma.m16n16k8(f16, f16, f32), "exists as m16n16k16"),
    (lambda: tc.mma.block_scale.m16n8k64(e4m3, e4m3, f32, kind="mxf4"), "exists as m16n8k32"),
    (lambda: tc.mma.block_scale.m16n8k64(e2m1, e2m1, f32, kind="mxf8"), "kind may be 'mxf4'"),
    (lambda: tc.mma.m8n8k4(f64, f64, f64, rounding="ru"), "may be None, 'rn', 'rz', 'rm', 'rp'"),
    (lambda: tc.mma.m16n8k16(f16, f16, f32, satfinite=True), "it has layout"),
]


@pytest.mark.parametrize(("call", "offer"), NAMES, ids=range(len(NAMES)))
def test_constructors(call, offer):
    with pytest.raises(UnknownInstruction) as error:
        call()
    assert offer in str(error.value)


def test_the_command_refuses_as_the_table_does(capsys):
    mnemonic, offer = PAIRS[0]
    assert main(["show", mnemonic]) != 0
    told = capsys.readouterr()
    assert offer in told.out + told.err


FAMILIES = ("mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "movmatrix")


def matrix_forms() -> list[Instruction]:
    return [f for name in FAMILIES for f in isa.instructions(name)]


def test_every_form_on_every_architecture():
    """A form runs on an architecture, or is refused with those that have it."""
    checked = 0
    for instr in matrix_forms()[::7]:
        having = [name for name, arch in tc.ARCHS.items() if instr.requires.met_by(arch)]
        assert having, instr
        for name, arch in tc.ARCHS.items():
            if name in having:
                instr.requires.check(arch, instr.mnemonic)
                continue
            with pytest.raises(ArchError) as error:
                instr.requires.check(arch, instr.mnemonic)
            offered = str(error.value).partition("it exists on ")[2]
            assert set(offered.split(", ")) == set(having)
            checked += 1
    assert checked > 1000


def test_every_wrong_k_is_refused_with_one_that_exists():
    """K doubled or halved, where that is no form: the message says a K that is."""
    known = {f.mnemonic for f in matrix_forms()}
    refused = 0
    for instr in matrix_forms()[::40]:
        for scale in (2, 0.5):
            text = re.sub(r"(m\d+n\d+k)(\d+)", lambda m: f"{m[1]}{int(int(m[2]) * scale)}", instr.mnemonic)  # noqa: B023
            if text in known or instr.shape is None:
                continue
            with pytest.raises(UnknownInstruction) as error:
                isa.instruction(text)
            told = str(error.value)
            _, n, k = instr.shape
            assert re.search(rf"k{k}\b", told) or "one of" in told or "more)" in told, told
            refused += 1
    assert refused > 60
