"""Plan of a launch: kernel, configuration and traits."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, html_table, target_arch
from tensorcore_dsl.kernels.ampere.config import AmpereConfig, AmpereTraits, VectorConfig
from tensorcore_dsl.kernels.choosing import choice
from tensorcore_dsl.kernels.choosing.batch_invariance import check_config
from tensorcore_dsl.kernels.hopper import row_reduction
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits, resident_ctas
from tensorcore_dsl.kernels.hopper.f32_gemm import MAX_COLUMNS, f32_fragments_gemm, f32_gemm
from tensorcore_dsl.kernels.hopper.f64_gemm import f64_gemm, f64_streamk_gemm
from tensorcore_dsl.kernels.hopper.f64_operands import WIDTH
from tensorcore_dsl.kernels.hopper.fp8_gemm import fp8_gemm, promoted_fp8_gemm
from tensorcore_dsl.kernels.host import operands
from tensorcore_dsl.kernels.host.arguments import vector_bytes
from tensorcore_dsl.kernels.host.copies import bind_with_copies
from tensorcore_dsl.kernels.host.launch import EpilogueArgs, PreparedCall, bind, bind_with_c, launch_nothing
from tensorcore_dsl.kernels.host.row_reductions import RowReductionResult, allocate_partials
from tensorcore_dsl.kernels.host.split_k import bind_split_k
from tensorcore_dsl.kernels.host.split_operands import bind_split
from tensorcore_dsl.kernels.host.workspace import streamk_workspace
from tensorcore_dsl.kernels.problem import families, padding
from tensorcore_dsl.kernels.problem.families import (
    MMA_KERNELS,
    VECTOR_KERNELS,
    WGMMA_KERNELS,
    has_wgmma,
    stores_without_tma,
)
from tensorcore_dsl.kernels.problem.gemm_problem import FAST, GemmProblem, accumulator_dtype
from tensorcore_dsl.kernels.problem.problem_shape import SMS, grid_size
from tensorcore_dsl.kernels.problem.summation import Summation, summation_of
from tensorcore_dsl.kernels.sizes import cdiv
from tensorcore_dsl.kernels.user_functions import kernel_of_epilogue

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """A kernel, its configuration and traits, and the grid of its launch.

    Attributes
    ----------
    kernel : Kernel
        The kernel.
    config : AmpereConfig, VectorConfig or HopperConfig
        Its configuration.
    traits : AmpereTraits or HopperTraits
        Properties of the operands, or of their copies.
    grid : int or tuple of int
        Number of CTAs.
    extra : tuple
        Names and values of further Const parameters.
    streamk : DType or None
        Element type of the accumulators that stream-K exchanges.
    split_operands : bool
        The kernel takes the parts of f32 operands (split_f32.py).
    partial_sums : AmpereTraits or None
        Traits of D and C, if the kernel stores the sums of split_k parts of K in memory.
    partial_dtype : DType or None
        Element type of these sums.
    partials : tuple or None
        Shape and element type of the partial results of row reductions.
    copies : tuple of Copy
        Copies of operands that the kernel cannot read.
    summation : function or None
        Gives the order in which an element is summed; None if no kernel runs.
    """

    kernel: Any
    config: Any
    traits: Any
    grid: int | tuple[int, ...]
    extra: tuple[tuple[str, Any], ...] = ()
    streamk: tc.DType | None = None
    split_operands: bool = False
    partial_sums: AmpereTraits | None = None
    partial_dtype: Any = None
    partials: tuple[tuple[int, ...], tc.DType] | None = None
    copies: tuple[padding.Copy, ...] = ()
    summation: Callable[[], Summation] | None = field(default=None, repr=False, compare=False)

    def _repr_html_(self) -> str:
        """The kernel, its grid, its configuration and traits."""
        rows = [("grid", self.grid), *vars(self.config).items(), *vars(self.traits).items(), *self.extra]
        return html_table(f"plan: {self.kernel.__name__}", ["field", "value"], rows)

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        """Values of the kernel's Const parameters by name."""
        return ("config", self.config), ("traits", self.traits), *self.extra

    def workspace(self, a: Any, stream: Any = None) -> tuple[Any, ...]:
        """Make the kernel's arguments after operands and scalars, for a launch with this A."""
        partials = () if self.partials is None else (allocate_partials(a, *self.partials, stream),)
        if self.streamk is None:
            return partials
        return (*partials, *streamk_workspace(self.config, self.streamk, a, stream))

    def bind(
        self,
        arguments: tuple[Any, ...],
        stream: Any = None,
        rows: RowReductionResult | None = None,
        row_out: Any = None,
    ) -> Callable[..., None]:
        """Bind a function that launches the kernel on operands, scalars and epilogue_args like these.

        rows: the result of row reductions. Its array, `row_out`, is the function's last argument.
        """
        inner = lambda **done: partial(replace(self, **done).bind, stream=stream, rows=rows, row_out=row_out)
        if self.copies:
            return bind_with_copies(inner(copies=()), arguments, self.copies, stream)
        if self.split_operands:
            return bind_split(inner(split_operands=False), arguments, stream)
        if self.partial_sums is not None:
            sums = self.config.split_k, self.partial_dtype, self.partial_sums
            return bind_split_k(inner(partial_sums=None), arguments, *sums, stream)
        if isinstance(arguments[1], tuple):  # words, scales and zero points of packed weights
            launch = self.bind((arguments[0], *arguments[1], *arguments[2:]), stream)
            return lambda a, b, *others: launch(a, *b, *others)
        workspace = self.workspace(arguments[0], stream)
        epilogue = self.traits.epilogue
        first = len(arguments) - len(getattr(epilogue, "names", ()))
        kernel, options = kernel_of_epilogue(self.kernel, dict(self.options), epilogue, first)
        launch = bind(
            kernel,
            self.grid,
            self.config.threads,
            options,
            (*arguments, *workspace),
            stream=stream,
            pdl=target_arch().number >= 90,
        )
        if not workspace:
            return launch
        if rows is None:
            return lambda a, *others: launch(a, *others, *self.workspace(a, stream))
        combine = rows.bind(workspace[0], row_out, stream)

        def launch_both(a: Any, *others: Any) -> None:
            workspace = self.workspace(a, stream)
            launch(a, *others[:-1], *workspace)
            combine(workspace[0], others[-1])

        return launch_both


