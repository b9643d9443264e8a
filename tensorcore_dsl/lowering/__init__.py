"""Compile Python functions to machine code: translate their syntax trees directly to LLVM IR."""

from tensorcore_dsl.lowering.functions import compiled, compiled_once, inlined, primitive, vectorised

__all__ = ["compiled", "compiled_once", "inlined", "primitive", "vectorised"]
