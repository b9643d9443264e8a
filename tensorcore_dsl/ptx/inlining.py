"""Inline the device functions that a PTX kernel calls.

A function parameter becomes registers if its accesses never overlap partly. Otherwise it becomes
a variable in local memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import NoReturn

from tensorcore_dsl import dtypes
from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import UnsupportedSyntax
from tensorcore_dsl.isa import names, reading
from tensorcore_dsl.ptx.syntax import (
    Function,
    Item,
    Label,
    Statement,
    Text,
    Variable,
    operands_checked,
    with_names,
)

BRANCH, RETURN, CALL = "bra", "ret", "call"
SYSTEM_CALLS = ("vprintf", "__assertfail")


def inlined(kernel: Function, text: Text) -> Function:
    """Return the kernel with every called function inlined."""
    calls = (isinstance(s, Statement) and head(s) == CALL for s in kernel.body)
    if not any(calls) and not any(v.space == "param" for v in kernel.variables):
        return kernel
    inliner = _Inliner(kernel, text)
    inliner.append(kernel, {}, (kernel.name,), "")
    return _without_parameters(inliner.kernel)


def head(s: Statement) -> str:
    """Return the opcode without its modifiers."""
    return s.opcode.split(".", 1)[0]


def jump(target: str, s: Statement, guard: tuple[str, bool] | None) -> Statement:
    """Return a branch to `target` at the source line of `s`."""
    return Statement(BRANCH, (("name", target),), guard, s.loc)


def negated(guard: tuple[str, bool]) -> tuple[str, bool]:
    return guard[0], not guard[1]


class _Inliner(EagerDict):
    def __init__(self, kernel: Function, text: Text) -> None:
        self.text = text
        self.numbers = count()
        self.kernel = replace(
            kernel, registers=dict(kernel.registers), variables=list(kernel.variables), body=[]
        )

    def refuse(self, s: Statement, text: str) -> NoReturn:
        raise UnsupportedSyntax(f"{s.opcode}: {text}", s.loc)

    def append(
        self, function: Function, new_names: dict[str, str], active: tuple[str, ...], end: str
    ) -> None:
        """Append a function's body under new names.

        `active` holds the functions that are being inlined. `end` is the label that replaces `ret`.
        """
        for node in function.body:
            copy = with_names(node, new_names)
            if isinstance(copy, Statement) and head(copy) == CALL:
                with operands_checked(copy):
                    self.call(copy, active)
            elif isinstance(copy, Statement) and head(copy) == RETURN and end:
                self.kernel.body.append(jump(end, copy, copy.guard))
            else:
                self.kernel.body.append(copy)

    def call(self, s: Statement, active: tuple[str, ...]) -> None:
        operands = list(s.operands)
        results: tuple[Item, ...] = operands.pop(0)[1:] if operands[0][0] == "list" else ()
        name = operands.pop(0)[1]
        arguments: tuple[Item, ...] = operands.pop(0)[1:] if operands and operands[0][0] == "list" else ()
        if name in self.kernel.registers:
            self.call_pointer(s, name, results, arguments, active)
            return
        function = self.text.functions.get(name)
        if function is None:
            self.refuse(s, f"{name} is not a function of the file")
        if name in active:
            self.refuse(s, f"{name} calls itself; recursion is not supported, write a loop")
        number = next(self.numbers)
        if s.guard is not None:
            self.kernel.body.append(jump(f"{number} behind", s, negated(s.guard)))
        if not function.declared:
            self.insert(s, function, results, arguments, active, number)
        elif name in SYSTEM_CALLS:
            self.kernel.body.append(Statement(f"{CALL}.{name}", (*results, *arguments), None, s.loc))
        else:
            self.refuse(s, f"{name} has no body in this file, and is not a function of the system")
        self.kernel.body.append(Label(f"{number} behind", s.loc))

    def call_pointer(
        self,
        s: Statement,
        pointer: str,
        results: tuple[Item, ...],
        arguments: tuple[Item, ...],
        active: tuple[str, ...],
    ) -> None:
        """Append a call through a pointer: compare it with each function whose address is taken."""
        number = next(self.numbers)
        behind = f"{number} behind pointer"
        if s.guard is not None:
            self.kernel.body.append(jump(behind, s, negated(s.guard)))
        for name in self.pointed_at:
            function = self.text.functions[name]
            if (
                name in active
                or len(function.params) != len(arguments)
                or len(function.results) != len(results)
            ):
                continue
            inverse = f"{number} not {name}"
            self.kernel.registers[inverse] = "pred"
            operands = ("name", inverse), ("name", pointer), ("number", str(self.text.address_of(name)))
            self.kernel.body.append(Statement(names.compare("ne", dtypes.u64), operands, None, s.loc))
            self.kernel.body.append(jump(inverse, s, (inverse, False)))
            self.call(
                replace(s, guard=None, operands=(("list", *results), ("name", name), ("list", *arguments))),
                active,
            )
            self.kernel.body += [jump(behind, s, None), Label(inverse, s.loc)]
        self.kernel.body += [Statement(names.TRAP, (), None, s.loc), Label(behind, s.loc)]

    @cached_property
    def pointed_at(self) -> list[str]:
        """The functions whose addresses code or the initial values of variables hold."""
        functions = self.text.functions
        statements = [s for f in (*functions.values(), *self.text.kernels) for s in f.body]
        holders = [s.operands for s in statements if isinstance(s, Statement) and head(s) != CALL]
        held = {
            name for item in (*holders, *(v.initial for v in self.text.variables)) for name in _names(item)
        }
        return [name for name, function in functions.items() if name in held and not function.declared]

    def insert(
        self,
        s: Statement,
        function: Function,
        results: tuple[Item, ...],
        arguments: tuple[Item, ...],
        active: tuple[str, ...],
        number: int,
    ) -> None:
        """Append a function's body in place of the call `s`, with moves for arguments and results."""
        new_names = {name: f"{name}@{number}" for name in function.registers}
        new_names |= {node.name: f"{node.name}@{number}" for node in function.body if isinstance(node, Label)}
        for variable in function.variables:
            name = f"{function.name}.{variable.name}"  # All calls share a shared or global variable.
            if variable.space in ("local", "param"):
                name = f"{variable.name}@{number}"
            new_names[variable.name] = name
            if all(known.name != name for known in self.kernel.variables):
                self.kernel.variables.append(replace(variable, name=name))
        self.kernel.registers |= {new_names[name]: kind for name, kind in function.registers.items()}
        behind: list[Statement | Label] = []
        for formals, actuals, back in (
            (function.params, arguments, False),
            (function.results, results, True),
        ):
            if len(formals) != len(actuals):
                what = "results" if back else "parameters"
                self.refuse(s, f"{function.name} has {len(formals)} {what}, and the call {len(actuals)}")
            for formal, actual in zip(formals, actuals, strict=True):
                if formal.space == "param" and actual[0] == "name":
                    new_names[formal.name] = actual[1]
                    continue
                register = new_names[formal.name] = f"{formal.name}@{number}"
                self.kernel.registers[register] = formal.type
                formal_item: Item = ("name", register)
                into = behind if back else self.kernel.body
                operands = (actual, formal_item) if back else (formal_item, actual)
                into.append(Statement(names.move(_bits(formal.type)), operands, None, s.loc))
        end = f"{number} end"
        self.append(function, new_names, (*active, function.name), end)
        self.kernel.body += [Label(end, s.loc), *behind]


