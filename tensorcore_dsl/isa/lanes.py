"""Instructions of single threads as elementary operations, which compiled loops execute.

Only the commonest instructions are here; each of these has the same results as its `execute`. What
an operation computes is in `numerics/lanes.py`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from tensorcore_dsl.dtypes import named
from tensorcore_dsl.isa import bounds, bulk, convert, matrix, memory, semantics, special, warp
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, FARTHEST
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.spec import Instruction


class Elementary(NamedTuple):
    """An operation on words of `bits` bits: the numbers of its operands, and that of its result.

    result: -1 for none. function: of the function unit, for the operation "unit". literals: the
    numbers of operands that are immediate. constants: what the operation takes behind these.
    """

    name: str
    bits: int
    operands: tuple[int, ...]
    result: int = 0
    function: str = ""
    literals: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()


class Access(NamedTuple):
    """A load or a store of `words` of `width` bytes each; `kind` is one of the constants below."""

    kind: int
    width: int
    words: int = 1

    @property
    def traffic(self) -> tuple[tuple[str, str], ...]:
        """The spaces that it accesses, each with "load" or "store"."""
        return _TRAFFIC[self.kind]


LOAD_GLOBAL, STORE_GLOBAL, LOAD_SHARED, STORE_SHARED, LOAD_MATRICES, LOAD_TRANSPOSED, COPY = range(7)
_TRAFFIC = {
    LOAD_GLOBAL: (("global", "load"),),
    STORE_GLOBAL: (("global", "store"),),
    LOAD_SHARED: (("shared", "load"),),
    STORE_SHARED: (("shared", "store"),),
    LOAD_MATRICES: (("shared", "load"),),
    LOAD_TRANSPOSED: (("shared", "load"),),
    COPY: (("global", "load"), ("shared", "store")),
}

Operations = tuple[Elementary, ...]
ADD = "add"
ALL_LANES = 0xFFFFFFFF  # the mask with which instructions of warps have operations

_INTEGER = {"add": 2, "sub": 2, "mul.lo": 2, "mad.lo": 3, "and": 2, "or": 2, "xor": 2, "not": 1}
_BY_SIGN = {"min": 2, "max": 2, "shr": 2, "mul.wide": 2, "mad.wide": 3}
_FLOAT = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "neg": 1, "abs": 1, "min": 2, "max": 2, "div": 2, "sqrt": 1}
_MODIFIERS = ("sat", "relu", "ftz", "satfinite", "nan", "oob", "x", "cls", "u")


@cache
def operations(instr: Instruction) -> Operations:
    """The operations that give the results of an instruction; none where that is not known."""
    rule = _RULES.get(instr.execute)
    if rule is None or any(instr.params.get(name) for name in _MODIFIERS):
        return ()
    return rule(instr)


def access(instr: Instruction) -> Access | None:
    """The access that an instruction is, if it is a weak one of global or the CTA's own memory.

    Operands are an address and, of a store, a value; of a copy two addresses and the bytes that are
    read of it.
    """
    p, execute, operands = instr.params, instr.execute, len(instr.operands)
    if instr.space not in ("global", "shared"):
        return None
    if execute is matrix.load and instr.results[0].registers == 4 and p["t"] == "b16":
        return Access(LOAD_TRANSPOSED if p.get("trans") else LOAD_MATRICES, 16)
    if execute is memory.copy_async and (operands == 3 or p.get("kind") == ".zfill"):
        return Access(COPY, 16) if instr.operands[-1].name != "policy" else None
    plain = Effect.VOLATILE not in instr.effects
    loads = execute is memory.load and operands == 1 and plain
    stores = execute is memory.store and operands == 2 and plain
    if not (loads or stores) or p["t"] == "b8":
        return None
    kind = (LOAD_GLOBAL if instr.space == "global" else LOAD_SHARED) + stores
    return Access(kind, int(p["t"][1:]) // 8, int(p["n"]))


def special_register(instr: Instruction) -> str:
    """The special register that an instruction moves, "" for others."""
    return str(instr.params["s"]) if instr.execute is special.read else ""


def _integer(instr: Instruction) -> Operations:
    p = instr.params
    kind = p["t"]
    op = f"{instr.opcode}.{p['m'].lstrip('.')}" if p.get("m") else instr.opcode
    if kind[1:] not in ("16", "32", "64"):
        return ()
    bits, sign = int(kind[1:]), "s" if kind[0] == "s" else "u"
    if op == "shl":
        return (Elementary("shl", bits, (0, 1)),)
    if op == "neg":
        return (Elementary("neg", bits, (0,)),)
    if op == "bfe" and kind == "u32":
        return (Elementary("field", bits, (0, 1, 2)),)
    if op in _INTEGER:
        return (Elementary(op, bits, tuple(range(_INTEGER[op]))),)
    if op in _BY_SIGN and not (bits == 64 and "wide" in op):
        return (Elementary(f"{op}.{sign}", bits, tuple(range(_BY_SIGN[op]))),)
    return ()


def _boolean(instr: Instruction) -> Operations:
    name = "flip" if instr.opcode == "not" else instr.opcode
    return (Elementary(name, 8, tuple(range(len(instr.operands)))),)


def _floating(instr: Instruction) -> Operations:
    p = instr.params
    if p["t"] == "f32" and p.get("rnd") == ".approx" and len(instr.operands) == 1:
        return (Elementary("unit", 32, (0,), function=instr.opcode),)
    count = _FLOAT.get(instr.opcode)
    if p["t"] != "f32" or count is None or p.get("rnd", "") not in ("", ".rn"):
        return ()
    return (Elementary(f"{instr.opcode}.f", 32, tuple(range(count))),)


# Comparison -> the same of swapped operands, for those that need it.
_SWAPPED = {"gt": "lt", "ge": "le", "gtu": "ltu", "geu": "leu"}
_ALIKE = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def _compare(instr: Instruction) -> Operations:
    p = instr.params
    kind, test = p["t"], _ALIKE.get(p["cmp"], p["cmp"])
    if "bool" in p or len(instr.results) != 1 or named(kind).bits < 16:
        return ()
    if kind[0] == "f" and kind != "f32":
        return ()
    if kind[0] not in "fsub" or kind == "bf16":
        return ()
    operands = (1, 0) if test in _SWAPPED else (0, 1)
    test = _SWAPPED.get(test, test)
    sign = kind[0] if kind[0] in "fs" else "u"
    if test in ("eq", "ne") and sign == "s":
        sign = "u"
    return (Elementary(f"{test}.{sign}", int(kind[1:]), operands),)


def _select(instr: Instruction) -> Operations:
    bits = instr.results[0].register_bits
    return () if "by" in instr.params else (Elementary("select", bits, (2, 0, 1)),)


def _copy(instr: Instruction) -> Operations:
    return (Elementary("copy", max(instr.results[0].register_bits, 8), (0,)),)


def _pack(instr: Instruction) -> Operations:
    bits = instr.results[0].register_bits
    return (Elementary("join", bits, (0, 1)),) if len(instr.operands) == 2 else ()


def _unpack(instr: Instruction) -> Operations:
    if len(instr.results) != 2:
        return ()
    bits = instr.operands[0].register_bits
    return Elementary("low half", bits, (0,)), Elementary("high half", bits, (0,), 1)


def _convert(instr: Instruction) -> Operations:
    p = instr.params
    source, target = p["a"], p["d"]
    name, nearest = _FLOAT_CONVERSIONS.get((source, target)), p.get("rnd", "") in ("", ".rn")
    if name is not None and nearest:
        return (Elementary(name, instr.operands[0].register_bits, (0,)),)
    if source in ("s8", "u8") and target[1:] in ("16", "32") and target[0] in "su":
        return (Elementary(f"byte to {target[1:]}.{source[0]}", 16, (0,)),)
    widths = [kind[1:] for kind in (source, target) if kind[0] in "su"]
    if len(widths) < 2 or not set(widths) <= {"16", "32", "64"}:
        return ()
    before, after = map(int, widths)
    if before >= after:
        return (Elementary(f"cut to {after}", before, (0,)),)
    return (Elementary(f"extend to {after}.{source[0]}", before, (0,)),)


_FLOAT_CONVERSIONS = {
    ("f32", "f16"): "to f16",
    ("f32", "bf16"): "to bf16",
    ("f16", "f32"): "f16 to f32",
    ("bf16", "f32"): "bf16 to f32",
    ("s32", "f32"): "s32 to f32",
    ("u32", "f32"): "u32 to f32",
}


def _convert_pair(instr: Instruction) -> Operations:
    p = instr.params
    if p["d"] not in ("f16x2", "bf16x2") or p.get("rnd") != ".rn" or len(instr.operands) != 2:
        return ()
    return (Elementary(f"to {p['d']}", 32, (0, 1)),)


def _check(instr: Instruction) -> Operations:
    bits = instr.operands[1].register_bits
    return (Elementary("check", bits, (1, 2), result=-1, literals=(3,)),)


def _shuffle(instr: Instruction) -> Operations:
    name, operands = f"shfl.{instr.params['mode']}", (0, 1, 2)
    moved = Elementary(name, 32, operands)
    return (moved, Elementary(f"{name}.inside", 32, operands, 1)) if instr.results[1:] else (moved,)


def _vote(instr: Instruction) -> Operations:
    return (Elementary(f"vote.{instr.params['mode']}", 32, (0,)),)


def _reduce(instr: Instruction) -> Operations:
    op, kind = instr.params["op"], instr.params["t"]
    if kind == "f32":
        return ()
    sign = kind[0] if op in ("min", "max") else ""
    return (Elementary(f"redux.{sign}{op}", 32, (0,)),)


def _map_address(instr: Instruction) -> Operations:
    return (Elementary("map address", 32, (0, 1), constants=(CLUSTER_SHIFT, FARTHEST)),)


_RULES = {
    semantics.integer: _integer, semantics.boolean: _boolean, semantics.floating: _floating,
    semantics.compare: _compare, semantics.select: _select, semantics.copy: _copy,
    semantics.pack: _pack, semantics.unpack: _unpack, convert.single: _convert, convert.pair: _convert_pair,
    bounds.execute: _check, warp.shuffle: _shuffle, warp.vote: _vote, warp.reduce: _reduce,
    bulk.map_address: _map_address,
}  # fmt: skip
