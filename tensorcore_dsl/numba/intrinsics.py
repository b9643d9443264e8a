"""Instructions of the table as Numba intrinsics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from tensorcore_dsl import isa
from tensorcore_dsl.errors import OperandError, listing
from tensorcore_dsl.isa import names as instruction_names
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.numba import assembly, registers
from tensorcore_dsl.numba.compat import TypingError, literal_intrinsic, types

NEUTRAL = {"scale_a": 1, "scale_b": 1, "trans_a": 0, "trans_b": 0}


def intrinsic(instr: Instruction | str, **immediates: int) -> Any:
    """Make a function for `@cuda.jit` kernels from an instruction or its PTX text.

    It takes the operands of the PTX instruction by position or name, without the destination
    (unless the instruction also reads it, as wgmma does), and returns the destination registers. A
    fragment or a vector is a tuple; see `registers` for the types.

    Parameters
    ----------
    instr : Instruction or str
        `tc.instruction(...)`, or its text.
    **immediates : int
        Immediates by name; else they are constants at each call. Scales and transpositions of wgmma
        are optional.

    Returns
    -------
    function
        For kernels, with the attributes `instruction`, `ptx`, and the operands by name
        (`.a.layout`), for example for `zeros`.

    Raises
    ------
    UnknownInstruction
        No such text in the table.
    OperandError
        An immediate that the instruction does not have, or a value that it does not allow;
        registers that Numba does not have.

    Examples
    --------
    >>> from tensorcore_dsl.numba import intrinsic
    >>> intrinsic("add.rn.f32").ptx
    'add.rn.f32'
    """
    chosen = isa.instruction(instr) if isinstance(instr, str) else instr
    return _made(chosen, tuple(sorted(immediates.items())))


@cache
def _made(instr: Instruction, immediates: tuple[tuple[str, int], ...]) -> Any:
    assembly.check_supported(instr)
    for operand in instr.sides:
        registers.slot(operand)
    fixed = _fixed(instr, dict(immediates))
    function = literal_intrinsic(_definition(instr, fixed))
    named = {o.name: o for o in (*instr.operands, *instr.results)}
    vars(function).update(instruction=instr, ptx=instr.ptx, **named)
    return function


def _fixed(instr: Instruction, immediates: Mapping[str, int]) -> dict[str, int]:
    """Return the immediates that calls do not pass: set by the user, defaults, or the only allowed value."""
    known = {o.name: o for o in instr.operands if o.kind == "imm"}
    for name, value in immediates.items():
        if name not in known:
            raise OperandError(f"{instr} has no immediate {name!r}; it has {listing(known) or 'none'}")
        _check_value(instr, known[name], value, OperandError)
    only = {n: o.values[0] for n, o in known.items() if o.values and len(o.values) == 1}
    neutral = {n: v for n, v in NEUTRAL.items() if n in known}
    return {**only, **neutral, **immediates}


def _check_value(instr: Instruction, operand: Operand, value: Any, error: type[Exception]) -> None:
    if not isinstance(value, int) or (operand.values and value not in operand.values):
        choices = listing(operand.values) if operand.values else "an integer"
        raise error(f"{instr}: {operand.name} is {value!r}; allowed is {choices}")


def _definition(instr: Instruction, fixed: Mapping[str, int]) -> Callable[..., Any]:
    """Return the function that Numba calls to type a call of `instr` and to generate its code."""
    called = [o for o in instr.operands if o.name not in fixed]

    def define(typingctx: Any, *positional: Any, **named: Any) -> Any:
        arguments = _bound(instr, called, positional, named)
        constants = dict(fixed)
        for operand in called:
            if operand.kind == "imm":
                constants[operand.name] = _literal(instr, operand, arguments[operand.name])
            else:
                registers.check(instr.ptx, operand, arguments[operand.name])
        signature = _result(instr)(*arguments.values())
        return signature, _generator(instr, called, constants)

    parameter = inspect.Parameter
    names = ["typingctx", *(o.name for o in called)]
    define.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter(n, parameter.POSITIONAL_OR_KEYWORD) for n in names]
    )
    define.__name__ = instr.mnemonic
    takes = instr.signature or "no operands"
    define.__doc__ = f"`{instr.ptx}`: {takes} (section {instr.section} of the PTX manual)."
    return define


def _bound(
    instr: Instruction, called: list[Operand], positional: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Bind argument types to the names of operands."""
    names = [o.name for o in called]
    arguments = {**dict(zip(names, positional, strict=False)), **named}
    if len(positional) + len(named) != len(names) or set(arguments) != set(names):
        count = f"{len(positional)} arguments" + "".join(f", {n}=" for n in named)
        raise TypingError(f"{instr.ptx} takes ({', '.join(names)}); {count} were given")
    return {name: arguments[name] for name in names}


