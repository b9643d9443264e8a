"""`gemm` with packed weights of 4 or 8 bits as B."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, check_stream, describe, target_arch
from tensorcore_dsl.kernels.ampere.config import AmpereTraits
from tensorcore_dsl.kernels.ampere.packed_gemm import CHUNK, PackedConfig, WeightFormat, packed_gemm_kernel
from tensorcore_dsl.kernels.choosing.packed import check_wgmma, choose_packed
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.packed_few_rows import HopperPackedConfig, packed_few_rows_gemm
from tensorcore_dsl.kernels.hopper.packed_many_rows import packed_many_rows_gemm, packed_stages
from tensorcore_dsl.kernels.host import operands
from tensorcore_dsl.kernels.host.arguments import described, present, vector_bytes
from tensorcore_dsl.kernels.host.launch import EpilogueArgs, PreparedCall, call_with_c
from tensorcore_dsl.kernels.host.operands import GemmOptions
from tensorcore_dsl.kernels.host.overlap import check_written
from tensorcore_dsl.kernels.host.packed_weights import PackedWeights, describe_weights
from tensorcore_dsl.kernels.host.plan import Plan, bind_plan, plan_hopper
from tensorcore_dsl.kernels.problem.families import check_supported, has_negative_stride, stores_without_tma
from tensorcore_dsl.kernels.problem.gemm_problem import ANY, GemmProblem
from tensorcore_dsl.kernels.problem.padding import VECTOR_BYTES
from tensorcore_dsl.kernels.problem.summation import summation_of_packed
from tensorcore_dsl.kernels.sizes import cdiv
from tensorcore_dsl.kernels.user_functions import check_epilogue

FAMILIES: dict[str, Any] = {"sm80": PackedConfig, "sm90": (HopperPackedConfig, HopperConfig)}
MAX_SUMS = 128  # accumulators of a thread of packed_many_rows_gemm, besides fragments of weights

log = logging.getLogger(__name__)


def multiply_packed(
    a: Any, b: PackedWeights, c: Any, out: Any, row_out: Any, extra: EpilogueArgs, options: GemmOptions
) -> Any:
    """Compute alpha A B + beta C; arguments as for `gemm`."""
    weights, numbers = b.operands, (str(options.alpha), str(options.beta))
    key = ("packed", str(b.shape), str(b.dtype), b.zeros is None, row_out is None, *numbers, *options)
    prepare = lambda: _prepare(a, b, c, out, row_out, extra, options)
    return call_with_c(prepare, key, (a, *weights), (a, weights), a, c, out, extra)


def _prepare(
    a: Any, b: PackedWeights, c: Any, out: Any, row_out: Any, extra: EpilogueArgs, options: GemmOptions
) -> PreparedCall:
    operands.check_bits(options.bits)
    check_packed(options, row_out)
    check_stream(options.stream)
    options = options._replace(epilogue=check_epilogue(options.epilogue, extra.names))
    problem, d, read = describe_packed(a, b, c, out, options)
    check_written(read | extra.described(), "c", out=out)
    plan = plan_packed(b, problem, options.family, options.config)
    return bind_plan(plan, problem, (a, b.operands), c, d, extra, options.stream)


def describe_packed(
    a: Any, b: PackedWeights, c: Any, out: Any, options: GemmOptions
) -> tuple[GemmProblem, Any, dict[str, Description]]:
    """Describe and check a product; returns the result's array and the operands, too."""
    read = described(a=a, **present(c=c)) | describe_weights(b)
    in_a, in_c = read["a"], read.get("c")
    dtype, (M, _), N = in_a.type.dtype, operands.check_rank("a", in_a, 2), b.shape[1]
    if dtype not in (tc.f16, tc.bf16):
        raise tc.ArgumentError(f"a holds {dtype}; packed weights are multiplied by f16 and bf16")
    in_b = in_a._replace(shape=b.shape)
    operands.check_operands(in_a, in_b, in_c, options.beta)
    d, in_d = operands.result_array(a, out, dtype, (M, N), options.out_dtype)
    return options.problem(in_a, in_b, in_c, in_d), d, read