def make_plan(problem: GemmProblem, family: str | None = None, config: Any = None) -> Plan:
    """Plan the launch for a described problem."""
    operands.check_accumulate(problem.dtype, problem.accumulate)
    operands.check_precision(problem.dtype, problem.precision)
    operands.check_bits(problem.bits)
    if 0 in (*problem.d.shape, problem.K):
        return Plan(None, None, None, 0)
    conversions, problem = padding.conversions(problem), padding.convert_operands(problem)
    family, config = choice.choose_family(problem, family, config)
    copies = (*conversions, *choice.choose_copies(problem, family, config))
    copied = padding.with_copies(problem, copies)
    if family == "sm90":
        aligned = choice.align_operands(problem)
        contiguous = padding.with_copies(aligned, choice.choose_copies(aligned, family))
        plan = _plan_sm90(copied, config, contiguous)
    else:
        plan = _plan_sm80(copied, config)
    check_config(problem, plan.config)
    what = f"{problem.M} x {problem.N} x {problem.K} of {problem.dtype}"
    log.info("product of %s: %s, %s, grid %s", what, plan.kernel.__name__, plan.config, plan.grid)
    for copy in copies:
        log.info("product of %s: copies an operand: %s", what, copy.why)
    return replace(plan, copies=copies, summation=partial(summation_of, problem, plan.config))


def bind_plan(
    plan: Plan,
    problem: GemmProblem,
    operands: tuple[Any, ...],
    c: Any,
    d: Any,
    extra: EpilogueArgs,
    stream: Any,
) -> PreparedCall:
    """Bind the plan of a problem to arrays like these. operands: those in front of C."""
    shape, scalars, launch = problem.d.shape, (problem.alpha, problem.beta), launch_nothing
    if plan.kernel is not None:
        padding.warn_of_copies(plan.copies)
        values = *scalars, *extra.values
        launch = bind_with_c(partial(plan.bind, stream=stream), operands, c, problem.c, d, shape, *values)
    return PreparedCall(shape, problem.d.type.dtype, launch, scalars)


