"""PTX of other compilers and of this one, read and run on the CPU."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from mmap import mmap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from benchmarks.emulated_kernels import CHECKED
from tensorcore_dsl import ptx
from tensorcore_dsl.__main__ import main
from tensorcore_dsl.codegen.ptx import print_kernel
from tensorcore_dsl.kernel import specialisation
from tensorcore_dsl.kernel.specialisation import Specialisation
from tensorcore_dsl.ptx import reader, syntax
from tensorcore_dsl.ptx.launch_file import run_launches

SOURCE = Path(__file__).parent / "cuda_kernels.cu"


def module(
    body: str, params: str = ".param .u64 x", before: str = "", registers: str = "", directives: str = ""
) -> ptx.Module:
    """A kernel `k` with some registers."""
    return ptx.load(f"""
.version 8.0
.target sm_90
.address_size 64
{before}
.visible .entry k({params}) {directives}
{{
    .reg .pred %p<4>;
    .reg .b16 %h<4>;
    .reg .b32 %r<9>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<9>;
    {registers}
{body}
}}
""")


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
        found, _ = reader.kernel_of(text.kernels[0], text)
        for there, here in zip(found.params, own.params, strict=True):
            there.value.type = here.value.type  # PTX has no integers with a sign in parameters
        params = [
            replace(there, tensor_map=here.tensor_map)
            for there, here in zip(found.params, own.params, strict=True)
        ]
        # Where it is large, the launch brings static shared memory along.
        read.append(found.name)
        return replace(found, params=params, shared_bytes=own.shared_bytes, dynamic=own.dynamic)

    instead = cached_property(read_back)
    instead.__set_name__(Specialisation, "ir")
    monkeypatch.setattr(Specialisation, "ir", instead)
    for known in [s for s in specialisation._kept if s.kernel is case.kernel]:
        del specialisation._kept[known]
        for derived in ("ir", "program"):
            vars(known).pop(derived, None)
    found = case.launch(case.kernel.emulator(arch, checks=False))
    assert read and np.asarray(found).tobytes() == np.asarray(wanted).tobytes()


# -- CUDA C++ ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cuda():
    """The kernels of cuda_kernels.cu, by NVRTC."""
    pytest.importorskip("cuda.bindings.nvrtc")
    yield tc.ptx.from_cuda(SOURCE, "sm_90")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_saxpy(cuda):
    x, y = floats(1000), floats(1000)[::-1].copy()
    wanted = np.float32(2) * x.astype(float) + y
    report = cuda.saxpy[4, 256](x, y, 2.0, 1000)
    np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-6)
    assert report.instructions


def test_transpose(cuda):
    a, b = floats(70, 70), np.zeros((70, 70), np.float32)
    cuda.transpose[(3, 3), (32, 8)](a, b, 70)
    assert np.array_equal(b, a.T)


def test_histogram(cuda):
    x, counts = np.random.default_rng(0).integers(0, 256, 5000, np.uint8), np.zeros(256, np.uint32)
    cuda.histogram[4, 256](x, counts, 5000)
    assert np.array_equal(counts, np.bincount(x, minlength=256))


def test_halves(cuda):
    x = floats(512).astype(np.float16)
    y = np.zeros_like(x)
    cuda.halves[1, 256](x.view(np.uint32), y.view(np.uint32), 256)
    np.testing.assert_allclose(y, x.astype(float) ** 2 + x * 0.5, rtol=2e-3, atol=1e-3)


def test_softmax(cuda):
    x = floats(4, 300)
    y, e = np.zeros_like(x), np.exp(x - x.max(1, keepdims=True))
    cuda.softmax[4, 128, None, 512](x, y, 300)
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), atol=1e-6)


def test_loops_that_end_at_different_times(cuda):
    def steps(v: int) -> int:
        count = 0
        while v != 1:
            v, count = 3 * v + 1 if v & 1 else v // 2, count + 1
        return count

    x, out = np.arange(1, 301, dtype=np.uint32), np.zeros(300, np.int32)
    cuda.collatz[3, 128](x, out, 300)
    assert out.tolist() == [steps(int(v)) for v in x]


def test_scan(cuda):
    x = np.random.default_rng(0).integers(-9, 9, 1024, np.int32)
    y = np.zeros_like(x)
    cuda.scan[1, 1024](x, y)
    assert np.array_equal(y, np.cumsum(x))


def test_vectors(cuda):
    x = floats(100, 4)
    y, wanted = np.zeros_like(x), x.copy()
    cuda.vectors[1, 128](x, y, 100)
    wanted[:, 0] *= 2
    wanted[:, 1] += wanted[:, 0]
    wanted[:, 2] = wanted[:, 3] - wanted[:, 1]
    assert np.array_equal(y, wanted)


def test_doubles(cuda):
    x = np.abs(floats(200)).astype(float)
    y = np.zeros_like(x)
    cuda.doubles[1, 256](x, y, 200)
    np.testing.assert_allclose(y, np.sqrt(x) / (1 + x * x), rtol=1e-15)


def test_functions(cuda):
    x = floats(500) * 10
    y, e = np.zeros_like(x), x.astype(float)
    cuda.functions[2, 256](x, y, 500)
    wanted = np.sin(e) + np.exp(e) * np.log(abs(e) + 1) + np.tanh(e) + abs(e) ** 1.5
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


def test_bits(cuda):
    x, y = np.random.default_rng(0).integers(-9, 9, 32, np.int32), np.zeros(32, np.uint32)
    cuda.bits[1, 32](x, y)
    b = sum(1 << i for i in range(32) if x[i] > 0)
    reverse = int(f"{b:032b}"[::-1], 2)
    total = b.bit_count() + (b & -b).bit_length() + 32 - b.bit_length() + reverse
    assert (y == total % (1 << 32)).all()


def test_brain_floats(cuda):
    x = floats(100).astype(ml_dtypes.bfloat16)
    y = np.zeros_like(x)
    cuda.brains[1, 128](x, y, 100)
    assert np.array_equal(y, (x.astype(np.float32) * 1.5).astype(ml_dtypes.bfloat16))


def test_a_struct_by_value(cuda):
    x, y = floats(64), np.zeros(64, np.float32)
    cuda.by_value[1, 64]({0: 1.5, 4: 60, 8: x}, y)
    assert np.array_equal(y[:60], np.float32(1.5) * x[:60]) and not y[60:].any()
    with pytest.raises(tc.ArgumentError, match=r"reads by_value_param_0\+8, of which no value was given"):
        cuda.by_value[1, 64]({0: 1.5, 4: 60}, y)
    y[:] = 0
    cuda.by_value[1, 64]({0: np.array([1.5, 0], "f4").tobytes(), 4: 60, 8: x}, y)
    assert np.array_equal(y[:60], np.float32(1.5) * x[:60])
    with pytest.raises(tc.ArgumentError, match="has 16 bytes, such as those of a struct: pass its bytes"):
        cuda.by_value[1, 64](1.5, y)


def test_constants(cuda):
    y = np.zeros(8, np.float32)
    cuda.constants[1, 8](y)
    assert y.tolist() == [1, 2, 3, 4] * 2
    cuda.memory("table").view(np.float32)[0] = 9
    cuda.constants[1, 8](y)
    assert y.tolist() == [9, 2, 3, 4] * 2
    cuda.memory("table").view(np.float32)[0] = 1


def test_local_memory(cuda):
    x, y = np.random.default_rng(0).integers(0, 16, 16, np.int32), np.zeros(64, np.int32)
    cuda.locals[1, 64](x, y)
    wanted = []
    for k in range(64):
        total = 0
        for _ in range(16):
            k = int(x[k & 15])
            total += k
        wanted.append(total)
    assert y.tolist() == wanted


def test_calls_through_pointers(cuda):
    """From a table of functions, and of virtual functions of objects on the heap."""
    x = np.arange(8, dtype=np.float32)
    y = x.copy()
    cuda.pointers[1, 8](y)
    assert np.array_equal(y, x * np.array([2, 3] * 4, np.float32))
    y = x.copy()
    cuda.virtuals[1, 8](y)
    assert np.array_equal(y, x * x * np.array([0.5, 1] * 4, np.float32))
    with pytest.raises(tc.EmulationError, match="trap"):
        cuda.pointer_of_the_host[1, 1](0, y)


def test_a_heap_ends(cuda):
    failed = np.zeros(64, np.int32)
    cuda.full_heap[1, 64](failed, 1000)
    assert not failed.any()
    for _ in range(2):  # `free` gives the blocks of the first launch back.
        with pytest.warns(RuntimeWarning, match="full_heap: malloc returned NULL, because the heap of 8 MiB"):
            cuda.full_heap[1, 64](failed, 1 << 20)
        assert set(failed.tolist()) == {0, -1} and np.count_nonzero(failed == 0) == 8
    with pytest.warns(RuntimeWarning, match="malloc returned NULL") as told:
        cuda.full_heap[1, 64](failed, (1 << 64) - 2048)
    assert told[0].filename == __file__
    assert set(failed.tolist()) == {-1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cuda.full_heap[1, 64](failed, 1000)
    assert not failed.any()


HEAP = """
extern "C" __global__ void in_turn(int *flag, int *out) {
  if (blockIdx.x) while (!atomicAdd(flag, 0));
  int *block = (int *)malloc(64);
  *block = blockIdx.x + 5;
  out[blockIdx.x] = *block;
  free(block);
  if (!blockIdx.x) atomicAdd(flag, 1);
}
extern "C" __global__ void too_large(char **blocks) {
  blocks[0] = (char *)malloc(4096);
  blocks[1] = (char *)malloc((size_t)-2048);
  blocks[2] = (char *)malloc(64);
  free(blocks[0]);
  free(blocks[1]);
  blocks[3] = (char *)malloc(64);
  free(blocks[2]);
  free(blocks[3]);
  blocks[4] = (char *)malloc(64);
  free(blocks[4]);
}
"""


@pytest.fixture(scope="module")
def heap():
    pytest.importorskip("cuda.bindings.nvrtc")
    yield tc.ptx.from_cuda(HEAP, "sm_90")


def test_a_block_of_the_heap_has_one_owner_after_another(heap):
    """`free` and `malloc` order their accesses, which is no race."""
    out = np.zeros(2, np.int32)
    heap.in_turn[2, 1](np.zeros(1, np.int32), out)
    assert out.tolist() == [5, 6]


def test_blocks_of_the_heap_do_not_overlap(heap):
    blocks = np.zeros(5, np.uint64)
    with pytest.warns(RuntimeWarning, match="malloc returned NULL"):
        heap.too_large[1, 1](blocks)
    first, huge, second, third, again = blocks.tolist()
    assert huge == 0 and second == first + 4096 and third == second + 64 and again == first


def test_barriers_of_a_grid(cuda):
    x, y = np.zeros((2, 64), np.int32)
    cuda.whole_grid.configured(4, 16, cooperative=True)(x, y)
    assert np.array_equal(y, 2 * np.arange(64)[::-1] + 1)
    with pytest.raises(tc.LaunchError, match="a cooperative launch of 5000 CTAs"):
        cuda.whole_grid.configured(5000, 16, cooperative=True)(
            np.zeros(80000, np.int32), np.zeros(80000, np.int32)
        )
    with pytest.raises(tc.EmulationError, match="trap"):
        cuda.whole_grid[4, 16](x, y)


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


def test_parts_of_parameters():
    """A half of an integer of 64 bits, and a byte that is extended."""
    k = module(
        """
    ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [n+4]; ld.param.u16 %h1, [n]; ld.param.s8 %r2, [n+1];
    cvt.u32.u16 %r3, %h1;
    st.global.v2.u32 [%rd1], {%r1, %r2}; st.global.u32 [%rd1+8], %r3;
