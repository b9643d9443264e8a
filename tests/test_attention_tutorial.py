"""The ladder of attention kernels: every step in emulation with all checks, and as the assembler sees it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.host import has_program_assembler
from tensorcore_dsl.kernels import tutorial
from tests.assembler import assert_clean
from tests.attention_cases import exact, operands

NAMES = tutorial.ATTENTION_NAMES
STEPS = range(1, len(NAMES) + 1)


def load_step(number: int) -> ModuleType:
    return tutorial.load_step(number, NAMES)


def check(number: int, queries: int, keys: int, causal: bool, seed: int | None = None, **sizes: Any) -> None:
    """One CTA of step 5 computes several tiles."""
    module, arrays = load_step(number), operands(queries, keys, **sizes)
    o = np.full_like(arrays[0], 7)
    order: Any = {} if seed is None else {"order": seed}
    kernel = module.attention_kernel.emulator("sm_90a", checks=True, **order)
    module.attention(*arrays, o, causal, kernel, **({"ctas": 1} if number == 5 else {}))
    want, _, bound = exact(*arrays, causal=causal)
    assert (abs(np.float64(o) - want) <= bound).all()


@pytest.mark.parametrize("number", STEPS)
@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_float64(number: int, causal: bool) -> None:
    """Without races; sizes that tiles do not divide, and more key tiles than stages."""
    check(number, 130, 333, causal)


@pytest.mark.thorough
@pytest.mark.parametrize("number", STEPS)
@pytest.mark.parametrize("seed", range(2))
def test_other_orders_of_warps(number: int, seed: int) -> None:
    check(number, 200, 333, True, seed, dim=128, dtype=np.float16)


@pytest.mark.parametrize("number", STEPS)
def test_one_query_and_one_key_agree_with_float64(number: int) -> None:
    check(number, 1, 1, True)


@pytest.mark.parametrize("queries, pack", [(8, 4), (32, 4), (33, 1)])
def test_heads_that_share_keys(queries: int, pack: int) -> None:
    """Packed, with all rows of a tile in use, and not packed."""
    check(5, queries, 150, True, heads=8, shared_by=4)


def test_the_counter_of_tiles_ends_at_zero() -> None:
    module, arrays = load_step(5), operands(300, 300, heads=2)
    tickets, results = np.zeros(1, np.int32), []
    for _ in range(2):
        results.append(np.zeros_like(arrays[0]))
        kernel = module.attention_kernel.emulator("sm_90a")
        module.attention(*arrays, results[-1], True, kernel, ctas=3, tickets=tickets)
        assert tickets[0] == 0
    assert np.array_equal(*results)


@pytest.mark.parametrize("number", STEPS)
def test_arguments_that_a_step_refuses(number: int) -> None:
    module = load_step(number)
    for sizes in ({"dim": 96}, {"heads": 3, "shared_by": 3, "width": 32}, {"queries": 80}):
        q, k, v = operands(**{"queries": 64, "keys": 70, **sizes})
        k = k[:, :, :, :32] if "width" in sizes else k
        with pytest.raises(tc.ArgumentError, match=r"64 or 128.* they are \(1, "):
            module.attention(q, k, v, np.empty_like(q), causal=True)


@pytest.mark.parametrize("number", STEPS)
def test_the_program_in_each_file(number: int, capsys: Any) -> None:
    load_step(number).main()
    assert capsys.readouterr().out == "o agrees with NumPy\n"


@pytest.mark.thorough
@pytest.mark.parametrize("number", STEPS)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_assembles_without_spills_or_warnings(number: int, dim: int, causal: bool) -> None:
    """By ptxas itself: nvJitLink ignores setmaxnreg."""
    if not has_program_assembler():
        pytest.skip("needs a whole-program ptxas")
    x, tickets = np.empty((1, 2, 2048, dim), ml_dtypes.bfloat16), np.zeros(1, np.int32)
    arrays = (x, x, x, x, tickets) if number == 5 else (x, x, x, x)
    kernel = load_step(number).attention_kernel
    used = kernel.resources(*arrays, 1.0, dim=dim, causal=causal, arch="sm_90a")
    assert_clean(used)


def test_each_file_stands_alone() -> None:
    """A reader copies it: it imports NumPy and the package, nothing else of the library."""
    for name in NAMES:
        lines = (tutorial.FOLDER / f"{name}.py").read_text().splitlines()
        imports = [line for line in lines if line.startswith(("import ", "from "))]
        assert imports == [
            "from __future__ import annotations",
            "import math",
            "from typing import Any",
            "import numpy as np",
            "import tensorcore_dsl as tc",
        ]