def _bits(kind: str) -> str:
    return kind if kind == "pred" else f"b{dtypes.named(kind).bits}"


# -- parameters of functions -------------------------------------------------------------------------


def _without_parameters(function: Function) -> Function:
    """Replace function parameters by registers or by local memory."""
    parameters = {v.name: v for v in function.variables if v.space == "param"}
    accesses: dict[str, set[tuple[int, int]]] = {name: set() for name in parameters}
    in_memory = set[str]()
    for s in function.body:
        if not isinstance(s, Statement):
            continue
        name, elements = _parameter(s, parameters)
        if name:
            accesses[name] |= {(offset, bits) for offset, bits, _ in elements}
        elif head(s) != CALL:
            in_memory |= parameters.keys() & set(_names(s.operands))
    in_memory |= {name for name, some in accesses.items() if _overlap(some)}
    registers = dict(function.registers)
    body: list[Statement | Label] = []
    for s in function.body:
        if isinstance(s, Label):
            body.append(s)
            continue
        name, elements = _parameter(s, parameters)
        if name and name not in in_memory:
            for offset, bits, item in elements:
                register = f"{name}+{offset}"
                registers[register] = f"b{bits}"
                operands = (
                    (item, ("name", register))
                    if reading.loads_parameter(s.opcode)
                    else (("name", register), item)
                )
                body.append(replace(s, opcode=names.move(f"b{bits}"), operands=operands))
        elif name:
            body.append(replace(s, opcode=reading.in_local_memory(s.opcode)))
        elif head(s) == CALL:  # of the system
            register_names = {parameter: f"{parameter}+0" for parameter in parameters}
            registers.update(
                {
                    f"{parameter}+0": f"b{v.size * 8}"
                    for parameter, v in parameters.items()
                    if parameter in _names(s.operands)
                }
            )
            body.append(with_names(s, register_names))
        else:
            body.append(s)
    variables = [
        replace(v, space="local") if v.name in in_memory else v
        for v in function.variables
        if v.space != "param" or v.name in in_memory
    ]
    return replace(function, registers=registers, variables=variables, body=body)


def _parameter(s: Statement, parameters: dict[str, Variable]) -> tuple[str, list[tuple[int, int, Item]]]:
    """Return the function parameter that a statement accesses, and (offset, bits, operand) of each element.

    The name is "" if the statement accesses none of `parameters`.
    """
    if not reading.accesses_parameter(s.opcode):
        return "", []
    loads = reading.loads_parameter(s.opcode)
    address, value = s.operands[::-1] if loads else s.operands
    target = address[1]
    base, first = (target[1], int(target[2])) if target[0] == "sum" else (target, 0)
    if base[1] not in parameters:
        return "", []
    bits = dtypes.named(s.opcode.rpartition(".")[2]).bits
    items = value[1:] if value[0] == "group" else (value,)
    return base[1], [(first + i * bits // 8, bits, item) for i, item in enumerate(items)]


def _overlap(accesses: set[tuple[int, int]]) -> bool:
    """Return whether two accesses overlap partly, or one is too narrow for a register."""
    ends = 0
    for offset, bits in sorted(accesses):
        if offset < ends or bits < dtypes.named("b16").bits:
            return True
        ends = offset + bits // 8
    return False


def _names(item: Item) -> Iterator[str]:
    """Yield all names in an operand's tree."""
    if item and item[0] == "name":
        yield item[1]
    else:
        for child in item:
            if isinstance(child, tuple):
                yield from _names(child)
