"""Compiled loops: functions of Python, from their syntax straight to LLVM."""

from tensorcore_dsl.lowering.functions import compiled, inlined, primitive, vectorised

__all__ = ["compiled", "inlined", "primitive", "vectorised"]