def plan_hopper(
    kernel: tc.Kernel,
    config: HopperConfig,
    traits: HopperTraits,
    shape: tuple[int, ...],
    copies: tuple[padding.Copy, ...] = (),
    **extra: Any,
) -> Plan:
    """Plan a wgmma kernel whose tiles cover this shape, [batch,] M x N."""
    *batch, M, N = shape
    grid = grid_size(config, M, N, math.prod(batch))
    return Plan(kernel, config, traits, grid, tuple(extra.items()), copies=copies)


def _plan_sm90(problem: GemmProblem, config: HopperConfig | None, contiguous: GemmProblem) -> Plan:
    """Plan a wgmma kernel, by the caller's configuration or the fastest one.

    contiguous: the problem with contiguous operands. Its choice determines the division of K, so that
    strides do not change the bits.
    """
    if config is not None and not config.stages:
        raise tc.ArgumentError(f"stages is 1 or more; config.with_stages() takes as many as fit: {config}")
    kernel = fp8_gemm if problem.accumulate == FAST else WGMMA_KERNELS[problem.multiplied_as]
    traits = _hopper_traits(problem)
    needs_registers = bool(problem.row_reductions) or traits.needs_registers
    if config is None:
        config = choice.choose_for(problem, needs_registers, contiguous)
    if not problem.dtype.is_float and config.BN % 16 and config.BN != 24:
        raise tc.ArgumentError(f"s8 products take BN = 24 or a multiple of 16: {config}")
    if kernel is f32_gemm:
        kernel = _f32_kernel(problem, config, traits)
        if kernel is f32_gemm:  # its operands are the parts
            traits = replace(traits, a_k_major=True, b_k_major=True)
    if config.swap_ab:
        _check_swap_ab(problem, kernel, config)
        traits = replace(traits, c_in_pairs=False, c_is_row=False)  # its threads hold columns of D
    plan = plan_hopper(kernel, config, traits, problem.d.shape)
    plan = replace(plan, split_operands=kernel is f32_gemm)
    return _with_row_reductions(plan, problem) if problem.row_reductions else plan


def _f32_kernel(problem: GemmProblem, config: HopperConfig, traits: HopperTraits) -> tc.Kernel:
    """Choose the kernel of f32 products; refuse configurations that it does not take."""
    if config.splits_in_memory:
        return f32_gemm
    if config.k_slabs != 1:
        raise tc.ArgumentError(
            f"f32 products take k_slabs=2, whose stages hold split operands, or k_slabs=1, which reads "
            f"operands without a copy: {config}"
        )
    readable = families.is_read_by_tma(problem.a), families.is_read_by_tma(problem.b)
    if not all(readable):
        raise tc.ArgumentError(
            f"k_slabs=1 reads operands of f32 products without a copy, and {'ab'[readable[0]]} has "
            f"neither rows nor columns that are contiguous and start at multiples of 16 bytes (4 "
            f"elements); k_slabs=2 takes others: {config}"
        )
    if config.stages < 2 or config.pingpong:
        raise tc.ArgumentError(
            f"f32 products with k_slabs=1 take two stages or more, and no pingpong: {config}"
        )
    transposed = traits.transposes(config, problem.dtype.itemsize)
    if MAX_COLUMNS.get(config.consumers, 0) < config.BN or (transposed and config.BN % 32):
        raise tc.ArgumentError(
            f"f32 products with k_slabs=1 take BN up to {MAX_COLUMNS[1]} with BM=64, {MAX_COLUMNS[2]} "
            f"with BM=128 and {MAX_COLUMNS[3]} with BM=192; BN must be a multiple of 32 for an MN-major "
            f"operand: {config}"
        )
    return f32_fragments_gemm


def _check_swap_ab(problem: GemmProblem, kernel: tc.Kernel, config: HopperConfig) -> None:
    """Refuse swap AB for results that are not of 16 bits, and with row reductions."""
    unsupported = ""
    has_16_bits = kernel in (WGMMA_KERNELS[tc.f16], fp8_gemm, promoted_fp8_gemm)
    if not has_16_bits and kernel not in (WGMMA_KERNELS[tc.tf32], f32_fragments_gemm):
        unsupported = f"a product of {problem.multiplied_as}"
    elif has_16_bits and problem.d.type.dtype.bits != 16:
        unsupported = f"D of {problem.d.type.dtype}"
    elif problem.row_reductions:
        unsupported = "row_reductions"
    if unsupported:
        raise tc.ArgumentError(
            f"swap_ab takes products of f16, bf16 and fp8 whose D is f16 or bf16, of tf32, and of "
            f"f32 with k_slabs=1, without row_reductions; not {unsupported}: {config}"
        )


