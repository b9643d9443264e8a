"""The IR: typed registers, ops that are instructions of the table, structured control flow.

A *value* is a set of registers of one type, mutable like PTX's registers. An *op* is one
instruction. A *block* is a list of ops and control nodes. A *kernel* is a block with parameters and
shared memory. Every op has a source location.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Union

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import Loc
from tensorcore_dsl.ir.views import Scope
from tensorcore_dsl.isa.descriptor import SharedTile
from tensorcore_dsl.isa.spec import Instruction

MAX_NESTING = 200  # blocks inside blocks
DYNAMIC_ALIGN = 128  # bytes, as tensor copies need them (9.7.9.27.1.2)


@dataclass(frozen=True)
class Type:
    """Register type of a value: `registers` registers of `dtype` elements, arranged as `layout`."""

    dtype: DType
    registers: int = 1
    layout: str | None = None

    @property
    def register_bits(self) -> int:
        return self.dtype.register_bits if self.layout is None else self.dtype.fragment_register_bits

    @property
    def is_group(self) -> bool:
        """A vector or a fragment (which may have a single register)."""
        return self.registers > 1 or self.layout is not None

    def __str__(self) -> str:
        base = self.dtype.name if self.registers == 1 else f"{self.dtype.name}*{self.registers}"
        return f"{base}@{self.layout}" if self.layout else base


@dataclass(eq=False)
class Value:
    """A set of registers, identified by the object; `id` only names it in text."""

    id: int
    type: Type

    def __str__(self) -> str:
        return f"%{self.id}"

    __repr__ = __str__


@dataclass(frozen=True)
class Const:
    """A constant operand: the bits of `value` in `dtype`."""

    value: int | float | bool
    dtype: DType

    def __str__(self) -> str:
        return f"{self.value!r}:{self.dtype.name}"


@dataclass(frozen=True)
class Address:
    """`[base + offset]`, offset in bytes."""

    base: Value | Const
    offset: int = 0

    def __str__(self) -> str:
        return f"[{self.base}{self.offset:+d}]" if self.offset else f"[{self.base}]"


@dataclass(frozen=True)
class Part:
    """Register `index` of a vector or fragment, read as a scalar value."""

    base: Value
    index: int

    def __str__(self) -> str:
        return f"{self.base}.{self.index}"


Source = Union[Value, Const, Address, Part]


@dataclass(eq=False)
class Op:
    """`results = instr operands`, executed only if `guard` holds (or, if `negated`, does not).

    swizzle: in a checked build, that of the tile whose shared memory it accesses, if it is known.
    """

    instr: Instruction
    results: tuple[Value, ...]
    operands: tuple[Source, ...]
    guard: Value | None = None
    negated: bool = False
    loc: Loc | None = None
    swizzle: int | None = None


@dataclass(eq=False)
class Assign:
    """Copy registers: one source of the target's type, or one source per register of a group.

    A Const as the only source fills every register of the group.
    """

    target: Value
    sources: tuple[Value | Const | Part, ...]
    loc: Loc | None = None


@dataclass(eq=False)
class For:
    """`for index in range(start, stop, step)`; only the loop writes the register `index`."""

    index: Value
    start: Value | Const
    stop: Value | Const
    step: Value | Const
    body: Block
    loc: Loc | None = None


@dataclass(eq=False)
class While:
    """Run `test`, leave if `condition` is false, run `body`, repeat."""

    test: Block
    condition: Value | Const
    body: Block
    loc: Loc | None = None


@dataclass(eq=False)
class If:
    """Threads whose condition is true execute `then`, the others `orelse`."""

    condition: Value
    then: Block
    orelse: Block
    loc: Loc | None = None


@dataclass(eq=False)
class Jump:
    """`break` and `continue` of the innermost loop, `return` from the kernel."""

    kind: str
    loc: Loc | None = None


@dataclass(eq=False)
class Label:
    """The target of a `Goto`; only kernels that were read from PTX have these."""

    name: str
    loc: Loc | None = None


@dataclass(eq=False)
class Goto:
    """Jump to a label of the same block: threads whose condition is false, or all without a condition.

    Only a Goto without a condition may lead back.
    """

    target: str
    condition: Value | None = None
    loc: Loc | None = None


@dataclass(eq=False)
class Keep:
    """Copy `source` to `target`, registers that only the debugger reads.

    Only debug builds have it, after every write of a variable; it is no copy of the kernel's own.
    """

    target: Value
    source: Value
    loc: Loc | None = None


@dataclass(eq=False)
class Mark:
    """A point at which the emulator may stop or record; only debug builds have it.

    Attributes
    ----------
    kind : str
        "line", before a statement; "assigned", after one that assigns `names`; "stop", at a `breakpoint()`;
        "end", after the last statement of the kernel.
    scopes : tuple
        The variables of the functions under evaluation, the innermost first.
    """

    kind: str
    scopes: tuple[Scope, ...]
    names: frozenset[str] = frozenset()
    loc: Loc | None = None


Node = Union[Op, Assign, For, While, If, Jump, Label, Goto, Keep, Mark]


@dataclass(eq=False)
class Block:
    nodes: list[Node] = field(default_factory=list)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


class Im2col(NamedTuple):
    """The pixels that a copy in im2col mode visits, by their axes, innermost first.

    Filter bases run from `lower` to the extent plus `upper`, exclusively, in steps of `steps`.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def refuses_stores(self) -> str:
        """Why a store is an illegal instruction on a GPU (seen on an H200), or ''."""
        if min(self.lower) >= 0 >= max(self.upper):
            return ""
        return (
            f"stores in im2col mode need a pixel box inside of the image, with lower corners of 0 or more "
            f"and upper ones of 0 or less; these are {self.lower} and {self.upper} (innermost axis first)"
        )


