"""IR of kernels on disk, so that a second process emulates without evaluating Python.

The name of an entry is that of `kernel_cache`, a hash of all that the IR depends on; its content is
a pickle of nodes. Instructions, layouts and element types in it are found by name. Nothing but
this package's classes is made from it, and an entry that is damaged is as good as none.
"""

from __future__ import annotations

import io
import pickle
import time
import zlib
from collections.abc import Callable
from typing import Any

from tensorcore_dsl.arch import Arch
from tensorcore_dsl.codegen import kernel_cache
from tensorcore_dsl.environment import disk_cache
from tensorcore_dsl.environment.processors import without_collections
from tensorcore_dsl.ir.nodes import Kernel

MIN_SECONDS = 0.05  # evaluations that take less are not worth a file
_PACKAGE = __name__.partition(".")[0]
_OTHERS = frozenset(
    {
        ("builtins", "frozenset"),
        ("builtins", "set"),
        ("builtins", "slice"),
        ("builtins", "range"),
        ("numpy", "dtype"),
        ("numpy._core.multiarray", "scalar"),
        ("types", "MappingProxyType"),
    }
)


def kept(
    kernel: Any,
    types: tuple[Any, ...],
    constants: dict[str, Any],
    arch: Arch,
    checks: bool | None,
    evaluate: Callable[..., Kernel],
) -> Kernel:
    """Result of `evaluate` for the other arguments, from the disk if it is there."""
    key = kernel, types, constants, arch
    entry = kernel_cache.entry_name(*key, assembler="", lineinfo=True, checks=checks)
    stored = _load(entry) if entry else None
    if stored is not None:
        return stored
    began = time.perf_counter()
    kernel_ir = evaluate(*key, checks)
    if entry and time.perf_counter() - began >= MIN_SECONDS:
        _store(entry, kernel_ir)
    return kernel_ir


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] != _PACKAGE and (module, name) not in _OTHERS:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of IR")
        return super().find_class(module, name)


@without_collections()
def _load(entry: str) -> Kernel | None:
    stored = disk_cache.load(entry)
    if stored is None:
        return None
    try:
        loaded = _Reader(io.BytesIO(zlib.decompress(stored[0]))).load()
    except Exception:  # whatever a damaged pickle may raise
        return None
    return loaded if isinstance(loaded, Kernel) else None


def _store(entry: str, kernel: Kernel) -> None:
    """Store IR on disk, unless it has format strings, which belong to one process."""
    try:
        pickled = pickle.dumps(kernel, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError):
        return
    disk_cache.store(entry, zlib.compress(pickled, 1), "")
