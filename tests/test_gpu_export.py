"""Exported kernels on a GPU: from a C program without Python, and from Python; skipped without a GPU."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.runtime import driver
from tests.c_compiler import GCC, INCLUDE, needs_compiler

PROGRAM = Path(__file__).parent / "export_program.c"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not driver.cuda_available(), reason="no GPU")]


@tc.kernel
def scale(x: tc.Array, y: tc.Array, factor: tc.f32):
    """y = factor xᵀ"""
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    if i < x.shape[0]:
        for j in range(x.shape[1]):
            y[j, i] = x[i, j] * factor


MATRIX = tc.ArrayType(tc.f32, 2, (False, True), 16)


def export_scale(folder, **options):
    grid = "cdiv(x.shape[0], 128)"
    return scale.export(folder, [MATRIX, MATRIX, tc.f32], grid=grid, block=128, **options)


def driver_library():
    """The path of the driver that this process has loaded, to link with."""
    ctypes.CDLL("libcuda.so.1")
    loaded = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    return next(path for path in loaded if "libcuda.so" in path)


@needs_compiler
@pytest.mark.parametrize("form", ["cubin", "ptx"])
def test_a_c_program_launches_exported_kernels(tmp_path, form, capfd):
    a = np.empty((4096, 4096), "bfloat16")
    kernels.export_gemm(tmp_path, a, a.T, form=form)
    export_scale(tmp_path, form=form)
    program = tmp_path / "program"
    sources = [str(PROGRAM), *(str(tmp_path / f"{name}.c") for name in ("gemm", "scale"))]
    library = driver_library()
    subprocess.run(
        [
            str(GCC),
            "-O2",
            "-I",
            str(tmp_path),
            "-isystem",
            str(INCLUDE),
            *sources,
            library,
            "-o",
            str(program),
        ],
        check=True,
    )
    done = subprocess.run([str(program)], capture_output=True, text=True)
    with capfd.disabled():
        print(f"\n{form}: {done.stdout.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "scale: all right" in done.stdout and "samples are right" in done.stdout


def test_python_launches_an_exported_product(tmp_path):
    """With the bits of `gemm`, and shapes and strides that the types allow."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    a, b = (torch.randn(512, 512, device="cuda").half() for _ in range(2))
    d = torch.zeros(512, 512, device="cuda", dtype=torch.float16)
    path = kernels.export_gemm(tmp_path, a.cpu().numpy(), b.cpu().numpy().T)
    exported = tc.load_exported(path)
    for _ in range(3):  # the plain path, and the fast one
        exported(a, b.T, d, d, 1, 0)
    assert torch.equal(d, kernels.gemm(a, b.T))
    with pytest.raises(tc.ArgumentError, match="of shape"):
        exported(a[:64], b.T, d[:64], d[:64], 1, 0)


@pytest.mark.parametrize("form", ["cubin", "ptx"])
def test_python_launches_an_exported_kernel(tmp_path, form):
    torch = pytest.importorskip("torch")
    x = torch.randn(300, 8, device="cuda")
    y = torch.zeros(8, 300, device="cuda")
    exported = tc.load_exported(export_scale(tmp_path, form=form))
    exported(x, y, 2.5)
    assert torch.equal(y, 2.5 * x.T)
