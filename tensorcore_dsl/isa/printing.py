"""Device-side printing: `vprintf` as an instruction with any operand types, and calls of the system.

`vprintf.s32.f32` takes the index of the kernel's format string and one operand per type. CUDA's
`vprintf` is a device function: its arguments lie in a buffer in local memory, promoted as in C.
`call.vprintf` and `call.__assertfail` are the functions themselves, in kernels that were read from PTX.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import Requires
from tensorcore_dsl.errors import UnknownInstruction
from tensorcore_dsl.isa.effects import VOLATILE, Effect
from tensorcore_dsl.isa.spec import Instruction, Operand

# Operand type -> conversion specifier, and bytes in the buffer.
CONVERSIONS = {"s32": ("%d", 4), "u32": ("%u", 4), "s64": ("%lld", 8), "u64": ("%llu", 8), "f64": ("%.9g", 8)}


@cache
def instruction(mnemonic: str) -> Instruction:
    """The instruction `vprintf.<type>.<type>...`."""
    names = mnemonic.split(".")[1:]
    for name in names:
        if name not in CONVERSIONS:
            raise UnknownInstruction(f"{mnemonic}: {name} cannot be printed; {', '.join(CONVERSIONS)} can")
    operands = [Operand(f"a{i}", dtypes.named(name)) for i, name in enumerate(names)]
    return Instruction(
        mnemonic=mnemonic,
        results=(),
        operands=(Operand("text", dtypes.u32, kind="imm"), *operands),
        requires=Requires("70"),
        version=(6, 0),
        section="vprintf",
        execute=execute,
        effects=VOLATILE | Effect.PRINT,
        template=_statement(names),
    )


@cache
def system_function(mnemonic: str) -> Instruction:
    """The call of a function of the system, which takes the values of its parameters."""
    name = mnemonic.partition(".")[2]
    results, operands, run = _SYSTEM[name]
    return Instruction(
        mnemonic=mnemonic,
        results=tuple(Operand(f"d{i}", dtypes.named(kind)) for i, kind in enumerate(results.split())),
        operands=tuple(Operand(f"a{i}", dtypes.named(kind)) for i, kind in enumerate(operands.split())),
        requires=Requires("70"),
        version=(6, 0),
        section=name,
        execute=run,
        effects=VOLATILE | Effect.PRINT,
        template="!// {d0}" if results else "!//",
    )


def _print(ctx: Any, instr: Instruction, text: np.ndarray, buffer: np.ndarray) -> np.ndarray:
    return ctx.vprintf(text, buffer)  # type: ignore[no-any-return]


def _fail(ctx: Any, instr: Instruction, *operands: np.ndarray) -> None:
    ctx.fail_assertion(*operands)


# Results, operands, semantics.
_SYSTEM: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "vprintf": ("u32", "u64 u64", _print),
    "__assertfail": ("", "u64 u64 u32 u64 u64", _fail),
}


def _statement(names: list[str]) -> str:
    """The PTX block; it ends in a comment because the printer appends a semicolon."""
    lines, offset = [], 0
    for i, name in enumerate(names):
        size = CONVERSIONS[name][1]
        offset = -(-offset // size) * size
        lines.append(f"st.local.b{8 * size} [arguments+{offset}], {{a{i}}};")
        offset += size
    body = [
        f".local .align 8 .b8 arguments[{max(offset, 8)}];",
        ".reg .b64 %buffer, %format;",
        ".param .b64 first; .param .b64 second; .param .b32 count;",
        *lines,
        "mov.u64 %buffer, arguments;",
        "cvta.local.u64 %buffer, %buffer;",
        "mov.u64 %format, string{text};",
        "cvta.global.u64 %format, %format;",
        "st.param.b64 [first], %format;",
        "st.param.b64 [second], %buffer;",
        "call.uni (count), vprintf, (first, second);",
    ]
    return "!{{\n        " + "\n        ".join(body) + "\n    }} //"


def execute(ctx: Any, instr: Instruction, text: int, *values: np.ndarray) -> None:
    """Print a line per thread, formatted as in C."""
    typed = [np.asarray(v).view(op.dtype.numpy) for v, op in zip(values, instr.operands[1:], strict=True)]
    ctx.print(text, typed)