""",
        ".param .u64 x, .param .u64 n",
    )["k"]
    x = np.zeros(3, np.uint32)
    k[1, 1](x, 0x123456789ABC8DEF)
    assert x.tolist() == [0x12345678, 0xFFFFFF8D, 0x8DEF]


def test_errors_are_at_the_line_of_cuda(cuda):
    lines = SOURCE.read_text().splitlines()
    with pytest.raises(tc.OutOfBounds) as error:
        cuda.saxpy[4, 256](floats(900), floats(1000), 2.0, 1000)
    assert "y[i] = a * x[i]" in lines[error.value.loc.line - 1]
    assert error.value.loc.filename == str(SOURCE)
    with pytest.raises(tc.Race) as race:
        cuda.no_barrier[1, 64](floats(64), np.zeros(64, np.float32))
    assert "RACE" in lines[race.value.loc.line - 1]
    assert race.value.cure == "__syncthreads() between the two would order them"
    cuda.no_barrier.emulator(checks=False)[1, 64](floats(64), np.zeros(64, np.float32))


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
        ("call.uni f, ();", tc.UnsupportedSyntax, "call.uni: f is no function of the file"),
        ("isspacep.const %p1, %rd1;", tc.UnsupportedSyntax, "shared, global and local memory are told apart"),
        ("brx.idx %r1, f;", tc.UnsupportedSyntax, "brx.idx: f is no table of labels"),
        ("bra NOWHERE;", tc.UnsupportedSyntax, "bra: NOWHERE is no label of k"),
        ("mov.u32 %r1, %unknown;", tc.UnsupportedSyntax, "%unknown is no register, special register"),
        ("add.s32 %q, %r1, %r2;", tc.UnsupportedSyntax, "add.s32: %q is no register of k"),
        ("add.s31 %r1, %r1, %r2;", tc.UnknownInstruction, "no instruction 'add.s31': .s31 is not allowed"),
        ("add.s32 %r1, %r1;", tc.UnsupportedSyntax, "add.s32 takes d:s32 = a:s32, b:s32, not %r1, %r1"),
        ("mov.b32 %r1, %tid;", tc.UnsupportedSyntax, "%tid is no register, special register, number or var"),
        ("ld.global.u32 %r1, [y+4];", tc.UnsupportedSyntax, "y is no register, special register"),
        ("bar.sync;", tc.UnsupportedSyntax, "bar.sync takes id:u32 or id:u32, count:u32, not nothing"),
        ("mov.u32 %r1, 1.5;", tc.UnsupportedSyntax, "mov.u32: a is a number of type .u32, not 1.5"),
        ("mov.f32 %f1, 1;", tc.UnsupportedSyntax, "mov.f32: a is a number of type .f32, not 1"),
        ("bra A, B;", tc.UnsupportedSyntax, "bra: A, B is no label of k"),
        ("call;", tc.UnsupportedSyntax, "call does not take these operands: none"),
        ("brx.idx %r1;", tc.UnsupportedSyntax, "brx.idx does not take these operands: %r1"),
        (
            "ld.param.u64 [x], %rd1;",
            tc.UnsupportedSyntax,
            "ld.param.u64 does not take these operands: [x], %rd1",
        ),
        ("@%r1 ret;", tc.UnsupportedSyntax, "ret: %r1 is no predicate"),
        ("setp.eq.s32 %r1, %r1, %r2;", tc.UnsupportedSyntax, "a predicate is in the place of a number"),
        (
            "tcgen05.wait::ld.sync.aligned;",
            tc.UnknownInstruction,
            "'tcgen05': tensor memory is not supported",
        ),
        ("vadd4.u32.u32.u32 %r1, %r1, %r1;", tc.UnknownInstruction, "video instructions are not supported"),
        ("setmaxnreg.inc.sync.aligned.u32 96;", tc.ArchError, "sm_90 has no setmaxnreg.inc.sync.aligned.u32"),
        ("add.s32 %p1, %r1, %r2;", tc.UnsupportedSyntax, "a predicate is in the place of a number"),
        ("ld.param.u64 %rd1, [z];", tc.UnsupportedSyntax, "z is no parameter of k"),
        (
            "ld.param.u32 %r1, [x+6];",
            tc.UnsupportedSyntax,
            "ld.param.u32 at byte 6 of x, of which 8 bytes are",
        ),
        ("add.s32 %r1 %r1, ?;", tc.UnsupportedSyntax, "'?' is no part of PTX"),
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
        (".version latest\n.target sm_90\n", ".version latest is no version of PTX, such as 8.0", 1),
        (".version 8.0\n.address_size 32\n", ".address_size 32 is not supported; 64 is", 2),
        (
            "int main() {}\n",
            "'int' outside of functions is not supported; .entry, .func and variables are",
            1,
        ),
        (
            HEADER + ".entry k()\n.maxthreads 32 { ret; }",
            "'.maxthreads' is no directive of a kernel: .maxnreg",
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
        ("bar.sync %r9;", "bar.sync: %r9 is no register"),
        ("call nowhere;", "nowhere"),
        ("bra;", "bra: nothing is no label of k"),
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


def test_tensor_maps_of_integers_have_no_nan_to_fill_with():
    with pytest.raises(tc.ArgumentError, match="nan_fill is of f16, bf16, f32 and f64; the array holds s32"):
        ptx.tensor_map(np.zeros((4, 4), np.int32), (4, 4), nan_fill=True)


@pytest.mark.parametrize(
    "shape, box, message",
    [
        ((8, 32), (1, 288), r"a box of \(1, 288\); it has 1 to 256 elements"),
        ((8, 32), (0, 32), r"a box of \(0, 32\); it has 1 to 256 elements"),
        ((8, 34), (1, 32), r"strides of \(34, 1\) elements; a tensor map takes multiples of 16 bytes"),
    ],
)
def test_boxes_and_strides_that_a_tensor_map_cannot_hold(shape, box, message):
    with pytest.raises(tc.ArgumentError, match=message):
        ptx.tensor_map(np.zeros(shape, np.float32), box)
    assert ptx.tensor_map(np.zeros((1, 34), np.float32), (1, 34)).box == (1, 34)


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
    with pytest.raises(tc.ArgumentError, match="k.cubin is no text: load takes PTX, not machine code"):
        ptx.load(path)


def test_numbers():
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


def test_arguments_are_checked():
    k = module("ret;", ".param .u64 x, .param .u32 n")["k"]
    with pytest.raises(tc.ArgumentError, match="k takes 2 arguments, 1 were given"):
        k[1, 1](1)
    with pytest.raises(tc.ArgumentError, match="parameter n has 32 bits, and the address of an array 64"):
        k[1, 1](1, np.zeros(3))
    with pytest.raises(tc.ArgumentError, match="no variable is called 'v'"):
        ptx.load(".version 8.0\n.target sm_90\n.entry a() { ret; }\n").memory("v")


REVERSED = """
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    ld.global.u32 %r2, [%rd1];
    mov.u32 %r3, s;
    mad.lo.u32 %r4, %r1, 4, %r3;
    st.shared.u32 [%r4], %r2;
    BARRIER
    sub.u32 %r4, 63, %r1;
    mad.lo.u32 %r4, %r4, 4, %r3;
    ld.shared.u32 %r2, [%r4];
    st.global.u32 [%rd1], %r2;
    ret;
