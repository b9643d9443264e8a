"""Description of an exported kernel, stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.export.grid_rule import GridRule
from tensorcore_dsl.ir.nodes import Im2col, TensorMap
from tensorcore_dsl.runtime.arguments import ArgumentType, ArrayType, Packer, ScalarType, array_element_bits
from tensorcore_dsl.runtime.launch_config import LaunchConfig
from tensorcore_dsl.runtime.tensor_maps import MAP_BYTES

FORMAT = 2  # version of the JSON format; other versions are refused


@dataclass(frozen=True)
class Argument:
    """A run-time argument: name, type, and required shape (None: any)."""

    name: str
    type: ArgumentType
    shape: tuple[int, ...] | None = None

    def as_json(self) -> dict[str, Any]:
        kind = self.type
        if kind is None:
            return {"name": self.name, "kind": "none"}
        if isinstance(kind, ScalarType):
            return {"name": self.name, "kind": "number", "dtype": kind.dtype.name}
        return {
            "name": self.name,
            "kind": "array",
            "dtype": kind.dtype.name,
            "ndim": kind.ndim,
            "unit": list(kind.unit),
            "align": kind.align,
            "writable": kind.writable,
            "shape": self.shape,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Argument:
        if fields["kind"] == "none":
            return cls(fields["name"], None)
        dtype = dtypes.ALL[fields["dtype"]]
        if fields["kind"] == "number":
            return cls(fields["name"], ScalarType(dtype))
        kind = ArrayType(dtype, fields["ndim"], tuple(fields["unit"]), fields["align"], fields["writable"])
        return cls(fields["name"], kind, None if fields["shape"] is None else tuple(fields["shape"]))


@dataclass(frozen=True)
class Interface:
    """Everything that a program needs to launch an exported kernel.

    Attributes
    ----------
    name : str
        Name of the files and prefix of the C functions.
    code : str
        Name of the file with the machine code, or with the PTX.
    cubin : Cubin
        The kernel. For an export as PTX, its code is the text.
    arguments : tuple of Argument
        The run-time arguments in order.
    grid : GridRule or None
        None: the caller gives the grid.
    config : LaunchConfig
        Everything but the grid, with the kernel's own shared memory, block and cluster.
    constants : tuple
        Names of the Const parameters, and their values as text.
    made_by : str
        Name and version of this package.
    about : str
        What the kernel computes, for the header.
    """

    name: str
    code: str
    cubin: Cubin
    arguments: tuple[Argument, ...]
    grid: GridRule | None
    config: LaunchConfig
    constants: tuple[tuple[str, str], ...] = ()
    made_by: str = ""
    about: str = ""

    @property
    def types(self) -> dict[str, ArgumentType]:
        return {argument.name: argument.type for argument in self.arguments}

    def parameters(self) -> list[dict[str, Any]]:
        """Parameters of the entry in order. Their offsets are known for machine code only."""
        names = [argument.name for argument in self.arguments]
        packed = Packer(tuple(self.types.values())).parameters
        rows = [(f"{names[p.argument]}{p.suffix}", p.ptx, int(p.ptx[1:]) // 8) for p in packed]
        for number, tensor_map in enumerate(self.cubin.tensor_maps):
            rows.append((f"{names[tensor_map.argument]}_map{number}", "tensor map", MAP_BYTES))
        offsets = self.cubin.parameter_offsets()
        return [
            {"name": name, "type": ptx, "size": size, "offset": offsets.get(i, (None,))[0]}
            for i, (name, ptx, size) in enumerate(rows)
        ]

    def as_json(self) -> dict[str, Any]:
        config, cubin, resources = self.config, self.cubin, self.cubin.resources
        return {
            "format": FORMAT,
            "made_by": self.made_by,
            "about": self.about,
            "name": self.name,
            "entry": cubin.name,
            "arch": cubin.arch,
            "code": self.code,
            "arguments": [argument.as_json() for argument in self.arguments],
            "parameters": self.parameters(),
            "tensor_maps": [
                {
                    "argument": self.arguments[m.argument].name,
                    "dtype": self.arguments[m.argument].as_json()["dtype"],
                    "axes": list(m.axes),
                    "box": list(m.box),
                    "swizzle": m.swizzle,
                    "im2col": m.im2col,
                    "nan_fill": m.nan_fill,
                }
                for m in cubin.tensor_maps
            ],
            "constants": dict(self.constants),
            "launch": {
                "grid": None if self.grid is None else list(self.grid.texts),
                "block": list(config.block),
                "dynamic_shared_bytes": config.shared_bytes,
                "cluster": None if config.cluster is None else list(config.cluster),
                "cluster_in_code": config.cluster_in_code,
                "cooperative": config.cooperative,
                "pdl": config.pdl,
                "checks": cubin.checks,
            },
            "resources": {"registers": resources.registers, "static_shared_bytes": resources.shared_bytes},
        }

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Interface:
        """Read an interface from a JSON file, and the code from the file in the same folder."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            version = document["format"]
            code = (path.parent / document["code"]).read_bytes()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArgumentError(f"{path} describes no exported kernel: {error}") from None
        if version != FORMAT:
            raise ArgumentError(f"{path} has format {version}; this version reads format {FORMAT}")
        arguments = tuple(map(Argument.from_json, document["arguments"]))
        names = [argument.name for argument in arguments]
        maps = tuple(
            TensorMap(
                names.index(m["argument"]),
                tuple(m["axes"]),
                tuple(m["box"]),
                m["swizzle"],
                im2col=m["im2col"] and Im2col(*map(tuple, m["im2col"])),
                nan_fill=m["nan_fill"],
            )
            for m in document["tensor_maps"]
        )
        launch = document["launch"]
        cluster = launch["cluster"] and tuple(launch["cluster"])
        config = LaunchConfig(
            (1, 1, 1),
            tuple(launch["block"]),
            launch["dynamic_shared_bytes"],
            cluster,
            launch["cooperative"],
            launch["pdl"],
            launch["cluster_in_code"],
        )
        cubin = Cubin(
            document["entry"], document["arch"], "", code, "", tensor_maps=maps, checks=launch["checks"]
        )
        types = {argument.name: argument.type for argument in arguments}
        rule = None if launch["grid"] is None else GridRule.of(launch["grid"], types)
        constants = tuple(document["constants"].items())
        told = document["made_by"], document["about"]
        return cls(document["name"], document["code"], cubin, arguments, rule, config, constants, *told)


def element_bytes(kind: ArrayType) -> int:
    """Bytes of an element in memory."""
    return array_element_bits(kind.dtype) // 8


def array_arguments(arguments: Sequence[Argument]) -> list[tuple[Argument, ArrayType]]:
    """Return the array arguments, each with its type."""
    return [(a, a.type) for a in arguments if isinstance(a.type, ArrayType)]
