"""The reference page of the table in Markdown: all families, in the order of the manual.

Alternatives are written as in a shell: `add{,.sat}.{s32,u32}` is four instructions, and
`m64n{8..256..8}k16` the 32 shapes from n = 8 to 256 in steps of 8.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorcore_dsl import isa
from tensorcore_dsl.isa import lookup
from tensorcore_dsl.isa.spec import Instruction, Operand, Row

Parts = tuple[str, ...]  # parts of a mnemonic, in order
Pattern = tuple[frozenset[str], ...]  # the values of each part
Groups = dict[Pattern, list[Any]]

# Chapters of the manual by the first three numbers of a section (chapter 10: by the first).
CHAPTERS = {
    "9.7.1": "Integer arithmetic",
    "9.7.2": "Extended-precision integer arithmetic",
    "9.7.3": "Floating point",
    "9.7.4": "Half precision",
    "9.7.5": "Mixed precision",
    "9.7.6": "Comparison and selection",
    "9.7.7": "Half-precision comparison",
    "9.7.8": "Logic and shifts",
    "9.7.9": "Data movement and conversion",
    "9.7.12": "Control flow",
    "9.7.13": "Synchronisation and communication",
    "9.7.14": "Matrix products of a warp",
    "9.7.15": "Matrix products of a warpgroup",
    "9.7.19": "Miscellaneous",
    "10": "Special registers",
}
OTHER = "Beyond the manual"

# Text below the title of a chapter.
PICTURES = {
    "9.7.14": "A of `m16n8k16` in 16-bit types; [others](fragment_drawings.md):\n\n"
    "![A of m16n8k16](pictures/mma_m16n8k16_f16_a.png)\n",
    "9.7.15": "Which [warp and thread](fragment_drawings.md#wgmma-m64n8k16) holds what of the accumulators:"
    " warp w rows 16 w to 16 w + 15, each as `mma.m16n8k16` does.\n",
}
INTRODUCTION = """\
# Instructions

<!-- Generated from the table by `make docs`; edit the rows in tensorcore_dsl/isa instead. -->

{instructions:,} instructions of {opcodes} opcodes. `tensorcore-dsl show <mnemonic>` describes
one instruction with its layouts; `tensorcore-dsl list` searches.

Braces hold alternatives as in a shell: `add{{,.sat}}.{{s32,u32}}` is four instructions, and
`n{{8..256..8}}` the numbers from 8 to 256 in steps of 8. Operands have the names that `show` prints;
results are left of the arrow. `#` marks immediates, `[ ]` addresses, `°` fragments (`show` draws their
layouts), `x4` four registers. A target that ends in `a` is exactly that architecture; one that ends in
`f` is its family (sm_100f: sm_100f to sm_103a). *PTX* is the first version of PTX that has the
instruction, *manual* the section of the PTX manual 9.1, *count* the number of instructions.
[fragment_drawings.md](fragment_drawings.md) has pictures of the fragments of matrix products.
"""


def page() -> str:
    """The whole page."""
    count = sum(1 for _ in isa.instructions())
    lines = [INTRODUCTION.format(instructions=count, opcodes=len(isa.opcodes()))]
    chapters: dict[str, list[Entry]] = {}
    for entry in entries():
        chapters.setdefault(chapter(entry.section), []).append(entry)
    order = [*CHAPTERS.values(), OTHER]
    for name in sorted(chapters, key=order.index):
        lines.append(f"## {name}\n")
        lines += [text for section, text in PICTURES.items() if CHAPTERS[section] == name]
        lines += _table(sorted(chapters[name], key=lambda e: _numbers(e.section)))
    return "\n".join(lines).rstrip() + "\n"


def chapter(section: str) -> str:
    """The title of the chapter that a section belongs to."""
    numbers = section.split(".")
    return CHAPTERS.get(".".join(numbers[:3])) or CHAPTERS.get(numbers[0], OTHER)


def _numbers(section: str) -> list[int]:
    return [int(n) for n in section.split(".") if n.isdigit()]


def _table(entries: Iterable[Entry]) -> Iterator[str]:
    yield "| syntax | operands | target | PTX | manual | count |"
    yield "|---|---|---|---|---|---:|"
    notes: dict[str, int] = {}
    for entry in entries:
        mark = ""
        if entry.note:
            mark = f" ({notes.setdefault(entry.note, len(notes) + 1)})"
        yield (
            f"| `{entry.syntax}`{mark} | {entry.operands} | {entry.target} | {entry.version} "
            f"| {entry.section} | {entry.count} |"
        )
    yield ""
    yield from (f"({number}) {note}.\n" for note, number in notes.items())


# -- entries -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A line of the page: instructions that differ only in parts of their mnemonics and types."""

    syntax: str
    operands: str
    target: str
    version: str
    section: str
    note: str
    count: int


