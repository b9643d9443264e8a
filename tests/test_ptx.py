"""PTX of other compilers and of this one: what is read, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from benchmarks.emulated_kernels import CHECKED
from tensorcore_dsl import ptx
from tensorcore_dsl.codegen.ptx import print_kernel
from tensorcore_dsl.kernel import specialisation
from tensorcore_dsl.kernel.specialisation import Specialisation
from tensorcore_dsl.ptx import reader, syntax
from tests.ptx_cases import module

# -- kernels of this language: their PTX, read back, gives the same bits -----------------------------


@pytest.mark.parametrize("name", CHECKED)
def test_own_ptx_gives_the_same_bits(name, monkeypatch):
    """With tensor maps and asynchronous products in hopper_attention, `mma` in flash_attention."""
    case, arch = CHECKED[name](), "sm_90a" if "hopper" in name else "sm_80"
    wanted = case.launch(case.kernel.emulator(arch, checks=False))
    made: Callable[[Any], Any] = Specialisation.__dict__["ir"].func
    read: list[str] = []

    def read_back(self: Any) -> Any:
        own = made(self)
        text = syntax.parse(print_kernel(own, self.arch), "own.ptx")
        actual, _ = reader.kernel_of(text.kernels[0], text)
        for there, here in zip(actual.params, own.params, strict=True):
            there.value.type = here.value.type  # PTX has no integers with a sign in parameters
        params = [
            replace(there, tensor_map=here.tensor_map)
            for there, here in zip(actual.params, own.params, strict=True)
        ]
        # Where it is large, the launch brings static shared memory along.
        read.append(actual.name)
        return replace(actual, params=params, shared_bytes=own.shared_bytes, dynamic=own.dynamic)

    instead = cached_property(read_back)
    instead.__set_name__(Specialisation, "ir")
    monkeypatch.setattr(Specialisation, "ir", instead)
    for known in [s for s in specialisation._kept if s.kernel is case.kernel]:
        del specialisation._kept[known]
        for derived in ("ir", "program"):
            vars(known).pop(derived, None)
    actual = case.launch(case.kernel.emulator(arch, checks=False))
    assert read and np.asarray(actual).tobytes() == np.asarray(wanted).tobytes()


GRID = """
.extern .func (.param .b64 grid) cudaCGGetIntrinsicHandle(.param .b32 scope);
.extern .func (.param .b32 error) cudaCGSynchronize(.param .b64 grid, .param .b32 flags);
"""


def test_only_cooperative_grids_have_a_handle():
    handle = """
    { .param .b32 scope; .param .b64 grid; st.param.b32 [scope], 1;
    call (grid), cudaCGGetIntrinsicHandle, (scope); ld.param.b64 %rd2, [grid]; }
"""
    seen = """
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; or.b32 %r1, %r1, %r2;
    st.global.u64 [%rd1], %rd2; st.global.u32 [%rd1+8], %r1;
"""
    barrier = """
    { .param .b64 grid; .param .b32 flags, error; st.param.b64 [grid], %rd2; st.param.b32 [flags], 0;
    call (error), cudaCGSynchronize, (grid, flags); }
"""
    x = np.zeros(2, np.uint64)
    kernel = module(handle + seen + "ret;", before=GRID)["k"]
    kernel.configured(1, 1, cooperative=True)(x)
    assert x.all()
    kernel[1, 1](x)
    assert not x.any()
    kernel = module(handle + barrier + "ret;", before=GRID)["k"]
    kernel.configured(2, 32, cooperative=True)(0)
    with pytest.raises(tc.EmulationError, match="trap"):
        kernel[2, 32](0)


# -- what is read, and what is refused -----------------------------------------------------------------


def test_guards_labels_and_scopes():
    """A guard that is negated, a conditional jump back, and a label in an inner scope."""
    k = module("""
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    mov.u32 %r2, 0;
    { .reg .b32 %r20; mov.u32 %r20, 3;
AGAIN:
    add.s32 %r2, %r2, %r20;
    sub.s32 %r1, %r1, 1;
    setp.ge.s32 %p1, %r1, 0;
    @%p1 bra.uni AGAIN; }
    setp.eq.s32 %p2, %r2, 9;
    @!%p2 add.s32 %r2, %r2, 100;
    st.global.u32 [%rd1], %r2;
    @%p2 ret;
    st.global.u32 [%rd1], 7;
