"""What users read of instructions, fragments and vectors."""

from __future__ import annotations

import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import ArchError, UnknownInstruction
from tests.refused_kernels import F32, INTS, MATRIX, Refusals, check

refused = Refusals()


@pytest.mark.parametrize("case", refused, ids=lambda case: case.name)
def test_wrong_instructions_are_refused(case):
    check(case)


OPERANDS = (
    "takes element types and gives an instruction, which takes the operands: "
    "mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32), then mma(a, b, c)"
)


@refused(f"tc.mma {OPERANDS}", "tc.mma(mma.a.zeros(), mma.b.zeros(), mma.c.zeros())")
def forgets_shape_and_types():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tc.mma(mma.a.zeros(), mma.b.zeros(), mma.c.zeros())


@refused(f"tc.mma {OPERANDS}", "tc.mma.m16n8k16(tc.f16, tc.f16, [mma.c.zeros()])")
def forgets_types():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tc.mma.m16n8k16(tc.f16, tc.f16, [mma.c.zeros()])


@refused(
    "tc.wgmma takes element types and gives an instruction, which takes the operands: wgmma = "
    "tc.wgmma.m64n64k16(tc.f16, tc.f16, tc.f32), then tc.wgmma_async(wgmma, acc, a, b)",
    "tc.wgmma.m64n64k16(tile, tile, wgmma.d.zeros())",
    arch="sm_90a",
)
def forgets_types_of_wgmma():
    wgmma, tile = tc.wgmma.m64n64k16(tc.f16, tc.f16, tc.f32), tc.shared((64, 64), tc.f16)
    tc.wgmma.m64n64k16(tile, tile, wgmma.d.zeros())


@refused(
    "operand b of mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 must be a fragment f16x2:mma.B.16x8.f16, not a "
    "fragment f16x4:mma.A.16x16.f16",
    "fa",
)
def fragment_of_another_operand():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    fa, acc = mma.a.zeros(), mma.d.zeros()
    mma(fa, fa, acc)


@refused(
    "operand a of mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 must be a fragment f16x4:mma.A.16x16.f16, not a "
    "fragment bf16x4:mma.A.16x16.bf16",
    "other.a.zeros()",
)
def fragment_of_another_instruction():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    other = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    mma(other.a.zeros(), mma.b.zeros(), mma.d.zeros())


@refused("operand b of add.rn.f32 must be f32, not a run-time value of type s32", "n", tc.f32, tc.s32)
def wrong_type(x: tc.f32, n: tc.s32):
    tc.emit("add.rn.f32", x, n)


@refused("operand b of add.rn.f32 must be f32, not 'one'", 'add(x, "one")', tc.f32)
def string_for_a_register(x: tc.f32):
    add = tc.instruction("add.rn.f32")
    add(*[x, "one"])


refused[-1].at = 'add(*[x, "one"])'


@refused("add.rn.f32 takes 2 operands (a, b), 1 was given", 'tc.emit("add.rn.f32", x)', tc.f32)
def too_few_operands(x: tc.f32):
    tc.emit("add.rn.f32", x)


@refused(
    "add.rn.f32 takes no option 'when'; allowed are pred, otherwise",
    'tc.emit("add.rn.f32", x, x, when=True)',
    tc.f32,
)
def unknown_option(x: tc.f32):
    tc.emit("add.rn.f32", x, x, when=True)


@refused(
    "otherwise= of add.rn.f32 must be f32, not a run-time value of type f64",
    'tc.emit("add.rn.f32", x, x, pred=x > 0, otherwise=y)',
    tc.f32,
    tc.f64,
)
def wrong_otherwise(x: tc.f32, y: tc.f64):
    tc.emit("add.rn.f32", x, x, pred=x > 0, otherwise=y)


@refused(
    "operand n of tc.cp_async_wait() (cp.async.wait_group) must be a compile-time integer, not a run-time value of type s32",
    "tc.cp_async_wait(n)",
    tc.s32,
)
def run_time_immediate(n: tc.s32):
    tc.cp_async_wait(n)


@refused("an address is needed, not 1.5", 'tc.emit("ld.global.b32", 1.5)')
def address_of_a_float():
    tc.emit("ld.global.b32", 1.5)


@refused(
    "a global address (u64) is needed, not a run-time value of type u32",
    'tc.emit("ld.global.b32", tile.address)',
)
def address_of_another_space():
    tile = tc.shared(4, tc.f32)
    tc.emit("ld.global.b32", tile.address)