"""
LAUNCH = """
[[launch]]
kernel = "k"
grid = 1
block = [64, 1, 1]
arguments = [{dtype = "f32", shape = [64], fill = "random"}]
"""


def file_of(folder: Path, body: str) -> str:
    path = folder / "k.ptx"
    before = ".shared .align 4 .b8 s[256];"
    path.write_text(
        f".version 8.0\n.target sm_90\n.address_size 64\n{before}\n.entry k(.param .u64 x)\n"
        f"{{ .reg .b32 %r<9>; .reg .b64 %rd<9>; {body} }}\n"
    )
    return str(path)


@pytest.mark.parametrize("barrier, status", [("", 1), ("bar.sync 0;", 0)])
def test_check_of_a_file(barrier, status, tmp_path, capsys):
    ptx, launches = file_of(tmp_path, REVERSED.replace("BARRIER", barrier)), tmp_path / "launch.toml"
    for text in (LAUNCH, LAUNCH.replace('kernel = "k"', "")):  # the file has one kernel
        launches.write_text(text)
        assert main(["check", ptx, "--launch", str(launches)]) == status
        assert ("k.ptx:17" in capsys.readouterr().out) == bool(status)


def test_a_launch_names_its_kernel_if_there_are_two(tmp_path):
    ptx, launches = file_of(tmp_path, "ret;"), tmp_path / "launch.toml"
    with open(ptx, "a") as file:
        file.write(".entry other() { ret; }")
    launches.write_text(LAUNCH.replace('kernel = "k"', ""))
    with pytest.raises(tc.ArgumentError, match="launch 1 lacks kernel$"):
        run_launches(ptx, str(launches))


def test_check_of_a_cooperative_grid(tmp_path):
    words = ("mov.u32 %r1, %envreg1;", "setp.eq.u32 %p1, %r1, 0;", "@%p1 trap;", "ret;")
    ptx, launches = file_of(tmp_path, ".reg .pred %p1; " + " ".join(words)), tmp_path / "launch.toml"
    for more, status in (("", 1), ("cooperative = true\n", 0)):
        launches.write_text(LAUNCH + more)
        assert main(["check", ptx, "--launch", str(launches)]) == status


@pytest.mark.parametrize(
    "text, message",
    [
        ("launch = 3 3", "cannot read"),
        ("", r"a table \[\[launch\]\] for each launch is needed"),
        ("[[launch]]", "launch 1 lacks block, grid"),
        ("launch = 3", r"a table \[\[launch\]\] for each launch is needed"),
        (
            LAUNCH.replace("random", "noise"),
            "launch 1: fill is 'noise'; allowed are a number and zeros, range",
        ),
        (
            LAUNCH.replace("shape", "size"),
            "launch 1: an array has size; the keys are dtype, shape, fill, file",
        ),
        (LAUNCH.replace(", shape = [64]", ""), "launch 1: an array has a file, or dtype and shape"),
        (LAUNCH.replace("[64]", '"64"'), "launch 1: shape is '64'; allowed are sizes of 0 or more"),
        (LAUNCH.replace('"random"', "[1]"), r"launch 1: fill is \[1\]; allowed are a number and zeros"),
        (
            LAUNCH.replace('dtype = "f32"', 'file = "no.npy"'),
            "launch 1: cannot read 'no.npy': .*No such file",
        ),
        (LAUNCH.replace('"f32"', '"f33"'), "f33"),
        (
            LAUNCH + "sharde = 5",
            "launch 1 has sharde; the keys are kernel, grid, block, cluster, shared, coop",
        ),
        (LAUNCH.replace("grid", "gird"), "launch 1 has gird; the keys are kernel, grid"),
        (LAUNCH + 'shared = "5"', "launch 1: shared is '5'; allowed is an integer"),
        (LAUNCH.replace("grid = 1", "grid = 1.5"), "grid is 1.5; allowed is an integer, or a list of them"),
        (
            LAUNCH.replace("[64, 1, 1]", '[64, "1"]'),
            r"block is \[64, '1'\]; allowed is an integer, or a list",
        ),
        (LAUNCH + "cooperative = 1", "launch 1: cooperative is 1; allowed is true or false"),
        (LAUNCH.replace('"k"', "3"), "launch 1: kernel is 3; allowed is a string"),
        ('checks = "foo"' + LAUNCH, "launch.toml: checks stands outside of"),
        (LAUNCH.replace('"k"', '"q"'), "no kernel is called 'q'; there are k"),
    ],
)
def test_launches_that_are_no_launches(text, message, tmp_path):
    ptx, launches = file_of(tmp_path, "ret;"), tmp_path / "launch.toml"
    launches.write_text(text)
    with pytest.raises(tc.ArgumentError, match=message):
        run_launches(ptx, str(launches))


def test_launches_of_structs_and_arrays_with_names(tmp_path):
    path, launches = tmp_path / "x.npy", tmp_path / "launch.toml"
    np.save(path, np.arange(4, dtype=np.uint32))
    ptx = tmp_path / "k.ptx"
    ptx.write_text("""
