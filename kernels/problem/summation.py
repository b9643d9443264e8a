"""Order of summation: the properties of a plan that decide about the bits of an element of D.

These are the sums of tensor cores, promotion to f32, the division of K, and the epilogue. Tiles,
stages, clusters, rasterisation and the schedule change no bits. They decide which CTA computes an
element, and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import TensorCoreArithmetic, target_arch, tensor_core_arithmetic
from tensorcore_dsl.kernels.ampere.config import AmpereConfig, VectorConfig
from tensorcore_dsl.kernels.ampere.packed_gemm import CHUNK, PackedConfig, WeightFormat
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, HopperConfig
from tensorcore_dsl.kernels.hopper.packed_few_rows import HopperPackedConfig
from tensorcore_dsl.kernels.hopper.sparse_gemm import sparse_mma
from tensorcore_dsl.kernels.hopper.wgmma_gemm import select_wgmma
from tensorcore_dsl.kernels.problem.gemm_problem import FAST, GemmProblem, accumulator_dtype
from tensorcore_dsl.kernels.sizes import cdiv
from tensorcore_dsl.kernels.split_f32 import SLAB
from tensorcore_dsl.kernels.user_functions import name_of

TensorCoreConfig = HopperConfig | AmpereConfig
Config = TensorCoreConfig | VectorConfig
FUSED_MULTIPLY_ADDS = TensorCoreArithmetic("scalar")  # f32 without tensor cores
MMA_DEPTHS: dict[tc.DType, int] = {tc.f16: 16, tc.bf16: 16, tc.tf32: 8, tc.s8: 32, tc.f64: 4}  # K of mma.sync


@dataclass(frozen=True)
class Summation:
    """How an element of D is summed and rounded. If it is equal, the bits are equal, too.

    Attributes
    ----------
    types : str
        Types of A and B, in words.
    dtype : DType
        Type in which A is multiplied: s8 for u8.
    out : DType
        Type of D.
    depth : int
        Elements of K that one instruction sums. Instructions go up along K. 1 for f64, as its
        instructions of any depth are chains of fused multiply-adds.
    arithmetic : TensorCoreArithmetic
        How an instruction sums.
    terms : int
        tf32 products for a product of two elements: 3 for f32, small ones first; else 1.
    promoted : int
        Elements of K that tensor cores sum from zero, before an f32 addition adds them to the sum.
        0: tensor cores sum each part of K as a whole.
    chains, warps : int
        Without tensor cores: chains of fused multiply-adds that make the sum, each over every
        `chains`-th element of K, and the warps that compute them. 0 with tensor cores.
    split_k_starts : tuple of int
        First element of each part of K. A part is summed from zero. The sums are added from the left.
    streamk : tuple of int
        Stream-K divides K by the position of an element in D: units, elements of K in a step, rows
        and columns of a tile, group_m, the shape of D, K. Without stream-K: ().
    row_slice_width : int
        Columns of a slice of a row. Row reductions add up slices, then their sums; 0 without such sums.
    scales : str
        What the scales of packed weights multiply: "weights", which are then rounded to A's type,
        "sums" of `promoted` elements, or the "whole" sum. Without packed weights: "".
    turns : int
        Packed weights: warps that take chunks of 128 of K in turn. Their sums are then added.
    scaled, adds_c : bool
        The sum is multiplied by alpha; beta C is added.
    epilogue : function or None
        The user's function.
    """

    types: str
    dtype: tc.DType
    out: Any
    depth: int
    arithmetic: TensorCoreArithmetic
    terms: int = 1
    promoted: int = 0
    chains: int = 0
    warps: int = 0
    split_k_starts: tuple[int, ...] = (0,)
    streamk: tuple[int, ...] = ()
    row_slice_width: int = 0
    scales: str = ""
    turns: int = 1
    scaled: bool = False
    adds_c: bool = False
    epilogue: Any = None

    def __str__(self) -> str:
        return "\n".join(f"{name + ':':12}{text}" for name, text in self.aspects().items())

    def aspects(self) -> dict[str, str]:
        """Describe the summation in words: products, sums, order of K, epilogue, row sums."""
        text = {
            "products": self._products(),
            "sums": self._sums(),
            "order of K": self._order(),
            "epilogue": self._epilogue(),
        }
        if self.row_slice_width:
            text["row sums"] = f"parts of {self.row_slice_width} columns are summed, then added from the left"
        return text

    def _products(self) -> str:
        if self.depth == 1:
            return self.types
        if self.terms == 1:
            rounded = f" times their scales, rounded to {self.dtype}" if self.scales == "weights" else ""
            return f"{self.types}{rounded}, {self.depth} of K in an instruction"
        return (
            f"{self.dtype} as two tf32, high and low: for each {self.promoted} of K all low * high, all "
            f"high * low, then all high * high, {self.depth} of K in an instruction"
        )

    def _order(self) -> str:
        if not self.dtype.is_float:
            return "any, as the sums are exact modulo 2^32"
        if self.chains:
            levels = (self.chains // self.warps).bit_length() - 1
            apart = ", then ".join(str(16 >> level) for level in range(levels))
            added = f"in pairs of lanes {apart} apart, then those of the {self.warps} warps "
            within = added if apart else ""
            return (
                f"upwards in {self.chains} chains, each of one element in {self.chains}; the "
                f"chains are added {within}from the first one on"
            )
        text = "upwards"
        if self.promoted:
            fused = "added up by fma(sum, scale, sum so far) in f32"
            how = fused if self.scales else "added up in f32"
            text += f"; sums of {self.promoted}, each from zero, are {how}"
        if self.turns > 1:
            text += (
                f"; {self.turns} warps take {CHUNK} of K in turn, and their sums are added from the first on"
            )
        if self.streamk:
            units, step, rows, columns, group_m, *sizes = self.streamk
            return (
                f"{text}; stream-K divides K by the place in D: {units} units share the tiles of "
                f"{rows}x{columns}, {group_m} in a group, of a product of {'x'.join(map(str, sizes))}, "
                f"in steps of {step}"
            )
        if len(self.split_k_starts) > 1:
            starts = ", ".join(map(str, self.split_k_starts))
            text += f"; parts that begin at {starts} are summed from zero, then added from the left"
        return text

    def _sums(self) -> str:
        model = self.arithmetic
        if model.engine != "fused":
            return f"one fused multiply-add of {model.accumulator} for each product"
        if not self.dtype.is_float:
            return "exact, modulo 2^32"
        end = "rounded to nearest even" if model.nearest else "cut"
        return (
            f"{model.length} products and the sum so far, each cut {model.fraction} bits below the "
            f"largest one, are added, and the result is {end} to {model.kept + 1} bits"
        )

    def _epilogue(self) -> str:
        steps = ["scale * sum"] if self.scales == "whole" else []
        steps += ["alpha * sum"] if self.scaled else []
        if self.adds_c:
            steps.append("fma(beta, C, sum)")
        if self.epilogue is not None:
            steps.append(name_of(getattr(self.epilogue, "function", self.epilogue)))
        if self.out.name != self.arithmetic.accumulator:
            steps.append(f"rounded to {self.out}")
        return ", then ".join(steps) or "none"


def summation_of(problem: GemmProblem, config: Config) -> Summation:
    """Order of summation of a problem by a configuration, on the current target."""
    dtype, in_f16 = problem.multiplied_as, problem.accumulate == tc.f16
    hopper, arch = isinstance(config, HopperConfig), target_arch().name
    split_k_starts, streamk, row_slice_width, chains, warps = division(problem, config)
    if chains and dtype != tc.f64:  # tensor cores of f64 are chains of fused multiply-adds, too
        depth, arithmetic = 1, FUSED_MULTIPLY_ADDS
    else:
        depth, arithmetic = _instruction(dtype, in_f16, hopper, arch)
    left, right = problem.dtype, problem.b.type.dtype
    types = f"{dtype} by {dtype}" if left == tc.f32 else f"{left} by {right}"
    return Summation(
        types,
        dtype,
        problem.d.type.dtype,
        depth,
        arithmetic,
        terms=3 if dtype == tc.f32 and not chains else 1,
        promoted=0 if isinstance(config, VectorConfig) else _promoted(config, problem, depth),
        chains=chains,
        warps=warps,
        split_k_starts=split_k_starts,
        streamk=streamk,
        row_slice_width=row_slice_width,
        scaled=problem.alpha != 1,
        adds_c=problem.reads_c,
        epilogue=problem.epilogue,
    )


def summation_of_packed(
    problem: GemmProblem, format: WeightFormat, config: PackedConfig | HopperPackedConfig | HopperConfig
) -> Summation:
    """Order of summation of a product with packed weights, on the current target."""
    rounded = isinstance(config, HopperConfig)
    hopper = rounded or isinstance(config, HopperPackedConfig)
    depth, arithmetic = _instruction(problem.dtype, False, hopper, target_arch().name)
    chunks = problem.K // CHUNK
    return Summation(
        f"{problem.dtype} by {format.dtype}",
        problem.dtype,
        problem.d.type.dtype,
        depth,
        arithmetic,
        promoted=0 if rounded else format.period,
        split_k_starts=tuple(part * chunks // config.split_k * CHUNK for part in range(config.split_k)),
        scales="sums" if not rounded else "weights" if format.group else "whole",
        turns=config.warps_k if isinstance(config, PackedConfig) else 1,
        scaled=problem.alpha != 1,
        adds_c=problem.reads_c,
        epilogue=problem.epilogue,
    )


def summation_of_sparse(problem: GemmProblem, config: HopperConfig) -> Summation:
    """Order of summation of a product with a sparse A, on the current target."""
    left, right = problem.multiplied_as, problem.b.type.dtype
    product = sparse_mma(problem.dtype, right, config.BN)
    return Summation(
        f"sparse {left} by {left if problem.dtype == tc.f32 else right}",
        left,
        problem.d.type.dtype,
        product.shape[2],
        tensor_core_arithmetic(product, target_arch().name),
        scaled=problem.alpha != 1,
        adds_c=problem.reads_c,
        epilogue=problem.epilogue,
    )


def division(problem: GemmProblem, config: Config) -> tuple[Any, ...]:
    """Compute split_k_starts, streamk, row_slice_width, chains and warps, which the configuration decides."""
    if not problem.dtype.is_float:  # sums are exact modulo 2^32
        return (0,), (), 0, 0, 0
    if isinstance(config, VectorConfig):
        return (0,), (), 0, config.chains, config.warps
    starts = _split_k_starts(config, problem.multiplied_as, problem.K)
    return starts, _streamk(config, problem), _row_slice_width(config, problem), 0, 0


@lru_cache
def _instruction(dtype: tc.DType, in_f16: bool, hopper: bool, arch: str) -> tuple[int, TensorCoreArithmetic]:
    """K of a family's matrix instruction, and its arithmetic."""
    element = tc.tf32 if dtype == tc.f32 else dtype
    sums_in = tc.f16 if in_f16 else None
    if hopper:
        wide = tc.f32 if element == tc.tf32 else element  # arrays hold tf32 as f32
        mma = select_wgmma(wide, wide, 64, sums_in)
    else:
        shape = getattr(tc.mma, f"m16n8k{MMA_DEPTHS[element]}")
        mma = shape(element, element, sums_in or accumulator_dtype(element))
    try:
        return 1 if element == tc.f64 else mma.shape[2], tensor_core_arithmetic(mma, arch)
    except ValueError as error:
        raise tc.ArgumentError(f"the order of summation is unknown: {error}") from None