@dataclass(frozen=True)
class TensorMap:
    """A tensor map that the launch encodes (`cuTensorMapEncodeTiled`, `cuTensorMapEncodeIm2col`).

    Attributes
    ----------
    argument : int
        The kernel's run-time argument that it describes.
    axes : tuple
        That array's axes, innermost first.
    box : tuple
        Elements of one copy along these axes, in im2col mode channels and pixels.
    swizzle : int
        Bytes, 0 for none.
    loc : Loc or None
        Where the kernel first asks for it.
    im2col : Im2col or None
        None in tile mode.
    nan_fill : bool
        Elements outside of the array are the NaN OOB-NaN, not zeros.
    """

    argument: int
    axes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    loc: Loc | None = field(default=None, compare=False)
    im2col: Im2col | None = None
    nan_fill: bool = False


@dataclass(frozen=True)
class Param:
    """A scalar of the parameter block; `value` is the register that holds it from entry on.

    With a `tensor_map`, the parameter is the 128 bytes of the map, and `value` (u64) its generic
    address.
    """

    name: str
    value: Value
    tensor_map: TensorMap | None = None


@dataclass(eq=False)
class Kernel:
    """A kernel to verify, print or run.

    Attributes
    ----------
    shared_bytes : int
        Static shared memory.
    dynamic : int
        0, or the alignment of the dynamic shared memory that the launch adds after it.
    threads : int or None
        The block size if fixed (`.reqntid`), else None.
    cluster : tuple or None
        CTAs of a cluster if fixed (`.reqnctapercluster`).
    prints : dict
        By the number of a string, its parts where the emulator prints whole matrices: text, (conversion,
        view) of a scalar, or a view.
    kept : dict
        The registers in which a debug build keeps each value of a variable.
    stops : bool
        The kernel contains a `breakpoint()`.
    tiles : list
        The static tiles of a checked build.
    barriers : dict
        By address in the CTA, the variable that holds an mbarrier, with the number of calls around its
        assignment.
    mixed_swizzles : bool
        Tiles of different swizzles share bytes.
    foreign : str
        The language of a kernel that another compiler wrote, a key of `advice.LANGUAGES`.
    """

    name: str
    params: list[Param]
    body: Block
    shared_bytes: int = 0
    shared_align: int = 16
    dynamic: int = 0
    threads: int | None = None
    min_blocks: int | None = None
    max_registers: int | None = None
    cluster: tuple[int, int, int] | None = None
    strings: list[str] = field(default_factory=list)
    prints: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    kept: dict[Value, Value] = field(default_factory=dict)
    stops: bool = False
    tiles: list[SharedTile] = field(default_factory=list)
    barriers: dict[int, tuple[int, str]] = field(default_factory=dict)
    mixed_swizzles: bool = False
    foreign: str = ""


def walk(block: Block) -> Iterator[Node]:
    """Every node, parents before children, in program order."""
    for node in block:
        yield node
        for child in children(node):
            yield from walk(child)


def children(node: Node) -> tuple[Block, ...]:
    """The blocks inside a node, if any."""
    if isinstance(node, (Op, Assign)):
        return ()
    if isinstance(node, For):
        return (node.body,)
    if isinstance(node, While):
        return (node.test, node.body)
    if isinstance(node, If):
        return (node.then, node.orelse)
    return ()


def reads(node: Node) -> tuple[Value, ...]:
    """Values that the node itself reads, without its children."""
    if isinstance(node, Op):
        sources = _values(node.operands)
        if node.guard is None:
            return sources
        return (*sources, node.guard, *node.results)  # a guarded write may preserve the old bits
    if isinstance(node, Assign):
        return _values(node.sources)
    if isinstance(node, Keep):
        return (node.source,)
    if isinstance(node, For):
        return tuple(s for s in (node.start, node.stop, node.step) if isinstance(s, Value))
    if isinstance(node, While):
        return (node.condition,) if isinstance(node.condition, Value) else ()
    if isinstance(node, If):
        return (node.condition,)
    if isinstance(node, Goto):
        return () if node.condition is None else (node.condition,)
    return ()


def _values(sources: Iterable[Source]) -> tuple[Value, ...]:
    """The values that the sources refer to."""
    bases = [s.base if isinstance(s, (Address, Part)) else s for s in sources]
    return tuple([b for b in bases if isinstance(b, Value)])


def writes(node: Node) -> tuple[Value, ...]:
    """Values that the node itself writes, without its children."""
    if isinstance(node, Op):
        return node.results
    if isinstance(node, Assign):
        return (node.target,)
    if isinstance(node, For):
        return (node.index,)
    return ()
