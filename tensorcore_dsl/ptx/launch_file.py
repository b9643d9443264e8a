"""Launches of kernels in PTX that a file in TOML describes, for `tensorcore-dsl check`."""

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
    """Run the launches of a file in TOML, in their order.

    Each `[[launch]]` has `kernel`, `grid`, `block`, `arguments`, and may have `shared` and `cluster`. An
    argument is a number, a table of an array (`dtype`, `shape`, and `fill`: "zeros", "range", "random" or a
    number; `file`: of NumPy instead), which has a `box` and a `swizzle` where it is a tensor map, or a
    table of the fields of a struct by their offsets. Arrays with the same `name` are one.
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
        )
        run(*(_argument(x, arrays, where) for x in launch.get("arguments", ())))


def _sizes(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given


def _argument(given: Any, arrays: dict[str, Any], where: str) -> Any:
    if not isinstance(given, dict):
        return given
    if all(key.isdigit() for key in given):
        return {int(key): _argument(field, arrays, where) for key, field in given.items()}
    array = (
        arrays.setdefault(given["name"], _array(given, where)) if "name" in given else _array(given, where)
    )
    return tensor_map(array, given["box"], given.get("swizzle", 0)) if "box" in given else array


def _array(given: dict[str, Any], where: str) -> np.ndarray:
    if "file" in given:
        return np.asarray(np.load(given["file"]))
    known = {"dtype", "shape", "fill", "name", "box", "swizzle"}
    if not {"dtype", "shape"} <= given.keys() <= known:
        raise ArgumentError(f"{where}: an array has dtype and shape, and may have {', '.join(sorted(known))}")
    fill = given.get("fill", "zeros")
    if isinstance(fill, str) and fill not in _FILLS:
        raise ArgumentError(f"{where}: fill is {fill!r}; allowed are a number and {', '.join(_FILLS)}")
    values = _FILLS[fill](given["shape"]) if isinstance(fill, str) else np.full(given["shape"], fill)
    return np.asarray(values).astype(named(given["dtype"]).numpy)
