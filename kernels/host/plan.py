"""Which kernel multiplies a problem, with which tile, and what it may assume of the operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.codegen import ptxas
from tensorcore_dsl.kernels.ampere import bf16_gemm as sm80_bf16_gemm
from tensorcore_dsl.kernels.ampere import f16_gemm as sm80_f16_gemm
from tensorcore_dsl.kernels.ampere import f64_gemm as sm80_f64_gemm
from tensorcore_dsl.kernels.ampere import pipeline
from tensorcore_dsl.kernels.ampere import s8_gemm as sm80_s8_gemm
from tensorcore_dsl.kernels.ampere import tf32_gemm as sm80_tf32_gemm
from tensorcore_dsl.kernels.ampere.pipeline import AmpereConfig, AmpereTraits
from tensorcore_dsl.kernels.hopper import bf16_gemm as sm90_bf16_gemm
from tensorcore_dsl.kernels.hopper import fp8_gemm as sm90_fp8_gemm
from tensorcore_dsl.kernels.hopper import s8_gemm as sm90_s8_gemm
from tensorcore_dsl.kernels.hopper import tf32_gemm as sm90_tf32_gemm
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.promotion import part_width, promotion_registers
from tensorcore_dsl.kernels.hopper.row_reduction import (
    RowReduction,
    RowReductions,
    gemm_with_rows,
    streamk_gemm_with_rows,
)
from tensorcore_dsl.kernels.hopper.streamk_gemm import streamk_gemm
from tensorcore_dsl.kernels.host import cost_model as cost
from tensorcore_dsl.kernels.host import tuning_cache as choices
from tensorcore_dsl.kernels.host.arrays import runs_backwards
from tensorcore_dsl.kernels.host.problem_shape import Shape, blocks_of_grid
from tensorcore_dsl.kernels.host.row_reductions import parts_array
from tensorcore_dsl.kernels.host.streamk_workspace import exchange
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.arguments import ArrayType, describe
from tensorcore_dsl.runtime.targets import current_target, emulated_arch, target_arch

SM80 = {
    tc.f16: sm80_f16_gemm.f16_gemm,
    tc.bf16: sm80_bf16_gemm.bf16_gemm,
    tc.f32: sm80_tf32_gemm.tf32_gemm,
    tc.s8: sm80_s8_gemm.s8_gemm,
    tc.f64: sm80_f64_gemm.f64_gemm,
}
SM90 = {
    tc.f16: sm90_bf16_gemm.bf16_gemm,
    tc.bf16: sm90_bf16_gemm.bf16_gemm,
    tc.f32: sm90_tf32_gemm.tf32_gemm,
    tc.s8: sm90_s8_gemm.s8_gemm,
    tc.e4m3: sm90_fp8_gemm.promoted_fp8_gemm,
    tc.e5m2: sm90_fp8_gemm.promoted_fp8_gemm,
}
FAST = "fast"  # accumulation of fp8 in the tensor cores alone
# Element type of A and B -> element types that D may have, the default first.
OUTPUTS = {
    tc.f16: (tc.f16, tc.f32),
    tc.bf16: (tc.bf16, tc.f32),
    tc.f32: (tc.f32,),
    tc.s8: (tc.s32,),
    tc.f64: (tc.f64,),
    tc.e4m3: (tc.bf16, tc.f16, tc.f32),
    tc.e5m2: (tc.bf16, tc.f16, tc.f32),
}


@dataclass(frozen=True)
class Plan:
    """What `gemm` launches: `plan.configured(stream)(..., **options)`.

    sums: the type of the sums that workers exchange, where they divide tiles; parts: shape and
    type of parts of statistics of rows. See `room`.
    """

    kernel: Any
    config: Any
    grid: int
    options: tuple[tuple[str, Any], ...]
    sums: Any = None
    parts: tuple[tuple[int, ...], Any] | None = None

    def configured(self, stream: Any = None) -> Any:
        """The kernel with its grid; the wgmma kernels may start while the one ahead ends."""
        early = isinstance(self.config, HopperConfig)
        return self.kernel.configured(self.grid, self.config.threads, stream=stream, pdl=early)

    def room(self, a: Any, stream: Any = None) -> tuple[Any, ...]:
        """What the kernel takes besides operands and scalars, for a launch with this A."""
        parts = () if self.parts is None else (parts_array(a, *self.parts, stream),)
        sums = () if self.sums is None else exchange(self.config, self.sums, a, stream)
        return (*parts, *sums)

    @property
    def traits(self) -> Any:
        """What the kernel assumes of its operands."""
        return dict(self.options).get("problem") or dict(self.options).get("traits")


def plan(
    a: Any, b: Any, c: Any, d: Any, *, alpha: float = 1, beta: float = 0, accumulate: Any = None,
    epilogue: Callable[..., Any] | None = None, row_reductions: tuple[RowReduction, ...] = (),
    family: str | None = None, config: Any = None,
) -> Plan:  # fmt: skip
    """The kernel, tile and traits for these operands.

    wgmma kernels need sm_90a and operands that TMA can read (16-byte aligned lines); the others
    take everything, but neither `finish` nor statistics of `rows`.
    """
    types = {name: describe(x, name).type for name, x in (("a", a), ("b", b), ("d", d))}
    check_accumulate(types["a"].dtype, accumulate)
    not_sm80, not_sm90 = why_not_sm80(types, epilogue, row_reductions), why_not_sm90(types, accumulate)
    if config is None and accumulate is None and not row_reductions:
        config = _remembered(types, a, b, family, not not_sm80, not not_sm90)
    family = _family(family, config)
    if family == "sm80" and not_sm80:
        raise tc.ArgumentError(f"the mma.sync kernels cannot take this product: {not_sm80}")
    only_sm90 = family == "sm90" or not_sm80
    if only_sm90 and not_sm90:
        others = f"; nor can the mma.sync kernels: {not_sm80}" if not_sm80 and not family else ""
        raise tc.ArgumentError(f"the wgmma kernels cannot take this product: {not_sm90}{others}")
    if only_sm90 or (family is None and not not_sm90 and on_hopper()):
        return _plan_sm90(types, a, b, c, d, alpha, beta, accumulate, epilogue, row_reductions, config)
    return _plan_sm80(a, b, c, d, alpha, beta, accumulate, config)


def _family(family: str | None, config: Any) -> str | None:
    """The family that the caller names, or gives a configuration of."""
    if family not in (None, *choices.FAMILIES):
        raise tc.ArgumentError(f"unknown family {family!r}; sm80 and sm90 are known")
    if config is None:
        return family
    found = [name for name, kind in choices.FAMILIES.items() if isinstance(config, kind)]
    if not found or family not in (None, *found):
        raise tc.ArgumentError(
            f"config is {config}; needed is a kernels.AmpereConfig for sm80, or a kernels.HopperConfig "
            f"for sm90" + (f", and {family} was asked for" if family else "")
        )
    return found[0]


def check_accumulate(dtype: Any, accumulate: Any) -> None:
    """Sums are f32 (s32 of s8), but f16 products may be summed in f16 and fp8 products fast."""
    if accumulate is None or accumulate == tc.f32 or (dtype, accumulate) == (tc.f16, tc.f16):
        return
    if accumulate not in (FAST, tc.f16):
        raise tc.ArgumentError(
            f"accumulate is {accumulate!r}; allowed are tc.f32, tc.f16 (f16 products) and {FAST!r} "
            f"(fp8 products)"
        )
    if accumulate != FAST:
        raise tc.ArgumentError(f"only f16 products can be summed in {accumulate}, not {dtype}")
    if not (dtype.is_float and dtype.bits == 8):
        raise tc.ArgumentError(f"only fp8 products have fast accumulation, not {dtype}")


def _remembered(
    types: dict[str, ArrayType], a: Any, b: Any, family: str | None, sm80: bool, sm90: bool
) -> Any:
    """What tuning found on this GPU, if kernels of its family can take the product."""
    if current_target() != "cuda" or not choices.entries():
        return None
    if types["d"].ndim != 2:
        return None
    name = choices.key(types, a.shape[0], b.shape[1], a.shape[1], choices.device_name())
    config = choices.recall(name)
    if config is None:
        return None
    found = choices.family_of(config)
    if found == "sm90" and not assembled(config):
        return None
    return config if family in (None, found) and {"sm80": sm80, "sm90": sm90}[found] else None


def on_hopper() -> bool:
    """Is the kernel about to run on a GPU that has wgmma?"""
    return current_target() == "cuda" and driver.compute_capability() == 90


def why_not_sm80(types: dict[str, ArrayType], epilogue: Any = None, row_reductions: Any = ()) -> str:
    """What keeps the mma.sync kernels from a product; empty when nothing does."""
    if types["a"].dtype not in SM80:
        return f"they have no {types['a'].dtype}"
    if types["d"].ndim == 3:
        return "they multiply single matrices, no batches"
    if row_reductions:
        return "they find no statistics of rows"
    return "" if epilogue is None else "they apply no function to results"


def why_not_sm90(types: dict[str, ArrayType], accumulate: Any = None) -> str:
    """What keeps the wgmma kernels from a product; empty when nothing does."""
    dtype = types["a"].dtype
    if current_target() == "cpu" and emulated_arch() != "sm_90a":
        return f"they run on sm_90a, and the CPU emulates {emulated_arch()}"
    if dtype not in SM90:
        return f"they have no {dtype}"
    if accumulate not in (None, tc.f16, tc.f32, tc.s32, FAST):
        return f"they do not sum in {accumulate}"
    for name in "ab":
        kind = types[name]
        if kind.align < 16 or all(kind.unit[-2:]):
            return f"the lines of {name} do not start at multiples of 16 bytes"
    if not types["d"].unit[-1]:
        return "the rows of the result are not contiguous"
    if not all(any(kind.unit[-2:]) for kind in types.values()):
        return "the rows or columns of matrices of a batch are not contiguous"
    if dtype.bits != 16 and not (types["a"].unit[-1] and types["b"].unit[-2]):
        return f"{dtype} operands must both have K contiguous"
    return ""


def written_by_threads(d: Any) -> bool:
    """TMA only writes lines that start at multiples of 16 bytes, one further on than the other."""
    kind = describe(d, "d").type
    return kind.align < 16 or all(kind.unit[-2:]) or runs_backwards(d)


def _plan_sm90(
    types: dict[str, ArrayType], a: Any, b: Any, c: Any, d: Any, alpha: float, beta: float,
    accumulate: Any, epilogue: Callable[..., Any] | None, row_reductions: tuple[RowReduction, ...], config: Any,
) -> Plan:  # fmt: skip
    (M, K), N = a.shape[-2:], b.shape[-1]
    matrices = d.shape[0] if d.ndim == 3 else 1
    kernel = sm90_fp8_gemm.fp8_gemm if accumulate == FAST else SM90[types["a"].dtype]
    a_k_major, b_k_major = types["a"].unit[-1], types["b"].unit[-2]
    by_threads = written_by_threads(d)
    shape = Shape(
        M, N, K, types["a"].dtype.itemsize, matrices, a_k_major, b_k_major,
        straddling=straddles(a) or straddles(b), by_threads=by_threads,
        finished=epilogue is not None or beta != 0,
    )  # fmt: skip
    if config is None and kernel is sm90_fp8_gemm.promoted_fp8_gemm:
        config = choose_promoted(shape)
    reading = _reading_c(c if beta != 0 else None, N)
    needs_registers = bool(row_reductions) or (bool(reading) and not reading["c_in_pairs"])
    config = config or cost.choose(
        shape, partial(is_feasible, needs_registers=needs_registers, accumulate=accumulate)
    )
    check_valid_m(config, M)
    sums = None
    if config.streamk_units:
        if kernel is sm90_fp8_gemm.promoted_fp8_gemm:
            raise tc.ArgumentError(
                f"workers divide no sums that f32 takes over; accumulate={FAST!r}, or not {config}"
            )
        if accumulate == tc.f16:
            raise tc.ArgumentError(f"workers divide sums in f32, not in f16: {config}")
        kernel, sums = streamk_gemm, sums_of(types["a"].dtype)
    traits = HopperTraits(
        a_k_major=a_k_major, b_k_major=b_k_major,
        store_by_threads=by_threads, scaled=alpha != 1, epilogue=epilogue,
        accumulate=tc.f16 if accumulate == tc.f16 else None, **reading,
    )  # fmt: skip
    grid = blocks_of_grid(config, M, N, matrices)
    found = Plan(kernel, config, grid, (("config", config), ("traits", traits)), sums)
    return _with_rows(found, row_reductions, d, sums_of(types["a"].dtype)) if row_reductions else found


def _with_rows(found: Plan, row_reductions: tuple[RowReduction, ...], d: Any, dtype: Any) -> Plan:
    """The plan, with a kernel that also finds statistics of rows, of sums of this type."""
    *matrices, M, N = d.shape
    count = -(-N // (found.config.BN // found.config.split_k))
    return replace(
        found,
        kernel=gemm_with_rows if found.sums is None else streamk_gemm_with_rows,
        options=(
            ("gemm", found.kernel),
            ("config", found.config),
            ("traits", replace(found.traits, row_reductions=RowReductions(row_reductions))),
        ),
        parts=((len(row_reductions), count, math.prod((*matrices, M))), dtype),
    )


def sums_of(dtype: Any) -> Any:
    """The type in which products of A's and B's are finished."""
    return tc.f32 if dtype.is_float else tc.s32


def check_valid_m(config: HopperConfig, M: int) -> None:
    """A tile of few rows is the only one: what lies below would stay zero."""
    if config.valid_m and config.valid_m < M:
        raise tc.ArgumentError(f"A has {M} rows, and rows={config.valid_m} brings no more: {config}")


def _reading_c(c: Any, N: int) -> dict[str, bool]:
    """How the kernel reads C: two elements at a time where they lie together, a row once."""
    if c is None:
        return {}
    found = describe(c, "c")
    pairs = found.type.unit[-1] and found.type.align >= 2 * found.type.dtype.itemsize
    pairs = pairs and N % 2 == 0
    return {"has_c": True, "c_in_pairs": pairs, "c_is_row": pairs and found.strides[-2] == 0}


def straddles(x: Any) -> bool:
    """Do lines start elsewhere than at multiples of 128 bytes, at those of the L2 cache?"""
    found = describe(x)
    steps = (stride for stride in found.strides[-2:] if stride != 1)
    return any(stride * found.type.dtype.itemsize % 128 for stride in steps)


def is_feasible(config: HopperConfig, needs_registers: bool, accumulate: Any) -> bool:
    """Has a kernel room for it (see HopperTraits.needs_registers)? Workers divide no sums in f16."""
    if config.streamk_units and accumulate == tc.f16:
        return False
    if needs_registers:  # no tile whose sums fill all registers that there are
        return not config.registers and (not config.register_limited or honours_registers())
    return assembled(config)


def assembled(config: HopperConfig) -> bool:
    """Has this machine the assembler that the tile's registers want?"""
    return not config.registers or honours_registers()


