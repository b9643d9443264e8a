"""Compiled kernels on disk, so that a second process compiles nothing.

The name of an entry is a hash of all that the machine code depends on (`cache_key`): sources,
values, types, architecture, this package and the assemblers of this machine. Kernels that depend
on values without a cache key are not stored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.codegen.cache_key import Unhashable, cache_key
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.codegen.diagnostics import Diagnostic
from tensorcore_dsl.environment import disk_cache
from tensorcore_dsl.environment.cache_directory import cache_directory
from tensorcore_dsl.errors import Loc
from tensorcore_dsl.ir.nodes import Im2col, TensorMap

# The text of an entry: types by name; a tuple is a list of these, a set one of them. Each int is 0 or more.
SIGNED = "signed"
HEAD = {
    "name": str,
    "arch": str,
    "sizes": (int, int),  # bytes of the PTX and of the log, which lie before the code
    "block_shared": int,
    "threads": {int, type(None)},
    "cluster": {(int, int, int), type(None)},
    "tensor_maps": [(int, [int], [int], int, {(str, int, int, int, str), type(None)}, [[SIGNED]], bool)],
    "checks": bool,
    "diagnostics": [(str, str, int)],
}


def entry_name(
    kernel: Any,
    types: Sequence[Any],
    constants: dict[str, Any],
    arch: Arch,
    assembler: str,
    lineinfo: bool = False,
    checks: bool | None = None,
) -> str | None:
    """The name of a kernel's entry; None if the cache is off or the kernel has no cache key.

    assembler: its version; "" names the entry of the IR. lineinfo: the machine code names the
    source files. checks: it checks indices, and names them.
    """
    if cache_directory() is None:
        return None
    try:
        key = cache_key(
            kernel,
            kernel.__name__,
            kernel.parameters,
            types,
            constants,
            arch.name,
            assembler,
            lineinfo,
            checks,
            paths=bool(lineinfo or checks),
            of_ir=not assembler,
        )
    except Unhashable:
        return None
    return disk_cache.entry_name("kernel", key)


def load(entry: str | None) -> tuple[Cubin, tuple[Diagnostic, ...]] | None:
    """The kernel of an entry and its diagnostics; None if it is missing or damaged."""
    stored = disk_cache.load(entry) if entry else None
    if stored is None:
        return None
    try:
        return _read(*stored)
    except (ValueError, RecursionError):  # not what `store` writes
        return None


def _read(entry: bytes, text: str) -> tuple[Cubin, tuple[Diagnostic, ...]]:
    """Read a kernel from an entry's bytes and text, and check the type of every field."""
    head = json.loads(text)
    if not _fits(head, HEAD):
        raise ValueError("this is not a head of an entry")
    ptx_size, log_size = head["sizes"]
    ptx, log = entry[:ptx_size].decode(), entry[ptx_size : ptx_size + log_size].decode()
    cubin = Cubin(
        head["name"],
        head["arch"],
        ptx,
        entry[ptx_size + log_size :],
        log,
        block_shared=head["block_shared"],
        threads=head["threads"],
        cluster=head["cluster"] and tuple(head["cluster"]),
        tensor_maps=tuple(
            TensorMap(
                argument,
                tuple(axes),
                tuple(box),
                swizzle,
                loc and Loc(*loc),
                Im2col(*map(tuple, im2col)) if im2col else None,
                nan_fill,
            )
            for argument, axes, box, swizzle, loc, im2col, nan_fill in head["tensor_maps"]
        ),
        checks=head["checks"],
    )
    return cubin, tuple(Diagnostic(*fields) for fields in head["diagnostics"])


def _fits(x: Any, kind: Any) -> bool:
    """Whether a value from JSON is of a kind, as in HEAD."""
    if isinstance(kind, dict):
        return type(x) is dict and x.keys() == kind.keys() and all(_fits(x[n], kind[n]) for n in x)
    if isinstance(kind, list):
        return type(x) is list and all(_fits(item, kind[0]) for item in x)
    if isinstance(kind, tuple):
        return type(x) is list and len(x) == len(kind) and all(map(_fits, x, kind))
    if isinstance(kind, set):
        return any(_fits(x, one) for one in kind)
    if kind == SIGNED:
        return type(x) is int
    return type(x) is kind and (kind is not int or x >= 0)


def store(entry: str | None, cubin: Cubin, diagnostics: Sequence[Diagnostic]) -> None:
    """Store a kernel under its entry, if it has one."""
    if entry is None:
        return
    ptx, log = cubin.ptx.encode(), cubin.log.encode()
    head = {
        "name": cubin.name,
        "arch": cubin.arch,
        "sizes": [len(ptx), len(log)],
        "block_shared": cubin.block_shared,
        "threads": cubin.threads,
        "cluster": cubin.cluster,
        "tensor_maps": [
            (m.argument, m.axes, m.box, m.swizzle, _position(m.loc), m.im2col or (), m.nan_fill)
            for m in cubin.tensor_maps
        ],
        "checks": cubin.checks,
        "diagnostics": diagnostics,
    }
    disk_cache.store(entry, ptx + log + cubin.code, json.dumps(head))


def _position(loc: Loc | None) -> tuple[str, int, int, int, str] | None:
    """A location without its call sites."""
    if loc is None:
        return None
    return loc.filename, loc.line, loc.column, loc.end_column, loc.function
