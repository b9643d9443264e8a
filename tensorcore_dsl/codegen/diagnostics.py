"""Assembler diagnostics that cost speed, by source line.

Register spills, `wgmma` that it serialised (C75xx), `setmaxnreg` that it ignored (C7504, C7508).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tensorcore_dsl.codegen.cubin import Cubin, Resources
from tensorcore_dsl.codegen.line_table import SourceLine
from tensorcore_dsl.errors import PerformanceWarning
from tensorcore_dsl.isa import names

_SLOW = re.compile(r"Potential Performance Loss|^warning", re.IGNORECASE)
_CALL = (
    "the line calls a routine, and around a call no wgmma stays in flight. Calls are print, "
    "assert, and of 64-bit types / (of integers and floats), //, % and tc.sqrt; of narrower types "
    "they are not, nor are tc.rcp and tc.rsqrt. @tc.kernel(checks=False) leaves assertions out"
)
_REGISTERS = (
    "give each warpgroup fewer accumulators (a smaller tile, or more warpgroups that share it), or "
    "its threads more registers: tc.warp_specialize(..., registers=...), a greater max_registers"
)
_ACCUMULATORS = (
    "leave accumulators alone between tc.wgmma_fence and tc.wgmma_wait: no copies, and no other "
    "instructions that read or write them"
)
_DIVERGENCE = (
    "all warps of a warpgroup must go the same way from tc.wgmma_fence to tc.wgmma_wait: branch on "
    "what they share, such as tc.warpgroup_id()"
)
_ADVICE = {
    "C7504": "nvJitLink compiles for linking, where registers cannot change hands: install a "
    "whole-program ptxas, `pip install 'tensorcore-dsl[ptxas]'`, or put the CUDA toolkit's on PATH",
    "C7508": "say how many registers a thread begins with: tc.launch_bounds(threads, 1), or "
    "@tc.kernel(max_registers=...)",
    "C7509": _CALL,
    "C7510": _CALL,
    "C7511": _REGISTERS,
    "C7512": _REGISTERS,
    "C7513": "compute the fragments of A before tc.wgmma_fence, and leave them alone until "
    "tc.wgmma_wait: products read them while they run",
    "C7514": _ACCUMULATORS,
    "C7515": _ACCUMULATORS,
    "C7516": "put tc.wgmma_fence, the products, tc.wgmma_commit and tc.wgmma_wait one after the "
    "other under the same conditions",
    "C7518": _DIVERGENCE,
    "C7520": _DIVERGENCE,
}
_SPILLED = {  # by what the PTX contains; the first that it does
    names.SETMAXNREG: "give the role that spills more registers: tc.warp_specialize(..., "
    "registers=...) or tc.setmaxnreg, as many as the other roles can spare; or give each of its "
    "warpgroups fewer accumulators, by a smaller tile or more warpgroups that share it",
    ".maxnreg": "max_registers is the limit: a greater one, smaller tiles or fewer values at once",
    ".reqntid": "smaller tiles, fewer values at a time or blocks of fewer threads leave more "
    "registers for each value; tc.warp_specialize(..., registers=...) moves them between roles",
    "": "smaller tiles or fewer values at a time take fewer registers; tc.launch_bounds(threads), "
    "or @tc.kernel(threads=...), lets the assembler use all that a block of this size may have",
}


class Diagnostic(NamedTuple):
    """One message at a line of the user's source."""

    text: str
    filename: str
    line: int

    def warn(self, kernel: str) -> None:
        message = f"kernel {kernel}: {self.text}"
        warnings.warn_explicit(message, PerformanceWarning, self.filename, self.line)


Lines = Mapping[int, SourceLine]  # from lines of PTX


def diagnostics_of(cubin: Cubin, kernel: SourceLine, lines: Callable[[], Lines]) -> tuple[Diagnostic, ...]:
    """The diagnostics of a kernel's machine code.

    `kernel` is where the kernel is defined; `lines` is called only if there are messages.
    """
    if not cubin.log.strip():  # of nvJitLink before 12.5, from the driver's cache
        return ()
    resources = cubin.resources
    messages = [(_spill_message(resources, cubin.ptx), 0)] if resources.spills else []
    if resources.spills is None:
        messages = [(_unknown_message(cubin.log), 0)]
    slow = [text for text in resources.warnings if _SLOW.search(text)]
    messages += [(_advised(text), _line(text, cubin.ptx)) for text in slow]
    locations = lines() if any(line for _, line in messages) else {}
    return tuple(Diagnostic(text, *locations.get(line, kernel)) for text, line in messages)


def _spill_message(resources: Resources, ptx: str) -> str:
    advice = next(text for sign, text in _SPILLED.items() if sign in ptx)
    return (
        f"registers are spilled to memory: {resources.spill_stores} bytes of stores and "
        f"{resources.spill_loads} of loads a thread, with {resources.registers} registers in "
        f"use; {advice}"
    )


def _unknown_message(log: str) -> str:
    return (
        "whether registers are spilled is not known, as the assembler's log does not tell it; "
        f"the log is:\n{log.strip()}"
    )


def _advised(text: str) -> str:
    code = re.search(r"\((C\d+)\)", text)
    advice = _ADVICE.get(code[1]) if code else None
    message = text.splitlines()[0].removesuffix(" in line 0").rstrip(".")
    return f"{message}; {advice}" if advice else message


def _line(text: str, ptx: str) -> int:
    """The PTX line that a message names, else the first instruction of its kind; 0 if neither."""
    named = re.search(r"\bline (\d+)", text)
    if named and int(named[1]):
        return int(named[1])
    opcode = next((o for o in (names.SETMAXNREG, names.WGMMA_MMA) if o in text), None)
    if opcode is None:
        return 0
    numbered = enumerate(ptx.splitlines(), 1)
    return next((number for number, line in numbered if opcode in line), 0)
