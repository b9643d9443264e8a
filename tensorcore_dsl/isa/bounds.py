"""`check.index`: a check of an index or of a divisor in a checked build, or an assertion.

`check.index.s32 text, index, extent, count` stops the kernel unless 0 <= index and index + count
<= extent. `text` is the number of one of the kernel's strings, a format for index, extent, the
three block indices and the three thread indices (`format_text`). On the GPU, a thread that fails
prints it, then traps. `u32` says how an index is printed; it compares like s32, as extents do.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import Requires
from tensorcore_dsl.errors import (
    AssertionFailed,
    EmulationError,
    InvalidArithmetic,
    OutOfBounds,
    UnknownInstruction,
)
from tensorcore_dsl.isa.effects import VOLATILE
from tensorcore_dsl.isa.spec import Instruction, Operand

TYPES = ("s32", "u32", "s64")
_ERRORS = {error.__name__: error for error in (OutOfBounds, InvalidArithmetic, AssertionFailed)}


def format_text(place: str, message: str, error: str) -> str:
    """The format of the line that a failed check prints; `message` takes index and extent.

    error: the name of the class of the error in emulation.
    """
    where = "(CTA (%d,%d,%d), thread (%d,%d,%d))"
    return f"{place.replace('%', '%%')}: {_ERRORS[error].__name__}: {message} {where}\n"


def error_of(line: str) -> EmulationError:
    """The error that the line of a failed check stands for."""
    _, name, message = re.split(rf": ({'|'.join(_ERRORS)}): ", line, maxsplit=1)
    return _ERRORS[name](message.rstrip())


@cache
def instruction(mnemonic: str) -> Instruction:
    """The instruction `check.index.<type>`."""
    prefix, _, name = mnemonic.rpartition(".")
    if prefix != "check.index" or name not in TYPES:
        allowed = ", ".join(f"check.index.{name}" for name in TYPES)
        raise UnknownInstruction(f"no instruction {mnemonic!r}; there are {allowed}")
    dtype = dtypes.named(name)
    operands = (
        Operand("text", dtypes.u32, kind="imm"),
        Operand("index", dtype),
        Operand("extent", dtype),
        Operand("count", dtypes.u32, kind="imm"),
    )
    return Instruction(
        mnemonic=mnemonic,
        results=(),
        operands=operands,
        requires=Requires("70"),
        version=(6, 0),
        section="vprintf",
        execute=execute,
        effects=VOLATILE,
        template=_statement(name),
        params={"signed": np.dtype(f"i{dtype.bits // 8}")},
    )


def _statement(name: str) -> str:
    """The PTX block; it ends in a comment because the printer appends a semicolon."""
    bits = name[1:]
    wide = "mov.b64 %wide, {index};" if bits == "64" else f"cvt.s64.{name} %wide, {{index}};"
    extent = "mov.b64 %wide, %end;" if bits == "64" else "cvt.s64.s32 %wide, %end;"
    places = [f"%{kind}.{axis}" for kind in ("ctaid", "tid") for axis in "xyz"]
    body = [
        ".reg .pred %below, %beyond;",
        f".reg .b{bits} %end, %last;",
        ".reg .b64 %wide, %buffer, %format;",
        ".reg .b32 %place;",
        ".local .align 8 .b8 arguments[40];",
        ".param .b64 first; .param .b64 second; .param .b32 result;",
        f"mov.b{bits} %end, {{extent}};",
        f"sub.s{bits} %last, %end, {{count}};",
        f"setp.lt.s{bits} %below, {{index}}, 0;",
        f"setp.gt.s{bits} %beyond, {{index}}, %last;",
        "or.pred %below, %below, %beyond;",
        "@!%below bra inside;",
        wide,
        "st.local.b64 [arguments], %wide;",
        extent,
        "st.local.b64 [arguments+8], %wide;",
        *(
            line
            for at, place in enumerate(places)
            for line in (
                f"mov.u32 %place, {place};", f"st.local.b32 [arguments+{16 + 4 * at}], %place;"
            )
        ),
        "mov.u64 %buffer, arguments;",
        "cvta.local.u64 %buffer, %buffer;",
        "mov.u64 %format, string{text};",
        "cvta.global.u64 %format, %format;",
        "st.param.b64 [first], %format;",
        "st.param.b64 [second], %buffer;",
        "call (result), vprintf, (first, second);",
        "trap;",
        "inside:",
    ]  # fmt: skip
    return "!{{\n        " + "\n        ".join(body) + "\n    }} //"


def execute(ctx: Any, instr: Instruction, text: int, index: Any, extent: Any, count: int) -> None:
    """Raise the check's error for the first active thread whose index is not inside."""
    signed = instr.params["signed"]
    at, end = index.view(signed), extent.view(signed)
    outside = (at < 0) | (at > end - count)
    if ctx.active is not None:
        outside = outside & ctx.active
    if outside.any():
        typed = at if instr.operands[1].dtype.kind == "s" else index
        ctx.refuse_index(text, np.broadcast_to(outside, (ctx.threads,)), typed, end)
