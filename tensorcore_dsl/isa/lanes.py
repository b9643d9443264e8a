"""Translate instructions of single threads to elementary operations of compiled loops.

Rules map the commonest instructions to operations of `numerics/lanes.py`, with the results of `execute`.
For other instructions that only use registers, `execute` itself emits the code, called with symbols.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

from llvmlite import ir

from tensorcore_dsl.isa import bounds, matrix, memory, semantics, special, warp
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.numerics import symbols
from tensorcore_dsl.numerics.lanes import OPERATIONS, Operation, vector


class Elementary(NamedTuple):
    """An operation on words of `bits` bits, with the indices of its operands and of its result.

    bits: 0 for an operation that semantics emit. result: -1 for none. function: the name of an operation
    with references to addresses. literals: the values of immediate operands.
    """

    name: str
    bits: int
    operands: tuple[int, ...]
    result: int = 0
    function: str = ""
    literals: tuple[int, ...] = ()


class LaneAccess(NamedTuple):
    """A load or a store of `words` of `width` bytes each; `kind` is one of the constants below."""

    kind: int
    width: int
    words: int = 1

    @property
    def traffic(self) -> tuple[tuple[str, str], ...]:
        """The accessed spaces, each with "load" or "store"."""
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
ALL_LANES = 0xFFFFFFFF  # the mask of a whole warp

_FLOAT = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "neg": 1, "abs": 1, "min": 2, "max": 2, "div": 2, "sqrt": 1}
_MODIFIERS = ("sat", "relu", "ftz", "satfinite", "nan", "oob", "x", "cls", "u")


@cache
def operations(instr: Instruction, immediate: tuple[tuple[int, int], ...] = ()) -> Operations:
    """Return the operations that compute an instruction; empty if there is no translation.

    immediate: (position, value) of its immediate operands.
    """
    rule = _RULES.get(instr.execute)
    if rule is not None and not any(instr.params.get(name) for name in _MODIFIERS):
        translated = rule(instr)
        if translated:
            return translated
    return _traced(instr, dict(immediate))


def operation(name: str, bits: int) -> Operation:
    """Return the elementary operation `name` on words of `bits` bits."""
    return OPERATIONS[name, bits] if bits else _TRACED[name][0]


def references(name: str) -> tuple[int, ...]:
    """Return the addresses that an operation's code takes after its operands."""
    return tuple(map(symbols.address_of, _TRACED[name][1]))


_TRACED: dict[str, tuple[Operation, list[Any]]] = {}  # name: (operation of the semantics, references)


def _traced(instr: Instruction, immediate: dict[int, int]) -> Operations:
    """Return an operation for each result of an instruction that only uses registers."""
    named_ = {i for i, o in enumerate(instr.operands) if o.kind == "imm"}
    registers = [i for i in range(len(instr.operands)) if i not in named_]
    sides = (*instr.results, *(instr.operands[i] for i in registers))
    of_package = instr.execute.__module__.startswith(__package__)  # other semantics may do anything
    if not of_package or instr.effects or named_ != immediate.keys() or any(o.registers != 1 for o in sides):
        return ()
    bits = [max(instr.operands[i].register_bits, 8) for i in registers]

    def execute(context: Any, *inputs: Any) -> Any:
        left = iter(inputs)
        operands = [immediate[i] if i in immediate else next(left) for i in range(len(instr.operands))]
        return instr.execute(context, instr, *operands)

    traced = []
    for i, result in enumerate(instr.results):
        name = f"{instr.mnemonic} {i} {sorted(immediate.items())}"
        function = ir.Function(
            ir.Module(), ir.FunctionType(ir.VoidType(), list(map(vector, bits))), "scratch"
        )
        builder = ir.IRBuilder(function.append_basic_block())
        try:
            _, used = symbols.emit(execute, bits, i, builder, function.args)
        except symbols.Untraceable:
            return ()
        emit = partial(_emit_traced, execute, bits, i)
        _TRACED[name] = Operation(max(result.register_bits, 8), tuple(bits), emit, len(used)), used
        traced.append(Elementary(name, 0, tuple(registers), i, name if used else ""))
    return tuple(traced)


def _emit_traced(execute: Any, bits: list[int], number: int, builder: Any, *inputs: Any) -> Any:
    count = len(bits)
    return symbols.emit(execute, bits, number, builder, inputs[:count], inputs[count:])[0]


def access(instr: Instruction) -> LaneAccess | None:
    """Return the access of a load, store or copy; None if it is not weak, or in another CTA.

    Operands are an address and, for a store, a value. A copy has two addresses and the bytes to read.
    """
    p, execute, operands = instr.params, instr.execute, len(instr.operands)
    if instr.space not in ("global", "shared"):
        return None
    if execute is matrix.load and instr.results[0].registers == 4 and p["t"] == "b16":
        return LaneAccess(LOAD_TRANSPOSED if p.get("trans") else LOAD_MATRICES, 16)
    if execute is memory.copy_async and (operands == 3 or p.get("kind") == ".zfill"):
        return LaneAccess(COPY, 16) if instr.operands[-1].name != "policy" else None
    plain = Effect.VOLATILE not in instr.effects
    loads = execute is memory.load and operands == 1 and plain
    stores = execute is memory.store and operands == 2 and plain
    if not (loads or stores) or p["t"] == "b8":
        return None
    kind = (LOAD_GLOBAL if instr.space == "global" else LOAD_SHARED) + stores
    return LaneAccess(kind, int(p["t"][1:]) // 8, int(p["n"]))


def special_register(instr: Instruction) -> str:
    """The special register that an instruction moves, "" for others."""
    return str(instr.params["s"]) if instr.execute is special.read else ""


def _floating(instr: Instruction) -> Operations:
    p = instr.params
    count = _FLOAT.get(instr.opcode)
    if p["t"] != "f32" or count is None or p.get("rnd", "") not in ("", ".rn"):
        return ()
    return (Elementary(f"{instr.opcode}.f", 32, tuple(range(count))),)


# Comparisons without an operation of their own -> the comparison that equals it with swapped operands.
_SWAPPED = {"gt": "lt", "ge": "le", "gtu": "ltu", "geu": "leu"}


def _compare(instr: Instruction) -> Operations:
    p = instr.params
    if "bool" in p or p["t"] != "f32":
        return ()
    test = _SWAPPED.get(p["cmp"], p["cmp"])
    return (Elementary(f"{test}.f", 32, (1, 0) if p["cmp"] in _SWAPPED else (0, 1)),)


def _copy(instr: Instruction) -> Operations:
    return (Elementary("copy", max(instr.results[0].register_bits, 8), (0,)),)


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


_RULES = {
    semantics.floating: _floating, semantics.compare: _compare, semantics.copy: _copy,
    bounds.execute: _check, warp.shuffle: _shuffle, warp.vote: _vote, warp.reduce: _reduce,
}  # fmt: skip