""")["k"]
    x = np.zeros(32, np.uint32)
    k[1, 32](x)
    assert x.tolist() == [9 if i == 2 else 7 for i in range(32)]


def test_narrow_loads_extend_into_wider_registers():
    k = module("""
    ld.param.u64 %rd1, [x];
    ld.global.s8 %r1, [%rd1];
    ld.global.u8 %r2, [%rd1];
    ld.global.s16 %rd2, [%rd1];
    st.global.u32 [%rd1+8], %r1;
    st.global.u32 [%rd1+12], %r2;
    st.global.u64 [%rd1+16], %rd2;
    st.global.u8 [%rd1+24], %r2;
    ret;
""")["k"]
    x = np.zeros(32, np.uint8)
    x[:2] = 0xFE, 0x80
    k[1, 1](x)
    assert x[8:16].view(np.int32).tolist() == [-2, 0xFE] and x[16:24].view(np.int64)[0] == 0x80FE - 0x10000
    assert x[24:].tolist() == [0xFE] + [0] * 7


@pytest.mark.parametrize(
    "body, error, message",
    [
        ("call.uni f, ();", tc.UnsupportedSyntax, "call.uni: f is not a function of the file"),
        ("isspacep.const %p1, %rd1;", tc.UnsupportedSyntax, "shared, global and local memory are told apart"),
        ("brx.idx %r1, f;", tc.UnsupportedSyntax, "brx.idx: f is not a table of labels"),
        ("bra NOWHERE;", tc.UnsupportedSyntax, "bra: NOWHERE is not a label of k"),
        ("mov.u32 %r1, %unknown;", tc.UnsupportedSyntax, "%unknown is not a register, special register"),
        ("add.s32 %q, %r1, %r2;", tc.UnsupportedSyntax, "add.s32: %q is not a register of k"),
        ("add.s31 %r1, %r1, %r2;", tc.UnknownInstruction, "no instruction 'add.s31': .s31 is not allowed"),
        ("add.s32 %r1, %r1;", tc.UnsupportedSyntax, "add.s32 takes d:s32 = a:s32, b:s32, not %r1, %r1"),
        (
            "mov.b32 %r1, %tid;",
            tc.UnsupportedSyntax,
            "%tid is not a register, special register, number or var",
        ),
        ("ld.global.u32 %r1, [y+4];", tc.UnsupportedSyntax, "y is not a register, special register"),
        ("bar.sync;", tc.UnsupportedSyntax, "bar.sync takes id:u32 or id:u32, count:u32, not nothing"),
        ("mov.u32 %r1, 1.5;", tc.UnsupportedSyntax, "mov.u32: a is a number of type .u32, not 1.5"),
        ("mov.f32 %f1, 1;", tc.UnsupportedSyntax, "mov.f32: a is a number of type .f32, not 1"),
        ("bra A, B;", tc.UnsupportedSyntax, "bra: A, B is not a label of k"),
        ("call;", tc.UnsupportedSyntax, "call does not take these operands: none"),
        ("brx.idx %r1;", tc.UnsupportedSyntax, "brx.idx does not take these operands: %r1"),
        (
            "ld.param.u64 [x], %rd1;",
            tc.UnsupportedSyntax,
            "ld.param.u64 does not take these operands: [x], %rd1",
        ),
        ("@%r1 ret;", tc.UnsupportedSyntax, "ret: %r1 is not a predicate"),
        ("setp.eq.s32 %r1, %r1, %r2;", tc.UnsupportedSyntax, "a predicate is in the place of a number"),
        (
            "tcgen05.wait::ld.sync.aligned;",
            tc.UnknownInstruction,
            "'tcgen05': tensor memory is not supported",
        ),
        ("vadd4.u32.u32.u32 %r1, %r1, %r1;", tc.UnknownInstruction, "video instructions are not supported"),
        ("setmaxnreg.inc.sync.aligned.u32 96;", tc.ArchError, "sm_90 has no setmaxnreg.inc.sync.aligned.u32"),
        ("add.s32 %p1, %r1, %r2;", tc.UnsupportedSyntax, "a predicate is in the place of a number"),
        ("ld.param.u64 %rd1, [z];", tc.UnsupportedSyntax, "z is not a parameter of k"),
        (
            "ld.param.u32 %r1, [x+6];",
            tc.UnsupportedSyntax,
            "ld.param.u32 at byte 6 of x, of which 8 bytes are",
        ),
        ("add.s32 %r1 %r1, ?;", tc.UnsupportedSyntax, "'?' is not part of PTX"),
    ],
)
def test_what_is_refused_has_a_line(body, error, message):
    with pytest.raises(error) as refused:
        _ = module(body, before=".shared .align 4 .b8 s[64];")["k"]
    assert message in str(refused.value)
    assert refused.value.loc == tc.errors.Loc("<ptx>", 14)  # type: ignore[attr-defined]


HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("\n", "PTX starts with .version and .target", 1),
        (".version latest\n.target sm_90\n", ".version latest is not a version of PTX, such as 8.0", 1),
        (".version 8.0\n.address_size 32\n", ".address_size 32 is not supported; 64 is", 2),
        (
            "int main() {}\n",
            "'int' outside of functions is not supported; .entry, .func and variables are",
            1,
        ),
        (
            HEADER + ".entry k()\n.maxthreads 32 { ret; }",
            "'.maxthreads' is not a directive of a kernel: .maxnreg",
            5,
        ),
        (HEADER + ".entry k() {\nadd.s32 %r0, %r1, %r2\nret; }", "',' or ';' is expected here, not 'ret'", 6),
        (HEADER + ".entry k() { ret;\n", "an instruction is expected here, not the end of the file", 4),
        (HEADER + ".entry k() {\n.foo x; }", "an instruction is expected here, not '.foo'", 5),
        (HEADER + ".entry k() { ;\n}", "an instruction is expected here, not ';'", 4),
        (HEADER + ".entry k() { mov.u32 %r1, 3*4; }\n", "',' or ';' is expected here, not '*'", 4),
        (HEADER + ".entry k() { sub.f32 %f1, -%f2, %f3; }\n", "an operand is expected here, not '-'", 4),
        (HEADER + ".entry k() {\n.loc 1 x 3\n}", "an integer is expected here, not 'x'", 5),
        (HEADER + ".entry k() {\n.reg .v4 .f32 %v; }", ".reg .v4 .f32: registers with several elements", 5),
        (HEADER + ".entry k() {\n.reg .b32 ; }", "a name is expected here, not ';'", 5),
        (HEADER + ".shared .b8 s[-4];\n", "an integer is expected here, not '-'", 4),
    ],
)
def test_text_that_is_no_ptx_has_a_line(text, message, line):
    with pytest.raises(tc.UnsupportedSyntax) as refused:
        ptx.load(text)
    assert refused.value.message.startswith(message)
    assert refused.value.loc.line == line  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "statement, message",
    [
        ("bar.snyc 0;", "no instruction 'bar.snyc': .snyc is not allowed"),
        ("bar.sync %r9;", "bar.sync: %r9 is not a register"),
        ("call nowhere;", "nowhere"),
        ("bra;", "bra: nothing is not a label of k"),
        ("call;", "call does not take these operands: none"),
    ],
)
def test_errors_behind_loc_name_the_line_of_ptx_too(statement, message):
    text = f'{HEADER}.file 1 "k.cu"\n.entry k() {{\n.loc 1 11 1\n{statement}\nret; }}\n'
    with pytest.raises(tc.TensorCoreError) as refused:
        _ = ptx.load(text)["k"]
    first, *places = str(refused.value).splitlines()
    line = 1 + text.splitlines().index(statement)
    assert message in first and places == [f"  in PTX at <ptx>:{line}", "  at k.cu:11"]


def test_kernels_for_an_unknown_target_run_on_another_one():
    old = ptx.load(".version 8.0\n.target sm_52\n.entry k() { ret; }\n")
    with pytest.raises(
        tc.ArchError, match="no architecture sm_52 can be emulated; kernel.emulator"
    ) as refused:
        old.k[1, 32]()
    assert refused.value.loc.line == 2  # type: ignore[union-attr]
    old.k.emulator("sm_80")[1, 32]()


def test_instructions_of_a_newer_version(tmp_path):
    newer = ptx.load(".version 99.0\n.target sm_90\n.entry k() { ret; }\n.entry later() { later.b32 %r1; }\n")
    newer.k[1, 32]()
    with pytest.raises(tc.UnknownInstruction, match="the table follows PTX 9.1, and .version is 99.0"):
        _ = newer["later"]
    path = tmp_path / "k.cubin"
    path.write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(tc.ArgumentError, match="k.cubin is not text: load takes PTX, not machine code"):
        ptx.load(path)


def test_numbers_are_read_in_all_notations():
    """In all notations of the manual (4.5), and converted to the width of the operand."""
    k = module(
        """
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, 0X1f; st.global.u32 [%rd1], %r1;
    mov.u32 %r1, 017; st.global.u32 [%rd1+4], %r1;
    mov.u32 %r1, 0b101; st.global.u32 [%rd1+8], %r1;
    mov.s32 %r1, -0x10; st.global.u32 [%rd1+12], %r1;
    mov.f32 %f1, -1.5; st.global.f32 [%rd1+16], %f1;
    mov.f32 %f1, 0d3FF8000000000000; st.global.f32 [%rd1+20], %f1;
    mov.f32 %f1, 0f7F800001; st.global.f32 [%rd1+24], %f1;
    mov.f64 %rd2, 1e3; st.global.f64 [%rd1+32], %rd2;
    mov.f64 %rd2, 0f3FC00000; st.global.f64 [%rd1+40], %rd2;
    st.global.f64 [%rd1+48], 0dBFF8000000000000;
