"""Parse kernels and argument types of the command line: `file.py:kernel f16[?,1] f32 n=2`."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import ArgumentError, listing
from tensorcore_dsl.runtime.arguments import MAX_ALIGNMENT, ArrayType, ScalarType

_TYPE = re.compile(r"(?P<dtype>\w+)(\[(?P<strides>[1?, ]*)\](@(?P<align>\d+))?(?P<readonly>:ro)?)?")
SYNTAX = (
    "f32 (a number), f16[?,1] (an array of two dimensions, whose last stride is 1), f16[?,1]@8 (aligned to 8 "
    "bytes, not 16), f16[1]:ro (only read), none"
)


def kernel_in_file(name_in_file: str) -> tuple[Any, dict[str, Any]]:
    """Import the module of "file.py:kernel", not as a script. Return the kernel and the module's names."""
    path, _, name = name_in_file.rpartition(":")
    if not path or not name.isidentifier():
        raise ArgumentError(f"{name_in_file!r} names no kernel; write file.py:kernel")
    if not Path(path).is_file():
        raise ArgumentError(f"there is no file {path!r}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{path!r} is not a file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ArgumentError(f"{path!r} is no Python: {error}") from None
    names = vars(module)
    kernels = [n for n, value in names.items() if hasattr(value, "specialise")]
    if _of_other_compiler(names.get(name)):
        raise ArgumentError(
            f"{name} in {path} is not a kernel of @tc.kernel but of another compiler; tc.ptx takes it, and "
            "`tensorcore-dsl check` runs a script that launches it with all checks"
        )
    if name not in kernels:
        raise ArgumentError(f"{path} has no kernel {name!r}; its kernels are {listing(kernels)}")
    return names[name], names


def _of_other_compiler(value: Any) -> bool:
    """True if a value is a kernel of Numba or Triton."""
    return type(value).__module__.split(".")[0] in ("numba", "numba_cuda", "triton")


def arguments_of(kernel: Any, texts: Sequence[str], names: dict[str, Any]) -> dict[str, Any]:
    """Parse the types of run-time arguments and the values of Const parameters, by name.

    texts: types in the order of the run-time parameters; name=type, and name=value for a Const, which may
    be an expression over `names`. An annotation gives the type of a scalar that has none in `texts`.
    """
    runtime = list(kernel.runtime_names)
    constants = [p.name for p in kernel.parameters if p.const]
    result: dict[str, Any] = {}
    in_order = iter(runtime)
    for text in texts:
        match = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", text, re.DOTALL)
        if match and match[1] in constants:
            result[match[1]] = _value(text, match[2], names)
        elif match and match[1] in runtime:
            result[match[1]] = type_of(match[2])
        elif match:
            raise ArgumentError(f"{text!r}: the parameters are {listing([*runtime, *constants])}")
        elif (name := next(in_order, None)) is None:
            raise ArgumentError(f"{kernel.__name__} takes {len(runtime)} types ({listing(runtime)})")
        else:
            result[name] = type_of(text)
    rest = [p for p in kernel.runtime_parameters if p.name not in result]
    result |= {p.name: ScalarType(p.dtype) for p in rest if p.dtype is not None and not p.optional}
    missing = [p.name for p in rest if p.name not in result and p.default is inspect.Parameter.empty]
    if missing:
        raise ArgumentError(f"{kernel.__name__} needs types for {listing(missing)}: {SYNTAX}")
    return result


def _value(text: str, expression: str, names: dict[str, Any]) -> Any:
    try:
        return eval(expression, dict(names))
    except Exception as error:
        raise ArgumentError(f"{text!r}: {type(error).__name__}: {error}") from None


def type_of(text: str) -> Any:
    """Parse a type, such as "f16[?,1]" or "f32"."""
    if text == "none":
        return None
    match = _TYPE.fullmatch(text.strip())
    if match is None or match["dtype"] not in dtypes.ALL:
        raise ArgumentError(f"{text!r} names no type; types are written as {SYNTAX}")
    dtype = dtypes.ALL[match["dtype"]]
    if match["strides"] is None:
        return ScalarType(dtype)
    strides = [s.strip() for s in match["strides"].split(",")] if match["strides"].strip() else []
    if any(s not in ("1", "?") for s in strides):
        raise ArgumentError(f"{text!r}: strides are 1 or ?, one for each dimension, as in {SYNTAX}")
    align = int(match["align"] or MAX_ALIGNMENT)
    unit = tuple(s == "1" for s in strides)
    return ArrayType(dtype, len(strides), unit, align, match["readonly"] is None)
