"""Compile one specialisation of a kernel: from its Python function to verified IR."""

from __future__ import annotations

import re
import sys
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import Arch
from tensorcore_dsl.environment.processors import without_collections
from tensorcore_dsl.errors import ArgumentError, located
from tensorcore_dsl.frontend.debug_build import keep_variables, scopes_of
from tensorcore_dsl.frontend.environment import own_copy
from tensorcore_dsl.frontend.statements import Evaluator
from tensorcore_dsl.ir.coalesce import coalesce
from tensorcore_dsl.ir.nodes import Block, Kernel, Param, Type
from tensorcore_dsl.ir.verify import verify
from tensorcore_dsl.ir.writes import written_arrays
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.origins import is_library_kernel
from tensorcore_dsl.runtime.arguments import ArrayType, Packer, array_element_bits
from tensorcore_dsl.tracing import reset_emitter, set_emitter
from tensorcore_dsl.values.builder import Builder
from tensorcore_dsl.values.values import Scalar

RECURSION_LIMIT = 6000  # Python frames; a call, branch or unrolled iteration nests about 15


@without_collections()
def compile_kernel(
    kernel: Any,
    types: tuple[Any, ...],
    constants: dict[str, Any],
    arch: Arch,
    checks: bool | None = None,
    debug: bool = False,
) -> Kernel:
    """Evaluate `kernel.function` for argument types and Const values; the IR is verified.

    checks: the kernel checks indices at run time; None: only assertions; False: neither. debug:
    with marks and registers for the debugger, for the emulator only.
    """
    ir = Kernel(
        re.sub(r"\W", "_", kernel.__name__),
        [],
        Block(),
        threads=kernel.threads,
        min_blocks=kernel.min_blocks,
        max_registers=kernel.max_registers,
    )
    builder = Builder(ir, arch, lambda: None)
    builder.checks, builder.asserts = bool(checks), checks is not False
    evaluator = Evaluator(builder)
    if debug:
        builder.scopes = lambda: scopes_of(evaluator.frames)
    token = set_emitter(builder)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION_LIMIT))
    try:
        variables = {name: own_copy(value) for name, value in constants.items()}
        variables.update(_arguments(builder, kernel.runtime_names, types))
        if kernel.variadic:
            variables[kernel.variadic] = tuple([variables.pop(n) for n in kernel.collected])
        variables.update(kernel.peers_of(variables))
        evaluator.run(kernel.function, variables)
        ours = is_library_kernel(kernel.function.__module__)
        with located(None if ours else builder.overflow):
            arch.check_shared(ir.name, ir.shared_bytes)
        if debug:
            keep_variables(ir)
        coalesce(ir)
        _refuse_writes(ir, kernel.runtime_names, types)
        if not debug:  # the same kernel is verified without its marks
            verify(ir, arch)
    finally:
        sys.setrecursionlimit(limit)
        reset_emitter(token)
    return ir


def _refuse_writes(ir: Kernel, names: list[str], types: tuple[Any, ...]) -> None:
    """Refuse a kernel that writes read-only arrays: on a GPU nothing else would notice."""
    kept = [n for n, t in zip(names, types) if isinstance(t, ArrayType) and not t.writable]
    written = written_arrays(ir, names) if kept else {}
    for name in kept:
        if name in written:
            raise ArgumentError(
                f"argument {name!r} is a read-only array, and {ir.name} writes it here; pass an "
                f"array that may be written, or a copy",
                written[name],
            )


def _arguments(builder: Builder, names: list[str], types: tuple[Any, ...]) -> dict[str, Any]:
    """Declare the parameters, and return the run-time argument of each name."""
    registers: dict[tuple[int, str], Scalar] = {}
    for p in Packer(types).parameters:
        scalar = Scalar(builder.new_value(Type(dtypes.named(p.ptx))))
        name = re.sub(r"\W+", "_", names[p.argument])
        builder.kernel.params.append(Param(f"{name}{p.suffix}", scalar.value))
        registers[p.argument, p.suffix] = scalar
    arguments: dict[str, Any] = {}
    for argument_index, (name, kind) in enumerate(zip(names, types, strict=True)):
        if kind is None:
            arguments[name] = None
        elif isinstance(kind, ArrayType):
            arguments[name] = _array(builder, registers, argument_index, kind, name)
        elif kind.dtype.kind == "p":
            arguments[name] = registers[argument_index, ""] != 0
        else:
            arguments[name] = Scalar(registers[argument_index, ""].value, kind.dtype)
    return arguments


def _array(
    builder: Builder,
    registers: dict[tuple[int, str], Scalar],
    argument_index: int,
    kind: ArrayType,
    name: str,
) -> Array:
    shape = tuple(registers[argument_index, f"_shape{d}"] for d in range(kind.ndim))
    strides = tuple(
        1 if unit else registers[argument_index, f"_stride{d}"] for d, unit in enumerate(kind.unit)
    )
    builder.multiples[registers[argument_index, ""].value] = kind.align
    for stride in strides:
        if isinstance(stride, Scalar):
            builder.multiples[stride.value] = max(kind.align * 8 // array_element_bits(kind.dtype), 1)
    return Array(
        registers[argument_index, ""], kind.dtype, shape, strides, kind.align, argument_index, f"{name!r}"
    )
