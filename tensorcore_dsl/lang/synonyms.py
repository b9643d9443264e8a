"""Names of CUDA, Numba, Triton and NumPy, and their counterparts in kernels."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from tensorcore_dsl.errors import nearest
from tensorcore_dsl.isa import names
from tensorcore_dsl.origins import PACKAGE
from tensorcore_dsl.values.values import RegisterGroup

_INDEX = "tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x"
_LOCAL = "tc.local(shape, dtype), mma.d.zeros() or tc.shared(shape, dtype)"
_ATOMIC = 'tc.atomic("add", array.at(i), value), or another operation in place of "add"'
_PRODUCT = "tc.mma, for a warp, or tc.wgmma, for a warpgroup"
_SIMPLE = re.compile(r"[\w.]+(\(.*\))?")
_MODULES = "kernels are written with tc: import tensorcore_dsl as tc"

# Names without leading underscores and in lower case.
_NAMES = {
    "syncthreads": "tc.barrier()", "sync_threads": "tc.barrier()", "debug_barrier": "tc.barrier()",
    "bar_sync": "tc.barrier()", "sync_warp": "tc.syncwarp()",
    "thread_idx": "tc.threadIdx", "threadid": "tc.threadIdx", "tid": "tc.threadIdx.x",
    "thread_id": "tc.threadIdx.x", "block_idx": "tc.blockIdx", "blockid": "tc.blockIdx",
    "block_id": "tc.blockIdx.x", "block_dim": "tc.blockDim", "grid_dim": "tc.gridDim",
    "program_id": "tc.blockIdx.x", "num_programs": "tc.gridDim.x", "grid": _INDEX,
    "gridsize": "tc.gridDim.x * tc.blockDim.x", "global_id": _INDEX, "arange":
    "tc.threadIdx.x: a kernel is written for one thread", "constexpr": "tc.Const",
    "dot": _PRODUCT, "matmul": _PRODUCT, "gemm": _PRODUCT, "mma_sync": "tc.mma", "mm": _PRODUCT,
    "zeros": _LOCAL, "empty": _LOCAL, "full": _LOCAL, "ones": _LOCAL, "zeros_like": _LOCAL,
    "local_array": "tc.local(shape, dtype)", "shared_array": "tc.shared(shape, dtype)",
    "shared_memory": "tc.shared(shape, dtype)", "sharedmemory": "tc.shared(shape, dtype)",
    "make_shared": "tc.shared(shape, dtype)",
    **{f"atomic{a}{name}": _ATOMIC for a in ("", "_") for name in
       ("add", "min", "max", "and", "or", "xor", "exch", "xchg", "cas", "inc", "dec")},
    "where": "tc.select(condition, yes, no)", "max": "max(a, b), or tc.row_max(fragment)",
    "min": "min(a, b), or tc.row_min(fragment)",
    "abs": "abs(x)", "sum": "sum(values), or tc.row_sum(fragment)", "pow": "x ** n",
    "clamp": "min(max(x, low), high)", "clip": "min(max(x, low), high)", "cast": "x.to(dtype)",
    "div": "a / b", "fdiv": "a / b", names.LOOKUP_LOGIC: "the operators &, |, ^ and ~",
    "floor": "math.floor(x)", "ceil": "math.ceil(x)", "sigmoid": "tc.rcp(1 + tc.exp(-x))",
    "cdiv": "-(-a // b)", "expf": "tc.exp", "sqrtf": "tc.sqrt", "rsqrtf": "tc.rsqrt",
    "fmaf": "tc.fma", "sinf": "tc.sin", "cosf": "tc.cos", "tanhf": "tc.tanh", "logf": "tc.log",
    "float64": "tc.f64", "double": "tc.f64", "float32": "tc.f32", "float": "tc.f32",
    "float16": "tc.f16", "fp16": "tc.f16", "half": "tc.f16", "bfloat16": "tc.bf16",
    "float8_e4m3fn": "tc.e4m3", "float8e4nv": "tc.e4m3", "float8_e5m2": "tc.e5m2",
    "float8e5": "tc.e5m2", "bool": "tc.pred", "fp32": "tc.f32", "fp64": "tc.f64",
    **{f"{a}int{n}": f"tc.{a or 's'}{n}" for a in ("", "u") for n in (8, 16, 32, 64)},
    **{f"i{n}": f"tc.s{n}" for n in (8, 16, 32, 64)}, "int": "tc.s32", "uint": "tc.u32",
    "printf": "print(...)", "device_print": "print(...)", "device_assert": "assert",
    "static_assert": "assert", "jit": "tc.kernel",
    "shfl_sync": "tc.shfl", "shfl_up_sync": "tc.shfl_up", "shfl_down_sync": "tc.shfl_down",
    "shfl_xor_sync": "tc.shfl_xor", "shfl_bfly_sync": "tc.shfl_xor",
    "ballot": 'tc.vote("ballot", condition)', "ballot_sync": 'tc.vote("ballot", condition)',
    "any_sync": 'tc.vote("any", condition)', "all_sync": 'tc.vote("all", condition)',
    "any": 'any(values), or tc.vote("any", condition)',
    "all": 'all(values), or tc.vote("all", condition)',
    "match_any_sync": "tc.match_any", "reduce_add_sync": 'tc.redux("add", value)',
    "laneid": "tc.lane_id()", "lane_idx": "tc.lane_id()", "warpid": "tc.warp_id()",
    "warp_idx": "tc.warp_id()", "warpgroup_idx": "tc.warpgroup_id()",
    "ldg": 'array.at(i).load(cache=".nc")', "memcpy_async": "tc.cp_async",
    "cp_async_wait_group": "tc.cp_async_wait", "cp_async_commit_group": "tc.cp_async_commit",
    "warpsize": "32", "multiple_of": "a divisible shape: alignments are found by themselves",
    "cuda": _MODULES, "tl": _MODULES, "triton": _MODULES, "cute": _MODULES, "ti": _MODULES,
}  # fmt: skip
_ATTRIBUTES = {
    "astype": "to(dtype)", "cast": "to(dtype)", "type": "to(dtype)", "view": "bits(dtype)",
    "length": "shape[0]", "transpose": "T", "t": "T", "element_type": "dtype",
    "tobits": "bits(dtype)", "float": "to(tc.f32)", "half": "to(tc.f16)", "item": "",
}  # fmt: skip
_OF_FRAGMENTS = {
    **{name: f"tc.row_{name}(fragment)" for name in ("max", "min", "sum")},
    "amax": "tc.row_max(fragment)", "amin": "tc.row_min(fragment)",
    "mean": "tc.row_sum(fragment) / n",
    "t": "tile.T of a shared tile, or tc.as_operand(fragment, operand, transposed=True)",
    "shape": "fragment.layout.rows and fragment.layout.cols",
    "store": "tc.store_elements(array, fragment, origin=...)",
}  # fmt: skip


def advice(name: str) -> str:
    """Advice for an unknown name: "; did you mean ...?", or ""."""
    plain = name.lstrip("_").lower()
    synonym = _NAMES.get(plain)
    if synonym is None:
        public = [n for n, v in vars(sys.modules[PACKAGE]).items() if not hasattr(v, "__path__")]
        close = nearest(plain, public)
        synonym = f"tc.{close}" if close else None
    if synonym is None:
        return ""
    if synonym == _MODULES:
        return f"; {synonym}"
    return f"; did you mean {synonym}?" if _SIMPLE.fullmatch(synonym) else f"; use {synonym}"


def attribute_advice(owner: Any, name: str) -> str:
    """Advice for an unknown attribute of an object: "; did you mean ...?"."""
    if isinstance(owner, ModuleType) and owner.__name__ == PACKAGE:
        return advice(name)
    if isinstance(owner, RegisterGroup) and owner.layout and name.lower() in _OF_FRAGMENTS:
        return f"; use {_OF_FRAGMENTS[name.lower()]}"
    known = {n for n in dir(owner) if not n.startswith("_")}
    meant = _ATTRIBUTES.get(name.lower(), "")
    if meant.partition("(")[0].partition("[")[0] not in known:
        meant = nearest(name, known)
    return f"; did you mean .{meant}?" if meant else ""


def variable_advice(name: str, scopes: Sequence[Mapping[str, Any]]) -> str:
    """Advice for an unknown name of a kernel: its own names come first."""
    similar = nearest(name, [n for scope in scopes for n in scope if n.isidentifier()])
    return f"; did you mean {similar!r}?" if similar and name.lower() not in _NAMES else advice(name)
