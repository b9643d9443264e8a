"""Two ladders of kernels for Hopper, one file a step: GEMM, and attention.

docs/hopper_tutorial.md and docs/attention_tutorial.md walk through them. Each file is complete:
copy it, change it, run it.
"""

from __future__ import annotations

import linecache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import tensorcore_dsl as tc

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("hopper_gemm_*.py")))
ATTENTION_NAMES = tuple(sorted(path.stem for path in FOLDER.glob("hopper_attention_*.py")))


def load_step(number: int, names: tuple[str, ...] = NAMES) -> ModuleType:
    """The module of a step, from 1 on. names: the ladder, NAMES (GEMM) or ATTENTION_NAMES."""
    return import_module(f"{__name__}.{names[number - 1]}")


def edited_step(number: int, old: str, new: str, names: tuple[str, ...] = NAMES) -> ModuleType:
    """The module of a step whose source has `new` in place of `old`, for experiments.

    `old` must occur exactly once; tc.ArgumentError otherwise. names: as for `load_step`.
    """
    name = f"{names[number - 1]}.py"
    source = (FOLDER / name).read_text()
    if source.count(old) != 1:
        raise tc.ArgumentError(f"{name} contains {source.count(old)} times, not once: {old}")
    source = source.replace(old, new)
    module = ModuleType(names[number - 1])
    module.__file__ = f"edited {name}"
    # Kernels are compiled from source text, which Python looks up here by the file's name.
    linecache.cache[module.__file__] = (len(source), None, source.splitlines(True), module.__file__)
    exec(compile(source, module.__file__, "exec"), vars(module))
    return module