def honours_registers() -> bool:
    """Is there an assembler that gives some threads more registers than others?"""
    return bool(ptxas.candidates())


HALVED = 1.02  # times as long do promoted sums take tiles whose products come in two parts
NARROWER = 0.001  # of the time longer for each column that products have less than WIDE
WIDE = 192


def choose_promoted(shape: Shape) -> HopperConfig:
    """Neither turns nor splits: sums beside the tensor cores' own leave no registers for them."""
    found = [
        (seconds * _promoted(config), config)
        for seconds, config in cost.ranking(shape)
        if cost.plain(config)
        and (honours_registers() or not promotion_registers(config, part_width(config)))
    ]
    return min(found, key=lambda entry: entry[0])[1]


def _promoted(config: HopperConfig) -> float:
    """Times as long as without promotion: consumers wait for each part, and then add it."""
    if part_width(config) < config.BN:
        return HALVED
    return 1 + NARROWER * max(0, WIDE - config.BN)


def _plan_sm80(
    a: Any, b: Any, c: Any, d: Any, alpha: float, beta: float, accumulate: Any, config: Any
) -> Plan:
    dtype = describe(a, "a").type.dtype
    M, K, N = a.shape[0], a.shape[1], b.shape[1]
    config = config or choose_tile(dtype, M, N, K)
    traits = study(a, b, c, d, config, alpha, beta)
    grid = -(-M // config.BM) * -(-N // config.BN)
    options = [("config", config), ("traits", traits)]
    if accumulate is not None and dtype == tc.f16:
        options.append(("accumulate", accumulate))
    return Plan(SM80[dtype], config, grid, tuple(options))


# Tiles hold 128 bytes of K: one swizzled line of shared memory.
_TILES = {
    tc.f16: AmpereConfig(BM=256, BK=64),
    tc.bf16: AmpereConfig(BM=256, BK=64),
    tc.f32: AmpereConfig(BK=32),
    tc.s8: AmpereConfig(BK=128),
    tc.f64: AmpereConfig(BM=128, BN=64, BK=16, WM=64, WN=32, stages=4, group_m=16),
}
_FEW_BLOCKS = 132  # of the large tile: fewer leave most of a chip idle


def choose_tile(dtype: Any, M: int, N: int, K: int) -> AmpereConfig:
    """Large tiles where they fill the chip and its shared memory has room for them, small ones
    where the matrix is small."""
    config = _TILES[dtype]
    slots = config.stages * (config.BM + config.BN) * config.BK * dtype.itemsize
    few = -(-M // config.BM) * -(-N // config.BN) < _FEW_BLOCKS
    if config.BM > 128 and (few or slots > target_arch().shared_kib * 1024):
        config = replace(config, BM=128)
    if -(-M // config.BM) * -(-N // config.BN) < _FEW_BLOCKS:
        config = replace(config, BM=64, BN=64, WM=32, WN=32, stages=3)
    return config


def study(a: Any, b: Any, c: Any, d: Any, config: AmpereConfig, alpha: float, beta: float) -> AmpereTraits:
    """What the kernel may assume of the operands."""
    types = {name: describe(x, name).type for name, x in (("a", a), ("b", b), ("d", d))}
    M, K, N = a.shape[0], a.shape[1], b.shape[1]
    full = M % config.BM == 0 and N % config.BN == 0 and K % config.BK == 0
    vec_d = types["d"].align if types["d"].unit[1] else 1
    has_c = c is not None and beta != 0
    if has_c:
        kind = describe(c, "c").type
        vec_d = min(vec_d, kind.align if kind.unit[1] else 1)
    a_k_major, b_k_major = types["a"].unit[1], types["b"].unit[0]
    return AmpereTraits(
        a_k_major=a_k_major, b_k_major=b_k_major,
        vec_a=_vector(types["a"], a_k_major or K > 1),
        vec_b=_vector(types["b"], b_k_major or K > 1),
        vec_d=vec_d, full=full,
        prefetch=_prefetches(types["a"].dtype, K, config, a_k_major and b_k_major),
        scaled=alpha != 1, has_c=has_c,
    )  # fmt: skip


def _prefetches(dtype: Any, K: int, config: AmpereConfig, k_major: bool) -> bool:
    """Enough tiles for the slot read ahead; bytes gathered one by one leave it no registers."""
    return config.stages <= -(-K // config.BK) and (k_major or dtype != tc.s8)


def _vector(kind: Any, lines: bool) -> int:
    """Bytes of one copy; without a line stride, nothing says where further lines would lie."""
    return int(kind.align if lines and not all(kind.unit) else kind.dtype.itemsize)


__all__ = ["OUTPUTS", "AmpereConfig", "AmpereTraits", "Plan", "pipeline", "plan"]
