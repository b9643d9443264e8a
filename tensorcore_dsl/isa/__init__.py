"""The table: every instruction as a row of data, with its types, text, layouts and semantics."""

from tensorcore_dsl.isa.lookup import instruction, instructions, opcodes
from tensorcore_dsl.isa.namespaces import mma, wgmma, wmma  # over the modules of these names
from tensorcore_dsl.isa.spec import Instruction

__all__ = ["Instruction", "instruction", "instructions", "mma", "opcodes", "wgmma", "wmma"]