def plan_packed(
    b: PackedWeights,
    problem: GemmProblem,
    family: str | None,
    config: PackedConfig | HopperPackedConfig | HopperConfig | None,
) -> Plan:
    """Plan the launch for a described problem."""
    M, N, K = problem.M, problem.N, problem.K
    if M == 0:
        return Plan(None, None, None, 0)
    arch = target_arch()
    if arch.number < 80:
        raise tc.ArgumentError(f"products with packed weights run on sm_80 or later, not on {arch}")
    vec_a = vector_bytes(problem.a, 2)
    by_tma = vec_a == VECTOR_BYTES and not has_negative_stride(problem.a)
    one_type = not b.format.group or describe(b.scales).type.dtype == problem.dtype
    by_threads = stores_without_tma(problem.d)
    if config is None:
        config = choose_packed(M, N, K, b.format, by_tma, family, one_type, by_threads)
    else:
        _check_config(config, K, by_tma, family)
    log.info("product of %d x %d by %r: %s", M, K, b, config)
    shared: Any = {"scaled": problem.alpha != 1, "has_c": problem.reads_c, "epilogue": problem.epilogue}
    summation = partial(summation_of_packed, problem, b.format, config)
    if isinstance(config, HopperConfig):
        _check_many_rows(config, b.format, one_type)
        hopper_traits = HopperTraits(store_by_threads=by_threads, **shared)
        plan = plan_hopper(packed_many_rows_gemm, config, hopper_traits, (M, N), format=b.format)
        return replace(plan, summation=summation)
    grid = cdiv(N, config.columns), cdiv(M, config.tokens), config.split_k
    kernel = packed_few_rows_gemm if isinstance(config, HopperPackedConfig) else packed_gemm_kernel
    traits = AmpereTraits(vec_a=vec_a, vec_d=vector_bytes(problem.d), **shared)
    plan = Plan(kernel, config, traits, grid, (("format", b.format),), summation=summation)
    if config.split_k == 1:
        return plan
    part_traits = AmpereTraits(vec_a=vec_a)
    return replace(plan, traits=part_traits, partial_sums=traits, partial_dtype=tc.f32)


def check_packed(options: GemmOptions, row_out: Any = None) -> None:
    """Products with packed weights have one accumulator type."""
    refused = {
        "accumulate": options.accumulate is not None,
        "row_reductions": not isinstance(options.row_reductions, tuple) or bool(options.row_reductions),
        "row_out": row_out is not None,
        "precision": options.precision is not None,
        "bits='batch_invariant'": options.bits != ANY,
    }
    names = [name for name, is_used in refused.items() if is_used]
    if names:
        raise tc.ArgumentError(
            f"b is PackedWeights; products with them have no {', '.join(names)}: they are summed in f32, in "
            f"an order that depends on the tile, and not reduced along rows"
        )


def _check_many_rows(config: HopperConfig, format: WeightFormat, one_type: bool) -> None:
    """Refuse what the kernel for many rows does not take. one_type: see `choose_packed`."""
    check_supported("packed weights", config, "k_slabs", "cluster_n", "mma_in_flight")
    most = packed_stages(config, format)
    needs = {
        "swap_ab=True": config.swap_ab,
        "a BM of 64 or 128": config.BM <= 128,
        f"at most {MAX_SUMS} accumulators of a thread": config.accumulator_registers <= MAX_SUMS,
        f"2 to {most} stages": 2 <= config.stages <= most,
        "for split_k stages whose rows of A hold the sums of a tile": config.split_k == 1
        or config.partials_over(config.stages) == 1,
    }
    if unmet := next((need for need, is_met in needs.items() if not is_met), None):
        raise tc.ArgumentError(f"packed weights need {unmet}: {config}")
    if not one_type:
        raise tc.ArgumentError(
            "a HopperConfig takes scales of groups of a's type; a kernels.HopperPackedConfig takes any"
        )


def _check_config(config: Any, K: int, by_tma: bool, family: str | None) -> None:
    """Refuse another configuration, one with more parts of K than chunks, and one that cannot run here."""
    kind = next((name for name, classes in FAMILIES.items() if isinstance(config, classes)), None)
    if kind is None:
        raise tc.ArgumentError(
            f"config is {config}; packed weights take a kernels.PackedConfig, a kernels.HopperPackedConfig "
            f"or a kernels.HopperConfig"
        )
    if family not in (None, kind):
        raise tc.ArgumentError(f"family is {family!r}, and config of family {kind!r}: {config}")
    if kind == "sm90":
        check_wgmma(by_tma)
    if config.split_k > K // CHUNK:
        raise tc.ArgumentError(f"K is {K}: not every part of K has {CHUNK} elements: {config}")
