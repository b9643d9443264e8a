"""The table: every instruction as a row of data, with its types, text, layouts and semantics."""

from tensorcore_dsl.isa.lookup import forms, instruction, opcodes
from tensorcore_dsl.isa.namespaces import mma, wgmma, wmma  # over the modules of these names
from tensorcore_dsl.isa.spec import Instruction

__all__ = ["Instruction", "forms", "instruction", "mma", "opcodes", "wgmma", "wmma"]