def _literal(instr: Instruction, operand: Operand, kind: Any) -> int:
    """Return the value of an immediate that a call passes."""
    if not isinstance(kind, types.IntegerLiteral):
        raise TypingError(
            f"{instr.ptx}: {operand.name} is {kind}; it stands in the instruction, so it must be "
            f"a constant: {listing(operand.values) if operand.values else 'an integer'}"
        )
    _check_value(instr, operand, kind.literal_value, TypingError)
    return int(kind.literal_value)


def _result(instr: Instruction) -> Any:
    kinds = [registers.numba_type(o) for o in instr.results]
    if not kinds:
        return types.void
    return kinds[0] if len(kinds) == 1 else types.Tuple(kinds)


def _generator(instr: Instruction, called: list[Operand], constants: Mapping[str, int]) -> Callable[..., Any]:
    code = assembly.assembly(instr, constants)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        assembly.check_arch(instr)
        inputs: list[Any] = []
        for operand, kind, value in zip(called, signature.args, arguments, strict=True):
            if operand.kind != "imm":
                inputs += registers.registers(context, builder, operand, kind, value)
        outputs = code.emit(builder, inputs)
        return _returned(context, builder, instr, signature.return_type, outputs)

    return generate


def _returned(context: Any, builder: Any, instr: Instruction, kind: Any, outputs: list[Any]) -> Any:
    values = []
    for operand in instr.results:
        registers_of_operand, outputs = outputs[: operand.registers], outputs[operand.registers :]
        values.append(registers.result(context, builder, operand, registers_of_operand))
    if not values:
        return context.get_dummy_value()
    return values[0] if len(values) == 1 else context.make_tuple(builder, kind, values)


class Intrinsics:
    """A namespace of the table whose instructions are intrinsics: `mma.m16n8k16(bf16, bf16, f32)`.

    Options are those of the table; immediates may be given by name: `mma.sp.m16n8k32(f16, f16, f32,
    f=0)`.
    """

    def __init__(self, instructions: Any, opcode: str) -> None:
        self._instructions, self._opcode = instructions, opcode

    def __getattr__(self, name: str) -> Intrinsics:
        if name.startswith("_"):
            raise AttributeError(name)
        return Intrinsics(getattr(self._instructions, name), self._opcode)

    def __dir__(self) -> Iterable[str]:
        return dir(self._instructions)

    def __call__(self, *element_types: Any, **options: Any) -> Any:
        known = _immediates(self._opcode)
        fixed = {name: options.pop(name) for name in list(options) if name in known}
        return intrinsic(self._instructions(*element_types, **options), **fixed)

    def __repr__(self) -> str:
        return f"<intrinsics of {self._instructions!r}>"


@cache
def _immediates(opcode: str) -> frozenset[str]:
    """Return the names of all immediates of an opcode."""
    operands = (o for instr in isa.instructions(opcode) for o in instr.operands)
    return frozenset(o.name for o in operands if o.kind == "imm")


mma = Intrinsics(isa.mma, instruction_names.MMA)
wgmma = Intrinsics(isa.wgmma, instruction_names.WGMMA)
wmma = Intrinsics(isa.wmma, instruction_names.WMMA)
