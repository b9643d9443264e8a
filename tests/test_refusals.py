"""What beginners ask of `kernels`, and what they are told: what was given, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.hopper.config import HopperConfig

A = np.zeros((16, 64), tc.bf16.numpy)
B = np.zeros((64, 16), tc.bf16.numpy)
F8, S8 = A.astype(tc.e4m3.numpy), A.astype(np.int8)
EXPERTS = np.zeros((3, 64, 16), tc.bf16.numpy)
SCALES = np.ones((16, 1), np.float32), np.ones((1, 1), np.float32)

FEW = np.array([0, 5, 9, 16], np.int32)


def grouped(*offsets: int) -> Callable[[], Any]:
    return lambda: kernels.grouped_gemm(A, EXPERTS, np.array(offsets, np.int32))


REFUSALS: dict[str, tuple[Callable[[], Any], str]] = {
    "sums of no kind": (
        lambda: kernels.gemm(A, B, accumulate="slow"),
        "accumulate is 'slow'; allowed are tc.f32, tc.f16 (f16 products) and 'fast' (fp8 products)",
    ),
    "what was never packed": (
        lambda: kernels.decompress(A),
        "decompress takes what compress gives, a SparseMatrix, not a ndarray",
    ),
    "no stages": (
        lambda: HopperConfig(stages=-1),
        "group_m are 1 or more, stages 0 or more: HopperConfig(BM=128",
    ),
    "stages not chosen": (
        lambda: kernels.gemm(A, B, config=HopperConfig(stages=0)),
        "stages is 1 or more; config.with_stages() takes as many as fit: HopperConfig(BM=128",
    ),
    "one stage": (lambda: AmpereConfig(stages=1), "stages is 2 or more: AmpereConfig("),
    "a step of half a product": (
        lambda: kernels.gemm(A, B, config=AmpereConfig(BK=8)),
        "for bf16, WM is a multiple of 16, WN of 8 and BK of 16: AmpereConfig(",
    ),
    "a warp of half a product": (
        lambda: kernels.gemm(A, B, config=AmpereConfig(BM=16, WM=8)),
        "for bf16, WM is a multiple of 16, WN of 8 and BK of 16: AmpereConfig(",
    ),
    "nothing to split": (lambda: HopperConfig(split_k=0), "k_slabs and group_m are 1 or more"),
    "more slots than memory": (
        lambda: kernels.gemm(A, B, config=HopperConfig(stages=50)),
        "bytes of shared memory a block; sm_90a allows 232448 (227 KiB)",
    ),
    "groups beyond A": (
        grouped(0, 5, 9, 17),
        "offsets go from 0 to 17; they must go from 0 to 16, the rows of a",
    ),
    "groups that leave rows": (grouped(2, 5, 9, 16), "offsets go from 2 to 16; they must"),
    "groups that fall": (grouped(0, 9, 5, 16), "offsets must ascend; offsets[1] is 9 and offsets[2] 5"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_beginners_are_told(case):
    run, message = REFUSALS[case]
    with pytest.raises(tc.ArgumentError) as error, tc.target("cpu", "sm_90a"):
        run()
    assert message in str(error.value)


def doubled(value):
    return value + value


def scaled_by(value, row, col, factor):
    return value * factor


FINISHED: dict[str, Callable[[Any], Any]] = {
    "gemm": lambda f: kernels.gemm(A, B, epilogue=f),
    "sparse gemm": lambda f: kernels.gemm(kernels.compress(A), B, epilogue=f),
    "grouped_gemm": lambda f: kernels.grouped_gemm(A, EXPERTS, FEW, epilogue=f),
    "swiglu": lambda f: kernels.swiglu(A, A.T, A.T, epilogue=f),
    "scaled_gemm": lambda f: kernels.scaled_gemm(F8, F8.T, *SCALES, epilogue=f),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", FINISHED)
def test_functions_of_elements_take_three_arguments(name):
    """What does not is shown where it is defined, and no line of the library is."""
    for function, said in (
        (
            doubled,
            "epilogue is doubled(value); a function epilogue(value, row, col) of the kernel language is needed",
        ),
        (scaled_by, "epilogue is scaled_by(value, row, col, factor); a function epilogue(value, row, "),
        (partial(scaled_by, 1.0, 2.0), "epilogue is partial(col, factor); a function epilogue(value"),
    ):
        with pytest.raises(tc.ArgumentError) as error, tc.target("cpu", "sm_90a"):
            FINISHED[name](function)
        told = str(error.value)
        assert told.startswith(said)
        assert f"at {__file__}:" in told and "kernels/" not in told
    with tc.target("cpu", "sm_90a"):
        FINISHED[name](partial(scaled_by, factor=2.0))


HOPPER_ONLY: dict[str, Callable[[], Any]] = {
    "gemm with its tile": lambda: kernels.gemm(A, B, config=HopperConfig(BN=16)),
    "gemm of batches": lambda: kernels.gemm(A[None], B),
    "sparse gemm": lambda: kernels.gemm(kernels.compress(A), B),
    "grouped_gemm": grouped(0, 5, 9, 16),
    "swiglu": lambda: kernels.swiglu(A, A.T, A.T),
    "scaled_gemm": lambda: kernels.scaled_gemm(F8, F8.T, *SCALES),
    "requantised_gemm": lambda: kernels.requantised_gemm(S8, S8.T, 1.0),
}


@pytest.mark.parametrize("case", HOPPER_ONLY)
def test_wgmma_kernels_say_where_they_run(case):
    """And not which of their instructions the other architecture lacks."""
    with pytest.raises(tc.ArgumentError) as error, tc.target("cpu", "sm_80"):
        HOPPER_ONLY[case]()
    assert "they run on sm_90a, and the CPU emulates sm_80" in str(error.value)