.version 8.0
.target sm_90
.address_size 64
.entry k(.param .align 8 .b8 s[16], .param .u32 wanted)
{ .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p1;
    ld.param.u64 %rd1, [s+8]; ld.param.u32 %r1, [s]; ld.global.u32 %r2, [%rd1+4]; ld.param.u32 %r4, [wanted];
    add.u32 %r3, %r1, %r2; st.global.u32 [%rd1+4], %r3; setp.ne.u32 %p1, %r3, %r4; @%p1 trap; ret; }
""")
    one = f"""
[[launch]]
kernel = "k"
grid = 1
block = 1
arguments = [{{"0" = 5, "8" = {{name = "x", file = "{path}"}}}}, WANTED]
"""
    launches.write_text(one.replace("WANTED", "6") + one.replace("WANTED", "11"))
    run_launches(str(ptx), str(launches))
    launches.write_text(one.replace("WANTED", "7"))
    with pytest.raises(tc.EmulationError, match="trap"):
        run_launches(str(ptx), str(launches))


def test_results_that_are_dropped():
    x = np.arange(1, 5, dtype=np.uint32)
    module("""ld.param.u64 %rd1, [x]; ld.param.v2.u32 {_, %r1}, [x]; ld.global.v4.u32 {%r2, _, _, %r3}, [%rd1];
    mov.b32 {_, %h1}, %r3; mov.b32 %r4, {%h1, %h1}; atom.global.add.u32 _, [%rd1], 5;
    st.global.v2.u32 [%rd1+8], {%r2, %r4}; ret;""")["k"][1, 1](x)
    assert x.tolist() == [6, 2, 1, 0]


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


STRUCT_IN_MEMORY = """
.version 8.0
.target sm_90
.address_size 64
.entry k(.param .align 64 .b8 s[320])
{ .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .f32 %f<3>; .reg .pred %p<3>;
    .shared .align 128 .b8 tile[128]; .shared .align 8 .b8 bar[8];
    mov.b64 %rd1, s; cvta.param.u64 %rd2, %rd1; add.s64 %rd3, %rd2, 64; add.s64 %rd4, %rd2, 192;
    mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra LOADED;
    mbarrier.init.shared.b64 [bar], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 _, [bar], 128;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], [%rd3, {0, 0}], [bar];
