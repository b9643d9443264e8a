"""Run the PTX launches that a TOML file describes, for `tensorcore-dsl check`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tensorcore_dsl.dtypes import named
from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.ptx.module import load
from tensorcore_dsl.ptx.tensor_maps import tensor_map

_FILLS: dict[str, Callable[[Any], np.ndarray]] = {
    "zeros": lambda shape: np.zeros(shape),
    "range": lambda shape: np.arange(np.prod(shape)).reshape(shape),
    "random": lambda shape: np.random.default_rng(0).standard_normal(shape),
}


def run_launches(ptx: str, path: str, arch: str | None = None) -> None:
    """Run the launches of the TOML file `path` in order.

    Each `[[launch]]` has `kernel`, `grid`, `block` and `arguments`. `shared` (bytes), `cluster`
    and `cooperative` (true) are optional. An argument is one of:

    - a number;
    - an array: a table with `dtype`, `shape` and `fill` ("zeros", "range", "random" or a number), or with
      the `file` of a NumPy array;
    - a tensor map: the table of an array with `box` and `swizzle`;
    - a struct: a table with each field at its offset in bytes.

    Tables with the same `name` denote one array.
    """
    try:
        described = import_module("tomllib").loads(Path(path).read_text(encoding="utf-8"))
    except ImportError:
        raise ArgumentError("launches in TOML need Python 3.11 or later") from None
    except (OSError, ValueError) as error:
        raise ArgumentError(f"cannot read {path!r}: {error}") from None
    module, arrays = load(Path(ptx)), dict[str, Any]()
    if not described.get("launch"):
        raise ArgumentError(f"{path}: a table [[launch]] for each launch is needed")
    for number, launch in enumerate(described["launch"], 1):
        where = f"{path}: launch {number}"
        missing = {"kernel", "grid", "block"} - launch.keys()
        if missing:
            raise ArgumentError(f"{where} lacks {', '.join(sorted(missing))}")
        kernel = module[launch["kernel"]].emulator(arch)
        run = kernel.configured(
            _sizes(launch["grid"]),
            _sizes(launch["block"]),
            shared_bytes=launch.get("shared", 0),
            cluster=_sizes(launch["cluster"]) if "cluster" in launch else None,
            cooperative=launch.get("cooperative", False),
        )
        run(*(_argument(x, arrays, where) for x in launch.get("arguments", ())))


def _sizes(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _argument(value: Any, arrays: dict[str, Any], where: str) -> Any:
    if not isinstance(value, dict):
        return value
    if all(key.isdigit() for key in value):
        return {int(key): _argument(field, arrays, where) for key, field in value.items()}
    array = (
        arrays.setdefault(value["name"], _array(value, where)) if "name" in value else _array(value, where)
    )
    return tensor_map(array, value["box"], value.get("swizzle", 0)) if "box" in value else array


def _array(table: dict[str, Any], where: str) -> np.ndarray:
    if "file" in table:
        return np.asarray(np.load(table["file"]))
    known = {"dtype", "shape", "fill", "name", "box", "swizzle"}
    if not {"dtype", "shape"} <= table.keys() <= known:
        raise ArgumentError(f"{where}: an array has dtype and shape, and may have {', '.join(sorted(known))}")
    fill = table.get("fill", "zeros")
    if isinstance(fill, str) and fill not in _FILLS:
        raise ArgumentError(f"{where}: fill is {fill!r}; allowed are a number and {', '.join(_FILLS)}")
    values = _FILLS[fill](table["shape"]) if isinstance(fill, str) else np.full(table["shape"], fill)
    return np.asarray(values).astype(named(table["dtype"]).numpy)
