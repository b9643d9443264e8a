"""`kernel.export(...)`: write a kernel to files that programs without Python can launch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.codegen.ptx import entry_name, extern_shared
from tensorcore_dsl.environment.distributions import versions_of
from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.export.c_source import CSource
from tensorcore_dsl.export.grid_rule import GridRule
from tensorcore_dsl.export.interface import Argument, Interface
from tensorcore_dsl.kernel.constants import shown
from tensorcore_dsl.kernel.specialisation import Specialisation
from tensorcore_dsl.runtime.arguments import ArrayType
from tensorcore_dsl.runtime.launch_config import LaunchConfig

FORMS = ("cubin", "ptx")


def write_kernel(
    chosen: Specialisation,
    folder: Any,
    name: str | None,
    form: str,
    grid: Any,
    block: Any,
    shapes: Mapping[str, Sequence[int]],
    about: str,
    **options: Any,
) -> Path:
    """Write the files of a specialisation, and return the path of the JSON file.

    options: options of LaunchConfig.of. `kernel.export` describes the other parameters.
    """
    name = identifier(entry_name(chosen.ir.name) if name is None else name)
    if form not in FORMS:
        raise ArgumentError(f"form is {form!r}; allowed are 'cubin' and 'ptx'")
    cubin = _as_ptx(chosen) if form == "ptx" else chosen.cubin
    interface = Interface(
        name,
        f"{name}.{form}",
        cubin,
        _arguments(chosen, shapes),
        None,
        _config(chosen, cubin, block, options),
        tuple((constant, shown(value)) for constant, value in chosen.constants.items()),
        " ".join(versions_of(("tensorcore-dsl",))) or "tensorcore-dsl",
        about,
    )
    if grid is not None:
        interface = replace(interface, grid=GridRule.of(grid, interface.types))
    c = CSource(interface)
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / interface.code).write_bytes(cubin.code)
        (target / f"{name}.h").write_text(c.header(), encoding="utf-8")
        (target / f"{name}.c").write_text(c.source(), encoding="utf-8")
        interface.write(target / f"{name}.json")
    except OSError as error:
        raise ArgumentError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from None
    return target / f"{name}.json"


def identifier(name: Any) -> str:
    """Check that `name` is an identifier in C and Python; ArgumentError otherwise."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ArgumentError(f"name is {name!r}; it names functions in C: letters, digits and _")
    return name


def _as_ptx(chosen: Specialisation) -> Cubin:
    """Return the kernel as PTX text, which the driver compiles."""
    return Cubin(
        entry_name(chosen.ir.name),
        chosen.arch.name,
        chosen.ptx,
        chosen.ptx.encode(),
        "",
        extern_shared(chosen.ir),
        chosen.ir.threads,
        chosen.ir.cluster,
        chosen.tensor_maps,
        bool(chosen.checks),
    )


def _config(chosen: Specialisation, cubin: Cubin, block: Any, options: dict[str, Any]) -> LaunchConfig:
    if block is None:
        if chosen.ir.threads is None:
            raise ArgumentError(
                f"{chosen.kernel.__name__} is not compiled for a number of threads: give block=, or "
                "@tc.kernel(threads=...)"
            )
        block = chosen.ir.threads
    config = LaunchConfig.of((0, 0, 0), block, **options)  # an empty grid fits every cluster size
    return config.of_kernel(cubin.block_shared, cubin.threads, cubin.cluster)


def _arguments(chosen: Specialisation, shapes: Mapping[str, Sequence[int]]) -> tuple[Argument, ...]:
    names = chosen.kernel.runtime_names
    arguments = []
    for name, kind in zip(names, chosen.types, strict=True):
        shape = shapes.get(name)
        if shape is not None and not (isinstance(kind, ArrayType) and len(shape) == kind.ndim):
            raise ArgumentError(f"shapes has {shape!r} for {name!r}, which is {kind}")
        arguments.append(Argument(name, kind, None if shape is None else tuple(map(int, shape))))
    if unknown := set(shapes) - set(names):
        raise ArgumentError(f"shapes names {sorted(unknown)}; the arguments are {', '.join(names)}")
    return tuple(arguments)
