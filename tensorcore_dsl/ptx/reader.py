"""Translate a PTX kernel to IR: registers, memory, instructions, labels and jumps."""

from __future__ import annotations

from itertools import count
from typing import NoReturn

from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import ARCHS
from tensorcore_dsl.errors import ArchError, Loc, UnknownInstruction, UnsupportedSyntax
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.isa import instruction, names, reading
from tensorcore_dsl.isa.description import PTX_VERSION
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.ptx.inlining import BRANCH, CALL, RETURN, head, inlined
from tensorcore_dsl.ptx.simplify import in_memory, local_layout, simplified
from tensorcore_dsl.ptx.syntax import (
    Function,
    Item,
    Label,
    Statement,
    Text,
    Variable,
    is_decimal,
    number_of,
    operands_checked,
    operands_of,
    text_of,
)

_LEAVES = (RETURN, "exit")
LOCAL = "local memory"  # Name of the parameter that holds local memory.
SINK = ("name", "_")  # Stands for a result that is dropped.
IN_MEMORY = -1  # Stands for the address of a parameter in `_Reader.params`; offsets are never negative.


def kernel_of(function: Function, text: Text) -> tuple[nodes.Kernel, int]:
    """Return the IR of a kernel, and each thread's bytes in the parameter LOCAL."""
    reader = _Reader(simplified(inlined(function, text)), text)
    return reader.kernel, reader.local_bytes


def _language(function: Function) -> str:
    """The language of a kernel, as `advice.LANGUAGES` calls it."""
    files = {node.loc.filename for node in function.body} - {function.loc.filename}
    if not any(file.endswith(".py") for file in files):
        return "CUDA" if files else "PTX"
    by_llvm = any(param.name.startswith(f"{function.name}_param_") for param in function.params)
    return "Numba" if function.name.startswith("_Z") else "Triton" if by_llvm else "PTX"


