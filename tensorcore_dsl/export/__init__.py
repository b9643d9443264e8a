"""Kernels as files: machine code, C header and source, description; and their launch from Python."""

from tensorcore_dsl.export.load import ExportedKernel as ExportedKernel
from tensorcore_dsl.export.load import load_exported as load_exported
from tensorcore_dsl.export.repository import export_repository as export_repository
