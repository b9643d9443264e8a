"""Dump launches to the folder TENSORCORE_DSL_DUMP: code, resources, arguments and configurations."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensorcore_dsl.codegen.ptx import entry_name
from tensorcore_dsl.errors import AssemblyError
from tensorcore_dsl.interpreter.regions.listing import llvm_of_regions, regions_listed
from tensorcore_dsl.ir.text import format_kernel
from tensorcore_dsl.kernel.constants import shown
from tensorcore_dsl.kernel.specialisation import Specialisation
from tensorcore_dsl.runtime.arguments import ArrayType, Description
from tensorcore_dsl.runtime.launch_config import LaunchConfig

VARIABLE = "TENSORCORE_DSL_DUMP"
LAUNCHES = "launches.jsonl"  # a line for each launch that differs from the earlier ones

_written: set[Any] = set()  # files and lines of this process


def wanted() -> bool:
    """Whether the variable names a folder."""
    return bool(os.environ.get(VARIABLE))


def dump_launch(
    build: Specialisation, config: LaunchConfig, arguments: Sequence[Description], target: str
) -> None:
    """Write the files of a kernel and the line of a launch, each once.

    build: the specialisation for a GPU. target: where the launch runs, "cuda" or "cpu".
    """
    folder = os.environ[VARIABLE]
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        name = _dump_kernel(build, Path(folder), target == "cpu")
        line = json.dumps({"kernel": name, "target": target, **_launch(build, config, arguments)})
        if (folder, line) not in _written:
            _written.add((folder, line))
            with (Path(folder) / LAUNCHES).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
    except OSError as error:
        why = error.strerror or error
        warnings.warn(f"{VARIABLE}={folder}: cannot be written: {why}", RuntimeWarning, stacklevel=2)


def _dump_kernel(build: Specialisation, folder: Path, emulated: bool) -> str:
    """Write a kernel's IR, PTX, properties and compiled regions, and return the name of the files."""
    digest = hashlib.sha256(build.ptx.encode()).hexdigest()[:8]
    name = f"{entry_name(build.ir.name)}-{build.arch.name}-{digest}"
    if (folder, name) in _written:
        return name
    try:
        resources = asdict(build.cubin.resources) | {"shared_bytes": build.ir.shared_bytes}
    except AssemblyError as error:
        resources = {"unknown": str(error).partition("\n")[0]}
    known = {
        "kernel": build.kernel.__name__,
        "file": build.kernel.function.__code__.co_filename,
        "line": build.kernel.function.__code__.co_firstlineno,
        "arch": build.arch.name,
        "arguments": dict(zip(build.kernel.runtime_names, map(str, build.types), strict=True)),
        "constants": {name: shown(value) for name, value in build.constants.items()},
        "resources": resources,
    }
    texts = {"ir": format_kernel(build.ir), "ptx": build.ptx, "json": json.dumps(known, indent=2) + "\n"}
    if emulated:
        texts |= {"regions": regions_listed(build.program), "ll": llvm_of_regions(build.program)}
    for ending, text in texts.items():
        (folder / f"{name}.{ending}").write_text(text, encoding="utf-8")
    _written.add((folder, name))
    return name


def _launch(build: Specialisation, config: LaunchConfig, arguments: Sequence[Description]) -> dict[str, Any]:
    described = {
        name: {"type": str(a.type), "shape": a.shape, "strides": a.strides}
        if isinstance(a.type, ArrayType)
        else str(a.type)
        for name, a in zip(build.kernel.runtime_names, arguments, strict=True)
    }
    launch = {key: value for key, value in vars(config).items() if value or key in ("grid", "block")}
    constants = {name: shown(value) for name, value in build.constants.items()}
    return {"launch": launch, "arguments": described, "constants": constants}