LOADED: bar.sync 0;
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra WAIT;
    mov.u32 %r2, tile; mad.lo.u32 %r2, %r1, 4, %r2; ld.shared.f32 %f1, [%r2];
    ld.param.f32 %f2, [s+16]; mul.f32 %f1, %f1, %f2; st.shared.f32 [%r2], %f1;
    ld.param.u64 %rd5, [s]; ld.param.u32 %r3, [s+8]; @%p1 bra STORE; st.global.u32 [%rd5], %r3;
STORE: fence.proxy.async.shared::cta; bar.sync 0;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd4, {0, %r7}], [tile];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret; }
"""


@pytest.mark.parametrize("offset", [False, True])
def test_a_struct_with_tensor_maps(offset):
    """All lanes of a warp store one box, as CUTLASS does, or each its own box over those of others."""
    text = STRUCT_IN_MEMORY.replace("%r7", "%r1" if offset else "0")
    x, y, n = floats(4, 8), np.zeros((4, 8), np.float32), np.zeros(1, np.int32)
    maps = {64: tc.ptx.tensor_map(x, (4, 8)), 192: tc.ptx.tensor_map(y, (4, 8))}
    content = {1: np.array([0, 0, 7, 0, 2], "f4").tobytes()[1:]}
    run = tc.ptx.load(text)["k"][1, 32]
    if offset:
        with pytest.raises(tc.Race, match="cp.async.bulk.tensor"):
            run({**maps, **content, 0: n})
        return
    for fields in ({8: 7, 16: 2.0}, {8: np.int32(7), 16: np.float32(2)}, content):
        n[:] = y[:] = 0
        with pytest.warns(tc.RaceWarning, match="both write the same value"):
            run({**fields, **maps, 0: n})
        assert np.array_equal(y, 2 * x) and (n.view("f4") == 7 if fields is content else n == 7)
    with pytest.raises(tc.EmulationError, match=r"uses byte 64 of argument .* where no tensor map is: pass"):
        run({**content, 0: n, 192: maps[192]})
    with pytest.raises(tc.ArgumentError, match="s has 320 bytes; the field at 256 ends at byte 384"):
        run({**content, 0: n, 256: maps[64]})
    with pytest.raises(tc.ArgumentError, match="s: the fields at 64 and 128 overlap"):
        run({**content, **maps, 0: n, 128: maps[64]})
    for value in (None, 1 << 64):
        with pytest.raises(
            tc.ArgumentError, match=f"s: the field at 8 is {value}; it may be a number of at most"
        ):
            run({**content, **maps, 0: n, 8: value})


@pytest.mark.parametrize(
    "fields, value",
    [
        ({0: bytes(range(8))}, 0x0706050403020100),
        ({0: bytes(8), 4: 7}, 7 << 32),
        ({0: bytes(8), 2: np.uint16(7)}, 7 << 16),
        ({0: 5, 4: 7}, 7 << 32 | 5),
        ({0: 5}, 5),
        ({0: 5, 1: b"9" * 15}, 5),
        ({0: np.uint64(5)}, 5),
        ({"bytes": bytes(range(16)), 0: np.uint8(9), 1: np.uint8(8)}, 0x0706050403020809),
    ],
    ids=str,
)
def test_a_load_of_several_fields_of_a_struct(fields, value):
    body = "ld.param.u64 %rd1, [s]; ld.param.u64 %rd2, [s+8]; st.global.u64 [%rd2], %rd1; ret;"
    x = np.zeros(1, np.uint64)
    module(body, ".param .align 8 .b8 s[16]")["k"][1, 1]({8: x, **fields})
    assert x[0] == value


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_kernel_that_copies_half_of_its_tensor_map(in_memory):
    """CuTe DSL's grouped GEMMs change the address in the copy so."""
    copied = "\n".join(
        f"ld.param.v2.b64 {{%rd2, %rd3}}, [%rd1+{at}]; st.global.v2.b64 [%rd4+{at}], {{%rd2, %rd3}};"
        for at in (0, 16, 32, 48)
    )
    k = module(
        f"""
    mov.b64 %rd1, m; ld.param.u64 %rd4, [g]; ld.param.u64 %rd5, [y]; mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0; mov.u32 %r2, bar; mov.u32 %r3, tile; mov.b32 %r4, 0;
    @%p1 bra READ;
    {copied}
    fence.proxy.tensormap::generic.release.gpu; fence.proxy.tensormap::generic.acquire.gpu [%rd4], 128;
    mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 %rd6, [%r2], 128;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd4, {{%r4, %r4}}], [%r2];
READ:
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
    @!%p2 bra WAIT;
    mad.lo.u32 %r3, %r1, 4, %r3; ld.shared.u32 %r5, [%r3]; mad.wide.u32 %rd5, %r1, 4, %rd5;
    st.global.u32 [%rd5], %r5;
    ret;""",
        ".param .align 64 .b8 m[128], .param .u64 g, .param .u64 y",
        ".shared .align 128 .b8 tile[128]; .shared .align 8 .b8 bar[8];",
    )["k"]
    x, y, copy = floats(8, 8), np.zeros((4, 8), np.float32), np.frombuffer(mmap(-1, 4096), np.uint64)
    tensor_map = tc.ptx.tensor_map(x, (4, 8))
    if in_memory:
        k[1, 32]({0: tensor_map}, copy, y)
        assert np.array_equal(y, x[:4]) and not copy[8:].any()
    else:
        with pytest.raises(tc.OutOfBounds, match=r"in the tensor map 'm'; pass \{0: map\}"):
            k[1, 32](tensor_map, copy, y)


