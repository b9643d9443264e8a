"""Regions of a program as text: their blocks and micro-operations, and the LLVM code of their functions."""

from __future__ import annotations

from collections.abc import Iterator

from tensorcore_dsl.interpreter.core.program import Program, Step
from tensorcore_dsl.interpreter.regions import emit
from tensorcore_dsl.interpreter.regions.layout import FrameLayout
from tensorcore_dsl.interpreter.regions.plan import (
    ALL_REGIONS,
    NO_SLOT,
    SPECIAL_REGISTER,
    MicroOp,
    Region,
    RegionBlock,
    Slot,
    regions_of,
)

COLUMN = 56  # the column in which the line of Python starts


def regions_listed(program: Program) -> str:
    """List the regions of a launch without checks, and the steps that run one by one between them.

    Each line has the position of a step, a micro-operation and the line of Python. r8 is the register
    at vreg 8 of the program, r8[1] the second one of a group there. Numbers are the bits of constants.
    """
    lines, position = list[str](), 0
    for region in regions_of(program, program.flow, program.cuts, ALL_REGIONS):
        lines += _steps(program, range(position, region.start))
        lines += _region(program, region)
        position = region.end
    lines += _steps(program, range(position, len(program.steps)))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def llvm_of_regions(program: Program) -> str:
    """Return the LLVM text of the functions of all regions, before it is optimised."""
    module = emit.Module()
    for region in regions_of(program, program.flow, program.cuts, ALL_REGIONS):
        module.add(f"region_{region.start}", FrameLayout(region, program.numbers, program.fixed))
    return str(module)


def _steps(program: Program, positions: range) -> Iterator[str]:
    """The steps that no region has."""
    for at in positions:
        step = program.steps[at]
        jump = program.flow.jumps.get(at)
        text = step.instr.mnemonic if step.instr else "end" if jump is None else f"jump to {jump.label.at}"
        yield _line(at, text, step)


def _region(program: Program, region: Region) -> Iterator[str]:
    entries = ", ".join(map(str, region.reads_at_entry))
    yield f"region {region.start} to {region.end}, entered at {entries}, left for {_numbers(region.exits)}"
    for block in region.blocks:
        yield f"  block {block.start} to {block.end}" + (", whole warps" if block.whole else "")
        for at, micro_op in block.micro_ops:
            yield "    " + _line(at, _text(program, micro_op), program.steps[at])
        yield from _jump(program, block)


def _jump(program: Program, block: RegionBlock) -> Iterator[str]:
    if block.jump is not None:
        target, flag = block.jump
        condition = "" if flag is None else f" where not {_register(program, (flag, 0, 1))}"
        yield "    " + _line(block.end - 1, f"jump to {target}{condition}", program.steps[block.end - 1])


def _text(program: Program, micro_op: MicroOp) -> str:
    """A micro-operation as an assignment."""
    registers = [_register(program, slot) for slot in micro_op.slots if slot != NO_SLOT]
    operands = [*registers, *map(str, micro_op.numbers)] if micro_op.name != SPECIAL_REGISTER else registers
    name = micro_op.function if micro_op.name == SPECIAL_REGISTER else micro_op.name.partition(" ")[0]
    access, guard = micro_op.access, ""
    if access is not None:
        if micro_op.guard is not None:
            vreg, negated = micro_op.guard
            guard = f" if {'not ' * negated}r{vreg}"
        (space, verb), *_ = access.traffic
        size = f"{access.words} x {access.width} bytes"
        return f"{verb}.{space} {', '.join(registers)}: {size}{guard}"
    return f"{operands[0]} = {name} {', '.join(operands[1:])}"


def _register(program: Program, slot: Slot) -> str:
    vreg, number, _ = slot
    if vreg in program.numbers:
        return str(program.numbers[vreg])
    return f"r{vreg}[{number}]" if number else f"r{vreg}"


def _line(at: int, text: str, step: Step) -> str:
    where = "" if step.loc is None else f"# line {step.loc.line}"
    return f"{at:4}  {text}".ljust(COLUMN) + where


def _numbers(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
