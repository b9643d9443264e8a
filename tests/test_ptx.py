"""The PTX printer: golden text, constants, and printed control flow run by a tiny PTX machine.

`UPDATE_GOLDEN=1 pytest tests/test_ptx.py` rewrites tests/golden/ptx.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from assembler import assembles
from test_coalesce import FUSED, LISTED, OUTPAIR, RANDOM_FORMS, Leave, Program, run

from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import ARCHS
from tensorcore_dsl.codegen.assemble import assemble
from tensorcore_dsl.codegen.ptx import entry_name, extern_shared, param_type, print_kernel
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.coalesce import coalesce
from tensorcore_dsl.ir.nodes import Assign, Block, Const, Kernel, Param, Type, Value
from tensorcore_dsl.ir.text import parse_kernel
from tensorcore_dsl.ir.verify import verify
from tensorcore_dsl.isa import instruction

GOLDEN = Path(__file__).parent / "golden" / "ptx"

KERNELS = {
    "empty": ("sm_75", "kernel empty() {\n}"),
    "axpy": (
        "sm_80",
        """
kernel axpy(x = %0:u64, y = %1:u64, alpha = %2:f32, n = %3:u32) threads 256 min_blocks 4 {
  %4:u32 = mov.u32.%tid.x
  %5:pred = setp.lt.u32 %4, %3
  if %5 {
    %6:u64 = mul.wide.u32 %4, 4
    %7:u64 = add.u64 %0, %6
    %8:u64 = add.u64 %1, %6
    %9:f32 = ld.global.b32 [%7]
    %10:f32 = ld.global.b32 [%8]
    %11:f32 = fma.rn.f32 %2, %9, %10
    st.global.b32 [%8], %11
  }
}""",
    ),
    "mma_loop": (
        "sm_80",
        """
kernel mma_loop(p = %0:u64, n = %1:s32) max_registers 128 {
  %2:f32*4@mma.C.16x8.f32 <- 0.0
  %3:f16*4@mma.A.16x16.f16 <- 0:b32
  %4:f16*2@mma.B.16x8.f16 <- %3.0, %3.2
  for %5:s32 = 0 to %1 step 16 {
    %2 = mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 %3, %4, %2
  }
  st.global.b32 [%0], %2.0
  st.global.v2.b32 [%0-16], %6:f32*2
}""",
    ),
    "loops": (
        "sm_90a",
        """
kernel loops(n = %0:s32, step = %1:s32, p = %2:u64, flag = %3:pred) {
  for %4:s32 = 0 to 8 step 2 {
    st.global.b32 [%2], %4
  }
  for %5:s32 = 8 to 8 step 1 {
    st.global.b32 [%2], %5
  }
  for %6:s64 = -1 to -9 step -4 {
    if %3 {
      continue
    }
    st.global.b64 [%2], %6
  }
  for %7:s32 = %0 to 0 step %1 {
    for %8:u32 = 0 to %0 step %1 {
      if %3 {
        break
      } else {
        @!%3 st.global.b32 [%2+4], %8
      }
    }
  }
  while {
    %9:pred = setp.lt.s32 %0, 5
  } do %9 {
    %0 = add.s32 %0, 1
    while {
    } do true {
      if %3 {
        @%3 st.global.b32 [%2], 7
        return
      } else {
        break
      }
    }
  }
  if %3 {
  } else {
    st.global.b32 [%2], 9
  }
  if %3 {
    st.global.b32 [%2], 10
  } else {
    st.global.b32 [%2], 11
  }
}""",
    ),
    "constants": (
        "sm_90a",
        """
kernel constants(p = %0:u64, h = %1:f16, b = %2:bf16, v = %3:f16x2, f = %4:f32, q = %12:pred) {
  %5:f16 = add.f16 %1, 1.5
  %6:f16 = fma.rn.f16 %5, 1.5, -2.0
  %7:bf16 = fma.rn.bf16 %2, 1.5, %2
  %8:f16x2 = fma.rn.f16x2 %3, 1006648320, %3
  %9:f32 = add.f32 %4, -inf
  %10:f64 <- 0.1
  %10 = fma.rn.f64 %10, 1e+300, -0.0
  %11:s32 = add.s32 -1, 4294967295:b32
  %13:pred = setp.eq.s32 %11, -5
  %14:f32 = selp.f32 %9, 3.0, %13
  %15:f32 = selp.f32 %14, %4, true
  %16:b128 <- 340282366920938463463374607431768211455
  st.global.b16 [%0], %5
  st.global.b16 [%0+2], 2.5:f16
  st.global.b16 [4096+2], %7
  st.global.b32 [%0+8], %15
  %17:pred <- false
  @%17 st.global.b32 [%0], 4294967295
  %18:s16 = add.s16 -7, 65535:u16
  st.global.b16 [%0], %18
  st.global.b64 [%0], %10
}""",
    ),
    "moves": (
        "sm_80",
        """
