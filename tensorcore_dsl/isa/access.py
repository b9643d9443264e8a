"""Memory accesses of instructions: spaces, bytes, order, scope and completion.

The rows of loads, stores, atomics, copies and mbarriers declare it as text (`Access`). The checks
of bounds, the race detector and the passes ask it of the row, never of the mnemonic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from math import prod
from operator import or_
from typing import Any

from tensorcore_dsl.isa.effects import PURE, Effect

GENERIC = "generic"  # an address in any space
SPACES = ("global", "shared", "shared::cta", "shared::cluster", GENERIC)
ORDERS = ("volatile", "relaxed", "acquire", "release", "acq_rel", "sc")
SCOPES = ("cta", "cluster", "gpu", "sys")
COMPLETIONS = ("async_group", "bulk_group", "mbarrier")
VERBS = {
    "load": Effect.LOAD,
    "store": Effect.STORE,
    "update": Effect.LOAD | Effect.STORE,
    "sync": PURE,
    "hint": PURE,
}
_SCALAR_TYPE = re.compile(r"[a-z]+(\d+)(?:x(\d))?")


@dataclass(frozen=True)
class Access:
    """Access of each thread at one address, as the row declares it.

    A row writes it as text, "store p shared::cluster 4*b32 release cta", with the axes of the row
    in braces; the accesses of several addresses stand between semicolons.

    Attributes
    ----------
    verb : str
        "load", "store", "update" (reads, changes and writes), "sync" (uses an mbarrier), or "hint"
        (no access: a prefetch).
    operand : str
        The operand that holds the address, or the tensor map of a box.
    space : str
        The state space: global, shared, shared::cta, shared::cluster, or generic.
    count, scalar : int or str, int
        `count` scalars of `scalar` bytes each, from the address on. The parts of a vector and of a
        packed type are scalars. A `count` of str is the operand that holds the bytes, "box" for a
        box of a tensor map, or "lines" for the lines of a matrix (`Instruction.lines`).
    lanes : int
        The lanes of a warp whose addresses are used.
    unless : str
        A predicate operand: threads in which it holds do not access this address. "" for none.
    order : str
        The order of the memory consistency model, "" for a weak access.
    scope : str
        cta, cluster, gpu or sys; "" for a weak access.
    completion : str
        What completes an asynchronous access: "async_group", "bulk_group" or "mbarrier". "" where
        the access is performed with the instruction.
    """

    verb: str
    operand: str
    space: str
    count: int | str
    scalar: int = 1
    lanes: int = 32
    unless: str = ""
    order: str = ""
    scope: str = ""
    completion: str = ""

    @property
    def moves(self) -> bool:
        """True if it reads or writes memory."""
        return bool(VERBS[self.verb])

    @property
    def writes(self) -> bool:
        """True if it writes memory."""
        return Effect.STORE in VERBS[self.verb]

    @property
    def bulk(self) -> bool:
        """True if the copy engine performs it, on one contiguous run of bytes."""
        return self.completion in ("bulk_group", "mbarrier")

    @property
    def bytes(self) -> int | str:
        """Bytes from the address on, or the name of the operand that holds them, "box" or "lines"."""
        return self.count * self.scalar if isinstance(self.count, int) else self.count

    @property
    def effects(self) -> Effect:
        """Effects of the access on its instruction."""
        ordered = self.order or self.completion or self.verb in ("sync", "hint")
        return VERBS[self.verb] | (Effect.VOLATILE if ordered else PURE)


@cache
def parse_accesses(text: str) -> tuple[Access, ...]:
    """Parse the accesses of an instruction from its row's text, with the axes filled in."""
    return tuple(_parse_access(part.split()) for part in text.split(";") if part.strip())


def _parse_access(words: Sequence[str]) -> Access:
    verb, operand, space, size, *qualifiers = words
    assert verb in VERBS and space in SPACES, f"bad access {words}"
    number, _, kind = size.partition("*")
    bits, packed = _SCALAR_TYPE.fullmatch(kind or "b8").groups()  # type: ignore[union-attr]
    count = int(number) * (int(packed or 1)) if number.isdigit() else number
    named: dict[str, Any] = {"scalar": int(bits) // 8}
    for word in filter(None, ".".join(qualifiers).split(".")):
        name, _, value = word.partition("=")
        kinds = {"order": ORDERS, "scope": SCOPES, "completion": COMPLETIONS}
        kind = next((kind for kind, known in kinds.items() if word in known), name)
        assert kind in ("order", "scope", "completion", "unless", "lanes"), f"bad access {words}"
        named[kind] = _product(value) if kind == "lanes" else value or word
    if named.get("order"):
        named.setdefault("scope", "gpu")
    return Access(verb, operand, space, count, **named)


def effects_of(accesses: Iterable[Access]) -> Effect:
    """Join the effects of an instruction's accesses."""
    return reduce(or_, (access.effects for access in accesses), PURE)


def _product(text: str) -> int:
    return prod(map(int, text.split("*")))