def entries() -> Iterator[Entry]:
    """All lines, in the order of the table."""
    for opcode in isa.opcodes():
        products: list[Instruction] = []
        for family in lookup._ROWS[opcode]:
            if isinstance(family, Row):
                yield from _of_family(family.instructions(), _splitter(family))
            else:
                products += family.instructions()
        yield from _of_family(products, lambda instr: pieces(instr.mnemonic))


def pieces(text: str) -> Parts:
    """A mnemonic split before each dot."""
    return tuple(re.split(r"(?=\.)", text))


def _splitter(family: Row) -> Callable[[Instruction], Parts]:
    """A function that splits mnemonics of a row at its axes."""
    fields = list(string.Formatter().parse(family.mnemonic))

    def split(instr: Instruction) -> Parts:
        return tuple(
            text for literal, axis, _, _ in fields for text in (literal, instr.params.get(axis or "", ""))
        )

    return split


def _of_family(instructions: Iterable[Instruction], split: Callable[[Instruction], Parts]) -> Iterator[Entry]:
    groups: dict[tuple[str, ...], list[Instruction]] = {}
    for instr in instructions:
        names = " ".join(f"{o.name}{o.kind}" for o in instr.sides)
        key = (instr.requires.text, str(instr.version), instr.section, instr.note, names)
        groups.setdefault(key, []).append(instr)
    for group in groups.values():
        named = [(split(instr), instr) for instr in group]
        for pattern, members in merged(named):
            first = members[0]
            yield Entry(
                pattern_text(pattern, [p for parts, _ in named for p in parts]),
                signature(members),
                str(first.requires),
                "{}.{}".format(*first.version),
                first.section,
                first.note,
                len(members),
            )


def merged(named: Iterable[tuple[Parts, Any]]) -> list[tuple[Pattern, list[Any]]]:
    """Cover the given mnemonics by few products of sets; each product comes with its members."""
    patterns: Groups = {tuple(frozenset({p}) for p in parts): [member] for parts, member in named}
    before = 0
    while before != len(patterns):
        before = len(patterns)
        longest = max(map(len, patterns), default=0)
        for position in reversed(range(longest)):
            patterns = _merged_at(position, patterns)
        if before == len(patterns):
            for position in range(1, longest):
                _absorb(position, patterns)
    return list(patterns.items())


def _merged_at(position: int, patterns: Groups) -> Groups:
    """Merge patterns that differ only at `position`."""
    alike: dict[tuple[Pattern, Pattern], list[Pattern]] = {}
    for pattern in patterns:
        key = (pattern[:position], pattern[position + 1 :]) if len(pattern) > position else (pattern, ())
        alike.setdefault((*key, len(pattern)), []).append(pattern)  # type: ignore[arg-type]
    result: Groups = {}
    for group in alike.values():
        first = group[0]
        if len(group) > 1:
            values = frozenset().union(*(p[position] for p in group))
            first = (*first[:position], values, *first[position + 1 :])
        result[first] = [instr for p in group for instr in patterns[p]]
    return result