"""
    )["k"]
    x = np.zeros(14, np.uint32)
    k[1, 1](x)
    assert x[:4].tolist() == [31, 15, 5, 2**32 - 16]
    assert x[4:6].view(np.float32).tolist() == [-1.5, 1.5] and x[6] == 0x7F800001
    assert x[8:].view(np.float64).tolist() == [1000, 1.5, -1.5]


@pytest.mark.parametrize(
    ("directives", "grid", "block", "cluster", "declared"),
    [
        (".maxntid 256", 1, 256, None, None),
        (".maxntid 256 .minnctapersm 2 .maxnreg 64", 1, 257, None, "257 threads in a block; the kernel declares .maxntid 256"),
        (".maxntid 16, 16", 1, (256, 1), None, None),  # The product counts, not each dimension.
        (".maxntid 16, 16", 1, (16, 17), None, "272 threads in a block; the kernel declares .maxntid 16, 16"),
        (".reqntid 16, 4", 1, (16, 4), None, None),
        (".reqntid 16, 4", 1, 64, None, "block (64, 1, 1); the kernel declares .reqntid 16, 4"),
        (".reqntid 64", 1, 32, None, "block (32, 1, 1); the kernel declares .reqntid 64"),
        (".reqnctapercluster 2", 4, 32, None, None),
        (".reqnctapercluster 2", 4, 32, 2, None),
        (".reqnctapercluster 2", 4, 32, 4, "cluster (4, 1, 1); the kernel declares .reqnctapercluster 2"),
        (".maxclusterrank 4", 8, 32, 4, None),
        (".maxclusterrank 4", 8, 32, None, None),
        (".maxclusterrank 4", 8, 32, 8, "8 blocks in a cluster; the kernel declares .maxclusterrank 4"),
        (".explicitcluster", 4, 32, 1, None),
        (".explicitcluster .reqnctapercluster 2", 4, 32, None, None),
        (".explicitcluster", 4, 32, None, "no cluster; the kernel declares .explicitcluster"),
    ],
)  # fmt: skip
def test_launches_within_what_a_kernel_declares(directives, grid, block, cluster, declared):
    launch = module("ret;", "", directives=directives)["k"].configured(grid, block, cluster=cluster)
    if declared is None:
        launch()
        return
    with pytest.raises(tc.LaunchError) as error:
        launch()
    assert error.value.message == f"k is launched with {declared}"


def test_a_grid_that_counts_clusters():
    k = module(
        """
    ld.param.u64 %rd1, [x]; mov.u32 %r1, %ctaid.x; mad.wide.u32 %rd1, %r1, 4, %rd1;
    mov.u32 %r2, %cluster_ctarank; st.global.u32 [%rd1], %r2; ret;
