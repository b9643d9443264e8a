"""Rewrite PTX statements that the table lacks: jump tables, generic addresses, mbarrier states.

An access at a generic address becomes two: one to shared and one to global memory. Predicates let each
thread execute the one to which its address belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import UnsupportedSyntax
from tensorcore_dsl.isa import names, reading
from tensorcore_dsl.isa.context import CLUSTER_SHIFT
from tensorcore_dsl.isa.generic import WINDOW
from tensorcore_dsl.isa.reading import Rewrite
from tensorcore_dsl.ptx.inlining import head, jump, negated
from tensorcore_dsl.ptx.syntax import LISTS, Function, Item, Label, Statement, operands_checked
from tensorcore_dsl.ptx.system_library import GRID

TABLE, JUMP_BY_TABLE = ".branchtargets", "brx"

_SUB, _ADD = names.binary("sub", dtypes.u64), names.binary("add", dtypes.u64)
_NARROW, _WIDEN = names.convert("u32", "u64"), names.convert("u64", "u32")
_AND, _NOT = names.bitwise("and", dtypes.pred), names.bitwise("not", dtypes.pred)
_PARAMETER_STRIDE = 1 << 16  # Bytes between parameters in their space; PTX allows 32764 bytes in all.
_Step = Callable[[Statement], Iterator[Statement | Label]]


def simplified(function: Function) -> Function:
    """Return a kernel, already inlined, in statements that the table has."""
    simplifier = _Simplifier(function)
    body: list[Statement | Label] = []
    for node in function.body:
        if isinstance(node, Label):
            body.append(node)
            continue
        with operands_checked(node):
            step = simplifier.step(node)
            body += [node] if step is None else step(node)
    return replace(function, registers=simplifier.registers, body=body)


def local_layout(function: Function) -> tuple[dict[str, int], int]:
    """Return the offset of each variable in local memory, and the bytes of a thread."""
    offsets, size = dict[str, int](), 0
    for variable in function.variables:
        if variable.space == "local":
            offsets[variable.name] = size = -(-size // variable.align) * variable.align
            size += variable.size
    return offsets, -(-size // 16) * 16


def in_memory(name: str) -> str:
    """Return the name of the IR parameter that holds the address of the parameter `name`."""
    return f"{name} in memory"


def _blocks(function: Function, statements: list[Statement]) -> dict[str, tuple[int, int]]:
    """Return offset and size, in parameter space, of each parameter whose address the kernel takes."""
    arrays = {v.name: v for v in function.params if v.array}
    taken = set[str]()
    for s in statements:
        if not reading.accesses_parameter(s.opcode):
            taken |= arrays.keys() & {item[1] for item in s.operands if item[0] == "name"}
    return {
        name: ((i + 1) * _PARAMETER_STRIDE, arrays[name].size)
        for i, name in enumerate(arrays)
        if name in taken
    }


def _number(value: int) -> Item:
    return "number", str(value)


class _Simplifier:
    """Rewrites the statements of one kernel.

    Attributes
    ----------
    shared : bool
        The kernel makes generic addresses of shared memory.
    cluster : bool
        A generic address may lie in shared memory of another CTA.
    tables : dict
        The labels of each jump table.
    blocks : dict
        Offset and size in parameter space of each parameter whose address the kernel takes.
    """

    def __init__(self, function: Function) -> None:
        self.function, self.registers, self.numbers = function, dict(function.registers), count()
        statements = [node for node in function.body if isinstance(node, Statement)]
        self.shared = any(reading.makes_generic(s.opcode) for s in statements)
        self.cluster = any(reading.rewrite_kind(s.opcode, s.operands) is Rewrite.MAPA for s in statements)
        self.blocks = _blocks(function, statements)
        self.tables: dict[str, list[str]] = {}
        for label, table in zip(function.body, function.body[1:], strict=False):
            if isinstance(label, Label) and isinstance(table, Statement) and table.opcode == TABLE:
                self.tables[label.name] = [item[1] for item in table.operands]

    def step(self, s: Statement) -> _Step | None:
        """Return the method that rewrites a statement; None if the statement stays."""
        if s.opcode in LISTS:
            return self.nothing
        if head(s) == JUMP_BY_TABLE:
            return self.jumps
        if s.operands[1:] in ((("name", "%envreg1"),), (("name", "%envreg2"),)):
            return self.workspace
        if self.blocks and (reading.accesses_parameter(s.opcode) or reading.of_parameter(s.opcode)):
            return self.parameter
        if any(name in self.blocks for item in s.operands for name in item[1:2]):
            return self.named_block
        kind = reading.rewrite_kind(s.opcode, s.operands)
        steps: dict[Rewrite, _Step] = {
            Rewrite.ACCESS: self.access,
            Rewrite.MBARRIER_ADDRESS: self.mbarrier_address,
            Rewrite.PREFETCH: self.nothing,
            Rewrite.ISSPACEP: self.isspacep,
            Rewrite.MAPA: self.mapa,
            Rewrite.CTA_RANK: self.cta_rank,
            Rewrite.MBARRIER_STATE: self.mbarrier_state,
            Rewrite.SET_TO_NUMBER: self.set_to_number,
            Rewrite.APPROX_F64: self.approx_f64,
            Rewrite.BREAKPOINT: self.breakpoint,
            Rewrite.TIMED_WAIT: self.without_time_limit,
        }
        if kind is None or (kind is Rewrite.ACCESS and not self.shared):
            return None
        return steps[kind]

    def register(self, kind: str) -> Item:
        name = f"{next(self.numbers)} {kind}"
        self.registers[name] = kind
        return "name", name

    def nothing(self, s: Statement) -> Iterator[Statement | Label]:
        return iter(())

    def workspace(self, s: Statement) -> Iterator[Statement | Label]:
        """Read the upper (%envreg1) or lower half of the address of a cooperative grid's workspace."""
        move, address, other = names.move("b64"), self.register("b64"), self.register("b32")
        low, high = (s.operands[0], other)[:: -1 if s.operands[1][1] == "%envreg1" else 1]
        yield Statement(move, (address, ("name", GRID)), None, s.loc)
        yield Statement(move, (("group", low, high), address), s.guard, s.loc)

    # -- parameters in memory ----------------------------------------------------------------------

    def named_block(self, s: Statement) -> Iterator[Statement | Label]:
        """Replace the names of parameters by their offsets in parameter space."""
        offsets = {name: _number(at) for name, (at, _) in self.blocks.items()}
        operands = tuple(offsets.get(item[1], item) if item[0] == "name" else item for item in s.operands)
        yield replace(s, operands=operands)

    def parameter(self, s: Statement) -> Iterator[Statement | Label]:
        """Turn a parameter load at a computed address into a load from global memory."""
        loads = reading.accesses_parameter(s.opcode)
        address = s.operands[-1][1] if loads else s.operands[1]
        base, displacement = (address[1], address[2]) if address[0] == "sum" else (address, 0)
        if loads and base[1] not in self.registers:
            yield s
            return
        if base[1] in self.blocks:
            base = _number(self.blocks[base[1]][0])
        target = self.register("b64") if loads else s.operands[0]
        yield Statement(names.move("b64"), (target, base), None, s.loc)
        for name, (at, size) in self.blocks.items():
            distance, inside, there = self.register("b64"), self.register("pred"), self.register("b64")
            yield Statement(_SUB, (distance, target, _number(at)), None, s.loc)
            below = (inside, distance, _number(size))
            yield Statement(names.compare("lt", dtypes.u64), below, None, s.loc)
            yield Statement(_ADD, (there, distance, ("name", in_memory(name))), None, s.loc)
            yield Statement(names.select(64), (target, there, target, inside), None, s.loc)
        if loads:
            opcode = reading.in_local_memory(s.opcode)
            yield replace(
                s, opcode=opcode, operands=(s.operands[0], ("address", ("sum", target, displacement)))
            )

    # -- jumps, comparisons, reciprocals ---------------------------------------------------------------

    def jumps(self, s: Statement) -> Iterator[Statement | Label]:
        index, table = s.operands[0], s.operands[1][1]
        if table not in self.tables:
            raise UnsupportedSyntax(f"{s.opcode}: {table} is not a table of labels", s.loc)
        behind = f"{next(self.numbers)} behind the table"
        if s.guard is not None:
            yield jump(behind, s, negated(s.guard))
        for i, target in enumerate(self.tables[table]):
            here = self.register("pred")
            operands = (here, index, _number(i))
            yield Statement(names.compare("eq", dtypes.u32), operands, None, s.loc)
            yield jump(target, s, (here[1], False))
        yield Label(behind, s.loc)

    def breakpoint(self, s: Statement) -> Iterator[Statement | Label]:
        yield replace(s, opcode=names.TRAP)

    def without_time_limit(self, s: Statement) -> Iterator[Statement | Label]:
        """Drop the time limit of an mbarrier wait."""
        plain = replace(s, operands=s.operands[:-1])
        step = self.step(plain)
        yield from [plain] if step is None else step(plain)

    def set_to_number(self, s: Statement) -> Iterator[Statement | Label]:
        """Rewrite `set` as `setp` and selects of 1.0 or all ones, one for each packed half."""
        opcode, kind = reading.comparison(s.opcode)
        into, *operands = s.operands
        packed = opcode.endswith("x2")
        bits = 16 if packed else dtypes.named(kind).bits
        true_bits = {"f16": 0x3C00, "bf1": 0x3F80, "f32": 0x3F800000}.get(kind[:3], (1 << bits) - 1)
        tests = [self.register("pred") for _ in range(1 + packed)]
        test: Item = ("pair", *tests) if packed else tests[0]
        yield Statement(opcode, (test, *operands), None, s.loc)
        if not packed:
            yield Statement(names.select(bits), (into, _number(true_bits), _number(0), test), s.guard, s.loc)
            return
        halves = [self.register("b32") for _ in tests]
        for i, (half, test) in enumerate(zip(halves, tests, strict=True)):
            choice = (half, _number(true_bits << 16 * i), _number(0), test)
            yield Statement(names.select(32), choice, None, s.loc)
        yield Statement(names.bitwise("or", dtypes.u32), (into, *halves), s.guard, s.loc)

    def approx_f64(self, s: Statement) -> Iterator[Statement | Label]:
        """Replace an approximate f64 reciprocal, or reciprocal root, by the correctly rounded one.

        With .ftz, only the upper 32 bits of operand and result count. The hardware's approximation has
        other last bits.
        """
        into, x = s.operands
        bitwise_and, mask = names.bitwise("and", dtypes.named("b64")), _number(0xFFFFFFFF << 32)
        value, result = self.register("f64"), self.register("f64")
        upper = "ftz" in s.opcode
        if upper:
            yield Statement(bitwise_and, (value, x, mask), None, s.loc)
            x = value
        if head(s).startswith("rs"):
            yield Statement(names.square_root(dtypes.f64), (value, x), None, s.loc)
            x = value
        one: Item = ("number", "1.0")
        yield Statement(names.binary("div", dtypes.f64), (result, one, x), None, s.loc)
        yield Statement(bitwise_and, (into, result, mask if upper else _number(-1)), s.guard, s.loc)

    # -- addresses ---------------------------------------------------------------------------------

    def offset(self, s: Statement, address: Item) -> tuple[list[Statement], Item, Item]:
        """Compute a generic address, and its distance from the start of the shared window."""
        base, displacement = (address[1], address[2]) if address[0] == "sum" else (address, 0)
        steps, generic, distance = [], base, self.register("b64")
        if displacement:
            generic = self.register("b64")
            steps.append(Statement(_ADD, (generic, base, _number(displacement)), None, s.loc))
        steps.append(Statement(_SUB, (distance, generic, _number(int(WINDOW))), None, s.loc))
        return steps, generic, distance

    def access(self, s: Statement) -> Iterator[Statement | Label]:
        at = [item[0] for item in s.operands].index("address")
        steps, generic, distance = self.offset(s, s.operands[at][1])
        inside, outside, narrow = self.register("pred"), self.register("pred"), self.register("b32")
        yield from steps
        below = (inside, distance, _number(1 << 32))
        yield Statement(names.compare("lt", dtypes.u64), below, None, s.loc)
        yield Statement(_NOT, (outside, inside), None, s.loc)
        yield Statement(_NARROW, (narrow, distance), None, s.loc)
        if s.guard is not None:
            guard: Item = ("name", s.guard[0])
            if s.guard[1]:
                guard = self.register("pred")
                yield Statement(_NOT, (guard, ("name", s.guard[0])), None, s.loc)
            yield Statement(_AND, (inside, inside, guard), None, s.loc)
            yield Statement(_AND, (outside, outside, guard), None, s.loc)
        here = "shared::cluster" if self.cluster else "shared"
        for space, address, guard in ((here, narrow, inside), ("global", generic, outside)):
            operands = (*s.operands[:at], ("address", address), *s.operands[at + 1 :])
            opcode = reading.with_space(s.opcode, space)
            yield Statement(opcode, operands, (guard[1], False), s.loc)

    def mbarrier_address(self, s: Statement) -> Iterator[Statement | Label]:
        at = [item[0] for item in s.operands].index("address")
        steps, _, distance = self.offset(s, s.operands[at][1])
        narrow = self.register("b32")
        yield from steps
        yield Statement(_NARROW, (narrow, distance), None, s.loc)
        operands = (*s.operands[:at], ("address", narrow), *s.operands[at + 1 :])
        in_shared = replace(s, opcode=reading.with_space(s.opcode, "shared::cta"), operands=operands)
        step = self.step(in_shared)
        yield from [in_shared] if step is None else step(in_shared)

    def mbarrier_state(self, s: Statement) -> Iterator[Statement | Label]:
        """Represent the state of an mbarrier by the parity of its current phase."""
        if reading.waits(s.opcode):
            parity = self.register("b32")
            yield Statement(_NARROW, (parity, s.operands[2]), s.guard, s.loc)
            operands = (*s.operands[:2], parity)
            yield replace(s, opcode=reading.with_parity(s.opcode), operands=operands)
            return
        state, address, *rest = s.operands
        odd = self.register("pred")
        # A test for parity 1 succeeds at once while the current phase is even.
        yield Statement(names.MBARRIER_TEST_WAIT, (odd, address, _number(1)), s.guard, s.loc)
        if state != ("name", "_"):
            even = (state, _number(0), _number(1), odd)
            yield Statement(names.select(64), even, s.guard, s.loc)
        yield replace(s, operands=(("name", "_"), address, *rest))

    def isspacep(self, s: Statement) -> Iterator[Statement | Label]:
        """Test whether a generic address lies in a state space (`isspacep`)."""
        space = s.opcode.rpartition(".")[2].split("::")[0]
        into, address = s.operands
        if space == "local":
            offsets, size = local_layout(self.function)
            distance = address
            if offsets:
                first: Item = ("name", next(iter(offsets)))
                start, distance = self.register("b64"), self.register("b64")
                yield Statement(names.move("b64"), (start, first), None, s.loc)
                yield Statement(_SUB, (distance, address, start), None, s.loc)
            operands = (into, distance, _number(size))
        elif space in ("shared", "global"):
            steps, _, distance = self.offset(s, address)
            yield from steps
            operands = (into, distance, _number(1 << 32))
        else:
            raise UnsupportedSyntax(f"{s.opcode}: shared, global and local memory are told apart", s.loc)
        relation = "ge" if space == "global" else "lt"
        yield Statement(names.compare(relation, dtypes.u64), operands, s.guard, s.loc)

    def mapa(self, s: Statement) -> Iterator[Statement | Label]:
        into, address, rank = s.operands
        steps, _, distance = self.offset(s, address)
        narrow, peer, wide = self.register("b32"), self.register("b32"), self.register("b64")
        yield from steps
        yield Statement(_NARROW, (narrow, distance), None, s.loc)
        yield Statement(names.MAP_SHARED, (peer, narrow, rank), None, s.loc)
        yield Statement(_WIDEN, (wide, peer), None, s.loc)
        yield Statement(_ADD, (into, wide, _number(int(WINDOW))), s.guard, s.loc)

    def cta_rank(self, s: Statement) -> Iterator[Statement | Label]:
        into, address = s.operands
        steps, _, distance = self.offset(s, address)
        narrow, above, own_rank = (self.register("b32") for _ in range(3))
        here = self.register("pred")
        yield from steps
        yield Statement(_NARROW, (narrow, distance), None, s.loc)
        shift = (above, narrow, _number(CLUSTER_SHIFT))
        yield Statement(names.shift_right(dtypes.u32), shift, None, s.loc)
        yield Statement(names.compare("eq", dtypes.u32), (here, above, _number(0)), None, s.loc)
        yield Statement(names.binary("sub", dtypes.u32), (above, above, _number(1)), None, s.loc)
        rank = "%cluster_ctarank"
        yield Statement(names.move("u32"), (own_rank, ("name", rank)), None, s.loc)
        yield Statement(names.select(32), (into, own_rank, above, here), s.guard, s.loc)
