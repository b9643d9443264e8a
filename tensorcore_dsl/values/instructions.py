"""Append instructions to a kernel under construction: check operands, reuse results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes, isa
from tensorcore_dsl.arch import Arch
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import Loc, OperandError
from tensorcore_dsl.ir.verify import agree
from tensorcore_dsl.isa import advice, classify, names
from tensorcore_dsl.isa.access import GENERIC
from tensorcore_dsl.isa.bounds import format_text
from tensorcore_dsl.isa.descriptor import SharedTile
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.values.values import RegisterGroup, Scalar

from tensorcore_dsl.ir.nodes import (  # isort: skip
    Address,
    Assign,
    Block,
    Const,
    Kernel,
    Node,
    Op,
    Part,
    Type,
    Value,
)
from tensorcore_dsl.values.operands import (  # isort: skip
    both,
    check_descriptors,
    check_register,
    constant,
    describe,
    element_type,
    filling,
    guard_of,
    immediate,
    is_number,
    literal,
    number_type,
    part_source,
    type_of,
    wrong_count,
)

MAX_DIVISOR = 1024
SHARED_ALIGN = 16  # bytes, of shared memory
MAX_OFFSET = 2**31 - 1  # of `[base + offset]`
Tiles = frozenset[SharedTile | None]  # that an address may point into; None: it is computed otherwise
NOWHERE: Tiles = frozenset()
OTHER: Tiles = frozenset([None])


@dataclass(frozen=True)
class BuilderState:
    """A state of the builder, which `undo` restores."""

    block: Block
    length: int
    shared_bytes: int
    tiles: int
    known: int


class InstructionBuilder:
    """Appends instructions, registers and constants to the current block of a kernel.

    `locate` returns the current location in the user's source. Within a block, an instruction
    without effects is emitted once for the same operands, and its results are reused.
    """

    def __init__(self, kernel: Kernel, arch: Arch, locate: Callable[[], Loc | None]) -> None:
        self.kernel, self.arch, self.locate = kernel, arch, locate
        self.block = kernel.body
        self.known: dict[Any, Any] = {}
        self._order: list[Any] = []  # keys of known, oldest first
        self._definitions: dict[Value, Op] = {}
        self._products: dict[Any, tuple[Value, ...]] = {}  # see `_note_products`
        self.carried: dict[Value, Scalar] = {}  # by variable, its product
        # in a checked build, by address: the static tiles from whose addresses it was computed
        self.tiles_of: dict[Value, Tiles] = {}
        self._checked: dict[str, Instruction] = {}
        self.checks = False  # a checked build: indices are checked at run time
        self.asserts = True  # assertions are checked at run time
        # in a checked build, of each dynamic tile: bytes from, to, its name and swizzle
        self.dynamic_tiles: list[tuple[int, int, str, int]] = []
        self.tensor_maps: dict[Any, Any] = {}  # by their addresses
        self.misfit: tuple[OperandError, int] | None = None  # and the index of the operand
        self.multiples: dict[Value, int] = {}  # powers of two that divide parameters and indices
        self.overflow: Loc | None = None  # where static shared memory first exceeds the target's
        self._ids = 0

    # -- structure ---------------------------------------------------------------------------

    def new_value(self, type: Type) -> Value:
        self._ids += 1
        return Value(self._ids - 1, type)

    def append(self, node: Node) -> None:
        node.loc = self.locate()
        self.block.nodes.append(node)

    @contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        """Emit into `block`; its results are not reused outside."""
        outer, known = self.block, len(self._order)
        self.block = block
        try:
            yield block
        finally:
            self.block = outer
            self._forget(known)

    def mark(self) -> BuilderState:
        kernel, known = self.kernel, len(self._order)
        return BuilderState(self.block, len(self.block), kernel.shared_bytes, len(kernel.tiles), known)

    def undo(self, mark: BuilderState) -> None:
        """Remove everything emitted since `mark`."""
        del mark.block.nodes[mark.length :]
        self.kernel.shared_bytes = mark.shared_bytes
        del self.kernel.tiles[mark.tiles :]
        self._forget(mark.known)

    def _forget(self, length: int) -> None:
        for key in self._order[length:]:
            del self.known[key]
        del self._order[length:]

    def _remember(self, key: Any, result: Any) -> None:
        self.known[key] = result
        self._order.append(key)

    # -- instructions ------------------------------------------------------------------------

    def instruction(self, mnemonic: str) -> Instruction:
        """The instruction of this text; ArchError if the target lacks it."""
        known = self._checked.get(mnemonic)
        if known is None:
            known = isa.instruction(mnemonic)
            known.requires.check(self.arch, advice.called(known.mnemonic))
            self._checked[mnemonic] = known
        return known

    def named(self, mnemonic: str, *operands: Any, **options: Any) -> Any:
        """Emit the instruction of this text."""
        return self.emit(self.instruction(mnemonic), operands, options)

    def emit(self, instr: Instruction, operands: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Check and append one instruction.

        Options: `pred` is a condition that guards it; `otherwise` is the result where that fails.
        """
        if self._checked.get(instr.mnemonic) is not instr:
            instr.requires.check(self.arch, advice.called(instr.mnemonic))
            self._checked[instr.mnemonic] = instr
        if len(operands) != len(instr.operands):
            raise wrong_count(instr, len(operands))
        if instr.ordering is not None:
            check_descriptors(instr, operands)
        guard = guard_of(instr, options) if options else True
        if self.checks and guard is not False:
            self._check_addresses(instr, operands, guard)
            if classify.is_integer_division(instr) and isinstance(operands[1], Scalar):
                self._check_divisor(operands[0], operands[1], guard)
        sources = tuple(
            [
                self._source(operand_value, wanted, instr)
                for operand_value, wanted in zip(operands, instr.operands, strict=True)
            ]
        )
        swizzle = None
        if self.checks and classify.accesses_memory(instr):
            swizzle = next((o.swizzle for o in operands if hasattr(o, "swizzle")), None)
        if guard is True:
            return self._unguarded(instr, sources, swizzle)
        return self._guarded(instr, sources, guard, options.get("otherwise"), swizzle)

    def _check_addresses(self, instr: Instruction, operands: Sequence[Any], guard: Any) -> None:
        """Check the bounds of address operands: pointers, tiles, barriers, plain addresses."""
        if not instr.accesses:
            return
        by_name = dict(zip((o.name for o in instr.operands), operands, strict=True))
        for access in instr.accesses:
            bounded, where, bytes_ = by_name[access.operand], guard, access.bytes
            plain = type(bounded) is Scalar
            if access.verb == "hint" or not (plain or hasattr(bounded, "check_bounds")):
                continue
            bytes_ = by_name.get(str(bytes_), bytes_)
            if access.lanes < 32:
                where = both(where, self.special("laneid") < access.lanes)
            if access.unless:
                where = both(where, by_name[access.unless] == 0)
            where = None if where is True else where
            if bytes_ == "box":
                bytes_ = _box_bytes(instr, self.tensor_maps, by_name["map"], bounded)
            if plain:
                self._check_plain(bounded, bytes_, where)
            elif bytes_ == "lines":
                lines, bytes_, stride = instr.lines  # type: ignore[misc]
                bounded.check_lines(lines, bytes_, by_name.get("stride", stride), where)
            elif access.bulk:
                bounded.check_run(bytes_, where)
            else:
                bounded.check_bounds(bytes_, where)

    def _check_plain(self, address: Scalar, bytes_: Any, pred: Any) -> None:
        """Check an access at an address without bounds.

        It stays in the static tile from whose address it was computed at run time. If the address
        is known, it ends in the static tile in which it starts.
        """
        self.check_products(address, pred, "an address")
        start, tiles = self.static_offset(address), self._tiles(address)
        if bytes_ == "lines":
            return
        areas = [tile for tile in tiles if tile is not None]
        if start is None and areas and None not in tiles:
            first = min(tile.start for tile in areas)
            size = max(tile.start + tile.bytes for tile in areas) - first
            add, base = names.binary("add", dtypes.s32), self.named(names.STATIC_SHARED)
            offset = self.named(names.binary("sub", dtypes.u32), address, base)
            count, name = bytes_, " and ".join(sorted(tile.name for tile in areas))
            if isinstance(bytes_, Scalar):
                last = self.named(add, self.named(add, offset, -first - 1), bytes_)
                pred, count = both(pred, bytes_ != 0), 1
                self.check(dtypes.s32, last, size, 1, f"byte %lld leaves {name}, which has %lld bytes", pred)
            text = f"{count} bytes from byte %lld on leave {name}, which has %lld bytes"
            self.check(dtypes.s32, self.named(add, offset, -first), size, count, text, pred)
        if start is None:
            return
        for tile in self.kernel.tiles:
            if tile.start <= start < tile.start + tile.bytes:
                last, where = bytes_ + (start - tile.start - 1), pred
                if isinstance(bytes_, Scalar):
                    last, where = last.bits(dtypes.s32), both(pred, bytes_ != 0)
                elif last < tile.bytes:
                    return
                text = f"byte %lld leaves {tile.name}, which has %lld bytes"
                self.check(dtypes.s32, last, tile.bytes, 1, text, where)

    def _check_divisor(self, left: Any, right: Scalar, guard: Any) -> None:
        """Check that an integer divisor is not zero, where `guard` holds."""
        dtype = right.dtype
        zero = both(guard, self.named(names.compare("eq", dtype), right, 0))
        wide = dtypes.s64 if dtype.bits == 64 else dtypes.s32
        values = [self.scalar(value, dtype) for value in (left, right)]
        if dtype.bits == 16:
            values = [self.named(names.convert(wide, dtype, ""), value) for value in values]
        number, zeros = (Scalar(value.value, wide) for value in values)
        text = "division of %lld by %lld"
        self.check(wide, number, zeros, 1, text, zero, "InvalidArithmetic")

    def _unguarded(self, instr: Instruction, sources: tuple[Any, ...], swizzle: int | None = None) -> Any:
        reusable = not instr.effects and bool(instr.results)
        if reusable:
            key = (instr, *map(_key, sources))
            known = self.known.get(key)
            if known is not None:
                return known
        results = tuple([self.new_value(type_of(r)) for r in instr.results])
        op = Op(instr, results, sources, swizzle=swizzle)
        self.append(op)
        for result in results:
            self._definitions[result] = op
        starts = instr.mnemonic == names.INDEX_PRODUCT
        if self.checks and (starts or (self._products and instr.mnemonic in names.INDEX_ARITHMETIC)):
            self._note_products(op)
        if reusable and self.tiles_of:
            self._note_other(op)
        wrapped = _wrap(instr, results)
        if reusable:
            self._remember(key, wrapped)
        return wrapped

    def _note_products(self, op: Op) -> None:
        """Remember the whole products of s32 that a result is a sum of, or chosen from.

        What is computed for that is dead code unless the result becomes an index. A constant like
        the size of a tile, and an index of a thread or block, is too small for a product to wrap.
        """
        (result,), sources = op.results, list[Any](op.operands)
        products = dict.fromkeys(whole for source in sources for whole in self._products.get(source, ()))
        if products and op.instr.mnemonic == names.INDEX_CHOICE:
            yes, no, condition = sources
            chosen = self._chosen(self.product(yes), self.product(no), Scalar(condition))
            products = {chosen.value: None}
        elif op.instr.mnemonic == names.INDEX_PRODUCT and not any(map(self._is_small, sources)):
            factors = [s.value if isinstance(s, Const) else Scalar(s) for s in sources]
            whole = self.named(names.multiply_wide(dtypes.s32), *factors)
            self._wrapped(whole)
            products[whole.value] = None
        if products:
            self._products[result] = tuple(products)

    def _wrapped(self, whole: Scalar) -> tuple[Scalar, Scalar]:
        """A product in 32 bits, widened again, and whether it differs from the whole one."""
        wide, narrow = dtypes.s64, dtypes.s32
        kept = self.named(names.convert(narrow, wide), whole)
        kept = self.named(names.convert(wide, narrow), kept)
        return kept, self.named(names.compare("ne", wide), whole, kept)

    def _chosen(self, yes: Any, no: Any, condition: Scalar) -> Scalar:
        chosen = self.named(names.select(64), yes, no, condition)
        return Scalar(chosen.value, dtypes.s64)

    def product(self, value: Any) -> Any:
        """The product in a value that wraps in 32 bits, or any; 0 if there is none."""
        if not (wholes := [*map(Scalar, self.products(value))]):
            return 0
        return reduce(lambda a, b: self._chosen(a, b, self._wrapped(a)[1]), wholes)

    def follow(self, variable: Any, values: Sequence[Any]) -> None:
        """Let a variable carry the product in what is written to it, if one of `values` has any.

        It is an address in static tiles if all values are.
        """
        if any(map(self.products, values)):
            whole = self.new_value(Type(dtypes.s64))
            self.carried[variable.value] = Scalar(whole)
            self._products[variable.value] = (whole,)
        tiles = [*map(self._tiles, values)]
        if any(tiles):
            self.tiles_of[variable.value] = frozenset().union(*tiles) if all(tiles) else OTHER

    def follows(self, variable: Any, value: Any) -> bool:
        """True if a variable follows the products in a value, and the tiles that it points into."""
        tiles, more = self._tiles(variable), self._tiles(value)
        points = tiles >= OTHER or (more <= tiles and bool(more) == bool(tiles))
        return points and bool(self.products(variable) or not self.products(value))

    def _tiles(self, value: Any) -> Tiles:
        return self.tiles_of.get(getattr(value, "value", value), NOWHERE)

    def note_sum(self, result: Any, left: Any, right: Any) -> None:
        """Remember the tiles that a sum or a difference points into: those of an address in it.

        Constants are added last, so two tiles' addresses may give the same register.
        """
        if tiles := self._tiles(left) | self._tiles(right):
            self.tiles_of[result.value] = self._tiles(result) | tiles

    def _note_other(self, op: Op) -> None:
        """Remember that a result depends on addresses of tiles, and need not be one."""
        known = [s for s in op.operands if type(s) is Value and s in self.tiles_of]
        if known and (len(known) > 1 or not classify.is_addition(op.instr)):
            self.tiles_of |= dict.fromkeys(op.results, OTHER)

    def _is_small(self, source: Any) -> bool:
        if isinstance(source, Const):
            return abs(int(source.value)) <= MAX_DIVISOR
        op = self._definitions.get(source)
        return op is not None and op.instr.opcode == names.MOVE

    def _guarded(
        self, instr: Instruction, sources: tuple[Any, ...], guard: Any, otherwise: Any, swizzle: int | None
    ) -> Any:
        results = tuple(self.new_value(type_of(r)) for r in instr.results)
        for result, operand in zip(results, instr.results, strict=True):
            self.append(Assign(result, (filling(otherwise, operand, instr),)))
        if isinstance(guard, Scalar):
            self.append(Op(instr, results, sources, guard=guard.value, swizzle=swizzle))
        return _wrap(instr, results)

    # -- operands ----------------------------------------------------------------------------

    def _source(self, value: Any, wanted: Operand, instr: Instruction) -> Any:
        """The IR source for one operand of a call; OperandError if it does not fit."""
        if wanted.kind == "addr":
            return self.address(value, wanted, instr.space == GENERIC)
        if wanted.kind == "imm":
            return immediate(value, wanted, instr)
        if wanted.registers > 1 or wanted.layout is not None:
            return self._group(value, wanted, instr)
        if isinstance(value, Scalar):
            if not agree(value.dtype, wanted.dtype):
                raise self._mismatch(value, wanted, instr)
            return value.value
        if is_number(value):
            return constant(value, wanted.dtype)
        raise self._mismatch(value, wanted, instr)

    def _group(self, value: Any, wanted: Operand, instr: Instruction) -> Value:
        want = type_of(wanted)
        if isinstance(value, RegisterGroup):
            have = value.value.type
            plain = have.layout is None and want.layout is None
            same_size = (have.registers, have.register_bits) == (want.registers, want.register_bits)
            if have == want or (plain and same_size):
                return value.value
        if isinstance(value, (list, tuple)) and len(value) == wanted.registers:
            if wanted.layout is not None:
                for register in value:
                    check_register(register, wanted.layout)
            return self.pack(list(value), want).value
        if isinstance(value, Scalar) and wanted.registers == 1:
            if wanted.layout is not None:
                check_register(value, wanted.layout)
            return self.pack([value], want).value
        raise self._mismatch(value, wanted, instr)

    def _mismatch(self, value: Any, wanted: Operand, instr: Instruction) -> OperandError:
        kind = "a fragment " if wanted.is_fragment else ""
        error = OperandError(
            f"operand {wanted.name} of {instr} must be {kind}{wanted.type_name}, not {describe(value)}"
        )
        self.misfit = error, instr.operands.index(wanted)
        return error

    def address(self, value: Any, wanted: Operand, generic: bool = False) -> Address:
        """`[base + offset]` of an address; constants added last become the offset.

        generic: a shared address becomes a generic one.
        """
        pointer = getattr(value, "address", value)
        if isinstance(pointer, (int, np.integer)) and not isinstance(pointer, bool):
            return Address(Const(int(pointer), wanted.dtype))
        if not isinstance(pointer, Scalar):
            raise OperandError(f"an address is needed, not {describe(value)}")
        if generic and pointer.dtype.bits == 32 and wanted.dtype.bits == 64:
            wide = self.named(names.convert(wanted.dtype, dtypes.u32), pointer)
            pointer = self.named(names.GENERIC_OF_SHARED, wide)
        if pointer.dtype.bits != wanted.dtype.bits:
            space = "global" if wanted.dtype.bits == 64 else "shared"
            raise OperandError(f"a {space} address ({wanted.dtype}) is needed, not {describe(pointer)}")
        base, offset = self.split_constant(pointer)
        if base is not None and -MAX_OFFSET <= offset <= MAX_OFFSET:
            return Address(base.value, offset)
        return Address(pointer.value)

    def split_constant(self, index: Any) -> tuple[Scalar | None, int]:
        """x as (y, c) with x = y + c for a compile-time c; y is None for a constant."""
        if not isinstance(index, Scalar):
            return None, int(index)
        offset, value = 0, index.value
        while True:
            op = self._definitions.get(value)
            if op is None or not classify.is_integer_addition(op.instr):
                break
            left, right = op.operands
            if not isinstance(right, Const) or not isinstance(left, Value):
                break
            offset += int(right.value)
            value = left
        return (index if value is index.value else Scalar(value, index.dtype)), offset

    def static_offset(self, address: Scalar) -> int | None:
        """The offset of an address in static shared memory; None where it is not known."""
        base, offset = self.split_constant(address)
        op = self._definitions.get(base.value) if base is not None else None
        return offset if op is not None and op.instr.mnemonic == names.STATIC_SHARED else None

    def divisor(self, value: Any) -> int:
        """The greatest power of two, at most MAX_DIVISOR, that is known to divide an integer."""
        if not isinstance(value, Scalar):
            return _power_of_two(int(value))
        return self.divisor_of(value.value)

    def divisor_of(self, source: Value | Const) -> int:
        """Power of two that divides a source of the IR."""
        if isinstance(source, Const):
            return _power_of_two(int(source.value))
        op = self._definitions.get(source)
        if op is None:
            return self.multiples.get(source, 1)
        name, sources = op.instr.mnemonic, op.operands
        if name in (names.STATIC_SHARED, names.DYNAMIC_SHARED):
            return SHARED_ALIGN
        if name.startswith(names.INTEGER_PRODUCTS):
            return min(prod(map(self.divisor_of, sources)), MAX_DIVISOR)  # type: ignore[arg-type]
        if op.results[0].type.dtype.kind not in "sub" or op.instr.effects:
            return 1
        if op.instr.opcode == names.LEFT_SHIFT and isinstance(sources[1], Const):
            return min(self.divisor_of(sources[0]) << int(sources[1].value), MAX_DIVISOR)  # type: ignore[arg-type]
        if op.instr.opcode == names.BITWISE_AND:
            return max(map(self.divisor_of, sources))  # type: ignore[arg-type]
        if op.instr.opcode in names.KEEPING_DIVISORS:
            return min(map(self.divisor_of, sources))  # type: ignore[arg-type]
        return 1

    # -- values ------------------------------------------------------------------------------

    def special(self, register: str) -> Scalar:
        """A special register; 32-bit ones are s32, as indices are."""
        value: Scalar = self.named(names.special(register))
        return Scalar(value.value, dtypes.s32) if value.dtype == dtypes.u32 else value

    def literal(self, value: Any, dtype: DType) -> Scalar:
        """A register that holds a constant."""
        register = self.new_value(Type(dtype))
        self.append(Assign(register, (literal(value, dtype),)))
        return Scalar(register, dtype)

    def copy(self, value: Value) -> Value:
        """A copy of a register, which stays as it is when the register changes."""
        key = ("copy", value)
        known: Value | None = self.known.get(key)
        if known is None:
            known = self.new_value(value.type)
            self.append(Assign(known, (value,)))
            self._products[known] = self._products.get(value, ())
            self._remember(key, known)
            self._remember(("original", known), value)
        return known

    def check(
        self,
        dtype: DType,
        index: Any,
        extent: Any,
        count: int,
        message: str,
        pred: Any = None,
        error: str = "OutOfBounds",
    ) -> None:
        """In a checked build: stop unless `count` numbers from `index` on lie in [0, extent).

        message: a format for index and extent. error: the name of the class of the error. Emits
        nothing if the same check, or one without `pred`, has been passed here. Other builds have
        only the checks of assertions.
        """
        operands = [o.value if isinstance(o, Scalar) else o for o in (index, extent)]
        operands = [self.known.get(("original", value), value) for value in operands]
        guards = [None] if pred is None else [None, getattr(pred, "value", pred)]
        keys = [("check", *operands, count, where) for where in guards]
        wanted = self.asserts if error == "AssertionFailed" else self.checks
        if not wanted or any(key in self.known for key in keys):
            return
        self._remember(keys[-1], True)
        where = str(self.locate() or self.kernel.name)
        # The cache finds machine code without checks by the files' contents, not by their folders.
        where = where if self.checks else os.path.basename(where)
        text = format_text(where, message, error)
        number = self.string(text)
        self.named(names.check_index(dtype), number, index, extent, count, pred=pred)
        self.check_products(index, pred)

    def products(self, index: Any) -> tuple[Value, ...]:
        """The products that an s32 is a sum of or chosen from, in 64 bits."""
        return self._products.get(getattr(index, "value", index), ()) if self._products else ()

    def check_products(self, index: Any, pred: Any = None, what: str = "an index") -> None:
        """In a checked build: stop if a product that the index is a sum of has wrapped."""
        for whole in map(Scalar, self.products(index)):
            text = f"the product %lld in {what} is %lld in 32 bits: compute it in s64"
            kept, wraps = self._wrapped(whole)
            where = both(pred, wraps)
            self.check(dtypes.s64, whole, kept, MAX_OFFSET, text, where, "InvalidArithmetic")

    def string(self, text: str) -> int:
        """The number of a string of the kernel."""
        if text not in self.kernel.strings:
            self.kernel.strings.append(text)
        return self.kernel.strings.index(text)

    def scalar(self, value: Any, dtype: DType | None = None) -> Scalar:
        """`value` in a register, a Python number as `dtype` or its own run-time type."""
        if isinstance(value, Scalar):
            return value
        return self.literal(value, dtype or number_type(value))

    def zeros(self, operand: Operand) -> RegisterGroup:
        """A fragment of zeros."""
        if operand.layout is None:
            raise OperandError(f"operand {operand.name} is not a fragment: only fragments have zeros()")
        register = self.new_value(type_of(operand))
        self.append(Assign(register, (Const(0, element_type(operand)),)))
        return RegisterGroup(register, operand)

    def pack(self, parts: Sequence[Any], type: Type, operand: Operand | None = None) -> RegisterGroup:
        """A group made of one scalar for each register."""
        if len(parts) != type.registers:
            raise OperandError(f"{type} has {type.registers} registers, {len(parts)} were given")
        register = self.new_value(type)
        self.append(Assign(register, tuple(part_source(p, type) for p in parts)))
        return RegisterGroup(register, operand)

    def part(self, group: RegisterGroup, index: int) -> Scalar:
        """Register `index` of a group as a scalar."""
        key = ("part", group.value, index)
        part: Scalar | None = self.known.get(key)
        if part is None:
            dtype = group.register_dtype
            register = self.new_value(Type(dtype))
            self.append(Assign(register, (Part(group.value, index),)))
            part = Scalar(register, dtype)
            self._remember(key, part)
        return part