""",
        directives=".reqntid 1 .reqnctapercluster 2 .blocksareclusters",
    )["k"]
    x = np.full(8, 9, np.uint32)
    k[3, 1](x)
    assert x.tolist() == [0, 1, 0, 1, 0, 1, 9, 9]


def test_functions_and_inner_blocks():
    """Parameters in registers and in `.param`, one that is read in other parts than it was written, a
    guarded call, a guarded return, and names of inner blocks that are those of others."""
    k = module(
        """
    mov.u32 %r1, %tid.x;
    { .reg .b64 %r1; mov.u64 %r1, 5; cvt.u32.u64 %r2, %r1; }
    { .reg .b32 %r2; .param .b32 a; .param .b64 b; st.param.b32 [a], %r1;
      call.uni (b), both, (a); ld.param.v2.b32 {%r3, %r4}, [b]; }
    setp.lt.u32 %p1, %r1, 8;
    @%p1 call (%r3), least, (%r1, 3);
    ld.param.u64 %rd1, [x];
    mad.wide.u32 %rd1, %r1, 16, %rd1;
    st.global.v4.b32 [%rd1], {%r1, %r2, %r3, %r4};
    ret;
""",
        before="""
.func (.param .b64 out) both(.param .b32 n) { .reg .b32 %r<3>; .reg .b64 %rd<3>; ld.param.b32 %r1, [n];
    add.s32 %r2, %r1, 100; mov.b64 %rd1, {%r1, %r2}; st.param.b64 [out], %rd1; ret; }
