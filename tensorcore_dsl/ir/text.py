"""Text form of a kernel's IR.

    kernel gemm(a = %0:u64, n = %1:s32, m = %9:u64 map 0 axes 1 0 box 64 8) threads 128 {
      %2:f32*4@mma.D.16x8.f32 <- 0.0
      for %3:s32 = 0 to %1 step 1 {
        @%4 %2 = mma.sync.aligned... %5, %6, %2
        if %7 {
          break
        } else {
          st.global.v2.f32 [%0+16], %8.1
        }
      }
    }

The first occurrence of a value has its type (`%5.1:f32*4` for a part); a constant has a type
(`1.5:f32`) only if it differs from the operand's. With locations, ops end in `#3`, a reference to a
line of the table after the kernel: `loc 3 "file.py":12:4-20 "function" from 2`. What only debug
builds have, marks and kept values, is written as comments: `// line`, `// keep %5 <- %3`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from tensorcore_dsl.dtypes import DType, pred
from tensorcore_dsl.errors import Loc

from tensorcore_dsl.ir.nodes import (  # isort: skip
    DYNAMIC_ALIGN, Address, Assign, Block, For, If, Jump, Keep, Kernel, Mark, Op, Param, Part, Source,
    Value, While,
)  # fmt: skip

ATTRIBUTES = ("threads", "min_blocks", "max_registers")


def format_kernel(kernel: Kernel, locations: bool = False) -> str:
    """The text of `kernel`; with `locations`, every op refers to its source line."""
    return _Writer(locations).kernel(kernel)


class _Writer:
    def __init__(self, locations: bool) -> None:
        self.locations = locations
        self.lines: list[str] = []
        self.depth = 0
        self.seen: set[Value] = set()
        self.table: dict[Loc, int] = {}

    def kernel(self, kernel: Kernel) -> str:
        params = ", ".join(map(self.param, kernel.params))
        words = [f"kernel {kernel.name}({params})"]
        if kernel.shared_bytes or kernel.shared_align != 16:
            words.append(f"shared {kernel.shared_bytes} align {kernel.shared_align}")
        if kernel.dynamic:
            align = kernel.dynamic
            words.append("dynamic" if align == DYNAMIC_ALIGN else f"dynamic align {align}")
        attributes = ((name, getattr(kernel, name)) for name in ATTRIBUTES)
        words += [f"{name} {number}" for name, number in attributes if number is not None]
        if kernel.cluster is not None:
            words.append(f"cluster {_numbers(kernel.cluster)}")
        self.line(" ".join([*words, "{"]))
        self.depth += 1
        for string in kernel.strings:
            self.line(f"string {json.dumps(string)}")
        self.depth -= 1
        self.block(kernel.body)
        self.line("}")
        self.lines += self.table_lines()
        return "\n".join([*self.lines, ""])

    def param(self, param: Param) -> str:
        text = f"{param.name} = {self.value(param.value)}"
        if (m := param.tensor_map) is None:
            return text
        end = f" swizzle {m.swizzle}" if m.swizzle else ""
        if m.im2col is not None:
            end += "".join(f" {word} {_numbers(of)}" for word, of in m.im2col._asdict().items())
        end += " nan" * m.nan_fill
        return f"{text} map {m.argument} axes {_numbers(m.axes)} box {_numbers(m.box)}{end}"

    def table_lines(self) -> Iterator[str]:
        for loc, number in self.table.items():
            where = f"{json.dumps(loc.filename)}:{loc.line}:{loc.column}-{loc.end_column}"
            caller = "" if loc.caller is None else f" from {self.table[loc.caller]}"
            yield f"loc {number} {where} {json.dumps(loc.function)}{caller}"

    def line(self, text: str, loc: Loc | None = None) -> None:
        end = f" #{self.number_of(loc)}" if self.locations and loc is not None else ""
        self.lines.append(f"{'  ' * self.depth}{text}{end}")

    def number_of(self, loc: Loc) -> int:
        """The number of `loc` in the table; its callers come first."""
        if loc not in self.table:
            if loc.caller is not None:
                self.number_of(loc.caller)
            self.table[loc] = len(self.table)
        return self.table[loc]

    def block(self, block: Block) -> None:
        self.depth += 1
        for node in block:
            getattr(self, f"_{type(node).__name__.lower()}")(node)
        self.depth -= 1

    def _op(self, op: Op) -> None:
        guard = f"@{'!' if op.negated else ''}{self.value(op.guard)} " if op.guard else ""
        results = ", ".join(map(self.value, op.results))
        wanted = [o.dtype for o in op.instr.operands]
        wanted += [pred] * (len(op.operands) - len(wanted))
        operands = ", ".join(map(self.source, op.operands, wanted))
        text = f"{guard}{results}{' = ' if results else ''}{op.instr.mnemonic} {operands}"
        self.line(text.rstrip(), op.loc)

    def _assign(self, node: Assign) -> None:
        target = self.value(node.target)
        dtype = node.target.type.dtype
        sources = ", ".join(self.source(s, dtype) for s in node.sources)
        self.line(f"{target} <- {sources}", node.loc)

    def _for(self, node: For) -> None:
        index, dtype = self.value(node.index), node.index.type.dtype
        start, stop, step = (self.source(s, dtype) for s in (node.start, node.stop, node.step))
        self.line(f"for {index} = {start} to {stop} step {step} {{", node.loc)
        self.block(node.body)
        self.line("}")

    def _while(self, node: While) -> None:
        self.line("while {", node.loc)
        self.block(node.test)
        self.line(f"}} do {self.source(node.condition, pred)} {{")
        self.block(node.body)
        self.line("}")

    def _if(self, node: If) -> None:
        self.line(f"if {self.value(node.condition)} {{", node.loc)
        self.block(node.then)
        if len(node.orelse):
            self.line("} else {")
            self.block(node.orelse)
        self.line("}")

    def _jump(self, node: Jump) -> None:
        self.line(node.kind, node.loc)

    def _keep(self, node: Keep) -> None:
        self.line(f"// keep %{node.target.id} <- %{node.source.id}", node.loc)

    def _mark(self, node: Mark) -> None:
        self.line(" ".join(["//", node.kind, *sorted(node.names)]), node.loc)

    def value(self, value: Value, index: str = "") -> str:
        if value in self.seen:
            return f"%{value.id}{index}"
        self.seen.add(value)
        return f"%{value.id}{index}:{value.type}"

    def source(self, source: Source, wanted: DType) -> str:
        if isinstance(source, Value):
            return self.value(source)
        if isinstance(source, Part):
            return self.value(source.base, f".{source.index}")
        if isinstance(source, Address):
            offset = f"{source.offset:+d}" if source.offset else ""
            return f"[{self.source(source.base, wanted)}{offset}]"
        kind = "" if source.dtype == wanted else f":{source.dtype.name}"
        return f"{_number(source.value)}{kind}"


def _numbers(values: Iterable[int]) -> str:
    return " ".join(map(str, values))


def _number(value: int | float | bool) -> str:
    """A constant in Python's notation; only floats have a point or an exponent."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(float(value)) if isinstance(value, float) else str(int(value))
