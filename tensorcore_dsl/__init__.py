"""Tensor-core kernels in Python: one table of instructions, GPU and CPU with the same bits."""

# isort: skip_file

from tensorcore_dsl.arch import ARCHS, Arch
from tensorcore_dsl.dtypes import (
    DType, b1, b8, b16, b32, b64, bf16, bf16x2, e2m1, e2m3, e3m2, e4m3, e5m2, f16, f16x2, f32, f64,
    pred, s4, s8, s16, s32, s64, tf32, u4, u8, u16, u32, u64, ue4m3, ue8m0,
)  # fmt: skip
from tensorcore_dsl.errors import (
    ArchError, ArgumentError, AssemblyError, CompileError, Deadlock, DebuggerQuit, Divergence,
    EmulationError, LaunchError, LayoutError, Misaligned, OperandError, OutOfBounds,
    PerformanceWarning, TensorCoreError, Uninitialised, UnknownInstruction, UnknownName,
    UnsupportedSyntax, VerifyError,
)  # fmt: skip
from tensorcore_dsl.errors import publish as _publish
from tensorcore_dsl.interpreter.debugging import debugger
from tensorcore_dsl.interpreter.emulate import emulate
from tensorcore_dsl.isa import instruction, mma, wgmma, wmma
from tensorcore_dsl.kernel import Array, Const, Kernel, current_target, kernel, target
from tensorcore_dsl.lang.async_copy import cp_async, cp_async_commit, cp_async_wait
from tensorcore_dsl.lang.atomics import atomic, reduce
from tensorcore_dsl.lang.barrier import barrier, barrier_arrive, syncwarp
from tensorcore_dsl.lang.cluster import cluster_arrive, cluster_size, cluster_sync, cluster_wait
from tensorcore_dsl.lang.copy_tile import copy_tile
from tensorcore_dsl.lang.debugging import breakpoint
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.fragments import (
    fragment, load_elements, pack, store_elements, unpack, vector,
)  # fmt: skip
from tensorcore_dsl.lang.launch import (
    arch_number, griddep_launch_dependents, griddep_wait, launch_bounds, trap,
)  # fmt: skip
from tensorcore_dsl.lang.local import local
from tensorcore_dsl.lang.math import (
    cos, exp, exp2, fma, log2, maximum, minimum, rcp, rsqrt, select, sin, sqrt, tanh,
)  # fmt: skip
from tensorcore_dsl.lang.matrices import ldmatrix, movmatrix, stmatrix
from tensorcore_dsl.lang.mbarrier import fence_mbarrier_init, mbarriers
from tensorcore_dsl.lang.pointer import Pointer, load, store
from tensorcore_dsl.lang.products import as_operand, tiled_mma
from tensorcore_dsl.lang.ranges import RuntimeRange as range
from tensorcore_dsl.lang.ranges import static_range
from tensorcore_dsl.lang.rows import (
    column_values, load_columns, load_rows, reduce_columns, reduce_rows, row_max, row_min, row_sum,
    row_values, store_columns, store_rows,
)  # fmt: skip
from tensorcore_dsl.lang.synonyms import advice as _advice
from tensorcore_dsl.lang.special_registers import (
    blockDim, blockIdx, cluster_rank, gridDim, lane_id, special, threadIdx, warp_id, warpgroup_id,
)  # fmt: skip
from tensorcore_dsl.lang.tiles import Tile, dynamic_shared, shared
from tensorcore_dsl.lang.tma import (
    bulk_copy, fence_proxy_async, tensor_map, tma_store_commit, tma_load, tma_store, tma_store_wait,
)  # fmt: skip
from tensorcore_dsl.lang.warp import (
    elect, match_any, redux, shfl, shfl_down, shfl_up, shfl_xor, vote,
)  # fmt: skip
from tensorcore_dsl.lang.warp_specialize import setmaxnreg, warp_specialize
from tensorcore_dsl.lang.wgmma import (
    wgmma_async, wgmma_commit, wgmma_descriptor, wgmma_fence, wgmma_wait,
)  # fmt: skip
from tensorcore_dsl.runtime.arguments import ArrayType, ScalarType
from tensorcore_dsl.runtime.trials import Trial, Tuning
from tensorcore_dsl.tuning.autotune import Autotuned, autotune
from tensorcore_dsl.tuning.config import Config
from tensorcore_dsl import testing


def __getattr__(name: str) -> object:
    """The error of a name that does not exist, with the one that was probably meant."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise UnknownName(f"{__name__} has no {name!r}{_advice(name)}")


_publish(globals())
