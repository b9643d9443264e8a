"""Python values as operands: their types, constants, and descriptions for messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.constants import const_bits
from tensorcore_dsl.ir.nodes import Const, Type, Value
from tensorcore_dsl.ir.verify import agree
from tensorcore_dsl.isa import advice
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.layout import Layout
from tensorcore_dsl.values.values import RuntimeValue, Scalar, Struct

# The largest number of a type, and where rounding to nearest gives infinity.
_LARGEST = {
    "f16": (65504.0, 65520.0),
    "bf16": (float.fromhex("0x1.fep127"), float.fromhex("0x1.ffp127")),
    "f32": (float.fromhex("0x1.fffffep127"), float.fromhex("0x1.ffffffp127")),
    "e4m3": (448.0, 464.0 + 1e-6), "e5m2": (57344.0, 61440.0), "e3m2": (28.0, 30.0),
    "e2m3": (7.5, 7.75), "e2m1": (6.0, 7.0),
}  # fmt: skip
NUMBERS = (bool, int, float, np.generic)


def is_number(value: Any) -> bool:
    """A Python or NumPy number, known at compile time."""
    return isinstance(value, NUMBERS)


def type_of(operand: Operand) -> Type:
    """The IR type of a value for `operand`."""
    layout = operand.layout.name if operand.layout else None
    return Type(operand.dtype, operand.registers, layout)


def element_type(operand: Operand) -> DType:
    """The type of a constant that fills one register of the operand."""
    if operand.layout is not None and operand.dtype.storage_bits < 32:
        return dtypes.b32
    return operand.dtype


def number_type(value: Any) -> DType:
    """The run-time type of a number: s32 (s64, u64 when too wide), f32, pred, NumPy's own."""
    if isinstance(value, (bool, np.bool_)):
        return dtypes.pred
    if isinstance(value, np.generic):
        return dtypes.from_numpy(value.dtype)
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            return dtypes.s32
        if not -(2**63) <= value < 2**64:
            raise OperandError(f"{value} fits in no register: 64 bits are the most")
        return dtypes.s64 if value < 2**63 else dtypes.u64
    if isinstance(value, float):
        return dtypes.f32
    raise OperandError(f"{describe(value)} has no run-time type: numbers and registers have")


def constant(value: Any, dtype: DType) -> Const:
    """`value` as a constant of `dtype`; OperandError when the type cannot hold it."""
    if not is_number(value):
        raise OperandError(f"a number or a value of type {dtype} is needed, not {describe(value)}")
    if dtype.kind == "p":
        return Const(bool(value), dtype)
    if dtype.is_float and dtype.lanes == 1:
        _check_range(float(value), dtype)
        return Const(float(value), dtype)
    return Const(integer(value, dtype), dtype)


def _check_range(value: float, dtype: DType) -> None:
    """OperandError for a finite number that would become an infinity of f16, bf16 or f32."""
    if dtype.name in _LARGEST and math.isfinite(value):
        limit, beyond = _LARGEST[dtype.name]
        if abs(value) >= beyond:
            raise OperandError(f"{value!r} does not fit in {dtype}, whose largest is {limit:g}")


def integer(value: Any, dtype: DType) -> int:
    """`value` as an integer of `dtype`, or as a bit pattern of its size."""
    if isinstance(value, (float, np.floating)) and not float(value).is_integer():
        raise OperandError(f"{value!r} is no {dtype}: convert it explicitly, {dtype}({value!r})")
    number = int(value)
    if not -(1 << (dtype.bits - 1)) <= number < (1 << dtype.bits):
        raise OperandError(f"{number} does not fit in {dtype}")
    return number


def literal(value: Any, dtype: DType) -> Const:
    """A number converted to a constant: floats are cut to integers, pairs hold it twice."""
    if dtype.lanes == 2:
        half = const_bits(constant(value, dtypes.named(dtype.name.removesuffix("x2"))))
        return Const(half << 16 | half, dtype)
    if dtype.is_integer and isinstance(value, float):
        value = int(value)
    return constant(value, dtype)


def check_register(value: Any, layout: Layout) -> None:
    """OperandError if a register of a fragment surely holds something else than its elements.

    Packed registers are pairs of the element type (f16x2), integers or plain bits.
    """
    want = layout.dtype
    packed = want.storage_bits < 32
    if packed and isinstance(value, float) and value:
        raise OperandError(
            f"a register of {layout.name} holds {layout.per_register} {want}: give the "
            f"{layout.slots} elements of a thread, or tc.pack(...), not {value}"
        )
    if not isinstance(value, Scalar) or value.dtype.register_bits != max(32, want.storage_bits):
        return  # another number of bits is refused when the registers are packed
    have = value.dtype
    if packed:
        fits = have.kind == "b" or have.is_integer or have.name == f"{want}x2"
    else:
        fits = agree(have, want)
    if not fits:
        raise OperandError(
            f"a register of {layout.name} holds {f'{layout.per_register} ' if packed else ''}"
            f"{want}, not {describe(value)}"
        )


