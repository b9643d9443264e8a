"""The two families of kernels, and which problems each of them can run.

"sm80" are the kernels with mma.sync, and those without tensor cores, in kernels/ampere; for f64 on
Hopper also hopper/f64_gemm.py. Their configuration is an AmpereConfig, or a VectorConfig without
tensor cores. "sm90" are the kernels with wgmma and TMA in kernels/hopper. Their configuration is a
HopperConfig.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl import host
from tensorcore_dsl.host import Description, current_target
from tensorcore_dsl.kernels.ampere import gemm as ampere
from tensorcore_dsl.kernels.ampere.config import AmpereConfig, VectorConfig
from tensorcore_dsl.kernels.ampere.vector_gemm import f64_vector_gemm, tf32_vector_gemm, vector_gemm
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.hopper.f32_gemm import f32_gemm
from tensorcore_dsl.kernels.hopper.fp8_gemm import promoted_fp8_gemm
from tensorcore_dsl.kernels.hopper.s8_gemm import s8_gemm
from tensorcore_dsl.kernels.hopper.tf32_gemm import tf32_gemm
from tensorcore_dsl.kernels.hopper.wgmma_gemm import half_gemm
from tensorcore_dsl.kernels.problem.gemm_problem import FAST, GemmProblem
from tensorcore_dsl.kernels.problem.problem_shape import ProblemShape
from tensorcore_dsl.kernels.problem.recording import is_recording

# Name of a family -> classes of its configurations.
FAMILIES: dict[str, tuple[type, ...]] = {"sm80": (AmpereConfig, VectorConfig), "sm90": (HopperConfig,)}
# Type in which the elements of A and B are multiplied -> kernel.
MMA_KERNELS: dict[tc.DType, Any] = {
    tc.f16: ampere.f16_gemm,
    tc.bf16: ampere.bf16_gemm,
    tc.f32: ampere.f32_gemm,
    tc.tf32: ampere.tf32_gemm,
    tc.s8: ampere.s8_gemm,
    tc.f64: ampere.f64_gemm,
}
# Type -> kernel for few rows or columns, without tensor cores.
VECTOR_KERNELS = {
    tc.f16: vector_gemm,
    tc.bf16: vector_gemm,
    tc.f32: vector_gemm,
    tc.tf32: tf32_vector_gemm,
    tc.f64: f64_vector_gemm,
}
WGMMA_KERNELS: dict[tc.DType, Any] = {
    tc.f16: half_gemm,
    tc.bf16: half_gemm,
    tc.f32: f32_gemm,
    tc.tf32: tf32_gemm,
    tc.s8: s8_gemm,
    tc.u8: s8_gemm,
    tc.e4m3: promoted_fp8_gemm,
    tc.e5m2: promoted_fp8_gemm,
}


def family_of(config: Any) -> str:
    """Family of a configuration."""
    return next(name for name, kinds in FAMILIES.items() if isinstance(config, kinds))


def check_family(family: Any) -> None:
    """Refuse what is not a name of a family."""
    if not isinstance(family, str) or family not in FAMILIES:
        raise tc.ArgumentError(f"family is {family!r}; allowed are {', '.join(FAMILIES)}")


def requested_family(family: str | None, config: Any) -> str | None:
    """Family that the caller names, or that of the caller's configuration."""
    if family is not None:
        check_family(family)
    if config is None:
        return family
    names = [name for name, kinds in FAMILIES.items() if isinstance(config, kinds)]
    if not names or family not in (None, *names):
        raise tc.ArgumentError(
            f"config is {config}; it must be a kernels.AmpereConfig or VectorConfig for sm80, or "
            f"a kernels.HopperConfig for sm90" + (f", and {family} was asked for" if family else "")
        )
    return names[0]


def has_wgmma() -> bool:
    """Whether kernels run on sm_90a: on a GPU, or in emulation."""
    return host.target_arch().name == "sm_90a"


def sm80_obstacle(problem: GemmProblem) -> str:
    """Reason why the mma.sync kernels cannot run this problem, or ''."""
    if host.target_arch().number < 80:
        return "they run on sm_80 or later"
    if problem.multiplied_as not in MMA_KERNELS:
        return f"they have no {problem.dtype}"
    if problem.batch is not None:
        return "they multiply single matrices, no batches; call gemm for each matrix"
    return "they have no row reductions" if problem.row_reductions else ""


