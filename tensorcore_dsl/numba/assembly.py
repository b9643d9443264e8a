"""Instructions of the table as inline assembly: PTX text with LLVM operands, and constraints.

Predicates are passed in 32-bit registers, since NVVM has no constraint for them. An operand that
the text names only through the result (wgmma's accumulator) is tied to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.errors import ArchError, OperandError, listing
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.effects import CONVERGENT_EFFECTS, MEMORY_EFFECTS, PURE, Effect
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.numba.compat import targetconfig
from tensorcore_dsl.numba.registers import is_tuple, slot


@dataclass(frozen=True)
class Assembly:
    """Inline assembly: text and constraints. `outputs` and `inputs` are LLVM types of registers."""

    text: str
    constraints: str
    outputs: tuple[Any, ...]
    inputs: tuple[Any, ...]
    effects: Effect

    def emit(self, builder: Any, inputs: Sequence[Any]) -> list[Any]:
        """Insert the assembly and return the values of its output registers."""
        result: Any = ir.VoidType()
        if self.outputs:
            result = self.outputs[0]
        if len(self.outputs) > 1:
            result = ir.LiteralStructType(self.outputs)
        function = ir.FunctionType(result, self.inputs)
        pure = self.effects == PURE
        code = ir.InlineAsm(function, self.text, self.constraints, side_effect=not pure)
        attributes = ["nounwind", "readnone"] if pure else ["nounwind"]
        attributes += ["convergent"] if self.effects & CONVERGENT_EFFECTS else []
        value = builder.call(code, inputs, attrs=attributes)
        if len(self.outputs) > 1:
            return [builder.extract_value(value, i) for i in range(len(self.outputs))]
        return [value] if self.outputs else []


def assembly(instr: Instruction, immediates: Mapping[str, int]) -> Assembly:
    """Write `instr` as inline assembly, with registers `$0`, `$1`, ... and immediates in the text."""
    writer = _Writer(instr, immediates)
    results = [writer.result(o) for o in instr.results]
    operands = [writer.operand(o) for o in instr.operands]
    body = instr.text(results, operands)
    text = " ".join([*writer.before, body if body.startswith("{") else f"{body};", *writer.after])
    if writer.predicates:
        text = f"{{ .reg .pred {', '.join(writer.predicates)}; {text} }}"
    return writer.done(text)


class _Writer:
    """Numbers the registers of an instruction. Outputs come first, so call `result` before `operand`."""

    def __init__(self, instr: Instruction, immediates: Mapping[str, int]) -> None:
        self.instr, self.immediates = instr, immediates
        self.outputs: list[tuple[Any, str]] = []
        self.inputs: list[tuple[Any, str]] = []
        self.predicates: list[str] = []
        self.before: list[str] = []
        self.after: list[str] = []

    def result(self, operand: Operand) -> str:
        kind = slot(operand)
        first = len(self.outputs)
        self.outputs += [(kind.llvm, f"={kind.constraint}")] * operand.registers
        if kind.bits == 1:
            name = self._predicate()
            self.after.append(f"{names.select(32)} ${first}, 1, 0, {name};")
            return name
        return _listed(operand, first)

    def operand(self, operand: Operand) -> str:
        if operand.kind == "imm":
            return str(self.immediates[operand.name])
        kind = slot(operand)
        first = len(self.outputs) + len(self.inputs)
        if operand.name == self.instr.tied and Effect.INPLACE in self.instr.effects:
            self.inputs += [(kind.llvm, str(i)) for i in range(operand.registers)]
            return _listed(operand, 0)
        self.inputs += [(kind.llvm, kind.constraint)] * operand.registers
        if operand.kind == "addr":
            return f"[${first}]"
        if kind.bits == 1:
            name = self._predicate()
            self.before.append(f"{names.compare('ne', 'b32')} {name}, ${first}, 0;")
            return name
        return _listed(operand, first)

    def _predicate(self) -> str:
        self.predicates.append(f"p{len(self.predicates)}")
        return self.predicates[-1]

    def done(self, text: str) -> Assembly:
        effects = self.instr.effects
        constraints = [c for _, c in (*self.outputs, *self.inputs)]
        hidden = Effect.VOLATILE in effects and not self.outputs
        if effects & MEMORY_EFFECTS or hidden:
            constraints.append("~{memory}")
        outputs, inputs = (tuple(t for t, _ in side) for side in (self.outputs, self.inputs))
        return Assembly(text, ",".join(constraints), outputs, inputs, effects)


def _listed(operand: Operand, first: int) -> str:
    names = [f"${i}" for i in range(first, first + operand.registers)]
    return f"{{{', '.join(names)}}}" if is_tuple(operand) else names[0]


def through(text: str, types: Sequence[Any], constraints: Sequence[str], effects: Effect) -> Assembly:
    """Make a statement without operands. Registers pass through it, so that no use moves across it."""
    outputs = [f"={c}" for c in constraints]
    tied = [str(i) for i in range(len(constraints))]
    every = ",".join([*outputs, *tied, "~{memory}"])
    return Assembly(f"{text};", every, tuple(types), tuple(types), effects)


def check_arch(instr: Instruction) -> None:
    """Raise ArchError if Numba compiles the current kernel for a target without the instruction."""
    flags = targetconfig.ConfigStack().top_or_none()
    cc = getattr(flags, "compute_capability", None)
    if cc is None:
        return
    if not any(instr.requires.met_by(target) for target in _targets(*cc)):
        raise ArchError(
            f"sm_{cc[0]}{cc[1]}{''.join(cc[2:])} has no {instr.ptx}; "
            f"it exists on {listing(instr.requires.archs())}"
        )


def _targets(major: int, minor: int, suffix: str = "") -> list[Arch]:
    """Return the targets that Numba's compute capability may denote.

    From 9.0 on Numba's launches compile for `sm_90a` and report (9, 0).
    """
    number = 10 * major + minor
    suffixes = ("", "a") if number >= 90 and not suffix else (suffix,)
    return [Arch(number, s, (0, 0), 0, "") for s in suffixes]


def check_supported(instr: Instruction) -> None:
    """Raise OperandError for instructions that only kernels of `@tc.kernel` support."""
    if instr.opcode == names.SHARED_OPCODE:
        raise OperandError(f"{instr} is not an instruction: take the address of a cuda.shared.array")
    if instr.opcode in (names.PRINT_OPCODE, names.CHECK_OPCODE):
        raise OperandError(f"{instr.opcode} needs strings in the module: call print()")
