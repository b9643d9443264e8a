"""Load PTX from any compiler, and run and check its kernels on the CPU."""

from tensorcore_dsl.ptx.cuda_kernels import from_cuda
from tensorcore_dsl.ptx.module import Module, PtxKernel, load
from tensorcore_dsl.ptx.numba_driver import numba_on_cpu
from tensorcore_dsl.ptx.numba_kernels import NumbaKernel, from_numba
from tensorcore_dsl.ptx.tensor_maps import TensorMap, tensor_map
from tensorcore_dsl.ptx.triton_kernels import TritonKernel, from_triton, triton_on_cpu

__all__ = [
    "Module", "NumbaKernel", "PtxKernel", "TensorMap", "TritonKernel",
    "from_cuda", "from_numba", "from_triton", "load", "numba_on_cpu", "tensor_map", "triton_on_cpu",
]  # fmt: skip