.func (.reg .b32 out) least(.reg .b32 a, .reg .b32 b) { .reg .pred %p1; setp.lt.s32 %p1, a, b;
    mov.b32 out, a; @%p1 ret; mov.b32 out, b; ret; }
""",
    )["k"]
    x = np.zeros((16, 4), np.uint32)
    k[1, 16](x)
    t = np.arange(16)
    assert np.array_equal(x, np.stack([t, t * 0 + 5, np.where(t < 8, np.minimum(t, 3), t), t + 100], 1))


def test_generic_addresses_in_a_cluster():
    """Of the CTA's own shared memory, of a peer's, and of global memory, in one load."""
    k = module(
        """
    mov.u64 %rd1, s; cvta.shared.u64 %rd2, %rd1; mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %tid.x;
    add.s32 %r3, %r1, 100; setp.eq.u32 %p1, %r2, 0;
    @%p1 st.u32 [%rd2+4], %r3;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    xor.b32 %r3, %r1, 1; mapa.u64 %rd3, %rd2, %r3; getctarank.u64 %r4, %rd3;
    ld.param.u64 %rd4, [x]; cvta.to.global.u64 %rd4, %rd4;
    isspacep.shared %p2, %rd2; isspacep.global %p3, %rd4; and.pred %p3, %p2, %p3;
    setp.eq.u32 %p1, %r2, 1; selp.b64 %rd5, %rd3, %rd2, %p1;
    setp.eq.u32 %p1, %r2, 2; selp.b64 %rd5, %rd4, %rd5, %p1;
    @%p3 ld.u32 %r5, [%rd5+4];
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mad.lo.s32 %r6, %r1, 4, %r2; mad.wide.u32 %rd6, %r6, 8, %rd4;
    st.v2.u32 [%rd6+8], {%r5, %r4};
    ret;