def _absorb(position: int, patterns: Groups) -> None:
    """Merge a pattern with the same pattern without the part at `position`."""
    for pattern in list(patterns):
        shorter = pattern[:position] + pattern[position + 1 :]
        if len(pattern) > position and "" not in pattern[position] and shorter in patterns:
            both = (*pattern[:position], pattern[position] | {""}, *pattern[position + 1 :])
            patterns[both] = patterns.pop(shorter) + patterns.pop(pattern)


# -- text ----------------------------------------------------------------------------------------


def pattern_text(pattern: Pattern, order: Sequence[str]) -> str:
    """A pattern as text, alternatives in the order in which they first come in `order`."""
    rank = {part: i for i, part in enumerate(dict.fromkeys(("", *order)))}
    return "".join(braces(sorted(values, key=rank.__getitem__)) for values in pattern)


def braces(values: Sequence[str]) -> str:
    """`{a,b}`, with common prefixes and suffixes outside the braces."""
    if len(values) == 1:
        return values[0]
    if any(v.count(".") > 1 for v in values):
        patterns = merged((pieces(v), v) for v in values)
        parts = [p for v in values for p in pieces(v)]
        texts = [pattern_text(pattern, parts) for pattern, _ in patterns]
        return texts[0] if len(texts) == 1 else "{" + ",".join(texts) + "}"
    runs = [re.findall(r"\d+|\D+", v) for v in values]
    differ = [i for i, column in enumerate(zip(*runs)) if len(set(column)) > 1]
    if len({len(r) for r in runs}) == 1 and len(differ) == 1 and runs[0][differ[0]].isdigit():
        at = differ[0]
        numbers = numbered([int(r[at]) for r in runs])
        return "".join(runs[0][:at]) + numbers + "".join(runs[0][at + 1 :])
    dot = "." if all(v.startswith(".") for v in values) else ""
    return dot + "{" + ",".join(v[len(dot) :] for v in values) + "}"


def numbered(numbers: Sequence[int]) -> str:
    """`{4,8}`; four or more numbers in equal steps become `{8..256..8}`."""
    texts, remaining = [], sorted(numbers)
    while remaining:
        run = _even(remaining)
        if len(run) >= 4:
            texts.append("{" + f"{run[0]}..{run[-1]}..{run[1] - run[0]}" + "}")
        else:
            texts.append(str(remaining[0]))
            run = remaining[:1]
        remaining = remaining[len(run) :]
    return texts[0] if len(texts) == 1 else "{" + ",".join(texts) + "}"


def _even(numbers: Sequence[int]) -> Sequence[int]:
    """The longest prefix of `numbers` in equal steps."""
    size = min(2, len(numbers))
    while size < len(numbers) and numbers[size] - numbers[size - 1] == numbers[1] - numbers[0]:
        size += 1
    return numbers[:size]


def signature(instructions: Sequence[Instruction]) -> str:
    """`d ← a, b: f32 f64`: operands of the same types are listed together."""
    columns = list(zip(*(f.sides for f in instructions)))
    types = [" ".join(dict.fromkeys(map(_type, column))) for column in columns]
    names = [_name(column[0]) for column in columns]
    results = len(instructions[0].results)
    left, right = (_joined(names[s], types[s]) for s in (slice(results), slice(results, None)))
    return f"{left} ← {right}" if left and right else f"{left} ←" if left else right or "none"


def _name(operand: Operand) -> str:
    if operand.layout is not None:
        return f"{operand.name}°"
    return {"imm": f"#{operand.name}", "addr": f"[{operand.name}]"}.get(operand.kind, operand.name)


def _type(operand: Operand) -> str:
    count = operand.registers
    return operand.dtype.name + ("" if count == 1 or operand.layout is not None else f"x{count}")


def _joined(names: Sequence[str], types: Sequence[str]) -> str:
    """Group neighbours with the same types."""
    groups: list[tuple[list[str], str]] = []
    for name, kind in zip(names, types):
        if groups and groups[-1][1] == kind:
            groups[-1][0].append(name)
        else:
            groups.append(([name], kind))
    return "; ".join(f"{', '.join(group)}: {kind}" for group, kind in groups)
