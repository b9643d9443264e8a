"""Print IR as PTX text. The text of an instruction comes from its row of the table.

Registers are `%p` (predicates), `%h` (16 bits), `%r` (32), `%d` (64) and `%q` (128), numbered in
order of first use. A constant becomes a literal (`-1`, `0f3F800000`) if PTX has one of its type;
other constants (predicates, 16-bit and packed floats, bases of addresses) are moved to a register
once, at the kernel's entry.

Rows may use these names in their text: `shared_memory` (the kernel's own shared memory, extern
beyond 48 KiB), `dynamic_shared_memory` (the launch's dynamic shared memory after it), `string<n>`
(the kernel's n-th string, a zero-terminated array in global memory) and the function `vprintf`.
Where `shared_memory` is extern, `dynamic_shared_memory` is printed as `shared_memory` plus
`extern_shared(kernel)` bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.codegen.line_table import INLINED_VERSION, LineTable
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.ir.constants import const_bits, const_int, constant_trips
from tensorcore_dsl.ir.views import ArrayView, Printed, TileView
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.call_free import CALL_FREE, DIVISOR
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.spec import Operand

STATIC_SHARED_LIMIT = 48 * 1024  # bytes; launches provide more than that dynamically
_PREFIXES = {1: "%p", 16: "%h", 32: "%r", 64: "%d", 128: "%q"}
_B128_VERSION = (8, 3)
_MAP_VERSION = (8, 0)
Condition = nodes.Value | str | None  # a predicate, or the name of its register


def print_kernel(kernel: nodes.Kernel, arch: Arch, lineinfo: bool = False) -> str:
    """The PTX module of a verified kernel; `lineinfo` adds source lines (`line_table`)."""
    return _Printer(kernel, arch, lineinfo).module()


def entry_name(name: str) -> str:
    """The name of a kernel's entry point: `name` as a PTX identifier."""
    plain = re.sub(r"\W", lambda m: f"${ord(m[0]):x}", name, flags=re.ASCII)
    return plain if re.match(r"[A-Za-z]|[_$].", plain) else f"_{plain}"


