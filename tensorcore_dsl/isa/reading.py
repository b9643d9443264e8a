"""Find the instruction of the table for a PTX statement: the inverse of printing it.

A statement is matched against the text of each instruction, with marks in place of operands. So only the
table says how instructions are written.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import cache
from itertools import repeat
from typing import Any

from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.lookup import instructions, modifiers
from tensorcore_dsl.isa.spec import Instruction, Operand

Item = tuple[Any, ...]
Parse = Callable[[str], tuple[Item, ...]]
_MARK = "operand::"  # not a valid PTX name
_MOVES = ("ld", "ldu", "st")  # The table has these only with untyped bits.
_ACCESSES = (*_MOVES, "atom", "red")
_ORDERS, _SCOPES = {"relaxed", "acquire", "release", "acq_rel"}, {"cta", "cluster", "gpu", "sys"}
_SPACES = ("global", "shared", "const", "local", "param")


def find(
    opcode: str, operands: tuple[Item, ...], parse: Parse
) -> tuple[Instruction, list[Item | None]] | None:
    """Return the instruction of a statement, and the items of its results and operands.

    The result is None without a match. An operand that the text does not name is None. `parse` splits
    the operands of a statement's text.
    """
    for instr in candidates(opcode):
        items_by_mark: dict[int, Item] = {}
        pattern = _pattern(instr, parse)
        fits = len(pattern) == len(operands) and all(map(_match, pattern, operands, repeat(items_by_mark)))
        items = [
            _item(items_by_mark[i], o) if i in items_by_mark else None for i, o in enumerate(instr.sides)
        ]
        if fits and all(items[i] is not None for i in items_by_mark):
            return instr, items
    return None


def candidates(opcode: str) -> list[Instruction]:
    """Return the instructions that an opcode may mean, for any operands."""
    known = _by_text(opcode.split(".", 1)[0])
    return [instr for spelling in _spellings(opcode) for instr in known.get(spelling, ())]


def _item(item: Item, operand: Operand) -> Item | None:
    """Return the item for an operand; None for several registers in braces if the operand is one register."""
    if item[0] != "group" or operand.registers > 1 or operand.is_fragment:
        return item
    return item[1] if len(item) == 2 else None


def _spellings(opcode: str) -> list[tuple[str, ...]]:
    """Return the modifiers in all spellings that the table may have."""
    short = opcode.replace(".shared::cta", ".shared")
    texts = [opcode, short, short.replace(".shared.", ".shared::cta.")]
    head, *words = opcode.split(".")
    if head in _MOVES and words and words[-1][0] in "fsu":
        texts += [f"{text.rpartition('.')[0]}.b{words[-1].lstrip('fsu')}" for text in texts]
    if head in ("atom", "red") and not _ORDERS.intersection(words):
        texts += [f"{text}.relaxed" for text in texts]
        texts += [f"{text}.gpu" for text in texts if not _SCOPES.intersection(words)]
    if head == "cp" and "tensor" in words and not {"tile", "im2col"} & {*words}:
        texts += [f"{text}.tile" for text in texts]
    return list(dict.fromkeys(map(modifiers, texts)))


@cache
def _by_text(opcode: str) -> dict[tuple[str, ...], list[Instruction]]:
    """The instructions of an opcode by the modifiers in their text."""
    by_modifiers: dict[tuple[str, ...], list[Instruction]] = {}
    for instr in instructions(opcode):
        by_modifiers.setdefault(modifiers(_text(instr).split(None, 1)[0]), []).append(instr)
    # Try instructions with more fixed operands, such as special registers, first.
    return {key: sorted(some, key=lambda i: -_text(i).count("%")) for key, some in by_modifiers.items()}


@cache
def _text(instr: Instruction) -> str:
    marks = [
        f"[{_MARK}{i}]" if operand.kind == "addr" else f"{_MARK}{i}" for i, operand in enumerate(instr.sides)
    ]
    return instr.text(marks[: len(instr.results)], marks[len(instr.results) :])


@cache
def _pattern(instr: Instruction, parse: Parse) -> tuple[Item, ...]:
    return parse(_text(instr))


def _match(pattern: Any, item: Any, items: dict[int, Item]) -> bool:
    """Return whether an operand matches a pattern. Store the item at each mark in `items`."""
    if pattern[0] == "name" and pattern[1].startswith(_MARK):
        if item[0] not in ("name", "number", "group", "sum"):
            return False
        items[int(pattern[1].removeprefix(_MARK))] = item
        return True
    if pattern[0] == "address" and len(pattern) == 2 and pattern[1][1:] and pattern[1][0] == "name":
        if item[0] != "address" or len(item) != 2:
            return False
        return _match(pattern[1], item[1], items)
    if not isinstance(pattern, tuple) or not isinstance(item, tuple):
        return bool(pattern == item)
    if len(pattern) != len(item) or pattern[0] != item[0]:
        return False
    return all(
        _match(p, o, items) if isinstance(p, tuple) else p == o
        for p, o in zip(pattern[1:], item[1:], strict=True)
    )


def in_space(opcode: str) -> str:
    """The opcode of an access, with the state space in which the emulator keeps the data.

    | space of the opcode | rewritten to |
    | --- | --- |
    | none (generic), in a kernel without generic addresses of shared memory | global |
    | const, local | global |
    | `cvta` of const, local or param | a move: the address stays as it is |
    | any other | the same opcode |
    """
    head, *words = opcode.split(".")
    if head == "cvta" and not {"const", "local", "param"}.isdisjoint(words):
        return f"mov.{words[-1]}"
    if head not in _ACCESSES:
        return opcode
    if not {"const", "local"}.isdisjoint(words):
        return ".".join([head, *("global" if word in ("const", "local") else word for word in words)])
    return with_space(opcode, "global") if _generic(words) else opcode


def with_space(opcode: str, space: str) -> str:
    """An access at generic addresses as one in a state space."""
    head, *words = opcode.split(".")
    named = 1 if head == "mbarrier" else 0  # `init` and others come first
    return ".".join([head, *words[:named], space, *words[named:]])


def _generic(words: list[str]) -> bool:
    return not any(word.split("::")[0] in (*_SPACES, "async") for word in words)


class Rewrite(Enum):
    """Statements that PTX has and the table has in other words.

    The first five are at generic addresses.
    """

    ACCESS = auto()  # a load, store or atomic
    MBARRIER_ADDRESS = auto()  # an operation of an mbarrier
    PREFETCH = auto()
    MAPA = auto()  # the address of the same offset in another CTA
    CTA_RANK = auto()  # the rank of the CTA whose shared memory holds an address
    ISSPACEP = auto()
    MBARRIER_STATE = auto()  # an arrival that returns a state, or a wait for one
    TIMED_WAIT = auto()  # a wait for an mbarrier with a time limit
    SET_TO_NUMBER = auto()  # a comparison whose result is a number
    APPROX_F64 = auto()  # rcp.approx and rsqrt.approx of f64
    BREAKPOINT = auto()


_WAIT_OPERANDS = 3  # a predicate, an address, a phase; after them how long to suspend the thread
_BY_OPCODE = {"isspacep": Rewrite.ISSPACEP, "set": Rewrite.SET_TO_NUMBER, "brkpt": Rewrite.BREAKPOINT}
_AT_GENERIC_ADDRESSES = {
    **dict.fromkeys(_ACCESSES, Rewrite.ACCESS),
    "prefetch": Rewrite.PREFETCH,
    "prefetchu": Rewrite.PREFETCH,
    "mbarrier": Rewrite.MBARRIER_ADDRESS,
    "mapa": Rewrite.MAPA,
    "getctarank": Rewrite.CTA_RANK,
}


def rewrite_kind(opcode: str, operands: tuple[Item, ...]) -> Rewrite | None:
    """How to rewrite a statement into instructions of the table; None if it stays."""
    head, *words = opcode.split(".")
    if head == "mbarrier" and not _generic(words):
        if "wait" in words[0] and len(operands) > _WAIT_OPERANDS:
            return Rewrite.TIMED_WAIT
        return Rewrite.MBARRIER_STATE if _uses_state(words, operands) else None
    if head in ("rcp", "rsqrt") and words[0] == "approx" and words[-1] == "f64":
        return Rewrite.APPROX_F64
    if head in _BY_OPCODE:
        return _BY_OPCODE[head]
    return _AT_GENERIC_ADDRESSES.get(head) if _generic(words) else None


def comparison(opcode: str) -> tuple[str, str]:
    """A comparison whose result is a number as one with a predicate; the type of the number."""
    _, relation, *words = opcode.split(".")
    return ".".join(["setp", relation, *words[:-2], words[-1]]), words[-2]


def _uses_state(words: list[str], operands: tuple[Item, ...]) -> bool:
    """True if it is an arrival at an mbarrier of the CTA that gives a state, or a wait for one."""
    if "shared::cluster" in words or "parity" in words:
        return False
    return "wait" in words[0] or (words[0].startswith("arrive") and operands[0] != ("name", "_"))


def waits(opcode: str) -> bool:
    """True if it waits for an mbarrier."""
    return "wait" in opcode


def with_parity(opcode: str) -> str:
    """A wait for a state as one for a parity."""
    head, what, *words = opcode.split(".")
    return ".".join([head, what, "parity", *words])


def makes_generic(opcode: str) -> bool:
    """True if it makes a generic address of one in shared memory."""
    words = opcode.split(".")
    return words[0] == "cvta" and words[1].startswith("shared")


def extends_sign(opcode: str) -> bool:
    """True if a load fills the upper bits of a wider register with the sign."""
    words = opcode.split(".")
    return words[0] in _MOVES and words[-1][0] == "s"


def accesses_parameter(opcode: str) -> bool:
    """True if it loads or stores a parameter of the kernel, or of a function."""
    head, *words = opcode.split(".")
    return head in _MOVES and "param" in [word.split("::")[0] for word in words]


def of_parameter(opcode: str) -> bool:
    """True if it makes a generic address of one in the space of parameters."""
    return opcode.startswith("cvta.param")


def loads_parameter(opcode: str) -> bool:
    """True if it loads a parameter of the kernel, or of a function."""
    return accesses_parameter(opcode) and opcode.startswith("ld")


def in_local_memory(opcode: str) -> str:
    """The access of a parameter as one of local memory."""
    return ".".join("local" if word.split("::")[0] == "param" else word for word in opcode.split("."))


def accumulates(opcode: str) -> bool:
    """True if it may be an asynchronous matrix product, whose text names its accumulators once."""
    return _accumulates(opcode.split(".", 1)[0])


@cache
def _accumulates(head: str) -> bool:
    return any(Effect.INPLACE in instr.effects for instr in instructions(head))