def sm90_obstacle(dtype: tc.DType, accumulate: Any = None) -> str:
    """Reason why the wgmma kernels cannot run products of a type, or ''.

    Layouts and alignment are no such reason: operands get copies (padding.py).
    """
    if not has_wgmma():
        where = "the CPU emulates" if current_target() == "cpu" else "the GPU is"
        return f"they run on sm_90a, and {where} {host.target_arch()}"
    if dtype not in WGMMA_KERNELS:
        return f"they have no {dtype}"
    if accumulate not in (None, tc.f16, tc.f32, tc.s32, FAST):
        return f"they do not sum in {accumulate}"
    return ""


def obstacles(problem: GemmProblem) -> dict[str, str]:
    """Reason why each family cannot run this problem, or ''."""
    return {"sm80": sm80_obstacle(problem), "sm90": sm90_obstacle(problem.dtype, problem.accumulate)}


def stores_without_tma(d: Description) -> bool:
    """Whether threads store D, because TMA cannot.

    TMA writes only rows at ascending multiples of 16 bytes. It also writes whole units of 16 bytes,
    the last one beyond the row's end (triton-lang/triton issue 11583).
    """
    unit = d.type.unit[-2:]
    widths = [n for n, one in zip(d.shape[-2:], unit, strict=True) if one]
    whole = all(n * d.type.dtype.bits % 128 == 0 for n in widths)
    return d.type.align < 16 or all(unit) or has_negative_stride(d) or not whole


def has_negative_stride(x: Description) -> bool:
    """Whether an axis of a view is reversed."""
    return any(n > 1 and stride < 0 for n, stride in zip(x.shape, x.strides, strict=True))


def is_read_by_tma(x: Description) -> bool:
    """Whether TMA reads a matrix or a batch: lines start at multiples of 16 bytes."""
    is_matrix = sorted(x.type.unit[-2:]) == [False, True] and min(x.strides[-2:]) > 0
    return x.type.align >= 16 and is_matrix and not has_negative_stride(x)


def is_assembled(config: HopperConfig, shape: ProblemShape | None = None) -> bool:
    """Whether consumers get the registers that the configuration gives them, for a problem."""
    uneven = bool(config.registers)
    if shape is not None:
        in_fragments = bool(shape.seen_by(config.swap_ab).in_fragments)
        uneven |= config.exceeds_share(in_fragments, shape.out_bytes, shape.store_by_threads)
    return not uneven or gives_registers()


def gives_registers() -> bool:
    """Whether `setmaxnreg` works: only a whole-program assembler honours it, on a GPU.

    Emulation needs no assembler, and chooses like a machine that has one. `warm` compiles for a GPU.
    If the answer is no, `gemm` chooses other configurations, and the first choice of a process warns.
    """
    if (current_target() == "cpu" and not is_recording()) or host.has_program_assembler():
        return True
    _warn_of_missing_assembler()
    return False


@cache
def _warn_of_missing_assembler() -> None:
    warnings.warn(
        "there is no whole-program ptxas, which the fastest configuration of a product needs: "
        "another one is slower, and may sum in another order than the emulator; "
        "pip install tensorcore-dsl[ptxas]",
        tc.PerformanceWarning,
        stacklevel=2,
    )


def check_sm90(dtype: tc.DType) -> None:
    """Refuse a product that the wgmma kernels cannot run."""
    obstacle = sm90_obstacle(dtype)
    if obstacle:
        raise tc.ArgumentError(f"the wgmma kernels cannot take this product: {obstacle}")


def check_supported(products: str, config: Any, *unsupported: str) -> None:
    """Refuse a configuration that sets fields which a kernel does not support."""
    if not isinstance(config, HopperConfig):
        raise tc.ArgumentError(f"config is {config}; it must be a kernels.HopperConfig")
    default = HopperConfig()
    changed = [name for name in unsupported if getattr(config, name) != getattr(default, name)]
    if changed:
        settings = ", ".join(f"{name}={getattr(config, name)}" for name in changed)
        raise tc.ArgumentError(f"the kernel for {products} takes no {settings}: {config}")
