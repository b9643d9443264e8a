"""Kernels written in the kernel language: `gemm` and `attention` pick one for a problem."""

from tensorcore_dsl.host import publish as _publish
from tensorcore_dsl.kernels.ampere.config import AmpereConfig, VectorConfig
from tensorcore_dsl.kernels.ampere.packed_gemm import PackedConfig
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.hopper.packed_few_rows import HopperPackedConfig
from tensorcore_dsl.kernels.hopper.row_reduction import RowReduction
from tensorcore_dsl.kernels.host.attention import attention
from tensorcore_dsl.kernels.host.attention_backward import attention_backward
from tensorcore_dsl.kernels.host.attention_plan import plan_attention
from tensorcore_dsl.kernels.host.distributed import (
    VirtualGroup,
    all_gather_gemm,
    gemm_all_reduce,
    gemm_reduce_scatter,
)
from tensorcore_dsl.kernels.host.export import export_gemm
from tensorcore_dsl.kernels.host.gemm import gemm
from tensorcore_dsl.kernels.host.grouped_gemm import grouped_gemm
from tensorcore_dsl.kernels.host.k_grouped_gemm import k_grouped_gemm
from tensorcore_dsl.kernels.host.packed_weights import PackedWeights, pack
from tensorcore_dsl.kernels.host.planning import explain_bits, plan
from tensorcore_dsl.kernels.host.scaled_gemm import requantised_gemm, scaled_gemm
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix, compress, decompress
from tensorcore_dsl.kernels.host.swiglu import swiglu
from tensorcore_dsl.kernels.host.tuning import tune
from tensorcore_dsl.kernels.host.warming import warm

__all__ = [
    "AmpereConfig", "HopperConfig", "HopperPackedConfig", "PackedConfig", "PackedWeights",
    "RowReduction", "SparseMatrix", "VectorConfig", "VirtualGroup", "all_gather_gemm", "attention",
    "attention_backward", "compress", "decompress", "explain_bits", "export_gemm", "gemm",
    "gemm_all_reduce", "gemm_reduce_scatter", "grouped_gemm", "k_grouped_gemm", "pack", "plan",
    "plan_attention", "requantised_gemm", "scaled_gemm", "swiglu", "tune", "warm",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


_publish(globals())