kernel moves(p = %0:u64) {
  %1:u32*4 <- 1, 2, 3, 4
  %1 <- %1.3, %1.0, %1.1, %1.2
  %2:u32*2 <- %1.1, %1.0
  %2 <- %2.1, %2.0
  %3:u32*2 <- %2
  st.global.v2.b32 [%0], %3
  st.global.v4.b32 [%0+16], %1
}""",
    ),
    "shared_static": (
        "sm_80",
        """
kernel shared_static() shared 4096 align 128 dynamic {
  %0:u32 = shared.base
  %1:u32 = shared.dynamic
  st.shared.b32 [%0+64], 1
  st.shared.b32 [%1], 2
}""",
    ),
    "shared_extern": (
        "sm_80",
        """
kernel shared_extern() shared 65530 align 1024 dynamic {
  %0:u32 = shared.base
  %1:u32 = shared.dynamic
  st.shared.b32 [%0+64], 1
  st.shared.b32 [%1], 2
}""",
    ),
    "print": (
        "sm_80",
        """
kernel print(n = %0:s32, x = %1:f64, flag = %2:pred) {
  string "n = %d, x = %f\\n"
  vprintf.s32.f64 0, %0, %1
  @%2 vprintf.s32.f64 0, 7, 0.5
}""",
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name: str) -> None:
    arch, text = KERNELS[name]
    printed = print_kernel(parse_kernel(text.strip()), ARCHS[arch])
    path = GOLDEN / f"{name}.ptx"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(printed)
    assert printed == path.read_text()


@pytest.mark.parametrize("name", KERNELS)
def test_the_assembler_takes_it(name: str) -> None:
    arch, text = KERNELS[name]
    assert not assembles(print_kernel(parse_kernel(text.strip()), ARCHS[arch]), arch)


def test_no_golden_file_is_left_over() -> None:
    assert {p.stem for p in GOLDEN.glob("*.ptx")} == set(KERNELS)


# --- module and header ----------------------------------------------------------------------


def header(text: str, arch: str = "sm_80") -> list[str]:
    return print_kernel(parse_kernel(text), ARCHS[arch]).splitlines()


def test_the_version_is_the_lowest_that_the_forms_and_the_target_need() -> None:
    assert header("kernel k() {\n}", "sm_75")[0] == ".version 6.3"
    assert header("kernel k() {\n}", "sm_90a")[0] == ".version 8.0"
    wide = "kernel k() {\n %0:b128 <- 1\n}"
    assert header(wide, "sm_80")[0] == ".version 8.3"
    instr = next(f for f in (instruction("fence.acq_rel.cluster"),) if f.version > (7, 0))
    major, minor = instr.version
    lines = header(f"kernel k() {{\n {instr.mnemonic}\n}}", "sm_80")
    assert lines[0] == f".version {major}.{minor}"


@pytest.mark.parametrize(
    ("name", "text"), [("gemm", "gemm"), ("_k", "_k"), ("_", "__"), ("größe", "gr$f6$dfe"), ("1k", "_1k")]
)
def test_entry_names_are_identifiers(name: str, text: str) -> None:
    assert entry_name(name) == text
    kernel = Kernel(name, [], Block())
    assert not assembles(print_kernel(kernel, ARCHS["sm_80"]), "sm_80")


@pytest.mark.parametrize(
    "dtype", [d for d in dtypes.ALL.values() if d.bits in (8, 16, 32, 64) or d.kind == "p"], ids=str
)
def test_parameters_of_every_type_assemble(dtype: dtypes.DType) -> None:
    kernel = Kernel("k", [Param("x", Value(0, Type(dtype)))], Block())
    text = print_kernel(kernel, ARCHS["sm_90a"])
    assert f".param .{param_type(dtype)} p0" in text
    assert not assembles(text, "sm_90a")


def test_a_parameter_of_four_bits_is_refused() -> None:
    with pytest.raises(OperandError, match="parameter cannot be e2m1"):
        param_type(dtypes.e2m1)


def test_extern_shared_memory_is_what_passes_48_kib() -> None:
    sizes = [0, 49152, 49153, 65530]
    assert [extern_shared(Kernel("k", [], Block(), s)) for s in sizes] == [0, 0, 49280, 65536]


# --- tensor cores ---------------------------------------------------------------------------

WGMMA = "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"
SUM = "f32*32@wgmma.D.64x64.f32"


def wgmma_loop(pending: int, early: str = "") -> Kernel:
    """Two products a turn into one accumulator, as a frontend writes it: with copies."""
    kernel = parse_kernel(f"""kernel wgmma_loop(p = %0:u64, n = %1:s32, a = %2:b64, b = %3:b64) {{
        %4:{SUM} <- 0.0
        for %5:s32 = 0 to %1 step 1 {{
          wgmma.fence.sync.aligned
          %6:{SUM} = {WGMMA} %4, %2, %3, true, 1, 1, 0, 0
          %7:{SUM} = {WGMMA} %6, %2, %3, true, 1, 1, 0, 0
          %4 <- %7
          wgmma.commit_group.sync.aligned
          {early}
          wgmma.wait_group.sync.aligned {pending}
        }}
        wgmma.wait_group.sync.aligned 0
        {"".join(f"st.global.b32 [%0+{4 * i}], %4.{i}{chr(10)}" for i in range(32))}
        }}""")
    coalesce(kernel)
    verify(kernel, ARCHS["sm_90a"])
    return kernel


@pytest.mark.parametrize("pending", [0, 1])
def test_ptxas_pipelines_a_wgmma_loop(pending: int) -> None:
    text = print_kernel(wgmma_loop(pending), ARCHS["sm_90a"])
    loop = text[text.index("$L1:") : text.index("bra $L1")]
    assert "mov" not in loop
    assert not assemble(text, "sm_90a", "wgmma_loop").resources.warnings


def test_ptxas_would_say_so_if_an_accumulator_was_read_in_flight() -> None:
    text = print_kernel(wgmma_loop(0, "st.global.b32 [%0], %4.0"), ARCHS["sm_90a"])
    assert "C75" in assemble(text, "sm_90a", "wgmma_loop").resources.warnings[0]


# --- constants ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype", "bits"),
    [
        (1.5, dtypes.f16, 0x3E00),
        (1 / 3, dtypes.bf16, 0x3EAB),
        (-0.0, dtypes.f32, 0x80000000),
        (0.1, dtypes.f64, 0x3FB999999999999A),
        (1e9, dtypes.f16, 0x7C00),
        (-1, dtypes.s32, 0xFFFFFFFF),
        (0x3C004000, dtypes.f16x2, 0x3C004000),
        (448.0, dtypes.e4m3, 0x7E),
        (True, dtypes.pred, 1),
        (-1, dtypes.u16, 0xFFFF),
        (2**64 - 1, dtypes.b64, 2**64 - 1),
        (6.0, dtypes.e2m1, 7),
    ],
)
def test_a_constant_reaches_a_register_with_its_bits(value: Any, dtype: Any, bits: int) -> None:
    target = Value(0, Type(dtype))
    kernel = Kernel("k", [], Block([Assign(target, (Const(value, dtype),))]))
    text = print_kernel(kernel, ARCHS["sm_90a"])
    (literal,) = re.findall(r"mov\.\w+ %\w+, (\S+);", text)
    digits = literal[2:] if literal[:2] in ("0f", "0d") else None
    assert (int(digits, 16) if digits else int(literal)) == bits
    assert not assembles(text, "sm_90a")


def test_a_constant_that_is_no_integer_is_refused() -> None:
    kernel = Kernel("k", [], Block([Assign(Value(0, Type(dtypes.s32)), (Const(1.5, dtypes.s32),))]))
    with pytest.raises(OperandError, match=r"1\.5 is no s32 constant"):
        print_kernel(kernel, ARCHS["sm_80"])


# --- what the printed text does -------------------------------------------------------------

FORMS = {f.mnemonic: f for f in RANDOM_FORMS}
COMPARE = {"lt": np.less, "gt": np.greater, "ne": np.not_equal}


class PtxMachine:
    """Runs the subset of PTX that control flow and copies print to, and the tests' own forms."""

    def __init__(self, text: str, params: list[int], fuel: int) -> None:
        body = text[text.index("{\n") + 2 : text.rindex("}")]
        lines = [x.strip() for x in body.splitlines()]
        self.code = [x for x in lines if x and not x.startswith(".reg")]
        self.labels = {x[:-1]: i for i, x in enumerate(self.code) if x.endswith(":")}
        self.params, self.fuel = params, fuel
        self.registers: dict[str, int] = {}
        self.trace: list[Any] = []

    def get(self, text: str) -> int:
        return self.registers.get(text, 0) if text.startswith("%") else int(text) % 2**32

    def run(self) -> None:
        at = 0
        while True:
            line = self.code[at]
            at += 1
            guard = re.match(r"@(!?)(%\w+) ", line)
            if guard:
                if bool(self.get(guard[2])) == bool(guard[1]):
                    continue
                line = line[guard.end() :]
            if line.endswith(":"):
                continue
            opcode, *rest = line.rstrip(";").split(None, 1)
            if opcode == "ret":
                return
            if opcode == "bra":
                at = self.jump(rest[0], at)
            elif line.startswith("{"):
                self.listed(line)
            else:
                self.step(opcode, rest[0] if rest else "")

    def jump(self, label: str, at: int) -> int:
        if self.labels[label] < at:
            self.fuel -= 1
            if self.fuel < 0:
                raise Leave("fuel")
        return self.labels[label]

    def step(self, opcode: str, text: str) -> None:
        names = re.findall(r"-?[%\w.]+|\[\w+\]", text)
        kind = opcode.split(".")
        if opcode in FORMS:
            self.instr(FORMS[opcode], names)
        elif kind[0] == "mov":
            self.registers[names[0]] = self.get(names[1])
        elif kind[:2] == ["ld", "param"]:
            self.registers[names[0]] = self.params[int(names[1][2:-1])]
        elif kind[0] == "setp":
            self.registers[names[0]] = int(COMPARE[kind[1]](self.get(names[1]), self.get(names[2])))
        else:
            assert opcode == "add.u32", opcode
            self.registers[names[0]] = (self.get(names[1]) + self.get(names[2])) % 2**32

    def instr(self, instr: Any, names: list[str]) -> None:
        if instr is FUSED:  # its text has the accumulator once
            low, high, a = names
            new = FUSED.execute(self.get(a), [self.get(low), self.get(high)])[0]
            self.registers.update({low: new[0] % 2**32, high: new[1] % 2**32})
        elif instr.effects:
            values = [self.get(n) for n in names]
            self.trace.append((instr.mnemonic, [values] if instr is OUTPAIR else values))
        else:
            count = len(instr.results)
            count = count if instr.results[0].registers == 1 else 2
            new = instr.execute(*(self.get(n) for n in names[count:]))
            new = new[0] if isinstance(new[0], list) else new
            self.registers.update({n: v % 2**32 for n, v in zip(names, new, strict=False)})

    def listed(self, line: str) -> None:
        d, a, e, a2, b = re.findall(r"%\w+|\b\d+\b", line)
        assert a == a2
        first, _ = LISTED.execute(self.get(a), self.get(b))
        self.registers[d] = first % 2**32
        self.registers[e] = LISTED.execute(self.get(a), self.get(b))[1] % 2**32


def printed_trace(kernel: Kernel) -> list[Any]:
    text = print_kernel(kernel, ARCHS["sm_80"])
    machine = PtxMachine(text, [7 * i + 3 for i in range(len(kernel.params))], fuel=300)
    machine.run()
    return machine.trace


@pytest.mark.parametrize("hundred", range(15))
def test_printed_programs_do_what_the_ir_says(hundred: int) -> None:
    finished = 0
    for seed in range(100 * hundred, 100 * hundred + 100):
        kernel = Program(seed).kernel()
        expected = run(kernel)
        if expected and expected[-1] == "fuel":
            continue
        if expected and expected[-1] == "return":
            expected.pop()
        finished += 1
        coalesce(kernel)
        assert printed_trace(kernel) == expected, seed
    assert finished > 30