def _hopper_traits(problem: GemmProblem) -> HopperTraits:
    """Traits of a wgmma kernel for operands of these layouts and this epilogue."""
    traits = HopperTraits(
        a_k_major=problem.a_k_major,
        b_k_major=problem.b_k_major,
        store_by_threads=stores_without_tma(problem.d),
        scaled=problem.alpha != 1,
        acc_dtype=tc.f16 if problem.accumulate == tc.f16 else None,
        epilogue=problem.epilogue,
    )
    if not problem.reads_c:
        return traits
    c: Any = problem.c
    in_pairs = c.type.unit[-1] and c.type.align >= 2 * c.type.dtype.itemsize and problem.N % 2 == 0
    is_row = in_pairs and c.strides[-2] == 0  # one row for all rows of D
    return replace(traits, has_c=True, c_in_pairs=in_pairs, c_is_row=is_row)


def _with_row_reductions(plan: Plan, problem: GemmProblem) -> Plan:
    """Wrap the plan in a kernel that also reduces the rows of D."""
    *batch, M, N = problem.d.shape
    parts = cdiv(N, plan.config.stored_columns)
    shape = (len(problem.row_reductions), parts, math.prod((*batch, M)))
    reductions = row_reduction.RowReductions(problem.row_reductions)
    return replace(
        plan,
        kernel=row_reduction.gemm_with_rows,
        traits=replace(plan.traits, row_reductions=reductions),
        extra=(("gemm", plan.kernel),),
        partials=(shape, accumulator_dtype(problem.dtype)),
    )


def _plan_sm80(problem: GemmProblem, requested: AmpereConfig | VectorConfig | None) -> Plan:
    """Plan a kernel without wgmma, by the caller's configuration or the fastest one."""
    config: AmpereConfig | VectorConfig
    config = choice.choose_config(problem, "sm80") if requested is None else requested
    grid = cdiv(problem.M, config.BM) * cdiv(problem.N, config.BN) * config.split_k
    if isinstance(config, VectorConfig):
        return _plan_vectors(problem, config, grid)
    # Rows and depth of one instruction.
    rows, depth = 8 if problem.dtype == tc.f64 else 16, 32 // problem.dtype.itemsize
    if config.WM % rows or config.WN % 8 or config.BK % depth:
        raise tc.ArgumentError(
            f"for {problem.dtype}, WM is a multiple of {rows}, WN of 8 and BK of {depth}: {config}"
        )
    in_f16 = problem.accumulate is not None and problem.dtype == tc.f16
    extra = (("accumulate", problem.accumulate),) if in_f16 else ()
    kernel, traits = MMA_KERNELS[problem.multiplied_as], _ampere_traits(problem, config)
    streamk = None
    if is_f64_pipelined(problem, config):
        kernel, traits = f64_gemm, _f64_pipeline_traits(problem, traits)
        if config.streamk_units:
            kernel, streamk = f64_streamk_gemm, problem.dtype
            grid = min(config.streamk_units, grid * cdiv(problem.K, config.BK))
        else:
            grid = min(grid, SMS * resident_ctas(config))
    elif config.streamk_units:
        raise tc.ArgumentError(
            f"streamk_units must be 0, as only the f64 kernel on Hopper has stream-K: {config}"
        )
    else:
        size = problem.dtype.itemsize
        config.rows_at_once(config.BM, traits.a_k_major, size, traits.vec_a)
        config.rows_at_once(config.BN, traits.b_k_major, size, traits.vec_b)
    if config.split_k == 1:
        return Plan(kernel, config, traits, grid, extra, streamk=streamk)
    _check_split_k(problem, config)
    dtype = accumulator_dtype(problem.dtype)
    vec_d = 16 if problem.N * dtype.itemsize % 16 == 0 else dtype.itemsize
    part_traits = replace(traits, has_c=False, scaled=False, epilogue=None, vec_d=vec_d)
    return Plan(kernel, config, part_traits, grid, extra, partial_sums=traits, partial_dtype=dtype)