def describe(value: Any) -> str:
    """A value in words, for messages."""
    if isinstance(value, RuntimeValue):
        return value.described
    if isinstance(value, (bool, int, float, str)) or value is None:
        return repr(value)
    if isinstance(value, DType):
        return f"the type {value}"
    if isinstance(value, (list, tuple, dict)):
        kind = type(value).__name__
        return f"a {kind} of {len(value)} item{'' if len(value) == 1 else 's'}"
    if hasattr(value, "described"):
        return str(value.described)
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def is_simple(value: Any) -> bool:
    """True if it is a run-time scalar or a number, which arithmetic takes."""
    return isinstance(value, (Scalar, *NUMBERS))


def has_runtime(value: Any, depth: int = 4) -> bool:
    """True if a value contains run-time values, at most `depth` containers deep."""
    if isinstance(value, (RuntimeValue, Struct)):
        return True
    if not depth:
        return False
    if isinstance(value, (list, tuple)):
        return any(has_runtime(v, depth - 1) for v in value)
    if isinstance(value, dict):
        return any(has_runtime(v, depth - 1) for v in value.values())
    return hasattr(value, "__dataclass_fields__") and has_runtime(vars(value), depth - 1)


def guard_of(instr: Instruction, options: Mapping[str, Any]) -> Any:
    """The predicate or bool that guards the instruction; True for none."""
    unknown = set(options) - {"pred", "otherwise"}
    if unknown:
        raise OperandError(f"{instr} takes no option {min(unknown)!r}; allowed are pred, otherwise")
    return both(options.get("pred"), True)


def both(pred: Any, other: Any) -> Any:
    """`pred and other`: a predicate or, known at compile time, a bool.

    pred: any condition, or None for one that always holds. other: a predicate or a bool.
    """
    if pred is None:
        return other
    if not isinstance(pred, Scalar):
        return bool(pred) & other
    return (pred if pred.dtype.kind == "p" else pred != 0) & other


def filling(otherwise: Any, result: Operand, instr: Instruction) -> Value | Const:
    """The result of a guarded instruction where its guard fails."""
    if not isinstance(otherwise, RuntimeValue):
        return constant(0 if otherwise is None else otherwise, element_type(result))
    if otherwise.value.type.registers != result.registers or (
        otherwise.value.type.register_bits != type_of(result).register_bits
    ):
        raise OperandError(f"otherwise= of {instr} must be {result.type_name}, not {describe(otherwise)}")
    return otherwise.value


def immediate(value: Any, wanted: Operand, instr: Instruction) -> Const:
    if not isinstance(value, (bool, int, np.integer)):
        raise OperandError(
            f"operand {wanted.name} of {advice.called(instr.mnemonic)} must be a compile-time integer, "
            f"not {describe(value)}"
        )
    if wanted.values is not None and int(value) not in wanted.values:
        allowed = ", ".join(map(str, wanted.values))
        raise OperandError(f"operand {wanted.name} of {instr} may be {allowed}; {value} was given")
    return Const(int(value), wanted.dtype)


def part_source(part: Any, type: Type) -> Value | Const:
    if isinstance(part, Scalar):
        if part.dtype.register_bits != type.register_bits:
            raise OperandError(f"a register of {type} holds {type.register_bits} bits, not {describe(part)}")
        return part.value
    if not is_number(part):
        raise OperandError(f"a register of {type} is needed, not {describe(part)}")
    wide = type.dtype.storage_bits >= 32 or type.layout is None
    return constant(part, type.dtype if wide else dtypes.b32)


def wrong_count(instr: Instruction, passed: int) -> OperandError:
    names = ", ".join(o.name for o in instr.operands)
    count = len(instr.operands)
    return OperandError(
        f"{instr} takes {count} operand{'' if count == 1 else 's'} ({names}), {passed} "
        f"{'was' if passed == 1 else 'were'} given"
    )


def check_descriptors(instr: Instruction, operands: Sequence[Any]) -> None:
    """OperandError for the descriptor of a view that has less than the instruction reads."""
    by_name = {o.name: value for o, value in zip(instr.operands, operands, strict=True)}
    for name in "ab":
        check = getattr(by_name.get(f"desc_{name}"), "check_reader", None)
        if check is not None:
            check(instr, name, by_name.get(f"trans_{name}", 0))