@pytest.mark.parametrize("value", [-1, np.int32(-7), 3_000_000_000], ids=str)
def test_integers_of_parameters_without_a_sign(value):
    """NVCC declares an `int` as .u32, in structs, too."""
    body = "ld.param.u32 %r1, [n]; ld.param.u32 %r2, [s]; ld.param.u64 %rd1, [x]; "
    body += "st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r2; ret;"
    kernel = module(body, ".param .u64 x, .param .u32 n, .param .align 8 .b8 s[8]")["k"]
    x = np.zeros(2, np.uint32)
    kernel[1, 1](x, value, {0: value})
    assert x.tolist() == [int(value) % 2**32] * 2
    with pytest.raises(tc.ArgumentError, match="u32 holds integers from 0 to"):
        kernel[1, 1](x, -(1 << 31) - 1, {0: value})


@pytest.mark.parametrize(
    "bits, value",
    [(32, 1.5), (32, np.float32(-2)), (32, np.float64(2.5)), (64, 1e-300), (16, np.float16(3))],
    ids=str,
)
def test_floats_of_a_struct_that_are_loaded_as_integers(bits, value):
    """NVCC loads some parameters so."""
    body = f"ld.param.u{bits} %v, [s]; ld.param.u64 %rd1, [x]; st.global.u{bits} [%rd1], %v; ret;"
    kernel = module(body, ".param .u64 x, .param .align 8 .b8 s[8]", registers=f".reg .b{bits} %v;")["k"]
    x = np.zeros(1, f"f{bits // 8}")
    kernel[1, 1](x, {0: value})
    assert x[0] == value
    with pytest.raises(tc.ArgumentError, match=f"s is 1.5; u{bits} holds integers"):
        kernel[1, 1](x, {0: np.float16(1.5) if bits > 16 else np.float32(1.5)})
    with pytest.raises(tc.ArgumentError, match="s is 1.5; u8 holds integers"):
        body = "ld.param.u8 %h1, [s]; ret;"
        module(body, ".param .align 8 .b8 s[8]")["k"][1, 1]({0: 1.5})


