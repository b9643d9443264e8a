"""GEMM kernels written in the kernel language, and `gemm`, which picks one for a problem."""

from kernels.gemm import gemm, plan
from kernels.pipeline import Config, Problem

__all__ = ["Config", "Problem", "gemm", "plan"]
