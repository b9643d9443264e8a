"""Tensor-core kernels in Python: one table of instructions, GPU and CPU with the same bits.

`tensorcore_dsl.kernels` has finished GEMMs, `tensorcore_dsl.numba` the instructions for
`@cuda.jit`. Everything else that users need is here:

Kernels and launches
    kernel, Kernel, Array, Const, Event, target, current_target, ARCHS, Arch, ArrayType, ScalarType
Element types
    f64 f32 tf32 f16 bf16 e4m3 e5m2 e3m2 e2m3 e2m1 ue8m0 ue4m3, s64 s32 s16 s8 s4,
    u64 u32 u16 u8 u4, b128 b64 b32 b16 b8 b1, f16x2 bf16x2, pred; DType is their class
Instructions
    mma, wgmma, wmma hold the matrix products; instruction, emit, emulate take PTX text
Threads and launches, seen from a kernel
    threadIdx, blockIdx, blockDim, gridDim, lane_id, warp_id, warpgroup_id, cluster_rank, special,
    launch_bounds, arch_number, trap, griddep_wait, griddep_launch_dependents
Loops
    range, static_range
Memory
    shared, dynamic_shared, Tile, local, Pointer, load, store, atomic, reduce
Fragments and vectors
    fragment, vector, load_elements, store_elements, ldmatrix, stmatrix, movmatrix, pack, unpack,
    tiled_mma, as_operand, row_sum, row_max, row_min, reduce_rows, reduce_columns, row_values,
    column_values, load_rows, load_columns, store_rows, store_columns
Asynchronous copies
    copy_tile, cp_async, cp_async_commit, cp_async_wait, tensor_map, tma_load, tma_store,
    tma_store_commit, tma_store_wait, bulk_copy, fence_proxy_async
Several GPUs
    PeerArray, signal, wait_signal, devices
Barriers
    barrier, barrier_arrive, syncwarp, mbarriers, fence_mbarrier_init, cluster_size, cluster_sync,
    cluster_arrive, cluster_wait
Warps and warpgroups
    shfl, shfl_up, shfl_down, shfl_xor, vote, match_any, redux, elect, warp_specialize, setmaxnreg,
    wgmma_async, wgmma_fence, wgmma_commit, wgmma_wait, wgmma_descriptor
Mathematics
    fma, minimum, maximum, select, sqrt, exp, exp2, log, log2, rcp, rsqrt, sin, cos, tanh,
    erf
Debugging and checks
    breakpoint, assert_, debugger, CheckResult, Finding, Exploration, Difference, explore
Kernels as files
    load_exported, ExportedKernel, export_repository
Tuning and timing
    autotune, Autotuned, Config, Trial, Tuning, testing
PTX of other compilers
    ptx
Errors
    TensorCoreError and what derives from it: CompileError, UnsupportedSyntax, OperandError,
    VerifyError, UnknownInstruction, UnknownName, ArchError, LayoutError, ArgumentError,
    AssemblyError, LaunchError, EmulationError, OutOfBounds, Misaligned, Uninitialised,
    InvalidArithmetic, AssertionFailed, Divergence, Race, Deadlock, DebuggerQuit;
    PerformanceWarning, RaceWarning
"""

# isort: skip_file

from pathlib import Path as _Path
from typing import TYPE_CHECKING