def test_a_load_of_a_part_without_a_value():
    kernel = module("ld.param.u64 %rd1, [s]; ret;", ".param .align 8 .b8 s[16]")["k"]
    for fields in ({}, {4: 7}, {0: bytes(4), 8: 7}):
        with pytest.raises(tc.ArgumentError, match="reads s, of which no value was given"):
            kernel[1, 1](fields)


def test_a_launch_of_a_struct_with_tensor_maps(tmp_path):
    ptx, launches = tmp_path / "k.ptx", tmp_path / "launch.toml"
    ptx.write_text(STRUCT_IN_MEMORY.replace("%r7", "0"))
    (tmp_path / "s.bin").write_bytes(bytes(16) + np.float32(2).tobytes() + bytes(300))
    box = '{dtype = "f32", shape = [4, 8], box = [4, 8]}'
    struct = f'bytes = "{tmp_path}/s.bin", 0 = {{dtype = "s32", shape = 1}}, 64 = {box}, 192 = {box}'
    launches.write_text(f"[[launch]]\ngrid = 1\nblock = 32\narguments = [{{{struct}}}]\n")
    with pytest.warns(tc.RaceWarning):
        run_launches(str(ptx), str(launches))
    launches.write_text(launches.read_text().replace("s.bin", "none.bin"))
    with pytest.raises(tc.ArgumentError, match="launch 1: cannot read"):
        run_launches(str(ptx), str(launches))


