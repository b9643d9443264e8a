"""Export kernels to files (machine code, C header, C source, JSON), and launch them from Python."""

from tensorcore_dsl.export.load import ExportedKernel as ExportedKernel
from tensorcore_dsl.export.load import load_exported as load_exported
from tensorcore_dsl.export.repository import export_repository as export_repository