@refused(
    "sm_75 has no tc.cp_async_commit() (cp.async.commit_group); it exists on sm_80, sm_86, sm_87, sm_88, sm_89, "
    "sm_90, sm_90a, sm_100, "
    "sm_100f, sm_100a, sm_103, sm_103f, sm_103a, sm_110, sm_110f, sm_110a, sm_120, sm_120f, sm_120a, sm_121, sm_121f, "
    "sm_121a",
    "tc.cp_async_commit()",
    error=ArchError,
    arch="sm_75",
)
def arch_lacks_it():
    tc.cp_async_commit()


@refused(
    "sm_80 has no mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32; it exists on sm_89, sm_90, sm_90a, sm_100, "
    "sm_100f, sm_100a, sm_103, sm_103f, sm_103a, sm_110, sm_110f, sm_110a, sm_120, sm_120f, sm_120a, sm_121, sm_121f, "
    "sm_121a",
    "mma(mma.a.zeros(), mma.b.zeros(), mma.d.zeros())",
    error=ArchError,
)
def arch_lacks_fp8():
    mma = tc.mma.m16n8k32(tc.e4m3, tc.e4m3, tc.f32)
    mma(mma.a.zeros(), mma.b.zeros(), mma.d.zeros())


def test_unknown_forms_list_what_there_is():
    @tc.kernel
    def unknown_shape():
        tc.mma.m16n8k17(tc.f16, tc.f16, tc.f32)

    with pytest.raises(UnknownInstruction) as error:
        unknown_shape.ptx(arch="sm_80")
    assert "mma has no shape m16n8k17; it has m8n8k4" in error.value.message
    assert error.value.loc.line == unknown_shape.function.__code__.co_firstlineno + 2


@refused(
    "no instruction 'add.rn.f33': .f33 is not allowed; in its place: .f32, .f32x2, .f64, .f16, .f16x2, .bf16, .bf16x2",
    'tc.emit("add.rn.f33", 1, 2)',
    error=UnknownInstruction,
)
def unknown_form():
    tc.emit("add.rn.f33", 1, 2)


@refused(
    "operand p is not a fragment: only fragments have zeros()", 'tc.instruction("setp.lt.s32").p.zeros()'
)
def zeros_of_a_register():
    tc.instruction("setp.lt.s32").p.zeros()


@refused(
    "registers are numbered at compile time: index a fragment or vector with a compile-time integer, not a run-time "
    "value of type s32",
    "v[n]",
    F32,
    tc.s32,
)
def run_time_register(x, n: tc.s32):
    v = x.at(0).load(4)
    v[n]  # noqa: B018


@refused("a vector of 4 f32 has no coordinates; only fragments do", "v.coordinates(0)", F32)
def coordinates_of_a_vector(x):
    v = x.at(0).load(4)
    v.coordinates(0)


@refused("a fragment f32x4:mma.C.16x8.f32 has elements 0 to 3, not 4", "acc.coordinates(4)")
def coordinates_outside():
    acc = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32).d.zeros()
    acc.coordinates(4)


@refused("a vector of 4 f32 and a vector of 2 f32 do not combine", "x.at(0).load(4) + x.at(0).load(2)", F32)
def vectors_of_two_lengths(x):
    x.at(0).load(4) + x.at(0).load(2)  # noqa: B018


@refused("a vector of 4 f32 has no truth value; reduce its elements first", "not v", F32)
def truth_of_a_vector(x):
    v = x.at(0).load(4)
    not v  # noqa: B018


@refused(
    "a run-time condition cannot choose between a vector of 4 f32 and 1",
    "tc.select(n > 0, v, 1)",
    F32,
    tc.s32,
)
def choice_of_vector_and_number(x, n: tc.s32):
    v = x.at(0).load(4)
    tc.select(n > 0, v, 1)


@refused("a vector has elements of one type, not s32, f32", "tc.vector([n, x])", tc.s32, tc.f32)
def mixed_vector(n: tc.s32, x: tc.f32):
    tc.vector([n, x])


@refused("3 is not a fragment operand, such as mma.a", "tc.fragment(3, [])")
def fragment_of_nothing():
    tc.fragment(3, [])


@refused("f32*4@mma.C.16x8.f32 has 4 registers, 1 were given", "tc.fragment(mma.d, [x])", tc.f32)
def too_few_registers(x: tc.f32):
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tc.fragment(mma.d, [x])


