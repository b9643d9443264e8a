"""GEMM kernels written in the kernel language, and `gemm`, which picks one for a problem."""

from kernels.gemm import gemm
from kernels.pipeline import Config, Problem
from kernels.plan import plan
from kernels.tune import tune

__all__ = ["Config", "Problem", "gemm", "plan", "tune"]
