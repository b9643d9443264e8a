"""Kernels in CUDA C++ with cooperative groups, wmma, libcu++ and CUB, run on the CPU through their PTX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorcore_dsl as tc
from tests import foreign_corpus as corpus

pytest.importorskip("cuda.bindings.nvrtc")
nvidia = pytest.importorskip("nvidia.cu13")
if not any((Path(folder) / "include" / "crt" / "mma.h").exists() for folder in nvidia.__path__):
    pytest.skip("mma.h of the package nvidia-cuda-crt is missing", allow_module_level=True)

# Where the memory model lacks an order in the headers themselves.
FINDINGS = {("pipelined", "sm_80"): "mbarrier_inval.h", ("pipelined", "sm_90a"): "mbarrier_inval.h"}


@pytest.mark.quick(lambda name: 0)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", corpus.CASES)
def test_kernels_are_right(name, arch):
    wrong = FINDINGS.get((name, arch))
    if wrong:
        with pytest.raises((tc.Race, tc.EmulationError)) as error:
            corpus.run(name, arch)
        assert error.value.loc.filename.endswith(wrong)
    corpus.run(name, arch, checks=not wrong)


def test_printf_prints_as_in_c(capsys):
    corpus.run("printing", "sm_90a")
    x = corpus.CASES["printing"]().arguments[0][:3]
    assert capsys.readouterr().out == "".join(f"{v}: {v / 4:5.2f} text|ff|{1 << 40}\n" for v in x)


SMALL = """
#include <cuda/std/cassert>
extern "C" __global__ void positive(int *x) { assert(x[threadIdx.x] > 0); }
__device__ __noinline__ int ackermann(int m, int n) {
  return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
extern "C" __global__ void recursive(int *x) { x[0] = ackermann(2, x[0]); }
"""


@pytest.fixture(scope="module")
def small():
    yield tc.ptx.from_cuda(SMALL)


def test_an_assertion_that_fails(small):
    with pytest.raises(
        tc.EmulationError, match=r"assertion `x\[threadIdx.x\] > 0` failed in thread 3 of CTA 0"
    ):
        small.positive[1, 8](np.array([1, 2, 3, 0, 1, 1, 1, 1], np.int32))


def test_recursion_is_refused(small):
    with pytest.raises(tc.UnsupportedSyntax, match="calls itself; recursion is not supported, write a loop"):
        _ = small.recursive


def test_an_error_of_nvrtc():
    with pytest.raises(tc.ArgumentError, match=r'NVRTC refuses(.|\n)*identifier "y" is undefined'):
        tc.ptx.from_cuda('extern "C" __global__ void k(int *x) {\n  *x = y;\n}')


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "name, nth, line",
    [
        ("by_address", 0, "= s[63 - threadIdx.x];"),
        ("either_space", 0, "= p[31 - threadIdx.x];"),
        ("variables", 0, "= table[threadIdx.x & 7]"),
        ("copied_by_group", 0, "= s[255 - threadIdx.x];"),
        ("last_block", 0, "s[threadIdx.x] += s[threadIdx.x + k];"),
        ("last_block", 8, "sum += __ldcg(partial + i);"),
        ("last_block", 10, "if (last"),
        ("thread_pipeline", 0, "sum += s[i & 1][threadIdx.x];"),
        ("tiled_product", 0, "sum += sa[y][i] * sb[i][x];"),
        ("tiled_product", 1, "sa[y][x] = a["),
        ("mma_product", 0, "ldmatrix.sync.aligned.m8n8.x4"),
        ("mma_product", 3, "cp.async.cg.shared.global"),
    ],
)
def test_a_deleted_synchronisation_is_reported_at_the_line(name, nth, line):
    case = corpus.CASES[name]()
    kernel = tc.ptx.load(corpus.without(corpus.module("sm_90a").ptx, name, nth))[name]
    arguments = [x.copy() if isinstance(x, np.ndarray) else x for x in case.arguments]
    with pytest.raises((tc.Race, tc.Uninitialised)) as error:
        kernel[case.grid, case.block](*arguments)
    assert line in corpus.SOURCE.read_text().splitlines()[error.value.loc.line - 1]
