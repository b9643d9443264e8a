"""Tuning cache: the configurations that `kernels.tune` measured as fastest, by problem and GPU.

The cache is a JSON file in the cache directory (TENSORCORE_DSL_CACHE), which later processes share.
`kernels.choosing` looks here before it ranks configurations.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from itertools import chain
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import JsonStore, cuda_driver
from tensorcore_dsl.kernels.problem.families import FAMILIES
from tensorcore_dsl.kernels.problem.gemm_problem import ANY, GemmProblem
from tensorcore_dsl.kernels.problem.padding import strided_copy

STORE = JsonStore("gemm-tuning.json")
CLASSES = {kind.__name__: kind for kind in chain(*FAMILIES.values())}


def key(problem: GemmProblem, device: str) -> str:
    """Key of a problem: element types, size, layouts, and the name of the GPU.

    Operands that TMA cannot read have another key, since other kernels run them. So do operands that
    are always copied, batch-invariant products, and batches.
    """
    layout = f"{'row' if problem.a_k_major else 'col'}.{'col' if problem.b_k_major else 'row'}"
    marks = {
        "unaligned": any(x.type.align != 16 for x in (problem.a, problem.b, problem.d)),
        "strided": any(strided_copy(0, "", x) for x in (problem.a, problem.b)),
        problem.bits: problem.bits != ANY,
        f"batch={problem.batch}": problem.batch is not None,
    }
    return " ".join(
        (
            f"{problem.multiplied_as}->{problem.d.type.dtype}",
            f"{problem.M}x{problem.N}x{problem.K}",
            layout,
            *(x for x in marks if marks[x]),
            f"on {device}",
        )
    )


def device_name() -> str:
    """Name of the current GPU, such as "NVIDIA H200"."""
    return cuda_driver().device_name()


def recall(name: str) -> Any:
    """Look up the configuration of a key; None if it is missing, or of another version."""
    try:
        entry = entries()[name]
        kind, values = CLASSES[entry["class"]], entry["config"]
    except (KeyError, TypeError):
        return None
    known = {field.name for field in fields(kind)}
    if not isinstance(values, dict) or set(values) != known:
        return None
    try:
        return kind(**values)
    except tc.ArgumentError:
        return None


def remember(name: str, config: Any, seconds: float) -> None:
    """Store a configuration for this process and, with a cache directory, for later ones."""
    entry = {"class": type(config).__name__, "config": asdict(config), "seconds": seconds}
    STORE.remember(name, entry)


def forget() -> None:
    """Delete all entries, also on disk."""
    STORE.forget()


def entries() -> dict[str, Any]:
    """Return all entries by key; the file is read once."""
    return STORE.entries()
