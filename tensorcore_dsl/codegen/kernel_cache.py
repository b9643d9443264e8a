"""Compiled kernels on disk: a second process evaluates no Python and assembles no PTX.

The name of an entry is a hash of all that the machine code depends on (`cache_key`): sources,
values, types, architecture, this package and the assemblers of this machine. Kernels that depend
on values without a cache key are not stored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.codegen import disk_cache
from tensorcore_dsl.codegen.cache_key import Unhashable, cache_key
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.codegen.diagnostics import Diagnostic
from tensorcore_dsl.ir.nodes import TensorMap


def entry_name(
    kernel: Any, types: Sequence[Any], constants: dict[str, Any], arch: Arch, assembler: str,
    lineinfo: bool = False,
) -> str | None:  # fmt: skip
    """The name of a kernel's entry; None if the cache is off or the kernel has no cache key.

    lineinfo: the machine code names the source files.
    """
    if disk_cache.cache_directory() is None:
        return None
    try:
        key = cache_key(
            kernel, kernel.__name__, kernel.parameters, types, constants, arch.name, assembler,
            lineinfo, paths=lineinfo,
        )  # fmt: skip
    except Unhashable:
        return None
    return disk_cache.entry_name("kernel", key)


def load(entry: str | None) -> tuple[Cubin, tuple[Diagnostic, ...]] | None:
    """The kernel of an entry and its diagnostics; None if it is missing or damaged."""
    stored = disk_cache.load(entry) if entry else None
    if stored is None:
        return None
    data, text = stored
    head = json.loads(text)
    ptx_size, log_size = head["sizes"]
    ptx, log = data[:ptx_size].decode(), data[ptx_size : ptx_size + log_size].decode()
    cubin = Cubin(
        head["name"], head["arch"], ptx, data[ptx_size + log_size :], log,
        block_shared=head["block_shared"], threads=head["threads"],
        cluster=head["cluster"] and tuple(head["cluster"]),
        tensor_maps=tuple(
            TensorMap(argument, tuple(axes), tuple(box), swizzle)
            for argument, axes, box, swizzle in head["tensor_maps"]
        ),
    )  # fmt: skip
    return cubin, tuple(Diagnostic(*fields) for fields in head["diagnostics"])


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
        "tensor_maps": [(m.argument, m.axes, m.box, m.swizzle) for m in cubin.tensor_maps],
        "diagnostics": diagnostics,
    }
    disk_cache.store(entry, ptx + log + cubin.code, json.dumps(head))
