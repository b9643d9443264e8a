"""PTX that other compilers wrote, run and checked on the CPU."""

from tensorcore_dsl.ptx.module import Module, PtxKernel, load

__all__ = ["Module", "PtxKernel", "load"]
