"""Copy forwarding: uses read the original where both were written once."""

from __future__ import annotations

import pytest

from tensorcore_dsl.arch import ARCHS
from tensorcore_dsl.ir.coalesce import coalesce
from tensorcore_dsl.ir.forward import forward_copies
from tensorcore_dsl.ir.text import format_kernel
from tensorcore_dsl.ir.verify import verify
from tests.ir_reader import parse_kernel

pytestmark = pytest.mark.usefixtures("fresh_ir")


def forwarded(body: str, clean: bool = False) -> str:
    """What becomes of `body`, its lines without indentation."""
    head = "kernel k(p = %0:u64, a = %1:u32, c = %2:pred, x = %3:f32) {"
    kernel = parse_kernel(f"{head}\n{body}\n}}")
    (coalesce if clean else forward_copies)(kernel)
    lines = format_kernel(kernel).splitlines()[1:-1]
    return "\n".join(line.strip() for line in lines)


LOAD = "%4:b32*2 = ld.global.v2.b32 [%0]\n"
CASES = {
    "a register of a vector": (
        "%5:b32 <- %4.1\n%6:u32 = add.u32 %1, %5", "%6:u32 = add.u32 %1, %4.1"),
    "a copy of a copy": (
        "%5:b32 <- %4.1\n%6:b32 <- %5\n%7:u32 = add.u32 %6, %6", "%7:u32 = add.u32 %4.1, %4.1"),
    "a packed register": (
        "%5:u32*2 <- %1, %4.0\n%6:u32 = add.u32 %5.0, %5.1", "%6:u32 = add.u32 %1, %4.0"),
    "the whole of a group": (
        "%5:b32 <- %4.0\n%6:b32 <- %4.1\n%7:f16*2@mma.B.16x8.f16 <- %5, %6",
        "%7:f16*2@mma.B.16x8.f16 <- %4"),
    "registers the other way round": (
        "%5:b32 <- %4.0\n%6:b32 <- %4.1\n%7:b32*2 <- %6, %5", "%7:b32*2 <- %4.1, %4.0"),
    "into a block": (
        "%5:b32 <- %4.0\nif %2 {\n%6:u32 = add.u32 %5, 1\n}", "%6:u32 = add.u32 %4.0, 1\n}"),
    "the base of an address": (
        "%5:u64 <- %0\nst.global.b32 [%5+8], %3", "st.global.b32 [%0+8], %3"),
}  # fmt: skip
LEFT_ALONE = {
    "another type": "%5:f32 <- %1\n%6:f32 = add.f32 %5, %3",
    "out of a block": "if %2 {\n%5:b32 <- %4.0\n} else {\nreturn\n}\n%6:u32 = add.u32 %5, 1",
    "a source that changes": "%5:u32 <- %1\n%1 = add.u32 %1, 1\n%6:u32 = add.u32 %5, 1",
    "a target that changes": "%5:b32 <- %4.0\n%5 <- 7\n%6:u32 = add.u32 %5, 1",
    "an index": "for %5:u32 = 0 to 3 step 1 {\n%6:u32 <- %5\n%7:u32 = add.u32 %6, 1\n}",
    "a guarded source": "%5:u32 <- 0\n@%2 %5 = add.u32 %1, 1\n%6:u32 <- %5\n%7:u32 = add.u32 %6, 1",
    "a constant": "%5:u32 <- 7\n%6:u32 = add.u32 %5, 1",
    "a register as an address": "%5:b64*2 <- %0, %0\n%6:b64*2 = ld.global.v2.b64 [%0]\n"
    "%7:b64 <- %6.0\nst.global.b32 [%7], %3",
}


@pytest.mark.parametrize("name", CASES)
def test_uses_read_the_original(name):
    body, end = CASES[name]
    assert forwarded(LOAD + body).endswith(end)


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_could_differ_is_left_alone(name):
    assert forwarded(LOAD + LEFT_ALONE[name]) == LOAD + LEFT_ALONE[name]


def test_accumulators_of_wgmma_are_not_kept_alive():
    """A use moved after the next product would need a copy of the whole accumulator."""
    wgmma = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
    kind = "f32*4@wgmma.D.64x8.f32"
    body = f"""%9:{kind} <- 0.0
        %10:{kind} = {wgmma} %9, 0:b64, 0:b64, true, 1, 1, 0, 0
        wgmma.wait_group.sync.aligned 0
        %11:f32 <- %10.0
        %12:{kind} = {wgmma} %10, 0:b64, 0:b64, true, 1, 1, 0, 0
        wgmma.wait_group.sync.aligned 0
        st.global.b32 [%0], %11
        st.global.b32 [%0], %12.0"""
    after = forwarded(body, clean=True)
    assert f"%12 = {wgmma} %12" in after and after.count("<-") == 2
    assert "st.global.b32 [%0], %11" in after


def test_what_ldmatrix_loads_becomes_the_fragment():
    after = forwarded(
        """%5:b32*4 = ldmatrix.sync.aligned.m8n8.x4.shared.b16 [%1]
        %6:b32 <- %5.0
        %7:b32 <- %5.1
        %8:b32 <- %5.2
        %9:b32 <- %5.3
        %10:f16*4@mma.A.16x16.f16 <- %6, %7, %8, %9
        %11:f16*2@mma.B.16x8.f16 <- 0:b32
        %12:f32*4@mma.C.16x8.f32 <- 0.0
        %13:f32*4@mma.C.16x8.f32 = mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 %10, %11, %12
        st.global.b32 [%0], %13.0""",
        clean=True,
    )
    assert "%10:f16*4@mma.A.16x16.f16 = ldmatrix" in after
    assert after.count("<-") == 2


def test_one_load_is_one_fragment_and_a_copy_for_the_other():
    """Registers cannot have two types: the second fragment keeps its copy."""
    f16, bf16 = "f16*2@mma.B.16x8.f16", "bf16*2@mma.B.16x8.bf16"
    mma = "mma.sync.aligned.m16n8k16.row.col.f32"
    body = f"""%5:b32*2 = ldmatrix.sync.aligned.m8n8.x2.shared.b16 [%1]
        %8:f16*4@mma.A.16x16.f16 <- 0:b32
        %9:bf16*4@mma.A.16x16.bf16 <- 0:b32
        %10:f32*4@mma.C.16x8.f32 <- 0.0
        %6:{f16} <- %5
        %10 = {mma}.f16.f16.f32 %8, %6, %10
        %7:{bf16} <- %5
        %10 = {mma}.bf16.bf16.f32 %9, %7, %10
        st.global.b32 [%0], %10.0"""
    kernel = parse_kernel(f"kernel k(p = %0:u64, a = %1:u32) {{\n{body}\n}}")
    coalesce(kernel)
    verify(kernel, ARCHS["sm_80"])
    assert format_kernel(kernel).count("<-") == 4
