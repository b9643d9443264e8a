"""Which arrays a kernel writes, and read-only arrays that a kernel would write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.ir.writes import written_arrays
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.hopper.wgmma_gemm import half_gemm
from tests.hopper_kernels import first_box


@tc.kernel
def element(x, y):
    y[tc.threadIdx.x] = x[tc.threadIdx.x]


@tc.kernel
def atomic(x, y):
    tc.atomic("add", y.at(0), x[0])


@tc.kernel
def reduction(x, y):
    tc.reduce("add", y.at(0), x[0])


@tc.kernel
def vector(x, y):
    y.at(4 * tc.threadIdx.x).store(x.at(4 * tc.threadIdx.x).load(4))


@tc.kernel
def pointer_in_a_loop(x, y):
    p = y.at(0)
    for _ in range(tc.threadIdx.x):
        p = p + 1
    p.store(x[0])


@tc.kernel
def pointer_that_is_chosen(x, y):
    p = y.at(0)
    if tc.threadIdx.x > 3:
        p = y.at(8)
    p.store(x[0])


@tc.kernel
def either(x, y):
    p = y.at(0)
    if tc.threadIdx.x > 3:
        p = x.at(8)
    p.store(1.0)


@tc.kernel
def index_from_memory(x, y):
    y[x[0].to(tc.s32)] = 1.0


CASES = [
    *((kernel, {"y"}) for kernel in (element, atomic, reduction, vector, pointer_in_a_loop)),
    (pointer_that_is_chosen, {"y"}), (either, {"x", "y"}), (index_from_memory, {"y"}),
    (first_box, {"y"}),
]  # fmt: skip


def arrays(kernel: Any) -> tuple[Any, Any]:
    shape = (8, 64) if kernel is first_box else (64,)
    return np.zeros(shape, np.float32), np.zeros(shape, np.float32)


@pytest.mark.parametrize("kernel, written", CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_written_arrays(kernel, written):
    ir = kernel.specialise(arrays(kernel), {}, "sm_90a").ir
    actual = written_arrays(ir, ("x", "y"))
    assert set(actual) == written and None not in actual.values()


def test_the_operands_of_a_product_are_not_written():
    a, b, d = (np.zeros((64, 64), tc.bf16.numpy) for _ in range(3))
    arguments = (a, b.T, d, d, 1.0, 0.0)
    ir = half_gemm.specialise(arguments, {"config": HopperConfig(stages=2)}, "sm_90a").ir
    assert set(written_arrays(ir, half_gemm.runtime_names)) == {"d"}


@pytest.mark.parametrize("kernel, written", CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_a_read_only_array_is_refused_where_it_is_written(kernel, written):
    x, y = arrays(kernel)
    y.flags.writeable = False
    text = f"argument 'y' is a read-only array, and {kernel.__name__} writes it here"
    with tc.target("cpu", "sm_90a"), pytest.raises(tc.ArgumentError, match=text) as error:
        kernel[1, 32](x, y)
    assert f"in {kernel.__name__}" in str(error.value) and not y.any()
    with pytest.raises(tc.ArgumentError, match=text):
        kernel.ptx(x, y, arch="sm_90a")


def test_a_read_only_array_is_read():
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    x.flags.writeable = False
    element[1, 32](x, y)
    assert np.array_equal(y[:32], x[:32])
    assert kernels.gemm(np.broadcast_to(np.float32(1), (8, 8)), np.eye(8, dtype=np.float32)).all()
