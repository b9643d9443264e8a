"""Tensor-core kernels in Python: one table of instructions, GPU and CPU with the same bits."""

from tensorcore_dsl.arch import ARCHS, Arch
from tensorcore_dsl.arguments import ArrayType, ScalarType
from tensorcore_dsl.dtypes import (
    DType, b1, b8, b16, b32, b64, bf16, bf16x2, e2m1, e2m3, e3m2, e4m3, e5m2, f16, f16x2, f32,
    f64, pred, s4, s8, s16, s32, s64, tf32, u4, u8, u16, u32, u64, ue4m3, ue8m0,
)  # fmt: skip
from tensorcore_dsl.errors import (
    ArchError, ArgumentError, AssemblyError, CompileError, Deadlock, Divergence, EmulationError,
    LaunchError, LayoutError, Misaligned, OperandError, OutOfBounds, TensorCoreError,
    Uninitialised, UnknownInstruction, UnsupportedSyntax, VerifyError,
)  # fmt: skip
from tensorcore_dsl.frontend.fragments import (
    ldmatrix, load_elements, movmatrix, stmatrix, store_elements,
)  # fmt: skip
from tensorcore_dsl.frontend.hopper import (
    cluster_arrive, cluster_rank, cluster_size, cluster_sync, cluster_wait, descriptor, elect,
    fence_async, fence_mbarrier_init, grid_launch_dependents, grid_wait, mbarriers,
    set_registers, tma_commit, tma_load, tma_store, tma_wait, warpgroup_id,
    wgmma_commit, wgmma_fence, wgmma_wait,
)  # fmt: skip
from tensorcore_dsl.frontend.hopper import wgmma as multiply
from tensorcore_dsl.frontend.language import (
    arch_number, atomic, barrier, barrier_arrive, blockDim, blockIdx, cos, cp_async,
    cp_async_commit, cp_async_wait, dynamic_shared, emit, exp, exp2, fma, fragment, gridDim,
    lane_id, launch_bounds, load, local, log2, match_any, maximum, minimum, rcp, reduce, redux, rsqrt, select,
    shared, shfl, shfl_down, shfl_up, shfl_xor, sin, special, sqrt, store, syncwarp, tanh,
    threadIdx, trap, vector, vote, warp_id,
)  # fmt: skip
from tensorcore_dsl.frontend.memory import Pointer, Tile
from tensorcore_dsl.frontend.ranges import RuntimeRange as range
from tensorcore_dsl.frontend.ranges import static_range
from tensorcore_dsl.isa import instruction, mma, wgmma, wmma
from tensorcore_dsl.interpreter.emulate import emulate
from tensorcore_dsl.kernel import Array, Const, Kernel, current_target, kernel, target

from tensorcore_dsl.frontend.hopper import tensor_map  # isort: skip  (after the module of that name)