def _plan_vectors(problem: GemmProblem, config: VectorConfig, grid: int) -> Plan:
    """Plan a kernel without tensor cores."""
    if problem.multiplied_as not in VECTOR_KERNELS:
        raise tc.ArgumentError(
            f"kernels without tensor cores are for {', '.join(map(str, VECTOR_KERNELS))}, "
            f"not for {problem.multiplied_as}: {config}"
        )
    if problem.accumulate == tc.f16:
        raise tc.ArgumentError(f"kernels without tensor cores sum in f32, not in f16: {config}")
    k_major = problem.b_k_major if config.BM < config.BN else problem.a_k_major
    if config.along_k != k_major:
        raise tc.ArgumentError(f"along_k must be {k_major} for operands with these strides: {config}")
    traits = AmpereTraits(
        a_k_major=problem.a_k_major,
        b_k_major=problem.b_k_major,
        full=False,
        scaled=problem.alpha != 1,
        has_c=problem.reads_c,
        epilogue=problem.epilogue,
    )
    return Plan(VECTOR_KERNELS[problem.multiplied_as], config, traits, grid)


def is_f64_pipelined(problem: GemmProblem, config: AmpereConfig) -> bool:
    """Whether the f64 kernel of Hopper runs a configuration; that of sm_80 runs the others."""
    return (
        problem.multiplied_as == tc.f64
        and has_wgmma()
        and not any(n % WIDTH for n in (config.WM, config.WN, config.BK))
        and max(config.BM, config.BN, config.BK) <= 256  # the limit of a TMA box
    )


def _f64_pipeline_traits(problem: GemmProblem, traits: AmpereTraits) -> AmpereTraits:
    """Traits of the f64 kernel of Hopper, the same for whole tiles and for those at the edge."""
    by_tma = [families.is_read_by_tma(x) for x in (problem.a, problem.b)]
    return replace(traits, full=False, prefetch=False, tma_a=by_tma[0], tma_b=by_tma[1])


def _check_split_k(problem: GemmProblem, config: AmpereConfig) -> None:
    """Refuse split-K of f16 sums, and with more parts than tiles along K."""
    if problem.accumulate == tc.f16:
        raise tc.ArgumentError(f"split-K adds up f32 partial sums, and not those of f16: {config}")
    if config.split_k > cdiv(problem.K, config.BK):
        raise tc.ArgumentError(f"K is {problem.K}: not every part of K has a tile: {config}")


def _ampere_traits(problem: GemmProblem, config: AmpereConfig) -> AmpereTraits:
    """Traits of an mma.sync kernel: widths of copies, whole tiles, prefetched fragments."""
    M, N, K = problem.M, problem.N, problem.K
    vec_d = vector_bytes(problem.d)
    if problem.c is not None and problem.reads_c:
        vec_d = min(vec_d, vector_bytes(problem.c))
    k_major = problem.a_k_major and problem.b_k_major
    tiles = cdiv(K, config.BK) // config.split_k
    # Bytes of s8 that are gathered one by one, and f32 in two parts, leave no registers for
    # prefetched fragments.
    registers = problem.multiplied_as != tc.f32 and (k_major or problem.dtype.itemsize > 1)
    prefetch = config.stages <= tiles and registers
    return AmpereTraits(
        a_k_major=problem.a_k_major,
        b_k_major=problem.b_k_major,
        vec_a=_copy_bytes(problem.a, problem.a_k_major or K > 1),
        vec_b=_copy_bytes(problem.b, problem.b_k_major or K > 1),
        vec_d=vec_d,
        full=M % config.BM == 0 and N % config.BN == 0 and K % config.BK == 0,
        prefetch=prefetch,
        scaled=problem.alpha != 1,
        has_c=problem.reads_c,
        epilogue=problem.epilogue,
    )


def _copy_bytes(x: Description, has_vectors: bool) -> int:
    """Bytes of one copy: one element if the stride of further vectors is unknown."""
    aligned = has_vectors and not all(x.type.unit)
    return int(x.type.align if aligned else x.type.dtype.itemsize)