@refused(
    "a register of f32*4@mma.C.16x8.f32 holds 32 bits, not a run-time value of type f64",
    "tc.fragment(mma.d, [x, x, x, x])",
    tc.f64,
)
def registers_of_another_size(x: tc.f64):
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tc.fragment(mma.d, [x, x, x, x])


@refused("a register of f32*4@mma.C.16x8.f32 is needed, not 'a'", 'tc.fragment(mma.d, ["a"] * 4)')
def registers_of_strings():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tc.fragment(mma.d, ["a"] * 4)


@refused("'a' is not a fragment operand, such as mma.a", 'tc.ldmatrix(tile, "a")')
def loads_no_fragment():
    tile = tc.shared((16, 16), tc.f16)
    tc.ldmatrix(tile, "a")


@refused(
    "a two-dimensional shared tile is needed, not a 2-dimensional f32 array", "tc.ldmatrix(x, mma.a)", MATRIX
)
def ldmatrix_of_an_array(x):
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tc.ldmatrix(x, mma.a)


@refused(
    "a shared f32 tile of 16x16 cannot hold mma.A.16x16.f16: its elements are f32, those of the "
    "fragment f16; tc.load_elements(tile, operand, convert=True) converts",
    "tc.ldmatrix(tile, mma.a)",
)
def tile_of_another_type():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((16, 16), tc.f32)
    tc.ldmatrix(tile, mma.a)


@refused(
    "mma.A.16x16.f16 covers 16x16; a shared f16 tile of 16x24 is not a multiple of it",
    "tc.ldmatrix(tile, mma.a)",
)
def tile_of_another_shape():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((16, 24), tc.f16)
    tc.ldmatrix(tile, mma.a)


@refused("a fragment is needed, not 3; store vectors with pointer.store(...)", "tc.stmatrix(tile, 3)")
def stores_no_fragment():
    tile = tc.shared((16, 16), tc.f16)
    tc.stmatrix(tile, 3)


@refused(
    "stmatrix cannot store mma.C.16x8.f32; use tc.store_elements",
    "tc.stmatrix(tile, mma.d.zeros())",
    arch="sm_90",
)
def stores_wide_fragments():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((16, 8), tc.f32)
    tc.stmatrix(tile, mma.d.zeros())


@refused("a vote may be all, any, uni, ballot; 'most' was given", 'tc.vote("most", True)')
def unknown_vote():
    tc.vote("most", True)


@refused("a reduction may be add, min, max, and, or, xor; 'mul' was given", 'tc.redux("mul", n)', tc.s32)
def unknown_redux(n: tc.s32):
    tc.redux("mul", n)


@refused(
    "an atomic operation may be add, min, max, and, or, xor, exch, inc, dec, cas; 'mul' was given",
    'tc.atomic("mul", x.at(0), 1)',
    INTS,
)
def unknown_atomic(x):
    tc.atomic("mul", x.at(0), 1)


@refused(
    "a reduction may be add, min, max, and, or, xor, inc, dec; 'cas' was given",
    'tc.reduce("cas", x.at(0), 1)',
    INTS,
)
def unknown_reduction(x):
    tc.reduce("cas", x.at(0), 1)


@refused(
    "tc.atomic takes a pointer, array.at(...), not a run-time value of type s32",
    'tc.atomic("add", x[0], 1)',
    INTS,
)
def atomic_on_a_value(x):
    tc.atomic("add", x[0], 1)


def test_unknown_special_registers_list_what_there_is():
    @tc.kernel
    def unknown_register():
        tc.special("lane")

    with pytest.raises(
        UnknownInstruction,
        match=r"no special register is called 'lane'; there are aggr_smem_size, clock, clock64",
    ):
        unknown_register.ptx(arch="sm_80")


@refused(
    "'s' cannot format a run-time value of type s32: allowed are an alignment (<, >), a sign (-, +, blank), 0, a width, a precision and one of d, "
    "x, X, o, u",
    'print(f"{n:s}")',
    tc.s32,
)
def formats_wrongly(n: tc.s32):
    print(f"{n:s}")


@refused("a value of type f16x2 cannot be printed; convert it first", "print(pair.bits(tc.f16x2))", tc.u32)
def prints_a_pair(pair: tc.u32):
    print(pair.bits(tc.f16x2))


@refused("elements of type s4 cannot be taken out of a register", "mma.a.zeros()[0]")
def takes_nibbles():
    mma = tc.mma.m16n8k32(tc.s4, tc.s4, tc.s32)
    mma.a.zeros()[0]  # noqa: B018
