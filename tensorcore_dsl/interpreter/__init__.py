"""Runs the IR on the CPU with the bits of the hardware, and reports the errors it does not show."""

from tensorcore_dsl.interpreter.core.program import Program
from tensorcore_dsl.interpreter.core.report import Report
from tensorcore_dsl.interpreter.emulate import emulate
from tensorcore_dsl.interpreter.execution.compiler import compile_program
from tensorcore_dsl.interpreter.launch import EmulatedLaunch
from tensorcore_dsl.interpreter.memory.global_memory import GlobalPointer

__all__ = ["EmulatedLaunch", "GlobalPointer", "Program", "Report", "compile_program", "emulate"]
