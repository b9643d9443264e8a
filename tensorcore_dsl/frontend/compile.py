"""One specialisation of a kernel, from its function to verified IR."""

from __future__ import annotations

import re
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import Arch
from tensorcore_dsl.arguments import ArrayType, Packer
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.frontend.builder import Builder
from tensorcore_dsl.frontend.memory import Array
from tensorcore_dsl.frontend.statements import Evaluator
from tensorcore_dsl.frontend.values import Scalar
from tensorcore_dsl.ir.coalesce import coalesce
from tensorcore_dsl.ir.nodes import Block, Kernel, Param, Type
from tensorcore_dsl.ir.verify import verify
from tensorcore_dsl.isa.spec import reset_emitter, set_emitter


def compile_kernel(kernel: Any, types: tuple[Any, ...], constants: dict[str, Any], arch: Arch) -> Kernel:
    """Evaluate `kernel.function` for argument types and Const values; verified, coalesced IR."""
    name = re.sub(r"\W", "_", kernel.__name__)
    ir = Kernel(
        name, [], Block(), threads=kernel.threads, min_blocks=kernel.min_blocks,
        max_registers=kernel.max_registers,
    )  # fmt: skip
    builder = Builder(ir, arch)
    variables = dict(constants)
    variables.update(_arguments(builder, kernel.runtime_names, types))
    token = set_emitter(builder)
    try:
        Evaluator(builder).run(kernel.function, variables)
    finally:
        reset_emitter(token)
    coalesce(ir)
    verify(ir, arch)
    return ir


def _arguments(builder: Builder, names: list[str], types: tuple[Any, ...]) -> dict[str, Any]:
    """The run-time arguments as the kernel sees them; declares their parameters."""
    registers: dict[tuple[int, str], Scalar] = {}
    for p in Packer(types).parameters:
        dtype = dtypes.named(p.ptx)
        scalar = Scalar(builder.new_value(Type(dtype)))
        builder.kernel.params.append(Param(f"{names[p.argument]}{p.suffix}", scalar.value))
        registers[p.argument, p.suffix] = scalar
    found: dict[str, Any] = {}
    for place, (name, kind) in enumerate(zip(names, types, strict=True)):
        if isinstance(kind, ArrayType):
            found[name] = _array(registers, place, kind)
        else:
            found[name] = _scalar(builder, registers[place, ""], kind.dtype)
    return found


def _array(registers: dict[tuple[int, str], Scalar], place: int, kind: ArrayType) -> Array:
    shape = tuple(registers[place, f"_shape{d}"] for d in range(kind.ndim))
    strides = tuple(
        1 if unit else registers[place, f"_stride{d}"] for d, unit in enumerate(kind.unit)
    )
    return Array(registers[place, ""], kind.dtype, shape, strides, kind.align, argument=place)


def _scalar(builder: Builder, register: Scalar, dtype: DType) -> Any:
    if dtype.kind != "p":
        return Scalar(register.value, dtype)
    token = set_emitter(builder)
    try:
        return register != 0
    finally:
        reset_emitter(token)
