"""The table of instructions as data: mnemonics, operands, layouts and semantics."""

from tensorcore_dsl.isa.lookup import instruction, instructions, opcodes
from tensorcore_dsl.isa.namespaces import mma, wgmma, wmma  # replace the modules of the same names
from tensorcore_dsl.isa.spec import Instruction

__all__ = ["Instruction", "instruction", "instructions", "mma", "opcodes", "wgmma", "wmma"]
