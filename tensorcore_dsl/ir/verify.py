"""The rules of the IR: short functions, run by one generic walk.

A rule takes a node (or the kernel) and yields error texts that state what is given and what is
allowed. The first one is raised with the node's location. Kernels are verified after `coalesce`;
the printer and the interpreter rely on the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.dtypes import DType, u64
from tensorcore_dsl.errors import OperandError, VerifyError, listing, located
from tensorcore_dsl.ir.assignment import Assignment
from tensorcore_dsl.ir.coalesce import unwritten_operand
from tensorcore_dsl.ir.constants import const_bits, const_int, immediate_complaint, shortened
from tensorcore_dsl.ir.forward import part_type
from tensorcore_dsl.isa.spec import Instruction, Operand

from tensorcore_dsl.ir.nodes import (  # isort: skip
    MAX_NESTING, Address, Assign, Block, Const, For, If, Jump, Kernel, Node, Op, Part, Source,
    Im2col, TensorMap, Type, Value, While, children, writes,
)  # fmt: skip

Complaints = Iterator[str]

MAX_THREADS = 1024  # per block, on every architecture
MAX_CLUSTER = 16  # CTAs; more than 8 need opt-in
MAX_BOX = 256  # elements of one tensor copy along an axis
MAX_RANK = 5  # axes of a tensor map
MAX_PIXELS, MAX_STEP = 1024, 8  # of a copy in im2col mode
CORNER_BITS = {3: 16, 4: 8, 5: 5}  # bits of a corner in im2col mode, by axes of the tensor map
SWIZZLES = (0, 32, 64, 128)  # bytes
MAX_REGISTERS = 4096  # of one value
MAX_LIMIT = 65535  # registers of a thread, blocks of a multiprocessor
MAX_SHARED = 1 << 24  # bytes, and alignment


def verify(kernel: Kernel, arch: Arch) -> None:
    """Raise VerifyError (or ArchError) for the first rule that `kernel` violates on `arch`."""
    for rule in KERNEL_RULES:
        for complaint in rule(kernel):
            raise VerifyError(f"kernel {kernel.name}: {complaint}")
    _Walk(arch).block(kernel.body, ())
    Assignment(kernel).check()


def too_deep(depth: int) -> str:
    return f"branches and loops nest {depth} deep; {MAX_NESTING} are allowed"


@dataclass
class _Walk:
    """Applies to each node the rules of its class."""

    arch: Arch
    supported: set[Instruction] = field(default_factory=set)
    named: dict[int, Value] = field(default_factory=dict)

    def block(self, block: Block, loops: tuple[Node, ...], depth: int = 0) -> None:
        for node in block:
            if depth > MAX_NESTING:
                raise VerifyError(too_deep(depth), node.loc)
            if isinstance(node, Op) and node.instr not in self.supported:
                with located(node.loc):
                    node.instr.requires.check(self.arch, node.instr.mnemonic)
                self.supported.add(node.instr)
            for rule in NODE_RULES[type(node)]:
                for complaint in rule(node):
                    raise VerifyError(complaint, node.loc)
            if isinstance(node, Jump):
                self.jump(node, loops)
            self.written(node, loops)
            inside = (*loops, node) if isinstance(node, (For, While)) else loops
            for child in children(node):
                self.block(child, inside, depth + 1)

    def jump(self, node: Jump, loops: tuple[Node, ...]) -> None:
        if node.kind != "return" and not loops:
            raise VerifyError(f"`{node.kind}` outside of a loop", node.loc)

    def written(self, node: Node, loops: tuple[Node, ...]) -> None:
        """Names are unique, and only loops write their index."""
        for value in writes(node):
            if self.named.setdefault(value.id, value) is not value:
                raise VerifyError(f"two values are called {value}", node.loc)
            for loop in loops:
                if isinstance(loop, For) and value in (loop.index, loop.stop, loop.step):
                    part = "index" if value is loop.index else "bound or step"
                    raise VerifyError(f"{value} is the {part} of a loop that writes it", node.loc)


# --- the kernel -----------------------------------------------------------------------------


def params_are_scalars(kernel: Kernel) -> Complaints:
    for param in kernel.params:
        type = param.value.type
        wide = type.dtype.bits in (8, 16, 32, 64) or type.dtype.kind == "p"
        if type != Type(type.dtype) or not wide:
            yield f"parameter {param.name} is {type}; scalars of 8 to 64 bits and pred are allowed"


def tensor_maps_can_be_encoded(kernel: Kernel) -> Complaints:
    for param in kernel.params:
        if param.tensor_map is None:
            continue
        if param.value.type != Type(u64):
            yield f"tensor map {param.name} is {param.value.type}; its address is a u64"
        for complaint in complaints_about_map(param.tensor_map):
            yield f"tensor map {param.name}: {complaint}"


def complaints_about_map(map: TensorMap) -> Iterator[str]:
    """Errors of a tensor map that do not depend on the array."""
    rank = len(map.axes)
    if map.argument < 0:
        yield f"a tensor map of argument {map.argument}"
    if map.im2col is not None:
        yield from _complaints_about_pixels(map, map.im2col)
    elif not 1 <= rank <= MAX_RANK or len(map.box) != rank:
        yield (
            f"a box of {len(map.box)} extents along {rank} axes; as many of both, 1 to "
            f"{MAX_RANK}, are allowed"
        )
    if len(set(map.axes)) < rank or any(axis < 0 for axis in map.axes):
        yield f"axes {map.axes}; distinct axes, counted from 0, are allowed"
    if map.im2col is None and not all(1 <= extent <= MAX_BOX for extent in map.box):
        box = tuple(extent for _, extent in sorted(zip(map.axes, map.box, strict=False)))
        yield (
            f"a box of {box} elements; 1 to {MAX_BOX} along each axis are allowed, so that "
            "several boxes make a larger tile"
        )
    if map.swizzle not in SWIZZLES:
        yield f"a swizzle of {map.swizzle} bytes; allowed are {listing(SWIZZLES)}"


def _complaints_about_pixels(map: TensorMap, im2col: Im2col) -> Iterator[str]:
    """Errors of a tensor map of im2col mode (PTX manual 5.5.4.1; cuTensorMapEncodeIm2col)."""
    rank = len(map.axes)
    if rank not in CORNER_BITS:
        yield f"im2col mode needs an array of 3 to {MAX_RANK} axes; {rank} were given"
        return
    if len(map.box) != 2 or not (1 <= map.box[0] <= MAX_BOX and 1 <= map.box[1] <= MAX_PIXELS):
        yield (
            f"a box of {map.box[::-1]} elements in im2col mode; allowed are (pixels, channels) of 1 to "
            f"{MAX_PIXELS} pixels and 1 to {MAX_BOX} channels"
        )
    if any(len(numbers) != rank - 2 for numbers in im2col):
        yield f"corners and element strides of im2col mode have a number for each of {rank - 2} axes"
    edge = 1 << CORNER_BITS[rank] - 1
    if not all(-edge <= corner < edge for corner in im2col.lower + im2col.upper):
        yield (
            f"corners {im2col.lower[::-1]} and {im2col.upper[::-1]} of im2col mode; {-edge} to {edge - 1} "
            f"are allowed for an array of {rank} axes"
        )
    if not all(1 <= step <= MAX_STEP for step in im2col.steps):
        yield f"element strides {im2col.steps[::-1]}; 1 to {MAX_STEP} are allowed"


def tensor_maps_come_last(kernel: Kernel) -> Complaints:
    mapped = [param.tensor_map is not None for param in kernel.params]
    if mapped != sorted(mapped):
        yield "a parameter stands behind a tensor map; the maps come last"


def params_are_distinct(kernel: Kernel) -> Complaints:
    for key in (lambda p: p.name, lambda p: str(p.value)):
        most_common = Counter(map(key, kernel.params)).most_common(1)
        if most_common and most_common[0][1] > 1:
            yield f"{most_common[0][1]} parameters are called {most_common[0][0]}"


def threads_fit_a_block(kernel: Kernel) -> Complaints:
    if kernel.threads is not None and not 1 <= kernel.threads <= MAX_THREADS:
        yield f"{kernel.threads} threads in a block; 1 to {MAX_THREADS} are allowed"


def limits_are_sized(kernel: Kernel) -> Complaints:
    for name in ("min_blocks", "max_registers"):
        limit = getattr(kernel, name)
        if limit is not None and not 1 <= limit <= MAX_LIMIT:
            yield f"{name} is {shortened(limit)}; 1 to {MAX_LIMIT} are allowed"


def cluster_is_sized(kernel: Kernel) -> Complaints:
    if kernel.cluster is None:
        return
    good = len(kernel.cluster) == 3 and min(kernel.cluster) >= 1
    if not good or prod(kernel.cluster) > MAX_CLUSTER:
        yield f"cluster {kernel.cluster}; three extents of at most {MAX_CLUSTER} blocks in all are allowed"


def shared_memory_is_sized(kernel: Kernel) -> Complaints:
    if not 0 <= kernel.shared_bytes <= MAX_SHARED:
        yield f"{shortened(kernel.shared_bytes)} bytes of shared memory; 0 to {MAX_SHARED} are allowed"
    for align in (kernel.shared_align, kernel.dynamic or 1):
        if not 1 <= align <= MAX_SHARED or align & (align - 1):
            yield f"shared memory aligned to {shortened(align)}; powers of two up to {MAX_SHARED} are allowed"


KERNEL_RULES: tuple[Callable[[Kernel], Complaints], ...] = (
    params_are_scalars,
    params_are_distinct,
    tensor_maps_can_be_encoded,
    tensor_maps_come_last,
    threads_fit_a_block,
    limits_are_sized,
    cluster_is_sized,
    shared_memory_is_sized,
)


# --- instructions ---------------------------------------------------------------------------


def agree(have: DType, want: DType) -> bool:
    """Whether a register of type `have` may be an operand of type `want` (PTX 9.4).

    Bit types agree with every type of their size, signed with unsigned integers, and tf32 with f32.
    """
    if have == want:
        return True
    if have.register_bits != want.register_bits:
        return False
    untyped = "b" in (have.kind, want.kind) or (have.is_integer and want.is_integer)
    return untyped or {have.name, want.name} == {"f32", "tf32"}


def fits(type: Type, operand: Operand) -> bool:
    """Whether a value of `type` may be passed as `operand`; untyped operands accept fragments."""
    if operand.layout is not None:
        return type == Type(operand.dtype, operand.registers, operand.layout.name)
    if type.registers != operand.registers:
        return False
    if type.layout is not None:  # its registers are untyped bits
        return operand.dtype.kind == "b" and type.register_bits == operand.register_bits
    return agree(type.dtype, operand.dtype)


def needed(operand: Operand) -> str:
    layout = operand.layout.name if operand.layout else None
    return f"{Type(operand.dtype, operand.registers, layout)} is needed"


def count_of_operands(op: Op) -> Complaints:
    for what, actual, wanted in (
        ("operands", op.operands, op.instr.operands),
        ("results", op.results, op.instr.results),
    ):
        if len(actual) != len(wanted):
            names = f" ({listing(o.name for o in wanted)})" if wanted else ""
            yield f"{op.instr} has {len(wanted)} {what}{names}, {len(actual)} were given"


def kinds_and_types_of_operands(op: Op) -> Complaints:
    for source, operand in zip(op.operands, op.instr.operands):
        complaint = _OPERAND_KINDS[operand.kind](source, operand)
        if complaint:
            yield f"operand {operand.name} of {op.instr}: {complaint}"


def types_of_results(op: Op) -> Complaints:
    for value, operand in zip(op.results, op.instr.results):
        if not isinstance(value, Value) or not fits(value.type, operand):
            actual = _described(value)
            yield f"result {operand.name} of {op.instr}: {actual}, where {needed(operand)}"


def results_are_distinct(op: Op) -> Complaints:
    if len(set(op.results)) < len(op.results):
        yield f"{op.instr} writes one value twice: {listing(op.results)}"


def values_are_sized(node: Node) -> Complaints:
    for value in writes(node):
        if not 1 <= value.type.registers <= MAX_REGISTERS:
            yield f"{value} has {shortened(value.type.registers)} registers; 1 to {MAX_REGISTERS} are allowed"


def constants_have_bits(node: Node) -> Complaints:
    for source in _sources(node):
        source = source.base if isinstance(source, Address) else source
        if isinstance(source, Const):
            try:
                const_bits(source)
            except OperandError as error:
                yield error.message


def _sources(node: Node) -> tuple[Any, ...]:
    if isinstance(node, Op):
        return node.operands
    if isinstance(node, Assign):
        return node.sources
    if isinstance(node, For):
        return node.start, node.stop, node.step
    return (node.condition,) if isinstance(node, While) else ()


def guard_is_a_predicate(op: Op) -> Complaints:
    if op.guard is None:
        return
    if not isinstance(op.guard, Value) or not _is_predicate(op.guard):
        yield f"the guard of {op.instr} is {_described(op.guard)}, where a predicate is needed"


def tied_operand_is_the_result(op: Op) -> Complaints:
    index = unwritten_operand(op.instr)
    if index is not None and op.operands[index] is not op.results[0]:
        name = op.instr.operands[index].name
        yield f"operand {name} of {op.instr} has no text of its own: it must be the result"


def _register(source: Source, operand: Operand) -> str | None:
    if isinstance(source, Part):
        return _part_complaint(source) or (
            None
            if not operand.is_fragment and operand.registers == 1 and agree(part_type(source), operand.dtype)
            else f"{_described(source)}, where {needed(operand)}"
        )
    if isinstance(source, Value):
        good = fits(source.type, operand)
    else:
        single = not operand.is_fragment and operand.registers == 1
        good = isinstance(source, Const) and single and agree(source.dtype, operand.dtype)
    return None if good else f"{_described(source)}, where {needed(operand)}"


def _immediate(source: Source, operand: Operand) -> str | None:
    if not isinstance(source, Const) or source.value % 1:
        return f"{_described(source)}, where an integer known at compile time is needed"
    return immediate_complaint(source.value, operand)


def _address(source: Source, operand: Operand) -> str | None:
    if not isinstance(source, Address):
        return f"{_described(source)}, where an address is needed"
    base = source.base
    dtype = base.type.dtype if isinstance(base, Value) else base.dtype
    group = isinstance(base, Value) and base.type.is_group
    if group or dtype.kind not in "sub" or dtype.bits != operand.dtype.bits:
        return f"an address in {_described(base)}, where {operand.dtype} is needed"
    if not -(2**31) <= source.offset < 2**31:
        return f"offset {source.offset} of an address; 32 bits with a sign are allowed"
    return None


_OPERAND_KINDS = {"reg": _register, "imm": _immediate, "addr": _address}


# --- copies and control flow ----------------------------------------------------------------


def copies_fill_their_target(node: Assign) -> Complaints:
    target, sources = node.target.type, node.sources
    if len(sources) == 1 and isinstance(sources[0], Const):
        return
    registers = sum(s.type.registers if isinstance(s, Value) else 1 for s in sources)
    if registers != target.registers or (len(sources) > 1 and any(map(_is_group, sources))):
        yield f"{registers} registers are copied to {node.target}, which has {target.registers}"


def copies_keep_the_width(node: Assign) -> Complaints:
    for source in node.sources:
        complaint = _part_complaint(source) if isinstance(source, Part) else None
        if complaint or _width(source) != node.target.type.register_bits:
            yield (
                f"{complaint or _described(source)} is copied to {node.target}, which holds "
                f"{node.target.type}"
            )


def loops_count_with_integers(node: For) -> Complaints:
    if node.index.type.is_group or not node.index.type.dtype.is_integer:
        yield f"a loop counts with {_described(node.index)}, where one integer is needed"
        return
    wanted = node.index.type.dtype
    for name, source in (("start", node.start), ("stop", node.stop), ("step", node.step)):
        dtype = source.type.dtype if isinstance(source, Value) else source.dtype
        if _is_group(source) or not dtype.is_integer or not agree(dtype, wanted):
            yield f"the {name} of a loop is {_described(source)}, where {wanted} is needed"


def steps_go_somewhere(node: For) -> Complaints:
    if not isinstance(node.step, Const):
        return
    step = const_int(Const(const_bits(node.step), node.index.type.dtype))
    if step == 0:
        yield "the step of a loop is 0"
    if int(node.step.value) < 0 and not node.index.type.dtype.is_signed:
        yield f"a loop over {node.index.type} has step {node.step.value}; it must be positive"


def condition_is_a_predicate(node: If | While) -> Complaints:
    condition = node.condition
    good = (
        _is_predicate(condition)
        if isinstance(condition, Value)
        else (isinstance(node, While) and condition.dtype.kind == "p")
    )
    if not good:
        name = type(node).__name__.lower()
        yield f"the condition of `{name}` is {_described(condition)}, where a predicate is needed"


def jumps_have_a_kind(node: Jump) -> Complaints:
    if node.kind not in ("break", "continue", "return"):
        yield f"jump {node.kind!r}; break, continue and return are allowed"


def predicates_are_single(node: Node) -> Complaints:
    for value in writes(node):
        if value.type.dtype.kind == "p" and value.type.is_group:
            yield f"{_described(value)}: predicates have one register and no layout"


Rules = tuple[Callable[[Any], Complaints], ...]
NODE_RULES: dict[type, Rules] = {
    Op: (
        count_of_operands,
        values_are_sized,
        kinds_and_types_of_operands,
        constants_have_bits,
        types_of_results,
        results_are_distinct,
        guard_is_a_predicate,
        tied_operand_is_the_result,
        predicates_are_single,
    ),
    Assign: (
        values_are_sized,
        constants_have_bits,
        copies_fill_their_target,
        copies_keep_the_width,
        predicates_are_single,
    ),
    For: (values_are_sized, constants_have_bits, loops_count_with_integers, steps_go_somewhere),
    While: (condition_is_a_predicate,),
    If: (condition_is_a_predicate,),
    Jump: (jumps_have_a_kind,),
}


# --- helpers of the rules -------------------------------------------------------------------


def _is_group(source: Source) -> bool:
    return isinstance(source, Value) and source.type.is_group


def _is_predicate(value: Value) -> bool:
    return value.type.dtype.kind == "p" and not value.type.is_group


def _part_complaint(part: Part) -> str | None:
    if 0 <= part.index < part.base.type.registers:
        return None
    return f"register {part.index} of {_described(part.base)}, which has {part.base.type.registers}"


def _width(source: Source) -> int:
    """Bits of each register of a copy's source."""
    if isinstance(source, Value):
        return source.type.register_bits
    if isinstance(source, Part):
        return source.base.type.register_bits
    return source.dtype.register_bits if isinstance(source, Const) else 0


def _described(source: Any) -> str:
    """The given operand, for messages."""
    if isinstance(source, Value):
        return f"{source} of type {source.type}"
    if isinstance(source, Part):
        return f"register {source.index} of {_described(source.base)}"
    if isinstance(source, Const):
        return f"the {source.dtype} constant {shortened(source.value)}"
    if isinstance(source, Address):
        return f"the address {source}"
    return repr(source)


__all__ = ["KERNEL_RULES", "NODE_RULES", "agree", "fits", "verify"]