from tensorcore_dsl.arch import ARCHS, Arch
from tensorcore_dsl.checking.exploration import Difference, Exploration
from tensorcore_dsl.checking.findings import CheckResult, Finding
from tensorcore_dsl.checking.launches import explore
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import (
    ArchError, ArgumentError, AssemblyError, AssertionFailed, CompileError, Deadlock,
    DebuggerQuit, Divergence,
    EmulationError, InvalidArithmetic, LaunchError, LayoutError, Misaligned, OperandError,
    OutOfBounds, PerformanceWarning, Race, RaceWarning, TensorCoreError, Uninitialised,
    UnknownInstruction, UnknownName, UnsupportedSyntax, VerifyError,
)  # fmt: skip
from tensorcore_dsl.errors import publish as _publish
from tensorcore_dsl.export import ExportedKernel, export_repository, load_exported
from tensorcore_dsl.interpreter.debugging import debugger
from tensorcore_dsl.interpreter.emulate import emulate
from tensorcore_dsl.kernel import Kernel, kernel
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.lang.async_copy import cp_async, cp_async_commit, cp_async_wait
from tensorcore_dsl.lang.atomics import atomic, reduce
from tensorcore_dsl.lang.barrier import barrier, barrier_arrive, fence_proxy_async, syncwarp
from tensorcore_dsl.lang.cluster import cluster_arrive, cluster_size, cluster_sync, cluster_wait
from tensorcore_dsl.lang.copy_tile import copy_tile
from tensorcore_dsl.lang.debugging import assert_, breakpoint
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.fragments import fragment, load_elements, pack, store_elements, unpack, vector
from tensorcore_dsl.lang.launch import (
    arch_number,
    griddep_launch_dependents,
    griddep_wait,
    launch_bounds,
    trap,
)
from tensorcore_dsl.lang.local import local
from tensorcore_dsl.lang.math import (
    cos,
    erf,
    exp,
    exp2,
    fma,
    log,
    log2,
    maximum,
    minimum,
    rcp,
    rsqrt,
    select,
    sin,
    sqrt,
    tanh,
)
from tensorcore_dsl.lang.matrices import ldmatrix, movmatrix, stmatrix
from tensorcore_dsl.lang.mbarrier import fence_mbarrier_init, mbarriers
from tensorcore_dsl.lang.peers import PeerArray, signal, wait_signal
from tensorcore_dsl.lang.pointer import Pointer, load, store
from tensorcore_dsl.lang.products import as_operand, tiled_mma
from tensorcore_dsl.lang.ranges import RuntimeRange as range
from tensorcore_dsl.lang.ranges import static_range
from tensorcore_dsl.lang.rows import (
    column_values,
    load_columns,
    load_rows,
    reduce_columns,
    reduce_rows,
    row_max,
    row_min,
    row_sum,
    row_values,
    store_columns,
    store_rows,
)
from tensorcore_dsl.lang.synonyms import advice as _advice
from tensorcore_dsl.lang.special_registers import (
    blockDim,
    blockIdx,
    cluster_rank,
    gridDim,
    lane_id,
    special,
    threadIdx,
    warp_id,
    warpgroup_id,
)
from tensorcore_dsl.lang.tiles import Tile, dynamic_shared, shared
from tensorcore_dsl.lang.tma import (
    bulk_copy,
    tensor_map,
    tma_store_commit,
    tma_load,
    tma_store,
    tma_store_wait,
)
from tensorcore_dsl.lang.warp import elect, match_any, redux, shfl, shfl_down, shfl_up, shfl_xor, vote
from tensorcore_dsl.lang.warp_specialize import setmaxnreg, warp_specialize
from tensorcore_dsl.lang.wgmma import wgmma_async, wgmma_commit, wgmma_descriptor, wgmma_fence, wgmma_wait
from tensorcore_dsl.runtime.arguments import ArrayType, ScalarType
from tensorcore_dsl.runtime.devices import devices
from tensorcore_dsl.runtime.events import Event
from tensorcore_dsl.runtime.targets import current_target, target
from tensorcore_dsl.runtime.trials import Trial, Tuning
from tensorcore_dsl.tuning.autotune import Autotuned, autotune
from tensorcore_dsl.tuning.config import Config
from tensorcore_dsl import ptx, testing

if TYPE_CHECKING:  # annotations and completion: see isa/stubs.py
    from tensorcore_dsl._typing import (
        Const, b1, b8, b16, b32, b64, b128, bf16, bf16x2, e2m1, e2m3, e3m2, e4m3, e5m2, f16, f16x2,
        f32, f64, instruction, mma, pred, s4, s8, s16, s32, s64, tf32, u4, u8, u16, u32, u64, ue4m3,
        ue8m0, wgmma, wmma,
    )  # fmt: skip
