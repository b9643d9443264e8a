"""The ladder of Hopper GEMMs: every step in emulation, in other orders, and as the assembler sees it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.codegen import ptxas
from tensorcore_dsl.kernels import tutorial
from tests.whole_numbers import whole

STEPS = range(1, 9)
TMA_STEPS = range(4, 9)
RING_STEPS = range(5, 9)  # whose warpgroups wait for each other by mbarriers


def check(module: ModuleType, M: int, N: int, K: int, out: Any, kernel: Any = None, **options: Any) -> None:
    a, b, d = whole(M, K), whole(N, K), np.full((M, N), 77, out)
    module.gemm(a, b, d, kernel or module.matmul, **options)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.array_equal(d.astype(np.float64), exact.astype(out).astype(np.float64))


def few_ctas(number: int) -> dict[str, int]:
    """Persistent steps with one CTA, or one cluster, so that it computes several tiles."""
    return {"ctas": 1 if number == 6 else 2} if number >= 6 else {}


@pytest.mark.parametrize("number", STEPS)
def test_several_tiles(number):
    check(tutorial.load_step(number), 256, 256, 320, ml_dtypes.bfloat16, **few_ctas(number))


@pytest.mark.parametrize("number", range(1, 6))
def test_f32_results(number):
    check(tutorial.load_step(number), 128, 256, 64, np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("number", TMA_STEPS)
@pytest.mark.parametrize("K", [8, 392])
def test_sizes_that_tiles_do_not_divide(number, K):
    check(tutorial.load_step(number), 392, 264, K, ml_dtypes.bfloat16, **few_ctas(number))


@pytest.mark.thorough
@pytest.mark.parametrize("number", RING_STEPS)
@pytest.mark.parametrize("seed", range(3))
def test_other_orders_of_warps(number, seed):
    module = tutorial.load_step(number)
    kernel = module.matmul.emulator("sm_90a", order=seed)
    check(module, 264, 264, 392, ml_dtypes.bfloat16, kernel, **few_ctas(number))


@pytest.mark.thorough
@pytest.mark.parametrize("order", [None, 0])
def test_wide_tiles_of_the_last_step(order):
    module = tutorial.load_step(8)
    kernel = module.matmul.emulator("sm_90a", order=order)
    check(module, 392, 392, 392, ml_dtypes.bfloat16, kernel, ctas=2, wide=True)


@pytest.mark.parametrize("number", STEPS)
def test_sizes_that_a_step_refuses(number):
    module = tutorial.load_step(number)
    a, b, d = whole(128, 100), whole(256, 100), np.zeros((128, 256), ml_dtypes.bfloat16)
    with pytest.raises(tc.ArgumentError, match=r"multiples? of .* they are .*100"):
        module.gemm(a, b, d)


@pytest.mark.parametrize("number", STEPS)
def test_the_program_in_each_file(number, capsys):
    tutorial.load_step(number).main()
    assert capsys.readouterr().out == "D agrees with NumPy\n"


def assembler() -> Path:
    program = ptxas.find((8, 0))
    if program is None:
        pytest.skip("needs a whole-program ptxas")
    return program


@pytest.mark.thorough
@pytest.mark.parametrize("number", STEPS)
def test_assembles_without_spills_or_warnings(number):
    """By ptxas itself: nvJitLink ignores setmaxnreg."""
    kernel, matrix = tutorial.load_step(number).matmul, np.empty((4096, 4096), ml_dtypes.bfloat16)
    variants = [{"BN": 128, "STAGES": 6}, {"BN": 192, "STAGES": 4}] if number == 8 else [{}]
    for variant in variants:
        text = kernel.ptx(matrix, matrix, matrix, arch="sm_90a", **variant)
        _, log = ptxas.assemble(assembler(), text, "sm_90a", ["-v"])
        assert "0 bytes spill stores, 0 bytes spill loads" in log
        assert "C75" not in log and "warning" not in log


def test_each_file_stands_alone():
    """A reader copies it: it imports NumPy and the package, nothing else of the library."""
    for name in tutorial.NAMES:
        lines = Path(tutorial.__file__).with_name(f"{name}.py").read_text().splitlines()
        imports = [line for line in lines if line.startswith(("import ", "from "))]
        assert imports == [
            "from __future__ import annotations",
            "from typing import Any",
            "import numpy as np",
            "import tensorcore_dsl as tc",
        ]


def test_edited_step_replaces_one_place():
    module = tutorial.edited_step(4, "STAGES = 3", "STAGES = 2")
    assert module.STAGES == 2
    check(module, 128, 128, 256, ml_dtypes.bfloat16)
    with pytest.raises(tc.ArgumentError, match="0 times, not once: STAGES = 7"):
        tutorial.edited_step(4, "STAGES = 7", "")
