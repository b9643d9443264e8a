"""A ladder of GEMMs for Hopper, from mma.sync to the design of `kernels.gemm`, one file each.

docs/hopper_tutorial.md walks through them. Each file is complete: copy it, change it, run it.
"""

from __future__ import annotations

import linecache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import tensorcore_dsl as tc

NAMES = tuple(sorted(path.stem for path in Path(__file__).parent.glob("hopper_gemm_*.py")))


def load_step(number: int) -> ModuleType:
    """The module of a step, from 1 to 8."""
    return import_module(f"{__name__}.{NAMES[number - 1]}")


def edited_step(number: int, old: str, new: str) -> ModuleType:
    """The module of a step whose source has `new` in place of `old`, for experiments.

    `old` must occur exactly once; tc.ArgumentError otherwise.
    """
    name = f"{NAMES[number - 1]}.py"
    source = Path(__file__).with_name(name).read_text()
    if source.count(old) != 1:
        raise tc.ArgumentError(f"{name} contains {source.count(old)} times, not once: {old}")
    source = source.replace(old, new)
    module = ModuleType(NAMES[number - 1])
    module.__file__ = f"edited {name}"
    # Kernels are compiled from source text, which Python looks up here by the file's name.
    linecache.cache[module.__file__] = (len(source), None, source.splitlines(True), module.__file__)
    exec(compile(source, module.__file__, "exec"), vars(module))
    return module
