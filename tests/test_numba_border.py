"""The border to numba-cuda: NumPy without the names that it expects, and versions that do not fit."""

import subprocess
import sys

import pytest

from tensorcore_dsl.environment import numba_cuda as border

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

COMPILES = """
import sys
import numpy as np
import numba.np.arrayobj  # Numba's own, which may name it too
if hasattr(np, "row_stack"):  # NumPy before 2.5
    del np.row_stack
    np.__all__ = [name for name in np.__all__ if name != "row_stack"]
if "first" in sys.argv:
    from numba import cuda
from tensorcore_dsl import bf16, f32
from tensorcore_dsl.numba import mma
assert not hasattr(np, "row_stack"), "only for the time of the import"
from numba import cuda, types

product = mma.m16n8k16(bf16, bf16, f32)

@cuda.jit
def kernel(x, y):
    a, b, c = (x[0], x[1], x[2], x[3]), (x[4], x[5]), (y[0], y[1], y[2], y[3])
    y[0] = product(a, b, c)[0]

arguments = (types.uint32[::1], types.float32[::1])
text, _ = cuda.compile_ptx(kernel.py_func, arguments, cc=(8, 0))
assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in text
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("order", ["first", "last"])
def test_numpy_without_row_stack(order, tmp_path):
    """NumPy 2.5 removed it; numba-cuda 0.30.4 names it as it first compiles."""
    script = tmp_path / "compiles.py"
    script.write_text(COMPILES)
    done = subprocess.run([sys.executable, script, order], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def broken(monkeypatch):
    """An import that fails as that of numba-cuda 0.28 beside Numba 0.68."""

    def fails(name):
        raise AttributeError("module 'numba.cuda.types' has no attribute 'NPDatetime'")

    monkeypatch.setattr(border, "import_module", fails)
    for name in [name for name in sys.modules if name.startswith("numba.cuda")]:
        monkeypatch.delitem(sys.modules, name)


def test_versions_that_do_not_fit_are_named(broken):
    with pytest.raises(
        ImportError, match=r"numba-cuda \S+, numba \S+, numpy \S+ do not fit each other: .*NPDatetime"
    ):
        border.numba_cuda()
