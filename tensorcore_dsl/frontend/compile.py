"""Compiles one specialisation of a kernel: from its Python function to verified IR."""

from __future__ import annotations

import re
import sys
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import Arch
from tensorcore_dsl.frontend.debug_build import keep_variables, scopes_of
from tensorcore_dsl.frontend.environment import own_copy
from tensorcore_dsl.frontend.statements import Evaluator
from tensorcore_dsl.ir.coalesce import coalesce
from tensorcore_dsl.ir.nodes import Block, Kernel, Param, Type
from tensorcore_dsl.ir.verify import verify
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.runtime.arguments import ArrayType, Packer, storage_bits
from tensorcore_dsl.tracing import reset_emitter, set_emitter
from tensorcore_dsl.values.builder import Builder
from tensorcore_dsl.values.values import Scalar

RECURSION_LIMIT = 6000  # Python frames; a call, branch or unrolled iteration nests about 15


def compile_kernel(
    kernel: Any, types: tuple[Any, ...], constants: dict[str, Any], arch: Arch, debug: bool = False
) -> Kernel:
    """Evaluate `kernel.function` for argument types and Const values; the IR is verified.

    debug: with marks and registers for the debugger, for the emulator only.
    """
    ir = Kernel(
        re.sub(r"\W", "_", kernel.__name__), [], Block(), threads=kernel.threads,
        min_blocks=kernel.min_blocks, max_registers=kernel.max_registers,
    )  # fmt: skip
    builder = Builder(ir, arch, lambda: None)
    evaluator = Evaluator(builder)
    if debug:
        builder.scopes = lambda: scopes_of(evaluator.frames)
    token = set_emitter(builder)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION_LIMIT))
    try:
        variables = {name: own_copy(value) for name, value in constants.items()}
        variables.update(_arguments(builder, kernel.runtime_names, types))
        evaluator.run(kernel.function, variables)
        arch.check_shared(ir.name, ir.shared_bytes)
        if debug:
            keep_variables(ir)
        coalesce(ir)
        if not debug:  # the same kernel is verified without its marks
            verify(ir, arch)
    finally:
        sys.setrecursionlimit(limit)
        reset_emitter(token)
    return ir


def _arguments(builder: Builder, names: list[str], types: tuple[Any, ...]) -> dict[str, Any]:
    """Declare the parameters, and return the run-time argument of each name."""
    registers: dict[tuple[int, str], Scalar] = {}
    for p in Packer(types).parameters:
        scalar = Scalar(builder.new_value(Type(dtypes.named(p.ptx))))
        builder.kernel.params.append(Param(f"{names[p.argument]}{p.suffix}", scalar.value))
        registers[p.argument, p.suffix] = scalar
    arguments: dict[str, Any] = {}
    for place, (name, kind) in enumerate(zip(names, types, strict=True)):
        if isinstance(kind, ArrayType):
            arguments[name] = _array(builder, registers, place, kind)
        elif kind.dtype.kind == "p":
            arguments[name] = registers[place, ""] != 0
        else:
            arguments[name] = Scalar(registers[place, ""].value, kind.dtype)
    return arguments


def _array(
    builder: Builder, registers: dict[tuple[int, str], Scalar], place: int, kind: ArrayType
) -> Array:
    shape = tuple(registers[place, f"_shape{d}"] for d in range(kind.ndim))
    strides = tuple(
        1 if unit else registers[place, f"_stride{d}"] for d, unit in enumerate(kind.unit)
    )
    builder.multiples[registers[place, ""].value] = kind.align
    for stride in strides:
        if isinstance(stride, Scalar):
            builder.multiples[stride.value] = max(kind.align * 8 // storage_bits(kind.dtype), 1)
    return Array(registers[place, ""], kind.dtype, shape, strides, kind.align, place)
