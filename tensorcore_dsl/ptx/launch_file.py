"""Run the PTX launches that a TOML file describes, for `tensorcore-dsl check`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tensorcore_dsl.dtypes import named
from tensorcore_dsl.errors import ArgumentError, listing
from tensorcore_dsl.ptx.module import load
from tensorcore_dsl.ptx.tensor_maps import tensor_map

_FILLS: dict[str, Callable[[Any], np.ndarray]] = {
    "zeros": lambda shape: np.zeros(shape),
    "range": lambda shape: np.arange(np.prod(shape)).reshape(shape),
    "random": lambda shape: np.random.default_rng(0).standard_normal(shape),
}
_SIZES = ("grid", "block", "cluster")
_KEYS = {"kernel": str, **dict.fromkeys(_SIZES, int), "shared": int, "cooperative": bool, "arguments": list}
_OF_ARRAYS = ("dtype", "shape", "fill", "file", "name", "box", "swizzle")
_WORDS = {str: "a string", int: "an integer", bool: "true or false", list: "a list"}


def run_launches(ptx: str, path: str, arch: str | None = None) -> None:
    """Run the launches of the TOML file `path` in order.

    Each `[[launch]]` has `kernel`, `grid`, `block` and `arguments`. A file of one kernel needs no
    `kernel`. `shared` (bytes), `cluster` and `cooperative` (true) are optional. An argument is one of:

    - a number;
    - an array: a table with `dtype`, `shape` and `fill` ("zeros", "range", "random" or a number), or with
      the `file` of a NumPy array;
    - a tensor map: the table of an array with `box` and `swizzle`;
    - a struct: a table with each field at its offset in bytes, and with a file of all other `bytes`.

    Tables with the same `name` denote one array.
    """
    try:
        described = import_module("tomllib").loads(Path(path).read_text(encoding="utf-8"))
    except ImportError:
        raise ArgumentError("launches in TOML need Python 3.11 or later") from None
    except (OSError, ValueError) as error:
        raise ArgumentError(f"cannot read {path!r}: {error}") from None
    module, arrays = load(Path(ptx)), dict[str, Any]()
    launches = described.get("launch")
    if not launches or not isinstance(launches, list) or not all(isinstance(one, dict) for one in launches):
        raise ArgumentError(f"{path}: a table [[launch]] for each launch is needed")
    if unknown := described.keys() - {"launch"}:
        raise ArgumentError(f"{path}: {listing(sorted(unknown))} stands outside of [[launch]]")
    for number, launch in enumerate(launches, 1):
        where = f"{path}: launch {number}"
        _check_keys(launch, where, len(list(module)) == 1)
        kernel = module[launch.get("kernel", next(iter(module), ""))].emulator(arch)
        run = kernel.configured(
            _sizes(launch["grid"]),
            _sizes(launch["block"]),
            shared_bytes=launch.get("shared", 0),
            cluster=_sizes(launch["cluster"]) if "cluster" in launch else None,
            cooperative=launch.get("cooperative", False),
        )
        run(*(_argument(x, arrays, where) for x in launch.get("arguments", ())))


def _check_keys(launch: dict[str, Any], where: str, one_kernel: bool) -> None:
    """Raise ArgumentError for unknown or missing keys, and for values of another type."""
    if unknown := launch.keys() - _KEYS.keys():
        raise ArgumentError(f"{where} has {listing(sorted(unknown))}; the keys are {', '.join(_KEYS)}")
    needed = {"grid", "block"} if one_kernel else {"kernel", "grid", "block"}
    if missing := needed - launch.keys():
        raise ArgumentError(f"{where} lacks {', '.join(sorted(missing))}")
    for key, value in launch.items():
        parts = value if key in _SIZES and isinstance(value, list) else [value]
        if not all(type(part) is _KEYS[key] for part in parts):
            kind = f"{_WORDS[_KEYS[key]]}{', or a list of them' * (key in _SIZES)}"
            raise ArgumentError(f"{where}: {key} is {value!r}; allowed is {kind}")


def _sizes(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _argument(value: Any, arrays: dict[str, Any], where: str) -> Any:
    if not isinstance(value, dict):
        return value
    offsets = value.keys() - {"bytes"}
    if all(offset.isdigit() for offset in offsets):
        fields: dict[Any, Any] = {int(at): _argument(value[at], arrays, where) for at in offsets}
        if "bytes" in value:
            fields["bytes"] = _read(value["bytes"], where, lambda path: Path(path).read_bytes())
        return fields
    array = (
        arrays.setdefault(value["name"], _array(value, where)) if "name" in value else _array(value, where)
    )
    return tensor_map(array, value["box"], value.get("swizzle", 0)) if "box" in value else array


def _read(path: Any, where: str, read: Callable[[Any], Any]) -> Any:
    try:
        return read(path)
    except (OSError, ValueError, TypeError) as error:
        raise ArgumentError(f"{where}: cannot read {path!r}: {error}") from None


def _array(table: dict[str, Any], where: str) -> np.ndarray:
    if unknown := table.keys() - _OF_ARRAYS:
        raise ArgumentError(
            f"{where}: an array has {listing(sorted(unknown))}; the keys are {', '.join(_OF_ARRAYS)}"
        )
    if "file" in table:
        return np.asarray(_read(table["file"], where, np.load))
    if not {"dtype", "shape"} <= table.keys():
        raise ArgumentError(f"{where}: an array has a file, or dtype and shape")
    shape = table["shape"]
    if not all(type(size) is int and size >= 0 for size in (shape if isinstance(shape, list) else [shape])):
        raise ArgumentError(f"{where}: shape is {shape!r}; allowed are sizes of 0 or more")
    fill = table.get("fill", "zeros")
    if fill not in _FILLS if isinstance(fill, str) else not isinstance(fill, (int, float)):
        raise ArgumentError(f"{where}: fill is {fill!r}; allowed are a number and {', '.join(_FILLS)}")
    values = _FILLS[fill](shape) if isinstance(fill, str) else np.full(shape, fill)
    return np.asarray(values).astype(named(table["dtype"]).numpy)
