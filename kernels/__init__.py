"""GEMM kernels written in the kernel language, and `gemm`, which picks one for a problem."""

from kernels.gemm import gemm
from kernels.grouped_gemm import grouped_gemm, swiglu
from kernels.pipeline import Config, Problem
from kernels.plan import plan
from kernels.row_statistics import RowStatistic
from kernels.scaled_gemm import requantised_gemm, scaled_gemm
from kernels.sparsity import SparseMatrix, compress, decompress
from kernels.tune import tune

__all__ = [
    "Config", "Problem", "RowStatistic", "SparseMatrix", "compress", "decompress", "gemm",
    "grouped_gemm", "plan", "requantised_gemm", "scaled_gemm", "swiglu", "tune",
]  # fmt: skip
