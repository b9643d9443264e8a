"""Kernels of PTX without calls: the functions of the file in the places where they are called.

Parameters of functions become registers where all accesses have the same parts, else local memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import NoReturn

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import UnsupportedSyntax
from tensorcore_dsl.isa import names, reading
from tensorcore_dsl.ptx.syntax import Function, Item, Label, Statement, Text, Variable, with_names

BRANCH, RETURN, CALL = "bra", "ret", "call"
SYSTEM_CALLS = ("vprintf", "__assertfail")
_INSTEAD = {
    "malloc": "there is no heap in emulation; pass memory as an argument",
    "free": "there is no heap in emulation; pass memory as an argument",
}


def inlined(kernel: Function, text: Text) -> Function:
    """A kernel with the bodies of the functions that it calls."""
    calls = (isinstance(s, Statement) and head(s) == CALL for s in kernel.body)
    if not any(calls) and not any(v.space == "param" for v in kernel.variables):
        return kernel
    inliner = _Inliner(kernel, text)
    inliner.append(kernel, {}, (kernel.name,), "")
    return _without_parameters(inliner.whole)


def head(s: Statement) -> str:
    """The opcode without modifiers."""
    return s.opcode.split(".", 1)[0]


def jump(target: str, s: Statement, guard: tuple[str, bool] | None) -> Statement:
    """A jump in the place of a statement."""
    return Statement(BRANCH, (("name", target),), guard, s.loc)


def negated(guard: tuple[str, bool]) -> tuple[str, bool]:
    return guard[0], not guard[1]


class _Inliner:
    def __init__(self, kernel: Function, text: Text) -> None:
        self.text = text
        self.numbers = count()
        self.whole = replace(
            kernel, registers=dict(kernel.registers), variables=list(kernel.variables), body=[]
        )

    def refuse(self, s: Statement, text: str) -> NoReturn:
        raise UnsupportedSyntax(f"{s.opcode}: {text}", s.loc)

    def append(self, function: Function, other: dict[str, str], active: tuple[str, ...], end: str) -> None:
        """The body of a function with other names. active: who calls whom; end: where `ret` leads."""
        for node in function.body:
            own = with_names(node, other)
            if isinstance(own, Statement) and head(own) == CALL:
                self.call(own, active)
            elif isinstance(own, Statement) and head(own) == RETURN and end:
                self.whole.body.append(jump(end, own, own.guard))
            else:
                self.whole.body.append(own)

    def call(self, s: Statement, active: tuple[str, ...]) -> None:
        parts = list(s.operands)
        results: tuple[Item, ...] = parts.pop(0)[1:] if parts[0][0] == "list" else ()
        name = parts.pop(0)[1]
        arguments: tuple[Item, ...] = parts.pop(0)[1:] if parts and parts[0][0] == "list" else ()
        function = self.text.functions.get(name)
        if function is None:
            self.refuse(s, f"{name} is no function of the file; calls through pointers are not supported")
        if name in active:
            self.refuse(s, f"{name} calls itself; recursion is not supported, write a loop")
        number = next(self.numbers)
        if s.guard is not None:
            self.whole.body.append(jump(f"{number} behind", s, negated(s.guard)))
        if not function.declared:
            self.insert(s, function, results, arguments, active, number)
        elif name in SYSTEM_CALLS:
            self.whole.body.append(Statement(f"{CALL}.{name}", (*results, *arguments), None, s.loc))
        else:
            reason = _INSTEAD.get(name, f"only {' and '.join(SYSTEM_CALLS)} of the system are there")
            self.refuse(s, f"{name} has no body in this file: {reason}")
        self.whole.body.append(Label(f"{number} behind", s.loc))

    def insert(
        self,
        s: Statement,
        function: Function,
        results: tuple[Item, ...],
        arguments: tuple[Item, ...],
        active: tuple[str, ...],
        number: int,
    ) -> None:
        """The body of a function in the place of a call."""
        other = {name: f"{name}@{number}" for name in function.registers}
        other |= {node.name: f"{node.name}@{number}" for node in function.body if isinstance(node, Label)}
        for variable in function.variables:
            name = f"{function.name}.{variable.name}"  # once for all calls
            if variable.space in ("local", "param"):
                name = f"{variable.name}@{number}"
            other[variable.name] = name
            if all(known.name != name for known in self.whole.variables):
                self.whole.variables.append(replace(variable, name=name))
        self.whole.registers |= {other[name]: kind for name, kind in function.registers.items()}
        behind: list[Statement | Label] = []
        for formals, actuals, back in (
            (function.params, arguments, False),
            (function.results, results, True),
        ):
            if len(formals) != len(actuals):
                self.refuse(s, f"{function.name} has {len(formals)} of these, {len(actuals)} were given")
            for formal, actual in zip(formals, actuals, strict=True):
                if formal.space == "param" and actual[0] == "name":
                    other[formal.name] = actual[1]
                    continue
                register = other[formal.name] = f"{formal.name}@{number}"
                self.whole.registers[register] = formal.type
                own: Item = ("name", register)
                into = behind if back else self.whole.body
                operands = (actual, own) if back else (own, actual)
                into.append(Statement(names.move(_bits(formal.type)), operands, None, s.loc))
        end = f"{number} end"
        self.append(function, other, (*active, function.name), end)
        self.whole.body += [Label(end, s.loc), *behind]


def _bits(kind: str) -> str:
    return kind if kind == "pred" else f"b{dtypes.named(kind).bits}"


# -- parameters of functions -------------------------------------------------------------------------


def _without_parameters(function: Function) -> Function:
    """Parameters of functions as registers, or in local memory."""
    own = {v.name: v for v in function.variables if v.space == "param"}
    parts: dict[str, set[tuple[int, int]]] = {name: set() for name in own}
    in_memory = set[str]()
    for s in function.body:
        if not isinstance(s, Statement):
            continue
        name, elements = _parameter(s, own)
        if name:
            parts[name] |= {(offset, bits) for offset, bits, _ in elements}
        elif head(s) != CALL:
            in_memory |= own.keys() & set(_names(s.operands))
    in_memory |= {name for name, some in parts.items() if _overlap(some)}
    registers = dict(function.registers)
    body: list[Statement | Label] = []
    for s in function.body:
        if isinstance(s, Label):
            body.append(s)
            continue
        name, elements = _parameter(s, own)
        if name and name not in in_memory:
            for offset, bits, item in elements:
                part = f"{name}+{offset}"
                registers[part] = f"b{bits}"
                both = (item, ("name", part)) if reading.loads_parameter(s.opcode) else (("name", part), item)
                body.append(replace(s, opcode=names.move(f"b{bits}"), operands=both))
        elif name:
            body.append(replace(s, opcode=reading.in_local_memory(s.opcode)))
        elif head(s) == CALL:  # of the system
            given = {each: f"{each}+0" for each in own}
            registers.update(
                {f"{each}+0": f"b{v.size * 8}" for each, v in own.items() if each in _names(s.operands)}
            )
            body.append(with_names(s, given))
        else:
            body.append(s)
    kept = [
        replace(v, space="local") if v.name in in_memory else v
        for v in function.variables
        if v.space != "param" or v.name in in_memory
    ]
    return replace(function, registers=registers, variables=kept, body=body)


def _parameter(s: Statement, own: dict[str, Variable]) -> tuple[str, list[tuple[int, int, Item]]]:
    """The parameter of a function that a statement loads or stores: offset, bits and operand of each
    element; "" for any other statement."""
    if not reading.accesses_parameter(s.opcode):
        return "", []
    loads = reading.loads_parameter(s.opcode)
    address, value = s.operands[::-1] if loads else s.operands
    place = address[1]
    base, first = (place[1], int(place[2])) if place[0] == "sum" else (place, 0)
    if base[1] not in own:
        return "", []
    bits = dtypes.named(s.opcode.rpartition(".")[2]).bits
    items = value[1:] if value[0] == "group" else (value,)
    return base[1], [(first + i * bits // 8, bits, item) for i, item in enumerate(items)]


def _overlap(parts: set[tuple[int, int]]) -> bool:
    """Is an element a part of another one, or too narrow for a register?"""
    ends = 0
    for offset, bits in sorted(parts):
        if offset < ends or bits < dtypes.named("b16").bits:
            return True
        ends = offset + bits // 8
    return False


def _names(item: Item) -> Iterator[str]:
    """All names in the tree of an operand."""
    if item and item[0] == "name":
        yield item[1]
    else:
        for part in item:
            if isinstance(part, tuple):
                yield from _names(part)
