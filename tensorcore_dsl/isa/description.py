"""Descriptions of instructions for `tensorcore-dsl show`, and search for instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tensorcore_dsl import dtypes, isa
from tensorcore_dsl.arch import arch as arch_named
from tensorcore_dsl.errors import OperandError, UnknownInstruction, listing
from tensorcore_dsl.isa.effects import MEANINGS, members
from tensorcore_dsl.isa.namespaces import FIXED
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.layout import Layout, draw

PTX_VERSION = "9.1"  # version of the manual that the table follows
MANUAL = f"section {{}} of the PTX manual {PTX_VERSION}"
_NOT_OPTIONS = (*FIXED, "ptx")
_MAX_ROWS = 32  # rows of a layout drawing


def describe(instr: Instruction, layouts: bool = True, width: int = 100) -> str:
    """All properties of an instruction as text; layout drawings wider than `width` are cut."""
    lines = [instr.mnemonic, ""]
    lines += [f"  {name:<12}{text}" for name, text in _facts(instr)]
    lines += ["", "  operands", *(f"    {line}" for line in _operands(instr))]
    if layouts:
        for layout in dict.fromkeys(filter(None, (o.layout or o.drawing for o in instr.sides))):
            lines += ["", *(f"  {line}" for line in _cut(layout, width - 2))]
    return "\n".join(lines)


def _facts(instr: Instruction) -> Iterator[tuple[str, str]]:
    yield "statement", statement(instr)
    yield "in a kernel", constructor(instr) or f'tc.emit("{instr.mnemonic}", ...)'
    yield "runs on", where(instr)
    yield "PTX", f"{instr.version[0]}.{instr.version[1]} or later"
    numbered = instr.section[:1].isdigit()
    yield "described", MANUAL.format(instr.section) if numbered else instr.section
    if instr.effects:
        words = [MEANINGS[effect] for effect in members(instr.effects)]
        yield "effects", listing(words)
    if instr.tied:
        yield "tied", f"the result may take the registers of {instr.tied}"
    if instr.note:
        yield "note", instr.note


def where(instr: Instruction) -> str:
    """The targets of the instruction in words; families and ranges also list their targets."""
    text = str(instr.requires)
    names = instr.requires.archs()
    plain = instr.requires.text.isdigit() or text == " or ".join(names)
    return text if plain else f"{text} ({listing(names) or 'no known target'})"


def statement(instr: Instruction) -> str:
    """The PTX statement, with operands named after their roles."""
    return instr.text([_named(o) for o in instr.results], [_named(o) for o in instr.operands]) + ";"


def _named(operand: Operand) -> str:
    if operand.kind == "addr":
        return f"[{operand.name}]"
    if operand.kind == "imm" or (operand.registers == 1 and operand.layout is None):
        return operand.name
    names = [f"{operand.name}{i}" for i in range(operand.registers)]
    if len(names) > 8:
        names = [*names[:2], "...", names[-1]]
    return "{" + ", ".join(names) + "}"


def _operands(instr: Instruction) -> Iterator[str]:
    rows = [(o.name, *describe_operand(o)) for o in instr.operands]
    rows = [(o.name, *describe_operand(o, "result")) for o in instr.results] + rows
    widths = [max(len(row[i]) for row in rows) for i in range(3)] if rows else []
    for row in rows:
        yield "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths)).rstrip() + f"  {row[3]}"
    if not rows:
        yield "none"


def describe_operand(operand: Operand, role: str = "operand") -> tuple[str, str, str]:
    """(role, element type, registers and layout) of an operand, in words."""
    if operand.kind == "imm":
        values = f"one of {listing(operand.values)}" if operand.values else "a constant"
        return "immediate", operand.dtype.name, values
    if operand.kind == "addr":
        return "address", operand.dtype.name, "base register, plus a constant offset"
    plural = "" if operand.registers == 1 else "s"
    size = (
        "a predicate"
        if operand.dtype.kind == "p"
        else (f"{operand.registers} register{plural} of {operand.register_bits} bits")
    )
    if operand.layout is None:
        return role, operand.dtype.name, size
    layout = operand.layout
    return role, operand.dtype.name, f"{size} in each of {layout.threads} threads, {layout.name}"


def _cut(layout: Layout, width: int) -> list[str]:
    """A layout drawing, cut to `_MAX_ROWS` rows and to the columns that fit into `width`."""
    lines = draw(layout).splitlines()
    head, top = lines[0], lines[1]
    cell = (len(top) - 4) // layout.cols
    shown = min(layout.cols, max(1, (width - 4) // cell))
    rows = min(layout.rows, _MAX_ROWS)
    cut = [line[: 4 + cell * shown] for line in lines[1 : 2 + rows]]
    if (shown, rows) != (layout.cols, layout.rows):
        head += f"; rows 0 to {rows - 1}, columns 0 to {shown - 1}"
    if layout.copies > 1:
        head += f"; each place is held {layout.copies} times, its first holder is shown"
    return [head, *cut]


# -- the constructor ---------------------------------------------------------------------------


def constructor(instr: Instruction) -> str | None:
    """The `tc.mma...` call that gives the instruction; None if only `tc.emit` reaches it."""
    space: Any = getattr(isa, instr.opcode, None)
    if not hasattr(space, "_instructions") or not {"shape", *"abcd"} <= set(instr.params):
        return None
    path = (*filter(None, instr.params.get("group", "").split(".")), instr.params["shape"])
    for part in path:
        space = getattr(space, part)
    head = ".".join(("tc", instr.opcode, *path))
    for types in (instr.params[k] for k in "abc"), (instr.params[k] for k in "abcd"):
        names, options = list(types), _options(instr)
        if _makes(space, names, options, instr):
            options = _needed(space, names, options, instr)
            arguments = [f"tc.{n}" for n in names] + [f"{k}={v!r}" for k, v in options.items()]
            return f"{head}({', '.join(arguments)})"
    return None


def _needed(shape: Any, names: list[str], options: dict[str, Any], instr: Instruction) -> dict[str, Any]:
    """The options without which the constructor would give another instruction."""
    for key in list(options):
        fewer = {k: v for k, v in options.items() if k != key}
        options = fewer if _makes(shape, names, fewer, instr) else options
    return options


def _options(instr: Instruction) -> dict[str, Any]:
    params = {k: v for k, v in instr.params.items() if k not in _NOT_OPTIONS and v != ""}
    return {k: True if v == k else v for k, v in params.items()}


def _makes(shape: Any, names: list[str], options: dict[str, Any], instr: Instruction) -> bool:
    try:
        return shape(*names, **options) is instr
    except UnknownInstruction:
        return False


# -- search ------------------------------------------------------------------------------------


def search(
    opcode: str | None = None,
    arch: str | None = None,
    dtype: str | None = None,
    shape: str | None = None,
    text: str | None = None,
) -> list[Instruction]:
    """Instructions that match all given criteria.

    arch: available on this target. dtype: an operand has this element type. shape: for example
    "m16n8k16". text: part of the mnemonic, or words of it in their order, as "wgmma.m64". An
    unknown opcode, arch, dtype or shape is an error.
    """
    if opcode is not None and opcode not in isa.opcodes():
        isa.instruction(opcode)  # raises, with the nearest names
    matches = list(isa.instructions(opcode))
    if arch is not None:
        target = arch_named(arch)
        matches = [f for f in matches if f.requires.met_by(target)]
    if dtype is not None:
        with suppress(OperandError):  # "float16"; of what names none, the next line tells
            dtype = dtypes.as_dtype(dtype).name
        dtypes.named(dtype)
        matches = [f for f in matches if dtype in f.mnemonic.split(".") or dtype in types_of(f)]
    if shape is not None:
        matches = _of_shape(matches, shape)
    words = "" if text is None else r".*\.".join(map(re.escape, text.removeprefix("tc.").split(".")))
    return [f for f in matches if text is None or text in f.mnemonic or re.search(words, f.mnemonic)]


def types_of(instr: Instruction) -> set[str]:
    """Names of the element types of its operands."""
    return {o.dtype.name for o in instr.sides}


def _of_shape(instructions: list[Instruction], shape: str) -> list[Instruction]:
    shapes = dict.fromkeys(str(f.params["shape"]) for f in instructions if "shape" in f.params)
    if shape not in shapes:
        there = f"there are {listing(shapes, 60)}" if shapes else "these instructions have none"
        raise UnknownInstruction(f"no instruction found has the shape {shape!r}; {there}")
    return [f for f in instructions if f.params.get("shape") == shape]
