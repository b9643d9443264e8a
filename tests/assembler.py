"""Forms of the table as tiny PTX kernels, and the assembler that judges them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain

from tensorcore_dsl import isa
from tensorcore_dsl.arch import ARCHS
from tensorcore_dsl.codegen.cubin import Resources
from tensorcore_dsl.isa.spec import Instruction, Operand

ARCH_NAMES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
PREFIX = {1: "p", 16: "h", 32: "r", 64: "d"}
TYPE = {1: ".pred", 16: ".b16", 32: ".b32", 64: ".b64"}


class Registers:
    """Hands out registers by width, each once within a statement."""

    def __init__(self) -> None:
        self.next = dict.fromkeys(PREFIX, 0)
        self.most = dict.fromkeys(PREFIX, 0)

    def take(self, bits: int) -> str:
        self.next[bits] += 1
        self.most[bits] = max(self.most[bits], self.next[bits])
        return f"%{PREFIX[bits]}{self.next[bits] - 1}"

    def restart(self) -> None:
        self.next = dict.fromkeys(PREFIX, 0)

    def declarations(self) -> str:
        used = [b for b, n in self.most.items() if n]
        return "\n".join(f".reg {TYPE[b]} %{PREFIX[b]}<{self.most[b]}>;" for b in used)


def operand_text(operand: Operand, registers: Registers) -> str:
    if operand.kind == "imm":
        return str(operand.values[0] if operand.values else 0)
    names = [registers.take(operand.register_bits) for _ in range(operand.registers)]
    if operand.kind == "addr":
        return f"[{names[0]}+16]"
    if operand.registers > 1 or operand.is_fragment:
        return "{" + ", ".join(names) + "}"
    return names[0]


def statement(instr: Instruction, registers: Registers) -> str:
    """The form with distinct registers for all operands."""
    registers.restart()
    results = [operand_text(o, registers) for o in instr.results]
    text = instr.text(results, [operand_text(o, registers) for o in instr.operands])
    return text if text.endswith("; }") else text + ";"


def version_of(instrs: Iterable[Instruction], arch: str) -> tuple[int, int]:
    """The lowest PTX version that the forms and the target allow."""
    return max(chain([ARCHS[arch].ptx], (f.version for f in instrs)))


def module(instrs: Sequence[Instruction], arch: str, version: tuple[int, int] | None = None) -> str:
    """A PTX module with one statement for each form."""
    registers = Registers()
    body = [statement(f, registers) for f in instrs]
    major, minor = version or version_of(instrs, arch)
    return "\n".join(
        [
            f".version {major}.{minor}",
            f".target {arch}",
            ".address_size 64",
            ".shared .align 16 .b8 shared_memory[1024];",
            ".extern .shared .align 16 .b8 dynamic_shared_memory[];",
            ".visible .entry k()\n{",
            registers.declarations(),
            *body,
            "ret;\n}",
        ]
    )


def assert_clean(resources: Resources) -> None:
    """No register is spilled, as far as this version of the assembler tells, and there are no warnings."""
    assert not resources.spills and not resources.warnings, resources


@cache
def assembles(text: str, arch: str) -> str:
    """What the assembler says against `text`; empty when it takes it."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    try:
        Linker(ObjectCode.from_ptx(text.encode()), options=LinkerOptions(arch=arch)).link("cubin")
    except Exception as error:  # the linker's own error types differ with its version
        return str(error)
    return ""


@cache
def newest_ptx() -> tuple[int, int]:
    """The newest PTX version of the table that the installed assembler knows."""
    versions = {instr.version for instr in isa.instructions()}
    return max(version for version in versions if not assembles(module([], "sm_90a", version), "sm_90a"))
