"""Arguments of the wrong kind for every public function, in kernels and outside of them."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import tensorcore_dsl as tc
from tests.refused_kernels import F32, MATRIX, Refusals, check
from tests.running import execute_text

refused = Refusals()
X = np.zeros(32, np.float32)
HOST = ("Config", "autotune", "current_target", "emulate", "kernel", "target")
FUNCTIONS = [name for name in tc.__all__ if inspect.isfunction(getattr(tc, name)) and name not in HOST]
FOREIGN = re.compile(
    "TypeError|AttributeError|KeyError|IndexError|ValueError|AssertionError|has no attribute|"
    "object is not|not supported between|unsupported operand|<class|object at 0x|NoneType'|has no len"
)
GIVEN = ("None", "'a'", "-1.5", "tile", "x", "n", "acc", "{}", "tc.f32", "lambda: 1", "bars")
TEXT = """
def f(x, n):
    tile, bars = tc.shared((16, 16), tc.f16), tc.mbarriers(2)
    acc = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32).d.zeros()
    tc.%s
"""


def calls_of(name: str) -> list[str]:
    """Calls with one to three arguments of each kind, and with ones that do not exist."""
    several = [", ".join([given] * count) for given in GIVEN for count in (1, 2, 3)]
    return [f"{name}({given})" for given in ("", "nothing=1", "*range(12)", *several)]


def kernel_of(call: str) -> tc.Kernel:
    """A kernel with the call in its last line."""
    return tc.kernel(execute_text(TEXT % call, f"<{call}>", {"tc": tc})["f"])


@pytest.mark.quick(lambda name: getattr(tc, name).__module__)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_error_of_python_inside_the_library_is_shown(name):
    for call in calls_of(name):
        try:
            kernel_of(call).ptx(F32, tc.s32, arch="sm_90a")
        except tc.TensorCoreError as error:
            assert not FOREIGN.search(error.message), (call, error.message)
            assert error.loc is not None, (call, error.message)
            assert error.loc.chain()[-1].line == TEXT.count("\n"), (call, str(error))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_outside_of_kernels(name):
    for args in ((), (1,), ("a",), (None, 1), (1, 2, 3), (X,), (X, X)):
        if name == "static_range" and args and all(isinstance(arg, int) for arg in args):
            continue  # a range
        with pytest.raises(tc.TensorCoreError) as caught:
            called = getattr(tc, name)(*args)
            if name == "devices":
                called.__enter__()
        assert not FOREIGN.search(caught.value.message), caught.value.message


# -- the argument that is wrong -----------------------------------------------------------------


@refused("a pointer is needed, tc.load(x.at(i, j), pred=...), not 3", "tc.load(3)")
def loads_from_a_number():
    tc.load(3)


@refused(
    "the argument 'instr' of tc.wgmma_async must be an instruction, such as "
    "tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32), not None",
    "tc.wgmma_async(None, None, tile, tile)",
    arch="sm_90a",
)
def multiplies_by_nothing():
    tile = tc.shared((64, 16), tc.f16)
    tc.wgmma_async(None, None, tile, tile)


@refused("a number or a run-time value is needed, not the type f32", "tc.maximum(f, tc.f32)", tc.f32)
def compares_with_a_type(f):
    tc.maximum(f, tc.f32)


@refused("a fragment is needed, not a lambda", "tc.row_sum(lambda: 1)")
def sums_a_lambda():
    tc.row_sum(lambda: 1)


@refused(
    "a role is a number of warpgroups and a function, such as (1, produce); role 0 is the function produce",
    "tc.warp_specialize(produce)",
    arch="sm_90a",
)
def forgets_the_warpgroups():
    def produce():
        tc.barrier()

    tc.warp_specialize(produce)


@refused("a block has 1 to 1024 threads, not -1", "tc.launch_bounds(-1)")
def bounds_nothing():
    tc.launch_bounds(-1)


@refused("static_range takes 1 to 3 bounds, 0 were given", "tc.static_range()")
def unrolls_nothing():
    for _ in tc.static_range():
        tc.barrier()


@refused(
    "the argument 'source' of tc.tma_load must be a TensorMap, not a 2-dimensional f32 array",
    "tc.tma_load(tile, x, (0, 0), bars[0])",
    MATRIX,
    arch="sm_90a",
)
def loads_without_a_map(x):
    tile, bars = tc.shared((16, 16), tc.f32), tc.mbarriers(1)
    tc.tma_load(tile, x, (0, 0), bars[0])


@pytest.mark.parametrize("case", refused, ids=lambda case: case.name)
def test_wrong_calls_are_refused(case):
    check(case)