class _Reader:
    """Translates one kernel.

    Attributes
    ----------
    values : dict
        The IR value of each register, by name.
    declared : dict
        The parameters by name.
    params : dict
        The IR value of each parameter or struct field, by name and offset.
    addresses : dict
        Offsets of variables in shared memory.
    globals, locals : dict
        Address values of variables in global and constant memory, and in local memory.
    flying : dict
        Register group and index of each register that an asynchronous product uses.
    pending : dict
        Values written to registers in `flying` that `flush` has yet to move there.
    local_bytes : int
        Bytes of local memory for each thread.
    """

    local_bytes = 0

    def __init__(self, function: Function, text: Text) -> None:
        self.function, self.text = function, text
        self.numbers = count()
        self.values = {name: self.value(kind, function.loc) for name, kind in function.registers.items()}
        self.declared = {param.name: param for param in function.params}
        self.params = {
            (param.name, 0): self.value(param.type, function.loc)
            for param in function.params
            if not param.array
        }
        self.addresses: dict[str, int] = {}
        self.globals: dict[str, nodes.Value] = {}
        size, align = self.shared(text.variables + function.variables)
        dynamic = [v for v in text.variables if v.space == "shared" and v.external]
        self.body: list[nodes.Node] = []
        self.locals = self.local_memory(function)
        self.flying = self.registers_in_flight(function)
        self.pending: dict[nodes.Value, dict[int, nodes.Value]] = {}
        self.label_positions = {
            node.name: i for i, node in enumerate(function.body) if isinstance(node, Label)
        }
        for at, node in enumerate(function.body):
            if isinstance(node, Label):
                self.flush()
                self.body.append(nodes.Label(node.name, node.loc))
            else:
                with operands_checked(node):
                    self.statement(node, at)
        cluster = function.directives.get(".reqnctapercluster", ())
        self.kernel = nodes.Kernel(
            function.name,
            [
                *(nodes.Param(part_name(name, offset), value) for (name, offset), value in self.ordered()),
                *(nodes.Param(name, value) for name, value in self.globals.items()),
            ],
            nodes.Block(self.body),
            shared_bytes=size,
            shared_align=align,
            dynamic=max((v.align for v in dynamic), default=0),
            cluster=(*cluster, 1, 1)[:3] if cluster else None,  # type: ignore[arg-type]
            foreign=_language(function),
        )

    def refuse(self, text: str, loc: Loc) -> NoReturn:
        raise UnsupportedSyntax(text, loc)

    def value(self, kind: str, loc: Loc) -> nodes.Value:
        """Make a register of a PTX type."""
        if kind not in dtypes.ALL:
            self.refuse(f"registers of type .{kind} are not supported", loc)
        return nodes.Value(next(self.numbers), nodes.Type(dtypes.named(kind)))

    def shared(self, variables: list[Variable]) -> tuple[int, int]:
        """Place variables in shared memory. Return its bytes and its alignment."""
        size, align = 0, 16
        for variable in sorted(variables, key=lambda v: v.external):
            if variable.space != "shared":
                continue
            align = max(align, variable.align)
            size = -(-size // variable.align) * variable.align
            self.addresses[variable.name] = size
            size += variable.size
        return size, align

    def local_memory(self, function: Function) -> dict[str, nodes.Value]:
        """Compute the addresses of the thread's local variables.

        The launch passes one array, in which the threads have consecutive regions.
        """
        offsets, self.local_bytes = local_layout(function)
        addresses: dict[str, nodes.Value] = {}
        if not offsets:
            return addresses
        thread = self.thread_number(function.loc)
        base = self.globals[LOCAL] = self.value("u64", function.loc)
        first = self.value("u64", function.loc)
        scaled = nodes.Const(self.local_bytes, dtypes.u64)
        self.emit(names.multiply_add(dtypes.u64), first, thread, scaled, base)
        for name, offset in offsets.items():
            address = addresses[name] = self.value("u64", function.loc)
            self.emit(names.binary("add", dtypes.u64), address, first, nodes.Const(offset, dtypes.u64))
        return addresses

    def thread_number(self, loc: Loc) -> nodes.Value:
        """Compute the index of the thread in the grid."""
        number: nodes.Source = nodes.Const(0, dtypes.u32)
        for indices, extents in (("ctaid", "nctaid"), ("tid", "ntid")):
            for axis in "zyx":
                index, extent, sum_ = (self.value("u32", loc) for _ in range(3))
                self.emit(names.special(f"{indices}.{axis}"), index)
                self.emit(names.special(f"{extents}.{axis}"), extent)
                self.emit(names.multiply_add(dtypes.u32), sum_, number, extent, index)
                number = sum_
        wide = self.value("u64", loc)
        self.emit(names.convert("u64", "u32"), wide, number)
        return wide

    def emit(self, mnemonic: str, result: nodes.Value, *operands: nodes.Source) -> None:
        self.body.append(nodes.Op(instruction(mnemonic), (result,), operands, loc=self.function.loc))

    # -- statements --------------------------------------------------------------------------------

    def statement(self, s: Statement, at: int) -> None:
        kind = head(s)
        guard, negated = self.guard(s)
        if guard is not None or kind in (BRANCH, *_LEAVES) or reading.accumulates(s.opcode):
            self.flush()
        if kind == BRANCH:
            self.branch(s, at)
        elif kind in _LEAVES:
            self.around(s, [nodes.Jump("return", s.loc)])
        elif kind == CALL:
            self.system_call(s)
        elif reading.loads_parameter(s.opcode):
            self.load_parameter(s)
        else:
            self.instruction(s, guard, negated)

    def system_call(self, s: Statement) -> None:
        """Translate a system call, such as `vprintf`, to its instruction of the table."""
        instr = instruction(s.opcode)
        values = [self.register(item[1], s) for item in s.operands]
        split = len(instr.results)
        self.body.append(nodes.Op(instr, tuple(values[:split]), tuple(values[split:]), loc=s.loc))

    def guard(self, s: Statement) -> tuple[nodes.Value | None, bool]:
        if s.guard is None:
            return None, False
        predicate = self.register(s.guard[0], s)
        if predicate.type.register_bits != 1:
            self.refuse(f"{s.opcode}: {s.guard[0]} is not a predicate", s.loc)
        return predicate, s.guard[1]

    def register(self, name: str, s: Statement) -> nodes.Value:
        if name not in self.values:
            self.refuse(f"{s.opcode}: {name} is not a register of {self.function.name}", s.loc)
        return self.values[name]

    def opposite(self, value: nodes.Value, loc: Loc) -> nodes.Value:
        """Emit the negation of a predicate into a new register."""
        inverse = self.value("pred", loc)
        self.body.append(
            nodes.Op(instruction(names.bitwise("not", dtypes.pred)), (inverse,), (value,), loc=loc)
        )
        return inverse

    def branch(self, s: Statement, at: int) -> None:
        target = ", ".join(map(text_of, s.operands))
        if target not in self.label_positions:
            self.refuse(f"{s.opcode}: {target or 'nothing'} is not a label of {self.function.name}", s.loc)
        if self.label_positions[target] < at:
            self.around(s, [nodes.Goto(target, None, s.loc)])
            return
        guard, negated = self.guard(s)
        if guard is not None and not negated:
            guard = self.opposite(guard, s.loc)
        self.body.append(nodes.Goto(target, guard, s.loc))

    def around(self, s: Statement, some: list[nodes.Node]) -> None:
        """Emit nodes that run only where the guard of `s` holds."""
        guard, negated = self.guard(s)
        if guard is None or not some:
            self.body += some
            return
        label = f"{next(self.numbers)} behind"
        stay = self.opposite(guard, s.loc) if negated else guard
        self.body += [nodes.Goto(label, stay, s.loc), *some, nodes.Label(label, s.loc)]

    def load_parameter(self, s: Statement) -> None:
        target, (_, address) = s.operands
        (_, name), offset = (address[1], address[2]) if address[0] == "sum" else (address, 0)
        kind = s.opcode.rpartition(".")[2]
        if name not in self.declared:
            self.refuse(f"{s.opcode}: {name} is not a parameter of {self.function.name}", s.loc)
        after: list[nodes.Node] = []
        for i, item in enumerate(target[1:] if target[0] == "group" else [target]):
            if item == SINK:
                continue
            register = self.written(item[1], s, after)
            part = self.part_of_parameter(name, offset + i * dtypes.named(kind).bits // 8, kind, s)
            if part.type.register_bits == register.type.register_bits:
                move: nodes.Node = nodes.Assign(register, (part,), s.loc)
            else:
                move = self.resized(register, part, kind[0] == "s", s)
            self.around(s, [move])
        self.around(s, after)

    def part_of_parameter(self, name: str, offset: int, kind: str, s: Statement) -> nodes.Value:
        """Return a register with the bytes of a parameter, or of a part of a number, at an offset."""
        whole, shift = self.params.get((name, offset)), 0
        if self.declared[name].array:
            whole = self.params.setdefault((name, offset), self.value(kind, s.loc))
        elif whole is None:
            whole, shift = self.params[name, 0], 8 * offset
        bits, most = dtypes.named(kind).bits, whole.type.dtype.bits
        if shift + bits > most:
            self.refuse(f"{s.opcode} at byte {offset} of {name}, of which {most // 8} bytes are known", s.loc)
        if bits == most:
            return whole
        if shift:
            shifted, count = self.value(f"b{most}", s.loc), nodes.Const(shift, dtypes.u32)
            self.emit(names.shift_right(dtypes.named(f"u{most}")), shifted, whole, count)
            whole = shifted
        part = self.value(f"b{bits}", s.loc)
        self.body.append(self.resized(part, whole, False, s))
        return part

    def ordered(self) -> list[tuple[tuple[str, int], nodes.Value]]:
        """Return the parameters and struct fields in the order of declaration and offset."""
        order = list(self.declared)
        return sorted(self.params.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))

    def instruction(self, s: Statement, guard: nodes.Value | None, negated: bool) -> None:
        try:
            opcode = reading.in_space(s.opcode)
            match = reading.find(opcode, s.operands, operands_of)
            if match is None:
                known = reading.candidates(opcode) or [instruction(opcode)]  # UnknownInstruction for none
                takes = " or ".join(dict.fromkeys(i.signature for i in known if i.operands or known == [i]))
                given = ", ".join(map(text_of, s.operands)) or "nothing"
                self.refuse(f"{s.opcode} takes {takes}, not {given}", s.loc)
            if self.text.target in ARCHS:
                match[0].requires.check(ARCHS[self.text.target], match[0].mnemonic)
        except (UnknownInstruction, ArchError) as error:
            error.loc = error.loc or s.loc
            if float(self.text.version) > float(PTX_VERSION):
                error.message += f"; the table follows PTX {PTX_VERSION}, and .version is {self.text.version}"
            raise
        instr, items = match
        count, after = len(instr.results), list[nodes.Node]()
        operands = [
            None if item is None else self.operand(s, instr, o, item)
            for o, item in zip(instr.operands, items[count:], strict=True)
        ]
        results = [
            self.result(s, instr, o, item, after) for o, item in zip(instr.results, items, strict=False)
        ]
        sources = tuple(results[0] if source is None else source for source in operands)
        self.body.append(nodes.Op(instr, tuple(results), sources, guard, negated, s.loc))
        self.around(s, after)

    def resized(self, into: nodes.Value, source: nodes.Value, signed: bool, s: Statement) -> nodes.Node:
        bits, to = source.type.dtype.bits, into.type.dtype.bits
        if 1 in (source.type.register_bits, into.type.register_bits):
            self.refuse(f"{s.opcode}: a predicate is in the place of a number, or the reverse", s.loc)
        sign = "s" if signed else "u"
        instr = instruction(names.convert(f"{sign}{to}", f"{sign}{bits}"))
        return nodes.Op(instr, (into,), (source,), loc=s.loc)

    def result(
        self, s: Statement, instr: Instruction, o: Operand, item: Item | None, after: list[nodes.Node]
    ) -> nodes.Value:
        """Return the registers of a result. `after` receives the moves to the registers that PTX names."""
        assert item is not None
        if Effect.INPLACE in instr.effects:
            return self.flying[item[1][1]][0]
        if item[0] == "group":
            group = self.group(s, o, item)
            for i, element in enumerate(item[1:]):
                if element == SINK:
                    continue
                moved: list[nodes.Node] = []
                into = self.written(element[1], s, moved)
                after += [nodes.Assign(into, (nodes.Part(group, i),), s.loc), *moved]
            return group
        if item == SINK:
            return self.value(_bits(o).name, s.loc)
        if item[0] != "name":
            self.refuse(f"{s.opcode}: {o.name} must be a register", s.loc)
        moves: list[nodes.Node] = []
        into, signed = self.written(item[1], s, moves), reading.extends_sign(s.opcode)
        if into.type.register_bits == (o.dtype.bits if signed else o.register_bits):
            after += moves
            return into
        narrow = self.value(o.dtype.name if o.dtype.bits == 8 else _bits(o).name, s.loc)
        after += [self.resized(into, narrow, signed, s), *moves]
        return narrow

    # -- registers of asynchronous products ------------------------------------------------------------

    def registers_in_flight(self, function: Function) -> dict[str, tuple[nodes.Value, int]]:
        """Map each register of an asynchronous product to its group and its index there.

        A copy around such a product would read or write registers while the product is in flight.
        """
        flying: dict[str, tuple[nodes.Value, int]] = {}
        groups: dict[Item, nodes.Value] = {}
        for s in function.body:
            if not isinstance(s, Statement) or not reading.accumulates(s.opcode):
                continue
            match = reading.find(s.opcode, s.operands, operands_of)
            if match is None or Effect.INPLACE not in match[0].effects:
                continue  # `instruction` refuses an unknown one, with its line.
            instr, items = match
            for o, item in zip(instr.sides, items, strict=True):
                if item is not None and item[0] == "group":
                    self.in_flight(s, o, item, groups, flying)
        return flying

    def in_flight(
        self,
        s: Statement,
        o: Operand,
        item: Item,
        groups: dict[Item, nodes.Value],
        flying: dict[str, tuple[nodes.Value, int]],
    ) -> None:
        """Add the registers of one operand of an asynchronous product to `flying`."""
        if item not in groups:
            group = groups[item] = self.group(s, o, item)
            # PTX may leave accumulators unwritten before a product that overwrites them.
            self.body.append(nodes.Assign(group, (nodes.Const(0, _bits(o)),), s.loc))
        for i, (_, name) in enumerate(item[1:]):
            if flying.setdefault(name, (groups[item], i)) != (groups[item], i):
                self.refuse(f"{s.opcode}: {name} belongs to operands of two different products", s.loc)

    def written(self, name: str, s: Statement, after: list[nodes.Node]) -> nodes.Value:
        """Return the register to write for the PTX register `name`.

        For a register in `flying`, it is a new one. `flush` moves all new ones together, before the
        next product or jump. Under a guard, `after` receives the move instead.
        """
        register = self.register(name, s)
        if name not in self.flying:
            return register
        group, index = self.flying[name]
        new = self.value(register.type.dtype.name, s.loc)
        if s.guard is None:
            self.pending.setdefault(group, {})[index] = new
        else:
            after.append(_with_parts(group, {index: new}, s.loc))
        return new

    def flush(self) -> None:
        """Move pending values to the registers of asynchronous products."""
        for group, written in self.pending.items():
            self.body.append(_with_parts(group, written, self.function.loc))
        self.pending.clear()

    def scalar(self, source: nodes.Value | nodes.Part, s: Statement) -> nodes.Value:
        """Return a register with the value of `source`; copy one register of a group."""
        if isinstance(source, nodes.Value):
            return source
        bits = source.base.type.register_bits
        copy = self.value(f"b{bits}", s.loc)
        self.body.append(nodes.Assign(copy, (source,), s.loc))
        return copy

    def group(self, s: Statement, o: Operand, item: Item) -> nodes.Value:
        """Make registers for a vector or a fragment."""
        if len(item) - 1 != o.registers:
            self.refuse(f"{s.opcode}: {o.name} has {o.registers} registers, not {len(item) - 1}", s.loc)
        for element in item[1:]:
            bits = o.register_bits
            if element[0] == "name" and element != SINK:
                bits = self.register(element[1], s).type.register_bits
            if bits != o.register_bits:
                self.refuse(
                    f"{s.opcode}: the registers of {o.name} have {o.register_bits} bits, not {bits}", s.loc
                )
        layout = o.layout.name if o.layout else None
        return nodes.Value(next(self.numbers), nodes.Type(o.dtype, o.registers, layout))

    def operand(self, s: Statement, instr: Instruction, o: Operand, item: Item) -> nodes.Source:
        if o.kind == "addr":
            return self.address(s, o, item)
        if item[0] == "group" and Effect.INPLACE in instr.effects:
            return self.flying[item[1][1]][0]
        if item[0] == "group":
            group = self.group(s, o, item)
            sources = tuple(
                (self.register_of(element[1]) if element[0] == "name" else None)
                or nodes.Const(self.number(s, element, o), _bits(o))
                for element in item[1:]
            )
            self.body.append(nodes.Assign(group, sources, s.loc))
            return group
        value = self.register_of(item[1]) if item[0] == "name" else None
        if value is not None:
            base = value.base if isinstance(value, nodes.Part) else value
            if base.type.register_bits == o.register_bits:
                return value
            narrow = self.value(_bits(o).name, s.loc)
            self.body.append(self.resized(narrow, self.scalar(value, s), False, s))
            return narrow
        number = self.number(s, item, o)
        return nodes.Const(
            bool(number) if o.register_bits == 1 else number, o.dtype if o.kind == "imm" else _bits(o)
        )

    def register_of(self, name: str) -> nodes.Value | nodes.Part | None:
        """Return the register `name`, or the address of the variable `name`; None if it is neither."""
        if name in self.flying:
            group, index = self.flying[name]
            return self.pending.get(group, {}).get(index) or nodes.Part(group, index)
        value = self.values.get(name) or self.locals.get(name) or self.address_of_global(name)
        for declared in self.declared.values() if value is None else ():
            if name == in_memory(declared.name):
                return self.params.setdefault(
                    (declared.name, IN_MEMORY), self.value("u64", self.function.loc)
                )
        return value

    def address_of_global(self, name: str) -> nodes.Value | None:
        """Return the address of a variable in global or constant memory, a parameter of the IR kernel."""
        for variable in self.text.variables:
            if variable.name == name and variable.space in ("global", "const"):
                return self.globals.setdefault(name, self.value("u64", self.function.loc))
        return None

    def number(self, s: Statement, item: Item, o: Operand) -> int:
        if item[0] == "sum":
            return self.number(s, item[1], o) + int(item[2])
        kind, text = item[:2]
        if kind == "name" and text in self.addresses:
            return self.addresses[text]
        if text in self.text.functions:
            return self.text.address_of(text)
        if text == "WARP_SZ":
            return 32
        if kind != "number":
            self.refuse(f"{s.opcode}: {text} is not a register, special register, number or variable", s.loc)
        floating = is_decimal(text) or text[:2].lower() in ("0f", "0d")
        if not floating if o.dtype in (dtypes.f32, dtypes.f64) else o.dtype.kind in "su" and is_decimal(text):
            self.refuse(f"{s.opcode}: {o.name} is a number of type .{o.dtype}, not {text}", s.loc)
        return number_of(text, o.register_bits)

    def address(self, s: Statement, o: Operand, item: Item) -> nodes.Address:
        base, offset = (item[1], int(item[2])) if item[0] == "sum" else (item, 0)
        source = self.register_of(base[1]) if base[0] == "name" else None
        if source is not None:
            value = self.scalar(source, s)
            if value.type.register_bits > o.register_bits:
                narrow = self.value(f"b{o.register_bits}", s.loc)
                self.body.append(self.resized(narrow, value, False, s))
                value = narrow
            return nodes.Address(value, offset)
        return nodes.Address(nodes.Const(self.number(s, base, o), _bits(o)), offset)


def _with_parts(group: nodes.Value, written: dict[int, nodes.Value], loc: Loc) -> nodes.Assign:
    """Return the assignment that writes some registers of a group and keeps the others."""
    sources = (written.get(i) or nodes.Part(group, i) for i in range(group.type.registers))
    return nodes.Assign(group, tuple(sources), loc)


def part_name(name: str, offset: int) -> str:
    """Return the IR name of the parameter field at a byte offset, or of the parameter's address."""
    if offset == IN_MEMORY:
        return in_memory(name)
    return f"{name}+{offset}" if offset else name


def _bits(o: Operand) -> dtypes.DType:
    """Return the untyped dtype of an operand's registers."""
    return dtypes.pred if o.register_bits == 1 else dtypes.named(f"b{o.register_bits}")