def extern_shared(kernel: nodes.Kernel) -> int:
    """Bytes of the kernel's own shared memory that a launch must provide; 0 if it is static."""
    align = kernel.dynamic or nodes.DYNAMIC_ALIGN
    bytes_ = -(-kernel.shared_bytes // align) * align
    return bytes_ if kernel.shared_bytes > STATIC_SHARED_LIMIT else 0


def param_type(dtype: DType) -> str:
    """The `.param` type of a kernel parameter, without its dot; predicates are passed as u32."""
    if dtype.kind == "p":
        return "u32"
    if dtype.bits not in (8, 16, 32, 64):
        raise OperandError(f"a kernel parameter cannot be {dtype.name}: 8, 16, 32 or 64 bits are")
    return f"{dtype.kind if dtype.is_integer else 'b'}{dtype.bits}"


def _param(param: nodes.Param, position: int) -> str:
    """The declaration of one parameter; a tensor map is 128 bytes of data."""
    if param.tensor_map is not None:
        return f".param .align 64 .b8 p{position}[128]"
    return f".param .{param_type(param.value.type.dtype)} p{position}"


class _Printer:
    def __init__(self, kernel: nodes.Kernel, arch: Arch, lineinfo: bool) -> None:
        self.kernel, self.arch = kernel, arch
        self.instrs = {n.instr for n in nodes.walk(kernel.body) if isinstance(n, nodes.Op)}
        serial = any(instr.opcode == names.WGMMA for instr in self.instrs)  # by any call
        self.templates = CALL_FREE if serial else {}
        self.divisors: dict[str, str] = {}  # by register: the numbers of those computed above
        self.table = LineTable() if lineinfo else None
        self.lines: list[str] = []
        self.counts = dict.fromkeys(_PREFIXES, 0)
        self.registers: dict[nodes.Value, tuple[str, ...]] = {}
        self.texts: dict[nodes.Value, str] = {}
        self.constants: dict[tuple[int, int], tuple[str, str]] = {}  # (bits, value): name, text
        self.labels = 0
        self.targets: set[str] = set()  # labels that branches use
        self.loops: list[tuple[str, str]] = []  # labels of continue and break
        self.print_node: dict[type, Callable[..., None]] = {
            nodes.Op: self._op,
            nodes.Assign: self._assign,
            nodes.Jump: self._jump,
            nodes.For: self._for,
            nodes.While: self._while,
            nodes.If: self._if,
        }

    def module(self) -> str:
        for position, param in enumerate(self.kernel.params):
            self._load(position, param)
        loads, self.lines = self.lines, []
        self._block(self.kernel.body)
        self._emit("ret")
        body = [x for x in self.lines if not x.startswith("$L") or x[:-1] in self.targets]
        if extern := extern_shared(self.kernel):
            behind = f"shared_memory+{extern}"
            body = [line.replace("dynamic_shared_memory", behind) for line in body]
        major, minor = self._version()
        return "\n".join(
            [
                f".version {major}.{minor}",
                f".target {self.arch.name}",
                ".address_size 64",
                *(self.table.file_lines() if self.table is not None else ()),
                *self._globals(),
                "",
                *self._header(),
                "{",
                *self._declarations(),
                *loads,
                *self._constant_moves(),
                *body,
                "}",
                *(self.table.section_lines() if self.table is not None else ()),
                "",
            ]
        )

    def _version(self) -> tuple[int, int]:
        """The lowest version with the target and all instructions, so that old drivers load it."""
        wide = [_B128_VERSION] if self.counts[128] else []
        wide += [INLINED_VERSION] if self.table is not None and self.table.has_calls else []
        wide += [_MAP_VERSION for p in self.kernel.params if p.tensor_map is not None]
        return max([self.arch.ptx, *wide, *(instr.version for instr in self.instrs)])

    def _globals(self) -> Iterable[str]:
        kernel = self.kernel
        extern = extern_shared(kernel)
        if kernel.strings:
            yield ".extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 arguments);"
        for position, string in enumerate(kernel.strings):
            text = [*string.encode(), 0]
            yield f".global .align 1 .b8 string{position}[{len(text)}] = {{{', '.join(map(str, text))}}};"
        if extern:
            align = max(kernel.shared_align, kernel.dynamic)
            yield f".extern .shared .align {align} .b8 shared_memory[];"
        elif kernel.shared_bytes:
            yield f".shared .align {kernel.shared_align} .b8 shared_memory[{kernel.shared_bytes}];"
        if kernel.dynamic and not extern:
            yield f".extern .shared .align {kernel.dynamic} .b8 dynamic_shared_memory[];"

    def _header(self) -> Iterable[str]:
        kernel = self.kernel
        params = ", ".join(_param(p, i) for i, p in enumerate(kernel.params))
        yield f".visible .entry {entry_name(kernel.name)}({params})"
        if kernel.threads is not None:
            yield f".reqntid {kernel.threads}"
        if kernel.min_blocks is not None:
            yield f".minnctapersm {kernel.min_blocks}"
        if kernel.max_registers is not None:
            yield f".maxnreg {kernel.max_registers}"
        if kernel.cluster is not None:
            yield f".reqnctapercluster {', '.join(map(str, kernel.cluster))}"

    def _declarations(self) -> Iterable[str]:
        for bits, count in self.counts.items():
            if count:
                yield f"    .reg .{_move_type(bits)} {_PREFIXES[bits]}<{count}>;"

    def _load(self, position: int, param: nodes.Param) -> None:
        """Parameter to register, at entry."""
        (register,) = self._names(param.value)
        dtype = param.value.type.dtype
        if dtype.kind == "p":
            word = self._fresh(32)
            self._emit(f"{names.load_parameter('u32')} {word}, [p{position}]")
            self._emit(f"{names.compare('ne', 'u32')} {register}, {word}, 0")
        elif param.tensor_map is not None:
            self._emit(f"{names.move('b64')} {register}, p{position}")
            self._emit(f"{names.ADDRESS_OF_PARAMETER} {register}, {register}")
        else:
            self._emit(f"{names.load_parameter(param_type(dtype))} {register}, [p{position}]")

    def _constant_moves(self) -> Iterable[str]:
        for (bits, _), (register, text) in self.constants.items():
            yield f"    {_move(bits)} {register}, {text};"

    def _fresh(self, bits: int) -> str:
        number = self.counts[bits]
        self.counts[bits] = number + 1
        return f"{_PREFIXES[bits]}{number}"

    def _names(self, value: nodes.Value) -> tuple[str, ...]:
        """The registers of `value`: consecutive, numbered at first use."""
        names = self.registers.get(value)
        if names is None:
            bits = value.type.register_bits
            names = tuple(self._fresh(bits) for _ in range(value.type.registers))
            self.registers[value] = names
        return names

    def _value(self, value: nodes.Value) -> str:
        text = self.texts.get(value)
        if text is None:
            names = self._names(value)
            text = f"{{{', '.join(names)}}}" if value.type.is_group else names[0]
            self.texts[value] = text
        return text

    def _constant(self, value: int, bits: int) -> str:
        """A register that holds `value`, set at the kernel's entry."""
        if (bits, value) not in self.constants:
            text = str(value)
            if bits == 128:  # PTX has no 128-bit literals
                low, high = (self._constant(v, 64) for v in (value % (1 << 64), value >> 64))
                text = f"{{{low}, {high}}}"
            self.constants[bits, value] = self._fresh(bits), text
        return self.constants[bits, value][0]

    def _literal(self, const: nodes.Const, dtype: DType) -> str:
        """`const` as an operand that the instruction reads as `dtype`."""
        if dtype.name in ("f32", "f64"):
            digits, mark = dtype.bits // 4, "f" if dtype.bits == 32 else "d"
            return f"0{mark}{const_bits(const):0{digits}X}"
        if dtype.kind in "sub" and dtype.bits <= 64 and const.dtype.kind != "p":
            return str(const_int(nodes.Const(const_bits(const), dtype)))
        return self._constant(const_bits(const), dtype.register_bits)

    def _address(self, address: nodes.Address) -> str:
        if isinstance(address.base, nodes.Value):
            base = self._value(address.base)
        else:
            const = address.base
            base = self._constant(const_bits(const), const.dtype.register_bits)
        return f"[{base}+{address.offset}]" if address.offset else f"[{base}]"

    def _operand(self, source: nodes.Source, operand: Operand) -> str:
        if isinstance(source, nodes.Value):
            return self._value(source)
        if isinstance(source, nodes.Part):
            return self._names(source.base)[source.index]
        if isinstance(source, nodes.Address):
            return self._address(source)
        if operand.kind == "imm":
            return str(int(source.value))
        return self._literal(source, operand.dtype)

    def _emit(self, statement: str) -> None:
        self.lines.append(f"    {statement};")

    def _block(self, block: nodes.Block) -> None:
        for node in block.nodes:
            if self.table is not None:
                self.lines += self.table.directives(node.loc)
            self.print_node[type(node)](node)

    def _op(self, op: nodes.Op) -> None:
        instr = op.instr
        if template := self.templates.get(instr.mnemonic):
            if "{n}" in template:
                template = template.replace("{n}", self._divisor(op))
            instr = replace(instr, template=template)
        if Effect.PRINT in instr.effects:
            self._check_print(op)
        pairs = zip(op.operands, instr.operands, strict=True)
        text = instr.text([self._value(v) for v in op.results], [self._operand(s, o) for s, o in pairs])
        if op.guard is None:
            self.lines.append(f"    {text}{_end(text)}")
        elif text.startswith("{"):  # several statements cannot share a guard
            skip = self._label()
            self._branch(skip, op.guard, op.negated)
            self.lines.append(f"    {text}{_end(text)}")
            self._place(skip)
        else:
            self._emit_if(op.guard, not op.negated, text)
        self._changed(name for value in op.results for name in self._names(value))

    def _divisor(self, op: nodes.Op) -> str:
        """Number the last operand as a divisor; quotients by it share its reciprocal."""
        text = self._operand(op.operands[-1], op.instr.operands[-1])
        if text not in self.divisors:
            self.divisors[text] = self._label().strip("$")
            self.lines.append("    " + DIVISOR.format(b=text, n=self.divisors[text]))
        return self.divisors[text]

    def _changed(self, registers: Iterable[str]) -> None:
        for register in registers if self.divisors else ():
            self.divisors.pop(register, None)

    def _check_print(self, op: nodes.Op) -> None:
        """OperandError for tiles and arrays, whose elements no format string can name."""
        text = op.operands[0]
        assert isinstance(text, nodes.Const)
        for part in self.kernel.prints.get(int(text.value), ()):
            if isinstance(part, Printed) and isinstance(part.view, (TileView, ArrayView)):
                kind = "a shared tile" if isinstance(part.view, TileView) else "an array"
                raise OperandError(
                    f"print of {kind} works in emulation only: kernel.emulate[grid, block](...); "
                    "on the GPU, print elements",
                    op.loc,
                )

    def _assign(self, node: nodes.Assign) -> None:
        """All sources are read before any register is written."""
        bits = node.target.type.register_bits
        moves = list(zip(self._names(node.target), self._sources(node), strict=True))
        for position, (name, source) in enumerate(moves):
            if name == source:
                continue
            later = moves[position + 1 :]
            if any(s == name for _, s in later):
                saved = self._fresh(bits)
                self._emit(f"{_move(bits)} {saved}, {name}")
                moves[position + 1 :] = [(n, saved if s == name else s) for n, s in later]
            self._emit(f"{_move(bits)} {name}, {source}")
        self._changed(self._names(node.target))

    def _sources(self, node: nodes.Assign) -> list[str]:
        """The source of each register of the target."""
        target, sources = node.target.type, node.sources
        if len(sources) == 1 and isinstance(sources[0], nodes.Const):
            sources *= target.registers
        operands: list[str] = []
        for source in sources:
            if isinstance(source, nodes.Const):
                operands.append(self._move_source(source, target))
            elif isinstance(source, nodes.Part):
                operands.append(self._names(source.base)[source.index])
            else:
                operands.extend(self._names(source))
        return operands

    def _move_source(self, const: nodes.Const, target: nodes.Type) -> str:
        """`const` as the operand of an untyped move, which accepts any literal."""
        if target.register_bits == 128:
            return self._constant(const_bits(const), 128)
        if target.dtype.name in ("f32", "f64"):
            return self._literal(const, target.dtype)
        return str(const_bits(const))

    def _label(self) -> str:
        self.labels += 1
        return f"$L{self.labels}"

    def _place(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.divisors.clear()  # control may come from elsewhere

    def _emit_if(self, condition: Condition, when: bool, statement: str) -> None:
        """Emit a statement with a guard, if there is a condition."""
        if condition is not None:
            name = condition if isinstance(condition, str) else self._value(condition)
            statement = f"@{'' if when else '!'}{name} {statement}"
        self._emit(statement)

    def _branch(self, label: str, condition: Condition = None, when: bool = True) -> None:
        self.targets.add(label)
        self._emit_if(condition, when, f"bra {label}")

    def _jump(self, jump: nodes.Jump, condition: Condition = None, when: bool = True) -> None:
        if jump.kind == "return":
            self._emit_if(condition, when, "ret")
        else:
            self._branch(self.loops[-1][jump.kind == "break"], condition, when)

    def _if(self, node: nodes.If) -> None:
        """A branch around each side; a side that only jumps is a conditional jump."""
        then, orelse = node.then.nodes, node.orelse.nodes
        jump = then[0] if then else None
        if isinstance(jump, nodes.Jump):
            self._jump(jump, node.condition)
            self._block(node.orelse)
        elif not then and orelse and isinstance(orelse[0], nodes.Jump):
            self._jump(orelse[0], node.condition, False)
        elif then or orelse:
            self._branch_around(node)

    def _branch_around(self, node: nodes.If) -> None:
        orelse, end = self._label(), self._label()
        if node.then.nodes:
            self._branch(orelse, node.condition, False)
            self._block(node.then)
            if node.orelse.nodes and not isinstance(node.then.nodes[-1], nodes.Jump):
                self._branch(end)
        else:
            self._branch(end, node.condition)
        self._place(orelse)
        self._block(node.orelse)
        self._place(end)

    def _while(self, node: nodes.While) -> None:
        top, end = self._label(), self._label()
        self.loops.append((top, end))
        self._place(top)
        self._block(node.test)
        if isinstance(node.condition, nodes.Value):
            self._branch(end, node.condition, False)
        elif not node.condition.value:
            self._branch(end)
        self._block(node.body)
        self._branch(top)
        self._place(end)
        self.loops.pop()

    def _for(self, node: nodes.For) -> None:
        """A loop tested at its bottom; a test at the top unless the trip count is constant."""
        trips = constant_trips(node)
        body, again, end = (self._label() for _ in range(3))
        kind = node.index.type.dtype.name
        index, stop, step = (self._bound(v, node) for v in (node.index, node.stop, node.step))
        move = _move(node.index.type.register_bits)
        self._emit(f"{move} {index}, {self._bound(node.start, node)}")
        down = self._direction(node, kind, step)
        if trips is None:
            self._branch(end, self._inside(down, kind, index, stop), False)
        elif not trips:
            return
        self.loops.append((again, end))
        self._place(body)
        self._block(node.body)
        self._place(again)
        self._emit(f"{names.binary('add', node.index.type.dtype)} {index}, {index}, {step}")
        self._branch(body, self._inside(down, kind, index, stop))
        self._place(end)
        self.loops.pop()

    def _bound(self, source: nodes.Value | nodes.Const, node: nodes.For) -> str:
        if isinstance(source, nodes.Const):
            return self._literal(source, node.index.type.dtype)
        return self._value(source)

    def _direction(self, node: nodes.For, kind: str, step: str) -> bool | str:
        """Whether the loop counts down: True or False if constant, else a predicate register."""
        if isinstance(node.step, nodes.Const):
            return const_int(nodes.Const(const_bits(node.step), node.index.type.dtype)) < 0
        if kind.startswith("u"):
            return False
        down = self._fresh(1)
        self._emit(f"{names.compare('lt', kind)} {down}, {step}, 0")
        return down

    def _inside(self, down: bool | str, kind: str, index: str, stop: str) -> str:
        """A predicate register: the index has not reached `stop`."""
        inside = self._fresh(1)
        less, greater = names.compare("lt", kind), names.compare("gt", kind)
        self._emit(f"{greater if down is True else less} {inside}, {index}, {stop}")
        if isinstance(down, str):
            self._emit(f"@{down} {greater} {inside}, {index}, {stop}")
        return inside


def _move_type(bits: int) -> str:
    return "pred" if bits == 1 else f"b{bits}"


def _move(bits: int) -> str:
    return names.move(_move_type(bits))


def _end(text: str) -> str:
    return "" if text.startswith("{") else ";"
