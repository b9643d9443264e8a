"""Finds the instruction of the table that a statement of PTX is: the reverse of its text.

The text of each instruction, with marks in the places of its operands, is what a statement is
compared with; so the table alone says how instructions are written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import repeat
from typing import Any

from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.lookup import instructions, modifiers
from tensorcore_dsl.isa.spec import Instruction, Operand

Item = tuple[Any, ...]
Parse = Callable[[str], tuple[Item, ...]]
_MARK = "operand::"  # no name of PTX
_MOVES = ("ld", "ldu", "st")  # whose table rows have types of bits alone


def find(
    opcode: str, operands: tuple[Item, ...], parse: Parse
) -> tuple[Instruction, list[Item | None]] | None:
    """The instruction, and what its results and operands are; None if there is none.

    An operand that the text does not name is None. parse: gives the operands in a statement.
    """
    for spelling in _spellings(opcode):
        for instr in _by_text(opcode.split(".", 1)[0]).get(spelling, ()):
            found: dict[int, Item] = {}
            pattern = _pattern(instr, parse)
            fits = len(pattern) == len(operands) and all(map(_match, pattern, operands, repeat(found)))
            sides = (*instr.results, *instr.operands)
            items = [_item(found[i], o) if i in found else None for i, o in enumerate(sides)]
            if fits and all(items[i] is not None for i in found):
                return instr, items
    return None


def _item(item: Item, operand: Operand) -> Item | None:
    """What stands for an operand; None where braces are around several registers and it is one."""
    if item[0] != "group" or operand.registers > 1 or operand.is_fragment:
        return item
    return item[1] if len(item) == 2 else None


def _spellings(opcode: str) -> list[tuple[str, ...]]:
    """The modifiers, in the ways in which the table may write them."""
    short = opcode.replace(".shared::cta", ".shared")
    texts = [opcode, short, short.replace(".shared.", ".shared::cta.")]
    head, *words = opcode.split(".")
    if head in _MOVES and words and words[-1][0] in "fsu":
        texts += [f"{text.rpartition('.')[0]}.b{words[-1].lstrip('fsu')}" for text in texts]
    if head == "cp" and "tensor" in words and not {"tile", "im2col"} & {*words}:
        texts += [f"{text}.tile" for text in texts]
    return list(dict.fromkeys(map(modifiers, texts)))


@cache
def _by_text(opcode: str) -> dict[tuple[str, ...], list[Instruction]]:
    """The instructions of an opcode by the modifiers in their text."""
    found: dict[tuple[str, ...], list[Instruction]] = {}
    for instr in instructions(opcode):
        found.setdefault(modifiers(_text(instr).split(None, 1)[0]), []).append(instr)
    # Those with more fixed words in their operands, such as special registers, come first.
    return {key: sorted(some, key=lambda i: -_text(i).count("%")) for key, some in found.items()}


@cache
def _text(instr: Instruction) -> str:
    marks = [
        f"[{_MARK}{i}]" if operand.kind == "addr" else f"{_MARK}{i}"
        for i, operand in enumerate((*instr.results, *instr.operands))
    ]
    return instr.text(marks[: len(instr.results)], marks[len(instr.results) :])


@cache
def _pattern(instr: Instruction, parse: Parse) -> tuple[Item, ...]:
    return parse(_text(instr))


def _match(pattern: Any, item: Any, found: dict[int, Item]) -> bool:
    """Is an operand what a pattern allows? Notes what stands in the place of each mark."""
    if pattern[0] == "name" and pattern[1].startswith(_MARK):
        if item[0] not in ("name", "number", "group", "sum"):
            return False
        found[int(pattern[1].removeprefix(_MARK))] = item
        return True
    if pattern[0] == "address" and len(pattern) == 2 and pattern[1][1:] and pattern[1][0] == "name":
        if item[0] != "address" or len(item) != 2:
            return False
        return _match(pattern[1], item[1], found)
    if not isinstance(pattern, tuple) or not isinstance(item, tuple):
        return bool(pattern == item)
    if len(pattern) != len(item) or pattern[0] != item[0]:
        return False
    return all(
        _match(p, o, found) if isinstance(p, tuple) else p == o
        for p, o in zip(pattern[1:], item[1:], strict=True)
    )


def in_space(opcode: str, shared: bool) -> str | None:
    """An access with the space that its addresses have; None where they may have several.

    Constants and what is local to a thread lie in global memory. shared: are there generic addresses
    of shared memory?
    """
    head, *words = opcode.split(".")
    if head == "cvta" and not {"const", "local", "param"}.isdisjoint(words):
        return f"mov.{words[-1]}"
    if head not in (*_MOVES, "atom", "red"):
        return opcode
    if not {"const", "local"}.isdisjoint(words):
        return ".".join([head, *("global" if word in ("const", "local") else word for word in words)])
    if any(word.split("::")[0] in ("global", "shared", "async") for word in words):
        return opcode
    return None if shared else ".".join([head, "global", *words])


def makes_generic(opcode: str) -> bool:
    """Does it make a generic address of one in shared memory?"""
    words = opcode.split(".")
    return words[0] == "cvta" and words[1].startswith("shared")


def extends_sign(opcode: str) -> bool:
    """Does a load fill the upper bits of a wider register with the sign?"""
    words = opcode.split(".")
    return words[0] in _MOVES and words[-1][0] == "s"


def loads_parameter(opcode: str) -> bool:
    """Does it load a parameter of the kernel?"""
    return opcode.split(".")[:2] == ["ld", "param"]


def accumulates(opcode: str) -> bool:
    """May it be an asynchronous matrix product, whose text names its accumulators once?"""
    return any(Effect.INPLACE in instr.effects for instr in instructions(opcode.split(".", 1)[0]))
