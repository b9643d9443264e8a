"""Changed IR text: it is parsed, printed, verified, printed as PTX, and run."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np

from tensorcore_dsl import arch
from tensorcore_dsl.codegen.ptx import print_kernel
from tensorcore_dsl.interpreter import GlobalPointer, run
from tensorcore_dsl.interpreter.memory.global_memory import TensorMapArgument
from tensorcore_dsl.ir.nodes import Kernel
from tensorcore_dsl.ir.text import format_kernel
from tensorcore_dsl.ir.verify import verify
from tests.fuzz import corpus, emulated
from tests.ir_reader import parse_kernel

TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|%\d+|[\w.:@*]+|\s+|.', re.DOTALL)
ODD = (
    "inf", "-inf", "nan", "1e999", "-1", "0", "1.5", "4294967296", "18446744073709551616", "9" * 5000,
    "1" * 30, '"\\x"', '"\\ud800"', '"', "{", "}", "%", "%1", "%999", "%1:u32*1000000000000", "%77:f32*0",
    "%78:u32*4096", "%79:e2m1", "%80:b128", "%81:f32@mma.D.16x8.f32", "[%0]", "[0+99999999999]", "true",
    "false", "break", "continue", "return", "while {", "} do true {", "if %3 {", "for %5:u32 = 0 to 9 step 1 {",
    "1:f8", "1.0:f16", "\u0663", "\x00", "//", "#1", ".7", "@!%3", "<-", "=", ",", "",
)  # fmt: skip


def prepare() -> None:
    """What takes long, before the time of the cases is counted."""
    emulated.table()
    corpus.texts()


def case(draw: random.Random) -> None:
    text = changed(draw, draw.choice(list(corpus.texts().values())))
    kernel = parse_kernel(text)
    again = format_kernel(kernel, locations=draw.random() < 0.5)
    assert format_kernel(parse_kernel(again)) == format_kernel(kernel), "printing and parsing differ"
    target = arch.arch(draw.choice(("sm_90a", "sm_90a", "sm_80", "sm_100a")))
    verify(kernel, target)
    print_kernel(kernel, target)
    if any(m is not None and max(m.axes) > 5 for m in (p.tensor_map for p in kernel.params)):
        return  # no array has so many axes
    threads = kernel.threads or draw.choice((corpus.BLOCK, 1, 33, 256))
    cluster = draw.choice((None, None, None, (2, 1, 1), (1, 1, 1)))
    dynamic = draw.choice((0, 128, 1000)) if kernel.dynamic else 0
    run(
        kernel,
        (draw.choice((2, 4)), 1, 1),
        (threads, 1, 1),
        values(draw, kernel),
        arch=target.name,
        dynamic_shared=dynamic,
        cluster=cluster,
        checks=draw.random() < 0.7,
        profile=draw.random() < 0.3,
        order=draw.choice((None, None, 0, 5)),
        workers=draw.choice((None, 1, 2)),
    )


def values(draw: random.Random, kernel: Kernel) -> list[Any]:
    """An argument for each parameter."""
    given: list[Any] = []
    for param in kernel.params:
        m = param.tensor_map
        if m is not None:
            rank = min(max(m.axes, default=0), 5) + 1
            array = np.ones((64,) * rank if rank < 4 else (4,) * rank, np.float32)
            given.append(TensorMapArgument(array, param.name, m.axes, m.box, m.swizzle))
        elif param.value.type.dtype.bits == 64 and draw.random() < 0.9:
            given.append(GlobalPointer(np.ones(256, np.float32), param.name))
        else:
            given.append(draw.choice((0, 1, 2, 256, -1, 2**31, 2**70)))
    return given


def changed(draw: random.Random, text: str) -> str:
    lines = text.splitlines()
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3, 5))):
        if not lines:
            break
        at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
        kind = draw.randrange(9)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[other])
        elif kind == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 3 and draw.random() < 0.3:
            depth = draw.choice((1, 3, 150, 400, 3000))
            head = draw.choice(("if %1 {", "while {\n} do true {", "for %900:u32 = 0 to 2 step 1 {"))
            lines[at : at + 1] = [*[head] * depth, lines[at], *["}"] * depth]
        elif kind == 4:
            instr = draw.choice(emulated.table()[draw.choice(list(emulated.table()))])
            lines[at] = re.sub(r"[a-z]\w*\.[\w.:]+", lambda _: instr.mnemonic, lines[at], count=1)
        else:
            lines[at] = changed_line(draw, lines[at], lines[other])
    return "\n".join(lines)


def changed_line(draw: random.Random, line: str, other: str) -> str:
    parts = TOKENS.findall(line)
    if not parts:
        return draw.choice(ODD)
    at = draw.randrange(len(parts))
    kind = draw.randrange(5)
    numbers = [i for i, part in enumerate(parts) if re.fullmatch(r"%?\d+", part)]
    if kind == 0 and numbers:
        at = draw.choice(numbers)
        sign = "%" if parts[at].startswith("%") else ""
        parts[at] = sign + str(draw.choice((0, 1, 2, 3, 5, 16, 31, 64, 10**5, 2**31, 2**32 - 1, 2**64)))
    elif kind == 1:
        parts[at] = draw.choice(ODD)
    elif kind == 2:
        del parts[at]
    elif kind == 3:
        parts[at] = draw.choice(TOKENS.findall(other) or [""])
    else:
        parts.insert(at, draw.choice(ODD))
    return "".join(parts)
