"""What the emulator reports of PTX: races, loops without end, orders, at lines of the source."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import ptx
from tests.ptx_cases import module


def test_a_race_in_a_file_of_ptx():
    text = """
    .shared .b32 s[64]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; xor.b32 %r3, %r2, 128; mov.u32 %r4, s;
    add.u32 %r2, %r2, %r4; add.u32 %r3, %r3, %r4; st.shared.u32 [%r2], %r1;
    ld.shared.u32 %r5, [%r3]; ret;
"""
    kernel = module(text)["k"]
    with pytest.raises(tc.Race) as race:
        kernel[1, 64](0)
    assert race.value.cure == "bar.sync between the two would order them"
    with pytest.raises(
        tc.ArgumentError, match=r"kernel k is launched with a grid and a block: k\[grid, block\]"
    ):
        kernel(0)


ENDLESS = {
    "an atomic": """
L: atom.global.add.u32 %r1, [%rd1], 0;
   setp.lt.s32 %p1, %r1, 5;
   @%p1 bra L;
""",
    "a volatile load": """
L: ld.volatile.global.u32 %r1, [%rd1];
   cvt.s64.s32 %rd3, %r1;
   setp.lt.s64 %p1, %rd3, 5;
   @%p1 bra L;
""",
    "a branch out": """
L: atom.global.add.u32 %r1, [%rd1], 0;
   setp.lt.s32 %p1, %r1, 5;
   not.pred %p2, %p1;
   @%p2 bra E;
   bra L;
E:
""",
    "a branch around one": """
L: atom.global.add.u32 %r1, [%rd1], 0;
   setp.lt.s32 %p1, %r1, 5;
   setp.eq.s32 %p2, %r1, 7;
   @%p2 bra M;
   add.s32 %r2, %r1, 1;
M: @%p1 bra N;
   bra E;
N: bra L;
E:
""",
    "a return": """
L: atom.global.add.u32 %r1, [%rd1], 0;
   setp.lt.s32 %p1, %r1, 5;
   @!%p1 ret;
   bra L;