def test_the_program_says_what_a_file_holds(tmp_path, capsys):
    file = tmp_path / "two.ptx"
    file.write_text("""
.version 8.0
.target sm_90
.entry a(.param .u64 x) { .reg .b64 %rd<3>; .shared .align 4 .b8 s[64];
    ld.param.u64 %rd1, [x]; add.s64 %rd1, %rd1, 8; add.s64 %rd1, %rd1, 8; st.global.u64 [%rd1], 3; ret; }
.entry b() { brx.idx %r1, targets; }
""")
    assert main(["ptx", str(file)]) == 1
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "a: 1 parameters, 3 instructions (add 2, st 1), 64 bytes of shared memory"
    assert second.startswith("b: not read: brx.idx: targets is no table of labels")
    assert main(["ptx", str(tmp_path / "none.ptx")]) == 2
    assert "cannot read" in capsys.readouterr().err


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
    found = kernel.explore(10)[1, 64](x)
    assert not found.ok and "x" in str(found) and x[0] == 0, "copies of the arrays"
    assert kernel.explore(3)[1, 1](x).ok
    with pytest.raises(tc.ArgumentError, match="the number of orders"):
        kernel.explore(0)
    tensor = type("Tensor", (), {"data_ptr": lambda self: 0})()
    with pytest.raises(tc.ArgumentError, match=r"x: explore cannot copy the tensor inside of a dict"):
        kernel.explore(3)[1, 64]({0: tensor})


STRUCT_OF_AN_ADDRESS = """
.version 8.8
.target sm_90a
.entry k(.param .align 8 .b8 x[8])
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.b64 %rd1, [x];
    mov.u32 %r1, 7;
    st.global.b32 [%rd1], %r1;
    ret;
}
"""


def test_an_array_for_a_struct_of_an_address():
    """CuTe passes tensors with static layouts so."""
    kernel, x = ptx.load(STRUCT_OF_AN_ADDRESS).k, np.zeros(2, np.int32)
    kernel[1, 1](x)
    assert x.tolist() == [7, 0]
    with pytest.raises(tc.ArgumentError, match="has 8 bytes, such as those of a struct"):
        kernel[1, 1](1.5)
