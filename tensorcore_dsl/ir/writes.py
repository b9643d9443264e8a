"""Arrays that a kernel writes, for checks of read-only arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorcore_dsl.errors import Loc
from tensorcore_dsl.ir.nodes import Assign, Kernel, Node, Op, Value, reads, walk
from tensorcore_dsl.isa import classify


def written_arrays(kernel: Kernel, names: Sequence[str]) -> dict[str, Loc | None]:
    """The run-time arguments through which the kernel writes global memory, and where first.

    names: of all run-time arguments in order. A register holds the addresses that it is given
    anywhere, whatever the order of the code.
    """
    owners: dict[Value, set[str]] = {}
    for p in kernel.params:
        name = p.name if p.tensor_map is None else names[p.tensor_map.argument]
        if name in names:
            owners[p.value] = {name}
    nodes = list(walk(kernel.body))
    copies = [copy for node in nodes for copy in _copies(node)]
    changed = True
    while changed:
        changed = False
        for target, source in copies:
            new = owners.get(source, set()) - owners.setdefault(target, set())
            owners[target] |= new
            changed = changed or bool(new)
    written: dict[str, Loc | None] = {}
    for node in nodes:
        if isinstance(node, Op) and classify.writes_global(node.instr):
            for name in sorted(owners.get(reads(node)[0], ())):
                written.setdefault(name, node.loc)
    return written


def _copies(node: Node) -> Iterator[tuple[Value, Value]]:
    """Registers to which the node may pass an address, each with one where it comes from."""
    if isinstance(node, Assign) or (isinstance(node, Op) and classify.may_return_address(node.instr)):
        targets = (node.target,) if isinstance(node, Assign) else node.results
        yield from ((target, source) for target in targets for source in reads(node))