""",
}


@pytest.mark.parametrize("how", ENDLESS)
def test_what_an_endless_loop_polls(how):
    """The comparison that leaves the loop is named, and no other one; so is the line of the loop's
    first statement, which compilers write behind the label."""
    loop = ENDLESS[how].replace("L:", "L:\n.loc 1 7 3\n")
    body = f".loc 1 6 3\nld.param.u64 %rd1, [x];{loop}ret;"
    k = module(body, before='.file 1 "loop.cu"')["k"]
    with pytest.raises(tc.Deadlock) as error:
        k[1, 32](np.zeros(1, np.int32))
    text = str(error.value)
    assert "in the loop at loop.cu:7, " in text and "polls x[0]: 0\n" in text
    kind = "s64" if "load" in how else "s32"
    assert [line.strip() for line in text.splitlines() if "decides" in line] == [
        f"decides by setp.lt.{kind}(0, 5) = True"
    ]


def test_an_endless_loop_that_polls_nothing():
    k = module("ld.param.u64 %rd1, [x]; ld.global.u32 %r1, [%rd1];\nL: bra L;")["k"]
    with pytest.raises(
        tc.Deadlock, match="no word of memory decides(.|\n)* load a word once, before the loop"
    ):
        k[1, 32](np.zeros(1, np.int32))


@pytest.mark.parametrize(
    "between, message",
    [
        ("mov.b32 %f0, 0f3F800000; mov.b32 %f1, %f0; mov.b32 %f2, %f0; mov.b32 %f3, %f0;", None),
        ("add.f32 %f0, %f0, 0f3F800000;", "used its accumulators or A's registers and did not fence since"),
    ],
)
def test_accumulators_that_a_compiler_moves_behind_the_fence(between, message):
    body = f"""
    mov.b64 %rd1, s; mov.u32 %r1, %tid.x; mad.lo.s32 %r2, %r1, 2, 0; cvt.u64.u32 %rd2, %r2;
    add.s64 %rd2, %rd1, %rd2; mov.b16 %h1, 0; st.shared.b16 [%rd2], %h1;
    fence.proxy.async; bar.sync 0;
    shr.u64 %rd3, %rd1, 4; or.b64 %rd3, %rd3, 0x800080000;
    mov.b32 %r3, 0; mov.b32 %r4, 0; mov.b32 %r5, 0; mov.b32 %r6, 0; mov.b32 %f0, 0f00000000; mov.b32 %f1, %f0; mov.b32 %f2, %f0; mov.b32 %f3, %f0;
    wgmma.fence.sync.aligned;
    {between}
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%f0, %f1, %f2, %f3}}, {{%r3, %r4, %r5, %r6}}, %rd3, 1, 1, 1, 0;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    ld.param.u64 %rd4, [x]; mad.wide.u32 %rd4, %r1, 16, %rd4; st.global.v4.f32 [%rd4], {{%f0, %f1, %f2, %f3}};
    ret;"""
    before = ".shared .align 128 .b8 s[256];"
    k = ptx.load(module(body, before=before).ptx.replace(".target sm_90", ".target sm_90a"))["k"]
    x = np.zeros(512, np.float32)
    if message:
        with pytest.raises(tc.EmulationError, match=message):
            k[1, 128](x)
    else:
        k[1, 128](x)
        assert (x == 1).all()


def test_messages_leave_out_names_that_cpp_mangles():
    body = "ld.param.u64 %rd1, [_Z1fPi_param_0]; ld.param.u64 %rd2, [_Z1fPi_param_1+8]; "
    body += "ld.global.u32 %r1, [%rd1+4]; st.global.u32 [%rd2+8], %r1; ret;"
    params = ".param .u64 _Z1fPi_param_0, .param .align 8 .b8 _Z1fPi_param_1[16]"
    k = ptx.load(module(body, params).ptx.replace("entry k", "entry _Z1fPi"))["_Z1fPi"]
    one, two = np.zeros(1, np.int32), np.zeros(2, np.int32)
    for x, y, name in ((one, two, "param_0"), (two, two, r"param_1\+8")):
        with pytest.raises(tc.OutOfBounds, match=f"argument '{name}', which has"):
            k[1, 1](x, {8: y})


@tc.kernel
def without_barrier(x: tc.Array):
    part, i = tc.shared(64, tc.s32), tc.threadIdx.x
    part[i] = i
    x[i] = part[63 - i]


@pytest.mark.parametrize(
    "names, barrier",
    [("p", "bar.sync"), ("without_barrier_param_", "tl.debug_barrier()")],
    ids=["own", "LLVM"],
)
def test_the_language_of_a_kernel_with_lines_of_python(names, barrier):
    """Triton's parameters have the names of LLVM."""
    x = np.zeros(64, np.int32)
    text = without_barrier.ptx(x, arch="sm_80", lineinfo=True)
    with pytest.raises(tc.Race) as race:
        ptx.load(re.sub(r"\bp([01])\b", rf"{names}\1", text))["without_barrier"][1, 64](x, 64)
    assert race.value.cure == f"{barrier} between the two would order them"


ORDERED = """
.version 8.0
.target sm_90
.entry last(.param .u64 x)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %tid.x;
    atom.global.exch.b32 %r0, [%rd1], %r1;
    ret;
}
"""


def test_explore_finds_another_order():
    x = np.zeros(1, np.uint32)
    kernel = ptx.load(ORDERED).last
    exploration = kernel.explore(10)[1, 64](x)
    assert not exploration.ok and "x" in str(exploration) and x[0] == 0, "copies of the arrays"
    assert kernel.explore(3)[1, 1](x).ok
    with pytest.raises(tc.ArgumentError, match="the number of orders"):
        kernel.explore(0)
    tensor = type("Tensor", (), {"data_ptr": lambda self: 0})()
    with pytest.raises(tc.ArgumentError, match=r"x: explore cannot copy the tensor inside of a dict"):
        kernel.explore(3)[1, 64]({0: tensor})