else:
    from tensorcore_dsl.dtypes import (
        b1, b8, b16, b32, b64, b128, bf16, bf16x2, e2m1, e2m3, e3m2, e4m3, e5m2, f16, f16x2,
        f32, f64, pred, s4, s8, s16, s32, s64, tf32, u4, u8, u16, u32, u64, ue4m3, ue8m0,
    )  # fmt: skip
    from tensorcore_dsl.isa import instruction, mma, wgmma, wmma
    from tensorcore_dsl.kernel import Const

# A checkout has the folder `kernels` beside this one, as setup.py says; it is found there, too.
_checkout = _Path(__file__).parent.parent
if (_checkout / "setup.py").is_file() and (_checkout / "kernels" / "demo.py").is_file():
    __path__.append(str(_checkout))

__version__ = "0.1.0"
__all__ = [
    "ARCHS", "Arch", "ArchError", "ArgumentError", "Array", "ArrayType", "AssemblyError",
    "AssertionFailed",
    "Autotuned", "CheckResult", "CompileError", "Config", "Const", "DType", "Deadlock",
    "DebuggerQuit", "Difference", "Divergence", "EmulationError", "Event", "Exploration", "ExportedKernel",
    "Finding",
    "InvalidArithmetic", "Kernel", "LaunchError", "LayoutError", "Misaligned", "OperandError",
    "OutOfBounds", "PeerArray", "PerformanceWarning", "Pointer", "Race", "RaceWarning", "ScalarType",
    "TensorCoreError", "Tile", "Trial", "Tuning", "Uninitialised", "UnknownInstruction",
    "UnknownName", "UnsupportedSyntax", "VerifyError", "arch_number", "as_operand",
    "assert_", "atomic",
    "autotune", "b1", "b8", "b16", "b32", "b64", "b128", "barrier", "barrier_arrive", "bf16",
    "bf16x2", "blockDim", "blockIdx", "breakpoint", "bulk_copy", "cluster_arrive", "cluster_rank",
    "cluster_size", "cluster_sync", "cluster_wait", "column_values", "copy_tile", "cos", "cp_async",
    "cp_async_commit", "cp_async_wait", "current_target", "debugger", "devices", "dynamic_shared", "e2m1",
    "e2m3", "e3m2", "e4m3", "e5m2", "elect", "emit", "emulate", "erf", "exp", "exp2", "explore",
    "export_repository", "f16", "f16x2", "f32", "f64", "fence_mbarrier_init", "fence_proxy_async", "fma",
    "fragment", "gridDim",
    "griddep_launch_dependents", "griddep_wait", "instruction", "kernel", "lane_id",
    "launch_bounds", "ldmatrix", "load", "load_columns", "load_elements", "load_exported",
    "load_rows", "local",
    "log", "log2", "match_any", "maximum", "mbarriers", "minimum", "mma", "movmatrix", "pack",
    "pred", "ptx", "range", "rcp", "reduce", "reduce_columns", "reduce_rows", "redux", "row_max",
    "row_min", "row_sum", "row_values", "rsqrt", "s4", "s8", "s16", "s32", "s64", "select",
    "setmaxnreg", "shared", "shfl", "shfl_down", "shfl_up", "shfl_xor", "signal", "sin", "special", "sqrt",
    "static_range", "stmatrix", "store", "store_columns", "store_elements", "store_rows",
    "syncwarp", "tanh", "target", "tensor_map", "testing", "tf32", "threadIdx", "tiled_mma",
    "tma_load", "tma_store", "tma_store_commit", "tma_store_wait", "trap", "u4", "u8", "u16", "u32",
    "u64", "ue4m3", "ue8m0", "unpack", "vector", "vote", "wait_signal", "warp_id", "warp_specialize",
    "warpgroup_id", "wgmma", "wgmma_async", "wgmma_commit", "wgmma_descriptor", "wgmma_fence",
    "wgmma_wait", "wmma",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


if not TYPE_CHECKING:  # a checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        """Error of an unknown name, with a suggestion."""
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise UnknownName(f"{__name__} has no {name!r}{_advice(name)}")


_publish(globals())
