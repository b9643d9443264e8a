"""Each rule of the IR has a right program and a wrong one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import ARCHS
from tensorcore_dsl.dtypes import b32, f16, f32, pred, s32, u32, u64
from tensorcore_dsl.errors import ArchError, Loc, TensorCoreError, VerifyError
from tensorcore_dsl.ir import verify as rules
from tensorcore_dsl.ir.nodes import Assign, Block, Const, Jump, Kernel, Op, Param, TensorMap, Type, Value
from tensorcore_dsl.ir.verify import agree, verify
from tensorcore_dsl.isa import instruction
from tensorcore_dsl.isa.spec import Row
from tests.ir_reader import parse_kernel

ADD = instruction("add.s32")
MMA = instruction("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
HEAD = "kernel k(p = %0:u64, n = %1:s32, c = %2:pred, x = %3:f32)"


def check(body: str, arch: str = "sm_90a") -> None:
    verify(parse_kernel(f"{HEAD} {{\n{body}\n}}"), ARCHS[arch])


def test_a_kernel_with_everything_is_right():
    check("""
        %4:f32*4@mma.C.16x8.f32 <- 0.0
        %5:f16*4@mma.A.16x16.f16 <- 0:b32
        %6:f16*2@mma.B.16x8.f16 <- %5.0, %5.1
        for %7:s32 = 0 to %1 step 16 {
          if %2 {
            continue
          }
          %4 = mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 %5, %6, %4
        }
        while {
          %8:pred = setp.lt.s32 %1, 4
        } do %8 {
          @!%2 st.global.b32 [%0+16], %4.3
          return
        }
        %9:u32 = shared.base
        cp.async.cg.shared.global [%9], [%0], 16
    """)


# What is wrong, and what the message has to say of it.
WRONG = {
    "too few operands": ("%4:s32 = add.s32 %1", "add.s32 has 2 operands (a, b), 1 were given"),
    "too many operands": ("%4:s32 = add.s32 %1, %1, %1", "has 2 operands (a, b), 3 were given"),
    "no result": ("add.s32 %1, %1", "add.s32 has 1 results (d), 0 were given"),
    "type of an operand": (
        "%4:s32 = add.s32 %1, %3",
        "operand b of add.s32: %3 of type f32, where s32 is needed",
    ),
    "size of an operand": (
        "%4:s32 = add.s32 %0, %1", "operand a of add.s32: %0 of type u64, where s32 is needed"),
    "constant of another type": (
        "%4:s32 = add.s32 %1, 1.5:f32", "the f32 constant 1.5, where s32 is needed"),
    "predicate as a number": ("%4:s32 = add.s32 %2, %1", "%2 of type pred, where s32 is needed"),
    "number as a predicate": (
        "%4:f32 = selp.f32 %3, %3, %1", "operand p of selp.f32: %1 of type s32, where pred"),
    "address as a register": (
        "%4:s32 = add.s32 [%0], %1", "the address [%0], where s32 is needed"),
    "register as an address": (
        "st.global.b32 %0, %3", "operand p of st.global.b32: %0 of type u64, where an address"),
    "shared address for global": (
        "%4:u32 = shared.base\nst.global.b32 [%4], %3", "an address in %4 of type u32, where u64"),
    "address in a float": (
        "%4:f64 <- 0.0\nst.global.b32 [%4], %3", "an address in %4 of type f64, where u64"),
    "offset of an address": (
        "st.global.b32 [%0+2147483648], %3", "offset 2147483648 of an address"),
    "run-time immediate": (
        "cp.async.wait_group %1", "%1 of type s32, where an integer known at compile time"),
    "fraction as an immediate": (
        "cp.async.wait_group 1.5", "constant 1.5, where an integer known at compile time"),
    "type of a result": (
        "%4:f32 = add.s32 %1, %1", "result d of add.s32: %4 of type f32, where s32 is needed"),
    "one value as two results": (
        "%4:b32*2 <- 0\n%4, %4 = both", "both writes one value twice: %4, %4"),
    "fragment of another shape": (
        "%4:f16*2@mma.A.16x8.f16 <- 0:b32\n%5:f16*2@mma.B.16x8.f16 <- 0:b32\n"
        "%6:f32*4@mma.C.16x8.f32 <- 0.0\n"
        "%6 = mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 %4, %5, %6",
        "operand a of mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32: "
        "%4 of type f16*2@mma.A.16x8.f16, where f16*4@mma.A.16x16.f16 is needed",
    ),
    "vector as a fragment": (
        "%4:b32*4 <- 0\n%5:f16*2@mma.B.16x8.f16 <- 0:b32\n%6:f32*4@mma.C.16x8.f32 <- 0.0\n"
        "%6 = mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 %4, %5, %6",
        "%4 of type b32*4, where f16*4@mma.A.16x16.f16 is needed",
    ),
    "constant as a vector": (
        "st.global.v2.b32 [%0], 0", "the b32 constant 0, where b32*2 is needed"),
    "register beyond a group": (
        "%4:s32*2 <- 0\n%5:s32 = add.s32 %4.2, %1",
        "operand a of add.s32: register 2 of %4 of type s32*2, which has 2"),
    "register of another type": (
        "%4:f32*2 <- 0.0\n%5:s32 = add.s32 %4.1, %1",
        "register 1 of %4 of type f32*2, where s32 is needed"),
    "guard": (
        "%4:u32 <- 0\n@%1 st.global.b32 [%0], %4",
        "the guard of st.global.b32 is %1 of type s32, where a predicate"),
    "copy of too few registers": (
        "%4:u32*4 <- 1, 2, 3", "3 registers are copied to %4, which has 4"),
    "copy of too many registers": (
        "%4:u32*2 <- 1, 2\n%5:u32 <- %4", "2 registers are copied to %5, which has 1"),
    "copy of groups in a list": (
        "%4:u32*2 <- 1, 2\n%5:u32*3 <- %4, 1", "3 registers are copied to %5"),
    "copy of another width": ("%4:u32 <- %0", "%0 of type u64 is copied to %4, which holds u32"),
    "copy of a constant of another width": (
        "%4:u32 <- 1.0:f64", "the f64 constant 1.0 is copied to %4, which holds u32"),
    "copy of a predicate": ("%4:u32 <- %2", "%2 of type pred is copied to %4, which holds u32"),
    "copy from beyond a group": (
        "%4:u32*2 <- 0\n%5:u32 <- %4.7", "register 7 of %4 of type u32*2, which has 2 is copied"),
    "loop over floats": (
        "for %4:f32 = 0 to 1 step 1 {\n}", "a loop counts with %4 of type f32, where one integer"),
    "loop to a float": (
        "for %4:s32 = 0 to %3 step 1 {\n}", "the stop of a loop is %3 of type f32, where s32"),
    "loop by a wide step": (
        "for %4:s32 = 0 to 9 step %0 {\n}", "the step of a loop is %0 of type u64, where s32"),
    "loop that stands still": ("for %4:s32 = 0 to %1 step 0 {\n}", "the step of a loop is 0"),
    "unsigned loop that counts down": (
        "for %4:u32 = 9 to 0 step -1 {\n}", "a loop over u32 has step -1; it must be positive"),
    "loop whose index is written": (
        "for %4:s32 = 0 to 9 step 1 {\n%4 = add.s32 %4, 1\n}",
        "%4 is the index of a loop that writes it"),
    "loop whose bound is written": (
        "for %4:s32 = 0 to %1 step 1 {\nfor %5:s32 = 0 to 9 step 1 {\n%1 <- 3\n}\n}",
        "%1 is the bound or step of a loop that writes it"),
    "two loops in each other with one index": (
        "for %4:s32 = 0 to 9 step 1 {\nfor %4 = 0 to 9 step 1 {\n}\n}",
        "%4 is the index of a loop that writes it"),
    "number as a condition": (
        "if %1 {\n}", "the condition of `if` is %1 of type s32, where a predicate"),
    "constant number as a condition": (
        "while {\n} do 1:s32 {\n}", "the condition of `while` is the s32 constant 1, where"),
    "break outside": ("if %2 {\nbreak\n}", "`break` outside of a loop"),
    "continue outside": ("continue", "`continue` outside of a loop"),
    "group of predicates": (
        "%4:pred*2 <- true", "%4 of type pred*2: predicates have one register and no layout"),
}  # fmt: skip


def instrs(mnemonic: str) -> Any:
    two = Row("both", "d:b32*2, e:b32*2 =", {}, "70", (6, 0), "test", lambda ctx, instr: None)
    return next(two.instructions()) if mnemonic == "both" else instruction(mnemonic)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_refused(name):
    body, message = WRONG[name]
    kernel = parse_kernel(f"{HEAD} {{\n{body}\n}}", instrs)
    with pytest.raises(VerifyError, match=re.escape(message)):
        verify(kernel, ARCHS["sm_90a"])


RIGHT = {
    "bits for numbers": "%4:b32 <- 0\n%5:s32 = add.s32 %4, 1:b32\n%6:b32 = and.b32 %1, %3",
    "unsigned for signed": "%4:u32 <- 0\n%5:u32 = add.s32 %4, 1:u32",
    "a part of a vector": "%4:s32*2 <- 0\n%5:s32 = add.s32 %4.1, %4.0",
    "a packed part as bits": "%4:f16*2@mma.B.16x8.f16 <- 0:b32\n%5:b32 = and.b32 %4.1, 1",
    "an immediate that is allowed": "%4:u32 = shared.base\ncp.async.cg.shared.global [%4], [%0], 16",
    "copies of each kind": "%4:f32*2 <- %3, 0.5\n%5:f32*2 <- %4\n%6:b32 <- %5.1\n%7:pred <- %2",
    "counting down": "for %4:s32 = 9 to 0 step -1 {\n}\nfor %4 = 0 to %1 step %1 {\n}",
    "unsigned counting": "for %4:u32 = 0 to %1 step 1 {\n}",
    "loops one after the other": "for %4:s32 = 0 to 9 step 1 {\n}\nfor %4 = 0 to 9 step 1 {\n}",
    "an endless loop": "while {\n} do true {\nif %2 {\nbreak\n}\n}",
    "tf32 for f32": "%4:tf32 <- 0.0\n%5:f32 = add.f32 %4, %3",
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_taken(name):
    check(RIGHT[name])


# --- the target -----------------------------------------------------------------------------


def test_a_form_that_the_target_lacks_names_those_that_have_it():
    body = "%4:u32 = shared.base\n%5:b32*4 = ldmatrix.sync.aligned.m8n8.x4.shared.b16 [%4]"
    check(body, "sm_75")
    with pytest.raises(ArchError, match="sm_70 has no ldmatrix.*; it exists on sm_75, sm_80"):
        check(body, "sm_70")


def test_errors_carry_the_location_of_their_op():
    loc = Loc("user.py", 12, 4, 9)
    bad = Op(ADD, (Value(0, Type(s32)),), (Const(1, s32),), loc=loc)
    with pytest.raises(VerifyError) as caught:
        verify(Kernel("k", [], Block([bad])), ARCHS["sm_80"])
    assert caught.value.loc is loc and "user.py:12" in str(caught.value)
    old = Op(instruction("cp.async.wait_all"), (), (), loc=loc)
    with pytest.raises(ArchError) as lacks:
        verify(Kernel("k", [], Block([old])), ARCHS["sm_75"])
    assert lacks.value.loc is loc


# --- what the text form cannot spell --------------------------------------------------------


def refuse(kernel: Kernel, message: str) -> None:
    with pytest.raises(VerifyError, match=re.escape(message)):
        verify(kernel, ARCHS["sm_90a"])


def test_values_have_names_of_their_own():
    nodes: list[Any] = [Assign(Value(0, Type(u32)), (Const(i, u32),)) for i in range(2)]
    refuse(Kernel("k", [], Block(nodes)), "two values are called %0")


def test_an_immediate_is_one_of_its_values():
    row = Row("copy", "= size:#u32(4|8|16)", {}, "70", (6, 0), "test", lambda: None)
    instr = next(row.instructions())
    verify(Kernel("k", [], Block([Op(instr, (), (Const(8, u32),))])), ARCHS["sm_90a"])
    refuse(
        Kernel("k", [], Block([Op(instr, (), (Const(12, u32),))])),
        "operand size of copy: 12 was given; allowed are 4, 8, 16",
    )


def test_an_operand_without_text_is_the_result():
    row = Row(
        "fused", "d:f32 = a:f32, c:f32", {}, "70", (6, 0), "test", lambda: None, template="{d}, {a}", tied="c"
    )
    instr = next(row.instructions())
    c, d = Value(0, Type(f32)), Value(1, Type(f32))
    start = Assign(c, (Const(0.0, f32),))
    right = Op(instr, (c,), (Const(1.0, f32), c))
    verify(Kernel("k", [], Block([start, right])), ARCHS["sm_90a"])
    wrong = Op(instr, (d,), (Const(1.0, f32), c))
    refuse(Kernel("k", [], Block([start, wrong])), "operand c of fused has no text of its own")


def test_jumps_have_a_known_kind():
    refuse(Kernel("k", [], Block([Jump("goto")])), "jump 'goto'; break, continue and return")


def mapped(
    argument: int,
    axes: tuple[int, ...],
    box: tuple[int, ...],
    swizzle: int = 0,
    type: dtypes.DType = u64,
    behind: list[Param] | None = None,
    number: int = 0,
) -> Kernel:
    """A kernel with a tensor map."""
    param = Param(
        "x" if not number else "map", Value(number, Type(type)), TensorMap(argument, axes, box, swizzle)
    )
    return Kernel("k", [param, *(behind or [])], Block())


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (Kernel("k", [], Block(), threads=1025), "1025 threads in a block; 1 to 1024"),
        (Kernel("k", [], Block(), threads=0), "0 threads in a block"),
        (Kernel("k", [], Block(), shared_bytes=-1), "-1 bytes of shared memory"),
        (Kernel("k", [], Block(), shared_align=24), "aligned to 24; powers of two"),
        (Kernel("k", [Param("x", Value(0, Type(f32, 4)))], Block()), "parameter x is f32*4; scalars"),
        (Kernel("k", [Param("x", Value(0, Type(dtypes.u4)))], Block()), "parameter x is u4"),
        (Kernel("k", [Param("x", Value(0, Type(dtypes.s32, 0)))], Block()), "parameter x is s32*0; scalars"),
        (
            Kernel("k", [Param("x", Value(i, Type(u32))) for i in range(2)], Block()),
            "2 parameters are called x",
        ),
        (Kernel("k", [], Block(), cluster=(2, 0, 1)), "cluster (2, 0, 1); three extents of at most 16"),
        (Kernel("k", [], Block(), cluster=(8, 4, 1)), "cluster (8, 4, 1); three extents of at most 16"),
        (mapped(0, (0,), (16,), type=u32), "tensor map x is u32; its address is a u64"),
        (mapped(-1, (0,), (16,)), "tensor map x: a tensor map of argument -1"),
        (mapped(0, (), ()), "tensor map x: a box of 0 extents along 0 axes; as many of both, 1 to 5"),
        (mapped(0, (5, 4, 3, 2, 1, 0), (1,) * 6), "tensor map x: a box of 6 extents along 6 axes"),
        (mapped(0, (1, 0), (16,)), "tensor map x: a box of 1 extents along 2 axes"),
        (mapped(0, (1, 1), (16, 1)), "tensor map x: axes (1, 1); distinct axes"),
        (mapped(0, (1, -1), (16, 1)), "tensor map x: axes (1, -1); distinct axes, counted from 0"),
        (mapped(0, (1, 0), (257, 1)), "tensor map x: a box of (1, 257) elements; 1 to 256"),
        (mapped(0, (1, 0), (16, 0)), "tensor map x: a box of (0, 16) elements; 1 to 256"),
        (mapped(0, (1, 0), (16, 1), 48), "tensor map x: a swizzle of 48 bytes; allowed are 0, 32"),
        (
            mapped(0, (0,), (16,), behind=[Param("y", Value(1, Type(u32)))]),
            "a parameter stands behind a tensor map; the maps come last",
        ),
        (
            Kernel("k", [Param(n, v) for v in [Value(0, Type(u32))] for n in "xy"], Block()),
            "2 parameters are called %0",
        ),
    ],
)
def test_wrong_kernels(kernel, message):
    refuse(kernel, f"kernel k: {message}" if not message.startswith("aligned") else message)


def test_a_right_kernel():
    params = [Param("x", Value(0, Type(pred))), Param("y", Value(1, Type(u64)))]
    params += mapped(0, (4, 3, 2, 1, 0), (256,) * 5, 128, number=2).params
    kernel = Kernel("k", params, Block(), 4096, 1024, True, 1024, cluster=(4, 2, 2))
    verify(kernel, ARCHS["sm_90a"])


# --- definite assignment --------------------------------------------------------------------

USE = "%5:s32 = add.s32 %4, 1"
UNWRITTEN = {
    "nowhere": "%5:s32 = add.s32 %4:s32, 1",
    "one side of an if": f"if %2 {{\n%4:s32 <- 1\n}}\n{USE}",
    "the other side": f"if %2 {{\n}} else {{\n%4:s32 <- 1\n}}\n{USE}",
    "a loop that may not run": f"for %6:s32 = 0 to %1 step 1 {{\n%4:s32 <- 1\n}}\n{USE}",
    "a loop that does not run": f"for %6:s32 = 0 to 0 step 1 {{\n%4:s32 <- 1\n}}\n{USE}",
    "behind a continue": f"for %6:s32 = 0 to 3 step 1 {{\nif %2 {{\ncontinue\n}}\n%4:s32 <- 1\n}}\n{USE}",
    "behind a break": f"for %6:s32 = 0 to 3 step 1 {{\nif %2 {{\nbreak\n}}\n%4:s32 <- 1\n}}\n{USE}",
    "a while's body": f"while {{\n}} do %2 {{\n%4:s32 <- 1\n}}\n{USE}",
    "the way out of an endless loop": "while {\n} do true {\nif %2 {\nbreak\n}\n%4:s32 <- 1\n}\n" + USE,
    "the first turn": "for %6:s32 = 0 to 3 step 1 {\n%5:s32 = add.s32 %4:s32, 1\n%4 <- 1\n}",
    "the index after its loop": f"for %4:s32 = 0 to 3 step 1 {{\n}}\n{USE}",
    "a guard": "@%4:pred st.global.b32 [%0], %3",
    "a condition": "if %4:pred {\n}",
    "a while's condition": "while {\n} do %4:pred {\n}",
    "a bound": "for %6:s32 = 0 to %4:s32 step 1 {\n}",
    "a base of an address": "st.global.b32 [%4:u64+4], %3",
    "a part": "%5:s32 = add.s32 %4.1:s32*2, 1",
    "a copy": "%5:s32 <- %4:s32",
}


@pytest.mark.parametrize("name", UNWRITTEN)
def test_reading_what_may_not_be_written_is_refused(name):
    with pytest.raises(VerifyError, match=r"%4 of type .* on which it was not written"):
        check(UNWRITTEN[name])


def test_a_guarded_write_keeps_what_was_there():
    check("%4:s32 <- 0\n@%2 %4 = add.s32 %1, 1")
    with pytest.raises(VerifyError, match=r"a guarded add.s32 keeps %4 where its guard does not"):
        check("@%2 %4:s32 = add.s32 %1, 1")


WRITTEN = {
    "both sides of an if": f"if %2 {{\n%4:s32 <- 1\n}} else {{\n%4 <- 2\n}}\n{USE}",
    "a side that leaves": f"if %2 {{\nreturn\n}} else {{\n%4:s32 <- 2\n}}\n{USE}",
    "a loop that runs": f"for %6:s32 = 0 to 3 step 1 {{\n%4:s32 <- 1\n}}\n{USE}",
    "before a break": f"while {{\n}} do true {{\n%4:s32 <- 1\nif %2 {{\nbreak\n}}\n}}\n{USE}",
    "a while's test": f"while {{\n%4:s32 <- 1\n}} do %2 {{\n{USE}\n}}\n%7:s32 = add.s32 %4, 1",
    "before a continue": "for %6:s32 = 0 to 3 step 1 {\n%4:s32 <- 1\nif %2 {\ncontinue\n}\n}\n" + USE,
    "unreachable code": f"return\n%4:s32 = add.s32 %8:s32, 1\n{USE}",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_reading_what_every_path_wrote_is_taken(name):
    check(WRITTEN[name])


# --- types ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("have", "want", "agrees"),
    [
        (b32, f32, True),
        (f32, b32, True),
        (s32, u32, True),
        (u32, s32, True),
        (f32, s32, False),
        (s32, f32, False),
        (u64, b32, False),
        (f16, f32, False),
        (dtypes.bf16, f16, False),
        (dtypes.f16x2, b32, True),
        (dtypes.f16x2, f32, False),
        (dtypes.tf32, f32, True),
        (pred, dtypes.b1, False),
        (dtypes.u8, dtypes.u16, True),
        (dtypes.bf16x2, dtypes.f16x2, False),
    ],
)
def test_which_types_agree(have, want, agrees):
    assert agree(have, want) is agrees


@pytest.mark.parametrize(
    "line, message",
    [
        ("%4:u32 <- inf", "inf is no u32 constant"),
        ("%4:u32*1000000000000 <- 0", "%4 has 1000000000000 registers; 1 to 4096 are allowed"),
        ("%4:u32*0 <- 0", "%4 has 0 registers"),
        ("cp.async.wait_group -1", "-1 was given; 0 to 4294967295 are allowed"),
        ("cp.async.wait_group 4294967296", "4294967296 was given"),
        ("cp.async.wait_group inf", "where an integer known at compile time is needed"),
    ],
)
def test_constants_and_sizes_out_of_range(line, message):
    with pytest.raises(TensorCoreError, match=message):
        check(line)


@pytest.mark.parametrize(
    "words, message",
    [
        ("shared 99999999999 align 16", "99999999999 bytes of shared memory; 0 to 16777216"),
        ("shared 0 align 1208925819614629174706176", "powers of two up to"),
        ("min_blocks 0", "min_blocks is 0; 1 to 65535"),
        ("max_registers 70000", "max_registers is 70000"),
    ],
)
def test_sizes_of_kernels(words, message):
    with pytest.raises(VerifyError, match=message):
        verify(parse_kernel(f"kernel k() {words} {{\n}}"), ARCHS["sm_90a"])


def test_every_rule_is_in_the_tables():
    listed = {r for found in rules.NODE_RULES.values() for r in found} | set(rules.KERNEL_RULES)
    written = {
        f
        for name, f in vars(rules).items()
        if callable(f) and getattr(f, "__annotations__", {}).get("return") == "Complaints"
    }
    assert listed == written
