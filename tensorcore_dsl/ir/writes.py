"""Which arrays a kernel writes, for those that may not be written."""

from __future__ import annotations

from collections.abc import Sequence

from tensorcore_dsl.errors import Loc
from tensorcore_dsl.ir.nodes import Address, Assign, Kernel, Op, Part, Source, Value, walk

# Instructions through which the address of an array passes to another register. The product in
# an address (`mul`) is of indices, which may come from anywhere.
PASSING = ("add", "sub", "mov", "selp", "mad", "cvta")


def written_arrays(kernel: Kernel, names: Sequence[str]) -> dict[str, Loc | None]:
    """The run-time arguments, of these names in order, that the kernel writes to global memory
    through, with the place of the first write.

    Registers hold addresses of whatever they are ever given, whatever the order of the code.
    """
    owners: dict[Value, set[str]] = {}
    for p in kernel.params:
        name = p.name if p.tensor_map is None else names[p.tensor_map.argument]
        if name in names:
            owners[p.value] = {name}
    nodes = [node for node in walk(kernel.body) if isinstance(node, (Op, Assign))]
    changed = True
    while changed:
        changed = False
        for node in nodes:
            if isinstance(node, Assign):
                targets, sources = (node.target,), node.sources
            elif node.instr.opcode in PASSING:
                targets, sources = node.results, node.operands
            else:
                continue
            found = set().union(*[owners.get(_register(s), ()) for s in sources])
            for target in targets:
                known = owners.setdefault(target, set()) if found else found
                if not found <= known:
                    known |= found
                    changed = True
    written: dict[str, Loc | None] = {}
    for node in nodes:
        if isinstance(node, Op) and node.instr.writes_global:
            for name in owners.get(_register(node.operands[0]), ()):
                written.setdefault(name, node.loc)
    return written


def _register(source: Source) -> Value | None:
    """The register that a source reads; None for a constant."""
    base = source.base if isinstance(source, (Address, Part)) else source
    return base if isinstance(base, Value) else None