def _promoted(config: TensorCoreConfig, problem: GemmProblem, depth: int) -> int:
    """Elements of K that tensor cores sum before promotion to f32; 0: all."""
    dtype = problem.multiplied_as
    in_parts, fp8 = dtype == tc.f32, dtype.is_float and dtype.bits == 8
    if isinstance(config, AmpereConfig):
        return depth if in_parts else 0
    if in_parts:
        return _step(config, dtype)
    return SWIZZLE_BYTES if fp8 and problem.accumulate != FAST else 0


def _step(config: TensorCoreConfig, dtype: tc.DType) -> int:
    """Elements of K in a step of the mainloop."""
    if isinstance(config, AmpereConfig):
        return config.BK
    if dtype == tc.f32:  # a stage holds the high and the low part of an operand
        return SLAB
    return int(SWIZZLE_BYTES * config.k_slabs // dtype.itemsize)


def _split_k_starts(config: TensorCoreConfig, dtype: tc.DType, K: int) -> tuple[int, ...]:
    """First elements of the parts of split-K."""
    step, split_k = _step(config, dtype), config.split_k
    steps = cdiv(K, step)
    return tuple(part * steps // split_k * step for part in range(split_k))


def _streamk(config: TensorCoreConfig, problem: GemmProblem) -> tuple[int, ...]:
    """Quantities that decide where stream-K divides the K of each tile."""
    if isinstance(config, HopperConfig) or not config.streamk_units:
        return ()
    sizes = *problem.d.shape, problem.K
    return config.streamk_units, config.BK, config.BM, config.BN, config.group_m, *sizes


def _row_slice_width(config: TensorCoreConfig, problem: GemmProblem) -> int:
    """Columns of a part of a row, if reductions add up f32; their sums depend on the order."""
    adds = any(reduction.op == "sum" for reduction in problem.row_reductions)
    if not adds or isinstance(config, AmpereConfig):
        return 0
    return config.stored_columns
