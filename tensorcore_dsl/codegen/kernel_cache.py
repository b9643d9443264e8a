"""Compiled kernels on disk, so that a second process compiles nothing: neither Python nor PTX.

An entry's name tells everything that the machine code depends on (`fingerprint`): sources, values,
types, architecture, this package, and the assemblers of this machine. Kernels that depend on what
cannot be told are not kept. The files lie beside those of `cubin`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.codegen import cubin
from tensorcore_dsl.codegen.cache_key import Untold, fingerprint
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.codegen.diagnostics import Remark
from tensorcore_dsl.ir.nodes import TensorMap


def entry_of(
    kernel: Any, types: Sequence[Any], constants: dict[str, Any], arch: Arch, assembler: str
) -> str | None:
    """The name of a kernel's entry; None where kernels are not kept, or this one cannot be told."""
    if cubin.cache_directory() is None:
        return None
    try:
        told = fingerprint(
            kernel, kernel.__name__, kernel.parameters, types, constants, arch.name, assembler
        )
    except Untold:
        return None
    return cubin.cache_key(["kernel", told])


def kept(entry: str | None) -> tuple[Cubin, tuple[Remark, ...]] | None:
    """The kernel of an entry, and what was to be remarked; None if there is none to trust."""
    found = cubin.cached(entry) if entry else None
    if found is None:
        return None
    data, text = found
    head = json.loads(text)
    ptx_size, log_size = head["sizes"]
    ptx, log = data[:ptx_size].decode(), data[ptx_size : ptx_size + log_size].decode()
    made = Cubin(
        head["name"], head["arch"], ptx, data[ptx_size + log_size :], log,
        block_shared=head["block_shared"],
        threads=head["threads"],
        cluster=head["cluster"] and tuple(head["cluster"]),
        tensor_maps=tuple(
            TensorMap(argument, tuple(axes), tuple(box), swizzle)
            for argument, axes, box, swizzle in head["tensor_maps"]
        ),
    )  # fmt: skip
    return made, tuple(Remark(*remark) for remark in head["remarks"])


def keep(entry: str | None, made: Cubin, remarks: Sequence[Remark]) -> None:
    """Store a kernel under its entry, if it has one."""
    if entry is None:
        return
    ptx, log = made.ptx.encode(), made.log.encode()
    head = {
        "name": made.name,
        "arch": made.arch,
        "sizes": [len(ptx), len(log)],
        "block_shared": made.block_shared,
        "threads": made.threads,
        "cluster": made.cluster,
        "tensor_maps": [(m.argument, m.axes, m.box, m.swizzle) for m in made.tensor_maps],
        "remarks": remarks,
    }
    cubin.keep(entry, ptx + log + made.code, json.dumps(head))
