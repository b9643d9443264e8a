"""Host functions for libraries of kernels: arrays, targets, streams, timing, caches.

`tensorcore_dsl.kernels` uses these names and those of `tensorcore_dsl` itself, and no others.
"""

from __future__ import annotations

from tensorcore_dsl.codegen import ptxas
from tensorcore_dsl.dtypes import as_dtype, from_numpy
from tensorcore_dsl.environment.cache_directory import cache_directory
from tensorcore_dsl.environment.disk_cache import replace_file
from tensorcore_dsl.environment.json_store import JsonStore
from tensorcore_dsl.environment.processors import cores
from tensorcore_dsl.errors import Loc, publish
from tensorcore_dsl.isa.fragments import prepared
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.numerics.architectures import Model as TensorCoreArithmetic
from tensorcore_dsl.numerics.architectures import model
from tensorcore_dsl.runtime.arguments import ArrayType, Description, describe
from tensorcore_dsl.runtime.array_interop import CURRENT_DEVICE, cupy_stream, stream_handle, torch_stream
from tensorcore_dsl.runtime.devices import current_devices
from tensorcore_dsl.runtime.driver import cuda_driver
from tensorcore_dsl.runtime.fast_launch import key_function
from tensorcore_dsl.runtime.launch_config import check_stream
from tensorcore_dsl.runtime.targets import current_target, device_arch, emulated_arch, target_arch, target_key
from tensorcore_dsl.runtime.timing import DeviceClock, HostClock, current_stream, in_a_row, separately
from tensorcore_dsl.runtime.trials import Bench, Trial, Tuning, fastest_first
from tensorcore_dsl.viz.html import html_table

__all__ = [
    "CURRENT_DEVICE", "ArrayType", "Bench", "Description", "DeviceClock", "HostClock", "JsonStore", "Loc",
    "TensorCoreArithmetic", "Trial", "Tuning", "as_dtype", "cache_directory", "check_stream", "cores",
    "cuda_driver", "cupy_stream", "current_devices", "current_stream", "current_target", "describe",
    "device_arch", "emulated_arch", "fastest_first", "from_numpy", "has_program_assembler", "html_table",
    "in_a_row", "key_function", "publish", "replace_file", "separately", "stream_handle", "target_arch",
    "target_key", "tensor_core_arithmetic", "torch_stream",
]  # fmt: skip


def has_program_assembler() -> bool:
    """Whether this machine has a whole-program ptxas, which `setmaxnreg` needs.

    Returns
    -------
    bool
        TENSORCORE_DSL_PTXAS names one, a package has it, or it is in the path.
    """
    return bool(ptxas.candidates())


def tensor_core_arithmetic(product: Instruction, arch: str) -> TensorCoreArithmetic:
    """How the tensor cores of an architecture sum a matrix product.

    Instructions with equal arithmetic and K give equal bits.

    Parameters
    ----------
    product : Instruction
        `tc.mma.m16n8k16(...)`, say.
    arch : str
        "sm_80", "sm_90a", ...

    Returns
    -------
    TensorCoreArithmetic
        Equal for equal rounding.

    Raises
    ------
    ValueError
        The rules are unknown.
    """
    return model(prepared(product)[0], arch)
