"""Runs the IR on the CPU with the hardware's bits, and catches what the hardware never tells."""

from tensorcore_dsl.interpreter.emulate import emulate
from tensorcore_dsl.interpreter.launch import run
from tensorcore_dsl.interpreter.memory import GlobalPointer
from tensorcore_dsl.interpreter.program import Program, compile_program
from tensorcore_dsl.interpreter.report import Report

__all__ = ["GlobalPointer", "Program", "Report", "compile_program", "emulate", "run"]