""",
        before=".shared .align 8 .b8 s[8];",
    )["k"]
    x = np.zeros((9, 2), np.uint32)
    x[0] = 7, 55
    k.emulator("sm_90a").configured(2, 4, cluster=2)(x)
    assert x[1:].tolist() == [[100, 1], [101, 1], [55, 1], [100, 1], [101, 0], [100, 0], [55, 0], [101, 0]]


def test_barriers_of_a_cluster_at_which_lanes_arrive_alone():
    """Without .aligned, and an address in the window of the cluster."""
    k = module(
        """
    mov.u64 %rd1, s; cvta.shared.u64 %rd2, %rd1; mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %tid.x;
    xor.b32 %r3, %r1, 1; mapa.u64 %rd3, %rd2, %r3; cvta.to.shared::cluster.u64 %rd4, %rd3;
    cvta.shared::cluster.u64 %rd5, %rd4; cvt.u32.u64 %r5, %rd4;
    barrier.cluster.arrive; barrier.cluster.wait;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra FIRST;
    barrier.cluster.arrive.relaxed;
    bra MET;
FIRST:
    add.s32 %r4, %r1, 100; st.shared::cluster.u32 [%r5], %r4;
    barrier.cluster.arrive;
MET:
    barrier.cluster.wait;
    ld.param.u64 %rd6, [x]; mad.lo.s32 %r6, %r1, 4, %r2; mad.wide.u32 %rd6, %r6, 4, %rd6;
    ld.shared.u32 %r7, [s];
    setp.ne.u64 %p2, %rd5, %rd3; @%p2 trap;
    st.global.u32 [%rd6], %r7;
    ret;
""",
        before=".shared .align 8 .b8 s[8];",
    )["k"]
    x = np.zeros(8, np.uint32)
    k.emulator("sm_90a").configured(2, 4, cluster=2)(x)
    assert x.tolist() == [101] * 4 + [100] * 4


def test_one_kernel_that_is_refused_leaves_the_others():
    both = ptx.load("""
.version 8.0
.target sm_90
.entry a() { brx.idx %r1, targets; }
.func f() { ret; }
.entry _Z1bv() { ret; }
""")
    assert list(both) == ["a", "_Z1bv"]
    assert repr(both) == "<PTX for sm_90 with the kernels a, _Z1bv>"
    both._Z1bv[1, 32]()
    with pytest.raises(tc.UnsupportedSyntax):
        _ = both.a
    with pytest.raises(tc.ArgumentError, match="no kernel is called 'c'; there are a, _Z1bv"):
        _ = both["c"]
    with pytest.raises(AttributeError, match="no kernel is called '_c'"):
        _ = both._c


def test_emulators_share_what_is_compiled():
    k = module("ret;")["k"]
    assert k.emulator("sm_80", checks=False).program is k.program


def test_results_that_are_dropped():
    x = np.arange(1, 5, dtype=np.uint32)
    module("""ld.param.u64 %rd1, [x]; ld.param.v2.u32 {_, %r1}, [x]; ld.global.v4.u32 {%r2, _, _, %r3}, [%rd1];
    mov.b32 {_, %h1}, %r3; mov.b32 %r4, {%h1, %h1}; atom.global.add.u32 _, [%rd1], 5;
    st.global.v2.u32 [%rd1+8], {%r2, %r4}; ret;""")["k"][1, 1](x)
    assert x.tolist() == [6, 2, 1, 0]