def _box_bytes(instr: Instruction, maps: Mapping[Any, Any], address: Any, memory: Any) -> int:
    """Bytes of a box of the tensor map at `address`, which is copied to or from `memory`; 1 for an
    unknown map. OperandError if the memory is in a tile of another swizzle."""
    tensor = maps.get(getattr(address, "value", None))
    if tensor is None:
        return 1
    if getattr(memory, "swizzle", 0) not in (0, tensor.swizzle):
        raise OperandError(
            f"{instr} moves boxes of swizzle={tensor.swizzle}, which {memory.described} does not "
            f"have: write tc.tensor_map(..., swizzle={memory.swizzle})"
        )
    return int(tensor.bytes)


def _power_of_two(number: int) -> int:
    """The greatest power of two, at most MAX_DIVISOR, that divides `number`."""
    return min(number & -number, MAX_DIVISOR) if number else MAX_DIVISOR


def _wrap(instr: Instruction, results: tuple[Value, ...]) -> Any:
    wrapped = tuple(
        [
            RegisterGroup(value, operand) if value.type.is_group else Scalar(value)
            for value, operand in zip(results, instr.results, strict=True)
        ]
    )
    if not wrapped:
        return None
    return wrapped[0] if len(wrapped) == 1 else wrapped


def _key(source: Any) -> Any:
    """A constant by its bits: 0.0, -0.0 and False are equal in Python."""
    if isinstance(source, Const):
        return (source.dtype.name, repr(source.value))
    return source
